"""Checks that every stored payload addressed in a history exists and matches its address."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from coordlog.errors import PayloadLostError
from coordlog.projections.job.state import JobState
from coordlog.projections.tables.audit import AuditRecord
from coordlog.schemas.payload import open_inline
from coordlog.schemas.payload_address import PayloadAddress, address_in, opened
from coordlog.schemas.record import Record

__all__ = ["OpenPayload", "StoredCheck", "no_store"]

OpenPayload = Callable[[PayloadAddress, str], bytes | None]
"""Opener: address and store named in the history to content, or None if that store may not be opened."""

_OWN: Final = "coordlog."
"""Prefix of the types whose fields may be addresses; of other types only the whole payload may be."""


def no_store(address: PayloadAddress, _store: str) -> bytes:
    """Opener for jobs without a payload store: always raises PayloadLostError."""
    return open_inline(address.encode())


class StoredCheck:
    """Opens each stored payload once. The caller passes each record that counts to `faults`, in log order.

    Args:
        open_payload: Opener, or None if no payload can exist (redacted history): they count as absent.
    """

    def __init__(self, open_payload: OpenPayload | None) -> None:
        self._open_payload = open_payload
        self._seen: set[str] = set()
        self.count = self.size_bytes = 0
        """Number and size of payloads that exist and match their addresses."""
        self.absent_count = 0

    def faults(self, state: JobState, entry: AuditRecord, record: Record) -> Iterator[str]:
        """Faults of the stored payloads that a record addresses; `state` has the name of the store."""
        own = entry.fields if (record.payload_type or "").startswith(_OWN) else None
        payload = () if record.payload is None else (record.payload,)
        yield from self.faults_in((*_bytes_in(own), *payload), state)

    def faults_in(self, values: Iterable[bytes], state: JobState) -> Iterator[str]:
        """Faults of the stored payloads of those values that are addresses."""
        for data in values:
            try:
                address = address_in(data)
                if address is not None:
                    self._open_once(address, state)
            except (ValueError, PayloadLostError) as error:
                yield str(error)

    def opener(self, state: JobState) -> Callable[[bytes], bytes]:
        """Opener of payloads: their content in a record, or at its address."""
        store, open_payload = state.launch_info.payload_store, self._open_payload or no_store

        def content(address: PayloadAddress) -> bytes:
            data = open_payload(address, store)
            return no_store(address, store) if data is None else data

        return lambda data: opened(data, content)

    def _open_once(self, address: PayloadAddress, state: JobState) -> None:
        if address.path not in self._seen:
            self._seen.add(address.path)
            data = None
            if self._open_payload is not None:
                data = self._open_payload(address, state.launch_info.payload_store)
            if data is None:
                self.absent_count += 1
                return
            self.size_bytes += len(data)
            self.count += 1


def _bytes_in(value: object) -> Iterator[bytes]:
    """All byte strings of a decoded payload."""
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _bytes_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _bytes_in(item)
