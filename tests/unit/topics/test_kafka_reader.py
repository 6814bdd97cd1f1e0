"""A Kafka reader at its edges: gaps at the end, idle partitions, failures, restores. No broker, no real time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pytest
from kafka import errors

from coordlog.api.operator import Poll, PollStatus
from coordlog.errors import SourceError
from coordlog.limits import KAFKA_GAP_S, KAFKA_METADATA_S, KAFKA_QUIET_S, KAFKA_TIMEOUT_S
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.source_types import Split
from coordlog.spark_integration.kafka.cluster import Cluster, Partition
from coordlog.spark_integration.kafka.consumer import Position, _KafkaConsumer
from coordlog.spark_integration.kafka.discovery import split_of
from coordlog.spark_integration.kafka.payloads import (
    UNBOUNDED,
    KafkaSplit,
    KafkaSplitsReturned,
)
from coordlog.spark_integration.kafka.reader import KafkaReader, KafkaReaderOptions
from coordlog.spark_integration.kafka.rows import RowFormat
from coordlog.spark_integration.kafka.state_bytes import decode_state, merge_reader_states
from coordlog.testing.driven_job import FakeClock
from fakes.chain_fakes import FakeContext
from fakes.kafka_fakes import FakeConsumer, records

OPTIONS = KafkaReaderOptions(
    cluster=Cluster(bootstrap_servers="127.0.0.1:9", timeout_s=0.1),
    rows=RowFormat(),
    batch_rows=100,
)
NEVER_ASKED = cast("Callable[[Partition, int], int | None]", None)


def all_answer(partitions: Sequence[Partition]) -> Mapping[Partition, int]:
    return dict.fromkeys(partitions, 0)


def split(partition: int, start: int = 0, end: int = UNBOUNDED) -> Split:
    return split_of(("t", partition), "id-1", start, end)


class Reading:
    """A reader on a fake consumer, and what it has said."""

    def __init__(
        self,
        *splits: Split,
        consumer: FakeConsumer | None = None,
        state: bytes | None = None,
        nothing_from: Callable[[Partition, int], int | None] = NEVER_ASKED,
        ends_of: Callable[[Sequence[Partition]], Mapping[Partition, int]] = all_answer,
        parallelism: int = 1,
        is_batch: bool = False,
    ) -> None:
        self.consumer, self.clock = consumer or FakeConsumer(), FakeClock(seconds=0.0)
        self.reader = KafkaReader(
            OPTIONS,
            open_consumer=self.consumer,
            nothing_from=nothing_from,
            ends_of=ends_of,
            monotonic=self.clock.monotonic_s,
        )
        self.context = FakeContext(parallelism=parallelism, is_batch=is_batch)
        self.reader.open(self.context, state)
        self.reader.add_splits([one.content for one in splits])
        self.said: list[object] = []

    def poll(self) -> Poll:
        polled = self.reader.poll()
        if polled.batch is not None:
            self.said += [
                (p, o)
                for p, o in zip(
                    polled.batch.column("partition").to_pylist(),
                    polled.batch.column("offset").to_pylist(),
                    strict=True,
                )
            ]
        if polled.finished is not None:
            self.said.append((polled.finished.split_id, polled.finished.rows))
        return polled

    def until(self, condition: Callable[[], bool]) -> None:
        """Poll until it holds: what is opened or asked in the background takes a moment."""
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end, self.said
            self.poll()

    def until_open(self) -> None:
        self.until(lambda: bool(self.consumer.assigned) and self.reader._consumer is not None)

    def until_given(self) -> None:
        self.until(lambda: bool(self.said))

    def positions(self) -> dict[int, int]:
        state = decode_state(self.reader.snapshot_state(1))
        return {one.split.partition: one.position for one in state.splits}


def test_the_state_is_the_next_offset_to_emit_not_the_fetched_one() -> None:
    reading = Reading(split(0), split(1))
    reading.consumer.coming = [{("t", 0): records(0, 1), ("t", 1): records(0, 1, 5)}]
    reading.until_given()

    assert reading.said == [(0, 0), (0, 1)]
    assert reading.positions() == {0: 2, 1: 0}
    reading.poll()
    assert reading.positions() == {0: 2, 1: 6}


def test_a_restored_reader_asks_for_what_comes_next_and_for_nothing_else() -> None:
    first = Reading(split(0), split(1, start=7))
    first.consumer.coming = [{("t", 0): records(0, 1)}]
    first.until_given()
    state = first.reader.snapshot_state(1)

    second = Reading(split(2), state=state)
    second.until_open()

    assert second.consumer.assigned[0] == {("t", 0): 2, ("t", 1): 7, ("t", 2): 0}


def test_what_lies_behind_the_end_is_not_given_and_ends_the_split() -> None:
    reading = Reading(split(0, end=3), split(1, end=1))
    reading.reader.notify_no_more_splits()
    reading.consumer.coming = [{("t", 0): records(0, 2, 3, 4)}, {("t", 1): records(1)}]
    reading.until(lambda: len(reading.said) == 4)

    assert reading.said == [(0, 0), (0, 2), ("t/0@0..3", 2), ("t/1@0..1", 0)]
    assert reading.poll().status is PollStatus.END
    assert reading.consumer.is_closed
    assert reading.consumer.assigned[-1] == {("t", 1): 0}, "what has ended is not fetched any more"


def test_a_split_without_records_ends_without_a_connection() -> None:
    reading = Reading(split(0, start=4, end=4))
    reading.reader.notify_no_more_splits()

    assert reading.poll().status is PollStatus.SPLIT_FINISHED
    assert reading.poll().status is PollStatus.END
    assert reading.consumer.opened == 0


def test_a_gap_passed_by_the_client_moves_the_position_and_ends_the_split() -> None:
    reading = Reading(split(0, end=5), split(1))
    reading.consumer.coming = [{("t", 0): records(0, 1)}]
    reading.until(lambda: len(reading.said) == 2)
    reading.consumer.positions = {("t", 0): 6, ("t", 1): 3}
    reading.until(lambda: len(reading.said) == 3)

    assert reading.said[-1] == ("t/0@0..5", 2)
    assert reading.positions() == {1: 3}


def test_a_gap_not_passed_by_the_client_ends_at_the_brokers_last_record() -> None:
    asked: list[tuple[Partition, int]] = []

    def nothing(partition: Partition, position: int) -> int | None:
        asked.append((partition, position))
        return 5

    reading = Reading(split(0, end=5), nothing_from=nothing)
    reading.consumer.coming = [{("t", 0): records(0, 1)}]
    reading.until(lambda: len(reading.said) == 2)
    for _ in range(5):
        assert reading.poll().status is PollStatus.WAITING
    assert asked == [], "it is not asked at once"
    reading.clock.seconds += KAFKA_GAP_S
    reading.until(lambda: len(reading.said) == 3)

    assert asked == [(("t", 0), 2)]
    assert reading.said[-1] == ("t/0@0..5", 2)


def test_a_slow_broker_is_not_taken_for_a_gap() -> None:
    answers: list[int] = []

    def something(partition: Partition, position: int) -> int | None:
        answers.append(position)
        return None

    reading = Reading(split(0, end=5), nothing_from=something)
    reading.until_open()
    reading.clock.seconds += KAFKA_GAP_S
    reading.until(lambda: bool(answers) and reading.reader._probe is None)
    assert reading.said == []

    reading.consumer.coming = [{("t", 0): records(0, 4)}]
    reading.until(lambda: len(reading.said) == 3)
    assert reading.said == [(0, 0), (0, 4), ("t/0@0..5", 2)]


def test_a_log_that_ends_below_the_end_is_an_error_and_no_end() -> None:
    reading = Reading(split(0, end=5), nothing_from=lambda _partition, _position: 3)
    reading.until_open()
    reading.clock.seconds += KAFKA_GAP_S

    with pytest.raises(SourceError, match="partition t/0: offset 0 is to be read next"):
        reading.until(lambda: False)


@pytest.mark.clause("M6")
def test_an_idle_partition_and_a_slow_connection_do_not_hold_up_a_poll() -> None:
    class Slow(FakeConsumer):
        def __call__(self, positions: object, records_max: int) -> FakeConsumer:
            time.sleep(0.2)
            raise ConnectionError("nobody there")

    reading = Reading(split(0), consumer=Slow())
    began = time.monotonic()
    polled = [reading.poll().status for _ in range(20)]

    assert time.monotonic() - began < 0.2
    assert set(polled) == {PollStatus.WAITING}
    reading.reader.close()


def test_after_what_may_pass_another_client_goes_on_where_the_rows_ended() -> None:
    reading = Reading(split(0))
    reading.consumer.coming = [{("t", 0): records(0, 1)}, ConnectionError("gone for a moment")]
    reading.until(lambda: reading.consumer.is_closed)
    reading.clock.seconds += 1.0
    reading.consumer.coming = [{("t", 0): records(2)}]
    reading.until(lambda: len(reading.said) == 3)

    assert reading.consumer.assigned == [{("t", 0): 0}, {("t", 0): 2}]
    assert reading.said == [(0, 0), (0, 1), (0, 2)]


def test_a_long_silent_cluster_fails_the_reader_with_the_last_error() -> None:
    reading = Reading(split(0))
    reading.consumer.coming = [ConnectionError("refused")]
    reading.until(lambda: reading.consumer.is_closed)
    reading.clock.seconds += KAFKA_TIMEOUT_S - 1
    reading.poll()
    reading.clock.seconds += 1

    with pytest.raises(SourceError, match=r"no answer for 120 s \(last: refused\)"):
        reading.poll()


def test_an_idle_topic_on_a_cluster_that_answers_is_no_failure() -> None:
    reading = Reading(split(0))
    reading.until_open()
    reading.clock.seconds += KAFKA_TIMEOUT_S * 3
    reading.consumer.answered_at = reading.clock.seconds - 5

    assert reading.poll().status is PollStatus.WAITING


class Leaders:
    """Leaders of partitions: some do not answer."""

    def __init__(self, *silent: Partition) -> None:
        self.silent = set(silent)
        self.asked: list[list[Partition]] = []

    def __call__(self, partitions: Sequence[Partition]) -> Mapping[Partition, int]:
        self.asked.append(list(partitions))
        if self.silent & set(partitions):
            raise SourceError(
                "Kafka at fake:9092", "no answer for 10.0 s (last: gone)", "see to it"
            )
        return all_answer(partitions)

    def asked_once_more(self, reading: Reading) -> None:
        """Let time pass until the next query has its answer."""
        before = len(self.asked)
        reading.clock.seconds += KAFKA_QUIET_S
        reading.consumer.answered_at = reading.clock.seconds
        reading.until(lambda: len(self.asked) > before and reading.reader._leaders._query is None)

    def asked_again_until(self, reading: Reading, seconds: float) -> None:
        while reading.clock.seconds < seconds:
            self.asked_once_more(reading)


def test_a_partition_without_leader_fails_the_reader_though_others_answer() -> None:
    leaders = Leaders(("t", 1))
    reading = Reading(split(0), split(1, end=5), ends_of=leaders, nothing_from=lambda *_: None)
    reading.until_open()
    leaders.asked_once_more(reading)
    reading.consumer.coming = [{("t", 0): records(0)}]
    reading.until_given()

    with pytest.raises(SourceError, match=r"no answer .* \(last: gone\)") as caught:
        leaders.asked_again_until(reading, 2 * KAFKA_TIMEOUT_S)
    assert caught.value.where == "the leader of partition t/0 or t/1 at 127.0.0.1:9"
    assert KAFKA_TIMEOUT_S <= reading.clock.seconds <= KAFKA_TIMEOUT_S + 2 * KAFKA_QUIET_S


def test_a_partition_whose_leader_returns_in_time_fails_no_reader() -> None:
    leaders = Leaders()
    reading = Reading(split(0), ends_of=leaders)
    reading.until_open()
    for turn in range(10):
        leaders.silent = {("t", 0)} if turn % 2 else set()
        leaders.asked_once_more(reading)

    assert leaders.asked == [[("t", 0)]] * 10


def test_the_leader_of_a_partition_that_returns_records_is_not_asked() -> None:
    leaders = Leaders(("t", 0))
    reading = Reading(split(0), ends_of=leaders)
    for offset in range(10):
        reading.consumer.coming = [{("t", 0): records(offset)}]
        reading.until(lambda: len(reading.said) > offset)  # noqa: B023, called at once
        reading.clock.seconds += KAFKA_QUIET_S - 1
        reading.consumer.answered_at = reading.clock.seconds
        reading.poll()

    assert leaders.asked == []


def test_a_reader_without_splits_waits_for_as_long_as_it_takes() -> None:
    reading = Reading()
    reading.clock.seconds += KAFKA_TIMEOUT_S * 3
    assert reading.poll().status is PollStatus.WAITING
    reading.reader.add_splits([split(0).content])
    reading.consumer.coming = [{("t", 0): records(0)}]
    reading.until(lambda: len(reading.said) == 1)


def test_a_topic_of_another_id_is_refused_before_a_row_of_it_is_given() -> None:
    reading = Reading(split(0), consumer=FakeConsumer(ids={"t": "id-2"}))
    reading.consumer.coming = [{("t", 0): records(0, 1)}]

    with pytest.raises(
        SourceError, match="topic t: it has id id-2, and the topic that was read had id-1"
    ):
        reading.until(lambda: False)
    assert reading.said == []


def test_a_topic_gone_for_long_is_named_and_one_that_returns_is_not() -> None:
    reading = Reading(split(0), consumer=FakeConsumer(ids={"t": None}))
    reading.until_open()
    reading.poll()
    reading.consumer.answered_at = KAFKA_METADATA_S - 1
    reading.poll()
    reading.consumer.ids["t"] = "id-1"
    reading.poll()
    reading.consumer.ids["t"] = None
    reading.clock.seconds = 20.0
    reading.poll()
    reading.consumer.answered_at = 20.0 + KAFKA_METADATA_S

    with pytest.raises(SourceError, match=r"topic t: it is not at 127\.0\.0\.1:9 any more"):
        reading.poll()


def test_offsets_that_go_back_are_refused() -> None:
    reading = Reading(split(0, start=5))
    reading.consumer.coming = [{("t", 0): records(4, 5)}]

    with pytest.raises(SourceError, match="offset 4 has come; 5 is next"):
        reading.until(lambda: False)


@pytest.mark.clause("L4")
def test_in_batch_one_split_is_read_after_the_other() -> None:
    """The end of one hands over all rows since the end of the one before: no other's may be among them."""
    reading = Reading(split(0, end=2), split(1, end=1), is_batch=True)
    reading.consumer.coming = [{("t", 0): records(0)}, {("t", 0): records(1)}]
    reading.until(lambda: len(reading.said) == 3)
    assert reading.consumer.assigned == [{("t", 0): 0}]
    reading.consumer.coming = [{("t", 1): records(0)}]
    reading.until(lambda: len(reading.said) == 5)

    assert reading.said == [(0, 0), (0, 1), ("t/0@0..2", 2), (1, 0), ("t/1@0..1", 1)]


@pytest.mark.clause("J2")
def test_a_skipped_split_of_the_restored_state_is_let_go_of_with_its_rows() -> None:
    first = Reading(split(0), split(1))
    first.consumer.coming = [{("t", 0): records(0, 1)}]
    first.until_given()

    second = Reading(state=first.reader.snapshot_state(1))
    dropped = second.reader.skip_splits(["t/0@0..", "another"])

    assert [(one.split_id, one.rows) for one in dropped] == [("t/0@0..", 2)]
    assert second.positions() == {1: 0}


@pytest.mark.clause("E7")
def test_merged_states_are_read_on_from_where_each_was() -> None:
    states: list[bytes] = []
    for partition in range(2):
        one = Reading(split(partition), parallelism=2)
        one.consumer.coming = [{("t", partition): records(*range(partition + 3))}]
        one.until_given()
        states.append(one.reader.snapshot_state(1))

    merged = Reading(state=merge_reader_states(states))
    merged.until_open()

    assert merged.consumer.assigned[0] == {("t", 0): 3, ("t", 1): 4}
    assert merged.context.sent == []


@pytest.mark.clause("E7")
def test_with_more_subtasks_a_reader_gives_up_its_part_of_what_has_no_end() -> None:
    old = Reading(*(split(one) for one in range(4)), split(4, end=9), parallelism=2)
    old.consumer.coming = [{("t", 3): records(0, 1, 2)}]
    old.until_given()

    new = Reading(state=old.reader.snapshot_state(1), parallelism=4)
    new.until(lambda: len(new.said) == 2)
    new.until_open()

    assert new.said == [("t/2@0..", 0), ("t/3@0..", 3)]
    returned = cast("Sequence[KafkaSplitsReturned]", new.context.sent)
    assert [one.splits[0].split_id for one in returned] == ["t/2@0..+", "t/3@3.."]
    rest = cast("KafkaSplit", payload_type_of(KafkaSplit).decode(returned[1].splits[0].content))
    assert (rest.start, rest.end, rest.topic_id) == (3, UNBOUNDED, "id-1")
    assert new.consumer.assigned[0] == {("t", 0): 0, ("t", 1): 0, ("t", 4): 0}
    assert new.positions() == {0: 0, 1: 0, 4: 0}


@pytest.mark.clause("D5")
@pytest.mark.clause("E7")
@pytest.mark.parametrize("returned", [0, 1])
def test_a_partition_due_at_a_barrier_is_abandoned_by_the_restored_reader(
    returned: int,
) -> None:
    """Else it would read on what the others have been given: rows doubled."""
    old = Reading(*(split(one) for one in range(4)), parallelism=2)
    old.consumer.coming = [{("t", 3): records(0, 1, 2)}]
    old.until_given()
    lost = Reading(state=old.reader.snapshot_state(1), parallelism=4)
    lost.until(lambda: len(lost.said) == returned)
    state = lost.reader.snapshot_state(2)
    lost.until(lambda: len(lost.said) == 2)

    again = Reading(state=state, parallelism=4)
    again.until_open()

    assert again.said == lost.said[returned:]
    assert again.context.sent == lost.context.sent[returned:]
    assert again.consumer.assigned == [{("t", 0): 0, ("t", 1): 0}]


@pytest.mark.clause("D5")
def test_what_is_left_of_a_split_waits_until_its_reader_has_given_that_up() -> None:
    old = Reading(split(0), split(1), parallelism=1)
    old.consumer.coming = [{("t", 1): records(0, 1, 2)}]
    old.until_given()
    rest = split(1, start=3)
    new = Reading(rest, state=old.reader.snapshot_state(1), parallelism=2)
    state = new.reader.snapshot_state(2)
    new.until_open()

    assert new.said == [("t/1@0..", 3)]
    assert new.consumer.assigned == [{("t", 0): 0, ("t", 1): 3}]
    again = Reading(state=merge_reader_states([state]), parallelism=2)
    again.until_open()
    assert again.said == [("t/1@0..", 3)]
    assert again.consumer.assigned == [{("t", 0): 0, ("t", 1): 3}]


def test_a_state_of_another_version_is_refused_by_number() -> None:
    with pytest.raises(ValueError, match="of version 9; this coordlog reads 1"):
        decode_state(b"\x09")


def test_a_later_split_of_the_same_partition_is_read_from_its_own_start() -> None:
    """What was fetched ahead, behind the end of the split before, belongs to nobody here."""
    consumer = FakeConsumer(coming=[{("t", 0): records(0, 1, 2, 3)}])
    reading = Reading(split(0, 0, 2), consumer=consumer, is_batch=True)
    until(reading, PollStatus.SPLIT_FINISHED)

    consumer.coming = [{("t", 0): records(10, 11)}]
    reading.reader.add_splits([split(0, 10, 11).content])
    until(reading, PollStatus.SPLIT_FINISHED)

    assert reading.said == [(0, 0), (0, 1), ("t/0@0..2", 2), (0, 10), ("t/0@10..11", 1)]
    assert consumer.assigned[-2:] == [{}, {("t", 0): 10}]


def until(reading: Reading, status: PollStatus) -> None:
    deadline = time.monotonic() + 10.0
    while reading.poll().status is not status:
        assert time.monotonic() < deadline


def test_an_unreadable_record_is_an_error_with_its_partition() -> None:
    """Of a header whose name is not UTF-8 the client raises an error that says nothing of where."""

    class Client:
        def assign(self, _partitions: object) -> None: ...

        def seek(self, _partition: object, _offset: int) -> None: ...

        def poll(self, **_bounds: int) -> None:
            b"\xff".decode()

    consumer = _KafkaConsumer(OPTIONS.cluster, Client())
    consumer.assign({("t", 0): Position(5), ("t", 1): Position(0)})

    with pytest.raises(SourceError, match=r"cannot read a record of t/0, t/1: UnicodeDecodeError"):
        consumer.poll(1)


def test_records_of_a_codec_that_the_client_lacks_name_what_to_install() -> None:
    class Client:
        def assign(self, _partitions: object) -> None: ...

        def seek(self, _partition: object, _offset: int) -> None: ...

        def poll(self, **_bounds: int) -> None:
            raise errors.UnsupportedCodecError("Libraries for lz4 compression codec not found")

    consumer = _KafkaConsumer(OPTIONS.cluster, Client())
    consumer.assign({("t", 0): Position(0)})

    with pytest.raises(SourceError, match="lz4 compression codec not found") as caught:
        consumer.poll(1)
    assert "pip install 'kafka-python[" in caught.value.next_step


def test_a_missing_right_names_the_topic_that_may_not_be_read() -> None:
    class Client:
        def assign(self, _partitions: object) -> None: ...

        def seek(self, _partition: object, _offset: int) -> None: ...

        def poll(self, **_bounds: int) -> None:
            raise errors.TopicAuthorizationFailedError({"u", "t"})

    consumer = _KafkaConsumer(OPTIONS.cluster, Client())
    consumer.assign({("t", 0): Position(0), ("u", 0): Position(0), ("v", 0): Position(0)})

    with pytest.raises(SourceError, match="the operation Read on topic t;") as caught:
        consumer.poll(1)
    assert caught.value.next_step.endswith("--operation Read --topic t")
