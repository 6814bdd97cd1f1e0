"""The rules example in memory: its real operator and coordinator, on a job that is driven by hand.

The kernel, the log's format and the restore are the real ones; there is no Spark, no Kafka, no
clock. Each test is an interleaving, written down. Rules are made at each second that passes, and
one in the middle of each checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from coordlog.api.chain import Chain, SourceSpec
from coordlog.api.coordinator import CoordinatorContext, CoordinatorProvider, OperatorCoordinator
from coordlog.api.operator import Poll, PollStatus, SourceReader
from coordlog.log.memory import MemoryLog
from coordlog.messages import DeliverEvent, InjectBarrier
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from examples.rules_parts.account import Account, read_account
from examples.rules_parts.coordinator import OPERATOR_ID, RulesState, rules_spec
from examples.rules_parts.events import RuleApplied, RulesFinished, RuleUpdate
from examples.rules_parts.operator import RuleInForce, RulesOperator, RulesOutOfOrderError
from examples.rules_parts.proof import Found, OutputRow, amount_of, lost_rules, problems


class NoRows(SourceReader):
    """The rows are the test's."""

    def add_splits(self, splits: object) -> None:
        """None come."""

    def poll(self) -> Poll:
        """Nothing."""
        return Poll(status=PollStatus.WAITING)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        """Nothing."""
        return b""


class Silent(OperatorCoordinator):
    """The source's."""

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """None come."""


class SilentProvider(CoordinatorProvider):
    """The source's."""

    operator_id = "source"

    def create(self, context: CoordinatorContext) -> Silent:
        """One that does nothing."""
        return Silent(context)


CHAIN = Chain(
    source=SourceSpec(operator_id="source", create_reader=NoRows, coordinator=SilentProvider()),
    operators=[rules_spec(interval_s=1.0)],
)


def new_job(log: MemoryLog | None = None) -> HandDrivenJob:
    """Two subtasks; on the log of a driver that has died, its successor."""
    return HandDrivenJob(CHAIN, parallelism=2, log=log)


class Subtask:
    """A real `RulesOperator` in an attempt; nothing of what it is sent happens before `take`."""

    def __init__(self, job: HandDrivenJob, subtask: int) -> None:
        self.attempt: FakeAttempt = job.register(subtask)
        self.subtask = subtask
        self.operator = RulesOperator()
        self.seen: list[int] = []
        """The rules that this attempt has handled."""
        self._taken = 1  # the first message is the answer to the registration
        states = {one.operator_id: one.state for one in self.attempt.accepted.states}
        self.operator.open(self, states.get(OPERATOR_ID))  # type: ignore[arg-type]

    def send_event(self, event: Payload) -> None:
        """What the operator calls: the context's."""
        self.attempt.send(OPERATOR_ID, event)

    @property
    def state(self) -> RuleInForce:
        """What a snapshot would hold now."""
        return RuleInForce.from_bytes(self.operator.snapshot_state(0).state or b"")

    def take(self, count: int | None = None) -> list[int]:
        """Do the next messages, or all: rules and barriers, in order; the rules handled by this."""
        before = len(self.seen)
        while self._taken < len(self.attempt.inbox) and count != 0:
            message = self.attempt.inbox[self._taken]
            self._taken += 1
            if isinstance(message, DeliverEvent):
                event = CHAIN.payload_types.decode(message.payload_type, message.payload)
                assert isinstance(event, RuleUpdate)
                self.operator.handle_event(event)
                self.seen.append(event.number)
                self.attempt.ack(OPERATOR_ID, message.event_id)
            elif isinstance(message, InjectBarrier):
                state = self.operator.snapshot_state(message.checkpoint_id).state
                self.attempt.ack_checkpoint(
                    message.checkpoint_id, states={OPERATOR_ID: state or b""}
                )
            else:
                continue
            count = None if count is None else count - 1
        return self.seen[before:]

    def end(self) -> None:
        """No more rows."""
        list(self.operator.finish())
        state = self.operator.final_snapshot().state
        self.attempt.complete(states={OPERATOR_ID: state or b""})


def take_all(*subtasks: Subtask) -> None:
    for one in subtasks:
        one.take()


def rules_handled(account: Account, subtask: int) -> list[int]:
    return [one.rule.number for one in account.handled.get(subtask, [])]


def rules_heard(account: Account, subtask: int) -> list[int]:
    events = [one.event for one in account.heard.get(subtask, [])]
    assert all(isinstance(one, (RuleApplied, RulesFinished)) for one in events)
    return [one.number for one in events if isinstance(one, RuleApplied)]


def coordinator_state(job: HandDrivenJob) -> RulesState:
    """As a checkpoint would hold it: one is triggered, and the bytes are in its record."""
    job.trigger()
    cut = [
        one for one in job.history(Kind.COORDINATOR_CHECKPOINTED) if one.operator_id == OPERATOR_ID
    ][-1]
    assert cut.payload is not None
    return RulesState.from_bytes(cut.payload)


# Rules and checkpoints


def test_every_subtask_is_sent_every_rule() -> None:
    job = new_job()
    one, other = Subtask(job, 0), Subtask(job, 1)

    job.advance(3.0)

    assert (one.take(), other.take()) == ([1, 2, 3], [1, 2, 3])
    assert one.state.number == 3
    assert one.state.factor == other.state.factor


def test_a_rule_made_during_a_checkpoint_waits_for_the_barriers_ack() -> None:
    job = new_job()
    one, other = Subtask(job, 0), Subtask(job, 1)
    job.advance(1.0)
    take_all(one, other)

    job.trigger()  # rule 2 is made behind the cut
    job.advance(1.0)  # and rule 3 a second later
    account = read_account(job.log)

    assert [e.rule.number for e in account.sent.values() if e.is_held] == [2, 2, 3, 3]
    assert [type(m) for m in one.attempt.inbox].count(DeliverEvent) == 1
    assert one.take(1) == []  # the barrier: its snapshot has rule 1
    assert one.take() == [2, 3]
    assert [type(m) for m in other.attempt.inbox].count(DeliverEvent) == 1


# A local failover


def test_a_failed_subtask_gets_the_rules_again_that_its_checkpoint_lacks() -> None:
    job = new_job()
    one, other = Subtask(job, 0), Subtask(job, 1)
    job.advance(2.0)
    take_all(one, other)
    job.trigger()  # rule 3 is behind its cut
    take_all(one, other)
    job.advance(2.0)
    take_all(one, other)

    one.attempt.fail("scripted")
    again = Subtask(job, 0)

    assert (one.seen, other.seen) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])
    assert again.state.number == 2
    assert again.take() == [3, 4, 5]
    assert other.take() == []  # its neighbour hears nothing
    assert rules_heard(read_account(job.log), 0) == [1, 2, 3, 4, 5]  # what was lost counts once
    assert coordinator_state(job).view(0).applied == 5


def test_rules_held_for_an_attempt_that_dies_reach_the_next_one() -> None:
    job = new_job()
    one, other = Subtask(job, 0), Subtask(job, 1)
    job.advance(1.0)
    take_all(one, other)
    job.trigger()
    job.advance(1.0)

    one.attempt.lose()  # aborts the checkpoint; rules 2 and 3 were held for it
    assert other.take() == [2, 3]
    again = Subtask(job, 0)

    assert again.take() == [1, 2, 3]
    assert read_account(job.log).undecided == []


def test_rules_made_while_a_subtask_has_no_attempt_are_owed_to_it() -> None:
    job = new_job()
    one, other = Subtask(job, 0), Subtask(job, 1)
    one.attempt.fail("scripted")

    job.advance(2.0)
    assert other.take() == [1, 2]
    again = Subtask(job, 0)

    assert again.take() == [1, 2]


# A global failover


@pytest.mark.may_fail("heard RuleApplied")
def test_a_word_that_comes_twice_fails_the_job_and_all_go_back_together() -> None:
    job = new_job()
    one, other = Subtask(job, 0), Subtask(job, 1)
    job.advance(1.0)
    take_all(one, other)
    job.trigger()
    take_all(one, other)

    one.send_event(RuleApplied(number=1))
    job.stage_ends("cancelled")
    job.advance(0.9)  # the wait before a restart
    again, other_again = Subtask(job, 0), Subtask(job, 1)
    job.advance(1.0)

    (failure,) = job.history(Kind.GLOBAL_FAILURE)
    assert RulesOutOfOrderError.__name__ in (failure.reason or "")
    assert (again.take(), other_again.take()) == ([2], [2])
    assert coordinator_state(job).view(0).applied == 2


# The driver dies


def test_after_a_crash_the_job_continues_and_a_new_branch_has_new_rules() -> None:
    job = new_job()
    one, other = Subtask(job, 0), Subtask(job, 1)
    job.advance(2.0)
    take_all(one, other)
    job.trigger()
    take_all(one, other)
    job.advance(5.0)
    take_all(one, other)

    job.crash()
    job = new_job(job.log)
    one, other = Subtask(job, 0), Subtask(job, 1)
    job.advance(2.0)
    take_all(one, other)
    account = read_account(job.log)

    assert job.mode == "rollback"
    assert (one.seen, other.seen) == ([3, 4], [3, 4])  # rules 3 to 8 of the old branch are undone
    assert rules_handled(account, 0) == rules_handled(account, 1) == [1, 2, 3, 4]
    assert rules_heard(account, 0) == rules_heard(account, 1) == [1, 2, 3, 4]


def test_a_word_on_its_way_at_the_cut_is_delivered_again_once() -> None:
    job = new_job()
    one, other = Subtask(job, 0), Subtask(job, 1)
    job.advance(1.0)
    other.take()
    job.trigger()  # cut: subtask 0 has been sent rule 1, and has said nothing yet
    take_all(one, other)  # now it says so, then the barrier reaches it

    job.crash()
    job = new_job(job.log)
    account = read_account(job.log)

    assert account.redelivered == 1
    assert rules_heard(account, 0) == [1]
    assert coordinator_state_after_restore(job).view(0).applied == 1


def coordinator_state_after_restore(job: HandDrivenJob) -> RulesState:
    """A checkpoint needs attempts."""
    for subtask in range(2):
        Subtask(job, subtask).take()
    return coordinator_state(job)


def test_a_crash_before_the_first_checkpoint_begins_with_rule_1_again() -> None:
    job = new_job()
    one, other = Subtask(job, 0), Subtask(job, 1)
    job.advance(3.0)
    take_all(one, other)

    job.crash()
    job = new_job(job.log)
    one, other = Subtask(job, 0), Subtask(job, 1)
    job.advance(1.0)

    assert (one.take(), other.take()) == ([1], [1])


# The end


def test_a_subtask_that_has_finished_is_sent_no_more_rules() -> None:
    job = new_job()
    one, other = Subtask(job, 0), Subtask(job, 1)
    job.advance(1.0)
    take_all(one, other)

    one.end()
    job.advance(2.0)

    assert other.take() == [2, 3]
    assert coordinator_state(job).view(0).rows == 0
    assert read_account(job.log).failed == {}


def test_a_subtask_that_said_it_had_finished_and_died_is_sent_rules_again() -> None:
    job = new_job()
    one, _ = Subtask(job, 0), Subtask(job, 1)
    list(one.operator.finish())
    one.attempt.lose()

    again = Subtask(job, 0)
    job.advance(1.0)

    assert again.take() == [1]


# The operator alone


def test_each_row_has_its_subtask_its_place_its_rule_and_its_price() -> None:
    job = new_job()
    one, _ = Subtask(job, 0), Subtask(job, 1)
    batch = pa.RecordBatch.from_pydict({"id": [7, 8], "amount": [10, 20]})

    first = next(one.operator.process(batch)).to_pylist()
    one.operator.handle_event(RuleUpdate(number=1, factor=3))
    second = next(one.operator.process(batch)).to_pylist()

    assert first[1] == {"id": 8, "amount": 20, "subtask": 0, "nth": 2, "rule": 0, "price": 20}
    assert second[0] == {"id": 7, "amount": 10, "subtask": 0, "nth": 3, "rule": 1, "price": 30}


@pytest.mark.parametrize("number", [1, 3])
def test_the_operator_refuses_a_rule_twice_and_a_rule_too_early(number: int) -> None:
    job = new_job()
    one, _ = Subtask(job, 0), Subtask(job, 1)
    one.operator.handle_event(RuleUpdate(number=1, factor=3))

    with pytest.raises(RulesOutOfOrderError):
        one.operator.handle_event(RuleUpdate(number=number, factor=3))


# The proof: it must find what is wrong, one thing at a time


def proved() -> tuple[Account, Found]:
    """A job of two subtasks that went well: two rules, a row before them and one after each."""
    job = new_job()
    subtasks = [Subtask(job, 0), Subtask(job, 1)]
    rows: list[OutputRow] = []
    for step in range(3):
        for one in subtasks:
            row_id = len(rows)
            batch = pa.RecordBatch.from_pydict({"id": [row_id], "amount": [amount_of(row_id)]})
            rows += next(one.operator.process(batch)).to_pylist()
        if step < 2:
            job.advance(1.0)
            for one in subtasks:
                one.take()
    for one in subtasks:
        one.end()
    account = read_account(job.log)
    state = RulesState.from_bytes(b'{"factors": [], "views": {}}')
    state.factors = [one.rule.factor for one in account.handled[0]]
    for word in account.words.values():
        state.view(word.subtask).hear(word.event)
    found = Found(
        coordinator=state, operators={n: s.state for n, s in enumerate(subtasks)}, rows=rows
    )
    return account, found


def found_wrong(account: Account, found: Found) -> list[str]:
    return problems(account, found, parallelism=2, row_count=6)


def test_what_went_well_is_proved() -> None:
    assert found_wrong(*proved()) == []


def test_a_rule_that_was_not_handled_is_lost() -> None:
    account, found = proved()
    del account.handled[1][0]

    assert lost_rules(account, found) == [(1, 1)]
    assert any("lost: subtask and rule [(1, 1)]" in line for line in found_wrong(account, found))


def test_an_event_without_a_fate_is_lost() -> None:
    account, found = proved()
    account.acked.remove(min(account.acked))

    assert lost_rules(account, found) == [(0, 1)]


def test_a_rule_or_a_word_that_counts_twice_is_found() -> None:
    account, found = proved()
    account.handled[0].append(account.handled[0][-1])
    account.heard[1].append(account.heard[1][-1])

    wrong = found_wrong(account, found)
    assert "subtask 0: handled rules 2 in place 3 of 3, expected 1 to 2" in wrong
    assert any(line.startswith("subtask 1: the coordinator heard") for line in wrong)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda rows: rows[:-1], "rows are not counted"),
        (lambda rows: [*rows, rows[-1]], "rows are not counted"),
        (lambda rows: [*rows[:4], rows[5], {**rows[4], "rule": 1}], "price"),
        (lambda rows: [{**rows[0], "rule": 2}, *rows[1:]], "an older rule"),
        (lambda rows: [{**rows[0], "id": 1}, *rows[1:]], "5 of them different"),
        (lambda rows: [*rows[:5], {**rows[5], "rule": 9}], "was not in force"),
    ],
)
def test_a_row_lost_doubled_or_priced_by_another_rule_is_found(
    harm: Callable[[list[OutputRow]], list[OutputRow]], says: str
) -> None:
    account, found = proved()

    wrong = found_wrong(account, replace(found, rows=harm(list(found.rows))))

    assert any(says in line for line in wrong), wrong
