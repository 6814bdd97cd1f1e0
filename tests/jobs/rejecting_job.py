"""A job with a folder of rejects, one driver after the other on one log, each killed where a test asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from coordlog.api.chain import Chain
from coordlog.log.memory import MemoryLog
from coordlog.runtime.driver import DriverOptions, JobDriver, JobStatus
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Record
from coordlog.spark_integration.files.places import check_apart
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.kafka.source import KafkaSource
from coordlog.spark_integration.transform import TransformFunction, transform_spec
from coordlog.testing.in_memory import InMemorySurroundings
from jobs.file_pipeline import kill_driver

__all__ = ["SUBTASKS", "drive"]

SUBTASKS: Final = 2
_WAIT_S: Final = 60.0


def drive(
    source: FileSource | KafkaSource,
    transform: TransformFunction,
    out: Path,
    log: MemoryLog,
    *,
    is_batch: bool,
    kill_after: int | None = None,
) -> JobStatus:
    """Run one driver to its end, or up to its kill after so many records."""
    sink = ParquetSink(out)
    assert source.rejects is not None
    sink.prepare("job")
    source.rejects.prepare("job")
    chain = Chain(source=source.spec(), operators=[transform_spec(transform), sink.spec()])
    check_apart(chain)
    surroundings = InMemorySurroundings(chain, "job", SUBTASKS)
    seen = 0

    def released(records: Sequence[Record]) -> None:
        nonlocal seen
        before, seen = seen, seen + len(records)
        if kill_after is not None and before < kill_after <= seen:
            kill_driver(driver, surroundings)

    driver = JobDriver(
        chain=chain,
        log=log,
        options=DriverOptions(
            job_id="job",
            parallelism=SUBTASKS,
            is_batch=is_batch,
            runtime=RuntimeOptions(checkpoint_interval_s=None if is_batch else 0.02),
            restart_backoff_s=0.01,
        ),
        surroundings=surroundings,
        on_released=released,
    )
    driver.start()
    result = driver.wait(_WAIT_S)
    assert result is not None, f"not over within {_WAIT_S} s"
    return result.status
