"""The subtask's side of a Kafka source: reads its partitions, and can say how far it is in each."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from coordlog.api.operator import (
    FinishedSplit,
    OperatorContext,
    Poll,
    PollStatus,
    SkippedSplit,
    SourceReader,
)
from coordlog.errors import SourceError
from coordlog.limits import KAFKA_GAP_S, KAFKA_METADATA_S, KAFKA_TIMEOUT_S
from coordlog.schemas.payload import Payload, payload_type_of
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
from coordlog.spark_integration.kafka.payloads import (
    UNBOUNDED,
    KafkaReaderState,
    KafkaSplit,
    KafkaSplitProgress,
    KafkaSplitsReturned,
)
from coordlog.spark_integration.kafka.rows import Received, RowFormat
from coordlog.spark_integration.kafka.state_bytes import decode_state, encode_state

__all__ = ["KafkaReader", "KafkaReaderOptions", "NothingFrom"]

_log = logging.getLogger(__name__)

_SPLIT = payload_type_of(KafkaSplit)

_LOOK_S: Final = 1.0
"""How often positions and topic ids are looked at while rows come."""
_RETRY_S: Final = 0.5

NothingFrom = Callable[[Partition, int], int | None]
"""See `nothing_from`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaReaderOptions:
    """All that a reader needs beside its splits; pickles."""

    cluster: Cluster
    rows: RowFormat
    batch_rows: int


@dataclass(slots=True, kw_only=True, eq=False)
class _Progress:
    """How far one split is."""

    split: KafkaSplit
    position: int
    rows: int = 0
    bytes_read: int = 0
    moved_at: float
    """Monotonic, seconds: when its position last rose, or its reading began."""

    @property
    def partition(self) -> Partition:
        return self.split.topic, self.split.partition

    @property
    def is_at_end(self) -> bool:
        return self.split.end != UNBOUNDED and self.position >= self.split.end


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrived:
    """Records of one split that have come and are not given yet."""

    progress: _Progress
    records: Sequence[Received]
    then: int
    """The position after them."""


class KafkaReader(SourceReader):
    """Reads all of its partitions through one consumer, each from the first offset not yet given.

    Its state is the next offset of each split; the consumer has no group, and commits nothing. In
    batch it reads one split after the other, since there the end of one hands over all rows since
    the end of the one before.

    Restored in a job of more subtasks than before it gives up its part of what has no end, for the
    others: those splits end where they were, and what is left of each is split anew.
    """

    def __init__(
        self,
        options: KafkaReaderOptions,
        *,
        open_consumer: OpenConsumer | None = None,
        nothing_from: NothingFrom | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._monotonic = options, monotonic
        self._open_consumer = open_consumer or partial(connect, options.cluster)
        self._is_closed = threading.Event()
        self._nothing_from = nothing_from or self._ask_whether_nothing
        self._splits: dict[Partition, _Progress] = {}
        self._arrived: deque[_Arrived] = deque()
        self._to_return: deque[_Progress] = deque()
        self._added: deque[_Progress] = deque()
        """Of partitions of which an earlier split is yet to be given up."""
        self._context: OperatorContext | None = None
        self._parallelism = 0
        self._consumer: Consumer | None = None
        self._assigned: dict[Partition, str] = {}
        """The split of each partition that the consumer reads."""
        self._opening: Background[Consumer] | None = None
        self._probe: Background[int | None] | None = None
        self._probed: _Progress | None = None
        self._current: KafkaSplit | None = None
        self._no_more_splits = False
        self._answered_at = self._retry_at = self._looked_at = 0.0
        self._missing_since: dict[str, float] = {}
        self._last_error = ""

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Take up the splits in `state`."""
        self._context, self._parallelism = context, context.parallelism
        self._answered_at = self._monotonic()
        if state is None:
            return
        restored = decode_state(state)
        owed = frozenset(restored.to_give_up)
        for one in sorted(restored.splits, key=lambda one: one.split.split_id not in owed):
            progress = self._progress(one.split, one.position, one.rows, one.bytes_read)
            if one.split.split_id in owed:
                self._to_return.append(progress)
            self._add(progress)
        if restored.parallelism < context.parallelism:
            endless = [
                p
                for p in self._splits.values()
                if p.split.end == UNBOUNDED and p.split.split_id not in owed
            ]
            kept = -(-len(endless) * restored.parallelism // context.parallelism)
            self._to_return.extend(endless[kept:])

    def skip_splits(self, split_ids: Collection[str]) -> Sequence[SkippedSplit]:
        """Drop those that the restored state has."""
        skips = frozenset(split_ids)
        held = [*self._splits.values(), *self._added]
        dropped = [one for one in held if one.split.split_id in skips]
        self._splits, self._added = {}, deque()
        self._to_return = deque(one for one in self._to_return if one not in dropped)
        for one in held:
            if one not in dropped:
                self._add(one)
        return [
            SkippedSplit(split_id=one.split.split_id, rows=one.rows, reason="it is skipped")
            for one in dropped
        ]

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Read these too, each an encoded KafkaSplit."""
        for one in splits:
            split = cast("KafkaSplit", _SPLIT.decode(one))
            self._add(self._progress(split, split.start, 0, 0))

    def notify_no_more_splits(self) -> None:
        """End once what is there has been read."""
        self._no_more_splits = True

    def handle_source_event(self, event: Payload) -> None:
        """The enumerator sends none."""
        raise AssertionError(event)

    def current_split(self) -> str | None:
        """The split whose records were looked at last."""
        if self._current is not None:
            return self._current.split_id
        return next(iter(self._splits.values())).split.split_id if self._splits else None

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        """The next offset of each split: what has come and was not given yet is read again.

        What is to be given up stays so: a reader that is restored from here gives it up again, at the
        same offsets, since the others may have been given what is left of it.
        """
        splits = [
            KafkaSplitProgress(
                split=one.split, position=one.position, rows=one.rows, bytes_read=one.bytes_read
            )
            for one in (*self._splits.values(), *self._added)
        ]
        return encode_state(
            KafkaReaderState(
                parallelism=self._parallelism,
                splits=splits,
                to_give_up=[one.split.split_id for one in self._to_return],
            )
        )

    def poll(self) -> Poll:
        """The next records of one partition, up to `batch_rows`; or the end of a split.

        Raises:
            SourceError: What is to be read is not there (any more), or the cluster has been silent
                for too long.
        """
        if self._to_return:
            return self._return(self._to_return.popleft())
        ended = next((one for one in self._active() if one.is_at_end), None)
        if ended is not None:
            return self._finish(ended)
        if self._arrived:
            return self._give(self._arrived.popleft())
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
        if self._arrived:
            return self._give(self._arrived.popleft())
        has_ended = any(one.is_at_end for one in self._active())
        return Poll(status=PollStatus.WAITING, retry_s=0.0 if has_ended else 0.05)

    def close(self) -> None:
        """Let go of the connections."""
        self._is_closed.set()
        self._drop_consumer()
        probe, self._probe = self._probe, None
        if probe is not None:
            probe.abandon()

    # Splits

    def _progress(self, split: KafkaSplit, position: int, rows: int, bytes_read: int) -> _Progress:
        return _Progress(
            split=split,
            position=position,
            rows=rows,
            bytes_read=bytes_read,
            moved_at=self._monotonic(),
        )

    def _add(self, progress: _Progress) -> None:
        before = self._splits.get(progress.partition)
        if before is None:
            self._splits[progress.partition] = progress
            return
        assert before in self._to_return, "a partition is in one place at a time"
        self._added.append(progress)

    def _active(self) -> list[_Progress]:
        """Those that are being read."""
        assert self._context is not None, "`open` comes first"
        splits = list(self._splits.values())
        return splits[:1] if self._context.is_batch else splits

    def _finish(self, ended: _Progress) -> Poll:
        del self._splits[ended.partition]
        added, self._added = self._added, deque()
        for one in added:
            self._add(one)
        self._current = ended.split
        finished = FinishedSplit(
            split_id=ended.split.split_id, rows=ended.rows, bytes_read=ended.bytes_read
        )
        return Poll(status=PollStatus.SPLIT_FINISHED, finished=finished)

    def _return(self, progress: _Progress) -> Poll:
        """End a split where it is; what is left is told of on the way, behind the same barrier."""
        assert self._context is not None, "`open` comes first"
        split = progress.split
        rest = split_of(progress.partition, split.topic_id, progress.position, UNBOUNDED)
        if split.split_id.startswith(rest.split_id):
            # Nothing of it has been read: what is left needs a name of its own all the same.
            rest = renamed(rest, f"{split.split_id}+")
        self._context.send_event(KafkaSplitsReturned(splits=[rest]))
        return self._finish(progress)

    # Records

    def _give(self, arrived: _Arrived) -> Poll:
        progress = arrived.progress
        self._current = progress.split
        batch = self._options.rows.rows(progress.partition, arrived.records)
        progress.position = arrived.then
        progress.rows += len(arrived.records)
        progress.bytes_read += sum(
            len(one.key or b"") + len(one.value or b"") for one in arrived.records
        )
        progress.moved_at = self._monotonic()
        return Poll(status=PollStatus.BATCH, batch=batch)

    def _receive(self, consumer: Consumer) -> None:
        active = {one.partition: one for one in self._active()}
        self._assign(consumer, active)
        polled = consumer.poll(self._options.batch_rows)
        now = self._monotonic()
        self._answered_at = max(self._answered_at, consumer.answered_at)
        if polled:
            self._answered_at = now
        came = {one: progress for one, progress in active.items() if one in polled}
        if not polled or now - self._looked_at >= _LOOK_S:
            self._looked_at = now
            self._check_topics(consumer, active, now)
            self._pass_over(consumer, [p for one, p in active.items() if one not in came], now)
        else:
            self._check_topics(consumer, came, now)
        for partition, records in polled.items():
            progress = active.get(partition)
            if progress is not None and records:
                self._take(progress, records)

    def _assign(self, consumer: Consumer, active: Mapping[Partition, _Progress]) -> None:
        wanted = {one: progress.split.split_id for one, progress in active.items()}
        if self._assigned == wanted:
            return
        positions = {one: progress.position for one, progress in active.items()}
        same = [one for one in wanted if self._assigned.get(one, wanted[one]) == wanted[one]]
        if len(same) < len(wanted):
            # What the consumer has fetched ahead is behind the split before, and not in this one.
            consumer.assign({one: positions[one] for one in same})
        consumer.assign(positions)
        self._assigned = wanted

    def _take(self, progress: _Progress, records: Sequence[Received]) -> None:
        split, first = progress.split, records[0].offset
        if first < progress.position:
            raise SourceError(
                f"partition {named(progress.partition)}",
                f"offset {first} has come where {progress.position} is next",
                "this is a fault of the Kafka client: run the same command again",
            )
        then = records[-1].offset + 1
        if split.end != UNBOUNDED and then > split.end:
            records, then = [one for one in records if one.offset < split.end], split.end
        if records:
            self._arrived.append(_Arrived(progress=progress, records=records, then=then))
        else:
            progress.position = then

    def _pass_over(self, consumer: Consumer, quiet: Sequence[_Progress], now: float) -> None:
        """What holds no records to give moves a position too: markers, what compaction removed."""
        for one in quiet:
            position = consumer.position(one.partition)
            if position > one.position:
                one.position = (
                    position if one.split.end == UNBOUNDED else min(position, one.split.end)
                )
                one.moved_at = now
        self._look_for_gap(quiet, now)

    def _look_for_gap(self, quiet: Sequence[_Progress], now: float) -> None:
        """Where nothing comes although the end is not reached, ask whether there is anything at all."""
        if self._probe is None:
            stuck = (
                one
                for one in quiet
                if one.split.end != UNBOUNDED
                and not one.is_at_end
                and now - one.moved_at >= KAFKA_GAP_S
            )
            self._probed = next(stuck, None)
            if self._probed is not None:
                ask = partial(self._nothing_from, self._probed.partition, self._probed.position)
                self._probe = Background(ask, too_late=lambda _end: None)
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

    def _ask_whether_nothing(self, partition: Partition, position: int) -> int | None:
        return nothing_from(self._options.cluster, partition, position, is_over=self._is_closed)

    # The cluster

    def _ready_consumer(self) -> Consumer | None:
        """The consumer, where there is one: connecting takes a while, and barriers do not wait for it."""
        if self._consumer is not None:
            return self._consumer
        if self._opening is None:
            if self._monotonic() >= self._retry_at:
                positions = {one.partition: one.position for one in self._active()}
                self._assigned = {one.partition: one.split.split_id for one in self._active()}
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
                "see that its broker runs and can be reached; reading goes on where it was",
            )

    def _check_topics(
        self, consumer: Consumer, active: Mapping[Partition, _Progress], now: float
    ) -> None:
        """A topic that was made again has another id, and other records at the same offsets."""
        for topic, topic_id in sorted({(t, p.split.topic_id) for (t, _), p in active.items()}):
            here = consumer.topic_id(topic)
            if here is not None:
                self._missing_since.pop(topic, None)
                if topic_id and here and here != topic_id:
                    raise recreated(topic, topic_id, here)
                continue
            missing_since = self._missing_since.setdefault(topic, now)
            if consumer.answered_at - missing_since >= KAFKA_METADATA_S:
                raise SourceError(
                    f"topic {topic}",
                    f"it is not at {self._options.cluster.bootstrap_servers} any more",
                    "bring it back from a copy, or use another job id for what is there now",
                )
