"""Statements of a test to a database, past the sink under test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["executed"]


def executed(connect: Callable[[], Any], statement: str) -> list[tuple[Any, ...]]:
    """Execute a statement on a connection of its own; its rows, if it has any."""
    connection = connect()
    try:
        cursor = connection.cursor()
        cursor.execute(statement)
        rows = cursor.fetchall() if cursor.description else []
        connection.commit()
    finally:
        connection.close()
    return [tuple(row) for row in rows]
