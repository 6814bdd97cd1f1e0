"""Queries of the leaders of partitions that return nothing: the rest of the cluster may answer while one does not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from coordlog.errors import SourceError
from coordlog.limits import KAFKA_QUIET_S, KAFKA_TIMEOUT_S
from coordlog.spark_integration.kafka.cluster import Partition, named
from coordlog.spark_integration.kafka.consumer import Background

__all__ = ["EndsOf", "LeaderWatch"]

_NAMED_MAX = 10

EndsOf = Callable[[Sequence[Partition]], Mapping[Partition, int]]
"""Queries the leaders of these partitions for their ends. Blocks, within a bound. Raises SourceError."""


class LeaderWatch:
    """Queries the leaders of quiet partitions, all together, in the background.

    The client raises nothing while a partition has no leader, or its leader cannot be reached; and an answer without
    records does not show.

    Args:
        ends_of: The query.
        servers: Addresses of the brokers, for messages.
    """

    def __init__(self, ends_of: EndsOf, servers: str) -> None:
        self._ends_of, self._servers = ends_of, servers
        self._answered_at: dict[Partition, float] = {}
        self._query: Background[Mapping[Partition, int]] | None = None
        self._queried: list[Partition] = []
        self._silent_since: float | None = None
        """Time at which a query failed first after the last answer; None if the last query was answered."""

    def answered(self, partitions: Collection[Partition], now: float) -> None:
        """These partitions have returned records at `now`, monotonic seconds."""
        self._answered_at.update(dict.fromkeys(partitions, now))

    def check(self, partitions: Collection[Partition], now: float) -> None:
        """Query those of these partitions that have been quiet for long.

        Raises:
            SourceError: A leader has not answered for `KAFKA_TIMEOUT_S`.
        """
        if self._query is not None:
            if self._query.is_done:
                query, self._query = self._query, None
                self._take(query, now)
            return
        quiet = [
            partition
            for partition in sorted(partitions)
            if now - self._answered_at.setdefault(partition, now) >= KAFKA_QUIET_S
        ]
        if quiet:
            self._queried = quiet
            self._query = Background(lambda: self._ends_of(quiet), too_late=lambda _ends: None)

    def close(self) -> None:
        """Abandon the query."""
        query, self._query = self._query, None
        if query is not None:
            query.abandon()

    def _take(self, query: Background[Mapping[Partition, int]], now: float) -> None:
        self.answered(self._queried, now)  # so the next query comes later, whatever the answer is
        try:
            query.result()
        except SourceError as error:
            if self._silent_since is None:
                self._silent_since = now
            if now - self._silent_since >= KAFKA_TIMEOUT_S:
                raise SourceError(
                    f"the leader of partition {_listed(self._queried)} at {self._servers}",
                    error.problem,
                    error.next_step,
                ) from error
        else:
            self._silent_since = None


def _listed(partitions: Sequence[Partition]) -> str:
    names = [named(partition) for partition in partitions]
    if len(names) > _NAMED_MAX:
        return f"{', '.join(names[:_NAMED_MAX])} or {len(names) - _NAMED_MAX} others"
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
