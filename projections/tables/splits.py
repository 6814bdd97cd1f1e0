"""Every split of a job: its assignments, the attempt that finished it, and work thrown away.

A *hold* is the time of one attempt with one split. A hold begins when the split is assigned to the
attempt, or when the attempt starts from a checkpoint at which its subtask had the split unfinished.
A reset to checkpoint m throws a hold away unless the attempt had finished the split before its
barrier of m (or, at a reset of one subtask, with kept committables: L4, kept finished splits). If the
job goes back to a savepoint of another branch, the holds that this savepoint has count again. A hold is
thrown away at most once on the way to the present, and then

* *in whole* if the split was assigned after the cut of m: the split is read again from its beginning;
* *in part* if the subtask had the split at m already: rows read after m, if any, are read again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, cast

from coordlog.projections.job.checkpoints import restoring_subtasks
from coordlog.projections.job.launch import LaunchInfo
from coordlog.projections.job.lifecycle import is_opened_again
from coordlog.projections.job.state import JobState, Phase, sorted_items, sorted_values
from coordlog.projections.tables.attempts import ADD_SPLITS, AttemptFold, split_ids
from coordlog.projections.tables.payload_json import Fields, PayloadReader
from coordlog.schemas.record import BATCH_COMPLETE, NO_CHECKPOINT, Kind, Record

__all__ = ["Assignment", "HoldRow", "SplitFold", "SplitPlace", "SplitRow", "ThrownAway", "splits"]

_DISCOVERED: Final = "coordlog.splits_discovered@"
NEXT_SPLITS: Final = "coordlog.next_splits@"
SPLITS_GIVEN: Final = "coordlog.splits_given@"
SKIPPED: Final = "coordlog.split_skipped@"
WITHDRAWN: Final = "coordlog.splits_withdrawn@"
"""Prefix of the payload type of withdrawn splits, before its version."""
_OF_QUERIES: Final = (Kind.REQUEST, Kind.RESPONSE)
"""Kinds that assign splits to tasks of queries: the state of reads survives each reset."""


class SplitPlace(enum.Enum):
    """Where a split is (L3: places of splits)."""

    WAITING = "waiting"
    """Assigned to no attempt."""
    ASSIGNED = "assigned"
    FINISHED = "finished"
    IN_CHECKPOINT = "in checkpoint"
    """A checkpoint that has completed, or the end of a batch job, holds all its rows."""
    COMMITTED = "committed"
    """All commits that this checkpoint and earlier ones allow, if any, are settled."""
    SKIPPED = "skipped"
    """Not read, or not any further (J2: skip poison)."""
    WITHDRAWN = "withdrawn"
    """A later listing has cut its file differently or was to leave it out; none of its rows was in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A split was sent to an attempt."""

    subtask: int
    attempt_number: int
    sequence: int
    timestamp_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrownAway:
    """An attempt's work on a split was lost."""

    operator_id: str
    split_id: str
    subtask: int
    attempt_number: int
    checkpoint_id: int
    """Checkpoint of the reset; -1 is the start."""
    sequence: int
    """Sequence of the reset."""
    is_whole: bool
    """Whether the split is read again from its beginning, not from its position in the checkpoint."""
    was_finished: bool
    reason: str
    """Reason of the attempt's end, or of the reset."""
    reread_by: tuple[int, int] | None = None
    """Subtask and number of the next attempt with the split, or None if there is none so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRow:
    """One split."""

    operator_id: str
    split_id: str
    place: SplitPlace
    discovered_us: int | None
    """Microseconds since 1970, UTC."""
    assignments: tuple[Assignment, ...]
    """Assignments in log order; splits restored from a checkpoint are not assigned again."""
    finished_by: tuple[int, int] | None
    """Subtask and number of the attempt that finished the split, or None if none did or that was thrown away."""
    rows: int | None
    """Rows of the split; of a skipped one those that stay, or None if no valid attempt recorded them."""
    thrown_away: tuple[ThrownAway, ...]
    """Work thrown away, in log order."""
    checkpoint_id: int | None
    """Checkpoint that holds the rows; -1 at the end of a batch job."""
    skipped_because: str | None = None
    """Reason of the skip, or None if the split is not skipped."""
    committed_us: int | None = None
    """Time of the commit, or None if the split is not committed."""
    rejected: int | None = None
    """Rows of the split that were left out as bad; None if it is not finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRow:
    """One hold: an attempt with a split. Each sequence is None if there is no such record so far."""

    operator_id: str
    split_id: str
    subtask: int
    attempt_number: int
    began: int
    """Sequence of the assignment, or of the start of a restored attempt; -1 if a prune has removed it."""
    ended: int | None
    """Sequence of the end of the split: finished, or skipped."""
    is_skipped: bool
    rows: int | None
    """Rows of the split if it has ended, or None if they are unknown."""
    thrown_away: int | None
    """Sequence of the reset that threw the hold away."""
    checkpoint_id: int | None
    """Checkpoint that holds the rows, or -1 for the end of a batch job; None if none does."""
    completed: int | None
    """Sequence of the completion of that checkpoint."""
    committed: int | None
    """Sequence of the record that settled its commits."""


@dataclass(slots=True, kw_only=True)
class _Completion:
    """A checkpoint has completed, or a batch job ended."""

    number: int
    sequence: int = -1
    committed_us: int | None = None
    """Time when all commits that it and earlier checkpoints allow were settled."""
    committed: int | None = None
    """Sequence of the record that settled them."""


@dataclass(slots=True, kw_only=True)
class _Hold:
    subtask: int
    attempt_number: int
    assigned: int | None
    """Sequence of the assignment, to this attempt or an earlier one, or None if it is not in the
    log."""
    finished_barrier: int | None = None
    """Last barrier before the split was finished, or before the reader released it as skipped."""
    is_skipped: bool = False
    rows: int | None = 0
    rejected: int = 0
    is_kept: bool = False
    is_over: bool = False
    completion: _Completion | None = None
    began: int = -1
    """Sequence of the record that began the hold; -1 if a prune has removed it."""
    ended: int | None = None
    """Sequence of the end of the split in this hold: finished or skipped."""
    over: int | None = None
    """Sequence of the reset that threw the hold away."""
    is_of_query: bool = False
    """Whether a task of a query has the split: no reset throws it away."""

    def is_in(self, checkpoint_id: int, completed: int) -> bool:
        """Whether a checkpoint has the end of the split in this hold; `completed` is the sequence of its completion."""
        if self.finished_barrier is None or self.ended is None:
            return False
        was_live = self.over is None or self.over > completed
        return self.finished_barrier < checkpoint_id and self.ended < completed and was_live

    def survives(self, record: Record, checkpoint_id: int) -> bool:
        if self.finished_barrier is None:
            return False
        kept = self.is_kept and record.kind is Kind.SUBTASK_RESET
        return kept or self.finished_barrier < checkpoint_id


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promise:
    """Committables that an attempt has handed over."""

    checkpoint: int
    """First checkpoint whose completion allows their commit."""
    subtask: int
    is_kept: bool
    """Whether they are of a kept split, which a reset of its subtask does not undo."""


@dataclass(slots=True, kw_only=True)
class _Thrown:
    value: ThrownAway
    reread_by: tuple[int, int] | None = None


@dataclass(slots=True, kw_only=True)
class _Split:
    discovered: int = -1
    """Sequence of the first discovery."""
    discovered_us: int | None = None
    skipped_because: str | None = None
    withdrawn_because: str | None = None
    assignments: list[Assignment] = field(default_factory=list)
    holds: dict[tuple[int, int], _Hold] = field(default_factory=dict)
    thrown: list[_Thrown] = field(default_factory=list)
    is_unknown: bool = False
    """Whether the job does not know the split, as no later record is of it: the job went back to a checkpoint from
    before a pruned log's first record, which may have it as read; or to one at which all subtasks had finished, which
    leaves out what was found later."""
    left_out: int | None = None
    """Sequence of the reset that left the split out, as all subtasks had finished. It stays so at later resets, except
    to a checkpoint that has it."""

    def hold(
        self, subtask: int, attempt_number: int, assigned: int | None, began: int | None
    ) -> _Hold:
        """The attempt's hold, begun now, at that sequence, if it has none."""
        key = (subtask, attempt_number)
        self.is_unknown, self.left_out = False, None
        known = self.holds.get(key)
        if known is None:
            known = self.holds[key] = _Hold(
                subtask=subtask,
                attempt_number=attempt_number,
                assigned=assigned,
                began=-1 if began is None else began,
            )
            for thrown in self.thrown:
                thrown.reread_by = thrown.reread_by or key
        return known

    def take_back(self, hold: _Hold) -> None:
        """The work of the hold is not lost any more."""
        attempt = (hold.subtask, hold.attempt_number)
        self.thrown = [
            thrown
            for thrown in self.thrown
            if (thrown.value.subtask, thrown.value.attempt_number) != attempt
        ]


def splits(records: Iterable[Record]) -> tuple[SplitRow, ...]:
    """The splits of a job, by operator and split id.

    Args:
        records: All that counts, in log order, from the log's first record on.
    """
    reader, attempt_fold, split_fold = PayloadReader(), AttemptFold(), SplitFold()
    for record in records:
        fields = reader.read(record)
        attempt_fold.apply(record, fields)
        split_fold.apply(record, fields, attempt_fold)
    return split_fold.rows()


class SplitFold:
    """The fold behind `splits`.

    `apply` takes each record that counts, in log order; `rows` may be called at any time.
    """

    def __init__(self) -> None:
        self._splits: dict[tuple[str, str], _Split] = {}
        self._of_subtask: dict[int, dict[tuple[str, str], None]] = {}
        """Splits of which a subtask has a hold that is not over; without those of queries."""
        self._of_attempt: dict[tuple[int, int], dict[tuple[str, str], None]] = {}
        """Splits of which an attempt has, or had, a hold."""
        self._uncommitted: dict[tuple[str, str], None] = {}
        """Splits with a finished hold that no completed checkpoint has."""
        self._requesting: dict[int, tuple[int, int]] = {}
        """Tasks of queries, as partition and task attempt, by the sequence of the open request."""
        self._cuts: dict[tuple[int, str], int] = {}
        self._ackers: dict[tuple[int, int], int] = {}
        """Number of the attempt that acked, by checkpoint and subtask."""
        self._job_id = ""
        self._parallelism, self._has_subtasks = 1, False
        self._parallelism_of: dict[int, int] = {}
        """Parallelism of each completed checkpoint."""
        self._completed_at: dict[int, int] = {}
        """Sequence at which each checkpoint has completed."""
        self._ended_at: set[int] = set()
        """Completed checkpoints at which all subtasks had finished, and from which the job was not opened again."""
        self._last = NO_CHECKPOINT
        """Last completed checkpoint of the branch."""
        self._open_intents: dict[int, int] = {}
        """Checkpoint of each intent that has no outcome, by sequence."""
        self._promised: set[_Promise] = set()
        """Committables that no completed checkpoint and no reset has taken so far."""
        self._unsettled: set[int] = set()
        """Completed checkpoints, until their commits are settled."""
        self._uncommitted_yet: list[_Completion] = []
        self._newest: _Completion | None = None
        """The last completion."""

    def begin(self, state: JobState) -> None:
        """Begin with the skipped splits, and a batch's finished ones, in the state at a pruned log's first record.

        The state has no other splits: those are in the state of the source's coordinator.
        """
        self._job_id = state.job_id
        self._parallelism, self._last = state.parallelism, state.last_checkpoint
        self._has_subtasks = state.parallelism > 0
        for key, skipped in sorted_items(state.skipped_splits):
            self._splits[key] = _Split(skipped_because=skipped.reason)
        for key, kept in () if state.is_over else sorted_items(state.kept_splits):
            split = self._splits.setdefault(key, _Split())
            hold = split.hold(kept.subtask, kept.attempt_number, None, None)
            hold.finished_barrier, hold.is_kept, hold.rows = NO_CHECKPOINT, True, None
            self._of_subtask.setdefault(kept.subtask, {})[key] = None
            self._uncommitted[key] = None
        for intent in sorted_values(state.intents):
            self._open_intents[intent.sequence] = intent.checkpoint_id
            self._unsettled.add(intent.checkpoint_id)
        if state.phase is Phase.ENDING:
            self._completed(BATCH_COMPLETE)

    def rows(self) -> tuple[SplitRow, ...]:
        """All splits so far, by operator and split id."""
        return tuple(
            self._row(key, self._splits[key])
            for key in sorted(self._splits)
            if not self._splits[key].is_unknown
        )

    def holds(self) -> Iterator[HoldRow]:
        """All holds so far, by operator and split id, those of a split in log order."""
        for operator_id, split_id in sorted(self._splits):
            for hold in self._splits[operator_id, split_id].holds.values():
                completion = hold.completion
                yield HoldRow(
                    operator_id=operator_id,
                    split_id=split_id,
                    subtask=hold.subtask,
                    attempt_number=hold.attempt_number,
                    began=hold.began,
                    ended=hold.ended,
                    is_skipped=hold.is_skipped,
                    rows=hold.rows if hold.ended is not None else None,
                    thrown_away=hold.over,
                    checkpoint_id=None if completion is None else completion.number,
                    completed=None if completion is None else completion.sequence,
                    committed=None if completion is None else completion.committed,
                )

    def apply(self, record: Record, fields: Fields | None, attempts: AttemptFold) -> None:
        """Apply one record and its decoded payload; `attempts` has applied the record before."""
        match record.kind:
            case Kind.FACT if record.attributes.get("closed") == "true":
                pass  # for a closed coordinator (A6: recorded only)
            case Kind.FACT if (record.payload_type or "").startswith(_DISCOVERED):
                for split_id in split_ids(fields):
                    split = self._split(record, split_id)
                    split.withdrawn_because = None
                    if split.discovered_us is None:
                        split.discovered_us = record.timestamp_us
                        split.discovered = -1 if record.sequence is None else record.sequence
            case Kind.FACT if (record.payload_type or "").startswith(WITHDRAWN) and fields:
                ids = fields.get("split_ids")
                for split_id in ids if isinstance(ids, list) else ():
                    self._split(record, str(split_id)).withdrawn_because = str(fields.get("why"))
            case Kind.FACT if (record.payload_type or "").startswith(SKIPPED) and fields:
                self._skipped(record, fields)
            case Kind.EVENT_TO_SUBTASK if (record.payload_type or "").startswith(ADD_SPLITS):
                self._assigned(record, split_ids(fields))
            case Kind.SPLIT_FINISHED if fields is not None:
                self._finished(record, fields)
            case Kind.REQUEST if (record.payload_type or "").startswith(NEXT_SPLITS) and fields:
                self._splits_requested(record, fields)
            case Kind.RESPONSE if (record.payload_type or "").startswith(SPLITS_GIVEN):
                self._splits_given(record, split_ids(fields))
            case Kind.ATTEMPT_STARTED:
                self._inherit(record)
            case Kind.SUBTASK_RESET if record.subtask is not None:
                self._reset(record, [record.subtask], attempts)
                subtask = record.subtask
                self._promised = {
                    promise
                    for promise in self._promised
                    if promise.subtask != subtask or promise.is_kept
                }
            case Kind.RESET_TO_CHECKPOINT:
                if record.checkpoint_id != self._last:
                    self._change_branch(record, attempts)
                    self._leave_out(record, self._last)
                else:
                    self._reset(record, sorted(self._of_subtask), attempts)
                    if self._last in self._ended_at:
                        self._leave_out(record, self._last)
                self._promised.clear()
            case Kind.EPOCH_STARTED:
                if record.job_id != self._job_id:  # forked: open commits stay with the first job
                    self._job_id = record.job_id
                    self._open_intents.clear()
                    self._unsettled.clear()
                parallelism = LaunchInfo(record.attributes).parallelism
                self._has_subtasks, self._parallelism = parallelism > 0, parallelism or 1
            case Kind.COORDINATORS_STARTED if is_opened_again(record):
                self._ended_at.discard(self._last)
            case Kind.JOB_FINISHED:
                self._unsettled.clear()
                self._settle(record)
                # All is committed: after a reopening of the job, no reset releases a split.
                self._of_subtask.clear()
                self._uncommitted.clear()
            case _:
                self._of_checkpoint(record)
        if fields is not None and fields.get("committables"):
            self._promise(record)

    def _promise(self, record: Record) -> None:
        barrier = record.last_barrier
        match record.kind:
            case Kind.CHECKPOINT_ACKED if record.checkpoint_id is not None:
                number = record.checkpoint_id
            case Kind.SUBTASK_COMPLETED | Kind.SPLIT_FINISHED:
                number = 1 + (NO_CHECKPOINT if barrier is None else barrier)
            case _:
                return
        assert record.subtask is not None, "the kind has this field"
        is_kept = record.attributes.get("kept") == "true"
        self._promised.add(_Promise(checkpoint=number, subtask=record.subtask, is_kept=is_kept))

    def _of_checkpoint(self, record: Record) -> None:
        number, sequence = record.checkpoint_id, record.sequence
        if number is None or sequence is None:
            return
        match record.kind:
            case Kind.COORDINATOR_CHECKPOINTED:
                self._cuts[number, record.operator_id or ""] = sequence
            case Kind.CHECKPOINT_ACKED if record.subtask is not None:
                assert record.attempt_number is not None
                self._ackers[number, record.subtask] = record.attempt_number
            case Kind.CHECKPOINT_COMPLETED:
                self._parallelism_of[number] = self._parallelism
                ackers = ((number, subtask) for subtask in range(self._parallelism))
                if self._has_subtasks and not any(acker in self._ackers for acker in ackers):
                    self._ended_at.add(number)
                self._completed_at[number], self._last = sequence, number
                self._completed(number, sequence)
                self._settle(record)
            case Kind.COORDINATOR_NOTIFIED if number == BATCH_COMPLETE:
                self._completed(number, sequence)
                self._settle(record)
            case Kind.COMMIT_INTENT:
                self._open_intents[sequence] = number
                self._unsettled.add(number)
                self._unsettle(number)
            case Kind.COMMIT_OUTCOME if record.attributes.get("settled") == "true":
                self._open_intents.pop(-1 if record.cause is None else record.cause, None)
                oldest_open = min(self._open_intents.values(), default=number + 1)
                self._unsettled -= {
                    unsettled
                    for unsettled in self._unsettled
                    if unsettled <= number and unsettled < oldest_open
                }
                self._settle(record)
            case _:
                pass

    def _settle(self, record: Record) -> None:
        """Mark the completions that wait for no commit any more as committed."""
        oldest = min(self._unsettled, default=None)
        waiting: list[_Completion] = []
        for completion in self._uncommitted_yet:
            if oldest is not None and oldest <= completion.number:
                waiting.append(completion)
            else:
                completion.committed_us = record.timestamp_us
                completion.committed = record.sequence
        self._uncommitted_yet = waiting

    def _unsettle(self, number: int) -> None:
        """Mark the newest completion as uncommitted: it has an intent without a committable."""
        newest = self._newest
        if newest is not None and newest.number == number and newest.committed_us is not None:
            newest.committed_us = newest.committed = None
            self._uncommitted_yet.append(newest)

    def _split(self, record: Record, split_id: str) -> _Split:
        split = self._splits.setdefault((record.operator_id or "", split_id), _Split())
        split.is_unknown, split.left_out = False, None
        return split

    def _hold(self, record: Record, split_id: str, assigned: int | None) -> _Hold:
        assert record.subtask is not None
        assert record.attempt_number is not None
        if record.kind not in _OF_QUERIES:
            held = self._of_subtask.setdefault(record.subtask, {})
            held[record.operator_id or "", split_id] = None
        attempt = (record.subtask, record.attempt_number)
        self._of_attempt.setdefault(attempt, {})[record.operator_id or "", split_id] = None
        split = self._split(record, split_id)
        hold = split.hold(record.subtask, record.attempt_number, assigned, record.sequence)
        hold.is_of_query = record.kind in _OF_QUERIES
        return hold

    def _assigned(self, record: Record, ids: list[str]) -> None:
        assert record.subtask is not None
        assert record.attempt_number is not None
        assert record.sequence is not None
        for split_id in ids:
            assignment = Assignment(
                subtask=record.subtask,
                attempt_number=record.attempt_number,
                sequence=record.sequence,
                timestamp_us=record.timestamp_us,
            )
            self._split(record, split_id).assignments.append(assignment)
            self._hold(record, split_id, record.sequence)

    def _finished(self, record: Record, fields: Fields) -> None:
        rows = fields.get("rows")
        hold = self._hold(record, str(fields.get("split_id")), None)
        barrier = record.last_barrier
        hold.finished_barrier = NO_CHECKPOINT if barrier is None else barrier
        hold.rows = rows if isinstance(rows, int) else 0
        hold.rejected = int(record.attributes.get("rejected", "0"))
        hold.is_kept = record.attributes.get("kept") == "true"
        hold.ended = record.sequence
        self._uncommitted[record.operator_id or "", str(fields.get("split_id"))] = None

    def _splits_requested(self, record: Record, fields: Fields) -> None:
        """Apply a task's request; its partition and task attempt replace subtask and attempt number."""
        partition, task = fields.get("partition"), fields.get("task_attempt_id")
        finished = fields.get("finished")
        if not isinstance(partition, int) or not isinstance(task, int) or record.sequence is None:
            return
        self._requesting[record.sequence] = (partition, task)
        by_task = replace(record, subtask=partition, attempt_number=task)
        for split in finished if isinstance(finished, list) else ():
            if isinstance(split, Mapping):
                rejected = {"rejected": str(split.get("rejected", 0))}
                self._finished(replace(by_task, attributes=rejected), cast("Fields", split))

    def _splits_given(self, record: Record, ids: list[str]) -> None:
        """Apply a response to a task of a query; it may repeat splits that the task has."""
        task = self._requesting.pop(-1 if record.cause is None else record.cause, None)
        if task is not None:
            self._assigned(replace(record, subtask=task[0], attempt_number=task[1]), ids)

    def _skipped(self, record: Record, fields: Fields) -> None:
        split_id = str(fields.get("split_id"))
        self._split(record, split_id).skipped_because = record.reason or ""
        if record.subtask is None:
            return  # recorded without a reader: an attempt with the split is reset and records it then
        rows, barrier = fields.get("rows"), record.last_barrier
        hold = self._hold(record, split_id, None)
        hold.finished_barrier = NO_CHECKPOINT if barrier is None else barrier
        hold.is_skipped = True
        hold.rows = rows if isinstance(rows, int) else None
        hold.ended = record.sequence
        self._uncommitted[record.operator_id or "", split_id] = None

    def _inherit(self, record: Record) -> None:
        """Begin the holds of a restored attempt: unfinished splits of its subtask at the checkpoint."""
        subtask, number = record.subtask, record.checkpoint_id
        assert subtask is not None
        assert record.attempt_number is not None
        if number is None or number == NO_CHECKPOINT:
            return
        parallelism = self._parallelism_of.get(number, self._parallelism)
        ackers = [
            (acker, self._ackers[number, acker])
            for acker in restoring_subtasks(parallelism, self._parallelism, subtask)
            if (number, acker) in self._ackers
        ]
        candidates = {
            key: acker for acker in reversed(ackers) for key in self._of_attempt.get(acker, ())
        }
        attempt = (subtask, record.attempt_number)
        for operator_id, split_id in sorted(candidates):
            split = self._splits[operator_id, split_id]
            before = split.holds[candidates[operator_id, split_id]]
            if before.assigned is None:
                continue
            had_it = before.assigned < self._cuts.get((number, operator_id), -1)
            is_done = before.finished_barrier is not None and before.finished_barrier < number
            if had_it and not is_done:
                self._of_subtask.setdefault(subtask, {})[operator_id, split_id] = None
                self._of_attempt.setdefault(attempt, {})[operator_id, split_id] = None
                split.hold(subtask, record.attempt_number, before.assigned, record.sequence)

    def _reset(self, record: Record, subtasks: list[int], attempts: AttemptFold) -> None:
        number = NO_CHECKPOINT if record.checkpoint_id is None else record.checkpoint_id
        for subtask in subtasks:
            held = self._of_subtask.get(subtask, {})
            for key in sorted(held):
                split = self._splits[key]
                for hold in split.holds.values():
                    if hold.subtask != subtask or hold.is_over:
                        continue
                    if not hold.survives(record, number):
                        hold.is_over, hold.over = True, record.sequence
                        split.thrown.append(self._thrown(key, hold, record, number, attempts))
                if all(hold.is_over for hold in split.holds.values() if hold.subtask == subtask):
                    del held[key]

    def _change_branch(self, record: Record, attempts: AttemptFold) -> None:
        """Throw away the holds that the checkpoint does not have, and take back those that it has."""
        number = NO_CHECKPOINT if record.checkpoint_id is None else record.checkpoint_id
        completed = self._completed_at.get(number, -1)
        is_pruned = number != NO_CHECKPOINT and number not in self._completed_at
        self._last = number
        self._of_subtask.clear()
        for key in sorted(self._splits):
            split = self._splits[key]
            for hold in split.holds.values():
                if hold.is_of_query:
                    continue
                if hold.is_in(number, completed):
                    self._of_subtask.setdefault(hold.subtask, {})[key] = None
                    if hold.is_over:
                        hold.is_over, hold.over = False, None
                        split.take_back(hold)
                elif not hold.is_over:
                    hold.is_over, hold.over = True, record.sequence
                    split.thrown.append(self._thrown(key, hold, record, number, attempts))
            split.is_unknown = is_pruned

    def _leave_out(self, record: Record, number: int) -> None:
        """Mark the splits that the job does not know after a reset: see `_Split.is_unknown`."""
        # With more subtasks than it had, a checkpoint has some that can read what was found later.
        is_over = number in self._ended_at and self._parallelism <= self._parallelism_of[number]
        for (operator_id, _), split in self._splits.items():
            is_live = any(not hold.is_over for hold in split.holds.values())
            if is_live or split.skipped_because is not None:
                split.is_unknown, split.left_out = False, None
                continue
            cut = self._cuts.get((number, operator_id), -1)
            if split.left_out is not None and split.discovered < cut < split.left_out:
                split.left_out = None
            if is_over and split.left_out is None:
                split.left_out = record.sequence
            split.is_unknown = split.is_unknown or split.left_out is not None

    def _thrown(
        self,
        key: tuple[str, str],
        hold: _Hold,
        record: Record,
        checkpoint_id: int,
        attempts: AttemptFold,
    ) -> _Thrown:
        attempt = attempts.row_of(hold.subtask, hold.attempt_number)
        reason = None if attempt is None else attempt.reason
        cut = self._cuts.get((checkpoint_id, key[0]), -1)
        return _Thrown(
            value=ThrownAway(
                operator_id=key[0],
                split_id=key[1],
                subtask=hold.subtask,
                attempt_number=hold.attempt_number,
                checkpoint_id=checkpoint_id,
                sequence=-1 if record.sequence is None else record.sequence,
                is_whole=hold.assigned is not None and hold.assigned > cut,
                was_finished=hold.finished_barrier is not None and not hold.is_skipped,
                reason=reason or f"the job went back to checkpoint {checkpoint_id}",
            )
        )

    def _completed(self, number: int, sequence: int | None = None) -> None:
        allowed = {
            promised
            for promised in self._promised
            if promised.checkpoint <= number or number == BATCH_COMPLETE
        }
        self._promised -= allowed
        if allowed:
            self._unsettled.add(number)
        completion = self._newest = _Completion(
            number=number, sequence=-1 if sequence is None else sequence
        )
        self._uncommitted_yet.append(completion)
        for key in list(self._uncommitted):
            is_left = False
            for hold in self._splits[key].holds.values():
                barrier = hold.finished_barrier
                if barrier is None or hold.is_over or hold.completion is not None:
                    continue
                if barrier < number or number == BATCH_COMPLETE:
                    hold.completion = completion
                else:
                    is_left = True
            if not is_left:
                del self._uncommitted[key]

    def _row(self, key: tuple[str, str], split: _Split) -> SplitRow:
        live = [hold for hold in split.holds.values() if not hold.is_over]
        done = next((hold for hold in reversed(live) if hold.finished_barrier is not None), None)
        is_finished = done is not None and not done.is_skipped
        completion = None if done is None else done.completion
        if split.skipped_because is not None and not is_finished:
            place = SplitPlace.SKIPPED
        elif done is None and not live and split.withdrawn_because is not None:
            place = SplitPlace.WITHDRAWN
        elif done is None:
            place = SplitPlace.ASSIGNED if live else SplitPlace.WAITING
        elif completion is None:
            place = SplitPlace.FINISHED
        else:
            is_committed = completion.committed_us is not None
            place = SplitPlace.COMMITTED if is_committed else SplitPlace.IN_CHECKPOINT
        return SplitRow(
            operator_id=key[0],
            split_id=key[1],
            place=place,
            discovered_us=split.discovered_us,
            assignments=tuple(split.assignments),
            finished_by=None
            if done is None or done.is_skipped
            else (done.subtask, done.attempt_number),
            rows=None if done is None else done.rows,
            thrown_away=tuple(_with_reader(thrown) for thrown in split.thrown),
            checkpoint_id=None if completion is None else completion.number,
            skipped_because=split.skipped_because,
            committed_us=completion.committed_us
            if completion is not None and place is SplitPlace.COMMITTED
            else None,
            rejected=done.rejected if done is not None and is_finished else None,
        )


def _with_reader(thrown: _Thrown) -> ThrownAway:
    value = thrown.value
    return ThrownAway(
        operator_id=value.operator_id,
        split_id=value.split_id,
        subtask=value.subtask,
        attempt_number=value.attempt_number,
        checkpoint_id=value.checkpoint_id,
        sequence=value.sequence,
        is_whole=value.is_whole,
        was_finished=value.was_finished,
        reason=value.reason,
        reread_by=thrown.reread_by,
    )
