"""A server with S3's protocol, in this process: moto's, on a port of this machine."""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest
from moto.s3.exceptions import NoSuchUpload
from moto.s3.models import S3Backend
from moto.server import ThreadedMotoServer

from coordlog.spark_integration.files.store import s3_client
from coordlog.spark_integration.files.store.s3_client import S3Client, make_client

__all__ = ["S3Server", "s3_server", "s3_store"]

_NUMBERS = itertools.count()


@dataclass(frozen=True, kw_only=True)
class S3Server:
    """Where it is, and how to ask it."""

    endpoint: str
    client: S3Client = field(repr=False)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to use it."""
        return environment_of(self.endpoint)

    def new_bucket(self) -> str:
        """An empty one."""
        name = f"bucket-{next(_NUMBERS)}"
        make: Any = self.client
        make.create_bucket(Bucket=name)
        return name

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """All keys, sorted; a test has fewer than a page."""
        page = self.client.list_objects_v2(Bucket=bucket, Prefix=prefix)
        return sorted(one["Key"] for one in page.get("Contents", ()))

    def get(self, bucket: str, key: str) -> bytes:
        """An object's content."""
        return bytes(self.client.get_object(Bucket=bucket, Key=key)["Body"].read())

    def uploads(self, bucket: str) -> list[str]:
        """Keys of unfinished uploads."""
        page = self.client.list_multipart_uploads(Bucket=bucket)
        return sorted(one["Key"] for one in page.get("Uploads") or ())


def environment_of(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def _aborted_uploads_as_s3_has_them() -> Iterator[None]:
    """Where an upload has been aborted, S3 says that there is no such upload; moto answers 500."""
    complete, copy = S3Backend.complete_multipart_upload, S3Backend.upload_part_copy

    def checked(real: Callable[..., Any]) -> Callable[..., Any]:
        names = list(inspect.signature(real).parameters)

        @functools.wraps(
            real
        )  # with its signature: each module's fixture of the session is one more
        def there(*given: Any, **named: Any) -> Any:  # noqa: ANN401, whatever moto gives
            every = {**dict(zip(names, given, strict=False)), **named}
            bucket = every.get("bucket_name") or every["dest_bucket_name"]
            if every["multipart_id"] not in every["self"].get_bucket(bucket).multiparts:
                raise NoSuchUpload(upload_id=every["multipart_id"])
            return real(*given, **named)

        return there

    with (
        patch.object(S3Backend, "complete_multipart_upload", checked(complete)),
        patch.object(S3Backend, "upload_part_copy", checked(copy)),
    ):
        yield


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """The server of the whole run; each test takes a bucket of its own."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    with _aborted_uploads_as_s3_has_them(), pytest.MonkeyPatch.context() as patched:
        server.start()
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        for name, value in environment_of(endpoint).items():
            patched.setenv(name, value)
        client: Any = make_client()
        try:
            yield S3Server(endpoint=endpoint, client=client)
        finally:
            client.close()
            server.stop()


@pytest.fixture
def s3_store(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with the environment that leads to it."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    # What fails here fails for good, and waiting between two tries is the client library's own.
    monkeypatch.setattr(s3_client, "_RETRIES", 1)
    return s3_server
