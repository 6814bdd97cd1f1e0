"""What `coordlog ingest` is told: checked all at once, before anything is started."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from coordlog.api.chain import Chain
from coordlog.cli.ingest.compatibility import fitted, unfit
from coordlog.cli.ingest.kafka import is_kafka, kafka_source
from coordlog.errors import CoordlogError, OptionsError
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
from coordlog.log.job_id import check_job_id

if TYPE_CHECKING:
    from coordlog.spark_integration.driver.endpoint_options import EndpointOptions
    from coordlog.spark_integration.files.sink.sink import ParquetSink
    from coordlog.spark_integration.files.source.source import FileSource
    from coordlog.spark_integration.kafka.source import KafkaSource
    from coordlog.spark_integration.transform import TransformFunction

__all__ = ["IngestOptions", "IngestParts", "OptionsError", "default_job_id", "parts_of"]

_PARALLELISM: Final = range(1, 4097)
_RESTARTS: Final = range(1001)
_INTERVAL_S: Final = (0.01, 86_400.0)
_LOG_TIMEOUT_S: Final = (1.0, 86_400.0)
_CALL_TIMEOUT_S: Final = (1.0, 86_400.0)
_ACK_TIMEOUT_S: Final = (1.0, 86_400.0)
_STOP_TIMEOUT_S: Final = (0.0, 86_400.0)
_NAME_CHARS: Final = 40

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """The command line, as it came, with what a file or a variable sets."""

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
    """Nothing: the empty field."""
    on_error: Literal["fail", "skip"] = "fail"
    exclude: tuple[str, ...] = ()
    """Globs of files that are left out."""
    allow_other_source: bool = False
    partition_folders: Literal["refuse", "ignore"] = "refuse"
    encoding: str = "utf-8"
    delimiter: str = ","
    quote: str = '"'
    """Empty: quotes mean nothing."""
    escape: str | None = None
    schema: str | None = None
    """A DDL string."""
    batch_rows: int = FILE_BATCH_ROWS
    no_newlines_in_fields: bool = False
    transform: str | None = None
    is_bounded: bool = True
    """Of topics; files end."""
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
    payload_store: str | None = None
    payload_limit_bytes: int = PAYLOAD_BYTES_MAX
    is_verbose: bool = False
    partition_by: str | None = None
    """Columns, with commas between them."""
    roll_bytes: int = ROLL_BYTES
    roll_rows: int | None = None
    roll_seconds: float | None = None
    is_widening: bool = False
    told: frozenset[str] | None = None
    """The fields that the command line has given; None: all that differ from their default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestParts:
    """What a job is made of, from checked options."""

    job_id: str
    source: FileSource | KafkaSource
    transform: TransformFunction | None
    sink: ParquetSink
    endpoint: EndpointOptions

    def chain(self) -> Chain:
        """As `Job` makes it of them."""
        from coordlog.spark_integration.transform import transform_spec  # noqa: PLC0415, heavy

        between = [] if self.transform is None else [transform_spec(self.transform)]
        return Chain(source=self.source.spec(), operators=[*between, self.sink.spec()])


def default_job_id(destination: str) -> str:
    """The job that a destination has where none is named: the same each time, another for another.

    A second run of a command goes on with the first one's job, and two commands that write to
    different places never share one.
    """
    path = destination.rstrip("/")
    if "://" not in destination:
        path = os.path.abspath(Path(destination).expanduser())  # noqa: PTH100, links are not followed
    name = re.sub(r"[^a-z0-9]+", "-", Path(path).name.lower()).strip("-")[:_NAME_CHARS]
    digest = blake2b(path.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    return "-".join(part for part in ("ingest", name.strip("-"), digest) if part)


def parts_of(options: IngestOptions) -> IngestParts:
    """The job's parts. Reads the transform's module, and nothing else.

    Raises:
        OptionsError: With all that is wrong.
    """
    from coordlog.cli.ingest.transform import load_transform  # noqa: PLC0415
    from coordlog.spark_integration.driver.payload_options import PayloadChoice  # noqa: PLC0415
    from coordlog.spark_integration.files.places import check_apart  # noqa: PLC0415, heavy
    from coordlog.spark_integration.files.sink.sink import ParquetSink  # noqa: PLC0415, heavy

    problems = _out_of_range(options)
    options = fitted(options)

    def attempt(make: Callable[[], R]) -> R | None:
        try:
            return make()
        except OptionsError as error:
            problems.extend(error.problems)
        except CoordlogError as error:
            problems.append(str(error))
        return None

    job_id = options.job_id or default_job_id(options.destination)
    attempt(lambda: check_job_id(job_id))
    limit_bytes = options.payload_limit_bytes
    attempt(lambda: PayloadChoice(job_id, options.payload_store, limit_bytes))
    source = attempt(
        lambda: kafka_source(options) if is_kafka(options.source) else _file_source(options)
    )
    sink = attempt(
        lambda: ParquetSink(
            options.destination,
            partition_by=[] if options.partition_by is None else options.partition_by.split(","),
            roll_bytes=options.roll_bytes,
            roll_rows=options.roll_rows,
            roll_seconds=options.roll_seconds,
            widen=options.is_widening,
        )
    )
    endpoint = attempt(lambda: _endpoint(options))
    transform = None
    if options.transform is not None:
        named = options.transform
        is_local = options.master is None or options.master.startswith("local")
        transform = attempt(lambda: load_transform(named, is_local=is_local))
    if problems or source is None or sink is None or endpoint is None:
        raise OptionsError(tuple(problems))
    parts = IngestParts(
        job_id=job_id, source=source, transform=transform, sink=sink, endpoint=endpoint
    )
    attempt(lambda: check_apart(parts.chain()))
    if problems:
        raise OptionsError(tuple(problems))
    return parts


def _file_source(options: IngestOptions) -> FileSource:
    from coordlog.spark_integration.files.source.source import FileSource  # noqa: PLC0415, heavy

    return FileSource(
        options.source,
        format=options.file_format,
        compression=options.compression,
        watch=options.is_watching,
        watch_interval_s=options.watch_interval_s,
        idle_timeout_s=options.idle_timeout_s,
        listing_timeout_s=options.listing_timeout_s,
        schemas=options.schemas,
        changed_by=options.changed_by,
        batch_rows=options.batch_rows,
        null_values=options.null_values or ("",),
        encoding=options.encoding,
        delimiter=options.delimiter,
        quote=options.quote or None,
        escape=options.escape,
        schema=options.schema,
        no_newlines_in_fields=options.no_newlines_in_fields,
        on_error=options.on_error,
        exclude=options.exclude,
        allow_other_path=options.allow_other_source,
        partition_folders=options.partition_folders,
    )


def _endpoint(options: IngestOptions) -> EndpointOptions:
    from coordlog.spark_integration.driver.endpoint_options import EndpointOptions  # noqa: PLC0415, heavy

    return EndpointOptions(
        host=options.endpoint_host,
        bind=options.endpoint_bind,
        ports=options.endpoint_ports,
        tls=options.endpoint_tls,
    )


def _out_of_range(options: IngestOptions) -> list[str]:
    problems = []
    if options.parallelism not in _PARALLELISM:
        problems.append(
            f"--parallelism is {options.parallelism}; it must be {_PARALLELISM.start} to "
            f"{_PARALLELISM.stop - 1}"
        )
    if options.restarts_max not in _RESTARTS:
        problems.append(
            f"--restarts-max is {options.restarts_max}; it must be {_RESTARTS.start} to "
            f"{_RESTARTS.stop - 1}"
        )
    for name, value, (lowest, highest) in (
        ("--checkpoint-interval", options.checkpoint_interval_s, _INTERVAL_S),
        ("--log-timeout", options.log_timeout_s, _LOG_TIMEOUT_S),
        ("--stop-timeout", options.stop_timeout_s, _STOP_TIMEOUT_S),
        ("--call-timeout", options.call_timeout_s, _CALL_TIMEOUT_S),
        ("--ack-timeout", options.ack_timeout_s, _ACK_TIMEOUT_S),
    ):
        if not lowest <= value <= highest:
            problems.append(f"{name} is {value:g}; it must be {lowest:g} to {highest:g} seconds")
    if options.is_watching and options.is_batch:
        problems.append("--watch is given with --batch, which makes rows visible at its end only")
    if is_kafka(options.source) and options.is_batch and not options.is_bounded:
        problems.append("--unbounded is given with --batch; a batch ends")
    problems += [one.problem for one in unfit(options) if one.is_told]
    return problems
