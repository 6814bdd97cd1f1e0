"""`coordlog state`, `diff`, `explain` and `verify`: a job's log looked into at any place."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import re
import time
from collections.abc import Generator
from typing import Final

import click
from rich.text import Text

from coordlog.cli.console import (
    Column,
    crop,
    iso,
    json_of,
    new_console,
    print_json,
    print_table,
    reason_text,
    time_of,
)
from coordlog.cli.exit_status import Exit
from coordlog.cli.log_access import Logs, with_history
from coordlog.cli.payload_store import StoreFinder, payload_store_option
from coordlog.cli.reading import opened, told_of, whole
from coordlog.errors import OptionError
from coordlog.log.file import ExportedLog
from coordlog.log.interface import Log
from coordlog.offline.state_at import state_at
from coordlog.projections.inspection.explain import (
    Explained,
    explain_checkpoint,
    explain_event,
    explain_split,
)
from coordlog.projections.inspection.state_at import Moment
from coordlog.projections.inspection.state_json import differences, state_json
from coordlog.projections.inspection.verify import Ahead
from coordlog.projections.inspection.verify import verify as verify_log
from coordlog.projections.job.state import GatewayState, JobState, sorted_items
from coordlog.projections.tables.payload_json import Json, on_one_line
from coordlog.schemas.payload_address import content_length

__all__ = ["ahead_text", "diff", "explain", "state", "verify"]

_CHARS: Final = 120
_SPLITS_MAX: Final = 10
"""Of each place; `--json` has all."""
_FOR_CALLERS: Final = ("state", "job_types")
"""What `verify` comes to beside what it has checked: `coordlog state` shows it."""
_AT: Final = "OFFSET|checkpoint:N|TIME"
_AT_HELP: Final = (
    "An offset; checkpoint:N, when it completed; or a time, as in 2026-01-31T12:00:00Z. "
    "Without it the log's end."
)

Place = dict[str, int | dt.datetime]


class _At(click.ParamType[Place]):
    """A place of a log, as keywords for `state_at`."""

    name = "place"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Place:
        """The place that the text names."""
        text = str(value)
        if re.fullmatch(r"\d+", text):
            return {"offset": int(text)}
        if found := re.fullmatch(r"checkpoint:(\d+)", text):
            return {"checkpoint_id": int(found[1])}
        try:
            when = dt.datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{text!r} is no offset, no checkpoint:N and no time in ISO 8601", param, ctx)
        return {"time": when if when.tzinfo is not None else when.replace(tzinfo=dt.UTC)}


def _moment(log: Log, place: Place | None) -> Moment:
    progress = told_of(log.high_watermark(), "read")
    return state_at(log, **(place or {}), on_progress=progress)  # type: ignore[arg-type]  # each goes where it belongs


@click.command()
@click.argument("job")
@click.option("--at", type=_At(), metavar=_AT, help=_AT_HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with everything.")
@with_history
def state(logs: Logs, *, job: str, at: Place | None, as_json: bool) -> None:
    """Show what the coordinator of JOB knew at any place of its log.

    Attempts, gateways and what they hold, un-acked events, checkpoints, intents and splits, as the
    fold has them after the last turn that is whole there. The job's own code is not needed.
    """
    with opened(logs, job) as log:
        made, begins_at = _moment(log, at), log.start_offset()
    if as_json:
        print_json({"offset": made.offset, **state_json(made.state), "splits": _splits_json(made)})
        return
    _print_state(made, begins_at)


def _splits_json(made: Moment) -> Json:
    return [json_of(one) for one in made.splits]


def _print_state(made: Moment, begins_at: int) -> None:
    console, job = new_console(), made.state
    click.echo(
        f"job {job.job_id or '?'} at offset {made.offset}, sequence {job.next_sequence - 1}, "
        f"{iso(job.timestamp_us) if made.record_count else 'before its first record'}"
    )
    click.echo(
        f"{job.phase.value}; {'batch' if job.is_batch else 'streaming'}; epoch {job.epoch}, "
        f"driver {job.driver_id or '-'}; last checkpoint {job.last_checkpoint}, next "
        f"{job.next_checkpoint_id}; {made.record_count:,} records count, {made.void_count:,} do not"
    )
    for reason in job.reasons[:1]:
        click.echo(f"last failure: {reason_text(reason)}")
    click.echo()
    print_table(console, _SUBTASK_COLUMNS, _subtask_rows(job))
    gateways = [
        (
            f"{operator_id}",
            f"{subtask}/{one.attempt_number}",
            " ".join(map(str, one.closed_by)) or "open",
            str(len(one.held)),
            str(len(one.unacked)),
            on_one_line(", ".join(_unacked(one)), _CHARS),
        )
        for (operator_id, subtask), one in sorted_items(job.gateways)
    ]
    if gateways:
        click.echo()
        print_table(console, _GATEWAY_COLUMNS, gateways)
    _print_checkpoints(made)
    for sequence, intent in sorted_items(job.intents):
        click.echo(
            f"intent at sequence {sequence}: {intent.operator_id!r}, checkpoint "
            f"{intent.checkpoint_id}, without an outcome, tried {intent.failed_tries} times"
        )
    _print_splits(made, begins_at)


def _print_splits(made: Moment, begins_at: int) -> None:
    """How many there are at each place, and the first of them by name."""
    places: dict[str, list[str]] = {}
    for split in made.splits:
        places.setdefault(split.place.value, []).append(split.split_id)
    counted = ", ".join(f"{len(places[name])} {name}" for name in sorted(places))
    since = f" since the log was pruned, at offset {begins_at}" if begins_at else ""
    click.echo(f"\nsplits{since}: {counted or 'none'}")
    for name in sorted(places):
        ids = places[name]
        shown = ", ".join(on_one_line(one, _CHARS) for one in ids[:_SPLITS_MAX])
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
    for number, one in sorted_items(job.subtasks):
        attempt = one.attempt
        if attempt is None:
            done = one.completion
            what = "none" if done is None else f"{done.attempt_number} completed"
            since = "" if done is None else str(done.sequence)
            rows.append((str(number), what, since, "", "", "", "", str(one.restore_from)))
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
                str(one.restore_from),
            )
        )
    return rows


def _unacked(gateway: GatewayState) -> list[str]:
    return [
        f"{event_id}: {event.payload_type.partition('@')[0].removeprefix('coordlog.')}"
        for event_id, event in sorted_items(gateway.unacked)
    ]


def _print_checkpoints(made: Moment) -> None:
    job = made.state
    if job.pending or job.completed:
        click.echo()
    for number, pending in sorted_items(job.pending):
        missing = [
            *(f"the cut of {one!r}" for one in pending.missing_coordinators(job.operators)),
            *(f"the ack of subtask {one}" for one in pending.missing_subtasks),
        ]
        waits = f"{len(pending.waiting)} events to be acked" if pending.waiting else ""
        click.echo(
            f"checkpoint {number} is pending: {', '.join([*missing, waits]).strip(', ') or 'whole'}"
        )
    for number, done in sorted_items(job.completed):
        cuts = ", ".join(f"{name} at {cut.sequence}" for name, cut in sorted_items(done.cuts))
        size = sum(
            content_length(one.state)
            for states in (*done.states.values(), *(f.states for f in done.finished.values()))
            for one in states
        )
        click.echo(
            f"checkpoint {number} completed at sequence {done.sequence}: cuts {cuts}; "
            f"{size:,} bytes of {done.parallelism} subtasks; {len(done.in_flight)} events in flight"
        )


@click.command()
@click.argument("job")
@click.option(
    "--from", "first", type=_At(), metavar=_AT, help="As --to; without it the log's start."
)
@click.option("--to", "second", type=_At(), metavar=_AT, help=_AT_HELP)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@with_history
def diff(logs: Logs, *, job: str, first: Place | None, second: Place | None, as_json: bool) -> None:
    """Show what changed in the state of JOB between two places of its log."""
    with opened(logs, job) as log:
        before, after = _moment(log, first or _beginning(log)), _moment(log, second)
    found = list(differences(state_json(before.state), state_json(after.state)))
    console = new_console()
    if not as_json:
        click.echo(f"from offset {before.offset} to offset {after.offset}")
    for one in found:
        if as_json:
            print_json(json_of(one))
            continue
        if one.is_in_first:
            crop(console, Text(f"- {one.path}: {on_one_line(one.first, _CHARS)}", style="red"))
        if one.is_in_second:
            crop(console, Text(f"+ {one.path}: {on_one_line(one.second, _CHARS)}", style="green"))
    if not as_json:
        click.echo(f"{len(found):,} differences")


def _beginning(log: Log) -> Place:
    """Before the first record; of a pruned log at it, and then it is said."""
    start = log.start_offset()
    if not start:
        return {"offset": -1}
    click.echo(
        f"the log begins at offset {start}: what is shown is what has changed since; where what stood "
        "before was pruned, it is in the file that the prune has archived",
        err=True,
    )
    return {"offset": start}


@click.command()
@click.argument("job")
@click.option("--split", metavar="ID", help="A split, as `coordlog splits` names it.")
@click.option(
    "--event", type=click.IntRange(min=0), metavar="SEQ", help="An event, by its sequence."
)
@click.option("--checkpoint", type=int, metavar="N", help="A checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@with_history
def explain(
    logs: Logs,
    *,
    job: str,
    split: str | None,
    event: int | None,
    checkpoint: int | None,
    as_json: bool,
) -> None:
    """Say how a split, an event or a checkpoint of JOB came to where it is, record by record."""
    if sum(one is not None for one in (split, event, checkpoint)) != 1:
        raise click.UsageError("give one of --split, --event and --checkpoint")
    with opened(logs, job) as log, _told_of_pruning(log):
        stored = whole(log)
        if split is not None:
            made = explain_split(stored, split)
        elif event is not None:
            made = explain_event(stored, event)
        else:
            assert checkpoint is not None, "one of the three is given"
            made = explain_checkpoint(stored, checkpoint)
    if as_json:
        print_json(json_of(made))
        return
    _print_explained(made)


@contextlib.contextmanager
def _told_of_pruning(log: Log) -> Generator[None]:
    """If what is asked for is not in a pruned log, report where it may be."""
    try:
        yield
    except OptionError:
        start = log.start_offset()
        if start:
            click.echo(
                f"the log begins at offset {start}: what was pruned is in the file that the prune has "
                "archived, which can be given in JOB's place",
                err=True,
            )
        raise


def _print_explained(made: Explained) -> None:
    console = new_console()
    for one in made.steps:
        crop(console, Text(f"{one.offset:>6} {time_of(one.timestamp_us):<12}  {one.words}"))
    click.echo(f"so {made.outcome}")


@click.command()
@click.argument("job")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@payload_store_option
@with_history
def verify(logs: Logs, *, job: str, as_json: bool, payload_store: str | None) -> None:
    """Read the whole log of JOB, and check all that it says of itself.

    Each record's header, key, time and schema; each payload, those in the payload store too; every
    invariant after every turn; each completed checkpoint against the fold. Exit status 0 where all
    of it holds, else 1.
    """
    began = time.monotonic()
    with opened(logs, job) as log:
        identity, end = log.identity, log.high_watermark()
        finder = StoreFinder(job, payload_store, log)
        is_redacted = isinstance(log, ExportedLog) and log.is_redacted
        found = verify_log(
            log.read(log.start_offset(), end),
            identity=(identity.cluster_id, identity.topic_id),
            on_progress=told_of(end, "checked"),
            open_payload=None if is_redacted else finder.open_unless_copy,
        )
    if as_json:
        print_json(
            {
                one.name: json_of(getattr(found, one.name))
                for one in dataclasses.fields(found)
                if one.name not in _FOR_CALLERS
            }
        )
    else:
        for one in found.faults:
            click.echo(f"offset {one.offset}: {one.what}")
        if not found.is_whole:
            click.echo("what stands behind could not be checked")
        click.echo(
            f"{found.record_count:,} records count and {found.void_count:,} do not: "
            f"{found.byte_count:,} bytes, {found.turn_count:,} turns, {found.payload_count:,} "
            f"payloads of {found.type_count:,} types, {found.checkpoint_count:,} checkpoints, "
            f"{found.snapshot_count:,} snapshots, {found.stored_count:,} stored payloads of "
            f"{found.stored_bytes:,} bytes, in "
            f"{time.monotonic() - began:.1f} s"
        )
        if found.ahead is not None:
            click.echo(ahead_text(found.ahead, found.state.next_sequence - 1))
        if found.absent_count and is_redacted:
            click.echo(f"{found.absent_count:,} stored payloads are not in this redacted export")
        elif found.absent_count:
            click.echo(
                f"{found.absent_count:,} stored payloads were not checked: a copy of a history opens no store by "
                "itself; name it with --payload-store"
            )
        for version, count in sorted(found.other_snapshots.items()):
            click.echo(
                f"{count:,} snapshots of {version} were not compared with the fold: another version of "
                "coordlog wrote them, and reads them"
            )
        is_partial = found.other_snapshots or (found.absent_count and not is_redacted)
        holds = "all that could be checked holds" if is_partial else "all of it holds"
        click.echo(holds if not found.fault_count else f"{found.fault_count:,} faults")
    if found.fault_count:
        click.get_current_context().exit(Exit.FAILED)


def ahead_text(ahead: Ahead, last_sequence: int) -> str:
    """A record that does not count although it may belong to the job: not certain to be a fault."""
    return (
        f"offset {ahead.offset} has sequence {ahead.sequence:,}, and the last record that counts has "
        f"{last_sequence:,}: an append was cut off or came too late, or records are missing from this log"
    )
