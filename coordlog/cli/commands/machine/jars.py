"""`coordlog jars`: the setting that lets any Spark session read a history."""

from __future__ import annotations

import click

from coordlog.log.broker.jars import JarSet, resolve

__all__ = ["jars"]


_HELP = """Print the jars of Spark's Kafka source and Avro functions, as a value of `spark.jars`.

Missing jars are fetched, once. With `delta` or `iceberg`: the jars for such tables.

\b
spark-submit --jars "$(coordlog jars)" ...
SparkSession.builder.config("spark.jars", "<what it prints>")
"""


@click.command(help=_HELP)
@click.argument("kind", type=click.Choice(["history", "delta", "iceberg"]), default="history")
def jars(kind: str) -> None:
    """Print the jars that a Spark session needs to read a history, or Delta or Iceberg tables."""
    jar_set = JarSet.SPARK if kind == "history" else JarSet(kind)
    paths = resolve(jar_set, progress=lambda line: click.echo(line, err=True))
    click.echo(",".join(map(str, paths)))
