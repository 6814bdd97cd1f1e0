"""`format("coordlog")` for writing, without Spark: what its writers stage, ask, wait for and throw away (clause J1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from immutables import Map
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import LongType, StructField, StructType

from coordlog.errors import (
    OptionError,
    RequestRefusedError,
    RequestUnansweredError,
    UsageError,
)
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.audit import audit_records
from coordlog.runtime.requests import Answer
from coordlog.schemas.record import Kind
from coordlog.spark_integration.batches import frame_writer as frame_writes
from coordlog.spark_integration.batches.exactly_once import sinks_of
from coordlog.spark_integration.batches.frame_writer import (
    frame_writer,
    stream_writer,
)
from coordlog.spark_integration.batches.ledger import (
    BatchesState,
    BatchKey,
    Standing,
    standing_of,
)
from coordlog.spark_integration.batches.parquet import (
    FilesSink,
    FilesTask,
    ParquetBatches,
    writers_name,
)
from coordlog.spark_integration.batches.payloads import PartOutcome
from coordlog.spark_integration.batches.service import BatchService
from coordlog.spark_integration.dataframes.query_end import PlanSeal
from coordlog.spark_integration.dataframes.source import with_tickets
from coordlog.spark_integration.driver.requests import request_coordinator
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.sink.writer import FileWriters
from fakes.batch_fakes import FakeSpark, MemoryTable
from fakes.driver_files import token_of

pytestmark = pytest.mark.slow

SCHEMA = StructType([StructField("id", LongType())])


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog()


@pytest.fixture
def service(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BatchService]:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COORDLOG_TOKEN", raising=False)
    sinks = sinks_of({"sink": ParquetSink(tmp_path / "out"), "table": cast("Any", MemoryTable())})
    with BatchService(job_id="frames", log=log, sinks=sinks, retry_backoff_s=0.001) as made:
        made.start(cast("Any", FakeSpark("", 0)))
        yield made


def writers_of(service: BatchService) -> dict[str, FileWriters]:
    """As the session's class has them."""
    return {
        writers_name(service.job_id, name): sink.file_writers()
        for name, sink in service.sinks.items()
        if isinstance(sink, FilesSink)
    }


def rows_in(folder: Path) -> Counter[int]:
    found: Counter[int] = Counter()
    for path in sorted((folder / "out").glob("*.parquet")):
        found.update(pq.ParquetFile(path).read().column("id").to_pylist())
    return found


def staged_in(folder: Path) -> list[str]:
    found = (folder / "out" / ".coordlog" / "staging").rglob("*.parquet")
    return [one.name for one in found]


def stage(
    writer: Any,  # noqa: ANN401, either of the two
    ids: list[int],
    *,
    task: int,
    query_id: str | None = "q-1",
    batch_id: str | None = "0",
) -> WriterCommitMessage:
    """As a task of Spark calls it."""
    told = {"sql.streaming.queryId": query_id, "streaming.sql.batchId": batch_id}
    context = SimpleNamespace(taskAttemptId=lambda: task, getLocalProperty=told.get)
    batches = pa.table({"id": pa.array(ids, pa.int64())}).to_batches()
    with mock.patch.object(TaskContext, "get", return_value=context):
        message: WriterCommitMessage = writer.write(iter(batches))
    return message


def intents(log: MemoryLog) -> int:
    found = audit_records(log.read(0, log.high_watermark()))
    return sum(one.record is not None and one.record.kind is Kind.COMMIT_INTENT for one in found)


def test_a_write_after_its_drivers_end_is_refused_before_a_row_is_staged(
    service: BatchService,
) -> None:
    options = service.options()
    service.close()

    for make in (frame_writer, stream_writer):
        with pytest.raises(UsageError, match="the batches of job frames has ended"):
            make(options, SCHEMA, writers_of(service), overwrite=False)


def test_a_write_stages_in_tasks_and_is_committed_by_the_driver(
    service: BatchService, tmp_path: Path, log: MemoryLog
) -> None:
    options = service.options()
    writer = frame_writer(options, SCHEMA, writers_of(service), overwrite=False)
    messages: list[WriterCommitMessage | None] = [
        stage(writer, [1, 2], task=7),
        stage(writer, [3], task=8),
    ]
    assert rows_in(tmp_path) == Counter()
    assert len(staged_in(tmp_path)) == 2
    writer.commit(messages)
    assert rows_in(tmp_path) == Counter([1, 2, 3])
    assert staged_in(tmp_path) == []
    writer.commit([])
    assert intents(log) == 1, "it was committed whole"


def test_a_named_write_is_done_once_and_what_it_stages_again_goes(
    service: BatchService, tmp_path: Path, log: MemoryLog
) -> None:
    for task in (7, 8):
        options = {**service.options(), "write_id": "2026-01-02"}
        writer = frame_writer(options, SCHEMA, writers_of(service), overwrite=False)
        writer.commit([stage(writer, [1, 2], task=task)])
    assert rows_in(tmp_path) == Counter([1, 2])
    assert staged_in(tmp_path) == []
    assert intents(log) == 1


def test_a_write_id_is_known_by_its_sink(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    sinks = {one: ParquetSink(tmp_path / one / "out") for one in ("good", "bad")}
    with BatchService(job_id="frames", log=log, sinks=sinks_of(sinks)) as service:
        service.start(cast("Any", FakeSpark("", 0)))
        for task, sink in enumerate(("good", "bad", "good", "bad")):
            options = {**service.options(sink), "write_id": "2026-01-02"}
            writer = frame_writer(options, SCHEMA, writers_of(service), overwrite=False)
            writer.commit([stage(writer, [len(sink)], task=task)])
    assert rows_in(tmp_path / "good") == Counter([4])
    assert rows_in(tmp_path / "bad") == Counter([3])
    assert staged_in(tmp_path / "good") == staged_in(tmp_path / "bad") == []
    assert intents(log) == 2


def test_a_write_known_to_an_older_snapshot_by_id_is_done_at_all_sinks() -> None:
    key, state = BatchKey(query_id="w", batch_id=0, is_write=True), BatchesState()
    assert standing_of(state, key, ["good"]) == Standing()
    older = replace(state, writes_done=Map({"w": 5}))
    assert standing_of(older, key, ["good", "bad"]).is_done


def test_a_streams_batch_is_known_by_what_its_tasks_are_told(
    service: BatchService, tmp_path: Path
) -> None:
    options = service.options()
    for task in (7, 8):
        writer = stream_writer(options, SCHEMA, writers_of(service), overwrite=False)
        message = stage(writer, [1], task=task, batch_id="4")
        stream_writer(options, SCHEMA, writers_of(service), overwrite=False).commit([message], 4)
    assert rows_in(tmp_path) == Counter([1])
    assert staged_in(tmp_path) == []
    writer = stream_writer(options, SCHEMA, writers_of(service), overwrite=False)
    with pytest.raises(UsageError, match="tasks of batch 6 belong to batch 5"):
        writer.commit([stage(writer, [2], task=9, batch_id="5")], 6)
    with pytest.raises(UsageError, match="has not set the batch"):
        stage(writer, [2], task=10, query_id=None)
    with pytest.raises(RequestRefusedError, match="instead_of='q-1'"):
        writer.commit([stage(writer, [2], task=11, query_id="q-2")], 0)
    writer.commit([], 5)
    assert rows_in(tmp_path) == Counter([1])


def test_an_unknown_option_of_a_write_is_refused_by_its_name(service: BatchService) -> None:
    """A misspelled `write_id` would double the rows of a repeated write."""
    options = {**service.options(), "writeId": "day-1"}
    with pytest.raises(OptionError, match=r"writeId is 'day-1'; it must be one of .*'write_id'"):
        frame_writer(options, SCHEMA, writers_of(service), overwrite=False)


@pytest.mark.parametrize("writer_of", [frame_writer, stream_writer])
def test_a_write_of_several_columns_of_one_name_is_refused(
    service: BatchService,
    writer_of: Any,  # noqa: ANN401, two functions
) -> None:
    schema = StructType([StructField(name, LongType()) for name in ("id", "n", "id")])
    with pytest.raises(UsageError, match="several columns of the name 'id'"):
        writer_of(service.options(), schema, writers_of(service), overwrite=False)


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_streams_batch_that_is_planned_anew_with_more_rows_is_refused(
    service: BatchService, tmp_path: Path, scheme: str
) -> None:
    """Its file in the checkpoint was lost: to skip the batch would lose the rows that have arrived since."""
    checkpoint = (
        tmp_path / "checkpoint%20#1?"
    )  # the name that Spark itself makes of `file:/…/checkpoint%20#1?`
    offsets = checkpoint / "offsets" / "4"
    offsets.parent.mkdir(parents=True)
    options = {**service.options(), "checkpointlocation": f"{scheme}{checkpoint}"}

    def commit(value: int, task: int) -> None:
        writer = stream_writer(options, SCHEMA, writers_of(service), overwrite=False)
        writer.commit([stage(writer, [value], task=task, batch_id="4")], 4)

    offsets.write_text('v1\n{"batchTimestampMs":1}\n{"logOffset":4}', "utf-8")
    commit(1, 7)
    offsets.write_text('v1\n{"batchTimestampMs":2}\n{"logOffset":4}', "utf-8")
    commit(1, 8)
    offsets.write_text('v1\n{"batchTimestampMs":3}\n{"logOffset":5}', "utf-8")
    with pytest.raises(RequestRefusedError, match="is committed with other rows"):
        commit(2, 9)
    assert rows_in(tmp_path) == Counter([1])


def test_what_is_staged_for_another_driver_is_refused(
    service: BatchService, tmp_path: Path, log: MemoryLog
) -> None:
    """Such as one before: the next one's start has swept what it had staged."""
    writer = frame_writer(
        {**service.options(), "driver": "before"}, SCHEMA, writers_of(service), overwrite=False
    )
    with pytest.raises(RequestRefusedError, match="staged for driver before, and this is driver"):
        writer.commit([stage(writer, [1], task=7)])
    assert intents(log) == 0
    assert rows_in(tmp_path) == Counter()


def test_an_aborted_write_takes_away_what_its_tasks_have_staged(
    service: BatchService, tmp_path: Path
) -> None:
    options = service.options()
    writer, streamed = (
        frame_writer(options, SCHEMA, writers_of(service), overwrite=False),
        stream_writer(options, SCHEMA, writers_of(service), overwrite=False),
    )
    writer.abort([stage(writer, [1], task=7), None])
    streamed.abort([stage(streamed, [1], task=8), None], 0)
    assert staged_in(tmp_path) == []
    assert rows_in(tmp_path) == Counter()


def test_a_commit_that_is_not_settled_in_time_says_that_it_will_be(
    service: BatchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_writes, "BATCH_COMMIT_S", 0.0)
    monkeypatch.setattr(ParquetSink, "settle", lambda *_given, **_at: never())
    writer = frame_writer(service.options(), SCHEMA, writers_of(service), overwrite=False)
    with pytest.raises(RequestUnansweredError, match="not settled after 0 s; its intent is in the"):
        writer.commit([stage(writer, [1], task=7)])


@pytest.mark.parametrize("is_stream", [False, True], ids=["write", "stream"])
def test_a_commit_that_was_tried_keeps_its_files_when_spark_aborts_it(
    service: BatchService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_stream: bool
) -> None:
    """Its intent may be in the log: the next start needs them."""
    monkeypatch.setattr(frame_writes, "BATCH_COMMIT_S", 0.0)
    monkeypatch.setattr(ParquetSink, "settle", lambda *_given, **_at: never())
    make: Any = stream_writer if is_stream else frame_writer
    batch = (0,) if is_stream else ()
    writer = make(service.options(), SCHEMA, writers_of(service), overwrite=False)
    messages = [stage(writer, [1], task=7), stage(writer, [2], task=8)]
    with pytest.raises(RequestUnansweredError):
        writer.commit(messages, *batch)
    writer.abort(messages, *batch)
    assert len(staged_in(tmp_path)) == 2
    service.close()
    monkeypatch.undo()
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    service.start(cast("Any", FakeSpark("", 0)))
    assert rows_in(tmp_path) == Counter([1, 2])


def test_a_write_that_its_sink_refuses_fails_and_may_be_written_again(
    service: BatchService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = PartOutcome(sink="sink", is_done=False, rows=1, details={"refused": "it is full"})
    options = {**service.options(), "write_id": "2026-01-02"}
    writer = frame_writer(options, SCHEMA, writers_of(service), overwrite=False)
    with monkeypatch.context() as patch:
        patch.setattr(ParquetBatches, "settle", lambda *_given, **_at: refused)
        with pytest.raises(UsageError, match=r"sink 'sink' refused its part.*history frames"):
            writer.commit([stage(writer, [1], task=7)])
    writer.commit([stage(writer, [1], task=8)])
    assert rows_in(tmp_path) == Counter([1])


def dropping(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The connection drops so many times while an outcome is waited for."""
    ask, left = request_coordinator, [times]

    def asked(operator_id: str, request: Any, **given: Any) -> Answer:  # noqa: ANN401, passed on
        if not request.parts and left[0]:
            left[0] -= 1
            raise RequestUnansweredError(operator_id, "the connection has dropped")
        return ask(operator_id, request, **given)

    monkeypatch.setattr(frame_writes, "request_coordinator", asked)


def test_a_connection_lost_while_the_outcome_is_awaited_is_made_again(
    service: BatchService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropping(monkeypatch, 2)
    writer = frame_writer(service.options(), SCHEMA, writers_of(service), overwrite=False)
    writer.commit([stage(writer, [1], task=7)])
    assert rows_in(tmp_path) == Counter([1])


def test_a_driver_that_does_not_answer_any_more_is_not_asked_for_ever(
    service: BatchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropping(monkeypatch, 1_000_000)
    monkeypatch.setattr(frame_writes, "BATCH_SILENCE_S", 0.05)
    writer = frame_writer(service.options(), SCHEMA, writers_of(service), overwrite=False)
    with pytest.raises(
        RequestUnansweredError, match=r"not answered for 0.05 s .*dropped.* next st"
    ):
        writer.commit([stage(writer, [1], task=7)])


def never() -> None:
    raise OSError("it cannot")


def test_options_hold_no_token_and_must_be_whole(service: BatchService) -> None:
    token = token_of("frames")
    assert token.text() not in repr(service.options())
    with pytest.raises(OptionError, match="job, endpoint, driver, sink"):
        frame_writer({}, SCHEMA, {}, overwrite=False)
    with pytest.raises(
        OptionError, match=r"a sink of files or of a table's \(sink\); write to other"
    ):
        service.options("table")
    with pytest.raises(OptionError, match="write_id"):
        frame_writer(
            {**service.options(), "write_id": "a b"}, SCHEMA, writers_of(service), overwrite=False
        )
    with pytest.raises(UsageError, match="committed rows stay"):
        stream_writer(service.options(), SCHEMA, writers_of(service), overwrite=True)
    with pytest.raises(UsageError, match="not been started"):
        BatchService(job_id="x", log=MemoryLog(), sinks=service.sinks).options()


def test_a_sink_that_the_session_does_not_know_is_refused(service: BatchService) -> None:
    """Its options came from another session: the writers of a table may have a password, and are no option."""
    for make in (frame_writer, stream_writer):
        with pytest.raises(
            UsageError, match="this session does not know sink 'sink' of job frames"
        ):
            make(service.options(), SCHEMA, {}, overwrite=False)


def test_the_data_source_makes_these_writers(service: BatchService) -> None:
    source = with_tickets({}, writers_of(service), PlanSeal())(service.options())
    assert source.name() == "coordlog"
    assert type(source.writer(SCHEMA, overwrite=False)).__name__ == "_FrameWriter"
    assert type(source.streamWriter(SCHEMA, overwrite=False)).__name__ == "_StreamWriter"


def test_a_list_of_empty_lists_gets_the_offsets_that_spark_leaves_out() -> None:
    """Without them pyarrow's `nbytes` reads beyond a buffer, and the worker dies."""
    none = pa.array([], pa.string())
    inner = pa.Array.from_buffers(
        pa.list_(pa.string()), 0, [None, pa.py_buffer(b"")], children=[none]
    )
    lists = pa.ListArray.from_arrays(pa.array([0, 0, 0], pa.int32()), inner)
    writer = mock.Mock(**{"final_snapshot.return_value.committables": ()})
    task = FilesTask(
        writers=cast("Any", lambda _label: writer), job_id="j", folder="d", label="b", batch_id=0
    )
    with mock.patch.object(TaskContext, "get"):
        task.write([pa.record_batch({"lists": lists})])
    (batch,) = writer.process.call_args.args
    assert batch.column("lists").to_pylist() == [[], []]
    assert batch.column("lists").values.buffers()[1].size == 4
