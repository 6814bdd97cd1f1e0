"""A folder that belongs to one job: its owner, its one schema, its staged files.

Below the destination, `.coordlog/` holds what is not for readers: `owner.json`, `schema.arrow` and
`staging/DRIVER/SUBTASK-ATTEMPT-COUNT.parquet`. Spark and others leave out names that begin with a
dot.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa

from coordlog.errors import OptionError, SinkError

from .durable import make_folders, sink_errors, sync_folder, write_once

__all__ = ["Destination", "StagedName"]

_HIDDEN: Final = ".coordlog"
_STAGING: Final = f"{_HIDDEN}/staging"
_DRIVER_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_STAGED: Final = re.compile(r"(\d+)-(\d+)-(\d+)\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedName:
    """The names of one file of one attempt; no other file of the job ever gets them (clause M5)."""

    job_id: str
    driver_id: str
    subtask: int
    attempt_number: int
    count: int
    """Of the files that this attempt has made, 0 first."""

    @property
    def staged(self) -> str:
        """While it is hidden, relative to the destination."""
        return (
            f"{_STAGING}/{_checked(self.driver_id)}/"
            f"{self.subtask}-{self.attempt_number}-{self.count}.parquet"
        )

    @property
    def final(self) -> str:
        """Once it is published, relative to the destination.

        Tells two drivers apart that gave one attempt number.
        """
        driver = blake2b(f"{self.job_id}/{self.driver_id}".encode(), digest_size=4).hexdigest()
        return f"part-{self.subtask:05}-{self.attempt_number:03}-{self.count:05}-{driver}.parquet"


class Destination:
    """The folder `root` of the local file system, absolute. Holds nothing open; pickles.

    `prepare` comes first, on the driver. All methods may run twice at once, also in two drivers.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self, job_id: str) -> None:
        """Make the folder, or find that it is this job's already, and can be published in.

        Raises:
            SinkError: It is another job's or nobody's, is not a folder, or cannot be written or
                linked in.
        """
        if self.root.exists() and not self.root.is_dir():
            raise SinkError(
                str(self.root), "the destination is a file", "give a folder, or a name that is free"
            )
        with sink_errors(self.root, "it cannot be made ready"):
            make_folders(self.root)
            if not self._owner_file.exists():
                foreign = sorted(one.name for one in self.root.iterdir() if one.name != _HIDDEN)
                if foreign:
                    raise SinkError(
                        str(self.root),
                        f"a destination that is not ours: it holds {len(foreign)} names that this "
                        f"job did not make, {foreign[0]!r} first",
                        "give a folder that is empty or does not exist",
                    )
                make_folders(self.root / _HIDDEN)
                created = datetime.now(UTC).isoformat(timespec="seconds")
                owner = json.dumps({"job_id": job_id, "created": created})
                write_once(self._owner_file, owner.encode())
            self.check_owner(job_id)
            make_folders(self.root / _STAGING)
        self._check_links()

    def check_owner(self, job_id: str) -> None:
        """Raise SinkError where this machine does not see the destination, or another job's."""
        try:
            owner = json.loads(self._owner_file.read_bytes())["job_id"]
        except FileNotFoundError as error:
            raise SinkError(
                str(self.root),
                "a destination that is not ours: no job has made it ready, as this machine sees it",
                "use a path that the driver and all executors share",
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SinkError(
                str(self._owner_file),
                f"it does not say whose the destination is: {error!r}",
                "put it back as it was, or give another destination",
            ) from error
        if owner != job_id:
            raise SinkError(
                str(self.root),
                f"a destination that is not ours: it is of job {owner!r}, this is job {job_id!r}",
                "give each job a destination of its own",
            )

    def settle_schema(self, schema: pa.Schema) -> pa.Schema:
        """The schema of all files here: `schema`, for the first who asks; then what it was.

        Raises:
            SinkError: `schema` would be the first and has a column without a type.
        """
        file = self.schema_file
        with sink_errors(file, "the schema of the destination cannot be settled"):
            if not file.exists():
                for column in schema:
                    if pa.types.is_null(column.type):
                        raise SinkError(
                            str(self.root),
                            f"column {column.name!r} has no type: all its first values are null",
                            "give the sink a `schema=`, or the column a type in the transform",
                        )
                plain = pa.schema(pa.field(one.name, one.type) for one in schema)
                write_once(file, plain.serialize().to_pybytes())
            try:
                return pa.ipc.read_schema(pa.py_buffer(file.read_bytes()))
            except pa.ArrowException as error:
                raise SinkError(
                    str(file), f"it holds no schema: {error}", "put it back as it was"
                ) from error

    @property
    def schema_file(self) -> Path:
        """Where the schema of all files stands."""
        return self.root / _HIDDEN / "schema.arrow"

    def staged_path(self, relative: str) -> Path:
        """The file `relative` of a committable.

        Raises SinkError where that is no staged name of ours.
        """
        folder, _, name = relative.rpartition("/")
        area, _, driver_id = folder.rpartition("/")
        if area != _STAGING or not _DRIVER_ID.fullmatch(driver_id) or not _STAGED.fullmatch(name):
            raise self._no_name_of_ours(relative)
        return self._inside(relative)

    def final_path(self, relative: str) -> Path:
        """The file `relative` as readers will see it.

        Raises SinkError where that is no name in the destination.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", relative):
            raise self._no_name_of_ours(relative)
        return self._inside(relative)

    def clean(
        self, *, driver_id: str, subtask: int, attempt_number: int, keep: AbstractSet[str]
    ) -> None:
        """Delete the staged files of one attempt that is over, but those in `keep`."""
        mine = (str(subtask), str(attempt_number))
        self._delete(
            self.root / _STAGING / _checked(driver_id),
            keep,
            lambda name: (
                (found := _STAGED.fullmatch(name)) is not None and found.groups()[:2] == mine
            ),
        )

    def sweep(self, *, keep: AbstractSet[str]) -> None:
        """Delete all staged files but those in `keep`.

        Only when no attempt of the job lives, of any driver.
        """
        with sink_errors(self.root, "staged files cannot be listed"):
            staging = self.root / _STAGING
            drivers = sorted(staging.iterdir()) if staging.is_dir() else []
        for one in drivers:
            if one.is_symlink() or not one.is_dir():
                continue
            self._delete(one, keep, lambda name: _STAGED.fullmatch(name) is not None)
            with suppress(OSError):
                one.rmdir()  # fails where something is kept in it, which is as it should be

    def _delete(
        self, folder: Path, keep: AbstractSet[str], is_meant: Callable[[str], bool]
    ) -> None:
        with sink_errors(folder, "staged files cannot be deleted"):
            self._inside(f"{_STAGING}/{folder.name}/x")
            for one in sorted(folder.iterdir()) if folder.is_dir() else ():
                if is_meant(one.name) and f"{_STAGING}/{folder.name}/{one.name}" not in keep:
                    one.unlink(missing_ok=True)

    def _inside(self, relative: str) -> Path:
        """`relative` below the root, when no link on the way leads elsewhere."""
        folder = (self.root / relative).parent
        if folder.resolve() != self.root.resolve() / folder.relative_to(self.root):
            raise SinkError(
                str(folder),
                "a link leads out of the destination",
                "remove it: nothing of this package makes links to folders",
            )
        return self.root / relative

    def _no_name_of_ours(self, relative: str) -> SinkError:
        return SinkError(
            str(self.root),
            f"{relative!r} is no name that a file of this sink may have",
            "see which version wrote this; nothing was touched",
        )

    def _check_links(self) -> None:
        """Publish a probe as settling does: a second link of one name must be refused."""
        probe = f"probe-{uuid4().hex}"
        staged, final = self.root / _STAGING / probe, self.root / f".{probe}"
        with sink_errors(
            self.root, "its file system cannot publish a file without replacing one (a hard link)"
        ):
            try:
                staged.touch(exist_ok=False)
                os.link(staged, final)
                try:
                    os.link(staged, final)
                except FileExistsError:
                    sync_folder(self.root)
                else:
                    raise SinkError(
                        str(self.root),
                        "its file system replaces a name where it should refuse",
                        "give a destination on another file system",
                    )
            finally:
                final.unlink(missing_ok=True)
                staged.unlink(missing_ok=True)

    @property
    def _owner_file(self) -> Path:
        return self.root / _HIDDEN / "owner.json"


def _checked(driver_id: str) -> str:
    if not _DRIVER_ID.fullmatch(driver_id):
        raise OptionError(
            "driver_id", driver_id, "letters, digits, dots, hyphens and underscores, a letter first"
        )
    return driver_id
