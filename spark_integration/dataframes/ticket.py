"""What planners and tasks need to reach a service: it travels with the data source's class, as closures do."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from coordlog.api.operator import SourceReader
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
"""Of a job that queries read; a `Job` names its source otherwise."""

_RESPONSES: Final = (ReadCommitted, ReadFailureNoted, ReadPlanned, ReadsSeen, SplitsGiven)

P = TypeVar("P", bound=Payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """One service. Pickles, into a class that Spark ships; prints no secret."""

    job_id: str
    endpoint: str
    token: Token
    certificate: Certificate | None = None
    """What the service shows, where its endpoint is encrypted."""
    create_reader: Callable[[], SourceReader]
    schema_json: str
    """Of its rows, as Spark writes a schema."""
    partitions: int
    """How many tasks may read at once."""
    splits_max: int
    """The most splits of a stream's batch; 0: no limit."""
    locations: tuple[str, ...] = ()
    """Names of what is read, as `.load(path)` may have them: the path as the source was given it, and whole."""


class ServiceClient:
    """Asks a service; every question may be asked again. One thread, in a `with` block."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._client = CoordinatorClient(
            endpoint=ticket.endpoint,
            token=ticket.token,
            certificate=ticket.certificate,
            response_types=_RESPONSES,
        )

    def ask(self, request: Payload, answer_type: type[P], *, retry_s: float = CLIENT_RETRY_S) -> P:
        """The answer, once the log has it.

        Raises:
            RequestRefusedError: The coordinator says why.
            SourceError: There is no service any more.
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
            "the service lives in the process that owns the Spark session, from `coordinated(...)` to "
            "the end of its `with` block: see that it runs, then make the DataFrame and run the "
            "query again",
        )

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Let go of the connection."""
        self.close()

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()


def _is_gone(error: BaseException) -> bool:
    """Whether nobody listens there, or somebody else does: no use in asking again."""
    cause = error.__cause__
    # Another certificate is that of the next service, at the same port.
    is_another = isinstance(cause, (ConnectionRefusedError, ssl.SSLCertVerificationError))
    return is_another or hasattr(cause, "response")
