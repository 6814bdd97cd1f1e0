"""The worlds that are searched: in each run of the tests, and by `make exhaustive`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from exhaustive.kernel_world import Budget, KernelWorld
from exhaustive.protocol_world import ProtocolWorld
from exhaustive.search import World

__all__ = ["IN_EACH_RUN", "LARGER"]

Make = Callable[[], World[Any]]


def _protocol(
    *turns: tuple[int, ...], unknowns: int = 0, kills: int = 0, is_any_order: bool = False
) -> Make:
    return lambda: ProtocolWorld(
        turns=turns, unknowns=unknowns, kills=kills, is_any_order=is_any_order
    )


def _kernel(
    budget: Budget,
    *,
    parallelism: int = 2,
    is_cut_at_once: bool = False,
    is_overlapping: bool = False,
    has_late_messages: bool = True,
) -> Make:
    return lambda: KernelWorld(
        budget=budget,
        parallelism=parallelism,
        is_cut_at_once=is_cut_at_once,
        is_overlapping=is_overlapping,
        has_late_messages=has_late_messages,
    )


IN_EACH_RUN: Final[Mapping[str, Make]] = {
    "protocol, three drivers": _protocol((2,), (1,), (1,), unknowns=1, kills=1),
    "protocol, two drivers, unknown outcomes": _protocol((2,), (2,), unknowns=2, kills=1),
    "protocol, two drivers, any order": _protocol((3,), (1,), unknowns=1, is_any_order=True),
    "kernel, late messages, two checkpoints": _kernel(
        Budget(rows=1, events=1, checkpoints=2, failures=1, take_overs=1)
    ),
    "kernel, overlapping checkpoints": _kernel(
        Budget(events=1, checkpoints=2, failures=1, aborts=1), is_overlapping=True
    ),
    "kernel, completions": _kernel(
        Budget(rows=1, checkpoints=1, failures=1, take_overs=1, completions=1)
    ),
}
"""Each takes less than a minute of a core."""

LARGER: Final[Mapping[str, Make]] = {
    "protocol, turns of two and one": _protocol((2, 1), (1,), unknowns=2),
    "protocol, two turns each": _protocol((2, 1), (2,), unknowns=2, kills=1),
    "protocol, three drivers, unknown outcomes": _protocol((2,), (1,), (1,), unknowns=2),
    "kernel, one subtask": _kernel(
        Budget(rows=2, events=2, checkpoints=2, failures=1, take_overs=1), parallelism=1
    ),
    "kernel, one subtask, overlapping checkpoints": _kernel(
        Budget(rows=2, events=2, checkpoints=2, failures=1, take_overs=1, aborts=1),
        parallelism=1,
        is_overlapping=True,
    ),
    "kernel, a completion beside all else": _kernel(
        Budget(rows=1, events=1, checkpoints=1, failures=1, take_overs=1, completions=1)
    ),
    "kernel, two rows and two events": _kernel(Budget(rows=2, events=2, checkpoints=1, failures=1)),
    "kernel, all": _kernel(
        Budget(rows=2, events=2, checkpoints=2, failures=1, take_overs=1), has_late_messages=False
    ),
}
"""What `make exhaustive` searches besides; the last is the largest by far."""
