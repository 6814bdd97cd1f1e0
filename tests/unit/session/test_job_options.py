"""What a `Job` passes on to its driver and its tasks."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

from coordlog.api.chain import OperatorSpec
from coordlog.api.operator import Operator
from coordlog.errors import OptionError
from coordlog.log.kafka import KafkaLog
from coordlog.log.memory import MemoryLog
from coordlog.runtime.life.history_pruning import KeptHistory
from coordlog.spark_integration import FileSource, Job, ParquetSink, Timeouts
from coordlog.spark_integration.driver.log_choice import LogChoice


def job_in(
    folder: Path,
    timeouts: Timeouts | None = None,
    history: Literal["forever"] | timedelta = "forever",
    history_archive: str | None = None,
) -> Job:
    (folder / "in").mkdir(exist_ok=True)
    return Job(
        job_id="job",
        log=MemoryLog("job"),
        source=FileSource(str(folder / "in")),
        sink=ParquetSink(str(folder / "out")),
        timeouts=timeouts,
        history=history,
        history_archive=history_archive,
    )


def test_its_time_outs_reach_the_driver(tmp_path: Path) -> None:
    timeouts = Timeouts(ack_timeout_s=7, callback_timeout_s=8, registration_timeout_s=9)
    job = job_in(tmp_path, timeouts)

    options = job._options
    assert options.runtime.ack_timeout_s == 7
    assert options.callback_timeout_s == 8
    assert options.runtime.registration_timeout_s == 9


@pytest.mark.parametrize("option", ["ack_timeout_s", "callback_timeout_s", "call_timeout_s"])
def test_a_time_out_that_is_out_of_range_is_refused_by_name(option: str) -> None:
    with pytest.raises(OptionError, match=option):
        Timeouts(**{option: -1})


def test_the_log_of_another_job_is_refused_at_once(tmp_path: Path) -> None:
    theirs, ours = (KafkaLog.for_job(name, "localhost:1") for name in ("orders", "job"))
    source, wanted = (
        FileSource(str(tmp_path)),
        "log is 'that of job orders'; it must be that of job job",
    )

    with pytest.raises(OptionError, match=wanted):
        Job(job_id="job", log=theirs, source=source)
    with pytest.raises(OptionError, match=wanted):
        LogChoice("job", None, theirs)
    with pytest.raises(
        OptionError, match=r"log is .topic orders\.log.; it must be that of job job"
    ):
        Job(job_id="job", log=KafkaLog("orders.log", "localhost:1"), source=source)
    prefixed = KafkaLog("team.job.log", "localhost:1")
    for log in (ours, prefixed, KafkaLog("a-mirror", "localhost:1")):
        assert Job(job_id="job", log=log, source=source).log is log


def test_the_history_that_is_kept_reaches_the_driver(tmp_path: Path) -> None:
    job = job_in(tmp_path, history=timedelta(days=30), history_archive=str(tmp_path / "old"))
    assert job._options.history == KeptHistory(age=timedelta(days=30), archive=tmp_path / "old")
    assert job_in(tmp_path)._options.history is None
    assert job_in(tmp_path, history="forever")._options.history is None


def test_a_history_that_is_none_or_an_archive_without_one_is_refused(tmp_path: Path) -> None:
    for history in (timedelta(0), timedelta(days=-1)):
        with pytest.raises(
            OptionError, match=r"history is .*; it must be 'forever', or 1 s or more"
        ):
            job_in(tmp_path, history=history)
    with pytest.raises(OptionError, match="history is '30d'; it must be 'forever' or a timedelta"):
        job_in(tmp_path, history="30d")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"history_archive is .* no record is removed"):
        job_in(tmp_path, history_archive=str(tmp_path / "old"))


def test_an_operator_in_place_of_its_factory_is_refused_at_once(tmp_path: Path) -> None:
    """Each attempt failed to call it, through all restarts of the policy."""

    class Passing(Operator):
        def process(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
            return [batch]

    made = OperatorSpec(operator_id="enrich", create_operator=Passing())  # type: ignore[arg-type]
    with pytest.raises(
        OptionError, match="create_operator of 'enrich' is 'a Passing'; it must be callable"
    ):
        Job(job_id="job", log=MemoryLog("job"), operators=[FileSource(tmp_path), made])
