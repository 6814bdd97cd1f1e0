"""A sink that gets another id, and its destination: commits there that are lost are seen as before."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from coordlog.api.chain import Chain
from coordlog.errors import SinkError
from coordlog.log.memory import MemoryLog
from coordlog.restore.destination_claim import claim_destinations
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.tables.delta import DeltaSink
from coordlog.spark_integration.job import prepare_sinks
from coordlog.testing import HandDrivenJob, RealAttempt, silent_source

JOB = "ingest"
Make = Callable[[Path], ParquetSink | DeltaSink]


def prepared(make: Make, out: Path, operator_id: str) -> Chain:
    chain = Chain(source=silent_source(), operators=[make(out).spec(operator_id)])
    prepare_sinks(chain, JOB)
    return chain


@pytest.mark.parametrize(
    "make", [pytest.param(ParquetSink, id="parquet"), pytest.param(DeltaSink, id="delta")]
)
def test_lost_commits_are_seen_under_another_id_of_the_sink_too(make: Make, tmp_path: Path) -> None:
    out, log = tmp_path / "out", MemoryLog(JOB)
    chain = prepared(make, out, "files")
    claim_destinations(chain, JOB, log.identity, ())
    job = HandDrivenJob(chain, job_id=JOB)
    attempt = RealAttempt(job, 0)
    attempt.read(pa.record_batch({"i": [1, 2]}))
    job.trigger()
    attempt.take()
    committed = set(job.runtime.state.last_intents)
    assert {operator_id for operator_id, _ in committed} == {"files"}

    claim_destinations(prepared(make, out, "renamed"), JOB, log.identity, (), committed)  # whole

    shutil.rmtree(out)
    renamed = prepared(make, out, "renamed")
    with pytest.raises(SinkError) as caught:
        claim_destinations(renamed, JOB, log.identity, (), committed)
    assert "its log has commits" in caught.value.problem
