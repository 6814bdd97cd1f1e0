"""Runs a recorded history through today's coordinators, and finds where they would decide otherwise (clause K7).

The real kernel, runtime and hosting run here. Each recorded turn's input is fed again at that turn's
time, and what the turn records now is compared with what it recorded then. Nothing leaves: no event
is delivered, no work started, nothing settled; answers from outside are those of the log.
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
from coordlog.kernel.builder import KernelConfig, with_limits
from coordlog.limits import PAYLOAD_BYTES_MAX
from coordlog.log.payload_store import PayloadStore
from coordlog.messages import DownMessage
from coordlog.payloads.offload import DriverPayloads, PayloadOptions
from coordlog.projections.job.failure_times import CLOCK_US, failure_us
from coordlog.restore.rebuild import Rebuild, projection_of
from coordlog.runtime.runtime import Runtime, RuntimeOptions
from coordlog.schemas.codec import decode_record
from coordlog.schemas.payload_address import LIMIT_ATTRIBUTE
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.validity import counted_turns
from coordlog.testing.replay_history import History
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
"""Their reasons may hold a traceback, which changes with every line of the code: the first line is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What was replayed, every record of it as it was recorded."""

    turn_count: int
    """Turns whose input was fed again."""
    record_count: int
    """The records of those."""
    passed_over_count: int
    """Turns that record a refusal or a snapshot: no call into a coordinator follows; taken as recorded."""
    epoch_count: int


class ReplayError(CoordlogError):
    """Today's code decides otherwise than the history says. `recorded` and `new` are None where there is no record."""

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
    history: History | Path | str,
    chain: Chain,
    *,
    configure: Callable[[KernelConfig], KernelConfig] | None = None,
    payload_store: PayloadStore | None = None,
) -> ReplayResult:
    """Run every turn of a history through the coordinators of `chain`.

    Args:
        history: An exported file, or what `History.of` a log gives.
        chain: The job's, with today's code.
        configure: Changes the kernel's limits, which are those that each epoch has recorded: to see what
            others would have done.
        payload_store: Where the job's large payloads are; they are read, and nothing is written.

    Raises:
        ReplayError: At the first offset where the records would now be others.
        RecordError: A record cannot be read by today's types.
        RestoreError: The history does not begin at its beginning.
        SourceError: The file is no exported history.
        PayloadLostError: A large payload is not there.
    """
    given = history if isinstance(history, History) else History.read(history)
    if payload_store is not None:
        chain = chain.opening(DriverPayloads(PayloadOptions(store=payload_store)).open)
    return _Replay(given, chain, configure, payload_store).run()


@dataclass(slots=True)
class _Time:
    """The time of the turn that is replayed: a turn asks for it once, when it begins."""

    of_sequence: dict[int, int]
    runtime: Runtime | None = None

    def now_us(self) -> int:
        runtime = self.runtime
        return 0 if runtime is None else self.of_sequence.get(runtime.state.next_sequence, 0)

    def monotonic_s(self) -> float:
        return 0.0


class _Nowhere:
    """The world outside: connections, stage and workers that do nothing."""

    def send(self, connection_id: int, message: DownMessage) -> None:
        """Nobody listens."""

    def close(self, connection_id: int) -> None:
        """Nobody listens."""

    def released(self, connection_id: int, message_count: int) -> None:
        """Nobody listens."""

    def submit(self, stage_run: int) -> None:
        """There is no stage."""

    def cancel(self, stage_run: int, reason: str) -> None:
        """There is no stage."""

    def kill_task(self, stage_run: int, task_attempt_id: int, reason: str) -> None:
        """There is no stage."""

    def run(self, work: Callable[[], None]) -> None:
        """Its result stands in the log."""

    def run_closing(self, work: Callable[[], None]) -> None:
        """At once: it frees what a coordinator holds."""
        work()

    def post(self, thunk: Callable[[], None]) -> None:
        """What it would begin stands in the log."""


class _Replay:
    """One run. The recorded fold goes along with the replayed one, a turn behind it at most."""

    def __init__(
        self,
        history: History,
        chain: Chain,
        configure: Callable[[KernelConfig], KernelConfig] | None,
        store: PayloadStore | None,
    ) -> None:
        self._history, self._chain, self._configure = history, chain, configure
        self._store = store
        self._projection = projection_of(chain)
        self._made = Rebuild(self._projection, chain.payload_types)
        self._turns = list(counted_turns(history.records))
        self._time = _Time({})
        self._ahead: deque[list[Record]] = deque()
        """Turns that have been made now and not yet been found in the history."""
        self._turn_count = self._record_count = self._passed_over = self._epochs = 0

    def run(self) -> ReplayResult:
        records = self._history.records
        if records and records[0].offset > 0:
            raise RestoreError(
                self._history.identity.name,
                "the first record",
                f"at offset 0, and the history starts at {records[0].offset}",
                "to be replayed from there",
                "export the whole topic",
            )
        recorded = [[one.record() for one in turn.entries] for turn in self._turns]
        self._time.of_sequence = {
            turn[0].sequence: _clock_us(turn) for turn in recorded if turn[0].sequence is not None
        }
        try:
            for turn, whole in zip(self._turns, recorded, strict=True):
                offsets = [one.offset for one in turn.entries]
                if whole[0].kind is Kind.EPOCH_STARTED:
                    self._feed(offsets)
                    self._begin(offsets[0])
                else:
                    self._turn(offsets, whole)
        finally:
            self._close()
        return ReplayResult(
            turn_count=self._turn_count,
            record_count=self._record_count,
            passed_over_count=self._passed_over,
            epoch_count=self._epochs,
        )

    def _feed(self, offsets: Sequence[int]) -> None:
        """Fold what was recorded up to the end of this turn, void records between included."""
        base = self._history.records[0].offset
        for stored in self._history.records[self._made.end_offset - base : offsets[-1] + 1 - base]:
            self._made.feed(stored)

    def _begin(self, offset: int) -> None:
        """An epoch: new coordinators, from the recorded state."""
        self._close()
        self._ahead.clear()
        self._epochs += 1
        state = self._made.state
        here = {one.operator_id for one in self._chain.coordinators}
        if set(state.operators) != here:
            raise ReplayError(
                offset,
                Kind.EPOCH_STARTED.value,
                ", ".join(state.operators),
                ", ".join(sorted(here)),
                "list of operators with a coordinator",
            )
        config = KernelConfig(
            projection=self._projection,
            operators=state.operators,
            is_batch=state.is_batch,
            keeps_finished_splits=state.is_batch and not self._chain.keeps_state_across_splits,
            cluster_id=state.launch.get("cluster_id", self._history.identity.cluster_id),
            topic_id=state.launch.get("topic_id", self._history.identity.topic_id),
            is_overlap_allowed=True,  # a trigger is fed only where one was recorded
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
        assert runtime is not None, "only an EPOCH_STARTED counts first"
        if not self._ahead:
            given = input_of_turn(recorded, runtime.state)
            if given is None:
                self._passed_over += 1
                self._feed(offsets)
                runtime.state = self._made.state
                return
            runtime.handle(given)
            self._take_ahead(runtime)
        new = self._ahead.popleft() if self._ahead else []
        _compare(offsets, recorded, new)
        self._turn_count += 1
        self._record_count += len(recorded)
        self._feed(offsets)

    def _take_ahead(self, runtime: Runtime) -> None:
        turn: list[Record] = []
        while group := runtime.take_group():
            for one in group:
                record = decode_record(-1, one.value, one.header)
                turn.append(record)
                if record.turn_remaining == 0:
                    self._ahead.append(turn)
                    turn = []
            runtime.acknowledged(range(len(group)))

    def _close(self) -> None:
        if self._time.runtime is not None:
            self._time.runtime.host.close_all()


def _clock_us(turn: Sequence[Record]) -> int:
    """The reading of the clock when the turn began, as far as its records hold it."""
    return next(
        (failure_us(one) for one in turn if CLOCK_US in one.attributes), turn[0].timestamp_us
    )


def _compare(offsets: Sequence[int], recorded: Sequence[Record], new: Sequence[Record]) -> None:
    for index, (then, now) in enumerate(zip_longest(recorded, new)):
        offset = offsets[min(index, len(offsets) - 1)]
        if then is None or now is None:
            one = then or now
            assert one is not None, "one of the two is there"
            raise ReplayError(offset, one.kind.value, _told(then), _told(now), "record")
        for name in _FIELDS:
            was, would_be = _value(then, name), _value(now, name)
            if was != would_be:
                if name == "kind":
                    raise ReplayError(offset, then.kind.value, _told(then), _told(now), "record")
                raise ReplayError(offset, then.kind.value, repr(was), repr(would_be), name)


def _value(record: Record, name: str) -> object:
    value: object = getattr(record, name)
    if name == "reason" and isinstance(value, str) and record.kind in _TRACED:
        return value.partition("\n")[0]
    return dict(record.attributes) if name == "attributes" else value


def _told(record: Record | None) -> str | None:
    if record is None:
        return None
    fields = {name: _value(record, name) for name in _FIELDS[1:]}
    inner = ", ".join(f"{k}={v!r}" for k, v in fields.items() if v is not None and v != {})
    return f"{record.kind.value}({inner})"
