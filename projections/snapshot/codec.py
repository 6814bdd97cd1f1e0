"""The whole job state as one payload, and back: what a `SNAPSHOT` holds, so that a fold can start from it.

The state of a job is encoded in Avro, its schema derived from the state's own types, compressed, and checked by length
and SHA-256 when it is read. A snapshot is a place to start from only for a job that would come to this very state from
the log's start; for any other one, and of any other version, it is `SnapshotUnusableError`: the fold starts further
back.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from immutables import Map

from coordlog.errors import PayloadLostError
from coordlog.limits import SNAPSHOT_STATE_BYTES_MAX
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.state import Cut, JobState, sorted_items
from coordlog.projections.operators.operator_projection import OperatorProjection, SharingCodec
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.schemas.builtin_types import JobSnapshot
from coordlog.schemas.evolution import evolve
from coordlog.schemas.payload import open_inline, payload_type_of
from coordlog.schemas.payload_address import content_length, inline, is_stored
from coordlog.schemas.record import Record

__all__ = [
    "SCHEMA_JSON",
    "SNAPSHOT_TYPE",
    "STATE_VERSION",
    "DecodedSnapshot",
    "SnapshotCodec",
    "SnapshotTooLargeError",
    "SnapshotUnusableError",
    "SnapshotVersionError",
    "moved_snapshot",
    "redacted_snapshot",
    "schemas_of",
    "snapshot_in",
    "state_and_kept_apart",
    "state_bytes_in",
    "state_of",
    "undeclared_in",
]

STATE_VERSION: Final = 1
"""Of the encoded state. A change of `JobState`, or of what it holds, is another version."""

SNAPSHOT_TYPE: Final = payload_type_of(JobSnapshot)
_COMPRESSION: Final = 1
_SAMPLE_BYTES: Final = 64 * 1024
_PACKED: Final = 0.8
_QUICK_BYTES: Final = 8 * 1024 * 1024


class SnapshotUnusableError(ValueError):
    """A snapshot that this job does not start from; the message says why. No error of the log: it is passed over."""


class SnapshotTooLargeError(ValueError):
    """A state, or a part of it, has more bytes than a reader takes."""

    def __init__(self, what: str, found_bytes: int, bytes_max: int) -> None:
        super().__init__(what, found_bytes, bytes_max)
        self.what, self.found_bytes, self.bytes_max = what, found_bytes, bytes_max

    def __str__(self) -> str:
        return f"{self.what} has {self.found_bytes} bytes, and {self.bytes_max} are read"


class SnapshotVersionError(SnapshotUnusableError):
    """It is whole, for all that this version can tell, and of another one.

    Args:
        problem: What it is of, and what is read here.
        version: What it is of, in a few words.
    """

    def __init__(self, problem: str, version: str) -> None:
        super().__init__(problem, version)
        self.problem, self.version = problem, version

    def __str__(self) -> str:
        return self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class _Projection:
    """Whose states a snapshot holds, for one operator."""

    operator_id: str
    name: str
    version: int
    fingerprint: str
    """Of its codec; of a derived one followed by a space and its schema, from which a later schema is read."""

    @property
    def encoding(self) -> str:
        """Fingerprint without the schema: equal ones have equal bytes."""
        return self.fingerprint.partition(" ")[0]

    @property
    def schema_json(self) -> str:
        """Schema of its states; empty of a codec that is not derived."""
        return self.fingerprint.partition(" ")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProjectionState:
    """One state of an operator's projection, which the job state names by its place among these."""

    operator_id: str
    state: bytes
    """Itself, or its address in the payload store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """All that is encoded."""

    checkpoint_offset: int | None
    undeclared_types: tuple[str, ...]
    projections: tuple[_Projection, ...]
    projection_states: tuple[_ProjectionState, ...]
    job_state: JobState


_BODY: Final = DerivedCodec(_Body, any_as=int | None)
SCHEMA_JSON: Final = _BODY.schema_json
"""The Avro schema of the encoded state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedSnapshot:
    """What a snapshot comes to."""

    state: JobState
    checkpoint_offset: int | None
    """The offset of the newest `CHECKPOINT_COMPLETED` before it; None where there was none."""


class SnapshotCodec:
    """Encodes and decodes the states of one job.

    Args:
        projection: Of the job: its types, and its operators' projections.
        operators: All that it has: of others a type may be undeclared. None: no type may.
        types: The fingerprints of its types by key, for who has not all of them; None: those of the projection.
    """

    def __init__(
        self,
        projection: JobProjection,
        operators: Collection[str] | None = None,
        *,
        types: Mapping[str, str] | None = None,
    ) -> None:
        self._projection = projection
        self._operators = None if operators is None else frozenset(operators)
        declared = {one.key: f"{one.fingerprint:016x}" for one in projection.types}
        self._types = declared if types is None else types
        self.without_codec = tuple(
            operator_id for operator_id, one in projection.operators.items() if one.codec is None
        )
        """The operators whose projections cannot be encoded: with any, there are no snapshots."""
        self._sharing: Mapping[str, SharingCodec[Any]] = {
            operator_id: one.sharing_codec
            for operator_id, one in projection.operators.items()
            if one.sharing_codec is not None
        }

    def encode(
        self,
        state: JobState,
        *,
        checkpoint_offset: int | None = None,
        seal: Callable[[bytes], bytes] = inline,
    ) -> JobSnapshot:
        """A snapshot of `state`.

        Args:
            state: The job's.
            checkpoint_offset: Of the newest `CHECKPOINT_COMPLETED` before it.
            seal: Gives what stands in it for a projection's state: the state, or an address. Who folds without the
                job's projections needs none of these.

        Raises:
            SnapshotTooLargeError: It, or a part of it, is larger than what is read again.
            ValueError: A projection's codec does not give back what it was given. What such a codec
                raises itself. What `seal` raises.
        """
        data = self._encoded(state, checkpoint_offset, seal)
        if len(data) > SNAPSHOT_STATE_BYTES_MAX:
            raise SnapshotTooLargeError("the state", len(data), SNAPSHOT_STATE_BYTES_MAX)
        return _snapshot_of(data)

    def state_hash(self, state: JobState) -> str:
        """The same for equal states, on any machine, however they were come by (clause K3); 64 hexadecimal digits.

        Raises:
            ValueError: As `encode`.
        """
        return hashlib.sha256(self._encoded(state, None, inline, is_plain=True)).hexdigest()

    def _encoded(
        self,
        state: JobState,
        checkpoint_offset: int | None,
        seal: Callable[[bytes], bytes],
        *,
        is_plain: bool = False,
    ) -> bytes:
        assert not self.without_codec, "every projection has a codec"
        table = _Table(self._projection, self._sharing, is_plain=is_plain)
        placed = _with_projections(state, table.place)
        table.end()
        states_bytes = sum(len(one.state) for one in table.states)
        if states_bytes > SNAPSHOT_STATE_BYTES_MAX and not is_plain:
            raise SnapshotTooLargeError("the state", states_bytes, SNAPSHOT_STATE_BYTES_MAX)
        sealed = [replace(one, state=seal(one.state)) for one in table.states]
        undeclared = [key for key, _ in sorted_items(state.types) if key not in self._types]
        return _BODY.encode(
            _Body(
                checkpoint_offset=checkpoint_offset,
                undeclared_types=tuple(undeclared),
                projections=tuple(self._refs()),
                projection_states=tuple(sealed),
                job_state=placed,
            )
        )

    def _refs(self) -> list[_Projection]:
        return [
            _Projection(
                operator_id=operator_id,
                name=one.name,
                version=one.version,
                fingerprint=_fingerprint_of(one),
            )
            for operator_id, one in self._projection.operators.items()
        ]

    def decode(
        self,
        snapshot: JobSnapshot,
        open_payload: Callable[[bytes], bytes] = open_inline,
        *,
        upcasts: bool = False,
    ) -> DecodedSnapshot:
        """The state in a snapshot, as this job would have folded it.

        Args:
            snapshot: The snapshot.
            open_payload: Opens a state that is in the payload store.
            upcasts: Read states of projections that an earlier schema has encoded: added fields have their defaults,
                which a fold from the start may not come to.

        Raises:
            SnapshotUnusableError: It is damaged, of another version, or another job's.
            PayloadLostError, PayloadStoreError: A projection's state in it stands outside the log, and cannot be had.
        """
        body = _body_of(snapshot)
        readers = self._readers(body, upcasts=upcasts)
        self._check_types(body)
        states = self._states_in(body, open_payload, readers)
        here = self._projection.operators

        def state_at(operator_id: str, place: object) -> object:
            return states[place] if isinstance(place, int) and operator_id in here else None

        state = _with_projections(body.job_state, state_at)
        kept = {one: held for one, held in sorted_items(state.projections) if one in here}
        if len(kept) != len(here):
            raise SnapshotUnusableError("it does not hold the state of every projection")
        opening = state.opening
        if opening is not None:
            opening = Map({one: held for one, held in sorted_items(opening) if one in here})
        return DecodedSnapshot(
            state=evolve(state, projections=Map(kept), opening=opening),
            checkpoint_offset=body.checkpoint_offset,
        )

    def _states_in(
        self,
        body: _Body,
        open_payload: Callable[[bytes], bytes],
        readers: Mapping[str, Callable[[bytes], object]],
    ) -> list[object]:
        """By their places; None for those of an operator that the job does not have any more."""
        held = body.projection_states
        states_bytes = sum(content_length(one.state) for one in held)
        if states_bytes > SNAPSHOT_STATE_BYTES_MAX:
            raise SnapshotUnusableError(f"it says that its states have {states_bytes} bytes")
        last = {one.operator_id: number for number, one in enumerate(held)}
        states: list[object] = [None] * len(held)
        for operator_id, end in last.items():
            projection = self._projection.operators.get(operator_id)
            if projection is None or projection.codec is None:
                continue
            sharing = projection.sharing_codec
            try:
                read = (
                    readers[operator_id]
                    if sharing is None
                    else sharing.reader(open_payload(held[end].state)).state
                )
                for number in range(end if sharing is not None else end + 1):
                    if held[number].operator_id == operator_id:
                        states[number] = read(open_payload(held[number].state))
            except ValueError as error:
                raise SnapshotUnusableError(
                    f"the state of operator {operator_id!r} in it cannot be read: {error}"
                ) from error
        return states

    def _readers(self, body: _Body, *, upcasts: bool) -> Mapping[str, Callable[[bytes], object]]:
        """Readers of the projections' states that do not share, by operator."""
        theirs = {one.operator_id: one for one in body.projections}
        readers: dict[str, Callable[[bytes], object]] = {}
        for here in self._refs():
            there = theirs.get(here.operator_id)
            versions = (here.version, *self._projection.operators[here.operator_id].goes_on_from)
            if there is None or there.name != here.name or there.version not in versions:
                has = "none" if there is None else f"{there.name}@{there.version}"
                raise SnapshotUnusableError(
                    f"as the projection of operator {here.operator_id!r} it has {has}, and the job "
                    f"{here.name}@{here.version}"
                )
            own = self._projection.operators[here.operator_id].own_codec
            if there.encoding == here.encoding and here.encoding:
                if own is not None:
                    readers[here.operator_id] = own.decode
                continue
            readers[here.operator_id] = _upcasting(there, here, own, upcasts=upcasts)
        return readers

    def _check_types(self, body: _Body) -> None:
        """A fold from the start may refuse a type of the log: then it must come to that refusal.

        An undeclared type is let be where no operator of today's has used it. So it was for the
        driver that made the snapshot, and so it is for a job all of whose operators that one had.
        """
        state = body.job_state
        undeclared = [key for key, _ in sorted_items(state.types) if key not in self._types]
        for key, there in sorted_items(state.types):
            if self._types.get(key, there) != there:
                raise SnapshotUnusableError(f"payload type {key} has another schema in it")
        for key in undeclared:
            if key not in body.undeclared_types:
                raise SnapshotUnusableError(f"payload type {key} in it is not one of this job's")
        if undeclared:
            said = json.loads(state.launch.get("operators", "[]"))
            if self._operators is None or not self._operators <= {one["id"] for one in said}:
                raise SnapshotUnusableError(
                    f"payload type {undeclared[0]} in it is not one of this job's, which has "
                    "operators that its driver did not have"
                )


def _fingerprint_of(projection: OperatorProjection[Any]) -> str:
    codec = projection.codec
    if codec is None:
        return ""
    if isinstance(codec, DerivedCodec):
        return f"{codec.fingerprint} {codec.schema_json}"
    return codec.fingerprint


def _upcasting(
    there: _Projection, here: _Projection, codec: object, *, upcasts: bool
) -> Callable[[bytes], object]:
    """What reads states that the schema of `there` has encoded."""
    what = (
        f"the state of the projection {here.name}@{here.version} of operator {here.operator_id!r} has another "
        f"encoding in it, {there.encoding or 'none'}, than in this job, "
        f"{here.encoding or 'none'}"
    )
    if not upcasts or not isinstance(codec, DerivedCodec) or not there.schema_json:
        raise SnapshotUnusableError(what)
    try:
        return codec.reader_of(there.schema_json)
    except ValueError as error:
        raise SnapshotUnusableError(
            f"{what}: {error}; give each added field a default, and keep the types of the others"
        ) from error


class _Table:
    """The projections' states, each once: those of retained checkpoints are often the same.

    Of a codec that shares, what its states are made of stands behind the last of them.
    """

    def __init__(
        self,
        projection: JobProjection,
        sharing: Mapping[str, SharingCodec[Any]],
        *,
        is_plain: bool,
    ) -> None:
        self._operators = projection.operators
        self.states: list[_ProjectionState] = []
        self._by_identity: dict[tuple[str, int], int] = {}
        self._by_bytes: dict[tuple[str, bytes], int] = {}
        self._writers = {
            operator_id: codec.writer(is_plain=is_plain) for operator_id, codec in sharing.items()
        }

    def place(self, operator_id: str, state: object) -> int | None:
        """Where this state stands; None for an operator that has no projection."""
        projection = self._operators.get(operator_id)
        if projection is None:
            return None
        known = self._by_identity.get((operator_id, id(state)))  # all of them live in the job state
        if known is not None:
            return known
        data = self._own(operator_id, projection, state)
        number = self._by_bytes.setdefault((operator_id, data), len(self.states))
        if number == len(self.states):
            self.states.append(_ProjectionState(operator_id=operator_id, state=data))
        self._by_identity[operator_id, id(state)] = number
        return number

    def end(self) -> None:
        """All states have been placed."""
        for operator_id, writer in self._writers.items():
            self.states.append(_ProjectionState(operator_id=operator_id, state=writer.shared()))

    def _own(self, operator_id: str, projection: OperatorProjection[Any], state: object) -> bytes:
        writer = self._writers.get(operator_id)
        if writer is not None:
            return writer.own(state)
        codec = projection.own_codec
        assert codec is not None, "every projection has a codec"
        data = codec.encode(state)
        # A derived one looks itself whether it gives back what it was given.
        if not isinstance(codec, DerivedCodec) and codec.decode(data) != state:
            raise ValueError(
                f"the codec of projection {projection.name}@{projection.version} of operator "
                f"{operator_id!r} does not give back the state that it was given"
            )
        return data


def _with_projections(state: JobState, given: Callable[[str, object], object]) -> JobState:
    """The state, with each projection's state, those of the cuts too, replaced by what `given` makes of it."""

    def of_cuts(cuts: Map[str, Cut]) -> Map[str, Cut]:
        return Map(
            {
                operator_id: Cut(
                    sequence=cut.sequence,
                    state=cut.state,
                    projection=given(operator_id, cut.projection),
                )
                for operator_id, cut in sorted_items(cuts)
            }
        )

    projections = {one: given(one, held) for one, held in sorted_items(state.projections)}
    pending = {n: evolve(one, cuts=of_cuts(one.cuts)) for n, one in sorted_items(state.pending)}
    completed = {
        n: replace(one, cuts=of_cuts(one.cuts)) for n, one in sorted_items(state.completed)
    }
    opening = state.opening
    if opening is not None:
        opening = Map({one: given(one, held) for one, held in sorted_items(opening)})
    return evolve(
        state,
        projections=Map(projections),
        pending=Map(pending),
        completed=Map(completed),
        opening=opening,
    )


def state_of(record: Record, open_payload: Callable[[bytes], bytes] = open_inline) -> JobState:
    """The state in a `SNAPSHOT`, without those of projections: as one folds it who has nothing but the log.

    Raises:
        SnapshotUnusableError: It is damaged, or of another version.
        PayloadLostError, PayloadStoreError: It stands outside the log, and cannot be had.
    """
    return state_and_kept_apart(record, open_payload)[0]


def state_and_kept_apart(
    record: Record, open_payload: Callable[[bytes], bytes] = open_inline
) -> tuple[JobState, tuple[bytes, ...]]:
    """The same, and what stands in it for those states of projections that are kept in the payload store.

    These are addresses, or begin like one.

    Raises:
        SnapshotUnusableError, PayloadLostError, PayloadStoreError: As `state_of`.
    """
    body = _body_of(snapshot_in(record, open_payload))
    state, held = body.job_state, body.projection_states
    opening = None if state.opening is None else Map[str, object]()
    plain = evolve(_with_projections(state, _no_projection), projections=Map(), opening=opening)
    return plain, tuple(one.state for one in held if is_stored(one.state))


def undeclared_in(
    record: Record, open_payload: Callable[[bytes], bytes] = open_inline
) -> tuple[str, ...]:
    """The types of the log that the job whose state stands in a `SNAPSHOT` did not declare.

    Raises:
        SnapshotUnusableError, PayloadLostError, PayloadStoreError: As `state_of`.
    """
    return _body_of(snapshot_in(record, open_payload)).undeclared_types


def redacted_snapshot(record: Record, state: JobState) -> bytes:
    """The payload of a `SNAPSHOT` that holds this state in place of the record's own, and those of no projections.

    Raises:
        SnapshotUnusableError: The record's is damaged, or of another version.
    """
    there = _body_of(snapshot_in(record))
    body = replace(there, projections=(), projection_states=(), job_state=state)
    return SNAPSHOT_TYPE.encode(_snapshot_of(_BODY.encode(body)))


def moved_snapshot(record: Record, places: Mapping[int, int]) -> bytes | None:
    """The payload of a `SNAPSHOT` in a log whose offsets are others; None where it stays, or cannot be read here.

    Args:
        record: The `SNAPSHOT`.
        places: The new offsets of `CHECKPOINT_COMPLETED`s before it, by the old ones; none of one that is gone.
    """
    try:
        body = _body_of(snapshot_in(record))
    except (SnapshotUnusableError, PayloadLostError):
        return None
    was = body.checkpoint_offset
    if was is None or places.get(was) == was:
        return None
    return SNAPSHOT_TYPE.encode(
        _snapshot_of(_BODY.encode(replace(body, checkpoint_offset=places.get(was))))
    )


def _no_projection(_operator_id: str, _place: object) -> None:
    """What a fold without projections has at each cut."""


def snapshot_in(
    record: Record, open_payload: Callable[[bytes], bytes] = open_inline
) -> JobSnapshot:
    """What a `SNAPSHOT` holds, or addresses.

    Raises:
        SnapshotUnusableError: It, or the address of its state, is damaged, or of another version.
        PayloadLostError, PayloadStoreError: It stands outside the log, and cannot be had.
    """
    if record.payload_type != SNAPSHOT_TYPE.key:
        raise SnapshotVersionError(
            f"its type is {record.payload_type}; this version reads {SNAPSHOT_TYPE.key}",
            f"type {record.payload_type}",
        )
    try:
        snapshot = SNAPSHOT_TYPE.decode(record.payload or b"")
    except (ValueError, TypeError) as error:
        raise SnapshotUnusableError(f"it is damaged: {error}") from error
    assert isinstance(snapshot, JobSnapshot), "it is of that type"
    try:
        state = open_payload(snapshot.state)
    except ValueError as error:  # what stands there begins like an address, and is none
        raise SnapshotUnusableError(f"its state cannot be looked for: {error}") from error
    return replace(snapshot, state=state)


def schemas_of(snapshot: JobSnapshot) -> Mapping[str, str]:
    """The schemas in use, as JSON, by type key: what a log that begins with the snapshot has registered before.

    Raises:
        SnapshotUnusableError: It is damaged, or of another version.
    """
    return _body_of(snapshot).job_state.schemas


def state_bytes_in(snapshot: JobSnapshot) -> bytes:
    """The encoded state in a snapshot of any version, as long as it says and no longer.

    Raises:
        SnapshotUnusableError: It is damaged, or says that it is longer than what is read.
    """
    if not 0 <= snapshot.state_bytes <= SNAPSHOT_STATE_BYTES_MAX:
        raise SnapshotUnusableError(f"it says that its state has {snapshot.state_bytes} bytes")
    try:
        data = zlib.decompressobj().decompress(snapshot.state, snapshot.state_bytes + 1)
    except zlib.error as error:
        raise SnapshotUnusableError(f"it is damaged: {error}") from error
    found = hashlib.sha256(data).digest()
    if len(data) != snapshot.state_bytes or found != snapshot.state_sha256:
        raise SnapshotUnusableError(
            f"it is damaged: {len(data)} bytes with SHA-256 {found.hex()}, where it says "
            f"{snapshot.state_bytes} with {snapshot.state_sha256.hex()}"
        )
    return data


def _snapshot_of(data: bytes) -> JobSnapshot:
    return JobSnapshot(
        state_version=STATE_VERSION,
        schema_fingerprint=_BODY.fingerprint,
        state_bytes=len(data),
        state_sha256=hashlib.sha256(data).digest(),
        state=_compressed(data),
    )


def _compressed(data: bytes) -> bytes:
    """Much that is packed already, as most of a large state is, is stored as it is: to pack it again takes seconds."""
    if len(data) <= _QUICK_BYTES:
        return zlib.compress(data, _COMPRESSION)
    middle = len(data) // 2
    sample = data[middle : middle + _SAMPLE_BYTES]
    is_packed = len(zlib.compress(sample, _COMPRESSION)) > len(sample) * _PACKED
    return zlib.compress(data, 0 if is_packed else _COMPRESSION)


def _body_of(snapshot: JobSnapshot) -> _Body:
    if snapshot.state_version != STATE_VERSION or snapshot.schema_fingerprint != _BODY.fingerprint:
        raise SnapshotVersionError(
            f"its state is of version {snapshot.state_version}, schema "
            f"{snapshot.schema_fingerprint}; this version reads {STATE_VERSION}, {_BODY.fingerprint}",
            f"state version {snapshot.state_version}, schema {snapshot.schema_fingerprint}",
        )
    data = state_bytes_in(snapshot)
    try:
        return _BODY.decode(data)
    except ValueError as error:
        raise SnapshotUnusableError(f"its state cannot be read: {error}") from error
