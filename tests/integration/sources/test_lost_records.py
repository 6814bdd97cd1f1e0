"""A topic that has lost its last records, as by a machine's crash without a replica, and has got others since."""

from __future__ import annotations

import shutil
import time
from contextlib import closing
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka.structs import TopicPartition

from coordlog.api.operator import SourceReader
from coordlog.errors import SourceError
from coordlog.log.broker.embedded import EmbeddedBroker, embedded_broker
from coordlog.spark_integration.kafka.state_bytes import decode_state
from data.kafka_topics import ReadOut, Topics, listed, opened, read, topics_at
from fakes.chain_fakes import FakeContext

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
)


def made(broker: EmbeddedBroker) -> tuple[str, Topics]:
    """A topic, and how to fill it; no client is left that would notice the broker's end."""
    with topics_at(broker.bootstrap_servers) as topics:
        return topics.create(1), topics


def copy_partition(data: Path, to: Path, name: str) -> None:
    """Copy a partition of a broker that does not run, with what the broker notes of it."""
    folder = next(data.rglob(name)).parent
    target = to / folder.relative_to(data)
    shutil.rmtree(target / name, ignore_errors=True)
    shutil.copytree(folder / name, target / name)
    for each in CHECKPOINTS:
        shutil.copy(folder / each, target / each)


def read_for(reader: SourceReader, out: ReadOut, seconds: float) -> None:
    """Poll for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        polled = reader.poll()
        if polled.batch is not None:
            out.batches.append(polled.batch)
        else:
            time.sleep(polled.retry_s)


@pytest.mark.parametrize("is_restored", [False, True])
def test_new_records_at_the_offsets_of_lost_ones_are_not_passed_over(
    tmp_path: Path, *, is_restored: bool
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    with embedded_broker(data_dir=data) as broker:
        topic, topics = made(broker)
        topics.fill(topic, 0, ["kept"] * 60)
        source = topics.source(topic, bounded=False, decode="utf8")
        splits = listed(source).splits
        broker.terminate()
        copy_partition(data, copy, f"{topic}-0")
        broker.restart()
        topics.fill(topic, 0, ["lost"] * 40)

        reader, out = opened(source, splits), ReadOut()
        with closing(reader):
            read(reader, out, rows=100)
            state = reader.snapshot_state(1)
            broker.kill()
            read_for(reader, out, 2.0)
            copy_partition(copy, data, f"{topic}-0")
            broker.restart()
            topics.fill(topic, 0, ["new"] * 100)
            if is_restored:
                reader.close()
                reader = source.spec().create_reader()
                reader.open(FakeContext(), state)
                reader.start()
            with closing(reader), pytest.raises(SourceError) as caught:
                read(reader, out, rows=101)
    assert caught.value.where == f"partition {topic}/0"
    assert "has lost records that were read from offset 60 on" in caught.value.problem


def aborted(broker: EmbeddedBroker, topic: str) -> None:
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        transactional_id=f"{topic}-tx",
        api_version=(2, 4),
    )
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, value=b"aborted", partition=0).get(timeout=60)
        producer.abort_transaction()
    finally:
        producer.close(timeout=5)


@pytest.mark.parametrize("are_removed", [False, True])
def test_leaders_that_lose_nothing_are_no_fault(*, are_removed: bool) -> None:
    """Each start of the broker is another leader: of records, of offsets without records, and of none at all."""
    with embedded_broker() as broker:
        topic, topics = made(broker)
        source = topics.source(topic, bounded=False, decode="utf8")
        state, rows = None, 0
        for turn in range(3):
            if turn % 2 == 0:
                topics.fill(topic, 0, ["row"] * 5)
                rows += 5
            aborted(broker, topic)
            if state is None:
                reader = opened(source, listed(source).splits)
            else:
                reader = source.spec().create_reader()
                reader.open(FakeContext(), state)
                reader.start()
            out = ReadOut()
            with closing(reader):
                read_for(reader, out, 2.0)
                state = reader.snapshot_state(turn)
            (progress,) = decode_state(state).splits
            assert progress.rows == rows
            assert progress.position == rows + 2 * (turn + 1)
            assert progress.leader_epoch >= turn
            if turn < 2:
                if are_removed:
                    with topics_at(broker.bootstrap_servers) as now:
                        now.admin.delete_records({TopicPartition(topic, 0): progress.position})
                end = broker.kill if turn else broker.terminate
                end()
                broker.restart()
