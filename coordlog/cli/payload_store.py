"""Payload store of a command: the one that the user names, else the history's, else this machine's."""

from __future__ import annotations

from collections.abc import Callable

import click

from coordlog.errors import OptionError
from coordlog.history import History
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
        help="Payload store of the job; by default that of the history, unless the history is a copy.",
    )(command)


class StoreFinder:
    """The payload store of one job.

    A copy of a history (an exported file, or a log that another one was copied to) may be a stranger's, and so may the
    address of the store in it. So a copy opens no store unless the user names it.

    Args:
        job_id: Job of the store.
        user_url: URL of the store, if the user names one.
        log: The history that is read, or None if only `store_of` is used.
    """

    def __init__(self, job_id: str, user_url: str | None, log: Log | None = None) -> None:
        self._job_id, self._user_url, self._log = job_id, user_url, log
        self._stores: dict[str, PayloadStore] = {}
        self._is_copy: bool | None = None

    @property
    def opens_nothing(self) -> bool:
        """Whether the history is a copy, and the user names no store."""
        if self._user_url or self._log is None:
            return False
        if self._is_copy is None:
            self._is_copy = _is_copy(self._log)
        return self._is_copy

    def open(self, address: PayloadAddress, recorded_url: str) -> bytes:
        """A stored payload; `recorded_url` is the store in the history. Raises as `PayloadStore.get`."""
        return self.store(recorded_url).get(address)

    def open_unless_copy(self, address: PayloadAddress, recorded_url: str) -> bytes | None:
        """As `open`, or None if the history is a copy and the user names no store."""
        return None if self.opens_nothing else self.open(address, recorded_url)

    def store(self, recorded_url: str) -> PayloadStore:
        """The store. Raises OptionError if the user must name it, or if the URL is none of a store."""
        if self.opens_nothing:
            raise _not_named(recorded_url)
        url = self._user_url or recorded_url or default_payload_url(home_folder())
        if url not in self._stores:
            self._stores[url] = PayloadStore(url, self._job_id)
        return self._stores[url]

    def store_of(self, log: Log) -> PayloadStore | None:
        """The store of the job with this log, or None if neither the user nor the history names one."""
        if self._user_url:
            return self.store("")
        recorded_url = store_named_in(History(log))
        if recorded_url and _is_copy(log):
            raise _not_named(recorded_url)
        return self.store(recorded_url) if recorded_url else None


def _is_copy(log: Log) -> bool:
    """Whether a history was written to another log than this one."""
    if isinstance(log, ExportedLog):
        return True
    written_to = log_named_in(History(log))
    return written_to != (log.identity.cluster_id, log.identity.topic_id)


def _not_named(recorded_url: str) -> OptionError:
    hint = f"the one that it names is {recorded_url}" if recorded_url else "it names none"
    return OptionError(
        "--payload-store",
        None,
        "set: large payloads of this history are in a store, and a copy of a history opens none by itself "
        f"({hint})",
    )
