"""`coordlog prune`: removes the beginning of a job's log after archiving it; a restart needs none of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from coordlog.cli.completing import JOB
from coordlog.cli.living import driver_in, driver_lives
from coordlog.cli.log_access import WritableLogs, with_logs
from coordlog.cli.payload_store import StoreFinder, payload_store_option
from coordlog.cli.table_output import print_result, result_option
from coordlog.errors import (
    CommandError,
    CoordlogError,
    RequestError,
)
from coordlog.export import archive_in
from coordlog.log.file import check_target
from coordlog.log.interface import Log
from coordlog.log.local.paths import home_folder, private_folder
from coordlog.offline.prune import planned
from coordlog.offline.prune import prune as prune_log
from coordlog.payloads.gc import clean, payload_use
from coordlog.projections.inspection.prune_plan import PrunePlan, SnapshotPlace
from coordlog.projections.job.state import JobState, sorted_items
from coordlog.schemas.builtin_types import SnapshotTaken, SnapshotWanted
from coordlog.schemas.payload_address import opened
from coordlog.spark_integration.driver.liveness import NamedDriver
from coordlog.spark_integration.driver.requests import request_coordinator

__all__ = ["prune"]

_PROGRESS_EVERY = 50_000
_UNJUDGED = "nothing was removed: a prune checks each record of the log, also with --take-over"


@click.command()
@click.argument("job", shell_complete=JOB)
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
    help="Also remove payloads of pruned records; an archive of those records is incomplete without them.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--take-over",
    "is_take_over",
    is_flag=True,
    help="Assume that no driver runs, if that cannot be known.",
)
@payload_store_option
@result_option
@with_logs
def prune(
    logs: WritableLogs,
    *,
    job: str,
    archive: Path | None,
    is_dropping: bool,
    yes: bool,
    is_take_over: bool,
    payload_store: str | None,
    as_json: bool,
) -> None:
    """Remove the beginning of JOB's log, up to its newest snapshot.

    If a driver runs, it takes a new snapshot and continues. If none runs, the newest snapshot in the
    log is used: each driver that finishes, fails or stops has taken one at its end. All of the log
    is folded and compared with its snapshots before any removal, and the removed records are
    archived first, in the form of `coordlog export`.
    """
    if archive is not None:
        check_target(archive, "--archive")
    log = logs.open_to_write(job)
    try:
        finder = StoreFinder(job, payload_store, log)
        driver = driver_in(log, job, next_step=_UNJUDGED)
        sequence = _snapshot(job, driver, is_take_over=is_take_over)
        plan = planned(log, job, sequence=sequence, on_progress=_folded)
        if plan.begins_with is None:
            _nothing_to_remove(job, plan, as_json=as_json)
            return
        description = _described(job, plan)
        if plan.state.savepoints:
            click.echo(_savepoint_warning(job, plan), err=True)
        if projections := _projections_of_users(plan.state):
            click.echo(
                f"warning: after this only a job with the projections {', '.join(projections)} starts on this log: "
                "their states may get fields with defaults, but a new version of a projection cannot read them",
                err=True,
            )
        if not yes:
            click.confirm(f"{description}. Archive and remove them?", abort=True, err=True)
        path = archive or _archive(job, plan)
        clean_store = _cleaning(log, finder, plan.begins_with.offset if is_dropping else None)
        try:
            url = plan.state.launch_info.payload_store
            done = prune_log(
                log,
                job,
                plan,
                path,
                lambda data: opened(data, lambda address: finder.open(address, url)),
            )
        except FileExistsError as error:
            raise click.BadParameter(
                f"{path} exists with other records than these; nothing was removed: name another "
                "file, or move that one away",
                param_hint="--archive",
            ) from error
    finally:
        log.close()
    _report(logs.where, job, plan, done, path, as_json=as_json)
    clean_store()


def _report(
    where: str, job: str, plan: PrunePlan, done: SnapshotPlace, archive: Path, *, as_json: bool
) -> None:
    print_result(
        f"pruned job {job} at {where}: {done.records_below:,} records are in {archive}; its log "
        f"begins with the snapshot at offset {done.offset:,}",
        {
            "job_id": job,
            "status": "pruned",
            "where": where,
            "start_offset": done.offset,
            "record_count": done.records_below,
            "archive": str(archive),
        },
        as_json=as_json,
    )
    if done.kept_apart:
        click.echo(
            f"the states of the coordinators of job {job} are in its payload store: it starts only with "
            f"that store, {plan.state.launch_info.payload_store}",
            err=True,
        )


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
            command="prune",
        )
    except RequestError as error:
        raise CommandError(
            job, f"its driver at {driver.endpoint} has taken no snapshot: {error}", "try again"
        ) from error
    return answer.sequence


def _folded(offset: int) -> None:
    if offset and offset % _PROGRESS_EVERY == 0:
        click.echo(f"checked {offset:,} records", err=True)


def _nothing_to_remove(job: str, plan: PrunePlan, *, as_json: bool) -> None:
    """Print the reason if the log is pruned already.

    Raises:
        CommandError: Another reason; the message has the next step.
    """
    if plan.newest is None:
        raise CommandError(
            job,
            f"nothing of its log can be removed: {plan.why_not}",
            "prune it while it runs, or after its next orderly end: its driver takes a snapshot then",
        )
    print_result(
        f"nothing of job {job} is to be removed: {plan.why_not}",
        {
            "job_id": job,
            "status": "nothing to remove",
            "start_offset": plan.start,
            "record_count": 0,
            "archive": None,
        },
        as_json=as_json,
    )


def _projections_of_users(state: JobState) -> tuple[str, ...]:
    """Projections of coordinators that are not coordlog's own, with their versions and operators."""
    return tuple(
        f"{operator.projection} of operator {operator.operator_id!r}"
        for operator in state.launch_info.operators
        if operator.projection and not operator.projection.startswith("coordlog.")
    )


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
    return archive_in(folder, job, plan.start, target.offset)
