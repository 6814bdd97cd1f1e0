"""What a service for queries refuses before it starts anything."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSource

from coordlog.errors import EnvironmentSetupError, FencedError, OptionError, SourceError
from coordlog.log.kafka import KafkaLog
from coordlog.log.memory import MemoryLog
from coordlog.schemas.reads import ReadsSeen
from coordlog.schemas.source_types import RequestSplit
from coordlog.spark_integration import FileSource
from coordlog.spark_integration.dataframes import coordinated, service
from coordlog.spark_integration.dataframes.read_options import with_read_options
from coordlog.spark_integration.dataframes.reading import _Context, _merged
from coordlog.spark_integration.dataframes.service import CoordinatedReads
from coordlog.spark_integration.dataframes.source import CoordlogDataSource
from coordlog.spark_integration.dataframes.ticket import ServiceClient, Ticket
from coordlog.spark_integration.wire.token import Token
from fakes.batch_fakes import FakeSpark
from fakes.endpoint_parts import own_threads, wait_for
from jobs.reads_job import no_reader


class ConnectSession:
    """Has none of the JVM's parts."""


def test_spark_connect_is_refused_by_name(tmp_path: Path) -> None:
    log = MemoryLog("reads")
    session = cast("Any", ConnectSession())
    with pytest.raises(EnvironmentSetupError, match=r"with Spark Connect that is the server"):
        coordinated(session, "reads", FileSource(tmp_path), log=log).start()
    assert log.high_watermark() == 0, "nothing was appended"


class ClassicSession:
    """Has what tells it from one of Connect's."""

    _jsparkSession = None  # noqa: N815, Spark's own name for it
    conf = {"spark.master": "local[2]"}  # noqa: RUF012, as above


@pytest.mark.parametrize(
    ("session", "fails", "happens"),
    [
        (ConnectSession(), EnvironmentSetupError, []),
        (ClassicSession(), SourceError, ["made", "closed"]),
    ],
)
def test_the_service_creates_its_log_and_closes_it_if_it_cannot_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    session: Any,  # noqa: ANN401, not one of Spark's
    fails: type[Exception],
    happens: list[str],
) -> None:
    """A refused option or session leaves no topic behind."""
    log, happened = MemoryLog("reads"), list[str]()
    monkeypatch.setattr(log, "create", lambda: happened.append("made"), raising=False)
    monkeypatch.setattr(log, "close", lambda: happened.append("closed"))
    monkeypatch.setattr(KafkaLog, "for_job", lambda *_, **_options: log)
    nothing = FileSource(tmp_path)
    with pytest.raises(OptionError):
        coordinated(session, "reads", nothing, bootstrap_servers="here:9092", partitions=0)
    with pytest.raises(OptionError):
        coordinated(
            session, "reads", nothing, bootstrap_servers="here:9092", payload_store="nowhere://x"
        )
    made = coordinated(session, "reads", nothing, bootstrap_servers="here:9092")
    assert not happened

    with pytest.raises(fails):
        made.start()
    made.close()

    assert happened == happens


@pytest.mark.parametrize(
    ("job_id", "options", "named"),
    [
        ("Not An Id", {}, "job_id"),
        ("reads", {"partitions": 0}, "partitions"),
        ("reads", {"splits_per_batch": 0}, "splits_per_batch"),
        ("reads", {"bootstrap_servers": "here:9092"}, "bootstrap_servers"),
    ],
)
def test_an_option_out_of_range_is_refused(
    tmp_path: Path, job_id: str, options: dict[str, Any], named: str
) -> None:
    session = cast("Any", ConnectSession())
    with pytest.raises(OptionError) as refused:
        coordinated(session, job_id, FileSource(tmp_path), log=MemoryLog("reads"), **options)
    assert refused.value.option == named


@pytest.mark.parametrize(
    "options", [{"assignment": "static"}, {"on_error": "skip"}, {"schemas": "each"}]
)
def test_what_a_file_source_does_only_in_a_job_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="if queries read the source"):
        FileSource("in/", **options).coordinated()


def ticket(endpoint: str) -> Ticket:
    return Ticket(
        job_id="reads",
        endpoint=endpoint,
        token=Token.new(),
        create_reader=no_reader,
        schema_json="{}",
        partitions=1,
        splits_max=0,
    )


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("splits_per_bach", "3", r"splits_per_bach is '3'.*did you mean 'splits_per_batch'\?"),
        ("header", "true", r"header is 'true'.*options of the source belong to it: FileSource"),
        ("maxFilesPerTrigger", "1", r"maxfilespertrigger is '1'.*one of 'job', 'path', 'bad_rows'"),
        ("paths", '["a", "b"]', r"did you mean 'path'\?"),
        ("path", "other/", r"path is 'other/'.*'/data/in'.* start another service"),
        ("partitions", "0", "between 1 and 10,000"),
        ("splits_per_batch", "many", "between 1 and 1,000,000"),
    ],
)
def test_an_option_of_a_query_that_means_nothing_is_refused_by_name(
    name: str, value: str, said: str
) -> None:
    offered = replace(ticket("ws://127.0.0.1:1"), locations=("in", "/data/in"))

    with pytest.raises(OptionError, match=said):
        with_read_options(offered, {"job": "reads", name: value})


def test_options_whose_meaning_is_plain_hold_for_the_query() -> None:
    offered = replace(ticket("ws://127.0.0.1:1"), locations=("in", "/data/in"))

    assert with_read_options(offered, {}) == offered
    for path in offered.locations:
        assert with_read_options(offered, {"path": path}) == offered
    chosen = with_read_options(offered, {"Partitions": "7", "splits_per_batch": "20"})
    assert (chosen.partitions, chosen.splits_max) == (7, 20)


def test_a_ticket_travels_and_shows_no_secret() -> None:
    made = ticket("ws://127.0.0.1:1")

    assert pickle.loads(pickle.dumps(made)) == made
    assert made.token.text() not in repr(made)


def test_a_service_that_is_gone_is_named_at_once() -> None:
    with (
        ServiceClient(ticket("ws://127.0.0.1:1")) as client,
        pytest.raises(SourceError, match="its service does not answer"),
    ):
        client.ask(ReadsSeen(**_SEEN), ReadsSeen)


_SEEN: dict[str, Any] = {
    "history": "",
    "end": 0,
    "sequence": 0,
    "first": 0,
    "is_listed": True,
    "problem": "",
}


def test_batches_are_put_together_and_have_the_types_that_spark_takes() -> None:
    given = pa.schema([("t", pa.timestamp("ms")), ("s", pa.large_string())])
    wanted = pa.schema([("t", pa.timestamp("us")), ("s", pa.string())])
    batch = pa.RecordBatch.from_pydict({"t": [1, None], "s": ["a", "b"]}, schema=given)

    (made,) = _merged(iter([batch] * 3), wanted)

    assert made.schema == wanted
    assert made.num_rows == 6
    assert made.column("s").to_pylist() == ["a", "b"] * 3


@pytest.mark.parametrize("names", [["b", "a"], ["a"]])
def test_columns_of_a_split_are_no_others_than_those_of_the_dataframe(names: list[str]) -> None:
    """Of equal types: without a look at their names they would be taken for each other."""
    batch = pa.RecordBatch.from_pydict({name: [1] for name in names})
    with pytest.raises(SourceError, match=r"a split has the columns .*, and the DataFrame"):
        list(_merged(iter([batch]), pa.schema([("a", pa.int64()), ("b", pa.int64())])))


def test_large_batches_are_not_held_back() -> None:
    schema = pa.schema([("i", pa.int64())])
    batch = pa.RecordBatch.from_pydict({"i": range(50_000)}, schema=schema)

    assert [one.num_rows for one in _merged(iter([batch] * 3), schema)] == [100_000, 50_000]


def test_a_reader_that_has_something_to_say_is_no_reader_for_queries() -> None:
    context = _Context(job_id="reads", subtask=0, parallelism=1, attempt_number=0)
    context.send_event(RequestSplit())

    with pytest.raises(SourceError, match="sends ReadsSeen"):
        context.send_event(ReadsSeen(**_SEEN))


# --- its end ----------------------------------------------------------------------------------------------------------


class Session(FakeSpark):
    """Notes the jobs of which it has services; raises once it is stopped."""

    defaultParallelism = 2  # noqa: N815, Spark's name
    is_stopped = False

    def __init__(self) -> None:
        super().__init__("", 0)
        self.jobs: list[str] = []

    def register(self, source: type[DataSource]) -> None:
        if self.is_stopped:
            raise AttributeError("'NoneType' object has no attribute '_jvm'")
        assert issubclass(source, CoordlogDataSource)
        self.jobs = sorted(source.tickets)


@pytest.fixture
def started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Session, MemoryLog], CoordinatedReads]:
    """Starts services on a fake session; the newest takes over."""
    for name in ("use_own_interpreter", "WorkerProbe", "warn_of_many_tries"):
        monkeypatch.setattr(service, name, mock.Mock())
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("a\n1\n", encoding="utf-8")

    def start(session: Session, log: MemoryLog) -> CoordinatedReads:
        source, spark = FileSource(tmp_path / "in"), cast("Any", session)
        reads = coordinated(spark, "reads", source, log=log, take_over=True)
        reads.start()
        return reads

    return start


@pytest.mark.slow
def test_a_session_that_was_stopped_in_the_block_keeps_no_service_running(
    started: Callable[[Session, MemoryLog], CoordinatedReads],
) -> None:
    wait_for(lambda: own_threads() == [], "the threads of earlier tests have ended")
    session = Session()
    reads = started(session, MemoryLog("reads"))
    session.is_stopped = True

    reads.close()

    assert own_threads() == []


@pytest.mark.slow
def test_the_end_of_a_service_takes_nothing_from_the_one_that_took_over(
    started: Callable[[Session, MemoryLog], CoordinatedReads],
) -> None:
    session, log = Session(), MemoryLog("reads")
    older, newer = started(session, log), started(session, log)

    with pytest.raises(FencedError):
        older.close()
    assert session.jobs == ["reads"]
    newer.close()
    assert session.jobs == []
