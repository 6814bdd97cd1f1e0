"""The subtask's side of a Kafka source: reads its partitions, and keeps the position in each."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal, cast

import pyarrow as pa

from coordlog.api.operator import (
    OperatorContext,
    Poll,
    PollStatus,
    SkippedSplit,
    SourceReader,
)
from coordlog.errors import SourceError
from coordlog.limits import KAFKA_GAP_S, KAFKA_METADATA_S, KAFKA_TIMEOUT_S, SIFTED_ROWS
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.spark_integration.files.formats.bad_rows import placed
from coordlog.spark_integration.kafka.bad_records import BadRecord, rejects_batch
from coordlog.spark_integration.kafka.cluster import Cluster, Partition, named
from coordlog.spark_integration.kafka.consumer import (
    Background,
    Consumer,
    OpenConsumer,
    connect,
    nothing_from,
    position_gone,
)
from coordlog.spark_integration.kafka.discovery import recreated, renamed, split_of
from coordlog.spark_integration.kafka.leaders import EndsOf, LeaderWatch
from coordlog.spark_integration.kafka.payloads import (
    UNBOUNDED,
    KafkaReaderState,
    KafkaSplit,
    KafkaSplitsReturned,
)
from coordlog.spark_integration.kafka.progress import Fetched, Progress
from coordlog.spark_integration.kafka.rows import Received, RowFormat
from coordlog.spark_integration.kafka.state_bytes import decode_state, encode_state

__all__ = ["KafkaReader", "KafkaReaderOptions", "NothingFrom"]

_log = logging.getLogger(__name__)

_SPLIT = payload_type_of(KafkaSplit)

_CHECK_S: Final = 1.0
"""Seconds between two checks of positions and topic ids while rows come."""
_RETRY_S: Final = 0.5

NothingFrom = Callable[[Partition, int], int | None]
"""See `nothing_from`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaReaderOptions:
    """Options of a reader. Pickles."""

    cluster: Cluster
    rows: RowFormat
    batch_rows: int
    bad_rows: Literal["fail", "skip", "emit"] = "fail"
    """Treatment of records that cannot be decoded. `fail`: the attempt fails. `skip`: they are counted and left out.
    `emit`: they are also emitted as batches of rejects."""
    places_rows: bool = False
    """Whether batches have the place of their rows, for an operator that leaves out some of them."""


class KafkaReader(SourceReader):
    """Reads all of its partitions through one consumer, each from the first offset not yet emitted.

    Its state is the next offset of each split; the consumer has no group, and commits nothing. In
    batch it reads one split after the other: there the end of a split hands over all rows since
    the end of the split before.

    If the job is restored with more subtasks than before, the reader returns a part of its splits
    without an end, for the new subtasks: each such split ends at its position, and the rest
    becomes a new split.
    """

    emits_own_memory = True

    def __init__(
        self,
        options: KafkaReaderOptions,
        *,
        open_consumer: OpenConsumer | None = None,
        nothing_from: NothingFrom | None = None,
        ends_of: EndsOf | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._monotonic = options, monotonic
        self._open_consumer = open_consumer or partial(connect, options.cluster)
        self._is_closed = threading.Event()
        self._nothing_from = nothing_from or self._query_nothing_from
        cluster = options.cluster
        self._leaders = LeaderWatch(ends_of or cluster.written, cluster.bootstrap_servers)
        self._splits: dict[Partition, Progress] = {}
        self._fetched: deque[Fetched] = deque()
        self._to_return: deque[Progress] = deque()
        self._added: deque[Progress] = deque()
        """Splits of partitions whose earlier split is not returned yet."""
        self._context: OperatorContext | None = None
        self._parallelism = 0
        self._consumer: Consumer | None = None
        self._assigned: dict[Partition, str] = {}
        """Id of the split that the consumer reads, by partition."""
        self._opening: Background[Consumer] | None = None
        self._probe: Background[int | None] | None = None
        self._probed: Progress | None = None
        self._current: KafkaSplit | None = None
        self._no_more_splits = False
        self._answered_at = self._retry_at = self._checked_at = 0.0
        self._missing_since: dict[str, float] = {}
        self._last_error = ""

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Continue the splits in `state`."""
        self._context, self._parallelism = context, context.parallelism
        self._answered_at = self._monotonic()
        if state is None:
            return
        restored = decode_state(state)
        owed = frozenset(restored.to_give_up)
        for stored in sorted(restored.splits, key=lambda each: each.split.split_id not in owed):
            progress = Progress(
                split=stored.split,
                position=stored.position,
                leader_epoch=stored.leader_epoch,
                rows=stored.rows,
                rejected=stored.rejected,
                bytes_read=stored.bytes_read,
                moved_at=self._monotonic(),
            )
            if stored.split.split_id in owed:
                self._to_return.append(progress)
            self._add(progress)
        if restored.parallelism < context.parallelism:
            endless = [
                progress
                for progress in self._splits.values()
                if progress.split.end == UNBOUNDED and progress.split.split_id not in owed
            ]
            kept = -(-len(endless) * restored.parallelism // context.parallelism)
            self._to_return.extend(endless[kept:])

    def skip_splits(self, split_ids: Collection[str]) -> Sequence[SkippedSplit]:
        """Drop those of these splits that the restored state has."""
        skips = frozenset(split_ids)
        held = [*self._splits.values(), *self._added]
        dropped = [progress for progress in held if progress.split.split_id in skips]
        self._splits, self._added = {}, deque()
        self._to_return = deque(progress for progress in self._to_return if progress not in dropped)
        for progress in held:
            if progress not in dropped:
                self._add(progress)
        return [
            SkippedSplit(
                split_id=progress.split.split_id, rows=progress.rows, reason="it is skipped"
            )
            for progress in dropped
        ]

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Read these too, each an encoded KafkaSplit."""
        for encoded in splits:
            split = cast("KafkaSplit", _SPLIT.decode(encoded))
            self._add(Progress(split=split, position=split.start, moved_at=self._monotonic()))

    def notify_no_more_splits(self) -> None:
        """End once all splits have been read."""
        self._no_more_splits = True

    def handle_source_event(self, event: Payload) -> None:
        """The enumerator sends none."""
        raise AssertionError(event)

    def current_split(self) -> str | None:
        """Id of the split whose records were converted last."""
        if self._current is not None:
            return self._current.split_id
        return next(iter(self._splits.values())).split.split_id if self._splits else None

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        """The next offset of each split: records that are fetched and not emitted are read again.

        Splits that are to be returned stay so: a reader that is restored from this state returns them
        again, at the same offsets, because other readers may have the rest of them already.
        """
        splits = [progress.stored() for progress in (*self._splits.values(), *self._added)]
        return encode_state(
            KafkaReaderState(
                parallelism=self._parallelism,
                splits=splits,
                to_give_up=[progress.split.split_id for progress in self._to_return],
            )
        )

    def poll(self) -> Poll:
        """The next records of one partition, up to `batch_rows`; or the end of a split.

        Raises:
            SourceError: The records do not exist (any more), or the cluster has been silent for
                too long.
        """
        if self._to_return:
            return self._return(self._to_return.popleft())
        ended = next((progress for progress in self._active() if progress.is_at_end), None)
        if ended is not None:
            return self._finish(ended)
        if self._fetched:
            return self._emit(self._fetched.popleft())
        if not self._splits:
            self._drop_consumer()
            self._answered_at = self._monotonic()
            return Poll(status=PollStatus.END if self._no_more_splits else PollStatus.WAITING)
        try:
            consumer = self._ready_consumer()
            if consumer is not None:
                self._receive(consumer)
        except ConnectionError as error:
            self._drop_consumer()
            self._last_error = str(error)
            self._retry_at = self._monotonic() + _RETRY_S
        except BaseException:
            self._drop_consumer()
            raise
        self._check_answers()
        if self._fetched:
            return self._emit(self._fetched.popleft())
        has_ended = any(progress.is_at_end for progress in self._active())
        return Poll(status=PollStatus.WAITING, retry_s=0.0 if has_ended else 0.05)

    def close(self) -> None:
        """Close the connections."""
        self._is_closed.set()
        self._drop_consumer()
        self._leaders.close()
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.abandon()

    # Splits

    def _add(self, progress: Progress) -> None:
        before = self._splits.get(progress.partition)
        if before is None:
            self._splits[progress.partition] = progress
            return
        assert before in self._to_return, "a partition is in one place at a time"
        self._added.append(progress)

    def _active(self) -> list[Progress]:
        """The splits that are being read."""
        assert self._context is not None, "`open` comes first"
        splits = list(self._splits.values())
        return splits[:1] if self._context.is_batch else splits

    def _finish(self, ended: Progress) -> Poll:
        del self._splits[ended.partition]
        added, self._added = self._added, deque()
        for progress in added:
            self._add(progress)
        self._current = ended.split
        if ended.rejected and self._options.bad_rows == "skip":
            _log.warning("%s: %d bad records were left out", ended.split.split_id, ended.rejected)
        return Poll(status=PollStatus.SPLIT_FINISHED, finished=ended.finished())

    def _return(self, progress: Progress) -> Poll:
        """End a split at its position; its rest is sent to the enumerator, behind the same barrier."""
        assert self._context is not None, "`open` comes first"
        split = progress.split
        rest = split_of(progress.partition, split.topic_id, progress.position, UNBOUNDED)
        if split.split_id.startswith(rest.split_id):
            # Nothing of it has been read: the rest needs a name of its own all the same.
            rest = renamed(rest, f"{split.split_id}+")
        self._context.send_event(KafkaSplitsReturned(splits=[rest]))
        return self._finish(progress)

    # Records

    def _emit(self, fetched: Fetched) -> Poll:
        progress = fetched.progress
        self._current = progress.split
        fetched, batch, bad = self._decoded(fetched)
        progress.position = fetched.next_offset
        progress.leader_epoch = fetched.records[-1].leader_epoch
        progress.rows += batch.num_rows
        progress.rejected += len(bad)
        progress.bytes_read += sum(
            len(record.key or b"") + len(record.value or b"") for record in fetched.records
        )
        progress.moved_at = self._monotonic()
        if self._options.places_rows:
            batch = placed(batch, progress.split.split_id)
        if not bad or self._options.bad_rows == "skip":
            return Poll(status=PollStatus.BATCH, batch=batch)
        rejects = rejects_batch(progress.partition, bad)
        return Poll(status=PollStatus.BATCH, batch=batch, rejects=rejects)

    def _decoded(self, fetched: Fetched) -> tuple[Fetched, pa.RecordBatch, Sequence[BadRecord]]:
        """The rows of the fetched records, and the bad ones; only of the first if many are to be sifted."""
        rows, partition = self._options.rows, fetched.progress.partition
        if self._options.bad_rows == "fail":
            return fetched, rows.rows(partition, fetched.records), ()
        if (batch := rows.whole(partition, fetched.records)) is not None:
            return fetched, batch, ()
        # Sifting takes long: in parts, so that barriers need not wait for all of it.
        first, *rest = fetched.pieces(SIFTED_ROWS)
        self._fetched.extendleft(reversed(rest))
        return first, *rows.sifted(partition, first.records)

    def _receive(self, consumer: Consumer) -> None:
        active = {progress.partition: progress for progress in self._active()}
        self._assign(consumer, active)
        polled = consumer.poll(self._options.batch_rows)
        now = self._monotonic()
        self._answered_at = max(self._answered_at, consumer.answered_at)
        if polled:
            self._answered_at = now
        moved = {partition: active[partition] for partition in active if partition in polled}
        self._leaders.answered(moved, now)
        if not polled or now - self._checked_at >= _CHECK_S:
            self._checked_at = now
            self._check_topics(consumer, active, now)
            quiet = [active[partition] for partition in active if partition not in moved]
            self._pass_over(consumer, quiet, now)
            self._leaders.check([progress.partition for progress in quiet], now)
        else:
            self._check_topics(consumer, moved, now)
        for partition, records in polled.items():
            progress = active.get(partition)
            if progress is not None and records:
                self._take(progress, records)

    def _assign(self, consumer: Consumer, active: Mapping[Partition, Progress]) -> None:
        splits = {partition: progress.split.split_id for partition, progress in active.items()}
        if self._assigned == splits:
            return
        positions = {partition: progress.place for partition, progress in active.items()}
        same = [
            partition
            for partition, split_id in splits.items()
            if self._assigned.get(partition, split_id) == split_id
        ]
        if len(same) < len(splits):
            # Records that the consumer has fetched ahead belong after the old split, not to the new.
            consumer.assign({partition: positions[partition] for partition in same})
        consumer.assign(positions)
        self._assigned = splits

    def _take(self, progress: Progress, records: Sequence[Received]) -> None:
        split, first = progress.split, records[0].offset
        if first < progress.position:
            raise SourceError(
                f"partition {named(progress.partition)}",
                f"offset {first} has come; {progress.position} is next",
                "this is a fault of the Kafka client: run the same command again",
            )
        next_offset = records[-1].offset + 1
        if split.end != UNBOUNDED and next_offset > split.end:
            records = [record for record in records if record.offset < split.end]
            next_offset = split.end
        if records:
            fetched = Fetched(progress=progress, records=records, next_offset=next_offset)
            self._fetched.append(fetched)
        else:
            progress.position = next_offset

    def _pass_over(self, consumer: Consumer, quiet: Sequence[Progress], now: float) -> None:
        """Move positions over offsets without records: markers, and records that compaction removed."""
        for progress in quiet:
            position = consumer.position(progress.partition)
            if position.offset > progress.position:
                end, offset = progress.split.end, position.offset
                progress.position = offset if end == UNBOUNDED else min(offset, end)
                progress.leader_epoch = position.leader_epoch
                progress.moved_at = now
        self._probe_gap(quiet, now)

    def _probe_gap(self, quiet: Sequence[Progress], now: float) -> None:
        """If no record comes before the end of a split, query whether the partition has any more."""
        if self._probe is None:
            stuck = (
                progress
                for progress in quiet
                if progress.split.end != UNBOUNDED
                and not progress.is_at_end
                and now - progress.moved_at >= KAFKA_GAP_S
            )
            self._probed = next(stuck, None)
            if self._probed is not None:
                query = partial(self._nothing_from, self._probed.partition, self._probed.position)
                self._probe = Background(query, too_late=lambda _end: None)
            return
        if not self._probe.is_done:
            return
        probe, probed, self._probe, self._probed = self._probe, self._probed, None, None
        assert probed is not None, "the two are set together"
        probed.moved_at = now
        try:
            end = probe.result()
        except ConnectionError as error:
            self._last_error = str(error)
            return
        if end is None or self._splits.get(probed.partition) is not probed:
            return
        if end < probed.split.end:
            raise position_gone(self._options.cluster, probed.partition, probed.position)
        _log.info(
            "split=%s: no record from offset %d up to its end",
            probed.split.split_id,
            probed.position,
        )
        probed.position = probed.split.end

    def _query_nothing_from(self, partition: Partition, position: int) -> int | None:
        return nothing_from(self._options.cluster, partition, position, is_over=self._is_closed)

    # The cluster

    def _ready_consumer(self) -> Consumer | None:
        """The consumer, or None while it connects: barriers do not wait for a connection."""
        if self._consumer is not None:
            return self._consumer
        if self._opening is None:
            if self._monotonic() >= self._retry_at:
                active = self._active()
                positions = {progress.partition: progress.place for progress in active}
                self._assigned = {
                    progress.partition: progress.split.split_id for progress in active
                }
                self._opening = Background(
                    partial(self._open_consumer, positions, self._options.batch_rows),
                    too_late=lambda consumer: consumer.close(),
                )
            return None
        if not self._opening.is_done:
            return None
        opening, self._opening = self._opening, None
        self._consumer = opening.result()
        return self._consumer

    def _drop_consumer(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.abandon()
        consumer, self._consumer = self._consumer, None
        self._assigned = {}
        if consumer is not None:
            consumer.close()

    def _check_answers(self) -> None:
        silent_s = self._monotonic() - self._answered_at
        if silent_s >= KAFKA_TIMEOUT_S:
            last = f" (last: {self._last_error})" if self._last_error else ""
            raise SourceError(
                f"Kafka at {self._options.cluster.bootstrap_servers}",
                f"no answer for {silent_s:.0f} s{last}",
                "check that its broker runs and can be reached; reading continues at its position",
            )

    def _check_topics(
        self, consumer: Consumer, active: Mapping[Partition, Progress], now: float
    ) -> None:
        """Refuse a topic that was made again: it has another id, and other records at the same offsets."""
        topics = {(name, progress.split.topic_id) for (name, _), progress in active.items()}
        for topic, topic_id in sorted(topics):
            current_id = consumer.topic_id(topic)
            if current_id is not None:
                self._missing_since.pop(topic, None)
                if topic_id and current_id and current_id != topic_id:
                    raise recreated(topic, topic_id, current_id)
                continue
            missing_since = self._missing_since.setdefault(topic, now)
            if consumer.answered_at - missing_since >= KAFKA_METADATA_S:
                raise SourceError(
                    f"topic {topic}",
                    f"it is not at {self._options.cluster.bootstrap_servers} any more",
                    "bring it back from a copy, or use another job id for the present records",
                )
