"""The fold of the driver: `apply(state, record) -> state`, the only way to change a job's state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from immutables import Map

from coordlog.errors import PayloadStoreUnreachableError, RecordError
from coordlog.projections.job import attempts, checkpoints, skips
from coordlog.projections.job import savepoints as keeps
from coordlog.projections.job.attempts import with_failure
from coordlog.projections.job.branches import GOING_BACK, is_on_the_way
from coordlog.projections.job.event_skips import fold_uses
from coordlog.projections.job.grants import COVERS, batch_sequences, without_covered
from coordlog.projections.job.launch import LaunchInfo
from coordlog.projections.job.lifecycle import JOB, is_opened_again, mark_of_stop
from coordlog.projections.job.reopen import opened_again, with_opening
from coordlog.projections.job.state import (
    AWAY,
    AWAY_AT,
    END_COMMITTED,
    FORMER_DEAD,
    GRANTED_AT,
    MARK,
    OPERATORS_BELOW,
    WRITTEN_AT,
    DriverStop,
    JobState,
    OpenIntent,
    Phase,
    sorted_items,
    sorted_values,
)
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.schemas.builtin_types import (
    AttemptSnapshot,
    CheckpointMetadata,
    CheckpointTriggered,
    EventSkipped,
    SplitFinished,
)
from coordlog.schemas.checkpoint_metadata import read_metadata
from coordlog.schemas.evolution import evolve
from coordlog.schemas.payload import Payload, PayloadTypes
from coordlog.schemas.record import (
    ALSO_ACKED,
    NO_CHECKPOINT,
    SKIPPED_BY,
    JobMode,
    Kind,
    Notified,
    Record,
    RestoredBy,
    acked_events,
)

__all__ = ["JobProjection"]

_FOR_ALL_OPERATORS: Final = frozenset(
    {
        Kind.ATTEMPT_STARTED,
        Kind.ATTEMPT_FAILED,
        Kind.SUBTASK_RESET,
        Kind.SUBTASK_COMPLETED,
        Kind.RESET_TO_CHECKPOINT,
        Kind.CHECKPOINT_TRIGGERED,
        Kind.CHECKPOINT_ACKED,
        Kind.CHECKPOINT_COMPLETED,
        Kind.CHECKPOINT_ABORTED,
    }
)
"""Kinds that are applied to every operator's projection although they name no operator."""


class JobProjection:
    """Folds a job's records; pure: depends only on the job's payload types and its operators' projections.

    Args:
        types: Payload types of the job.
        operators: Projections by operator id, of the operators that have one.
    """

    __slots__ = ("_initial", "_operators", "_read_names", "types")

    def __init__(
        self,
        types: PayloadTypes,
        operators: Mapping[str, OperatorProjection[Any]],
    ) -> None:
        self.types = types
        self._operators = dict(sorted(operators.items()))
        self._read_names = {
            operator_id: projection.read_names for operator_id, projection in operators.items()
        }
        self._initial: Map[str, Any] = Map(
            {operator_id: projection.initial for operator_id, projection in self._operators.items()}
        )

    @property
    def operators(self) -> Mapping[str, OperatorProjection[Any]]:
        """The projections of the operators that have one, by operator id, sorted."""
        return self._operators

    def initial(self) -> JobState:
        """The state before the first record."""
        return self.apart(JobState(projections=self._initial))

    def apart(self, state: JobState, only: str | None = None) -> JobState:
        """The state with projections that share nothing changeable with cuts, or with the states of a new job.

        Called wherever both would be one object, so that an `apply` that changes its state in place changes no cut.

        Args:
            state: State whose projections are copied, if they are changeable.
            only: Id of the one operator whose projection is copied; None: those of all operators.
        """
        projections = state.projections
        for operator_id, projection in self._operators.items():
            if only not in (None, operator_id):
                continue
            before = projections[operator_id]
            own = projection.apart(before)
            if own is not before:
                projections = projections.set(operator_id, own)
        return state if projections is state.projections else evolve(state, projections=projections)

    def fold(self, state: JobState, records: Iterable[Record]) -> JobState:
        """The state after `records`, each of which counts."""
        for record in records:
            state = self.apply(state, record)
        return state

    def apply(self, state: JobState, record: Record) -> JobState:
        """The state after one more record that counts.

        Raises:
            RecordError: The record is not valid here, its payload cannot be read, or an operator's
                projection raised. Fatal: its writer was at fault.
            PayloadStoreUnreachableError: A payload for a projection cannot be read now; the record is valid.
        """
        try:
            return self._apply(state, record)
        except (PayloadStoreUnreachableError, RecordError):
            raise
        except Exception as error:
            sequence = -1 if record.sequence is None else record.sequence
            raise RecordError(
                sequence,
                record.kind.value,
                f"it cannot be applied at sequence {sequence}: {type(error).__name__}: {error}",
            ) from error

    def _apply(self, state: JobState, record: Record) -> JobState:
        if record.kind is Kind.EPOCH_STARTED:
            return _epoch_started(state, record)
        sequence = attempts.required(record.sequence)
        assert sequence == state.next_sequence, (
            f"sequence {sequence} where {state.next_sequence} is the next"
        )
        phase = JOB[state.phase].get(record.kind)
        value = self._value(state, record)
        changed = self._by_kind(state, record, value)
        if state.skipped_events:
            changed = fold_uses(state, changed, record)
        if changed is state:
            changed = evolve(state)
        place = changed.__dict__  # of a copy without other references
        place["next_sequence"], place["timestamp_us"] = sequence + 1, record.timestamp_us
        if phase is not None:
            place["phase"] = phase
        if record.kind is Kind.COORDINATOR_CHECKPOINTED:
            changed = self.apart(changed, record.operator_id)
        projected = self._project(state, changed, record, value)
        return self.apart(with_opening(projected, record)) if is_opened_again(record) else projected

    def _value(self, state: JobState, record: Record) -> Payload | None:
        """The record's payload, or None if neither fold nor projection reads it.

        Raises PayloadTypeError if the type is neither in the log nor in the job (E9: a restore is exact or refused).
        """
        if record.payload_type is None or record.kind is Kind.TYPE_REGISTERED:
            return None
        if record.kind is Kind.CHECKPOINT_COMPLETED:
            return read_metadata(record.payload_type, record.payload).value
        if (
            record.kind in _TYPED
            or (record.kind is Kind.FACT and (_is_skip(record) or _is_keep(record)))
            or self._is_read(record.operator_id, record.payload_type)
        ):
            return self.types.decode(record.payload_type, record.payload)
        if record.operator_id in self._operators and record.payload_type not in state.types:
            self.types.declared(record.payload_type)
        return None

    def _is_read(self, operator_id: str | None, payload_type: str) -> bool:
        """Whether the operator has a projection that reads payloads of this type."""
        if operator_id not in self._operators:
            return False
        names = self._read_names[operator_id]
        return names is None or payload_type.partition("@")[0] in names

    def _by_kind(self, state: JobState, record: Record, value: Payload | None) -> JobState:
        plain = _PLAIN.get(record.kind)
        if plain is not None:
            return plain(state, record)
        if record.kind is Kind.RESET_TO_CHECKPOINT:
            return self._reset(state, record)
        if value is not None and _is_skip(record):
            return skips.fold_skip(state, record, value)
        if value is not None and _is_keep(record):
            return keeps.fold_savepoint(state, value)
        mark = mark_of_stop(record)
        if mark is not None:
            return _marked(state, mark)
        typed = _TYPED.get(record.kind)
        if typed is None:
            return state
        state = typed(state, record, value)
        return self._at_completion(state) if record.kind is Kind.CHECKPOINT_COMPLETED else state

    def _at_completion(self, state: JobState) -> JobState:
        """The state in which the last checkpoint, just completed, has what its readers did up to their barriers."""
        checkpoint = state.completed[state.last_checkpoint]
        cuts = checkpoint.cuts
        for operator_id, projection in self._operators.items():
            cut = cuts.get(operator_id)
            if cut is None or projection.at_completion is None:
                continue
            completed = projection.at_completion(
                checkpoint.checkpoint_id,
                checkpoint.finished.keys(),
                state.projections[operator_id],
                cut.projection,
            )
            if completed is not cut.projection:
                cuts = cuts.set(operator_id, replace(cut, projection=completed))
        if cuts is checkpoint.cuts:
            return state
        checkpoint = replace(checkpoint, cuts=cuts)
        return evolve(state, completed=state.completed.set(checkpoint.checkpoint_id, checkpoint))

    def _reset(self, state: JobState, record: Record) -> JobState:
        is_opened = record.checkpoint_id == NO_CHECKPOINT and state.opening is not None
        initial = cast("Map[str, Any]", state.opening) if is_opened else self._initial
        # Apart before `after_reset`, which may change the state of the cut too.
        changed = self.apart(checkpoints.reset_to_checkpoint(state, record, initial))
        changed = _with_operators_back(changed)
        is_ancestor = is_on_the_way(state, changed.last_checkpoint, state.last_checkpoint)
        has_ended = 0 < changed.parallelism == changed.finished_count
        projections = changed.projections
        for operator_id, projection in self._operators.items():
            before = state.projections[operator_id]
            after = projection.after(is_ancestor=is_ancestor, has_ended=has_ended)
            if projection.survives_resets:
                projections = projections.set(operator_id, before)
            elif after is not None:
                kept = after(before, projections[operator_id])
                projections = projections.set(operator_id, kept)
        return evolve(changed, projections=projections)

    def _project(
        self, before: JobState, state: JobState, record: Record, value: Payload | None
    ) -> JobState:
        """Apply the record to the projections of its operators."""
        if not self._operators:
            return state
        if record.kind is Kind.EVENT_REDELIVERED:
            if record.operator_id not in self._operators or SKIPPED_BY in record.attributes:
                return state  # possibly of a removed operator and its types (E8: removed operators)
            event = before.owed_redeliveries[0]
            record = replace(
                record,
                kind=Kind.EVENT_TO_COORDINATOR,
                last_barrier=event.last_barrier,
                payload_type=event.payload_type,
                payload=event.payload,
            )
            value = None
            if self._is_read(record.operator_id, event.payload_type):
                value = self.types.decode(event.payload_type, event.payload)
        if record.kind is Kind.FACT and record.attributes.get("closed") == "true":
            return state  # for a closed coordinator (A6: recorded only)
        if isinstance(value, EventSkipped):
            return state  # the operator is not involved: skipped events do not reach it
        if record.operator_id is not None:
            if ALSO_ACKED in record.attributes:
                for ack in _single_acks(before, record):
                    state = self._project_one(state, record.operator_id, ack, None)
                return state
            return self._project_one(state, record.operator_id, record, value)
        if record.kind in _FOR_ALL_OPERATORS or is_opened_again(record):
            for operator_id in self._operators:
                state = self._project_one(state, operator_id, record, value)
        if record.kind is Kind.RESET_TO_CHECKPOINT:
            for fact, skip in skips.skip_again(state, record):
                state = self._project_one(state, fact.operator_id or "", fact, skip)
        return state

    def _project_one(
        self, state: JobState, operator_id: str, record: Record, value: Payload | None
    ) -> JobState:
        projection = self._operators.get(operator_id)
        if projection is None:
            return state
        old = state.projections[operator_id]
        # No reset would take back what a turn that fails has changed in place.
        own = projection.apart(old) if projection.outlives_resets else old
        try:
            new = projection.apply(own, record, value)
        except PayloadStoreUnreachableError:
            raise
        except Exception as error:
            raise RecordError(
                attempts.required(record.sequence),
                record.kind.value,
                f"at sequence {record.sequence} the projection of operator {operator_id!r} raised "
                f"{type(error).__name__}: {error}; correct its `apply`, then start the job again",
            ) from error
        if new is old:
            return state
        return evolve(state, projections=state.projections.set(operator_id, new))


def _single_acks(before: JobState, record: Record) -> Iterator[Record]:
    """An `EVENT_ACKED` of several events as one for each, as projections get them."""
    gateway = before.gateways.get((record.operator_id or "", attempts.required(record.subtask)))
    for event_id in acked_events(record):
        event = None if gateway is None else gateway.unacked.get(event_id)
        cause = None if event is None else event.sequence
        yield replace(record, event_id=event_id, cause=cause, attributes={})


def _is_skip(record: Record) -> bool:
    return record.kind is Kind.FACT and record.payload_type in skips.FACTS


def _is_keep(record: Record) -> bool:
    return record.kind is Kind.FACT and record.payload_type in keeps.FACTS


def _epoch_started(state: JobState, record: Record) -> JobState:
    attributes = record.attributes
    launch = LaunchInfo(attributes)
    phase = state.phase
    resumed = state.resumed_phase if phase is Phase.STARTING else phase
    failed_before = state.phase is Phase.FAILED
    if failed_before and state.is_end_committed:
        # It failed during its commits: after the last completion of a batch job there is no reset.
        phase = Phase.ENDING
    elif phase not in (Phase.ENDING, Phase.FINISHED):
        phase = Phase.STARTING
    operators, parallelism = launch.operators, launch.parallelism
    coordinated = tuple(one.operator_id for one in operators if one.is_coordinated)
    former = {*state.operators, *state.former_operators}.difference(coordinated)
    is_another = state.epoch >= 0 and record.job_id != state.job_id
    if is_another:
        state = _forked(state, attributes.get("begun_from", state.job_id))
    return evolve(
        state,
        job_id=record.job_id,
        epoch=record.epoch,
        driver_id=record.driver_id,
        launch=_launch(state, attributes, is_another=is_another),
        timestamp_us=record.timestamp_us,
        phase=phase,
        resumed_phase=resumed,
        is_batch=attributes["mode"] == JobMode.BATCH,
        parallelism=parallelism,
        operators=coordinated,
        former_operators=tuple(sorted(former)),
        stale=_stale(state),
        subtasks=attempts.fresh_subtasks(parallelism) if resumed is None else state.subtasks,
        failures_us=() if failed_before else state.failures_us,
        reasons=() if failed_before else state.reasons,
        intents=_tried_afresh(state.intents) if failed_before else state.intents,
    )


def _marked(state: JobState, mark: str) -> JobState:
    return evolve(state, launch=state.launch.set(mark, "true"))


def _launch(state: JobState, attributes: Mapping[str, str], *, is_another: bool) -> Map[str, str]:
    """The attributes of an `EPOCH_STARTED`, and the marks of its epoch."""
    launch = Map({name: value for name, value in attributes.items() if not name.startswith(MARK)})
    launch = launch.update(_marks_of_operators(state, launch.get("operators", "[]")))
    launch = launch.update(_marks_of_the_away(state, launch))
    if not is_another and _is_dead(state, attributes):
        launch = launch.set(FORMER_DEAD, "true")
    return launch.set(END_COMMITTED, "true") if state.is_end_committed else launch


def _marks_of_operators(state: JobState, operators: str) -> dict[str, str]:
    """Marks from which the next epoch, with these operators, knows those that wrote each state that is held."""
    below, marks = dict(state.operators_below), dict[str, str]()
    former = state.launch.get("operators", operators)
    if former != operators and state.next_sequence:
        below.setdefault(state.next_sequence, former)  # an epoch without a turn has written nothing
    # -1 stands for the opening of a batch, whose mark has its sequence; the last sequence stands for the fold as it is.
    known = {NO_CHECKPOINT, state.next_sequence - 1}
    for checkpoint in sorted_values(state.completed):
        known |= {checkpoint.sequence}
        known |= {part.sequence for part in sorted_values(checkpoint.finished)}
    for subtask in sorted_values(state.subtasks):
        if subtask.completion is not None:
            known.add(subtask.completion.sequence)
    for sequence in sorted(known):
        name = f"{WRITTEN_AT}{sequence}"
        if name in state.launch:
            marks[name] = state.launch[name]
    written_until_now = (state.next_sequence - 1,) if former != operators else ()
    for number in sorted({*state.granted, *state.set_aside}):
        written = state.granted_at(number) or written_until_now
        if written:
            marks[f"{GRANTED_AT}{number}"] = " ".join(map(str, written))
            known |= {*written}
    if below:
        known |= {*batch_sequences(state)}
    for sequence in state.written_at(sorted(known)):
        if f"{AWAY_AT}{sequence}" in state.launch:
            marks[f"{AWAY_AT}{sequence}"] = state.away_at(sequence)
        end = min((end for end in sorted(below) if end > sequence), default=None)
        if end is not None:
            marks[f"{OPERATORS_BELOW}{end}"] = below[end]
    return marks


def _marks_of_the_away(state: JobState, launch: Mapping[str, str]) -> dict[str, str]:
    """Marks from which an operator that comes back is known as it was: the fold has kept its state (E9: exact)."""
    marks = {f"{AWAY}{operator_id}": text for operator_id, text in state.away.items()}
    present = {operator.operator_id for operator in LaunchInfo(launch).operators}
    for operator in json.loads(state.last_operators):
        if operator.get("coordinated") and operator["id"] not in present:
            # An epoch that has not worked leaves the mark of the one before.
            marks.setdefault(f"{AWAY}{operator['id']}", json.dumps([operator], sort_keys=True))
    return marks


def _with_operators_back(state: JobState) -> JobState:
    """The state in which the operators of this epoch are at work: none of them is away any more."""
    launch = state.launch
    for operator_id in sorted({*state.away} & {*state.operators}):
        launch = launch.delete(f"{AWAY}{operator_id}")
    return state if launch is state.launch else evolve(state, launch=launch)


def _is_dead(state: JobState, attributes: Mapping[str, str]) -> bool:
    """Whether the former driver ended without a stop or a take-over by a user, by the next `EPOCH_STARTED`.

    An epoch without a turn, such as that of a command, keeps the value of the epoch before.
    """
    if attributes.get("take_over") == "true" or GOING_BACK in attributes:
        return False
    if state.phase is Phase.STARTING:
        return state.is_former_dead
    if state.driver_stop is not DriverStop.NONE:
        return False
    return state.phase in (Phase.RUNNING, Phase.ENDING)


def _forked(state: JobState, begun_from: str) -> JobState:
    """The state of a forked job, without commits, savepoints and failures of the original job."""
    places = state.begun_places
    described = [state.launch, *({"operators": text} for text in state.away.values())]
    for operator in (one for launch in described for one in LaunchInfo(launch).operators):
        if operator.is_coordinated:
            places = places.set((operator.operator_id, operator.destination or ""), None)
    places = places.update(
        {place: None for place, _ in sorted_items(state.last_intents) if place[1]}
    )
    for checkpoint in sorted_values(state.completed):
        # The other job may go back to it, and make the open commits of a savepoint there.
        places = places.update(dict.fromkeys(sorted_items(checkpoint.destinations)))
    return evolve(
        state,
        begun_from=begun_from,
        begun_places=places,
        is_another_jobs=True,
        granted=Map(),
        set_aside=Map(),
        intents=Map(),
        last_intents=Map(),
        savepoints=Map(),
        failures_us=(),
        reasons=(),
        poison=Map(),
    )


def _stale(state: JobState) -> tuple[int, ...]:
    return tuple(
        number
        for number, subtask in sorted_items(state.subtasks)
        if subtask.completion is None and not subtask.is_reset
    )


def _tried_afresh(intents: Map[int, OpenIntent]) -> Map[int, OpenIntent]:
    for sequence, intent in sorted_items(intents):
        intents = intents.set(sequence, evolve(intent, failed_tries=0))
    return intents


def _type_registered(state: JobState, record: Record) -> JobState:
    key = record.payload_type
    assert key is not None, "a type has a name"
    return evolve(
        state,
        types=state.types.set(key, record.attributes["fingerprint"]),
        schemas=state.schemas.set(key, (record.payload or b"").decode()),
    )


def _coordinators_started(state: JobState, record: Record) -> JobState:
    is_resume = record.attributes.get("restore") == RestoredBy.RESUME
    is_again = is_opened_again(record)
    if is_again:
        state = opened_again(state)
    state = _with_operators_back(state)
    is_owed = (is_resume or is_again) and state.last_checkpoint != NO_CHECKPOINT
    return evolve(
        with_failure(state, record, is_counted_by_default=False),
        stale=state.stale if is_resume else (),
        is_restore_owed=is_owed,
        owed_complete=state.last_checkpoint if is_owed else None,
    )


def _event_redelivered(state: JobState, record: Record) -> JobState:
    owed = state.owed_redeliveries
    assert owed, "something is owed"
    assert owed[0].sequence == record.cause, "redeliveries are in log order"
    return evolve(state, owed_redeliveries=owed[1:])


def _coordinator_notified(state: JobState, record: Record) -> JobState:
    is_complete = record.attributes["what"] == Notified.COMPLETE
    if is_complete and record.checkpoint_id == state.owed_complete:
        return evolve(state, owed_complete=None, is_restore_owed=False)
    return state


def _commit_intent(state: JobState, record: Record) -> JobState:
    checkpoint_id = attempts.required(record.checkpoint_id)
    sequence = attempts.required(record.sequence)
    operator_id = record.operator_id or ""
    intent = OpenIntent(
        sequence=sequence,
        operator_id=operator_id,
        checkpoint_id=checkpoint_id,
        payload_type=record.payload_type or "",
        payload=record.payload or b"",
    )
    covers = record.attributes.get(COVERS)
    if state.phase is Phase.ENDING:
        state = _marked(state, END_COMMITTED)
    return evolve(
        state,
        intents=state.intents.set(sequence, intent),
        granted=without_covered(state.granted, operator_id, checkpoint_id, covers),
        last_intents=_with_intent(state, operator_id, checkpoint_id),
    )


def _with_intent(
    state: JobState, operator_id: str, checkpoint_id: int
) -> Map[tuple[str, str], int]:
    """The highest checkpoints with an intent, by operator and destination (E6: no second commit)."""
    key = (operator_id, state.launch_info.destinations.get(operator_id, ""))
    return state.last_intents.set(
        key, max(state.last_intents.get(key, NO_CHECKPOINT), checkpoint_id)
    )


def _commit_outcome(state: JobState, record: Record) -> JobState:
    sequence = attempts.required(record.cause)
    if record.attributes["settled"] == "true":
        return evolve(state, intents=state.intents.delete(sequence))
    intent = state.intents[sequence]
    tried = evolve(intent, failed_tries=intent.failed_tries + 1)
    return evolve(
        state,
        intents=state.intents.set(sequence, tried),
        reasons=(record.reason or "", *state.reasons)[:5],
    )


def _global_failure(state: JobState, record: Record) -> JobState:
    return evolve(
        state,
        reasons=(record.reason or "", *state.reasons)[:5],
        poison=attempts.poisoned(state.poison, record),
    )


_PLAIN: Final[Mapping[Kind, Callable[[JobState, Record], JobState]]] = {
    Kind.TYPE_REGISTERED: _type_registered,
    Kind.COORDINATORS_STARTED: _coordinators_started,
    Kind.EVENT_REDELIVERED: _event_redelivered,
    Kind.ATTEMPT_STARTED: attempts.attempt_started,
    Kind.EVENT_TO_SUBTASK: attempts.event_to_subtask,
    Kind.EVENT_TO_COORDINATOR: attempts.event_to_coordinator,
    Kind.EVENT_ACKED: attempts.event_acked,
    Kind.EVENT_FAILED: attempts.event_failed,
    Kind.ATTEMPT_FAILED: attempts.attempt_failed,
    Kind.SUBTASK_RESET: attempts.subtask_reset,
    Kind.COORDINATOR_CHECKPOINTED: checkpoints.coordinator_checkpointed,
    Kind.BARRIER_INJECTED: checkpoints.barrier_injected,
    Kind.CHECKPOINT_ABORTED: checkpoints.checkpoint_aborted,
    Kind.COORDINATOR_NOTIFIED: _coordinator_notified,
    Kind.COMMIT_INTENT: _commit_intent,
    Kind.COMMIT_OUTCOME: _commit_outcome,
    Kind.GLOBAL_FAILURE: _global_failure,
}


def _triggered(state: JobState, record: Record, value: Payload | None) -> JobState:
    return checkpoints.checkpoint_triggered(state, record, cast("CheckpointTriggered", value))


def _acked(state: JobState, record: Record, value: Payload | None) -> JobState:
    return checkpoints.checkpoint_acked(state, record, cast("AttemptSnapshot", value))


def _completed(state: JobState, record: Record, value: Payload | None) -> JobState:
    return checkpoints.checkpoint_completed(state, record, cast("CheckpointMetadata", value))


def _split(state: JobState, record: Record, value: Payload | None) -> JobState:
    return attempts.split_finished(state, record, cast("SplitFinished", value))


def _subtask_completed(state: JobState, record: Record, value: Payload | None) -> JobState:
    return attempts.subtask_completed(state, record, cast("AttemptSnapshot", value))


_TYPED: Final[Mapping[Kind, Callable[[JobState, Record, Payload | None], JobState]]] = {
    Kind.CHECKPOINT_TRIGGERED: _triggered,
    Kind.CHECKPOINT_ACKED: _acked,
    Kind.CHECKPOINT_COMPLETED: _completed,
    Kind.SPLIT_FINISHED: _split,
    Kind.SUBTASK_COMPLETED: _subtask_completed,
}
