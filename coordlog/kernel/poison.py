"""Poison in reasons of failures: a split or event at which attempts keep failing, and the command that skips it."""

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
    """Attributes of a failure's record for the event at which it happened: its sequence and the hash of its content."""
    return {
        "event": f"{event.operator_id}/{event.payload_type}/{digest_of(event.payload)}",
        "event_sequence": str(event.sequence),
    }


def marked(state: JobState, attributes: Mapping[str, str]) -> dict[str, str]:
    """A failure's attributes; with `poison` if `POISON_FAILURES` in a row were at one split or event.

    Args:
        state: State before the failure is recorded.
        attributes: Attributes of the failure's record.
    """
    for name in ("split_id", "event"):
        value = attributes.get(name)
        failures = state.poison.get(f"{name}:{value}", 0) + 1
        if value is not None and failures >= POISON_FAILURES:
            return {**attributes, "poison": str(failures)}
    return dict(attributes)


def with_poison(job_id: str, reason: str, attributes: Mapping[str, str]) -> str:
    """The reason, with the poison split or event behind its first line, if `attributes` have one.

    Behind the first line, because the end of a traceback may be cut off.
    """
    failures = attributes.get("poison")
    if failures is None:
        return reason
    split_id, event = attributes.get("split_id"), attributes.get("event")
    place = f"event {event!r}" if split_id is None else f"split {split_id!r}"
    command = skip_command(job_id, attributes)
    first, line_end, rest = reason.partition("\n")
    poison = (
        f"; {place} is poison: {failures} attempts in a row have failed at it; "
        f"to go on without it: `{command}`"
    )
    return f"{first[:_FIRST_CHARS]}{poison}{line_end}{rest}"


def without_poison(reason: str) -> str:
    """The reason without the text that `with_poison` has added."""
    return _POISON.sub("", reason, count=1)
