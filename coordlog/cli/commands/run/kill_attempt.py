"""`coordlog kill-attempt`: fails the attempt of one subtask; its subtask begins again from the last checkpoint."""

from __future__ import annotations

import click

from coordlog.cli.completing import JOB
from coordlog.cli.driver_request import live_driver, request_driver
from coordlog.cli.log_access import Logs, with_logs
from coordlog.cli.reading import opened
from coordlog.cli.table_output import print_result, result_option
from coordlog.history import History
from coordlog.schemas.builtin_types import AttemptKilled, KillAttempt

__all__ = ["kill_attempt"]


@click.command("kill-attempt")
@click.argument("job", shell_complete=JOB)
@click.argument("subtask", type=click.IntRange(min=0))
@click.option(
    "--attempt",
    "number",
    type=int,
    metavar="N",
    help="Only if this attempt is the live one.",
)
@click.option("--reason", default="", metavar="TEXT", help="Reason, recorded in the history.")
@result_option
@with_logs
def kill_attempt(
    logs: Logs, *, job: str, subtask: int, number: int | None, reason: str, as_json: bool
) -> None:
    """Fail the live attempt of SUBTASK of JOB: a new attempt begins from the last checkpoint.

    For an attempt that stands still. Other subtasks go on, and the restart policy does not count it.
    """
    with opened(logs, job) as log:
        driver = live_driver(History(log), job)
    answer = request_driver(
        driver,
        KillAttempt(subtask=subtask, attempt_number=number, why=reason),
        AttemptKilled,
        next_step=f"`coordlog attempts {job}` lists them",
    )
    assert isinstance(answer.response, AttemptKilled), "it was decoded as that"
    killed = answer.response.attempt_number
    print_result(
        f"attempt {killed} of subtask {subtask} of job {job} was killed, at sequence {answer.sequence}",
        {
            "job_id": job,
            "status": "killed",
            "sequence": answer.sequence,
            "subtask": subtask,
            "attempt_number": killed,
        },
        as_json=as_json,
    )
