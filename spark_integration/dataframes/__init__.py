"""Sources that queries read, `spark.read.format("coordlog")`: the coordinator is in the session's own process.

May import `batches` and what is below it.
Read first: `service.CoordinatedReads`.

The names below are loaded at their first use: Spark's planners and tasks import this package, and need neither of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordlog.spark_integration.dataframes.service import CoordinatedReads, coordinated

__all__ = ["CoordinatedReads", "coordinated"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.service"), name)
