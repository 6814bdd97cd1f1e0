"""Options of `spark.read.format("coordlog")` and of `.load(path)`: each is applied, or refused with its name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from coordlog.errors import OptionError
from coordlog.spark_integration.dataframes.ticket import Ticket

__all__ = ["with_read_options"]

_COUNTS: Final = {"partitions": 10_000, "splits_per_batch": 1_000_000}
"""Options of a query that are numbers from 1, with their highest values; `coordinated` has the defaults."""

_BAD_ROWS: Final = "bad_rows"
_WITHOUT_PLACE: Final = ("fail", "skip")
"""Values of `bad_rows` for which a reader emits no rejects."""
_KNOWN: Final = ("job", "path", _BAD_ROWS, *_COUNTS)
_OF_THE_SOURCE: Final = (
    "options of the source belong to it: FileSource(…) or KafkaSource(…) in coordinated(…)"
)


def with_read_options(ticket: Ticket, options: Mapping[str, str]) -> Ticket:
    """The ticket of a service with the options of one query.

    Args:
        ticket: Ticket of the service of the query's `job`.
        options: Options of the query, without regard to case, as in Spark.

    Raises:
        OptionError: An option is unknown, or its value is invalid.
    """
    values = {name.lower(): value for name, value in options.items()}
    for name, value in sorted(values.items()):
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            known = ", ".join(map(repr, _KNOWN))
            raise OptionError(name, value, f"one of {known}{hint} ({_OF_THE_SOURCE})")
    _check_path(ticket, values.get("path"))
    ticket = _with_bad_rows(ticket, values.get(_BAD_ROWS))
    partitions = _count(values, "partitions")
    splits_max = _count(values, "splits_per_batch")
    return replace(
        ticket,
        partitions=ticket.partitions if partitions is None else partitions,
        splits_max=ticket.splits_max if splits_max is None else splits_max,
    )


def _with_bad_rows(ticket: Ticket, value: str | None) -> Ticket:
    """The ticket with the reader for a query's own treatment of bad rows."""
    if value is None:
        return ticket
    if value not in ticket.readers:
        known = ", ".join(map(repr, ticket.readers)) or "left out"
        raise OptionError(
            _BAD_ROWS,
            value,
            f"one of {known}: a folder is that of the service's source, which has made it ready",
        )
    rejects = None if value in _WITHOUT_PLACE else ticket.rejects
    return replace(ticket, create_reader=ticket.readers[value], rejects=rejects)


def _check_path(ticket: Ticket, path: str | None) -> None:
    """Refuse a path that is not that of the service's source: the service reads no other."""
    if path is None or path in ticket.locations:
        return
    reads = ticket.locations[-1] if ticket.locations else "no path"
    raise OptionError(
        "path",
        path,
        f"left out, or {reads!r}: that is what the service of job {ticket.job_id} reads; for another path start "
        "another service, coordinated(spark, JOB, FileSource(path))",
    )


def _count(values: Mapping[str, str], name: str) -> int | None:
    value = values.get(name)
    if value is None:
        return None
    if not value.isdecimal() or not 1 <= int(value) <= _COUNTS[name]:
        raise OptionError(name, value, f"a number between 1 and {_COUNTS[name]:,}")
    return int(value)
