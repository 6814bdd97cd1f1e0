"""The driver's endpoint: the connections of its attempts, on an event loop in a thread of its own.

An attempt's messages are passed to the mailbox in order. If too many of them wait for the log, the
attempt is not read until some are released. An attempt that does not read its messages fails, and
only that attempt.
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
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from websockets.asyncio.server import Server, ServerConnection, broadcast, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
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
from coordlog.messages import (
    Accepted,
    CheckpointCompleted,
    DownMessage,
    InjectBarrier,
    Register,
    UpMessage,
)
from coordlog.runtime.ports import Arrivals
from coordlog.runtime.requests import Requests
from coordlog.spark_integration.task.attempt_connection import (
    AttemptConnection,
    estimated_bytes,
    peer_of,
    why_closed,
)
from coordlog.spark_integration.wire.accepted_parts import parts_of
from coordlog.spark_integration.wire.client import answered, described
from coordlog.spark_integration.wire.messages import (
    ATTEMPT_PATH,
    DRIVER_PATH,
    FRAME_BYTES,
    REQUEST_PATH,
    SOCKET_LOGGER,
    VERSION_HEADER,
    WIRE_VERSION,
    AskCoordinator,
    ClientHello,
    CoordinatorAnswer,
    DescribeTypes,
    DriverHello,
    FromTask,
    Heartbeat,
    TypesDescribed,
    decode,
    decode_up,
    encode,
)
from coordlog.spark_integration.wire.strangers import GuardedConnection, Listener, Strangers
from coordlog.spark_integration.wire.token import NONCE_BYTES, Token

__all__ = ["ANY_PORT", "Endpoint", "endpoint_address"]

_log = logging.getLogger(__name__)

ANY_PORT: Final = range(1)
"""Port 0: the operating system chooses a port."""

_BACKLOG: Final = 1024
_REFUSALS_LOGGED: Final = 50
"""Number of refused connections that are logged each; later a line is logged when the number has doubled."""

_HELLO_BYTES_MAX: Final = 1024
"""Limit of a message from a client without the token: a challenge has about forty bytes."""
_ACCEPTS_AT_ONCE: Final = 32
_MESSAGES_READ_AHEAD: Final = 4
"""Messages of a connection that the library reads ahead; each may have `MESSAGE_BYTES_MAX`."""

_Frame = Iterator[tuple[FromTask, int]]
"""Messages of a frame, with their bytes."""

_ACTIONS_AT_ONCE: Final = 1000


def endpoint_address(host: str, port: int, *, is_encrypted: bool = False) -> str:
    """The address as in records and closures: `wss://10.0.0.7:40123`; `ws:` without TLS."""
    scheme = "wss" if is_encrypted else "ws"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Endpoint:
    """Implements `Connections`, and calls `Arrivals`. Call `start` once; call `stop` always, last.

    Args:
        job_id: Id of the driver's job.
        driver_id: Id of the driver.
        token: Token that every attempt and client must have.
        arrivals: Called with each message and each lost connection, on this endpoint's thread.
        on_refused: Called with the number of refused connections so far, on this endpoint's thread.
        on_failed: Called once, on this endpoint's thread, if that thread ends with an error: no task and no client can
            reach the driver any more.
        requests: Answers clients' requests; call its `end` before this endpoint's `stop`.
        host: Address to bind to.
        advertised: Host at which tasks and clients reach the endpoint; None for `host`.
        ports: Candidates; the first free port is used.
        tls: Context of the encryption; None for no encryption.
        lease_s: Time after which a silent attempt has failed, seconds.
        heartbeat_s: Interval of the driver's heartbeats to an attempt, seconds.
        unreleased_messages_max: Messages of an attempt that wait for the log; from then on it is not read.
        unreleased_bytes_max: The same in bytes.
        unreleased_bytes_in_all: The same in bytes of all attempts together.
        outgoing_messages_max: Messages queued for an attempt; with more the attempt fails.
        outgoing_bytes_max: The same in bytes.
        strangers_max: Number of connections at once without the token, beside one for each subtask.
        subtasks: Number of tasks that may connect at the same moment.
    """

    def __init__(  # noqa: PLR0913, the limits of an endpoint
        self,
        *,
        job_id: str,
        driver_id: str,
        token: Token,
        arrivals: Arrivals,
        on_refused: Callable[[int], None] | None = None,
        on_failed: Callable[[EnvironmentSetupError], None] | None = None,
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
        subtasks: int = 0,
    ) -> None:
        self._job_id, self._driver_id, self._token = job_id, driver_id, token
        self._arrivals, self._host, self._ports = arrivals, host, ports
        self._advertised, self._tls = advertised or host, tls
        self._lease_s, self._heartbeat_s = lease_s, min(heartbeat_s, lease_s / 4)
        self._unreleased_messages_max = unreleased_messages_max
        self._unreleased_bytes_max = unreleased_bytes_max
        self._unreleased_bytes_in_all = unreleased_bytes_in_all
        self._unreleased_bytes = 0
        """Bytes of all connections, ended ones included, that wait for the log."""
        self._ended: dict[int, AttemptConnection] = {}
        """Connections that have ended and whose messages wait for the log."""
        self._outgoing_messages_max = outgoing_messages_max
        self._outgoing_bytes_max = outgoing_bytes_max
        self._ids = itertools.count(1)
        self._connections: dict[int, AttemptConnection] = {}
        self._requests = requests
        self._refused, self._on_refused, self._on_failed = 0, on_refused, on_failed
        self._clients: set[asyncio.Task[None]] = set()
        self._strangers = Strangers(self._log_refused, count_max=strangers_max + subtasks)
        self._actions: deque[Callable[[], None]] = deque()
        self._is_posted = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channels: weakref.WeakSet[GuardedConnection] = weakref.WeakSet()
        self._stopping = asyncio.Event()
        self._is_stopped = False
        self._socket: Listener | None = None
        self._thread = threading.Thread(target=self._run, name="coordlog-endpoint", daemon=True)
        self.address = ""
        """Address for tasks and clients; empty before `start`."""
        self.listens = ("", 0)
        """Bound address and port; set by `start`."""

    # --- life -------------------------------------------------------------------------------------
    def start(self) -> str:
        """Listen; returns the address.

        Raises:
            EnvironmentSetupError: The address cannot be bound.
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
                info = socket.getaddrinfo(self._host, port, type=socket.SOCK_STREAM)[0]
                listening = socket.create_server(info[4][:2], family=info[0], backlog=_BACKLOG)
                return Listener.of(listening)
            except OSError as error:
                refused = error
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    break
        place = repr(self._host)
        if self._ports != ANY_PORT:
            place += f", ports {self._ports.start} to {self._ports.stop - 1}"
        raise EnvironmentSetupError(
            f"the driver cannot listen at {place}: {refused}",
            "set spark.driver.host, or the job's endpoint options (bind, ports), to an address of "
            "this machine and a free port",
        ) from refused

    def stop(self) -> None:
        """End each connection after its queued messages, within a time limit, and the thread.

        A second call does nothing. `connection_lost` may be called until this returns, not later.
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
            # With others in the queue, the writer has not been there since it was woken for the first of them.
            is_first = not connection.outgoing
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
        elif is_first:
            self._post(functools.partial(self._send_now, connection))

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
        """Run `action` on the loop. Any thread. One wake-up serves all actions queued before it."""
        self._actions.append(action)
        loop = self._loop
        if loop is None or self._is_posted:
            return
        self._is_posted = True
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._act)

    def _act(self) -> None:
        # Before the queue is read: an action appended after the last read finds it False, and posts.
        self._is_posted = False
        for _ in range(_ACTIONS_AT_ONCE):
            if not self._actions:
                return
            self._actions.popleft()()
        self._post(_nothing)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001, the thread's edge: it ends all connections, and the driver
            _log.exception("job=%s the endpoint ends", self._job_id)
            if self._on_failed is not None:
                self._on_failed(_ended_by(error, self.address))

    async def _serve(self) -> None:
        assert self._socket is not None, "started"
        self._socket.strangers = self._strangers
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._log_fault)
        server = await serve(
            self._serve_channel,
            sock=self._socket,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else CONNECT_TIMEOUT_S,
            process_request=self._admit,
            compression=None,
            max_queue=_MESSAGES_READ_AHEAD,
            max_size=_HELLO_BYTES_MAX,  # more for a client with the token, see `_admit`
            open_timeout=CONNECT_TIMEOUT_S,
            close_timeout=CONNECTION_CLOSE_S,
            # Heartbeats replace the library's pings, which would end a connection that is not read.
            ping_interval=None,
            server_header=None,
            logger=SOCKET_LOGGER,
            create_connection=self._guarded,  # type: ignore[arg-type]  # the library only calls it
            backlog=_ACCEPTS_AT_ONCE,
        )
        # The loop accepts as many connections at a time as its backlog; the kernel's backlog is larger.
        self._socket.listen(_BACKLOG)
        self._act()
        watching = asyncio.create_task(self._watch())
        await self._stopping.wait()
        watching.cancel()
        await self._shut(server)

    async def _shut(self, server: Server) -> None:
        """Send the queued messages, then end all connections. Takes at most two close timeouts."""
        connections = list(self._connections.values())
        for connection in connections:
            self._queue_close(connection)
        self._act()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECTION_CLOSE_S):
                for connection in connections:
                    await connection.written.wait()
                await asyncio.gather(*self._clients, return_exceptions=True)
        for connection in list(self._connections.values()):
            self._cut(connection, "the driver ends")
        # First: asyncio makes no transport for a connection that was accepted before its server closes and is served
        # after it, and would leave its socket open.
        assert self._socket is not None, "started"
        self._socket.is_ending = True
        self._strangers.end()
        server.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECTION_CLOSE_S):
                await server.wait_closed()
        # All of them: one that counts as closed may still have bytes to send, and its socket would stay open.
        # Twice: an abort takes effect in the next pass of the loop, in which a new connection gets its socket.
        for _ in range(2):
            for channel in self._channels:
                channel.abort()
            await asyncio.sleep(0)

    # --- handshake --------------------------------------------------------------------------------
    def _guarded(
        self,
        protocol: ServerProtocol,
        server: Server,
        **options: Any,  # noqa: ANN401, the library's own
    ) -> GuardedConnection:
        connection = GuardedConnection(protocol, server, **options)
        self._channels.add(connection)
        connection.on_refused = lambda channel, why: self._log_refused(peer_of(channel), why)
        return connection

    def _admit(self, channel: ServerConnection, request: Request) -> Response | None:
        """Refuse a client of another version or without the token."""
        assert isinstance(channel, GuardedConnection), "created by `_guarded`"
        path = _path(request)
        if path not in (ATTEMPT_PATH, DRIVER_PATH, REQUEST_PATH):
            self._log_refused(peer_of(channel), "it requests an unknown path")
            return channel.respond(404, "this path does not exist\n")
        version = _header(request, VERSION_HEADER)
        if version != str(WIRE_VERSION):
            reason = f"it has wire version {version!s:.20}, this driver {WIRE_VERSION}"
            self._log_refused(peer_of(channel), reason)
            return channel.respond(
                426,
                f"this driver has wire version {WIRE_VERSION}, the client {version!r:.20}: "
                "run one version of coordlog on all machines\n",
            )
        if path == DRIVER_PATH:
            return None
        if not self._token.is_in(_header(request, "Authorization")):
            self._log_refused(peer_of(channel), "wrong token")
            # The response does not name the driver's job.
            return channel.respond(401, "not this driver's token\n")
        channel.is_admitted = True
        self._strangers.admitted(channel.transport.get_extra_info("peername"))
        channel.protocol.max_message_size = MESSAGE_BYTES_MAX
        return None

    async def _serve_channel(self, channel: ServerConnection) -> None:
        try:
            await self._serve_admitted(channel)
        except Exception as error:  # noqa: BLE001, the library's own checks may fail on a client's frames
            self._log_refused(peer_of(channel), f"its connection failed: {error!r}")
            channel.transport.abort()

    async def _serve_admitted(self, channel: ServerConnection) -> None:
        assert channel.request is not None, "the handshake has ended"
        path = _path(channel.request)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                data = _bytes(await channel.recv())
            # Behind its registration an attempt may have sent more.
            frame = decode_up(data) if path == ATTEMPT_PATH else iter(())
            first = next(frame)[0] if path == ATTEMPT_PATH else decode(data)
        except (TimeoutError, ValueError) as error:
            self._log_refused(peer_of(channel), str(error))
            channel.transport.abort()
            return
        except ConnectionClosed:
            return
        if path == DRIVER_PATH:
            await self._prove(channel, first)
        elif path == REQUEST_PATH:
            await self._serve_client(channel, first)
        elif isinstance(first, Register):
            await self._serve_attempt(channel, first, frame)
        else:
            self._log_refused(peer_of(channel), "it does not register")
            channel.transport.abort()

    def _log_fault(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log a fault of the event loop, such as a lack of descriptors, in one line, as a refused connection."""
        error = context.get("exception")
        self._log_refused("a connection", f"{context.get('message')}: {error!r}")

    def _log_refused(self, peer: str, why: str) -> None:
        """Log a refusal: each of the first ones, then fewer and fewer, so that refused clients cannot fill a disk."""
        self._refused += 1
        if self._on_refused is not None:
            self._on_refused(self._refused)
        if self._refused <= _REFUSALS_LOGGED or self._refused.bit_count() == 1:
            _log.warning(
                *("job=%s refused %s: %.500s (%d refused so far)", self._job_id),
                *(peer, why, self._refused),
            )

    async def _prove(self, channel: ServerConnection, hello: object) -> None:
        """Answer a challenge: proves to a holder of the token that this driver lives."""
        if not isinstance(hello, ClientHello) or len(hello.nonce) != NONCE_BYTES:
            channel.transport.abort()
            return
        proof = self._token.prove(hello.nonce, job_id=self._job_id, driver_id=self._driver_id)
        answer = DriverHello(job_id=self._job_id, driver_id=self._driver_id, proof=proof)
        with contextlib.suppress(ConnectionClosed):
            await channel.send(encode(answer))

    async def _serve_client(self, channel: ServerConnection, message: object) -> None:
        """Answer requests, one after the other, until the client leaves (J1: requests to coordinators)."""
        serving = asyncio.current_task()
        assert serving is not None, "a connection's handler is a task"
        requests = self._requests
        while requests is not None and isinstance(message, AskCoordinator | DescribeTypes):
            self._clients.add(serving)
            try:
                answer: CoordinatorAnswer | TypesDescribed | None
                if isinstance(message, DescribeTypes):
                    answer = described(requests)
                else:
                    answer = await answered(requests, message, channel, self._post)
                if answer is None:
                    return
                await channel.send(encode(answer))
                # The endpoint's end waits only for clients whose request has no answer yet.
                self._clients.discard(serving)
                async with asyncio.timeout(CLIENT_IDLE_S):
                    message = decode(_bytes(await channel.recv()))
            except (ConnectionClosed, TimeoutError):
                return
            except ValueError as error:
                self._log_refused(peer_of(channel), str(error))
                break
            finally:
                self._clients.discard(serving)
        channel.transport.abort()

    # --- one attempt ------------------------------------------------------------------------------
    async def _serve_attempt(
        self, channel: ServerConnection, register: Register, frame: _Frame
    ) -> None:
        connection = AttemptConnection(next(self._ids), channel, register)
        connection.heard_s = asyncio.get_running_loop().time()
        self._connections[connection.connection_id] = connection
        _log.info("job=%s connected: %s", self._job_id, connection)
        writing = asyncio.create_task(self._write(connection))
        closing = asyncio.create_task(channel.wait_closed())
        closing.add_done_callback(lambda _done: connection.release())
        lost = "the driver ends"
        try:
            self._take(connection, register, 0)
            await self._hold(connection)
            lost = await self._read(connection, frame)
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

    async def _read(self, connection: AttemptConnection, frame: _Frame) -> str:
        """Pass on the rest of `frame`, and all messages until the connection ends; returns the reason."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                for message, size in frame:
                    if isinstance(message, Register):
                        raise ValueError("a connection registers once")  # noqa: TRY004, TRY301, as `decode`
                    if not isinstance(message, Heartbeat):
                        self._take(connection, message, size)
                        if self._is_full(connection):
                            await self._hold(connection)
                frame = decode_up(_bytes(await connection.channel.recv()))
                connection.heard_s = loop.time()
            except ConnectionClosed as closed:
                return why_closed(closed)
            except ValueError as error:
                self._cut(connection, f"it sent an invalid message: {error}")
                return "cut"
            except Exception as error:
                self._cut(connection, f"its connection failed: {error!r}")
                raise

    def _take(self, connection: AttemptConnection, message: UpMessage, size: int) -> None:
        """Pass on a message."""
        connection.unreleased.append(size)
        connection.unreleased_bytes += size
        self._unreleased_bytes += size
        self._arrivals.arrived(connection.connection_id, message)

    async def _hold(self, connection: AttemptConnection) -> None:
        """Return when the next message may be read (D2: messages in order)."""
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
        for waiting in list(self._connections.values()) if is_room else (connection,):
            if waiting.is_held and not self._is_full(waiting):
                waiting.resume.set()

    def _forget_bytes(self, connection: AttemptConnection, size: int) -> None:
        connection.unreleased_bytes -= size
        self._unreleased_bytes -= size

    def _send_now(self, connection: AttemptConnection) -> None:
        """Send the queued messages, as a rule all of them; the writer sends what has to wait for the other side.

        Without the writer, a message costs no switch of the loop to its task.
        """
        channel = connection.channel
        is_free = connection.is_writer_idle and not channel.transport.get_write_buffer_size()
        if is_free and connection.outgoing_bytes <= FRAME_BYTES:
            messages, _ = connection.next_messages()
            try:
                for frame in _frames(messages):
                    broadcast((channel,), frame)
            except Exception as error:  # noqa: BLE001, ends this connection alone
                self._cut(connection, f"a message to it cannot be sent: {error}")
        if connection.outgoing:
            connection.wake.set()

    async def _write(self, connection: AttemptConnection) -> None:
        """Send the queued messages, in order, several in a frame, until the connection is closed or lost."""
        try:
            while True:
                if connection.is_heartbeat_due:
                    connection.is_heartbeat_due = False
                    await connection.channel.send(encode(Heartbeat()))
                messages, is_last = connection.next_messages()
                if messages:
                    for frame in _frames(messages):
                        await connection.channel.send(frame)
                    if connection.outgoing:
                        await asyncio.sleep(0)  # the other connections first
                if is_last:
                    await connection.channel.close()
                    return
                if not messages:
                    connection.is_writer_idle = True
                    await connection.wake.wait()
                    connection.is_writer_idle = False
                    connection.wake.clear()
        except ConnectionClosed:
            return
        except ValueError as error:
            self._cut(connection, f"a message to it cannot be sent: {error}")
        except Exception as error:
            self._cut(connection, f"sending to it failed: {error!r}")
            raise
        finally:
            connection.written.set()

    def _cut(self, connection: AttemptConnection, reason: str) -> None:
        """End a connection at once; queued messages are dropped."""
        if connection.reason is None:
            connection.reason = reason
        with connection.lock:
            connection.is_closing = True
        connection.release()
        connection.channel.transport.abort()

    # --- leases -----------------------------------------------------------------------------------
    async def _watch(self) -> None:
        """Send heartbeats, and end the connections of silent attempts."""
        loop = asyncio.get_running_loop()
        looked_s = loop.time()
        while True:
            await asyncio.sleep(self._heartbeat_s)
            self._strangers.watch()
            now = loop.time()
            # This process was stopped (by a signal, or a native call that kept the interpreter): the
            # attempts' messages wait to be read, so that their silence is no sign of a failure.
            is_late = now - looked_s > self._heartbeat_s + self._lease_s / 2
            looked_s = now
            for connection in list(self._connections.values()):
                if is_late:
                    connection.heard_s = now
                silent_s = now - connection.heard_s
                if silent_s > self._lease_s and not connection.is_held:
                    self._cut(
                        connection,
                        f"it sent nothing for {silent_s:.1f} s; its lease is {self._lease_s:g} s",
                    )
                    continue
                connection.is_heartbeat_due = True
                connection.wake.set()


def _ended_by(error: BaseException, address: str) -> EnvironmentSetupError:
    failure = EnvironmentSetupError(
        f"the driver's endpoint at {address} has ended with {type(error).__name__}: {error}; no task can reach the "
        "driver",
        "remove the cause, whose traceback is in the driver's output, and run the job again; it continues from its log",
    )
    failure.__cause__ = error
    return failure


def _frames(messages: Sequence[DownMessage]) -> Iterator[bytes]:
    """The messages as frames, in order. Raises ValueError for a message above the limit of the other side."""
    parts: list[bytes] = []
    size = 0
    for message in messages:
        for data in _encoded(message):
            if parts and size + len(data) > FRAME_BYTES:
                yield b"".join(parts)
                parts, size = [], 0
            parts.append(data)
            size += len(data)
    if parts:
        yield b"".join(parts)


def _encoded(message: DownMessage) -> Sequence[bytes]:
    if isinstance(message, Accepted):
        return [_within_limit(encode(part)) for part in parts_of(message)]
    if isinstance(message, InjectBarrier | CheckpointCompleted):
        return (_encoded_for_all(message),)
    return (_within_limit(encode(message)),)


@functools.lru_cache(maxsize=16)
def _encoded_for_all(message: InjectBarrier | CheckpointCompleted) -> bytes:
    """A message that all attempts of the job receive at one time."""
    return encode(message)


def _bytes(data: str | bytes) -> bytes:
    if isinstance(data, str):
        raise ValueError("a text, but messages are binary")  # noqa: TRY004, an error of received data
    return data


def _path(request: Request) -> str:
    """The path without a query. Not by `urlsplit`, which raises for some paths that a stranger may send."""
    return request.path.partition("?")[0]


def _header(request: Request, name: str) -> str | None:
    """The header, or None if the request has it not or twice: two may contradict each other."""
    values = request.headers.get_all(name)
    return values[0] if len(values) == 1 else None


def _within_limit(data: bytes) -> bytes:
    """The data. Raises ValueError if it exceeds the limit of the other side."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes; a message has at most {MESSAGE_BYTES_MAX}")
    return data


def _nothing() -> None:
    """Does nothing: its post makes the loop call `_act` again."""
