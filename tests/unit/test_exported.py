"""The file of a log: whole or refused, read as a log by the commands, and older ones too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fastavro
import pytest
from click.testing import CliRunner, Result

from coordlog.cli.exits import Exit
from coordlog.cli.main import main
from coordlog.errors import OutOfRangeError, SourceError, UsageError
from coordlog.log.exported import ExportedLog, write_exported
from coordlog.log.memory import MemoryLog
from coordlog.log.port import StoredRecord
from hand_history import streaming_history


@pytest.fixture
def log() -> MemoryLog:
    made = MemoryLog("ingest.log")
    made.store(*streaming_history().records)
    return made


@pytest.fixture
def path(log: MemoryLog, tmp_path: Path) -> Path:
    """As `--redact` writes it: not compressed, so that a place in it is a place in a record."""
    made = tmp_path / "job.avro"
    write_exported(log, "ingest", made, redact=lambda one: one)
    return made


def _changed(data: bytes) -> bytes:
    place = data.index(b"boom")
    return data[:place] + b"B" + data[place + 1 :]


def _doubled(data: bytes) -> bytes:
    """Its last block twice."""
    marker = data[-16:]
    begin = data.rindex(marker, 0, -16) + 16
    return data + data[begin:]


@pytest.mark.parametrize("damage", [_changed, _doubled, lambda data: data[:-20]])
def test_damage_is_told(path: Path, damage: Callable[[bytes], bytes]) -> None:
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SourceError, match=r"checksum|stands behind|EOFError"):
        list(_all(ExportedLog(path)))


def test_a_file_of_the_first_format_is_read(log: MemoryLog, tmp_path: Path) -> None:
    path = tmp_path / "first.avro"
    fields: list[dict[str, object]] = [
        {"name": "offset", "type": "long"},
        {"name": "key", "type": ["null", "bytes"]},
        {"name": "value", "type": ["null", "bytes"]},
        {"name": "header", "type": ["null", "bytes"]},
        {"name": "timestamp_ms", "type": "long"},
    ]
    schema = {"type": "record", "name": "coordlog.exported_record", "fields": fields}
    about = {
        "format": "1",
        "job_id": "ingest",
        "name": "ingest.log at a:1",
        "cluster_id": "c",
        "topic_id": "t",
        "start_offset": "0",
        "end_offset": str(log.high_watermark()),
    }
    names = [str(one["name"]) for one in fields]
    rows = [dict(zip(names, one, strict=True)) for one in log.records]
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, metadata={f"coordlog.{k}": v for k, v in about.items()})

    read = ExportedLog(path)
    assert tuple(_all(read)) == log.records
    assert (read.identity.cluster_id, read.job_id, read.is_redacted) == ("c", "ingest", False)


def test_a_part_is_read_as_from_any_log_and_nothing_is_written(log: MemoryLog, path: Path) -> None:
    read = ExportedLog(path)
    end = log.high_watermark()

    assert tuple(read.read(3, 9)) == log.records[3:9]
    with pytest.raises(OutOfRangeError):
        read.read(0, end + 1)
    with pytest.raises(UsageError, match="nothing is appended"):
        read.writer()
    read.close()


def test_a_part_is_written(log: MemoryLog, tmp_path: Path) -> None:
    log.remove_below(2)
    path = tmp_path / "part.avro"

    assert write_exported(log, "ingest", path, to_offset=7) == 5
    read = ExportedLog(path)
    assert (read.start_offset(), read.high_watermark()) == (2, 7)
    assert tuple(_all(read)) == log.records[:5]


def _all(log: ExportedLog) -> list[StoredRecord]:
    return list(log.read(log.start_offset(), log.high_watermark()))


def run(*arguments: str) -> Result:
    """Where no broker is to be found."""

    def find(_servers: str | None) -> None:
        raise AssertionError("no broker is asked")

    return CliRunner().invoke(main, arguments, obj=find)


@pytest.mark.parametrize(
    "command",
    [
        ("history",),
        ("attempts",),
        ("splits",),
        ("checkpoints",),
        ("explain", "--split", "s3"),
    ],
    ids=lambda one: one[0],
)
def test_a_command_reads_a_file_where_it_is_given_one(
    path: Path, log: MemoryLog, command: tuple[str, ...]
) -> None:
    class OneLog:
        where = "memory"

        def jobs(self) -> tuple[str, ...]:
            return ("ingest",)

        def open(self, _job_id: str) -> MemoryLog:
            return log

        def delete(self, job_id: str) -> None:
            raise AssertionError(job_id)

    from_log = CliRunner().invoke(main, [*command, "ingest"], obj=lambda _servers: OneLog())
    from_file = run(*command, str(path))

    assert from_file.exit_code == Exit.DONE, from_file.output
    assert from_file.stdout == from_log.stdout != ""


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    no_file = run("history", str(tmp_path / "none.avro"))
    assert no_file.exit_code == Exit.FAILED
    assert "none.avro: cannot be read as an exported history: FileNotFoundError" in no_file.stderr
    text = tmp_path / "text"
    text.write_text("words")
    assert "cannot be read as an exported history" in run("verify", str(text)).stderr
