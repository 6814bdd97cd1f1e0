"""The driver's endpoint: the connections of its attempts, on an event loop in a thread of its own.

What an attempt sends is handed to the mailbox in order. An attempt that has too much waiting for
the log is not read until some of it is released; one that does not read what it is sent fails,
alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import itertools
import logging
import socket
import ssl
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from coordlog.errors import EnvironmentSetupError
from coordlog.limits import (
    CLIENT_IDLE_S,
    CONNECT_TIMEOUT_S,
    CONNECTION_CLOSE_S,
    HEARTBEAT_S,
    LEASE_S,
    MESSAGE_BYTES_MAX,
    OUTGOING_BYTES_PER_ATTEMPT_MAX,
    OUTGOING_MESSAGES_PER_ATTEMPT_MAX,
    STRANGERS_MAX,
    UNRELEASED_BYTES_MAX,
    UNRELEASED_BYTES_PER_ATTEMPT_MAX,
    UNRELEASED_EVENTS_PER_ATTEMPT_MAX,
)
from coordlog.messages import DownMessage, Register, UpMessage
from coordlog.runtime.ports import Arrivals
from coordlog.runtime.requests import Requests
from coordlog.spark_integration.task.attempt_connection import (
    AttemptConnection,
    estimated_bytes,
    peer_of,
    why_closed,
)
from coordlog.spark_integration.wire.accepted_parts import parts_of
from coordlog.spark_integration.wire.client import answered
from coordlog.spark_integration.wire.messages import (
    ATTEMPT_PATH,
    DRIVER_PATH,
    REQUEST_PATH,
    SOCKET_LOGGER,
    VERSION_HEADER,
    WIRE_VERSION,
    AskCoordinator,
    ClientHello,
    DriverHello,
    Heartbeat,
    decode,
    decode_up,
    encode,
)
from coordlog.spark_integration.wire.strangers import GuardedConnection, Listener, Strangers
from coordlog.spark_integration.wire.token import NONCE_BYTES, Token

__all__ = ["ANY_PORT", "Endpoint", "endpoint_address"]

_log = logging.getLogger(__name__)

ANY_PORT: Final = range(1)
"""Port 0: the machine chooses."""

_BACKLOG: Final = 1024
_REFUSALS_TOLD: Final = 50
"""Connections that were refused: so many are told of each, later ones when their number has doubled."""

_HELLO_BYTES_MAX: Final = 1024
"""A challenge of somebody without the token: some forty bytes are asked for."""
_ACCEPTS_AT_ONCE: Final = 32
_MESSAGES_READ_AHEAD: Final = 4
"""Of a connection, by the library, while it is not read: each may have `MESSAGE_BYTES_MAX`."""

_ACTIONS_AT_ONCE: Final = 1000
_MESSAGES_AT_ONCE: Final = 64


def endpoint_address(host: str, port: int, *, is_encrypted: bool = False) -> str:
    """The address as records and closures hold it: `wss://10.0.0.7:40123`; `ws:` without TLS."""
    scheme = "wss" if is_encrypted else "ws"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Endpoint:
    """Implements `Connections`, and tells `Arrivals`. `start` once; `stop` always, last.

    Args:
        job_id: The job that it answers for.
        driver_id: The driver.
        token: Without it nobody is let in.
        arrivals: Told what comes, on this endpoint's thread.
        on_refused: Told how many connections have been refused so far; on this endpoint's thread.
        requests: Answers clients' requests; its `end` comes before this endpoint's `stop`.
        host: What to bind to.
        advertised: Where tasks and clients reach it; None: at `host`.
        ports: The first that is free is taken.
        tls: By which it is encrypted; None: it is not.
        lease_s: An attempt that is silent for so long has failed.
        heartbeat_s: How often it is told that the driver lives.
        unreleased_messages_max: An attempt that has so many waiting for the log is not read.
        unreleased_bytes_max: The same in bytes.
        unreleased_bytes_in_all: The same in bytes of all attempts together.
        outgoing_messages_max: An attempt for which more are queued fails.
        outgoing_bytes_max: The same in bytes.
        strangers_max: Connections at once that have not shown the token.
    """

    def __init__(  # noqa: PLR0913, the limits of an endpoint
        self,
        *,
        job_id: str,
        driver_id: str,
        token: Token,
        arrivals: Arrivals,
        on_refused: Callable[[int], None] | None = None,
        requests: Requests | None = None,
        host: str = "127.0.0.1",
        advertised: str | None = None,
        ports: range = ANY_PORT,
        tls: ssl.SSLContext | None = None,
        lease_s: float = LEASE_S,
        heartbeat_s: float = HEARTBEAT_S,
        unreleased_messages_max: int = UNRELEASED_EVENTS_PER_ATTEMPT_MAX,
        unreleased_bytes_max: int = UNRELEASED_BYTES_PER_ATTEMPT_MAX,
        unreleased_bytes_in_all: int = UNRELEASED_BYTES_MAX,
        outgoing_messages_max: int = OUTGOING_MESSAGES_PER_ATTEMPT_MAX,
        outgoing_bytes_max: int = OUTGOING_BYTES_PER_ATTEMPT_MAX,
        strangers_max: int = STRANGERS_MAX,
    ) -> None:
        self._job_id, self._driver_id, self._token = job_id, driver_id, token
        self._arrivals, self._host, self._ports = arrivals, host, ports
        self._advertised, self._tls = advertised or host, tls
        self._lease_s, self._heartbeat_s = lease_s, min(heartbeat_s, lease_s / 4)
        self._unreleased_messages_max = unreleased_messages_max
        self._unreleased_bytes_max = unreleased_bytes_max
        self._unreleased_bytes_in_all = unreleased_bytes_in_all
        self._unreleased_bytes = 0
        """Of all connections, those that have ended included."""
        self._ended: dict[int, AttemptConnection] = {}
        """Connections that have ended and whose messages wait for the log."""
        self._outgoing_messages_max = outgoing_messages_max
        self._outgoing_bytes_max = outgoing_bytes_max
        self._ids = itertools.count(1)
        self._connections: dict[int, AttemptConnection] = {}
        self._requests = requests
        self._refused, self._on_refused = 0, on_refused
        self._clients: set[asyncio.Task[None]] = set()
        self._strangers = Strangers(self._tell_refused, count_max=strangers_max)
        self._actions: deque[Callable[[], None]] = deque()
        self._is_posted = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channels: weakref.WeakSet[GuardedConnection] = weakref.WeakSet()
        self._stopping = asyncio.Event()
        self._is_stopped = False
        self._socket: Listener | None = None
        self._thread = threading.Thread(target=self._run, name="coordlog-endpoint", daemon=True)
        self.address = ""
        """After `start`."""
        self.listens = ("", 0)
        """Address and port that it is bound to; after `start`."""

    # --- life -------------------------------------------------------------------------------------
    def start(self) -> str:
        """Listen; the address.

        Raises:
            EnvironmentSetupError: It cannot be bound.
        """
        self._socket = self._listen()
        self.listens = self._socket.getsockname()[:2]
        port = self.listens[1]
        self.address = endpoint_address(self._advertised, port, is_encrypted=self._tls is not None)
        self._thread.start()
        _log.info("job=%s the endpoint listens at %s", self._job_id, self.address)
        return self.address

    def _listen(self) -> Listener:
        refused: OSError | None = None
        for port in self._ports:
            try:
                # One address only: with port 0, each address of a name would get a port of its own.
                found = socket.getaddrinfo(self._host, port, type=socket.SOCK_STREAM)[0]
                listening = socket.create_server(found[4][:2], family=found[0], backlog=_BACKLOG)
                return Listener.of(listening)
            except OSError as error:
                refused = error
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    break
        where = repr(self._host)
        if self._ports != ANY_PORT:
            where += f", ports {self._ports.start} to {self._ports.stop - 1}"
        raise EnvironmentSetupError(
            f"the driver cannot listen at {where}: {refused}",
            "bind it to an address of this machine, at a port that is free: spark.driver.host, or "
            "the job's endpoint options (bind, ports), say which",
        ) from refused

    def stop(self) -> None:
        """End each connection after what was sent, within a bound, and the thread. Again: nothing.

        `connection_lost` may follow until it returns, and not after.
        """
        if self._is_stopped or self._thread.ident is None:
            return
        self._is_stopped = True
        self._post(self._stopping.set)
        self._thread.join()
        assert self._socket is not None, "started"
        self._socket.close()

    # --- Connections ------------------------------------------------------------------------------
    def send(self, connection_id: int, message: DownMessage) -> None:
        """See `Connections`."""
        connection = self._connections.get(connection_id)
        if connection is None:
            return
        size = estimated_bytes(message)
        with connection.lock:
            if connection.is_closing:
                return
            connection.outgoing.append((message, size))
            connection.outgoing_bytes += size
            count, size = len(connection.outgoing), connection.outgoing_bytes
            is_full = count > self._outgoing_messages_max or size > self._outgoing_bytes_max
            connection.is_closing = is_full
        if is_full:
            reason = (
                f"it reads too slowly: {count} messages ({size} bytes) wait for it; the limits are "
                f"{self._outgoing_messages_max} and {self._outgoing_bytes_max}"
            )
            self._post(functools.partial(self._cut, connection, reason))
        else:
            self._post(connection.wake.set)

    def close(self, connection_id: int) -> None:
        """See `Connections`."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            self._queue_close(connection)

    def _queue_close(self, connection: AttemptConnection) -> None:
        with connection.lock:
            if connection.is_closing:
                return
            connection.is_closing = True
            connection.outgoing.append((None, 0))
        self._post(connection.wake.set)

    def released(self, connection_id: int, message_count: int) -> None:
        """See `Connections`."""
        connection = self._connections.get(connection_id) or self._ended.get(connection_id)
        if connection is not None:
            self._post(functools.partial(self._release, connection, message_count))

    # --- the loop's thread ------------------------------------------------------------------------
    def _post(self, action: Callable[[], None]) -> None:
        """Do `action` on the loop; any thread. One wake-up serves all that comes before it."""
        self._actions.append(action)
        loop = self._loop
        if loop is None or self._is_posted:
            return
        self._is_posted = True
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._act)

    def _act(self) -> None:
        # Before the first look: what is appended after the last one finds it False, and posts.
        self._is_posted = False
        for _ in range(_ACTIONS_AT_ONCE):
            if not self._actions:
                return
            self._actions.popleft()()
        self._post(_nothing)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:  # noqa: BLE001, the thread's edge: it ends all connections, and is told
            _log.exception("job=%s the endpoint ends", self._job_id)

    async def _serve(self) -> None:
        assert self._socket is not None, "started"
        self._socket.strangers = self._strangers
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._tell_fault)
        server = await serve(
            self._hear,
            sock=self._socket,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else CONNECT_TIMEOUT_S,
            process_request=self._admit,
            compression=None,
            max_queue=_MESSAGES_READ_AHEAD,
            max_size=_HELLO_BYTES_MAX,  # more for who has brought the token, see `_admit`
            open_timeout=CONNECT_TIMEOUT_S,
            close_timeout=CONNECTION_CLOSE_S,
            # Our heartbeats do this: the library's pings would end a connection that we hold.
            ping_interval=None,
            server_header=None,
            logger=SOCKET_LOGGER,
            create_connection=self._guarded,  # type: ignore[arg-type]  # it is called, no more
            backlog=_ACCEPTS_AT_ONCE,
        )
        # The loop accepts as many at a time as its backlog has; the kernel's is larger.
        self._socket.listen(_BACKLOG)
        self._act()
        watching = asyncio.create_task(self._watch())
        await self._stopping.wait()
        watching.cancel()
        await self._shut(server)

    async def _shut(self, server: Server) -> None:
        """What was sent before leaves; then all connections end. Within two close timeouts."""
        connections = list(self._connections.values())
        for one in connections:
            self._queue_close(one)
        self._act()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECTION_CLOSE_S):
                for one in connections:
                    await one.written.wait()
                await asyncio.gather(*self._clients, return_exceptions=True)
        for one in list(self._connections.values()):
            self._cut(one, "the driver ends")
        server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECTION_CLOSE_S):
                await server.wait_closed()
        for channel in self._channels:  # one whose close has not come to its end
            if channel.state is not State.CLOSED:
                channel.transport.abort()
        await asyncio.sleep(0)  # an abort takes effect in the next pass of the loop

    # --- handshake --------------------------------------------------------------------------------
    def _guarded(
        self,
        protocol: ServerProtocol,
        server: Server,
        **options: Any,  # noqa: ANN401, the library's own
    ) -> GuardedConnection:
        connection = GuardedConnection(protocol, server, **options)
        self._channels.add(connection)
        connection.on_refused = lambda channel, why: self._tell_refused(peer_of(channel), why)
        return connection

    def _admit(self, channel: ServerConnection, request: Request) -> Response | None:
        """Refuse whoever is of another version, or brings no token."""
        assert isinstance(channel, GuardedConnection), "`_guarded` makes them"
        path = urlsplit(request.path).path
        if path not in (ATTEMPT_PATH, DRIVER_PATH, REQUEST_PATH):
            self._tell_refused(peer_of(channel), "it asks for another path")
            return channel.respond(404, "there is no such thing here\n")
        version = _header(request, VERSION_HEADER)
        if version != str(WIRE_VERSION):
            why = f"it speaks wire version {version!s:.20}, this driver {WIRE_VERSION}"
            self._tell_refused(peer_of(channel), why)
            return channel.respond(
                426,
                f"this driver speaks wire version {WIRE_VERSION}, the client {version!r:.20}: "
                "run one version of coordlog on all machines\n",
            )
        if path == DRIVER_PATH:
            return None
        if not self._token.is_in(_header(request, "Authorization")):
            self._tell_refused(peer_of(channel), "wrong token")
            # Nor is he told whose driver this is.
            return channel.respond(401, "not this driver's token\n")
        channel.is_admitted = True
        self._strangers.admitted(channel.transport.get_extra_info("peername"))
        channel.protocol.max_message_size = MESSAGE_BYTES_MAX
        return None

    async def _hear(self, channel: ServerConnection) -> None:
        assert channel.request is not None, "the handshake is over"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                first = decode(_bytes(await channel.recv()))
        except (TimeoutError, ValueError) as error:
            self._tell_refused(peer_of(channel), str(error))
            channel.transport.abort()
            return
        except ConnectionClosed:
            return
        path = urlsplit(channel.request.path).path
        if path == DRIVER_PATH:
            await self._prove(channel, first)
        elif path == REQUEST_PATH:
            await self._serve_client(channel, first)
        elif isinstance(first, Register):
            await self._serve_attempt(channel, first)
        else:
            self._tell_refused(peer_of(channel), "it does not register")
            channel.transport.abort()

    def _tell_fault(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log a fault of the event loop, such as a lack of descriptors, in one line, as a refused connection."""
        error = context.get("exception")
        self._tell_refused("a connection", f"{context.get('message')}: {error!r}")

    def _tell_refused(self, peer: str, why: str) -> None:
        """One line each, then fewer and fewer: whoever is let in nowhere must not fill a disk."""
        self._refused += 1
        if self._on_refused is not None:
            self._on_refused(self._refused)
        if self._refused <= _REFUSALS_TOLD or self._refused.bit_count() == 1:
            _log.warning(
                *("job=%s refused %s: %.500s (%d refused so far)", self._job_id),
                *(peer, why, self._refused),
            )

    async def _prove(self, channel: ServerConnection, hello: object) -> None:
        """Answer a challenge: who holds the token can tell that we live."""
        if not isinstance(hello, ClientHello) or len(hello.nonce) != NONCE_BYTES:
            channel.transport.abort()
            return
        proof = self._token.prove(hello.nonce, job_id=self._job_id, driver_id=self._driver_id)
        answer = DriverHello(job_id=self._job_id, driver_id=self._driver_id, proof=proof)
        with contextlib.suppress(ConnectionClosed):
            await channel.send(encode(answer))

    async def _serve_client(self, channel: ServerConnection, ask: object) -> None:
        """Answer requests, one after the other, until the client goes (clause J1)."""
        serving = asyncio.current_task()
        assert serving is not None, "a connection's handler is one"
        while self._requests is not None and isinstance(ask, AskCoordinator):
            self._clients.add(serving)
            try:
                answer = await answered(self._requests, ask, channel, self._post)
                if answer is None:
                    return
                await channel.send(encode(answer))
                # Only while it is owed an answer the endpoint's end waits for it.
                self._clients.discard(serving)
                async with asyncio.timeout(CLIENT_IDLE_S):
                    ask = decode(_bytes(await channel.recv()))
            except (ConnectionClosed, TimeoutError):
                return
            except ValueError as error:
                self._tell_refused(peer_of(channel), str(error))
                break
            finally:
                self._clients.discard(serving)
        channel.transport.abort()

    # --- one attempt ------------------------------------------------------------------------------
    async def _serve_attempt(self, channel: ServerConnection, register: Register) -> None:
        connection = AttemptConnection(next(self._ids), channel, register)
        connection.heard_s = asyncio.get_running_loop().time()
        self._connections[connection.connection_id] = connection
        _log.info("job=%s connected: %s", self._job_id, connection)
        writing = asyncio.create_task(self._write(connection))
        closing = asyncio.create_task(channel.wait_closed())
        closing.add_done_callback(lambda _done: connection.let_go())
        lost = "the driver ends"
        try:
            await self._take(connection, register, 0)
            lost = await self._read(connection)
        finally:
            if connection.unreleased_bytes:
                self._ended[connection.connection_id] = connection
            del self._connections[connection.connection_id]
            writing.cancel()
            closing.cancel()
            connection.written.set()
            reason = connection.reason or lost
            _log.info("job=%s lost: %s: %s", self._job_id, connection, reason)
            self._arrivals.connection_lost(connection.connection_id, reason)

    async def _read(self, connection: AttemptConnection) -> str:
        """Hand over what comes, until nothing comes any more; why."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                data = _bytes(await connection.channel.recv())
                connection.heard_s = loop.time()
                message = decode_up(data)
                if isinstance(message, Register):
                    raise ValueError("a connection registers once")  # noqa: TRY004, TRY301, as `decode`
            except ConnectionClosed as closed:
                return why_closed(closed)
            except ValueError as error:
                self._cut(connection, f"it said what it must not: {error}")
                return "cut"
            if not isinstance(message, Heartbeat):
                await self._take(connection, message, len(data))

    async def _take(self, connection: AttemptConnection, message: UpMessage, size: int) -> None:
        """Hand over a message; return when the next one may be read (clause D2)."""
        connection.unreleased.append(size)
        connection.unreleased_bytes += size
        self._unreleased_bytes += size
        self._arrivals.arrived(connection.connection_id, message)
        while self._is_full(connection) and not connection.is_gone:
            connection.is_held = True
            connection.resume.clear()
            await connection.resume.wait()
        if connection.is_held:
            connection.is_held = False
            connection.heard_s = asyncio.get_running_loop().time()

    def _is_full(self, connection: AttemptConnection) -> bool:
        return bool(
            len(connection.unreleased) >= self._unreleased_messages_max
            or connection.unreleased_bytes >= self._unreleased_bytes_max
            or (connection.unreleased and self._unreleased_bytes >= self._unreleased_bytes_in_all)
        )

    def _release(self, connection: AttemptConnection, message_count: int) -> None:
        was_full = self._unreleased_bytes >= self._unreleased_bytes_in_all
        for _ in range(min(message_count, len(connection.unreleased))):
            self._forget_bytes(connection, connection.unreleased.popleft())
        if not connection.unreleased_bytes:
            self._ended.pop(connection.connection_id, None)
        is_room = was_full and self._unreleased_bytes < self._unreleased_bytes_in_all
        for one in list(self._connections.values()) if is_room else (connection,):
            if one.is_held and not self._is_full(one):
                one.resume.set()

    def _forget_bytes(self, connection: AttemptConnection, size: int) -> None:
        connection.unreleased_bytes -= size
        self._unreleased_bytes -= size

    async def _write(self, connection: AttemptConnection) -> None:
        """Send what is queued, in order, until the connection is to be closed or is gone."""
        written = 0
        try:
            while True:
                if connection.is_heartbeat_due:
                    connection.is_heartbeat_due = False
                    await connection.channel.send(encode(Heartbeat()))
                with connection.lock:
                    message, size = (
                        connection.outgoing.popleft() if connection.outgoing else (None, -1)
                    )
                    connection.outgoing_bytes -= max(size, 0)
                if message is not None:
                    for part in parts_of(message):
                        await connection.channel.send(_fitting(encode(part)))
                    written += 1
                    if written % _MESSAGES_AT_ONCE == 0:
                        await asyncio.sleep(0)
                elif size == 0:
                    await connection.channel.close()
                    return
                else:
                    await connection.wake.wait()
                    connection.wake.clear()
        except ConnectionClosed:
            return
        except ValueError as error:
            self._cut(connection, f"what was to be sent to it cannot be: {error}")
        except Exception as error:
            self._cut(connection, f"sending to it failed: {error!r}")
            raise
        finally:
            connection.written.set()

    def _cut(self, connection: AttemptConnection, reason: str) -> None:
        """End a connection at once; what is queued is dropped."""
        if connection.reason is None:
            connection.reason = reason
        with connection.lock:
            connection.is_closing = True
        connection.let_go()
        connection.channel.transport.abort()

    # --- leases -----------------------------------------------------------------------------------
    async def _watch(self) -> None:
        """Say that the driver lives, and end the connections of attempts that say nothing."""
        loop = asyncio.get_running_loop()
        looked_s = loop.time()
        while True:
            await asyncio.sleep(self._heartbeat_s)
            self._strangers.watch()
            now = loop.time()
            # This process stood still (a signal, a native call that kept the interpreter): what the
            # attempts said meanwhile waits to be read, and their silence says nothing.
            is_late = now - looked_s > self._heartbeat_s + self._lease_s / 2
            looked_s = now
            for connection in list(self._connections.values()):
                if is_late:
                    connection.heard_s = now
                silent_s = now - connection.heard_s
                if silent_s > self._lease_s and not connection.is_held:
                    self._cut(
                        connection,
                        f"nothing was heard of it for {silent_s:.1f} s; its lease is "
                        f"{self._lease_s:g} s",
                    )
                    continue
                connection.is_heartbeat_due = True
                connection.wake.set()


def _bytes(data: str | bytes) -> bytes:
    if isinstance(data, str):
        raise ValueError("a text, where messages are binary")  # noqa: TRY004, of what was received
    return data


def _header(request: Request, name: str) -> str | None:
    """The header, if the request has it once: of one that comes twice nobody knows which holds."""
    values = request.headers.get_all(name)
    return values[0] if len(values) == 1 else None


def _fitting(data: bytes) -> bytes:
    """What the other side would refuse is not sent."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes; a message has at most {MESSAGE_BYTES_MAX}")
    return data


def _nothing() -> None:
    """To be called again."""
