"""`coordlog cache`: the removal of what can be fetched again."""

from __future__ import annotations

import click

from coordlog.errors import UsageError
from coordlog.log.broker.jar_cache import CacheContent, cache_content, clear_cache
from coordlog.log.broker.shared import shared_status

__all__ = ["cache"]


class _CacheInUseError(UsageError):
    """The shared broker runs from the jars in the cache."""

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(bootstrap_servers)
        self.bootstrap_servers = bootstrap_servers

    def __str__(self) -> str:
        return (
            f"the shared broker at {self.bootstrap_servers} runs from the jars in the cache; "
            "end it with `coordlog broker stop`, then do the same again"
        )


@click.group()
def cache() -> None:
    """Clear what can be fetched again: the jars of Kafka and of Spark's Kafka source."""


@cache.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
def clear(*, yes: bool) -> None:
    """Remove the jars that have been fetched; the next command that needs them fetches them again.

    What is in the cache and is not ours stays. End jobs first: their Spark reads these files.
    """
    found = cache_content()
    for one in found.strangers:
        click.echo(f"not ours, and stays: {one}", err=True)
    if not found.entries:
        click.echo(f"there is nothing to remove in {found.folder}")
        return
    running = shared_status()
    if running.running:
        raise _CacheInUseError(running.bootstrap_servers or "")
    for entry in found.entries:
        click.echo(f"{entry.size_bytes:>14,} bytes  {entry.path}")
    if not yes:
        click.confirm(f"Remove {_total(found)}?", abort=True)
    gone = clear_cache()
    click.echo(f"removed {sum(one.size_bytes for one in gone):,} bytes from {found.folder}")


def _total(found: CacheContent) -> str:
    return f"these {sum(one.size_bytes for one in found.entries):,} bytes"
