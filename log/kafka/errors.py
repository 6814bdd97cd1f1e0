"""What keeps a client out: certificates, passwords, protocols, rights; told in words, and soon.

kafka-python tries to connect until its time is up, whatever the reason, and then says that the time
is up. `WatchingManager` ends a client's first connecting as soon as trying again cannot help.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import struct
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
"""The broker does not let this user in, or not do that."""

OLDEST_BROKER: Final = "3.0"
"""The first that needs no ZooKeeper and has idempotent producers: the oldest on which the log's tests pass."""

_TOPIC_IDS: Final = 10
_LIST_OFFSETS: Final = 7
"""Of 3.0 (KIP-734): the number that a client makes of such versions is a guess."""

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
"""So many connections in a row that were made and ended before anything was asked: about 0.6 s."""

_HANDSHAKE: Final = "handshake failed"
_PROBE_S: Final = 2.0


class KeptOutError(errors.KafkaError):  # type: ignore[misc]  # the client has no types
    """A client's first connecting was given up.

    Attributes:
        reason: What its last connection ended with.
        host: Where to.
        port: Where to.
        is_certain: Whether the reason alone says that trying again cannot help.
    """

    retriable = True  # where a probe does not find out more, the broker may just be starting

    def __init__(self, reason: Exception, host: str, port: int, *, is_certain: bool) -> None:
        super().__init__(str(reason))
        self.reason, self.host, self.port, self.is_certain = reason, host, port, is_certain


class _WholeReading:
    """A transport's reading, in which what comes together with the connection's end counts.

    kafka-python 3.0.12 drops it: a broker's word that a password is wrong, say.
    """

    def _sock_recv(self) -> tuple[bytes, Exception | None]:
        data, error = super()._sock_recv()  # type: ignore[misc]  # of the class beside it
        return (data, None) if data else (data, error)  # the next reading finds the end again


class _PlainTransport(_WholeReading, KafkaTCPTransport):  # type: ignore[misc]  # no types
    pass


class _TlsTransport(_WholeReading, KafkaSSLTransport):  # type: ignore[misc]  # no types
    pass


class WatchingManager(KafkaConnectionManager):  # type: ignore[misc]  # the client has no types
    """Connects as the client's own, and gives up its first connecting where that cannot succeed."""

    def __init__(self, net: object, **options: object) -> None:
        self._kept_out: KeptOutError | None = None
        self._ended_early = 0
        super().__init__(net, **options)

    def get_connection(self, node_id: Any, *given: Any, **named: Any) -> Any:  # noqa: ANN401
        """A connection to a node, made where there is none. Raises KeptOutError."""
        if self._kept_out is not None:
            raise self._kept_out
        is_known = node_id in self._conns
        connection = super().get_connection(node_id, *given, **named)
        if not is_known and not self.bootstrapped:
            node = self.cluster.broker_metadata(node_id)
            connection.close_future.add_errback(
                lambda error: self._note(error, node.host, node.port, connection)
            )
        return connection

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:  # noqa: ANN401
        """As the client's own, but one whose handshake fails is closed."""
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
        is_certain = isinstance(error, _HOPELESS) or any(one in text for one in _TLS_HOPELESS)
        if connection.parser is not None or _HANDSHAKE in text:
            self._ended_early += 1
        if not self.bootstrapped and (is_certain or self._ended_early >= _ENDED_EARLY_MAX):
            self._kept_out = KeptOutError(error, host, port, is_certain=is_certain)


class _Found(NamedTuple):
    """Why, and what to do."""

    problem: str
    next_step: str


def refuse_old(topic: str, servers: str, versions: BrokerVersionData) -> None:
    """Refuse a broker that cannot tell what a log must know.

    Raises:
        TopicError: It is older than `OLDEST_BROKER`.
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
    """What an error of connecting means, where it means that trying again cannot help.

    Asks the broker in which language it speaks, where the error does not tell: two seconds at most.
    """
    reason: Exception = error
    if isinstance(error, KeptOutError):
        reason = error.reason
        found = _by_error(security, reason, f"{error.host}:{error.port}", error.host)
        if found is None:
            found = _by_probe(security, error.host, error.port)
    else:
        found = _by_error(security, reason, "it", "this name")
    return None if found is None else AccessError(log, found.problem, found.next_step)


def right_missing(
    log: str, security: Security, *, operation: str, topic: str, servers: str
) -> AccessError:
    """The error that names what an administrator must add."""
    who = principal(security)
    return AccessError(
        log,
        f"the broker does not allow {who} the operation {operation} on topic {topic}",
        f"let its administrator run: kafka-acls.sh --bootstrap-server {servers} --add"
        f" --allow-principal {who} --operation {operation} --topic {topic}",
    )


def principal(security: Security) -> str:
    """What ACLs call the user."""
    if security.protocol.startswith("SASL"):
        return f"User:{security.sasl_username}"
    return "User:ANONYMOUS" if security.ssl_certfile is None else "User:(of the certificate)"


def _by_error(security: Security, reason: Exception, where: str, host: str) -> _Found | None:
    text = str(reason)
    if isinstance(reason, errors.SaslAuthenticationFailedError):
        return _Found(
            f"the broker does not accept user {security.sasl_username!r} with its password by"
            f" {security.sasl_mechanism}",
            f"see that {_names('sasl_username', 'sasl_password', 'sasl_mechanism')} are right",
        )
    if isinstance(reason, errors.UnsupportedSaslMechanismError):
        return _Found(
            f"the broker does not offer the SASL mechanism {security.sasl_mechanism}",
            f"set {_names('sasl_mechanism')} to one that it offers",
        )
    if isinstance(reason, errors.IllegalSaslStateError):
        return _Found(
            f"the broker asks nobody at {where} for a password, and this client gives one",
            f"set {_names('protocol')} to what it speaks there: PLAINTEXT or SSL",
        )
    if "CERTIFICATE_VERIFY_FAILED" in text:
        if "ostname mismatch" in text or "IP address mismatch" in text:
            return _Found(
                f"the broker's certificate is not for the name {host!r}",
                "reach the broker under a name in its certificate, or set"
                f" {_names('ssl_check_hostname')} to no to accept any name",
            )
        why = text.partition("certificate verify failed: ")[2].partition(" (_ssl")[0] or text
        return _Found(
            f"the broker's certificate is not trusted ({why})",
            f"set {_names('ssl_cafile')} to a PEM file with the authority that signed it",
        )
    if "WRONG_VERSION_NUMBER" in text:
        return _no_tls(where)
    if any(one in text for one in _TLS_HOPELESS):
        return _Found(
            "the broker does not accept this client's certificate, or there is none",
            f"set {_names('ssl_certfile', 'ssl_keyfile')} to one that it trusts",
        )
    if isinstance(reason, (errors.AuthorizationError, errors.SecurityDisabledError)):
        return _Found(
            f"the broker does not allow this to {principal(security)} ({type(reason).__name__})",
            "let its administrator add the rights that the docs list under security",
        )
    return None


def _by_probe(security: Security, host: str, port: int) -> _Found | None:
    """After connections that ended before anything was asked."""
    where = f"{host}:{port}"
    if security.protocol in {"SSL", "SASL_SSL"}:
        if _speaks_tls(host, port):
            return _Found(
                f"the broker at {where} ends each connection after its TLS handshake",
                f"see that {_names('protocol')} is what it speaks there (SSL, or SASL_SSL where it"
                " asks for a password), and the certificate one that it trusts",
            )
        return _no_tls(where) if _speaks_plainly(host, port) else None
    if _speaks_tls(host, port):
        return _Found(
            f"the broker speaks TLS at {where}, and {_names('protocol')} is {security.protocol}",
            "set it to SSL, or to SASL_SSL where the broker asks for a password",
        )
    if security.protocol == "PLAINTEXT" and _speaks_plainly(host, port):
        return _Found(
            f"the broker at {where} ends each connection at its first question: it asks for a"
            " password",
            f"set {_names('protocol')} to SASL_PLAINTEXT, and"
            f" {_names('sasl_mechanism', 'sasl_username', 'sasl_password')}",
        )
    return None


def _no_tls(where: str) -> _Found:
    return _Found(
        f"the broker speaks no TLS at {where}",
        f"set {_names('protocol')} to PLAINTEXT or SASL_PLAINTEXT, or use its port for TLS",
    )


def _names(*options: str) -> str:
    """The options as variables, which is what they are called everywhere."""
    variables = [ENVIRONMENT_PREFIX + one.upper() for one in options]
    if len(variables) == 1:
        return variables[0]
    return f"{', '.join(variables[:-1])} and {variables[-1]}"


def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent: only its language is looked at
    try:
        with (
            socket.create_connection((host, port), _PROBE_S) as one,
            context.wrap_socket(one, server_hostname=host),
        ):
            return True
    except ssl.SSLError as error:
        return "ALERT" in str(error)  # an alert is TLS too
    except OSError:
        return False


def _speaks_plainly(host: str, port: int) -> bool:
    """Whether Kafka answers the one question that it answers to everybody: ApiVersions 0."""
    asked = struct.pack(">hhih", 18, 0, 1, -1)
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, port), _PROBE_S) as one,
    ):
        one.sendall(struct.pack(">i", len(asked)) + asked)
        return one.recv(8, socket.MSG_WAITALL)[4:] == struct.pack(">i", 1)
    return False


def _shows_no_secret(record: logging.LogRecord) -> bool:
    """At DEBUG the client writes what it sends: a password among it, where SASL is PLAIN."""
    given = record.args if isinstance(record.args, tuple) else ()
    secret = (bytes, bytearray, memoryview, SaslAuthenticateRequest, SaslBytesRequest)
    return not any(isinstance(one, secret) for one in given)


for _name in ("kafka.net.connection", "kafka.protocol.parser"):
    logging.getLogger(_name).addFilter(_shows_no_secret)
