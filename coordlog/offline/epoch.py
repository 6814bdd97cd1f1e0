"""A fact for a job that no driver drives: appended in an epoch of the command's own, as a driver would begin one."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from importlib import metadata

from coordlog.errors import CommandError, PayloadLostError, RecordError, RestoreError
from coordlog.kernel.builder import KernelConfig, StepBuilder
from coordlog.log.appender import Patience, take_over
from coordlog.log.interface import Log, UnstoredRecord
from coordlog.projections.job.branches import GOING_BACK
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.state import MARK, JobState, Phase, sorted_items
from coordlog.projections.snapshot.codec import DecodedSnapshot, SnapshotUnusableError, state_of
from coordlog.projections.tables.audit import counting_at
from coordlog.restore.rebuild import Rebuild, check_identity
from coordlog.restore.snapshots import FoundSnapshot, SnapshotSearch
from coordlog.runtime.runtime import to_unstored
from coordlog.schemas.builtin_types import BUILTIN_PAYLOADS
from coordlog.schemas.payload import Payload, PayloadTypes
from coordlog.schemas.record import Kind, Record

__all__ = ["append_fact", "begin_epoch", "begun", "check_known_types", "read_job", "read_records"]

_TYPES = PayloadTypes(BUILTIN_PAYLOADS)

Check = Callable[[JobState], None]
"""Raises where the command cannot be carried out on a job in this state."""


def read_job(log: Log, job_id: str, check: Check) -> Rebuild:
    """What the log says of a job, without its operators: their projections are left out.

    Raises:
        CommandError: It says nothing. What `check` raises.
        RecordError: A record that counts cannot be read.
        RestoreError: The log is a copy.
    """
    made = read_records(log)
    if made.state.epoch == -1:
        raise CommandError(job_id, "its log has no record that counts", "run the job first")
    check_identity(job_id, made.state, log.identity)
    check(made.state)
    return made


def read_records(log: Log) -> Rebuild:
    """The same, whatever it says, from the log's first record on; of a pruned log that is a `SNAPSHOT`.

    Raises:
        RecordError: A record that counts cannot be read; or the log's first records are gone, and it does not begin
            with a `SNAPSHOT`, or with one that is damaged.
        LogError: The log.
    """
    made = begun(log)
    made.catch_up(log, log.high_watermark())
    return made


def begun(log: Log) -> Rebuild:
    """The same before any record is folded: of a pruned log the state in its first.

    Raises:
        RecordError, LogError: As `read_records`, of the log's first record.
    """
    made = Rebuild(JobProjection(_TYPES, {}), _TYPES, frozenset())
    start, end = log.start_offset(), log.high_watermark()
    if 0 < start < end:
        first = next(iter(log.read(start, end)))
        counting = counting_at(first)
        record = first.record()
        try:
            decoded = DecodedSnapshot(state=state_of(record), checkpoint_offset=None)
        except (SnapshotUnusableError, PayloadLostError) as error:
            raise RecordError(first.offset, record.kind.value, str(error)) from error
        found = FoundSnapshot(offset=first.offset, counting=counting, decoded=decoded)
        made.begin_at(SnapshotSearch(found=found))
    return made


def check_known_types(job_id: str, state: JobState, used: Collection[str]) -> None:
    """Refuse a history that holds for the job itself what only another version of coordlog can read (clause E9).

    Args:
        job_id: The job.
        state: At the history's end, with every type that it has registered.
        used: Types of the payloads that are of no operator.

    Raises:
        RestoreError: It names the first type, with both schemas.
    """
    for key, there in sorted_items(state.types):
        is_known = key in _TYPES
        here = f"{_TYPES.by_key(key).fingerprint:016x}" if is_known else "none"
        if here != there and (is_known or key in used):
            raise RestoreError(
                job_id,
                f"the schema of {key}",
                there,
                here,
                "use the version of coordlog that wrote it, or a newer one",
            )


def append_fact(
    log: Log,
    made: Rebuild,
    fact: Payload,
    *,
    command: str,
    check: Check,
    operator_id: str | None = None,
    subtask: int | None = None,
    why: str,
    patience: Patience | None = None,
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> int:
    """Take over from a driver that is gone, and append the fact; its sequence.

    The caller has seen that no driver lives and that the fact makes sense. The next driver takes
    over from this epoch as from any other.

    Args:
        log: The job's.
        made: By `read_job`.
        fact: One that the job state takes in.
        command: Whose epoch it is, for the record.
        check: Asked again, of what the log says once this epoch has begun.
        operator_id: Whom the fact concerns; None: the job.
        subtask: Which of its subtasks, where it concerns one.
        why: For the record.
        patience: Default: the limits, and the machine's clock.
        now_us: The time, microseconds since 1970, UTC.

    Raises:
        FencedError: Another driver was first.
        LogError: The log. What `check` raises.
    """
    records: list[Record] = []

    def of(state: JobState) -> list[Record]:
        check(state)
        records.extend(_turn(state, fact, operator_id, subtask, why, now_us()))
        return records

    begin_epoch(log, made, of, command=command, patience=patience, now_us=now_us)
    return records[-1].sequence or 0


def begin_epoch(
    log: Log,
    made: Rebuild,
    records_of: Callable[[JobState], list[Record]],
    *,
    command: str,
    job_id: str | None = None,
    attributes: Mapping[str, str] | None = None,
    patience: Patience | None = None,
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> None:
    """Begin an epoch in which nobody listens, and append what `records_of` makes of the state in it.

    Args:
        log: The job's.
        made: What the log says; caught up with it when this returns, its own records apart.
        records_of: One turn, or nothing.
        command: Whose epoch it is, for the record.
        job_id: The job's; None: as before.
        attributes: More of `EPOCH_STARTED`, in place of what the epoch before had.
        patience: Default: the limits, and the machine's clock.
        now_us: The time, microseconds since 1970, UTC.

    Raises:
        FencedError: Another driver was first.
        LogError: The log. What `records_of` raises.
    """
    driver_id = secrets.token_hex(8)
    name = job_id or made.state.job_id
    said = {"command": command, **(attributes or {})}
    appender = take_over(
        log,
        job_id=name,
        place=made.place,
        make_epoch_started=lambda epoch: _epoch_started(
            made, epoch, driver_id, name, said, now_us()
        ),
        reading=made.feed,
        patience=patience,
    )
    try:
        made.catch_up(log, appender.end_offset)
        assert made.state.driver_id == driver_id, "the epoch in force is this one"
        records = records_of(made.state)
        newest = made.newest_snapshot.offset
        if records:
            appender.append([to_unstored(one, snapshot_offset=newest) for one in records])
    finally:
        appender.close()


def _epoch_started(
    made: Rebuild,
    epoch: int,
    driver_id: str,
    job_id: str,
    said: Mapping[str, str],
    now_us: int,
) -> UnstoredRecord:
    """What the job is, is as in the epoch before; nobody listens in this one."""
    state = made.state
    return to_unstored(
        Record(
            epoch=epoch,
            driver_id=driver_id,
            sequence=None,
            kind=Kind.EPOCH_STARTED,
            timestamp_us=max(now_us, state.timestamp_us),
            job_id=job_id,
            attributes={
                **_of_the_job(state),
                "endpoint": "",
                "host": socket.gethostname(),
                "pid": str(os.getpid()),
                "coordlog_version": metadata.version("coordlog"),
                "python_version": platform.python_version(),
                "take_over": "false",
                **said,
            },
        ),
        snapshot_offset=made.newest_snapshot.offset,
    )


def _of_the_job(state: JobState) -> dict[str, str]:
    """What the last epoch has said of the job, without what only that one had to do, or has done.

    That is a move to another log, and a going back to an older checkpoint, unless it is still owed.
    """
    is_owed = state.phase is Phase.STARTING
    return {
        name: said
        for name, said in sorted_items(state.launch)
        if not name.startswith(("adopted_", MARK)) and (name != GOING_BACK or is_owed)
    }


def _turn(
    state: JobState,
    fact: Payload,
    operator_id: str | None,
    subtask: int | None,
    why: str,
    now_us: int,
) -> list[Record]:
    """The fact, its type before it where that is new."""
    config = KernelConfig(
        projection=JobProjection(_TYPES, {}),
        operators=state.operators,
        is_batch=state.is_batch,
        keeps_finished_splits=False,
    )
    step = StepBuilder(
        config=config, state=state, now_us=max(now_us, state.timestamp_us), clock_us=now_us
    )
    step.add(Kind.FACT, operator_id=operator_id, subtask=subtask, reason=why, value=fact)
    last = len(step.records) - 1
    return [replace(one, turn_remaining=last - n) for n, one in enumerate(step.records)]
