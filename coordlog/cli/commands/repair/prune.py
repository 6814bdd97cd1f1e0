"""`coordlog prune`: removes the beginning of a job's log after archiving it; a restart needs none of it."""

from __future__ import annotations

import re
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
from coordlog.log.local.drafts import remove_drafts
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
from coordlog.schemas.payload_address import opened
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
    help="Number of the newest checkpoints that stay restorable.",
)
@click.option(
    "--archive",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File for the removed records; by default one below COORDLOG_HOME/archives.",
)
@click.option(
    "--drop-payloads",
    "is_dropping",
    is_flag=True,
    help="Also remove large payloads that only removed records address; the archive lacks them then.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--take-over",
    "is_take_over",
    is_flag=True,
    help="Assume that no driver runs, if that cannot be known.",
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

    If a driver runs, it takes a new snapshot and goes on. If none runs, because the job has
    stopped, failed or finished, this command takes the snapshot, provided that all coordinators are
    coordlog's own, as with `coordlog ingest`; otherwise the newest snapshot in the log is used. All
    of the log is folded and compared with its snapshots before any removal, and the removed records
    are archived first, in the form of `coordlog export`.
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
        description = _described(job, plan)
        if plan.state.savepoints:
            click.echo(_savepoint_warning(job, plan), err=True)
        if own := projections_of_users(plan.state):
            click.echo(
                f"warning: after this only a job with the projections {', '.join(own)} starts on this log: their "
                "states may get fields with defaults, but a new version of a projection cannot read them",
                err=True,
            )
        if not yes:
            click.confirm(f"{description}. Archive and remove them?", abort=True)
        path = archive or _archive(job, plan)
        clean_store = _cleaning(log, finder, plan.begins_with.offset if is_dropping else None)
        try:
            done = prune_log(log, job, plan, path, _opener(finder, plan.state))
        except FileExistsError as error:
            raise click.BadParameter(
                f"{path} exists with other records than these; nothing was removed: name another "
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
            f"the states of the coordinators of job {job} are in its payload store: it starts only with "
            f"that store, {plan.state.launch_info.payload_store}",
            err=True,
        )
    clean_store()


def _cleaning(log: Log, finder: StoreFinder, begins_with: int | None) -> Callable[[], None]:
    """Function that removes left-over payloads after the prune; prepared before it, while the log has their epochs."""
    try:
        store = finder.store_of(log)
        use = None if store is None else payload_use(log, store, begins_with=begins_with)
    except CoordlogError as error:
        problem = str(error)
        return lambda: click.echo(f"left-over payloads stay: {problem}", err=True)

    def clean_store() -> None:
        removed = () if store is None or use is None else clean(store, use)
        if store is not None and removed:
            click.echo(f"removed {len(removed):,} payloads in {store.where}", err=True)

    return clean_store


def _snapshot(job: str, driver: NamedDriver | None, *, is_take_over: bool) -> int | None:
    """Sequence of a new snapshot taken by the driver, or None if no driver runs."""
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
    """Sequence of a snapshot taken by this command, or None if there is no need, or only the driver can take one."""
    rebuild = read_job(log, job, _any_state)
    why_not = why_no_own_snapshot(rebuild.state)
    newest, end = rebuild.newest_snapshot, rebuild.state.next_sequence
    open_payload = _opener(finder, rebuild.state)
    if newest.sequence == end - 1 and _is_usable(log, newest.offset, open_payload):
        return None  # it is the newest record, for instance of an earlier prune
    if why_not is not None:
        click.echo(
            f"job {job} does not run, and has only the snapshots in its log: {why_not}",
            err=True,
        )
        return None
    driver_id = rebuild.state.driver_id

    def check_operators(state: JobState) -> None:
        if state.launch.get("operators") != rebuild.state.launch.get("operators"):
            raise CommandError(
                job, f"a driver has begun since the end of driver {driver_id}", "try again"
            )

    try:
        return take_own_snapshot(
            log,
            rebuild.state,
            open_payload=open_payload,
            store=finder.store_of(log),
            check=check_operators,
        )
    except AccessError as error:  # the right to remove does not include the right to append
        click.echo(f"no snapshot of job {job} is taken: {error}", err=True)
        return None


def _is_usable(log: Log, offset: int, open_payload: Callable[[bytes], bytes]) -> bool:
    """Whether the record at `offset` is a `SNAPSHOT` that a log can begin with."""
    for stored in log.read(offset, offset + 1) if offset >= 0 else ():
        # ValueError: it cannot be used, or the address of a part cannot be read by this version.
        with suppress(ValueError, PayloadLostError):
            _, parts = state_and_kept_apart(stored.record())
            if (
                offset > log.start_offset()
            ):  # at the log's start, folding the log has opened the parts
                for part in parts:
                    open_payload(part)
            return True
    return False


def _opener(finder: StoreFinder, state: JobState) -> Callable[[bytes], bytes]:
    """Function that opens inline and addressed payloads of the job."""
    recorded_url = state.launch_info.payload_store
    return lambda data: opened(data, lambda address: finder.open(address, recorded_url))


def _any_state(_state: JobState) -> None:
    """Accept any state: every log can be pruned."""


def _folded(offset: int) -> None:
    if offset and offset % _PROGRESS_EVERY == 0:
        click.echo(f"checked {offset:,} records", err=True)


def _nothing_to_remove(job: str, plan: PrunePlan, *, is_alive: bool) -> None:
    """Print the reason if the log is pruned already.

    Raises:
        CommandError: Another reason; the message has the next step.
    """
    if plan.newest is not None and plan.newest.offset <= plan.start:
        click.echo(f"nothing of job {job} is to be removed: {plan.why_not}", err=True)
        return
    next_step = "prune it while it runs: its driver takes one then"
    if is_alive or plan.newest is not None:
        next_step = "keep fewer checkpoints"
    elif plan.state.phase is Phase.FINISHED:
        next_step = (
            f"if it is not to run any more, `coordlog export {job} FILE` keeps its history, and "
            f"`coordlog delete {job}` removes the log; if all its coordinators are event-sourced, it can also be "
            f"opened again (--again, or Start(again=True)): {next_step}"
        )
    raise CommandError(job, f"nothing of its log can be removed: {plan.why_not}", next_step)


def _described(job: str, plan: PrunePlan) -> str:
    target = plan.begins_with
    assert target is not None, "the plan removes records"
    kept = ", ".join(map(str, plan.checkpoints)) or "none, as there are none"
    return (
        f"The first {target.records_below:,} of {plan.record_count:,} records of job {job}, "
        f"{target.bytes_below:,} of {plan.byte_count:,} bytes, are before the snapshot at offset "
        f"{target.offset:,}; checkpoints that stay restorable: {kept}"
    )


def _savepoint_warning(job: str, plan: PrunePlan) -> str:
    """Warning about the loss of forks from savepoints."""
    savepoints = ", ".join(
        f"{name!r} ({number})" for name, number in sorted_items(plan.state.savepoints)
    )
    return (
        f"warning: after this no other job can be begun (coordlog fork) from a checkpoint of job {job}, "
        f"of its savepoints {savepoints}; that job itself can still go back to them with "
        "--from-checkpoint"
    )


def _archive(job: str, plan: PrunePlan) -> Path:
    target = plan.begins_with
    assert target is not None, "the plan removes records"
    private_folder(home_folder())
    private_folder(home_folder() / "archives")
    folder = private_folder(home_folder() / "archives" / job)
    remove_drafts(folder, rf"{re.escape(job)}-\d+-\d+\.avro")  # each prune has a name of its own
    return folder / f"{job}-{plan.start}-{target.offset}.avro"
