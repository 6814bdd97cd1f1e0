"""Options of `coordlog ingest`, as given on the command line, by variables and by a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from coordlog.limits import (
    ACK_TIMEOUT_S,
    CALL_TIMEOUT_S,
    FILE_BATCH_ROWS,
    LISTING_TIMEOUT_S,
    LOG_TIMEOUT_S,
    PAYLOAD_BYTES_MAX,
    RESTARTS_MAX,
    ROLL_BYTES,
    STOP_TIMEOUT_S,
    WATCH_INTERVAL_S,
)

if TYPE_CHECKING:
    pass

__all__ = ["KAFKA_SCHEME", "IngestOptions"]

KAFKA_SCHEME: Final = "kafka://"


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """Values of the options, from the command line, variables and a file; unchecked."""

    source: str
    destination: str
    file_format: Literal["csv", "jsonl", "parquet", "text"] = "csv"
    compression: Literal["infer", "none", "gzip", "bz2", "zstd", "xz", "lz4"] = "infer"
    is_watching: bool = False
    watch_interval_s: float = WATCH_INTERVAL_S
    idle_timeout_s: float | None = None
    listing_timeout_s: float = LISTING_TIMEOUT_S
    changed_by: Literal["modified", "size"] = "modified"
    schemas: Literal["one", "each"] = "one"
    parallelism: int = 4
    checkpoint_interval_s: float = 5.0
    is_batch: bool = False
    bootstrap_servers: str | None = None
    topic_prefix: str = ""
    job_id: str | None = None
    null_values: tuple[str, ...] = ()
    """Texts that mean null; if there are none, the empty field does."""
    on_error: Literal["fail", "skip"] = "fail"
    exclude: tuple[str, ...] = ()
    """Globs of files to leave out."""
    allow_other_source: bool = False
    partition_folders: Literal["refuse", "ignore"] = "refuse"
    encoding: str = "utf-8"
    delimiter: str = ","
    quote: str = '"'
    """Character around a field; empty if quotes have no meaning."""
    escape: str | None = None
    schema: str | None = None
    """Schema as a DDL string, or None to infer it."""
    batch_rows: int = FILE_BATCH_ROWS
    no_newlines_in_fields: bool = False
    transform: str | None = None
    is_bounded: bool = True
    """Whether topics are read up to their end at the job's beginning."""
    starting: str = "earliest"
    decode: Literal["utf8"] | None = None
    master: str | None = None
    endpoint_host: str | None = None
    endpoint_bind: str | None = None
    endpoint_ports: str | None = None
    endpoint_tls: Literal["auto", "on", "off"] = "auto"
    restarts_max: int = RESTARTS_MAX
    is_take_over: bool = False
    is_again: bool = False
    restore: str | None = None
    from_checkpoint: int | None = None
    allow_non_restored_state: tuple[str, ...] = ()
    log_timeout_s: float = LOG_TIMEOUT_S
    stop_timeout_s: float = STOP_TIMEOUT_S
    call_timeout_s: float = CALL_TIMEOUT_S
    ack_timeout_s: float = ACK_TIMEOUT_S
    history: str = "forever"
    """Age up to which records stay in the log, as in 30d."""
    history_archive: str | None = None
    payload_store: str | None = None
    payload_limit_bytes: int = PAYLOAD_BYTES_MAX
    is_verbose: bool = False
    partition_by: str | None = None
    """Columns, separated by commas."""
    roll_bytes: int = ROLL_BYTES
    roll_rows: int | None = None
    roll_seconds: float | None = None
    is_widening: bool = False
    told: frozenset[str] | None = None
    """Fields set on the command line, or None: all that differ from their default."""

    @property
    def is_kafka(self) -> bool:
        """Whether SRC names topics."""
        return self.source.lower().startswith(KAFKA_SCHEME)
