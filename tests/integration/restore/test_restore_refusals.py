"""Restores that cannot be made exactly, on a real broker: refused before anything is appended (clauses E6, E9)."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition

from coordlog.cli.exit_status import Exit
from coordlog.errors import CoordlogError, RecordError, RestoreError, SinkError
from coordlog.log.broker.embedded import EmbeddedBroker, embedded_broker
from coordlog.log.copy import to_append
from coordlog.log.interface import Log, StoredRecord
from coordlog.log.kafka import KafkaLog
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.runtime import to_unstored
from coordlog.schemas.header import decode_header, encode_header
from coordlog.schemas.record import Kind
from jobs.file_pipeline import SUBTASKS, KilledError, Pipeline, at, kill_driver

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.clause("E9")]

_COMMAND_S = 120


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.005)  # so that a kill falls in the middle; nothing waits for it
    return batch


@dataclass(frozen=True)
class Crashed:
    """A job on a broker of its own, whose driver has died after some checkpoints."""

    broker: EmbeddedBroker
    pipeline: Pipeline
    stored: tuple[StoredRecord, ...]
    """Its log, as it was then."""

    def log(self) -> KafkaLog:
        return KafkaLog.for_job("job", self.broker.bootstrap_servers)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashed]:
    with embedded_broker() as broker:
        pipeline = Pipeline(tmp_path_factory.mktemp("job"), is_batch=False, transform=slow)
        log = KafkaLog.for_job("job", broker.bootstrap_servers)
        log.create()
        pipeline.on_broker = log
        with pytest.raises(KilledError):
            pipeline.drive(at(Kind.COMMIT_OUTCOME, 3, kill_driver))
        stored = tuple(log.read(0, log.high_watermark()))
        log.close()
        yield Crashed(broker, pipeline, stored)


def refused(crashed: Crashed, log: Log) -> CoordlogError:
    """Why the real driver refuses this log; nothing is appended."""
    before = log.high_watermark()
    crashed.pipeline.on_broker = log
    with pytest.raises((RestoreError, RecordError)) as raised:
        crashed.pipeline.drive()
    assert log.high_watermark() == before
    return raised.value


def copied(log: KafkaLog, stored: tuple[StoredRecord, ...]) -> KafkaLog:
    """The log, made, with these records."""
    log.create()
    writer = log.writer()
    writer.append([to_append(one) for one in stored], timeout_s=30)
    writer.close(timeout_s=5)
    return log


def ingest(crashed: Crashed, *more: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own; what it refuses it refuses before Spark."""
    pipeline = crashed.pipeline
    command = [str(Path(sys.executable).parent / "coordlog"), "ingest", str(pipeline.folder)]
    command += [str(pipeline.out), "--job-id", "job", "--parallelism", str(SUBTASKS)]
    command += ["--bootstrap-servers", crashed.broker.bootstrap_servers, *more]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=_COMMAND_S)


# --- what the job's own log says --------------------------------------------------------------------------------------
@pytest.mark.clause("E6")
def test_the_command_refuses_to_go_back_below_a_commit_with_status_3(crashed: Crashed) -> None:
    log = crashed.log()
    before = log.high_watermark()
    state = rebuild(log, crashed.pipeline.chain, projection_of(crashed.pipeline.chain)).state
    number, newest = min(state.completed), max(state.last_intents.values())
    done = ingest(crashed, "--from-checkpoint", str(number))

    assert done.returncode == Exit.REFUSED, done.stderr
    assert f"commits to {crashed.pipeline.out} is {newest} in the log and above {number}" in (
        done.stderr
    )
    assert log.high_watermark() == before
    log.close()


@pytest.mark.tier("faults")
def test_a_destination_of_another_log_is_refused_naming_both_before_spark(
    crashed: Crashed,
) -> None:
    """As two machines with one job id: it is made of the destination's name."""
    log = crashed.log()
    before, told = log.high_watermark(), crashed.pipeline.out / ".coordlog/log-1.json"
    told.write_text(
        '{"cluster_id": "C", "topic_id": "T", "name": "job.log at other:9092", "topic": "job.log"}'
    )
    done = ingest(crashed, "--take-over")
    told.unlink()

    assert done.returncode == Exit.FAILED, done.stderr
    here = log.identity
    assert "job 'job' writes there with another log, job.log at other:9092" in done.stderr
    assert f"(cluster {here.cluster_id}, topic id {here.topic_id})" in done.stderr
    assert "starting Spark" not in done.stderr
    assert log.high_watermark() == before
    log.close()


def test_the_topic_made_again_with_a_copy_is_refused_by_both_ids(crashed: Crashed) -> None:
    log = at_home(crashed, "made-again", without_snapshots(crashed.stored))
    was, stored = log.identity.topic_id, tuple(log.read(0, log.high_watermark()))
    log.delete()
    log.close()
    log = copied(KafkaLog.for_job("made-again", crashed.broker.bootstrap_servers), stored)

    assert f"the topic's id is {was} in the log and {log.identity.topic_id} here" in (
        str(refused(crashed, log))
    )
    log.close()


@pytest.mark.tier("faults")
def test_another_cluster_is_refused_by_both_ids(crashed: Crashed) -> None:
    first = crashed.log()
    with embedded_broker() as other:
        log = copied(KafkaLog.for_job("job", other.bootstrap_servers), crashed.stored)
        was = crashed.stored[0].record()
        there = was.attributes["cluster_id"]
        assert f"the cluster is {there} in the log and {log.identity.cluster_id} here" in (
            str(refused(crashed, log))
        )
        log.close()
    first.close()


# --- what the log has lost, or cannot be read -------------------------------------------------------------------------
def at_home(crashed: Crashed, job_id: str, stored: tuple[StoredRecord, ...]) -> KafkaLog:
    """A topic of its own on the same broker, with these records, each rewritten as if it had always been there."""
    log = KafkaLog.for_job(job_id, crashed.broker.bootstrap_servers)
    log.create()
    return copied(log, tuple(_moved(one, log) for one in stored))


def _moved(one: StoredRecord, log: KafkaLog) -> StoredRecord:
    header = one.header
    if header is None or not header.is_epoch_started:
        return one
    record = one.record()
    here = {"cluster_id": log.identity.cluster_id, "topic_id": log.identity.topic_id}
    made = to_unstored(replace(record, attributes={**record.attributes, **here}))
    return one._replace(value=made.value)


def test_a_log_cut_off_above_the_needed_offset_is_refused_by_both_offsets(
    crashed: Crashed,
) -> None:
    log = at_home(crashed, "cut-off", without_snapshots(crashed.stored))
    admin = KafkaAdminClient(bootstrap_servers=crashed.broker.bootstrap_servers)
    admin.delete_records({TopicPartition("cut-off.log", 0): 7})
    admin.close()

    assert "is at offset 0, and the log starts at 7 in the log" in str(refused(crashed, log))
    log.close()


def without_snapshots(stored: tuple[StoredRecord, ...]) -> tuple[StoredRecord, ...]:
    """The same, but that no header names a snapshot: a restore has to fold from the start."""
    made = []
    for one in stored:
        header = decode_header(one.header_bytes)
        assert header is not None
        made.append(one._replace(header_bytes=encode_header(header._replace(snapshot_offset=-1))))
    return tuple(made)


def _unknown_envelope(one: StoredRecord) -> StoredRecord:
    header = decode_header(one.header_bytes)
    assert header is not None
    return one._replace(header_bytes=encode_header(header._replace(fingerprint=0x1234)))


def _unknown_type(one: StoredRecord) -> StoredRecord:
    return _with(one, payload_type="test.unknown@7")


def _other_schema(one: StoredRecord) -> StoredRecord:
    return _with(one, attributes={"fingerprint": "0123456789abcdef"})


def _damaged(one: StoredRecord) -> StoredRecord:
    return one._replace(value=(one.value or b"")[:-3])


def _with(one: StoredRecord, **changed: Any) -> StoredRecord:  # noqa: ANN401, a record's fields
    record = one.record()
    return one._replace(value=to_unstored(replace(record, **changed)).value)


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (Kind.CHECKPOINT_TRIGGERED, _unknown_envelope, "has schema 0000000000001234"),
        (Kind.EVENT_TO_COORDINATOR, _unknown_type, "test.unknown@7"),
        (Kind.TYPE_REGISTERED, _other_schema, "has schema 0123456789abcdef in the log and "),
        (Kind.CHECKPOINT_ACKED, _damaged, "its value is damaged"),
    ],
    ids=["kind or envelope", "type", "schema", "bytes"],
)
def test_what_this_version_cannot_read_is_refused_by_its_offset(
    crashed: Crashed,
    request: pytest.FixtureRequest,
    kind: Kind,
    change: Callable[[StoredRecord], StoredRecord],
    said: str,
) -> None:
    place = next(one.offset for one in crashed.stored if one.record().kind is kind)
    changed = tuple(change(one) if one.offset == place else one for one in crashed.stored)
    name = request.node.callspec.id.replace(" ", "-")
    log = at_home(crashed, f"unreadable-{name}", without_snapshots(changed))
    error = refused(crashed, log)

    assert isinstance(error, RecordError)
    assert said in error.problem
    if kind is not Kind.EVENT_TO_COORDINATOR:
        assert error.offset == place
    log.close()


# --- what the disk has done to it -------------------------------------------------------------------------------------
_OFFSET, _CRC, _RECORDS = 0, 17, 61
"""Places in a batch of Kafka's format: what stands before its checksum that does not cover."""


def _flip(crashed: Crashed, topic: str, batch: int, place: int, bit: int) -> None:
    (segment,) = (crashed.broker.folder / "data").rglob(f"{topic}-0/*.log")
    data, starts = segment.read_bytes(), [0]
    while starts[-1] < len(data):
        (length,) = struct.unpack(">i", data[starts[-1] + 8 : starts[-1] + 12])
        starts.append(starts[-1] + 12 + length)
    with segment.open("r+b") as file:
        file.seek(starts[batch] + place)
        file.write(bytes([data[starts[batch] + place] ^ bit]))


def in_batches(crashed: Crashed, job_id: str) -> KafkaLog:
    """The same log, each three records one batch."""
    log = KafkaLog.for_job(job_id, crashed.broker.bootstrap_servers)
    log.create()
    writer = log.writer()
    moved = [_moved(one, log) for one in without_snapshots(crashed.stored)]
    for first in range(0, len(moved), 3):
        writer.append([to_append(one) for one in moved[first : first + 3]], timeout_s=30)
    writer.close(timeout_s=5)
    return log


def test_a_bit_that_has_changed_on_the_disk_is_refused_by_its_offset(crashed: Crashed) -> None:
    log = in_batches(crashed, "bit-flip")
    end = log.high_watermark()
    log.close()
    crashed.broker.terminate()
    _flip(crashed, "bit-flip.log", 4, _RECORDS + 20, 0x10)
    crashed.broker.restart()
    log = KafkaLog.for_job("bit-flip", crashed.broker.bootstrap_servers)
    log.open()
    assert log.high_watermark() == end
    error = refused(crashed, log)

    assert isinstance(error, RecordError)
    assert error.offset == 12
    assert "the broker's data is damaged" in error.problem
    assert "failed crc check" in error.problem
    log.close()


@pytest.mark.parametrize(
    ("batch", "place", "bit", "offset", "said"),
    [
        (4, _OFFSET, 0x01, 12, "calls itself 72057594037927948"),
        (4, _CRC, 0x01, 12, "failed crc check"),
    ],
    ids=["far ahead", "checksum"],
)
def test_what_the_checksum_does_not_cover_is_seen_too(
    crashed: Crashed,
    request: pytest.FixtureRequest,
    batch: int,
    place: int,
    bit: int,
    offset: int,
    said: str,
) -> None:
    """A reader that trusted a batch's own offset would end early, without a word.

    One that is a little off is seen only where the next batch comes with the same fetch, so that no test counts on it.
    """
    name = f"flip-{request.node.callspec.id.replace(' ', '-')}"
    log = in_batches(crashed, name)
    _flip(crashed, f"{name}.log", batch, place, bit)
    with pytest.raises(RecordError, match=said) as raised:
        list(log.read(0, log.high_watermark()))

    assert raised.value.offset == offset
    log.close()


# --- last: it takes the topic of the others away ----------------------------------------------------------------------
def test_an_empty_recreated_topic_is_refused_if_files_were_published(
    crashed: Crashed,
) -> None:
    """Its log says nothing: that there was another history only the destination can tell."""
    log = crashed.log()
    log.delete()
    log.create()
    with pytest.raises(SinkError, match="an earlier history of job 'job' has published"):
        crashed.pipeline.sink.refuse_earlier_output("job")
    done = ingest(crashed)

    assert done.returncode == Exit.FAILED, done.stderr
    assert "rows would be written a second time" in done.stderr
    assert log.high_watermark() == 0
    log.close()
