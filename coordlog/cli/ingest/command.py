"""`coordlog ingest`: files or topics into Parquet, exactly once."""

from __future__ import annotations

import click
from click.core import ParameterSource

from coordlog.cli.ingest.compatibility import fitted, unfit
from coordlog.cli.ingest.options import IngestOptions
from coordlog.cli.log_access import SERVERS_VARIABLE, prefix_option
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

__all__ = ["ingest"]


@click.command(context_settings={"show_default": True})
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DEST")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["csv", "jsonl", "parquet", "text"]),
    default="csv",
    help="Of SRC; jsonl: an object on each line; text: a row for each line.",
)
@click.option(
    "--compression",
    type=click.Choice(["infer", "none", "gzip", "bz2", "zstd", "xz", "lz4"]),
    default="infer",
    help="Not Parquet: how files are packed; infer: as their names end.",
)
@click.option(
    "--watch",
    "is_watching",
    is_flag=True,
    help="Go on looking for new files, until Ctrl-C or --idle-timeout.",
)
@click.option(
    "--watch-interval",
    "watch_interval_s",
    type=float,
    default=WATCH_INTERVAL_S,
    metavar="SECONDS",
    help="--watch: between two listings; a file is read when two have found it the same.",
)
@click.option(
    "--idle-timeout",
    "idle_timeout_s",
    type=float,
    metavar="SECONDS",
    help="--watch: end when for so long no file was new.",
)
@click.option(
    "--listing-timeout",
    "listing_timeout_s",
    type=float,
    default=LISTING_TIMEOUT_S,
    metavar="SECONDS",
    help="How long tries to list SRC may fail one after the other before the job fails.",
)
@click.option(
    "--schemas",
    type=click.Choice(["one", "each"]),
    default="one",
    help="Whether all files have one schema, or each is read with its own: see --widen.",
)
@click.option(
    "--changed-by",
    type=click.Choice(["modified", "size"]),
    default="modified",
    help="What tells that a file has changed: its size and its time or etag, or the size alone.",
)
@click.option("--parallelism", type=int, default=4, metavar="N", help="How many subtasks.")
@click.option(
    "--checkpoint-interval",
    "checkpoint_interval_s",
    type=float,
    default=5.0,
    metavar="SECONDS",
    help="Between two checkpoints; what is read becomes visible with each.",
)
@click.option(
    "--batch",
    "is_batch",
    is_flag=True,
    help="No checkpoints: finished files stay finished, and all becomes visible at the end.",
)
@click.option(
    "--bootstrap-servers",
    envvar=SERVERS_VARIABLE,
    show_envvar=True,
    metavar="HOST:PORT",
    help="The Kafka broker; without it the shared local one, started where needed.",
)
@prefix_option
@click.option(
    "--job-id", metavar="JOB", help="Which job goes on; without it one of DEST's own is made."
)
@click.option(
    "--null-value",
    "null_values",
    multiple=True,
    metavar="WORD",
    help="CSV: stands for null; may be given several times. Without it: the empty field.",
)
@click.option(
    "--encoding", default="utf-8", metavar="NAME", help="Not Parquet: any that Python knows."
)
@click.option("--delimiter", default=",", metavar="CHARACTER", help="CSV: between two fields.")
@click.option(
    "--quote",
    default='"',
    metavar="CHARACTER",
    help="CSV: around a field; an empty text if quotes mean nothing.",
)
@click.option("--escape", metavar="CHARACTER", help="CSV: before a quote that is part of a field.")
@click.option(
    "--schema",
    metavar="DDL",
    help="All columns with their types, as in 'id bigint, name string'; without it they are found.",
)
@click.option(
    "--no-newlines-in-fields",
    is_flag=True,
    help="CSV: your word that no field holds a line end; large files are split then.",
)
@click.option(
    "--on-error",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    help="What becomes of a file that cannot be read, or a part of it, after the listing.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="GLOB",
    help="Files or folders that are left out, by name or by path below SRC; may be given several times.",
)
@click.option(
    "--partition-folders",
    type=click.Choice(["refuse", "ignore"]),
    default="refuse",
    help="Files in folders such as month=3 whose rows have no such column: refuse them, or ignore the folder.",
)
@click.option(
    "--allow-other-source",
    is_flag=True,
    help="Files: go on with another SRC than the history has; a file of another path is another one.",
)
@click.option(
    "--bounded/--unbounded",
    "is_bounded",
    default=True,
    help="Topics: up to where they end when the job begins, or without end.",
)
@click.option(
    "--starting",
    default="earliest",
    metavar="WHERE",
    help="Topics: earliest, latest, or a moment as in 2026-01-31T08:00:00Z.",
)
@click.option(
    "--decode",
    type=click.Choice(["utf8"]),
    help="Topics: values are text; without it they are bytes.",
)
@click.option(
    "--batch-rows",
    type=int,
    default=FILE_BATCH_ROWS,
    metavar="N",
    help="The most rows that are transformed at once; a checkpoint waits for as many.",
)
@click.option(
    "--transform",
    metavar="MODULE:FUNCTION",
    help="What each pyarrow.RecordBatch becomes: module:function or file.py:function.",
)
@click.option(
    "--partition-by",
    metavar="COLUMN,…",
    help="Columns whose values become folders of DEST: a=1/b=x/.",
)
@click.option(
    "--roll-bytes",
    type=int,
    default=ROLL_BYTES,
    metavar="N",
    help="About how long a file of DEST may be; each checkpoint ends all files anyway.",
)
@click.option("--roll-rows", type=int, metavar="N", help="The most rows of a file of DEST.")
@click.option(
    "--roll-seconds",
    type=float,
    metavar="SECONDS",
    help="How old a file may be when rows come for the next.",
)
@click.option(
    "--widen",
    "is_widening",
    is_flag=True,
    help="Write rows with new, missing or wider columns; without it they are refused.",
)
@click.option(
    "--master", metavar="URL", help="Spark's; without it all runs in this process's machine."
)
@click.option(
    "--endpoint-host",
    metavar="HOST",
    help="What tasks and clients reach the driver by; without it spark.driver.host.",
)
@click.option(
    "--endpoint-bind",
    metavar="ADDRESS",
    help="Where the driver listens, 0.0.0.0 for everywhere; without it --endpoint-host.",
)
@click.option(
    "--endpoint-ports",
    metavar="FIRST-LAST",
    help="The first free one of these ports is taken; without it any.",
)
@click.option(
    "--endpoint-tls",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    help="Encrypt what tasks and clients say; auto: where they may be on other machines.",
)
@click.option(
    "--restarts-max",
    type=int,
    default=RESTARTS_MAX,
    metavar="N",
    help="Failures within ten minutes; one more fails the job.",
)
@click.option(
    "--take-over", "is_take_over", is_flag=True, help="Take the place of a driver that lives."
)
@click.option(
    "--again",
    "is_again",
    is_flag=True,
    help="Open a job again that has finished, and read the files that have come since.",
)
@click.option(
    "--restore",
    type=click.Choice(["rollback", "resume"]),
    help="How to go on; without it rollback, with --batch resume.",
)
@click.option(
    "--from-checkpoint",
    type=click.IntRange(min=1),
    metavar="N",
    help="Go back to this checkpoint, for this start; `coordlog checkpoint JOB` lists them.",
)
@click.option(
    "--allow-non-restored-state",
    multiple=True,
    metavar="OPERATOR",
    help="Whose state may be left behind, where it is not in the chain any more.",
)
@click.option(
    "--log-timeout",
    "log_timeout_s",
    type=float,
    default=LOG_TIMEOUT_S,
    metavar="SECONDS",
    help="How long to wait for a broker that does not answer.",
)
@click.option(
    "--call-timeout",
    "call_timeout_s",
    type=float,
    default=CALL_TIMEOUT_S,
    metavar="SECONDS",
    help="How long the transform may take for one batch before its attempt is failed.",
)
@click.option(
    "--ack-timeout",
    "ack_timeout_s",
    type=float,
    default=ACK_TIMEOUT_S,
    metavar="SECONDS",
    help="How long an attempt that is in no call may take to ack an event before it is failed.",
)
@click.option(
    "--stop-timeout",
    "stop_timeout_s",
    type=float,
    default=STOP_TIMEOUT_S,
    metavar="SECONDS",
    help="How long a stop waits for its checkpoint before it stops without one.",
)
@click.option(
    "--payload-store",
    metavar="URL",
    help="Where what is too large for the log goes; without it COORDLOG_HOME, with a broker here.",
)
@click.option(
    "--payload-limit",
    "payload_limit_bytes",
    type=int,
    default=PAYLOAD_BYTES_MAX,
    metavar="BYTES",
    help="A payload above this goes there.",
)
@click.option(
    "-v", "--verbose", "is_verbose", is_flag=True, help="Show what Spark and the broker say."
)
@click.pass_context
def ingest(context: click.Context, /, **given: object) -> None:
    """Read the files or topics of SRC and write them to DEST as Parquet, each row exactly once.

    SRC is a file, a folder, a glob, an fsspec URL, or topics as kafka://HOST:PORT/TOPIC,TOPIC;
    without credentials (they come from the environment). DEST is a local folder of this job's own,
    or s3://BUCKET/PREFIX.

    Killed at any time, the same command goes on: from the last checkpoint, or with --batch from the
    files that are finished. Ctrl-C and SIGTERM stop it in order, a second one at once. Once the job
    has finished, the same command changes nothing; with --again it reads what is new.
    """
    from coordlog.cli.ingest.run import run_ingest  # noqa: PLC0415, Arrow and the Kafka client; not for --help

    # The options have the names of the fields.
    told = frozenset(
        name for name in given if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )
    options = IngestOptions(told=told, **given)  # type: ignore[arg-type]
    for one in unfit(options):
        if not one.is_told:
            click.echo(f"warning: {one.problem}", err=True)
    status = run_ingest(fitted(options))
    if status:
        context.exit(status)
