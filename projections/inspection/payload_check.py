"""Whether every stored payload that a history addresses is there, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from coordlog.errors import PayloadLostError
from coordlog.projections.job.state import JobState
from coordlog.projections.tables.audit import AuditRecord
from coordlog.schemas.payload import open_inline
from coordlog.schemas.payload_address import STORE_ATTRIBUTE, PayloadAddress, address_in, opened
from coordlog.schemas.record import Record

__all__ = ["OpenPayload", "StoredCheck", "no_store"]

OpenPayload = Callable[[PayloadAddress, str], bytes | None]
"""An address, and the store that the history names, to the content; None if that store may not be opened."""

_OWN: Final = "coordlog."
"""Of these types alone the fields may be addresses: elsewhere the whole payload is one."""


def no_store(address: PayloadAddress, _said: str) -> bytes:
    """For who has no store: raises PayloadLostError."""
    return open_inline(address.encode())


class StoredCheck:
    """Opens each stored payload once. To be given each record that counts, in log order.

    Args:
        open_payload: None if none can be there, as for a redacted history: they are counted as absent.
    """

    def __init__(self, open_payload: OpenPayload | None) -> None:
        self._open_payload = open_payload
        self._seen: set[str] = set()
        self.count = self.size_bytes = 0
        """Of those that are there and say what they are to say."""
        self.absent_count = 0

    def faults(self, state: JobState, one: AuditRecord, record: Record) -> Iterator[str]:
        """What is wrong with the stored payloads that a record addresses; `state` names the store."""
        own = one.fields if (record.payload_type or "").startswith(_OWN) else None
        there = () if record.payload is None else (record.payload,)
        yield from self.faults_in((*_bytes_in(own), *there), state)

    def faults_in(self, there: Iterable[bytes], state: JobState) -> Iterator[str]:
        """What is wrong with those of these that are addresses."""
        for data in there:
            try:
                address = address_in(data)
                if address is not None:
                    self._open_once(address, state)
            except (ValueError, PayloadLostError) as error:
                yield str(error)

    def opener(self, state: JobState) -> Callable[[bytes], bytes]:
        """Gives what stands in a record, or is addressed there."""
        said, open_payload = _said(state), self._open_payload or no_store

        def content(address: PayloadAddress) -> bytes:
            data = open_payload(address, said)
            return no_store(address, said) if data is None else data

        return lambda data: opened(data, content)

    def _open_once(self, address: PayloadAddress, state: JobState) -> None:
        if address.path not in self._seen:
            self._seen.add(address.path)
            data = None
            if self._open_payload is not None:
                data = self._open_payload(address, _said(state))
            if data is None:
                self.absent_count += 1
                return
            self.size_bytes += len(data)
            self.count += 1


def _said(state: JobState) -> str:
    return state.launch.get(STORE_ATTRIBUTE, "")


def _bytes_in(value: object) -> Iterator[bytes]:
    """All byte strings of a decoded payload."""
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _bytes_in(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _bytes_in(one)
