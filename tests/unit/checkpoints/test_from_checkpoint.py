"""Going back to an older checkpoint as a new branch: from where, and what is refused (clauses E5, E6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from coordlog.api.chain import Chain
from coordlog.errors import OptionError, RestoreError, SinkError
from coordlog.offline.epoch import begin_epoch, read_records
from coordlog.projections.inspection.verify import verify
from coordlog.projections.job.state import Phase
from coordlog.projections.tables.audit import audit, audit_records
from coordlog.projections.tables.checkpoints import CheckpointStatus
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import TakeSavepoint
from coordlog.schemas.record import Kind
from coordlog.testing import replay
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import HANDLED, FakeSink, NotingProvider, Up, chain_of, prefix_of

pytestmark = [pytest.mark.clause("E5"), pytest.mark.clause("E6")]


class PlacedSink(FakeSink):
    """A sink of one place, which may have been written to before."""

    def __init__(self, *, has_output: bool = False) -> None:
        super().__init__()
        self.has_output = has_output

    def refuse_earlier_output(self, job_id: str) -> None:
        if self.has_output:
            raise SinkError("there", f"job {job_id} has been here", "give another place")


def writing(place: str | None = "a", sink: FakeSink | None = None) -> Chain:
    """A chain whose one operator commits to `place`."""
    provider = NotingProvider(sink=sink or PlacedSink())
    provider.destination = place
    return chain_of(provider)


def checkpointed(
    chain: Chain, count: int, *, is_committing: bool = False, parallelism: int = 1
) -> HandDrivenJob:
    """A driver that died after so many checkpoints; before each it handled one event."""
    job = HandDrivenJob(chain, parallelism=parallelism)
    more(job, count, is_committing=is_committing)
    job.crash()
    return job


def more(job: HandDrivenJob, count: int, *, is_committing: bool = False) -> Sequence[FakeAttempt]:
    attempts = job.register_all()
    for _ in range(count):
        attempts[0].send("source", Up(n=job.runtime.state.next_checkpoint_id))
        number = job.trigger()
        assert number is not None
        made = [("source", b"rows of %d" % number)] if is_committing else []
        for one in attempts:
            state = {"source": b"%d of %d" % (one.subtask, number)}
            one.ack_checkpoint(number, states=state, committables=made)
    return attempts


def refusal(old: HandDrivenJob, make: Callable[[], HandDrivenJob]) -> str:
    """Why the next driver refuses; nothing is appended."""
    before = old.log.high_watermark()
    with pytest.raises((RestoreError, OptionError, SinkError)) as raised:
        make()
    assert old.log.high_watermark() == before
    return str(raised.value)


def back(
    old: HandDrivenJob,
    number: int,
    chain: Chain | None = None,
    **options: Any,  # noqa: ANN401, of a test
) -> HandDrivenJob:
    return HandDrivenJob(chain or old.chain, log=old.log, from_checkpoint=number, **options)


def abandoned(job: HandDrivenJob) -> list[int]:
    rows = audit(job.log.read(0, job.log.high_watermark())).checkpoints
    return [one.checkpoint_id for one in rows if one.status is CheckpointStatus.ABANDONED]


def test_a_job_goes_back_as_a_new_branch_and_later_drivers_stay_on_it() -> None:
    provider = NotingProvider()
    old = checkpointed(chain_of(provider), 3)
    provider.calls.clear()
    job = back(old, 1)

    assert job.mode == "rollback"
    assert provider.said("restore", "complete") == [
        ("restore", 1, b"state of 1"),
        ("complete", 1),
    ]
    attempt = job.register(0)
    assert attempt.accepted.restored_checkpoint == 1
    assert [one.state for one in attempt.accepted.states] == [b"0 of 1"]
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log)
    assert provider.said("restore")[-1] == ("restore", 1, b"state of 1"), "not 3 (clause E5)"
    assert sorted(job.runtime.state.completed) == [1]
    more(job, 1)
    assert job.runtime.state.last_checkpoint == 4, "no number is used twice (clause F7)"

    stored = list(job.log.read(0, job.log.high_watermark()))
    assert {one.checkpoint_id: one.status for one in audit(stored).checkpoints} == {
        1: CheckpointStatus.COMPLETED,
        2: CheckpointStatus.ABANDONED,
        3: CheckpointStatus.ABANDONED,
        4: CheckpointStatus.COMPLETED,
    }
    assert verify(stored).faults == []
    replay(job.log, chain_of(NotingProvider()))


@pytest.mark.clause("D3")
def test_the_projection_and_the_channel_state_are_those_of_the_older_cut() -> None:
    provider = NotingProvider(projection=HANDLED)
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    attempt.send("source", Up(n=1))
    job.trigger()
    attempt.send("source", Up(n=2))
    attempt.ack_checkpoint(1)
    attempt.send("source", Up(n=3))
    job.trigger()
    attempt.ack_checkpoint(2)
    job.crash()
    provider.calls.clear()
    job = back(job, 1)

    assert provider.said("event") == [("event", 0, 0, 2, "again")]
    assert job.runtime.state.projections["source"] == (1, 2)


def test_the_offset_of_the_checkpoint_that_is_gone_back_to_is_known() -> None:
    old = checkpointed(chain_of(NotingProvider()), 3)
    (first, *_) = [
        one.offset
        for one in audit_records(old.log.read(0, old.log.high_watermark()))
        if one.record is not None and one.record.kind is Kind.CHECKPOINT_COMPLETED
    ]
    job = back(old, 1, options=RuntimeOptions(snapshot_every=5))
    more(job, 0)
    job.crash()
    made = rebuild(job.log, job.chain, projection_of(job.chain))

    assert made.started_at is not None, "the snapshot has it too"
    assert (made.state.last_checkpoint, made.checkpoint_offset) == (1, first)


def test_what_has_been_committed_is_not_gone_below() -> None:
    old = checkpointed(writing(), 3, is_committing=True)

    for number in (1, 2):
        said = refusal(old, lambda number=number: back(old, number))  # type: ignore[misc]
        assert (
            "the newest checkpoint that operator 'source' commits to a is 3 in the log and above "
            f"{number}, which it is to roll back to, here; its rows would be committed again: roll "
            "back to 3 or a later one, or have it write elsewhere"
        ) in said
    assert back(old, 3).mode == "rollback"


def test_nor_by_a_sink_of_another_name_at_the_same_destination() -> None:
    def named(operator_id: str, place: str = "a") -> Chain:
        sink = NotingProvider(operator_id, sink=PlacedSink())
        sink.destination = place
        return chain_of(NotingProvider(), sink)

    job = HandDrivenJob(named("files"))
    attempt = job.register(0)
    for number in (1, 2):
        assert job.trigger() == number
        attempt.ack_checkpoint(number, committables=[("files", b"rows")])
        job.ask("", TakeSavepoint(name=f"n{number}")).answer()
    job.crash()

    def next_of(chain: Chain, back: int | None) -> HandDrivenJob:
        return HandDrivenJob(
            chain, log=job.log, from_checkpoint=back, allow_non_restored_state=["files"]
        )

    before = job.log.high_watermark()
    with pytest.raises(
        RestoreError, match="operator 'files' commits to a is 2 in the log and above 1"
    ):
        next_of(named("rows"), 1)
    assert job.log.high_watermark() == before
    next_of(named("rows"), None).crash()
    next_of(named("rows", "b"), 1).crash()
    with pytest.raises(
        RestoreError, match="operator 'files' commits to a is 2 in the log and above 1"
    ):
        next_of(named("others"), None)


def test_a_renamed_sink_goes_back_to_the_destination_of_its_former_name() -> None:
    def named(operator_id: str, place: str, *, has_output: bool = False) -> Chain:
        sink = NotingProvider(operator_id, sink=PlacedSink(has_output=has_output))
        sink.destination = place
        return chain_of(NotingProvider(), sink)

    job = HandDrivenJob(named("files", "a"))
    for operator_id, place in (("files", "a"), ("rows", "b")):
        job.crash()
        chain, dropped = named(operator_id, place), ["files"]
        job = HandDrivenJob(chain, log=job.log, allow_non_restored_state=dropped)
        attempt, number = job.register(0), job.trigger()
        assert number is not None
        attempt.ack_checkpoint(number, committables=[(operator_id, b"rows")])
    job.crash()

    with pytest.raises(SinkError, match="has been here"):
        HandDrivenJob(named("rows", "c", has_output=True), log=job.log, from_checkpoint=2)
    back = HandDrivenJob(named("rows", "a", has_output=True), log=job.log, from_checkpoint=2)
    assert back.mode == "rollback"


def test_above_the_last_commit_a_sink_goes_back_freely() -> None:
    job = HandDrivenJob(writing())
    more(job, 1, is_committing=True)
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log)
    more(job, 2)
    job.crash()

    assert back(job, 2).runtime.state.last_checkpoint == 2


def test_a_job_that_writes_elsewhere_goes_back_below_a_commit() -> None:
    old = checkpointed(writing("a"), 3, is_committing=True)
    other = PlacedSink()
    job = back(old, 1, writing("b", other))
    more(job, 1, is_committing=True)

    assert other.settled == [("rows of 4",)]
    assert dict(job.runtime.state.last_intents.items()) == {("source", "a"): 3, ("source", "b"): 4}
    job.crash()
    assert "commits to b is 4" in refusal(job, lambda: back(job, 1, writing("b")))
    assert "commits to a is 3" in refusal(job, lambda: back(job, 1, writing("a")))


def test_a_branch_does_not_go_on_where_more_has_been_committed_than_it_has() -> None:
    """A driver that starts at the former place, without the option, would commit rows 2 and 3 again there."""
    old = checkpointed(writing("a"), 3, is_committing=True)
    job = back(old, 1, writing("b"))
    job.crash()

    said = refusal(job, lambda: HandDrivenJob(writing("a"), log=job.log))
    assert "commits to a is 3 in the log and above 1" in said
    assert HandDrivenJob(writing("b"), log=job.log).runtime.state.last_checkpoint == 1


@pytest.mark.parametrize("count", [1, 5])
def test_nor_does_it_once_it_has_checkpoints_of_its_own(count: int) -> None:
    """Their numbers are above all that the former branch has committed; their rows are not."""
    old = checkpointed(writing("a"), 4, is_committing=True)
    job = back(old, 2, writing("b"))
    more(job, count, is_committing=True)
    job.crash()

    last = 4 + count
    said = refusal(job, lambda: HandDrivenJob(writing("a"), log=job.log))
    assert (
        "the newest checkpoint that operator 'source' commits to a is 4 in the log and no ancestor of "
        f"checkpoint {last}, from which it is to continue, here; that is another branch, "
        "and its rows would be committed again: have it write elsewhere"
    ) in said
    assert "no ancestor of checkpoint" in refusal(job, lambda: back(job, last, writing("a")))
    assert "no ancestor of checkpoint" in refusal(job, lambda: back(job, last, writing(None)))
    assert HandDrivenJob(writing("b"), log=job.log).runtime.state.last_checkpoint == last


def test_a_job_returns_to_another_branchs_savepoint_at_its_destination() -> None:
    """Its own output stands there, up to that checkpoint: this is no earlier one of another history."""
    job = HandDrivenJob(writing("a"))
    more(job, 4, is_committing=True)
    job.ask("", TakeSavepoint(name="first-branch", checkpoint=4))
    job.crash()
    job = back(job, 2, writing("b"))
    more(job, 2, is_committing=True)
    job.ask("", TakeSavepoint(name="second-branch"))
    job.crash()

    assert "no ancestor of checkpoint 6" in refusal(job, lambda: back(job, 6, writing("a")))
    assert "or roll back to one of that branch: 4" in refusal(
        job, lambda: back(job, 6, writing("a"))
    )
    assert "commits to b is 6 in the log and above 4" in refusal(
        job, lambda: back(job, 4, writing("b"))
    )
    first = PlacedSink(has_output=True)
    job = back(job, 4, writing("a", first))
    assert abandoned(job) == [5, 6], "3 and 4, abandoned before, count again"
    more(job, 1, is_committing=True)
    assert first.settled == [("rows of 7",)]
    job.crash()
    assert "commits to b is 6 in the log and no ancestor of checkpoint 7" in refusal(
        job, lambda: HandDrivenJob(writing("b"), log=job.log)
    )
    job = back(job, 6, writing("b", PlacedSink(has_output=True)))
    assert job.runtime.state.last_checkpoint == 6
    assert abandoned(job) == [3, 4, 7], "the branch of 6 is in force again"
    more(job, 1)
    job.crash()
    assert HandDrivenJob(writing("b"), log=job.log).runtime.state.last_checkpoint == 8


@pytest.mark.clause("K3")
def test_a_snapshot_knows_the_branch() -> None:
    job = back(checkpointed(writing("a"), 4, is_committing=True), 2, writing("b"))
    more(job, 2, is_committing=True)
    job.crash()
    job = HandDrivenJob(writing("b"), log=job.log, options=RuntimeOptions(snapshot_every=3))
    more(job, 2, is_committing=True)
    job.crash()

    made = rebuild(job.log, job.chain, projection_of(job.chain))
    assert made.started_at is not None
    assert "no ancestor of checkpoint 8" in refusal(
        job, lambda: HandDrivenJob(writing("a"), log=job.log)
    )


def test_a_rollback_is_due_for_the_successor_if_its_driver_died_before_it() -> None:
    """Gone on from 3 at b, the job would never write there what 2 and 3 have."""
    old = checkpointed(writing("a"), 3, is_committing=True)
    end = old.log.high_watermark()
    job = back(old, 1, writing("b"))
    job.crash()
    cut = prefix_of(job.log, end + 1)
    before = cut.high_watermark()

    with pytest.raises(RestoreError, match=r"did not reach, is 1 .*pass --from-checkpoint 1 again"):
        HandDrivenJob(writing("b"), log=cut)
    assert cut.high_watermark() == before
    again = HandDrivenJob(writing("b"), log=cut, from_checkpoint=1)
    assert again.runtime.state.last_checkpoint == 1
    again.crash()
    assert HandDrivenJob(writing("b"), log=cut).mode == "rollback"


def test_a_commands_epoch_owes_the_going_back_only_where_its_driver_did() -> None:
    """It says of the job what the epoch before said: a going back that has been done is none of that."""
    old = checkpointed(writing("a"), 3, is_committing=True)
    end = old.log.high_watermark()
    job = back(old, 1, writing("b"))
    job.crash()
    cut = prefix_of(job.log, end + 1)
    for log in (job.log, cut):
        begin_epoch(log, read_records(log), lambda _state: [], command="look")

    assert HandDrivenJob(writing("b"), log=job.log).runtime.state.last_checkpoint == 1
    with pytest.raises(RestoreError, match="pass --from-checkpoint 1 again"):
        HandDrivenJob(writing("b"), log=cut)


def test_elsewhere_is_where_the_job_has_never_been() -> None:
    old = checkpointed(writing("a"), 3, is_committing=True)

    said = refusal(old, lambda: back(old, 1, writing("b", PlacedSink(has_output=True))))
    assert "job job has been here" in said
    assert back(old, 3, writing("a", PlacedSink(has_output=True))).mode == "rollback"


def test_earlier_output_elsewhere_is_seen_for_one_that_comes_back() -> None:
    """The last epoch was without it, and the one before had its destination."""

    def with_sink(place: str, sink: FakeSink) -> Chain:
        provider = NotingProvider("sink", sink=sink)
        provider.destination = place
        return chain_of(NotingProvider(), provider)

    old = checkpointed(with_sink("a", PlacedSink()), 1)
    gone = HandDrivenJob(
        chain_of(NotingProvider()), log=old.log, allow_non_restored_state=["source", "sink"]
    )
    more(gone, 1)
    gone.crash()

    used = PlacedSink(has_output=True)
    assert "has been here" in refusal(gone, lambda: back(gone, 1, with_sink("b", used)))
    assert back(gone, 1, with_sink("a", used)).mode == "rollback"


@pytest.mark.parametrize("place", [None, "a"])
def test_a_place_that_was_or_is_not_told_counts_as_the_same(place: str | None) -> None:
    old = checkpointed(writing("a" if place is None else None), 2, is_committing=True)

    assert "is 2 in the log and above 1" in refusal(old, lambda: back(old, 1, writing(place)))


def test_open_commits_at_the_former_destination_are_settled_there_first() -> None:
    job = HandDrivenJob(writing("a"))
    more(job, 1, is_committing=True)
    job.is_work_held = True
    attempt = job.attempts[max(job.attempts)]
    assert job.trigger() == 2
    attempt.ack_checkpoint(2, committables=[("source", b"rows")])
    job.crash()
    owed = "the intent of checkpoint 2 of operator 'source' is to be committed to a"
    assert owed in refusal(job, lambda: back(job, 2, writing("b")))
    assert owed in refusal(job, lambda: HandDrivenJob(writing("b"), log=job.log))

    provider = NotingProvider(sink=PlacedSink(), is_committing=False)
    provider.destination = "a"
    job = HandDrivenJob(chain_of(provider))
    more(job, 1, is_committing=True)
    job.crash()
    assert "the open commit of checkpoint 1 of operator 'source'" in refusal(
        job, lambda: back(job, 1, writing("b"))
    )


def test_a_checkpoint_that_cannot_be_gone_back_to_is_refused_by_number() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    attempt = more(job, 4)[0]
    assert job.trigger() == 5
    job.crash()
    for number, why in (
        (1, "checkpoint 1 is not retained"),
        (5, "checkpoint 5 is not completed in the log"),
        (9, "checkpoint 9 is none that there has been: the next one is 6 in the log"),
    ):
        said = refusal(job, lambda number=number: back(job, number))  # type: ignore[misc]
        assert why in said
        assert "those that can be are: 2, 3, 4; `coordlog checkpoint job` lists each" in said
    assert attempt.subtask == 0


def test_a_job_that_is_new_or_has_finished_has_nothing_to_go_back_to() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    attempt = more(job, 1)[0]
    attempt.complete()
    assert job.trigger() is None
    assert job.runtime.state.phase is Phase.FINISHED
    job.crash()
    assert "its state is that it has finished" in refusal(job, lambda: back(job, 1))

    with pytest.raises(RestoreError, match="checkpoint 1 is none that there has been"):
        HandDrivenJob(chain_of(NotingProvider()), from_checkpoint=1)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"restore": "resume"}, "a resume continues from the end of the log"),
        ({"again": True}, "a job that is opened again continues from its end"),
    ],
)
def test_what_does_not_fit_another_option_is_refused(options: dict[str, Any], why: str) -> None:
    old = checkpointed(chain_of(NotingProvider(projection=HANDLED)), 2)

    assert f"from_checkpoint is 1; it must be left out: {why}" in refusal(
        old, lambda: back(old, 1, **options)
    )


def test_a_batch_job_has_no_checkpoint_to_go_back_to() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), is_batch=True)
    job.crash()

    assert "a batch job has no checkpoints" in refusal(job, lambda: back(job, 1, is_batch=True))


@pytest.mark.clause("E8")
def test_what_the_older_checkpoint_has_of_a_removed_operator_is_looked_at() -> None:
    one, gone = NotingProvider(), NotingProvider("rules")
    job = HandDrivenJob(chain_of(one, gone))
    more(job, 1)
    job.crash()
    job = HandDrivenJob(chain_of(one), log=job.log, allow_non_restored_state=("rules",))
    more(job, 1)
    job.crash()

    assert HandDrivenJob(chain_of(one), log=job.log).mode == "rollback"
    said = refusal(job, lambda: back(job, 1, chain_of(one)))
    assert "the state of operator 'rules' is part of checkpoint 1" in said


@pytest.mark.clause("E7")
def test_another_parallelism_is_that_of_the_older_checkpoint() -> None:
    old = checkpointed(chain_of(NotingProvider()), 2, parallelism=3)
    assert "in checkpoint 1" in refusal(old, lambda: back(old, 1, parallelism=2))

    source = replace(old.chain.source, merge_states=b"+".join)
    job = back(old, 1, replace(old.chain, source=source), parallelism=2)
    states = [[one.state for one in a.accepted.states] for a in job.register_all()]
    assert states == [[b"0 of 1", b"2 of 1"], [b"1 of 1"]]
