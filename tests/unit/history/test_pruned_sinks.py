"""A log is pruned, and the job writes another format from then on: the sink needs another id."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from coordlog.api.chain import Chain
from coordlog.errors import RestoreError
from coordlog.log.memory import MemoryLog
from coordlog.offline.prune import planned, prune
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.tables.delta import DeltaSink
from coordlog.spark_integration.job import prepare_sinks
from coordlog.testing import HandDrivenJob, RealAttempt, silent_source

pytestmark = pytest.mark.clause("E9")

JOB = "ingest"
Make = Callable[[Path], ParquetSink | DeltaSink]
FORMATS = [
    pytest.param(ParquetSink, DeltaSink, id="files-to-table"),
    pytest.param(DeltaSink, ParquetSink, id="table-to-files"),
]


def writing(make: Make, out: Path, operator_id: str) -> Chain:
    chain = Chain(source=silent_source(), operators=[make(out).spec(operator_id)])
    prepare_sinks(chain, JOB)
    return chain


def pruned(chain: Chain, archive: Path) -> MemoryLog:
    """The log of a job that has committed, cut below a snapshot."""
    job = HandDrivenJob(chain, job_id=JOB, options=RuntimeOptions(snapshot_every=3))
    attempt = RealAttempt(job, 0)
    for number in range(3):
        attempt.read(pa.record_batch({"i": [number]}))
        job.trigger()
        attempt.take()
    prune(job.log, JOB, planned(job.log, JOB), archive)
    assert job.log.start_offset() > 0
    return job.log


@pytest.mark.parametrize(("former", "later"), FORMATS)
def test_a_sink_of_another_format_on_a_pruned_log_needs_another_id(
    former: Make, later: Make, tmp_path: Path
) -> None:
    log = pruned(writing(former, tmp_path / "former", "sink"), tmp_path / "archive.avro")

    same_id = writing(later, tmp_path / "later", "sink")
    with pytest.raises(RestoreError) as caught:
        rebuild(log, same_id, projection_of(same_id))
    assert "give a sink that writes another format now another id" in caught.value.next_step

    other_id = writing(later, tmp_path / "later", "later")
    assert "later" in rebuild(log, other_id, projection_of(other_id)).state.projections
