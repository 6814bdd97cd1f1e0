"""`coordlog history`: a job's records in log order, one line each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import click
from rich.text import Text

from coordlog.cli.completing import JOB
from coordlog.cli.console import crop, day_of, iso, new_console, print_json, time_of
from coordlog.cli.log_access import Logs, with_history
from coordlog.cli.paging import with_pager
from coordlog.cli.reading import records_of
from coordlog.projections.job.skips import reason_in_words
from coordlog.projections.tables.audit import Applying, AuditRecord, state_at_beginning
from coordlog.projections.tables.checkpoints import CheckpointFold, CheckpointStatus
from coordlog.projections.tables.payload_json import (
    Json,
    bytes_text,
    hex_text,
    on_one_line,
    to_json,
    undecoded,
)
from coordlog.schemas.record import Kind, Record

__all__ = ["Lines", "history", "kind_option", "record_json"]

_PAYLOAD_CHARS: Final = 160
_REASON_CHARS: Final = 200
_OWN: Final = "coordlog."
"""Prefix of coordlog's own types, left out of lines; `--json` shows it."""
_HEADING: Final = (
    f"{'OFFSET':>6} {'SEQ':>6} {'TIME (UTC)':<12} {'EP':>2} {'KIND':<24} {'OPERATOR':<8} "
    f"{'ATTEMPT':<7} {'CKPT':>4}  WHAT"
)
_STYLES: Final = {
    Kind.EPOCH_STARTED: "bold cyan",
    Kind.ATTEMPT_STARTED: "green",
    Kind.SUBTASK_COMPLETED: "green",
    Kind.CHECKPOINT_COMPLETED: "bold green",
    Kind.COMMIT_OUTCOME: "bold green",
    Kind.JOB_FINISHED: "bold green",
    Kind.ATTEMPT_FAILED: "bold red",
    Kind.EVENT_FAILED: "red",
    Kind.CHECKPOINT_ABORTED: "red",
    Kind.GLOBAL_FAILURE: "bold red",
    Kind.JOB_FAILED: "bold red",
    Kind.SUBTASK_RESET: "yellow",
    Kind.RESET_TO_CHECKPOINT: "bold yellow",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filter:
    """Filter of the shown records; a field that is None or empty accepts all."""

    kinds: frozenset[Kind]
    subtask: int | None
    attempt: int | None
    checkpoint: int | None
    epoch: int | None
    from_offset: int

    def __call__(self, entry: AuditRecord) -> bool:
        if entry.offset < self.from_offset:
            return False
        expected = (self.subtask, self.attempt, self.checkpoint, self.epoch)
        record = entry.record
        if record is None:
            return not self.kinds and expected == (None,) * len(expected)
        actual = (record.subtask, record.attempt_number, record.checkpoint_id, record.epoch)
        if self.kinds and record.kind not in self.kinds:
            return False
        return all(e is None or e == a for e, a in zip(expected, actual, strict=True))


kind_option = click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([kind.value for kind in Kind], case_sensitive=False),
    metavar="KIND",
    help="Only records of this kind, as in ATTEMPT_FAILED; may be repeated.",
)


@click.command()
@click.argument("job", shell_complete=JOB)
@kind_option
@click.option("--subtask", type=int, metavar="N", help="Only records of this subtask.")
@click.option("--attempt", type=int, metavar="N", help="Only records of this attempt number.")
@click.option("--checkpoint", type=int, metavar="N", help="Only records of this checkpoint.")
@click.option("--epoch", type=int, metavar="N", help="Only records of this epoch.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Show at most N records.")
@click.option(
    "--from-offset", type=int, default=0, metavar="N", help="Only records from this offset on."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object a line, with all fields."
)
@with_history
@with_pager
def history(
    logs: Logs,
    *,
    job: str,
    kinds: tuple[str, ...],
    subtask: int | None,
    attempt: int | None,
    checkpoint: int | None,
    epoch: int | None,
    limit: int | None,
    from_offset: int,
    as_json: bool,
) -> None:
    """Show JOB's records in log order.

    A record that does not count is marked with the reason. The log is always read from its start,
    because earlier records decide which ones count. Without a limit, the end of the output names
    the acks and cuts for which pending checkpoints wait.
    """
    accepts = _Filter(
        kinds=frozenset(Kind(name) for name in kinds),
        subtask=subtask,
        attempt=attempt,
        checkpoint=checkpoint,
        epoch=epoch,
        from_offset=from_offset,
    )
    with records_of(logs, job) as records:
        pending = CheckpointFold()
        shown = itertools.islice(filter(accepts, _applied(records, pending)), limit)
        if as_json:
            for entry in shown:
                print_json(record_json(entry))
        else:
            _print_lines(shown)
            if limit is None:
                _print_pending(pending)


def _applied(records: Iterable[AuditRecord], fold: CheckpointFold) -> Iterator[AuditRecord]:
    """The records, after applying those that count to the fold."""
    for entry in records:
        state = state_at_beginning(entry)
        if state is not None:
            fold.begin(state)
        if entry.counts and entry.record is not None:
            with Applying(entry.offset, entry.record):
                fold.apply(entry.record)
        yield entry


def _print_pending(fold: CheckpointFold) -> None:
    """Print the missing acks and cuts of the checkpoints that are pending at the log's end."""
    for row in fold.rows():
        if row.status is CheckpointStatus.PENDING:
            missing = row.missing or "nothing but its completion"
            click.echo(f"\ncheckpoint {row.checkpoint_id} is pending; missing: {missing}")


def _print_lines(records: Iterable[AuditRecord]) -> None:
    lines = Lines()
    lines.print_heading()
    for entry in records:
        lines.print(entry)


class Lines:
    """Prints records, one line each."""

    def __init__(self) -> None:
        self._console, self._day = new_console(), ""

    def print_heading(self) -> None:
        """Print the names of the columns."""
        crop(self._console, Text(_HEADING, style="bold"))

    def print(self, entry: AuditRecord) -> None:
        """Print a record, after its day if that differs from the last record's."""
        timestamp_us = _timestamp_us(entry)
        if day_of(timestamp_us) != self._day:
            self._day = day_of(timestamp_us)
            crop(self._console, Text(f"-- {self._day}", style="dim"))
        crop(self._console, _line(entry, timestamp_us))


def _timestamp_us(entry: AuditRecord) -> int:
    return entry.timestamp_ms * 1000 if entry.record is None else entry.record.timestamp_us


def _line(entry: AuditRecord, timestamp_us: int) -> Text:
    record = entry.record
    void = entry.why_not
    style = "dim" if void else "" if record is None else _STYLES.get(record.kind, "")
    line = Text(f"{entry.offset:>6} {_sequence(record):>6} {time_of(timestamp_us):<12} ")
    line.append(f"{'' if record is None else record.epoch:>2} ")
    line.append(f"{'?' if record is None else record.kind.value:<24} ", style=style)
    line.append(f"{'' if record is None else record.operator_id or '':<8} ")
    line.append(
        f"{_attempt(record):<7} {_number(None if record is None else record.checkpoint_id):>4}  "
    )
    if void:
        line.append(f"[{void}] ", style="bold magenta")
    line.append("  ".join(_details(entry)))
    if void:
        line.stylize("dim")
    return line


def _sequence(record: Record | None) -> str:
    return _number(None if record is None else record.sequence)


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _attempt(record: Record | None) -> str:
    if record is None or record.subtask is None:
        return ""
    number = record.attempt_number
    return str(record.subtask) if number is None else f"{record.subtask}/{number}"


def _details(entry: AuditRecord) -> Iterator[str]:
    """Parts of a line after its columns."""
    record = entry.record
    if record is None:
        yield entry.problem or ""
        if entry.key:
            yield f"key {_text(entry.key)}"
        if entry.value:
            yield f"value {hex_text(entry.value)}"
        return
    if record.event_id is not None:
        yield f"event {record.event_id}"
    if record.cause is not None:
        yield f"of {record.cause}"
    if record.payload_type is not None:
        yield record.payload_type.removeprefix(_OWN)
    if record.kind is not Kind.TYPE_REGISTERED and record.payload is not None:
        shown = bytes_text(record.payload) if entry.fields is None else entry.fields
        yield on_one_line(shown, _PAYLOAD_CHARS)
    reason = reason_in_words(record)
    if reason is not None:
        yield f"because {on_one_line(reason, _REASON_CHARS)}"
    for name in sorted(record.attributes):
        yield f"{name}={on_one_line(record.attributes[name], _PAYLOAD_CHARS)}"


def _text(data: bytes) -> str:
    text = data.decode(errors="replace")
    return text if text.isprintable() and "\ufffd" not in text else hex_text(data)


def record_json(entry: AuditRecord) -> Json:
    """All fields of a record as JSON.

    A payload without a schema in the log is `payload_hex`, entry in the payload store `payload_stored`.
    """
    record = entry.record
    place: dict[str, Json] = {
        "offset": entry.offset,
        "counts": entry.counts,
        "void": entry.why_not,
        "key": None if entry.key is None else _text(entry.key),
        "timestamp": iso(_timestamp_us(entry)),
    }
    if record is None:
        value = None if entry.value is None else entry.value.hex()
        return {**place, "problem": entry.problem, "value_hex": value}
    is_plain = entry.fields is not None or record.payload is None
    return {
        **place,
        "job_id": record.job_id,
        "epoch": record.epoch,
        "driver_id": record.driver_id,
        "sequence": record.sequence,
        "turn_remaining": record.turn_remaining,
        "kind": record.kind.value,
        "operator_id": record.operator_id,
        "subtask": record.subtask,
        "attempt_number": record.attempt_number,
        "checkpoint_id": record.checkpoint_id,
        "event_id": record.event_id,
        "last_barrier": record.last_barrier,
        "cause": record.cause,
        "payload_type": record.payload_type,
        "payload": to_json(entry.fields),
        **({} if is_plain else undecoded(record.payload or b"")),
        "reason": record.reason,
        "attributes": {name: record.attributes[name] for name in sorted(record.attributes)},
    }
