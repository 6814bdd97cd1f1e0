"""`coordlog state` and `diff`: a coordinator's state at any place of its log, and the changes between two places."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

import click
from rich.text import Text

from coordlog.cli.completing import JOB
from coordlog.cli.console import (
    Column,
    crop,
    iso,
    json_of,
    new_console,
    print_json,
    print_line,
    print_table,
    reason_text,
)
from coordlog.cli.log_access import Logs, with_history
from coordlog.cli.paging import with_pager
from coordlog.cli.reading import opened, progress_printer
from coordlog.log.interface import Log
from coordlog.offline.state_at import state_at
from coordlog.projections.inspection.state_at import Moment
from coordlog.projections.inspection.state_json import differences, state_json
from coordlog.projections.job.state import GatewayState, JobState, sorted_items
from coordlog.projections.tables.payload_json import Json, on_one_line
from coordlog.schemas.payload_address import content_length
from coordlog.schemas.record import JobMode

__all__ = ["diff", "state"]


_CHARS: Final = 120


_SPLITS_MAX: Final = 10
"""Largest number of split ids that are printed for each place; `--json` prints all."""


_AT: Final = "OFFSET|checkpoint:N|TIME"


_AT_HELP: Final = (
    "Place in the log: an offset; checkpoint:N, at its completion; or a time, as in 2026-01-31T12:00:00Z. "
    "By default the log's end."
)


Place = dict[str, int | dt.datetime]


class _At(click.ParamType[Place]):
    """Option type: a place in a log, as keyword arguments for `state_at`."""

    name = "place"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Place:
        """Parse a place: an offset, `checkpoint:N` or a time, which is in UTC if it has no zone."""
        text = str(value)
        if re.fullmatch(r"\d+", text):
            return {"offset": int(text)}
        if match := re.fullmatch(r"checkpoint:(\d+)", text):
            return {"checkpoint_id": int(match[1])}
        try:
            time_at = dt.datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{text!r} is no offset, no checkpoint:N and no time in ISO 8601", param, ctx)
        return {"time": time_at if time_at.tzinfo is not None else time_at.replace(tzinfo=dt.UTC)}


def _moment(log: Log, place: Place | None) -> Moment:
    on_progress = progress_printer(log.high_watermark(), "read")
    return state_at(log, **(place or {}), on_progress=on_progress)  # type: ignore[arg-type]  # `_At` returns its keywords


@click.command()
@click.argument("job", shell_complete=JOB)
@click.option("--at", type=_At(), metavar=_AT, help=_AT_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with all fields.")
@with_history
@with_pager
def state(logs: Logs, *, job: str, at: Place | None, as_json: bool) -> None:
    """Show the state of JOB's coordinator at any place of its log.

    This is the state after the last turn that is whole at that place: attempts, gateways and their
    held events, un-acked events, checkpoints, intents and splits. The job's own code is not needed.
    """
    with opened(logs, job) as log:
        moment, start = _moment(log, at), log.start_offset()
    if as_json:
        splits = _splits_json(moment)
        print_json({"offset": moment.offset, **state_json(moment.state), "splits": splits})
        return
    _print_state(moment, start)


def _splits_json(moment: Moment) -> Json:
    return [json_of(split) for split in moment.splits]


def _print_state(moment: Moment, start: int) -> None:
    console, job = new_console(), moment.state
    print_line(
        f"job {job.job_id or '?'} at offset {moment.offset}, sequence {job.next_sequence - 1}, "
        f"{iso(job.timestamp_us) if moment.record_count else 'before its first record'}"
    )
    print_line(
        f"{job.phase.value}; {JobMode.BATCH if job.is_batch else JobMode.STREAMING}; epoch {job.epoch}, "
        f"driver {job.driver_id or '-'}; last checkpoint {job.last_checkpoint}, next "
        f"{job.next_checkpoint_id}; {moment.record_count:,} records count, {moment.void_count:,} do not"
    )
    for reason in job.reasons[:1]:
        print_line(f"last failure: {reason_text(reason)}")
    click.echo()
    print_table(console, _SUBTASK_COLUMNS, _subtask_rows(job))
    gateways = [
        (
            f"{operator_id}",
            f"{subtask}/{gateway.attempt_number}",
            " ".join(map(str, gateway.closed_by)) or "open",
            str(len(gateway.held)),
            str(len(gateway.unacked)),
            on_one_line(", ".join(_unacked(gateway)), _CHARS),
        )
        for (operator_id, subtask), gateway in sorted_items(job.gateways)
    ]
    if gateways:
        click.echo()
        print_table(console, _GATEWAY_COLUMNS, gateways)
    _print_checkpoints(moment)
    for sequence, intent in sorted_items(job.intents):
        click.echo(
            f"intent at sequence {sequence}: {intent.operator_id!r}, checkpoint "
            f"{intent.checkpoint_id}, without an outcome, tried {intent.failed_tries} times"
        )
    _print_splits(moment, start)


def _print_splits(moment: Moment, start: int) -> None:
    """Print the number of splits in each place, such as assigned, and the ids of the first few."""
    places: dict[str, list[str]] = {}
    for split in moment.splits:
        places.setdefault(split.place.value, []).append(split.split_id)
    counts = ", ".join(f"{len(places[name])} {name}" for name in sorted(places))
    since = f" since the log was pruned, at offset {start}" if start else ""
    click.echo(f"\nsplits{since}: {counts or 'none'}")
    for name in sorted(places):
        ids = places[name]
        shown = ", ".join(on_one_line(split_id, _CHARS) for split_id in ids[:_SPLITS_MAX])
        more = f", and {len(ids) - _SPLITS_MAX:,} more" if len(ids) > _SPLITS_MAX else ""
        click.echo(f"  {name}: {shown}{more}")


_SUBTASK_COLUMNS: Final = (
    Column("SUBTASK", is_right=True),
    Column("ATTEMPT"),
    Column("SINCE SEQ", is_right=True),
    Column("FROM", is_right=True),
    Column("BARRIER", is_right=True),
    Column("UP", is_right=True),
    Column("DOWN", is_right=True),
    Column("NEXT BEGINS FROM", is_right=True),
)


_GATEWAY_COLUMNS: Final = (
    Column("GATEWAY OF"),
    Column("TO"),
    Column("CLOSED BY"),
    Column("HOLDS", is_right=True),
    Column("UN-ACKED", is_right=True),
    Column("EVENTS"),
)


def _subtask_rows(job: JobState) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for number, subtask in sorted_items(job.subtasks):
        attempt = subtask.attempt
        if attempt is None:
            completion = subtask.completion
            text = "none" if completion is None else f"{completion.attempt_number} completed"
            since = "" if completion is None else str(completion.sequence)
            begins_from = str(subtask.restore_from) if completion is None else ""
            rows.append((str(number), text, since, "", "", "", "", begins_from))
            continue
        rows.append(
            (
                str(number),
                f"{attempt.attempt_number} live",
                str(attempt.started_sequence),
                str(attempt.restored_checkpoint),
                str(attempt.last_barrier),
                str(len(attempt.received)),
                str(len(attempt.sent)),
                str(job.last_checkpoint),
            )
        )
    return rows


def _unacked(gateway: GatewayState) -> list[str]:
    return [
        f"{event_id}: {event.payload_type.partition('@')[0].removeprefix('coordlog.')}"
        for event_id, event in sorted_items(gateway.unacked)
    ]


def _print_checkpoints(moment: Moment) -> None:
    job = moment.state
    if job.pending or job.completed:
        click.echo()
    for number, pending in sorted_items(job.pending):
        missing = [
            *(
                f"the cut of {operator!r}"
                for operator in pending.missing_coordinators(job.operators)
            ),
            *(f"the ack of subtask {subtask}" for subtask in pending.missing_subtasks),
        ]
        unacked = f"{len(pending.waiting)} events to be acked" if pending.waiting else ""
        print_line(
            f"checkpoint {number} is pending: {', '.join([*missing, unacked]).strip(', ') or 'whole'}"
        )
    for number, completed in sorted_items(job.completed):
        cuts = ", ".join(f"{name} at {cut.sequence}" for name, cut in sorted_items(completed.cuts))
        finished = (part.states for part in completed.finished.values())
        size_bytes = sum(
            content_length(operator.state)
            for states in (*completed.states.values(), *finished)
            for operator in states
        )
        print_line(
            f"checkpoint {number} completed at sequence {completed.sequence}: cuts {cuts}; "
            f"{size_bytes:,} bytes of {completed.parallelism} subtasks; {len(completed.in_flight)} events in flight"
        )


@click.command()
@click.argument("job", shell_complete=JOB)
@click.option(
    "--from", "first", type=_At(), metavar=_AT, help="As --to; by default the log's start."
)
@click.option("--to", "second", type=_At(), metavar=_AT, help=_AT_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@with_history
@with_pager
def diff(logs: Logs, *, job: str, first: Place | None, second: Place | None, as_json: bool) -> None:
    """Show the changes in the state of JOB between two places of its log."""
    with opened(logs, job) as log:
        before, after = _moment(log, first or _beginning(log)), _moment(log, second)
    changes = list(differences(state_json(before.state), state_json(after.state)))
    console = new_console()
    if not as_json:
        click.echo(f"from offset {before.offset} to offset {after.offset}")
    for change in changes:
        if as_json:
            print_json(json_of(change))
            continue
        if change.is_in_first:
            old = on_one_line(change.first, _CHARS)
            crop(console, Text(f"- {change.path}: {old}", style="red"))
        if change.is_in_second:
            new = on_one_line(change.second, _CHARS)
            crop(console, Text(f"+ {change.path}: {new}", style="green"))
    if not as_json:
        click.echo(f"{len(changes):,} differences")


def _beginning(log: Log) -> Place:
    """Place before the first record. In a pruned log: its first record, with a message."""
    start = log.start_offset()
    if not start:
        return {"offset": -1}
    click.echo(
        f"the log begins at offset {start}: only later changes are shown; records that a prune removed are in "
        "the file that it has archived",
        err=True,
    )
    return {"offset": start}
