"""kafka-python's consumer behind bounds: partitions and positions are given to it, and nothing is committed.

Its oddities, and the remedies (3.0.12, read and tried):

* It takes a new topic of an old name for the same one: the reader compares `topic_id`.
* After an error in the middle of a batch `poll` may never return: a consumer that has raised is
  closed, and not used again.
* Its `position` passes markers and records that compaction removed only if a later batch exists; if
  none does, `nothing_from` finds the end.
* It raises nothing while no broker answers: `answered_at` is the time of the last answer.
* It fails at the marker of a transaction if compaction has left an empty batch of it: `_PartitionRecords`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from kafka import KafkaConsumer, errors
from kafka.consumer.fetcher import Fetcher
from kafka.structs import OffsetAndMetadata, TopicPartition

from coordlog.errors import InputGoneError, SourceError
from coordlog.limits import KAFKA_METADATA_S
from coordlog.log.kafka.client import INSTALL_CODECS, described, made, may_pass, within
from coordlog.spark_integration.kafka.cluster import Cluster, Partition, named, topic_id_text
from coordlog.spark_integration.kafka.rows import Received

__all__ = [
    "Background",
    "Consumer",
    "OpenConsumer",
    "Position",
    "connect",
    "nothing_from",
    "position_gone",
]

T = TypeVar("T")

_POLL_S: Final = 0.02
"""Longest wait of a poll, seconds; records that are in flight then come with the next one."""
_POSITION_S: Final = 0.05
_CLOSE_S: Final = 2.0
_PROBE_S: Final = 10.0

_GONE: Final = (
    errors.OffsetOutOfRangeError,
    errors.LogTruncationError,  # pyright: ignore[reportAttributeAccessIssue]  # its stubs are older
)


class Position(NamedTuple):
    """Place in a partition up to which it was read."""

    offset: int
    """The next offset."""
    leader_epoch: int = -1
    """Number of the leader that has stored the record before `offset`; -1 if unknown. If a partition has lost its last
    records, a later leader stores others at their offsets: the cluster then refuses the position."""


class Consumer(Protocol):
    """The client of a reader. For one thread. After an error it is closed, and not used again."""

    def assign(self, positions: Mapping[Partition, Position]) -> None:
        """Read these partitions and no others; new ones from the given position."""
        ...

    def poll(self, records_max: int) -> Mapping[Partition, Sequence[Received]]:
        """New records, in the order of offsets; perhaps none, after a fraction of a second.

        Raises:
            ConnectionError: A fault that may pass.
            SourceError: A permanent fault.
        """
        ...

    def position(self, partition: Partition) -> Position:
        """The position after all records that were returned or passed over. Raises as `poll`."""
        ...

    def topic_id(self, topic: str) -> str | None:
        """Id in the cluster's last answer; empty if it has no ids, None if it lacks this topic."""
        ...

    @property
    def answered_at(self) -> float:
        """Monotonic seconds of the cluster's last answer."""
        ...

    def close(self) -> None:
        """Close the connections, within a bound."""
        ...


OpenConsumer = Callable[[Mapping[Partition, Position], int], Consumer]
"""Connects, with first positions and the greatest number of records of a poll. Blocks, within a bound."""


class Background(Generic[T]):
    """A call on a daemon thread; its result is fetched, or abandoned."""

    def __init__(self, call: Callable[[], T], *, too_late: Callable[[T], None]) -> None:
        self._call, self._too_late = call, too_late
        self._lock = threading.Lock()
        self._is_abandoned = self._is_done = False
        self._result: T | None = None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="coordlog-kafka-source", daemon=True).start()

    @property
    def is_done(self) -> bool:
        """Whether the call has ended."""
        with self._lock:
            return self._is_done

    def result(self) -> T:
        """The result of the call; raises its error. Only when done."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def abandon(self) -> None:
        """Abandon the call: its result, now or later, goes to `too_late`."""
        with self._lock:
            self._is_abandoned = True
            is_done = self._is_done
        if is_done and self._error is None:
            self._too_late(self.result())

    def _run(self) -> None:
        try:
            result = self._call()
        except BaseException as error:  # noqa: BLE001, `result` raises it
            with self._lock:
                self._error, self._is_done = error, True
            return
        with self._lock:
            self._result, self._is_done = result, True
            is_abandoned = self._is_abandoned
        if is_abandoned:
            self._too_late(result)


def connect(
    cluster: Cluster, positions: Mapping[Partition, Position], records_max: int
) -> Consumer:
    """A consumer of these partitions. Blocks for at most the cluster's `timeout_s`.

    Raises:
        ConnectionError: No broker answers.
        SourceError: The broker does not let this user in.
    """
    connection = cluster.connection
    options: dict[str, object] = {
        **connection.options(cluster.timeout_s),
        # Where reading continues is in the job's checkpoints, and nowhere else.
        "group_id": None,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "isolation_level": cluster.isolation,
        "allow_auto_create_topics": False,
        "max_poll_records": records_max,
        "fetch_max_wait_ms": 100,
        "retry_backoff_ms": 100,  # so often the client asks for a topic that is not there
        "metadata_max_age_ms": int(KAFKA_METADATA_S * 1000),
        "metrics_enabled": False,
    }
    try:
        client = within(
            cluster.timeout_s,
            lambda: made(KafkaConsumer, options),
            too_late=lambda late: late.close(),
        )
    except (errors.KafkaError, OSError, RuntimeError) as error:
        raise _meaning(cluster, error) from error
    fetcher: Any = client._fetcher  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]
    fetcher.PartitionRecords = _PartitionRecords
    consumer = _KafkaConsumer(cluster, client)
    try:
        consumer.assign(positions)
    except BaseException:
        consumer.close()
        raise
    return consumer


_Records: Any = Fetcher.PartitionRecords


class _PartitionRecords(_Records):  # type: ignore[misc]  # the client has no types
    """The records of an answer, also behind a marker without a record.

    Compaction keeps the empty batch of a marker that is the last of its producer: it has the producer's epoch.
    """

    def _contains_abort_marker(self, batch: Any) -> bool:  # noqa: ANN401
        return batch.records_count > 0 and bool(super()._contains_abort_marker(batch))


class _KafkaConsumer:
    """See `Consumer`."""

    def __init__(self, cluster: Cluster, client: Any) -> None:  # noqa: ANN401, it has no types
        self._cluster, self._client = cluster, client
        self._assigned: frozenset[Partition] = frozenset()
        self._connected_at = time.monotonic()

    def assign(self, positions: Mapping[Partition, Position]) -> None:
        try:
            self._client.assign([TopicPartition(*partition) for partition in positions])
            for partition in sorted(set(positions) - self._assigned):
                self._seek(TopicPartition(*partition), positions[partition])
        except (errors.KafkaError, OSError, RuntimeError) as error:
            raise _meaning(self._cluster, error) from error
        self._assigned = frozenset(positions)

    def _seek(self, partition: TopicPartition, position: Position) -> None:
        self._client.seek(partition, position.offset)
        if position.leader_epoch >= 0:
            # The client's own `seek` takes no epoch.
            assignment = self._client._subscription.assignment  # noqa: SLF001
            assignment[partition].seek(
                OffsetAndMetadata(position.offset, "", position.leader_epoch)
            )

    def poll(self, records_max: int) -> Mapping[Partition, Sequence[Received]]:
        try:
            polled = self._client.poll(timeout_ms=int(_POLL_S * 1000), max_records=records_max)
        except _GONE as error:
            raise self._gone(error) from error
        except (errors.KafkaError, OSError, RuntimeError) as error:
            raise _meaning(self._cluster, error) from error
        except Exception as error:  # a bad record makes the client raise errors of any type
            named_all = ", ".join(map(named, sorted(self._assigned)))
            raise SourceError(
                f"Kafka at {self._cluster.bootstrap_servers}",
                f"the client cannot read a record of {named_all}: {described(error)}",
                "check that names of headers are UTF-8 and that the records are whole; begin anew behind it under "
                "another job id with `starting`",
            ) from error
        return {(key.topic, key.partition): records for key, records in polled.items()}

    def position(self, partition: Partition) -> Position:
        key = TopicPartition(*partition)
        try:
            offset: int | None = self._client.position(key, timeout_ms=int(_POSITION_S * 1000))
        except _GONE as error:
            raise self._gone(error) from error
        except (errors.KafkaError, OSError, RuntimeError) as error:
            raise _meaning(self._cluster, error) from error
        assert offset is not None, "each partition that is assigned is sought first"
        position = self._client._subscription.assignment[key].position  # noqa: SLF001, with the epoch
        return Position(position.offset, position.leader_epoch)

    def topic_id(self, topic: str) -> str | None:
        # The client has no public view of the cluster; its versions are bounded.
        cluster = self._client._cluster  # noqa: SLF001
        is_there = cluster.partitions_for_topic(topic) is not None
        return topic_id_text(cluster.topic_id(topic)) if is_there else None

    @property
    def answered_at(self) -> float:
        answered_ms: float = self._client._cluster._last_successful_refresh_ms  # noqa: SLF001
        return max(self._connected_at, answered_ms / 1000)

    def highwater(self, partition: Partition) -> int | None:
        """High watermark in the answer to the last fetch of this partition, or None before the first."""
        offset: int | None = self._client.highwater(TopicPartition(*partition))
        return offset

    def close(self) -> None:
        with contextlib.suppress(errors.KafkaError, OSError, RuntimeError):
            within(_CLOSE_S, self._client.close, too_late=lambda _none: None)

    def _gone(self, error: Exception) -> SourceError:
        diverging: Mapping[Any, Any] = getattr(error, "divergent_offsets", {})
        if diverging:
            key, end = min(diverging.items())
            since = "" if end is None else f" from offset {end.offset} on"
            return SourceError(
                f"partition {named((key.topic, key.partition))}",
                f"the partition has lost records that were read{since}, and may have others at their offsets now",
                "compare the rows with the topic; begin anew under another job id with `starting`",
            )
        first: Any = error.args[0] if error.args else None
        # By partition: the offset, or an object that has it.
        by_partition: Mapping[Any, Any] = first if isinstance(first, Mapping) else {}
        wanted = {
            (key.topic, key.partition): int(getattr(offset, "offset", offset))
            for key, offset in by_partition.items()
        }
        if not wanted:
            return SourceError(
                f"Kafka at {self._cluster.bootstrap_servers}",
                f"the next records are gone: {described(error)}",
                "see whether its topics were changed, or retention has removed records",
            )
        partition, offset = min(wanted.items())
        return position_gone(self._cluster, partition, offset)


class _Limits(Protocol):
    def beginnings(self, partitions: Collection[Partition]) -> dict[Partition, int]: ...

    def ends(self, partitions: Collection[Partition]) -> dict[Partition, int]: ...


def position_gone(cluster: _Limits, partition: Partition, offset: int) -> SourceError:
    """Error of an offset that does not exist (any more), with the offsets that do.

    InputGoneError if the partition begins above it: no beginning goes back. A leader may lack the last records for a
    moment.
    """
    kind: type[SourceError] = SourceError
    try:
        begin, end = (
            cluster.beginnings([partition])[partition],
            cluster.ends([partition])[partition],
        )
    except SourceError as error:
        present = f"the present ones are not known ({error.problem})"
    else:
        present = f"there are {begin} to {end}, exclusive"
        kind = InputGoneError if offset < begin else SourceError
    return kind(
        f"partition {named(partition)}",
        f"offset {offset} is to be read next, and {present}: retention has removed it, or the "
        "records were lost",
        "put the records back, or begin anew under another job id with `starting`",
    )


def nothing_from(
    cluster: Cluster, partition: Partition, position: int, *, is_over: threading.Event
) -> int | None:
    """The partition's end, if the broker has no record from `position` up to it; else None.

    A consumer of its own fetches this partition alone, so that an empty answer is of this partition.
    Blocks for some seconds at most.

    Raises:
        ConnectionError: No answer.
        SourceError: The position is gone.
    """
    consumer = connect(cluster, {partition: Position(position)}, 1)
    assert isinstance(consumer, _KafkaConsumer)
    try:
        until = time.monotonic() + _PROBE_S
        while time.monotonic() < until and not is_over.is_set():
            if consumer.poll(1) or consumer.position(partition).offset != position:
                return None
            end = consumer.highwater(partition)
            if end is not None:
                return end
    finally:
        consumer.close()
    return None


def _meaning(cluster: Cluster, error: Exception) -> Exception:
    at = f"Kafka at {cluster.bootstrap_servers}"
    refused = cluster.connection.refusal(error, "Read")
    if refused is not None:
        return SourceError(at, refused.problem, refused.next_step)
    if isinstance(error, errors.UnsupportedCodecError):
        return SourceError(
            at,
            f"the records are compressed by a codec that the client lacks: {described(error)}",
            INSTALL_CODECS,
        )
    if isinstance(error, errors.KafkaError) and not may_pass(error):
        return SourceError(at, f"reading has failed: {described(error)}", "see the broker's log")
    return ConnectionError(f"{at}: {described(error)}")
