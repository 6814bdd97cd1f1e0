"""`coordlog prune`: the beginning of a job's log goes, archived first; what a restart needs stays."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from coordlog.cli.living import driver_in, driver_lives
from coordlog.cli.log_access import WritableLogs, with_logs
from coordlog.cli.payload_store import StoreFinder, payload_store_option
from coordlog.errors import (
    AccessError,
    CommandError,
    CoordlogError,
    PayloadLostError,
    RequestError,
)
from coordlog.limits import RETAINED_CHECKPOINTS
from coordlog.log.file import check_target
from coordlog.log.interface import Log
from coordlog.log.local.paths import home_folder, private_folder
from coordlog.offline.epoch import read_job
from coordlog.offline.prune import planned
from coordlog.offline.prune import prune as prune_log
from coordlog.offline.snapshot import projections_of_users, take_own_snapshot, why_no_own_snapshot
from coordlog.payloads.gc import clean, payload_use
from coordlog.projections.inspection.prune_plan import PrunePlan
from coordlog.projections.job.state import JobState, Phase, sorted_items
from coordlog.projections.snapshot.codec import state_and_kept_apart
from coordlog.schemas.builtin_types import SnapshotTaken, SnapshotWanted
from coordlog.schemas.payload_address import STORE_ATTRIBUTE, opened
from coordlog.spark_integration.driver.liveness import NamedDriver
from coordlog.spark_integration.driver.requests import request_coordinator

__all__ = ["prune"]

_PROGRESS_EVERY = 50_000


@click.command()
@click.argument("job")
@click.option(
    "--keep-checkpoints",
    type=click.IntRange(min=1),
    default=RETAINED_CHECKPOINTS,
    show_default=True,
    metavar="N",
    help="How many of the last checkpoints stay restorable.",
)
@click.option(
    "--archive",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where what is removed goes; default: a file below COORDLOG_HOME/archives.",
)
@click.option(
    "--drop-payloads",
    "is_dropping",
    is_flag=True,
    help="Large payloads that only removed records address go too; the archive lacks them then.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--take-over",
    "is_take_over",
    is_flag=True,
    help="Where it cannot be known whether a driver lives: it does not.",
)
@payload_store_option
@with_logs
def prune(
    logs: WritableLogs,
    *,
    job: str,
    keep_checkpoints: int,
    archive: Path | None,
    is_dropping: bool,
    yes: bool,
    is_take_over: bool,
    payload_store: str | None,
) -> None:
    """Remove the beginning of JOB's log, up to a snapshot that a restart can begin with.

    A driver that lives is asked for a new snapshot, and goes on meanwhile. Where none does, this
    command takes one, whether the job has stopped, failed or finished, if all that its coordinators
    remember is coordlog's own, as in what `coordlog ingest` runs; else the newest one in the log is
    taken. All of the log is folded and compared with its snapshots before anything is removed, and
    what is removed is archived first, in the form of `coordlog export`.
    """
    if archive is not None:
        check_target(archive, "--archive")
    log = logs.open_to_write(job)
    try:
        finder = StoreFinder(job, payload_store, log)
        driver = driver_in(log, job)
        sequence = _snapshot(job, driver, is_take_over=is_take_over)
        if sequence is None and driver is not None:
            sequence = _own_snapshot(log, job, finder)
        plan = planned(
            log, job, keep_checkpoints=keep_checkpoints, sequence=sequence, on_progress=_folded
        )
        if plan.begins_with is None:
            _nothing_to_remove(job, plan, is_alive=sequence is not None)
            return
        shown = _shown(job, plan)
        if plan.state.kept:
            click.echo(_warned(job, plan), err=True)
        if own := projections_of_users(plan.state):
            click.echo(
                f"warning: after this only a job with the projections {', '.join(own)} starts on this log: a field "
                "that its state gets with a default is read, a new version of a projection is not",
                err=True,
            )
        if not yes:
            click.confirm(f"{shown}. Archive and remove it?", abort=True)
        path = archive or _archive(job, plan)
        clean_store = _cleaning(log, finder, plan.begins_with.offset if is_dropping else None)
        try:
            done = prune_log(log, job, plan, path, _opener(finder, plan.state))
        except FileExistsError as error:
            raise click.BadParameter(
                f"{path} is there, and is not what goes now; nothing was removed: name another "
                "file, or move that one away",
                param_hint="--archive",
            ) from error
    finally:
        log.close()
    click.echo(
        f"pruned job {job} at {logs.where}: {done.records_below:,} records are in {path}; its log "
        f"begins with the snapshot at offset {done.offset:,}",
        err=True,
    )
    if done.kept_apart:
        click.echo(
            f"what the coordinators of job {job} remember is in its payload store: it starts with "
            f"that alone, {plan.state.launch.get(STORE_ATTRIBUTE, '')}",
            err=True,
        )
    clean_store()


def _cleaning(log: Log, finder: StoreFinder, begins_with: int | None) -> Callable[[], None]:
    """What removes, once the log is shorter, the payloads that are left over: of whose epochs it knows nothing then."""
    try:
        store = finder.store_of(log)
        use = None if store is None else payload_use(log, store, begins_with=begins_with)
    except CoordlogError as error:
        why_not = str(error)
        return lambda: click.echo(f"payloads that are left over stay: {why_not}", err=True)

    def clean_store() -> None:
        removed = () if store is None or use is None else clean(store, use)
        if store is not None and removed:
            click.echo(f"removed {len(removed):,} payloads in {store.where}", err=True)

    return clean_store


def _snapshot(job: str, driver: NamedDriver | None, *, is_take_over: bool) -> int | None:
    """The sequence of a new one, taken by the driver; None where none lives."""
    if driver is None or not driver_lives(driver, is_take_over=is_take_over):
        return None
    try:
        answer = request_coordinator(
            "",
            SnapshotWanted(why="prune"),
            job_id=job,
            endpoint=driver.endpoint,
            response_types=(SnapshotTaken,),
        )
    except RequestError as error:
        raise CommandError(
            job, f"its driver at {driver.endpoint} has taken no snapshot: {error}", "try again"
        ) from error
    return answer.sequence


def _own_snapshot(log: Log, job: str, finder: StoreFinder) -> int | None:
    """The sequence of one that this command takes, where it can; None where only the job's driver could."""
    made = read_job(log, job, _any_state)
    why_not = why_no_own_snapshot(made.state)
    newest, end = made.newest_snapshot, made.state.next_sequence
    open_payload = _opener(finder, made.state)
    if newest.sequence == end - 1 and _stands(log, newest.offset, open_payload):
        return None  # it is the newest record: of an earlier prune, say
    if why_not is not None:
        click.echo(
            f"job {job} does not run, and has the snapshots that are in its log: {why_not}",
            err=True,
        )
        return None
    driver_id = made.state.driver_id

    def same(state: JobState) -> None:
        was, now = (one.launch.get("operators") for one in (made.state, state))
        if was != now:
            raise CommandError(
                job, f"a driver has begun since {driver_id} was seen to be gone", "try again"
            )

    try:
        return take_own_snapshot(
            log,
            made.state,
            open_payload=open_payload,
            store=finder.store_of(log),
            check=same,
        )
    except AccessError as error:  # who may remove need not be allowed to write
        click.echo(f"no snapshot of job {job} is taken: {error}", err=True)
        return None


def _stands(log: Log, offset: int, open_payload: Callable[[bytes], bytes]) -> bool:
    """Whether a `SNAPSHOT` is there with which a log can begin, or does."""
    for one in log.read(offset, offset + 1) if offset >= 0 else ():
        # ValueError: it cannot be used, or what stands there for a part is no address that this version reads.
        with suppress(ValueError, PayloadLostError):
            _, apart = state_and_kept_apart(one.record())
            if offset > log.start_offset():  # else whoever folds the log needs these parts too
                for part in apart:
                    open_payload(part)
            return True
    return False


def _opener(finder: StoreFinder, state: JobState) -> Callable[[bytes], bytes]:
    """Gives what a record holds, or addresses."""
    said = state.launch.get(STORE_ATTRIBUTE, "")
    return lambda data: opened(data, lambda address: finder.open(address, said))


def _any_state(_state: JobState) -> None:
    """A log of any state can be pruned."""


def _folded(offset: int) -> None:
    if offset and offset % _PROGRESS_EVERY == 0:
        click.echo(f"checked {offset:,} records", err=True)


def _nothing_to_remove(job: str, plan: PrunePlan, *, is_alive: bool) -> None:
    """Say why; an error where it is not that all of it has been done already."""
    if plan.newest is not None and plan.newest.offset <= plan.start:
        click.echo(f"nothing of job {job} is to be removed: {plan.why_not}", err=True)
        return
    next_step = "prune it while it runs: its driver takes one then"
    if is_alive or plan.newest is not None:
        next_step = "keep fewer checkpoints"
    elif plan.state.phase is Phase.FINISHED:
        next_step = (
            f"where it is not to run any more, `coordlog export {job} FILE` keeps its history, and "
            f"`coordlog delete {job}` removes the log; where all its coordinators are event-sourced, it can be "
            f"opened again too (again=True): {next_step}"
        )
    raise CommandError(job, f"nothing of its log can be removed: {plan.why_not}", next_step)


def _shown(job: str, plan: PrunePlan) -> str:
    target = plan.begins_with
    assert target is not None, "there is something to remove"
    kept = ", ".join(map(str, plan.checkpoints)) or "none, as there are none"
    return (
        f"The first {target.records_below:,} of {plan.record_count:,} records of job {job}, "
        f"{target.bytes_below:,} of {plan.byte_count:,} bytes, are before the snapshot at offset "
        f"{target.offset:,}; checkpoints that stay restorable: {kept}"
    )


def _warned(job: str, plan: PrunePlan) -> str:
    """What is lost of checkpoints that somebody keeps for a purpose."""
    kept = ", ".join(f"{name!r} ({number})" for name, number in sorted_items(plan.state.kept))
    return (
        f"warning: after this no other job can be begun (coordlog begin) from a checkpoint of job {job}, "
        f"of those that are kept {kept}; that job itself can still go back to them with "
        "--from-checkpoint"
    )


def _archive(job: str, plan: PrunePlan) -> Path:
    target = plan.begins_with
    assert target is not None, "there is something to remove"
    private_folder(home_folder())
    private_folder(home_folder() / "archives")
    folder = private_folder(home_folder() / "archives" / job)
    return folder / f"{job}-{plan.start}-{target.offset}.avro"
