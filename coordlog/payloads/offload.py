"""Payloads of one epoch that are too large for its log: stored in the payload store, with addresses in records.

A driver holds the payloads of its turns until the log thread has stored them; the records with their addresses are
appended after that. An attempt stores a payload before it sends its address. Readers of the content open the address.
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
"""Prefix of coordlog's own types. Readers of the history decode them, so they stay in the log."""

_NAME_A_STORE: Final = (
    "name a folder for large payloads with payload_store (--payload-store), or put the content "
    "elsewhere and send its address"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadOptions:
    """Options of a job's large payloads; sent to its tasks."""

    store: PayloadStore | None = None
    """Store of large payloads; None: payloads that are too large are refused."""
    limit_bytes: int = PAYLOAD_BYTES_MAX
    """A payload above this goes to the store."""

    @property
    def attributes(self) -> dict[str, str]:
        """Attributes of `EPOCH_STARTED`: the default store of large payloads for later readers."""
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
        """Bytes of the payload as stored in a record itself, or None if it goes to the store.

        Raises:
            TooLargeError: The payload is above `inline_max`, or above the limit of a file in the store.
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
"""Options of a job without a payload store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPayload:
    """A payload to be stored before the records with its address are appended."""

    address: PayloadAddress
    data: bytes


@dataclass(frozen=True, slots=True)
class _Patience:
    """Retries with growing pauses while the store does not respond."""

    clock: Callable[[], float]
    sleep: Callable[[float], None]

    def tried(
        self, work: Callable[[], R], until_s: float, is_over: Callable[[], bool] = lambda: False
    ) -> R:
        """Result of `work` once the store responds; no further try begins after `until_s`."""
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
    """Large payloads of an attempt, on its own thread. A stored payload is durable at once.

    If the store does not respond, calls are retried for `PAYLOAD_OPEN_S`, as long as the attempt is not over.

    Args:
        options: Options of the job.
        epoch: Epoch of the attempt.
        driver_id: Driver of the attempt.
        is_over: Whether the attempt is over.
        clock: Seconds that never go back.
        sleep: Waits for a number of seconds before a further try.
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
        """Bytes of a payload in a message and its record: the payload or its address. Type None: a state.

        Raises:
            TooLargeError: The payload is above the limits of records and store.
            PayloadStoreError: The payload cannot be stored.
        """
        held = self._options.held_inline(what, payload_type, data, inline_max)
        return self.store(data) if held is None else held

    @property
    def can_store(self) -> bool:
        """Whether there is a store."""
        return self._options.store is not None

    def store(self, data: bytes) -> bytes:
        """Store a payload of any size. Returns its address.

        Raises:
            PayloadStoreError: The payload cannot be stored.
        """
        store = self._options.store
        assert store is not None, "the caller has checked `can_store`"
        address = PayloadAddress.of(data, self._owner)
        self._tried(partial(store.put, address, data))
        return address.encode()

    def open(self, data: bytes) -> bytes:
        """The payload of a record, read from the store if the record has its address.

        Raises:
            PayloadLostError: The payload is missing or damaged in the store.
            PayloadStoreError: The store cannot be read.
        """
        store = self._options.store
        if store is None:
            return open_inline(data)
        return opened(data, lambda address: self._tried(partial(store.get, address)))

    def open_all(self, parts: Sequence[bytes]) -> Sequence[bytes]:
        """Payloads of these records, in order, several read at a time. Raises as `open`."""
        if len(parts) < 2:  # noqa: PLR2004, a single payload needs no thread
            return [self.open(data) for data in parts]
        with ThreadPoolExecutor(PAYLOAD_READS_AT_ONCE, "coordlog-payload") as readers:
            return list(readers.map(self.open, parts))

    def _tried(self, work: Callable[[], R]) -> R:
        until_s = self._patience.clock() + PAYLOAD_OPEN_S
        return self._patience.tried(work, until_s, self._is_over)


class DriverPayloads:
    """Large payloads of a driver. Any thread; `begin` once its epoch is in force, before anything is sealed.

    Sealed payloads are held until `release`. In between the owner gets them from `take`, and stores them with `keep`
    before it appends the records with their addresses.

    Args:
        options: Options of the job.
        clock: Seconds that never go back.
        sleep: Waits for a number of seconds before a further try.
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
        self._sealed: list[HeldPayload] = []
        self._held: dict[str, tuple[int, bytes]] = {}
        self._recent: OrderedDict[str, bytes] = OrderedDict()
        self._recent_bytes = 0
        self._waiting_bytes = 0
        self._turns_thread = -1
        """Id of the mailbox's thread, which runs the turns."""
        self._turn_waited_s = 0.0
        """Seconds that reads have taken in the present turn."""

    @property
    def options(self) -> PayloadOptions:
        """Options of the job."""
        return self._options

    def begin(self, epoch: int, driver_id: str) -> None:
        """Begin an epoch: it names the folder of the payloads."""
        self._owner = "" if self._options.store is None else owner_of(epoch, driver_id)

    @property
    def owner(self) -> str:
        """Folder of the driver's payloads; empty if there is no store."""
        return self._owner

    @property
    def is_full(self) -> bool:
        """Whether too many bytes wait for the store, so that no further payloads should be sealed."""
        return self._waiting_bytes > PAYLOADS_WAITING_BYTES_MAX

    def seal(
        self,
        what: str,
        payload_type: str | None,
        data: bytes,
        *,
        inline_max: int = PAYLOAD_BYTES_MAX,
    ) -> bytes:
        """Bytes of a payload in a record: the payload or its address. Type None: a state.

        Raises:
            TooLargeError: The payload is above the limits of records and store.
        """
        held = self._options.held_inline(what, payload_type, data, inline_max)
        return self.hold(data) if held is None else held

    def hold(self, data: bytes) -> bytes:
        """Hold a payload of any size for the store, which must exist. Returns its address."""
        assert self._options.store is not None, "the caller has checked the store"
        address = PayloadAddress.of(data, self._owner)
        with self._lock:
            count, _ = self._held.get(address.path, (0, b""))
            self._held[address.path] = (count + 1, data)
            self._sealed.append(HeldPayload(address=address, data=data))
            self._waiting_bytes += len(data)
        return address.encode()

    def take(self) -> Sequence[HeldPayload]:
        """Payloads that were sealed since the last call, at the end of each turn."""
        self._turns_thread, self._turn_waited_s = threading.get_ident(), 0.0
        if not self._sealed:
            return ()
        with self._lock:
            sealed, self._sealed = self._sealed, []
        return sealed

    def keep(
        self,
        held: Sequence[HeldPayload],
        *,
        timeout_s: float = LOG_TIMEOUT_S,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Store the taken payloads; on return they are durable. On the log thread.

        Raises:
            PayloadStoreError: They could not be stored within `timeout_s`, or a retry is useless.
        """
        store = self._options.store
        until_s = self._patience.clock() + timeout_s
        for payload in held:
            assert store is not None, "else nothing is sealed"
            put = partial(store.put, payload.address, payload.data)
            self._patience.tried(put, until_s, is_over)

    def release(self, held: Sequence[HeldPayload]) -> None:
        """Release payloads whose records count and are released; they are cached for a while."""
        with self._lock:
            for payload in held:
                path = payload.address.path
                count, data = self._held[path]
                self._waiting_bytes -= len(data)
                if count > 1:
                    self._held[path] = (count - 1, data)
                else:
                    del self._held[path]
                    self._remember(path, data)

    def open(self, data: bytes) -> bytes:
        """The payload at an address; read from the store if it is not cached.

        If the store does not respond, the read is retried. The caller, mostly the mailbox, waits at most for
        `PAYLOAD_OPEN_S` plus the time of the payload's bytes, and in one turn at most for `PAYLOAD_TURN_S`.

        Raises:
            PayloadLostError: The payload is missing or damaged in the store.
            PayloadStoreUnreachableError: The store did not respond in that time.
            PayloadStoreError: The store cannot be read.
        """
        store = self._options.store
        if store is None:
            return open_inline(data)
        return opened(data, partial(self._fetch, store))

    def _fetch(self, store: PayloadStore, address: PayloadAddress) -> bytes:
        with self._lock:
            held = self._held.get(address.path)
            data = self._recent.get(address.path) if held is None else held[1]
        if data is None:
            data = self._read(store, address)
            with self._lock:
                self._remember(address.path, data)
        return data

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
                "check that it works and can be reached, and how fast it is",
            ) from None
        finally:
            if is_in_turn:
                self._turn_waited_s += time.monotonic() - began_s

    def _remember(self, path: str, data: bytes) -> None:
        """Cache the newest payloads: a turn opens its own payloads more than once."""
        old = self._recent.pop(path, b"")
        self._recent[path] = data
        self._recent_bytes += len(data) - len(old)
        while self._recent_bytes > PAYLOADS_RECENT_BYTES_MAX and len(self._recent) > 1:
            _, gone = self._recent.popitem(last=False)
            self._recent_bytes -= len(gone)
