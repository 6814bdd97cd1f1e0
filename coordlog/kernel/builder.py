"""Builds one step: assigns each record its place in the log, and applies it to the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from coordlog.causes import encodable
from coordlog.kernel.outputs import Call, Effect, Step
from coordlog.limits import (
    CHECKPOINT_ABORTS_IN_A_ROW_MAX,
    FINAL_CHECKPOINTS_MAX,
    HELD_EVENTS_PER_GATEWAY_MAX,
    REASON_CHARS_MAX,
    REMEMBERED_EVENTS_BYTES_MAX,
    RESTART_BACKOFF_MAX_S,
    RESTART_BACKOFF_S,
    RESTART_WINDOW_S,
    RESTARTS_MAX,
    RETAINED_CHECKPOINTS,
    SETTLE_ATTEMPTS_MAX,
)
from coordlog.projections.job.attempts import CLOCK_US, FAILURES
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.state import JobState
from coordlog.schemas.evolution import evolve
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import Kind, Record

__all__ = ["KernelConfig", "StepBuilder", "limits_of", "with_limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConfig:
    """Settings of the kernel's decisions. The same for a whole epoch."""

    projection: JobProjection
    operators: tuple[str, ...]
    """Operators that have coordinators, in the order of the chain."""
    is_batch: bool
    keeps_finished_splits: bool
    """Whether finished splits stay finished: in batch if no operator keeps state across splits (L4: batch failover)."""
    cluster_id: str = ""
    topic_id: str = ""
    is_overlap_allowed: bool = False
    restarts_max: int = RESTARTS_MAX
    restart_window_s: float = RESTART_WINDOW_S
    restart_backoff_s: float = RESTART_BACKOFF_S
    restart_backoff_max_s: float = RESTART_BACKOFF_MAX_S
    retained_checkpoints: int = RETAINED_CHECKPOINTS
    settle_attempts_max: int = SETTLE_ATTEMPTS_MAX
    held_events_max: int = HELD_EVENTS_PER_GATEWAY_MAX
    remembered_bytes_max: int = REMEMBERED_EVENTS_BYTES_MAX
    timeouts_in_a_row_max: int = CHECKPOINT_ABORTS_IN_A_ROW_MAX
    final_checkpoints_max: int = FINAL_CHECKPOINTS_MAX


_LIMITS: Final = (
    "restarts_max",
    "retained_checkpoints",
    "settle_attempts_max",
    "held_events_max",
    "remembered_bytes_max",
    "timeouts_in_a_row_max",
    "final_checkpoints_max",
    "restart_window_s",
    "restart_backoff_s",
    "restart_backoff_max_s",
)
_PREFIX: Final = "limit."


def limits_of(config: KernelConfig) -> dict[str, str]:
    """The limits as attributes of `EPOCH_STARTED`, so that a replay uses the same limits (K7: code can be replayed)."""
    return {_PREFIX + name: str(getattr(config, name)) for name in _LIMITS}


def with_limits(config: KernelConfig, attributes: Mapping[str, str]) -> KernelConfig:
    """The config with the limits that an epoch has recorded; a limit that it has not recorded stays.

    Raises:
        ValueError: A recorded limit is no number.
    """

    def count(name: str, otherwise: int) -> int:
        return int(attributes.get(_PREFIX + name, otherwise))

    def seconds(name: str, otherwise: float) -> float:
        return float(attributes.get(_PREFIX + name, otherwise))

    return replace(
        config,
        restarts_max=count("restarts_max", config.restarts_max),
        retained_checkpoints=count("retained_checkpoints", config.retained_checkpoints),
        settle_attempts_max=count("settle_attempts_max", config.settle_attempts_max),
        held_events_max=count("held_events_max", config.held_events_max),
        remembered_bytes_max=count("remembered_bytes_max", config.remembered_bytes_max),
        timeouts_in_a_row_max=count("timeouts_in_a_row_max", config.timeouts_in_a_row_max),
        final_checkpoints_max=count("final_checkpoints_max", config.final_checkpoints_max),
        restart_window_s=seconds("restart_window_s", config.restart_window_s),
        restart_backoff_s=seconds("restart_backoff_s", config.restart_backoff_s),
        restart_backoff_max_s=seconds("restart_backoff_max_s", config.restart_backoff_max_s),
    )


_BLANK: Final = Record(epoch=0, driver_id="", sequence=0, kind=Kind.FACT, timestamp_us=0, job_id="")
"""Template of every record: the constructor, which sets each field, takes twice the time."""


@dataclass(slots=True, kw_only=True)
class StepBuilder:
    """The records, calls and effects of one step so far, and the state after them. Lives within one `step`."""

    config: KernelConfig
    state: JobState
    now_us: int
    """Time of the records: never before that of the last record."""
    clock_us: int
    """Reading of the driver's clock, which may be behind, if an earlier clock was ahead."""
    records: list[Record] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    def add(
        self,
        kind: Kind,
        *,
        operator_id: str | None = None,
        subtask: int | None = None,
        attempt_number: int | None = None,
        checkpoint_id: int | None = None,
        event_id: int | None = None,
        last_barrier: int | None = None,
        cause: int | None = None,
        payload_type: str | None = None,
        payload: bytes | None = None,
        value: Payload | None = None,
        reason: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> Record:
        """Append a record, after its type's registration on first use, and apply it. Returns it as placed."""
        if value is not None:
            declared = payload_type_of(value)
            payload_type, payload = declared.key, declared.encode(value)
        if payload_type is not None and payload_type not in self.state.types:
            self.register(payload_type)
        return self._place(
            evolve(
                _BLANK,
                epoch=self.state.epoch,
                driver_id=self.state.driver_id,
                sequence=self.state.next_sequence,
                kind=kind,
                timestamp_us=self.now_us,
                job_id=self.state.job_id,
                operator_id=operator_id,
                subtask=subtask,
                attempt_number=attempt_number,
                checkpoint_id=checkpoint_id,
                event_id=event_id,
                last_barrier=last_barrier,
                cause=cause,
                payload_type=payload_type,
                payload=payload,
                reason=None if reason is None else encodable(reason)[:REASON_CHARS_MAX],
                attributes=self._timed(kind, attributes or {}),
            )
        )

    def _timed(self, kind: Kind, attributes: Mapping[str, str]) -> Mapping[str, str]:
        """Attributes, with the clock's reading if the record is a counted failure and its time is not that reading."""
        if self.clock_us == self.now_us or kind not in FAILURES:
            return attributes
        return {**attributes, CLOCK_US: str(self.clock_us)}

    def register(self, key: str) -> None:
        """Append a type's `TYPE_REGISTERED`."""
        declared = self.config.projection.types.by_key(key)
        self._place(
            Record(
                epoch=self.state.epoch,
                driver_id=self.state.driver_id,
                sequence=self.state.next_sequence,
                kind=Kind.TYPE_REGISTERED,
                timestamp_us=self.now_us,
                job_id=self.state.job_id,
                payload_type=key,
                payload=declared.schema_json.encode(),
                attributes={"fingerprint": f"{declared.fingerprint:016x}"},
            )
        )

    def _place(self, record: Record) -> Record:
        self.state = self.config.projection.apply(self.state, record)
        self.records.append(record)
        return record

    def call_all(self, make: Callable[[str], Call]) -> None:
        """One call per coordinator, in the order of the chain."""
        self.calls.extend(make(operator_id) for operator_id in self.config.operators)

    def built(self) -> Step:
        """The step."""
        return Step(
            state=self.state,
            records=tuple(self.records),
            calls=tuple(self.calls),
            effects=tuple(self.effects),
        )
