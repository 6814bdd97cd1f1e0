"""Which payload store the commands look into: the one that is named, else the history's, else this machine's."""

from __future__ import annotations

from collections.abc import Callable

import click

from coordlog.log.payload_store import PayloadStore, default_payload_url
from coordlog.log.port import Log
from coordlog.log.user_folders import home_folder
from coordlog.payload_cleaning import store_named_in
from coordlog.schemas.stored import PayloadAddress

__all__ = ["StoreFinder", "payload_store_option"]


def payload_store_option(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option `--payload-store`."""
    return click.option(
        "--payload-store",
        metavar="URL",
        help="Where large payloads are; without it where the history says.",
    )(command)


class StoreFinder:
    """The payload store of one job.

    Args:
        job_id: Whose.
        given: Its URL, where the user names one.
    """

    def __init__(self, job_id: str, given: str | None) -> None:
        self._job_id, self._given = job_id, given
        self._stores: dict[str, PayloadStore] = {}

    def open(self, address: PayloadAddress, said: str) -> bytes:
        """A stored payload; `said` is the store that the history names. Raises as `PayloadStore.get`."""
        return self.store(said).get(address)

    def store(self, said: str) -> PayloadStore:
        """The store. Raises OptionError where what is named is none."""
        url = self._given or said or default_payload_url(home_folder())
        if url not in self._stores:
            self._stores[url] = PayloadStore(url, self._job_id)
        return self._stores[url]

    def store_of(self, log: Log) -> PayloadStore | None:
        """The store of the job with this log; None where neither the user nor the history names one."""
        if self._given:
            return self.store("")
        said = store_named_in(log.read(log.start_offset(), log.high_watermark()))
        return self.store(said) if said else None
