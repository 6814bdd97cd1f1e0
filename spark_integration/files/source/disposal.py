"""What becomes of a file that was read: it is deleted or archived, if it is still exactly the one that was read.

Each step may be the last one before a crash, and everything may be repeated, by two drivers at once too.
A local file is first moved into a hidden folder of its own, so that a file that takes its place is not touched.
"""

from __future__ import annotations

import errno
import filecmp
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from coordlog.log.local.fsync import sync_path
from coordlog.spark_integration.files.links import is_behind_link
from coordlog.spark_integration.files.listing import InputFiles, ListedFile, seen_as
from coordlog.spark_integration.files.missing import is_mounted
from coordlog.spark_integration.files.payloads import ReadFile

__all__ = ["NotDisposedError", "dispose"]

_ASIDE: Final = ".coordlog-read-"
"""Beginning of the hidden name of a local file that is about to be archived or deleted."""
_COPY_BYTES_MAX: Final = 5 * 1024**3
"""Largest object that one request copies."""
_MARK: Final = "coordlog-read"
"""Metadata of an archived object: which file it is the copy of."""
_KEPT_METADATA: Final = (
    "CacheControl",
    "ContentDisposition",
    "ContentEncoding",
    "ContentLanguage",
    "ContentType",
)
_CONDITIONS: Final = ("412", "PreconditionFailed", "ConditionalRequestConflict")
"""Codes of a store that has another object than the request names."""
_UNKNOWN: Final = ("NotImplemented", "501", "InvalidArgument", "InvalidRequest")
"""Codes of a store, and by name a client, that know no condition of a deletion."""
_REPLACED: Final = "it was replaced while it was archived or deleted"
_NO_LINKS: Final = (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS)
_copying: Final[dict[str, str]] = {}
"""Identity of the file that this process copies to a name in S3 at the moment, by the name."""

At = Callable[[str], None]


class NotDisposedError(Exception):
    """The file is left as it is; `is_final`: another try would leave it too."""

    def __init__(self, problem: str, *, is_final: bool = False) -> None:
        super().__init__(problem)
        self.is_final = is_final


def dispose(files: InputFiles, file: ReadFile, at: At = lambda _step: None) -> None:
    """Archive or delete a file all rows of which are committed. One that is gone needs nothing more.

    Args:
        files: The source's files.
        file: The file as it was read, with its place in the archive; no place: it is deleted.
        at: Called at each place at which a crash would leave something; tests crash there.

    Raises:
        NotDisposedError: The file is another one now, or a link; it stays as it is.
        OSError: The file system refuses.
    """
    exact = replace(files, compares_marks=True)
    if files.is_on_s3:
        _dispose_object(exact, file, at)
    else:
        _dispose_local(exact, file, at)


def _identity(file: ReadFile) -> str:
    text = f"{file.path}\0{file.size_bytes}\0{file.mark}"
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _check_same(files: InputFiles, file: ReadFile, now: ListedFile) -> None:
    if not file.mark or not now.mark:
        raise NotDisposedError("its file system reports no mark of its content", is_final=True)
    difference = files.difference(file, now)
    if difference is not None:
        raise NotDisposedError(f"it has changed since it was read: {difference}", is_final=True)


# --- local files ----------------------------------------------------------------------------------
def _dispose_local(files: InputFiles, file: ReadFile, at: At) -> None:
    folder = os.path.dirname(file.path)  # noqa: PTH120, plain paths as in a listing
    aside = f"{folder}/{_ASIDE}{_identity(file)}"
    if not _names_in(aside):
        if not _set_aside(files, file, aside, at):
            return
        at("set aside")
    for name in _names_in(aside):
        try:
            _dispose_aside(files, file, name, at)
        except FileNotFoundError:
            if os.path.lexists(name):  # else another driver has done the same
                raise
    with suppress(OSError):
        os.rmdir(aside)  # noqa: PTH106, as above
    with suppress(FileNotFoundError):  # the emptied folder was removed meanwhile
        sync_path(Path(folder))


def _dispose_aside(files: InputFiles, file: ReadFile, name: str, at: At) -> None:
    try:
        _check_same(files, file, files.seen_at(name, file.path))
    except NotDisposedError:
        _put_back(name, file.path)
        raise
    if file.target:
        _archive(name, file, at)
        at("archived")
    os.unlink(name)  # noqa: PTH108, as above


def _names_in(folder: str) -> list[str]:
    try:
        return [f"{folder}/{name}" for name in sorted(os.listdir(folder))]  # noqa: PTH208
    except FileNotFoundError:
        return []


def _set_aside(files: InputFiles, file: ReadFile, aside: str, at: At) -> bool:
    """Move the file into a hidden folder of its own; False if it is gone."""
    try:
        if is_behind_link(file.path, file.real_path) or os.path.islink(file.path):  # noqa: PTH114
            raise NotDisposedError(
                "a link leads to it, and the file may be in use elsewhere", is_final=True
            )
        now = files.seen_at(file.path, file.path)
        if files.difference(file, now) is not None and _is_archived(files, file):
            return False  # another file has its name now
        _check_same(files, file, now)
        if files.names(file.path):
            raise NotDisposedError(
                "the path of the source names it, and no listing would succeed without it: name its folder, or a glob",
                is_final=True,
            )
        at("checked")
        with suppress(FileExistsError):
            os.mkdir(aside)  # noqa: PTH102, not its parents: they may have been moved away
        at("folder made")
        # Never the same name twice: a rename replaces, and another driver may do the same.
        os.rename(file.path, f"{aside}/{uuid4().hex}")  # noqa: PTH104
    except FileNotFoundError:
        with suppress(OSError):
            os.rmdir(aside)  # noqa: PTH106
        _check_gone(files, file)
        return False
    return True


def _is_archived(files: InputFiles, file: ReadFile) -> bool:
    """Whether an earlier try has archived the file."""
    moment = file.mark.partition(" file ")[0]  # to the nanosecond; a copy has another inode
    for target in (file.target, f"{file.target}.{_identity(file)}") if file.target else ():
        with suppress(FileNotFoundError, NotADirectoryError):
            copy = files.seen_at(target, file.path)
            if (copy.size_bytes, copy.mark.partition(" file ")[0]) == (file.size_bytes, moment):
                return True
    return False


def _check_gone(files: InputFiles, file: ReadFile) -> None:
    """Check that the file is gone, and not its folder or its file system: it would come back, and be read twice."""
    folder = os.path.dirname(file.path)  # noqa: PTH120, plain paths as in a listing
    if _is_archived(files, file):
        return
    if not os.path.isdir(folder):  # noqa: PTH112, as above
        raise NotDisposedError(f"{folder} is not there")
    if not is_mounted(folder, file):
        raise NotDisposedError(f"{folder} is on another file system than the file was")


def _put_back(name: str, path: str) -> None:
    """Undo the hidden name of a file that is another one than was read."""
    try:
        os.link(name, path)
    except FileExistsError:
        raise NotDisposedError(
            f"it was replaced twice since it was read: the first of these files is {name} now",
            is_final=True,
        ) from None
    except OSError as error:
        if error.errno not in _NO_LINKS or os.path.lexists(path):
            raise
        os.rename(name, path)  # noqa: PTH104, of a file system without links
    else:
        os.unlink(name)  # noqa: PTH108
    with suppress(OSError):
        os.rmdir(os.path.dirname(name))  # noqa: PTH106, PTH120


def _archive(name: str, file: ReadFile, at: At) -> None:
    """Give the file its name in the archive, or another one if that is taken by another file."""
    folder = os.path.dirname(file.target)  # noqa: PTH120
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    for target in (file.target, f"{file.target}.{_identity(file)}"):
        if _has_taken(name, target, file, at):
            sync_path(Path(folder))
            return
    raise NotDisposedError(f"{file.target} exists in the archive", is_final=True)


def _has_taken(name: str, target: str, file: ReadFile, at: At) -> bool:
    """Whether the file has this name in the archive now; False: another file has it."""
    try:
        os.link(name, target)
    except FileExistsError:
        return _is_copy(name, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    else:
        return True
    if os.path.lexists(target):
        return _is_copy(name, target)
    drafts = f"{os.path.dirname(target)}/{_ASIDE}{_identity(file)}"  # noqa: PTH120
    os.makedirs(drafts, exist_ok=True)  # noqa: PTH103
    draft = f"{drafts}/{uuid4().hex}"
    try:
        _copy(name, draft)
        sync_path(Path(draft))
        at("copied")
        os.link(draft, target)
    except FileExistsError:
        return _is_copy(name, target)
    finally:
        shutil.rmtree(drafts, ignore_errors=True)
    return True


def _copy(name: str, draft: str) -> None:
    """Copy a file with its owner, group, mode, ACL and time, as a move does: no other user may read the copy."""
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    shutil.copyfile(name, draft)
    status = os.stat(name)  # noqa: PTH116
    os.utime(draft, ns=(status.st_atime_ns, status.st_mtime_ns))
    for uid, gid in ((-1, status.st_gid), (status.st_uid, -1)):
        with suppress(OSError):  # only root may give a file away
            os.chown(draft, uid, gid)
    with suppress(PermissionError):  # of a file system with rights of its own
        shutil.copystat(name, draft)


def _is_copy(name: str, target: str) -> bool:
    """Whether the archived file is this one, or has every byte of it, as the copy that an earlier try has made."""
    ours = os.stat(name)  # noqa: PTH116
    try:
        theirs = os.stat(target)  # noqa: PTH116
    except FileNotFoundError:  # a link that leads nowhere, or it was moved away meanwhile
        return False
    if (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino):
        return True
    # Size and time are not enough: another file of this name may have both.
    return filecmp.cmp(name, target, shallow=False)


# --- objects --------------------------------------------------------------------------------------
def _dispose_object(files: InputFiles, file: ReadFile, at: At) -> None:
    store = files.file_system()
    bucket, key, _ = store.split_path(file.path)
    head = _head(store, bucket, key)
    if head is None:
        return
    now = seen_as(file.path, {**head, "size": head["ContentLength"]})
    if files.difference(file, now) is not None and _is_object_archived(store, file):
        return
    _check_same(files, file, now)
    at("checked")
    if file.target:
        copied = _copy_object(store, file, head, at)
        at("archived")
        # Not every store knows the conditions of a copy and a deletion.
        left = _head(store, bucket, key)
        if left is None:
            return
        if left["ETag"] != head["ETag"]:
            store.call_s3("delete_object", **copied)
            raise NotDisposedError(_REPLACED, is_final=True)
    condition = {"Bucket": bucket, "Key": key, "IfMatch": head["ETag"]}
    try:
        store.call_s3("delete_object", **condition)
    except FileNotFoundError:
        return
    except Exception as error:
        if _code(error) in _CONDITIONS:
            raise NotDisposedError(_REPLACED, is_final=True) from error
        if _code(error) not in _UNKNOWN and type(error).__name__ != "ParamValidationError":
            raise
        store.call_s3("delete_object", Bucket=bucket, Key=key)


# `Any`: fsspec has no types.
def _copy_object(store: Any, file: ReadFile, head: dict[str, Any], at: At) -> dict[str, str]:  # noqa: ANN401
    """Copy an object into the archive, unless an earlier try has done it; returns bucket and key of the copy."""
    if head["ContentLength"] > _COPY_BYTES_MAX:
        raise NotDisposedError(
            "it has more than 5 GiB, and one request copies no more", is_final=True
        )
    source_bucket, source_key, _ = store.split_path(file.path)
    identity = _identity(file)
    for target in (file.target, f"{file.target}.{identity}"):
        bucket, key, _ = store.split_path(target)
        with _alone_at(target, identity) as is_free:
            there = _head(store, bucket, key) if is_free else {}
            if there is not None:
                if _is_object_copy(there, file):
                    return {"Bucket": bucket, "Key": key}
                continue
            at("target checked")
            try:
                store.call_s3(
                    "copy_object",
                    Bucket=bucket,
                    Key=key,
                    CopySource={"Bucket": source_bucket, "Key": source_key},
                    CopySourceIfMatch=head["ETag"],
                    MetadataDirective="REPLACE",
                    Metadata={**head.get("Metadata", {}), _MARK: identity},
                    **{name: head[name] for name in _KEPT_METADATA if head.get(name)},
                )
            except OSError as error:
                if _code(error) in _CONDITIONS:
                    raise NotDisposedError(_REPLACED, is_final=True) from error
                raise
        return {"Bucket": bucket, "Key": key}
    raise NotDisposedError(f"{file.target} exists in the archive", is_final=True)


def _is_object_archived(store: Any, file: ReadFile) -> bool:  # noqa: ANN401, as above
    """Whether an earlier try has archived the object, and another has its name now."""
    targets = [file.target, f"{file.target}.{_identity(file)}"] if file.target else []
    heads = (_head(store, *store.split_path(target)[:2]) for target in targets)
    return any(head is not None and _is_object_copy(head, file) for head in heads)


def _is_object_copy(head: Mapping[str, Any], file: ReadFile) -> bool:
    """Whether an object in the archive is the copy of this file."""
    is_marked = head.get("Metadata", {}).get(_MARK) == _identity(file)
    return bool(is_marked and head["ContentLength"] == file.size_bytes)


@contextmanager
def _alone_at(target: str, identity: str) -> Iterator[bool]:
    """Whether no other file is copied to this name at the moment: a copy replaces, and the other would be lost."""
    if (begun := _copying.setdefault(target, identity)) is identity:
        try:
            yield True
        finally:
            del _copying[target]
    elif begun == identity:
        raise NotDisposedError(f"it is being copied to {target} already")
    else:
        yield False


def _head(store: Any, bucket: str, key: str) -> dict[str, Any] | None:  # noqa: ANN401, as above
    try:
        head: dict[str, Any] = store.call_s3("head_object", Bucket=bucket, Key=key)
    except FileNotFoundError:
        return None
    return head


def _code(error: Exception) -> str:
    """Code of a store's refusal; empty for other errors."""
    response = getattr(error.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))
