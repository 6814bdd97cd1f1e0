"""Assignment of partitions to subtasks: evenly, at once, without requests."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Sequence
from functools import partial
from typing import cast

from coordlog.coordinators.enumerator import EnumeratorContext, SplitEnumerator
from coordlog.coordinators.listing import ListingTries, listed_or_why_not
from coordlog.errors import SourceError
from coordlog.projections.splits.fold import Assigned
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.source_types import EnumeratorState, ListingFailed, Split, SplitsDiscovered
from coordlog.spark_integration.kafka.cluster import Partition
from coordlog.spark_integration.kafka.discovery import Discovery
from coordlog.spark_integration.kafka.payloads import (
    UNBOUNDED,
    KafkaListing,
    KafkaSplit,
    KafkaSplitsReturned,
)
from coordlog.spark_integration.kafka.state_bytes import LISTED, has_listed

__all__ = ["KafkaEnumerator"]

_log = logging.getLogger(__name__)

_SPLIT = payload_type_of(KafkaSplit)


class KafkaEnumerator(SplitEnumerator):
    """Finds partitions and assigns each to the subtask with the fewest unfinished splits.

    A subtask whose reader is not ready yet has its share reserved, and gets it when it is ready.
    Bounded: one listing, after which each reader gets the signal that no more splits come.
    Unbounded: a listing every `interval_s`, and no such signal. A bounded job that is opened again
    after its end reads the records since then.
    """

    def __init__(
        self,
        context: EnumeratorContext,
        kept: bytes | None,
        *,
        discovery: Discovery,
        interval_s: float,
    ) -> None:
        self._context, self._discovery, self._interval_s = context, discovery, interval_s
        self._has_listed = has_listed(kept)
        self._tries = ListingTries(context)

    def start(self) -> None:
        """List the cluster, unless an earlier listing is complete."""
        context, bounded = self._context, self._discovery.is_bounded
        for split in self._splits():
            if (split.end != UNBOUNDED) != bounded:
                was = "has no end" if split.end == UNBOUNDED else f"ends at {split.end}"
                context.fail_job(
                    SourceError(
                        f"source {context.operator_id!r}",
                        f"split {split.split_id} of its history {was}, and the source is now "
                        f"{'bounded' if bounded else 'unbounded'}",
                        "set it as its first run had it, or use another job id",
                    ),
                    is_final=True,
                )
                return
        if not context.is_batch or bounded:
            if not context.state.is_discovery_complete:
                self._list()
            return
        context.fail_job(
            SourceError(
                f"source {context.operator_id!r}",
                "it is unbounded, and a batch job ends",
                "make it bounded, or run the job with checkpoints",
            ),
            is_final=True,
        )

    def handle_split_request(self, subtask: int, finished_split_id: str | None) -> None:
        """Assign waiting splits; readers of this source send no requests."""
        self._assign()

    def add_splits_back(self, splits: Sequence[Split], subtask: int) -> None:
        """Assign these splits again."""
        self._assign()

    def add_reader(self, subtask: int) -> None:
        """Assign the reader its share."""
        self._assign()

    def handle_source_event(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Record the rest of splits that a reader returned; a repeated event changes nothing."""
        assert isinstance(event, KafkaSplitsReturned), "readers of this source send no other"
        known = self._context.state.splits
        new = [split for split in event.splits if split.split_id not in known]
        if new:
            self._context.record(SplitsDiscovered(splits=new, is_complete=False))
        self._assign()

    def snapshot_state(self) -> bytes | None:
        """Whether a listing has been whole."""
        return LISTED if self._has_listed else None

    def _splits(self) -> list[KafkaSplit]:
        """All known splits, in the order of discovery."""
        known = self._context.state.in_order()
        return [cast("KafkaSplit", _SPLIT.decode(split.content)) for split in known]

    def _list(self) -> None:
        state = self._context.state
        known: dict[Partition, str] = {}
        read_up_to: dict[Partition, int] = {}
        for ordinal, split in enumerate(self._splits()):
            partition = (split.topic, split.partition)
            known[partition] = split.topic_id
            # If a job is opened again after its end, it continues at the ends of its splits.
            if ordinal < state.listed_before and split.end != UNBOUNDED:
                read_up_to[partition] = split.end
            else:
                read_up_to.pop(partition, None)
        listing = partial(
            self._discovery.listing,
            known,
            is_first=not self._has_listed,
            read_up_to=read_up_to,
        )
        self._context.call_async(partial(listed_or_why_not, listing), self._listed)

    def _listed(self, result: Payload | None, error: str | None) -> None:
        context, discovery = self._context, self._discovery
        if error is not None:
            self._tries.give_up(error)
            return
        if isinstance(result, ListingFailed):
            self._listing_failed(result)
            return
        assert isinstance(result, KafkaListing), "`listing` returns no other type"
        self._tries.succeeded()
        if result.problem:
            problem = SourceError(result.where, result.problem, result.next_step)
            context.fail_job(problem, is_final=True)
            return
        is_complete = discovery.is_bounded and result.is_whole
        if result.splits or is_complete:
            context.record(SplitsDiscovered(splits=result.splits, is_complete=is_complete))
        if result.is_whole and not self._has_listed:
            self._has_listed = True
            # In the same turn as the splits: else, after the death of a driver between the two, new
            # partitions would be taken for those of the first listing.
            context.record(EnumeratorState(content=LISTED))
        self._assign()
        if not result.is_whole:
            self._list()
        elif not is_complete:
            context.schedule(self._interval_s, self._list)

    def _listing_failed(self, failed: ListingFailed) -> None:
        """Try the first listing again, within bounds; a later one may fail while readers continue."""
        context = self._context
        if not self._has_listed:
            self._tries.failed(failed, self._list)
            return
        _log.warning(
            "source=%s: looking for partitions failed: %s", context.operator_id, failed.problem
        )
        context.schedule(self._interval_s, self._list)

    def _assign(self) -> None:
        """Assign each unassigned split to the subtask with the fewest unfinished splits."""
        context = self._context
        state, readers = context.state, context.registered_readers()
        loads: list[tuple[int, int]] = []
        for subtask in range(context.current_parallelism()):
            reader = state.reader(subtask)
            if not reader.is_completed and reader.no_more_sequence is None:
                unfinished = [
                    split_id
                    for split_id in reader.splits
                    if isinstance(state.splits.place(split_id), Assigned)
                ]
                loads.append((len(unfinished), subtask))
        heapq.heapify(loads)
        shares: dict[int, list[Split]] = {}
        for split in context.unassigned_splits() if loads else ():
            count, subtask = loads[0]
            heapq.heapreplace(loads, (count + 1, subtask))
            if subtask in readers:
                shares.setdefault(subtask, []).append(split)
        context.assign_splits(shares)
        if self._discovery.is_bounded and context.state.is_discovery_complete:
            for subtask in readers:
                context.signal_no_more_splits(subtask)
