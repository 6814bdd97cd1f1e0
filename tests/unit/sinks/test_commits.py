"""The commit coordinator: what a completed checkpoint allows is in an intent, once (H1, H3, I4)."""

# No `from __future__ import annotations` here: payloads are declared below.

# What the fakes' methods do is their contract's to say.

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.api.coordinator import CommittableOf, Sink
from coordlog.api.operator import Operator, SourceReader
from coordlog.coordinators.commits import CommitCoordinatorProvider
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.errors import OptionError, SinkError
from coordlog.messages import DeliverEvent
from coordlog.schemas.payload import Payload, event, payload, payload_type_of
from coordlog.schemas.record import Kind
from coordlog.schemas.source_types import RequestSplit, Split, SplitsDiscovered
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob


@payload("test.publish", version=1)
class Publish(Payload):
    """An intent."""

    checkpoint_id: int
    names: list[str]


@payload("test.published", version=1)
class Published(Payload):
    """An outcome."""

    names: list[str]


@event("test.to_sink", version=1)
class ToSink(Payload):
    """No sink handles it."""


@dataclass
class FakeSink(Sink):
    """Keeps what it is asked to do; refuses as often as it is told to."""

    settled: list[Publish] = field(default_factory=list)
    refusals: int = 0

    def settle(self, intent: Payload) -> Payload | None:
        assert isinstance(intent, Publish)
        if self.refusals:
            self.refusals -= 1
            raise SinkError("memory", "scripted", "try again")
        self.settled.append(intent)
        return Published(names=intent.names)


def make_intent(checkpoint_id: int, committables: Sequence[CommittableOf]) -> Publish:
    names = [f"{one.subtask}/{one.attempt_number}/{one.content.decode()}" for one in committables]
    return Publish(checkpoint_id=checkpoint_id, names=names)


def never_made() -> SourceReader:
    raise AssertionError("attempts are driven by hand")


def never_made_operator() -> Operator:
    raise AssertionError("attempts are driven by hand")


def chain_of(sink: FakeSink, *, committables_per_intent: int | None = None) -> Chain:
    def discover() -> SplitsDiscovered:
        return SplitsDiscovered(splits=[Split(split_id="a", content=b"")], is_complete=True)

    return Chain(
        source=SourceSpec(
            operator_id="source",
            create_reader=never_made,
            coordinator=SplitCoordinatorProvider("source", discover=discover),
        ),
        operators=[
            OperatorSpec(
                operator_id="sink",
                create_operator=never_made_operator,
                coordinator=CommitCoordinatorProvider(
                    "sink",
                    sink=sink,
                    make_intent=make_intent,
                    payload_types=(Publish, Published, ToSink),
                    committables_per_intent=committables_per_intent,
                ),
                keeps_state_across_splits=False,
            )
        ],
    )


def checkpoint(job: HandDrivenJob, handed: dict[FakeAttempt, Sequence[bytes]]) -> int:
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    for attempt, contents in handed.items():
        committables = [("sink", one) for one in contents]
        attempt.ack_checkpoint(checkpoint_id, committables=committables)
    assert job.runtime.state.last_checkpoint == checkpoint_id
    job.advance(0.0)  # settling is timed, at once at first
    return checkpoint_id


def intents(job: HandDrivenJob) -> list[tuple[int | None, list[str]]]:
    found = []
    for one in job.history(Kind.COMMIT_INTENT):
        value = payload_type_of(Publish).decode(one.payload or b"")
        assert isinstance(value, Publish)
        found.append((one.checkpoint_id, value.names))
    return found


@pytest.mark.clause("H1")
@pytest.mark.clause("I4")
def test_a_checkpoint_commits_its_committables_in_subtask_order() -> None:
    sink = FakeSink()
    job = HandDrivenJob(chain_of(sink), parallelism=2)
    first, second = job.register_all()

    n = checkpoint(job, {second: [b"c"], first: [b"a", b"b"]})

    assert intents(job) == [(n, ["0/0/a", "0/0/b", "1/0/c"])]
    assert sink.settled == [Publish(checkpoint_id=n, names=["0/0/a", "0/0/b", "1/0/c"])]
    outcomes = job.history(Kind.COMMIT_OUTCOME)
    assert [one.attributes["settled"] for one in outcomes] == ["true"]


@pytest.mark.clause("D5")
@pytest.mark.clause("I4")
def test_a_lost_attempts_committables_are_not_committed_after_a_failover() -> None:
    sink = FakeSink()
    job = HandDrivenJob(chain_of(sink), parallelism=2)
    first, second = job.register_all()
    aborted = job.trigger()
    assert aborted is not None
    first.ack_checkpoint(aborted, committables=[("sink", b"lost")])

    first.fail()
    again = job.register(0)
    n = checkpoint(job, {again: [b"made again"], second: [b"c"]})

    assert intents(job) == [(n, ["0/1/made again", "1/0/c"])]


@pytest.mark.clause("H3")
def test_an_intent_is_in_the_log_before_the_sink_is_asked() -> None:
    sink = FakeSink()
    job = HandDrivenJob(chain_of(sink))
    (attempt,) = job.register_all()
    job.is_work_held = True

    n = checkpoint(job, {attempt: [b"a"]})

    assert intents(job) == [(n, ["0/0/a"])]
    assert sink.settled == []


def test_a_checkpoint_without_committables_has_no_intent() -> None:
    sink = FakeSink()
    job = HandDrivenJob(chain_of(sink))
    (attempt,) = job.register_all()

    checkpoint(job, {attempt: []})

    assert intents(job) == []


@pytest.mark.clause("E6")
@pytest.mark.clause("H3")
@pytest.mark.may_fail("scripted")
def test_told_of_a_completion_again_it_commits_only_what_no_intent_holds() -> None:
    sink = FakeSink()
    job = HandDrivenJob(chain_of(sink))
    (attempt,) = job.register_all()
    n = checkpoint(job, {attempt: [b"a"]})

    job.run(lambda: job.runtime.fail_job("sink", "scripted"))
    job.stage_ends("cancelled")
    job.advance(60.0)

    told = [one for one in job.history(Kind.COORDINATOR_NOTIFIED) if one.operator_id == "sink"]
    assert [(one.checkpoint_id, one.attributes["what"]) for one in told] == [
        (n, "complete"),
        (n, "complete"),
    ]
    assert intents(job) == [(n, ["0/0/a"])]


@pytest.mark.clause("E6")
def test_what_a_driver_died_before_intending_is_committed_by_the_next_one() -> None:
    sink = FakeSink()
    chain = chain_of(sink)
    job = HandDrivenJob(chain)
    (attempt,) = job.register_all()
    n = job.trigger()
    assert n is not None
    job.is_held = True
    attempt.ack_checkpoint(n, committables=[("sink", b"a")])
    # The turn that completes the checkpoint is appended; the driver dies ahead of the next one.
    group = job.runtime.turns.take_group()
    assert group
    job.appender.append(group)
    job.crash()
    assert intents(job) == []

    job = HandDrivenJob(chain, log=job.log)
    job.advance(0.0)

    assert intents(job) == [(n, ["0/0/a"])]
    assert [one.names for one in sink.settled] == [["0/0/a"]]


@pytest.mark.clause("H1")
@pytest.mark.clause("I3")
def test_a_batch_job_commits_kept_splits_and_snapshots_once_at_its_end() -> None:
    sink = FakeSink()
    job = HandDrivenJob(chain_of(sink), is_batch=True, parallelism=2)
    first, second = job.register_all()
    first.send("source", RequestSplit())
    first.finish_split("source", "a", committables=[("sink", b"rows of a")])
    for message in first.got(DeliverEvent):
        first.ack("source", message.event_id)
    first.complete(committables=[("sink", b"last of 0")])
    assert intents(job) == []

    second.complete(committables=[("sink", b"last of 1")])
    job.advance(0.0)

    # The chain's source declares that it keeps nothing across splits, and so does the sink.
    assert intents(job) == [(-1, ["0/0/rows of a", "0/0/last of 0", "1/0/last of 1"])]
    assert len(job.history(Kind.JOB_FINISHED)) == 1


def test_intents_can_be_bounded_and_all_stand_in_one_turn() -> None:
    sink = FakeSink()
    job = HandDrivenJob(chain_of(sink, committables_per_intent=2))
    (attempt,) = job.register_all()

    n = checkpoint(job, {attempt: [b"a", b"b", b"c", b"d", b"e"]})

    assert intents(job) == [
        (n, ["0/0/a", "0/0/b"]),
        (n, ["0/0/c", "0/0/d"]),
        (n, ["0/0/e"]),
    ]
    remaining = [one.turn_remaining for one in job.history(Kind.COMMIT_INTENT)]
    assert remaining == sorted(remaining, reverse=True)
    assert len(set(remaining)) == 3
    assert len(sink.settled) == 3


@pytest.mark.clause("H3")
def test_a_sink_that_refuses_is_asked_again_with_the_same_intent() -> None:
    sink = FakeSink(refusals=2)
    job = HandDrivenJob(chain_of(sink))
    (attempt,) = job.register_all()

    n = checkpoint(job, {attempt: [b"a"]})
    job.advance(60.0)

    assert intents(job) == [(n, ["0/0/a"])]
    assert [one.names for one in sink.settled] == [["0/0/a"]]


@pytest.mark.clause("H3")
def test_a_later_checkpoints_intent_waits_for_the_outcome_of_the_earlier() -> None:
    sink = FakeSink(refusals=1)
    job = HandDrivenJob(chain_of(sink))
    (attempt,) = job.register_all()

    checkpoint(job, {attempt: [b"a"]})
    checkpoint(job, {attempt: [b"b"]})
    checkpoint(job, {attempt: [b"c"]})
    assert sink.settled == []
    job.advance(60.0)

    assert [one.names for one in sink.settled] == [["0/0/a"], ["0/0/b"], ["0/0/c"]]


@pytest.mark.clause("E6")
@pytest.mark.parametrize("restore", ["rollback", "resume"])
def test_a_restore_settles_what_is_open_in_the_order_of_the_checkpoints(restore: str) -> None:
    first = HandDrivenJob(chain_of(FakeSink(refusals=9)))
    (attempt,) = first.register_all()
    checkpoint(first, {attempt: [b"a"]})
    checkpoint(first, {attempt: [b"b"]})

    sink = FakeSink(refusals=1)
    second = HandDrivenJob(chain_of(sink), log=first.log, restore=restore)
    assert sink.settled == []
    second.advance(60.0)

    assert [one.names for one in sink.settled] == [["0/0/a"], ["0/0/b"]]


@pytest.mark.may_fail("the sink 'sink' handles no events")
def test_an_event_to_the_sinks_coordinator_fails_the_job_by_its_sender() -> None:
    job = HandDrivenJob(chain_of(FakeSink()), parallelism=2)
    _first, second = job.register_all()

    second.send("sink", ToSink())

    reason = job.history(Kind.GLOBAL_FAILURE)[0].reason or ""
    assert "the sink 'sink' handles no events; subtask 1 sent a ToSink" in reason


def test_the_bound_of_an_intent_must_be_positive() -> None:
    with pytest.raises(OptionError, match="committables_per_intent is 0"):
        CommitCoordinatorProvider(
            "sink",
            sink=FakeSink(),
            make_intent=make_intent,
            payload_types=(),
            committables_per_intent=0,
        )
