"""A connection to S3 that breaks at any request of a publication costs a try, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from coordlog.errors import SinkError
from coordlog.spark_integration.files.payloads import StagedFile
from coordlog.spark_integration.files.store.s3 import S3Store
from coordlog.spark_integration.files.store.s3_client import s3_errors
from servers.s3_server import S3Server, s3_server, s3_store

__all__ = ["s3_server", "s3_store"]

CONTENT = b"rows"
FILE = StagedFile(
    staged=".coordlog/staging/driver-a/0-0-0.parquet",
    final="part-0.parquet",
    size_bytes=len(CONTENT),
    checksum=blake2b(CONTENT, digest_size=32).hexdigest(),
    rows=1,
)


class Breaking:
    """A client whose connection breaks at one request, before or after the store has done it."""

    def __init__(self, client: Any, request: int, *, is_done: bool) -> None:  # noqa: ANN401, botocore's
        self._client, self._request, self._is_done, self.count = client, request, is_done, 0

    def __getattr__(self, name: str) -> Callable[..., object]:
        def ask(**given: object) -> object:
            self.count += 1
            if self.count == self._request:
                if self._is_done:
                    getattr(self._client, name)(**given)
                raise ReadTimeoutError(endpoint_url="http://store")
            return getattr(self._client, name)(**given)

        return ask


@pytest.mark.parametrize("is_done", [False, True], ids=["refused", "answer lost"])
def test_a_connection_that_breaks_at_any_request_costs_a_try(
    s3_store: S3Server, *, is_done: bool
) -> None:
    broken = 0
    while True:
        bucket = s3_store.new_bucket()
        store = S3Store(f"s3://{bucket}", threads=1)
        output = store.stage(FILE.staged)
        output.write(memoryview(CONTENT))
        output.finish()
        client: Any = Breaking(s3_store.client, broken + 1, is_done=is_done)
        store._made_client = client
        try:
            store.publish([FILE])
        except SinkError as error:
            message = str(error)
        else:
            message = ""
        if client.count <= broken:
            break
        broken += 1
        assert not message or "http://store" in message
        store.publish([FILE])
        assert s3_store.keys(bucket) == [FILE.final]
        assert s3_store.get(bucket, FILE.final) == CONTENT
        assert not s3_store.uploads(bucket)
    assert broken > 5, "from the first look to the last abort"


def test_expired_credentials_are_named_in_the_next_step() -> None:
    with pytest.raises(SinkError) as caught, s3_errors("s3://b/out", "it cannot be listed"):
        raise ClientError(
            {"Error": {"Code": "ExpiredToken", "Message": "it has expired"}}, "ListObjectsV2"
        )
    assert "renew the credentials" in caught.value.next_step
