"""Names the split or the event at which attempts fail again and again, and the command that skips it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from coordlog.limits import POISON_FAILURES, REASON_CHARS_MAX
from coordlog.projections.skips import digest_of
from coordlog.projections.state import DownEvent, JobState, UpEvent

_FIRST_CHARS = REASON_CHARS_MAX // 4

__all__ = ["attributes_of_event", "command_of", "poison_of", "with_poison"]


def attributes_of_event(event: DownEvent | UpEvent) -> dict[str, str]:
    """What a failure's record says of the event at which it happened: where it stands, and its content."""
    return {
        "event": f"{event.operator_id}/{event.payload_type}/{digest_of(event.payload)}",
        "event_sequence": str(event.sequence),
    }


def poison_of(state: JobState, attributes: Mapping[str, str]) -> str:
    """What a failure's reason adds where so many in a row were at one split or event; else empty.

    Args:
        state: Before the failure is recorded.
        attributes: Of its record.
    """
    for what, name in (("split_id", "split"), ("event", "event")):
        value = attributes.get(what)
        failures = state.poison.get(f"{what}:{value}", 0) + 1
        if value is not None and failures >= POISON_FAILURES:
            command = command_of(state.job_id, attributes, failures)
            return (
                f"; {name} {value!r} is poison: {failures} attempts in a row have failed at it; "
                f"to go on without it: `{command}`"
            )
    return ""


def with_poison(reason: str, poison: str) -> str:
    """The reason with what `poison_of` gave behind its first line: a traceback's end may be cut off."""
    if not poison:
        return reason
    first, line_end, rest = reason.partition("\n")
    return f"{first[:_FIRST_CHARS]}{poison}{line_end}{rest}"


def command_of(job_id: str, attributes: Mapping[str, str], failures: int) -> str:
    """The command that skips what a failure's record names, to be run as it is where the log is found."""
    split_id = attributes.get("split_id")
    sequence = attributes.get("event_sequence", "")
    what = f"--event {sequence}" if split_id is None else f"--split {shlex.quote(split_id)}"
    return f"coordlog skip {job_id} {what} --reason '{failures} attempts in a row failed at it'"
