"""Turn of a driver, encoding of records for the log, and options of the runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from coordlog.errors import TooLargeError, TurnLimitError
from coordlog.kernel.builder import KernelConfig
from coordlog.kernel.inputs import Action, AttemptLost, Input
from coordlog.kernel.outputs import DeliverEvent, Effect, Step, StopAckTimer
from coordlog.kernel.step import act, step
from coordlog.limits import (
    ACK_TIMEOUT_S,
    CHECKPOINT_TIMEOUT_S,
    RECORD_BYTES_MAX,
    RECORD_ENVELOPE_BYTES_MAX,
    REGISTRATION_TIMEOUT_S,
    SNAPSHOT_EVERY_RECORDS,
    TURN_BYTES_MAX,
    TURN_CALLS_MAX,
    TURN_RECORDS_MAX,
)
from coordlog.log.interface import UnstoredRecord
from coordlog.payloads.offload import HeldPayload
from coordlog.projections.job.state import JobState
from coordlog.schemas.codec import encode_record, header_of
from coordlog.schemas.header import encode_header
from coordlog.schemas.record import Record, record_key

__all__ = [
    "RuntimeOptions",
    "Turn",
    "check_sizes",
    "fitting_act",
    "fitting_step",
    "to_unstored",
]

_OF_EVENTS: Final = frozenset({DeliverEvent, StopAckTimer})
_CHAR_BYTES: Final = 4
"""Maximum length of a character in UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOptions:
    """Limits of the runtime; those of the kernel are in its config."""

    checkpoint_interval_s: float | None = None
    """Time between periodic checkpoints, or None for no periodic checkpoints."""
    checkpoint_timeout_s: float = CHECKPOINT_TIMEOUT_S
    ack_timeout_s: float = ACK_TIMEOUT_S
    registration_timeout_s: float = REGISTRATION_TIMEOUT_S
    snapshot_every: int | None = SNAPSHOT_EVERY_RECORDS
    """Records that count from one snapshot to the next; None for no snapshots."""
    is_log_pruned: bool = False
    """Whether the driver prunes its log, so that the log may begin with each snapshot."""
    append_stall_s: float = 1.0
    """Seconds after which an append counts as stalled: from then on the time limits of acks are suspended."""


@dataclass(slots=True, kw_only=True, eq=False)
class Turn:
    """A turn, from its input to its release. Its records are in the state already."""

    sequence: int
    now_us: int
    clock_us: int = 0
    """Reading of the clock when the turn began, perhaps before `now_us`; for the restart policy."""
    records: list[Record] = field(default_factory=list)
    effects: list[Effect | Callable[[], None]] = field(default_factory=list)
    unstored: Sequence[UnstoredRecord] = ()
    watched: Sequence[int] = ()
    """Indexes of the records whose offsets the snapshots need."""
    after: JobState | None = None
    """State at the end of the turn, or None if no effect reads it: thousands of turns may wait for the log."""
    call_count: int = 0
    """Number of calls and timers that its callbacks have started."""
    acted_records: int = 0
    """Number of records of its callbacks' actions."""
    acted_bytes: int = 0
    """Bytes of the payloads of these records."""
    connection_id: int | None = None
    """Connection of the handled message: it may be read further once this turn is released."""
    payloads: Sequence[HeldPayload] = ()
    """Payloads that its records may address: stored before the records are appended."""

    @property
    def is_waited_for(self) -> bool:
        """Whether its release has an effect; without one, its append may wait for further turns."""
        return bool(self.watched) or any(
            type(effect) is not StopAckTimer for effect in self.effects
        )

    @property
    def reads_state(self) -> bool:
        """Whether one of its effects may read the state at its end; those of most turns are about one event."""
        return any(type(effect) not in _OF_EVENTS for effect in self.effects)

    def add_acted(self, records: Sequence[Record]) -> None:
        """Count the records of an action. Raises TurnLimitError above the turn's limit."""
        self.acted_records += len(records)
        self.acted_bytes += sum(len(record.payload or b"") for record in records)
        if self.acted_records > TURN_RECORDS_MAX:
            raise TurnLimitError("records", self.acted_records, TURN_RECORDS_MAX)
        if self.acted_bytes > TURN_BYTES_MAX:
            raise TurnLimitError("bytes of records", self.acted_bytes, TURN_BYTES_MAX)

    def next_call(self) -> int:
        """Next number of a call or timer; 0 first. Raises TurnLimitError above the turn's limit."""
        if self.call_count >= TURN_CALLS_MAX:
            raise TurnLimitError("calls and timers", self.call_count + 1, TURN_CALLS_MAX)
        self.call_count += 1
        return self.call_count - 1


def to_unstored(record: Record, *, snapshot_offset: int = -1) -> UnstoredRecord:
    """The record in the form in which it is appended."""
    return UnstoredRecord(
        key=record_key(record).encode(),
        value=encode_record(record),
        header=encode_header(header_of(record, snapshot_offset=snapshot_offset)),
        timestamp_us=record.timestamp_us,
    )


def check_sizes(records: Sequence[Record]) -> None:
    """Refuse records that are too large for a broker (clause K6: sizes are checked in the turn).

    Raises:
        TooLargeError: A record is too large; names the kind of the first one.
    """
    for record in records:
        error = _too_large(record)
        if error is not None:
            raise error


def fitting_act(config: KernelConfig, state: JobState, action: Action, now_us: int) -> Step:
    """Step of a coordinator's action. Raises TooLargeError inside the coordinator's call (clause K6)."""
    result = act(config, state, action, now_us)
    check_sizes(result.records)
    return result


def fitting_step(config: KernelConfig, state: JobState, input_: Input, now_us: int) -> Step:
    """Step of an input; an attempt whose message leads to a record that is too large fails (clause K6).

    Raises:
        TooLargeError: The record is not of the sending attempt: the driver has to end.
    """
    result = step(config, state, input_, now_us)
    for record in result.records:
        error = _too_large(record)
        if error is None:
            continue
        subtask, attempt_number = record.subtask, record.attempt_number
        sender = (getattr(input_, "subtask", None), getattr(input_, "attempt_number", None))
        if subtask is None or attempt_number is None or sender != (subtask, attempt_number):
            raise error
        lost = AttemptLost(subtask=subtask, attempt_number=attempt_number, reason=str(error))
        failed = step(config, state, lost, now_us)
        check_sizes(failed.records)
        return failed
    return result


def _too_large(record: Record) -> TooLargeError | None:
    chars = (
        len(record.reason or "") + len(record.operator_id or "") + len(record.payload_type or "")
    )
    for text in record.attributes.values():
        chars += len(text)
    estimated_bytes = len(record.payload or b"") + _CHAR_BYTES * chars
    if estimated_bytes <= RECORD_BYTES_MAX:
        return None  # most records, without encoding them
    size_bytes = to_unstored(record).size_bytes
    limit_bytes = RECORD_BYTES_MAX + RECORD_ENVELOPE_BYTES_MAX
    if size_bytes <= limit_bytes:
        return None
    return TooLargeError(f"a record {record.kind.value}", size_bytes, limit_bytes)
