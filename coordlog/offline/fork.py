"""A job that begins from a checkpoint of another job: its log begins with that job's history up to the checkpoint.

Any prefix of a log is a legal history (clause K5). So the records up to the checkpoint's completion are copied
unchanged, with their sequences, and an epoch under the new job's name and topic ends the copy. From then on the fork
is a job like any other, with that checkpoint as its last. Pending commits of the other job stay with that job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from coordlog.errors import CommandError, PayloadLostError
from coordlog.history import History
from coordlog.log.appender import Patience
from coordlog.log.interface import Log, PrunableLog
from coordlog.log.payload_store import PayloadStore
from coordlog.offline.adopt import copy_history
from coordlog.offline.epoch import begin_epoch, read_job, read_records
from coordlog.payloads.gc import addressed_in
from coordlog.projections.job.branches import is_on_the_way
from coordlog.projections.job.launch import FORMER_LOGS
from coordlog.projections.job.state import JobState
from coordlog.schemas.record import Kind, Record

__all__ = ["ForkPoint", "find_fork_point", "fork_to"]

_COMMAND: Final = "fork"
"""Command of the epoch that ends the copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPoint:
    """Place at which a job begins; made by `find_fork_point`."""

    other_id: str
    """Id of the other job, from whose log the new job begins."""
    checkpoint_id: int
    end_offset: int
    """End of the copy in the other log, exclusive: after the turn in which the checkpoint completed."""
    unsettled: tuple[int, ...]
    """Checkpoints up to this one with commits that the other job may still owe, ascending.

    The new job never makes these commits: their rows are missing unless the other job is started again.
    """


def find_fork_point(other: Log, other_id: str, checkpoint: str) -> ForkPoint:
    """Place of a checkpoint in the log of its job. Changes nothing.

    Args:
        other: Log of the other job.
        other_id: Id of the other job.
        checkpoint: Number of a completed checkpoint, or the name of a savepoint.

    Raises:
        CommandError: There is no such checkpoint, or the log has lost its beginning.
        RecordError: A record of the job cannot be read.
        RestoreError: The log is a copy.
    """
    history = History(other)
    if history.start > 0:
        raise CommandError(
            other_id,
            f"its log begins at offset {history.start}, not at 0",
            "another job can begin only from a whole history, not from a pruned one; "
            f"job {other_id} itself can go back to the checkpoints that `coordlog checkpoint {other_id}` lists",
        )
    state = read_job(other, other_id, _no_check).state
    number = _checkpoint_number(state, checkpoint)
    end, unsettled = _search(history, other_id, number)
    unsettled |= {*state.granted, *state.set_aside}
    if state.owed_complete is not None and not state.is_another_jobs:
        unsettled.add(state.owed_complete)  # its coordinators' commits are not recorded yet
    return ForkPoint(
        other_id=other_id,
        checkpoint_id=number,
        end_offset=end,
        unsettled=tuple(
            candidate
            for candidate in sorted(unsettled)
            # Checkpoints of abandoned branches do not count.
            if candidate == number or is_on_the_way(state, candidate, number)
        ),
    )


def fork_to(
    other: Log,
    log: PrunableLog,
    fork_point: ForkPoint,
    *,
    job_id: str,
    patience: Patience | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    payload_store: PayloadStore | None = None,
) -> bool:
    """Copy the history of another job, up to a checkpoint, to the log of a new job, with its addressed payloads.

    An interrupted call leaves a log that no job can be started on. Calling again continues after the copied records,
    and appends nothing if the job has begun from this checkpoint and no driver has opened it since.

    Args:
        other: Log of the other job.
        log: Log of the new job: empty, or with a part of this copy.
        fork_point: Place in the other log.
        job_id: Id of the new job.
        patience: Time limits; by default those of `limits`, and the machine's clock.
        on_progress: Called now and then with the number of copied records and the number to copy.
        payload_store: Payload store of the other job, beside which the new job's is made, or None if it has none.

    Returns:
        Whether the job begins by this call; False if an earlier one has begun it.

    Raises:
        CommandError: The new job has begun otherwise, or its log has other records than this copy's.
        FencedError: A driver of the new job was first; nothing of the copy counts.
        LogError: A log or the payload store cannot be read or written.
    """
    if _is_begun(log, job_id, fork_point):
        return False
    if payload_store is not None:
        _copy_payloads(other, fork_point.end_offset, payload_store, job_id)
    copy_history(
        other,
        log,
        job_id,
        to_offset=fork_point.end_offset,
        patience=patience,
        on_progress=on_progress,
    )
    begin_epoch(
        log,
        read_records(log),
        lambda _state: [],
        command=_COMMAND,
        job_id=job_id,
        attributes={
            "begun_from": _origin(fork_point),
            "cluster_id": log.identity.cluster_id,
            "topic_id": log.identity.topic_id,
            FORMER_LOGS: "[]",  # former logs are those of the other job
        },
        patience=patience,
    )
    return True


def _is_begun(log: Log, job_id: str, fork_point: ForkPoint) -> bool:
    """Whether an earlier call has begun the job from this checkpoint, and no driver has opened it since.

    Raises:
        CommandError: The job has begun otherwise.
    """
    state = read_records(log).state
    if state.epoch < 0 or state.job_id != job_id:
        return False
    if state.launch.get("command") == _COMMAND and state.begun_from == _origin(fork_point):
        return True
    raise CommandError(
        job_id,
        f"it has a log already, in epoch {state.epoch}",
        f"use another id, or `coordlog delete {job_id}` first",
    )


def _origin(fork_point: ForkPoint) -> str:
    return f"{fork_point.other_id}@{fork_point.checkpoint_id}"


def _no_check(_state: JobState) -> None:
    """Accept the other job in any state."""


def _checkpoint_number(state: JobState, checkpoint: str) -> int:
    if checkpoint.isdecimal():  # even if an older savepoint has such a name
        return int(checkpoint)
    number = state.savepoints.get(checkpoint)
    if number is not None:
        return number
    names = ", ".join(sorted(state.savepoints)) or "none"
    raise CommandError(
        state.job_id,
        f"there is no savepoint {checkpoint!r}",
        f"the job has: {names}; a checkpoint's number is accepted too",
    )


def _search(history: History, other_id: str, number: int) -> tuple[int, set[int]]:
    """The offset after the turn in which the checkpoint completed; and the checkpoints of open intents."""
    end: int | None = None
    is_found = False
    completed: list[int] = []
    intents = _Intents()
    for entry in history.records():
        record = entry.record
        if not entry.counts or record is None:
            continue
        intents.apply(record, completed)
        if record.kind is Kind.CHECKPOINT_COMPLETED and record.checkpoint_id is not None:
            completed.append(record.checkpoint_id)
            is_found = is_found or record.checkpoint_id == number
        if is_found and end is None and record.turn_remaining == 0:
            end = entry.offset + 1
    if end is None:
        raise CommandError(
            other_id,
            f"checkpoint {number} has not completed",
            f"completed checkpoints: {', '.join(map(str, completed)) or 'none'}",
        )
    return end, intents.unsettled()


class _Intents:
    """The intents of a job that have no outcome yet, with the checkpoints that each commits."""

    def __init__(self) -> None:
        self._job_id = ""
        self._open: dict[int, frozenset[int]] = {}
        """Checkpoints of each open intent, by the intent's sequence."""
        self._newest: dict[str, tuple[int, frozenset[int]]] = {}
        """By operator: the checkpoint of its newest intent, and all checkpoints that this intent commits."""
        self._assigned: dict[str, tuple[int, tuple[int, ...]]] = {}
        """By operator: the number of completed checkpoints considered so far, and those without an intent."""

    def apply(self, record: Record, completed: Sequence[int]) -> None:
        """Take in the next record that counts, and the checkpoints that have completed before it."""
        if record.kind is Kind.EPOCH_STARTED and record.job_id != self._job_id:
            self._job_id = record.job_id
            self._open.clear()  # intents of the job that this one was forked from
        elif record.kind is Kind.COMMIT_INTENT:
            assert record.sequence is not None, "a record that counts has one"
            self._open[record.sequence] = self._committed_by(record, completed)
        elif record.kind is Kind.COMMIT_OUTCOME and record.attributes["settled"] == "true":
            assert record.cause is not None, "an outcome has an intent"
            self._open.pop(record.cause, None)

    def _committed_by(self, intent: Record, completed: Sequence[int]) -> frozenset[int]:
        """Checkpoints of an intent: its own, and uncommitted ones before it (H1: older ones are subsumed)."""
        operator_id, number = intent.operator_id or "", intent.checkpoint_id
        newest, committed = self._newest.get(operator_id, (None, frozenset[int]()))
        if number is None or number == newest:
            return committed  # a further intent of the same completion
        count, waiting = self._assigned.get(operator_id, (0, ()))
        free = (*waiting, *completed[count:])
        committed = frozenset(candidate for candidate in free if candidate <= number)
        later = tuple(candidate for candidate in free if candidate > number)
        self._assigned[operator_id] = (len(completed), later)
        self._newest[operator_id] = (number, committed)
        return committed

    def unsettled(self) -> set[int]:
        """Checkpoints with commits of an open intent."""
        return {number for numbers in self._open.values() for number in numbers}


def _copy_payloads(other: Log, end: int, source: PayloadStore, job_id: str) -> None:
    """Copy payloads before the records that address them; those lost to the other job are lost to the new one."""
    target = PayloadStore(source.url, job_id)
    paths = {payload.path for payload in source.listed()}
    for stored in other.read(0, end):
        for address in addressed_in(stored):
            if address.path in paths:
                paths.discard(address.path)
                with suppress(
                    PayloadLostError
                ):  # a restore that needs the payload reports its name
                    target.put(address, source.get(address))
