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
    help="Format of SRC; jsonl: an object on each line; text: a row for each line.",
)
@click.option(
    "--compression",
    type=click.Choice(["infer", "none", "gzip", "bz2", "zstd", "xz", "lz4"]),
    default="infer",
    help="Not Parquet: compression of the files; infer: by the ends of their names.",
)
@click.option(
    "--watch",
    "is_watching",
    is_flag=True,
    help="Keep looking for new files, until Ctrl-C or --idle-timeout.",
)
@click.option(
    "--watch-interval",
    "watch_interval_s",
    type=float,
    default=WATCH_INTERVAL_S,
    metavar="SECONDS",
    help="--watch: time between two listings; a file is read if two listings find it unchanged.",
)
@click.option(
    "--idle-timeout",
    "idle_timeout_s",
    type=float,
    metavar="SECONDS",
    help="--watch: end after this time without a new file.",
)
@click.option(
    "--listing-timeout",
    "listing_timeout_s",
    type=float,
    default=LISTING_TIMEOUT_S,
    metavar="SECONDS",
    help="Time after which the job fails, if no listing of SRC succeeds.",
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
    help="Sign of a changed file: its size and its time or etag, or the size alone.",
)
@click.option("--parallelism", type=int, default=4, metavar="N", help="Number of subtasks.")
@click.option(
    "--checkpoint-interval",
    "checkpoint_interval_s",
    type=float,
    default=5.0,
    metavar="SECONDS",
    help="Time between two checkpoints; rows become visible with each checkpoint.",
)
@click.option(
    "--batch",
    "is_batch",
    is_flag=True,
    help="No checkpoints: finished files stay finished, and all rows become visible at the end.",
)
@click.option(
    "--bootstrap-servers",
    envvar=SERVERS_VARIABLE,
    show_envvar=True,
    metavar="HOST:PORT",
    help="The Kafka broker; by default the shared local one, started if needed.",
)
@prefix_option
@click.option(
    "--job-id", metavar="JOB", help="Id of the job; by default an id is derived from DEST."
)
@click.option(
    "--null-value",
    "null_values",
    multiple=True,
    metavar="WORD",
    help="CSV: text that means null, by default the empty field; may be given several times.",
)
@click.option(
    "--encoding", default="utf-8", metavar="NAME", help="Not Parquet: encoding, any of Python's."
)
@click.option(
    "--delimiter", default=",", metavar="CHARACTER", help="CSV: character between two fields."
)
@click.option(
    "--quote",
    default='"',
    metavar="CHARACTER",
    help="CSV: character around a field; empty if quotes have no meaning.",
)
@click.option(
    "--escape", metavar="CHARACTER", help="CSV: character before a quote that is part of a field."
)
@click.option(
    "--schema",
    metavar="DDL",
    help="All columns with their types, as in 'id bigint, name string'; by default they are inferred.",
)
@click.option(
    "--no-newlines-in-fields",
    is_flag=True,
    help="CSV: assert that no field has a line end, so that large files can be split.",
)
@click.option(
    "--on-error",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    help="Fail, or skip a file or a part of it, if it cannot be read after the listing.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="GLOB",
    help="Files or folders to leave out, by name or by path below SRC; may be given several times.",
)
@click.option(
    "--partition-folders",
    type=click.Choice(["refuse", "ignore"]),
    default="refuse",
    help="Refuse files in folders such as month=3 if their rows have no such column, or ignore the folder.",
)
@click.option(
    "--allow-other-source",
    is_flag=True,
    help="Files: accept another SRC than that of the history; a file with another path is another file.",
)
@click.option(
    "--bounded/--unbounded",
    "is_bounded",
    default=True,
    help="Topics: read up to their ends at the job's beginning, or without end.",
)
@click.option(
    "--starting",
    default="earliest",
    metavar="WHERE",
    help="Topics: begin at earliest, latest, or a time as in 2026-01-31T08:00:00Z.",
)
@click.option(
    "--decode",
    type=click.Choice(["utf8"]),
    help="Topics: read values as text; by default they are bytes.",
)
@click.option(
    "--batch-rows",
    type=int,
    default=FILE_BATCH_ROWS,
    metavar="N",
    help="Maximum rows of a batch for the transform; a checkpoint waits for the current batch.",
)
@click.option(
    "--transform",
    metavar="MODULE:FUNCTION",
    help="Function applied to each pyarrow.RecordBatch: module:function or file.py:function.",
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
    help="Approximate maximum bytes of a file of DEST; each checkpoint ends all files anyway.",
)
@click.option("--roll-rows", type=int, metavar="N", help="Maximum rows of a file of DEST.")
@click.option(
    "--roll-seconds",
    type=float,
    metavar="SECONDS",
    help="Maximum age of a file of DEST at the arrival of further rows.",
)
@click.option(
    "--widen",
    "is_widening",
    is_flag=True,
    help="Write rows with new, missing or wider columns; by default they are refused.",
)
@click.option(
    "--master", metavar="URL", help="Master URL of Spark; by default Spark runs on this machine."
)
@click.option(
    "--endpoint-host",
    metavar="HOST",
    help="Host by which tasks and clients reach the driver; by default spark.driver.host.",
)
@click.option(
    "--endpoint-bind",
    metavar="ADDRESS",
    help="Address on which the driver listens, 0.0.0.0 for all; by default --endpoint-host.",
)
@click.option(
    "--endpoint-ports",
    metavar="FIRST-LAST",
    help="Ports of which the driver takes the first free one; by default any port.",
)
@click.option(
    "--endpoint-tls",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    help="Encrypt the connections of tasks and clients; auto: if they may be on other machines.",
)
@click.option(
    "--restarts-max",
    type=int,
    default=RESTARTS_MAX,
    metavar="N",
    help="Number of failures allowed within ten minutes; one more fails the job.",
)
@click.option(
    "--take-over", "is_take_over", is_flag=True, help="Take the place of a driver that runs."
)
@click.option(
    "--again",
    "is_again",
    is_flag=True,
    help="Open a finished job again, and read the files that are new since.",
)
@click.option(
    "--restore",
    type=click.Choice(["rollback", "resume"]),
    help="Kind of restore; by default rollback, with --batch resume.",
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
    help="Operator whose state may be dropped, if it is no longer in the chain.",
)
@click.option(
    "--log-timeout",
    "log_timeout_s",
    type=float,
    default=LOG_TIMEOUT_S,
    metavar="SECONDS",
    help="Time to wait for a broker that does not answer.",
)
@click.option(
    "--call-timeout",
    "call_timeout_s",
    type=float,
    default=CALL_TIMEOUT_S,
    metavar="SECONDS",
    help="Time after which a call of the transform for one batch fails its attempt.",
)
@click.option(
    "--ack-timeout",
    "ack_timeout_s",
    type=float,
    default=ACK_TIMEOUT_S,
    metavar="SECONDS",
    help="Time after which an event without an ack fails its attempt, if that is in no call.",
)
@click.option(
    "--stop-timeout",
    "stop_timeout_s",
    type=float,
    default=STOP_TIMEOUT_S,
    metavar="SECONDS",
    help="Time after which a stop gives up its checkpoint and stops without one.",
)
@click.option(
    "--history",
    default="forever",
    metavar="AGE",
    help="Age up to which records stay in the job's log, as in 30d or 12h; older ones are removed while it runs.",
)
@click.option(
    "--history-archive",
    metavar="FOLDER",
    help="--history: folder for files of the removed records; by default they are not archived.",
)
@click.option(
    "--payload-store",
    metavar="URL",
    help="Store of payloads too large for the log; by default COORDLOG_HOME, if the broker is local.",
)
@click.option(
    "--payload-limit",
    "payload_limit_bytes",
    type=int,
    default=PAYLOAD_BYTES_MAX,
    metavar="BYTES",
    help="Size above which a payload goes to the payload store.",
)
@click.option(
    "-v", "--verbose", "is_verbose", is_flag=True, help="Show the output of Spark and the broker."
)
@click.pass_context
def ingest(context: click.Context, /, **values: object) -> None:
    """Read the files or topics of SRC and write them to DEST as Parquet, each row exactly once.

    SRC is a file, a folder, a glob, an fsspec URL, or topics as kafka://HOST:PORT/TOPIC,TOPIC,
    without credentials (they come from the environment). DEST is a local folder of this job's own,
    or s3://BUCKET/PREFIX.

    After a kill at any time, the same command goes on: from the last checkpoint, or with --batch
    from the finished files. Ctrl-C and SIGTERM stop it in order, a second one at once. Once the job
    has finished, the same command changes nothing; with --again it reads new files.
    """
    from coordlog.cli.ingest.run import run_ingest  # noqa: PLC0415, Arrow and the Kafka client; not for --help

    # The options have the names of the fields.
    on_command_line = frozenset(
        name for name in values if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )
    options = IngestOptions(told=on_command_line, **values)  # type: ignore[arg-type]
    for option in unfit(options):
        if not option.is_chosen:
            click.echo(f"warning: {option.problem}", err=True)
    status = run_ingest(fitted(options))
    if status:
        context.exit(status)
