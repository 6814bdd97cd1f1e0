"""Codec between the whole job state and the payload of a `SNAPSHOT`, from which a fold can start.

The state of a job is encoded in Avro, with a schema derived from the types of the state, then compressed. Length and
SHA-256 are checked when it is read. A job starts from a snapshot only if it would fold the same state from the start
of the log. For any other job, or a snapshot of another version, `SnapshotUnusableError` is raised, and the fold starts
further back.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from immutables import Map

from coordlog.errors import PayloadLostError, RecordError
from coordlog.limits import PARALLELISM_MAX, SNAPSHOT_STATE_BYTES_MAX
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.state import Cut, JobState, sorted_items, sorted_values
from coordlog.projections.operators.operator_projection import OperatorProjection, SharingCodec
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.schemas.builtin_types import JobSnapshot
from coordlog.schemas.evolution import evolve
from coordlog.schemas.payload import open_inline, payload_type_of
from coordlog.schemas.payload_address import content_length, inline, is_stored
from coordlog.schemas.record import Record
from coordlog.schemas.validity import Beginning

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
    "schemas_before",
    "snapshot_in",
    "state_and_kept_apart",
    "state_before",
    "state_bytes_in",
    "state_of",
]

STATE_VERSION: Final = 1
"""Version of the encoded state. A change of `JobState`, or of a type in it, needs another version."""

SNAPSHOT_TYPE: Final = payload_type_of(JobSnapshot)
_COMPRESSION: Final = 1
_SAMPLE_BYTES: Final = 64 * 1024
_PACKED: Final = 0.8
_QUICK_BYTES: Final = 8 * 1024 * 1024


class SnapshotUnusableError(ValueError):
    """A snapshot that this job cannot start from, with the reason. Not an error of the log: the snapshot is ignored."""


class SnapshotTooLargeError(ValueError):
    """A state, or a part of it, has more bytes than a reader accepts."""

    def __init__(self, what: str, found_bytes: int, bytes_max: int) -> None:
        super().__init__(what, found_bytes, bytes_max)
        self.what, self.found_bytes, self.bytes_max = what, found_bytes, bytes_max

    def __str__(self) -> str:
        return f"{self.what} has {self.found_bytes} bytes, and {self.bytes_max} are read"


class SnapshotVersionError(SnapshotUnusableError):
    """A snapshot of another version, without damage that this version can detect.

    Args:
        problem: Version of the snapshot, and versions that are read here.
        version: Version of the snapshot, in a few words.
    """

    def __init__(self, problem: str, version: str) -> None:
        super().__init__(problem, version)
        self.problem, self.version = problem, version

    def __str__(self) -> str:
        return self.problem


@dataclass(frozen=True, slots=True, kw_only=True)
class _Projection:
    """Projection whose states a snapshot holds, for one operator."""

    operator_id: str
    name: str
    version: int
    fingerprint: str
    """Fingerprint of its codec. A derived codec adds a space and its schema, which a later schema needs to read it."""

    @property
    def encoding(self) -> str:
        """Fingerprint without the schema: equal ones have equal bytes."""
        return self.fingerprint.partition(" ")[0]

    @property
    def schema_json(self) -> str:
        """Schema of its states; empty if the codec is not derived."""
        return self.fingerprint.partition(" ")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProjectionState:
    """State of an operator's projection. The job state refers to it by its index in the list of these."""

    operator_id: str
    state: bytes
    """The encoded state, or its address in the payload store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """Content of a snapshot in its encoded form."""

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
    """The content of a snapshot."""

    state: JobState
    checkpoint_offset: int | None
    """Offset of the newest `CHECKPOINT_COMPLETED` before it, or None if there was none."""


class SnapshotCodec:
    """Encodes and decodes the states of one job.

    Args:
        projection: Projection of the job: its types, and its operators' projections.
        operators: All operators of the job; types of other operators may be undeclared. None: every type is declared.
        types: Fingerprints of the job's types by key, if the projection does not hold all types. None: those of the
            projection.
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
        declared = {type_.key: f"{type_.fingerprint:016x}" for type_ in projection.types}
        self._types = declared if types is None else types
        self.without_codec = tuple(
            operator_id
            for operator_id, of_operator in projection.operators.items()
            if of_operator.codec is None
        )
        """Operators whose projections cannot be encoded. If there are any, snapshots are impossible."""
        self._sharing: Mapping[str, SharingCodec[Any]] = {
            operator_id: of_operator.sharing_codec
            for operator_id, of_operator in projection.operators.items()
            if of_operator.sharing_codec is not None
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
            state: State of the job.
            checkpoint_offset: Offset of the newest `CHECKPOINT_COMPLETED` before it.
            seal: Returns the bytes to store for a projection's state: the state, or an address. A fold without the
                job's projections needs none of these.

        Raises:
            SnapshotTooLargeError: The state, or a part of it, is larger than a reader accepts.
            ValueError: A projection's codec does not decode the state that it has encoded. Errors of the codecs and of
                `seal` are raised as they are.
        """
        data = self._encoded(state, checkpoint_offset, seal)
        if len(data) > SNAPSHOT_STATE_BYTES_MAX:
            raise SnapshotTooLargeError("the state", len(data), SNAPSHOT_STATE_BYTES_MAX)
        return _snapshot_of(data)

    def state_hash(self, state: JobState) -> str:
        """Hash of 64 hexadecimal digits, the same for equal states on any machine (clause K3: live or rebuilt).

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
        states_bytes = sum(len(part.state) for part in table.states)
        if states_bytes > SNAPSHOT_STATE_BYTES_MAX and not is_plain:
            raise SnapshotTooLargeError("the state", states_bytes, SNAPSHOT_STATE_BYTES_MAX)
        sealed = [replace(part, state=seal(part.state)) for part in table.states]
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
                name=projection.name,
                version=projection.version,
                fingerprint=_fingerprint_of(projection),
            )
            for operator_id, projection in self._projection.operators.items()
        ]

    def decode(
        self,
        snapshot: JobSnapshot,
        open_payload: Callable[[bytes], bytes] = open_inline,
        *,
        upcasts: bool = False,
    ) -> DecodedSnapshot:
        """State in a snapshot, equal to the state that this job would fold from the start of the log.

        Args:
            snapshot: The snapshot.
            open_payload: Opens a state that is in the payload store.
            upcasts: Read states of projections that an earlier schema has encoded: added fields have their defaults,
                which may differ from a fold from the start. An operator that the job did not have up to
                the snapshot begins with its initial state, and types of a removed operator may be missing.

        Raises:
            SnapshotUnusableError: The snapshot is damaged, of another version, or of another job.
            PayloadLostError, PayloadStoreError: A projection's state is outside the log, and cannot be read.
        """
        body = _body_of(snapshot)
        added = self._added(body) if upcasts else Map[str, object]()
        readers = self._readers(body, added, upcasts=upcasts)
        self._check_types(body, upcasts=upcasts)
        states = self._states_in(body, open_payload, readers)
        operators = self._projection.operators

        def state_at(operator_id: str, place: object) -> object:
            return states[place] if isinstance(place, int) and operator_id in operators else None

        state = _with_projections(body.job_state, state_at)

        def of_operators(held: Map[str, object]) -> Map[str, object]:
            return added.update({key: one for key, one in sorted_items(held) if key in operators})

        projections, opening = of_operators(state.projections), state.opening
        if len(projections) != len(operators):
            raise SnapshotUnusableError("it does not hold the state of every projection")
        if opening is not None:
            opening = of_operators(opening)
        return DecodedSnapshot(
            state=evolve(state, projections=projections, opening=opening),
            checkpoint_offset=body.checkpoint_offset,
        )

    def _states_in(
        self,
        body: _Body,
        open_payload: Callable[[bytes], bytes],
        readers: Mapping[str, Callable[[bytes], object]],
    ) -> list[object]:
        """States by index; None for those of an operator that the job no longer has."""
        parts = body.projection_states
        states_bytes = sum(content_length(part.state) for part in parts)
        if states_bytes > SNAPSHOT_STATE_BYTES_MAX:
            raise SnapshotUnusableError(
                f"its states have {states_bytes} bytes; at most {SNAPSHOT_STATE_BYTES_MAX} are read"
            )
        last = {part.operator_id: number for number, part in enumerate(parts)}
        states: list[object] = [None] * len(parts)
        for operator_id, end in last.items():
            projection = self._projection.operators.get(operator_id)
            if projection is None or projection.codec is None:
                continue
            sharing = projection.sharing_codec
            try:
                read = (
                    readers[operator_id]
                    if sharing is None
                    else sharing.reader(open_payload(parts[end].state)).state
                )
                for number in range(end if sharing is not None else end + 1):
                    if parts[number].operator_id == operator_id:
                        states[number] = read(open_payload(parts[number].state))
            except ValueError as error:
                raise SnapshotUnusableError(
                    f"the state of operator {operator_id!r} in it cannot be read: {error}"
                ) from error
        return states

    def _added(self, body: _Body) -> Map[str, object]:
        """Initial states of the operators that the job did not have up to a snapshot."""
        launched = {one.operator_id for one in body.job_state.launch_info.operators}
        former = self._projection.operators.keys() & {*body.job_state.former_operators}
        if former:
            raise SnapshotUnusableError(
                f"operator {min(former)!r} had been removed from the job before it, and its state with the older "
                "records: only under another id it is new"
            )
        return Map(
            {
                operator_id: projection.initial
                for operator_id, projection in self._projection.operators.items()
                if operator_id not in launched
            }
        )

    def _readers(
        self, body: _Body, added: Map[str, object], *, upcasts: bool
    ) -> Mapping[str, Callable[[bytes], object]]:
        """Readers of the states of projections without a sharing codec, by operator; none of `added` ones."""
        recorded = {projection.operator_id: projection for projection in body.projections}
        readers: dict[str, Callable[[bytes], object]] = {}
        for current in self._refs():
            if current.operator_id in added:
                continue
            stored = recorded.get(current.operator_id)
            versions = (
                current.version,
                *self._projection.operators[current.operator_id].goes_on_from,
            )
            if stored is None or stored.name != current.name or stored.version not in versions:
                has = "none" if stored is None else f"{stored.name}@{stored.version}"
                raise SnapshotUnusableError(
                    f"as the projection of operator {current.operator_id!r} it has {has}, and the job has "
                    f"{current.name}@{current.version}"
                )
            own = self._projection.operators[current.operator_id].own_codec
            if stored.encoding == current.encoding and current.encoding:
                if own is not None:
                    readers[current.operator_id] = own.decode
                continue
            readers[current.operator_id] = _upcasting(stored, current, own, upcasts=upcasts)
        return readers

    def _check_types(self, body: _Body, *, upcasts: bool) -> None:
        """Refuse a snapshot with a type that a fold from the start may refuse: the fold must find that itself.

        An undeclared type is accepted if no operator of the present job has used it. That holds if it was undeclared
        for the driver that took the snapshot, and that driver had all operators of the present job. With `upcasts`
        there is no fold from the start: it is accepted if it was undeclared, or if an operator was removed.
        """
        state = body.job_state
        undeclared = [key for key, _ in sorted_items(state.types) if key not in self._types]
        launched = {operator.operator_id for operator in state.launch_info.operators}
        is_removal = upcasts and self._operators is not None and not launched <= self._operators
        for key, fingerprint in sorted_items(state.types):
            if self._types.get(key, fingerprint) != fingerprint:
                raise SnapshotUnusableError(f"payload type {key} has another schema in it")
        for key in undeclared:
            if key not in body.undeclared_types and not is_removal:
                raise SnapshotUnusableError(f"payload type {key} in it is not one of this job's")
        is_same = self._operators is not None and self._operators <= launched
        if undeclared and not upcasts and not is_same:
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
    stored: _Projection, current: _Projection, codec: object, *, upcasts: bool
) -> Callable[[bytes], object]:
    """Reader of states that the schema of `stored` has encoded."""
    problem = (
        f"the state of the projection {current.name}@{current.version} of operator {current.operator_id!r} has another "
        f"encoding in it, {stored.encoding or 'none'}, than in this job, "
        f"{current.encoding or 'none'}"
    )
    if not upcasts or not isinstance(codec, DerivedCodec) or not stored.schema_json:
        raise SnapshotUnusableError(problem)
    try:
        return codec.reader_of(stored.schema_json)
    except ValueError as error:
        raise SnapshotUnusableError(
            f"{problem}: {error}; set a default for each added field, and keep the types of the others"
        ) from error


class _Table:
    """Distinct states of the projections: states at retained checkpoints are often equal.

    The shared parts of a sharing codec's states are stored behind the last of its states.
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
        """Index of this state, or None for an operator without a projection."""
        projection = self._operators.get(operator_id)
        if projection is None:
            return None
        known = self._by_identity.get(
            (operator_id, id(state))
        )  # the job state keeps all of them alive
        if known is not None:
            return known
        data = self._own(operator_id, projection, state)
        number = self._by_bytes.setdefault((operator_id, data), len(self.states))
        if number == len(self.states):
            self.states.append(_ProjectionState(operator_id=operator_id, state=data))
        self._by_identity[operator_id, id(state)] = number
        return number

    def end(self) -> None:
        """Add the shared parts, after all states have been placed."""
        for operator_id, writer in self._writers.items():
            self.states.append(_ProjectionState(operator_id=operator_id, state=writer.shared()))

    def _own(self, operator_id: str, projection: OperatorProjection[Any], state: object) -> bytes:
        writer = self._writers.get(operator_id)
        if writer is not None:
            return writer.own(state)
        codec = projection.own_codec
        assert codec is not None, "every projection has a codec"
        data = codec.encode(state)
        # A derived codec itself checks that it decodes the state that it has encoded.
        if not isinstance(codec, DerivedCodec) and codec.decode(data) != state:
            raise ValueError(
                f"the codec of projection {projection.name}@{projection.version} of operator "
                f"{operator_id!r} does not return the state that it received"
            )
        return data


def _with_projections(state: JobState, convert: Callable[[str, object], object]) -> JobState:
    """The state with each projection's state, at cuts too, replaced by the result of `convert`."""

    def of_cuts(cuts: Map[str, Cut]) -> Map[str, Cut]:
        return Map(
            {
                operator_id: Cut(
                    sequence=cut.sequence,
                    state=cut.state,
                    projection=convert(operator_id, cut.projection),
                )
                for operator_id, cut in sorted_items(cuts)
            }
        )

    projections = {key: convert(key, held) for key, held in sorted_items(state.projections)}
    pending = {
        number: evolve(checkpoint, cuts=of_cuts(checkpoint.cuts))
        for number, checkpoint in sorted_items(state.pending)
    }
    completed = {
        number: replace(checkpoint, cuts=of_cuts(checkpoint.cuts))
        for number, checkpoint in sorted_items(state.completed)
    }
    opening = state.opening
    if opening is not None:
        opening = Map({key: convert(key, held) for key, held in sorted_items(opening)})
    return evolve(
        state,
        projections=Map(projections),
        pending=Map(pending),
        completed=Map(completed),
        opening=opening,
    )


def state_of(record: Record, open_payload: Callable[[bytes], bytes] = open_inline) -> JobState:
    """State in a `SNAPSHOT` without the states of projections: the same as a fold of the log alone.

    Raises:
        SnapshotUnusableError: The snapshot is damaged, or of another version.
        PayloadLostError, PayloadStoreError: It is outside the log, and cannot be read.
    """
    return state_and_kept_apart(record, open_payload)[0]


def state_before(
    beginning: Beginning, open_payload: Callable[[bytes], bytes] = open_inline
) -> JobState:
    """State with which a fold of a log begins, without the states of projections.

    Raises:
        RecordError: The snapshot at the beginning cannot be read.
        PayloadStoreError: It is outside the log, and the store does not respond.
    """
    if beginning.snapshot is None:
        return JobState()
    try:
        return state_of(beginning.snapshot, open_payload)
    except (SnapshotUnusableError, PayloadLostError) as error:
        kind = beginning.snapshot.kind.value
        raise RecordError(beginning.offset, kind, str(error)) from error


def schemas_before(beginning: Beginning) -> Mapping[str, str]:
    """Schemas as JSON, by type key, that were registered before; empty if this version cannot read the snapshot."""
    try:
        return state_before(beginning).schemas
    except RecordError:
        return {}


def state_and_kept_apart(
    record: Record, open_payload: Callable[[bytes], bytes] = open_inline
) -> tuple[JobState, tuple[bytes, ...]]:
    """State in a `SNAPSHOT` as by `state_of`, and the addresses of states that are in the payload store.

    Bytes that only begin like an address are among them.

    Raises:
        SnapshotUnusableError, PayloadLostError, PayloadStoreError: As `state_of`.
    """
    body = _body_of(snapshot_in(record, open_payload))
    state, parts = body.job_state, body.projection_states
    opening = None if state.opening is None else Map[str, object]()
    plain = evolve(_with_projections(state, _no_projection), projections=Map(), opening=opening)
    return plain, tuple(part.state for part in parts if is_stored(part.state))


def redacted_snapshot(record: Record, state: JobState) -> bytes:
    """Payload of a `SNAPSHOT` with this state in place of the record's, and without states of projections.

    Raises:
        SnapshotUnusableError: The record's snapshot is damaged, or of another version.
    """
    recorded = _body_of(snapshot_in(record))
    body = replace(recorded, projections=(), projection_states=(), job_state=state)
    return SNAPSHOT_TYPE.encode(_snapshot_of(_BODY.encode(body)))


def moved_snapshot(record: Record, places: Mapping[int, int]) -> bytes | None:
    """Payload of a `SNAPSHOT` for a log with other offsets, or None if it is the same or cannot be read here.

    Args:
        record: The `SNAPSHOT`.
        places: New offsets of the `CHECKPOINT_COMPLETED`s before it, by their old ones; without removed records.
    """
    try:
        body = _body_of(snapshot_in(record))
    except (SnapshotUnusableError, PayloadLostError):
        return None
    old_offset = body.checkpoint_offset
    if old_offset is None or places.get(old_offset) == old_offset:
        return None
    return SNAPSHOT_TYPE.encode(
        _snapshot_of(_BODY.encode(replace(body, checkpoint_offset=places.get(old_offset))))
    )


def _no_projection(_operator_id: str, _place: object) -> None:
    """State of a fold without projections at each cut."""


def snapshot_in(
    record: Record, open_payload: Callable[[bytes], bytes] = open_inline
) -> JobSnapshot:
    """Content of a `SNAPSHOT`, read from the payload store if the record has its address.

    Raises:
        SnapshotUnusableError: The snapshot, or the address of its state, is damaged, or of another version.
        PayloadLostError, PayloadStoreError: The state is outside the log, and cannot be read.
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
    except ValueError as error:  # bytes that begin like an address, and are none
        raise SnapshotUnusableError(f"its state has no valid address: {error}") from error
    return replace(snapshot, state=state)


def state_bytes_in(snapshot: JobSnapshot) -> bytes:
    """Encoded state in a snapshot of any version, with exactly the length that the snapshot has recorded.

    Raises:
        SnapshotUnusableError: The state is damaged, or its recorded length is above what is read.
    """
    if not 0 <= snapshot.state_bytes <= SNAPSHOT_STATE_BYTES_MAX:
        raise SnapshotUnusableError(
            f"its state has {snapshot.state_bytes} bytes; 0 to {SNAPSHOT_STATE_BYTES_MAX} are read"
        )
    try:
        data = zlib.decompressobj().decompress(snapshot.state, snapshot.state_bytes + 1)
    except zlib.error as error:
        raise SnapshotUnusableError(f"it is damaged: {error}") from error
    digest = hashlib.sha256(data).digest()
    if len(data) != snapshot.state_bytes or digest != snapshot.state_sha256:
        raise SnapshotUnusableError(
            f"it is damaged: {len(data)} bytes with SHA-256 {digest.hex()}, and it records "
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
    """Compressed data; large data that is packed already is stored as it is, because to pack it again takes seconds."""
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
        body = _BODY.decode(data)
    except ValueError as error:
        raise SnapshotUnusableError(f"its state cannot be read: {error}") from error
    state = body.job_state
    numbers = (state.parallelism, *(held.parallelism for held in sorted_values(state.completed)))
    for parallelism in numbers:
        if not 0 <= parallelism <= PARALLELISM_MAX:
            raise SnapshotUnusableError(
                f"its state has {parallelism} subtasks; a job has at most {PARALLELISM_MAX}"
            )
    return body
