"""Options of `coordlog ingest`: the one place that declares each of them.

The command line, the variables, the keys of `coordlog.toml` and the arguments of the constructors
follow from the fields of `IngestOptions`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields, replace
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import click

from coordlog.cli.log_access import PREFIX_HELP, SERVERS_HELP, SERVERS_VARIABLE
from coordlog.limits import (
    ACK_TIMEOUT_S,
    CALL_TIMEOUT_S,
    CSV_BLOCK_BYTES,
    FILE_BATCH_ROWS,
    LISTING_TIMEOUT_S,
    LOG_TIMEOUT_S,
    NOTIFIED_LISTING_S,
    PAYLOAD_BYTES_MAX,
    RESTARTS_MAX,
    ROLL_BYTES,
    STOP_TIMEOUT_S,
    VERDICT_STUCK_INTERVALS,
    WATCH_INTERVAL_S,
)

__all__ = ["IneffectiveOption", "IngestOptions", "Part", "click_options"]

_KAFKA_SCHEME: Final = "kafka://"
_ENDPOINT_PREFIX: Final = "endpoint_"
_SECONDS_SUFFIX: Final = "_s"
"""Unit in the names of fields, not of options."""

T = TypeVar("T")


class Part(Enum):
    """Part of the job whose constructor takes an option, by a keyword with the name of the field."""

    FILES = "FileSource"
    CSV = "CsvOptions"
    WATCH = "Watch"
    TOPICS = "KafkaSource"
    SINK = "ParquetSink"
    ENDPOINT = "EndpointOptions"
    """Its keywords have no prefix `endpoint_`."""
    JOB = "Job"
    START = "Start"
    RESTARTS = "RestartPolicy"
    TIMEOUTS = "Timeouts"
    TELEMETRY = "Telemetry"
    COMMAND = "coordlog ingest"
    """The command itself uses the option."""


@dataclass(frozen=True, slots=True)
class _Condition:
    """Condition under which an option has an effect."""

    text: str
    holds: Callable[[IngestOptions], bool]


@dataclass(frozen=True, slots=True)
class _Declaration:
    """Attributes of an option besides the name, the type and the default of its field."""

    part: Part
    conditions: tuple[_Condition, ...]
    """All must hold; the first that does not is reported."""
    names: tuple[str, ...]
    attributes: dict[str, object]
    """Arguments of `click.Option`."""

    @property
    def name(self) -> str:
        """Name in messages: of a pair of switches the one that differs from the default."""
        return self.names[-1].rpartition("/")[2]


class _Group:
    """Declares options of one part and with the same conditions."""

    def __init__(self, part: Part, *conditions: _Condition) -> None:
        self._part, self._conditions = part, conditions

    def __call__(
        self,
        default: T,
        text: str,
        metavar: str | None = None,
        names: tuple[str, ...] = (),
        **attributes: object,
    ) -> T:
        """Field with that default; `text` is the help."""
        attributes |= {"help": text, "metavar": metavar}
        declaration = _Declaration(self._part, self._conditions, names, attributes)
        return field(default=default, metadata={_Declaration: declaration})

    def switch(self, text: str, names: tuple[str, ...] = (), *, default: bool = False) -> bool:
        """Field of a switch."""
        return self(default, text, names=names)


def _formats(*names: str) -> _Condition:
    return _Condition(f"--format {' or '.join(names)}", lambda options: options.format in names)


_FILES: Final = _Condition("files", lambda options: not options.is_kafka)
_TOPICS: Final = _Condition(_KAFKA_SCHEME, lambda options: options.is_kafka)
_WATCH: Final = _Condition("--watch", lambda options: options.watch)
_HISTORY: Final = _Condition("--history", lambda options: options.history != "forever")
_STREAMING: Final = _Condition("a job without --batch", lambda options: not options.batch)

_command: Final = _Group(Part.COMMAND)
_job: Final = _Group(Part.JOB)
_streaming: Final = _Group(Part.JOB, _STREAMING)
_history: Final = _Group(Part.JOB, _HISTORY)
_start: Final = _Group(Part.START)
_restarts: Final = _Group(Part.RESTARTS)
_timeouts: Final = _Group(Part.TIMEOUTS)
_telemetry: Final = _Group(Part.TELEMETRY)
_endpoint: Final = _Group(Part.ENDPOINT)
_sink: Final = _Group(Part.SINK)
_topics: Final = _Group(Part.TOPICS, _TOPICS)
_command_of_files: Final = _Group(Part.COMMAND, _FILES)
_files: Final = _Group(Part.FILES, _FILES)
_watch: Final = _Group(Part.WATCH, _FILES, _WATCH)
_csv: Final = _Group(Part.CSV, _FILES, _formats("csv"))
_texts: Final = _Group(Part.FILES, _FILES, _formats("csv", "jsonl", "text"))
_rows: Final = _Group(Part.FILES, _FILES, _formats("csv", "jsonl"))
_rows_or_records: Final = _Group(
    Part.FILES,
    _Condition(
        f"--format csv or jsonl, {_KAFKA_SCHEME}, and --transform",
        lambda options: (
            options.is_kafka or options.format in ("csv", "jsonl") or options.transform is not None
        ),
    ),
)
_typed: Final = _Group(Part.FILES, _FILES, _formats("csv", "jsonl", "parquet"))


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """Values of the options, from the command line, variables and a file; unchecked."""

    source: str
    destination: str
    format: Literal["csv", "jsonl", "parquet", "text"] = _files(
        "csv", "Format of SRC; jsonl: an object on each line; text: a row for each line."
    )
    compression: Literal["infer", "none", "gzip", "bz2", "zstd", "xz", "lz4"] = _files(
        "infer", "Not Parquet: compression of the files; infer: by the ends of their names."
    )
    watch: bool = _command_of_files.switch(
        "Keep looking for new files, until Ctrl-C or --idle-timeout."
    )
    watch_interval_s: float = _watch(
        WATCH_INTERVAL_S,
        "--watch: time between two listings; a file is read if two listings find it unchanged.",
    )
    idle_timeout_s: float | None = _watch(None, "--watch: end after this time without a new file.")
    start_after: str | None = _watch(
        None,
        "--watch: list only names below SRC that sort after this one; an S3 listing begins there.",
        "NAME",
    )
    max_file_age: str | None = _watch(
        None,
        "--watch: leave out files that are older than this, as in 30d or 12h, and forget the names of read ones.",
        "AGE",
    )
    after_commit: str = _watch(
        "keep",
        "--watch: keep files of which a checkpoint has committed every row, delete them, or move them to archive:DIR.",
        "keep|delete|archive:DIR",
    )
    notify: str | None = _watch(
        None,
        "--watch: queue with the S3 events of new objects, which are read without a listing.",
        "sqs://QUEUE",
    )
    full_listing_interval_s: float = _watch(
        NOTIFIED_LISTING_S, "--notify: time between two listings, for events that are lost."
    )
    also: tuple[str, ...] = _files(
        (), "Another path, glob or URL that is read like SRC; may be repeated.", "SRC"
    )
    listing_timeout_s: float = _files(
        LISTING_TIMEOUT_S, "Time after which the job fails, if no listing of SRC succeeds."
    )
    schemas: Literal["one", "each"] = _files(
        "one", "Whether all files have one schema, or each is read with its own: see --widen."
    )
    changed_by: Literal["modified", "size"] = _files(
        "modified", "Sign of a changed file: its size and its time or etag, or the size alone."
    )
    parallelism: int = _job(4, "Number of subtasks.", "N")
    checkpoint_interval_s: float = _streaming(
        5.0, "Time between two checkpoints; rows become visible with each checkpoint."
    )
    batch: bool = _job.switch(
        "No checkpoints: after a stop or a kill, finished files stay finished. All rows become visible at the end.",
    )
    bootstrap_servers: str | None = _command(
        None, SERVERS_HELP, "HOST:PORT", envvar=SERVERS_VARIABLE, show_envvar=True
    )
    topic_prefix: str = _command("", PREFIX_HELP, "PREFIX")
    job_id: str | None = _command(
        None, "Id of the job; by default an id is derived from DEST.", "JOB"
    )
    null_values: tuple[str, ...] = _csv(
        (),
        "CSV: text that means null, by default the empty field; may be repeated.",
        "WORD",
        names=("--null-value",),
    )
    encoding: str = _texts("utf-8", "Not Parquet: encoding, any of Python's.", "NAME")
    block_bytes: int = _texts(
        CSV_BLOCK_BYTES,
        "Not Parquet: number of bytes that are parsed at once; a longer line is an error.",
        "N",
    )
    delimiter: str = _csv(",", "CSV: character between two fields.", "CHARACTER")
    quote: str = _csv(
        '"', "CSV: character around a field; empty if quotes have no meaning.", "CHARACTER"
    )
    escape: str | None = _csv(
        None, "CSV: character before a quote that is part of a field.", "CHARACTER"
    )
    schema: str | None = _typed(
        None,
        "All columns with their types, as in 'id bigint, name string'; by default they are inferred.",
        "DDL",
    )
    no_newlines_in_fields: bool = _csv.switch(
        "CSV: assert that no field has a line end, so that large files can be split."
    )
    on_error: Literal["fail", "skip"] = _files(
        "fail", "Fail, or skip a file or a part of it, if it cannot be read after the listing."
    )
    bad_rows: str = _rows_or_records(
        "fail",
        "Fail at a row that cannot be parsed, cast or decoded, or at which a row_transform raises, skip it, or write "
        "it to this folder or s3:// URL, as Parquet with its place and the reason.",
        "fail|skip|DIR",
    )
    rescued: str | None = _rows(
        None,
        "CSV, JSON lines: fields that --schema does not have, as a JSON object in a column of this name.",
        "COLUMN",
    )
    exclude: tuple[str, ...] = _files(
        (),
        "Files or folders to leave out, by name or by path below SRC; may be repeated.",
        "GLOB",
    )
    partition_folders: Literal["refuse", "ignore"] = _files(
        "refuse",
        "Refuse files in folders such as month=3 if their rows have no such column, or ignore the folder.",
    )
    allow_other_path: bool = _files.switch(
        "Files: accept another SRC than that of the history; a file with another path is another file.",
        names=("--allow-other-source",),
    )
    bounded: bool = _topics.switch(
        "Topics: read up to their ends at the job's beginning, or without end.",
        names=("--bounded/--unbounded",),
        default=True,
    )
    starting: str = _topics(
        "earliest",
        "Topics: begin at earliest, latest, or a time as in 2026-01-31T08:00:00Z.",
        "WHERE",
    )
    decode: Literal["utf8"] | None = _topics(
        None, "Topics: read values as text; by default they are bytes."
    )
    batch_rows: int = _command(
        FILE_BATCH_ROWS,
        "Maximum rows of a batch for the transform; a checkpoint waits for the current batch.",
        "N",
    )
    transform: str | None = _command(
        None,
        "Function applied to each pyarrow.RecordBatch: module:function or file.py:function.",
        "MODULE:FUNCTION",
    )
    partition_by: str | None = _sink(
        None, "Columns whose values become folders of DEST: a=1/b=x/.", "COLUMN,…"
    )
    roll_bytes: int = _sink(
        ROLL_BYTES,
        "Approximate maximum bytes of a file of DEST; each checkpoint ends all files anyway.",
        "N",
    )
    roll_rows: int | None = _sink(None, "Maximum rows of a file of DEST.", "N")
    roll_seconds: float | None = _sink(
        None, "Maximum age of a file of DEST at the arrival of further rows.", "SECONDS"
    )
    widen: bool = _sink.switch(
        "Write rows with new, missing or wider columns; by default they are refused."
    )
    master: str | None = _command(
        None, "Master URL of Spark; by default Spark runs on this machine.", "URL"
    )
    endpoint_host: str | None = _endpoint(
        None,
        "Host by which tasks and clients reach the driver; by default spark.driver.host.",
        "HOST",
    )
    endpoint_bind: str | None = _endpoint(
        None,
        "Address on which the driver listens, 0.0.0.0 for all; by default --endpoint-host.",
        "ADDRESS",
    )
    endpoint_ports: str | None = _endpoint(
        None,
        "Ports of which the driver takes the first free one; by default any port.",
        "FIRST-LAST",
    )
    endpoint_tls: Literal["auto", "on", "off"] = _endpoint(
        "auto",
        "Encrypt the connections of tasks and clients; auto: if they may be on other machines.",
    )
    restarts_max: int = _restarts(
        RESTARTS_MAX, "Number of failures allowed within ten minutes; one more fails the job.", "N"
    )
    take_over: bool = _job.switch("Take the place of a driver that runs.")
    again: bool = _start.switch("Open a finished job again, and read the files that are new since.")
    restore: Literal["rollback", "resume"] | None = _start(
        None, "Kind of restore; by default rollback, with --batch resume."
    )
    from_checkpoint: int | None = _start(
        None,
        "Go back to this checkpoint, for this start; `coordlog checkpoint JOB` lists them.",
        "N",
        type=click.IntRange(min=1),
    )
    allow_non_restored_state: tuple[str, ...] = _start(
        (), "Operator whose state may be dropped, if it is no longer in the chain.", "OPERATOR"
    )
    log_timeout_s: float = _timeouts(
        LOG_TIMEOUT_S, "Time to wait for a broker that does not answer."
    )
    call_timeout_s: float = _timeouts(
        CALL_TIMEOUT_S, "Time after which a call of the transform for one batch fails its attempt."
    )
    ack_timeout_s: float = _timeouts(
        ACK_TIMEOUT_S,
        "Time after which an event without an ack fails its attempt, if that is in no call.",
    )
    stop_timeout_s: float = _timeouts(
        STOP_TIMEOUT_S, "Time after which a stop gives up its checkpoint and stops without one."
    )
    metrics_port: int | None = _telemetry(
        None, "Serve /metrics (Prometheus) and /healthz on this port; 0: any free one.", "PORT"
    )
    metrics_host: str = _telemetry(
        "127.0.0.1",
        "Address of --metrics-port, without a password: 0.0.0.0 for all.",
        "ADDRESS",
    )
    stuck_intervals: float = _telemetry(
        VERDICT_STUCK_INTERVALS,
        "Checkpoint intervals without a checkpoint from which /healthz reports the job as stuck.",
        "N",
    )
    otel: Literal["off", "global", "otlp"] = _telemetry(
        "off", "Metrics and traces by OpenTelemetry; otlp: as the OTEL_… variables configure it."
    )
    openlineage: bool = _telemetry.switch(
        "Events of runs by OpenLineage's client, as its own variables configure it."
    )
    history: str = _command(
        "forever",
        "Age up to which records stay in the job's log, as in 30d or 12h; older ones are removed while it runs.",
        "AGE",
    )
    history_archive: str | None = _history(
        None,
        "--history: folder for files of the removed records; by default they are not archived.",
        "FOLDER",
    )
    payload_store: str | None = _job(
        None,
        "Store of payloads too large for the log; by default COORDLOG_HOME, if the broker is local.",
        "URL",
    )
    payload_limit_bytes: int = _job(
        PAYLOAD_BYTES_MAX,
        "Size above which a payload goes to the payload store.",
        "BYTES",
        names=("--payload-limit",),
    )
    verbose: bool = _command.switch(
        "Show the output of Spark and the broker.",
        names=("-v", "--verbose"),
    )
    on_command_line: frozenset[str] | None = None
    """Fields set on the command line, or None: all that differ from their default."""

    @property
    def is_kafka(self) -> bool:
        """Whether SRC names topics."""
        return self.source.lower().startswith(_KAFKA_SCHEME)

    def keywords(self, part: Part) -> dict[str, Any]:
        """Arguments of the part's constructor."""
        return {
            name.removeprefix(_ENDPOINT_PREFIX): getattr(self, name)
            for name, declaration in _declarations().items()
            if declaration.part is part
        }

    def ineffective(self) -> list[IneffectiveOption]:
        """Options with a value that has no effect on this job."""
        options: list[IneffectiveOption] = []
        for name, declaration in _declarations().items():
            unmet = next((it for it in declaration.conditions if not it.holds(self)), None)
            differs = getattr(self, name) != _FIELDS[name].default
            is_named = differs if self.on_command_line is None else name in self.on_command_line
            if unmet is not None and (differs or is_named):
                options.append(IneffectiveOption(name, declaration.name, unmet.text, is_named))
        return options

    def effective(self) -> IngestOptions:
        """The options, with defaults in place of values without effect: these are reported separately."""
        changes = {option.field: _FIELDS[option.field].default for option in self.ineffective()}
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class IneffectiveOption:
    """An option that has a value but no effect: an error if it is on the command line.

    If `coordlog.toml` or a variable sets it, it is ignored with a warning.
    """

    field: str
    name: str
    is_for: str
    is_on_command_line: bool

    @property
    def problem(self) -> str:
        """Text of the error or the warning."""
        if self.is_on_command_line:
            return f"{self.name} is set; it is for {self.is_for}"
        return f"{self.name} is set, and does nothing here: it is for {self.is_for}"


def click_options() -> list[click.Parameter]:
    """The options for the command line, in the order of the fields."""
    hints = get_type_hints(IngestOptions)
    return [
        _click_option(name, hints[name], declaration)
        for name, declaration in _declarations().items()
    ]


def _click_option(name: str, hint: object, declaration: _Declaration) -> click.Option:
    union = () if get_origin(hint) in (Literal, tuple) else get_args(hint)
    kind = next((member for member in union if member is not NoneType), hint)
    members = get_args(kind)
    is_list = get_origin(kind) is tuple
    if is_list:
        kind = members[0]
    elif members:
        kind = click.Choice(members)
    attributes: dict[str, Any] = {
        "type": kind,
        "is_flag": kind is bool,
        "multiple": is_list,
        "default": _FIELDS[name].default,
        **declaration.attributes,
    }
    if name.endswith(_SECONDS_SUFFIX):
        attributes["metavar"] = "SECONDS"
    return click.Option([*declaration.names, name], **attributes)


_FIELDS: Final[dict[str, Field[Any]]] = {field.name: field for field in fields(IngestOptions)}


@cache
def _declarations() -> dict[str, _Declaration]:
    """Declarations of the options, by the names of the fields."""
    declared = {name: entry.metadata.get(_Declaration) for name, entry in _FIELDS.items()}
    return {
        name: _named(name, declaration) for name, declaration in declared.items() if declaration
    }


def _named(name: str, declaration: _Declaration) -> _Declaration:
    """The declaration with the names that follow from the field's, unless it has others."""
    derived = "--" + name.removesuffix(_SECONDS_SUFFIX).replace("_", "-")
    return replace(declaration, names=declaration.names or (derived,))
