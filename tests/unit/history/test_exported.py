"""The file of a log: whole or refused, read as a log by the commands, and older ones too."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import crc32c
import fastavro
import pytest
from click.testing import CliRunner, Result

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.errors import OutOfRangeError, PrunedMeanwhileError, SourceError, UsageError
from coordlog.export import write_exported
from coordlog.log.file import ExportedLog
from coordlog.log.interface import StoredRecord
from coordlog.log.memory import MemoryLog
from histories.hand_history import streaming_history


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
    with pytest.raises(SourceError, match=r"checksum|follows|EOFError"):
        list(_all(ExportedLog(path)))


def write_older(path: Path, log: MemoryLog, format_: str, records: list[StoredRecord]) -> None:
    """As earlier versions have written it: without a checksum of the metadata, a last row, or any checksum."""
    fields: list[dict[str, object]] = [
        {"name": "offset", "type": "long"},
        {"name": "key", "type": ["null", "bytes"]},
        {"name": "value", "type": ["null", "bytes"]},
        {"name": "header", "type": ["null", "bytes"]},
        {"name": "timestamp_ms", "type": "long"},
    ]
    names = [str(one["name"]) for one in fields]
    if format_ == "3":
        count = b"%d" % len(records)
        records = [*records, StoredRecord(log.high_watermark(), b"end", count, None, 0)]
    rows: list[dict[str, object]] = [dict(zip(names, one, strict=True)) for one in records]
    if format_ in ("2", "3"):
        fields.append({"name": "crc", "type": "long"})
        crc = 0
        for row, one in zip(rows, records, strict=True):
            crc = crc32c.crc32c(struct.pack(">qq", one.offset, one.timestamp_ms), crc)
            for part in (one.key, one.value, one.header_bytes):
                crc = crc32c.crc32c(struct.pack(">q", -1 if part is None else len(part)), crc)
                crc = crc32c.crc32c(part or b"", crc)
            row["crc"] = crc
    about = {
        "format": format_,
        "job_id": "ingest",
        "name": "ingest.log at a:1",
        "cluster_id": "c",
        "topic_id": "t",
        "start_offset": "0",
        "end_offset": str(log.high_watermark()),
    }
    schema = {"type": "record", "name": "coordlog.exported_record", "fields": fields}
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, metadata={f"coordlog.{k}": v for k, v in about.items()})


@pytest.mark.parametrize("format_", ["1", "2", "3"])
def test_a_file_of_an_earlier_format_is_read(log: MemoryLog, tmp_path: Path, format_: str) -> None:
    path = tmp_path / "earlier.avro"
    write_older(path, log, format_, list(log.records))
    read = ExportedLog(path)
    assert tuple(_all(read)) == log.records
    assert (read.identity.cluster_id, read.job_id, read.is_redacted) == ("c", "ingest", False)


@pytest.mark.parametrize("format_", ["1", "2"])
def test_a_missing_end_of_an_earlier_format_is_told(
    log: MemoryLog, tmp_path: Path, format_: str
) -> None:
    path = tmp_path / "earlier.avro"
    write_older(path, log, format_, list(log.records[:-1]))
    with pytest.raises(SourceError, match=r"it ends at offset \d+, not at"):
        _all(ExportedLog(path))


class Holed(MemoryLog):
    """A topic to which somebody wrote in a transaction: its marker has an offset, and is no record."""

    def high_watermark(self) -> int:
        return super().high_watermark() + 1

    def read(
        self, from_offset: int, to_offset: int, *, stall_s: float | None = None
    ) -> Iterator[StoredRecord]:
        return super().read(from_offset, min(to_offset, super().high_watermark()), stall_s=stall_s)


def test_a_log_that_ends_with_an_empty_offset_is_written_and_read(
    tmp_path: Path,
) -> None:
    log = Holed("ingest.log")
    log.store(*streaming_history().records)
    path, again = tmp_path / "holed.avro", tmp_path / "again.avro"
    count = len(log.records)

    assert write_exported(log, "ingest", path) == count
    read = ExportedLog(path)
    assert read.high_watermark() == count + 1
    assert tuple(_all(read)) == log.records
    assert write_exported(read, "ingest", again) == count
    assert _all(ExportedLog(again)) == _all(read)


def _rewritten(path: Path, rows: Callable[[list[Any]], list[Any]]) -> None:
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        metadata = {k: v for k, v in reader.metadata.items() if k.startswith("coordlog.")}
        found, schema = list(reader), reader.writer_schema
    assert schema is not None
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows(found), metadata=metadata)


@pytest.mark.parametrize("left", [0, -1, -2])
def test_an_end_that_is_missing_is_told(path: Path, left: int) -> None:
    _rewritten(path, lambda rows: rows[:left])
    with pytest.raises(SourceError, match=r"it ends at offset \d+, without its last row at"):
        _all(ExportedLog(path))


def test_a_log_of_no_records_is_a_file_too(tmp_path: Path) -> None:
    path = tmp_path / "empty.avro"
    assert write_exported(MemoryLog("empty"), "ingest", path) == 0
    assert _all(ExportedLog(path)) == []


def test_an_export_names_a_prune_that_happened_meanwhile(tmp_path: Path) -> None:
    class Pruning(MemoryLog):
        """It is pruned when its reading begins."""

        def read(
            self, from_offset: int, to_offset: int, *, stall_s: float | None = None
        ) -> Iterator[StoredRecord]:
            self.delete_below(3)
            return super().read(from_offset, to_offset, stall_s=stall_s)

    pruned, path = Pruning("ingest.log"), tmp_path / "job.avro"
    pruned.store(*streaming_history().records)
    with pytest.raises(PrunedMeanwhileError, match=r"began at offset 0 .* begins at offset 3 now"):
        write_exported(pruned, "ingest", path)
    assert not path.exists()


def test_what_does_not_read_back_is_no_export_and_replaces_nothing(
    log: MemoryLog, path: Path
) -> None:
    class Repeating(MemoryLog):
        """Its records come twice."""

        def read(
            self, from_offset: int, to_offset: int, *, stall_s: float | None = None
        ) -> Iterator[StoredRecord]:
            once = list(super().read(from_offset, to_offset, stall_s=stall_s))
            return iter([*once, *once])

    wrong, before = Repeating("ingest.log"), path.read_bytes()
    wrong.store(*streaming_history().records)
    with pytest.raises(SourceError, match=r"job.avro: what was written cannot be read .* follows"):
        write_exported(wrong, "ingest", path, is_overwriting=True)
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == ["job.avro"]
    assert tuple(_all(ExportedLog(path))) == log.records


def test_the_draft_of_another_process_of_the_same_number_is_left_alone(
    log: MemoryLog, tmp_path: Path
) -> None:
    """Containers that share a volume repeat process numbers."""
    draft = tmp_path / f".job.avro.{os.getpid()}.tmp"
    draft.write_bytes(b"of a process in another container")

    assert write_exported(log, "ingest", tmp_path / "job.avro") == len(log.records)
    assert draft.read_bytes() == b"of a process in another container"


_STANDING: Final = """
import signal, sys
from pathlib import Path
from coordlog.export import write_exported
from coordlog.log.memory import MemoryLog

class Standing(MemoryLog):
    def read(self, *_range, stall_s=None):
        print(flush=True)
        signal.pause()

write_exported(Standing("ingest.log"), "ingest", Path(sys.argv[1]))
"""
"""Writes an export that never gets its first record."""


_WITHOUT_NAMELESS: Final = "import os; del os.O_TMPFILE\n"
"""As on a file system without files that have no name."""


@contextmanager
def standing(path: Path, *, prefix: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """An export that does not go on; killed at the block's end."""
    command = [sys.executable, "-c", prefix + _STANDING, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_killed_export_leaves_no_file(log: MemoryLog, tmp_path: Path) -> None:
    path = tmp_path / "job.avro"
    with standing(path):
        pass
    assert not [*tmp_path.iterdir()]

    for is_overwriting in (False, True):
        write_exported(log, "ingest", path, is_overwriting=is_overwriting)
        assert tuple(_all(ExportedLog(path))) == log.records
        assert [*tmp_path.iterdir()] == [path]
        assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    with pytest.raises(FileExistsError):
        write_exported(log, "ingest", path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_without_nameless_files_the_next_export_removes_a_left_draft(
    log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    path, other = tmp_path / "job.avro", tmp_path / "other.avro"
    with standing(path, prefix=_WITHOUT_NAMELESS):
        (draft,) = tmp_path.glob(".job.avro.*.tmp")
        write_exported(log, "ingest", path)
        assert draft.exists(), "its process lives"
    write_exported(log, "ingest", other)
    assert draft.exists(), "it is of another file"

    write_exported(log, "ingest", path, is_overwriting=True)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["job.avro", "other.avro"]


@pytest.mark.parametrize(
    "name", ["job_id", "topic_id", "start_offset", "redacted", "crc", "format"]
)
def test_damage_of_the_metadata_is_told(log: MemoryLog, path: Path, name: str) -> None:
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        metadata = {k: v for k, v in reader.metadata.items() if k.startswith("coordlog.")}
        rows, schema = list(reader), reader.writer_schema
    assert schema is not None
    value = metadata.pop(f"coordlog.{name}")
    changed = {"start_offset": "-0", "redacted": None, "format": "3"}.get(name, f"{value}0")
    if changed is not None:
        metadata[f"coordlog.{name}"] = changed
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, metadata=metadata)

    with pytest.raises(SourceError, match="the checksum"):
        _all(ExportedLog(path))
    assert len(log.records) == len(rows) - 1


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
        ("events",),
        ("commits",),
        ("failures",),
        ("epochs",),
        ("reads",),
        ("explain", "--split", "s3"),
    ],
    ids=" ".join,
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("payloads", "--clean"),
            "is an exported file, and newer records of the log may address more",
        ),
        (("payloads",), "is redacted: the addresses of its payloads were removed"),
    ],
)
def test_what_would_change_something_refuses_a_file(
    path: Path, options: tuple[str, ...], message: str
) -> None:
    before = path.read_bytes()
    refused = run(*options, str(path))

    assert refused.exit_code == Exit.USAGE
    assert message in " ".join(refused.stderr.split())
    assert path.read_bytes() == before


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    no_file = run("history", str(tmp_path / "none.avro"))
    assert no_file.exit_code == Exit.FAILED
    assert "none.avro: there is no such file; name one that `coordlog export" in no_file.stderr
    text = tmp_path / "text"
    text.write_text("words")
    assert "cannot be read as an exported history" in run("verify", str(text)).stderr


def test_a_write_that_fails_names_the_file(log: MemoryLog, tmp_path: Path) -> None:
    """Of a full disk or a limit the system names no file."""
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from coordlog.export import write_exported\n"
        "from coordlog.log.file import ExportedLog\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))\n"
        "try:\n"
        "    write_exported(ExportedLog(sys.argv[1]), 'ingest', Path(sys.argv[2]))\n"
        "except OSError as error:\n"
        "    print(error.filename)\n"
    )
    there, target = tmp_path / "whole.avro", tmp_path / "job.avro"
    write_exported(log, "ingest", there)
    done = subprocess.run(
        [sys.executable, "-c", code, str(there), str(target)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == str(target)
    assert [one.name for one in tmp_path.iterdir()] == ["whole.avro"]
