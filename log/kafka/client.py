"""kafka-python behind bounds: clients, waits with a timeout, and errors of this package."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

from kafka import errors
from kafka.admin import KafkaAdminClient
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.net.selector import NetworkSelector

from coordlog.errors import (
    AccessError,
    EnvironmentSetupError,
    LogError,
    LogUnavailableError,
    OptionError,
    TopicError,
)
from coordlog.log.kafka.default_broker import full_disk_of
from coordlog.log.kafka.errors import WatchingManager, refusal, right_missing
from coordlog.log.kafka.security import Security

__all__ = [
    "INSTALL_CODECS",
    "Connection",
    "Questions",
    "check_servers",
    "described",
    "in_background",
    "made",
    "may_pass",
    "within",
]

_logging = logging.getLogger(__name__)

T = TypeVar("T")

INSTALL_CODECS: Final = (
    "install it for the driver and all executors: pip install 'kafka-python[lz4,snappy,zstd]'"
)
"""Next step if records are compressed by a codec that the client lacks."""

_ADDRESS: Final = re.compile(r"(?:\[[\w:.%]+\]|[^\s:/\[\]]+):(\d{1,5})")
_PORTS: Final = range(1, 65_536)
_RETRY_PAUSE_S: Final = 0.05
_FIRST_TRY: Final = 1 / 20
"""Part of the time for an answer that the first try has, if there are several brokers."""
_SPREADS_S: Final = 5.0
"""Longest time until all running brokers of a cluster know a new topic: milliseconds, a second under load."""
_NO_LEADER: Final = errors.UnknownBrokerIdError  # pyright: ignore[reportAttributeAccessIssue]  # its stubs are older
_TOO_FEW: Final = (errors.NotEnoughReplicasError, errors.NotEnoughReplicasAfterAppendError)
_NO_PRODUCER: Final = errors.ClusterAuthorizationFailedError.__name__


class _ClosedSocket(KafkaNetSocket):  # type: ignore[misc]  # the client has no types
    """Connects directly, and closes the socket of a connection that fails.

    kafka-python leaves it to the garbage collector: a hundred a minute while a broker is
    gone. It chooses the class that connects by the scheme of its `proxy_url`.
    """

    SCHEMES = ("coordlog-direct",)

    def socket(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """The socket to connect."""
        self._socket = super().socket(*args, **options)
        return self._socket

    async def connect(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """As the client's own."""
        try:
            return await super().connect(*args, **options)
        except BaseException:
            self._socket.close()
            raise


def check_servers(bootstrap_servers: str) -> None:
    """Check the addresses of brokers.

    Raises:
        OptionError: They are invalid, or hold a user's name.
    """
    if "@" in bootstrap_servers:
        # Not shown: it may hold a password.
        raise OptionError(
            "bootstrap_servers",
            "(hidden)",
            "HOST:PORT without a user; `security` takes credentials",
        )
    for address in bootstrap_servers.split(","):
        match = _ADDRESS.fullmatch(address.strip())
        if match is None or int(match[1]) not in _PORTS:
            raise OptionError(
                "bootstrap_servers",
                bootstrap_servers,
                "HOST:PORT[,HOST:PORT]; an IPv6 address is in brackets",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Address of a topic, with the options to reach it."""

    topic: str
    bootstrap_servers: str
    security: Security
    connect_timeout_s: float

    def __post_init__(self) -> None:
        """Raises OptionError if the addresses of the brokers are invalid: a wait for those would be in vain."""
        check_servers(self.bootstrap_servers)

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.topic} at {self.bootstrap_servers}"

    def options(self, timeout_s: float) -> dict[str, object]:
        """Options of every client of kafka-python."""
        timeout_ms = max(1, int(timeout_s * 1000))
        return {
            "bootstrap_servers": self.bootstrap_servers.split(","),
            "bootstrap_timeout_ms": timeout_ms,
            "reconnect_backoff_ms": 20,
            "reconnect_backoff_max_ms": 500,  # the default reconnects up to 10 s late
            "retry_backoff_ms": 5,
            "proxy_url": f"{_ClosedSocket.SCHEMES[0]}://",
            **self.security.client_options(),
        }

    def time_of_try(self, limit_s: float, elapsed_s: float) -> float:
        """Seconds for the next of several tries within `limit_s`.

        The client chooses a broker at random, and waits for it alone: one of several that stands still must not take
        all of the time. Each try has as long as all before it together, because a slow broker needs more than the
        first; the last has all that is left.
        """
        left_s = limit_s - elapsed_s
        if "," not in self.bootstrap_servers:
            return left_s
        try_s = max(limit_s * _FIRST_TRY, elapsed_s)
        return try_s if left_s >= 2 * try_s else left_s

    def unavailable(self, doing: str, began: float, error: object) -> LogUnavailableError:
        """The error that the log did not answer since `began`, seconds of the monotonic clock."""
        waited_s = time.monotonic() - began
        last_error = described(error) + _too_few(error) + full_disk_of(self.bootstrap_servers)
        return LogUnavailableError(self.name, doing, waited_s, last_error)

    def refusal(self, error: Exception, needs: str) -> AccessError | None:
        """The AccessError for an error by which the broker refuses access; None for any other error.

        Args:
            error: Error of the client.
            needs: The operation on the topic, as ACLs name it, that the user needs.
        """
        is_missing = isinstance(error, errors.TopicAuthorizationFailedError) and needs
        # An idempotent producer without a right to write any topic is refused in the name of the cluster.
        if is_missing or (needs == "Write" and _NO_PRODUCER in str(error)):
            return right_missing(
                self.name,
                self.security,
                operation=needs,
                topic=_refused_topic(error) or self.topic,
                servers=self.bootstrap_servers,
            )
        return refusal(self.name, self.security, error)

    def failure(self, doing: str, began: float, error: Exception, needs: str = "") -> LogError:
        """The error of this package for a client's error in a request or a read."""
        if isinstance(error, errors.UnknownTopicOrPartitionError):
            return TopicError(
                self.topic,
                f"there is no such topic at {self.bootstrap_servers}",
                "check that the job's name and the broker's address are right",
            )
        if isinstance(error, errors.UnsupportedCodecError):
            return TopicError(
                self.topic,
                f"its records are compressed by a codec that the client lacks: {described(error)}",
                INSTALL_CODECS,
            )
        refused = self.refusal(error, needs)
        if refused is not None:
            return refused
        return self.unavailable(doing, began, error)


def _refused_topic(error: Exception) -> str:
    """The first topic that the client's error names; empty if it names none. A consumer may read several."""
    topics: object = error.args[0] if error.args else None
    return min(map(str, topics), default="") if isinstance(topics, (set, frozenset)) else ""


def _too_few(error: object) -> str:
    """What to look for if brokers answer, but too few of them have the topic's records."""
    if not isinstance(error, _TOO_FEW):
        return ""
    return (
        "; a broker answers, but fewer replicas of the topic are in sync than its min.insync.replicas: "
        "start the brokers that are down, or correct that setting"
    )


def described(error: object) -> str:
    """An error in one line, with its kind."""
    text, kind = str(error), type(error).__name__
    return text if isinstance(error, str) or text.startswith(kind) else f"{kind}: {text}"


def made(make: Callable[..., T], options: dict[str, object]) -> T:
    """A client of kafka-python. If it cannot be created, no thread and no socket is left behind.

    Raises:
        EnvironmentSetupError: Python runs without assertions.
    """
    if not __debug__:
        # kafka-python reads a part of each answer inside an assertion: without it no answer can be decoded.
        raise EnvironmentSetupError(
            "the Kafka client does not work in Python without assertions (option -O)",
            "run Python without -O and -OO, and unset PYTHONOPTIMIZE, for the driver and for the tasks",
        )
    inner: list[Any] = []

    def net_client(**configs: Any) -> object:  # noqa: ANN401, the client has no types
        net = NetworkSelector(**configs)
        inner.append(KafkaNetClient(net=net, manager=WatchingManager(net, **configs), **configs))
        return inner[0]

    try:
        return make(kafka_client=net_client, **options)
    except BaseException:
        for client in inner:
            client.close()
        raise


class _Call(Generic[T]):
    """A call on a thread of its own, and its result."""

    def __init__(self, call: Callable[[], T], too_late: Callable[[T], None]) -> None:
        self._call, self._too_late = call, too_late
        self._lock = threading.Lock()
        self._is_abandoned = False
        self.is_done = threading.Event()
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            result = self._call()
        except BaseException as error:  # noqa: BLE001, the caller gets it
            self.error = error
            self.is_done.set()
            return
        with self._lock:
            self.result = result
            self.is_done.set()
            is_abandoned = self._is_abandoned
        if is_abandoned:
            with contextlib.suppress(errors.KafkaError, OSError):
                self._too_late(result)

    def abandon(self) -> bool:
        """Abandon the call. False if its result has just arrived."""
        with self._lock:
            self._is_abandoned = not self.is_done.is_set()
            return self._is_abandoned


def within(timeout_s: float, call: Callable[[], T], *, too_late: Callable[[T], None]) -> T:
    """Return what `call` returns, raise what it raises, or TimeoutError after `timeout_s`.

    kafka-python waits without a bound in places. The call runs on a daemon thread; a result after
    the timeout is passed to `too_late`.
    """
    running = _Call(call, too_late)
    threading.Thread(target=running.run, name="coordlog-kafka-call", daemon=True).start()
    if not running.is_done.wait(timeout_s) and running.abandon():
        raise TimeoutError(f"no answer within {timeout_s:.1f} s")
    if running.error is not None:
        raise running.error
    return running.result  # type: ignore[return-value]


def nothing(_result: object) -> None:
    """The `too_late` of results that hold no resource."""


def may_pass(error: errors.KafkaError) -> bool:
    """Whether a later request may have no such error."""
    # The broker -1 is the leader of a partition that has none now. The client does not count this as retriable.
    return error.retriable or isinstance(error, _NO_LEADER)


class _Held:
    """The admin client of one `Questions`, so that it can be freed when that object is gone."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.admin: Any = None

    def free(self) -> None:
        with self.lock:
            admin, self.admin = self.admin, None
        if admin is not None:
            in_background(admin.close)


class Questions:
    """Requests to the broker, through an admin client that is discarded when it fails.

    A client has a thread and reconnects without end; a client that was not closed is freed with this object.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._held = _Held()
        self._seen_at = -math.inf
        weakref.finalize(self, self._held.free)

    @property
    def has_just_seen_topic(self) -> bool:
        """Whether a broker has just known the topic: one that does not know it may learn of it later."""
        return time.monotonic() - self._seen_at < _SPREADS_S

    def saw_topic(self, *, is_there: bool) -> None:
        """A broker has answered that the topic exists, or that it is gone."""
        self._seen_at = time.monotonic() if is_there else -math.inf

    def ask(self, doing: str, question: Callable[[Any], T], *, needs: str = "") -> T:
        """Call `question` with an admin client, again after errors that may pass, within the bound.

        Args:
            doing: For messages.
            question: Called with the client.
            needs: The operation on the topic, as ACLs name it, that the user needs.

        Raises:
            LogUnavailableError: No answer within the bound.
            AccessError: The broker refuses this user or the operation, or is not trusted.
            TopicError: There is no such topic, and no broker has just known it.
        """
        began = time.monotonic()
        end = began + self._connection.connect_timeout_s
        while True:
            now = time.monotonic()
            try_end = now + self._connection.time_of_try(end - began, now - began)
            try:
                with self._held.lock:
                    if self._held.admin is None:
                        self._held.admin = self._make(try_end - now)
                    admin = self._held.admin
                left_s = try_end - time.monotonic()
                return within(left_s, partial(question, admin), too_late=nothing)
            except (errors.KafkaError, OSError, RuntimeError) as error:
                # RuntimeError: the client's loop was closed during a request of another thread.
                self.close()
                passes = not isinstance(error, errors.KafkaError) or may_pass(error)
                refused = self._connection.refusal(error, needs)
                if refused is not None:
                    raise refused from error
                is_over = time.monotonic() + _RETRY_PAUSE_S >= end
                is_missing = isinstance(error, errors.UnknownTopicOrPartitionError)
                if not passes or (is_missing and (is_over or not self.has_just_seen_topic)):
                    raise self._connection.failure(doing, began, error) from error
                if is_over:
                    raise self._connection.unavailable(doing, began, error) from error
                _logging.info("retrying log=%s: %s: %r", self._connection.name, doing, error)
                time.sleep(_RETRY_PAUSE_S)

    def _make(self, timeout_s: float) -> object:
        options = {
            **self._connection.options(timeout_s),
            "request_timeout_ms": max(1, int(timeout_s * 1000)),
        }
        return within(
            timeout_s, lambda: made(KafkaAdminClient, options), too_late=lambda admin: admin.close()
        )

    def close(self) -> None:
        """Free the client, without waiting for it; the next request creates another."""
        self._held.free()


def in_background(close: Callable[[], object]) -> None:
    """Call `close` on a daemon thread, because it may wait without a bound."""

    def run() -> None:
        with contextlib.suppress(errors.KafkaError, OSError, RuntimeError):
            close()

    threading.Thread(target=run, name="coordlog-kafka-close", daemon=True).start()
