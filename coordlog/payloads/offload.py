"""The payloads of one epoch that are too large for its log: kept in the job's payload store, addressed in its records.

A driver holds what its turns make until the log thread has stored it, which is before the records that address it are
appended; an attempt stores what it makes before it says so. Whoever needs the content opens the address.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from coordlog.errors import PayloadStoreUnreachableError, TooLargeError
from coordlog.limits import (
    APPEND_BACKOFF_MAX_S,
    APPEND_BACKOFF_S,
    LOG_TIMEOUT_S,
    PAYLOAD_BYTES_MAX,
    PAYLOAD_OPEN_BYTES_PER_S,
    PAYLOAD_OPEN_S,
    PAYLOAD_READS_AT_ONCE,
    PAYLOAD_TURN_S,
    PAYLOADS_RECENT_BYTES_MAX,
    PAYLOADS_WAITING_BYTES_MAX,
    STORED_PAYLOAD_BYTES_MAX,
)
from coordlog.log.local.call_timeout import NotAnsweredError, answered
from coordlog.log.payload_store import PayloadStore
from coordlog.schemas.payload import open_inline
from coordlog.schemas.payload_address import (
    LIMIT_ATTRIBUTE,
    STORE_ATTRIBUTE,
    PayloadAddress,
    inline,
    opened,
    owner_of,
)

__all__ = [
    "NO_STORE",
    "AttemptPayloads",
    "DriverPayloads",
    "HeldPayload",
    "PayloadOptions",
]

R = TypeVar("R")

_log = logging.getLogger(__name__)

_OWN: Final = "coordlog."
"""Before the names of coordlog's own types, which readers of the history look into: they stay in the log."""

_NAME_A_STORE: Final = (
    "name a folder for large payloads with payload_store (--payload-store), or put the content "
    "elsewhere and send its address"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadOptions:
    """Where a job keeps its large payloads; travels to its tasks."""

    store: PayloadStore | None = None
    """None: there is no such place, and what is too large is refused."""
    limit_bytes: int = PAYLOAD_BYTES_MAX
    """A payload above this goes to the store."""

    @property
    def attributes(self) -> dict[str, str]:
        """Of `EPOCH_STARTED`: where later readers look for large payloads unless they are told."""
        if self.store is None:
            return {}
        return {STORE_ATTRIBUTE: self.store.url, LIMIT_ATTRIBUTE: str(self.limit_bytes)}

    def is_kept(self, payload_type: str | None, size_bytes: int) -> bool:
        """Whether a payload goes to the store; without a type: a state."""
        is_own = payload_type is not None and payload_type.startswith(_OWN)
        return self.store is not None and size_bytes > self.limit_bytes and not is_own

    def held_inline(
        self, what: str, payload_type: str | None, data: bytes, inline_max: int
    ) -> bytes | None:
        """What stands in a record that holds the payload itself; None where it goes to the store.

        Raises:
            TooLargeError: It is above `inline_max`, or what one file of the store may have.
        """
        size_bytes = len(data)
        if self.is_kept(payload_type, size_bytes):
            if size_bytes > STORED_PAYLOAD_BYTES_MAX:
                raise TooLargeError(what, size_bytes, STORED_PAYLOAD_BYTES_MAX)
            return None
        if size_bytes > inline_max:
            if self.store is None:
                raise TooLargeError(what, size_bytes, inline_max, _NAME_A_STORE)
            raise TooLargeError(what, size_bytes, inline_max)
        return inline(data)


NO_STORE: Final = PayloadOptions()
"""Of a job without a payload store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPayload:
    """A payload that is to be stored before the records that address it are appended."""

    address: PayloadAddress
    data: bytes


@dataclass(frozen=True, slots=True)
class _Patience:
    """With a store that does not answer."""

    clock: Callable[[], float]
    sleep: Callable[[float], None]

    def tried(
        self, work: Callable[[], R], until_s: float, is_over: Callable[[], bool] = lambda: False
    ) -> R:
        """What `work` gives, as soon as the store answers; no further try begins after `until_s`."""
        backoff_s = APPEND_BACKOFF_S
        while True:
            try:
                return work()
            except PayloadStoreUnreachableError as error:
                if is_over() or self.clock() + backoff_s > until_s:
                    raise
                _log.warning("%s; tried again", error)
            self.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, APPEND_BACKOFF_MAX_S)


class AttemptPayloads:
    """What an attempt keeps and opens, on its own thread. What it keeps is durable at once.

    A store that does not answer is asked again for `PAYLOAD_OPEN_S`, while the attempt is not over.

    Args:
        options: The job's.
        epoch: Of the epoch that the attempt belongs to.
        driver_id: Its driver.
        is_over: Whether nobody waits for this attempt any more.
        clock: Seconds that never go back.
        sleep: Waits so many seconds before a further try.
    """

    def __init__(
        self,
        options: PayloadOptions,
        epoch: int,
        driver_id: str,
        *,
        is_over: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options, self._is_over = options, is_over
        self._patience = _Patience(clock, sleep)
        self._owner = "" if options.store is None else owner_of(epoch, driver_id)

    def seal(
        self,
        what: str,
        payload_type: str | None,
        data: bytes,
        *,
        inline_max: int = PAYLOAD_BYTES_MAX,
    ) -> bytes:
        """What stands in a message and its record for a payload; without a type: a state.

        Raises:
            TooLargeError: There is no place for it.
            PayloadStoreError: It cannot be stored.
        """
        held = self._options.held_inline(what, payload_type, data, inline_max)
        return self.store(data) if held is None else held

    @property
    def can_store(self) -> bool:
        """Whether there is a store."""
        return self._options.store is not None

    def store(self, data: bytes) -> bytes:
        """Store a payload, whatever its size; its address.

        Raises:
            PayloadStoreError: It cannot be stored.
        """
        store = self._options.store
        assert store is not None, "`can_store` says so"
        address = PayloadAddress.of(data, self._owner)
        self._tried(partial(store.put, address, data))
        return address.encode()

    def open(self, data: bytes) -> bytes:
        """The payload that stands there.

        Raises:
            PayloadLostError: It is addressed, and missing or damaged.
            PayloadStoreError: The store cannot be read.
        """
        store = self._options.store
        if store is None:
            return open_inline(data)
        return opened(data, lambda address: self._tried(partial(store.get, address)))

    def open_all(self, given: Sequence[bytes]) -> Sequence[bytes]:
        """The payloads that stand there, in order; some at a time are read. Raises as `open`."""
        if len(given) < 2:  # noqa: PLR2004, one needs no thread
            return [self.open(data) for data in given]
        with ThreadPoolExecutor(PAYLOAD_READS_AT_ONCE, "coordlog-payload") as readers:
            return list(readers.map(self.open, given))

    def _tried(self, work: Callable[[], R]) -> R:
        until_s = self._patience.clock() + PAYLOAD_OPEN_S
        return self._patience.tried(work, until_s, self._is_over)


class DriverPayloads:
    """What a driver keeps and opens. Any thread; `begin` once its epoch is in force, before anything is sealed.

    What is sealed is held until `release`. In between the owner takes it with `take`, and has it stored with `keep`
    before it appends what addresses it.

    Args:
        options: The job's.
        clock: Seconds that never go back.
        sleep: Waits so many seconds before a further try.
    """

    def __init__(
        self,
        options: PayloadOptions = NO_STORE,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options, self._owner = options, ""
        self._patience = _Patience(clock, sleep)
        self._lock = threading.Lock()
        self._made: list[HeldPayload] = []
        self._held: dict[str, tuple[int, bytes]] = {}
        self._recent: OrderedDict[str, bytes] = OrderedDict()
        self._recent_bytes = 0
        self._waiting_bytes = 0
        self._turns_thread = -1
        """The thread of the turns: the mailbox."""
        self._turn_waited_s = 0.0
        """Time that the store has taken of the turn so far."""

    @property
    def options(self) -> PayloadOptions:
        """The job's."""
        return self._options

    def begin(self, epoch: int, driver_id: str) -> None:
        """This epoch has begun."""
        self._owner = "" if self._options.store is None else owner_of(epoch, driver_id)

    @property
    def owner(self) -> str:
        """The folder of what it keeps; empty where there is no store."""
        return self._owner

    @property
    def is_full(self) -> bool:
        """Whether so much waits for the store that nothing more should be made."""
        return self._waiting_bytes > PAYLOADS_WAITING_BYTES_MAX

    def seal(
        self,
        what: str,
        payload_type: str | None,
        data: bytes,
        *,
        inline_max: int = PAYLOAD_BYTES_MAX,
    ) -> bytes:
        """What stands in a record for a payload; without a type: a state.

        Raises:
            TooLargeError: There is no place for it.
        """
        held = self._options.held_inline(what, payload_type, data, inline_max)
        return self.hold(data) if held is None else held

    def hold(self, data: bytes) -> bytes:
        """The address of a payload that goes to the store, whatever its size; there is one."""
        assert self._options.store is not None, "the caller has looked"
        address = PayloadAddress.of(data, self._owner)
        with self._lock:
            count, _ = self._held.get(address.path, (0, b""))
            self._held[address.path] = (count + 1, data)
            self._made.append(HeldPayload(address=address, data=data))
            self._waiting_bytes += len(data)
        return address.encode()

    def take(self) -> Sequence[HeldPayload]:
        """All that was sealed since the last call: the next records may address it. At the end of each turn."""
        self._turns_thread, self._turn_waited_s = threading.get_ident(), 0.0
        if not self._made:
            return ()
        with self._lock:
            made, self._made = self._made, []
        return made

    def keep(
        self,
        held: Sequence[HeldPayload],
        *,
        timeout_s: float = LOG_TIMEOUT_S,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Store what was taken; on return it is durable. On the log thread.

        Raises:
            PayloadStoreError: Not within `timeout_s`, or there is no use in trying again.
        """
        store = self._options.store
        until_s = self._patience.clock() + timeout_s
        for one in held:
            assert store is not None, "else nothing is sealed"
            self._patience.tried(partial(store.put, one.address, one.data), until_s, is_over)

    def release(self, held: Sequence[HeldPayload]) -> None:
        """The records that address these count, and are released: they need not be held any more."""
        with self._lock:
            for one in held:
                path = one.address.path
                count, data = self._held[path]
                self._waiting_bytes -= len(data)
                if count > 1:
                    self._held[path] = (count - 1, data)
                else:
                    del self._held[path]
                    self._remember(path, data)

    def open(self, data: bytes) -> bytes:
        """The payload that stands there; read from the store where it is not at hand.

        A store that does not answer is asked again. The caller, mostly the mailbox, waits for `PAYLOAD_OPEN_S` and the
        time of the payload's bytes, however long a call hangs, and in one turn for `PAYLOAD_TURN_S` at most.

        Raises:
            PayloadLostError: It is addressed, and missing or damaged.
            PayloadStoreUnreachableError: The store did not answer in that time.
            PayloadStoreError: The store cannot be read.
        """
        store = self._options.store
        if store is None:
            return open_inline(data)
        return opened(data, partial(self._fetch, store))

    def _fetch(self, store: PayloadStore, address: PayloadAddress) -> bytes:
        with self._lock:
            held = self._held.get(address.path)
            at_hand = self._recent.get(address.path) if held is None else held[1]
        if at_hand is None:
            at_hand = self._read(store, address)
            with self._lock:
                self._remember(address.path, at_hand)
        return at_hand

    def _read(self, store: PayloadStore, address: PayloadAddress) -> bytes:
        limit_s = PAYLOAD_OPEN_S + address.length / PAYLOAD_OPEN_BYTES_PER_S
        is_in_turn = threading.get_ident() == self._turns_thread
        if is_in_turn:
            limit_s = min(limit_s, max(0.0, PAYLOAD_TURN_S - self._turn_waited_s))
        began_s = time.monotonic()
        until_s = self._patience.clock() + limit_s
        try:
            return answered(
                lambda: self._patience.tried(partial(store.get, address), until_s), limit_s
            )
        except NotAnsweredError:
            raise PayloadStoreUnreachableError(
                store.url,
                f"reading {address.path} ({address.length} bytes)",
                f"it has not answered within {limit_s:.1f} s",
                "see that it works and can be reached, and how fast it is",
            ) from None
        finally:
            if is_in_turn:
                self._turn_waited_s += time.monotonic() - began_s

    def _remember(self, path: str, data: bytes) -> None:
        """Keep the newest at hand: a turn opens what it is about more than once."""
        old = self._recent.pop(path, b"")
        self._recent[path] = data
        self._recent_bytes += len(data) - len(old)
        while self._recent_bytes > PAYLOADS_RECENT_BYTES_MAX and len(self._recent) > 1:
            _, gone = self._recent.popitem(last=False)
            self._recent_bytes -= len(gone)
