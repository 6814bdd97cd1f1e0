"""`coordlog cache`: removal of files that can be fetched again."""

from __future__ import annotations

from collections.abc import Sequence

import click

from coordlog.cli.console import print_json
from coordlog.cli.table_output import result_option
from coordlog.errors import UsageError
from coordlog.log.broker.jar_cache import CacheContent, CacheEntry, cache_content, clear_cache
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
            "end it with `coordlog broker stop`, then run the same command again"
        )


@click.group()
def cache() -> None:
    """Clear files that can be fetched again: the jars of Kafka and of Spark's Kafka source."""


@cache.command()
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@result_option
def clear(*, yes: bool, as_json: bool) -> None:
    """Remove the fetched jars; the next command that needs them fetches them again.

    Other files in the cache stay. End jobs first: their Spark reads the jars.
    """
    content = cache_content()
    for path in content.strangers:
        click.echo(f"not of coordlog, and stays: {path}", err=True)
    if not content.entries:
        if as_json:
            _print_removed(content, ())
        else:
            click.echo(f"there is nothing to remove in {content.folder}")
        return
    status = shared_status()
    if status.running:
        raise _CacheInUseError(status.bootstrap_servers or "")
    for entry in content.entries:
        click.echo(f"{entry.size_bytes:>14,} bytes  {entry.path}", err=as_json)
    if not yes:
        click.confirm(f"Remove {_total(content)}?", abort=True, err=as_json)
    removed = clear_cache()
    if as_json:
        _print_removed(content, removed)
        return
    click.echo(
        f"removed {sum(entry.size_bytes for entry in removed):,} bytes from {content.folder}"
    )


def _print_removed(content: CacheContent, removed: Sequence[CacheEntry]) -> None:
    print_json(
        {
            "status": "cleared" if removed else "nothing to remove",
            "folder": str(content.folder),
            "removed": [str(entry.path) for entry in removed],
            "byte_count": sum(entry.size_bytes for entry in removed),
        }
    )


def _total(content: CacheContent) -> str:
    return f"these {sum(entry.size_bytes for entry in content.entries):,} bytes"
