"""Committables that no intent covers yet, in jobs whose operators change: compared with their writers (E7, E8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from immutables import Map

from coordlog.api.chain import Chain
from coordlog.errors import RestoreError
from coordlog.log.memory import MemoryLog
from coordlog.projections.job.grants import covering, without_covered
from coordlog.projections.job.state import Granted, Phase
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import TakeSavepoint
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import HANDLED, FakeSink, Noting, NotingProvider, chain_of, prefix_of

pytestmark = pytest.mark.clause("E8")


def written_by(
    version: int, *reads: int, provider: NotingProvider, keeps_state: bool = True
) -> Chain:
    """The chain whose operator `sink` has this version, and reads the states of others."""
    chain = chain_of(NotingProvider(projection=HANDLED), provider, keeps_state=keeps_state)
    (sink,) = chain.operators
    return replace(chain, operators=[replace(sink, version=version, restores=reads)])


def late() -> NotingProvider:
    """The provider of an operator whose coordinator does not commit by itself."""
    return NotingProvider("sink", sink=FakeSink(), is_committing=False, projection=HANDLED)


def placed(destination: str) -> NotingProvider:
    """As `late`, with a destination."""
    provider = late()
    provider.destination = destination
    return provider


def source_of(chain: Chain) -> Chain:
    """The chain without its operators."""
    return replace(chain, operators=[])


def checkpointed(
    chain: Chain, log: MemoryLog | None = None, *, rows: bytes, snapshot_every: int = 0
) -> HandDrivenJob:
    """A driver that has died after a checkpoint in which its attempt handed over one committable."""
    options = RuntimeOptions(snapshot_every=snapshot_every) if snapshot_every else RuntimeOptions()
    job = HandDrivenJob(chain, log=log, options=options)
    attempt = job.register(0)
    number = job.trigger()
    assert number is not None
    attempt.ack_checkpoint(number, committables=[("sink", rows)])
    job.crash()
    return job


@pytest.mark.parametrize("snapshot_every", [0, 3], ids=["whole", "from a snapshot"])
def test_open_committables_are_of_the_version_that_wrote_them(snapshot_every: int) -> None:
    old = checkpointed(written_by(1, provider=late()), rows=b"a", snapshot_every=snapshot_every)
    log = old.log
    for _ in range(2):  # checkpoints 2 and 3 are of version 2 alone
        second = written_by(2, 1, provider=late())
        log = checkpointed(second, log, rows=b"b", snapshot_every=snapshot_every).log

    before = log.high_watermark()
    with pytest.raises(RestoreError, match="that checkpoint 1 granted is 1 in the log and 3 here"):
        HandDrivenJob(written_by(3, 2, provider=late()), log=log)
    assert log.high_watermark() == before
    reading, granted = late(), list[bytes]()
    reading.on["complete"] = lambda coordinator, number: granted.extend(
        one.content for one in coordinator.context.committables(number)
    )
    HandDrivenJob(written_by(3, 1, 2, provider=reading), log=log)
    assert granted == [b"a", b"b", b"b"]


def test_committed_ones_need_no_reader() -> None:
    log = checkpointed(written_by(1, provider=late()), rows=b"a").log
    second = late()
    second.is_committing = True
    log = checkpointed(written_by(2, 1, provider=second), log, rows=b"b").log

    HandDrivenJob(written_by(3, 2, provider=late()), log=log)


def test_of_a_branch_only_its_own_open_committables_count() -> None:
    """Going back to a checkpoint leaves what later ones granted."""
    log: MemoryLog | None = None
    for version in (1, 2, 3):
        reads = tuple(range(1, version))
        log = checkpointed(written_by(version, *reads, provider=late()), log, rows=b"a").log

    fourth = written_by(4, 1, 3, provider=late())
    with pytest.raises(RestoreError, match="checkpoint 2 granted is 2 in the log and 4 here"):
        HandDrivenJob(fourth, log=log)
    back = HandDrivenJob(fourth, log=log, from_checkpoint=1)
    assert back.mode == "rollback"


@pytest.mark.parametrize("is_kept", [True, False], ids=["a kept split", "a finished subtask"])
def test_a_batchs_committables_are_of_the_version_that_wrote_them(*, is_kept: bool) -> None:
    log: MemoryLog | None = None
    for version in (1, 2):
        reads = tuple(range(1, version))
        chain = written_by(version, *reads, provider=late(), keeps_state=not is_kept)
        job = HandDrivenJob(chain, log=log, is_batch=True, parallelism=3)
        attempts = {attempt.subtask: attempt for attempt in job.register_all()}
        rows = [("sink", b"%d" % version)]
        if is_kept:
            attempts[2].finish_split("source", f"split-{version}", committables=rows)
        else:
            attempts[version - 1].complete(committables=rows)
        job.crash()
        log = job.log
    assert log is not None

    third = written_by(3, 2, provider=late(), keeps_state=not is_kept)
    with pytest.raises(RestoreError, match="is 1 in the log and 3 here"):
        HandDrivenJob(third, log=log, is_batch=True, parallelism=3)
    reading = written_by(3, 1, 2, provider=late(), keeps_state=not is_kept)
    job = HandDrivenJob(reading, log=log, is_batch=True, parallelism=3)
    assert job.mode == "resume"


def ending(version: int, *reads: int, log: MemoryLog | None = None) -> HandDrivenJob:
    """A batch of two subtasks at its end, whose coordinator waits with its commits."""

    def wait(coordinator: Noting, _number: int) -> None:
        coordinator.context.schedule(3600, lambda: None)

    provider = late()
    provider.on["complete"] = wait
    job = HandDrivenJob(
        written_by(version, *reads, provider=provider),
        log=log,
        is_batch=True,
        parallelism=2,
        may_fail="begins again",
    )
    if job.runtime.state.phase is not Phase.ENDING:
        complete(job)
    return job


def complete(job: HandDrivenJob) -> None:
    """All subtasks that are still to run finish, each with one committable."""
    for attempt in job.register_all():
        attempt.complete(committables=[("sink", b"rows")])
    assert job.runtime.state.phase is Phase.ENDING


def test_a_batch_is_not_settled_without_an_operator_of_open_committables() -> None:
    job = ending(1)
    job.crash()
    without = chain_of(NotingProvider(projection=HANDLED))

    with pytest.raises(RestoreError, match="operator 'sink'") as raised:
        HandDrivenJob(without, log=job.log, is_batch=True, parallelism=2)
    assert "allow_non_restored_state=('sink',)" in str(raised.value)
    allowed = HandDrivenJob(
        without, log=job.log, is_batch=True, parallelism=2, allow_non_restored_state=("sink",)
    )
    assert allowed.runtime.state.phase is Phase.FINISHED


def test_a_batchs_end_is_settled_by_a_version_that_reads_its_committables() -> None:
    job = ending(1)
    job.crash()
    began = job.log.high_watermark()
    second = written_by(2, 1, provider=late())
    HandDrivenJob(
        second,
        log=job.log,
        is_batch=True,
        parallelism=2,
        may_fail="committables that no intent covers",
    )
    log = prefix_of(job.log, began + 1)  # its driver has died before it failed

    with pytest.raises(RestoreError, match="is 1 in the log and 3 here"):
        HandDrivenJob(written_by(3, 2, provider=late()), log=log, is_batch=True, parallelism=2)


def of_two_versions() -> MemoryLog:
    """The log of a batch at its end, whose committables are of versions 1 and 2."""
    first = HandDrivenJob(written_by(1, provider=late()), is_batch=True, parallelism=2)
    first.register(0).complete(committables=[("sink", b"rows")])
    first.crash()
    second = ending(2, 1, log=first.log)
    second.crash()
    return second.log


@pytest.mark.parametrize(("reads", "missing"), [((2, 3), 1), ((1, 3), 2)])
def test_the_end_of_a_batch_needs_a_reader_for_each_version_that_wrote(
    reads: tuple[int, ...], missing: int
) -> None:
    third = ending(3, 1, 2, log=of_two_versions())
    third.crash()
    fourth = written_by(4, *reads, provider=late())
    with pytest.raises(RestoreError, match=f"batch's end is {missing} in the log and 4 here"):
        HandDrivenJob(fourth, log=third.log, is_batch=True, parallelism=2)


def test_after_a_batch_has_begun_again_its_end_is_of_its_own_version() -> None:
    third = ending(3, 1, 2, log=of_two_versions())
    third.run(lambda: third.runtime.fail_job("sink", "it begins again"))
    third.advance(60)
    complete(third)
    third.crash()
    assert ending(4, 3, log=third.log).mode == "settle"


def batch_to(place: str, log: MemoryLog | None = None, restore: str | None = None) -> HandDrivenJob:
    """A batch whose operator `sink` commits to this place, and keeps no state across splits."""
    provider = NotingProvider("sink", sink=FakeSink(), projection=HANDLED)
    provider.destination = place
    chain = chain_of(NotingProvider(projection=HANDLED), provider, keeps_state=False)
    return HandDrivenJob(chain, log=log, is_batch=True, parallelism=2, restore=restore)


@pytest.mark.clause("E6")
@pytest.mark.parametrize("is_split", [True, False])
def test_a_batch_that_keeps_work_does_not_go_on_elsewhere(
    is_split: bool,  # noqa: FBT001, a parameter
) -> None:
    """Its rows are staged where it was: no commit at another place could find them, and none would go back."""
    job = batch_to("here")
    attempt = job.register(0)
    if is_split:
        attempt.finish_split("source", "a", committables=[("sink", b"rows")])
    else:
        attempt.complete(committables=[("sink", b"rows")])
    job.crash()
    before = job.log.high_watermark()

    with pytest.raises(RestoreError, match="to be committed to here in the log and to go to there"):
        batch_to("there", job.log)

    assert job.log.high_watermark() == before
    batch_to("here", job.log).crash()
    batch_to("there", job.log, "rollback").crash()


@pytest.mark.clause("E6")
@pytest.mark.parametrize("is_batch", [True, False])
def test_rows_of_a_removed_operator_do_not_go_elsewhere_when_it_returns(
    is_batch: bool,  # noqa: FBT001, a parameter
) -> None:
    """The last epoch, which was without the operator, names no destination of it."""

    def job_of(place: str | None, log: MemoryLog | None = None) -> HandDrivenJob:
        sink = late()
        sink.destination = place
        providers = [NotingProvider(projection=HANDLED), *([] if place is None else [sink])]
        chain = chain_of(*providers, keeps_state=False)
        return HandDrivenJob(
            chain, log=log, is_batch=is_batch, parallelism=2, allow_non_restored_state=("sink",)
        )

    job = job_of("here")
    first, second = job.register_all()
    if is_batch:
        first.complete(committables=[("sink", b"rows")])
    else:
        job.trigger()
        first.ack_checkpoint(1, committables=[("sink", b"rows")])
        second.ack_checkpoint(1)
        assert 1 in job.runtime.state.granted
    job.crash()
    job_of(None, job.log).crash()

    with pytest.raises(RestoreError, match="to be committed to here in the log and to go to there"):
        job_of("there", job.log)
    job_of("here", job.log).crash()


@pytest.mark.clause("E6")
def test_a_savepoints_rows_of_a_removed_operator_do_not_go_elsewhere() -> None:
    """The savepoint is of an epoch without the operator, and its rows are those of the checkpoint before."""
    job = HandDrivenJob(written_by(1, provider=placed("here")))
    attempt = job.register(0)
    for rows in ([], [("sink", b"rows")]):
        number = job.trigger()
        assert number is not None
        attempt.ack_checkpoint(number, committables=rows)
    job.crash()
    source = chain_of(NotingProvider(projection=HANDLED))
    away = HandDrivenJob(source, log=job.log, allow_non_restored_state=("sink",))
    attempt = away.register(0)
    assert away.trigger() == 3
    attempt.ack_checkpoint(3)
    away.ask("", TakeSavepoint(name="kept")).answer()
    away.crash()
    HandDrivenJob(
        source, log=job.log, from_checkpoint=1, allow_non_restored_state=("sink",)
    ).crash()

    with pytest.raises(RestoreError, match="to be committed to here in the log and to go to there"):
        HandDrivenJob(written_by(1, provider=placed("there")), log=job.log, from_checkpoint=3)


@pytest.mark.parametrize(
    ("chain", "says"),
    [
        (lambda: written_by(3, 2, provider=placed("here")), "that checkpoint 1 granted is 1 in"),
        (lambda: written_by(3, 1, 2, provider=placed("there")), "to be committed to here in the"),
    ],
)
def test_rows_of_an_end_before_a_resume_are_of_the_epoch_that_wrote_them(
    chain: Callable[[], Chain], says: str
) -> None:
    job = HandDrivenJob(written_by(1, provider=placed("here")), parallelism=2)
    job.register(0).complete(committables=[("sink", b"rows")])
    job.crash()
    second = written_by(2, 1, provider=placed("here"))
    resumed = HandDrivenJob(second, log=job.log, parallelism=2, restore="resume")
    attempt = resumed.register(1)
    assert resumed.trigger() == 1
    attempt.ack_checkpoint(1)
    resumed.crash()
    third = written_by(3, 2, provider=placed("here"))
    HandDrivenJob(
        source_of(third), log=job.log, parallelism=2, allow_non_restored_state=("sink",)
    ).crash()

    with pytest.raises(RestoreError, match=says):
        HandDrivenJob(chain(), log=job.log, parallelism=2)


@pytest.mark.clause("E6")
def test_a_batch_that_keeps_no_rows_goes_on_elsewhere() -> None:
    job = batch_to("here")
    job.register(0).finish_split("source", "a")
    job.crash()

    assert batch_to("there", job.log).mode == "resume"


@pytest.mark.clause("H4")
def test_an_intent_of_neighbours_covers_all_between_the_first_and_the_last() -> None:
    """If only the ends of a range were covered, the others would be committed a second time."""
    places = [(8, 0), (7, 5), (7, 0), (7, 2), (7, 1)]
    grants = Map({7: granted("a", "b", "c", "d", "e", "f"), 8: granted("g", "h")})

    covers = covering(places)
    left = without_covered(grants, "sink", 8, covers)

    assert covers == "7:0-2,5;8:0"
    assert {number: [one.content for one in each] for number, each in left.items()} == {
        7: [b"d", b"e"],
        8: [b"h"],
    }


def granted(*contents: str) -> tuple[Granted, ...]:
    return tuple(
        Granted(
            operator_id="sink",
            subtask=0,
            attempt_number=0,
            split_id=None,
            content=content.encode(),
        )
        for content in contents
    )
