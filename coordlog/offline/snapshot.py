"""A snapshot of a job that no driver drives, taken by a command, where all of its coordinators are coordlog's own.

Such a job's state can be folded without its code: what its coordinators remember are projections of coordlog's, and
these look into no payload that is not. The history names each operator's projection.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from coordlog.coordinators.commits import COMMITS
from coordlog.coordinators.splits import SPLIT_PAYLOADS
from coordlog.errors import CommandError
from coordlog.kernel.builder import KernelConfig, StepBuilder
from coordlog.log.appender import Patience
from coordlog.log.interface import Log, StoredRecord
from coordlog.log.payload_store import PayloadStore
from coordlog.offline.epoch import begin_epoch
from coordlog.payloads.gc import addressed_in
from coordlog.payloads.offload import AttemptPayloads, PayloadOptions
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.state import JobState, sorted_items
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.snapshot.codec import (
    SNAPSHOT_TYPE,
    SnapshotCodec,
    SnapshotTooLargeError,
    SnapshotUnusableError,
    snapshot_in,
    state_of,
    undeclared_in,
)
from coordlog.projections.snapshot.splits_codec import LISTED_SPLITS, SPLITS
from coordlog.projections.tables.audit import counting_at
from coordlog.restore.rebuild import Rebuild
from coordlog.restore.snapshots import (
    FoundSnapshot,
    SnapshotMisfitError,
    SnapshotSearch,
    standing_snapshot,
)
from coordlog.schemas.builtin_types import BUILTIN_PAYLOADS
from coordlog.schemas.payload import PayloadTypes, open_inline
from coordlog.schemas.payload_address import STORE_ATTRIBUTE, owner_of
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.validity import count

__all__ = ["COMMAND", "projections_of_users", "take_own_snapshot", "why_no_own_snapshot"]

COMMAND: Final = "prune"
"""Whose epoch it is, for the record."""

_OWN: Final[Mapping[str, OperatorProjection[Any]]] = {
    f"{one.name}@{one.version}": one for one in (SPLITS, LISTED_SPLITS, COMMITS)
}
_TYPES: Final = (*BUILTIN_PAYLOADS, *SPLIT_PAYLOADS)
_EPOCH_BYTES: Final = 1_024
"""What the epoch that takes a snapshot may add to it, compressed, beside the name of the store."""
_ANY_DRIVER: Final = 16 * "0"
"""As long as another's id."""
_NOTHING: Final = "there is no way to prune it as it is; a log is readable whatever its length"


def why_no_own_snapshot(state: JobState) -> str | None:
    """Why nobody but the job's own driver can take one; None where a command can."""
    if state.epoch < 0:
        return "the job has not begun"
    for one in json.loads(state.launch.get("operators", "[]")):
        there = one.get("projection")
        if one["coordinated"] and there not in _OWN:
            return f"what the coordinator of operator {one['id']!r} remembers is its own code's"
    return None


def projections_of_users(state: JobState) -> tuple[str, ...]:
    """Projections of coordinators that are not coordlog's own, with their versions and operators."""
    return tuple(
        f"{one['projection']} of operator {one['id']!r}"
        for one in json.loads(state.launch.get("operators", "[]"))
        if one["coordinated"] and one.get("projection") and one["projection"] not in _OWN
    )


def take_own_snapshot(
    log: Log,
    state: JobState,
    *,
    open_payload: Callable[[bytes], bytes] = open_inline,
    store: PayloadStore | None = None,
    check: Callable[[JobState], None],
    patience: Patience | None = None,
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> int:
    """Fold all of the log, begin an epoch, and append a `SNAPSHOT` of what it comes to; its sequence.

    The caller has seen that no driver lives. Where it does not fit a record, what coordinators remember goes to the
    store, and the epoch names that.

    Args:
        log: The job's.
        state: At its end, without projections: by `read_job`. `why_no_own_snapshot` has nothing against it.
        open_payload: Gives what a record holds, or addresses.
        store: The job's payload store; None: it has none.
        check: Asked again, of what the log says once this epoch has begun: raises where that is another job.
        patience: Default: the limits, and the machine's clock.
        now_us: The time, microseconds since 1970, UTC.

    Raises:
        CommandError: The state is too large for a record, its log cannot be begun with, or its history names another
            store than the one that a part of it would go to; nothing was appended.
        RecordError: A record that counts cannot be read or applied.
        FencedError: Another driver was first.
        LogError: The log, or the store.
    """
    projection = JobProjection(
        PayloadTypes(_TYPES, open_payload), _projections(state), is_partial=True
    )
    made = Rebuild(projection, projection.types, frozenset())
    uses = _Uses(state)
    _fold(log, made, uses, open_payload)
    is_apart = _goes_apart(made, SnapshotCodec(projection, types=uses.declared(made.state)), store)
    kept_in = store if is_apart else None
    if kept_in is not None:
        _check_named(log, made.state, kept_in)
    records: list[Record] = []

    def of(after: JobState) -> list[Record]:
        check(after)
        config = KernelConfig(
            projection=projection,
            operators=after.operators,
            is_batch=after.is_batch,
            keeps_finished_splits=False,
        )
        now = max(now_us(), after.timestamp_us)
        step = StepBuilder(config=config, state=after, now_us=now, clock_us=now)
        records.extend(_records(step, uses, made.checkpoint_offset, kept_in))
        return records

    attributes = None if kept_in is None else {STORE_ATTRIBUTE: kept_in.url}
    begin_epoch(
        log, made, of, command=COMMAND, attributes=attributes, patience=patience, now_us=now_us
    )
    return records[-1].sequence or 0


def _projections(state: JobState) -> dict[str, OperatorProjection[Any]]:
    return {
        one["id"]: _OWN[one["projection"]]
        for one in json.loads(state.launch["operators"])
        if one["coordinated"]
    }


class _Uses:
    """Which types a job with today's operators must declare, by who has used them."""

    def __init__(self, state: JobState) -> None:
        self._operators = {one["id"] for one in json.loads(state.launch["operators"])}
        self._needed: set[str] = {one.key for one in PayloadTypes(_TYPES)}

    def begin(self, state: JobState, undeclared: tuple[str, ...]) -> None:
        """What a snapshot says that the log begins with."""
        self._needed.update(key for key, _ in sorted_items(state.types) if key not in undeclared)

    def note(self, record: Record) -> None:
        """One record that may count."""
        if record.payload_type is None or record.kind is Kind.TYPE_REGISTERED:
            return
        if record.operator_id is None or record.operator_id in self._operators:
            self._needed.add(record.payload_type)

    def declared(self, state: JobState) -> dict[str, str]:
        """The fingerprints of those types, by key."""
        return {key: there for key, there in sorted_items(state.types) if key in self._needed}


def _fold(log: Log, made: Rebuild, uses: _Uses, open_payload: Callable[[bytes], bytes]) -> None:
    start, end = log.start_offset(), log.high_watermark()
    stored = log.read(start, end)
    if start > 0:
        first = next(stored)
        _begin_at(first, made, uses, open_payload)
        made.feed(first)
    for one in stored:
        if not count(made.counting, one.header)[1].is_void:
            uses.note(one.record())
        made.feed(one)


def _begin_at(
    first: StoredRecord, made: Rebuild, uses: _Uses, open_payload: Callable[[bytes], bytes]
) -> None:
    """Begin with the snapshot of a log that was pruned before."""
    counting = counting_at(first)
    record = first.record()
    try:
        held = state_of(record, open_payload)
        codec = SnapshotCodec(made.projection, types=dict(sorted_items(held.types)))
        decoded = codec.decode(snapshot_in(record, open_payload), open_payload)
        uses.begin(held, undeclared_in(record, open_payload))
    except SnapshotUnusableError as error:
        raise CommandError(
            record.job_id,
            f"nothing but its own driver can start from the snapshot with which its log begins: {error}",
            "prune it while it runs: its driver takes a snapshot then",
        ) from error
    made.begin_at(
        SnapshotSearch(found=FoundSnapshot(offset=first.offset, counting=counting, decoded=decoded))
    )


def _goes_apart(made: Rebuild, codec: SnapshotCodec, store: PayloadStore | None) -> bool:
    """Whether a snapshot of it does not fit a record, so that a part of it goes to the store.

    Raises:
        CommandError: It fits neither way, also with what the epoch that takes it adds.
    """
    state = made.state
    place = "" if store is None else store.url
    try:
        trial = standing_snapshot(
            codec,
            state,
            checkpoint_offset=made.checkpoint_offset,
            owner="" if store is None else owner_of(state.epoch + 1, _ANY_DRIVER),
            spare_bytes=_EPOCH_BYTES + len(place.encode()),
        )
    except SnapshotMisfitError as error:
        raise _no_place(state, error.problem, error.next_step or _NOTHING) from error
    except SnapshotTooLargeError as error:
        raise _no_place(state, str(error), _NOTHING) from error
    return bool(trial.parts)


def _check_named(log: Log, state: JobState, store: PayloadStore) -> None:
    """Refuse a store that is not the history's: a restart looks into one, and the state may address both.

    One that nothing is addressed in is only a name: what could not be written there, or never was.
    """
    named = state.launch.get(STORE_ATTRIBUTE, "")
    if named in ("", store.url):
        return
    stored = log.read(log.start_offset(), log.high_watermark())
    if any(True for one in stored for _ in addressed_in(one)):
        raise CommandError(
            state.job_id,
            f"its history names the payload store {named}, and what its coordinators remember would go to "
            f"{store.url}: a restart looks into one of them alone; nothing was appended",
            f"give --payload-store {named}; where its payloads have been moved, run the job with "
            f"--payload-store {store.url} once, so that its history names that",
        )


def _records(
    step: StepBuilder,
    uses: _Uses,
    checkpoint_offset: int | None,
    store: PayloadStore | None,
) -> list[Record]:
    """The snapshot, a turn of its own, its type before it where that is new; what goes to the store is there then."""
    if SNAPSHOT_TYPE.key not in step.state.types:
        step.register(SNAPSHOT_TYPE.key)
    state = step.state
    codec = SnapshotCodec(step.config.projection, types=uses.declared(state))
    owner = "" if store is None else owner_of(state.epoch, state.driver_id)
    try:
        made = standing_snapshot(codec, state, checkpoint_offset=checkpoint_offset, owner=owner)
    except (SnapshotMisfitError, SnapshotTooLargeError) as error:  # it did fit before this epoch
        raise _no_place(state, str(error), "try again") from error
    kept = AttemptPayloads(PayloadOptions(store=store), state.epoch, state.driver_id)
    for part in made.parts:
        kept.store(part)
    step.add(Kind.SNAPSHOT, payload_type=SNAPSHOT_TYPE.key, payload=made.payload)
    return list(step.records)


def _no_place(state: JobState, problem: str, next_step: str) -> CommandError:
    return CommandError(
        state.job_id,
        f"no snapshot of it can stand in the log, and nothing was removed: {problem}",
        next_step,
    )
