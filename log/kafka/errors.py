"""Reasons why a broker refuses a client: certificates, passwords, protocols, rights; reported early and in words.

kafka-python tries to connect until its time is up, whatever the reason, and then reports a timeout.
`WatchingManager` ends a client's first connecting as soon as another try cannot help.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import struct
import time
from typing import Any, Final, NamedTuple

from kafka import errors
from kafka.net.inet import create_connection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.api_key import ApiKey
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslBytesRequest

from coordlog.errors import AccessError, TopicError
from coordlog.log.kafka.security import ENVIRONMENT_PREFIX, Security

__all__ = [
    "NOT_ALLOWED",
    "OLDEST_BROKER",
    "KeptOutError",
    "WatchingManager",
    "refusal",
    "refuse_old",
    "right_missing",
]

NOT_ALLOWED: Final = (
    errors.AuthorizationError,
    errors.SaslAuthenticationFailedError,
    errors.UnsupportedSaslMechanismError,
    errors.SecurityDisabledError,
)
"""Errors of a broker that refuses this user, or an operation of this user."""

OLDEST_BROKER: Final = "3.0"
"""First release that needs no ZooKeeper and has idempotent producers: the oldest on which the log's tests pass."""

_TOPIC_IDS: Final = 10
_LIST_OFFSETS: Final = 7
"""Version of ListOffsets in 3.0 (KIP-734): a client only guesses the release from such versions."""

_HOPELESS: Final = (*NOT_ALLOWED, errors.IllegalSaslStateError)
_TLS_HOPELESS: Final = (
    "CERTIFICATE_VERIFY_FAILED",
    "WRONG_VERSION_NUMBER",
    "certificate required",
    "CERTIFICATE_REQUIRED",
    "bad certificate",
    "BAD_CERTIFICATE",
    "UNKNOWN_CA",
)
_ENDED_EARLY_MAX: Final = 5
"""Connections in a row that ended before the first request: about 0.6 s."""

_HANDSHAKE: Final = "handshake failed"
_PROBE_S: Final = 2.0


class KeptOutError(errors.KafkaError):  # type: ignore[misc]  # the client has no types
    """A client's first connecting was abandoned.

    Attributes:
        reason: Error of the last connection.
        host: The broker's host.
        port: The broker's port.
        is_certain: Whether the reason alone proves that another try cannot help.
    """

    retriable = True  # if a probe does not find out more, the broker may just be starting

    def __init__(self, reason: Exception, host: str, port: int, *, is_certain: bool) -> None:
        super().__init__(str(reason))
        self.reason, self.host, self.port, self.is_certain = reason, host, port, is_certain


class _WholeConnection:
    """A transport that keeps the bytes that arrive together with the connection's end, and closes at once.

    kafka-python drops those bytes: a broker's error for a wrong password, for example. Before it closes, its loop sends
    what is unsent: after a client's `close` the loop does not run, and the garbage collector finds an open socket.
    """

    def close(self) -> None:
        """See `asyncio.BaseTransport`. Nobody waits for an answer to what is unsent."""
        self._write_buffer.clear()  # type: ignore[attr-defined]  # of the class beside it
        super().close()  # type: ignore[misc]

    def _sock_recv(self) -> tuple[bytes, Exception | None]:
        data, error = super()._sock_recv()  # type: ignore[misc]  # of the class beside it
        return (data, None) if data else (data, error)  # the next reading finds the end again


class _PlainTransport(_WholeConnection, KafkaTCPTransport):  # type: ignore[misc]  # no types
    """Also sends at once what the socket takes, which nearly always is all.

    kafka-python first waits until the selector reports that the socket is writable, in two further passes of its loop;
    a producer's thread does its whole work in each of them.
    """

    def write(self, data: bytes) -> None:
        """See `asyncio.WriteTransport`."""
        rest = memoryview(data)
        if self._sock is not None and self._write and not (self._writing or self._closed):
            # An error of the socket comes again in the client's own sending, which handles it.
            with contextlib.suppress(OSError):
                rest = rest[self._sock.send(rest) :]
                self.last_write = time.monotonic()
        if rest or not data:  # without data it raises
            super().write(rest)


class _TlsTransport(_WholeConnection, KafkaSSLTransport):  # type: ignore[misc]  # no types
    pass


class WatchingManager(KafkaConnectionManager):  # type: ignore[misc]  # the client has no types
    """Connects as the client's own manager, and abandons the first connecting if it cannot succeed."""

    def __init__(self, net: object, **options: object) -> None:
        self._kept_out: KeptOutError | None = None
        self._ended_early = 0
        super().__init__(net, **options)

    def get_connection(self, node_id: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """A connection to a node, created if there is none. Raises KeptOutError."""
        if self._kept_out is not None:
            raise self._kept_out
        is_known = node_id in self._conns
        connection = super().get_connection(node_id, *args, **options)
        if not is_known and not self.bootstrapped:
            node = self.cluster.broker_metadata(node_id)
            connection.close_future.add_errback(
                lambda error: self._note(error, node.host, node.port, connection)
            )
        return connection

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:  # noqa: ANN401
        """As the client's own, but closes a transport whose handshake fails."""
        sock = await create_connection(
            self._net,
            node.host,
            node.port,
            self.config["socket_options"],
            proxy_url=self.config["proxy_url"],
            timeout_at=timeout_at,
        )
        tls = {name: value for name, value in self.config.items() if name.startswith("ssl_")}
        try:
            transport = (
                _TlsTransport(self._net, sock, host=node.host, **tls)
                if self.ssl_enabled
                else _PlainTransport(self._net, sock, host=node.host)
            )
        except BaseException:
            sock.close()
            raise
        try:
            await transport.handshake()
        except Exception as error:
            transport.abort(error)
            raise errors.KafkaConnectionError(f"{_HANDSHAKE}: {error}") from error
        return transport

    def _note(self, error: Exception, host: str, port: int, connection: Any) -> None:  # noqa: ANN401
        text = str(error)
        is_certain = isinstance(error, _HOPELESS) or any(sign in text for sign in _TLS_HOPELESS)
        if connection.parser is not None or _HANDSHAKE in text:
            self._ended_early += 1
        if not self.bootstrapped and (is_certain or self._ended_early >= _ENDED_EARLY_MAX):
            self._kept_out = KeptOutError(error, host, port, is_certain=is_certain)


class _Refusal(NamedTuple):
    """Reason of a refusal, and the next step."""

    problem: str
    next_step: str


def refuse_old(topic: str, servers: str, versions: BrokerVersionData) -> None:
    """Refuse a broker whose protocols a log cannot use.

    Raises:
        TopicError: The broker is older than `OLDEST_BROKER`.
    """
    supported = versions.api_versions or {}
    _, highest = supported.get(ApiKey.Metadata.value, (0, -1))
    missing = None
    if highest < _TOPIC_IDS:
        missing = (
            f"whose Metadata ends at version {highest}, and a log needs version {_TOPIC_IDS}, with"
            " ids of topics: without them a topic that was deleted and made again would pass for"
            " the old one"
        )
    elif (
        ApiKey.InitProducerId.value not in supported
    ):  # as in the first that came without ZooKeeper
        missing = "without InitProducerId, and a log needs producers that double nothing"
    elif supported.get(ApiKey.ListOffsets.value, (0, -1))[1] < _LIST_OFFSETS:
        missing = (
            "which needs a ZooKeeper: when such a broker starts it says for a while that it has no"
            " topics, and that ends a driver"
        )
    if missing is not None:
        number = versions.broker_version_str
        raise TopicError(
            topic,
            f"the broker at {servers} is Kafka {number}, {missing}",
            f"use Kafka {OLDEST_BROKER} or newer, without ZooKeeper",
        )


def refusal(log: str, security: Security, error: Exception) -> AccessError | None:
    """The AccessError for a connection error after which another try cannot help; None for any other error.

    Probes the broker's protocol if the error does not show it: some seconds at most.
    """
    reason: Exception = error
    if isinstance(error, KeptOutError):
        reason = error.reason
        cause = _by_error(security, reason, f"{error.host}:{error.port}", error.host)
        if cause is None:
            cause = _by_probe(security, error.host, error.port)
    else:
        cause = _by_error(security, reason, "it", "this name")
    return None if cause is None else AccessError(log, cause.problem, cause.next_step)


def right_missing(
    log: str, security: Security, *, operation: str, topic: str, servers: str
) -> AccessError:
    """The error that names the right that an administrator must add."""
    user = principal(security)
    return AccessError(
        log,
        f"the broker does not allow {user} the operation {operation} on topic {topic}",
        f"let its administrator run: kafka-acls.sh --bootstrap-server {servers} --add"
        f" --allow-principal {user} --operation {operation} --topic {topic}",
    )


def principal(security: Security) -> str:
    """The user's name in ACLs."""
    if security.protocol.startswith("SASL"):
        return f"User:{security.sasl_username}"
    return "User:ANONYMOUS" if security.ssl_certfile is None else "User:(of the certificate)"


def _by_error(security: Security, reason: Exception, where: str, host: str) -> _Refusal | None:
    text = str(reason)
    if isinstance(reason, errors.SaslAuthenticationFailedError):
        return _Refusal(
            f"the broker does not accept user {security.sasl_username!r} with its password by"
            f" {security.sasl_mechanism}",
            f"check that {_names('sasl_username', 'sasl_password', 'sasl_mechanism')} are right",
        )
    if isinstance(reason, errors.UnsupportedSaslMechanismError):
        return _Refusal(
            f"the broker does not offer the SASL mechanism {security.sasl_mechanism}",
            f"set {_names('sasl_mechanism')} to one that it offers",
        )
    if isinstance(reason, errors.IllegalSaslStateError):
        return _Refusal(
            f"the broker asks no client at {where} for a password, and this client sends one",
            f"set {_names('protocol')} to what it speaks there: PLAINTEXT or SSL",
        )
    if "CERTIFICATE_VERIFY_FAILED" in text:
        if "ostname mismatch" in text or "IP address mismatch" in text:
            return _Refusal(
                f"the broker's certificate is not for the name {host!r}",
                "reach the broker under a name in its certificate, or set"
                f" {_names('ssl_check_hostname')} to no to accept any name",
            )
        why = text.partition("certificate verify failed: ")[2].partition(" (_ssl")[0] or text
        return _Refusal(
            f"the broker's certificate is not trusted ({why})",
            f"set {_names('ssl_cafile')} to a PEM file with the authority that signed it",
        )
    if "WRONG_VERSION_NUMBER" in text:
        return _no_tls(where)
    if any(sign in text for sign in _TLS_HOPELESS):
        return _Refusal(
            "the broker does not accept this client's certificate, or there is none",
            f"set {_names('ssl_certfile', 'ssl_keyfile')} to one that it trusts",
        )
    if isinstance(reason, (errors.AuthorizationError, errors.SecurityDisabledError)):
        return _Refusal(
            f"the broker does not allow this to {principal(security)} ({type(reason).__name__})",
            "let its administrator add the rights that the docs list under security",
        )
    return None


def _by_probe(security: Security, host: str, port: int) -> _Refusal | None:
    """The refusal behind connections that ended before the first request, found by a probe.

    None if unknown, and if the listener is what the protocol says: then the broker was starting.
    """
    where = f"{host}:{port}"
    is_tls, is_sasl = security.protocol.endswith("SSL"), security.protocol.startswith("SASL")
    if _speaks_tls(host, port):
        if not is_tls:
            return _Refusal(
                f"the broker speaks TLS at {where}, and {_names('protocol')} is {security.protocol}",
                "set it to SSL, or to SASL_SSL where the broker asks for a password",
            )
        if _asks_for_password(host, port, _tls(security)) == is_sasl:
            return None
        return _Refusal(
            f"the broker at {where} ends each connection after its TLS handshake",
            f"check that {_names('protocol')} is what it speaks there (SSL, or SASL_SSL where it"
            " asks for a password), and the certificate one that it trusts",
        )
    asks = _asks_for_password(host, port)
    if is_tls:
        return None if asks is None else _no_tls(where)
    if asks and not is_sasl:
        return _Refusal(
            f"the broker at {where} ends each connection at its first question: it asks for a"
            " password",
            f"set {_names('protocol')} to SASL_PLAINTEXT, and"
            f" {_names('sasl_mechanism', 'sasl_username', 'sasl_password')}",
        )
    return None


def _no_tls(where: str) -> _Refusal:
    return _Refusal(
        f"the broker speaks no TLS at {where}",
        f"set {_names('protocol')} to PLAINTEXT or SASL_PLAINTEXT, or use its port for TLS",
    )


def _names(*options: str) -> str:
    """The options under the names of their environment variables."""
    variables = [ENVIRONMENT_PREFIX + option.upper() for option in options]
    if len(variables) == 1:
        return variables[0]
    return f"{', '.join(variables[:-1])} and {variables[-1]}"


def _tls(security: Security | None = None) -> ssl.SSLContext:
    """A probe's context: it sends no data that a stranger may not see, so it trusts every broker."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if security is not None and security.ssl_certfile is not None:
        context.load_cert_chain(
            security.ssl_certfile, security.ssl_keyfile, security.ssl_key_password
        )
    return context


def _speaks_tls(host: str, port: int) -> bool:
    try:
        with (
            socket.create_connection((host, port), _PROBE_S) as connection,
            _tls().wrap_socket(connection, server_hostname=host),
        ):
            return True
    except ssl.SSLError as error:
        return "ALERT" in str(error)  # an alert is TLS too
    except OSError:
        return False


def _asks_for_password(host: str, port: int, tls: ssl.SSLContext | None = None) -> bool | None:
    """Whether the listener authenticates by SASL; None without an answer.

    Each listener answers SaslHandshake 1, also to a client without a name; one without SASL by an error (KIP-152).
    """
    request = struct.pack(">hhihh5s", ApiKey.SaslHandshake.value, 1, 1, -1, 5, b"PLAIN")
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, port), _PROBE_S) as plain,
        contextlib.nullcontext(plain)
        if tls is None
        else tls.wrap_socket(plain, server_hostname=host) as connection,
    ):
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answers:
            _, number, error = struct.unpack(">iih", answers.read(10).ljust(10, b"\0"))
        if number == 1:
            return bool(error != errors.IllegalSaslStateError.errno)
    return None


def _shows_no_secret(record: logging.LogRecord) -> bool:
    """Whether a logged message holds no request. At DEBUG the client logs them: with SASL PLAIN, a password too."""
    args = record.args if isinstance(record.args, tuple) else ()
    secret = (bytes, bytearray, memoryview, SaslAuthenticateRequest, SaslBytesRequest)
    return not any(isinstance(arg, secret) for arg in args)


for _name in ("kafka.net.connection", "kafka.protocol.parser"):
    logging.getLogger(_name).addFilter(_shows_no_secret)
