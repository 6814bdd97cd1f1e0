"""The stored payloads that a job's state addresses and a new epoch needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from coordlog.projections.job.state import (
    CompletedCheckpoint,
    JobState,
    sorted_items,
    sorted_values,
)
from coordlog.schemas.builtin_types import OperatorState
from coordlog.schemas.payload_address import PayloadAddress, address_in

__all__ = ["NeededPayload", "StrangeAddress", "needed_payloads"]

_SHOWN_BYTES: Final = 120
"""Length of the shown beginning: a payload may be megabytes long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededPayload:
    """A stored payload that a new epoch needs."""

    what: str
    """Description for people: operator and checkpoint of a state, or number of an event."""
    address: PayloadAddress
    is_for_driver: bool
    """Whether the driver opens it; else an attempt does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrangeAddress:
    """A payload with the prefix of an address that is no address: damaged, or of a newer version."""

    what: str
    """Description as of a needed payload."""
    shown: str
    """Beginning of the payload, for people."""


def needed_payloads(
    state: JobState, operators: Collection[str]
) -> Iterator[NeededPayload | StrangeAddress]:
    """Payloads opened first by a rollback to the last completed checkpoint, or by a resume.

    Payloads of operators that are not among `operators` are left out: the start drops them, and nobody opens them.
    """
    checkpoint = state.completed.get(state.last_checkpoint)
    if checkpoint is not None:
        yield from _of_checkpoint(checkpoint, operators)
    for event in state.owed_redeliveries:
        what = f"event {event.event_id} of subtask {event.subtask} (sequence {event.sequence})"
        if event.operator_id in operators:
            yield from _needed(what, event.payload, is_for_driver=True)
    for intent in sorted_values(state.intents):
        yield from _needed(
            f"the commit of operator {intent.operator_id!r} (sequence {intent.sequence})",
            intent.payload,
            is_for_driver=True,
        )


def _of_checkpoint(
    checkpoint: CompletedCheckpoint, operators: Collection[str]
) -> Iterator[NeededPayload | StrangeAddress]:
    of_it = f"in checkpoint {checkpoint.checkpoint_id} (sequence {checkpoint.sequence})"
    for operator_id, cut in sorted_items(checkpoint.cuts):
        what = f"the state of coordinator {operator_id!r} {of_it}"
        if operator_id in operators:
            yield from _needed(what, cut.state, is_for_driver=True)
    for event in checkpoint.in_flight:
        what = f"event {event.event_id} of subtask {event.subtask} (sequence {event.sequence})"
        if event.operator_id in operators:
            yield from _needed(what, event.payload, is_for_driver=True)
    for subtask, states in sorted_items(checkpoint.states):
        yield from _of_subtask(subtask, states, operators, of_it)
    for subtask, part in sorted_items(checkpoint.finished):
        yield from _of_subtask(subtask, part.states, operators, of_it)


def _of_subtask(
    subtask: int, states: tuple[OperatorState, ...], operators: Collection[str], of_it: str
) -> Iterator[NeededPayload | StrangeAddress]:
    for operator in states:
        what = f"the state of operator {operator.operator_id!r} of subtask {subtask} {of_it}"
        if operator.operator_id in operators:
            yield from _needed(what, operator.state, is_for_driver=False)


def _needed(
    what: str, data: bytes | None, *, is_for_driver: bool
) -> Iterator[NeededPayload | StrangeAddress]:
    try:
        address = address_in(data)
    except ValueError:
        yield StrangeAddress(what=what, shown=repr((data or b"")[:_SHOWN_BYTES]))
        return
    if address is not None:
        yield NeededPayload(what=what, address=address, is_for_driver=is_for_driver)
