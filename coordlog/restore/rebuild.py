"""Rebuilds a job from its log: fold what counts, check what must fit, choose where to go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from coordlog.api.chain import Chain
from coordlog.errors import OptionError, OutOfRangeError, RecordError, RestoreError
from coordlog.kernel.inputs import Conclude, Input, Reopen, Resume, Rollback, Start
from coordlog.limits import RESTORED_STATES_BYTES_MAX
from coordlog.log.append_protocol import Place
from coordlog.log.interface import Log, LogIdentity, StoredRecord
from coordlog.payloads.gc import store_named_in
from coordlog.projections.job.attempts import required
from coordlog.projections.job.checkpoint_digest import metadata_differences
from coordlog.projections.job.checkpoints import restored_subtasks
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.remembered import has_forgotten
from coordlog.projections.job.state import CompletedCheckpoint, JobState, Phase, sorted_items
from coordlog.projections.snapshot.codec import SnapshotCodec
from coordlog.restore.compatibility import check_operators, describe_operators
from coordlog.restore.rollback import branched, check_begun, check_branch, check_goes_on
from coordlog.restore.snapshots import (
    NO_SNAPSHOT,
    NewestSnapshot,
    SnapshotSearch,
    find_snapshot,
    first_snapshot,
)
from coordlog.schemas.builtin_types import OperatorState
from coordlog.schemas.checkpoint_metadata import UnknownMetadataError, is_metadata, read_metadata
from coordlog.schemas.header import Header
from coordlog.schemas.payload import PayloadTypes
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record
from coordlog.schemas.validity import NOTHING_COUNTED, Counting, Verdict, count

__all__ = [
    "Rebuild",
    "RestoreMode",
    "Restored",
    "check_counts",
    "check_fits",
    "check_identity",
    "describe_operators",
    "first_input",
    "projection_of",
    "rebuild",
]

RestoreMode = str
"""`start`, `resume`, `rollback`, `settle`, `again` or `finished`."""

_PROGRESS_EVERY = 50_000
_LOOK_EVERY = 100
"""At the clock, in records."""


def projection_of(chain: Chain) -> JobProjection:
    """The fold that a job lives on."""
    return JobProjection(
        chain.payload_types,
        {
            provider.operator_id: provider.projection
            for provider in chain.coordinators
            if provider.projection is not None
        },
    )


class Rebuild:
    """Folds stored records, in offset order, into a job's state: whole turns only; void ones are counted.

    Args:
        projection: Of the job.
        types: Those that the job declares.
        operators: Those that it has: of others a type may be undeclared. None: no type may.
    """

    def __init__(
        self,
        projection: JobProjection,
        types: PayloadTypes,
        operators: Collection[str] | None = None,
    ) -> None:
        self.state: JobState = projection.initial()
        self.counting: Counting = NOTHING_COUNTED
        self.end_offset = 0
        self.record_count = 0
        self.void_count = 0
        self._checkpoint_offsets: dict[int, int] = {}
        self.started_at: int | None = None
        """The offset of the snapshot that the fold started from; None for the log's start."""
        self.newest_snapshot = NO_SNAPSHOT
        self.projection, self._types, self._operators = projection, types, operators
        self._undeclared: dict[str, int] = {}
        """Offsets of the registrations of types that the job does not declare."""
        self._turn: list[tuple[StoredRecord, Header | None]] = []
        self._passed_over: frozenset[int] = frozenset()

    @property
    def checkpoint_offset(self) -> int | None:
        """The offset of the `CHECKPOINT_COMPLETED` of the last checkpoint on this branch."""
        return self.offset_of(self.state.last_checkpoint)

    def offset_of(self, checkpoint_id: int) -> int | None:
        """The offset of a checkpoint's `CHECKPOINT_COMPLETED`; None where the fold did not come across it."""
        return self._checkpoint_offsets.get(checkpoint_id)

    @property
    def place(self) -> Place:
        """How far the log has been folded."""
        return Place(end_offset=self.end_offset, counting=self.counting)

    def begin_at(self, search: SnapshotSearch) -> None:
        """Start from the snapshot that was found, if there is one. Before anything else."""
        self._passed_over = frozenset(search.passed_over)
        found = search.found
        if found is None:
            return
        self.state = found.decoded.state
        if found.decoded.checkpoint_offset is not None:
            self._checkpoint_offsets[self.state.last_checkpoint] = found.decoded.checkpoint_offset
        self.counting = found.counting
        self.started_at = self.end_offset = found.offset
        for key, _ in sorted_items(self.state.types):
            if key not in self._types:
                self._undeclared[key] = found.offset

    def feed(self, stored: StoredRecord) -> None:
        """One more record; one that was folded before is passed over.

        Raises:
            RecordError: It counts, and cannot be read or applied.
        """
        if stored.offset < self.end_offset:
            return
        header = stored.header
        self.counting, verdict = count(self.counting, header)
        self.end_offset = stored.offset + 1
        if verdict is Verdict.COMPLETES and not self._turn:  # as most are
            self._apply(stored, header)
            return
        if verdict.is_void:
            self.void_count += 1
            return
        if verdict is Verdict.EPOCH:
            self.void_count += len(self._turn)
            self._turn.clear()
        if verdict is not Verdict.FITS and not self._turn:
            self._apply(stored, header)
            return
        self._turn.append((stored, header))
        if verdict is not Verdict.FITS:
            for one, its_header in self._turn:
                self._apply(one, its_header)
            self._turn.clear()

    def catch_up(self, log: Log, end_offset: int) -> None:
        """Fold what is not folded yet below `end_offset`."""
        if self.end_offset < end_offset:
            for stored in log.read(self.end_offset, end_offset):
                self.feed(stored)

    def _apply(self, stored: StoredRecord, header: Header | None) -> None:
        record = stored.record(header=header)
        if record.kind is Kind.TYPE_REGISTERED:
            self._check_type(stored.offset, record)
        elif record.payload_type in self._undeclared:
            self._check_undeclared(record)
        try:
            self.state = self.projection.apply(self.state, record)
        except RecordError as error:
            raise RecordError(stored.offset, error.kind, error.problem) from error
        self.record_count += 1
        if record.kind is Kind.CHECKPOINT_COMPLETED:
            self._check_checkpoint(stored.offset, record)
            self._checkpoint_offsets[self.state.last_checkpoint] = stored.offset
        elif record.kind is Kind.SNAPSHOT and stored.offset not in self._passed_over:
            sequence = header.sequence if header is not None else 0
            self.newest_snapshot = NewestSnapshot(offset=stored.offset, sequence=sequence)

    def check_started_from(self, log: Log) -> None:
        """Compare the newest checkpoint of the snapshot, from which the fold started, with its record in the log.

        A pruned log may have the snapshot and not that record: the snapshot has a checksum of its own.

        Raises:
            RecordError: They differ.
        """
        offset = self.offset_of(self.state.last_checkpoint)
        if self.started_at is None or offset is None or offset < log.start_offset():
            return
        for stored in log.read(offset, offset + 1):
            record = stored.record()
            if record.kind is Kind.CHECKPOINT_COMPLETED and not self._is_opened_since(record):
                self._check_checkpoint(stored.offset, record)

    def _is_opened_since(self, completed: Record) -> bool:
        """Whether a further opening has moved the cuts of this checkpoint to itself: `with_opening`."""
        checkpoint = self.state.completed.get(required(completed.checkpoint_id))
        cuts = () if checkpoint is None else checkpoint.cuts.values()
        return any(cut.sequence > required(completed.sequence) for cut in cuts)

    def _check_checkpoint(self, offset: int, record: Record) -> None:
        """Refuse a checkpoint that the fold here has otherwise than the driver that completed it (clause E9)."""
        checkpoint = self.state.completed.get(required(record.checkpoint_id))
        if checkpoint is None:
            return
        try:
            metadata = read_metadata(record.payload_type, record.payload).value
        except ValueError as error:
            raise RecordError(offset, record.kind.value, str(error)) from error
        for difference in metadata_differences(metadata, checkpoint, self.state.types):
            raise RecordError(
                offset,
                record.kind.value,
                f"{difference}: a restore would give the job a state that it has not had; start the "
                "version of coordlog that wrote it, and look for altered records with `coordlog verify`",
            )

    def _check_type(self, offset: int, record: Record) -> None:
        key = record.payload_type or ""
        if key not in self._types:
            self._undeclared[key] = offset
            return
        here = f"{self._types.by_key(key).fingerprint:016x}"
        there = record.attributes.get("fingerprint", "(none)")
        if here != there:
            raise RecordError(
                offset,
                Kind.TYPE_REGISTERED.value,
                f"payload type {key} has schema {there} in the log and {here} "
                "here: give the changed type a new version",
            )

    def _check_undeclared(self, record: Record) -> None:
        """Of an operator that the job no longer has, a type may be unknown here (clause E8)."""
        known, operator_id = self._operators, record.operator_id
        if known is not None and operator_id is not None and operator_id not in known:
            return
        key = record.payload_type or ""
        if is_metadata(key):
            problem = str(UnknownMetadataError(key.partition("@")[2]))
        else:
            problem = (
                f"payload type {key} is not one of this job's: run the version of the job that has "
                "it, or name it in an operator's `payload_types`"
            )
        raise RecordError(self._undeclared[key], Kind.TYPE_REGISTERED.value, problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a rebuild came to, for people."""

    mode: RestoreMode
    checkpoint_id: int
    """What the job goes on from, -1 for none."""
    checkpoint_offset: int | None
    """The offset of that checkpoint's `CHECKPOINT_COMPLETED`."""
    snapshot_offset: int | None = None
    """The offset of the snapshot that the fold started from; None for the log's start."""
    record_count: int
    """Those that were folded, from there on, and counted."""
    void_count: int
    seconds: float


def rebuild(
    log: Log,
    chain: Chain,
    projection: JobProjection,
    *,
    on_progress: Callable[[int, int], None] | None = None,
    is_whole: bool = False,
    watch: Callable[[StoredRecord], None] | None = None,
) -> Rebuild:
    """Fold the log to its high watermark, from the newest snapshot that this job can start from, or its start.

    Args:
        log: The job's.
        chain: The job's.
        projection: Of the chain.
        on_progress: Called now and then with the offset reached and the high watermark.
        is_whole: From the start, whatever snapshots there are: for one who looks at the records on the way. Of a pruned
            log whose first snapshot this job cannot start from, from the newest one that it can.
        watch: Given each record before it is folded, void ones too.

    Raises:
        RecordError: A record that counts cannot be read or applied.
        RestoreError: The log does not begin at its beginning, and there is no snapshot to start from; or it was
            pruned meanwhile.
        LogUnavailableError: No progress within the bound.
    """
    operators = frozenset(link.operator_id for link in chain.links)
    made = Rebuild(projection, chain.payload_types, operators)
    start, end = log.start_offset(), log.high_watermark()
    with _not_pruned_meanwhile(log, start):
        search = SnapshotSearch()
        codec = SnapshotCodec(projection, operators)
        if not codec.without_codec:
            opened = chain.payload_types.open_payload
            if not is_whole:
                search = find_snapshot(log, codec, start, end, opened)
            elif 0 < start < end:  # a pruned log: this is its whole
                search = first_snapshot(log, codec, start, opened)
                if search.found is None:
                    search = find_snapshot(log, codec, start, end, opened)
            made.begin_at(search)
            made.check_started_from(log)
        if start > made.end_offset:
            raise _no_beginning(log, start, search)
        reached = time.monotonic()
        for stored in log.read(made.end_offset, end):
            if watch is not None:
                watch(stored)
            made.feed(stored)
            if stored.offset % _LOOK_EVERY != 0 or on_progress is None:
                continue
            if stored.offset % _PROGRESS_EVERY == 0 or time.monotonic() - reached > 1.0:
                reached = time.monotonic()
                on_progress(stored.offset + 1, end)
    made.end_offset = end
    return made


@contextmanager
def _not_pruned_meanwhile(log: Log, start: int) -> Generator[None]:
    """Name a prune for what it is, where it takes away what is being read.

    Raises:
        RestoreError: The log begins above `start` now.
    """
    try:
        yield
    except OutOfRangeError as error:
        if error.start_offset <= start:
            raise
        raise RestoreError(
            log.identity.name,
            "its first offset",
            f"{error.start_offset:,}",
            f"{start:,}, as it was when the restore began,",
            "somebody has pruned it meanwhile: run the same command again",
        ) from error


def _no_beginning(log: Log, start: int, search: SnapshotSearch) -> RestoreError:
    """The log's first records are gone, and nothing that is there stands for them."""
    name = log.identity.name
    advice = "put an older export on a new topic with `coordlog adopt`, or use another job id"
    why_not = search.passed_over.get(start)
    if why_not is None or start in search.others:
        return RestoreError(
            name,
            "the first record that is needed",
            f"at offset 0, and the log starts at {start}",
            "to be folded from there",
            f"retention has removed history: {advice}",
        )
    if start in search.lost:
        said = store_named_in(log.read(start, log.high_watermark()))
        advice = f"see that it can be had from the payload store: the history names {said!r}; or {advice}"
    elif "projection" in why_not:
        advice = f"start the version of the job that pruned it, or one with defaults for added fields; or {advice}"
    return RestoreError(
        name,
        f"the snapshot at offset {start}, with which the log begins,",
        f"not to be used ({why_not})",
        "needed, as nothing else stands for what was before",
        advice,
    )


def check_identity(job_id: str, state: JobState, identity: LogIdentity) -> None:
    """Refuse a history that was written to another log: positions of the outside refer to that one (clause E9).

    Raises:
        RestoreError: Before anything was appended.
    """
    for what, key, here in (
        ("the cluster", "cluster_id", identity.cluster_id),
        ("the topic's id", "topic_id", identity.topic_id),
    ):
        there = state.launch.get(key, here)
        if there != here:
            raise RestoreError(
                job_id,
                what,
                there,
                here,
                "use the broker that the job was begun on; where it is lost, `coordlog adopt "
                f"{job_id} --from FILE` puts an exported history on another one",
            )


def check_counts(job_id: str, made: Rebuild) -> None:
    """Refuse a log in which records stand and none counts: it is another history's, or what is left of one.

    A first driver that has died leaves no such log. It appends its `EPOCH_STARTED` alone, and the broker takes a
    record whole or not at all; the first one of epoch 0 in a log always counts, and copies of it that void ones are
    stand behind it. Offsets without a record, such as a transaction's markers, say nothing.

    Raises:
        RestoreError: Before anything was appended.
    """
    if made.state.epoch == -1 and made.void_count > 0:
        raise RestoreError(
            job_id,
            "the first record that counts",
            f"none of the {made.void_count} below offset {made.end_offset}",
            "needed",
            "where an adoption was cut off run `coordlog adopt` again; else they are of another log of "
            f"this name: see `coordlog history {job_id}`, then `coordlog delete {job_id}`",
        )


def check_fits(
    job_id: str,
    state: JobState,
    chain: Chain,
    *,
    parallelism: int,
    mode: str,
    restore: str | None = None,
    is_again: bool = False,
    allow_non_restored_state: Collection[str] = (),
    from_checkpoint: int | None = None,
) -> tuple[str, ...]:
    """Refuse a job that its history does not fit, naming the difference (clauses E6 to E9).

    Args:
        job_id: The job.
        state: What its log says.
        chain: The job's.
        parallelism: How many subtasks it is to have.
        mode: `batch` or `streaming`.
        restore: As the user says; None for the mode's default.
        is_again: Whether a job that has finished is opened again.
        allow_non_restored_state: Operators that the job no longer has and whose state may go.
        from_checkpoint: The older checkpoint that it is to go back to.

    Returns:
        The operators that write where nothing of this job may stand yet: elsewhere than before, from an older
        checkpoint on (clause E6), and all of a job that is new.

    Raises:
        RestoreError: Before anything was appended.
        OptionError: A resume was asked for, or an opening again, and cannot be had.
    """
    if state.epoch == -1 and from_checkpoint is None:
        return tuple(one.operator_id for one in chain.coordinators if one.sink is not None)
    here = {"job_id": job_id, "mode": mode}
    advice = {
        "job_id": "a topic holds one job: use its own",
        "mode": "run it in the same mode, or use another job id",
    }
    there = {"job_id": state.job_id, **dict(state.launch.items())} if state.epoch >= 0 else here
    for what in ("job_id", "mode"):
        if there.get(what) != here[what]:
            raise RestoreError(job_id, what, str(there.get(what)), here[what], advice[what])
    elsewhere = check_begun(job_id, state, chain, restore=restore)
    if from_checkpoint is None:
        check_goes_on(job_id, state, chain)
    else:
        elsewhere += check_branch(
            job_id,
            state,
            chain,
            from_checkpoint,
            restore=restore,
            is_batch=mode == "batch",
            is_again=is_again,
        )
        state = branched(state, from_checkpoint)
    way, _ = first_input(_as_taken_over(state), chain, restore=restore, is_again=is_again)
    check_operators(job_id, state, chain, mode=way, allowed=allow_non_restored_state)
    if len(state.subtasks) != parallelism:
        _check_parallelism(job_id, state, chain, parallelism, way)
    return elsewhere


def _check_parallelism(
    job_id: str, state: JobState, chain: Chain, parallelism: int, mode: RestoreMode
) -> None:
    """Only a rollback and an opening again can change it.

    What subtasks kept that there are no more goes to those that are left.
    """
    was = len(state.subtasks)
    there, here = str(was), str(parallelism)
    if mode in ("resume", "settle"):
        advice = (
            f"run it with parallelism {was} until it has ended"
            if mode == "settle"
            else f"run it with parallelism {was}, or go back with restore='rollback'"
        )
        raise RestoreError(job_id, "parallelism", there, here, advice)
    checkpoint = state.completed.get(state.last_checkpoint)
    if mode not in ("rollback", "again") or checkpoint is None:
        return
    _check_handed_over(job_id, checkpoint, parallelism)
    for link in chain.links:
        if link.merge_states is not None:
            continue
        for subtask in range(parallelism):
            numbers = restored_subtasks(checkpoint.parallelism, parallelism, subtask)
            if _count_states(checkpoint, numbers, link.operator_id) > 1:
                raise RestoreError(
                    job_id,
                    f"the state of operator {link.operator_id!r} in checkpoint "
                    f"{checkpoint.checkpoint_id}",
                    f"of {checkpoint.parallelism} subtasks, of which {list(numbers)} would be one",
                    f"parallelism {parallelism}, with an operator that has no `merge_states`",
                    f"give it one, or run with parallelism {checkpoint.parallelism} or more",
                )


def _check_handed_over(job_id: str, checkpoint: CompletedCheckpoint, parallelism: int) -> None:
    """Refuse states that are too large to reach a subtask together (clause E7: refused by name, before anything)."""
    for subtask in range(parallelism):
        numbers = restored_subtasks(checkpoint.parallelism, parallelism, subtask)
        states = [one for number in numbers for one in _states_in(checkpoint, number)]
        size_bytes = sum(len(one.state or b"") for one in states)
        if size_bytes <= RESTORED_STATES_BYTES_MAX:
            continue
        by_operator: dict[str, int] = {}
        for one in states:
            by_operator[one.operator_id] = by_operator.get(one.operator_id, 0) + len(
                one.state or b""
            )
        largest = max(sorted(by_operator), key=lambda operator_id: by_operator[operator_id])
        raise RestoreError(
            job_id,
            f"the state of operator {largest!r} in checkpoint {checkpoint.checkpoint_id}",
            f"of {checkpoint.parallelism} subtasks, of which {len(numbers)} would be one, with "
            f"{size_bytes} bytes of states, {by_operator[largest]} of them its own,",
            f"parallelism {parallelism}, with at most {RESTORED_STATES_BYTES_MAX} bytes for a subtask",
            "run it with more subtasks; states that a checkpoint has put into a payload store "
            "(--payload-store) do not count",
        )


def _as_taken_over(state: JobState) -> JobState:
    """The state that `first_input` looks at, as far as it looks: as the fold of an `EPOCH_STARTED` makes it."""
    if state.phase is Phase.FAILED and state.is_end_committed:
        return replace(state, phase=Phase.ENDING)
    if state.phase in (Phase.STARTING, Phase.ENDING, Phase.FINISHED):
        return state
    return replace(state, phase=Phase.STARTING, resumed_phase=state.phase)


def _count_states(
    checkpoint: CompletedCheckpoint, subtasks: Sequence[int], operator_id: str
) -> int:
    return sum(
        one.operator_id == operator_id and one.state is not None
        for number in subtasks
        for one in _states_in(checkpoint, number)
    )


def _states_in(checkpoint: CompletedCheckpoint, subtask: int) -> Sequence[OperatorState]:
    """What a subtask of the checkpoint's own parallelism handed over."""
    part = checkpoint.finished.get(subtask)
    return checkpoint.states.get(subtask, ()) if part is None else part.states


def first_input(
    state: JobState,
    chain: Chain,
    *,
    restore: str | None = None,
    is_again: bool = False,
    from_checkpoint: int | None = None,
) -> tuple[RestoreMode, Input | None]:
    """How a new epoch goes on, from the state with its `EPOCH_STARTED` applied.

    Args:
        state: With this epoch's `EPOCH_STARTED`.
        chain: The job's.
        restore: `rollback` or `resume` where the user says so; None for the mode's default.
        is_again: Whether a job that has finished is opened again.
        from_checkpoint: The older checkpoint to go back to, which `check_fits` has looked at.

    Raises:
        OptionError: A resume was asked for, or an opening again, and cannot be had.
    """
    if state.phase is Phase.FINISHED:
        return _after_the_end(chain, is_again=is_again)
    if state.phase is Phase.ENDING:
        return "settle", Conclude()
    before = state.resumed_phase
    if before is None or before is Phase.STARTING:
        return "start", Start()
    why_not = None
    if before in (Phase.FAILING, Phase.FAILED):
        why_not = f"the log ends with the job {before.value}"
    elif has_forgotten(state):
        why_not = "an attempt has had more events than the driver remembers"
    else:
        why_not = _not_event_sourced(chain)
    wanted = restore or ("resume" if state.is_batch else "rollback")
    if from_checkpoint is not None:
        return "rollback", Rollback(checkpoint_id=from_checkpoint, is_failover=False)
    if wanted == "resume" and why_not is None:
        return "resume", Resume()
    if restore == "resume":
        raise OptionError("restore", restore, f"'rollback': {why_not}")
    return "rollback", Rollback(checkpoint_id=state.last_checkpoint, is_failover=False)


def _after_the_end(chain: Chain, *, is_again: bool) -> tuple[RestoreMode, Input | None]:
    if not is_again:
        return "finished", None
    why_not = _not_event_sourced(chain)
    if why_not is not None:
        raise OptionError(
            "again",
            "given",
            f"left out: {why_not}, and what they knew at the end is not in the log",
        )
    return "again", Reopen()


def _not_event_sourced(chain: Chain) -> str | None:
    kept = [p.operator_id for p in chain.coordinators if p.projection is None]
    return f"the coordinators of {', '.join(kept)} are not event-sourced" if kept else None


def restored_from(state: JobState, mode: RestoreMode) -> int:
    """The checkpoint that a new epoch goes on from."""
    return NO_CHECKPOINT if mode == "start" else state.last_checkpoint
