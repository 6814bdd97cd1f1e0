"""Parts of a job, made from options that are all checked at once, before any start."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from coordlog.amounts import age_of
from coordlog.api.chain import Chain
from coordlog.cli.ingest.compatibility import fitted, unfit
from coordlog.cli.ingest.kafka import kafka_source
from coordlog.cli.ingest.options import IngestOptions
from coordlog.errors import CoordlogError, OptionsError
from coordlog.limits import HISTORY_MIN_S
from coordlog.log.job_id import check_job_id

if TYPE_CHECKING:
    from coordlog.spark_integration.driver.endpoint_options import EndpointOptions
    from coordlog.spark_integration.files.sink.sink import ParquetSink
    from coordlog.spark_integration.files.source.source import FileSource
    from coordlog.spark_integration.kafka.source import KafkaSource
    from coordlog.spark_integration.transform import TransformFunction

__all__ = ["IngestParts", "default_job_id", "parts_of"]

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
class IngestParts:
    """Parts of a job, made from checked options."""

    job_id: str
    source: FileSource | KafkaSource
    transform: TransformFunction | None
    sink: ParquetSink
    endpoint: EndpointOptions

    def chain(self) -> Chain:
        """Chain of these parts, as `Job` makes it."""
        from coordlog.spark_integration.transform import transform_spec  # noqa: PLC0415, heavy

        between = [] if self.transform is None else [transform_spec(self.transform)]
        return Chain(source=self.source.spec(), operators=[*between, self.sink.spec()])


def default_job_id(destination: str) -> str:
    """Job id derived from a destination, if the user gives none.

    A second run of a command goes on with the job of the first, and commands with different
    destinations never share a job.
    """
    path = destination.rstrip("/")
    if "://" not in destination:
        path = os.path.abspath(Path(destination).expanduser())  # noqa: PTH100, links are not followed
    name = re.sub(r"[^a-z0-9]+", "-", Path(path).name.lower()).strip("-")[:_NAME_CHARS]
    digest = blake2b(path.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    return "-".join(part for part in ("ingest", name.strip("-"), digest) if part)


def parts_of(options: IngestOptions) -> IngestParts:
    """Parts of the job. Reads the transform's module, but no data.

    Raises:
        OptionsError: Options are wrong; the error has all problems.
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
    source = attempt(lambda: kafka_source(options) if options.is_kafka else _file_source(options))
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
        text = options.transform
        is_local = options.master is None or options.master.startswith("local")
        transform = attempt(lambda: load_transform(text, is_local=is_local))
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
    age = age_of(options.history)
    if options.history != "forever" and (age is None or age.total_seconds() < HISTORY_MIN_S):
        problems.append(
            f"--history is {options.history!r}; it must be forever, or as in 30d, 12h, 45m or 90s"
        )
    if options.history_archive is not None and options.history == "forever":
        problems.append("--history-archive is given without --history; no record is removed then")
    if options.is_watching and options.is_batch:
        problems.append("--watch is given with --batch, which makes rows visible at its end only")
    if options.is_kafka and options.is_batch and not options.is_bounded:
        problems.append("--unbounded is given with --batch; a batch ends")
    problems += [option.problem for option in unfit(options) if option.is_chosen]
    return problems
