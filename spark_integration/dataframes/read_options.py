"""Options of `spark.read.format("coordlog")` and of `.load(path)`: each is taken, or refused by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from coordlog.errors import OptionError
from coordlog.spark_integration.dataframes.ticket import Ticket

__all__ = ["with_read_options"]

_COUNTS: Final = {"partitions": 10_000, "splits_per_batch": 1_000_000}
"""Options of a single query that are numbers from 1, with their highest value; `coordinated` has the default."""

_KNOWN: Final = ("job", "path", *_COUNTS)
_OF_THE_SOURCE: Final = (
    "options of the source belong to it: FileSource(…) or KafkaSource(…) in coordinated(…)"
)


def with_read_options(ticket: Ticket, options: Mapping[str, str]) -> Ticket:
    """The service as one query uses it.

    Args:
        ticket: The service that the query's `job` names.
        options: Of the query, as Spark has them: without regard to case.

    Raises:
        OptionError: An option is not known here, or its value cannot be meant.
    """
    given = {name.lower(): value for name, value in options.items()}
    for name, value in sorted(given.items()):
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            known = ", ".join(map(repr, _KNOWN))
            raise OptionError(name, value, f"one of {known}{hint} ({_OF_THE_SOURCE})")
    _check_path(ticket, given.get("path"))
    partitions = _count(given, "partitions")
    splits_max = _count(given, "splits_per_batch")
    return replace(
        ticket,
        partitions=ticket.partitions if partitions is None else partitions,
        splits_max=ticket.splits_max if splits_max is None else splits_max,
    )


def _check_path(ticket: Ticket, path: str | None) -> None:
    """A path is taken if it is that of the service's source: no other one is read."""
    if path is None or path in ticket.locations:
        return
    reads = ticket.locations[-1] if ticket.locations else "no path"
    raise OptionError(
        "path",
        path,
        f"left out, or {reads!r}: that is what the service of job {ticket.job_id} reads; for another path start "
        "another service, coordinated(spark, JOB, FileSource(path))",
    )


def _count(given: Mapping[str, str], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not value.isdecimal() or not 1 <= int(value) <= _COUNTS[name]:
        raise OptionError(name, value, f"a number between 1 and {_COUNTS[name]:,}")
    return int(value)
