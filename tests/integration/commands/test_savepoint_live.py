"""`coordlog savepoint` while a driver lives: the driver records it, and is not fenced."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordlog.api.chain import Chain
from coordlog.cli.exit_status import Exit
from coordlog.limits import RETAINED_CHECKPOINTS
from coordlog.log.memory import MemoryLog
from coordlog.projections.job.state import JobState
from coordlog.runtime.driver import DriverOptions, JobDriver, JobStatus
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.watch import Watch
from coordlog.spark_integration.wire.token import TOKEN_VARIABLE
from fakes.endpoint_parts import TOKEN, EndpointSurroundings, wait_for
from histories.one_log import savepoint_command

pytestmark = [pytest.mark.slow, pytest.mark.clause("J1")]

WAIT_S = 60.0


def test_a_live_driver_keeps_a_checkpoint_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.csv").write_text("a\n1\n")
    log, sink = MemoryLog("job"), ParquetSink(tmp_path / "out")
    sink.prepare("job")
    source = FileSource(tmp_path / "in", watch=Watch(watch_interval_s=0.1))
    chain = Chain(source=source.spec(), operators=[sink.spec()])
    driver = JobDriver(
        chain=chain,
        log=log,
        options=DriverOptions(
            job_id="job",
            parallelism=1,
            is_batch=False,
            runtime=RuntimeOptions(checkpoint_interval_s=0.05),
        ),
        surroundings=EndpointSurroundings(chain, "job", 1),
    )

    def state() -> JobState:
        assert driver.state is not None
        return driver.state

    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    driver.start()
    try:
        # `driver.state` may be ahead of the log; what the command reads is the log.
        wait_for(lambda: state().last_checkpoint > 1, "a completed checkpoint")
        assert "no token that is here proves that it is" in savepoint_command(log, "x").stderr
        monkeypatch.setenv(TOKEN_VARIABLE, TOKEN.text())
        told = savepoint_command(log, "x")
        assert told.exit_code == Exit.DONE, told.output
        assert "is savepoint 'x', by its driver, at sequence " in told.stderr
        kept = state().savepoints["x"]
        later = kept + RETAINED_CHECKPOINTS + 1
        wait_for(lambda: state().last_checkpoint > later, "later checkpoints")
        assert kept in state().completed
        assert savepoint_command(log, "x", "--release").exit_code == Exit.DONE
        refused = savepoint_command(log, "y", "--checkpoint", str(later + 10_000))
        assert refused.exit_code == Exit.USAGE
    finally:
        driver.stop(with_checkpoint=False)
        result = driver.wait(WAIT_S)

    assert result is not None
    assert (result.status, result.epoch) == (JobStatus.STOPPED, 0)
    assert dict(state().savepoints.items()) == {}
