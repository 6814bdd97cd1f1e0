"""A job that begins from a checkpoint of another one (clauses E5, E6, K5)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coordlog.api.chain import Chain
from coordlog.cli.exit_status import Exit
from coordlog.cli.job_states import COPY, job_rows
from coordlog.cli.main import main
from coordlog.errors import CommandError, FencedError, OptionError, RestoreError, SinkError
from coordlog.log.copy import to_append
from coordlog.log.interface import Log, StoredRecord
from coordlog.log.memory import Meanwhile, MemoryLog
from coordlog.offline.epoch import append_fact, read_records
from coordlog.offline.fork import find_fork_point, fork_to
from coordlog.projections.inspection.verify import verify
from coordlog.projections.job.state import Phase
from coordlog.projections.tables.audit import audit, audit_records
from coordlog.projections.tables.progress import progress
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import ReleaseSavepoint, SavepointTaken, TakeSavepoint
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind
from coordlog.testing import replay
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import HANDLED, FakeSink, NotingProvider, Up, chain_of, prefix_of

pytestmark = [pytest.mark.clause("E5"), pytest.mark.clause("E6")]


class PlacedSink(FakeSink):
    """A sink of one place, which may have been written to before."""

    has_output = False

    def refuse_earlier_output(self, job_id: str) -> None:
        if self.has_output:
            raise SinkError("there", f"job {job_id} has been here", "give another place")


def chain(place: str | None = "a", sink: FakeSink | None = None) -> Chain:
    provider = NotingProvider(projection=HANDLED, sink=sink or PlacedSink())
    provider.destination = place
    return chain_of(provider)


def worked(count: int = 4) -> HandDrivenJob:
    """A job with so many checkpoints, each with a commit; the second is a savepoint."""
    job = HandDrivenJob(chain(), parallelism=1)
    attempt = job.register(0)
    for number in range(1, count + 1):
        attempt.send("source", Up(n=number))
        assert job.trigger() == number
        made = [("source", b"rows of %d" % number)]
        attempt.ack_checkpoint(number, states={"source": b"%d" % number}, committables=made)
        if number == 2:
            job.ask("", TakeSavepoint(name="second"))
    return job


def begun(old: HandDrivenJob, checkpoint: str = "second") -> MemoryLog:
    log = MemoryLog("other")
    fork_to(old.log, log, find_fork_point(old.log, "job", checkpoint), job_id="other")
    return log


def started(log: MemoryLog, made: Chain) -> HandDrivenJob:
    return HandDrivenJob(made, job_id="other", log=log)


def test_a_fork_continues_at_the_checkpoint_and_commits_later_rows() -> None:
    old = worked()
    sink = PlacedSink()
    log = begun(old)
    job = started(log, chain("b", sink))

    assert job.mode == "rollback"
    assert (job.runtime.state.job_id, job.runtime.state.last_checkpoint) == ("other", 2)
    assert job.runtime.state.projections["source"] == (1, 2)
    attempt = job.register(0)
    assert [one.state for one in attempt.accepted.states] == [b"2"]
    assert sink.settled == [], "what checkpoint 2 allows is the first job's to commit"
    assert job.trigger() == 3
    attempt.ack_checkpoint(3, committables=[("source", b"mine")])
    assert sink.settled == [("mine",)]
    assert {one.job_id for one in job.history()} == {"job", "other"}
    (epoch_start,) = [one for one in job.history() if "begun_from" in one.attributes]
    assert (epoch_start.kind, epoch_start.attributes["begun_from"]) == (Kind.EPOCH_STARTED, "job@2")
    job.crash()
    stored = list(log.read(0, log.high_watermark()))
    identity = (log.identity.cluster_id, log.identity.topic_id)
    assert verify(stored, identity=identity).faults == []
    moved = verify(stored, identity=(identity[0], "another"))
    assert [one.what for one in moved.faults] == [
        f"it was written to the log of topic_id {identity[1]}, and this one has another"
    ], "told once, of where it goes on"
    replay(log, chain("b"))


@pytest.mark.clause("K2")
def test_a_driver_that_begins_on_the_new_log_before_the_copy_keeps_it() -> None:
    """Of the copy's records those of its epoch and with the next sequences would count in the driver's epoch."""
    old, log = worked(), MemoryLog("other")
    jobs: list[HandDrivenJob] = []

    def drive() -> None:
        jobs.append(started(log, chain("b")))
        jobs[0].register(0).send("source", Up(n=7))

    log.faults.next_append(Meanwhile(drive))
    beginning = find_fork_point(old.log, "job", "second")
    with pytest.raises(FencedError) as fenced:
        fork_to(old.log, log, beginning, job_id="other")

    (job,) = jobs
    epoch_start = job.runtime.state.driver_id
    assert (fenced.value.epoch_in_force, fenced.value.driver_in_force) == (0, epoch_start)
    attempt = job.register(0)
    attempt.send("source", Up(n=8))
    assert job.runtime.state.projections["source"] == (7, 8)
    counted = audit(log.records).epochs
    assert [(one.epoch, one.driver_id) for one in counted] == [(0, epoch_start)]
    assert {one.job_id for one in job.history()} == {"other"}


@pytest.mark.parametrize("is_twice", [True, False], ids=["the same beginning", "something else"])
def test_what_is_appended_beside_the_beginning_is_told_as_that(
    is_twice: bool,  # noqa: FBT001, a parameter
) -> None:
    """No log has lost anything then, and who began the other job's epochs is nobody who lives here."""
    old, log = worked(), MemoryLog("new")
    beginning = find_fork_point(old.log, "job", "second")

    def beside() -> None:
        (first, *_) = old.log.records
        log.store(to_append(first) if is_twice else to_append(first, value=b"", header=b""))

    log.faults.next_append(*([] if is_twice else [None]), Meanwhile(beside))
    with pytest.raises(CommandError, match=r"another record at offset 1 .*delete other"):
        fork_to(old.log, log, beginning, job_id="other")


def test_the_first_job_is_not_touched_and_lives_on() -> None:
    old = worked()
    before = old.log.high_watermark()
    begun(old)

    assert old.log.high_watermark() == before
    assert old.trigger() == 5


def test_it_is_a_job_like_any_other_afterwards() -> None:
    job = started(begun(worked()), chain("b"))
    job.crash()
    job = started(job.log, chain("b"))

    assert job.runtime.state.last_checkpoint == 2
    assert job.runtime.state.phase is Phase.RUNNING
    assert dict(job.runtime.state.last_intents.items()) == {}
    assert dict(job.runtime.state.savepoints.items()) == {}


def test_what_the_first_job_did_is_not_shown_as_its_progress() -> None:
    found = progress(started(begun(worked()), chain("b")).history())

    assert (found.job_id, found.last_checkpoint) == ("other", 2)
    assert (found.attempts_started, found.checkpoints_completed) == (0, 0)


def test_any_checkpoint_that_has_completed_will_do_by_its_number() -> None:
    job = started(begun(worked(6), "1"), chain("b"))

    assert job.runtime.state.projections["source"] == (1,), "although it is not retained any more"


def test_a_number_is_a_checkpoint_s_even_where_another_is_kept_under_it() -> None:
    """Such a name is not given any more; a history may have one."""
    old = worked()
    old.crash()
    fact = SavepointTaken(name="3", checkpoint=2)
    made = read_records(old.log)
    append_fact(old.log, made, fact, command="checkpoint", check=lambda _state: None, why="a test")

    assert dict(read_records(old.log).state.savepoints.items()) == {"second": 2, "3": 2}
    assert find_fork_point(old.log, "job", "3").checkpoint_id == 3
    job = HandDrivenJob(chain(), log=old.log)
    assert job.ask("", TakeSavepoint(name="3", checkpoint=2)).answer().sequence > 0
    assert job.ask("", ReleaseSavepoint(name="3")).answer().sequence > 0
    assert dict(job.runtime.state.savepoints.items()) == {"second": 2}


@pytest.mark.parametrize("place", ["a", None])
def test_it_writes_elsewhere(place: str | None) -> None:
    log = begun(worked())
    before = log.high_watermark()

    with pytest.raises(RestoreError, match="a, that of job@2, in the log") as raised:
        started(log, chain(place))
    assert "writes elsewhere: set a destination of its own" in str(raised.value)
    assert log.high_watermark() == before


def test_it_does_not_go_on_from_where_the_other_log_was_cut() -> None:
    log = begun(worked())
    before = log.high_watermark()

    with pytest.raises(OptionError, match="'rollback': its history is that of job@2"):
        HandDrivenJob(chain("b"), job_id="other", log=log, restore="resume")
    assert log.high_watermark() == before


def behind_its_first_epoch(how: str) -> MemoryLog:
    """The log of a job that has begun from another, written to `b`: its first driver died at once, or a while later."""
    job = started(begun(worked()), chain("b"))
    if how == "later":
        attempt = job.register(0)
        assert job.trigger() == 3
        attempt.ack_checkpoint(3, committables=[("source", b"mine")])
    job.crash()
    epoch_starts = [
        one.offset for one in job.log.read(0, job.log.high_watermark()) if is_epoch(one)
    ]
    return prefix_of(job.log, epoch_starts[-1] + 1) if how == "at once" else job.log


def counted_kinds(log: MemoryLog) -> list[Kind]:
    there = audit_records(log.read(0, log.high_watermark()))
    return [one.record.kind for one in there if one.counts and one.record is not None]


def is_epoch(stored: StoredRecord) -> bool:
    return stored.header is not None and stored.header.is_epoch_started


@pytest.mark.parametrize("how", ["at once", "after its reset", "later"])
@pytest.mark.parametrize("place", ["a", None])
def test_it_writes_elsewhere_for_ever(place: str | None, how: str) -> None:
    log = behind_its_first_epoch(how)
    before = log.high_watermark()

    with pytest.raises(RestoreError, match="a, that of job@2, in the log"):
        started(log, chain(place))
    assert log.high_watermark() == before
    assert started(log, chain("b")).mode == "rollback"


def test_nor_at_a_destination_of_the_other_job_or_of_its_origins() -> None:
    old = worked()
    old.crash()
    job = HandDrivenJob(chain("c"), log=old.log)
    attempt = job.register(0)
    assert job.trigger() == 5
    attempt.ack_checkpoint(5, committables=[("source", b"rows of 5")])
    log, third = begun(job, "5"), MemoryLog("third")
    fork_to(log, third, find_fork_point(log, "other", "5"), job_id="third")

    for place in ("a", "c"):
        with pytest.raises(RestoreError, match=f"{place}, that of job@5, in the log"):
            started(log, chain(place))
        with pytest.raises(RestoreError, match=f"{place}, that of other@5, in the log"):
            HandDrivenJob(chain(place), log=third, job_id="third")


@pytest.mark.parametrize("has_rows", [True, False], ids=["with commits", "without"])
@pytest.mark.parametrize(("was", "refused"), [("a", "a"), (None, "b")])
def test_nor_where_an_operator_wrote_that_the_other_job_had_removed(
    was: str | None, refused: str, *, has_rows: bool
) -> None:
    """Of a destination that was never declared nobody knows whether it is another one."""

    def with_sink(place: str | None) -> Chain:
        sink = NotingProvider("sink", projection=HANDLED, sink=PlacedSink())
        sink.destination = place
        return chain_of(NotingProvider(projection=HANDLED), sink)

    old = HandDrivenJob(with_sink(was))
    attempt = old.register(0)
    number = old.trigger()
    assert number is not None
    attempt.ack_checkpoint(number, committables=[("sink", b"rows")] if has_rows else [])
    old.crash()
    without = chain_of(NotingProvider(projection=HANDLED))
    old = HandDrivenJob(without, log=old.log, allow_non_restored_state=["sink"])
    attempt = old.register(0)
    number = old.trigger()
    assert number is not None
    attempt.ack_checkpoint(number)
    log = begun(old, str(number))

    with pytest.raises(RestoreError, match=f"that of job@{number}, in the log and {refused} here"):
        started(log, with_sink(refused))
    if was is not None:
        assert started(log, with_sink("b")).mode == "rollback"


def test_nor_where_the_other_job_wrote_to_a_checkpoint_that_it_keeps() -> None:
    """An open commit of a savepoint is made there once the other job goes back to it, which leaves no commit before."""

    def writing(place: str) -> Chain:
        idle = NotingProvider(projection=HANDLED, sink=PlacedSink(), is_committing=False)
        idle.destination = place
        return chain_of(idle)

    def checkpointed(old: HandDrivenJob, name: str) -> None:
        attempt = old.register(0)
        number = old.trigger()
        assert number is not None
        attempt.ack_checkpoint(number, committables=[("source", b"rows")] if name == "kept" else [])
        old.ask("", TakeSavepoint(name=name)).answer()
        old.crash()

    old = HandDrivenJob(writing("a"))
    checkpointed(old, "first")
    old = HandDrivenJob(writing("a"), log=old.log)
    checkpointed(old, "kept")
    old = HandDrivenJob(writing("b"), log=old.log, from_checkpoint=1)
    checkpointed(old, "last")
    log = begun(old, "last")

    for place in ("a", "b"):
        with pytest.raises(RestoreError, match=f"that of job@3, in the log and {place} here"):
            started(log, chain(place))
    assert started(log, chain("c")).mode == "rollback"
    back = HandDrivenJob(chain("a", sink := PlacedSink()), log=old.log, from_checkpoint=2)
    assert (back.mode, sink.settled) == ("rollback", [("rows",)])


def test_until_its_own_reset_nothing_resumes_what_is_the_other_job_s() -> None:
    log = behind_its_first_epoch("at once")
    before = log.high_watermark()
    with pytest.raises(OptionError, match="'rollback': its history is that of job@2"):
        HandDrivenJob(chain("b"), job_id="other", log=log, restore="resume")
    assert log.high_watermark() == before

    log = behind_its_first_epoch("later")
    resumed = HandDrivenJob(chain("b"), job_id="other", log=log, restore="resume")
    assert resumed.mode == "resume"


@pytest.mark.clause("I4")
def test_what_the_first_job_s_attempts_have_staged_is_not_cleaned() -> None:
    """They may live: only its own driver may fence them, and clean after them."""

    class Cleaned(PlacedSink):
        cleaned: tuple[str, ...] = ()

        def clean(
            self, *, driver_id: str, subtask: int, attempt_number: int, keep: AbstractSet[str]
        ) -> None:
            del subtask, attempt_number, keep
            self.cleaned += (driver_id,)

        def sweep(self, *, keep: AbstractSet[str], is_in_force: Callable[[], bool]) -> None:
            del keep, is_in_force

        def staged_names(self, committables: Sequence[bytes]) -> frozenset[str]:
            return frozenset(one.decode() for one in committables)

        def intent_names(self, intent: Payload) -> frozenset[str]:
            del intent
            return frozenset()

    sink = Cleaned()
    job = started(begun(worked()), chain("b", sink))
    assert not sink.cleaned
    job.register(0)
    job.crash()
    started(job.log, chain("b", sink))
    assert sink.cleaned == (job.runtime.state.driver_id,)


@pytest.mark.clause("K3")
def test_a_snapshot_knows_where_it_has_begun() -> None:
    log = begun(worked())
    job = HandDrivenJob(
        chain("b"), job_id="other", log=log, options=RuntimeOptions(snapshot_every=2)
    )
    attempt = job.register(0)
    assert job.trigger() == 3
    attempt.ack_checkpoint(3)
    job.crash()
    made = rebuild(job.log, job.chain, projection_of(job.chain))

    assert made.started_at is not None
    assert made.state.begun_from == "job@2"
    with pytest.raises(RestoreError, match="a, that of job@2, in the log"):
        started(job.log, chain("a"))


def test_elsewhere_is_where_nothing_of_it_stands() -> None:
    log, sink = begun(worked()), PlacedSink()
    sink.has_output = True

    with pytest.raises(SinkError, match="job other has been here"):
        started(log, chain("b", sink))


@pytest.mark.clause("K5")
def test_a_fork_cut_off_anywhere_leaves_a_log_that_is_refused_or_fresh() -> None:
    log = begun(worked())
    end = log.high_watermark()
    for cut in range(1, end):
        with pytest.raises(RestoreError, match="job_id is job in the log and other here"):
            HandDrivenJob(chain("b"), job_id="other", log=prefix_of(log, cut))


def test_what_is_not_there_is_refused_by_name() -> None:
    old = worked()
    for checkpoint, said in (
        ("third", "there is no savepoint 'third'; the job has: second"),
        ("9", "checkpoint 9 has not completed; completed checkpoints: 1, 2, 3, 4"),
    ):
        with pytest.raises(CommandError, match=said):
            find_fork_point(old.log, "job", checkpoint)


def test_a_job_that_has_begun_otherwise_is_refused() -> None:
    old = worked()
    used, driven = begun(old), started(begun(old), chain("b")).log
    for log, checkpoint in ((used, "3"), (driven, "2"), (old.log, "2")):
        count, job_id = log.high_watermark(), "job" if log is old.log else "other"
        with pytest.raises(
            CommandError, match=f"it has a log already, .*`coordlog delete {job_id}`"
        ):
            fork_to(old.log, log, find_fork_point(old.log, "job", checkpoint), job_id=job_id)
        assert log.high_watermark() == count


@pytest.mark.clause("K5")
def test_cut_off_anywhere_the_same_call_goes_on() -> None:
    old = worked()
    whole, beginning = begun(old), find_fork_point(old.log, "job", "second")
    end, log = whole.high_watermark(), whole
    for cut in range(1, end):
        log = prefix_of(whole, cut)
        assert fork_to(old.log, log, beginning, job_id="other")
        assert log.records[: end - 1] == whole.records[: end - 1]
        assert log.high_watermark() == end
        assert not fork_to(old.log, log, beginning, job_id="other"), "it has begun"
        assert log.high_watermark() == end
    assert started(log, chain("b")).runtime.state.last_checkpoint == 2


def test_a_cut_off_beginning_is_not_gone_on_with_from_a_lower_checkpoint() -> None:
    old = worked()
    log = prefix_of(begun(old, "3"), find_fork_point(old.log, "job", "3").end_offset)
    with pytest.raises(CommandError, match=r"another record at offset .* than this history"):
        fork_to(old.log, log, find_fork_point(old.log, "job", "2"), job_id="other")


def test_it_tells_what_the_other_job_may_still_have_to_commit() -> None:
    """At each cut of its log: a checkpoint from its completion on, up to the outcome of its commit."""
    log = worked(3).log
    told = set[tuple[int, ...]]()
    for cut in range(log.high_watermark(), 0, -1):
        log.lose_from(cut)
        kinds = counted_kinds(log)
        done = kinds.count(Kind.CHECKPOINT_COMPLETED)
        if done:
            unsettled = find_fork_point(log, "job", str(done)).unsettled
            assert unsettled == tuple(range(kinds.count(Kind.COMMIT_OUTCOME) + 1, done + 1)), cut
            told.add(unsettled)
    assert told == {(), (1,), (2,), (3,)}


def unsettled(old: HandDrivenJob) -> MemoryLog:
    """The job's log, up to before its newest commit is settled."""
    outcome = old.history(Kind.COMMIT_OUTCOME)[-1]
    there = old.log.read(0, old.log.high_watermark())
    old.log.lose_from(next(one.offset for one in there if one.record() == outcome))
    return old.log


def test_of_checkpoints_above_that_one_it_says_nothing() -> None:
    log = unsettled(worked())

    assert find_fork_point(log, "job", "4").unsettled == (4,)
    assert find_fork_point(log, "job", "3").unsettled == ()


@pytest.mark.clause("H1")
def test_an_intent_includes_the_checkpoints_subsumed_by_its_completion() -> None:
    """A coordinator that commits only each third time: what the fifth and sixth allow is in the seventh's intent."""
    old = worked()
    (provider,) = old.chain.coordinators
    assert isinstance(provider, NotingProvider)
    (attempt,) = old.attempts.values()
    for number in (5, 6, 7):
        provider.is_committing = number == 7
        assert old.trigger() == number
        attempt.ack_checkpoint(number, committables=[("source", b"rows of %d" % number)])
    log = unsettled(old)

    assert find_fork_point(log, "job", "7").unsettled == (5, 6, 7)
    assert find_fork_point(log, "job", "5").unsettled == (5,)
    assert find_fork_point(log, "job", "4").unsettled == ()


def test_a_branch_left_by_rollback_is_not_notified_of_the_current_one() -> None:
    """The fifth was allowed to commit and never did; the job has read those rows again, behind the fourth."""
    old = worked()
    (provider,) = old.chain.coordinators
    assert isinstance(provider, NotingProvider)
    (attempt,) = old.attempts.values()
    provider.is_committing = False
    assert old.trigger() == 5
    attempt.ack_checkpoint(5, committables=[("source", b"rows of 5")])
    assert old.ask("", TakeSavepoint(name="fifth")).answer().sequence > 0
    old.crash()
    provider.is_committing = True
    job = HandDrivenJob(old.chain, log=old.log, from_checkpoint=4)
    attempt = job.register(0)
    assert job.trigger() == 6
    attempt.ack_checkpoint(6, committables=[("source", b"rows of 6")])

    assert find_fork_point(job.log, "job", "6").unsettled == ()
    assert find_fork_point(job.log, "job", "fifth").unsettled == (5,)


def test_what_another_job_had_to_commit_is_not_told_as_this_one_s() -> None:
    old = worked()
    log = MemoryLog("other")
    fork_to(unsettled(old), log, find_fork_point(old.log, "job", "4"), job_id="other")

    assert find_fork_point(old.log, "job", "4").unsettled == (4,)
    assert find_fork_point(log, "other", "4").unsettled == ()
    job = started(log, chain("b"))
    job.crash()
    assert find_fork_point(log, "other", "4").unsettled == ()


# --- by command -------------------------------------------------------------------------------------------------------
class SomeLogs:
    """Logs in memory, by job."""

    where = "memory"

    def __init__(self, **logs: MemoryLog) -> None:
        self.logs = logs

    def jobs(self) -> tuple[str, ...]:
        return tuple(sorted(self.logs))

    def open(self, job_id: str) -> Log:
        return self.logs[job_id]

    def create(self, job_id: str) -> Log:
        return self.logs.setdefault(job_id, MemoryLog(job_id))

    def delete(self, job_id: str) -> None:
        raise AssertionError(job_id)


def run(logs: SomeLogs, *arguments: str) -> Result:
    return CliRunner().invoke(main, ("fork", *arguments), obj=lambda _servers: logs)


def test_the_command_begins_a_job_and_says_so(tmp_path: Path) -> None:
    logs = SomeLogs(job=worked().log)
    result = run(logs, "other", "job@second")

    assert result.exit_code == Exit.DONE, result.output
    copied = logs.logs["other"].high_watermark() - 1
    assert result.stderr == (
        f"job other begins from checkpoint 2 of job job: {copied} records copied; run it with a "
        "destination of its own\n"
    )
    pairs = itertools.zip_longest(
        logs.logs["job"].read(0, copied), logs.logs["other"].read(0, copied)
    )
    assert all(a == b for a, b in pairs)


def test_the_command_goes_on_with_its_own_cut_off_copy() -> None:
    logs = SomeLogs(job=worked().log)
    run(logs, "other", "job@second")
    logs.logs["other"] = prefix_of(logs.logs["other"], 5)

    first, again = (run(logs, "other", "job@second") for _ in range(2))
    assert (first.exit_code, again.exit_code) == (Exit.DONE, Exit.DONE), first.output
    assert "records copied" in first.stderr
    assert "an earlier call has begun it" in again.stderr


def test_a_job_that_no_driver_has_opened_yet_is_a_copy() -> None:
    """The epoch in force is the command's: no driver of it was killed, or is silent."""
    logs = SomeLogs(job=worked().log)
    run(logs, "other", "job@second")

    (row,) = job_rows(logs, ["other"])
    assert (row.status, row.reason) == (COPY, None)


def test_the_command_names_rows_uncommitted_without_the_other_job() -> None:
    logs = SomeLogs(job=unsettled(worked()))

    assert "unless job runs, start it once more" in run(logs, "other", "job@4").stderr
    assert "once more" not in run(logs, "third", "job@3").stderr


def test_the_command_refuses_before_it_makes_a_log() -> None:
    logs = SomeLogs(job=worked().log)
    for arguments, said in (
        (("other", "job"), "it must be OTHER@NAME, or OTHER@N"),
        (("other", "job@third"), "there is no savepoint 'third'"),
        (("job", "job@second"), "job is to begin from itself"),
        (("Other", "job@second"), "job_id is 'Other'"),
    ):
        result = run(logs, *arguments)
        assert result.exit_code == Exit.USAGE
        assert said in result.stderr
    assert logs.jobs() == ("job",)
