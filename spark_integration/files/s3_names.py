"""Names of an S3 bucket, page by page, in the order of the keys: a listing holds one page at a time."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fsspec.utils import glob_translate

__all__ = ["is_name_of", "is_s3", "object_in_listing", "objects_below", "objects_matching"]


# `Any` here and below: fsspec has no types.
def is_s3(file_system: Any) -> bool:  # noqa: ANN401
    """Whether `file_system` is s3fs's."""
    protocols = file_system.protocol
    return "s3" in ((protocols,) if isinstance(protocols, str) else protocols)


def objects_below(
    file_system: Any,  # noqa: ANN401
    folder: str,
    *,
    after: str = "",
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names and `info` of the objects below `folder`, in the order of their keys.

    Args:
        file_system: An s3fs file system.
        folder: Bucket, or bucket and prefix.
        after: Name, with its bucket, after which the listing begins; empty: at its first key.

    Raises:
        OSError: The store refuses, or the bucket does not exist.
    """
    bucket, key, _ = file_system.split_path(folder)
    prefix = f"{key.rstrip('/')}/" if key.strip("/") else ""
    yield from _pages(file_system, bucket, prefix, after)


def objects_matching(
    file_system: Any,  # noqa: ANN401
    pattern: str,
    *,
    after: str = "",
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names and `info` of the objects that a glob matches, and of those below matching folders, as `objects_below`.

    With a slash at its end the glob matches folders only.
    """
    bucket, key, _ = file_system.split_path(pattern)
    fixed = re.split(r"[*?\[]", key, maxsplit=1)[0]
    is_match = re.compile(glob_translate(pattern.rstrip("/"))).match
    matches_files = not pattern.endswith("/")
    folder, is_inside = "", False
    for name, info in _pages(file_system, bucket, fixed, after):
        above = name.rpartition("/")[0]
        if above != folder:
            folder = above
            parts = above.split("/")
            is_inside = any(is_match("/".join(parts[:n])) for n in range(2, len(parts) + 1))
        if is_inside or (matches_files and is_match(name)):
            yield name, info


def object_in_listing(file_system: Any, path: str) -> Mapping[str, Any] | None:  # noqa: ANN401
    """`info` of the object `path`, or None. Raises OSError as `objects_below`."""
    bucket, key, _ = file_system.split_path(path)
    # Names are in order, and no other one with this prefix is before it.
    page = _page(file_system, {"Bucket": bucket, "Prefix": key, "MaxKeys": 1})
    entries = (entry for entry in page.get("Contents", ()) if entry["Key"] == key)
    return next(({**entry, "size": entry["Size"]} for entry in entries), None)


def is_name_of(path: str, name: str, *, is_of_folders: bool) -> bool:
    """Whether a listing of `path`, which may be a glob, has the object `name`.

    With `is_of_folders` the path had a slash at its end: it names no object.
    """
    path = path.rstrip("/")
    if not set("*?[") & set(path):
        return name.startswith(f"{path}/") or (name == path and not is_of_folders)
    is_match = _compiled(path).match
    parts = name.split("/")
    if any(is_match("/".join(parts[:n])) for n in range(2, len(parts))):
        return True
    return not is_of_folders and is_match(name) is not None


@functools.lru_cache(maxsize=16)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(glob_translate(pattern))


def _pages(
    file_system: Any,  # noqa: ANN401
    bucket: str,
    prefix: str,
    after: str,
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    request: dict[str, Any] = {"Bucket": bucket, "Prefix": prefix}
    if after:
        request["StartAfter"] = after.removeprefix(f"{bucket}/")
    while True:
        page = _page(file_system, request)
        for entry in page.get("Contents", ()):
            yield f"{bucket}/{entry['Key']}", {**entry, "size": entry["Size"]}
        if not page["IsTruncated"]:
            return
        request["ContinuationToken"] = page["NextContinuationToken"]


def _page(file_system: Any, request: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ANN401
    """A page of a listing. An answer of something else, such as a proxy, is read as one without any entries."""
    page: Mapping[str, Any] = file_system.call_s3(
        "list_objects_v2", **request, **file_system.req_kw
    )
    if "IsTruncated" not in page:
        raise ConnectionError("the answer is no listing of a bucket")
    return page
