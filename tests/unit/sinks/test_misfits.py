"""Rows that do not fit their destination end the job at once, and no good file is named to be skipped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from coordlog.causes import MISFIT
from coordlog.errors import (
    DestinationMisfitError,
    OperatorMisfitError,
    SinkError,
    SourceError,
    TransformMisfitError,
)
from coordlog.messages import Fail
from coordlog.projections.job.state import Phase
from coordlog.schemas.record import Kind
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.testing.driven_job import HandDrivenJob
from fakes.attempt_fakes import (
    END,
    ScriptedInbox,
    World,
    added,
    deliver,
    inbox_of,
    polled,
    runner_of,
    split_end,
)
from fakes.chain_fakes import FakeContext
from fakes.kernel_fakes import NotingProvider, chain_of

TO = ("/out", "it does not fit", "cast it")


def failure_at_a_split(error: Exception) -> Fail:
    world = World(raising={"sink.process": error}, polls=[polled(1), split_end("s1"), END])
    inbox = inbox_of(deliver("source", added("s1")))
    with pytest.raises(type(error)):
        runner_of(world, is_batch=True, keeps_state_across_splits=False).run(
            ScriptedInbox(lambda _block, _timeout: inbox.get(block=False))
        )
    (failure,) = world.got(Fail)
    assert isinstance(failure, Fail)
    return failure


@pytest.mark.parametrize(
    ("error", "split_id", "final"),
    [
        pytest.param(DestinationMisfitError(*TO), "s1", MISFIT, id="a misfit"),
        pytest.param(TransformMisfitError(*TO), "s1", MISFIT, id="no rows from a transform"),
        pytest.param(OperatorMisfitError("no rows"), "s1", MISFIT, id="no rows from an operator"),
        pytest.param(SinkError(*TO), None, "", id="a destination that refuses"),
        pytest.param(SourceError(*TO), "s1", "", id="an input that cannot be read"),
        pytest.param(ValueError("a row"), "s1", "", id="a row that fails a link"),
    ],
)
def test_a_split_is_named_unless_its_destination_is_to_blame(
    error: Exception, split_id: str | None, final: str
) -> None:
    failure = failure_at_a_split(error)

    assert (failure.split_id, failure.final) == (split_id, final)


@pytest.mark.may_fail("it does not fit")
def test_a_misfit_ends_the_job_at_once_and_no_skip_is_advised() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    for _ in range(2):
        job.register(0).fail("a row", split_id="in/a.csv")
    job.register(0).fail("it does not fit", split_id="in/a.csv", final=MISFIT)

    assert job.runtime.state.phase is Phase.FAILED
    failed = job.history(Kind.ATTEMPT_FAILED)[-1]
    assert failed.attributes["final"] == MISFIT
    assert "poison" not in failed.attributes
    assert "coordlog skip" not in str(failed.reason)
    assert job.runtime.state.poison["split_id:in/a.csv"] == 2
    (over,) = job.history(Kind.JOB_FAILED)
    assert "split 'in/a.csv'" in over.attributes["where"]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(pa.record_batch({"x": pa.array([1], pa.int64())}), id="another type"),
        pytest.param(pa.record_batch({"y": pa.array(["a"])}), id="another column"),
    ],
)
def test_the_sink_names_the_options_that_mend_a_misfit(
    tmp_path: Path, rows: pa.RecordBatch
) -> None:
    sink = ParquetSink(tmp_path / "out")
    sink.prepare("job")
    write = _writer_of(sink)
    write(pa.record_batch({"x": pa.array(["a"])}))

    with pytest.raises(DestinationMisfitError) as caught:
        write(rows)
    assert "`schemas='one'`" in caught.value.next_step
    assert "`widen=True`" in caught.value.next_step
    assert "schema=" in caught.value.next_step


def test_a_time_that_the_files_cannot_hold_is_a_misfit_too(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "out")
    sink.prepare("job")
    writer = sink.spec().create_operator()
    writer.open(FakeContext(job_id="job"), None)
    list(writer.process(pa.record_batch({"t": pa.array([1], pa.timestamp("ns", "UTC"))})))

    with pytest.raises(DestinationMisfitError, match="would lose data"):
        writer.snapshot_state(1)
    writer.close()


def _writer_of(sink: ParquetSink) -> Callable[[pa.RecordBatch], object]:
    writer = sink.spec().create_operator()
    writer.open(FakeContext(job_id="job"), None)
    return lambda batch: list(writer.process(batch))
