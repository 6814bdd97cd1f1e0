"""Address and secrets with which planners and tasks reach a service; shipped with the data source's class."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar

from coordlog.api.operator import SourceReader
from coordlog.coordinators.query_rejects import RejectsPlace
from coordlog.errors import (
    CoordinatorRestartingError,
    RequestUnansweredError,
    SourceError,
)
from coordlog.limits import CLIENT_RETRY_PAUSE_S, CLIENT_RETRY_S
from coordlog.schemas.payload import Payload
from coordlog.schemas.reads import (
    ReadCommitted,
    ReadFailureNoted,
    ReadPlanned,
    ReadsSeen,
    SplitsGiven,
)
from coordlog.spark_integration.wire.certificate import Certificate
from coordlog.spark_integration.wire.client import CoordinatorClient
from coordlog.spark_integration.wire.token import Token

__all__ = ["OPERATOR_ID", "ServiceClient", "Ticket"]

OPERATOR_ID: Final = "reads"
"""Operator id of the source in a job that queries read; a `Job` uses another id."""

_RESPONSES: Final = (ReadCommitted, ReadFailureNoted, ReadPlanned, ReadsSeen, SplitsGiven)

P = TypeVar("P", bound=Payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """Access to one service. Pickles, in a class that Spark ships; its text contains no secret."""

    job_id: str
    endpoint: str
    token: Token
    certificate: Certificate | None = None
    """Certificate of the service's endpoint, or None if it is not encrypted."""
    create_reader: Callable[[], SourceReader]
    schema_json: str
    """Schema of the rows, in Spark's JSON."""
    partitions: int
    """Number of tasks that may read at once."""
    splits_max: int
    """Most splits of a stream's batch; 0 for no limit."""
    rejects: RejectsPlace | None = None
    """Place of the bad rows that the reader emits as rejects; None: it emits none."""
    readers: Mapping[str, Callable[[], SourceReader]] = field(
        default_factory=dict[str, Callable[[], SourceReader]]
    )
    """Factories of readers for values of a query's option `bad_rows`."""
    locations: tuple[str, ...] = ()
    """Spellings of the source's path that `.load(path)` may use, relative ones first, the absolute path last."""


class ServiceClient:
    """Client of a service; each request may be repeated. One thread, in a `with` block."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._client = CoordinatorClient(
            endpoint=ticket.endpoint,
            token=ticket.token,
            certificate=ticket.certificate,
            response_types=_RESPONSES,
        )

    def ask(self, request: Payload, answer_type: type[P], *, retry_s: float = CLIENT_RETRY_S) -> P:
        """Send a request and return the answer, once it is in the log.

        Raises:
            RequestRefusedError: The coordinator refuses, with its reason.
            SourceError: The service has ended.
        """
        until = time.monotonic() + retry_s
        while True:
            try:
                answer = self._client.ask(OPERATOR_ID, request)
            except (RequestUnansweredError, CoordinatorRestartingError) as error:
                if time.monotonic() >= until or _is_gone(error):
                    raise self._no_service(error) from error
                time.sleep(CLIENT_RETRY_PAUSE_S)
                continue
            assert isinstance(answer.response, answer_type), "a request has one type of answer"
            return answer.response

    def _no_service(
        self, error: RequestUnansweredError | CoordinatorRestartingError
    ) -> SourceError:
        return SourceError(
            f'format("coordlog"), job {self._ticket.job_id}',
            f"its service does not answer: {error}",
            "the service runs in the process that owns the Spark session, from `coordinated(...)` to "
            "the end of its `with` block: check that it runs, then create the DataFrame and run the "
            "query again",
        )

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def _is_gone(error: BaseException) -> bool:
    """Whether the port is closed or belongs to another service, so that a retry is useless."""
    cause = error.__cause__
    # Another certificate belongs to a later service at the same port.
    is_another = isinstance(cause, (ConnectionRefusedError, ssl.SSLCertVerificationError))
    return is_another or hasattr(cause, "response")
