"""The S3 client of a destination: its requests, and its refusals as SinkError."""

from __future__ import annotations

import errno
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

from coordlog.errors import EnvironmentSetupError, OutOfSpaceError, SinkError
from coordlog.limits import S3_PUBLISH_THREADS

__all__ = [
    "S3Client",
    "is_missing",
    "is_refused_condition",
    "make_client",
    "s3_errors",
    "s3_options",
]

_RETRIES: Final = 5
_CONNECT_S: Final = 10.0
_READ_S: Final = 60.0
_AWS: Final = ("amazonaws.com", "amazonaws.com.cn")
_NO_SPACE: Final = 507
_NEXT_STEPS: Final = {
    "AccessDenied": "allow the user that runs the job and its tasks what docs/sinks.md lists",
    "403": "allow the user that runs the job and its tasks what docs/sinks.md lists",
    "NoSuchBucket": "make the bucket, or use the name of one that exists",
    "InvalidAccessKeyId": "see AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "SignatureDoesNotMatch": "see AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "ExpiredToken": "renew the credentials, then run the same command again",
    "NoCredentialsError": "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for "
    "the driver and all executors",
    "EndpointConnectionError": "check that it runs, and AWS_ENDPOINT_URL_S3",
    "NotImplemented": "use a destination in a store that has it",
}


class S3Client(Protocol):
    """The requests of a destination to botocore's S3 client, which has no types of its own."""

    def get_object(self, **request: object) -> Mapping[str, Any]:
        """Metadata and `Body`, a stream."""
        ...

    def head_object(self, **request: object) -> Mapping[str, Any]:
        """Metadata."""
        ...

    def put_object(self, **request: object) -> Mapping[str, Any]:
        """Make an object; with `IfNoneMatch` only if it does not exist."""
        ...

    def delete_object(self, **request: object) -> Mapping[str, Any]:
        """Delete an object, if it exists."""
        ...

    def list_objects_v2(self, **request: object) -> Mapping[str, Any]:
        """A page of keys."""
        ...

    def create_multipart_upload(self, **request: object) -> Mapping[str, Any]:
        """Begin an upload."""
        ...

    def upload_part(self, **request: object) -> Mapping[str, Any]:
        """Send a part."""
        ...

    def upload_part_copy(self, **request: object) -> Mapping[str, Any]:
        """Make a part of another object, within the store."""
        ...

    def complete_multipart_upload(self, **request: object) -> Mapping[str, Any]:
        """Make an object of the parts; with `IfNoneMatch` only if it does not exist."""
        ...

    def abort_multipart_upload(self, **request: object) -> Mapping[str, Any]:
        """Abort an upload."""
        ...

    def list_multipart_uploads(self, **request: object) -> Mapping[str, Any]:
        """A page of unfinished uploads."""
        ...


def make_client() -> S3Client:
    """A client with the credentials, region and endpoint that AWS's own tools would take.

    From `AWS_ENDPOINT_URL_S3`, `AWS_PROFILE`, `AWS_ACCESS_KEY_ID` and so on, `~/.aws`, or the
    machine's role: nothing of them is in the job, its closure or its log.

    Raises:
        EnvironmentSetupError: botocore is not installed.
    """
    try:
        from botocore.config import Config  # noqa: PLC0415, an extra
        from botocore.session import get_session  # noqa: PLC0415
    except ImportError as error:
        raise EnvironmentSetupError(
            f"an s3:// destination needs the package botocore: {error}",
            "pip install 'coordlog[s3]', for the driver and all executors",
        ) from error
    options: dict[str, Any] = {
        "retries": {"mode": "standard", "total_max_attempts": _RETRIES},
        "connect_timeout": _CONNECT_S,
        "read_timeout": _READ_S,
        "max_pool_connections": S3_PUBLISH_THREADS,
        "user_agent_extra": "coordlog",
    }
    session = get_session()
    # It keeps what it has read: half a second for each client.
    session.register_component("data_loader", _loader())
    client = session.create_client("s3", config=Config(**options))
    host = urlsplit(client.meta.endpoint_url).hostname or ""
    if not host.endswith(_AWS):
        # Stores other than Amazon's seldom have a host name for each bucket.
        client.close()
        client = session.create_client(
            "s3", config=Config(**options, s3={"addressing_style": "path"})
        )
    return cast("S3Client", client)


def s3_options() -> dict[str, str]:
    """Endpoint, region and credentials of `make_client`, as delta-rs takes them. To be made anew: credentials expire.

    Raises:
        EnvironmentSetupError: botocore is not installed.
    """
    client: Any = make_client()
    try:
        options = {"AWS_REGION": str(client.meta.region_name)}
        endpoint = str(client.meta.endpoint_url)
        if not (urlsplit(endpoint).hostname or "").endswith(_AWS):
            options["AWS_ENDPOINT_URL"] = endpoint
            options["AWS_ALLOW_HTTP"] = str(endpoint.startswith("http://")).lower()
        credentials = client._request_signer._credentials  # noqa: SLF001, those that this client has found
        if credentials is not None:
            frozen = credentials.get_frozen_credentials()
            options["AWS_ACCESS_KEY_ID"] = str(frozen.access_key)
            options["AWS_SECRET_ACCESS_KEY"] = str(frozen.secret_key)
            if frozen.token:
                options["AWS_SESSION_TOKEN"] = str(frozen.token)
        return options
    finally:
        client.close()


@cache
def _loader() -> object:
    from botocore.loaders import create_loader  # noqa: PLC0415, an extra

    return create_loader()


@contextmanager
def s3_errors(where: str, doing: str) -> Generator[None]:
    """Raise errors of the store, and of its connections, as SinkError."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415, an extra

    try:
        yield
    except ClientError as error:
        code, message = _code_and_message(error)
        text = f"{doing}: {code} {message}".rstrip()
        if _status(error) == _NO_SPACE:
            raise OutOfSpaceError(
                where,
                f"[errno {errno.ENOSPC}] {text}",
                "free some space in the store, then run the same command again",
            ) from error
        step = _NEXT_STEPS.get(code, "check that the store works, then run the same command again")
        raise SinkError(where, text, step) from error
    except BotoCoreError as error:
        name = type(error).__name__
        step = _NEXT_STEPS.get(name, "check that the store works, then run the same command again")
        raise SinkError(where, f"{doing}: {error}", step) from error


def is_missing(error: Exception) -> bool:
    """Whether the store reports that there is no such object, or no such upload."""
    return _status(error) == 404 and _code_and_message(error)[0] != "NoSuchBucket"  # noqa: PLR2004, HTTP


def is_refused_condition(error: Exception) -> bool:
    """Whether a condition did not hold (412), or another request prevented its check (409)."""
    return _status(error) in (409, 412)


def _code_and_message(error: Exception) -> tuple[str, str]:
    details = _response(error).get("Error", {})
    return str(details.get("Code", "")), str(details.get("Message", ""))


def _status(error: Exception) -> int:
    return int(_response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _response(error: Exception) -> Mapping[str, Any]:
    """The store's answer; empty if there was none: errors of a connection that breaks hold None for it."""
    return cast("Mapping[str, Any] | None", getattr(error, "response", None)) or {}
