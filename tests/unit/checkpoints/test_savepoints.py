"""Savepoints, by a driver that lives and by command (clauses E5, J1, K5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordlog.api.chain import Chain
from coordlog.cli.exit_status import Exit
from coordlog.errors import RequestRefusedError, RestoreError
from coordlog.limits import SAVEPOINTS_MAX
from coordlog.offline.epoch import append_fact, read_records
from coordlog.projections.inspection.verify import verify
from coordlog.projections.job.checkpoints import held_committables
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import (
    ReleaseSavepoint,
    SavepointRecorded,
    SavepointTaken,
    TakeSavepoint,
)
from coordlog.schemas.record import Kind
from coordlog.testing import replay
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import HANDLED, FakeSink, NotingProvider, Up, chain_of, kinds, prefix_of
from histories.one_log import savepoint_command, shown

pytestmark = pytest.mark.clause("E5")


@pytest.fixture(autouse=True)
def _no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path))
    monkeypatch.delenv("COORDLOG_TOKEN", raising=False)


def started(every: int | None = None) -> HandDrivenJob:
    chain = chain_of(NotingProvider(projection=HANDLED))
    return HandDrivenJob(chain, options=RuntimeOptions(snapshot_every=every))


def again(job: HandDrivenJob, from_checkpoint: int | None = None) -> HandDrivenJob:
    if not job.is_crashed:
        job.crash()
    chain = chain_of(NotingProvider(projection=HANDLED))
    return HandDrivenJob(chain, log=job.log, from_checkpoint=from_checkpoint)


def more(job: HandDrivenJob, count: int) -> None:
    """So many checkpoints, before each an event with its number."""
    live = job.runtime.state.subtasks[0].attempt
    attempt = job.register(0) if live is None else job.attempts[max(job.attempts)]
    for _ in range(count):
        attempt.send("source", Up(n=job.runtime.state.next_checkpoint_id))
        number = job.trigger()
        assert number is not None
        attempt.ack_checkpoint(number, states={"source": b"of %d" % number})


def retained(job: HandDrivenJob) -> list[int]:
    return sorted(job.runtime.state.completed)


@pytest.mark.clause("J1")
def test_a_driver_keeps_a_checkpoint_until_it_is_let_go() -> None:
    job = started()
    more(job, 2)
    asked = job.ask("", TakeSavepoint(name="before-upgrade", checkpoint=1))
    assert asked.answer().response == SavepointRecorded(checkpoint=1, was_so_before=False)
    assert kinds(job.history())[-3:] == ["REQUEST", "FACT", "RESPONSE"]
    more(job, 5)
    assert retained(job) == [1, 5, 6, 7], "three, and the savepoint"

    let_go = job.ask("", ReleaseSavepoint(name="before-upgrade"))
    assert let_go.answer().response == SavepointRecorded(checkpoint=1, was_so_before=False)
    more(job, 1)
    assert retained(job) == [6, 7, 8]
    stored = list(job.log.read(0, job.log.high_watermark()))
    assert verify(stored).faults == []
    replay(job.log, chain_of(NotingProvider(projection=HANDLED)))


def test_without_a_number_the_last_checkpoint_is_kept_once() -> None:
    job = started()
    more(job, 2)
    first = job.ask("", TakeSavepoint(name="here"))
    second = job.ask("", TakeSavepoint(name="here", checkpoint=2))

    assert first.answer().response == SavepointRecorded(checkpoint=2, was_so_before=False)
    assert second.answer().response == SavepointRecorded(checkpoint=2, was_so_before=True)
    assert len(job.history(Kind.FACT)) == 1


@pytest.mark.parametrize(
    ("name", "number", "why"),
    [
        ("Big", 2, "'Big' is no savepoint name"),
        ("2", 2, "'2' is a number, as checkpoints have: use a name with a letter in it"),
        ("here", 3, "'here' names checkpoint 4, not 3: release it first"),
        ("other", 1, r"checkpoint 1 is not retained: .*; the retained ones are: 2, 3, 4"),
        ("other", 9, "checkpoint 9 is none that there has been: the next one is 5"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_reason(name: str, number: int, why: str) -> None:
    job = started()
    more(job, 4)
    job.ask("", TakeSavepoint(name="here"))

    with pytest.raises(RequestRefusedError, match=why):
        job.ask("", TakeSavepoint(name=name, checkpoint=number)).answer()
    with pytest.raises(RequestRefusedError, match=r"there is no savepoint 'x'; the job has: here"):
        job.ask("", ReleaseSavepoint(name="x")).answer()
    assert len(job.history(Kind.FACT)) == 1


def test_so_many_are_kept_and_no_more() -> None:
    job = started()
    more(job, 1)
    for n in range(SAVEPOINTS_MAX):
        job.ask("", TakeSavepoint(name=f"n{n}")).answer()

    with pytest.raises(RequestRefusedError, match="the job has 20 savepoints, and the limit is 20"):
        job.ask("", TakeSavepoint(name="one-more")).answer()
    assert job.ask("", TakeSavepoint(name="n0")).answer().sequence > 0


def test_before_the_first_checkpoint_there_is_nothing_to_keep() -> None:
    with pytest.raises(RequestRefusedError, match="no checkpoint has completed"):
        started().ask("", TakeSavepoint(name="here")).answer()


def test_a_job_goes_back_to_a_kept_checkpoint_long_after() -> None:
    job = started()
    more(job, 1)
    job.ask("", TakeSavepoint(name="first"))
    more(job, 6)
    job = again(job, from_checkpoint=1)

    assert job.runtime.state.projections["source"] == (1,)
    assert [one.state for one in job.register(0).accepted.states] == [b"of 1"]


def test_one_that_is_kept_stays_when_the_job_goes_back_below_it() -> None:
    job = started()
    more(job, 4)
    job.ask("", TakeSavepoint(name="later"))
    job = again(job, from_checkpoint=2)
    assert job.runtime.state.last_checkpoint == 2
    assert retained(job) == [2, 4], "3 is abandoned"
    more(job, 2)
    job = again(job, from_checkpoint=4)

    assert job.runtime.state.projections["source"] == (1, 2, 3, 4)
    job.crash()
    assert again(job).runtime.state.last_checkpoint == 4


def died_behind_completion(sink: FakeSink, place: str) -> HandDrivenJob:
    """A job whose third checkpoint is a savepoint; its driver died before the rows were to be committed."""
    job = HandDrivenJob(writing(sink, place))
    attempt = job.register(0)
    for number in range(1, 4):
        assert job.trigger() == number
        attempt.ack_checkpoint(number, committables=[("source", b"rows of %d" % number)])
    job.crash()
    sink.settled.remove(("rows of 3",))
    (end,) = [
        one.offset + 1 + record.turn_remaining
        for one in job.log.read(0, job.log.high_watermark())
        for record in [one.record()]
        if record.kind is Kind.CHECKPOINT_COMPLETED and record.checkpoint_id == 3
    ]
    job.log = prefix_of(job.log, end)
    fact = SavepointTaken(name="third", checkpoint=3)
    made = read_records(job.log)
    append_fact(job.log, made, fact, command="checkpoint", check=lambda _state: None, why="a test")
    return job


def writing(sink: FakeSink, place: str = "a") -> Chain:
    provider = NotingProvider(sink=sink)
    provider.destination = place
    return chain_of(provider)


@pytest.mark.clause("E6")
@pytest.mark.clause("I4")
def test_a_savepoints_open_commits_wait_while_the_job_continues_below_it() -> None:
    sink, other = FakeSink(), FakeSink()
    job = died_behind_completion(sink, "a")
    job = HandDrivenJob(writing(other, "b"), log=job.log, from_checkpoint=2)
    assert dict(job.runtime.state.granted.items()) == {}
    assert held_committables(job.runtime.state, "source") == (b"rows of 3",), "not cleaned away"
    more(job, 5)
    assert held_committables(job.runtime.state, "source") == (b"rows of 3",)
    job.crash()
    with pytest.raises(
        RestoreError,
        match="the open commit of checkpoint 3 of operator 'source' is to be committed to a",
    ):
        HandDrivenJob(writing(other, "b"), log=job.log, from_checkpoint=3)
    job = HandDrivenJob(writing(sink, "a"), log=job.log, from_checkpoint=3)

    assert sink.settled == [("rows of 1",), ("rows of 2",), ("rows of 3",)]
    assert other.settled == []
    assert held_committables(job.runtime.state, "source") == ()


@pytest.mark.clause("I4")
def test_let_go_it_is_given_up_with_the_checkpoint() -> None:
    job = died_behind_completion(FakeSink(), "a")
    job = HandDrivenJob(writing(FakeSink(), "b"), log=job.log, from_checkpoint=2)
    job.ask("", ReleaseSavepoint(name="third")).answer()
    assert held_committables(job.runtime.state, "source") == (b"rows of 3",), "it is among three"
    more(job, 3)

    assert held_committables(job.runtime.state, "source") == ()
    assert 3 not in job.runtime.state.completed


@pytest.mark.clause("K3")
def test_snapshots_hold_what_is_kept() -> None:
    job = started(every=4)
    more(job, 1)
    job.ask("", TakeSavepoint(name="first"))
    more(job, 8)
    job.crash()
    made = rebuild(job.log, job.chain, projection_of(job.chain))
    whole = rebuild(job.log, job.chain, projection_of(job.chain), is_whole=True)

    assert made.started_at is not None
    assert made.state == whole.state
    assert dict(made.state.savepoints.items()) == {"first": 1}
    assert 1 in made.state.completed


# --- by command -------------------------------------------------------------------------------------------------------
def test_without_a_driver_the_command_keeps_and_releases_in_its_own_epoch() -> None:
    job = started()
    more(job, 2)
    job.crash()
    result = savepoint_command(job.log, "first", "--checkpoint", "1")
    assert result.exit_code == Exit.DONE, result.output
    assert result.stderr.startswith("checkpoint 1 of job job is savepoint 'first', at sequence ")
    row = next(line.split() for line in shown(job.log).splitlines() if line.startswith("   1"))
    assert row[-2:] == ["first", "yes"]

    job = again(job)
    assert job.runtime.state.epoch == 2
    more(job, 4)
    assert retained(job) == [1, 4, 5, 6]
    job.crash()
    assert "already" in savepoint_command(job.log, "first", "--checkpoint", "1").stderr
    result = savepoint_command(job.log, "first", "--release")
    assert result.stderr.startswith("checkpoint 1 of job job is no longer savepoint 'first', at ")
    job = again(job)
    more(job, 1)
    assert retained(job) == [5, 6, 7]
    job.crash()
    assert verify(job.log.read(0, job.log.high_watermark())).faults == []
    replay(job.log, chain_of(NotingProvider(projection=HANDLED)))


def test_what_the_command_cannot_keep_is_refused_and_nothing_is_appended() -> None:
    job = started()
    more(job, 4)
    job.crash()
    before = job.log.high_watermark()
    for arguments, said in (
        (("x", "--checkpoint", "1"), "checkpoint 1 is not retained"),
        (("x", "--checkpoint", "9"), "checkpoint 9 is none that there has been: the next one is 5"),
        (("x", "--release"), "there is no savepoint 'x'; the job has: none"),
        (("x", "--release", "--checkpoint", "4"), "--release takes a name alone"),
    ):
        result = savepoint_command(job.log, *arguments)
        assert result.exit_code == Exit.USAGE
        assert said in result.stderr
    assert job.log.high_watermark() == before


@pytest.mark.clause("K5")
def test_any_prefix_of_the_command_s_epoch_is_a_legal_history() -> None:
    job = started()
    more(job, 2)
    job.crash()
    before = job.log.high_watermark()
    assert savepoint_command(job.log, "first", "--checkpoint", "1").exit_code == 0
    end = job.log.high_watermark()
    assert end - before == 3, "the epoch, the type, the fact"
    for cut in range(before, end + 1):
        made = HandDrivenJob(job.chain, log=prefix_of(job.log, cut), job_id="job")
        assert dict(made.runtime.state.savepoints.items()) == ({"first": 1} if cut == end else {})
        made.crash()


def test_one_that_is_not_kept_is_gone_and_said_to_be() -> None:
    job = started()
    more(job, 6)

    with pytest.raises(RestoreError, match="checkpoint 1 is not retained"):
        again(job, from_checkpoint=1)
