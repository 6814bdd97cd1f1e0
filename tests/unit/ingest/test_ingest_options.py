"""What `coordlog ingest` refuses before anything is started."""

from __future__ import annotations

import inspect
import os
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyspark import cloudpickle

from coordlog.cli.ingest.options import IngestOptions, Part
from coordlog.cli.ingest.parts import default_job_id, parts_of
from coordlog.cli.ingest.transform import load_transform
from coordlog.cli.main import main
from coordlog.errors import OptionError, OptionsError, SourceError
from coordlog.spark_integration.driver.endpoint_options import EndpointOptions
from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.watch import Watch
from coordlog.spark_integration.job import Job
from coordlog.spark_integration.job_options import RestartPolicy, Start, Telemetry, Timeouts
from coordlog.spark_integration.kafka.source import KafkaSource
from fakes.chain_fakes import contents, read_all

BATCH = pa.RecordBatch.from_pydict({"a": [1, 2]})
CONSTRUCTORS: dict[Part, Callable[..., object]] = {
    Part.FILES: FileSource,
    Part.CSV: CsvOptions,
    Part.WATCH: Watch,
    Part.TOPICS: KafkaSource,
    Part.SINK: ParquetSink,
    Part.ENDPOINT: EndpointOptions,
    Part.JOB: Job,
    Part.START: Start,
    Part.RESTARTS: RestartPolicy,
    Part.TIMEOUTS: Timeouts,
    Part.TELEMETRY: Telemetry,
}


@pytest.mark.parametrize("part", CONSTRUCTORS, ids=lambda part: part.value)
def test_each_option_is_a_keyword_of_the_constructor_of_its_part(part: Part) -> None:
    options = IngestOptions(source="in", destination="out")
    parameters = inspect.signature(CONSTRUCTORS[part]).parameters

    assert options.keywords(part).keys() <= parameters.keys()


def test_good_options_make_a_chain_of_three_operators(tmp_path: Path) -> None:
    transform = tmp_path / "keep.py"
    transform.write_text("def keep(batch):\n    return batch\n", encoding="utf-8")

    parts = parts_of(
        IngestOptions(source="in", destination=str(tmp_path / "out"), transform=f"{transform}:keep")
    )

    links = parts.chain().links
    assert [link.operator_id for link in links] == ["source", "transform", "sink"]
    assert not parts.chain().keeps_state_across_splits


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    options = IngestOptions(
        source="in",
        destination="gs://bucket/out",
        parallelism=0,
        checkpoint_interval_s=-1,
        log_timeout_s=0,
        job_id="No Job",
        encoding="latin-99",
        transform="nothing",
    )

    with pytest.raises(OptionsError) as caught:
        parts_of(options)

    said = str(caught.value).splitlines()
    assert said[0] == "7 options:"
    assert [line.strip().split(" ")[0] for line in said[1:]] == [
        "job_id",
        "parallelism",
        "checkpoint_interval_s",
        "encoding",
        "gs://:",
        "log_timeout_s",
        "--transform",
    ]
    assert "parallelism is 0; it must be between 1 and 10,000" in said[2]


def test_one_wrong_option_is_a_message_of_one_line() -> None:
    with pytest.raises(OptionsError) as caught:
        parts_of(IngestOptions(source="in", destination="out", parallelism=10_001))

    assert str(caught.value) == "parallelism is 10001; it must be between 1 and 10,000"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, 1e9])
def test_an_interval_that_is_no_time_is_refused(value: float) -> None:
    with pytest.raises(OptionsError, match="checkpoint_interval_s"):
        parts_of(IngestOptions(source="in", destination="out", checkpoint_interval_s=value))


@pytest.mark.parametrize("history", ["30", "0s", "a month", "", "-1d"])
def test_a_history_that_is_no_age_is_refused(history: str) -> None:
    with pytest.raises(OptionsError, match=r"--history is .* it must be forever, or as in 30d"):
        parts_of(IngestOptions(source="in", destination="out", history=history))


def test_an_archive_without_a_limited_history_is_refused() -> None:
    with pytest.raises(OptionsError, match="--history-archive is set; it is for --history"):
        parts_of(IngestOptions(source="in", destination="out", history_archive="old"))
    parts_of(IngestOptions(source="in", destination="out", history="30d", history_archive="old"))


def test_options_of_csv_are_refused_for_parquet() -> None:
    options = IngestOptions(
        source="in", destination="out", format="parquet", null_values=("NA",), delimiter=";"
    )

    with pytest.raises(OptionsError) as caught:
        parts_of(options)

    assert caught.value.problems == (
        "--null-value is set; it is for --format csv",
        "--delimiter is set; it is for --format csv",
    )


def test_where_the_driver_listens_reaches_the_job_and_is_checked(tmp_path: Path) -> None:
    given = IngestOptions(
        source="in",
        destination=str(tmp_path),
        endpoint_host="driver-7",
        endpoint_bind="0.0.0.0",
        endpoint_ports="40000-40009",
        endpoint_tls="on",
    )
    expected = EndpointOptions(host="driver-7", bind="0.0.0.0", ports="40000-40009", tls="on")
    assert parts_of(given).endpoint == expected

    wrong = CliRunner().invoke(main, ["ingest", "in", "out", "--endpoint-ports", "9-1"])
    assert wrong.exit_code == 2
    assert "--endpoint-ports is '9-1'" in wrong.stderr


def test_a_command_with_a_wrong_option_ends_with_status_2_and_one_message() -> None:
    done = CliRunner().invoke(main, ["ingest", "in", "out", "--parallelism", "0"])

    assert done.exit_code == 2
    assert done.stderr == "error: --parallelism is 0; it must be between 1 and 10,000\n"
    assert done.stdout == ""


def test_a_destination_has_the_same_job_each_time_and_another_has_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = default_job_id("out/Flights 2013")

    assert one.startswith("ingest-flights-2013-")
    assert one == default_job_id(str(tmp_path / "out" / "Flights 2013") + "/")
    assert one != default_job_id("elsewhere/Flights 2013")


@pytest.mark.parametrize("destination", ["/", "/data/é/ü", "/data/" + "x" * 300])
def test_every_destination_has_a_job_id_that_is_one(destination: str) -> None:
    parts = parts_of(IngestOptions(source="s3://bucket/in", destination=destination))

    assert parts.job_id == default_job_id(destination)
    assert len(parts.job_id) <= 100


@pytest.mark.parametrize(
    ("destination", "spelled"),
    [
        ("/data/flights", "file:///data/flights"),
        ("/data/flights", "file:/data/flights"),
        ("/data/flights", "//data/flights"),
        ("delta+file:///data/flights", "delta+file:///data//./old/../flights/"),
        ("delta+file:///data/flights", "delta+file:////data/flights"),
        ("delta+s3://bucket/flights", "delta+s3a://bucket/flights/"),
        ("s3://bucket/flights", "s3a://bucket/flights"),
    ],
)
def test_a_destination_has_one_job_in_every_spelling(destination: str, spelled: str) -> None:
    """A second job would write all rows into the same table once more."""
    one, other = (
        parts_of(IngestOptions(source="s3://bucket/in", destination=text))
        for text in (destination, spelled)
    )

    assert one.sink.destination == other.sink.destination
    assert one.job_id == other.job_id == default_job_id(destination)


def test_a_transform_of_a_file_travels_with_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "doubling.py"
    path.write_text(
        "import pyarrow as pa\n"
        "import pyarrow.compute as pc\n"
        "FACTOR = 2\n"
        "def doubled(batch):\n"
        "    return pa.RecordBatch.from_arrays([pc.multiply(batch.column(0), FACTOR)], ['a'])\n",
        encoding="utf-8",
    )
    function = load_transform(f"{path}:doubled")

    sent = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    monkeypatch.delitem(sys.modules, function.__module__)
    travelled = pickle.loads(sent)

    assert travelled(BATCH).column(0).to_pylist() == [2, 4]


def test_a_transform_of_a_module_is_looked_for_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_clean_module.py").write_text("def clean(batch):\n    return batch\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])

    function = load_transform("my_clean_module:clean")

    assert function(BATCH) is BATCH


def test_a_local_module_travels_by_name_with_its_path_for_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not pickle may stand in it, and what it imports is found."""
    package = tmp_path / "my_local_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "words.py").write_text("WORD = 'late'\n")
    text = "import threading\nfrom .words import WORD\nLOCK = threading.Lock()\n"
    (package / "clean.py").write_text(f"{text}def flights(batch):\n    return LOCK, WORD\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")

    function = load_transform("my_local_package.clean:flights", is_local=True)

    sent = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    assert pickle.loads(sent) is function
    assert os.environ["PYTHONPATH"] == f"{tmp_path}{os.pathsep}/elsewhere"


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ("clean", "it must be module:function or file.py:function"),
        (":clean", "it must be module:function or file.py:function"),
        ("gone.py:clean", "there is no file gone.py"),
        ("no_such_module_here:clean", "there is no module no_such_module_here, neither installed"),
        ("json.nowhere.clean:flights", "there is no module json.nowhere, neither installed nor"),
        ("os:no_such_function", "'no_such_function' is not in os"),
        ("os:name", "'name' in os is a str, not a function"),
        ("shutil:copyfil", "'copyfil' is not in shutil; did you mean copyfile?"),
    ],
)
def test_a_transform_that_is_not_there_is_named(named: str, problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        load_transform(named)

    assert str(caught.value).startswith(f"--transform is '{named}'")
    assert problem in str(caught.value)


def test_a_transform_whose_file_raises_says_what(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("1 / 0\n", encoding="utf-8")

    with pytest.raises(OptionError, match="importing it raised ZeroDivisionError: division by"):
        load_transform(f"{path}:clean")


@pytest.mark.parametrize(
    "source", ["s3://AKIAX:hunter2@bucket/in", "https://host/a.csv?X-Amz-Signature=hunter2"]
)
def test_a_source_with_credentials_is_refused_and_nowhere_shown(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))

    done = CliRunner().invoke(main, ["ingest", source, str(tmp_path / "out")])

    assert done.exit_code == 2
    assert "without credentials" in done.stderr
    assert "AWS_ACCESS_KEY_ID" in done.stderr
    assert "hunter2" not in done.output
    assert all(b"hunter2" not in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


def test_options_of_a_format_or_a_watch_are_refused_where_they_do_not_fit() -> None:
    options = IngestOptions(
        source="in",
        destination="out",
        format="text",
        delimiter=";",
        encoding="latin-1",
        watch=True,
        batch=True,
        watch_interval_s=10.0,
        idle_timeout_s=1.0,
    )

    with pytest.raises(OptionsError) as caught:
        parts_of(options)

    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        "--watch is set with --batch, which makes rows visible at its end only",
        "--delimiter is set; it is for --format csv",
        "idle_timeout_s is 1.0; it must be at least 10, an interval",
    ]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "text"])
def test_a_line_may_be_as_long_as_a_block(
    tmp_path: Path, kind: Literal["csv", "jsonl", "text"]
) -> None:
    word = "w" * 3_000_000
    lines = {"csv": f"a\n{word}\n", "jsonl": f'{{"a": "{word}"}}\n', "text": f"{word}\n"}
    (tmp_path / "in").write_text(lines[kind], encoding="utf-8")
    options = IngestOptions(source=str(tmp_path / "in"), destination="out", format=kind)

    def rows(given: IngestOptions) -> list[tuple[object, ...]]:
        source = parts_of(given).source
        assert isinstance(source, FileSource)
        return read_all(source.spec().create_reader(), contents(source.discover())).rows

    with pytest.raises(SourceError, match="block"):
        rows(options)
    assert rows(replace(options, block_bytes=4_000_000)) == [(word,)]


def test_what_is_said_of_the_source_reaches_it(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("one\ntwo\n", encoding="utf-8")
    parts = parts_of(
        IngestOptions(
            source=str(tmp_path / "lines"),
            destination=str(tmp_path / "out"),
            format="text",
            compression="none",
            changed_by="size",
            schemas="each",
            watch=True,
            idle_timeout_s=60.0,
            listing_timeout_s=30.0,
        )
    )

    assert isinstance(parts.source, FileSource)
    assert parts.source.settle_schema() == pa.schema({"value": pa.string()})
    parts.source.check()
    assert parts.source._watching == Watch(idle_timeout_s=60.0)
    assert parts.source._discovery.schemas == "each"
    assert parts.source._listing_timeout_s == 30.0


def test_a_kafka_url_makes_a_source_of_topics(tmp_path: Path) -> None:
    parts = parts_of(
        IngestOptions(
            source="kafka://127.0.0.1:9092,127.0.0.2:9092/a,b",
            destination=str(tmp_path / "out"),
            bounded=False,
            starting="2026-01-31T08:00:00Z",
            decode="utf8",
        )
    )

    assert isinstance(parts.source, KafkaSource)
    assert parts.chain().source.is_unbounded
    assert parts.source._discovery.topics == ("a", "b")
    assert parts.source._cluster.bootstrap_servers == "127.0.0.1:9092,127.0.0.2:9092"


def test_bad_rows_of_topics_and_of_transforms_have_a_folder(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text(
        "from coordlog.spark_integration import row_transform\n"
        "plain = lambda batch: batch\n"
        "declared = row_transform(plain)\n"
    )

    def operators(**given: Any) -> list[str]:  # noqa: ANN401, options
        options = IngestOptions(
            destination=str(tmp_path / "out"), bad_rows=str(tmp_path / "rejects"), **given
        )
        return [link.operator_id for link in parts_of(options).chain().links]

    topic = "kafka://h:1/t"
    declared = f"{tmp_path}/rows.py:declared"
    assert operators(source=topic, decode="utf8") == ["source", "rejects", "sink"]
    for given in ({"source": topic}, {"source": str(tmp_path / "in"), "format": "parquet"}):
        assert operators(**given, transform=declared) == ["source", "transform", "rejects", "sink"]
        with pytest.raises(OptionsError, match=r"bad_rows is .*row_transform"):
            operators(**given, transform=f"{tmp_path}/rows.py:plain")
    with pytest.raises(OptionsError, match="--bad-rows is set; it is for --format csv or jsonl"):
        operators(source=str(tmp_path / "in"), format="parquet")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"source": "kafka://me:secret@h:1/t"}, "SRC is '(hidden)'"),
        ({"source": "kafka://h:1"}, "SRC is 'kafka://h:1'; it must be kafka://HOST:PORT"),
        ({"source": "kafka://h/t"}, "bootstrap_servers is 'h'"),
        ({"source": "kafka://h:1/t", "starting": "2026-01-31"}, "--starting is '2026-01-31'"),
        ({"source": "kafka://h:1/t", "delimiter": ";"}, "--delimiter is set; it is for files"),
        ({"source": "kafka://h:1/t", "schemas": "each"}, "--schemas is set; it is for files"),
        (
            {"source": "kafka://h:1/t", "listing_timeout_s": 1.0},
            "--listing-timeout is set; it is for files",
        ),
        (
            {"source": "kafka://h:1/t", "bounded": False, "batch": True},
            "--unbounded is set with --batch",
        ),
        ({"source": "in", "starting": "latest"}, "--starting is set; it is for kafka://"),
    ],
)
def test_what_does_not_fit_topics_is_named(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(OptionsError) as caught:
        parts_of(IngestOptions(destination=str(tmp_path / "out"), **given))

    assert str(caught.value).startswith(said)
    assert "secret" not in str(caught.value)


OF_FILES = [
    ("--format", "csv"),
    ("--compression", "gzip"),
    ("--null-value", "NA"),
    ("--encoding", "latin-1"),
    ("--block-bytes", "9000000"),
    ("--delimiter", ","),
    ("--no-newlines-in-fields",),
    ("--on-error", "skip"),
    ("--exclude", "*.tmp"),
    ("--allow-other-source",),
    ("--partition-folders", "ignore"),
    ("--watch",),
    ("--watch-interval", "5"),
    ("--idle-timeout", "60"),
    ("--schemas", "each"),
    ("--changed-by", "size"),
    ("--listing-timeout", "300"),
]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[IngestOptions]:
    """What the command would run; nothing is started."""
    found: list[IngestOptions] = []

    def run(options: IngestOptions, in_options: Callable[[str], str]) -> int:
        assert in_options("text") == "text"
        parts_of(options)
        found.append(options)
        return 0

    monkeypatch.setattr("coordlog.cli.ingest.run.run_ingest", run)
    monkeypatch.chdir(tmp_path)
    return found


def ingest(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["ingest", *arguments])


@pytest.mark.parametrize("given", OF_FILES, ids=lambda one: one[0])
def test_what_is_for_files_is_refused_for_topics_though_it_is_the_default(
    ran: list[IngestOptions], given: tuple[str, ...]
) -> None:
    result = ingest("kafka://h:1/t", "out", *given)

    assert result.exit_code == 2
    assert result.stderr == f"error: {given[0]} is set; it is for files\n"
    assert not ran


@pytest.mark.parametrize(
    ("given", "is_for"),
    [
        (("--watch-interval", "5"), "--watch"),
        (("--idle-timeout", "60"), "--watch"),
        (("--batch", "--checkpoint-interval", "5"), "a job without --batch"),
        (("--bounded",), "kafka://"),
        (("--format", "jsonl", "--delimiter", ","), "--format csv"),
    ],
)
def test_what_does_nothing_without_another_option_is_refused(
    ran: list[IngestOptions], given: tuple[str, ...], is_for: str
) -> None:
    result = ingest("in", "out", *given)

    assert result.exit_code == 2
    assert f"is set; it is for {is_for}\n" in result.stderr
    assert not ran


def test_what_is_set_for_all_commands_is_left_out_where_it_does_nothing(
    ran: list[IngestOptions], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "coordlog.toml").write_text('[ingest]\nformat = "parquet"\nidle-timeout = 60\n')
    monkeypatch.setenv("COORDLOG_WATCH_INTERVAL", "3")
    monkeypatch.setenv("COORDLOG_CHECKPOINT_INTERVAL", "2")

    files = ingest("in", "out", "--batch")
    topics = ingest("kafka://h:1/t", "out")
    watch = ingest("in", "out", "--watch")

    assert [one.exit_code for one in (files, topics, watch)] == [0, 0, 0], files.stderr
    assert files.stderr.splitlines() == [
        "warning: --watch-interval is set, and does nothing here: it is for --watch",
        "warning: --idle-timeout is set, and does nothing here: it is for --watch",
        (
            "warning: --checkpoint-interval is set, and does nothing here: it is for a job without "
            "--batch"
        ),
    ]
    assert topics.stderr.splitlines() == [
        f"warning: {one} is set, and does nothing here: it is for files"
        for one in ("--format", "--watch-interval", "--idle-timeout")
    ]
    assert watch.stderr == ""
    assert [(one.format, one.idle_timeout_s, one.watch_interval_s) for one in ran] == [
        ("parquet", None, 5.0),
        ("csv", None, 5.0),
        ("parquet", 60.0, 3.0),
    ]


@pytest.mark.parametrize(
    ("destination", "kind", "where", "job_id"),
    [
        ("iceberg://prod/ns.t", "IcebergSink", "iceberg://prod/ns.t", "ingest-ns-t-"),
        ("delta+file:///data/t", "DeltaSink", "delta+file:///data/t", "ingest-t-"),
        ("delta+s3://bucket/a/t", "DeltaSink", "delta+s3://bucket/a/t", "ingest-t-"),
    ],
)
def test_a_destination_may_be_a_table(destination: str, kind: str, where: str, job_id: str) -> None:
    parts = parts_of(
        IngestOptions(source="in", destination=destination, partition_by="a", widen=True)
    )

    assert type(parts.sink).__name__ == kind
    assert parts.sink.destination == where
    assert parts.job_id.startswith(job_id)


@pytest.mark.parametrize(
    ("destination", "problem"),
    [
        ("iceberg://prod/t", "table is 't'; it must be NAMESPACE.TABLE"),
        ("iceberg:///ns.t", "catalog is ''"),
        ("delta+out", "it must be delta+file:///PATH or delta+s3://BUCKET/PREFIX"),
        ("delta+file:///data/in", "apart from what is read, /data/in"),
    ],
)
def test_a_table_that_cannot_be_is_refused(destination: str, problem: str) -> None:
    with pytest.raises(OptionsError, match=re.escape(problem)):
        parts_of(IngestOptions(source="/data/in", destination=destination))
