"""One simulated driver: the real restore, log protocol, runtime and coordinators, a step at a time.

Each thing that a thread of a driver would do between two waits is one event, so that between any two of them it can
die, or stand still while others go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, cast

from coordlog.errors import CoordlogError, OptionError, RestoreError
from coordlog.kernel.builder import KernelConfig, limits_of
from coordlog.log import append_protocol as protocol
from coordlog.log.interface import Log, UnstoredRecord
from coordlog.messages import UpMessage
from coordlog.projections.job.state import JobState, Phase
from coordlog.restore.rebuild import (
    Rebuild,
    check_fits,
    describe_operators,
    first_input,
    projection_of,
    rebuild,
)
from coordlog.runtime.runtime import Runtime, RuntimeOptions, to_unstored
from coordlog.schemas.record import JobMode, Kind, Record
from simulation.agenda import Span
from simulation.clients import ClientSurroundings, Counter
from simulation.tasks import Cluster, Surroundings

__all__ = ["DriverSurroundings", "SimulatedDriver"]

_QUICK: Span = (0.0, 0.001)
_CLOCK_0_S = 1_000_000.0


class DriverSurroundings(Surroundings, ClientSurroundings, Protocol):
    """What all drivers share."""

    is_batch: bool

    @property
    def is_work_held(self) -> bool:
        """Whether workers do nothing for now."""
        ...

    def append(self, driver: SimulatedDriver, records: Sequence[UnstoredRecord]) -> None:
        """Put records on their way; `stored` or `unheard` of the driver follows."""
        ...

    def refused(self, driver: SimulatedDriver, error: CoordlogError, was: int) -> None:
        """A driver may not go on from the log, whose job has parallelism `was`, as it was told to."""
        ...


class SimulatedDriver:
    """One process life. Implements `Connections`' and the stage's listener, `Clock` and `Workers`."""

    def __init__(
        self, around: DriverSurroundings, number: int, parallelism: int, restore: str | None = None
    ) -> None:
        self.driver_id = f"driver-{number}"
        self.epoch = -1
        self.parallelism, self.restore = parallelism, restore
        self.around = around
        self.counter = Counter(around, epoch=lambda: self.epoch, do=self.do)
        self.cluster = Cluster(around, self)
        self.runtime: Runtime | None = None
        self.is_over = False
        self.how = "alive"
        """How it ended, in a word."""
        self.is_paused = False
        self.clock_off_s = 0.0
        self._backlog: deque[Callable[[], None]] = deque()
        self._wake_s: float | None = None
        self._made: Rebuild | None = None
        self._log: protocol.DriverState | None = None
        self._is_taking_over = False
        self.started_at: int | None = None
        """The offset of the snapshot that it was restored from."""

    # --- life ---------------------------------------------------------------------------------------------------------
    def later(self, span: Span, act: Callable[[], None]) -> None:
        """Do this after a while: not once the process is dead, and not while it stands still."""
        self.around.agenda.later(span, lambda: self.do(act))

    def do(self, act: Callable[[], None]) -> None:
        """Do this now, or once the process goes on."""
        if self.is_over:
            return
        if self.is_paused:
            self._backlog.append(act)
        else:
            act()

    def pause(self, span: Span) -> None:
        """The process stands still."""
        if not self.is_paused:
            self.is_paused = True
            self.around.agenda.later(span, self._go_on)

    def _go_on(self) -> None:
        self.is_paused = False
        while self._backlog:
            act = self._backlog.popleft()
            self.around.agenda.later((0.0, 0.0), lambda one=act: self.do(one))  # type: ignore[misc]

    def end(self, how: str) -> None:
        """Nothing more of it happens."""
        if not self.is_over:
            self.is_over, self.how = True, how
            self.cluster.die()
            self.counter.end(is_killed=how == "killed")

    # --- restore and take-over ----------------------------------------------------------------------------------------
    def start(self) -> None:
        """Read the log; then take over."""
        chain, log = self.around.chain, cast("Log", self.around.log)
        made = rebuild(log, chain, projection_of(chain))
        self._made = made
        self.started_at = made.started_at
        self._check_start(made)
        if not self._fits(made):
            return
        if made.state.phase is Phase.FINISHED:
            self.end("nothing to do")
            return
        self.later(self.around.weather.begin_s, self._take_over)

    def _check_start(self, made: Rebuild) -> None:
        """From a snapshot all is as from the log's start (clause K3)."""
        if made.started_at is None:
            return
        whole = Rebuild(projection_of(self.around.chain), self.around.chain.payload_types)
        for stored in self.around.log.stored[: made.end_offset]:
            whole.feed(stored)
        ours, theirs = (
            (one.state, one.place, one.checkpoint_offset, one.newest_snapshot)
            for one in (made, whole)
        )
        self.around.book.look(
            ours == theirs,
            f"{self.driver_id} has started from the snapshot at offset {made.started_at} and come to another state "
            "than from the log's start",
        )

    def _fits(self, made: Rebuild) -> bool:
        """Whether it may go on; if not, it is over, and has appended nothing but its `EPOCH_STARTED`."""
        state = made.state
        try:
            check_fits(
                "job",
                state,
                self.around.chain,
                parallelism=self.parallelism,
                mode=self._mode,
                restore=self.restore,
            )
        except (RestoreError, OptionError) as error:
            self.around.refused(self, error, len(state.subtasks))
            self.end("refused")
            return False
        return True

    @property
    def _mode(self) -> JobMode:
        return JobMode.BATCH if self.around.is_batch else JobMode.STREAMING

    def _take_over(self) -> None:
        made = self._made
        assert made is not None, "it has read"
        self.epoch = made.place.counting.epoch + 1
        record = Record(
            epoch=self.epoch,
            driver_id=self.driver_id,
            sequence=None,
            kind=Kind.EPOCH_STARTED,
            timestamp_us=max(self.now_us(), made.state.timestamp_us),
            job_id="job",
            attributes={
                "parallelism": str(self.parallelism),
                "mode": self._mode,
                "operators": describe_operators(self.around.chain),
                **limits_of(self._config(made)),
            },
        )
        started = to_unstored(record, snapshot_offset=made.newest_snapshot.offset)
        self._log = protocol.take_over_begun(made.place, started)
        self._is_taking_over = True
        self._act()

    def _took_over(self) -> None:
        made, around = self._made, self.around
        assert made is not None, "it has read"
        assert self._log is not None, "it has taken over"
        made.catch_up(cast("Log", around.log), self._log.place.end_offset)
        assert made.state.driver_id == self.driver_id, "the epoch in force is this driver's"
        if not self._fits(made):
            return
        _, given = first_input(made.state, around.chain, restore=self.restore)
        if given is None:
            self.end("nothing to do")
            return
        weather = around.weather
        runtime = Runtime(
            chain=around.chain,
            config=self._config(made),
            options=RuntimeOptions(
                checkpoint_interval_s=weather.interval_s,
                checkpoint_timeout_s=weather.checkpoint_timeout_s,
                ack_timeout_s=weather.ack_timeout_s,
                registration_timeout_s=1.0,
                snapshot_every=weather.snapshot_every,
            ),
            state=made.state,
            clock=self,
            connections=self.cluster,
            stage=self.cluster,
            workers=self,
            newest_snapshot=made.newest_snapshot,
            checkpoint_offset=made.checkpoint_offset,
            on_released=self._released,
            on_answer=self.counter.answered,
        )
        self.runtime = runtime
        self.counter.begin(lambda given: self._turn(lambda: runtime.handle(given)))
        self._turn(partial(runtime.begin, given))
        self._watch()

    def _config(self, made: Rebuild) -> KernelConfig:
        around = self.around
        return KernelConfig(
            projection=projection_of(around.chain),
            operators=made.state.operators,
            is_batch=around.is_batch,
            keeps_finished_splits=around.is_batch and not around.chain.keeps_state_across_splits,
            cluster_id=around.log.identity.cluster_id,
            topic_id=around.log.identity.topic_id,
            is_overlap_allowed=around.weather.is_overlapping,
            remembered_bytes_max=around.weather.remembered_bytes_max,
            restarts_max=100_000,
            restart_backoff_s=0.002,
            restart_backoff_max_s=0.02,
            settle_attempts_max=100_000,
            final_checkpoints_max=100_000,
        )

    # --- the log thread: what `coordlog.log.appender` does, one action per event --------------------------------------
    def _act(self) -> None:
        assert self._log is not None, "taking over, or beyond"
        action = protocol.next_action(self._log)
        match action:
            case protocol.Append(records):
                self.around.append(self, records)
            case protocol.ReadHighWatermark() | protocol.Read():
                self.later(self.around.weather.append_s, lambda: self._read(action))
            case protocol.Fenced():
                is_another = self.around.log.driver_in_force != self.driver_id
                fault = f"{self.driver_id} ends as fenced while its own epoch is in force"
                self.around.book.look(is_another, fault)
                self.end("fenced")
            case protocol.Lost():
                self.around.book.look(False, f"{self.driver_id} says that the log has lost records")  # noqa: FBT003
                self.end("lost")
            case protocol.Rest():
                if self._is_taking_over:
                    self._is_taking_over = False
                    self.later(_QUICK, self._took_over)
                else:
                    self.later(_QUICK, self._acknowledged)

    def _read(self, action: protocol.ReadHighWatermark | protocol.Read) -> None:
        assert self._log is not None, "reading"
        log = self.around.log
        if isinstance(action, protocol.ReadHighWatermark):
            self._log = protocol.high_watermark(self._log, log.high_watermark())
        else:
            for record in log.read(action.from_offset, action.to_offset):
                self._log = protocol.record_read(self._log, record)
                if self._is_taking_over:
                    assert self._made is not None, "it has read"
                    self._made.feed(record)
            self._log = protocol.reading_ended(self._log)
        self._act()

    def stored(self, offsets: Sequence[int]) -> None:
        """The append is acknowledged."""
        assert self._log is not None, "appending"
        self._log = protocol.acknowledged(self._log, offsets)
        self._act()

    def unheard(self) -> None:
        """The append's outcome is unknown."""
        assert self._log is not None, "appending"
        self._log = protocol.outcome_unknown(self._log)
        self._act()

    # --- the mailbox --------------------------------------------------------------------------------------------------
    def _acknowledged(self) -> None:
        runtime = self.runtime
        assert runtime is not None, "running"
        assert self._log is not None, "running"
        offsets = self._log.counted_at
        self._turn(lambda: runtime.acknowledged(offsets))

    def _turn(self, act: Callable[[], None]) -> None:
        """One thing on the mailbox, and what its thread does after each."""
        runtime = self.runtime
        if runtime is None or self.is_over:
            return
        act()
        runtime.fire_timers()
        group = runtime.turns.take_group()
        if group:
            assert self._log is not None, "running"
            self._log = protocol.append_begun(self._log, group)
            self._act()
        if self.counter.waiting and not runtime.turns:
            self.around.book.look(False, f"{self.driver_id} has forgotten a request")  # noqa: FBT003
        if runtime.outcome is not None:
            outcome = runtime.outcome
            self.around.book.look(outcome.is_finished, f"the job failed: {outcome.reasons}")
            self.end("finished")
            return
        self._plan_wake(runtime)

    def _plan_wake(self, runtime: Runtime) -> None:
        due_s = runtime.next_timer_s()
        if due_s is None or (self._wake_s is not None and self._wake_s <= due_s):
            return
        self._wake_s = due_s
        self.around.agenda.at(due_s, lambda: self.do(lambda: self._wake(due_s)))

    def _wake(self, due_s: float) -> None:
        if self._wake_s == due_s:
            self._wake_s = None
            self._turn(lambda: None)

    def _watch(self) -> None:
        runtime = self.runtime
        assert runtime is not None, "running"
        self._turn(runtime.registrations.watch)
        self.later((0.25, 0.25), self._watch)

    def arrived(self, connection_id: int, message: UpMessage) -> None:
        """See `Arrivals`."""
        self.do(lambda: self._turn(lambda: self._running.arrived(connection_id, message)))

    def connection_lost(self, connection_id: int, reason: str) -> None:
        """See `Arrivals`."""
        self.do(lambda: self._turn(lambda: self._running.connection_lost(connection_id, reason)))

    def stage_ended(self, stage_run: int, error: str | None) -> None:
        """See `StageEvents`."""
        self.do(lambda: self._turn(lambda: self._running.stage_ended(stage_run, error)))

    @property
    def _running(self) -> Runtime:
        assert self.runtime is not None, "running"
        return self.runtime

    # --- Workers and Clock --------------------------------------------------------------------------------------------
    def run(self, work: Callable[[], None]) -> None:
        """See `Workers`."""
        self.later(self.around.weather.wire_s, lambda: self._work(work))

    def run_call(self, generation: int, work: Callable[[], None]) -> None:
        """See `Workers`."""
        self.run(work)

    def end_calls(self, generation: int) -> None:
        """See `Workers`: here each work counts as begun."""

    def _work(self, work: Callable[[], None]) -> None:
        if self.around.is_work_held:
            self.later(_QUICK, lambda: self._work(work))
        else:
            work()

    def run_closing(self, work: Callable[[], None]) -> None:
        """See `Workers`."""
        self.run(work)

    def post(self, thunk: Callable[[], None]) -> None:
        """See `Workers`."""
        self.later((0.0, 0.0), lambda: self._turn(thunk))

    def now_us(self) -> int:
        """This machine's time, which may jump."""
        return int((_CLOCK_0_S + self.around.agenda.now_s + self.clock_off_s) * 1_000_000)

    def monotonic_s(self) -> float:
        """Never jumps."""
        return self.around.agenda.now_s

    # --- what must be so ----------------------------------------------------------------------------------------------
    def _released(self, records: Sequence[Record]) -> None:
        """Nothing that is released is void."""
        for record in records:
            if not self.around.log.counts(record):
                self.around.book.look(
                    False,  # noqa: FBT003
                    f"{self.driver_id} has released record {record.sequence} ({record.kind.value}), "
                    "which does not count",
                )

    @property
    def state(self) -> JobState | None:
        """The job's, as this driver has it."""
        return None if self.runtime is None else self.runtime.state
