"""`coordlog tail`: follows a job's log while records are appended to it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Final

import click

from coordlog.cli.commands.look.history import Lines, kind_option, record_json
from coordlog.cli.completing import JOB
from coordlog.cli.console import lasted, print_json, print_line, time_of
from coordlog.cli.exit_status import Exit
from coordlog.cli.following import Follower, FollowOptions, is_reader_gone
from coordlog.cli.log_access import Logs, with_logs
from coordlog.cli.table_output import json_option
from coordlog.errors import RecordError
from coordlog.history import History
from coordlog.log.interface import StoredRecord
from coordlog.projections.inspection.verdict import VerdictState
from coordlog.projections.inspection.verdict_fold import VerdictFold
from coordlog.projections.job.launch import LaunchInfo
from coordlog.projections.snapshot.codec import state_before
from coordlog.projections.tables.audit import Applying, AuditRecord
from coordlog.schemas.record import Kind, Record

__all__ = ["tail"]

_LINES: Final = 10
_PATIENCE_S: Final = 300.0
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_ENDS: Final = {
    VerdictState.FINISHED: Exit.DONE,
    VerdictState.STOPPED: Exit.DONE,
    VerdictState.FAILED: Exit.FAILED,
}


class _Duration(click.ParamType[timedelta]):
    """A duration, as in `90s`, `5m`, `2h`."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        if isinstance(value, timedelta):
            return value
        match = _DURATION.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is no duration, as in 90s, 5m or 2h", param, ctx)
        try:
            return timedelta(**{_UNITS[match[2]]: float(match[1])})
        except OverflowError:
            self.fail(f"{value!r} is too long", param, ctx)


@click.command()
@click.argument("job", shell_complete=JOB)
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Begin N records before the end; default {_LINES}, and 0 begins now.",
)
@click.option(
    "--from-offset",
    type=int,
    metavar="N",
    help="Begin at this offset.",
)
@click.option(
    "--since",
    type=_Duration(),
    metavar="DURATION",
    help="Begin at the records since then, as in 90s, 5m, 2h.",
)
@kind_option
@click.option(
    "-F",
    "--forever",
    is_flag=True,
    help="Continue after the job's end: another run may continue it.",
)
@click.option("--no-follow", is_flag=True, help="End at the log's present end.")
@click.option(
    "--patience",
    "patience_s",
    type=click.FloatRange(min=0),
    default=_PATIENCE_S,
    show_default=True,
    metavar="SECONDS",
    help="Try a broker that does not answer for so long.",
)
@json_option
@with_logs
def tail(
    logs: Logs,
    *,
    job: str,
    lines: int | None,
    from_offset: int | None,
    since: timedelta | None,
    kinds: tuple[str, ...],
    forever: bool,
    no_follow: bool,
    patience_s: float,
    as_json: bool,
) -> None:
    """Follow JOB's log: print each record once it is in the log.

    Ends with the job: with status 0 if it has finished or was stopped, 1 if it has failed. Messages
    about the job and its log, such as a driver that takes over, are on the standard error.
    """
    if sum(value is not None for value in (lines, from_offset, since)) > 1:
        raise click.UsageError("give one of --lines, --from-offset and --since")
    if forever and no_follow:
        raise click.UsageError("give either --forever or --no-follow")
    shown = _Shown(kinds=frozenset(map(Kind, kinds)), as_json=as_json)
    follower = Follower(logs, job, FollowOptions(patience_s=patience_s, notify=shown.notify))
    try:
        place, begins_at = _beginning(follower.history, lines, from_offset, since)
        following = _Following(
            job, shown, begins_at, end=follower.history.end if no_follow else None
        )
        status = following.run(follower.entries(place), is_forever=forever)
    except KeyboardInterrupt:
        status = Exit.INTERRUPTED
    finally:
        follower.close()
    if status is not Exit.DONE:
        click.get_current_context().exit(status)


def _beginning(
    history: History, lines: int | None, from_offset: int | None, since: timedelta | None
) -> tuple[int, Callable[[AuditRecord], bool]]:
    """Place from which to read, and whether a record is to be shown."""
    if since is not None:
        since_ms = time.time() * 1000 - since.total_seconds() * 1000
        place = history.place_before(lambda stored: stored.timestamp_ms <= since_ms)
        return place, lambda entry: entry.timestamp_ms >= since_ms
    first = from_offset
    if first is None:
        first = max(history.start, history.end - (_LINES if lines is None else lines))
    elif first < history.start:
        raise click.BadParameter(
            f"the log begins at offset {history.start}: earlier records were pruned",
            param_hint="--from-offset",
        )

    def is_early(stored: StoredRecord) -> bool:
        return stored.offset <= first

    return history.place_before(is_early), lambda entry: entry.offset >= first


class _Shown:
    """The output: records on the standard output, messages about job and log on the standard error."""

    def __init__(self, *, kinds: frozenset[Kind], as_json: bool) -> None:
        self._kinds, self._as_json = kinds, as_json
        self._lines = Lines()

    def record(self, entry: AuditRecord) -> None:
        """Print a record, unless it is of another kind."""
        if self._kinds and (entry.record is None or entry.record.kind not in self._kinds):
            return
        if self._as_json:
            print_json(record_json(entry))
        else:
            self._lines.print(entry)

    def notify(self, message: str) -> None:
        """Print a message."""
        sys.stdout.flush()
        print_line(f"-- {time_of(time.time_ns() // 1000)}  {message}", err=True)


class _Following:
    """One run of the command."""

    def __init__(
        self, job: str, shown: _Shown, begins_at: Callable[[AuditRecord], bool], *, end: int | None
    ) -> None:
        self._job, self._shown, self._begins_at, self._end = job, shown, begins_at, end
        self._fold = VerdictFold()
        self._state: VerdictState | None = None
        self._epoch: int | None = None

    def run(self, entries: Iterator[AuditRecord | None], *, is_forever: bool) -> Exit:
        """Print records until the job's end. Returns the exit status."""
        for entry in entries:
            if entry is None:
                sys.stdout.flush()
                if is_reader_gone():
                    raise BrokenPipeError
                state = self._print_state(is_forever=is_forever)
                if self._end is not None:
                    return Exit.DONE
                if state in _ENDS and not is_forever:
                    return _ENDS[state]
                continue
            self._apply(entry)
            if self._end is not None and entry.offset >= self._end - 1:
                sys.stdout.flush()
                return Exit.DONE
        raise AssertionError("a follower has no end")

    def _apply(self, entry: AuditRecord) -> None:
        if entry.beginning is not None and entry.beginning.snapshot is not None:
            try:
                state = state_before(entry.beginning)
            except RecordError:
                pass  # of another version: records are shown, verdicts begin with the next epoch
            else:
                self._fold.begin(state)
                self._epoch = state.epoch
        is_shown = self._begins_at(entry)
        if is_shown:
            self._shown.record(entry)
        if not entry.counts or entry.record is None:
            return
        with Applying(entry.offset, entry.record):
            self._fold.apply(entry.record)
        if entry.record.kind is Kind.EPOCH_STARTED:
            if is_shown:
                self._shown.notify(_take_over(entry.record, self._epoch))
            self._epoch = entry.record.epoch

    def _print_state(self, *, is_forever: bool) -> VerdictState:
        """Print the job's state if it has changed since the last time; returns it."""
        now_us = time.time_ns() // 1000
        verdict = self._fold.verdict(now_us)
        if verdict.state is self._state:
            return verdict.state
        self._state = verdict.state
        end = ""
        if verdict.state.is_over and not is_forever and self._end is None:
            end = "; --forever waits for a later run"
        since = lasted(verdict.since_us, now_us) if verdict.state is not VerdictState.NEW else ""
        reason = f": {verdict.reason}" if verdict.reason else ""
        ago = f" for {since}" if since else ""
        self._shown.notify(f"job {self._job} is {verdict.state.value}{ago}{reason}{end}")
        return verdict.state


def _take_over(record: Record, before: int | None) -> str:
    launch = LaunchInfo(record.attributes)
    where = f"on {launch.host}, process {launch.attributes.get('pid', '?')}" if launch.host else ""
    if launch.is_command:
        return f"epoch {record.epoch}: `coordlog {launch.attributes['command']}` {where}, without a driver"
    over = "" if before is None or before < 0 else f"; the driver of epoch {before} is over"
    return f"epoch {record.epoch} begins: a driver {where}{over}"
