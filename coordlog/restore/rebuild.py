"""Restore of a job from its log: fold the records that count, check compatibility, choose the restore mode."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from coordlog.api.chain import Chain
from coordlog.errors import OptionError, RecordError, RestoreError
from coordlog.history import History, SnapshotSearch
from coordlog.kernel.inputs import Conclude, Input, Reopen, Resume, Rollback, Start
from coordlog.limits import RESTORED_STATES_BYTES_MAX
from coordlog.log.append_protocol import Place
from coordlog.log.interface import Log, LogIdentity, StoredRecord
from coordlog.payloads.gc import store_named_in
from coordlog.projections.inspection.ahead import Ahead, Furthest, place_text
from coordlog.projections.job.attempts import required
from coordlog.projections.job.checkpoint_digest import metadata_differences
from coordlog.projections.job.checkpoints import restoring_subtasks
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.remembered import has_forgotten
from coordlog.projections.job.state import CompletedCheckpoint, JobState, Phase, sorted_items
from coordlog.projections.snapshot.codec import SnapshotCodec
from coordlog.restore.compatibility import (
    RestoreMode,
    check_operators,
    describe_operators,
    stays_finished,
)
from coordlog.restore.rollback import (
    branched,
    check_begun,
    check_branch,
    check_goes_on,
    check_kept_commits,
)
from coordlog.restore.snapshots import NO_SNAPSHOT, NewestSnapshot
from coordlog.schemas.builtin_types import OperatorState
from coordlog.schemas.checkpoint_metadata import UnknownMetadataError, is_metadata, read_metadata
from coordlog.schemas.header import Header
from coordlog.schemas.payload import PayloadTypes
from coordlog.schemas.record import NO_CHECKPOINT, JobMode, Kind, Record
from coordlog.schemas.validity import Counting, Judged, Turns

__all__ = [
    "Rebuild",
    "RestoreMode",
    "Restored",
    "check_complete",
    "check_counts",
    "check_fits",
    "check_identity",
    "describe_operators",
    "first_input",
    "projection_of",
    "rebuild",
]

_log = logging.getLogger(__name__)

_CHUNK = 500
"""Records that are judged at once."""
_ALONE = 16
"""Records that are judged one by one behind one that is void, or whose turn is unfinished."""


def projection_of(chain: Chain) -> JobProjection:
    """Projection of a chain: its payload types, and the projections of its coordinators."""
    return JobProjection(
        chain.payload_types,
        {
            provider.operator_id: provider.projection
            for provider in chain.coordinators
            if provider.projection is not None
        },
    )


class Rebuild:
    """Fold of stored records into a job's state, in offset order. Applies whole turns only, and counts void records.

    Args:
        projection: Projection of the job.
        types: Payload types that the job declares.
        operators: Operators of the job. Payload types of other, removed operators may be undeclared. None: every type
            in the log must be declared.
    """

    def __init__(
        self,
        projection: JobProjection,
        types: PayloadTypes,
        operators: Collection[str] | None = None,
    ) -> None:
        self.state: JobState = projection.initial()
        self.end_offset = 0
        self.record_count = 0
        self._checkpoint_offsets: dict[int, int] = {}
        self.started_at: int | None = None
        """Offset of the snapshot from which the fold started, or None for the start of the log."""
        self._snapshots: list[NewestSnapshot] = []
        self.projection, self._types, self._operators = projection, types, operators
        self._undeclared: dict[str, int] = {}
        """Offset of the `TYPE_REGISTERED` of each payload type that the job does not declare, by type."""
        self._turns = Turns[StoredRecord]()
        self._void_count = 0
        self._furthest = Furthest()
        self._passed_over: frozenset[int] = frozenset()

    @property
    def newest_snapshot(self) -> NewestSnapshot:
        """Newest folded snapshot from which the job can start."""
        return self._snapshots[-1] if self._snapshots else NO_SNAPSHOT

    @property
    def checkpoint_offset(self) -> int | None:
        """Result of `offset_of` for the last checkpoint on this branch."""
        return self.offset_of(self.state.last_checkpoint)

    def offset_of(self, checkpoint_id: int) -> int | None:
        """Offset of a checkpoint's `CHECKPOINT_COMPLETED`, or None if the fold has not applied it."""
        return self._checkpoint_offsets.get(checkpoint_id)

    @property
    def void_count(self) -> int:
        """Number of fed records that are void: they will never count."""
        return self._void_count + sum(judged.verdict.is_void for judged in self._turns.waiting)

    @property
    def ahead(self) -> Ahead | None:
        """Void record that is furthest ahead of the last one that counts, or None."""
        for judged in self._turns.waiting:
            if judged.verdict.is_void:
                self._add_void(judged)
        return self._furthest.of(self.state)

    @property
    def counting(self) -> Counting:
        """Validity after the last record that was fed."""
        return self._turns.counting

    @property
    def place(self) -> Place:
        """End of the fed records in the log."""
        return Place(end_offset=self.end_offset, counting=self.counting)

    def begin_at(self, search: SnapshotSearch) -> None:
        """Start from the snapshot of the search, or from offset 0 if it has none. Must be called before `feed`."""
        self._passed_over = frozenset(search.passed_over)
        snapshot = search.snapshot
        if snapshot is None:
            return
        self.state = self.projection.apart(snapshot.decoded.state)
        if snapshot.decoded.checkpoint_offset is not None:
            self._checkpoint_offsets[self.state.last_checkpoint] = (
                snapshot.decoded.checkpoint_offset
            )
        self._turns.counting = snapshot.beginning.counting
        self.started_at = self.end_offset = snapshot.beginning.offset
        for key, _ in sorted_items(self.state.types):
            if key not in self._types:
                self._undeclared[key] = self.end_offset

    def feed(self, stored: StoredRecord) -> None:
        """Fold the next record; a record that was fed before is ignored.

        Raises:
            RecordError: The record counts, and cannot be read or applied.
        """
        if stored.offset < self.end_offset:
            return
        self.end_offset = stored.offset + 1
        for judged in self._turns.feed(stored):
            if judged.counts:
                self._apply(judged.entry, judged.header)
            else:
                self._void_count += 1
                self._add_void(judged)

    def _add_void(self, judged: Judged[StoredRecord]) -> None:
        if judged.header is None:
            return
        with suppress(RecordError):
            record = judged.entry.record(header=judged.header)
            self._furthest.add(judged.entry.offset, record, self.state.job_id)

    def feed_all(self, stored: Sequence[StoredRecord]) -> None:
        """Fold the next records: as `feed` of each, and faster. Raises as `feed`."""
        first = 0
        while first < len(stored):
            rest = stored[first:] if first else stored
            headers = (
                self._turns.feed_whole([each.header_bytes for each in rest])
                if rest[0].offset >= self.end_offset
                else ()
            )
            for each, header in zip(rest, headers, strict=False):
                self.end_offset = each.offset + 1
                self._apply(each, header)
            first += len(headers)
            if not headers:
                for each in rest[:_ALONE]:
                    self.feed(each)
                first += len(rest[:_ALONE])

    def drop_unusable(self, is_usable: Callable[[int], bool]) -> None:
        """Forget the newest snapshots that the job cannot start from, such as those of its former version.

        No header needs to name the last snapshot of a driver, so the search for a snapshot does not pass over it.
        """
        while self._snapshots and self._snapshots[-1].offset != self.started_at:
            if is_usable(self._snapshots[-1].offset):
                return
            self._snapshots.pop()

    def catch_up(self, log: Log, end_offset: int) -> None:
        """Fold the records below `end_offset` that are not folded yet."""
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
            self._snapshots.append(NewestSnapshot(offset=stored.offset, sequence=sequence))

    def check_started_from(self, history: History) -> None:
        """Compare the newest checkpoint of the start snapshot with its `CHECKPOINT_COMPLETED` in the log.

        If a prune has removed that record, only the checksum of the snapshot protects the checkpoint. If the record is
        another one, its offset is that of a former log, and forgotten: a copy cannot change a stored snapshot.

        Raises:
            RecordError: The checkpoint in the snapshot differs from its record.
        """
        number = self.state.last_checkpoint
        offset = self.offset_of(number)
        if self.started_at is None or offset is None or offset < history.start:
            return
        for stored in history.stored(offset, offset + 1) if offset < self.started_at else ():
            if stored.header is None:
                break
            record = stored.record()
            if record.kind is Kind.CHECKPOINT_COMPLETED and record.checkpoint_id == number:
                if not self._is_opened_since(record):
                    self._check_checkpoint(stored.offset, record)
                return
        del self._checkpoint_offsets[number]

    def _is_opened_since(self, completed: Record) -> bool:
        """Whether the job was opened again after this checkpoint, which moves its cuts (`with_opening`)."""
        checkpoint = self.state.completed.get(required(completed.checkpoint_id))
        cuts = () if checkpoint is None else checkpoint.cuts.values()
        return any(cut.sequence > required(completed.sequence) for cut in cuts)

    def _check_checkpoint(self, offset: int, record: Record) -> None:
        """Refuse a checkpoint that differs from its record (clause E9: inexact restores are refused)."""
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
                f"{difference}: a restore would lead to a state that the job never had; start the "
                "version of coordlog that wrote it, and look for altered records with `coordlog verify`",
            )

    def _check_type(self, offset: int, record: Record) -> None:
        key = record.payload_type or ""
        if key not in self._types:
            self._undeclared[key] = offset
            return
        declared = self._types.by_key(key)
        own = f"{declared.fingerprint:016x}"
        recorded = record.attributes.get("fingerprint", "(none)")
        if own != recorded:
            was, now = _name_in(record.payload or b""), _name_in(declared.schema_json.encode())
            what_to_do = (
                "declare the change as a new version, and keep the earlier class, with `upcast`"
            )
            if was not in (None, now):
                what_to_do = f"its class was named {was!r} and is {now!r} now; name it as it was"
            raise RecordError(
                offset,
                Kind.TYPE_REGISTERED.value,
                f"payload type {key} has schema {recorded} in the log and {own} here: {what_to_do}",
            )

    def _check_undeclared(self, record: Record) -> None:
        """Refuse an undeclared type, unless its operator was removed (clause E8: the user has to allow it)."""
        operators, operator_id = self._operators, record.operator_id
        if operators is not None and operator_id is not None and operator_id not in operators:
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
    """Summary of a rebuild, for display."""

    mode: RestoreMode
    checkpoint_id: int
    """Checkpoint from which the job continues, or -1 for none."""
    checkpoint_offset: int | None
    """Offset of that checkpoint's `CHECKPOINT_COMPLETED`."""
    snapshot_offset: int | None = None
    """Offset of the snapshot from which the fold started, or None for the start of the log."""
    record_count: int
    """Number of folded records after the start of the fold, without void records."""
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
    """Fold the log up to its high watermark, from the newest usable snapshot, or from offset 0 if there is none.

    Args:
        log: Log of the job.
        chain: Chain of the job.
        projection: Projection of the chain.
        on_progress: Called every second or so with the offset reached and the high watermark.
        is_whole: Fold from the start of the log even if there are newer snapshots, for a caller that watches all
            records. If a pruned log begins with an unusable snapshot, the fold starts from the newest usable one.
        watch: Called with each record before it is folded, also with void records.

    Raises:
        RecordError: A record that counts cannot be read or applied.
        RestoreError: The first records of the log were removed, and there is no snapshot to start from.
        PrunedMeanwhileError: The log was pruned during the restore.
        LogUnavailableError: The log has made no progress within its time limit.
    """
    operators = frozenset(link.operator_id for link in chain.links)
    rebuilt = Rebuild(projection, chain.payload_types, operators)
    history = History(log)
    codec, open_payload = SnapshotCodec(projection, operators), chain.payload_types.open_payload
    search = history.search(codec, open_payload, is_whole=is_whole)
    rebuilt.begin_at(search)
    rebuilt.check_started_from(history)
    if history.start > rebuilt.end_offset:
        raise _no_beginning(history, search)
    reported_s, records = time.monotonic(), history.stored(rebuilt.end_offset)
    while chunk := list(itertools.islice(records, _CHUNK)):
        if watch is not None:
            for stored in chunk:
                watch(stored)
        rebuilt.feed_all(chunk)
        if on_progress is not None and time.monotonic() - reported_s > 1.0:
            reported_s = time.monotonic()
            on_progress(chunk[-1].offset + 1, history.end)
    rebuilt.end_offset = history.end
    rebuilt.drop_unusable(lambda offset: history.is_usable(codec, offset, open_payload))
    return rebuilt


def _no_beginning(history: History, search: SnapshotSearch) -> RestoreError:
    """Error for a log whose first records were removed and that has no usable snapshot to replace them."""
    start, name = history.start, history.log.identity.name
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
        store = store_named_in(history)
        advice = (
            f"check that the payload store can be read: the history names {store!r}; or {advice}"
        )
    elif "projection" in why_not:
        advice = f"start the version of the job that pruned it, or one with defaults for added fields; or {advice}"
    elif "payload type" in why_not:
        advice = f"start a version of the job that declares this payload type, as the pruning one did; or {advice}"
    return RestoreError(
        name,
        "the snapshot with which its log begins, in place of the records before it,",
        f"at offset {start}",
        f"not usable ({why_not})",
        advice,
    )


def check_identity(job_id: str, state: JobState, identity: LogIdentity) -> None:
    """Refuse a history that was recorded in another log (clause E9: inexact restores are refused).

    Positions outside, such as in a sink, refer to that other log.

    Raises:
        RestoreError: Before anything was appended.
    """
    for part, key, own in (
        ("the cluster", "cluster_id", identity.cluster_id),
        ("the topic's id", "topic_id", identity.topic_id),
    ):
        recorded = state.launch.get(key, own)
        if recorded != own:
            raise RestoreError(
                job_id,
                part,
                recorded,
                own,
                "use the broker that the job was begun on; if it is lost, `coordlog adopt "
                f"{job_id} --from FILE` puts an exported history on another one",
            )


def check_counts(job_id: str, rebuilt: Rebuild) -> None:
    """Refuse a log that has records, none of which counts: it is a part of another history.

    A first driver that died cannot have left such a log. Its first append is one `EPOCH_STARTED`, which the broker
    stores whole or not at all, and the first record of epoch 0 always counts; only its later copies are void.
    Offsets without a record, such as transaction markers, change only the next step.

    Raises:
        RestoreError: Before anything was appended.
    """
    if rebuilt.state.epoch == -1 and rebuilt.void_count > 0:
        next_step = (
            "if an adoption was cut off run `coordlog adopt` again; else they are of another log of "
            f"this name: see `coordlog history {job_id}`, then `coordlog delete {job_id}`"
        )
        if rebuilt.void_count < rebuilt.end_offset:
            next_step = (
                "the others were removed, by compaction if the topic has had cleanup.policy=compact: put an export "
                "of the job on a new topic with `coordlog adopt`, or use another job id"
            )
        raise RestoreError(
            job_id,
            "the first record that counts",
            f"none of the {rebuilt.void_count} below offset {rebuilt.end_offset}",
            "needed",
            next_step,
        )


def check_complete(job_id: str, rebuilt: Rebuild) -> None:
    """Refuse a log that has lost records in front of others: without them the job would go back unasked.

    If the records behind may be of one append that was cut off, it only warns.

    Raises:
        RestoreError: Before anything was appended.
    """
    ahead, state = rebuilt.ahead, rebuilt.state
    if ahead is None:
        return
    if ahead.is_of_one_group:
        if ahead.epoch == state.epoch:
            _log.warning(
                "job=%s: the record at offset %d has %s, and the last one that counts has sequence %d: an append "
                "was cut off, or the log has lost records; then rows that were committed may come again",
                *(job_id, ahead.offset, ahead.place, state.next_sequence - 1),
            )
        return
    raise RestoreError(
        job_id,
        f"the record at offset {ahead.offset}",
        f"of {ahead.place}",
        f"void, as the last record that counts has {place_text(state.epoch, state.next_sequence - 1)}",
        "records between them are lost: restore the data of the broker, or put an export of the job on "
        "a new topic with `coordlog adopt`, or use another job id",
    )


def check_fits(
    job_id: str,
    state: JobState,
    chain: Chain,
    *,
    parallelism: int,
    mode: JobMode,
    restore: str | None = None,
    is_again: bool = False,
    allow_non_restored_state: Collection[str] = (),
    from_checkpoint: int | None = None,
) -> tuple[str, ...]:
    """Refuse a job that is incompatible with its history; the error names the difference (E6 to E9: exact or refused).

    Args:
        job_id: Id of the job.
        state: State folded from its log.
        chain: Chain of the job.
        parallelism: Number of subtasks to start.
        mode: `batch` or `streaming`.
        restore: Option of the user: `rollback`, `resume`, or None for the mode's default.
        is_again: Whether a job that has finished is opened again.
        allow_non_restored_state: Operators that the job no longer has and whose state may be dropped.
        from_checkpoint: Older checkpoint to roll back to, or None.

    Returns:
        Operators whose destination must not hold output of this job yet: all operators of a new job, and operators
        that write elsewhere after a rollback to an older checkpoint (clause E6: no intent is dropped).

    Raises:
        RestoreError: Before anything was appended.
        OptionError: A resume, or opening the finished job again, is impossible.
    """
    if state.epoch == -1 and from_checkpoint is None:
        return tuple(
            provider.operator_id for provider in chain.coordinators if provider.sink is not None
        )
    own = {"job_id": job_id, "mode": mode}
    advice = {
        "job_id": "a topic holds one job: use its own; if `coordlog fork` was cut off, run it again",
        "mode": "run it in the same mode, or use another job id",
    }
    recorded = {"job_id": state.job_id, **dict(state.launch.items())} if state.epoch >= 0 else own
    for fact in ("job_id", "mode"):
        if recorded.get(fact) != own[fact]:
            raise RestoreError(job_id, fact, str(recorded.get(fact)), own[fact], advice[fact])
    new_destinations = check_begun(job_id, state, chain, restore=restore)
    if from_checkpoint is None:
        check_goes_on(job_id, state, chain)
    else:
        new_destinations += check_branch(
            job_id,
            state,
            chain,
            from_checkpoint,
            restore=restore,
            is_batch=mode is JobMode.BATCH,
            is_again=is_again,
        )
        state = branched(state, from_checkpoint)
    way, _ = first_input(_as_taken_over(state), chain, restore=restore, is_again=is_again)
    if way is RestoreMode.RESUME:
        check_kept_commits(job_id, state, chain)
    allowed = allow_non_restored_state
    check_operators(job_id, state, chain, parallelism=parallelism, mode=way, allowed=allowed)
    _check_parallelism(job_id, state, chain, parallelism, way)
    return new_destinations


def _check_parallelism(
    job_id: str, state: JobState, chain: Chain, parallelism: int, mode: RestoreMode
) -> None:
    """Refuse another parallelism, unless the job goes back to a checkpoint or is opened again: then states can move.

    With fewer subtasks than the checkpoint has, the remaining subtasks take the states of the removed ones. The last
    epoch may have had another parallelism than the checkpoint.
    """
    was = len(state.subtasks)
    recorded, own = str(was), str(parallelism)
    if was != parallelism and mode in (RestoreMode.RESUME, RestoreMode.SETTLE):
        advice = (
            f"run it with parallelism {was} until it has ended"
            if mode is RestoreMode.SETTLE
            else f"run it with parallelism {was}, or go back with restore='rollback'"
        )
        raise RestoreError(job_id, "parallelism", recorded, own, advice)
    checkpoint = state.completed.get(state.last_checkpoint)
    if mode not in (RestoreMode.ROLLBACK, RestoreMode.AGAIN, RestoreMode.RESUME):
        return
    if checkpoint is None:
        return
    is_rescaled = checkpoint.parallelism != parallelism
    if is_rescaled:
        _check_handed_over(job_id, checkpoint, parallelism)
    for link in chain.links:
        if link.merge_states is not None:
            continue
        for subtask in range(parallelism):
            numbers = restoring_subtasks(checkpoint.parallelism, parallelism, subtask)
            if not is_rescaled and stays_finished(state, checkpoint, numbers, mode):
                continue
            if _count_states(checkpoint, numbers, link.operator_id) > 1:
                advice = f"pass `merge_states=` to its {type(link).__name__}"
                raise RestoreError(
                    job_id,
                    f"the state of operator {link.operator_id!r} in checkpoint "
                    f"{checkpoint.checkpoint_id}",
                    f"of {checkpoint.parallelism} subtasks, of which {list(numbers)} would be one"
                    if is_rescaled
                    else f"of several subtasks, which had finished before they became subtask {subtask},",
                    f"parallelism {parallelism}, with an operator that has no `merge_states`",
                    f"{advice}, or run with parallelism {checkpoint.parallelism} or more"
                    if is_rescaled
                    else advice,
                )


def _check_handed_over(job_id: str, checkpoint: CompletedCheckpoint, parallelism: int) -> None:
    """Refuse a rescaling that gives one subtask states above the size limit (E7: refused before any append)."""
    for subtask in range(parallelism):
        numbers = restoring_subtasks(checkpoint.parallelism, parallelism, subtask)
        states = [part for number in numbers for part in _states_in(checkpoint, number)]
        size_bytes = sum(len(part.state or b"") for part in states)
        if size_bytes <= RESTORED_STATES_BYTES_MAX:
            continue
        by_operator: dict[str, int] = {}
        for part in states:
            by_operator[part.operator_id] = by_operator.get(part.operator_id, 0) + len(
                part.state or b""
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
    """The state as a new `EPOCH_STARTED` would leave it. Only fields that `first_input` reads are changed."""
    if state.phase is Phase.FAILED and state.is_end_committed:
        return replace(state, phase=Phase.ENDING)
    if state.phase in (Phase.STARTING, Phase.ENDING, Phase.FINISHED):
        return state
    return replace(state, phase=Phase.STARTING, resumed_phase=state.phase)


def _count_states(
    checkpoint: CompletedCheckpoint, subtasks: Sequence[int], operator_id: str
) -> int:
    return sum(
        part.operator_id == operator_id and part.state is not None
        for number in subtasks
        for part in _states_in(checkpoint, number)
    )


def _states_in(checkpoint: CompletedCheckpoint, subtask: int) -> Sequence[OperatorState]:
    """States of a subtask in a checkpoint. `subtask` is its number at the checkpoint's parallelism."""
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
    """Restore mode of a new epoch, and its first input; the input is None if the job stays finished.

    Args:
        state: State with this epoch's `EPOCH_STARTED` applied.
        chain: Chain of the job.
        restore: Option of the user: `rollback`, `resume`, or None for the mode's default.
        is_again: Whether a job that has finished is opened again.
        from_checkpoint: Older checkpoint to roll back to, which `check_fits` has accepted, or None.

    Raises:
        OptionError: A resume, or opening the finished job again, is impossible.
    """
    if state.phase is Phase.FINISHED:
        return _after_the_end(chain, is_again=is_again)
    if state.phase is Phase.ENDING:
        return RestoreMode.SETTLE, Conclude()
    before = state.resumed_phase
    if before is None or before is Phase.STARTING:
        return RestoreMode.START, Start()
    why_not = None
    if before in (Phase.FAILING, Phase.FAILED):
        why_not = f"the log ends with the job {before.value}"
    elif has_forgotten(state):
        why_not = "an attempt has had more events than the driver remembers"
    else:
        why_not = _not_event_sourced(chain)
    chosen_mode = restore or (RestoreMode.RESUME if state.is_batch else RestoreMode.ROLLBACK)
    if from_checkpoint is not None:
        return RestoreMode.ROLLBACK, Rollback(checkpoint_id=from_checkpoint, is_failover=False)
    if chosen_mode == RestoreMode.RESUME and why_not is None:
        return RestoreMode.RESUME, Resume()
    if restore == RestoreMode.RESUME:
        raise OptionError("restore", restore, f"'rollback': {why_not}")
    return RestoreMode.ROLLBACK, Rollback(checkpoint_id=state.last_checkpoint, is_failover=False)


def _after_the_end(chain: Chain, *, is_again: bool) -> tuple[RestoreMode, Input | None]:
    if not is_again:
        return RestoreMode.FINISHED, None
    why_not = _not_event_sourced(chain)
    if why_not is not None:
        raise OptionError(
            "again",
            "set",
            f"left out: {why_not}, and their state at the end is not in the log",
        )
    return RestoreMode.AGAIN, Reopen()


def _not_event_sourced(chain: Chain) -> str | None:
    operators = [
        provider.operator_id for provider in chain.coordinators if provider.projection is None
    ]
    return (
        f"the coordinators of {', '.join(operators)} are not event-sourced" if operators else None
    )


def restored_from(state: JobState, mode: RestoreMode) -> int:
    """Checkpoint from which a new epoch continues, or -1 for none."""
    return NO_CHECKPOINT if mode is RestoreMode.START else state.last_checkpoint


def _name_in(schema: bytes) -> str | None:
    """Name of the record that a schema in JSON describes, which is its class's; None if it shows none."""
    try:
        return str(json.loads(schema)["name"])
    except (ValueError, KeyError, TypeError):
        return None
