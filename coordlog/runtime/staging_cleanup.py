"""Cleaning after attempts: only names that the log has given up (clause I4)."""

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
    """A sink whose attempts stage things outside, which may be left over. Its methods run on workers."""

    def clean(
        self, *, driver_id: str, subtask: int, attempt_number: int, keep: AbstractSet[str]
    ) -> None:
        """Remove what that attempt has staged, but `keep`. Safe to do again."""
        ...

    def sweep(self, *, keep: AbstractSet[str], is_in_force: Callable[[], bool]) -> None:
        """Remove all that is staged, but `keep`; when no attempt of any driver lives.

        The names must be listed first, `is_in_force` be asked then, and nothing but these names be removed, and only
        where it says so: this driver may have stood still since the job's end, and another one, who has opened the job
        again, have staged what this one does not know of (clause K2).
        """
        ...

    def staged_names(self, committables: Sequence[bytes]) -> frozenset[str]:
        """What these committables name."""
        ...

    def intent_names(self, intent: Payload) -> frozenset[str]:
        """What an intent names."""
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
    """What a worker is to do once the record that ended the attempt is released.

    Args:
        state: As of then or later: what it holds stays.
        types: The job's.
        sinks: By operator.
        driver_id: The attempt's.
        subtask: The attempt's.
        attempt_number: The attempt's.
    """
    works: list[Callable[[], None]] = []
    for operator_id, sink in sorted(sinks.items()):
        if isinstance(sink, CleaningSink):
            keep = _kept(state, types, operator_id, sink)

            def work(sink: CleaningSink = sink, keep: frozenset[str] = keep) -> None:
                try:
                    sink.clean(
                        driver_id=driver_id,
                        subtask=subtask,
                        attempt_number=attempt_number,
                        keep=keep,
                    )
                except Exception as error:  # noqa: BLE001, what is left over is hidden, and swept at the end
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
    """Remove what is left over at a job's end, when no attempt of any driver lives.

    `is_in_force` looks whether this driver's epoch is in force still; what was staged when it says so is no later
    driver's.
    """
    for operator_id, sink in sorted(sinks.items()):
        if isinstance(sink, CleaningSink):
            try:
                sink.sweep(keep=_kept(state, types, operator_id, sink), is_in_force=is_in_force)
            except Exception as error:  # noqa: BLE001, the job has finished: what is left over is hidden
                _log.warning("sweeping after the job: %s", error)


def _kept(
    state: JobState, types: PayloadTypes, operator_id: str, sink: CleaningSink
) -> frozenset[str]:
    keep = sink.staged_names(held_committables(state, operator_id))
    for _, intent in sorted_items(state.intents):
        if intent.operator_id == operator_id:
            keep |= sink.intent_names(types.decode(intent.payload_type, intent.payload))
    return keep
