"""A log is pruned, and the job writes another format from then on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from coordlog.api.chain import Chain
from coordlog.log.memory import MemoryLog
from coordlog.offline.prune import planned, prune
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.sink.table_commits import TableCommits
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


def writing(make: Make, out: Path) -> Chain:
    chain = Chain(source=silent_source(), operators=[make(out).spec()])
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
def test_a_sink_of_another_format_goes_on_with_a_pruned_log(
    former: Make, later: Make, tmp_path: Path
) -> None:
    before, after = writing(former, tmp_path / "former"), writing(later, tmp_path / "later")
    log = pruned(before, tmp_path / "archive.avro")

    states = [rebuild(log, chain, projection_of(chain)).state for chain in (before, after)]

    assert states[0].projections == states[1].projections


def test_a_sink_of_files_keeps_the_numbers_of_a_table(tmp_path: Path) -> None:
    """The table has them already, should the job write to it again."""
    log = pruned(writing(DeltaSink, tmp_path / "t"), tmp_path / "archive.avro")
    files = writing(ParquetSink, tmp_path / "out")

    state = rebuild(log, files, projection_of(files)).state

    assert state.projections["sink"] == TableCommits(following=3)
