"""What a batch can be written to: the port, and the one sink that the coordinator's commits go through."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from coordlog.errors import SinkError
from coordlog.log.interface import LogIdentity
from coordlog.schemas.payload import Payload
from coordlog.spark_integration.batches.ledger import BatchKey
from coordlog.spark_integration.batches.payloads import (
    BatchIntent,
    BatchOutcome,
    BatchPart,
    PartOutcome,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["At", "Batch", "BatchSink", "PartsSink", "nowhere"]

At = Callable[[str], None]
"""Told each place where a crash would leave something to be found."""


def nowhere(place: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch that is being written, by one driver."""

    job_id: str
    driver_id: str
    """Random, of one driver's life: in each name that is staged, so that no two drivers share one (clause M5)."""
    key: BatchKey
    sink: str
    """The name of the sink in the job."""


@runtime_checkable
class BatchSink(Protocol):
    """Where a batch becomes visible, in two steps. For a user to implement, too.

    Called in this order: `prepare` before anything else of a driver; for each batch `stage`, on the thread of the
    batch; once its intent is in the log `settle`, on a worker. After a crash the next driver calls `settle` for
    what has an intent and no outcome, before any batch; its `stage` was another process's. `settle` may run twice
    at once, in two drivers, and whatever the slower one does must change nothing that anybody sees.
    """

    @property
    def destination(self) -> str:
        """Where it writes, as the log is to have it: no credentials."""
        ...

    def prepare(self, job_id: str, spark: SparkSession) -> None:
        """See that it can be written to, and is no other job's. Raises SinkError."""
        ...

    def stage(self, frame: DataFrame, batch: Batch) -> BatchPart:
        """Write the batch where nobody sees it, to stay; what `settle` needs. Raises SinkError."""
        ...

    def settle(self, part: BatchPart, batch: Batch, *, at: At = nowhere) -> PartOutcome:
        """Look what of the part is done; do what is missing.

        A sink that can do it only with the rows themselves, which are gone after a crash, answers `is_done=False`,
        and so does one whose table refuses the rows, with the reason as `refused` in the details: the batch is then
        staged again when Spark replays it. Nothing of the part is visible then, nor ever will be.

        Raises:
            SinkError: It cannot be done; it is tried again, a few times.
        """
        ...

    def sweep(self, is_in_force: Callable[[], bool]) -> None:
        """Remove what drivers before this one have staged; no intent of theirs is open.

        What is to go must be listed first, `is_in_force` asked then, and only what was listed be removed, where it
        says so: another driver may have taken over, and have staged what this one does not know of.
        """
        ...


@runtime_checkable
class _Claiming(Protocol):
    """A sink that can tell which log writes to it."""

    def claim(self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]]) -> None:
        """Raise SinkError where another log does; hold from now on that this one does."""
        ...


class PartsSink:
    """Settles a batch's intent: each part by its sink, in their order."""

    def __init__(self, job_id: str, sinks: Mapping[str, BatchSink], at: At) -> None:
        self._job_id, self._sinks, self._at = job_id, sinks, at
        self.driver_id = ""
        """Set before anything is settled."""
        self.refusals: dict[str, str] = {}
        """By sink: why it has not taken its part of the newest batch that it was given."""

    def claim(self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]]) -> None:
        """Let each sink that can see that no other log writes to it. Before anything is appended."""
        for _, sink in sorted(self._sinks.items()):
            if isinstance(sink, _Claiming):
                sink.claim(job_id, log, former)

    def settle(self, intent: Payload) -> BatchOutcome:
        """See `coordlog.api.coordinator.Sink`."""
        assert isinstance(intent, BatchIntent), "intents are made by the coordinator"
        key = BatchKey(query_id=intent.query_id, batch_id=intent.batch_id, is_write=intent.is_write)
        parts: list[PartOutcome] = []
        for part in intent.parts:
            sink = self._sinks.get(part.sink)
            if sink is None:
                raise SinkError(
                    f"sink {part.sink!r}",
                    f"{key} has a part for it, and the job has no such sink any more",
                    "start it with this sink until that is done",
                )
            batch = Batch(job_id=self._job_id, driver_id=self.driver_id, key=key, sink=part.sink)
            self._at(f"before part {part.sink}")
            outcome = sink.settle(part, batch, at=self._at)
            parts.append(outcome)
            self.refusals.pop(part.sink, None)
            if not outcome.is_done:
                self.refusals[part.sink] = outcome.details.get("refused", "it has not the rows")
            self._at(f"after part {part.sink}")
        return BatchOutcome(
            query_id=intent.query_id,
            batch_id=intent.batch_id,
            is_write=intent.is_write,
            parts=parts,
        )
