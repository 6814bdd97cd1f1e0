"""`coordlog ingest`: files or topics into Parquet or tables, exactly once."""

from __future__ import annotations

from functools import partial

import click
from click.core import ParameterSource

from coordlog.cli.config.sources import in_options
from coordlog.cli.ingest.options import IngestOptions, click_options

__all__ = ["ingest"]


@click.command(
    context_settings={"show_default": True},
    params=[
        click.Argument(["source"], metavar="SRC"),
        click.Argument(["destination"], metavar="DEST"),
        *click_options(),
    ],
)
@click.pass_context
def ingest(context: click.Context, /, **values: object) -> None:
    """Read the files or topics of SRC and write them to DEST as Parquet, each row exactly once.

    SRC is a file, a folder, a glob, an fsspec URL, or topics as kafka://HOST:PORT/TOPIC,TOPIC,
    without credentials (they come from the environment). DEST is a local folder of this job's own,
    or s3://BUCKET/PREFIX; or a table: iceberg://CATALOG/NAMESPACE.TABLE, delta+file:///PATH or
    delta+s3://BUCKET/PREFIX.

    After a kill at any time, the same command continues: from the last checkpoint, or with --batch
    from the finished files. Ctrl-C and SIGTERM stop it in order, a second one at once. Once the job
    has finished, the same command changes nothing; with --again it reads new files.
    """
    from coordlog.cli.ingest.run import run_ingest  # noqa: PLC0415, Arrow and the Kafka client; not for --help

    on_command_line = frozenset(
        name for name in values if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )
    options = IngestOptions(on_command_line=on_command_line, **values)  # type: ignore[arg-type]
    for option in options.ineffective():
        if not option.is_on_command_line:
            click.echo(f"warning: {option.problem}", err=True)
    status = run_ingest(options.effective(), partial(in_options, context, is_usage=False))
    if status:
        context.exit(status)
