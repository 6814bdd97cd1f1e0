"""`coordlog skip` while a driver lives: it is asked over its endpoint, and nobody is fenced."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from coordlog.api.chain import Chain
from coordlog.cli.exit_status import Exit
from coordlog.cli.log_access import Logs
from coordlog.cli.main import main
from coordlog.log.memory import MemoryLog
from coordlog.projections.job.state import JobState
from coordlog.runtime.driver import DriverOptions, JobDriver, JobStatus
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.transform import transform_spec
from coordlog.spark_integration.wire.token import TOKEN_VARIABLE
from fakes.endpoint_parts import TOKEN, EndpointSurroundings, wait_for
from histories.one_log import OneLog

pytestmark = [pytest.mark.slow, pytest.mark.clause("J2")]

FILES, ROWS, STUCK = 6, 20, 2
WAIT_S = 60.0


def skip(log: MemoryLog, *arguments: str) -> Result:
    logs: Logs = OneLog(log)
    return CliRunner().invoke(main, ["skip", "job", *arguments], obj=lambda _servers: logs)


@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_a_split_that_blocks_an_attempt_is_skipped_and_others_are_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_batch: bool,  # noqa: FBT001, a parameter
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(FILES):
        rows = "".join(f"{row}\n" for row in range(number * ROWS, (number + 1) * ROWS))
        (source / f"{number}.csv").write_text("a\n" + rows)
    stuck, released = threading.Event(), threading.Event()

    def sticking(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.column("a")[0].as_py() // ROWS == STUCK:
            stuck.set()
            assert released.wait(WAIT_S)
        return batch

    log, sink = MemoryLog("job"), ParquetSink(tmp_path / "out")
    sink.prepare("job")
    chain = Chain(
        source=FileSource(source).spec(), operators=[transform_spec(sticking), sink.spec()]
    )
    driver = JobDriver(
        chain=chain,
        log=log,
        options=DriverOptions(
            job_id="job",
            parallelism=2,
            is_batch=is_batch,
            runtime=RuntimeOptions(checkpoint_interval_s=None if is_batch else 0.05),
            restarts_max=0,
        ),
        surroundings=EndpointSurroundings(chain, "job", 2),
    )
    driver.start()
    assert stuck.wait(WAIT_S)
    split_id = str(source / f"{STUCK}.csv")
    try:
        monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
        blind = skip(log, "--split", split_id)
        assert blind.exit_code == Exit.REFUSED
        assert "no token that is here proves that it is" in blind.stderr
        monkeypatch.setenv(TOKEN_VARIABLE, TOKEN.text())
        # `driver.state` may be ahead of the log; what the command reads is the log.
        wait_for(lambda: _is_listed(driver.state, split_id), "the listing")
        told = skip(log, "--split", split_id, "--reason", "it hangs")
        assert told.exit_code == 0, told.output
        assert told.stderr.startswith(f"skipped split {split_id!r} of job job, by its driver, at ")
        again = skip(log, "--split", split_id)
        assert again.stderr == f"split {split_id!r} of job job is skipped already\n"
    finally:
        released.set()
    result = driver.wait(WAIT_S)

    assert result is not None
    assert (result.status, result.epoch) == (JobStatus.FINISHED, 0)
    (skipped,) = result.skipped_splits
    assert (skipped.split_id, skipped.reason) == (split_id, "it hangs")
    came_out = sorted(pq.read_table(tmp_path / "out").column("a").to_pylist())
    assert came_out == [row for row in range(FILES * ROWS) if row // ROWS != STUCK]


def _is_listed(state: JobState | None, split_id: str) -> bool:
    return state is not None and split_id in state.projections["source"].splits
