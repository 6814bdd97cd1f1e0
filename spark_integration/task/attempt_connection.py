"""State that the endpoint keeps of one task's connection, and its descriptions for logs and records."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Final

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from coordlog.messages import Accepted, DeliverEvent, DownMessage, Register
from coordlog.spark_integration.wire.messages import FRAME_MESSAGES_MAX

__all__ = ["AttemptConnection", "estimated_bytes", "peer_of", "why_closed"]

_SMALL_MESSAGE_BYTES: Final = 128


class AttemptConnection:
    """One task's connection. Used by the loop only, except the fields guarded by `lock`."""

    def __init__(self, connection_id: int, channel: ServerConnection, register: Register) -> None:
        self.connection_id, self.channel, self.register = connection_id, channel, register
        self.lock = threading.Lock()
        self.outgoing: deque[tuple[DownMessage | None, int]] = deque()
        """Guarded. Messages with their sizes; None closes the connection."""
        self.outgoing_bytes = 0
        """Guarded."""
        self.is_closing = False
        """Guarded. Whether no more messages may be queued."""
        self.wake = asyncio.Event()
        """Set when the writer has something to do."""
        self.is_writer_idle = False
        """Whether the writer waits for `wake`, so that a frame may be sent without it."""
        self.is_heartbeat_due = False
        self.written = asyncio.Event()
        """Set once no more messages will be written."""
        self.heard_s = 0.0
        self.is_held = False
        """Whether the connection is not read at present, so that its silence proves nothing."""
        self.resume = asyncio.Event()
        self.unreleased: deque[int] = deque()
        self.unreleased_bytes = 0
        self.is_gone = False
        self.reason: str | None = None
        """Reason for which the driver has ended the connection, or None."""

    def __str__(self) -> str:
        task = self.register
        return (
            f"subtask={task.subtask} stage_run={task.stage_run} "
            f"task_attempt_id={task.task_attempt_id} host={task.host} pid={task.pid}"
        )

    def next_messages(self) -> tuple[list[DownMessage], bool]:
        """Take the next messages from the queue, for a frame; True if there are none, because the connection closes."""
        messages: list[DownMessage] = []
        with self.lock:
            while self.outgoing and len(messages) < FRAME_MESSAGES_MAX:
                message, size = self.outgoing[0]
                if message is None:
                    return messages, not messages
                self.outgoing.popleft()
                self.outgoing_bytes -= size
                messages.append(message)
        return messages, False

    def release(self) -> None:
        """Mark the connection as gone, and wake all that wait for it."""
        self.is_gone = True
        self.resume.set()
        self.wake.set()


def estimated_bytes(message: DownMessage) -> int:
    """Approximate size of a message in bytes."""
    if isinstance(message, DeliverEvent):
        return _SMALL_MESSAGE_BYTES + len(message.payload)
    if isinstance(message, Accepted):
        states_bytes = sum(len(entry.state or b"") for entry in message.states)
        return _SMALL_MESSAGE_BYTES + states_bytes + sum(map(len, message.skipped_splits))
    return _SMALL_MESSAGE_BYTES


def peer_of(channel: ServerConnection) -> str:
    """Address of the other end, for the logging."""
    address = channel.remote_address
    return f"{address[0]}:{address[1]}" if address else "a closed connection"


def why_closed(closed: ConnectionClosed) -> str:
    """Reason of the end of a connection, for the record."""
    if closed.rcvd is not None and closed.rcvd_then_sent is not False:
        return f"its task has closed it{_told(closed.rcvd.reason)}"
    if closed.sent is not None:
        return f"the driver has closed it{_told(closed.sent.reason)}"
    return (
        "it broke: its process has ended, or the network; one that ends without a word was killed "
        "by signal 9 as a rule, by the kernel where memory ran out: see `dmesg` or `journalctl -k` "
        "on its machine, and the memory that Spark's settings leave to its workers"
    )


def _told(reason: str) -> str:
    return f": {reason}" if reason else ""
