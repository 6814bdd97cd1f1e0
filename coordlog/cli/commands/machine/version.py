"""`coordlog --version`: versions of coordlog, Python and libraries, for bug reports."""

from __future__ import annotations

import platform
from importlib import metadata

import click

__all__ = ["print_version"]

_BESIDE = ("pyspark", "kafka-python")


def print_version(context: click.Context, _option: click.Parameter, is_asked: bool) -> None:  # noqa: FBT001, click's
    """Print one line for each version, without imports of the libraries."""
    if not is_asked or context.resilient_parsing:
        return
    click.echo(f"coordlog {_version_of('coordlog')}")
    click.echo(f"Python {platform.python_version()}")
    for name in _BESIDE:
        click.echo(f"{name} {_version_of(name)}")
    context.exit()


def _version_of(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "is not installed"
