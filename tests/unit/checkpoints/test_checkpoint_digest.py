"""The hash and the fingerprints of a checkpoint's metadata, compared at a restore (clause E9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from immutables import Map

from coordlog.errors import RecordError
from coordlog.log.memory import MemoryLog
from coordlog.projections.inspection.verify import verify
from coordlog.projections.job.checkpoint_digest import NO_DIGEST, digest_of_checkpoint
from coordlog.projections.job.state import CompletedCheckpoint, Cut, FinishedPart, UpEvent
from coordlog.runtime.runtime import RuntimeOptions, to_unstored
from coordlog.schemas.builtin_types import AttemptSnapshot, CheckpointMetadata, OperatorState
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import Kind, Record
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import NotingProvider, Up, chain_of

METADATA, SNAPSHOT = payload_type_of(CheckpointMetadata), payload_type_of(AttemptSnapshot)

Harm = Callable[[Record], Record]


def completed_job(snapshot_every: int | None = None) -> HandDrivenJob:
    """A driver that has died behind one checkpoint, with an event in flight across its cut."""
    job = HandDrivenJob(
        chain_of(NotingProvider()), options=RuntimeOptions(snapshot_every=snapshot_every)
    )
    attempt = job.register(0)
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    attempt.send("source", Up(n=1))
    attempt.ack_checkpoint(checkpoint_id, states={"source": b"position 12"})
    for n in range(2, 12):
        attempt.send("source", Up(n=n))
    job.crash()
    return job


def altered(job: HandDrivenJob, kind: Kind, harm: Harm) -> MemoryLog:
    """Its log, with another record in the place of the last one of that kind."""
    records = [stored.record() for stored in job.log.records]
    place = max(n for n, record in enumerate(records) if record.kind is kind)
    records[place] = harm(records[place])
    log = MemoryLog("job")
    for stored, record in zip(job.log.records, records, strict=True):
        header = stored.header
        assert header is not None
        log.store(to_unstored(record, snapshot_offset=header.snapshot_offset))
    return log


def metadata_in(record: Record) -> CheckpointMetadata:
    metadata = METADATA.decode(record.payload or b"")
    assert isinstance(metadata, CheckpointMetadata)
    return metadata


def of_another_state(record: Record) -> Record:
    """An ack with another state of as many bytes."""
    states = [OperatorState(operator_id="source", state=b"position 21")]
    return replace(record, payload=SNAPSHOT.encode(AttemptSnapshot(states=states, committables=[])))


def with_another_hash(record: Record) -> Record:
    metadata = replace(metadata_in(record), state_sha256=b"\x01" * 32)
    return replace(record, payload=METADATA.encode(metadata))


def with_another_fingerprint(record: Record) -> Record:
    metadata = metadata_in(record)
    schemas = [
        replace(schema, fingerprint="0123456789abcdef")
        if schema.payload_type == "test.up@1"
        else schema
        for schema in metadata.schemas
    ]
    assert schemas != metadata.schemas
    return replace(record, payload=METADATA.encode(replace(metadata, schemas=schemas)))


@pytest.mark.clause("E9")
@pytest.mark.parametrize(
    ("snapshot_every", "kind", "harm", "values"),
    [
        (None, Kind.CHECKPOINT_ACKED, of_another_state, ("state hash ", "comes to ")),
        (None, Kind.CHECKPOINT_COMPLETED, with_another_hash, ("01" * 32, "comes to ")),
        (4, Kind.CHECKPOINT_COMPLETED, with_another_hash, ("01" * 32, "comes to ")),
        (
            None,
            Kind.CHECKPOINT_COMPLETED,
            with_another_fingerprint,
            ("0123456789abcdef", "here has "),
        ),
        (4, Kind.CHECKPOINT_COMPLETED, with_another_fingerprint, ("0123456789abcdef", "here has ")),
    ],
)
def test_a_checkpoint_with_another_digest_is_refused_before_any_append(
    snapshot_every: int | None, kind: Kind, harm: Harm, values: tuple[str, str]
) -> None:
    job = completed_job(snapshot_every)
    kinds = {stored.record().kind for stored in job.log.records}
    assert (Kind.SNAPSHOT in kinds) == (snapshot_every is not None)
    log = altered(job, kind, harm)
    before = log.high_watermark()

    with pytest.raises(RecordError) as raised:
        HandDrivenJob(job.chain, log=log)

    assert log.high_watermark() == before
    for value in ("checkpoint 1 ", *values):
        assert value in str(raised.value)
    faults = [fault.what for fault in verify(log.read(0, before)).faults]
    assert any(all(value in what for value in values) for what in faults), faults


@pytest.mark.clause("E9")
def test_an_unaltered_history_continues_from_its_start_and_a_snapshot() -> None:
    for snapshot_every in (None, 4):
        job = completed_job(snapshot_every)
        assert verify(job.log.read(0, job.log.high_watermark())).faults == []
        again = HandDrivenJob(job.chain, log=job.log)
        assert [one.state for one in again.register(0).accepted.states] == [b"position 12"]


def test_metadata_have_the_fingerprint_of_each_type_the_job_has_used() -> None:
    job = completed_job()
    (record,) = job.history(Kind.CHECKPOINT_COMPLETED)

    schemas = {schema.payload_type: schema.fingerprint for schema in metadata_in(record).schemas}

    up = payload_type_of(Up)
    assert schemas[up.key] == f"{up.fingerprint:016x}"
    assert schemas[SNAPSHOT.key] == f"{SNAPSHOT.fingerprint:016x}"


# --- the hash itself --------------------------------------------------------------------------------------------------
EVENT = UpEvent(
    sequence=9,
    operator_id="a",
    subtask=0,
    attempt_number=1,
    event_id=0,
    last_barrier=-1,
    payload_type="t@1",
    payload=b"x",
)
CHECKPOINT = CompletedCheckpoint(
    checkpoint_id=1,
    sequence=20,
    parallelism=2,
    cuts=Map({"a": Cut(sequence=7, state=b"c", projection=None)}),
    states=Map({0: (OperatorState(operator_id="a", state=b"s"),)}),
    finished=Map({1: FinishedPart(attempt_number=1, sequence=5, states=())}),
    in_flight=(EVENT,),
)


@pytest.mark.parametrize(
    "other",
    [
        replace(CHECKPOINT, checkpoint_id=2),
        replace(CHECKPOINT, parallelism=3),
        replace(CHECKPOINT, cuts=Map({"b": Cut(sequence=7, state=b"c", projection=None)})),
        replace(CHECKPOINT, cuts=Map({"a": Cut(sequence=8, state=b"c", projection=None)})),
        replace(CHECKPOINT, cuts=Map({"a": Cut(sequence=7, state=b"", projection=None)})),
        replace(CHECKPOINT, cuts=Map({"a": Cut(sequence=7, state=None, projection=None)})),
        replace(CHECKPOINT, states=Map({1: CHECKPOINT.states[0]})),
        replace(CHECKPOINT, states=Map({0: (OperatorState(operator_id="a", state=b"t"),)})),
        replace(CHECKPOINT, states=Map({0: (OperatorState(operator_id="as", state=b""),)})),
        replace(CHECKPOINT, states=Map({0: (OperatorState(operator_id="a", state=None),)})),
        replace(CHECKPOINT, finished=Map()),
        replace(
            CHECKPOINT,
            finished=Map({1: FinishedPart(attempt_number=2, sequence=5, states=())}),
        ),
        replace(CHECKPOINT, in_flight=()),
        replace(CHECKPOINT, in_flight=(EVENT._replace(payload=b"y"),)),
        replace(CHECKPOINT, in_flight=(EVENT._replace(sequence=10),)),
    ],
)
def test_each_part_that_a_restore_takes_changes_the_hash(other: CompletedCheckpoint) -> None:
    assert digest_of_checkpoint(other) != digest_of_checkpoint(CHECKPOINT) != NO_DIGEST


def test_the_state_of_a_projection_does_not_change_the_hash() -> None:
    """Another version of a projection folds to another state, and may go on."""
    cut = Cut(sequence=7, state=b"c", projection=("another", "version"))

    same = replace(CHECKPOINT, cuts=Map({"a": cut}))

    assert digest_of_checkpoint(same) == digest_of_checkpoint(CHECKPOINT)


def test_the_hash_of_a_checkpoint_is_the_one_in_older_logs() -> None:
    assert digest_of_checkpoint(CHECKPOINT).hex() == (
        "5758e3f6c6eadbfd5351132184793cbabd8ee7fba462dd2b39ba8de994ee2abd"
    )
