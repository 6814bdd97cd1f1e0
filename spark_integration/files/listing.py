"""The files of a source: lists them in one fixed order, and opens them."""

from __future__ import annotations

import datetime as dt
import fnmatch
import functools
import os
import posixpath
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Final, Protocol, cast

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from coordlog.errors import SourceError
from coordlog.spark_integration.files.linked_names import LocalRoot, is_listed_elsewhere
from coordlog.spark_integration.files.links import leads_elsewhere
from coordlog.spark_integration.files.local_globs import names_matching
from coordlog.spark_integration.files.local_names import UNNAMED, check_locale, check_name, is_utf8
from coordlog.spark_integration.files.missing import cause_of, gone, not_to_be_listed, unreadable
from coordlog.spark_integration.files.remote_names import (
    file_info,
    files_below,
    remote_names_matching,
)
from coordlog.spark_integration.files.s3_names import (
    is_name_of,
    is_s3,
    object_in_listing,
    objects_below,
    objects_matching,
)
from coordlog.spark_integration.files.urls import VERSION_MARK, WEB, missing_library
from coordlog.spark_integration.files.web_files import (
    WholeBody,
    headers_for_ranges,
    info_of,
    web_info,
    web_options,
)

__all__ = [
    "InputFiles",
    "ListedFile",
    "SeenFile",
    "as_listed",
    "compared_mark",
    "fixed_part",
    "has_wildcard",
    "is_local",
    "modified_us",
    "seen_as",
]

_MAGIC: Final = frozenset("*?[")
_MARKS: Final = (
    ("etag", "ETag"),
    ("etag", "etag"),
    ("checksum", "md5Hash"),
    ("checksum", "Content-MD5"),
    ("modified", "LastModified"),
    ("modified", "last_modified"),
    ("modified", "Last-Modified"),
    ("modified", "modified"),
    ("modified", "updated"),
    ("modified", "mtime"),
    ("modified", "created"),
)
"""Entries of fsspec's `info` that show a change, best first, each after the word for it."""
_MODIFIED: Final = "modified"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class SeenFile(Protocol):
    """A file as it was when it was listed."""

    @property
    def path(self) -> str:
        """Path of the file in its file system."""
        ...

    @property
    def size_bytes(self) -> int:
        """Size, or -1 if the file system does not report it."""
        ...

    @property
    def mark(self) -> str:
        """Mark that changes with the content (`etag …`, `modified …`); empty if none is known.

        The time of a file with an etag follows it, and is not compared.
        """
        ...

    @property
    def real_path(self) -> str:
        """Target of the links of a local file, relative to the source's folder; else empty."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFile:
    """A file of a listing; a `SeenFile`."""

    path: str
    """Path of the file in its file system, without a protocol."""
    size_bytes: int
    """Size, or -1 if the file system does not report it."""
    mark: str = ""
    real_path: str = ""
    may_seek: bool = True
    """False: the file can be read from its start only."""


def modified_us(seen: SeenFile) -> int | None:
    """Time at which the file was modified, microseconds since 1970, UTC; None if its mark has none."""
    text = f" {seen.mark}".partition(f" {_MODIFIED} ")[2].partition(" file ")[0]
    if not text:
        return None
    try:
        moment = dt.datetime.fromisoformat(
            text
        )  # of nanoseconds, the last three digits are dropped
    except ValueError:
        try:
            moment = parsedate_to_datetime(text)  # of a web server
        except ValueError:
            return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return (moment - _EPOCH) // dt.timedelta(microseconds=1)


def compared_mark(mark: str) -> str:
    """The part of a mark that is compared: without the time of a file that has an etag."""
    return _compared(mark)


def seen_as(path: str, info: Mapping[str, Any]) -> ListedFile:
    """The file with this `info` of fsspec, or this answer of S3."""
    return _of_info(path, info)


def as_listed(seen: SeenFile) -> ListedFile:
    """The file of a split, as a listing had it."""
    return ListedFile(
        path=seen.path, size_bytes=seen.size_bytes, mark=seen.mark, real_path=seen.real_path
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFiles:
    """The files behind paths, globs or fsspec URLs. Pickles; holds nothing open.

    Names that begin with `.` or `_`, and all files below such folders, are left out, as in Spark; a
    file that is named outright is not.
    """

    url: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options for fsspec. May hold secrets: neither printed nor in the log."""
    compares_marks: bool = True
    """False: only another size counts as a change."""
    exclude: tuple[str, ...] = ()
    """Globs of files and folders that are left out: see `leaves_out`."""
    also: tuple[str, ...] = ()
    """Further paths, globs or URLs of the same file system."""
    start_after: str = ""
    """Name below a path's fixed part: names up to it, in the order of code points, are not listed. Empty: all are."""

    @property
    def urls(self) -> tuple[str, ...]:
        """All paths, globs and URLs."""
        return (self.url, *self.also)

    def walk(self) -> Iterator[ListedFile]:
        """All files of `list`, each as it is found; those of one path in the order of their names.

        Holds a page of an S3 bucket's names, the names of a local folder and of the folders above it, or all names of
        another file system. A file that two paths have may come twice.

        Raises:
            SourceError, SourceUnavailableError: As `list`.
        """
        return filter(self._is_read, self._walk_all())

    def list(self, *, allow_none: bool = False) -> tuple[ListedFile, ...]:
        """All files, sorted by path.

        Args:
            allow_none: No file, and none but empty ones, are no error.

        Raises:
            SourceError: There is no file, all are empty, or a name leads out of the source.
            SourceUnavailableError: The file system refuses, or nothing is under the path.
        """
        # Two paths, or the `**` of a glob, may have the same file.
        by_path = {file.path: file for file in self._walk_all()}
        listed = [by_path[name] for name in sorted(by_path) if self._is_read(by_path[name])]
        if not listed and not allow_none:
            why = "names that begin with `.` or `_` are not read"
            why += f"; `exclude` leaves out {len(by_path)}" if by_path else ""
            raise SourceError(
                self.url,
                f"there is no file to read ({why})",
                "name a file, a folder with files, or a glob that matches some",
            )
        if all(file.size_bytes == 0 for file in listed) and not allow_none:
            raise SourceError(
                self.url,
                f"all files are empty: {len(listed)} of 0 bytes",
                "name files that hold rows, or at least a header",
            )
        return tuple(listed)

    def leaves_out(self, path: str) -> bool:
        """Whether `exclude` names the file `path`, or a folder of the source that contains it.

        A pattern without a slash is compared with each name below the source's fixed part, a pattern with a
        slash with the path below it, a pattern that begins with a slash with the whole path, each of the file and of
        the folders above it; `*` takes slashes too.
        """
        if not self.exclude:
            return False
        root = fixed_part(self._root_of(path))
        below = path.removeprefix(root.rstrip("/")).strip("/") or posixpath.basename(path)
        names = below.split("/")
        folders = ["/".join(names[:count]) for count in range(1, len(names) + 1)]
        wholes = [f"{path.removesuffix(below)}{folder}" for folder in folders]
        return any(
            fnmatch.fnmatchcase(name, pattern)
            for pattern in self.exclude
            for name in (
                wholes if pattern.startswith("/") else folders if "/" in pattern else names
            )
        )

    def has_name(self, path: str) -> bool:
        """Whether a listing of these objects of S3 would have this name, if there is an object of it."""
        for url in self.urls:
            root = self._file_system(url)[1]
            fixed = fixed_part(root) if has_wildcard(root) else root
            is_listed = is_name_of(root, path, is_of_folders=url.endswith("/"))
            is_after = path > self._after(root) or path == root
            if is_listed and is_after and not _is_hidden(path, fixed):
                return not path.endswith("/") and not self.leaves_out(path)
        return False

    def names(self, path: str) -> bool:
        """Whether a path of the source is this one, and neither its folder nor a glob."""
        return any(self._file_system(url)[1] == path for url in self.urls)

    def is_there(self) -> bool:
        """Whether each file exists, and each folder, and the part of each glob before its wildcards, may be read."""
        try:
            return all(_is_there(*self._file_system(url)) for url in self.urls)
        except Exception:  # noqa: BLE001, file systems raise errors of any type
            return False

    def open(self, seen: SeenFile, *, seeks: bool = False) -> BinaryIO:
        """Open a listed file, at its start.

        Args:
            seen: The file as it was listed.
            seeks: The reader seeks, if the file system can.

        Raises:
            SourceError: The file cannot be opened, or has changed since it was listed.
        """
        file_system, _ = self._file_system()
        check_name(seen)
        try:
            if isinstance(file_system, LocalFileSystem):
                # A plain path, which the caller closes.
                opened = cast("BinaryIO", open(seen.path, "rb", buffering=0, opener=_unblocked))  # noqa: SIM115
                status = os.fstat(opened.fileno())
                now = _of_status(status, seen.path, self._root_of(seen.path))
            else:
                file_system.invalidate_cache()
                now = _of_info(seen.path, info_of(file_system, seen.path))
                options: dict[str, Any] = {}
                size_bytes = max(seen.size_bytes, now.size_bytes)
                if seeks and seen.path.startswith(WEB):
                    options["headers"] = headers_for_ranges(file_system)
                elif not (seeks or now.may_seek) and size_bytes > 0:
                    options["block_size"] = 0
                opened = cast("BinaryIO", file_system.open(seen.path, "rb", **options))
                if "block_size" in options:
                    opened = cast("BinaryIO", WholeBody(opened, size_bytes))
        except SourceError:
            raise
        except Exception as error:  # noqa: BLE001, file systems raise errors of any type
            raise gone(seen, error) from cause_of(seen, error)
        try:
            self._compare(seen, now, "since the source was listed")
        except SourceError:
            opened.close()
            raise
        return opened

    def look(self, seen: SeenFile) -> ListedFile:
        """The same file as it is now.

        Raises:
            SourceError: The file is gone.
        """
        file_system, _ = self._file_system()
        check_name(seen)
        if not is_local(self.url):
            _refuse_version(seen)
        try:
            if isinstance(file_system, LocalFileSystem):
                status = os.stat(seen.path)  # noqa: PTH116, as fsspec returns it
                return _of_status(status, seen.path, self._root_of(seen.path))
            file_system.invalidate_cache()
            return _of_info(seen.path, info_of(file_system, seen.path))
        except SourceError:
            raise
        except Exception as error:  # noqa: BLE001, as above
            raise gone(seen, error) from cause_of(seen, error)

    def look_in_listing(self, path: str) -> ListedFile | None:
        """An object of S3 as a listing has it, which needs no right to read it; None if it is gone.

        Raises:
            SourceUnavailableError: The store refuses the listing, or does not answer.
        """
        try:
            info = object_in_listing(self._file_system()[0], path)
        except OSError as error:
            raise unreadable(path, error) from error
        return None if info is None else _of_info(path, info)

    @property
    def is_on_s3(self) -> bool:
        """Whether the files are objects of a store of the S3 protocol. Raises SourceError."""
        return not is_local(self.url) and is_s3(self._file_system()[0])

    # `Any`: fsspec has no types.
    def file_system(self) -> Any:  # noqa: ANN401
        """The file system of all paths. Raises SourceError."""
        return self._file_system()[0]

    def seen_at(self, place: str, path: str) -> ListedFile:
        """The local file `path`, which is at `place` now. Raises OSError."""
        return _of_status(os.stat(place), path, self._root_of(path), "")  # noqa: PTH116, a plain path

    def below_root(self, path: str) -> str:
        """Path of a file below the fixed part of the source's path; for a file that is the source, its name."""
        root = fixed_part(self._root_of(path)).rstrip("/")
        return path.removeprefix(f"{root}/") if path != root else posixpath.basename(path)

    def check(self, seen: SeenFile) -> None:
        """Check, after the file has been read, that it is still the listed one.

        Raises:
            SourceError: The file is gone, or has changed.
        """
        self._compare(seen, self.look(seen), "while it was read")

    def check_so_far(self, seen: SeenFile) -> None:
        """Check, after a part of a local file has been read, that it is still the listed one.

        Its links are not resolved again. Does nothing for other files: each check would be a request.

        Raises:
            SourceError: The file is gone, or has changed.
        """
        if not is_local(self.url):
            return
        try:
            status = os.stat(seen.path)  # noqa: PTH116, as fsspec returns it
        except OSError as error:
            raise gone(seen, error) from cause_of(seen, error)
        now = _of_status(status, seen.path, self.url, seen.real_path)
        self._compare(seen, now, "while it was read")

    def difference(self, seen: SeenFile, now: SeenFile) -> str | None:
        """Description of the change, or None if no change can be seen."""
        if min(seen.size_bytes, now.size_bytes) >= 0 and seen.size_bytes != now.size_bytes:
            return (
                f"it has {now.size_bytes} bytes; it had {seen.size_bytes} when the source was "
                "listed"
            )
        if leads_elsewhere(now.path, seen.real_path, now.real_path):
            return (
                f"a link on its way leads to {now.real_path} now; when the source was listed it "
                f"was {seen.real_path}"
            )
        # Marks of two kinds cannot be compared: some file systems give fewer in a listing.
        kinds = seen.mark.partition(" ")[0], now.mark.partition(" ")[0]
        if self.compares_marks and kinds[0] == kinds[1] and not _is_same_mark(seen.mark, now.mark):
            was, _, was_file = _compared(seen.mark).partition(" file ")
            is_now, _, now_file = _compared(now.mark).partition(" file ")
            if was == is_now:
                return (
                    f"another file of the same size and time has taken its place: {now_file}; when the "
                    f"source was listed {was_file} (device:inode); if its file system gives files new numbers, "
                    'compare sizes alone (`changed_by="size"`)'
                )
            return f"its content may be another: {is_now}; when the source was listed {was}"
        return None

    def _compare(self, seen: SeenFile, now: SeenFile, when: str) -> None:
        changed = self.difference(seen, now)
        if changed is not None:
            raise SourceError(
                seen.path,
                f"it has changed {when}: {changed}",
                "put the file back as it was and changed content into a new file: rows of the old "
                "one may be in use already",
            )

    def _file_system(self, url: str | None = None) -> tuple[Any, str]:
        """File system and path of `url`, or of the first path."""
        url = self.url if url is None else url
        if is_local(url) and not self.storage_options:
            return _local_at(url)  # called twice for each file: fsspec's parsing takes long
        try:
            options = web_options() if url.startswith(WEB) else {}
            file_system, path = url_to_fs(url, **{**options, **self.storage_options})
        except (ImportError, ValueError) as error:
            raise missing_library(url, error) from error
        return file_system, str(path)

    def _root_of(self, name: str) -> str:
        """The path, perhaps a glob, to which the file `name` belongs."""
        root = self._file_system()[1]
        if not self.also or _is_at_or_below(name, fixed_part(root)):
            return root
        roots = (self._file_system(url)[1] for url in self.also)
        return next((other for other in roots if _is_at_or_below(name, fixed_part(other))), root)

    def _is_read(self, file: ListedFile) -> bool:
        """Whether `exclude` does not name the file. Raises SourceError if its name would be read as another one."""
        if self.leaves_out(file.path):
            return False
        if not is_local(self.url):
            _refuse_version(file)
        return True

    def _walk_all(self) -> Iterator[ListedFile]:
        """All files, with those that `exclude` leaves out."""
        paths = [self._file_system(url)[1] for url in self.urls] if is_local(self.url) else []
        roots = [self._local_root(path) for path in paths]
        for number, url in enumerate(self.urls):
            file_system, path = self._file_system(url)
            try:
                for file in self._walk(file_system, path, url):
                    if not roots or not is_listed_elsewhere(
                        file.path, file.real_path, roots[number], roots, self.leaves_out
                    ):
                        yield file
            except SourceError:
                raise
            except Exception as error:
                raise unreadable(path, error) from error

    def _after(self, path: str) -> str:
        """Whole name after which the files of `path` are listed; empty: all are."""
        return f"{fixed_part(path).rstrip('/')}/{self.start_after}" if self.start_after else ""

    def _local_root(self, path: str) -> LocalRoot:
        is_glob = has_wildcard(path) and not os.path.lexists(path)
        fixed = fixed_part(path) if is_glob else path
        real, base, after = os.path.realpath(fixed), _real_base(path), self._after(path)
        glob = path if is_glob else None
        return LocalRoot(fixed=fixed, real=real, base=base, glob=glob, after=after)

    # `Any`: fsspec has no types.
    def _walk(self, file_system: Any, path: str, url: str) -> Iterator[ListedFile]:  # noqa: ANN401
        after = self._after(path)
        if isinstance(file_system, LocalFileSystem):
            if os.path.lexists(path) or not has_wildcard(path):
                return _local_below(path, path, after, self.leaves_out)
            roots = names_matching(fixed_part(path), path, self.leaves_out)
            return (f for root in roots for f in _local_below(root, path, after, self.leaves_out))
        if path.startswith(WEB):
            return iter([_of_info(path, web_info(file_system, path))])
        listed = self._on_s3 if is_s3(file_system) else self._remote
        files = listed(file_system, path, url)
        return (f for f in files if f.path > after or f.path == path) if after else files

    # `Any`: fsspec has no types.
    def _on_s3(self, file_system: Any, path: str, url: str) -> Iterator[ListedFile]:  # noqa: ANN401
        file_system.invalidate_cache()
        after = self._after(path)
        if has_wildcard(path):
            fixed = fixed_part(path)
            is_of_folders = url.endswith("/")
            pattern = f"{path.rstrip('/')}/" if is_of_folders else path
            objects = objects_matching(file_system, pattern, after=after)
        else:
            fixed = path
            if not url.endswith("/"):
                yield from _object_at(file_system, path, fixed)
            objects = objects_below(file_system, path, after=after)
        for name, info in objects:
            _refuse_outside(name, fixed)
            if not name.endswith("/") and not _is_hidden(name, fixed):
                yield _of_info(name, info)

    def _remote(self, file_system: Any, path: str, url: str) -> Iterator[ListedFile]:  # noqa: ANN401, as above
        file_system.invalidate_cache()
        fixed = fixed_part(path) if has_wildcard(path) else path
        roots = [path]

        def leaves_out(folder: str) -> bool:
            is_up = "/../" in f"{folder}/"  # to be refused
            return (_is_hidden(folder, fixed) and not is_up) or self.leaves_out(folder)

        if fixed != path:
            roots = remote_names_matching(file_system, fixed, path, leaves_out)
        for root in _outermost(roots):
            below = files_below(file_system, root, leaves_out)
            # An object store may have an object and a folder of one name: `find` gives the folder alone.
            if not url.endswith("/") and root not in below:
                file_system.invalidate_cache()  # it holds the names below alone
                yield from _object_at(file_system, root, fixed)
            for name, entry in below.items():
                _refuse_outside(str(name), fixed)
                if str(name).endswith("/") or _is_hidden(str(name), fixed):
                    continue  # an object store's own sign of a folder; a hidden name
                info = entry
                if info.get("size") is None and not self.leaves_out(str(name)):
                    info = file_system.info(name)
                yield _of_info(str(name), info)


# `Any`: fsspec has no types.
def _object_at(file_system: Any, root: str, fixed: str) -> Iterator[ListedFile]:  # noqa: ANN401
    """The object that has the name of a folder. An empty one is a store's own sign of the folder."""
    if not _is_hidden(root, fixed) and (info := file_info(file_system, root)) is not None:
        file = _of_info(root, info)
        if file.size_bytes:
            yield file


@functools.lru_cache(maxsize=16)
def _local_at(url: str) -> tuple[LocalFileSystem, str]:
    """File system and path of a local URL: `url_to_fs` would take a name with `::` for two URLs."""
    file_system = LocalFileSystem()
    return file_system, str(file_system._strip_protocol(url))  # noqa: SLF001, fsspec's own way


def _unblocked(path: str, flags: int) -> int:
    """Descriptor of the file, which is compared then. Non-blocking: a pipe would wait for a writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _of_info(path: str, info: Mapping[str, Any]) -> ListedFile:
    """The file with this `info` of fsspec."""
    size = info.get("size")
    marks: dict[str, str] = {}
    for word, key in _MARKS:
        if info.get(key) not in (None, ""):
            marks.setdefault(word, f"{word} {_shown(info[key])}")
    best = next(iter(marks), "")
    mark = marks.get(best, "")
    if best not in ("", _MODIFIED) and _MODIFIED in marks:
        mark += f" {marks[_MODIFIED]}"
    return ListedFile(
        path=path,
        size_bytes=-1 if size is None else int(size),
        mark=mark,
        # A web server has ranges only if it reports them.
        may_seek=size is not None and (info.get("partial") is True or not path.startswith(WEB)),
    )


def _shown(value: object) -> str:
    if isinstance(value, (int, float)):
        value = dt.datetime.fromtimestamp(value, dt.UTC)
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat()
    return str(value)


def _of_status(
    status: os.stat_result, path: str, root: str, real_path: str | None = None
) -> ListedFile:
    """The local file with this status.

    Args:
        status: Status of the file, behind its links.
        path: Path with its links.
        root: The source's path, perhaps a glob.
        real_path: `ListedFile.real_path`, if it is known already.
    """
    seconds, rest = divmod(status.st_mtime_ns, 1_000_000_000)
    year, month, day, hour, minute, second = time.gmtime(seconds)[:6]
    moment = f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{rest:09}Z"
    if real_path is None:
        real_path = os.path.relpath(os.path.realpath(path), _real_base(root))
    check_locale(path)
    is_named = is_utf8(path)
    return ListedFile(
        path=path if is_named else os.fsencode(path).decode(errors="backslashreplace"),
        size_bytes=status.st_size,
        mark=f"modified {moment} file {status.st_dev}:{status.st_ino}" if is_named else UNNAMED,
        real_path=real_path if is_named else "",
    )


def _real_base(root: str) -> str:
    """Folder to which `real_path` is relative."""
    return os.path.realpath(fixed_part(root) if has_wildcard(root) else root)


def _is_same_mark(seen: str, now: str) -> bool:
    """Whether two marks of one kind show no change.

    The mark of a local file holds its time and its device and inode: if only the inode differs, another file
    has taken its place. Another device, or a mark without numbers, shows no change: a file system that is
    mounted again, or on another machine, has other numbers.
    """
    seen_moment, _, seen_file = _compared(seen).partition(" file ")
    now_moment, _, now_file = _compared(now).partition(" file ")
    if seen_moment != now_moment:
        return False
    return seen_file.partition(":")[0] != now_file.partition(":")[0] or seen_file == now_file


def _compared(mark: str) -> str:
    """The mark without the time of a file that has an etag: two requests may give it in two precisions."""
    return mark.partition(f" {_MODIFIED} ")[0]


def is_local(url: str) -> bool:
    """Whether the URL is an absolute path, or one of fsspec's URLs for it."""
    return url.startswith(("/", "file://", "local://"))


def has_wildcard(path: str) -> bool:
    """Whether `path` is a glob, unless a file of just that name exists."""
    return bool(_MAGIC & set(path))


def fixed_part(path: str) -> str:
    """The folders of a glob before the first one with a wildcard."""
    kept: list[str] = []
    for part in path.split("/"):
        if has_wildcard(part):
            break
        kept.append(part)
    return "/".join(kept)


def _is_at_or_below(name: str, folder: str) -> bool:
    return name == folder or name.startswith(f"{folder.rstrip('/')}/")


# `Any`: fsspec has no types.
def _is_there(file_system: Any, path: str) -> bool:  # noqa: ANN401
    if isinstance(file_system, LocalFileSystem):
        place = path if os.path.lexists(path) or not has_wildcard(path) else fixed_part(path) or "/"
        if os.path.isfile(place):  # noqa: PTH113, as fsspec returns it
            place = os.path.dirname(place)  # noqa: PTH120
        return os.access(place, os.R_OK | (os.X_OK if os.path.isdir(place) else 0))  # noqa: PTH112, as fsspec returns it
    file_system.invalidate_cache()
    return bool(file_system.exists(fixed_part(path) if has_wildcard(path) else path))


def _outermost(roots: Sequence[str]) -> list[str]:
    """The matches of a glob that are inside no other: `**` matches a folder, and all names in it."""
    kept: list[str] = []
    for root in sorted(roots, key=lambda root: root.split("/")):
        if not kept or not root.startswith(f"{kept[-1]}/"):
            kept.append(root)
    return kept


def _is_hidden(path: str, below: str) -> bool:
    relative = path.removeprefix(below).strip("/")
    return any(part.startswith((".", "_")) for part in relative.split("/"))


def _refuse_version(file: SeenFile) -> None:
    """Refuse a name that would be read as another object: its rows would be missing, the other's read twice."""
    if VERSION_MARK in file.path and not file.path.startswith(WEB):
        raise SourceError(
            file.path,
            f"its name has {VERSION_MARK!r}, which the library for S3 takes for a version of another object",
            "rename the object, or leave it out with `exclude`",
        )


def _refuse_outside(name: str, below: str) -> None:
    """Refuse a listed name that is not below the listed path, also after it is normalised."""
    root = below.rstrip("/")
    is_below = name.rstrip("/") == root or name.startswith(f"{root}/") or not root
    relative = name.removeprefix(below).strip("/")
    if is_below and not {"..", "."} & set(relative.split("/")) and "\0" not in name:
        return
    raise SourceError(
        name,
        f"a listing of {below} has this name, which leads out of it",
        "rename it, or name the files that are to be read",
    )


def _local_below(
    path: str, root: str, after: str, leaves_out: Callable[[str], bool]
) -> Iterator[ListedFile]:
    """Files at or below `path`, which the source's path `root` names or matches; names up to `after` are left out.

    Folders that `leaves_out` names are not opened: perhaps they may not be.
    """
    try:
        status = os.stat(path)  # noqa: PTH116, plain paths as fsspec returns them
    except FileNotFoundError:
        if path == root or os.path.islink(path):  # noqa: PTH114
            raise not_to_be_listed(path) from None
        return  # moved away since the folder above was listed: perhaps a finished file
    if stat.S_ISDIR(status.st_mode):
        if path != root and leaves_out(path):
            return
        above = _real_above(path, root)
        yield from _in_folder(path, root, _real_base(root), after, above, leaves_out)
    elif not stat.S_ISREG(status.st_mode):
        raise not_to_be_listed(path)
    elif path == root or path > after:
        yield _of_status(status, path, root)


def _real_above(path: str, root: str) -> frozenset[str]:
    """The real folders above `path`, which the glob `root` matches, up to the glob's fixed part."""
    fixed = fixed_part(root) or "/"
    above = (str(folder) for folder in PurePosixPath(path).parents if path != root)
    return frozenset(os.path.realpath(each) for each in above if _is_at_or_below(each, fixed))


def _in_folder(
    path: str,
    root: str,
    base: str,
    after: str,
    above: frozenset[str],
    leaves_out: Callable[[str], bool],
) -> Iterator[ListedFile]:
    """Files in a folder and its folders. Links are resolved for each folder and each link, not for each file.

    `above` holds the real folders above this one: a link back to one of them is not followed.
    """
    real = os.path.realpath(path)
    if real in above:
        return
    links: set[str] = set()
    try:
        with os.scandir(path) as scan:
            # Strings take half the memory of entries; a folder's slash gives the order of whole paths.
            names = [
                _noted(entry, links) for entry in scan if not entry.name.startswith((".", "_"))
            ]
    except FileNotFoundError:
        if path == root:
            raise
        return
    inside = os.path.relpath(real, base)
    names.sort()
    for noted in names:
        name = posixpath.join(path, noted)
        if name <= after and not after.startswith(name):
            continue  # with all that is in it, if it is a folder
        try:
            if noted.endswith("/"):
                if not leaves_out(name[:-1]):
                    inner = above | {real}
                    yield from _in_folder(name[:-1], root, base, after, inner, leaves_out)
                continue
            status = os.stat(name)  # noqa: PTH116, plain paths as in a listing
            if not stat.S_ISREG(status.st_mode):
                raise not_to_be_listed(name)
            if name > after:
                real_path = None if noted in links else _joined(inside, noted)
                yield _of_status(status, name, root, real_path)
        except FileNotFoundError:
            if os.path.islink(name):  # noqa: PTH114
                raise not_to_be_listed(name) from None  # it leads nowhere
            continue  # moved away since the folder was listed


def _noted(entry: os.DirEntry[str], links: set[str]) -> str:
    """Name of an entry, with a slash at its end if it is a folder; `links` gets that of a link to a file."""
    if entry.is_dir():
        return f"{entry.name}/"
    if entry.is_symlink():
        links.add(entry.name)
    return entry.name


def _joined(inside: str, name: str) -> str:
    return name if inside == "." else f"{inside}/{name}"
