"""A destination in a folder of a file system that driver and executors share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from coordlog.errors import FilesGoneError, SinkError
from coordlog.log.local.fsync import make_folders, sync_path
from coordlog.spark_integration.files.names import (
    HIDDEN,
    STAGED_NAME,
    STAGING,
    check_final_name,
    check_staged_name,
    checked_driver_id,
    placed,
)
from coordlog.spark_integration.files.payloads import StagedFile
from coordlog.spark_integration.files.store.durable import (
    checksum_of,
    file_size,
    sink_errors,
    write_once,
)
from coordlog.spark_integration.files.store.store import At, nowhere

__all__ = ["LocalStore"]

_NAMES_MAX = 1000
_PATH_BYTES_MAX = 4095
"""Linux's PATH_MAX, without the NUL."""


@dataclass(frozen=True)
class LocalStore:
    """The folder `root`, absolute. Publishes by a hard link, which never replaces."""

    root: Path
    area: str = HIDDEN
    """Folder for the hidden files. Another than that of a destination: a table, whose other names are not looked at."""

    @property
    def where(self) -> str:
        """As in the port."""
        return str(self.root)

    def in_area(self, area: str) -> LocalStore:
        """As in the port."""
        return LocalStore(self.root, area)

    def check_root(self) -> None:
        """As in the port."""
        if self.root.exists() and not self.root.is_dir():
            raise SinkError(
                self.where, "the destination is a file", "use a folder, or a name that is free"
            )

    def make_root(self) -> None:
        """As in the port."""
        with sink_errors(self.root, "it cannot be made ready"):
            make_folders(self.root)

    def make_ready(self) -> None:
        """As in the port."""
        with sink_errors(self.root, "it cannot be made ready"):
            make_folders(self._path(STAGING))
        self._probe()

    def names(self) -> Sequence[str]:
        """As in the port."""
        if self.area != HIDDEN:
            return ()
        with sink_errors(self.root, "it cannot be listed"):
            names = sorted(path.name for path in self.root.iterdir() if not _is_ours(path.name))
        return names[:_NAMES_MAX]

    def read(self, relative: str) -> bytes | None:
        """As in the port."""
        path = self._path(relative)
        try:
            with sink_errors(path, "it cannot be read"):
                return path.read_bytes()
        except SinkError as error:
            if isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError)):
                return None
            raise

    def read_above(self, relative: str) -> tuple[str, bytes] | None:
        """As in the port."""
        root = self.root.resolve()
        # The hidden files of a destination that is here too are not those of this area.
        for folder in root.parents if self.area == HIDDEN else (root, *root.parents):
            with suppress(OSError):
                return str(folder), (folder / relative).read_bytes()
        return None

    def write_once(self, relative: str, content: bytes) -> bool:
        """As in the port."""
        path = self._path(relative)
        with sink_errors(path, "it cannot be written"):
            make_folders(path.parent)
            return write_once(path, content)

    def free_bytes(self) -> int | None:
        """As in the port."""
        with sink_errors(self.root, "its free space is not known"):
            return shutil.disk_usage(self.root).free

    def check_final(self, relative: str) -> None:
        """As in the port."""
        size = len(os.fsencode(self._path(relative)))
        if size > _PATH_BYTES_MAX:
            raise SinkError(
                self.where,
                f"the path of a file in it has {size} bytes; the system takes {_PATH_BYTES_MAX}",
                "use a shorter destination, or fewer partition columns",
            )

    def make_staging(self, driver_id: str) -> None:
        """As in the port."""
        folder = self._path(STAGING) / checked_driver_id(driver_id)
        with sink_errors(folder, "it cannot be made"):
            make_folders(folder)

    def stage(self, relative: str) -> _LocalOutput:
        """As in the port."""
        path = self._staged(relative)
        with sink_errors(path, "it cannot be made"):
            return _LocalOutput(path, path.open("xb"))

    def publish(self, files: Sequence[StagedFile], *, at: At = nowhere) -> None:
        """As in the port.

        First all links are made, then their folders are synced to disk, then the staged names are
        removed: a crash, even of the machine, leaves at least one of a file's two names.
        """
        names = [(self._staged(file.staged), self._final(file.final), file) for file in files]
        folders = sorted({final.parent for _, final, _ in names})
        with sink_errors(self.root, "files cannot be published"):
            for folder in folders:
                if folder != self.root:
                    make_folders(folder)
                    self._inside(str(folder.relative_to(self.root) / "x"))
                    at(f"after folder {folder.name}")
            for staged, final, file in names:
                at(f"before link {file.final}")
                _link(staged, final, file)
                at(f"after link {file.final}")
            for folder in folders:
                sync_path(folder)
            at("after fsync")
            for staged, _, file in names:
                staged.unlink(missing_ok=True)
                at(f"after unlink {file.staged}")

    def clean(
        self, *, driver_id: str, subtask: int, attempt_number: int, keep: AbstractSet[str]
    ) -> None:
        """As in the port."""
        prefix = f"{subtask}-{attempt_number}-"
        folder = self._path(STAGING) / checked_driver_id(driver_id)
        with sink_errors(folder, "staged files cannot be deleted"):
            for path in self._to_delete(folder, keep, lambda name: name.startswith(prefix)):
                path.unlink(missing_ok=True)

    def sweep(self, *, keep: AbstractSet[str], is_in_force: Callable[[], bool]) -> None:
        """As in the port."""
        with sink_errors(self.root, "staged files cannot be listed"):
            staging = self._path(STAGING)
            entries = sorted(staging.iterdir()) if staging.is_dir() else []
            folders = [path for path in entries if path.is_dir() and not path.is_symlink()]
            doomed = [path for folder in folders for path in self._to_delete(folder, keep)]
            for folder, pattern in (
                (self._path(HIDDEN), "*.draft"),
                (self._path(STAGING), "probe-*"),
                (self.root, ".probe-*"),
            ):
                doomed += self._leftovers(folder, pattern)
        if not is_in_force():
            return
        with sink_errors(self.root, "staged files cannot be deleted"):
            for path in doomed:
                path.unlink(missing_ok=True)
        for folder in folders:
            with suppress(OSError):
                folder.rmdir()  # fails if the folder is not empty, and must

    def _to_delete(
        self,
        folder: Path,
        keep: AbstractSet[str],
        matches: Callable[[str], bool] = lambda _name: True,
    ) -> list[Path]:
        """Staged files of a driver whose name matches, but `keep`."""
        self._check_inside(folder / "x")
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        return [
            folder / name
            for name in names
            if STAGED_NAME.fullmatch(name)
            and matches(name)
            and f"{STAGING}/{folder.name}/{name}" not in keep
        ]

    def _leftovers(self, folder: Path, pattern: str) -> list[Path]:
        if not folder.is_dir():
            return []
        self._check_inside(folder / "x")
        paths = sorted(folder.glob(pattern))
        return [path for path in paths if path.is_file() and not path.is_symlink()]

    def _staged(self, relative: str) -> Path:
        check_staged_name(self.where, relative)
        return self._inside(relative)

    def _final(self, relative: str) -> Path:
        check_final_name(self.where, relative)
        return self._inside(relative)

    def _inside(self, relative: str) -> Path:
        """Path of `relative`. Raises SinkError if a link on its way leads out of the root."""
        path = self._path(relative)
        self._check_inside(path)
        return path

    def _check_inside(self, path: Path) -> None:
        folder = path.parent
        if folder.resolve() != self.root.resolve() / folder.relative_to(self.root):
            raise SinkError(
                str(folder),
                "a link leads out of the destination",
                "remove it: nothing of this package makes links to folders",
            )

    def _path(self, relative: str) -> Path:
        return self.root / placed(relative, self.area)

    def _probe(self) -> None:
        """Publish a probe as settling does: a second link to its name must be refused."""
        probe = f"probe-{uuid4().hex}"
        staged, final = self._path(STAGING) / probe, self.root / f".{probe}"
        with sink_errors(self.root, "no file can be made there"):
            staged.touch(exist_ok=False)
        with sink_errors(
            self.root, "its file system cannot publish a file without replacing one (a hard link)"
        ):
            try:
                os.link(staged, final)
                try:
                    os.link(staged, final)
                except FileExistsError:
                    sync_path(self.root)
                else:
                    raise SinkError(
                        self.where,
                        "its file system replaces a name where it should refuse",
                        "use a destination on another file system",
                    )
            finally:
                final.unlink(missing_ok=True)
                staged.unlink(missing_ok=True)


@dataclass(slots=True)
class _LocalOutput:
    path: Path
    file: BinaryIO
    _is_open: bool = field(default=True)

    def write(self, piece: memoryview) -> None:
        with sink_errors(self.path, "it cannot be written"):
            self.file.write(piece)

    def finish(self) -> None:
        with sink_errors(self.path, "it cannot be written"):
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            sync_path(self.path.parent)
        self._is_open = False

    def discard(self) -> None:
        if self._is_open:
            with suppress(OSError):
                self.file.close()
            with suppress(OSError):
                self.path.unlink(missing_ok=True)


def _is_ours(name: str) -> bool:
    return name == HIDDEN or name.startswith(".probe-")


def _link(staged: Path, final: Path, file: StagedFile) -> None:
    """Give the file its final name, if it does not have it yet.

    Another settler may be at any place of the same steps: 1. it links between our check and our link,
    which then fails; 2. it unlinks between our check and our link, which then fails too. In both cases
    the final name exists, and is checked.
    """
    if file_size(final) is None:
        size = file_size(staged)
        if size is not None and size != file.size_bytes:
            raise SinkError(
                str(staged),
                f"it has {size} bytes; {file.size_bytes} were handed over: it is damaged",
                "restore it from a copy",
            )
        try:
            os.link(staged, final, follow_symlinks=False)
        except (FileExistsError, FileNotFoundError):
            pass
        else:
            return
    _check_final(staged, final, file)


def _check_final(staged: Path, final: Path, file: StagedFile) -> None:
    size = file_size(final)
    if size is None:
        raise FilesGoneError(
            str(final),
            f"neither it nor its staged file ({staged}) exists",
            "restore either from a copy; or, if tasks ran on other machines, use a destination "
            "that the driver and all executors share",
        )
    checksum = checksum_of(final)
    if (size, checksum) != (file.size_bytes, file.checksum):
        raise SinkError(
            str(final),
            f"it has other content: {size} bytes with checksum {checksum}; "
            f"{file.size_bytes} bytes with checksum {file.checksum} are to be published",
            "move it away, then run the same command again",
        )
