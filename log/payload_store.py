"""Store of a job's payloads that are too large for its log: files under one folder of any file system of fsspec.

A payload's name is the epoch that stored it and the SHA-256 of its content, so that no driver ever writes other bytes
under a name that is taken, and a read is checked by the name. A payload is on disk, or in the object store, once `put`
has returned.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import fsspec

from coordlog.errors import (
    OptionError,
    PayloadLostError,
    PayloadStoreError,
    PayloadStoreUnreachableError,
)
from coordlog.limits import PAYLOAD_CALL_S, PAYLOAD_LISTING_S, STORED_PAYLOAD_BYTES_MAX
from coordlog.log.credentials import refuse_credentials
from coordlog.log.job_id import check_job_id
from coordlog.log.local.call_timeout import answered
from coordlog.log.local.fsync import make_folders, sync_path
from coordlog.schemas.payload_address import PayloadAddress, is_path

__all__ = [
    "PayloadFile",
    "PayloadStore",
    "default_payload_url",
    "is_draft",
    "is_local_url",
    "is_payload",
]

R = TypeVar("R")

_LOCAL: Final = ("file", "local", "")
_WITHOUT_FOLDERS: Final = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory"})
_DRAFT: Final = ".part"
_PRIVATE: Final = 0o700
_FIX: Final = "put the file back from a copy, or continue from a checkpoint that does not need it"
_FINAL: Final = {
    errno.ENOSPC: "free some space there, then run the same command again",
    errno.EDQUOT: "free some of the quota there, then run the same command again",
    errno.EACCES: "allow the user that runs the job and its tasks to read and write there",
    errno.EPERM: "allow the user that runs the job and its tasks to read and write there",
    errno.EROFS: "name a store on a file system that can be written",
    errno.ENOTDIR: "name a store of whose path every part is a folder",
}
_AGAIN: Final = "check that it works and can be reached, then run the same command again"


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadFile:
    """A file in a job's folder of the store: a payload, an unfinished draft, or a foreign file."""

    owner: str
    """Folder of the file: the epoch that created it."""
    name: str
    """File's name in the folder: the SHA-256 of the content, or another name for an unfinished draft."""
    size_bytes: int

    @property
    def path(self) -> str:
        """Path below the job's folder."""
        return f"{self.owner}/{self.name}"


class _Files(Protocol):
    """File operations of a store. Paths are below the job's folder."""

    def size(self, path: str) -> int | None:
        """Size of a file, bytes; None if there is no such file."""
        ...

    def read(self, path: str) -> bytes | None:
        """A file's content; None if there is no such file."""
        ...

    def write(self, path: str, data: bytes) -> None:
        """Create the file, complete and durable, or do nothing."""
        ...

    def sync(self, path: str) -> None:
        """Make the name of an existing file durable."""
        ...

    def files(self) -> Iterator[PayloadFile]:
        """Every file."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        ...

    def prune(self, owner: str) -> None:
        """Remove a folder, if it is empty."""
        ...


class PayloadStore:
    """One job's payloads. Any thread; can be pickled; no file is touched before the first use.

    Args:
        url: The store's folder, for all jobs: a path, or a URL of fsspec without credentials.
        job_id: The job; its payloads are in the folder of that name.

    Raises:
        OptionError: The URL holds credentials, or its file system is unknown; or the job id is invalid.
    """

    def __init__(self, url: str, job_id: str) -> None:
        parts = urlsplit(url)
        if "://" in url and (parts.query or parts.fragment):
            hidden = f"{parts.scheme}://…"
            raise OptionError(
                "payload_store",
                hidden,
                "without credentials, ? and #: credentials come from the environment",
            )
        refuse_credentials("payload_store", url)
        if not url:
            raise OptionError("payload_store", url, "a path, or a URL such as s3://bucket/prefix")
        check_job_id(job_id)  # it is a folder's name
        self.url = str(Path(_local_path(url)).absolute()) if is_local_url(url) else url.rstrip("/")
        self.job_id = job_id
        self._opened: _Files | None = None
        if not is_local_url(url) and parts.scheme not in fsspec.available_protocols():
            raise OptionError(
                "payload_store",
                url,
                f"of a file system that fsspec has; {parts.scheme!r} is none of them",
            )

    def __reduce__(self) -> tuple[type[PayloadStore], tuple[str, str]]:
        return type(self), (self.url, self.job_id)

    @property
    def where(self) -> str:
        """The job's folder, for messages."""
        return f"{self.url}/{self.job_id}"

    @property
    def is_local(self) -> bool:
        """Whether the store's address is on this machine alone."""
        return is_local_url(self.url)

    def put(self, address: PayloadAddress, data: bytes) -> None:
        """Store a payload; on return it is durable. Repeated or concurrent calls have the effect of one.

        Raises:
            PayloadStoreError: The payload cannot be written.
        """
        files = self._files()
        size = self._do(f"looking for {address.path}", lambda: files.size(address.path))
        if size == address.length:  # no other content can have this name
            self._do(f"keeping {address.path}", lambda: files.sync(address.path))
            return
        self._do(f"keeping {address.path}", lambda: _write(files, address.path, data))

    def get(self, address: PayloadAddress) -> bytes:
        """The payload, checked by length and checksum.

        Raises:
            PayloadLostError: The payload is missing, or its content has changed.
            PayloadStoreError: The store cannot be read.
        """
        self.find(address)
        files = self._files()
        data = self._do(f"reading {address.path}", lambda: files.read(address.path))
        if data is None:
            raise self._lost(address, "it is not there", _FIX)
        digest = hashlib.sha256(data).hexdigest()
        if len(data) != address.length or digest != address.sha256:
            raise self._lost(
                address, f"it is damaged: {len(data)} bytes with SHA-256 {digest}", _FIX
            )
        return data

    def find(self, address: PayloadAddress) -> None:
        """Check that the payload exists, with its length; its content is not read.

        Raises:
            PayloadLostError: The payload is missing, or has another length.
            PayloadStoreError: The store cannot be read.
        """
        if address.length > STORED_PAYLOAD_BYTES_MAX:
            raise self._lost(
                address, f"no stored payload has more than {STORED_PAYLOAD_BYTES_MAX} bytes", _FIX
            )
        files = self._files()
        size = self._do(f"looking for {address.path}", lambda: files.size(address.path))
        if size is None:
            raise self._lost(
                address, "it is not there", f"name the right store with --payload-store, or {_FIX}"
            )
        if size != address.length:
            raise self._lost(address, f"it is damaged: it has {size} bytes", _FIX)

    def listed(self) -> tuple[PayloadFile, ...]:
        """All files in the job's folder, sorted: payloads, and unfinished drafts.

        Raises:
            PayloadStoreError: The store cannot be read.
        """
        files = self._files()
        listed = self._do("listing it", lambda: tuple(files.files()), timeout_s=PAYLOAD_LISTING_S)
        return tuple(sorted(listed, key=lambda payload: payload.path))

    def remove(self, kept: Iterable[PayloadFile]) -> int:
        """Remove these files, and the folders that are empty then. Returns the number of files.

        Raises:
            PayloadStoreError: A file cannot be removed; those before it are gone.
        """
        files, owners, count = self._files(), set[str](), 0
        for payload in kept:
            self._do(f"removing {payload.path}", lambda path=payload.path: files.remove(path))  # type: ignore[misc]
            owners.add(payload.owner)
            count += 1
        for owner in sorted(owners):
            self._do(f"removing {owner}", lambda name=owner: files.prune(name))  # type: ignore[misc]
        return count

    def _files(self) -> _Files:
        if self._opened is None:
            folder = self.where
            if self.is_local:
                self._opened = _LocalFiles(Path(folder))
            else:
                self._opened = self._do("opening it", lambda: _FsspecFiles(folder))
        return self._opened

    def _lost(self, address: PayloadAddress, problem: str, next_step: str) -> PayloadLostError:
        return PayloadLostError(address.path, address.length, self.where, problem, next_step)

    def _do(self, doing: str, work: Callable[[], R], *, timeout_s: float | None = None) -> R:
        with _store_errors(self.where, doing):
            return answered(work, PAYLOAD_CALL_S if timeout_s is None else timeout_s)


@contextmanager
def _store_errors(where: str, doing: str) -> Generator[None]:
    """Turn errors of a file system, or of its client, into PayloadStoreError."""
    try:
        yield
    except OSError as error:
        number = f"[errno {error.errno}] " if error.errno is not None else ""
        problem = f"{number}{error.strerror or error}"
        step = _FINAL.get(error.errno or 0)
        if step is not None:
            raise PayloadStoreError(where, doing, problem, step) from error
        raise PayloadStoreUnreachableError(where, doing, problem, _AGAIN) from error
    except ImportError as error:
        step = "install the library that fsspec names for it, as in pip install 'coordlog[s3]'"
        raise PayloadStoreError(where, doing, str(error), step) from error
    except Exception as error:
        # Each client of an object store has errors of its own.
        problem = f"{type(error).__name__}: {error}"
        raise PayloadStoreUnreachableError(where, doing, problem, _AGAIN) from error


class _LocalFiles:
    """Files of this machine: a draft that is on disk, renamed into its place."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def size(self, path: str) -> int | None:
        try:
            status = (self._folder / path).lstat()
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no plain file", path)
        return status.st_size

    def read(self, path: str) -> bytes | None:
        try:
            return (self._folder / path).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        final = self._folder / path
        make_folders(final.parent, mode=_PRIVATE)
        draft = final.with_name(f".{final.name[:16]}-{uuid4().hex[:16]}{_DRAFT}")
        try:
            with draft.open("xb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            draft.replace(final)
        except BaseException:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        sync_path(final.parent)

    def sync(self, path: str) -> None:
        sync_path((self._folder / path).parent)

    def files(self) -> Iterator[PayloadFile]:
        if not self._folder.is_dir():
            return
        for owner in sorted(self._folder.iterdir()):
            if not owner.is_dir() or owner.is_symlink():
                continue
            for path in sorted(owner.iterdir()):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    yield PayloadFile(owner=owner.name, name=path.name, size_bytes=status.st_size)

    def remove(self, path: str) -> None:
        (self._folder / path).unlink(missing_ok=True)

    def prune(self, owner: str) -> None:
        with suppress(OSError):  # another process has written a file there
            (self._folder / owner).rmdir()
            self._folder.rmdir()


class _FsspecFiles:
    """Files of any other file system. If the store can, it refuses a name that is taken."""

    def __init__(self, url: str) -> None:
        # No listing is cached: files of other processes must be visible.
        self._fs: Any
        self._fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        self._root = str(root).rstrip("/")
        self._has_folders = urlsplit(url).scheme not in _WITHOUT_FOLDERS

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def size(self, path: str) -> int | None:
        try:
            return int(self._fs.info(self._at(path))["size"])
        except FileNotFoundError:
            return None

    def read(self, path: str) -> bytes | None:
        try:
            return bytes(self._fs.cat_file(self._at(path)))
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        at = self._at(path)
        if self._has_folders:
            self._fs.makedirs(at.rpartition("/")[0], exist_ok=True)
        with suppress(FileExistsError):
            self._fs.pipe_file(at, data, mode="create")
        if self.size(path) != len(data):
            self._fs.pipe_file(at, data)
        size = self.size(path)
        if size != len(data):
            raise OSError(f"{len(data)} bytes were written, and it has {size}")

    def sync(self, path: str) -> None:
        """Do nothing: a visible object is durable."""

    def files(self) -> Iterator[PayloadFile]:
        try:
            details: dict[str, dict[str, Any]] = self._fs.find(self._root, detail=True)
        except FileNotFoundError:
            return
        base = self._root.lstrip("/") + "/"
        for name, detail in sorted(details.items()):
            owner, _, rest = name.lstrip("/").removeprefix(base).partition("/")
            if owner and rest and "/" not in rest:
                yield PayloadFile(owner=owner, name=rest, size_bytes=int(detail["size"]))

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm_file(self._at(path))

    def prune(self, owner: str) -> None:
        if self._has_folders:
            with suppress(OSError, NotImplementedError):
                self._fs.rmdir(self._at(owner))


def _write(files: _Files, path: str, data: bytes) -> None:
    """Write, and once more if a cleaning has removed the folder while it was still empty."""
    try:
        files.write(path, data)
    except FileNotFoundError:
        files.write(path, data)


def is_local_url(url: str) -> bool:
    """Whether the URL names files of this machine."""
    return "://" not in url or urlsplit(url).scheme in _LOCAL


def default_payload_url(home: Path) -> str:
    """The store's URL for jobs whose log is on this machine too."""
    return str(home / "payloads")


def is_payload(payload: PayloadFile) -> bool:
    """Whether the file is a payload, and no unfinished draft nor a foreign file."""
    return is_path(payload.path)


def is_draft(payload: PayloadFile) -> bool:
    """Whether the file is an unfinished draft that an interrupted `put` has left."""
    return payload.name.startswith(".") and payload.name.endswith(_DRAFT)


def _local_path(url: str) -> str:
    path = url if "://" not in url else url.partition("://")[2]
    return str(Path(path).expanduser())
