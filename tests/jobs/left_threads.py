"""Threads of coordlog's that outlive what started them."""

from __future__ import annotations

import threading
import time
from typing import Final

__all__ = ["left_threads"]

_ENDING_S: Final = 30.0


def left_threads() -> list[str]:
    """The names of those that do not end; one that is just ending is waited for."""
    until = time.monotonic() + _ENDING_S
    ours = [one for one in threading.enumerate() if one.name.startswith("coordlog")]
    for one in ours:
        one.join(max(0.0, until - time.monotonic()))
    return sorted(one.name for one in ours if one.is_alive())
