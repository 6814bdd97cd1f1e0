"""Store of large payloads of a job on Spark: by the user's options, or next to a broker on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from coordlog.errors import OptionError
from coordlog.limits import PAYLOAD_BYTES_MAX
from coordlog.log.interface import Log
from coordlog.log.local.paths import home_folder
from coordlog.log.payload_store import PayloadStore, default_payload_url
from coordlog.payloads.offload import PayloadOptions
from coordlog.spark_integration.driver.stage import is_local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LIMIT_BYTES_MIN", "PayloadChoice", "is_on_this_machine"]

LIMIT_BYTES_MIN: Final = 1024
_HERE: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})


class PayloadChoice:
    """The user's options of the store, before a session exists.

    Raises:
        OptionError: An option is invalid for any session.
    """

    def __init__(self, job_id: str, url: str | None, limit_bytes: int) -> None:
        if not LIMIT_BYTES_MIN <= limit_bytes <= PAYLOAD_BYTES_MAX:
            raise OptionError(
                "payload_limit_bytes",
                limit_bytes,
                f"between {LIMIT_BYTES_MIN} and {PAYLOAD_BYTES_MAX}",
            )
        self._job_id, self._limit_bytes = job_id, limit_bytes
        self._store = None if url is None else PayloadStore(url, job_id)

    def on(self, spark: SparkSession, log: Log) -> PayloadOptions:
        """The store of a job on this session.

        Without the user's choice it is a folder in `COORDLOG_HOME` if tasks and broker are on this machine too; else
        the job has no store.

        Raises:
            OptionError: The tasks may be on other machines, and the store is a folder of this one.
        """
        if is_local_session(spark):
            return self.before_session(log)
        store = self._store
        if store is not None and store.is_local:
            raise OptionError(
                "payload_store",
                store.url,
                "a URL that all machines of the cluster reach, as s3://bucket/prefix: this folder is "
                "the driver's own, and the tasks run elsewhere",
            )
        return PayloadOptions(store=store, limit_bytes=self._limit_bytes)

    def before_session(self, log: Log) -> PayloadOptions:
        """The store of a job without a session yet, for reading: as with a local session."""
        store = self._store
        if store is None and is_on_this_machine(log):
            store = PayloadStore(default_payload_url(home_folder()), self._job_id)
        return PayloadOptions(store=store, limit_bytes=self._limit_bytes)


def is_on_this_machine(log: Log) -> bool:
    """Whether a log's broker is reached over the loopback interface, which drivers of other machines cannot reach."""
    servers = getattr(log, "bootstrap_servers", "")
    hosts = [server.strip().rpartition(":")[0] for server in servers.split(",")]
    return bool(servers) and all(host in _HERE for host in hosts)
