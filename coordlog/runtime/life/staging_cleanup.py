"""Cleaning after attempts: only of names that the log has abandoned (clause I4: granted names stay)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol, runtime_checkable

from coordlog.api.coordinator import Sink
from coordlog.projections.job.checkpoints import held_committables
from coordlog.projections.job.state import JobState, sorted_items
from coordlog.schemas.payload import Payload, PayloadTypes

__all__ = ["CleaningSink", "cleaning_of", "sweep"]

_log = logging.getLogger(__name__)


@runtime_checkable
class CleaningSink(Protocol):
    """A sink whose attempts stage files outside, which may be left over. Its methods run on workers."""

    def clean(
        self, *, driver_id: str, subtask: int, attempt_number: int, keep: AbstractSet[str]
    ) -> None:
        """Remove the staged files of an attempt, except `keep`. Idempotent."""
        ...

    def sweep(self, *, keep: AbstractSet[str], is_in_force: Callable[[], bool]) -> None:
        """Remove all staged files, except `keep`, when no attempt of any driver is alive.

        First list the names, then call `is_in_force`; remove only these names, and only if it returns True. This
        driver may have been suspended since the job's end, and another driver may have opened the job again and staged
        further files (clause K2: only the newest driver acts).
        """
        ...

    def staged_names(self, committables: Sequence[bytes]) -> frozenset[str]:
        """Staged names in these committables."""
        ...

    def intent_names(self, intent: Payload) -> frozenset[str]:
        """Staged names in an intent."""
        ...


def cleaning_of(
    state: JobState,
    types: PayloadTypes,
    sinks: Mapping[str, Sink | None],
    *,
    driver_id: str,
    subtask: int,
    attempt_number: int,
) -> list[Callable[[], None]]:
    """Works for workers after the release of the record that ended an attempt.

    Args:
        state: State at that record or later: its names are kept.
        types: Payload types of the job.
        sinks: Sinks by operator.
        driver_id: Driver of the attempt.
        subtask: Subtask of the attempt.
        attempt_number: Number of the attempt.
    """
    works: list[Callable[[], None]] = []
    for operator_id, sink in sorted(sinks.items()):
        if isinstance(sink, CleaningSink):
            keep = _names_to_keep(state, types, operator_id, sink)

            def work(sink: CleaningSink = sink, keep: frozenset[str] = keep) -> None:
                try:
                    sink.clean(
                        driver_id=driver_id,
                        subtask=subtask,
                        attempt_number=attempt_number,
                        keep=keep,
                    )
                except BaseException as error:  # noqa: BLE001, left-over files are hidden, and swept at the end
                    _log.warning("cleaning after attempt %d/%d: %s", subtask, attempt_number, error)

            works.append(work)
    return works


def sweep(
    state: JobState,
    types: PayloadTypes,
    sinks: Mapping[str, Sink | None],
    *,
    is_in_force: Callable[[], bool],
) -> None:
    """Remove left-over files at a job's end, when no attempt of any driver is alive.

    `is_in_force` checks whether this driver's epoch is still in force: then files that were listed before are not
    those of a later driver.
    """
    for operator_id, sink in sorted(sinks.items()):
        if isinstance(sink, CleaningSink):
            try:
                sink.sweep(
                    keep=_names_to_keep(state, types, operator_id, sink), is_in_force=is_in_force
                )
            except BaseException as error:  # noqa: BLE001, the job has finished: left-over files are hidden
                _log.warning("sweeping after the job: %s", error)


def _names_to_keep(
    state: JobState, types: PayloadTypes, operator_id: str, sink: CleaningSink
) -> frozenset[str]:
    keep = sink.staged_names(held_committables(state, operator_id))
    for _, intent in sorted_items(state.intents):
        if intent.operator_id == operator_id:
            keep |= sink.intent_names(types.decode(intent.payload_type, intent.payload))
    return keep
