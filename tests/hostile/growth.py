"""Whether what is refused leaves something behind: bytes a case, from a run's middle to its end."""

from __future__ import annotations

import gc
import os
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["GROWTH_MAX", "grown", "resident", "traced", "tracing"]

GROWTH_MAX: Final = 1_024
"""Bytes a case. What is kept of one (its bytes, an exception, a connection) is more."""

_LOOKS: Final = 10
_LOOK_EACH_S: Final = 0.02
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def grown(case: Callable[[], None], count: int, memory: Callable[[], int]) -> float:
    """Run so many cases; how many bytes each of the second half has taken for good.

    The first half is for what is made once: imports, caches, the arenas of the allocator.
    """
    half = count // 2
    for _ in range(half):
        case()
    middle = _settled(memory)
    for _ in range(count - half):
        case()
    return (_settled(memory) - middle) / (count - half)


def _settled(memory: Callable[[], int]) -> int:
    """The least of some: a thread that is about to end holds what it has read for some milliseconds more."""
    least = memory()
    for _ in range(_LOOKS):
        time.sleep(_LOOK_EACH_S)
        least = min(least, memory())
    return least


def traced() -> int:
    """Bytes of Python's objects, exactly, while `tracing`: for some hundred cases."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@contextmanager
def tracing() -> Iterator[Callable[[], int]]:
    """Makes everything a few times slower."""
    # Each look collects garbage: without the objects of before, which no case can leave behind, in milliseconds.
    gc.collect()
    gc.freeze()
    tracemalloc.start()
    try:
        yield traced
    finally:
        tracemalloc.stop()
        gc.unfreeze()


def resident() -> int:
    """Bytes of this process in memory, whoever took them, some megabytes more or less: for many thousand cases."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * _PAGE
