"""The demo's transform: returns each batch unchanged, after a time that grows with its rows.

    coordlog ingest ... --transform examples/demo_parts/slowed.py:slowed

It sleeps, so that the time is the same on a fast machine and on a slow one.
"""

from __future__ import annotations

import os
import time
from typing import Final

import pyarrow as pa

__all__ = ["SECONDS_PER_ROW", "slowed"]

SECONDS_PER_ROW: Final = float(os.environ.get("DEMO_SECONDS_PER_ROW", "0.0003"))
"""Delay per row. Read in the driver; the tasks get the value with the function."""


def slowed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch, after a delay."""
    time.sleep(batch.num_rows * SECONDS_PER_ROW)
    return batch
