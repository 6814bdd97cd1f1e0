"""Sources that queries read, `spark.read.format("coordlog")`: the coordinator is in the session's own process."""

from __future__ import annotations

from .service import CoordinatedReads, coordinated

__all__ = ["CoordinatedReads", "coordinated"]
