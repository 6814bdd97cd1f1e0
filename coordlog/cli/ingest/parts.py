"""Parts of a job, made from options that are all checked at once, before any start."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from coordlog.amounts import age_of
from coordlog.api.chain import Chain
from coordlog.cli.ingest.destinations import sink_of
from coordlog.cli.ingest.kafka import kafka_source
from coordlog.cli.ingest.options import IngestOptions, Part
from coordlog.cli.ingest.transform import load_transform
from coordlog.errors import CoordlogError, OptionError, OptionsError
from coordlog.limits import HISTORY_MIN_S
from coordlog.spark_integration.driver.endpoint_options import EndpointOptions
from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.places import check_apart
from coordlog.spark_integration.files.sink.rejects import RejectsSink
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.watch import Watch
from coordlog.spark_integration.files.tables.sink import TableSink
from coordlog.spark_integration.job import check_job_options
from coordlog.spark_integration.job_options import RestartPolicy, Start, Telemetry, Timeouts
from coordlog.spark_integration.kafka.source import KafkaSource
from coordlog.spark_integration.transform import TransformFunction, transform_spec

__all__ = ["IngestParts", "default_job_id", "is_default_job_id", "parts_of"]

_NAME_CHARS: Final = 40
_DIGEST_BYTES: Final = 4
_DEFAULT_ID: Final = re.compile(rf"ingest-(?:[a-z0-9-]+-)?[0-9a-f]{{{2 * _DIGEST_BYTES}}}")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestParts:
    """Parts of a job, made from checked options."""

    job_id: str
    source: FileSource | KafkaSource
    transform: TransformFunction | None = None
    sink: ParquetSink | TableSink
    endpoint: EndpointOptions
    start: Start
    restart_policy: RestartPolicy
    timeouts: Timeouts
    telemetry: Telemetry
    history: Literal["forever"] | timedelta

    @property
    def rejects(self) -> RejectsSink | None:
        """Sink of the rows that the source leaves out; None if they have no place."""
        return self.source.rejects

    @property
    def sinks(self) -> Sequence[ParquetSink | TableSink]:
        """All sinks of the job."""
        return [self.sink] if self.rejects is None else [self.sink, self.rejects]

    def chain(self) -> Chain:
        """Chain of these parts, as `Job` makes it."""
        between = [] if self.transform is None else [transform_spec(self.transform)]
        return Chain(source=self.source.spec(), operators=[*between, self.sink.spec()])


def default_job_id(destination: str) -> str:
    """Job id derived from the `destination` of a sink, if the user sets none.

    A second run of a command continues with the job of the first, however it spells the destination, and commands
    with different destinations never share a job.
    """
    path = destination.rstrip("/")
    if "://" not in destination:
        path = os.path.abspath(Path(destination).expanduser())  # noqa: PTH100, links are not followed
    name = re.sub(r"[^a-z0-9]+", "-", Path(path).name.lower()).strip("-")[:_NAME_CHARS]
    digest = blake2b(path.encode("utf-8", "surrogateescape"), digest_size=_DIGEST_BYTES).hexdigest()
    return "-".join(part for part in ("ingest", name.strip("-"), digest) if part)


def is_default_job_id(job_id: str) -> bool:
    """Whether an id looks like one of `default_job_id`."""
    return _DEFAULT_ID.fullmatch(job_id) is not None


def parts_of(options: IngestOptions) -> IngestParts:
    """Parts of the job. Reads the transform's module, but no data.

    Raises:
        OptionsError: Options are wrong; the error has all problems.
    """
    problems = _incompatible(options)
    options = options.effective()

    def attempt(make: Callable[[], R]) -> R | None:
        try:
            return make()
        except OptionsError as error:
            problems.extend(error.problems)
        except CoordlogError as error:
            problems.append(str(error))
        return None

    history = attempt(lambda: _history(options.history))
    of_job = {
        "job_id": options.job_id or default_job_id(options.destination),
        **options.keywords(Part.JOB),
        "history": history,
    }
    if history is None:
        of_job |= {"history": "forever", "history_archive": None}
    attempt(lambda: check_job_options(of_job))
    columns = [] if options.partition_by is None else options.partition_by.split(",")
    sink_keywords: dict[str, Any] = options.keywords(Part.SINK) | {"partition_by": columns}
    is_local = options.master is None or options.master.startswith("local")
    csv_keywords: dict[str, Any] = options.keywords(Part.CSV) | {
        "null_values": options.null_values or ("",),
        "quote": options.quote or None,
    }
    csv = attempt(lambda: CsvOptions(**csv_keywords))
    watch = attempt(lambda: Watch(**options.keywords(Part.WATCH))) if options.watch else None
    parts: dict[str, Any] = {
        "source": attempt(lambda: _source(options, csv, watch)),
        "sink": attempt(lambda: sink_of(options.destination, sink_keywords)),
        "endpoint": attempt(lambda: EndpointOptions(**options.keywords(Part.ENDPOINT))),
        "start": attempt(lambda: Start(**options.keywords(Part.START))),
        "restart_policy": attempt(lambda: RestartPolicy(**options.keywords(Part.RESTARTS))),
        "timeouts": attempt(lambda: Timeouts(**options.keywords(Part.TIMEOUTS))),
        "telemetry": attempt(lambda: Telemetry(**options.keywords(Part.TELEMETRY))),
        "history": history,
    }
    if (text := options.transform) is not None:
        parts["transform"] = attempt(lambda: load_transform(text, is_local=is_local))
    if problems:
        raise OptionsError(tuple(problems))
    # The sink has one spelling for all of DEST, such as s3:// for s3a://: another id would write all rows again.
    job_id = options.job_id or default_job_id(parts["sink"].destination)
    checked = IngestParts(job_id=job_id, **parts)
    attempt(lambda: check_apart(checked.chain()))
    if problems:
        raise OptionsError(tuple(problems))
    return checked


def _source(
    options: IngestOptions, csv: CsvOptions | None, watch: Watch | None
) -> FileSource | KafkaSource:
    if options.is_kafka:
        return kafka_source(options)
    return FileSource(
        options.source,
        batch_rows=options.batch_rows,
        csv=csv,
        watch=watch,
        **options.keywords(Part.FILES),
    )


def _history(text: str) -> Literal["forever"] | timedelta:
    if text == "forever":
        return "forever"
    age = age_of(text)
    if age is None or age.total_seconds() < HISTORY_MIN_S:
        raise OptionError("--history", text, "forever, or as in 30d, 12h, 45m or 90s")
    return age


def _incompatible(options: IngestOptions) -> list[str]:
    """Problems of options that exclude each other."""
    problems = []
    if options.watch and options.batch:
        problems.append("--watch is set with --batch, which makes rows visible at its end only")
    if options.is_kafka and options.batch and not options.bounded:
        problems.append("--unbounded is set with --batch; a batch ends")
    ineffective = options.ineffective()
    return [*problems, *(option.problem for option in ineffective if option.is_on_command_line)]
