"""`coordlog jars`: the setting that lets any Spark session read a history."""

from __future__ import annotations

import click

from coordlog.log.broker.jars import JarSet, resolve

__all__ = ["jars"]


_HELP = """Print the jars of Spark's Kafka source and Avro functions, as a value of `spark.jars`.

Missing jars are fetched, once.

\b
spark-submit --jars "$(coordlog jars)" ...
SparkSession.builder.config("spark.jars", "<what it prints>")
"""


@click.command(help=_HELP)
def jars() -> None:
    """Print the jars that a Spark session needs to read a history."""
    paths = resolve(JarSet.SPARK, progress=lambda line: click.echo(line, err=True))
    click.echo(",".join(map(str, paths)))
