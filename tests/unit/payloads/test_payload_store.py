"""The payload store on this machine's files and on another file system: durable, checked, refused by name."""

from __future__ import annotations

import errno
import os
import pickle
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import fsspec
import pytest

from coordlog.cli.exit_status import Exit, exit_of
from coordlog.errors import (
    OptionError,
    PayloadLostError,
    PayloadStoreError,
    PayloadStoreUnreachableError,
)
from coordlog.limits import STORED_PAYLOAD_BYTES_MAX
from coordlog.log import payload_store
from coordlog.log.payload_store import PayloadStore, is_draft, is_payload
from coordlog.schemas.payload_address import PayloadAddress, owner_of

DATA = os.urandom(100_000)
MINE = PayloadAddress.of(DATA, owner_of(3, "9f0c2ab41d5e6f70"))


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PayloadStore]:
    url = str(tmp_path / "payloads") if request.param == "file" else "memory://kept/here"
    yield PayloadStore(url, "ingest")
    memory = fsspec.filesystem("memory")
    if memory.exists("/kept"):
        memory.rm("/kept", recursive=True)


def spoil(store: PayloadStore, data: bytes | None) -> None:
    """Put something else in the place of the payload, or nothing."""
    if store.is_local:
        path = Path(store.where) / MINE.path
        path.unlink() if data is None else path.write_bytes(data)
        return
    memory = fsspec.filesystem("memory")
    at = f"/kept/here/ingest/{MINE.path}"
    memory.rm(at) if data is None else memory.pipe_file(at, data)


def test_what_is_put_is_read_again_and_twice_is_once(store: PayloadStore) -> None:
    assert store.listed() == ()

    store.put(MINE, DATA)
    store.put(MINE, DATA)

    assert store.get(MINE) == DATA
    (kept,) = store.listed()
    assert (kept.path, kept.size_bytes, is_payload(kept)) == (MINE.path, 100_000, True)


def test_it_travels_to_a_task(store: PayloadStore) -> None:
    store.put(MINE, DATA)

    there = pickle.loads(pickle.dumps(store))

    assert there.get(MINE) == DATA


def test_what_one_epoch_keeps_is_no_other_s(store: PayloadStore) -> None:
    theirs = PayloadAddress.of(DATA, owner_of(4, "other"))
    store.put(MINE, DATA)
    store.put(theirs, DATA)

    store.remove([one for one in store.listed() if one.owner == MINE.owner])

    assert store.get(theirs) == DATA
    with pytest.raises(PayloadLostError):
        store.get(MINE)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "it is not there; name the right store with --payload-store, or put the file back"),
        (DATA[:-1], "it is damaged: it has 99999 bytes; put the file back from a copy"),
        (b"", "it is damaged: it has 0 bytes"),
        (DATA[:-1] + bytes([DATA[-1] ^ 1]), "it is damaged: 100000 bytes with SHA-256 "),
    ],
)
def test_a_missing_truncated_or_damaged_payload_is_refused_with_all_facts(
    store: PayloadStore, data: bytes | None, said: str
) -> None:
    store.put(MINE, DATA)
    spoil(store, data)

    with pytest.raises(PayloadLostError) as lost:
        store.get(MINE)

    assert str(lost.value).startswith(
        f"the stored payload {MINE.path} of 100000 bytes, looked for in {store.where}: "
    )
    assert said in str(lost.value)


def test_one_that_was_cut_off_is_mended_by_whoever_keeps_it_again(store: PayloadStore) -> None:
    store.put(MINE, DATA)
    spoil(store, DATA[:10])

    store.put(MINE, DATA)

    assert store.get(MINE) == DATA


def test_a_length_that_no_payload_has_is_not_read(store: PayloadStore) -> None:
    address = PayloadAddress(
        owner=MINE.owner, sha256=MINE.sha256, length=STORED_PAYLOAD_BYTES_MAX + 1
    )

    with pytest.raises(PayloadLostError, match="no stored payload has more than"):
        store.find(address)


def test_removing_leaves_no_folder_and_twice_is_once(store: PayloadStore, tmp_path: Path) -> None:
    store.put(MINE, DATA)
    kept = store.listed()

    assert store.remove(kept) == 1
    assert store.remove(kept) == 1
    assert store.listed() == ()
    assert not (tmp_path / "payloads" / "ingest").exists()


# --- files of this machine ----------------------------------------------------------------------------------------
def test_a_payload_and_then_its_name_are_synced_before_put_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, done = PayloadStore(str(tmp_path), "ingest"), list[str]()
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        done.append(f"folder {name}" if is_folder else f"file of {os.fstat(descriptor).st_size}")
        real_fsync(descriptor)

    def replace(draft: Path, final: Path) -> Path:
        done.append("rename")
        return real_replace(draft, final)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    store.put(MINE, DATA)

    assert done == [
        f"folder {tmp_path.name}",
        "folder ingest",
        "file of 100000",
        "rename",
        f"folder {MINE.owner}",
    ]
    done.clear()
    store.put(MINE, DATA)
    assert done == [f"folder {MINE.owner}"], "another's rename may not be on disk yet"


@pytest.mark.parametrize("moment", ["the job's folder is seen", "the epoch's folder is made"])
def test_removing_an_empty_folder_costs_no_writer_its_payload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    store, folder = PayloadStore(str(tmp_path), "ingest"), tmp_path / "ingest"
    folder.mkdir()
    cleaned = list[str]()
    real_mkdir, real_open = Path.mkdir, Path.open

    def clean(path: Path) -> None:
        """As `prune` does, in another process; once."""
        if cleaned:
            return
        cleaned.append(str(path))
        with suppress(FileNotFoundError):
            (folder / MINE.owner).rmdir()
        folder.rmdir()

    def mkdir(path: Path, **given: Any) -> None:  # noqa: ANN401, pathlib's
        if moment == "the job's folder is seen" and path.name == MINE.owner:
            clean(path)
        real_mkdir(path, **given)

    def opened(path: Path, mode: str) -> IO[Any]:
        if mode == "xb":
            clean(path)
        return real_open(path, mode)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "open", opened)
    store.put(MINE, DATA)

    assert len(cleaned) == 1
    assert store.get(MINE) == DATA
    assert [one.path for one in store.listed()] == [MINE.path]


def test_folders_are_open_to_this_user_only(tmp_path: Path) -> None:
    store = PayloadStore(str(tmp_path / "new"), "ingest")
    store.put(MINE, DATA)

    for folder in (
        tmp_path / "new",
        tmp_path / "new/ingest",
        (tmp_path / "new/ingest" / MINE.owner),
    ):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("number", "step"),
    [
        (errno.ENOSPC, "free some space there"),
        (errno.EDQUOT, "free some of the quota there"),
        (errno.EROFS, "name a store on a file system that can be written"),
    ],
)
def test_a_disk_that_is_full_is_said_at_once_and_leaves_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, step: str
) -> None:
    store = PayloadStore(str(tmp_path), "ingest")

    def full(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(
        payload_store, "make_folders", lambda folder, mode: folder.mkdir(mode, parents=True)
    )
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PayloadStoreError) as refused:
        store.put(MINE, DATA)

    assert not refused.value.retriable
    assert f"keeping {MINE.path}: [errno {number}] {os.strerror(number)}; {step}" in str(
        refused.value
    )
    assert store.listed() == ()
    is_full = number in (errno.ENOSPC, errno.EDQUOT)
    assert exit_of(refused.value) == (Exit.NO_SPACE if is_full else Exit.FAILED)


def test_what_a_crash_has_cut_off_is_listed_as_a_draft(tmp_path: Path) -> None:
    store = PayloadStore(str(tmp_path), "ingest")
    folder = tmp_path / "ingest" / MINE.owner
    folder.mkdir(parents=True)
    (folder / ".44f8354494a5ba03-0123456789abcdef.part").write_bytes(b"half")
    (folder / "notes.txt").write_bytes(b"somebody's")

    drafts = [(one.name, is_draft(one), is_payload(one)) for one in store.listed()]

    assert drafts == [
        (".44f8354494a5ba03-0123456789abcdef.part", True, False),
        ("notes.txt", False, False),
    ]


def test_a_folder_in_the_place_of_a_payload_is_not_taken_for_one(tmp_path: Path) -> None:
    store = PayloadStore(str(tmp_path), "ingest")
    (tmp_path / "ingest" / MINE.path).mkdir(parents=True)

    with pytest.raises(PayloadStoreError, match="it is no plain file"):
        store.get(MINE)


# --- others -----------------------------------------------------------------------------------------------------------
def test_a_store_that_cannot_be_reached_is_said_and_may_be_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class UnreachableError(Exception):
        """As an object store's client has its own."""

    def refuse(*_given: object, **_named: Any) -> None:  # noqa: ANN401, fsspec's
        raise UnreachableError("no route to host")

    store = PayloadStore("memory://kept/here", "ingest")
    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "info", refuse)
    with pytest.raises(PayloadStoreError) as refused:
        store.get(MINE)

    assert refused.value.retriable
    assert str(refused.value) == (
        f"the payload store memory://kept/here/ingest: looking for {MINE.path}: UnreachableError: "
        "no route to host; check that it works and can be reached, then run the same command again"
    )
    assert exit_of(refused.value) == Exit.UNREACHABLE


def test_a_store_that_never_answers_counts_as_unreachable_a_late_one_not(
    monkeypatch: pytest.MonkeyPatch, store: PayloadStore
) -> None:
    """A mount whose server is gone hangs in the system call; clients of object stores have no bound of their own."""
    store.put(MINE, DATA)
    monkeypatch.setattr(payload_store, "PAYLOAD_CALL_S", 0.05)
    files, answers = store._files(), threading.Event()
    reading = files.read

    def hang(path: str) -> bytes | None:
        answers.wait(20)
        return reading(path)

    monkeypatch.setattr(files, "read", hang)
    with pytest.raises(PayloadStoreUnreachableError) as refused:
        store.get(MINE)
    assert f"reading {MINE.path}: it has not answered within 0.05 s; check that" in str(
        refused.value
    )

    answers.set()
    assert store.get(MINE) == DATA


def test_a_time_limit_of_a_store_s_own_is_told_as_it_is(
    monkeypatch: pytest.MonkeyPatch, store: PayloadStore
) -> None:
    def give_up(_path: str) -> bytes | None:
        raise TimeoutError("the bucket's gateway")

    store.put(MINE, DATA)
    monkeypatch.setattr(store._files(), "read", give_up)
    with pytest.raises(PayloadStoreUnreachableError, match="the bucket's gateway"):
        store.get(MINE)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://key:secret@bucket/prefix", "without credentials (this one has some)"),
        ("s3://bucket/prefix?secret=1", "without credentials"),
        ("nosuch://bucket", "'nosuch' is none of them"),
        ("", "a path, or a URL"),
    ],
)
def test_an_impossible_url_is_refused_without_repeating_credentials(url: str, said: str) -> None:
    with pytest.raises(OptionError) as refused:
        PayloadStore(url, "ingest")

    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("form", ["{}", "file://{}", "local://{}"])
def test_a_local_store_has_one_name_however_it_is_given(tmp_path: Path, form: str) -> None:
    assert PayloadStore(form.format(tmp_path), "ingest").url == str(tmp_path)
