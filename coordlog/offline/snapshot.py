"""Snapshots that a command takes of a job without a driver, if all of its coordinators are coordlog's own.

The state of such a job can be folded without its code: its coordinators' states are projections of coordlog, which
read only coordlog's own payloads, which are always in the log. The history names the projection of each operator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from coordlog.coordinators.commits import COMMITS
from coordlog.coordinators.splits import SPLIT_PAYLOADS
from coordlog.errors import CommandError
from coordlog.history import FoundSnapshot, History, SnapshotSearch
from coordlog.kernel.builder import KernelConfig, StepBuilder
from coordlog.log.appender import Patience
from coordlog.log.interface import Log
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
from coordlog.restore.rebuild import Rebuild
from coordlog.restore.snapshots import (
    SnapshotMisfitError,
    standing_snapshot,
)
from coordlog.schemas.builtin_types import BUILTIN_PAYLOADS
from coordlog.schemas.payload import PayloadTypes, open_inline
from coordlog.schemas.payload_address import STORE_ATTRIBUTE, owner_of
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.validity import Beginning

__all__ = ["COMMAND", "projections_of_users", "take_own_snapshot", "why_no_own_snapshot"]

COMMAND: Final = "prune"
"""Command recorded in the epoch that takes the snapshot."""

_OWN: Final[Mapping[str, OperatorProjection[Any]]] = {
    f"{projection.name}@{projection.version}": projection
    for projection in (SPLITS, LISTED_SPLITS, COMMITS)
}
_TYPES: Final = (*BUILTIN_PAYLOADS, *SPLIT_PAYLOADS)
_EPOCH_BYTES: Final = 1_024
"""Bytes, compressed, that the epoch of the snapshot may add to it, apart from the store's name."""
_ANY_DRIVER: Final = 16 * "0"
"""Placeholder of the length of a driver's id."""
_CANNOT_PRUNE: Final = "this job cannot be pruned now; a log stays readable whatever its length"


def why_no_own_snapshot(state: JobState) -> str | None:
    """Reason why only the job's driver can take a snapshot, or None if a command can."""
    if state.epoch < 0:
        return "the job has not begun"
    for operator in state.launch_info.operators:
        if operator.is_coordinated and operator.projection not in _OWN:
            return f"only the job's code can read the state of the coordinator of operator {operator.operator_id!r}"
    return None


def projections_of_users(state: JobState) -> tuple[str, ...]:
    """Projections of coordinators that are not coordlog's own, with their versions and operators."""
    return tuple(
        f"{operator.projection} of operator {operator.operator_id!r}"
        for operator in state.launch_info.operators
        if operator.is_coordinated and operator.projection and operator.projection not in _OWN
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
    """Fold all of the log, begin an epoch, and append a `SNAPSHOT` of the state. Returns its sequence.

    The caller has checked that no driver runs. If the state is too large for a record, the states of coordinators go
    to the store, and the epoch records its name.

    Args:
        log: The job's log.
        state: State at the log's end, without projections (`read_job`), for which `why_no_own_snapshot` returns None.
        open_payload: Opens inline and addressed payloads.
        store: The job's payload store, or None if it has none.
        check: Check that is repeated on the state after this epoch has begun: raises if the job differs.
        patience: Time limits; by default those of `limits`, and the machine's clock.
        now_us: Clock, microseconds since 1970, UTC.

    Raises:
        CommandError: The state is too large for a record, no reader can start from the log's first snapshot, or the
            history names another store than `store`, which a part of the state needs; nothing was appended.
        RecordError: A record that counts cannot be read or applied.
        FencedError: Another driver was first.
        LogError: The log or the store cannot be read or written.
    """
    projection = JobProjection(PayloadTypes(_TYPES), _projections(state))
    rebuild = Rebuild(projection, projection.types, frozenset())
    used_types = _UsedTypes(state)
    _fold(History(log), rebuild, used_types, open_payload)
    codec = SnapshotCodec(projection, types=used_types.declared(rebuild.state))
    used_store = store if _needs_store(rebuild, codec, store) else None
    if used_store is not None:
        _check_store(log, rebuild.state, used_store)
    records: list[Record] = []

    def records_of(after: JobState) -> list[Record]:
        check(after)
        config = KernelConfig(
            projection=projection,
            operators=after.operators,
            is_batch=after.is_batch,
            keeps_finished_splits=False,
        )
        now = max(now_us(), after.timestamp_us)
        step = StepBuilder(config=config, state=after, now_us=now, clock_us=now)
        records.extend(_records(step, used_types, rebuild.checkpoint_offset, used_store))
        return records

    begin_epoch(
        log,
        rebuild,
        records_of,
        command=COMMAND,
        attributes=None if used_store is None else {STORE_ATTRIBUTE: used_store.url},
        patience=patience,
        now_us=now_us,
    )
    return records[-1].sequence or 0


def _projections(state: JobState) -> dict[str, OperatorProjection[Any]]:
    return {
        operator.operator_id: _OWN[operator.projection or ""]
        for operator in state.launch_info.operators
        if operator.is_coordinated
    }


class _UsedTypes:
    """Types that a job with the operators of `state` must declare: those used by the job or by these operators."""

    def __init__(self, state: JobState) -> None:
        self._operators = {operator.operator_id for operator in state.launch_info.operators}
        self._needed: set[str] = {payload_type.key for payload_type in PayloadTypes(_TYPES)}

    def begin(self, state: JobState, undeclared: tuple[str, ...]) -> None:
        """Add the types of the snapshot that the log begins with."""
        self._needed.update(key for key, _ in sorted_items(state.types) if key not in undeclared)

    def note(self, record: Record) -> None:
        """Add the type of a record that may count."""
        if record.payload_type is None or record.kind is Kind.TYPE_REGISTERED:
            return
        if record.operator_id is None or record.operator_id in self._operators:
            self._needed.add(record.payload_type)

    def declared(self, state: JobState) -> dict[str, str]:
        """Fingerprints of the used types, by key."""
        types = sorted_items(state.types)
        return {key: fingerprint for key, fingerprint in types if key in self._needed}


def _fold(
    history: History,
    rebuild: Rebuild,
    used_types: _UsedTypes,
    open_payload: Callable[[bytes], bytes],
) -> None:
    beginning, records = history.judged()
    if beginning.snapshot is not None:
        _begin_at(beginning, beginning.snapshot, rebuild, used_types, open_payload)
    for judged in records:
        if not judged.verdict.is_void:
            used_types.note(judged.entry.record(judged.header))
        rebuild.feed(judged.entry)


def _begin_at(
    beginning: Beginning,
    record: Record,
    rebuild: Rebuild,
    used_types: _UsedTypes,
    open_payload: Callable[[bytes], bytes],
) -> None:
    """Begin the fold with the snapshot of a log that was pruned before."""
    try:
        state = state_of(record, open_payload)
        codec = SnapshotCodec(rebuild.projection, types=dict(sorted_items(state.types)))
        decoded = codec.decode(snapshot_in(record, open_payload), open_payload)
        used_types.begin(state, undeclared_in(record, open_payload))
    except SnapshotUnusableError as error:
        raise CommandError(
            record.job_id,
            f"only its own driver can start from the snapshot at the beginning of its log: {error}",
            "prune it while it runs: its driver takes a snapshot then",
        ) from error
    rebuild.begin_at(SnapshotSearch(snapshot=FoundSnapshot(beginning=beginning, decoded=decoded)))


def _needs_store(rebuild: Rebuild, codec: SnapshotCodec, store: PayloadStore | None) -> bool:
    """Whether the snapshot is too large for a record, so that a part of it goes to the store.

    Raises:
        CommandError: It is too large with the store too, counting the bytes that its epoch adds.
    """
    state = rebuild.state
    store_url = "" if store is None else store.url
    try:
        trial = standing_snapshot(
            codec,
            state,
            checkpoint_offset=rebuild.checkpoint_offset,
            owner="" if store is None else owner_of(state.epoch + 1, _ANY_DRIVER),
            spare_bytes=_EPOCH_BYTES + len(store_url.encode()),
        )
    except SnapshotMisfitError as error:
        raise _too_large(state, error.problem, error.next_step or _CANNOT_PRUNE) from error
    except SnapshotTooLargeError as error:
        raise _too_large(state, str(error), _CANNOT_PRUNE) from error
    return bool(trial.parts)


def _check_store(log: Log, state: JobState, store: PayloadStore) -> None:
    """Refuse a store other than the history's: a restart reads one store, and the state might address both.

    A store that the history names but no record addresses is no obstacle.
    """
    recorded_url = state.launch_info.payload_store
    if recorded_url in ("", store.url):
        return
    if any(True for stored in History(log).stored() for _ in addressed_in(stored)):
        raise CommandError(
            state.job_id,
            f"its history names the payload store {recorded_url}, and the states of its coordinators would go to "
            f"{store.url}: a restart reads only one of them; nothing was appended",
            f"give --payload-store {recorded_url}; if its payloads have been moved, run the job with "
            f"--payload-store {store.url} once, so that its history names that store",
        )


def _records(
    step: StepBuilder,
    used_types: _UsedTypes,
    checkpoint_offset: int | None,
    store: PayloadStore | None,
) -> list[Record]:
    """The turn of the snapshot, after its type's registration if the type is new. Writes its parts to `store`."""
    if SNAPSHOT_TYPE.key not in step.state.types:
        step.register(SNAPSHOT_TYPE.key)
    state = step.state
    codec = SnapshotCodec(step.config.projection, types=used_types.declared(state))
    owner = "" if store is None else owner_of(state.epoch, state.driver_id)
    try:
        snapshot = standing_snapshot(codec, state, checkpoint_offset=checkpoint_offset, owner=owner)
    except (SnapshotMisfitError, SnapshotTooLargeError) as error:  # small enough before this epoch
        raise _too_large(state, str(error), "try again") from error
    payloads = AttemptPayloads(PayloadOptions(store=store), state.epoch, state.driver_id)
    for part in snapshot.parts:
        payloads.store(part)
    step.add(Kind.SNAPSHOT, payload_type=SNAPSHOT_TYPE.key, payload=snapshot.payload)
    return list(step.records)


def _too_large(state: JobState, problem: str, next_step: str) -> CommandError:
    return CommandError(
        state.job_id,
        f"the log cannot hold a snapshot of the job, and nothing was removed: {problem}",
        next_step,
    )
