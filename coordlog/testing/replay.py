"""Runs a recorded history through today's coordinators and compares their decisions (K7: calls follow from records).

The real kernel, runtime and hosting run here. Each recorded turn's input is fed again at that turn's
time, and the new records are compared with the recorded ones. There are no effects outside: no event
is delivered, no work started, no intent settled; results from outside are those of the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final

from coordlog.api.chain import Chain
from coordlog.errors import CoordlogError, RestoreError
from coordlog.history import History
from coordlog.kernel.builder import KernelConfig, with_limits
from coordlog.limits import PAYLOAD_BYTES_MAX
from coordlog.log.file import ExportedLog
from coordlog.log.interface import Log
from coordlog.log.payload_store import PayloadStore
from coordlog.messages import DownMessage
from coordlog.payloads.offload import DriverPayloads, PayloadOptions
from coordlog.projections.job.attempts import CLOCK_US, failure_us
from coordlog.restore.rebuild import Rebuild, projection_of
from coordlog.runtime.runtime import Runtime, RuntimeOptions
from coordlog.schemas.codec import decode_record
from coordlog.schemas.payload_address import LIMIT_ATTRIBUTE
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.validity import counted_turns
from coordlog.testing.replay_inputs import input_of_turn

__all__ = ["ReplayError", "ReplayResult", "replay"]

_FIELDS: Final = (
    "kind",
    "operator_id",
    "subtask",
    "attempt_number",
    "checkpoint_id",
    "event_id",
    "last_barrier",
    "cause",
    "payload_type",
    "payload",
    "reason",
    "attributes",
)
_TRACED: Final = (Kind.GLOBAL_FAILURE, Kind.JOB_FAILED, Kind.RESPONSE)
"""Kinds whose reason may be a traceback, which changes with every line of the code: only its first line is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """Size of a replayed history whose records were all the same again."""

    turn_count: int
    """Turns whose input was fed again."""
    record_count: int
    """Records of these turns."""
    passed_over_count: int
    """Turns that record a refusal or a snapshot: they call no coordinator, and are taken as recorded."""
    epoch_count: int
    """Epochs of the history."""


class ReplayError(CoordlogError):
    """Today's code decides differently from the history. `recorded` or `new` is None if there is no such record."""

    def __init__(
        self, offset: int, kind: str, recorded: str | None, new: str | None, what: str
    ) -> None:
        super().__init__(offset, kind, recorded, new, what)
        self.offset, self.kind = offset, kind
        self.recorded, self.new, self.what = recorded, new, what

    def __str__(self) -> str:
        return (
            f"offset {self.offset}, {self.kind}: the {self.what} was recorded as "
            f"{self.recorded or 'nothing'} and would now be {self.new or 'nothing'}"
        )


def replay(
    history: Log | Path | str,
    chain: Chain,
    *,
    configure: Callable[[KernelConfig], KernelConfig] | None = None,
    payload_store: PayloadStore | None = None,
) -> ReplayResult:
    """Run every turn of a history through the coordinators of `chain`.

    Args:
        history: The job's log, or an exported file.
        chain: The job's chain, with today's code.
        configure: Changes the kernel's limits, to try others; without it they are those that each epoch
            has recorded.
        payload_store: Store of the job's large payloads; only read.

    Raises:
        ReplayError: With the first offset whose record would now be different.
        RecordError: A record cannot be read by today's types.
        RestoreError: The history lacks its first records.
        SourceError: The file is no exported history.
        PayloadLostError: A large payload is missing.
    """
    log = ExportedLog(history) if isinstance(history, (Path, str)) else history
    if payload_store is not None:
        chain = chain.opening(DriverPayloads(PayloadOptions(store=payload_store)).open)
    return _Replay(History(log), chain, configure, payload_store).run()


@dataclass(slots=True)
class _Time:
    """Time of the replayed turn, which the runtime reads once, when the turn begins."""

    of_sequence: dict[int, int]
    runtime: Runtime | None = None

    def now_us(self) -> int:
        runtime = self.runtime
        return 0 if runtime is None else self.of_sequence.get(runtime.state.next_sequence, 0)

    def monotonic_s(self) -> float:
        return 0.0


class _Nowhere:
    """Connections, stage and workers that do nothing."""

    def send(self, connection_id: int, message: DownMessage) -> None:
        """Does nothing: there are no connections."""

    def close(self, connection_id: int) -> None:
        """Does nothing: there are no connections."""

    def released(self, connection_id: int, message_count: int) -> None:
        """Does nothing: there are no connections."""

    def submit(self, stage_run: int) -> None:
        """Does nothing: there is no stage."""

    def cancel(self, stage_run: int, reason: str) -> None:
        """Does nothing: there is no stage."""

    def kill_task(self, stage_run: int, task_attempt_id: int, reason: str) -> None:
        """Does nothing: there is no stage."""

    def run(self, work: Callable[[], None]) -> None:
        """Does nothing: the result is in the log."""

    def run_call(self, generation: int, work: Callable[[], None]) -> None:
        """Does nothing: the result is in the log."""

    def end_calls(self, generation: int) -> None:
        """Does nothing: no call is begun."""

    def run_closing(self, work: Callable[[], None]) -> None:
        """Runs it at once: it frees a coordinator's resources."""
        work()

    def post(self, thunk: Callable[[], None]) -> None:
        """Does nothing: the result is in the log."""


class _Replay:
    """A replay. The fold of the recorded history is at most a turn behind the replayed one."""

    def __init__(
        self,
        history: History,
        chain: Chain,
        configure: Callable[[KernelConfig], KernelConfig] | None,
        store: PayloadStore | None,
    ) -> None:
        self._history, self._chain, self._configure = history, chain, configure
        self._identity = history.log.identity
        self._store = store
        self._projection = projection_of(chain)
        self._recorded = Rebuild(self._projection, chain.payload_types)
        self._records = tuple(history.stored())
        self._turns = list(counted_turns(self._records))
        self._time = _Time({})
        self._ahead: deque[list[Record]] = deque()
        """New turns that are not yet compared with the history."""
        self._turn_count = self._record_count = self._passed_over = self._epochs = 0

    def run(self) -> ReplayResult:
        if self._history.start > 0:
            raise RestoreError(
                self._identity.name,
                "the first record",
                f"at offset 0, and the history starts at {self._history.start}",
                "to be replayed from there",
                "a prune or retention has removed the records before: replay an earlier export, or "
                "the archive of its first prune",
            )
        recorded = [[entry.record() for entry in turn.entries] for turn in self._turns]
        self._time.of_sequence = {
            turn[0].sequence: _clock_us(turn) for turn in recorded if turn[0].sequence is not None
        }
        try:
            for turn, records in zip(self._turns, recorded, strict=True):
                offsets = [entry.offset for entry in turn.entries]
                if records[0].kind is Kind.EPOCH_STARTED:
                    self._feed(offsets)
                    self._begin(offsets[0])
                else:
                    self._turn(offsets, records)
        finally:
            self._close()
        return ReplayResult(
            turn_count=self._turn_count,
            record_count=self._record_count,
            passed_over_count=self._passed_over,
            epoch_count=self._epochs,
        )

    def _feed(self, offsets: Sequence[int]) -> None:
        """Fold the recorded history up to the end of this turn, void records included."""
        for stored in self._records[self._recorded.end_offset : offsets[-1] + 1]:
            self._recorded.feed(stored)

    def _begin(self, offset: int) -> None:
        """Begin an epoch: new coordinators, from the recorded state."""
        self._close()
        self._ahead.clear()
        self._epochs += 1
        state = self._recorded.state
        operators = {provider.operator_id for provider in self._chain.coordinators}
        if set(state.operators) != operators:
            raise ReplayError(
                offset,
                Kind.EPOCH_STARTED.value,
                ", ".join(state.operators),
                ", ".join(sorted(operators)),
                "list of operators with a coordinator",
            )
        config = KernelConfig(
            projection=self._projection,
            operators=state.operators,
            is_batch=state.is_batch,
            keeps_finished_splits=state.is_batch and not self._chain.keeps_state_across_splits,
            cluster_id=state.launch.get("cluster_id", self._identity.cluster_id),
            topic_id=state.launch.get("topic_id", self._identity.topic_id),
            is_overlap_allowed=True,  # only recorded triggers are fed
        )
        config = with_limits(config, state.launch)
        nowhere = _Nowhere()
        limit_bytes = int(state.launch.get(LIMIT_ATTRIBUTE, PAYLOAD_BYTES_MAX))
        payloads = DriverPayloads(PayloadOptions(store=self._store, limit_bytes=limit_bytes))
        payloads.begin(state.epoch, state.driver_id)
        self._time.runtime = Runtime(
            chain=self._chain,
            config=config if self._configure is None else self._configure(config),
            options=RuntimeOptions(snapshot_every=None),
            state=state,
            clock=self._time,
            connections=nowhere,
            stage=nowhere,
            workers=nowhere,
            payloads=payloads,
        )

    def _turn(self, offsets: Sequence[int], recorded: Sequence[Record]) -> None:
        runtime = self._time.runtime
        assert runtime is not None, "the first counted record is an EPOCH_STARTED"
        if not self._ahead:
            turn_input = input_of_turn(recorded, runtime.state)
            if turn_input is None:
                self._passed_over += 1
                self._feed(offsets)
                runtime.state = self._recorded.state
                return
            runtime.handle(turn_input)
            self._take_ahead(runtime)
        new = self._ahead.popleft() if self._ahead else []
        _compare(offsets, recorded, new)
        self._turn_count += 1
        self._record_count += len(recorded)
        self._feed(offsets)

    def _take_ahead(self, runtime: Runtime) -> None:
        turn: list[Record] = []
        while group := runtime.turns.take_group():
            for unstored in group:
                record = decode_record(-1, unstored.value, unstored.header)
                turn.append(record)
                if record.turn_remaining == 0:
                    self._ahead.append(turn)
                    turn = []
            runtime.acknowledged(range(len(group)))

    def _close(self) -> None:
        if self._time.runtime is not None:
            self._time.runtime.host.close_all()


def _clock_us(turn: Sequence[Record]) -> int:
    """Clock at the turn's begin, microseconds, if its records have it; else the timestamp of the first record."""
    return next(
        (failure_us(record) for record in turn if CLOCK_US in record.attributes),
        turn[0].timestamp_us,
    )


def _compare(offsets: Sequence[int], recorded: Sequence[Record], new: Sequence[Record]) -> None:
    for index, (then, now) in enumerate(zip_longest(recorded, new)):
        offset = offsets[min(index, len(offsets) - 1)]
        if then is None or now is None:
            record = then or now
            assert record is not None, "one of the two exists"
            raise ReplayError(offset, record.kind.value, _text(then), _text(now), "record")
        for name in _FIELDS:
            was, would_be = _value(then, name), _value(now, name)
            if was != would_be:
                if name == "kind":
                    raise ReplayError(offset, then.kind.value, _text(then), _text(now), "record")
                raise ReplayError(offset, then.kind.value, repr(was), repr(would_be), name)


def _value(record: Record, name: str) -> object:
    value: object = getattr(record, name)
    if name == "reason" and isinstance(value, str) and record.kind in _TRACED:
        return value.partition("\n")[0]
    return dict(record.attributes) if name == "attributes" else value


def _text(record: Record | None) -> str | None:
    if record is None:
        return None
    fields = {name: _value(record, name) for name in _FIELDS[1:]}
    inner = ", ".join(f"{k}={v!r}" for k, v in fields.items() if v is not None and v != {})
    return f"{record.kind.value}({inner})"
