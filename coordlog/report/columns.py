"""Tables by column, and texts by number: the compact form of the facts in a document."""

from __future__ import annotations

from collections.abc import Sequence

from coordlog.projections.tables.payload_json import Json

__all__ = ["Table", "Texts"]


class Texts:
    """Texts that occur often, each once; a table has their numbers."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str | None) -> int | None:
        """Number of a text, from 0 in the order of first use; None for None."""
        if text is None:
            return None
        return self._numbers.setdefault(text, len(self._numbers))

    def json(self) -> list[Json]:
        """All texts, by number."""
        return list(self._numbers)


class Table:
    """Rows of one kind, by column.

    Args:
        columns: Names of the columns, in the order of the values of `add`.
    """

    def __init__(self, *columns: str) -> None:
        self._columns: dict[str, list[Json]] = {name: [] for name in columns}
        self._lists = list(self._columns.values())

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._lists[0])

    def add(self, *values: Json) -> int:
        """Add a row; returns its number, from 0."""
        for column, value in zip(self._lists, values, strict=True):
            column.append(value)
        return len(self._lists[0]) - 1

    def put(self, row: int, column: str, value: Json) -> None:
        """Replace a value of an earlier row."""
        self._columns[column][row] = value

    def column(self, name: str) -> Sequence[Json]:
        """All values of one column."""
        return self._columns[name]

    def json(self) -> dict[str, Json]:
        """The table: a list of values for each column."""
        return dict(self._columns)
