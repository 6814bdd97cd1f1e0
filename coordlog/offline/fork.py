"""A job that begins from a checkpoint of another one: its log begins with that one's history up to there.

Any prefix of a log is a legal history (clause K5). So the records up to the checkpoint's completion are copied as they
are, with their offsets and sequences, and an epoch under the new job's name and topic ends the copying. From then on it
is a job like any other, whose last checkpoint is that one. What the other job has to commit stays the other job's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from coordlog.errors import CommandError, OffsetGapError, PayloadLostError
from coordlog.limits import APPEND_TIMEOUT_S, WRITER_CLOSE_TIMEOUT_S
from coordlog.log.appender import Patience
from coordlog.log.copy import groups, taken_by, to_append
from coordlog.log.interface import Log
from coordlog.log.payload_store import PayloadStore
from coordlog.offline.epoch import begin_epoch, read_job, read_records
from coordlog.payloads.gc import addressed_in
from coordlog.projections.job.branches import is_on_the_way
from coordlog.projections.job.state import JobState
from coordlog.projections.tables.audit import audit_records
from coordlog.restore.destination_claim import FORMER_LOGS
from coordlog.schemas.record import Kind, Record

__all__ = ["Beginning", "begin_from", "find_beginning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where a job is to begin: made by `find_beginning`."""

    other_id: str
    checkpoint_id: int
    end_offset: int
    """Of the other log, exclusive: the turn in which the checkpoint completed is the last."""
    unsettled: tuple[int, ...]
    """Checkpoints up to this one of which the other job may still have something to commit, ascending.

    The new job never does: nobody has these rows where the other one is not started again.
    """


def find_beginning(other: Log, other_id: str, checkpoint: str) -> Beginning:
    """Where a checkpoint of a job stands in its log. Nothing is changed.

    Args:
        other: Its log.
        other_id: The job.
        checkpoint: Its number, or the name that keeps it: any that has completed.

    Raises:
        CommandError: There is no such checkpoint, or the log has lost its beginning.
        RecordError: A record of the job cannot be read.
        RestoreError: The log is a copy.
    """
    if other.start_offset() > 0:
        raise CommandError(
            other_id,
            f"its log begins at offset {other.start_offset()}, not at 0",
            "another job can begin only from a history that is whole, not from one that was pruned; "
            f"job {other_id} itself can go back to what `coordlog checkpoint {other_id}` lists",
        )
    state = read_job(other, other_id, _anything).state
    number = _number_of(state, checkpoint)
    end, unsettled = _looked_for(other, other_id, number)
    unsettled |= {*state.granted, *state.set_aside}
    if state.owed_complete is not None and not state.is_another_jobs:
        unsettled.add(state.owed_complete)  # what its coordinators commit of it stands nowhere yet
    return Beginning(
        other_id=other_id,
        checkpoint_id=number,
        end_offset=end,
        unsettled=tuple(
            one
            for one in sorted(unsettled)
            if one == number or is_on_the_way(state, one, number)  # not of branches that it left
        ),
    )


def begin_from(
    other: Log,
    log: Log,
    beginning: Beginning,
    *,
    job_id: str,
    patience: Patience | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    payload_store: PayloadStore | None = None,
) -> None:
    """Give a new job the history of another one, up to a checkpoint, with the large payloads that it addresses.

    Cut off, it leaves a log that no job can be started on: delete it, and begin again.

    Args:
        other: The other job's log.
        log: The new job's, made and empty.
        beginning: In the other log.
        job_id: The new job.
        patience: Of the take-over; default: the limits, and the machine's clock.
        on_progress: Called now and then with the records copied, and how many there are to copy.
        payload_store: The other job's; the new one's is beside it. None: it has none.

    Raises:
        CommandError: The new job's log is not empty, or something else is appended to it meanwhile.
        FencedError: A driver of the new job was first; nothing of the copy counts.
        LogError: A log, or the payload store.
    """
    there = log.high_watermark()
    if there > 0:
        raise CommandError(
            job_id,
            f"its log has {there} records, and is to begin with those of {beginning.other_id}",
            f"give another job id, or `coordlog delete {job_id}` first",
        )
    if payload_store is not None:
        _copy_payloads(other, beginning.end_offset, payload_store, job_id)
    _copy(other, log, beginning.end_offset, job_id, on_progress)
    begin_epoch(
        log,
        read_records(log),
        lambda _state: [],
        command="begin",
        job_id=job_id,
        attributes={
            "begun_from": f"{beginning.other_id}@{beginning.checkpoint_id}",
            "cluster_id": log.identity.cluster_id,
            "topic_id": log.identity.topic_id,
            FORMER_LOGS: "[]",  # where the other job was before it was adopted, this one never was
        },
        patience=patience,
    )


def _anything(_state: JobState) -> None:
    """Whatever has become of the other job."""


def _number_of(state: JobState, checkpoint: str) -> int:
    if checkpoint.isdecimal():  # even where one of before is kept under such a name
        return int(checkpoint)
    kept = state.kept.get(checkpoint)
    if kept is not None:
        return kept
    names = ", ".join(sorted(state.kept)) or "none"
    raise CommandError(
        state.job_id,
        f"no checkpoint is kept as {checkpoint!r}",
        f"those that are: {names}; a checkpoint's number will do too",
    )


def _looked_for(other: Log, other_id: str, number: int) -> tuple[int, set[int]]:
    """The offset after the turn in which the checkpoint completed; and checkpoints that open intents commit."""
    end: int | None = None
    is_found = False
    done: list[int] = []
    intents = _Intents()
    for one in audit_records(other.read(0, other.high_watermark())):
        if not one.counts or one.record is None:
            continue
        intents.apply(one.record, done)
        if one.record.kind is Kind.CHECKPOINT_COMPLETED and one.record.checkpoint_id is not None:
            done.append(one.record.checkpoint_id)
            is_found = is_found or one.record.checkpoint_id == number
        if is_found and end is None and one.record.turn_remaining == 0:
            end = one.offset + 1
    if end is None:
        raise CommandError(
            other_id,
            f"checkpoint {number} has not completed",
            f"those that have: {', '.join(map(str, done)) or 'none'}",
        )
    return end, intents.unsettled()


class _Intents:
    """The intents of a job that have no outcome yet, with the checkpoints that each commits."""

    def __init__(self) -> None:
        self._job_id = ""
        self._open: dict[int, frozenset[int]] = {}
        """By sequence."""
        self._newest: dict[str, tuple[int, frozenset[int]]] = {}
        """By operator: the checkpoint of its newest intent, and all that this one commits."""
        self._looked_at: dict[str, tuple[int, tuple[int, ...]]] = {}
        """By operator: so many of the checkpoints are committed by its intents, but for these."""

    def apply(self, record: Record, done: Sequence[int]) -> None:
        """One more record that counts, and the checkpoints that have completed before it."""
        if record.kind is Kind.EPOCH_STARTED and record.job_id != self._job_id:
            self._job_id = record.job_id
            self._open.clear()  # those are of the job that this one has begun from
        elif record.kind is Kind.COMMIT_INTENT:
            assert record.sequence is not None, "a record that counts has one"
            self._open[record.sequence] = self._committed_by(record, done)
        elif record.kind is Kind.COMMIT_OUTCOME and record.attributes["settled"] == "true":
            assert record.cause is not None, "an outcome has an intent"
            self._open.pop(record.cause, None)

    def _committed_by(self, intent: Record, done: Sequence[int]) -> frozenset[int]:
        """What its checkpoint allows, and those before it of which nothing was committed yet (clause H1)."""
        operator_id, number = intent.operator_id or "", intent.checkpoint_id
        newest, its = self._newest.get(operator_id, (None, frozenset[int]()))
        if number is None or number == newest:
            return its  # another one of the same completion
        count, left = self._looked_at.get(operator_id, (0, ()))
        free = (*left, *done[count:])
        its = frozenset(one for one in free if one <= number)
        self._looked_at[operator_id] = (len(done), tuple(one for one in free if one > number))
        self._newest[operator_id] = (number, its)
        return its

    def unsettled(self) -> set[int]:
        """The checkpoints of which an open one may have something."""
        return {one for its in self._open.values() for one in its}


def _copy(
    other: Log, log: Log, end: int, job_id: str, on_progress: Callable[[int, int], None] | None
) -> None:
    """Each record as it is, at its own offset.

    Raises:
        CommandError: Something else stands in the midst of it.
        FencedError: A driver of the new job has begun before its first record; nothing of the copy counts.
    """
    writer = log.writer()
    copied = 0
    try:
        for group in groups(map(to_append, other.read(0, end))):
            offsets = writer.append(group, timeout_s=APPEND_TIMEOUT_S)
            for offset in offsets:
                if offset < copied:
                    raise OffsetGapError(log.identity.name, copied, offset)
                if offset > copied:
                    taken = taken_by(log, job_id, group[0]) if copied == 0 else None
                    raise taken or _disturbed(log, job_id, copied)
                copied += 1
            if on_progress is not None:
                on_progress(copied, end)
    finally:
        writer.close(timeout_s=WRITER_CLOSE_TIMEOUT_S)


def _disturbed(log: Log, job_id: str, offset: int) -> CommandError:
    return CommandError(
        job_id,
        f"something else was appended to {log.identity.name} at offset {offset}, while it was copied",
        f"see that nobody else starts the job, `coordlog delete {job_id}`, and begin again",
    )


def _copy_payloads(other: Log, end: int, theirs: PayloadStore, job_id: str) -> None:
    """Before the records that address them; what is not there is not there in the new job either."""
    ours = PayloadStore(theirs.url, job_id)
    there = {one.path for one in theirs.listed()}
    for stored in other.read(0, end):
        for address in addressed_in(stored):
            if address.path in there:
                there.discard(address.path)
                with suppress(PayloadLostError):  # a restore that needs it refuses by its name
                    ours.put(address, theirs.get(address))
