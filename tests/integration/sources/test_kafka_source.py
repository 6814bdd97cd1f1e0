"""What a Kafka source reads of a real broker: transactions, truncation, deleted topics, new partitions."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
import pytest
from kafka import KafkaProducer
from kafka.structs import TopicPartition

from coordlog.causes import INPUT_GONE, final_of
from coordlog.errors import SourceError
from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.kafka import KafkaLog
from coordlog.spark_integration.kafka import reader as reader_module
from coordlog.spark_integration.kafka.cluster import Cluster
from coordlog.spark_integration.kafka.source import KafkaSource
from data.kafka_topics import WAIT_S, ReadOut, Topics, listed, opened, read, topics_at
from fakes.chain_fakes import FakeContext
from histories.log_records import start_driver

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture(scope="module")
def topics(broker: EmbeddedBroker) -> Iterator[Topics]:
    with topics_at(broker.bootstrap_servers) as one:
        yield one


def transaction(topics: Topics, topic: str, values: list[str], *, is_committed: bool) -> None:
    producer = KafkaProducer(
        bootstrap_servers=topics.servers, transactional_id=f"{topic}-tx", api_version=(2, 4)
    )
    try:
        producer.init_transactions()
        producer.begin_transaction()
        futures = [producer.send(topic, value=one.encode(), partition=0) for one in values]
        producer.flush()
        for one in futures:
            one.get(timeout=WAIT_S)
        if is_committed:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    finally:
        producer.close(timeout=5)


def test_a_bounded_reader_gives_each_record_once_with_all_that_it_has(topics: Topics) -> None:
    topic = topics.create(3)
    topics.fill(topic, 0, ["a", "b"], key=b"k", headers=[("h", b"1"), ("h", b"2")])
    topics.fill(topic, 2, ["c"], timestamp_ms=1_700_000_000_000)
    found = listed(topics.source(topic))
    topics.fill(topic, 0, ["after the listing"])

    with closing(opened(topics.source(topic), found.splits)) as reader:
        reader.notify_no_more_splits()
        out = read(reader, ReadOut())

    assert [one.split_id for one in found.splits] == [
        f"{topic}/0@0..2",
        f"{topic}/1@0..0",
        f"{topic}/2@0..1",
    ]
    assert out.places == [(0, 0), (0, 1), (2, 0)]
    assert sorted((one.split_id, one.rows) for one in out.finished) == [
        (f"{topic}/0@0..2", 2),
        (f"{topic}/1@0..0", 0),
        (f"{topic}/2@0..1", 1),
    ]
    by_partition = {batch.column("partition")[0].as_py(): batch for batch in out.batches}
    first, third = by_partition[0].to_pylist()[0], by_partition[2].to_pylist()[0]
    assert (first["key"], first["value"], first["topic"]) == (b"k", b"a", topic)
    assert first["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}]
    assert third["key"] is None
    assert third["timestamp"] == dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=dt.UTC)


def test_a_time_before_1970_is_no_missing_time(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, 0, ["ten years before"], timestamp_ms=-315_619_200_000)
    topics.fill(topic, 0, ["5 s before"], timestamp_ms=-5_000)
    source = topics.source(topic)

    with closing(opened(source, listed(source).splits)) as reader:
        out = read(reader, ReadOut(), rows=2)

    times = [one for batch in out.batches for one in batch.column("timestamp").to_pylist()]
    assert times == [
        dt.datetime(1960, 1, 1, tzinfo=dt.UTC),
        dt.datetime(1969, 12, 31, 23, 59, 55, tzinfo=dt.UTC),
    ]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_markers_and_aborted_records_at_the_end_do_not_hold_up_the_end(
    topics: Topics, isolation: str
) -> None:
    topic = topics.create()
    topics.fill(topic, 0, ["plain"])
    transaction(topics, topic, ["kept"], is_committed=True)
    transaction(topics, topic, ["dropped 1", "dropped 2"], is_committed=False)
    source = topics.source(topic, isolation=isolation, decode="utf8")
    found = listed(source)

    with closing(opened(source, found.splits)) as reader:
        reader.notify_no_more_splits()
        out = read(reader, ReadOut())

    is_committed = isolation == "read_committed"
    dropped = [] if is_committed else ["dropped 1", "dropped 2"]
    assert out.values == ["plain", "kept", *dropped]
    assert out.is_at_end
    assert [one.rows for one in out.finished] == [2 if is_committed else 4]


def test_where_it_starts_is_as_it_is_told(topics: Topics) -> None:
    topic = topics.create(2)
    topics.fill(topic, 0, ["old"], timestamp_ms=1_000_000)
    topics.fill(topic, 0, ["new"], timestamp_ms=2_000_000)
    topics.fill(topic, 1, ["old"], timestamp_ms=1_000_000)

    def starts(starting: object, *, is_first: bool = True) -> list[str]:
        found = listed(topics.source(topic, starting=starting), is_first=is_first)
        assert found.problem == ""
        return [one.split_id.partition("@")[2] for one in found.splits]

    assert starts("earliest") == ["0..2", "0..1"]
    assert starts("latest") == ["2..2", "1..1"]
    assert starts("latest", is_first=False) == ["0..2", "0..1"]
    assert starts(dt.datetime.fromtimestamp(1_500, dt.UTC)) == ["1..2", "1..1"]
    assert starts({(topic, 0): 1, (topic, 1): 0}) == ["1..2", "0..1"]

    wrong = listed(topics.source(topic, starting={(topic, 0): 3, (topic, 1): 0}))
    assert (wrong.where, wrong.problem) == (
        f"partition {topic}/0",
        "`starting` has offset 3; there are 0 to 2, exclusive",
    )
    missing = listed(topics.source(topic, starting={(topic, 0): 0}))
    assert (missing.where, missing.problem) == (
        f"partition {topic}/1",
        "it has no offset in `starting`",
    )


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_moment_leaves_out_older_records_of_transactions_that_are_open(
    topics: Topics, isolation: str
) -> None:
    """The end of what may be read is before them; a source that began there would read them later."""
    topic = topics.create()
    topics.fill(topic, 0, ["old"], timestamp_ms=1_000_000)
    producer = KafkaProducer(bootstrap_servers=topics.servers, transactional_id=topic)
    with closing(producer):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, value=b"old, and open", partition=0, timestamp_ms=1_000_000)
        producer.flush()
        topics.fill(topic, 0, ["new"], timestamp_ms=2_000_000)

        def source(starting: object, *, bounded: bool = True) -> KafkaSource:
            return topics.source(
                topic, starting=starting, isolation=isolation, decode="utf8", bounded=bounded
            )

        def start(starting: object) -> str:
            (split,) = listed(source(starting, bounded=False)).splits
            return split.split_id.partition("@")[2]

        moment = dt.datetime.fromtimestamp(1_500, dt.UTC)
        assert start(moment) == "2.."
        assert start(dt.datetime.fromtimestamp(2_500, dt.UTC)) == "3.."
        assert start({(topic, 0): 2}) == "2.."
        bounded = source(moment)
        discovery = bounded._discovery
        read_up_to = {(topic, 0): 2}
        assert listed(bounded).problem == ""
        again = discovery.listing({(topic, 0): ""}, is_first=False, read_up_to=read_up_to)
        assert again.problem == ""
        unbounded = source(moment, bounded=False)
        with closing(opened(unbounded, listed(unbounded).splits)) as reader:
            producer.commit_transaction()
            topics.fill(topic, 0, ["newer"], timestamp_ms=3_000_000)
            assert read(reader, ReadOut(), rows=2).values == ["new", "newer"]


def test_a_pattern_never_matches_the_log_of_a_job(topics: Topics) -> None:
    """The job `orders` writes to `orders.log`: its source would read what it writes, without an end."""
    prefix = f"shop-{time.time_ns()}"
    plain, empty = topics.create(2, name=f"{prefix}.log"), topics.create(name=f"{prefix}-new.log")
    topics.fill(plain, 0, ["a topic of the user's own"])
    log = KafkaLog.for_job(f"{prefix}-eu", topics.servers)
    log.create()
    start_driver(log, "first")
    log.close()

    source = KafkaSource(pattern=f"{prefix}.*", bootstrap_servers=topics.servers)
    for _ in range(2):
        found = listed(source).splits
        assert [one.split_id for one in found] == [f"{plain}/0@0..1", f"{plain}/1@0..0"]
    topics.fill(empty, 0, ["the first record shows that it is no log"])
    assert [one.split_id for one in listed(source).splits] == [
        f"{empty}/0@0..1",
        f"{plain}/0@0..1",
        f"{plain}/1@0..0",
    ]
    by_name = listed(topics.source(f"{prefix}-eu.log")).splits
    assert [one.split_id for one in by_name] == [f"{prefix}-eu.log/0@0..1"]


def test_what_a_checkpoint_needs_and_retention_has_removed_is_named(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, 0, [str(one) for one in range(10)])
    source = topics.source(topic, batch_rows=2)
    found = listed(source)
    with closing(opened(source, found.splits)) as reader:
        read(reader, ReadOut(), rows=2)
        state = reader.snapshot_state(1)
    topics.admin.delete_records({TopicPartition(topic, 0): 5})

    restored = source.spec().create_reader()
    with closing(restored):
        restored.open(FakeContext(attempt_number=1), state)
        with pytest.raises(SourceError) as caught:
            read(restored, ReadOut())

    assert f"partition {topic}/0: offset 2 is to be read next" in str(caught.value)
    assert "there are 5 to 10, exclusive" in str(caught.value)
    assert final_of(caught.value) == INPUT_GONE, "another try reads from the same offset"


def test_a_topic_that_was_made_again_is_not_taken_for_the_old_one(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, 0, ["a", "b"])
    source = topics.source(topic, bounded=False, batch_rows=1)
    found = listed(source)
    with closing(opened(source, found.splits)) as reader:
        read(reader, ReadOut(), rows=1)
        state = reader.snapshot_state(1)
    topics.delete(topic)

    gone = source._discovery.listing({(topic, 0): "an id"}, is_first=False)
    topics.create(name=topic)
    topics.fill(topic, 0, ["x", "y", "z"])
    with closing(source.spec().create_reader()) as restored:
        restored.open(FakeContext(attempt_number=1), state)
        with pytest.raises(
            SourceError, match=r"topic topic-.*it has id .* and the topic that was read had"
        ):
            read(restored, ReadOut(), rows=3)

    assert (gone.where, "any more" in gone.problem) == (f"topic {topic}", True)
    again = source._discovery.listing({(topic, 0): "an id"}, is_first=False)
    assert "the topic that was read had an id" in again.problem


def test_a_topic_that_is_deleted_while_it_is_read_is_named(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "KAFKA_METADATA_S", 1.0)
    topic = topics.create()
    topics.fill(topic, 0, ["a"])
    source = topics.source(topic, bounded=False)
    with closing(opened(source, listed(source).splits)) as reader:
        out = read(reader, ReadOut(), rows=1)
        topics.delete(topic)
        with pytest.raises(SourceError, match=rf"topic {topic}: it is not at .* any more"):
            read(reader, out, rows=2)


def test_a_restored_reader_continues_at_its_offset_and_gets_new_partitions(
    topics: Topics,
) -> None:
    topic = topics.create(1)
    topics.fill(topic, 0, [str(one) for one in range(6)])
    source = topics.source(topic, bounded=False, batch_rows=2, starting="earliest")
    found = listed(source)
    with closing(opened(source, found.splits)) as reader:
        first = read(reader, ReadOut(), rows=4)
        state = reader.snapshot_state(1)
    topics.admin.create_partitions({topic: 2})
    topics.fill(topic, 1, ["p1"])

    later = topics.source(topic, bounded=False, starting="latest")
    new = later._discovery.listing({(topic, 0): ""}, is_first=False).splits
    with closing(source.spec().create_reader()) as restored:
        restored.open(FakeContext(attempt_number=1), state)
        restored.add_splits([one.content for one in new])
        out = read(restored, ReadOut(), rows=3)

    assert [one.split_id for one in new] == [f"{topic}/1@0.."]
    assert first.places == [(0, one) for one in range(4)]
    assert out.places == [(0, 4), (0, 5), (1, 0)]


def test_json_is_a_struct_and_a_bad_value_is_named_by_its_offset(topics: Topics) -> None:
    topic = topics.create()
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    source = topics.source(topic, decode="json", value_schema=schema)
    topics.fill(topic, 0, ['{"id": 1, "name": "a", "more": []}', '{"id": 2}', None], key=b"k")
    with closing(opened(source, listed(source).splits)) as reader:
        out = read(reader, ReadOut(), rows=3)
    assert out.values == [{"id": 1, "name": "a"}, {"id": 2, "name": None}, None]
    assert out.batches[0].schema == source.settle_schema()

    topics.fill(topic, 0, ['{"id": "three"}'])
    with closing(opened(source, listed(source).splits)) as reader:
        with pytest.raises(SourceError, match=rf"partition {topic}/0, offset 3: its value"):
            read(reader, ReadOut(), rows=4)
        assert reader.current_split() == f"{topic}/0@0..4"


def test_a_missing_topic_and_a_broker_that_is_not_there_are_named(topics: Topics) -> None:
    with pytest.raises(SourceError, match=r"topic nobody: there is no such topic at 127"):
        topics.source("nobody").settle_schema()
    silent = Cluster(bootstrap_servers="127.0.0.1:9", timeout_s=0.5)
    began = time.monotonic()
    with pytest.raises(SourceError, match=r"Kafka at 127.0.0.1:9: no answer for"):
        silent.topics(["a"], None)
    assert time.monotonic() - began < 10
