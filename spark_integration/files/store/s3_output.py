"""A staged object that is being uploaded: in parts if it is large."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from coordlog.limits import S3_PART_BYTES
from coordlog.spark_integration.files.store.s3_client import S3Client, s3_errors

__all__ = ["S3Output"]


class S3Output:
    """Holds at most `part_bytes` and the piece that is being written."""

    def __init__(
        self, client: S3Client, *, bucket: str, key: str, part_bytes: int = S3_PART_BYTES
    ) -> None:
        self._client, self._part_bytes = client, part_bytes
        self._object = {"Bucket": bucket, "Key": key}
        self._where = f"s3://{bucket}/{key}"
        self._held = bytearray()
        self._upload: str | None = None
        self._parts: list[dict[str, Any]] = []

    def write(self, piece: memoryview) -> None:
        """As in the port."""
        self._held += piece
        while len(self._held) >= self._part_bytes:
            part, self._held = self._held[: self._part_bytes], self._held[self._part_bytes :]
            self._send(bytes(part))

    def finish(self) -> None:
        """As in the port: durable once the store confirms it."""
        if self._upload is None:
            with s3_errors(self._where, "it cannot be written"):
                self._client.put_object(**self._object, Body=bytes(self._held))
        else:
            if self._held:
                self._send(bytes(self._held))
            with s3_errors(self._where, "it cannot be written"):
                self._client.complete_multipart_upload(
                    **self._object,
                    UploadId=self._upload,
                    MultipartUpload={"Parts": self._parts},
                )
            self._upload = None
        self._held = bytearray()

    def discard(self) -> None:
        """As in the port. If the abort fails, the cleaning after the attempt repeats it."""
        upload, self._upload, self._held = self._upload, None, bytearray()
        if upload is not None:
            with suppress(Exception):
                self._client.abort_multipart_upload(**self._object, UploadId=upload)

    def _send(self, part: bytes) -> None:
        with s3_errors(self._where, "it cannot be written"):
            if self._upload is None:
                begun = self._client.create_multipart_upload(**self._object)
                self._upload = str(begun["UploadId"])
            number = len(self._parts) + 1
            sent = self._client.upload_part(
                **self._object, UploadId=self._upload, PartNumber=number, Body=part
            )
            self._parts.append({"PartNumber": number, "ETag": sent["ETag"]})
