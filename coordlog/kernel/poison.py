"""Names the split or the event at which attempts fail again and again, and the command that skips it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from coordlog.limits import POISON_FAILURES, REASON_CHARS_MAX
from coordlog.projections.job.skips import digest_of, skip_command
from coordlog.projections.job.state import DownEvent, JobState, UpEvent

_FIRST_CHARS = REASON_CHARS_MAX // 4

__all__ = ["attributes_of_event", "marked", "with_poison", "without_poison"]

_POISON: Final = re.compile(
    r"; (split|event) .*? is poison: \d+ attempts in a row have failed at it; "
    r"to go on without it: `.*?in a row failed at it'`",
    re.DOTALL,
)


def attributes_of_event(event: DownEvent | UpEvent) -> dict[str, str]:
    """What a failure's record says of the event at which it happened: where it stands, and its content."""
    return {
        "event": f"{event.operator_id}/{event.payload_type}/{digest_of(event.payload)}",
        "event_sequence": str(event.sequence),
    }


def marked(state: JobState, attributes: Mapping[str, str]) -> dict[str, str]:
    """A failure's attributes; with `poison`, where so many in a row were at one split or event.

    Args:
        state: Before the failure is recorded.
        attributes: Of its record.
    """
    for what in ("split_id", "event"):
        value = attributes.get(what)
        failures = state.poison.get(f"{what}:{value}", 0) + 1
        if value is not None and failures >= POISON_FAILURES:
            return {**attributes, "poison": str(failures)}
    return dict(attributes)


def with_poison(job_id: str, reason: str, attributes: Mapping[str, str]) -> str:
    """The reason; behind its first line what is poison, where `attributes` say so.

    There, because a traceback's end may be cut off.
    """
    failures = attributes.get("poison")
    if failures is None:
        return reason
    split_id, event = attributes.get("split_id"), attributes.get("event")
    what = f"event {event!r}" if split_id is None else f"split {split_id!r}"
    command = skip_command(job_id, attributes)
    first, line_end, rest = reason.partition("\n")
    poison = (
        f"; {what} is poison: {failures} attempts in a row have failed at it; "
        f"to go on without it: `{command}`"
    )
    return f"{first[:_FIRST_CHARS]}{poison}{line_end}{rest}"


def without_poison(reason: str) -> str:
    """The reason as it was before `with_poison`."""
    return _POISON.sub("", reason, count=1)
