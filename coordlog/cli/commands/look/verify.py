"""`coordlog verify`: the check of a job's whole log."""

from __future__ import annotations

import dataclasses
import time
from typing import Final

import click

from coordlog.amounts import many
from coordlog.cli.completing import JOB
from coordlog.cli.console import (
    json_of,
    print_json,
    print_line,
)
from coordlog.cli.exit_status import Exit
from coordlog.cli.log_access import Logs, with_history
from coordlog.cli.payload_store import StoreFinder, payload_store_option
from coordlog.cli.reading import opened, whole
from coordlog.log.file import ExportedLog
from coordlog.projections.inspection.ahead import Ahead
from coordlog.projections.inspection.verify import verify as verify_log

__all__ = ["ahead_text", "verify"]


_FOR_CALLERS: Final = ("state", "job_types")
"""Fields in the result of `verify` that its JSON omits, because only callers in Python need them."""


@click.command()
@click.argument("job", shell_complete=JOB)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@payload_store_option
@with_history
def verify(logs: Logs, *, job: str, as_json: bool, payload_store: str | None) -> None:
    """Read the whole log of JOB, and check it for faults.

    Checked are each record's header, key, time and schema; each payload, also in the payload store;
    every invariant after every turn; and each completed checkpoint against the fold. The exit
    status is 0 if no fault is found, else 1.
    """
    began = time.monotonic()
    with opened(logs, job) as log:
        identity = log.identity
        finder = StoreFinder(job, payload_store, log)
        is_redacted = isinstance(log, ExportedLog) and log.is_redacted
        verified = verify_log(
            whole(log, "checked").stored(),
            identity=(identity.cluster_id, identity.topic_id),
            open_payload=None if is_redacted else finder.open_unless_copy,
        )
    if as_json:
        print_json(
            {
                field.name: json_of(getattr(verified, field.name))
                for field in dataclasses.fields(verified)
                if field.name not in _FOR_CALLERS
            }
        )
    else:
        for fault in verified.faults:
            print_line(f"offset {fault.offset}: {fault.what}")
        if not verified.is_whole:
            click.echo("later records could not be checked")
        click.echo(
            f"{many(verified.record_count, 'record')} count and {verified.void_count:,} do not: "
            f"{many(verified.byte_count, 'byte')}, {many(verified.turn_count, 'turn')}, "
            f"{many(verified.payload_count, 'payload')} of {many(verified.type_count, 'type')}, "
            f"{many(verified.checkpoint_count, 'checkpoint')}, {many(verified.snapshot_count, 'snapshot')}, "
            f"{many(verified.stored_count, 'stored payload')} of {many(verified.stored_bytes, 'byte')}, in "
            f"{time.monotonic() - began:.1f} s"
        )
        if verified.ahead is not None:
            click.echo(ahead_text(verified.ahead, verified.state.next_sequence - 1))
        if verified.absent_count and is_redacted:
            click.echo(f"{verified.absent_count:,} stored payloads are not in this redacted export")
        elif verified.absent_count:
            click.echo(
                f"{verified.absent_count:,} stored payloads were not checked: a copy of a history opens no store by "
                "itself; name the store with --payload-store"
            )
        for version, count in sorted(verified.other_snapshots.items()):
            click.echo(
                f"{count:,} snapshots of {version} were not compared with the fold: another version of "
                "coordlog wrote them, and reads them"
            )
        is_partial = verified.other_snapshots or (verified.absent_count and not is_redacted)
        holds = "all that could be checked holds" if is_partial else "all of it holds"
        click.echo(holds if not verified.fault_count else many(verified.fault_count, "fault"))
    if verified.fault_count:
        click.get_current_context().exit(Exit.FAILED)


def ahead_text(ahead: Ahead, last_sequence: int) -> str:
    """Description of a void record whose sequence is ahead of the last one that counts. It may be no fault."""
    return (
        f"offset {ahead.offset} has sequence {ahead.sequence:,}, and the last record that counts has "
        f"{last_sequence:,}: an append was cut off or came too late, or records are missing from this log"
    )
