"""A task's connection to its driver: an event loop in a thread of its own, queues to the main one.

The thread sends heartbeats while the main thread works, up to a call's time limit. It ends with the connection,
because Spark uses a Python worker for one task after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import broadcast
from websockets.exceptions import (
    ConnectionClosed,
    InvalidMessage,
    InvalidStatus,
    WebSocketException,
)
from websockets.frames import Frame, Opcode
from websockets.protocol import Event, State

from coordlog.errors import AttemptError, FencedAttemptError, TooLargeError
from coordlog.limits import (
    ATTEMPT_QUEUE_BYTES_MAX,
    ATTEMPT_QUEUE_MESSAGES_MAX,
    ATTEMPT_SEND_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    CONNECTION_CLOSE_S,
    HEARTBEAT_S,
    LEASE_S,
    MESSAGE_BYTES_MAX,
)
from coordlog.messages import AckEvent, DownMessage, Fenced, SendEvent, UpMessage, joined_acks
from coordlog.spark_integration.wire.accepted_parts import AcceptedJoiner
from coordlog.spark_integration.wire.certificate import Certificate, is_encrypted
from coordlog.spark_integration.wire.driver_proof import require_proof
from coordlog.spark_integration.wire.messages import (
    ATTEMPT_PATH,
    FRAME_BYTES,
    FRAME_MESSAGES_MAX,
    SOCKET_LOGGER,
    VERSION_HEADER,
    WIRE_VERSION,
    Heartbeat,
    decode_down,
    encode,
)
from coordlog.spark_integration.wire.token import Token

__all__ = ["DriverConnection", "TaskInbox"]

_STALL_S: Final = 1.0
_LOOP_PASSES: Final = 5
_TOGETHER_S: Final = 0.0005
"""Time that an event waits for further messages of its frame."""
_AT_ONCE_BYTES_MAX: Final = 32 * 1024
"""Most bytes that are sent without the writer."""
_DROPPED_PAUSE_S: Final = 0.05
"""Pause before a new connection to a driver that has dropped one; doubles each time, up to `_DROPPED_PAUSE_MAX_S`."""
_DROPPED_PAUSE_MAX_S: Final = 0.4
_DROPPED: Final = (ConnectionError, ssl.SSLEOFError, InvalidMessage)
"""Errors if the connection ends without an answer, during the TLS handshake or after it."""


class TaskInbox:
    """The driver's messages that the attempt has not handled; filled by the loop."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[DownMessage, int]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._count = self._bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._room = asyncio.Event()

    def get(
        self,
        block: bool = True,  # noqa: FBT001, FBT002, as in `queue.Queue`
        timeout: float | None = None,
    ) -> DownMessage:
        """The next message. Raises queue.Empty if none arrives in time."""
        message, size = self._queue.get(block, timeout)
        with self._lock:
            was_full = self._is_full()
            self._count -= 1
            self._bytes -= size
            is_room = was_full and not self._is_full()
        if is_room and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._room.set)
        return message

    def put(self, message: DownMessage, size: int) -> None:
        """Add a message. Loop only."""
        with self._lock:
            self._count += 1
            self._bytes += size
        self._queue.put((message, size))

    def is_empty(self) -> bool:
        """Whether no message waits."""
        return self._queue.empty()

    def is_full(self) -> bool:
        """Whether no further message should be read from the driver for now."""
        with self._lock:
            return self._is_full()

    async def wait_for_room(self) -> None:
        """Return once the inbox is not full. Loop only."""
        self._loop = asyncio.get_running_loop()
        while self.is_full():
            # A `get` after the check posts its `set` to the loop, so that it runs after this `clear`.
            self._room.clear()
            await self._room.wait()

    def _is_full(self) -> bool:
        return self._count >= ATTEMPT_QUEUE_MESSAGES_MAX or self._bytes >= ATTEMPT_QUEUE_BYTES_MAX


class _Channel(ClientConnection):
    """A connection that passes each frame to `take` at once: a reader would cost a switch of the loop to its task."""

    take: Callable[[Frame], bool] | None = None
    """Takes a frame; returns False to leave it to `recv`."""

    def process_event(self, event: Event) -> None:
        """See `websockets`."""
        if self.take is None or not isinstance(event, Frame) or not self.take(event):
            super().process_event(event)


class DriverConnection:
    """The connection of a task. Call `open` once; call `close` always, last. The task's main thread only.

    Args:
        endpoint: Address of the driver's endpoint.
        token: Token of the driver.
        certificate: Certificate of the driver, if the endpoint is encrypted.
        lease_s: Time after which a silent driver is regarded as dead, seconds.
        heartbeat_s: Interval of the task's heartbeats, seconds.
    """

    def __init__(
        self,
        *,
        endpoint: str,
        token: Token,
        certificate: Certificate | None = None,
        lease_s: float = LEASE_S,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.inbox = TaskInbox()
        self.subtask = self.attempt_number = -1
        """Numbers for error messages."""
        self.is_moving: Callable[[], bool] = lambda: True
        """Whether the task's main thread makes progress: called before each heartbeat, on the connection's thread."""
        assert is_encrypted(endpoint) == (certificate is not None), "TLS needs a certificate"
        self._endpoint, self._token = endpoint, token
        self._tls = None if certificate is None else certificate.context()
        self._lease_s, self._heartbeat_s = lease_s, min(heartbeat_s, lease_s / 4)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = threading.Condition()
        self._is_open = False
        self._lost: str | None = None
        """Reason for which the connection is lost, or None."""
        self._outgoing: deque[tuple[UpMessage, bytes]] = deque()
        """Messages with their bytes, which an ack does not have yet."""
        self._outgoing_bytes = 0
        self._queued = self._taken = self._written = 0
        """Numbers of messages that `send` has queued, that left the queue, and that are in the system's buffers."""
        self._is_delayed = False
        """Whether the queued messages are all such as can wait, for which the loop is not woken at once."""
        self._is_closing = False
        self._wake = asyncio.Event()
        self._is_writer_idle = False
        """Whether the writer waits for `_wake`, so that a frame may be sent without it. Loop only."""
        self._is_reader_idle = False
        """Whether the reader waits, and no frame waits for it: the next one may be taken without it. Loop only."""
        self._joiner = AcceptedJoiner()
        self._channel: ClientConnection | None = None
        self._heard_s = time.monotonic()
        self._is_held = False
        """Whether reading pauses as the inbox is full: the driver's silence is no sign of a failure then."""
        self._fenced: Fenced | None = None
        self._is_dropped = False
        """Whether the endpoint has dropped the connection before it admitted the task."""
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None

    # --- the task's main thread -------------------------------------------------------------------
    def open(self) -> None:
        """Connect.

        Raises:
            AttemptError: The driver cannot be reached, or refuses this token or version.
        """
        deadline, pause_s = time.monotonic() + CONNECT_TIMEOUT_S, _DROPPED_PAUSE_S
        while not self._is_admitted(deadline):
            if time.monotonic() + pause_s >= deadline:
                raise self._refused(self._lost)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _DROPPED_PAUSE_MAX_S)

    def _is_admitted(self, deadline: float) -> bool:
        """Whether the connection is open; False if it was dropped: with many tasks at once an endpoint drops some.

        Raises:
            AttemptError: As `open`.
        """
        url = urlsplit(self._endpoint)
        address = (url.hostname or "", url.port or 0)
        try:
            if self._tls is None:
                remaining_s = max(0.0, deadline - time.monotonic())
                require_proof(self._endpoint, self._token, timeout_s=remaining_s)
            # Here, and not on the loop, which would resolve the name in one more thread.
            self._socket = socket.create_connection(address, timeout=CONNECT_TIMEOUT_S)
        except ConnectionResetError as error:
            self._lost = _why(error)
            return False
        except OSError as error:
            raise AttemptError(
                f"the driver cannot be reached at {self._endpoint}: {error}"
            ) from None
        except (WebSocketException, ValueError) as error:
            raise self._refused(_why(error)) from None
        self._lost, self._is_dropped = None, False
        self._thread = threading.Thread(target=self._run, name="coordlog-connection", daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._is_open or self._lost is not None)
        if self._is_open:
            return True
        self._thread.join()
        self._socket.close()
        if self._is_dropped:
            return False
        raise self._refused(self._lost)

    def _refused(self, reason: str | None) -> AttemptError:
        return AttemptError(f"the driver at {self._endpoint} did not admit this task: {reason}")

    def send(self, message: UpMessage) -> None:
        """Queue a message; waits while too many are queued.

        Raises:
            FencedAttemptError: The connection is lost, or the driver reads nothing within the time limit.
            TooLargeError: The message exceeds `MESSAGE_BYTES_MAX`.
        """
        # An ack is encoded with its frame, in which it may be one with others.
        data = b"" if isinstance(message, AckEvent) else encode(message)
        if len(data) > MESSAGE_BYTES_MAX:
            raise TooLargeError(f"a {type(message).__name__}", len(data), MESSAGE_BYTES_MAX)
        with self._changed:
            is_moving = self._changed.wait_for(
                lambda: self._lost is not None or not self._is_full(), ATTEMPT_SEND_TIMEOUT_S
            )
            if not is_moving:
                self._lost = f"its driver has read nothing for {ATTEMPT_SEND_TIMEOUT_S:g} s"
            if self._lost is not None:
                raise FencedAttemptError(self.subtask, self.attempt_number, self._lost)
            is_first = not self._outgoing
            self._outgoing.append((message, data))
            self._outgoing_bytes += len(data)
            self._queued += 1
            # An event is followed by more, as a rule by the ack of the event that is being handled, and an ack by
            # others while further events are there: the driver handles all in one pass, and appends them together,
            # if they are in one frame.
            can_wait = isinstance(message, SendEvent) or (
                isinstance(message, AckEvent) and not self.inbox.is_empty()
            )
            is_wake_due = is_first or (self._is_delayed and not can_wait)
            self._is_delayed = can_wait and (is_first or self._is_delayed)
        if is_wake_due:
            self._call(self._send_later if can_wait else self._send_now)

    def flush(self) -> None:
        """Wait until all queued messages are in the system's buffers: it delivers them even if this process ends.

        With TLS and a driver that does not read, the last ones may be in asyncio's buffer, of 64 KiB.

        Raises:
            FencedAttemptError: The connection is lost, or the driver reads nothing within the time limit.
        """
        self._call(self._wake.set)
        with self._changed:
            queued = self._queued
            is_moving = self._changed.wait_for(
                lambda: self._lost is not None or self._written >= queued, ATTEMPT_SEND_TIMEOUT_S
            )
            if not is_moving:
                self._lost = f"its driver has read nothing for {ATTEMPT_SEND_TIMEOUT_S:g} s"
            if self._lost is not None:
                raise FencedAttemptError(self.subtask, self.attempt_number, self._lost)

    def why_over(self) -> str | None:
        """Reason for which the attempt must assume that it has ended (M4: fenced attempts stop), or None."""
        if self._fenced is not None:
            # The message of a finished job must be handled, not mistaken for a lost connection.
            return None if self._fenced.is_finished else self._fenced.reason
        if self._lost is not None:
            return self._lost
        if time.monotonic() - self._heard_s <= self._lease_s:
            return None
        # This process may have been stopped; then the driver's messages wait to be read.
        self._let_loop_pass()
        silent_s = time.monotonic() - self._heard_s
        if silent_s > self._lease_s and not self._is_held and self._fenced is None:
            self._lost = (
                f"its driver sent nothing for {silent_s:.1f} s; the lease is {self._lease_s:g} s"
            )
        return self._lost

    def close(self) -> None:
        """End the connection after the queued messages, within a time limit, and the thread."""
        if self._thread is not None:
            with self._changed:
                self._is_closing = True
            self._call(self._leave)
            self._thread.join()
        if self._socket is not None:
            self._socket.close()

    def _is_full(self) -> bool:
        return (
            len(self._outgoing) >= ATTEMPT_QUEUE_MESSAGES_MAX
            or self._outgoing_bytes >= ATTEMPT_QUEUE_BYTES_MAX
        )

    def _call(self, action: Callable[[], object]) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(action)

    def _let_loop_pass(self) -> None:
        loop = self._loop
        if loop is None:
            return
        passing = _passes()
        try:
            asyncio.run_coroutine_threadsafe(passing, loop).result(_STALL_S)
        except (RuntimeError, TimeoutError):
            passing.close()

    # --- the loop's thread ------------------------------------------------------------------------
    def _leave(self) -> None:
        self._wake.set()
        if self._channel is not None:
            asyncio.get_running_loop().call_later(CONNECTION_CLOSE_S, self._channel.transport.abort)

    def _run(self) -> None:
        lost = "the task has ended"
        try:
            lost = asyncio.run(self._serve())
        except (OSError, TimeoutError, WebSocketException) as error:
            lost = _why(error)
            self._is_dropped = not self._is_open and isinstance(error, _DROPPED)
        except Exception as error:
            lost = f"an internal error of the connection: {error!r}"
            raise
        finally:
            self._lose(lost)

    def _lose(self, reason: str) -> None:
        with self._changed:
            if self._lost is None:
                self._lost = reason
            self._changed.notify_all()

    async def _serve(self) -> str:
        self._loop = asyncio.get_running_loop()
        channel = await connect(
            self._endpoint + ATTEMPT_PATH,
            sock=self._socket,
            ssl=self._tls,
            additional_headers={
                "Authorization": self._token.header(),
                VERSION_HEADER: str(WIRE_VERSION),
            },
            proxy=None,
            compression=None,
            max_size=MESSAGE_BYTES_MAX,
            open_timeout=CONNECT_TIMEOUT_S,
            close_timeout=CONNECTION_CLOSE_S,
            ping_interval=None,
            # To send means: into the system's buffers. With TLS, asyncio waits at the limit, else above it.
            write_limit=0 if self._tls is None else 1,
            user_agent_header=None,
            logger=SOCKET_LOGGER,
            create_connection=_Channel,
        )
        assert isinstance(channel, _Channel), "created above"
        self._channel = channel
        with self._changed:
            self._heard_s = time.monotonic()
            self._is_open = True
            self._changed.notify_all()
        beating = asyncio.create_task(self._beat(channel))
        reading = asyncio.create_task(self._read(channel))
        writing = asyncio.create_task(self._write(channel))
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            if not self._is_closing:
                # If a send failed, the reader gets the reason.
                await asyncio.wait((reading,), timeout=_STALL_S)
            return reading.result() if reading.done() else "the task has ended"
        finally:
            for task in (beating, reading, writing):
                task.cancel()
            channel.transport.abort()

    async def _read(self, channel: _Channel) -> str:
        channel.take = self._take_at_once
        while True:
            try:
                self._is_reader_idle = True
                data = await channel.recv()
                self._is_reader_idle = False
                self._take(data if isinstance(data, bytes) else data.encode())
            except ConnectionClosed as closed:
                return _why(closed)
            except ValueError as error:
                return f"its driver sent an invalid message: {error}"
            if self.inbox.is_full():
                self._is_held = True
                await self.inbox.wait_for_room()
                self._heard_s = time.monotonic()
                self._is_held = False

    def _take_at_once(self, frame: Frame) -> bool:
        """Take the messages of a frame, as a rule; returns False to leave it to the reader.

        The reader waits for what is missing: room in the inbox, or the rest of a message that has several frames. It
        also ends the connection at an invalid message.
        """
        is_whole = frame.opcode is Opcode.BINARY and frame.fin
        if is_whole and self._is_reader_idle and not self.inbox.is_full():
            with contextlib.suppress(ValueError):
                self._take(bytes(frame.data))
                return True
        self._is_reader_idle = False  # further frames come behind this one
        return False

    def _take(self, data: bytes) -> None:
        """Put the messages of a frame into the inbox, or none of them. Raises ValueError if one is invalid."""
        self._heard_s = time.monotonic()
        for received, size in list(decode_down(data)):
            message = None if isinstance(received, Heartbeat) else self._joiner.take(received)
            if isinstance(message, Fenced):
                self._fenced = message
            if message is not None:
                self.inbox.put(message, size)

    async def _write(self, channel: ClientConnection) -> None:
        """Send the queued messages, in order, several in a frame, until `close`; then close the connection."""
        with contextlib.suppress(ConnectionClosed, OSError):
            while True:
                messages, is_closing = self._next_messages()
                if messages:
                    await channel.send(b"".join(joined_acks(messages, encode)))
                else:
                    await channel.drain()  # what was sent without the writer
                if channel.state is not State.OPEN:
                    return  # what waited to be sent is dropped
                self._note_written()
                if messages:
                    continue
                if is_closing:
                    await channel.close()
                    return
                self._is_writer_idle = True
                await self._wake.wait()
                self._is_writer_idle = False
                self._wake.clear()

    def _next_messages(self) -> tuple[list[tuple[UpMessage, bytes]], bool]:
        """The messages of the next frame, and whether the connection closes after the queued ones."""
        messages: list[tuple[UpMessage, bytes]] = []
        size = 0
        with self._changed:
            while self._outgoing and len(messages) < FRAME_MESSAGES_MAX:
                size += len(self._outgoing[0][1])
                if messages and size > FRAME_BYTES:
                    break
                messages.append(self._outgoing.popleft())
            self._outgoing_bytes -= sum(len(data) for _, data in messages)
            self._taken += len(messages)
            self._is_delayed = False
            if messages:
                self._changed.notify_all()
            return messages, self._is_closing

    def _send_later(self) -> None:
        asyncio.get_running_loop().call_later(_TOGETHER_S, self._send_now)

    def _send_now(self) -> None:
        """Send the queued messages, as a rule all of them; wake the writer if it has to wait for the other side."""
        channel = self._channel
        assert channel is not None, "the attempt sends once it is open"
        is_free = self._is_writer_idle and not channel.transport.get_write_buffer_size()
        is_small = self._outgoing_bytes <= _AT_ONCE_BYTES_MAX
        if is_free and is_small and channel.state is State.OPEN:
            messages, _ = self._next_messages()
            if messages:
                broadcast((channel,), b"".join(joined_acks(messages, encode)))
                if not channel.transport.get_write_buffer_size():
                    self._note_written()
        if self._outgoing or self._written < self._taken:
            self._wake.set()

    def _note_written(self) -> None:
        """Note that all messages that left the queue are in the system's buffers."""
        with self._changed:
            self._written = self._taken
            self._changed.notify_all()

    async def _beat(self, channel: ClientConnection) -> None:
        """Send heartbeats while the main thread makes progress; else the task's lease expires."""
        heartbeat = encode(Heartbeat())
        with contextlib.suppress(ConnectionClosed):
            while True:
                await asyncio.sleep(self._heartbeat_s)
                if self.is_moving():
                    await channel.send(heartbeat)


async def _passes() -> None:
    """Returns once the loop has polled its sockets and handled their events."""
    for _ in range(_LOOP_PASSES):
        await asyncio.sleep(0)


def _why(error: BaseException) -> str:
    """Reason for which the connection failed or was lost."""
    if isinstance(error, InvalidStatus):
        body = (error.response.body or b"").decode(errors="replace").strip()
        return f"HTTP {error.response.status_code}: {body}"
    if isinstance(error, ConnectionClosed):
        if error.rcvd is not None:
            return "its driver has closed the connection"
        return "the connection to its driver broke"
    return f"{type(error).__name__}: {error}"
