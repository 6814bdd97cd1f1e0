"""Which payload store the commands look into: the one that is named, else the history's, else this machine's."""

from __future__ import annotations

from collections.abc import Callable

import click

from coordlog.errors import OptionError
from coordlog.log.file import ExportedLog
from coordlog.log.interface import Log
from coordlog.log.local.paths import home_folder
from coordlog.log.payload_store import PayloadStore, default_payload_url
from coordlog.payloads.gc import log_named_in, store_named_in
from coordlog.schemas.payload_address import PayloadAddress

__all__ = ["StoreFinder", "payload_store_option"]


def payload_store_option(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option `--payload-store`."""
    return click.option(
        "--payload-store",
        metavar="URL",
        help="Where large payloads are; without it where the history says, unless that is a copy.",
    )(command)


class StoreFinder:
    """The payload store of one job.

    A copy of a history (an exported file, or a log that another one was copied to) may be a stranger's, and a request
    to the address that it names is the stranger's choice. So a copy opens no store unless the user names it.

    Args:
        job_id: Whose.
        given: Its URL, if the user names one.
        log: The history that is read; None if only `store_of` is used.
    """

    def __init__(self, job_id: str, given: str | None, log: Log | None = None) -> None:
        self._job_id, self._given, self._log = job_id, given, log
        self._stores: dict[str, PayloadStore] = {}
        self._is_copy: bool | None = None

    @property
    def opens_nothing(self) -> bool:
        """Whether the history is a copy, and the user names no store."""
        if self._given or self._log is None:
            return False
        if self._is_copy is None:
            self._is_copy = _is_copy(self._log)
        return self._is_copy

    def open(self, address: PayloadAddress, said: str) -> bytes:
        """A stored payload; `said` is the store that the history names. Raises as `PayloadStore.get`."""
        return self.store(said).get(address)

    def open_unless_copy(self, address: PayloadAddress, said: str) -> bytes | None:
        """As `open`; None if the history is a copy, and the user names no store."""
        return None if self.opens_nothing else self.open(address, said)

    def store(self, said: str) -> PayloadStore:
        """The store. Raises OptionError if the user has to name it, or if what is named is none."""
        if self.opens_nothing:
            raise _to_be_named(said)
        url = self._given or said or default_payload_url(home_folder())
        if url not in self._stores:
            self._stores[url] = PayloadStore(url, self._job_id)
        return self._stores[url]

    def store_of(self, log: Log) -> PayloadStore | None:
        """The store of the job with this log; None if neither the user nor the history names one."""
        if self._given:
            return self.store("")
        said = store_named_in(log.read(log.start_offset(), log.high_watermark()))
        if said and _is_copy(log):
            raise _to_be_named(said)
        return self.store(said) if said else None


def _is_copy(log: Log) -> bool:
    """Whether a history was written to another log than the one that it is read from."""
    if isinstance(log, ExportedLog):
        return True
    written_to = log_named_in(log.read(log.start_offset(), log.high_watermark()))
    return written_to != (log.identity.cluster_id, log.identity.topic_id)


def _to_be_named(said: str) -> OptionError:
    there = f"the one that it names is {said}" if said else "it names none"
    return OptionError(
        "--payload-store",
        None,
        "given: large payloads of this history are in a store, and a copy of a history opens none by itself "
        f"({there})",
    )
