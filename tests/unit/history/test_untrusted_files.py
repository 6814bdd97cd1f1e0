"""Files that others have written: what they ask for is bounded, and they open nothing by themselves."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import fastavro
import pytest
from click.testing import CliRunner, Result

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.cli.payload_store import StoreFinder
from coordlog.errors import OptionError, SourceError
from coordlog.export import write_exported
from coordlog.limits import CONTAINER_BLOCK_BYTES_MAX, CONTAINER_HEADER_BYTES_MAX
from coordlog.log.file import ExportedLog
from coordlog.log.memory import MemoryLog
from coordlog.log.payload_store import PayloadStore
from coordlog.schemas.payload_address import PayloadAddress
from coordlog.schemas.record import Kind
from histories.hand_history import HandHistory, discovery, streaming_history, unstored
from histories.one_log import OneLog

FIELDS: list[dict[str, object]] = [
    {"name": "offset", "type": "long"},
    {"name": "key", "type": ["null", "bytes"]},
    {"name": "value", "type": ["null", "bytes"]},
    {"name": "header", "type": ["null", "bytes"]},
    {"name": "timestamp_ms", "type": "long"},
    {"name": "crc", "type": "long"},
]
SYNC = bytes(16)


def _long(number: int) -> bytes:
    """As Avro writes it."""
    rest, made = (number << 1) ^ (number >> 63), b""
    while rest & ~0x7F:
        made += bytes([(rest & 0x7F) | 0x80])
        rest >>= 7
    return made + bytes([rest])


def _container(
    path: Path,
    *blocks: tuple[int, bytes],
    fields: list[dict[str, object]] | None = None,
    job_id: str = "job",
    codec: str = "null",
) -> Path:
    """A file with this header, and blocks of a number of rows and bytes."""
    about = {
        "format": "3",
        "job_id": job_id,
        "name": "job.log",
        "cluster_id": "c",
        "topic_id": "t",
        "start_offset": "0",
        "end_offset": "1",
    }
    schema = {"type": "record", "name": "coordlog.exported_record", "fields": fields or FIELDS}
    with path.open("wb") as file:
        fastavro.writer(
            file,
            schema,
            [],
            codec=codec,
            metadata={f"coordlog.{name}": value for name, value in about.items()},
            sync_marker=SYNC,
        )
        for count, data in blocks:
            file.write(_long(count) + _long(len(data)) + data + SYNC)
    return path


def _read(path: Path) -> None:
    log = ExportedLog(path)
    for _ in log.read(log.start_offset(), log.high_watermark()):
        pass


def test_a_block_is_inflated_up_to_the_limit_only(tmp_path: Path) -> None:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    small = deflater.compress(bytes(CONTAINER_BLOCK_BYTES_MAX + 1)) + deflater.flush()
    assert len(small) < CONTAINER_BLOCK_BYTES_MAX // 500

    with pytest.raises(SourceError, match="has more than 33,554,432 when it is inflated"):
        _read(_container(tmp_path / "bomb.avro", (1, small), codec="deflate"))


def test_the_schema_of_the_file_is_not_followed(tmp_path: Path) -> None:
    nulls: dict[str, object] = {"name": "x", "type": {"type": "array", "items": "null"}}
    path = _container(tmp_path / "endless.avro", (1, _long(2**61)), fields=[nulls, *FIELDS])

    with pytest.raises(SourceError, match="its rows have the fields x, offset"):
        _read(path)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ((2**40, b"\0" * 6), r"a block of 6 bytes is said to have 1,099,511,627,776 rows"),
        ((-1, b"\0" * 6), r"is said to have -1 rows"),
        ((0, b"more"), "4 bytes of a block are left over"),
    ],
)
def test_rows_are_counted_against_the_bytes_of_their_block(
    tmp_path: Path, block: tuple[int, bytes], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        _read(_container(tmp_path / "job.avro", block))


def test_lengths_are_not_believed(tmp_path: Path) -> None:
    path = _container(tmp_path / "job.avro")
    whole = path.read_bytes()
    path.write_bytes(whole + _long(1) + _long(2**60))
    with pytest.raises(SourceError, match="is said to have 1,152,921,504,606,846,976 bytes"):
        _read(path)

    path.write_bytes(b"Obj\x01" + _long(1) + _long(CONTAINER_HEADER_BYTES_MAX + 1))
    with pytest.raises(SourceError, match="is said to have 262,145 bytes; at most 262,144"):
        _read(path)


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [_folder, _pipe])
def test_what_is_no_plain_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "job.avro"
    make(path)
    result = _command("verify", str(path))

    assert result.exit_code == Exit.FAILED
    assert "it is not a plain file" in result.stderr


@pytest.mark.parametrize("job_id", ["../outside", "a/b", "..", ""])
def test_a_job_id_that_leads_elsewhere_is_none(tmp_path: Path, job_id: str) -> None:
    with pytest.raises(SourceError, match="job_id is"):
        ExportedLog(_container(tmp_path / "job.avro", job_id=job_id))
    with pytest.raises(OptionError, match="job_id is"):
        PayloadStore(str(tmp_path), job_id)


def test_import_of_a_file_that_is_cut_off_makes_no_log(tmp_path: Path) -> None:
    log, path = MemoryLog("job"), tmp_path / "job.avro"
    log.store(*streaming_history("job").records)
    write_exported(log, "job", path)
    path.write_bytes(path.read_bytes()[:-40])

    result = _command("import", str(path), log=MemoryLog("job"))  # which has no `create`
    assert result.exit_code == Exit.FAILED
    assert "cannot be read as an exported history" in result.stderr


# --- what a history names ---------------------------------------------------------------------------------------------
@pytest.fixture
def store(tmp_path: Path) -> PayloadStore:
    """With the payload of `history`."""
    made = PayloadStore(str(tmp_path / "store"), "job")
    made.put(PayloadAddress.of(b"12345", "0-abc"), b"12345")
    return made


def history(store: PayloadStore, *, written_to: str = "") -> MemoryLog:
    """Its one fact is in the store; `written_to`: a topic id that is not the log's."""
    log, made = MemoryLog("job"), HandHistory("job")
    made.epoch_number = 0
    attributes = {
        "payload_store": store.url,
        "operators": "[]",
        "mode": "streaming",
        "parallelism": "0",
        "endpoint": "",
        "cluster_id": log.identity.cluster_id,
        "topic_id": written_to or log.identity.topic_id,
    }
    began = replace(made.record(Kind.EPOCH_STARTED), epoch=0, sequence=None, attributes=attributes)
    made.records.append(unstored(began))
    made.turn(made.record(Kind.COORDINATORS_STARTED, attributes={"restore": "start"}))
    address = PayloadAddress.of(b"12345", "0-abc").encode()
    made.turn(replace(discovery(made, "s0"), payload=address))
    log.store(*made.records)
    return log


def _command(*arguments: str, log: MemoryLog | None = None) -> Result:
    def find(_servers: str | None) -> OneLog:
        assert log is not None, "no broker is asked"
        return OneLog(log)

    return CliRunner().invoke(main, arguments, obj=find)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The stores that something was read from."""
    stores: list[str] = []
    before = PayloadStore._files

    def files(self: PayloadStore) -> object:
        stores.append(self.url)
        return before(self)

    monkeypatch.setattr(PayloadStore, "_files", files)
    return stores


def test_verify_of_a_file_opens_no_store_but_the_one_that_the_user_names(
    tmp_path: Path, store: PayloadStore, opened: list[str]
) -> None:
    path = tmp_path / "job.avro"
    write_exported(history(store), "job", path)

    unnamed = _command("verify", str(path))
    assert (unnamed.exit_code, opened) == (Exit.DONE, [])
    assert "1 stored payloads were not checked" in unnamed.stdout
    assert "all that could be checked holds" in unnamed.stdout

    named = _command("verify", str(path), "--payload-store", store.url)
    assert named.exit_code == Exit.DONE
    assert set(opened) == {store.url}
    assert "1 stored payload of 5 bytes" in named.stdout


def test_payloads_of_a_file_are_shown_only_for_a_store_that_the_user_names(
    tmp_path: Path, store: PayloadStore, opened: list[str]
) -> None:
    path = tmp_path / "job.avro"
    write_exported(history(store), "job", path)

    refused = _command("payloads", str(path))
    assert (refused.exit_code, opened) == (Exit.USAGE, [])
    assert f"(the one that it names is {store.url})" in refused.stderr

    assert _command("payloads", str(path), "--payload-store", store.url).exit_code == Exit.DONE


def test_adopt_reads_a_files_payloads_only_from_a_store_the_user_names(
    tmp_path: Path, store: PayloadStore, opened: list[str]
) -> None:
    path = tmp_path / "job.avro"
    write_exported(history(store), "job", path)

    refused = _command("adopt", "job", "--from", str(path), log=MemoryLog("job"))
    assert (refused.exit_code, opened) == (Exit.USAGE, [])
    assert "the history has 1 stored payloads, and a copy" in refused.stderr


def test_a_log_that_another_one_was_copied_to_opens_no_store_either(
    store: PayloadStore, opened: list[str]
) -> None:
    for command in ("verify", "payloads"):
        assert _command(command, "job", log=history(store)).exit_code == Exit.DONE
    assert opened
    opened.clear()

    copied = history(store, written_to="another")
    assert "1 stored payloads were not checked" in _command("verify", "job", log=copied).stdout
    refused = _command("payloads", "job", log=copied)
    assert refused.exit_code == Exit.USAGE
    assert "a copy of a history opens none by itself" in refused.stderr
    assert opened == []


def test_delete_of_a_copy_opens_no_store(store: PayloadStore, opened: list[str]) -> None:
    with pytest.raises(OptionError, match="a copy of a history opens none by itself"):
        StoreFinder("job", None).store_of(history(store, written_to="another"))
    assert opened == []
