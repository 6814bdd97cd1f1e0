"""A job whose operators have changed: what is let go by name, what is refused by name (clause E8)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from coordlog.api.chain import Chain, OperatorSpec
from coordlog.errors import RecordError, RestoreError
from coordlog.log.memory import MemoryLog
from coordlog.log.payload_store import PayloadStore
from coordlog.payloads.offload import PayloadOptions
from coordlog.projections.job.state import Phase
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import (
    HANDLED,
    TYPES,
    FakeSink,
    IdleOperator,
    Noted,
    NotingProvider,
    Tick,
    Up,
    chain_of,
    inside,
    prefix_of,
    send_down,
)
from fakes.request_fakes import AnsweringProvider, HowMany

pytestmark = pytest.mark.clause("E8")


def rules(**more: object) -> AnsweringProvider:
    """The provider of an operator that will be gone, with types that nobody else has."""
    types = (*AnsweringProvider().payload_types, *TYPES)
    made = AnsweringProvider("rules", payload_types=tuple(dict.fromkeys(types)))
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]


def source(**more: object) -> NotingProvider:
    """The provider of the source, without the types of `rules`."""
    return dataclasses.replace(NotingProvider("source", payload_types=(Up,)), **more)  # type: ignore[arg-type]


def plain(operator_id: str, **more: object) -> OperatorSpec:
    """An operator without a coordinator."""
    made = OperatorSpec(operator_id=operator_id, create_operator=IdleOperator)
    return replace(made, **more)  # type: ignore[arg-type]


def with_operators(chain: Chain, *operators: OperatorSpec) -> Chain:
    return Chain(source=chain.source, operators=operators)


def restarted(
    old: HandDrivenJob, chain: Chain, *, allow: Sequence[str] = (), restore: str | None = None
) -> HandDrivenJob:
    """The next driver of a job that was crashed, with another chain."""
    return HandDrivenJob(
        chain,
        log=old.log,
        restore=restore,
        is_batch=old.runtime.state.is_batch,
        allow_non_restored_state=allow,
    )


def refused(
    old: HandDrivenJob, chain: Chain, *, allow: Sequence[str] = (), restore: str | None = None
) -> str:
    """Why the next driver refuses; nothing is appended."""
    before = old.log.high_watermark()
    with pytest.raises(RestoreError) as raised:
        restarted(old, chain, allow=allow, restore=restore)
    assert old.log.high_watermark() == before
    return str(raised.value)


def crashed(
    chain: Chain,
    *,
    states: dict[str, bytes] | None = None,
    committables: Sequence[tuple[str, bytes]] = (),
    then: Callable[[HandDrivenJob, FakeAttempt], object] | None = None,
) -> HandDrivenJob:
    """A driver that died after checkpoint 1."""
    job = HandDrivenJob(chain)
    attempt = job.register(0)
    job.trigger()
    if then is not None:
        then(job, attempt)
    attempt.ack_checkpoint(1, states=states, committables=committables)
    assert job.runtime.state.last_checkpoint == 1
    job.crash()
    return job


def test_a_coordinators_state_is_refused_and_let_go_by_name() -> None:
    one = source()
    old = crashed(chain_of(one, rules()))
    left = chain_of(one)

    said = refused(old, left)
    assert (
        "the state of operator 'rules' is part of checkpoint 1 in the log and of no operator"
        in said
    )
    assert "allow_non_restored_state=('rules',)" in said
    assert "'rules'" in refused(old, left, allow=("source", "rule")), "by its own name only"

    one.calls.clear()
    job = restarted(old, left, allow=("rules",))
    assert one.said("restore") == [("restore", 1, b"state of 1")], "the others are restored"
    assert job.runtime.state.operators == ("source",)


def test_a_subtasks_state_is_refused_and_let_go_by_name() -> None:
    chain = chain_of(source())
    old = crashed(with_operators(chain, plain("dedup")), states={"dedup": b"seen", "source": b"s"})

    assert "the state of operator 'dedup' is part of checkpoint 1" in refused(old, chain)
    assert restarted(old, chain, allow=("dedup",)).register(0).accepted.restored_checkpoint == 1


def test_what_is_let_go_by_name_needs_no_payload_store(tmp_path: Path) -> None:
    """Nobody opens it: the store may be gone with the operators that needed it."""
    one = source(projection=HANDLED)
    chain = chain_of(one, rules(is_cut_at_once=False))
    store = PayloadStore(str(tmp_path / "payloads"), "job")
    job = HandDrivenJob(
        with_operators(chain, *chain.operators, plain("dedup")),
        payloads=PayloadOptions(store=store, limit_bytes=4),
    )
    attempt = job.register(0)
    job.trigger()
    cut_of_rules = chain.operators[0].coordinator
    assert isinstance(cut_of_rules, AnsweringProvider)
    inside(attempt, cut_of_rules, lambda c: c.results[1].complete(b"r" * 300))
    attempt.send("rules", Up(n=10**9))
    attempt.ack_checkpoint(1, states={"dedup": b"seen" * 100})
    assert len(store.listed()) == 3, "a cut, an event behind it, and a state"
    job.crash()

    left = chain_of(one)
    assert "the state of operator 'rules'" in refused(job, left, allow=("dedup",))
    new = restarted(job, left, allow=("rules", "dedup"))
    assert new.register(0).accepted.restored_checkpoint == 1
    assert len(new.history(Kind.EVENT_REDELIVERED)) == 1


@pytest.mark.parametrize(
    "between",
    [(plain("dedup", version=2, restores=(1,)),), ()],
    ids=["upgraded", "removed"],
)
def test_the_version_that_counts_is_that_of_the_checkpoint(
    between: tuple[OperatorSpec, ...],
) -> None:
    """An epoch that died before a checkpoint of its own has left the state as it was."""
    chain = chain_of(source())
    old = crashed(with_operators(chain, plain("dedup")), states={"dedup": b"first"})
    restarted(old, with_operators(chain, *between), allow=("dedup",)).crash()

    third = with_operators(chain, plain("dedup", version=3, restores=(2,)))
    said = refused(old, third)
    assert "the version of operator 'dedup' in checkpoint 1 is 1 in the log and 3 here" in said
    reading = with_operators(chain, plain("dedup", version=3, restores=(1, 2)))
    job = restarted(old, reading)
    accepted = job.register(0).accepted
    assert [part.state for part in accepted.states if part.operator_id == "dedup"] == [b"first"]


def test_a_version_that_fails_gives_way_to_the_earlier_one() -> None:
    """It has died before a checkpoint of its own: nothing of its state is left."""
    chain = chain_of(source())
    old = crashed(with_operators(chain, plain("dedup")), states={"dedup": b"first"})
    restarted(old, with_operators(chain, plain("dedup", version=2, restores=(1,)))).crash()

    said = refused(old, with_operators(chain, plain("dedup")))
    assert "is 2 in the log and 1 here; run version 2; or declare restores=(2,)" in said
    assert "or if the job rolls back to before version 2;" in said
    job = restarted(old, with_operators(chain, plain("dedup", restores=(2,))))
    accepted = job.register(0).accepted
    assert [part.state for part in accepted.states if part.operator_id == "dedup"] == [b"first"]


def test_a_savepoint_is_read_by_code_that_reads_its_version() -> None:
    chain = chain_of(source())
    old = crashed(with_operators(chain, plain("dedup")), states={"dedup": b"first"})
    second = restarted(old, with_operators(chain, plain("dedup", version=2, restores=(1,))))
    attempt = second.register(0)
    assert second.trigger() == 2
    attempt.ack_checkpoint(2, states={"dedup": b"second"})
    second.crash()
    third = with_operators(chain, plain("dedup", version=3, restores=(2,)))

    with pytest.raises(RestoreError, match="'dedup' in checkpoint 1 is 1 in the log and 3 here"):
        HandDrivenJob(third, log=old.log, from_checkpoint=1)
    assert restarted(old, third).runtime.state.last_checkpoint == 2


def ended_under_two_versions() -> HandDrivenJob:
    """Subtask 0 has finished under version 1; version 2 has completed checkpoint 2, and has died."""
    chain = chain_of(source(projection=HANDLED))
    old = HandDrivenJob(with_operators(chain, plain("dedup")), parallelism=2)
    first, second = old.register_all()
    first.complete(states={"dedup": b"first"})
    old.trigger()
    second.ack_checkpoint(1, states={"dedup": b"first"})
    old.crash()
    reading = plain("dedup", version=2, restores=(1,))
    job = HandDrivenJob(with_operators(chain, reading), log=old.log, parallelism=2)
    (attempt,) = job.register_all()
    assert job.trigger() == 2
    attempt.ack_checkpoint(2, states={"dedup": b"second"})
    return job


def merging(chain: Chain, **more: object) -> Chain:
    return with_operators(chain, plain("dedup", merge_states=b"+".join, **more))


def test_a_finished_subtasks_state_is_of_the_version_that_it_ended_with() -> None:
    """It is handed to an attempt again if the job is rescaled, however many checkpoints later."""
    old = ended_under_two_versions()
    old.crash()
    third = merging(old.chain, version=3, restores=(2,))

    with pytest.raises(
        RestoreError, match="in checkpoint 2, where subtask 0 had finished, is 1 in"
    ):
        HandDrivenJob(third, log=old.log, parallelism=1)
    reading = merging(old.chain, version=3, restores=(1, 2))
    (attempt,) = HandDrivenJob(reading, log=old.log, parallelism=1).register_all()
    assert {part.state for part in attempt.accepted.states} == {b"first", b"second"}


def test_a_finished_subtask_that_stays_so_needs_no_reader_of_its_state() -> None:
    old = ended_under_two_versions()
    old.crash()
    third = with_operators(old.chain, plain("dedup", version=3, restores=(2,)))
    job = HandDrivenJob(third, log=old.log, parallelism=2)

    assert [one.subtask for one in job.register_all()] == [1]


@pytest.mark.parametrize("has_died", [False, True], ids=["at once", "after a driver that died"])
def test_a_job_opened_again_reads_the_versions_of_all_its_ends(*, has_died: bool) -> None:
    old = ended_under_two_versions()
    old.attempts[1].complete(states={"dedup": b"second"})
    assert old.runtime.state.phase is Phase.FINISHED
    if has_died:
        reading = with_operators(old.chain, plain("dedup", version=2, restores=(1,)))
        HandDrivenJob(reading, log=old.log, parallelism=2, again=True).crash()
    third = with_operators(old.chain, plain("dedup", version=3, restores=(2,)))

    with pytest.raises(RestoreError, match=r"'dedup' in checkpoint 3.* is 1 in the log and 3 here"):
        HandDrivenJob(third, log=old.log, parallelism=2, again=not has_died)


def test_states_merged_at_their_ends_are_not_handed_out_unmerged() -> None:
    chain = chain_of(source(projection=HANDLED))
    job = HandDrivenJob(with_operators(chain, plain("dedup")), parallelism=2)
    for attempt in job.register_all():
        attempt.complete(states={"dedup": b"%d" % attempt.subtask})
    first = next(n for n in range(job.log.high_watermark()) if _completes(job, n))
    ended = HandDrivenJob(merging(chain), log=prefix_of(job.log, first + 1), parallelism=1)
    assert ended.runtime.state.phase is Phase.FINISHED
    before = ended.log.high_watermark()

    unmerged = with_operators(chain, plain("dedup"))
    with pytest.raises(RestoreError, match="before they became subtask 0") as raised:
        HandDrivenJob(unmerged, log=ended.log, parallelism=1, again=True)
    assert "merge_states" in str(raised.value)
    assert ended.log.high_watermark() == before
    HandDrivenJob(merging(chain), log=ended.log, parallelism=1, again=True)


def test_merged_ends_are_of_the_versions_of_them_all() -> None:
    chain = chain_of(source(projection=HANDLED))
    log: MemoryLog | None = None
    for version, parallelism, ended in ((1, 4, 0), (2, 4, 2), (3, 2, None)):
        reading = merging(chain, version=version, restores=tuple(range(1, version)))
        job = HandDrivenJob(reading, log=log, parallelism=parallelism)
        log, attempts = job.log, {attempt.subtask: attempt for attempt in job.register_all()}
        state = {"dedup": b"%d" % version}
        if ended is not None:
            attempts.pop(ended).complete(states=state)
        number = job.trigger()
        assert number is not None
        for attempt in attempts.values():
            attempt.ack_checkpoint(number, states=state)
        job.crash()

    for version in (1, 2):  # those of subtasks 0 and 2 of four, which are subtask 0 of two
        others = tuple(one for one in (1, 2, 3) if one != version)
        with pytest.raises(RestoreError, match=f"had finished, is {version} in the log and 4"):
            HandDrivenJob(merging(chain, version=4, restores=others), log=log, parallelism=1)
    reading = merging(chain, version=4, restores=(1, 2, 3))
    (attempt,) = HandDrivenJob(reading, log=log, parallelism=1).register_all()
    assert {part.state for part in attempt.accepted.states} == {b"1", b"2", b"3"}


def _completes(job: HandDrivenJob, offset: int) -> bool:
    (stored,) = job.log.read(offset, offset + 1)
    return stored.record().kind is Kind.CHECKPOINT_COMPLETED


def test_an_operator_that_left_no_state_may_go() -> None:
    chain = chain_of(source())
    stateless = rules()
    stateless.is_cut_at_once = False
    stateless.on["cut"] = lambda coordinator, number: coordinator.results[number].complete(b"")
    with_both = chain_of(source(), stateless)
    old = crashed(with_operators(with_both, *with_both.operators, plain("map")))
    job = restarted(old, chain)

    assert job.mode == "rollback"
    assert job.register(0).accepted.restored_checkpoint == 1


def test_before_the_first_checkpoint_a_rollback_has_nothing_to_let_go() -> None:
    old = HandDrivenJob(chain_of(source(), rules()))
    old.register(0)
    old.crash()

    assert restarted(old, chain_of(source())).runtime.state.phase is Phase.RUNNING


@pytest.mark.clause("E9")
def test_types_of_a_removed_operator_are_known_by_schema_and_not_decoded() -> None:
    one, gone = source(projection=HANDLED), rules(projection=HANDLED)

    def use(job: HandDrivenJob, attempt: FakeAttempt) -> None:
        attempt.send("rules", Tick(n=1))  # handled after the cut: channel state
        inside(attempt, gone, send_down(gone, 0, 3))
        attempt.ack("rules", 0)
        job.ask("rules", HowMany())

    old = crashed(chain_of(one, gone), then=use)
    one.calls.clear()
    job = restarted(old, chain_of(one), allow=("rules",))

    kept = job.runtime.state.types
    assert {"test.down@1", "test.tick@1", "test.how_many@1", "test.so_many@1"} <= {*kept}
    again = job.history(Kind.EVENT_REDELIVERED)
    assert [one.operator_id for one in again] == ["rules", "rules"]
    assert [said[0] for said in one.calls] == ["create", "restore", "start", "complete"]
    job.crash()
    assert restarted(job, chain_of(one), allow=("rules",)).mode == "rollback", "and so on"


def test_a_type_that_an_operator_which_is_left_has_used_must_be_declared() -> None:
    one = source(payload_types=(Up, Noted))
    job = HandDrivenJob(chain_of(one, rules()))
    inside(job.register(0), one, lambda coordinator: coordinator.context.record(Noted(text="x")))
    job.crash()

    with pytest.raises(RecordError, match=r"test\.noted@1 is not one of this job's"):
        restarted(job, chain_of(source()), allow=("rules",))


def test_a_removed_operator_is_forgotten_after_a_checkpoint_without_it() -> None:
    old = crashed(chain_of(source(), rules()))
    job = restarted(old, chain_of(source()), allow=("rules",))
    job.crash()
    assert "'rules'" in refused(job, chain_of(source())), "checkpoint 1 still has it"
    job = restarted(job, chain_of(source()), allow=("rules",))
    attempt = job.register(0)
    number = job.trigger()
    assert number is not None
    attempt.ack_checkpoint(number)
    job.crash()

    assert restarted(job, chain_of(source())).mode == "rollback"


def test_an_added_operator_begins_with_no_state() -> None:
    one, added = source(), rules(projection=HANDLED)
    old = crashed(chain_of(one), states={"source": b"s"})
    job = restarted(old, chain_of(one, added))

    assert added.said("create", "restore", "start") == [
        ("create",),
        ("restore", 1, None),
        ("start",),
    ]
    assert job.runtime.state.projections["rules"] == ()
    assert [one.operator_id for one in job.register(0).accepted.states] == ["source"]


def test_a_returning_operator_is_restored_from_a_checkpoint_that_has_it() -> None:
    one, gone = source(), rules()
    old = crashed(chain_of(one, gone))
    away = restarted(old, chain_of(one), allow=("rules",))
    away.crash()
    gone.calls.clear()
    restarted(away, chain_of(one, gone))

    assert gone.said("restore") == [("restore", 1, b"state of 1")]


def test_a_returning_source_is_at_the_location_that_its_checkpoint_has() -> None:
    """The last epoch had another source, and says nothing about the location of this one."""

    def at(location: str, operator_id: str = "source") -> Chain:
        chain = chain_of(source(operator_id=operator_id, projection=HANDLED))
        return replace(chain, source=replace(chain.source, location=location))

    old = crashed(at("/in/a"))
    away = restarted(old, at("/in/other", "another"), allow=("source",))
    away.crash()

    assert "the source is /in/a in the log and /in/b here" in refused(away, at("/in/b"))
    assert restarted(away, at("/in/a")).mode == "rollback"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (plain("map", version=2), "the version of operator 'map' is 1 in the log and 2 here"),
        (
            plain("map", keeps_state_across_splits=False),
            "the keeping of state across splits by operator 'map' is True in the log and False",
        ),
        (
            plain("map", coordinator=NotingProvider("map")),
            "the presence of a coordinator of operator 'map' is False in the log and True here",
        ),
    ],
)
def test_an_operator_that_has_changed_is_refused_by_name(changed: OperatorSpec, says: str) -> None:
    chain = chain_of(NotingProvider())
    old = crashed(with_operators(chain, plain("map")))

    assert says in refused(old, with_operators(chain, changed), allow=("map", "source"))


def test_another_order_is_refused_and_an_operator_between_is_not() -> None:
    chain = chain_of(source())
    old = crashed(with_operators(chain, plain("a"), plain("b")))

    said = refused(old, with_operators(chain, plain("b"), plain("a")))
    assert "the order of the operators is source, a, b in the log and source, b, a here" in said
    between = with_operators(chain, plain("a"), plain("new"), plain("b"))
    assert restarted(old, between).mode == "rollback"


@pytest.mark.clause("E6")
def test_an_intent_of_a_removed_operator_is_never_dropped() -> None:
    gone = rules(sink=FakeSink())
    one = source()
    job = HandDrivenJob(chain_of(one, gone))
    job.is_work_held = True
    attempt = job.register(0)
    job.trigger()
    attempt.ack_checkpoint(1, committables=[("rules", b"a")])
    assert len(job.runtime.state.intents) == 1
    job.crash()

    said = refused(job, chain_of(one), allow=("rules",))
    assert "the intent of checkpoint 1 of operator 'rules' is without an outcome in the log" in said
    settled = restarted(job, chain_of(one, gone))
    settled.crash()
    assert restarted(settled, chain_of(one), allow=("rules",)).mode == "rollback"


def test_a_removed_operators_open_commits_are_a_part_of_its_state() -> None:
    gone = rules(is_committing=False, is_cut_at_once=False)
    gone.on["cut"] = lambda coordinator, number: coordinator.results[number].complete(b"")
    old = crashed(chain_of(source(), gone), committables=[("rules", b"rows")])

    assert "the state of operator 'rules'" in refused(old, chain_of(source()))


def test_a_resume_without_an_event_sourced_coordinator_drops_its_fold() -> None:
    one = source(projection=HANDLED)
    job = HandDrivenJob(chain_of(one, rules(projection=HANDLED)), is_batch=True)
    job.register(0)
    job.crash()
    left = chain_of(one)

    said = refused(job, left)
    assert "the state of operator 'rules' is its coordinator's, as folded from the log" in said
    assert restarted(job, left, allow=("rules",)).mode == "resume"


def test_a_resume_without_an_operator_of_a_finished_subtask_is_refused() -> None:
    chain = chain_of(source(projection=HANDLED))
    both = with_operators(chain, plain("sink"))
    job = HandDrivenJob(both, is_batch=True, parallelism=2)
    first, _ = job.register_all()
    first.complete(states={"sink": b"rows"})
    job.crash()
    with pytest.raises(RestoreError, match="operator 'sink' is that of subtask 0"):
        HandDrivenJob(chain, log=job.log, is_batch=True, parallelism=2)


def test_a_job_that_has_finished_has_nothing_to_let_go() -> None:
    job = HandDrivenJob(chain_of(source(), rules()), is_batch=True)
    job.register(0).complete()
    assert job.runtime.state.phase is Phase.FINISHED
    job.crash()

    assert restarted(job, chain_of(source())).mode == "finished"


def test_an_event_to_a_removed_operator_fails_with_the_dead_attempt() -> None:
    one, gone = source(projection=HANDLED), rules(projection=HANDLED)
    job = HandDrivenJob(chain_of(one, gone), is_batch=True)
    inside(job.register(0), gone, send_down(gone, 0, 1))
    job.crash()
    again = restarted(job, chain_of(one), allow=("rules",))

    assert [one.operator_id for one in again.history(Kind.EVENT_FAILED)] == ["rules"]
    assert ("rules", 0) not in again.runtime.state.gateways
    assert again.register(0).accepted.attempt_number == 1
