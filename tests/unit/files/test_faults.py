"""Faults of files and faults of their source: only the first are skipped, because a skip is never undone."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from coordlog.api.operator import PollStatus
from coordlog.errors import SourceError, SourceUnavailableError
from coordlog.spark_integration.files.faults import is_fault_of_file
from coordlog.spark_integration.files.listing import InputFiles, ListedFile
from coordlog.spark_integration.files.missing import cause_of, gone
from coordlog.spark_integration.files.source.source import FileSource, Format
from coordlog.spark_integration.files.source.split_bytes import decode_split, encode_split
from fakes.chain_fakes import FakeContext, contents


class Store(MemoryFileSystem):  # type: ignore[misc]
    """A store in memory that raises `errors` by the end of a path; the empty one is for all."""

    protocol = "faulty"
    cachable = False
    errors: ClassVar[dict[str, Exception]] = {}
    store: ClassVar[dict[str, Any]] = {}  # pyright: ignore[reportIncompatibleVariableOverride]
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace("faulty://", "memory://")))

    def info(self, path: str, **options: object) -> dict[str, Any]:
        for end, error in self.errors.items():
            if path.endswith(end):
                raise error
        info: dict[str, Any] = super().info(path, **options)
        return info


@pytest.fixture
def store() -> Iterator[Store]:
    fsspec.register_implementation("faulty", Store, clobber=True)
    files = Store()
    for name in ("a", "b", "c"):
        files.pipe(f"faulty:///in/{name}.csv", b"i\n1\n")
    yield files
    Store.errors.clear()
    Store.store.clear()


def skipped(source: FileSource, splits: list[bytes]) -> list[str]:
    """Names of the files that a reader has skipped."""
    reader = source.spec().create_reader()
    reader.open(FakeContext(), None)
    reader.add_splits(splits)
    reader.notify_no_more_splits()
    names = []
    while (poll := reader.poll()).status is not PollStatus.END:
        if poll.skipped is not None:
            names.append(Path(poll.skipped.split_id).name)
    return names


@pytest.mark.parametrize(
    "error",
    [
        PermissionError("The provided token has expired."),
        TimeoutError("read timed out"),
        ConnectionResetError("Connection lost"),
    ],
)
def test_no_file_is_skipped_while_its_store_refuses_all_or_is_silent(
    store: Store, error: Exception
) -> None:
    source = FileSource("faulty:///in", on_error="skip")
    splits = contents(source.discover())

    Store.errors[""] = error
    with pytest.raises(SourceUnavailableError, match=r"it cannot be read: ."):
        skipped(source, splits)

    Store.errors.clear()
    assert skipped(source, splits) == []


def test_a_file_that_alone_may_not_be_read_is_skipped(store: Store) -> None:
    source = FileSource("faulty:///in", on_error="skip")
    splits = contents(source.discover())

    Store.errors["/b.csv"] = PermissionError("Forbidden")

    assert skipped(source, splits) == ["b.csv"]


def test_no_file_is_skipped_if_its_folder_may_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = SourceError("in/a.csv", "it cannot be read", "allow it")
    error.__cause__ = PermissionError(13, "Permission denied")
    assert is_fault_of_file(error, InputFiles(url=str(tmp_path)))

    monkeypatch.setattr(os, "access", lambda place, _mode: place != str(tmp_path))
    assert not is_fault_of_file(error, InputFiles(url=str(tmp_path)))


def test_of_files_named_outright_one_that_may_not_be_read_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole source counted as refused, and the job failed with on_error="skip"."""
    names = [str(tmp_path / name) for name in ("a.csv", "b.csv")]
    for name in names:
        Path(name).write_text("i\n1\n")
    error = SourceError(names[1], "it cannot be read", "allow it")
    error.__cause__ = PermissionError(13, "Permission denied")
    monkeypatch.setattr(os, "access", lambda place, _mode: place != names[1])

    assert is_fault_of_file(error, InputFiles(url=names[0], also=(names[1],)))


def test_a_glob_with_a_wildcard_in_its_first_folder_is_there() -> None:
    error = SourceError("/mnt1/a.csv", "it has vanished", "put it back")
    error.__cause__ = FileNotFoundError(2, "No such file")

    assert is_fault_of_file(error, InputFiles(url="/*/a.csv"))


def test_no_file_is_skipped_if_nothing_is_mounted_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("i\n1\n")
    source = FileSource(tmp_path, on_error="skip")
    (content,) = contents(source.discover())
    split = decode_split(content)
    moment = split.mark.partition(" file ")[0]
    of_a_mount = encode_split(replace(split, mark=f"{moment} file 999999:7"))

    (tmp_path / "a.csv").unlink()
    with pytest.raises(SourceUnavailableError, match="empty and on another file system"):
        skipped(source, [of_a_mount])

    (tmp_path / "b.csv").write_text("i\n1\n")  # it is mounted again, with another number
    assert skipped(source, [of_a_mount]) == ["a.csv"]
    (tmp_path / "b.csv").unlink()
    assert skipped(source, [content]) == ["a.csv"], "the folder is the one of the listing"


@pytest.mark.parametrize(("status", "is_of_file"), [(404, True), (403, True), (503, False)])
def test_a_web_server_in_trouble_is_no_missing_file(status: int, *, is_of_file: bool) -> None:
    class Answered(Exception):  # noqa: N818, as the library's own
        pass

    origin, error = Answered("refused"), FileNotFoundError("http://host/a.csv")
    origin.status = status  # type: ignore[attr-defined]
    error.__cause__ = origin
    file = ListedFile(path="http://host/a.csv", size_bytes=4)

    assert (cause_of(file, error) is error) == is_of_file
    assert ("vanished" in str(gone(file, error))) == is_of_file


@pytest.mark.parametrize("name", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize(
    ("error", "is_retriable"),
    [
        (OSError(16, "Please reduce your request rate"), True),
        (TimeoutError(), True),
        (EOFError("cut off"), False),
    ],
)
def test_a_listing_that_a_store_interrupts_in_a_file_is_tried_again(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    name: Format,
    error: Exception,
    *,
    is_retriable: bool,
) -> None:
    class Cut(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def read(self, _size: int = -1, /) -> bytes:
            raise error

        def seekable(self) -> bool:
            return True

        def seek(self, offset: int, _whence: int = 0, /) -> int:
            return offset

        def tell(self) -> int:
            return 100

    monkeypatch.setattr(Store, "_open", lambda *_args, **_options: Cut())
    with pytest.raises(SourceError, match="cannot be read") as caught:
        FileSource("faulty:///in", format=name).discover()

    assert caught.value.retriable == is_retriable
