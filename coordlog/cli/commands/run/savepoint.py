"""`coordlog savepoint`: retains a completed checkpoint under a name, or releases it."""

from __future__ import annotations

import contextlib
from typing import Final

import click

from coordlog.cli.completing import JOB
from coordlog.cli.driver_request import ask_driver
from coordlog.cli.living import driver_lives
from coordlog.cli.log_access import WritableLogs, with_logs
from coordlog.cli.table_output import print_result, result_option
from coordlog.errors import SavepointError
from coordlog.offline.epoch import append_fact, read_job
from coordlog.projections.job.savepoints import to_take, why_not_released
from coordlog.projections.job.state import JobState
from coordlog.schemas.builtin_types import (
    ReleaseSavepoint,
    SavepointRecorded,
    SavepointReleased,
    SavepointTaken,
    TakeSavepoint,
)
from coordlog.spark_integration.driver.liveness import NamedDriver

__all__ = ["savepoint"]

_NEXT: Final = "`coordlog checkpoint JOB` lists them"


@click.command()
@click.argument("job", shell_complete=JOB)
@click.argument("name")
@click.option(
    "--checkpoint",
    "number",
    type=int,
    metavar="N",
    help="Number of the completed checkpoint; by default the last one.",
)
@click.option("--release", "is_release", is_flag=True, help="Release the savepoint NAME.")
@click.option(
    "--take-over",
    "is_take_over",
    is_flag=True,
    help="Replace the driver if this command cannot find out whether it runs.",
)
@result_option
@with_logs
def savepoint(
    logs: WritableLogs,
    *,
    job: str,
    name: str,
    number: int | None,
    is_release: bool,
    is_take_over: bool,
    as_json: bool,
) -> None:
    """Retain a checkpoint of JOB as savepoint NAME, until it is released.

    If a driver runs, it records the savepoint; otherwise this command appends it to the log.
    """
    if is_release and number is not None:
        raise click.UsageError("--release takes a name alone: leave out --checkpoint")
    request = (
        ReleaseSavepoint(name=name) if is_release else TakeSavepoint(name=name, checkpoint=number)
    )
    _change(logs, job, request, is_take_over=is_take_over, as_json=as_json)


def _change(
    logs: WritableLogs,
    job: str,
    request: TakeSavepoint | ReleaseSavepoint,
    *,
    is_take_over: bool,
    as_json: bool,
) -> None:
    """Carry out the request by the driver, if one runs; else in an epoch of this command."""
    with contextlib.closing(logs.open_to_write(job)) as log:
        rebuild = read_job(log, job, lambda state: _check(state, request))
        number, was_before = _wanted(rebuild.state, request)
        by = ""
        sequence: int | None = None
        if driver_lives(NamedDriver.of(rebuild.state), is_take_over=is_take_over):
            answer = ask_driver(
                job,
                rebuild.state,
                request,
                SavepointRecorded,
                refusal=SavepointError,
                next_step=_NEXT,
            )
            assert isinstance(answer.response, SavepointRecorded), "it was decoded as that"
            number, was_before = answer.response.checkpoint, answer.response.was_so_before
            sequence = answer.sequence
            by = f", by its driver, at sequence {sequence}"
        elif not was_before:
            fact: SavepointTaken | SavepointReleased = SavepointReleased(name=request.name)
            if isinstance(request, TakeSavepoint):
                fact = SavepointTaken(name=request.name, checkpoint=number)
            sequence = append_fact(
                log,
                rebuild,
                fact,
                command="savepoint",
                check=lambda state: _check(state, _exactly(request, number)),
                why="asked by command",
            )
            by = f", at sequence {sequence}"
    if was_before:
        by = " already"
    verb = "is" if isinstance(request, TakeSavepoint) else "is no longer"
    status = "taken" if isinstance(request, TakeSavepoint) else "released"
    print_result(
        f"checkpoint {number} of job {job} {verb} savepoint {request.name!r}{by}",
        {
            "job_id": job,
            "status": f"was {status} before" if was_before else status,
            "sequence": sequence,
            "checkpoint": number,
            "savepoint": request.name,
        },
        as_json=as_json,
    )


def _exactly(
    request: TakeSavepoint | ReleaseSavepoint, number: int
) -> TakeSavepoint | ReleaseSavepoint:
    """The same request, with the number of the checkpoint."""
    if isinstance(request, ReleaseSavepoint):
        return request
    return TakeSavepoint(name=request.name, checkpoint=number)


def _check(state: JobState, request: TakeSavepoint | ReleaseSavepoint) -> None:
    if isinstance(request, TakeSavepoint):
        _, why_not = to_take(state, request.name, request.checkpoint)
    else:
        why_not = why_not_released(state, request.name)
    if why_not is not None:
        raise SavepointError(state.job_id, why_not, _NEXT)


def _wanted(state: JobState, request: TakeSavepoint | ReleaseSavepoint) -> tuple[int, bool]:
    """Number of the checkpoint, and whether it is this savepoint already."""
    if isinstance(request, ReleaseSavepoint):
        return state.savepoints[request.name], False
    number, _ = to_take(state, request.name, request.checkpoint)
    return number, state.savepoints.get(request.name) == number
