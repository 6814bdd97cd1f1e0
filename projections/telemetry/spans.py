"""Traces of a job: one for each checkpoint, each failover and each restore, folded from the records that count.

Ids are derived from the job, its epoch and the number of the traced checkpoint or failure. So the spans that a driver
reports while it runs, and those of a later fold of the stored log, are the same trace. Each epoch is folded by itself,
because a driver has the times of its own epoch only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from coordlog.projections.job.lifecycle import is_driver_stopped
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record

__all__ = ["AttributeValue", "Span", "SpanFold", "spans"]

AttributeValue = str | int

_TRACE_ID_BYTES: Final = 16
_SPAN_ID_BYTES: Final = 8
_ROOT: Final = "root"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A part of a trace that has ended."""

    trace_id: int
    """128 bits, never 0."""
    span_id: int
    """64 bits, never 0."""
    parent_id: int | None
    """Span id of the parent, or None for the root of the trace."""
    name: str
    start_us: int
    """Microseconds since 1970, UTC."""
    end_us: int
    attributes: Mapping[str, AttributeValue]
    error: str | None = None
    """Reason why it failed, or None."""


@dataclass(slots=True, kw_only=True)
class _Open:
    """A root span, with the children that wait for its end: a sampler decides about the root first."""

    trace_id: int
    span_id: int
    name: str
    start_us: int
    attributes: dict[str, AttributeValue]
    children: list[Span] = field(default_factory=list)
    is_ended: bool = False


@dataclass(slots=True, kw_only=True)
class _Checkpoint:
    root: _Open
    barriers: dict[tuple[int | None, int | None], int] = field(default_factory=dict)
    """Time of sending each barrier, by subtask and attempt number."""


@dataclass(slots=True, kw_only=True)
class _Intent:
    root: _Open
    since_us: int
    failed_tries: int = 0


@dataclass(slots=True, kw_only=True)
class _Recovery:
    """A restore or a global failover: each subtask begins an attempt again."""

    root: _Open
    since_us: int
    """Time from which subtasks wait for an attempt."""
    started: set[int] = field(default_factory=set)
    is_open: bool = True
    """Whether no attempt has begun since."""
    is_reset: bool = True
    """Whether the job has gone back to its checkpoint."""


def spans(records: Iterable[Record]) -> list[Span]:
    """The spans of a history; the root of a trace comes first, and the others in the order of their ends.

    Args:
        records: All records that count, in log order.
    """
    fold = SpanFold()
    return [span for record in records for span in fold.apply(record)]


class SpanFold:
    """The fold behind `spans`. `apply` takes each record that counts, in log order."""

    def __init__(self) -> None:
        self._epoch: _EpochSpans | None = None

    def begin(self, job_id: str, epoch: int, started_us: int) -> None:
        """Begin within an epoch, after its `EPOCH_STARTED`, as its driver does."""
        self._epoch = _EpochSpans(job_id, epoch, started_us)

    def apply(self, record: Record) -> list[Span]:
        """Apply a record; returns the spans that it ends."""
        if record.kind is Kind.EPOCH_STARTED:
            ended = [] if self._epoch is None else self._epoch.cut_off()
            self.begin(record.job_id, record.epoch, record.timestamp_us)
            return ended
        # Else a pruned log, which begins within an epoch.
        return [] if self._epoch is None else self._epoch.apply(record)


class _EpochSpans:
    """The spans of one epoch."""

    def __init__(self, job_id: str, epoch: int, started_us: int) -> None:
        self._job_id, self._epoch = job_id, epoch
        root = self._root("restore", 0, started_us, {})
        self._restore = self._recovery = _Recovery(root=root, since_us=started_us)
        self._checkpoints: dict[int, _Checkpoint] = {}
        self._ended: dict[int, _Open] = {}
        """Root of the last completed checkpoint, for its commits."""
        self._intents: dict[int, _Intent] = {}
        self._failed: dict[int, _Open] = {}
        """Local failovers by subtask."""
        self._live: dict[int, int] = {}
        """Number of the live attempt of this epoch, by subtask."""
        self._last_us = started_us

    def cut_off(self) -> list[Span]:
        """The spans that the driver of an ended epoch has left open."""
        error = "its driver has ended"
        return [span for root in self._open_roots() for span in _end(root, self._last_us, error)]

    def apply(self, record: Record) -> list[Span]:
        """Apply a record of this epoch; returns the spans that it ends."""
        self._last_us = record.timestamp_us
        match record.kind:
            case (
                Kind.CHECKPOINT_TRIGGERED
                | Kind.COORDINATOR_CHECKPOINTED
                | Kind.BARRIER_INJECTED
                | Kind.CHECKPOINT_ACKED
                | Kind.CHECKPOINT_COMPLETED
                | Kind.CHECKPOINT_ABORTED
            ):
                return self._checkpoint(record)
            case Kind.COMMIT_INTENT | Kind.COMMIT_OUTCOME:
                return self._commit(record)
            case Kind.ATTEMPT_STARTED:
                return self._attempt_started(record)
            case Kind.ATTEMPT_FAILED | Kind.SUBTASK_COMPLETED:
                self._attempt_ended(record)
            case Kind.GLOBAL_FAILURE | Kind.RESET_TO_CHECKPOINT:
                return self._global(record)
            case Kind.JOB_FAILED | Kind.JOB_FINISHED:
                return self._job_over(record)
            case Kind.FACT if is_driver_stopped(record):
                self._failed.clear()
                self._live.clear()
            case _:
                pass
        return []

    # --- checkpoints --------------------------------------------------------------------------------------------------
    def _checkpoint(self, record: Record) -> list[Span]:
        number = record.checkpoint_id
        if number is None:
            return []
        if record.kind is Kind.CHECKPOINT_TRIGGERED:
            attributes: dict[str, AttributeValue] = {"coordlog.checkpoint.id": number}
            root = self._root("checkpoint", number, record.timestamp_us, attributes)
            self._checkpoints[number] = _Checkpoint(root=root)
            return []
        known = self._checkpoints.get(number)
        if known is None:
            return []
        attempt = (record.subtask, record.attempt_number)
        match record.kind:
            case Kind.COORDINATOR_CHECKPOINTED:
                return _child(known.root, "checkpoint cut", known.root.start_us, record)
            case Kind.BARRIER_INJECTED:
                known.barriers[attempt] = record.timestamp_us
                return []
            case Kind.CHECKPOINT_ACKED:
                since_us = known.barriers.get(attempt, known.root.start_us)
                return _child(known.root, "checkpoint ack", since_us, record)
            case _:
                return self._checkpoint_ended(number, known, record)

    def _checkpoint_ended(self, number: int, known: _Checkpoint, record: Record) -> list[Span]:
        del self._checkpoints[number]
        is_completed = record.kind is Kind.CHECKPOINT_COMPLETED
        known.root.attributes["coordlog.checkpoint.outcome"] = (
            "completed" if is_completed else "aborted"
        )
        if is_completed:
            # Commits of older checkpoints have their intents by now.
            self._ended = {number: known.root}
        error = None if is_completed else record.reason or "aborted"
        return _end(known.root, record.timestamp_us, error)

    def _commit(self, record: Record) -> list[Span]:
        if record.kind is Kind.COMMIT_INTENT:
            number = NO_CHECKPOINT if record.checkpoint_id is None else record.checkpoint_id
            root = self._ended.get(number)
            if root is None:
                root = self._restore.root
            if record.sequence is not None:
                self._intents[record.sequence] = _Intent(root=root, since_us=record.timestamp_us)
            return []
        cause = NO_CHECKPOINT if record.cause is None else record.cause
        intent = self._intents.get(cause)
        if intent is None:
            # Of an earlier epoch: this driver carries it out from its beginning on.
            root = self._restore.root
            intent = _Intent(root=root, since_us=root.start_us)
            self._intents[cause] = intent
        if record.attributes.get("settled") != "true":
            intent.failed_tries += 1
            return []
        del self._intents[cause]
        tries: dict[str, AttributeValue] = {"coordlog.commit.failed_tries": intent.failed_tries}
        return _child(intent.root, "commit", intent.since_us, record, key=str(cause), more=tries)

    # --- attempts -----------------------------------------------------------------------------------------------------
    def _attempt_started(self, record: Record) -> list[Span]:
        subtask, attempt_number = record.subtask, record.attempt_number
        if subtask is None or attempt_number is None:
            return []
        self._live[subtask] = attempt_number
        local = self._failed.pop(subtask, None)
        if local is not None:
            return _end(local, record.timestamp_us)
        recovery = self._recovery
        if not recovery.is_reset or subtask in recovery.started:
            return []
        recovery.started.add(subtask)
        child = _child(recovery.root, "attempt start", recovery.since_us, record)
        if not recovery.is_open:
            return child
        recovery.is_open = False
        return _end(recovery.root, record.timestamp_us)

    def _attempt_ended(self, record: Record) -> None:
        subtask = record.subtask
        if subtask is None or self._live.get(subtask) != record.attempt_number:
            return  # an attempt of an earlier epoch: its subtask is part of the restore
        del self._live[subtask]
        if record.kind is Kind.ATTEMPT_FAILED:
            attributes: dict[str, AttributeValue] = {
                "coordlog.failover.scope": "local",
                "coordlog.subtask": subtask,
                "coordlog.attempt": record.attempt_number or 0,
                "coordlog.reason": record.reason or "",
            }
            number = -1 if record.sequence is None else record.sequence
            self._failed[subtask] = self._root("failover", number, record.timestamp_us, attributes)

    def _global(self, record: Record) -> list[Span]:
        # Attempts that fail with their job are a part of its failover.
        self._failed.clear()
        if record.kind is Kind.RESET_TO_CHECKPOINT:
            self._live.clear()
            number = NO_CHECKPOINT if record.checkpoint_id is None else record.checkpoint_id
            self._recovery.root.attributes["coordlog.checkpoint.id"] = number
            self._recovery.since_us = record.timestamp_us
            self._recovery.is_reset = True
            return []
        ended = self._cut_recovery(record)
        attributes: dict[str, AttributeValue] = {
            "coordlog.failover.scope": "global",
            "coordlog.reason": record.reason or "",
        }
        number = -1 if record.sequence is None else record.sequence
        root = self._root("failover", number, record.timestamp_us, attributes)
        self._recovery = _Recovery(root=root, since_us=record.timestamp_us, is_reset=False)
        return ended

    def _cut_recovery(self, record: Record) -> list[Span]:
        """End of a restore or a failover that a further failure, or the job's end, has cut off."""
        recovery = self._recovery
        if not recovery.is_open:
            return []
        recovery.is_open = False
        is_finished = record.kind is Kind.JOB_FINISHED
        error = None if is_finished else record.reason or "failed"
        return _end(recovery.root, record.timestamp_us, error)

    def _job_over(self, record: Record) -> list[Span]:
        ended = self._cut_recovery(record)
        error = record.reason or "the job has failed"
        if record.kind is Kind.JOB_FAILED:
            for subtask in sorted(self._failed):
                ended += _end(self._failed[subtask], record.timestamp_us, error)
        self._failed.clear()
        return ended

    # --- roots --------------------------------------------------------------------------------------------------------
    def _open_roots(self) -> list[_Open]:
        checkpoints = [self._checkpoints[number].root for number in sorted(self._checkpoints)]
        failed = [self._failed[subtask] for subtask in sorted(self._failed)]
        recovering = [self._recovery.root] if self._recovery.is_open else []
        return [*recovering, *checkpoints, *failed]

    def _root(
        self, name: str, number: int, start_us: int, attributes: dict[str, AttributeValue]
    ) -> _Open:
        trace_id = _digest(_TRACE_ID_BYTES, self._job_id, str(self._epoch), name, str(number))
        return _Open(
            trace_id=trace_id,
            span_id=_digest(_SPAN_ID_BYTES, str(trace_id), _ROOT),
            name=name,
            start_us=start_us,
            attributes={
                "coordlog.job.id": self._job_id,
                "coordlog.epoch": self._epoch,
                **attributes,
            },
        )


def _end(root: _Open, end_us: int, error: str | None = None) -> list[Span]:
    """The root, and its children so far."""
    root.is_ended = True
    span = Span(
        trace_id=root.trace_id,
        span_id=root.span_id,
        parent_id=None,
        name=root.name,
        start_us=root.start_us,
        end_us=end_us,
        attributes=dict(root.attributes),
        error=error,
    )
    return [span, *root.children]


def _child(
    root: _Open,
    name: str,
    start_us: int,
    record: Record,
    *,
    key: str = "",
    more: Mapping[str, AttributeValue] | None = None,
) -> list[Span]:
    """Span within a root, from `start_us` to the record; none while the root is open."""
    attributes: dict[str, AttributeValue] = {
        "coordlog.job.id": record.job_id,
        "coordlog.epoch": record.epoch,
    }
    if record.operator_id is not None:
        attributes["coordlog.operator.id"] = record.operator_id
    if record.subtask is not None:
        attributes["coordlog.subtask"] = record.subtask
    if record.attempt_number is not None:
        attributes["coordlog.attempt"] = record.attempt_number
    if record.sequence is not None:
        attributes["coordlog.sequence"] = record.sequence
    place = f"{record.operator_id}/{record.subtask}/{record.attempt_number}/{key}"
    span = Span(
        trace_id=root.trace_id,
        span_id=_digest(_SPAN_ID_BYTES, str(root.trace_id), name, place),
        parent_id=root.span_id,
        name=name,
        start_us=start_us,
        end_us=record.timestamp_us,
        attributes={**attributes, **(more or {})},
    )
    if root.is_ended:
        return [span]
    root.children.append(span)
    return []


def _digest(size_bytes: int, *parts: str) -> int:
    """An id of that size, never 0, from texts without NUL."""
    digest = blake2b("\0".join(parts).encode(), digest_size=size_bytes).digest()
    return int.from_bytes(digest, "big") or 1
