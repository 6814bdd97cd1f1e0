"""The payloads of the log's own records. Their names begin with `coordlog.`; each schema is pinned by a golden test."""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

from coordlog.schemas.payload import Payload, fact, payload, request, response

__all__ = [
    "BUILTIN_PAYLOADS",
    "AttemptKilled",
    "AttemptRef",
    "AttemptSnapshot",
    "CheckpointMetadata",
    "CheckpointMetadataV1",
    "CheckpointMetadataV2",
    "CheckpointQueued",
    "CheckpointTriggered",
    "CheckpointWanted",
    "Committable",
    "CoordinatorCut",
    "DriverStopped",
    "EventSkipped",
    "FinishedSubtask",
    "JobSnapshot",
    "KillAttempt",
    "OperatorState",
    "Refused",
    "ReleaseSavepoint",
    "SavepointRecorded",
    "SavepointReleased",
    "SavepointTaken",
    "SchemaFingerprint",
    "SkipEvent",
    "SkipRecorded",
    "SkipSplit",
    "SnapshotTaken",
    "SnapshotWanted",
    "SplitFinished",
    "SplitSkipped",
    "StopRecorded",
    "StopRequested",
    "StopWanted",
    "SubtaskSnapshot",
    "TakeSavepoint",
    "WorkDone",
]


@payload("coordlog.operator_state", version=1)
class OperatorState(Payload):
    """What one operator of an attempt's chain hands over at a barrier."""

    operator_id: str
    state: bytes | None = None


@payload("coordlog.committable", version=1)
class Committable(Payload):
    """What one operator of an attempt hands over to be made visible, in that operator's own encoding."""

    operator_id: str
    content: bytes


@payload("coordlog.attempt_snapshot", version=1)
class AttemptSnapshot(Payload):
    """All that an attempt's chain hands over at a barrier, at the end of a split, or with its completion."""

    states: list[OperatorState]
    committables: list[Committable]


@payload("coordlog.attempt_ref", version=1)
class AttemptRef(Payload):
    """One execution attempt."""

    subtask: int
    attempt_number: int


@payload("coordlog.checkpoint_triggered", version=1)
class CheckpointTriggered(Payload):
    """The attempts that a checkpoint waits for, and the subtasks that had finished before it."""

    attempts: list[AttemptRef]
    finished_subtasks: list[int]


@payload("coordlog.split_finished", version=1)
class SplitFinished(Payload):
    """A split that an attempt has ended. In batch, `committables` hold all its rows."""

    split_id: str
    rows: int
    bytes_read: int
    committables: list[Committable]


@payload("coordlog.coordinator_cut", version=1)
class CoordinatorCut(Payload):
    """A coordinator's part of a checkpoint. `state` is None where the state is the fold at `sequence`."""

    operator_id: str
    sequence: int
    state: bytes | None = None


@payload("coordlog.subtask_snapshot", version=1)
class SubtaskSnapshot(Payload):
    """A subtask's part of a checkpoint."""

    subtask: int
    attempt_number: int
    states: list[OperatorState]


@payload("coordlog.finished_subtask", version=1)
class FinishedSubtask(Payload):
    """A subtask that had finished, with its last states."""

    subtask: int
    attempt_number: int
    states: list[OperatorState]


@payload("coordlog.checkpoint_metadata", version=1)
class CheckpointMetadataV1(Payload):
    """What `CHECKPOINT_COMPLETED` held first: nothing of the coordinators. Read, not written."""

    metadata_version: int
    job_id: str
    epoch: int
    checkpoint_id: int
    triggered_sequence: int
    cluster_id: str
    topic_id: str
    parallelism: int
    subtasks: list[SubtaskSnapshot]
    finished: list[FinishedSubtask]
    oldest_retained: int


@payload("coordlog.checkpoint_metadata", version=2)
class CheckpointMetadataV2(Payload):
    """What `CHECKPOINT_COMPLETED` held next: no hash and no fingerprints. Read, not written."""

    class Meta:
        """Name and text of the schema that is released: logs have its fingerprint."""

        schema_name = "CheckpointMetadata"
        schema_doc = (
            "What `CHECKPOINT_COMPLETED` holds: everything that a restore needs to be told by name."
        )

    metadata_version: int
    job_id: str
    epoch: int
    checkpoint_id: int
    triggered_sequence: int
    cluster_id: str
    topic_id: str
    parallelism: int
    coordinators: list[CoordinatorCut]
    subtasks: list[SubtaskSnapshot]
    finished: list[FinishedSubtask]
    in_flight_events: list[int]
    oldest_retained: int


@payload("coordlog.schema_fingerprint", version=1)
class SchemaFingerprint(Payload):
    """A payload type that the job has used, and the fingerprint of its schema as `TYPE_REGISTERED` has it."""

    payload_type: str
    fingerprint: str


@payload("coordlog.checkpoint_metadata", version=3)
class CheckpointMetadata(Payload):
    """What `CHECKPOINT_COMPLETED` holds: everything that a restore needs to be told by name."""

    metadata_version: int
    job_id: str
    epoch: int
    checkpoint_id: int
    triggered_sequence: int
    cluster_id: str
    topic_id: str
    parallelism: int
    coordinators: list[CoordinatorCut]
    subtasks: list[SubtaskSnapshot]
    finished: list[FinishedSubtask]
    in_flight_events: list[int]
    """Sequences of the events of the cut's channel state, in log order."""
    oldest_retained: int
    """Number of the oldest checkpoint that is retained after this one has completed."""
    schemas: list[SchemaFingerprint]
    """Payload types that the job has used so far."""
    state_sha256: bytes
    """Hash of the folded checkpoint: `projections.job.checkpoint_digest`. Zeros in redacted copies."""


@payload("coordlog.job_snapshot", version=1)
class JobSnapshot(Payload):
    """What `SNAPSHOT` holds: the whole job state before it, as the snapshot codec encodes it."""

    state_version: int
    schema_fingerprint: str
    """Fingerprint of the Avro schema of the encoded state."""
    state_bytes: int
    """Length of the encoded state before compression."""
    state_sha256: bytes
    state: bytes
    """The encoded state, compressed with zlib."""


@fact("coordlog.refused", version=1)
class Refused(Payload):
    """Something that an attempt or a task sent and that changes no state; the record says why."""

    what: str


@fact("coordlog.stop_requested", version=1)
class StopRequested(Payload):
    """The driver was told to stop."""

    by: str
    """Name of the signal, or `stop` if code requested it."""
    with_checkpoint: bool
    is_at_once: bool


@fact("coordlog.driver_stopped", version=1)
class DriverStopped(Payload):
    """The end of an epoch in which the job did not end: its driver does nothing any more, and its attempts are over."""

    by: str
    """Name of the signal, or `stop` if code requested it; of a start that was cut off, the signal or the error."""


@fact("coordlog.work_done", version=1)
class WorkDone(Payload):
    """A timer of a coordinator fired, or its work ended with an error; the record names the turn and the call in it."""

    call_number: int
    is_timer: bool


@fact("coordlog.split_skipped", version=1)
class SplitSkipped(Payload):
    """A split is not read, or not any further; the record has the reason. No reset undoes it (clause J2)."""

    split_id: str
    rows: int | None = None
    """Number of its rows that stay, from the first on; None if a client skips it, which does not read it."""


@fact("coordlog.event_skipped", version=1)
class EventSkipped(Payload):
    """An operator event is delivered and handled no more; the record has operator, subtask and reason (clause J2).

    An event that is sent again has a new sequence, so that direction, operator, subtask, type and
    content are what tells it.
    """

    event_sequence: int
    """Sequence of the event that was named."""
    is_down: bool
    """Whether the event is from the coordinator to the subtask."""
    event_type: str
    digest: str
    """Hash of its content: `projections.job.skips.digest_of`."""


@request("coordlog.skip_split", version=1)
class SkipSplit(Payload):
    """A client wants a split skipped; the driver itself answers, with `SkipRecorded`."""

    split_id: str
    why: str


@request("coordlog.skip_event", version=1)
class SkipEvent(Payload):
    """A client wants an event skipped; the driver itself answers, with `SkipRecorded`."""

    operator_id: str
    subtask: int
    skipped: EventSkipped
    why: str


@response("coordlog.skip_recorded", version=1)
class SkipRecorded(Payload):
    """The skip is a fact of the job."""

    was_skipped_before: bool


@request("coordlog.snapshot_wanted", version=1)
class SnapshotWanted(Payload):
    """A client wants the driver to append a `SNAPSHOT` now; the driver itself answers, with `SnapshotTaken`."""

    why: str


@response("coordlog.snapshot_taken", version=1)
class SnapshotTaken(Payload):
    """It counts; the answer's sequence is its own."""

    payload_bytes: int


@fact("coordlog.savepoint_taken", version=1)
class SavepointTaken(Payload):
    """A completed checkpoint has a name, and is retained until the name is released."""

    name: str
    checkpoint: int


@fact("coordlog.savepoint_released", version=1)
class SavepointReleased(Payload):
    """A savepoint is retained no longer than other checkpoints."""

    name: str


@request("coordlog.take_savepoint", version=1)
class TakeSavepoint(Payload):
    """A client names a checkpoint to retain; the driver itself answers, with `SavepointRecorded`."""

    name: str
    checkpoint: int | None = None
    """Number of the checkpoint, or None for the last completed one."""


@request("coordlog.release_savepoint", version=1)
class ReleaseSavepoint(Payload):
    """A client releases a savepoint; the driver itself answers, with `SavepointRecorded`."""

    name: str


@response("coordlog.savepoint_recorded", version=1)
class SavepointRecorded(Payload):
    """The savepoint is recorded as taken or released."""

    checkpoint: int
    was_so_before: bool


@request("coordlog.stop_driver", version=1)
class StopWanted(Payload):
    """A client wants the driver to stop; the driver itself answers, with `StopRecorded`, and then stops."""

    with_checkpoint: bool
    savepoint: str | None = None
    """Name under which the stop's checkpoint is retained, or None."""


@response("coordlog.stop_recorded", version=1)
class StopRecorded(Payload):
    """The stop is recorded, and begins."""

    with_checkpoint: bool
    """Whether a checkpoint comes before the end: a batch takes none."""
    was_asked_before: bool
    """Whether a stop had been requested before this one."""


@request("coordlog.trigger_checkpoint", version=1)
class CheckpointWanted(Payload):
    """A client wants a checkpoint; the driver itself answers, with `CheckpointQueued`."""


@response("coordlog.checkpoint_queued", version=1)
class CheckpointQueued(Payload):
    """A checkpoint begins as soon as one may start."""

    checkpoint: int
    """Number of the next checkpoint to begin, which is the wanted one."""


@request("coordlog.kill_attempt", version=1)
class KillAttempt(Payload):
    """A client wants the attempt of a subtask to fail; the driver itself answers, with `AttemptKilled`."""

    subtask: int
    attempt_number: int | None = None
    """Number of the attempt, or None for the live one, whichever that is."""
    why: str


@response("coordlog.attempt_killed", version=1)
class AttemptKilled(Payload):
    """The attempt has failed, and its subtask begins again from the last checkpoint."""

    attempt_number: int


BUILTIN_PAYLOADS: tuple[type[Payload], ...] = (
    AttemptKilled,
    AttemptSnapshot,
    CheckpointQueued,
    CheckpointWanted,
    KillAttempt,
    StopRecorded,
    StopWanted,
    SavepointTaken,
    SavepointReleased,
    CheckpointMetadata,
    CheckpointMetadataV1,
    CheckpointMetadataV2,
    CheckpointTriggered,
    DriverStopped,
    EventSkipped,
    JobSnapshot,
    TakeSavepoint,
    SavepointRecorded,
    ReleaseSavepoint,
    Refused,
    SkipEvent,
    SkipRecorded,
    SkipSplit,
    SnapshotTaken,
    SnapshotWanted,
    SplitFinished,
    SplitSkipped,
    StopRequested,
    WorkDone,
)
"""Payload types of records; other types are parts of these."""
