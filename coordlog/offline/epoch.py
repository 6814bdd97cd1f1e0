"""Facts appended to the log of a job without a driver, in an epoch that the command itself begins."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from importlib import metadata

from coordlog.errors import CommandError, RestoreError
from coordlog.history import FoundSnapshot, History, SnapshotSearch
from coordlog.kernel.builder import KernelConfig, StepBuilder
from coordlog.log.appender import Patience, take_over
from coordlog.log.interface import Log, UnstoredRecord
from coordlog.log.local.processes import user_name
from coordlog.projections.job.branches import GOING_BACK
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.state import MARK, JobState, Phase, sorted_items
from coordlog.projections.snapshot.codec import DecodedSnapshot, state_before
from coordlog.restore.rebuild import Rebuild, check_complete, check_identity
from coordlog.runtime.runtime import to_unstored
from coordlog.schemas.builtin_types import BUILTIN_PAYLOADS
from coordlog.schemas.payload import Payload, PayloadTypes
from coordlog.schemas.record import Kind, Record

__all__ = ["append_fact", "begin_epoch", "check_known_types", "read_job", "read_records"]

_TYPES = PayloadTypes(BUILTIN_PAYLOADS)

Check = Callable[[JobState], None]
"""Raises if the command cannot be carried out on a job in this state."""


def read_job(log: Log, job_id: str, check: Check) -> Rebuild:
    """State of a job at its log's end, without the projections of its operators.

    Raises:
        CommandError: The log has no record that counts. Errors of `check` are raised as they are.
        RecordError: A record that counts cannot be read.
        RestoreError: The log is a copy, or has lost records.
    """
    rebuild = read_records(log)
    if rebuild.state.epoch == -1:
        raise CommandError(job_id, "its log has no record that counts", "run the job first")
    check_identity(job_id, rebuild.state, log.identity)
    check_complete(job_id, rebuild)
    check(rebuild.state)
    return rebuild


def read_records(log: Log) -> Rebuild:
    """As `read_job`, without checks: folds from the log's first record on, which is a `SNAPSHOT` in a pruned log.

    Raises:
        RecordError: A record that counts cannot be read; or the log's first records were removed, and it begins
            with a damaged `SNAPSHOT` or with none.
        LogError: The log cannot be read.
    """
    rebuild, history = Rebuild(JobProjection(_TYPES, {}), _TYPES, frozenset()), History(log)
    beginning = history.beginning()
    if beginning.snapshot is not None:
        decoded = DecodedSnapshot(state=state_before(beginning), checkpoint_offset=None)
        snapshot = FoundSnapshot(beginning=beginning, decoded=decoded)
        rebuild.begin_at(SnapshotSearch(snapshot=snapshot))
    for stored in history.stored():
        rebuild.feed(stored)
    return rebuild


def check_known_types(job_id: str, state: JobState, used: Collection[str]) -> None:
    """Refuse payloads of the job itself that only another coordlog can read (E9: inexact restores are refused).

    Args:
        job_id: The job.
        state: State at the history's end, with every registered type.
        used: Types of the payloads that belong to no operator.

    Raises:
        RestoreError: A type is unknown or differs; the error names the first one, with both schemas.
    """
    for key, recorded in sorted_items(state.types):
        is_known = key in _TYPES
        known = f"{_TYPES.by_key(key).fingerprint:016x}" if is_known else "none"
        if known != recorded and (is_known or key in used):
            raise RestoreError(
                job_id,
                f"the schema of {key}",
                recorded,
                known,
                "use the version of coordlog that wrote it, or a newer one",
            )


def append_fact(
    log: Log,
    rebuild: Rebuild,
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
    """Take over from the last driver and append the fact. Returns the fact's sequence.

    The caller has checked that no driver of the job runs, and that the state accepts the fact. The next driver takes
    over from this epoch as from any other.

    Args:
        log: The job's log.
        rebuild: Result of `read_job`.
        fact: Fact that the job state takes in.
        command: Name of the command, recorded in the epoch.
        check: Check that is repeated on the state after this epoch has begun.
        operator_id: Operator that the fact concerns, or None for the job.
        subtask: Subtask that the fact concerns, or None.
        why: Reason, recorded with the fact.
        patience: Time limits; by default those of `limits`, and the machine's clock.
        now_us: Clock, microseconds since 1970, UTC.

    Raises:
        FencedError: Another driver was first.
        LogError: The log cannot be read or appended to. Errors of `check` are raised as they are.
    """
    records: list[Record] = []

    def records_of(state: JobState) -> list[Record]:
        check(state)
        records.extend(_turn(state, fact, operator_id, subtask, why, now_us()))
        return records

    begin_epoch(log, rebuild, records_of, command=command, patience=patience, now_us=now_us)
    return records[-1].sequence or 0


def begin_epoch(
    log: Log,
    rebuild: Rebuild,
    records_of: Callable[[JobState], list[Record]],
    *,
    command: str,
    job_id: str | None = None,
    attributes: Mapping[str, str] | None = None,
    patience: Patience | None = None,
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> None:
    """Begin an epoch without an endpoint, and append the records that `records_of` returns.

    Args:
        log: The job's log.
        rebuild: Fold of the log so far; when this returns, it includes this epoch's beginning but not its records.
        records_of: Returns the records of one turn, or none, from the state in the new epoch.
        command: Name of the command, recorded in the epoch.
        job_id: Job id of the new epoch, or None: as before.
        attributes: Further attributes of `EPOCH_STARTED`; they replace those of the epoch before.
        patience: Time limits; by default those of `limits`, and the machine's clock.
        now_us: Clock, microseconds since 1970, UTC.

    Raises:
        FencedError: Another driver was first.
        LogError: The log cannot be read or appended to. Errors of `records_of` are raised as they are.
    """
    driver_id = secrets.token_hex(8)
    epoch_job_id = job_id or rebuild.state.job_id
    own_attributes = {"command": command, **(attributes or {})}
    appender = take_over(
        log,
        job_id=epoch_job_id,
        place=rebuild.place,
        make_epoch_started=lambda epoch: _epoch_started(
            rebuild, epoch, driver_id, epoch_job_id, own_attributes, now_us()
        ),
        reading=rebuild.feed,
        patience=patience,
    )
    try:
        rebuild.catch_up(log, appender.end_offset)
        assert rebuild.state.driver_id == driver_id, "the epoch in force is this one"
        records = records_of(rebuild.state)
        newest = rebuild.newest_snapshot.offset
        if records:
            appender.append([to_unstored(record, snapshot_offset=newest) for record in records])
    finally:
        appender.close()


def _epoch_started(
    rebuild: Rebuild,
    epoch: int,
    driver_id: str,
    job_id: str,
    own_attributes: Mapping[str, str],
    now_us: int,
) -> UnstoredRecord:
    """First record of the epoch: describes the job as the epoch before did, and names no endpoint."""
    state = rebuild.state
    return to_unstored(
        Record(
            epoch=epoch,
            driver_id=driver_id,
            sequence=None,
            kind=Kind.EPOCH_STARTED,
            timestamp_us=max(now_us, state.timestamp_us),
            job_id=job_id,
            attributes={
                **_job_attributes(state),
                "endpoint": "",
                "host": socket.gethostname(),
                "pid": str(os.getpid()),
                "user": user_name(),
                "coordlog_version": metadata.version("coordlog"),
                "python_version": platform.python_version(),
                "take_over": "false",
                **own_attributes,
            },
        ),
        snapshot_offset=rebuild.newest_snapshot.offset,
    )


def _job_attributes(state: JobState) -> dict[str, str]:
    """Attributes of the last `EPOCH_STARTED` that describe the job, without those of that epoch alone.

    Left out are a move to another log, and a rollback to an older checkpoint unless it is still owed.
    """
    is_owed = state.phase is Phase.STARTING
    attributes = {
        name: value
        for name, value in sorted_items(state.launch)
        if not name.startswith(("adopted_", MARK)) and (name != GOING_BACK or is_owed)
    }
    # The turn of the command changes nothing that operators have written.
    return {**attributes, "operators": state.last_operators}


def _turn(
    state: JobState,
    fact: Payload,
    operator_id: str | None,
    subtask: int | None,
    why: str,
    now_us: int,
) -> list[Record]:
    """The turn of the fact: before it, if its type is new, that type's registration."""
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
    return [replace(record, turn_remaining=last - n) for n, record in enumerate(step.records)]
