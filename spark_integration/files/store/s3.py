"""A destination below a prefix of an S3 bucket, or of a store with S3's protocol."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from coordlog.errors import FilesGoneError, SinkError
from coordlog.limits import S3_COPY_PART_BYTES, S3_PUBLISH_THREADS
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
from coordlog.spark_integration.files.store.durable import new_checksum
from coordlog.spark_integration.files.store.s3_client import (
    S3Client,
    is_missing,
    is_refused_condition,
    make_client,
    s3_errors,
)
from coordlog.spark_integration.files.store.s3_output import S3Output
from coordlog.spark_integration.files.store.store import At, nowhere

__all__ = ["S3Store"]

_CHECKSUM: Final = "coordlog-blake2b"
"""Metadata key of a published object: the checksum of its file in the intent."""

_KEY_BYTES_MAX: Final = 1024
_NAMES_MAX: Final = 1000
_TRIES: Final = 5
_READ_BYTES: Final = 1024 * 1024

T = TypeVar("T")


class S3Store:
    """The objects below `s3://bucket/prefix`.

    A store has no rename. A staged object is copied to its final name within the store, by a
    multipart upload whose completion has the condition that the name is free (`If-None-Match: *`).
    Then the staged object is deleted, and then every other upload for the final name is aborted:
    after that no call of another driver can complete, even if it continues late.

    A copy in one request has a condition too, but few stores check it: moto, for example, does not.
    """

    def __init__(
        self,
        url: str,
        *,
        area: str = HIDDEN,
        threads: int = S3_PUBLISH_THREADS,
        copy_part_bytes: int = S3_COPY_PART_BYTES,
    ) -> None:
        parts = urlsplit(url)
        self.bucket, self.prefix, self.area = parts.netloc, parts.path.strip("/"), area
        self._threads, self._copy_part_bytes = threads, copy_part_bytes
        self._lock = threading.Lock()
        self._made_client: S3Client | None = None

    def __getstate__(self) -> dict[str, object]:
        """State for the tasks: without the client, and so without credentials."""
        return {
            "bucket": self.bucket,
            "prefix": self.prefix,
            "area": self.area,
            "_threads": self._threads,
            "_copy_part_bytes": self._copy_part_bytes,
        }

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore without a client: the first request makes one."""
        self.__dict__.update(state)
        self._lock = threading.Lock()
        self._made_client = None

    @property
    def where(self) -> str:
        """As in the port."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def in_area(self, area: str) -> S3Store:
        """As in the port."""
        return S3Store(
            self.where, area=area, threads=self._threads, copy_part_bytes=self._copy_part_bytes
        )

    def make_root(self) -> None:
        """Nothing: a prefix exists with its first object."""

    def check_root(self) -> None:
        """As in the port."""
        with s3_errors(self.where, "its objects cannot be listed"):
            self._client.list_objects_v2(Bucket=self.bucket, Prefix=self._key(HIDDEN), MaxKeys=1)

    def make_ready(self) -> None:
        """As in the port: a probe is published twice under one name.

        Raises:
            SinkError: The second publication is not refused, or its upload is not listed.
        """
        probe = f"probe-{uuid4().hex}"
        staged, final = f"{STAGING}/{probe}", f"{HIDDEN}/{probe}"
        probe_file = StagedFile(staged=staged, final=final, size_bytes=5, checksum="", rows=0)
        with s3_errors(self.where, "its store cannot publish an object under a condition"):
            try:
                self._client.put_object(Bucket=self.bucket, Key=self._key(staged), Body=b"probe")
                if not self._copy(probe_file, nowhere):
                    raise SinkError(
                        self.where, "it refuses a name that is free", "run the same command again"
                    )
                if not self._write_once(final, b"other") and not self._copy(probe_file, nowhere):
                    upload = self._begin(probe_file)
                    is_listed = upload in self._uploads(self._key(final))
                    self._abort(self._key(final), upload)
                    if is_listed:
                        return
                    problem = "its store does not list the uploads for a name"
                else:
                    problem = "its store replaces an object where it should refuse (If-None-Match)"
                raise SinkError(
                    self.where,
                    problem,
                    "use a destination in a store that has S3's conditional writes, or a local "
                    "one, and copy the files there once the job has finished",
                )
            finally:
                self._delete(self._key(staged))
                self._delete(self._key(final))
                self._abort_all(self._key(final))

    def names(self) -> Sequence[str]:
        """As in the port."""
        if self.area != HIDDEN:
            return ()
        root = f"{self.prefix}/" if self.prefix else ""
        with s3_errors(self.where, "its objects cannot be listed"):
            page = self._client.list_objects_v2(
                Bucket=self.bucket, Prefix=root, Delimiter="/", MaxKeys=_NAMES_MAX
            )
        keys = [entry["Key"] for entry in page.get("Contents", ())]
        keys += [entry["Prefix"] for entry in page.get("CommonPrefixes", ())]
        # Consoles make an empty object for a folder.
        names = {key[len(root) :].rstrip("/") for key in keys} - {"", HIDDEN}
        return sorted(names)

    def read(self, relative: str) -> bytes | None:
        """As in the port."""
        return self._read(f"{self.where}/{relative}", self._key(relative))

    def read_above(self, relative: str) -> tuple[str, bytes] | None:
        """As in the port."""
        # As in a folder: a table may be where a destination is.
        above = self.prefix if self.area == HIDDEN else f"{self.prefix}/x"
        while above:
            above = above.rpartition("/")[0]
            where = f"s3://{self.bucket}/{above}".rstrip("/")
            with suppress(SinkError):
                content = self._read(where, f"{above}/{relative}".lstrip("/"))
                if content is not None:
                    return where, content
        return None

    def _read(self, where: str, key: str) -> bytes | None:
        with s3_errors(where, "it cannot be read"):
            response = _unless_missing(lambda: self._client.get_object(Bucket=self.bucket, Key=key))
            return None if response is None else bytes(response["Body"].read())

    def write_once(self, relative: str, content: bytes) -> bool:
        """As in the port. False too if a response was lost and this call's own object is found."""
        with s3_errors(f"{self.where}/{relative}", "it cannot be written"):
            return self._write_once(relative, content)

    def free_bytes(self) -> int | None:
        """None: a store has no such limit."""
        return None

    def check_final(self, relative: str) -> None:
        """As in the port."""
        size = len(self._key(relative).encode())
        if size > _KEY_BYTES_MAX:
            raise SinkError(
                self.where,
                f"the key of a file in it has {size} bytes; S3 takes {_KEY_BYTES_MAX}",
                "use a shorter destination, or fewer partition columns",
            )

    def make_staging(self, driver_id: str) -> None:
        """Nothing: a store has no folders."""
        checked_driver_id(driver_id)

    def stage(self, relative: str) -> S3Output:
        """As in the port."""
        check_staged_name(self.where, relative)
        return S3Output(self._client, bucket=self.bucket, key=self._key(relative))

    def publish(self, files: Sequence[StagedFile], *, at: At = nowhere) -> None:
        """As in the port.

        A crash leaves at least one of a file's two names, and perhaps an upload, which the next
        call aborts.
        """
        for file in files:
            check_staged_name(self.where, file.staged)
            check_final_name(self.where, file.final)

        def delete_staged(file: StagedFile) -> None:
            self._delete(self._key(file.staged))
            at(f"after delete {file.staged}")

        def abort_others(file: StagedFile) -> None:
            # Only now: an upload that begins later finds no staged object to copy.
            self._abort_all(self._key(file.final))
            at(f"after abort {file.final}")

        with s3_errors(self.where, "objects cannot be published"):
            self._each(files, lambda file: self._publish_file(file, at))
            self._each(files, delete_staged)
            self._each(files, abort_others)

    def clean(
        self, *, driver_id: str, subtask: int, attempt_number: int, keep: AbstractSet[str]
    ) -> None:
        """As in the port."""
        attempt = f"{STAGING}/{checked_driver_id(driver_id)}/{subtask}-{attempt_number}-"
        with s3_errors(self.where, "staged objects cannot be deleted"):
            for key in self._staged_keys(attempt, keep):
                self._delete(key)
            for key, upload in self._uploads_below(self._key(attempt)):
                self._abort(key, upload)

    def sweep(self, *, keep: AbstractSet[str], is_in_force: Callable[[], bool]) -> None:
        """As in the port."""
        with s3_errors(self.where, "staged objects cannot be deleted"):
            keys = [*self._staged_keys(f"{STAGING}/", keep)]
            for place in (f"{STAGING}/probe-", f"{HIDDEN}/probe-"):
                keys += self._keys(self._key(place))
            uploads = self._uploads_below(self._key(f"{STAGING}/"))
            if not is_in_force():
                return
            for key in keys:
                self._delete(key)
            for key, upload in uploads:
                self._abort(key, upload)

    # --- publishing one file ------------------------------------------------------------------
    def _publish_file(self, file: StagedFile, at: At) -> None:
        for _ in range(_TRIES):
            at(f"before copy {file.final}")
            staged = self._head(file.staged)
            if staged is None:
                # Another settler has published it, or it can no longer be published.
                self._check_final(file)
                return
            if staged["ContentLength"] != file.size_bytes:
                raise SinkError(
                    f"{self.where}/{file.staged}",
                    f"it has {staged['ContentLength']} bytes; {file.size_bytes} were handed over: "
                    "it is damaged",
                    "restore it from a copy",
                )
            if self._copy(file, at):
                at(f"after copy {file.final}")
                return
            if self._head(file.final) is not None:
                self._check_final(file)
                return
        raise SinkError(
            f"{self.where}/{file.final}",
            f"it could not be published {_TRIES} times, though nothing has this name",
            "see whether something deletes it, then run the same command again",
        )

    def _begin(self, file: StagedFile) -> str:
        """Id of a new upload for the final name."""
        response = self._client.create_multipart_upload(
            Bucket=self.bucket, Key=self._key(file.final), Metadata={_CHECKSUM: file.checksum}
        )
        return str(response["UploadId"])

    def _copy(self, file: StagedFile, at: At) -> bool:
        """Copy the staged object to the final name, if that name is free.

        Returns:
            Whether this call did it. False also if the staged object or the upload has gone meanwhile.
        """
        upload = self._begin(file)
        target: dict[str, Any] = {
            "Bucket": self.bucket,
            "Key": self._key(file.final),
            "UploadId": upload,
        }
        at(f"after begin {file.final}")
        try:
            parts = [
                {"PartNumber": number, "ETag": self._copy_part(file, number, target)}
                for number in range(1, max(1, -(-file.size_bytes // self._copy_part_bytes)) + 1)
            ]
            at(f"before complete {file.final}")
            self._client.complete_multipart_upload(
                **target, MultipartUpload={"Parts": parts}, IfNoneMatch="*"
            )
        except Exception as error:
            self._abort(self._key(file.final), upload)
            if is_missing(error) or is_refused_condition(error):
                return False
            raise
        return True

    def _copy_part(self, file: StagedFile, number: int, target: dict[str, Any]) -> str:
        start = (number - 1) * self._copy_part_bytes
        end = min(start + self._copy_part_bytes, file.size_bytes)
        if file.size_bytes > self._copy_part_bytes:
            target = {**target, "CopySourceRange": f"bytes={start}-{end - 1}"}
        response = self._client.upload_part_copy(
            **target,
            PartNumber=number,
            CopySource={"Bucket": self.bucket, "Key": self._key(file.staged)},
        )
        return str(response["CopyPartResult"]["ETag"])

    def _check_final(self, file: StagedFile) -> None:
        where = f"{self.where}/{file.final}"
        head = self._head(file.final)
        if head is None:
            raise FilesGoneError(
                where,
                f"neither it nor its staged object ({file.staged}) exists",
                "restore either from a copy",
            )
        checksum = head.get("Metadata", {}).get(_CHECKSUM) or self._checksum_of(file.final)
        if (head["ContentLength"], checksum) != (file.size_bytes, file.checksum):
            raise SinkError(
                where,
                f"it has other content: {head['ContentLength']} bytes with checksum {checksum}; "
                f"{file.size_bytes} bytes with checksum {file.checksum} are to be published",
                "move it away, then run the same command again",
            )

    def _checksum_of(self, relative: str) -> str:
        """Checksum of an object without that metadata: a copy that was restored by hand."""
        checksum = new_checksum()
        body = self._client.get_object(Bucket=self.bucket, Key=self._key(relative))["Body"]
        while piece := body.read(_READ_BYTES):
            checksum.update(piece)
        return checksum.hexdigest()

    # --- single requests ----------------------------------------------------------------------
    @property
    def _client(self) -> S3Client:
        with self._lock:  # making a client is not safe on two threads, using one is
            if self._made_client is None:
                self._made_client = make_client()
            return self._made_client

    def _key(self, relative: str) -> str:
        name = placed(relative, self.area)
        return f"{self.prefix}/{name}" if self.prefix else name

    def _head(self, relative: str) -> Mapping[str, Any] | None:
        return _unless_missing(
            lambda: self._client.head_object(Bucket=self.bucket, Key=self._key(relative))
        )

    def _write_once(self, relative: str, content: bytes) -> bool:
        for _ in range(_TRIES):
            try:
                self._client.put_object(
                    Bucket=self.bucket, Key=self._key(relative), Body=content, IfNoneMatch="*"
                )
            except Exception as error:
                if not is_refused_condition(error):
                    raise
                if self._head(relative) is not None:
                    return False
            else:
                return True
        return False

    def _delete(self, key: str) -> None:
        self._client.delete_object(Bucket=self.bucket, Key=key)

    def _staged_keys(self, place: str, keep: AbstractSet[str]) -> Iterator[str]:
        below = self._key(place)
        for key in self._keys(below):
            name = f"{place}{key[len(below) :]}"
            if STAGED_NAME.fullmatch(name.rpartition("/")[2]) and name not in keep:
                yield key

    def _keys(self, prefix: str) -> Iterator[str]:
        request: dict[str, object] = {"Bucket": self.bucket, "Prefix": prefix}
        while True:
            page = self._client.list_objects_v2(**request)
            yield from [str(entry["Key"]) for entry in page.get("Contents", ())]
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def _uploads(self, key: str) -> list[str]:
        """Ids of the unfinished uploads for `key`. Some stores list them for a whole key only."""
        return [upload for listed, upload in self._uploads_below(key) if listed == key]

    def _uploads_below(self, prefix: str) -> list[tuple[str, str]]:
        uploads: list[tuple[str, str]] = []
        request: dict[str, object] = {"Bucket": self.bucket, "Prefix": prefix}
        while True:
            page = self._client.list_multipart_uploads(**request)
            uploads += [
                (str(entry["Key"]), str(entry["UploadId"])) for entry in page.get("Uploads") or ()
            ]
            if not page.get("IsTruncated"):
                return uploads
            request |= {
                "KeyMarker": page["NextKeyMarker"],
                "UploadIdMarker": page["NextUploadIdMarker"],
            }

    def _abort(self, key: str, upload: str) -> None:
        _unless_missing(
            lambda: self._client.abort_multipart_upload(
                Bucket=self.bucket, Key=key, UploadId=upload
            )
        )

    def _abort_all(self, key: str) -> None:
        for upload in self._uploads(key):
            self._abort(key, upload)

    def _each(self, files: Sequence[StagedFile], do: Callable[[StagedFile], None]) -> None:
        if self._threads == 1 or len(files) < 2:  # noqa: PLR2004, one file needs no pool
            for file in files:
                do(file)
            return
        with ThreadPoolExecutor(self._threads, "coordlog-s3") as pool:
            for future in [pool.submit(do, file) for file in files]:
                future.result()


def _unless_missing(request: Callable[[], T]) -> T | None:
    """Response of `request`, or None if its object or upload does not exist."""
    try:
        return request()
    except Exception as error:
        if is_missing(error):
            return None
        raise
