"""An `Accepted` in parts: the states of a restore with fewer subtasks may exceed one message.

The parts precede the `Accepted` with the last states, in order. No other message comes between them, because an attempt
gets no message before its `Accepted`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from coordlog.limits import MESSAGE_BYTES_MAX, RESTORED_STATES_BYTES_MAX
from coordlog.messages import Accepted, DownMessage
from coordlog.schemas.builtin_types import OperatorState
from coordlog.spark_integration.wire.messages import MoreStates, WireMessage

__all__ = ["AcceptedJoiner", "parts_of"]

_PART_BYTES: Final = MESSAGE_BYTES_MAX // 4
_ITEM_BYTES: Final = 16
"""Upper bound of the bytes of the lengths before an item."""


def parts_of(message: DownMessage) -> Iterator[WireMessage]:
    """The messages in which `message` is sent: itself, or the parts of an `Accepted` with too many states."""
    if not isinstance(message, Accepted):
        yield message
        return
    states: list[OperatorState] = []
    skipped: list[str] = []
    size = 0
    items: list[OperatorState | str] = [*message.states, *message.skipped_splits]
    for item in items:
        item_bytes = _bytes_of(item)
        if size and size + item_bytes > _PART_BYTES:
            yield MoreStates(states=tuple(states), skipped_splits=tuple(skipped))
            states, skipped, size = [], [], 0
        size += item_bytes
        if isinstance(item, str):
            skipped.append(item)
        else:
            states.append(item)
    yield replace(message, states=tuple(states), skipped_splits=tuple(skipped))


class AcceptedJoiner:
    """Joins the messages of `parts_of`, for one connection."""

    def __init__(self) -> None:
        self._states: list[OperatorState] = []
        self._skipped: list[str] = []
        self._bytes = 0

    def take(self, message: DownMessage | MoreStates) -> DownMessage | None:
        """The whole message, or None after a part.

        Raises:
            ValueError: The parts are larger than a driver may send.
        """
        if isinstance(message, MoreStates):
            self._bytes += sum(map(_bytes_of, message.states))
            self._bytes += sum(map(_bytes_of, message.skipped_splits))
            if self._bytes > 2 * RESTORED_STATES_BYTES_MAX:
                raise ValueError(f"{self._bytes} bytes of states, above any limit of a restore")
            self._states += message.states
            self._skipped += message.skipped_splits
            return None
        if not isinstance(message, Accepted):
            return message
        return replace(
            message,
            states=(*self._states, *message.states),
            skipped_splits=(*self._skipped, *message.skipped_splits),
        )


def _bytes_of(item: OperatorState | str) -> int:
    if isinstance(item, str):
        return len(item.encode()) + _ITEM_BYTES
    return len(item.state or b"") + len(item.operator_id.encode()) + _ITEM_BYTES
