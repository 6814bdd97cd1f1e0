"""The kernel and its fold as a world: the real `step`, `act`, `due`, `first_input` and `apply`.

Two subtasks and their coordinator (`kernel_parts`). Each move is a turn, or something that a
subtask does; a turn's effects are released with it, because a driver that dies before a release is
a driver that died before the turn as far as anybody outside can tell: attempts die with it, and an
open intent is settled by the next. Messages on a connection keep their order and arrive at any
time. Checkpoints are triggered, cut, aborted and completed at any time; attempts are lost, fenced
by newer tasks, the job fails as a whole, and drivers are taken over from by rollback and by resume.

Looked at in every state:

- *up*: what the coordinator has handled, then what is on its way to it, is rows 1, 2, 3 … up to
  what the subtask has worked on: nothing lost, doubled or out of order;
- *down*: what the subtask has handled, then what is on its way, held, or owed to it, is events
  1, 2, 3 … up to what the coordinator has made;
- *rows*: what is committed is committed once and belongs to the last completed checkpoint, and,
  where no commit is owed, is all of its rows;
- *state*: it breaks no promise of `projections.invariants`, which tells of gateways, of checkpoints
  and of whom they wait for, of intents and counts;
- *go on*: from each state what is due by itself leads to rest: every gateway open, nothing pending,
  held, owed or un-acked.
"""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple

from coordlog.api.chain import Chain, SourceSpec
from coordlog.kernel.builder import KernelConfig, StepBuilder
from coordlog.kernel.inputs import (
    AttemptLost,
    AttemptRegistered,
    CheckpointDue,
    CheckpointReleased,
    CheckpointTimedOut,
    CommitSettled,
    FailGlobally,
    Input,
    Rollback,
)
from coordlog.kernel.outputs import CancelStage, CompletedReleased, Effect, FenceAttempt, Settle
from coordlog.kernel.step import due, is_ready_for_attempts
from coordlog.messages import Register
from coordlog.projections.job.checkpoints import states_of
from coordlog.projections.job.invariants import faults_of
from coordlog.projections.job.state import JobState, Phase, sorted_items
from coordlog.restore.rebuild import describe_operators, first_input, projection_of
from coordlog.schemas.record import Kind, Record
from exhaustive import kernel_parts as parts
from exhaustive.kernel_parts import OPERATOR, Message, Sim
from exhaustive.search import Move
from fakes.kernel_fakes import IdleReader
from fakes.machine_fakes import Count, CountingProvider, Kept, Row, kept_in

__all__ = ["Budget", "KernelWorld"]

_QUIET: Final = (Phase.RUNNING, Phase.FINISHED)


class Budget(NamedTuple):
    """How often what may happen does, for all subtasks together."""

    rows: int = 0
    events: int = 0
    checkpoints: int = 0
    failures: int = 0
    """Of an attempt (its connection is lost, or a newer task registers) or of the whole job."""
    take_overs: int = 0
    aborts: int = 0
    completions: int = 0

    def without(self, what: str) -> Budget:
        """One less."""
        return self._replace(**{what: getattr(self, what) - 1})


class State(NamedTuple):
    job: JobState
    sims: tuple[Sim | None, ...]
    late: tuple[tuple[int, int, Message], ...]
    """Subtask, attempt and message: what attempts that are over had sent, in order."""
    released: tuple[int, ...]
    """Checkpoints whose completion is in the log and that nobody has been told of."""
    settling: tuple[int, ...]
    """The sequences of intents that a sink has in hand."""
    committed: tuple[tuple[int, ...], ...]
    """The rows that the outside world sees, by subtask, sorted: those of one checkpoint are settled in any order."""
    budget: Budget
    is_stage_on: bool = False
    """Tasks run, and those that fail are started again. Off from a failure of the job to its reset."""


@dataclass(frozen=True, kw_only=True)
class KernelWorld:
    """A world of so much."""

    budget: Budget
    parallelism: int = 2
    is_cut_at_once: bool = False
    """In `checkpoint_coordinator` itself. Else at any later time."""
    is_overlapping: bool = False
    has_late_messages: bool = True
    """An attempt that is fenced by a newer task, or with its job, is heard all the same."""
    chain: Chain = field(init=False)
    config: KernelConfig = field(init=False)

    def __post_init__(self) -> None:
        provider = CountingProvider(parallelism=self.parallelism, is_folded=True)
        chain = Chain(
            source=SourceSpec(operator_id=OPERATOR, create_reader=IdleReader, coordinator=provider),
            operators=[],
        )
        config = KernelConfig(
            projection=projection_of(chain),
            operators=(OPERATOR,),
            is_batch=False,
            keeps_finished_splits=False,
            is_overlap_allowed=self.is_overlapping,
            restarts_max=10_000,
            timeouts_in_a_row_max=10_000,
        )
        object.__setattr__(self, "chain", chain)
        object.__setattr__(self, "config", config)

    @property
    def name(self) -> str:
        """Its size."""
        amounts = ", ".join(
            f"{n} {what.replace('_', '-')}" for what, n in self.budget._asdict().items() if n
        )
        ways = [
            "cut at once" if self.is_cut_at_once else "cut at any time",
            *(["overlapping"] if self.is_overlapping else []),
            *(["late messages"] if self.has_late_messages else []),
        ]
        return f"{self.parallelism} subtasks, {amounts}; {', '.join(ways)}"

    def start(self) -> State:
        """The first driver has started, and every subtask has its first attempt."""
        nobody: tuple[Sim | None, ...] = (None,) * self.parallelism
        committed: tuple[tuple[int, ...], ...] = ((),) * self.parallelism
        job = self._epoch(self.config.projection.initial())
        _, given = first_input(job, self.chain)
        assert given is not None
        # All types at once: when each is used for the first time makes no difference.
        builder = StepBuilder(config=self.config, state=job, now_us=0, clock_us=0)
        for one in self.chain.payload_types:
            builder.register(one.key)
        state = State(builder.state, nobody, (), (), (), committed, self.budget)
        state = self._turn(state, given)
        for subtask in range(self.parallelism):
            state = self._turn(state, self._registration(state, subtask))
        return state

    def _epoch(self, job: JobState) -> JobState:
        epoch = job.epoch + 1
        record = Record(
            epoch=epoch,
            driver_id=f"driver-{epoch}",
            sequence=None,
            kind=Kind.EPOCH_STARTED,
            timestamp_us=0,
            job_id="small",
            attributes={
                "parallelism": str(self.parallelism),
                "mode": "streaming",
                "operators": describe_operators(self.chain),
            },
        )
        return self.config.projection.apply(job, record)

    # --- turns ---
    def _turn(self, state: State, given: Input) -> State:
        """One turn; what is due after it too, where no driver can die in between any more."""
        state = self._one_turn(state, given)
        while not state.budget.take_overs:
            following = due(state.job)
            if following is None:
                break
            state = self._one_turn(state, following)
        return state

    def _one_turn(self, state: State, given: Input) -> State:
        job, effects = parts.turn(self.config, state.job, given, is_cut_at_once=self.is_cut_at_once)
        for effect in effects:
            state = self._released(state, effect)
        is_stage_on = state.is_stage_on or is_ready_for_attempts(job)
        return state._replace(job=job, is_stage_on=is_stage_on)

    def _released(self, state: State, effect: Effect) -> State:
        match effect:
            case CompletedReleased(checkpoint_id=checkpoint_id):
                return state._replace(released=(*state.released, checkpoint_id))
            case Settle(sequence=sequence):
                return state._replace(settling=(*state.settling, sequence))
            case CancelStage():
                return state._replace(is_stage_on=False)
            case FenceAttempt(subtask=subtask) if not effect.is_finished:
                return self._without(state, subtask, effect)
            case _:
                return state._replace(sims=parts.told(state.sims, effect))

    def _without(self, state: State, subtask: int, fence: FenceAttempt) -> State:
        sim = state.sims[subtask]
        sims = parts.told(state.sims, fence)
        if sim is None or sims[subtask] is not None or not self.has_late_messages:
            return state._replace(sims=sims)
        late = tuple((subtask, sim.attempt_number, one) for one in sim.up)
        return state._replace(sims=sims, late=state.late + late)

    def _registration(self, state: State, subtask: int) -> AttemptRegistered:
        task = state.job.subtasks[subtask].next_attempt_number
        message = Register(
            driver_id="d",
            subtask=subtask,
            stage_run=1,
            task_attempt_id=task,
            spark_attempt_number=task,
            host="h",
            pid=1,
        )
        return AttemptRegistered(connection_id=task, message=message)

    # --- what may come next ---
    def moves(self, state: State) -> Iterator[Move[State]]:
        """All of it."""
        job, budget = state.job, state.budget
        if budget.take_overs:
            yield self._taken_over(state)
        if job.phase is Phase.STARTING:
            yield from self._first_turns(state)
            return
        if job.is_over:
            return
        following = due(job)
        if following is not None:
            # Before anything that arrives; what subtasks do meanwhile, they can as well do after.
            after = self._turn(state, following)
            yield Move(f"due: {type(following).__name__}", after, is_forced=True)
            return
        only = self._only_move(state)
        if only is not None:
            yield only
            return
        yield from self._own_moves(state)
        if state.late:
            yield from self._late_moves(state)
        for subtask, sim in enumerate(state.sims):
            if sim is not None:
                yield from self._sim_moves(state, subtask, sim)
            else:
                yield from self._vacant_moves(state, subtask)
        if job.phase is Phase.RUNNING:
            yield from self._chances(state)

    def _taken_over(self, state: State) -> Move[State]:
        after = State(
            job=self._epoch(state.job),
            sims=(None,) * self.parallelism,
            late=(),
            released=(),
            settling=(),
            committed=state.committed,
            budget=state.budget.without("take_overs"),
        )
        return Move("the driver dies, another takes over", after, is_forced=False)

    def _first_turns(self, state: State) -> Iterator[Move[State]]:
        modes = set[str]()
        for restore in ("rollback", "resume"):
            before = state.job.resumed_phase
            if restore == "resume" and before is Phase.FAILING:
                continue
            mode, given = first_input(state.job, self.chain, restore=restore)
            if given is not None and mode not in modes:
                modes.add(mode)
                yield Move(f"first turn: {mode}", self._turn(state, given), is_forced=True)

    def _only_move(self, state: State) -> Move[State] | None:
        """What a subtask may as well do now: nobody sees it, and nothing that it does can come before.

        With no row left to work on, the order of what it sends is settled but for snapshots that
        are being stored, and what is on its way from it may still arrive at any time, or never.
        """
        if state.budget.rows:
            return None
        for subtask, sim in enumerate(state.sims):
            if sim is not None and sim.down and not sim.is_over:
                message = sim.down[0]
                if message.kind == "barrier" or not sim.storing:
                    sims = (*state.sims[:subtask], parts.takes(sim), *state.sims[subtask + 1 :])
                    label = f"{subtask} takes {message.kind} {message.number}"
                    return Move(label, state._replace(sims=sims), is_forced=True)
        return None

    def _own_moves(self, state: State) -> Iterator[Move[State]]:
        """What the driver does by itself: tell of a completion, settle, cut, go back."""
        job = state.job
        for n, checkpoint_id in enumerate(state.released):
            rest = state.released[:n] + state.released[n + 1 :]
            given = CheckpointReleased(checkpoint_id=checkpoint_id)
            after = self._turn(state._replace(released=rest), given)
            yield Move(f"completion of {checkpoint_id} is told of", after, is_forced=True)
        for n, sequence in enumerate(state.settling):
            rest = state.settling[:n] + state.settling[n + 1 :]
            yield self._settles(state._replace(settling=rest), sequence)
        if job.phase is Phase.FAILING:
            back = Rollback(checkpoint_id=job.last_checkpoint, is_failover=True)
            yield Move("the job goes back", self._turn(state, back), is_forced=True)
        elif not self.is_cut_at_once:
            for checkpoint_id, pending in sorted_items(job.pending):
                if OPERATOR not in pending.cuts:
                    after = self._turn(state, parts.cut_of(checkpoint_id))
                    yield Move(f"the coordinator cuts {checkpoint_id}", after, is_forced=True)

    def _settles(self, state: State, sequence: int) -> Move[State]:
        intent = state.job.intents.get(sequence)
        committed = state.committed
        for subtask, row in () if intent is None else parts.names_in(intent.payload):
            rows = tuple(sorted((*committed[subtask], row)))
            committed = (*committed[:subtask], rows, *committed[subtask + 1 :])
        given = CommitSettled(sequence=sequence, payload_type=None, payload=None, error=None)
        after = self._turn(state._replace(committed=committed), given)
        return Move("an intent is settled", after, is_forced=True)

    def _late_moves(self, state: State) -> Iterator[Move[State]]:
        (subtask, attempt_number, message), rest = state.late[0], state.late[1:]
        heard = self._turn(
            state._replace(late=rest), parts.input_of(subtask, attempt_number, message)
        )
        what = (
            f"{message.kind} {message.number} of attempt {subtask}/{attempt_number}, which is over"
        )
        yield Move(f"late: {what}", heard, is_forced=False)
        yield Move(f"lost: {what}", state._replace(late=rest), is_forced=True)

    def _sim_moves(self, state: State, subtask: int, sim: Sim) -> Iterator[Move[State]]:
        def put(after: Sim, budget: Budget = state.budget) -> State:
            sims = (*state.sims[:subtask], after, *state.sims[subtask + 1 :])
            return state._replace(sims=sims, budget=budget)

        if sim.up:
            message = sim.up[0]
            heard = put(sim._replace(up=sim.up[1:]))
            given = parts.input_of(subtask, sim.attempt_number, message)
            label = f"{message.kind} {message.number} of {subtask} arrives"
            yield Move(label, self._turn(heard, given), is_forced=True)
        if sim.storing:
            label = f"{subtask}'s snapshot of {sim.storing[0].number} is stored"
            yield Move(label, put(parts.stores(sim)), is_forced=True)
        if sim.is_over:
            return
        if sim.down:
            label = f"{subtask} takes {sim.down[0].kind} {sim.down[0].number}"
            yield Move(label, put(parts.takes(sim)), is_forced=True)
        if state.budget.rows:
            after = put(parts.works(sim), state.budget.without("rows"))
            yield Move(f"{subtask} works on row {sim.rows + 1}", after, is_forced=False)
        if state.budget.completions and self._may_complete(state, subtask, sim):
            after = put(parts.completes(sim), state.budget.without("completions"))
            yield Move(f"{subtask} has completed", after, is_forced=False)

    def _may_complete(self, state: State, subtask: int, sim: Sim) -> bool:
        gateway = state.job.gateways.get((OPERATOR, subtask))
        has_unacked = gateway is not None and bool(gateway.unacked)
        is_quiet = not sim.down and not sim.storing and not has_unacked
        return is_quiet and not parts.count_of(state.job, subtask).owed

    def _vacant_moves(self, state: State, subtask: int) -> Iterator[Move[State]]:
        known = state.job.subtasks[subtask]
        is_possible = state.is_stage_on and state.job.phase is Phase.RUNNING
        if not is_possible or known.completion is not None or known.attempt is not None:
            return
        after = self._turn(state, self._registration(state, subtask))
        yield Move(f"an attempt of {subtask} registers", after, is_forced=True)

    def _chances(self, state: State) -> Iterator[Move[State]]:
        budget, job = state.budget, state.job
        if budget.events:
            spent = state._replace(budget=budget.without("events"))
            for subtask in range(self.parallelism):
                if job.subtasks[subtask].completion is None:
                    after = self._turn(spent, parts.make_event(subtask))
                    yield Move(f"an event is made for {subtask}", after, is_forced=False)
        if budget.checkpoints:
            after = self._turn(
                state._replace(budget=budget.without("checkpoints")), CheckpointDue()
            )
            if (
                after.job is not state.job
                and after.job.next_checkpoint_id != job.next_checkpoint_id
            ):
                yield Move(f"checkpoint {job.next_checkpoint_id} begins", after, is_forced=False)
        if budget.aborts:
            spent = state._replace(budget=budget.without("aborts"))
            for checkpoint_id in sorted(job.pending):
                given = CheckpointTimedOut(checkpoint_id=checkpoint_id, timeout_s=1.0)
                after = self._turn(spent, given)
                yield Move(f"checkpoint {checkpoint_id} times out", after, is_forced=False)
        if budget.failures:
            yield from self._failures(state._replace(budget=budget.without("failures")))

    def _failures(self, state: State) -> Iterator[Move[State]]:
        for subtask, sim in enumerate(state.sims):
            if sim is None:
                continue
            lost = AttemptLost(subtask=subtask, attempt_number=sim.attempt_number, reason="lost")
            gone = state._replace(sims=(*state.sims[:subtask], None, *state.sims[subtask + 1 :]))
            yield Move(f"attempt of {subtask} is lost", self._turn(gone, lost), is_forced=False)
            if self.has_late_messages and not sim.is_over:
                after = self._turn(state, self._registration(state, subtask))
                yield Move(f"a newer task for {subtask} registers", after, is_forced=False)
        after = self._turn(state, FailGlobally(reason="scripted"))
        yield Move("the job fails as a whole", after, is_forced=False)

    # --- what must hold ---
    def fault(self, state: State) -> str | None:
        """Which promise is broken."""
        job = state.job
        faults = faults_of(job)
        if faults:
            return f"state: {faults[0]}"
        if (early := self._settled_too_early(state)) is not None:
            return early
        if job.phase not in _QUIET:
            return None
        is_told = due(job) is None
        for subtask in range(self.parallelism):
            kept, coming, going = self._seen_by(state, subtask)
            bad = self._ways_fault(job, subtask, kept, coming, going) if is_told else None
            bad = bad or self._rows_fault(state, subtask)
            if bad is not None:
                return bad
        return None

    def _settled_too_early(self, state: State) -> str | None:
        """A sink has an intent in hand while one of an earlier checkpoint has no outcome (clause H3)."""
        intents = state.job.intents
        first = min((one.checkpoint_id for _, one in sorted_items(intents)), default=None)
        for sequence in state.settling:
            if sequence in intents and intents[sequence].checkpoint_id != first:
                return f"order: intent {sequence} is settled before those of checkpoint {first}"
        return None

    def _seen_by(self, state: State, subtask: int) -> tuple[Kept, list[int], list[int]]:
        """What the subtask keeps, the rows on their way up and the events on their way down."""
        sim = state.sims[subtask]
        known = state.job.subtasks[subtask]
        if known.completion is not None:
            return kept_in(known.completion.states), [], []
        if sim is None:
            return kept_in(states_of(state.job, subtask)), [], []
        coming = [one.number for one in sim.up if one.kind == "row"]
        going = [one.number for one in sim.down if one.kind == "event"]
        return Kept(sim.rows, sim.got), coming, going

    def _ways_fault(
        self, job: JobState, subtask: int, kept: Kept, coming: list[int], going: list[int]
    ) -> str | None:
        count = parts.count_of(job, subtask)
        if [*count.handled, *coming] != list(range(1, kept.rows + 1)):
            return f"up: {subtask}: handled {count.handled}, coming {coming}, rows {kept.rows}"
        gateway = job.gateways.get((OPERATOR, subtask))
        held = [] if gateway is None else [parts.number_in(h.event.payload) for h in gateway.held]
        down = [*kept.got, *going, *held, *count.owed]
        # Of an event to a subtask that completes the coordinator is told that it has failed.
        is_done = job.subtasks[subtask].completion is not None
        if down != list(range(1, (len(down) if is_done else count.made) + 1)):
            return (
                f"down: {subtask}: got {kept.got}, going {going}, held {held}, "
                f"owed {count.owed}, made {count.made}"
            )
        return None

    def _rows_fault(self, state: State, subtask: int) -> str | None:
        job, rows = state.job, state.committed[subtask]
        last = job.completed.get(job.last_checkpoint)
        states = () if last is None else last.states.get(subtask, ())
        if last is not None and subtask in last.finished:
            states = last.finished[subtask].states
        allowed = tuple(range(1, kept_in(states).rows + 1))
        is_double = len(set(rows)) != len(rows)
        is_owed = bool(job.intents) or job.owed_complete is not None
        if is_double or not set(rows) <= set(allowed) or (rows != allowed and not is_owed):
            return f"rows: {subtask}: {rows} are committed, {allowed} are to be"
        return None

    def is_end(self, state: State) -> bool:
        """At rest."""
        job = state.job
        if job.phase is Phase.FINISHED:
            return True
        is_open = all(
            not one.closed_by and not one.held and not one.unacked
            for _, one in sorted_items(job.gateways)
        )
        is_quiet = all(
            job.subtasks[n].completion is not None
            if sim is None
            else not (sim.up or sim.down or sim.storing)
            for n, sim in enumerate(state.sims)
        )
        is_nothing_owed = (
            due(job) is None
            and job.owed_complete is None
            and not any(parts.count_of(job, n).owed for n in range(self.parallelism))
        )
        return (
            job.phase is Phase.RUNNING
            and is_open
            and is_quiet
            and is_nothing_owed
            and not (job.pending or job.intents)
            and all(at > job.last_checkpoint for at in job.granted)
            and not (state.released or state.settling or state.late)
        )

    # --- which states are one ---
    def key(self, state: State) -> Hashable:
        """A digest of what matters, the subtasks in whatever order."""
        job = state.job
        last = job.completed.get(job.last_checkpoint)
        cuts = {n: one.cuts[OPERATOR].sequence for n, one in job.pending.items() if one.cuts}
        if last is not None:
            cuts[last.checkpoint_id] = last.cuts[OPERATOR].sequence
        places = sorted(cuts.items())
        whole = (
            tuple(state.budget),
            job.phase.value,
            None if job.resumed_phase is not Phase.FAILING else 1,
            job.next_checkpoint_id,
            job.last_checkpoint,
            job.owed_complete,
            job.is_restore_owed,
            job.aborts_in_a_row if state.budget.completions or job.finished_count else 0,
            state.released,
            state.is_stage_on,
            [(n, bool(one.cuts), one.is_injected) for n, one in sorted(job.pending.items())],
            len(job.intents),
            len(state.settling),
        )
        each = sorted(
            marshal.dumps(_subtask_key(state, n, places), 2) for n in range(self.parallelism)
        )
        return hashlib.blake2b(marshal.dumps((whole, each), 2), digest_size=16).digest()


@cache
def _place(payload: bytes) -> int:
    return parts.number_in(payload, Row)


def _count_key(count: Count) -> tuple[Any, ...]:
    return (count.handled, count.made, count.owed)


def _message_key(message: Message) -> tuple[Any, ...]:
    kept = message.kept
    return (message.kind, message.number, message.barrier, kept.rows, kept.got, message.open_rows)


def _subtask_key(state: State, n: int, places: list[tuple[int, int]]) -> tuple[Any, ...]:
    """All that is one subtask's: sequences as what lies before which cut, ids as what they are of."""
    job, sim = state.job, state.sims[n]
    last = job.completed.get(job.last_checkpoint)
    known = job.subtasks[n]
    made: list[Any] = [
        _count_key(parts.count_of(job, n)),
        known.restore_from,
        known.is_reset,
        n in job.stale,
        state.committed[n],
    ]
    if sim is not None:
        made.append(_sim_key(sim))
    made.append(_attempt_key(job, n, places))
    made.append([_message_key(one) for s, _, one in state.late if s == n])
    for _, pending in sorted(job.pending.items()):
        cut = pending.cuts.get(OPERATOR)
        made.append(
            (
                n in pending.attempts,
                n in pending.finished,
                [one.state for one in pending.acks.get(n, ())],
                None if cut is None else _count_key(cut.projection[n]),
            )
        )
    if last is not None:
        finished = last.finished.get(n)
        made.append(
            (
                [one.state for one in last.states.get(n, ())],
                None if finished is None else [one.state for one in finished.states],
                _count_key(last.cuts[OPERATOR].projection[n]),
                [_place(one.payload) for one in last.in_flight if one.subtask == n],
            )
        )
    made += [
        [_place(one.payload) for one in job.owed_redeliveries if one.subtask == n],
        [
            [row for s, row in parts.names_in(one.payload) if s == n]
            for _, one in sorted(job.intents.items())
        ],
        [
            (at, [one.content for one in grants if one.subtask == n])
            for at, grants in sorted(job.granted.items())
        ],
    ]
    return tuple(made)


def _sim_key(sim: Sim) -> tuple[Any, ...]:
    return (
        sim.rows,
        sim.got,
        sim.barrier,
        sim.open_rows,
        sim.is_over,
        [_message_key(one) for one in sim.storing],
        [_message_key(one) for one in sim.up],
        [_message_key(one) for one in sim.down],
    )


def _attempt_key(job: JobState, n: int, places: list[tuple[int, int]]) -> tuple[Any, ...] | None:
    known = job.subtasks[n]
    attempt, completion = known.attempt, known.completion
    holder = completion if attempt is None else attempt
    if holder is None:
        return None

    def after(sequence: int) -> tuple[int, ...]:
        return tuple(at for at, cut in places if sequence > cut)

    received = [
        (_place(one.payload), one.last_barrier, after(sequence))
        for sequence, one in sorted(holder.received.items())
    ]
    over = [
        (one.checkpoint_id, [c.content for c in one.committables]) for one in holder.handed_over
    ]
    if completion is not None:
        states = [one.state for one in completion.states]
        return (received, over, states, [one.content for one in completion.ungranted])
    assert attempt is not None
    gateway = job.gateways.get((OPERATOR, n))
    return (
        received,
        over,
        attempt.restored_checkpoint,
        attempt.last_barrier,
        attempt.epoch == job.epoch,
        [(one.payload, after(sequence)) for sequence, one in sorted(attempt.sent.items())],
        None
        if gateway is None
        else (
            gateway.closed_by,
            [(one.event.payload, one.held_by) for one in gateway.held],
            [
                (
                    one.payload,
                    [at for at, p in sorted(job.pending.items()) if event_id in p.waiting],
                )
                for event_id, one in sorted(gateway.unacked.items())
            ],
        ),
    )
