"""Compatibility of a job's operators with those that wrote its history (clauses E8, E9: no state is lost)."""

from __future__ import annotations

import enum
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.errors import RestoreError
from coordlog.projections.job.branches import allowed_by
from coordlog.projections.job.checkpoints import restoring_subtasks
from coordlog.projections.job.state import (
    CompletedCheckpoint,
    JobState,
    sorted_items,
    sorted_values,
)
from coordlog.projections.splits.fold import SplitsState
from coordlog.projections.splits.query_reads import ReadsState
from coordlog.schemas.record import NO_CHECKPOINT

__all__ = ["RestoreMode", "check_operators", "describe_operators", "stays_finished"]

_SAME: Mapping[str, str] = {
    "version": "the version of operator",
    "coordinated": "the presence of a coordinator of operator",
    "keeps_state": "the keeping of state across splits by operator",
}
"""Attributes of an operator that must not change, with their words in messages."""


class RestoreMode(enum.StrEnum):
    """Way in which a new epoch continues."""

    START = "start"
    RESUME = "resume"
    ROLLBACK = "rollback"
    SETTLE = "settle"
    """All splits are read; the open commits are settled."""
    AGAIN = "again"
    """A job that has finished is opened again."""
    FINISHED = "finished"
    """The job has finished; no work remains."""


def describe_operators(chain: Chain) -> str:
    """JSON text of the operators of a job, with their versions and attributes, for the fingerprint of the job."""
    return json.dumps(
        [
            {
                "id": link.operator_id,
                "version": link.version,
                "coordinated": link.coordinator is not None,
                "keeps_state": link.keeps_state_across_splits,
                **({"options": dict(sorted(link.options.items()))} if link.options else {}),
                **_destination_of(link),
                **_projection_of(link),
                **_location_of(link),
                **_inputs_of(link),
            }
            for link in chain.links
        ],
        sort_keys=True,
    )


def _destination_of(link: SourceSpec | OperatorSpec) -> dict[str, str]:
    """Destination of an operator, if declared. It may change (clause E6: a job may write elsewhere)."""
    provider = link.coordinator
    destination = None if provider is None else provider.destination
    return {} if destination is None else {"destination": destination}


def _projection_of(link: SourceSpec | OperatorSpec) -> dict[str, str]:
    """Projection of an operator by name and version. It may change."""
    projection = None if link.coordinator is None else link.coordinator.projection
    return {} if projection is None else {"projection": f"{projection.name}@{projection.version}"}


def _location_of(link: SourceSpec | OperatorSpec) -> dict[str, str]:
    """Location of a source, if declared."""
    location = link.location if isinstance(link, SourceSpec) else None
    return {} if location is None else {"location": location}


def _inputs_of(link: SourceSpec | OperatorSpec) -> dict[str, list[str]]:
    """Inputs of a source for lineage, if declared. They may change."""
    inputs = list(link.inputs) if isinstance(link, SourceSpec) else []
    return {"inputs": inputs} if inputs else {}


def check_operators(
    job_id: str,
    state: JobState,
    chain: Chain,
    *,
    parallelism: int,
    mode: RestoreMode,
    allowed: Collection[str],
) -> None:
    """Refuse operators that have changed, and removed operators whose state would be lost.

    Args:
        job_id: Id of the job.
        state: State folded from its log.
        chain: Chain of the job. An operator that the log does not have begins without state.
        parallelism: Number of subtasks to start.
        mode: Restore mode of the new epoch.
        allowed: Operators whose state may be dropped.

    Raises:
        RestoreError: Names the operator.
    """
    recorded = _described(state.last_operators)
    own = _described(describe_operators(chain))
    has_begun = any(subtask.next_attempt_number for subtask in sorted_values(state.subtasks))
    back = _back(state, chain, mode)
    for described, where in ((recorded, ""), (back, " in the last epoch with it")):
        if has_begun:
            _check_options(job_id, described, own)
        _check_same(job_id, chain, described, own, where)
    checkpoint = state.completed.get(state.last_checkpoint)
    if checkpoint is not None:
        _check_writers(job_id, state, chain, checkpoint, recorded, own, parallelism, mode)
    elif mode in (RestoreMode.ROLLBACK, RestoreMode.RESUME):
        # Also at a resume, because a later failover goes back to the opening.
        _check_writers_at(job_id, state, chain, None, recorded, own, " in its last opening")
    for committables in _open_committables(state, mode):
        _check_writers_of(job_id, state, chain, committables, own)
    _check_location(job_id, state, chain.source, {**recorded, **back}, is_begun=has_begun)
    order = [operator_id for operator_id in recorded if operator_id in own]
    order_here = [operator_id for operator_id in own if operator_id in recorded]
    if order != order_here:
        raise RestoreError(
            job_id,
            "the order of the operators",
            ", ".join(order),
            ", ".join(order_here),
            "put them in the order that wrote the history, or use another job id",
        )
    for part in _parts_to_restore(state, mode, recorded):
        if part.operator_id not in own and (part.is_owed or part.operator_id not in allowed):
            raise _refusal(job_id, part)


def _back(state: JobState, chain: Chain, mode: RestoreMode) -> Mapping[str, Mapping[str, object]]:
    """Operators that come back to what the fold has kept of them, as the last epoch with each describes it.

    A rollback keeps only what outlives resets, such as the listing of a source; that of a batch to its last opening
    keeps all that was folded until then.
    """
    opening = state.opening if state.last_checkpoint == NO_CHECKPOINT else None
    back: dict[str, Mapping[str, object]] = {}
    for provider in chain.coordinators:
        operator_id, projection = provider.operator_id, provider.projection
        if operator_id not in state.away or projection is None:
            continue
        kept = state.projections[operator_id]
        if mode is RestoreMode.ROLLBACK and not projection.outlives_resets:
            kept = projection.initial if opening is None else opening[operator_id]
        if kept != projection.initial:
            back |= _described(state.away[operator_id])
    return back


def _check_writers(
    job_id: str,
    state: JobState,
    chain: Chain,
    checkpoint: CompletedCheckpoint,
    recorded: Mapping[str, Mapping[str, object]],
    own: Mapping[str, Mapping[str, object]],
    parallelism: int,
    mode: RestoreMode,
) -> None:
    """Refuse operators that do not read the states of this checkpoint.

    Epochs since, with other operators, may have died before they completed a checkpoint of their own. Subtasks that had
    finished may have done so in an epoch long before it.
    """
    where = f" in checkpoint {checkpoint.checkpoint_id}"
    _check_writers_at(job_id, state, chain, checkpoint, recorded, own, where)
    for number in _begun_again(state, checkpoint, parallelism, mode):
        part = checkpoint.finished[number]
        has_state = {one.operator_id for one in part.states if one.state is not None}
        for sequence in state.written_at([part.sequence]):
            wrote = {
                operator_id: operator
                for operator_id, operator in _described(state.operators_at(sequence)).items()
                if operator_id in has_state
            }
            _check_options(job_id, wrote, own)
            _check_same(job_id, chain, wrote, own, f"{where}, where subtask {number} had finished,")


def _check_writers_at(
    job_id: str,
    state: JobState,
    chain: Chain,
    checkpoint: CompletedCheckpoint | None,
    recorded: Mapping[str, Mapping[str, object]],
    own: Mapping[str, Mapping[str, object]],
    where: str,
) -> None:
    """Refuse operators that do not read the states of a checkpoint, or of a batch's opening (None)."""
    known_by = NO_CHECKPOINT if checkpoint is None else checkpoint.sequence
    cuts = () if checkpoint is None else sorted_values(checkpoint.cuts)
    for sequence in state.written_at([known_by]):
        wrote: Mapping[str, Mapping[str, object]] = _described(state.operators_at(sequence))
        if checkpoint is None or sequence in {cut.sequence for cut in cuts}:
            # An opening has written nothing but the cuts of coordinators.
            wrote = {one: operator for one, operator in wrote.items() if operator["coordinated"]}
        wrote = {**wrote, **_away_at(state, chain, sequence)}
        _check_options(job_id, wrote, own)
        _check_same(job_id, chain, wrote, own, where)
        if chain.source.operator_id not in recorded:
            _check_location(job_id, state, chain.source, wrote, is_begun=True)


def _away_at(state: JobState, chain: Chain, sequence: int) -> dict[str, Mapping[str, object]]:
    """Operators that were away at this opening of a batch, as far as it keeps folds of theirs."""
    folds: Mapping[str, object] = state.opening or {}
    initial = {
        provider.operator_id: provider.projection.initial
        for provider in chain.coordinators
        if provider.projection is not None
    }
    return {
        operator_id: operator
        for operator_id, operator in _described(state.away_at(sequence)).items()
        if operator_id in initial and folds.get(operator_id) not in (None, initial[operator_id])
    }


@dataclass(frozen=True, slots=True)
class _OpenCommittables:
    """Committables that no intent covers yet: a coordinator will commit them, maybe of a version that came later."""

    place: str
    operators: frozenset[str]
    sequences: Sequence[int]
    """Sequences at which they were written, in former epochs."""


def _open_committables(state: JobState, mode: RestoreMode) -> Sequence[_OpenCommittables]:
    """Open committables that a restore in this mode leaves, as far as operators of former epochs wrote them."""
    granted = state.granted
    if mode is RestoreMode.ROLLBACK:
        granted, _ = allowed_by(state, state.last_checkpoint)
    committables = [
        _OpenCommittables(
            _place_of_grants(number),
            frozenset(grant.operator_id for grant in grants),
            state.granted_at(number),
        )
        for number, grants in sorted_items(granted)
    ]
    if mode is not RestoreMode.RESUME:
        return committables
    ends: dict[str, list[int]] = {}
    for kept in sorted_values(state.kept_splits):
        for committable in kept.committables:
            ends.setdefault(committable.operator_id, []).append(kept.sequence)
    for subtask in sorted_values(state.subtasks):
        completion = subtask.completion
        if completion is None:
            continue
        for committable in completion.all_committables():
            ends.setdefault(committable.operator_id, []).append(completion.sequence)
    place = " in the committables of finished splits and subtasks"
    return committables + [
        _OpenCommittables(place, frozenset([operator_id]), state.ends_of_writers(sequences))
        for operator_id, sequences in ends.items()
    ]


def _place_of_grants(checkpoint_id: int) -> str:
    if checkpoint_id == NO_CHECKPOINT:
        return " in the committables at the batch's end"
    return f" in the committables that checkpoint {checkpoint_id} granted"


def _check_writers_of(
    job_id: str,
    state: JobState,
    chain: Chain,
    committables: _OpenCommittables,
    own: Mapping[str, Mapping[str, object]],
) -> None:
    """Refuse operators that do not read these committables."""
    for sequence in committables.sequences:
        wrote = {
            operator_id: operator
            for operator_id, operator in _described(state.operators_at(sequence)).items()
            if operator_id in committables.operators
        }
        _check_options(job_id, wrote, own)
        _check_same(job_id, chain, wrote, own, committables.place)


def _begun_again(
    state: JobState, checkpoint: CompletedCheckpoint, parallelism: int, mode: RestoreMode
) -> Sequence[int]:
    """Finished subtasks of a checkpoint whose states are handed to attempts: unfinished subtasks take them over."""
    handed: list[int] = []
    for subtask in range(parallelism):
        numbers = restoring_subtasks(checkpoint.parallelism, parallelism, subtask)
        if not stays_finished(state, checkpoint, numbers, mode):
            handed += [number for number in numbers if number in checkpoint.finished]
    return handed


def stays_finished(
    state: JobState, checkpoint: CompletedCheckpoint, numbers: Sequence[int], mode: RestoreMode
) -> bool:
    """Whether a subtask gets no attempt after a restore, as all subtasks that restore it have finished.

    Args:
        state: State folded from the log.
        checkpoint: Checkpoint from which the job continues.
        numbers: Subtasks of the checkpoint that restore it, its own number first (`restoring_subtasks`).
        mode: Restore mode of the new epoch.
    """
    if mode is RestoreMode.RESUME:  # the number of subtasks is as it was
        known = state.subtasks.get(numbers[0]) if numbers else None
        return known is not None and known.completion is not None
    if mode is RestoreMode.AGAIN or not numbers:
        return False
    return all(number in checkpoint.finished for number in numbers)


def _check_same(
    job_id: str,
    chain: Chain,
    recorded: Mapping[str, Mapping[str, object]],
    own: Mapping[str, Mapping[str, object]],
    where: str = "",
) -> None:
    """Refuse a changed attribute of an operator that both descriptions have; `where` is the place of `recorded`."""
    restores = {
        link.operator_id: [str(version) for version in link.restores] for link in chain.links
    }
    for operator_id in sorted({*recorded} & {*own}):
        for attribute, words in _SAME.items():
            was, now = str(recorded[operator_id][attribute]), str(own[operator_id][attribute])
            if was != now and not (attribute == "version" and was in restores[operator_id]):
                what_to_do = "run the chain that wrote the history, or use another job id"
                if attribute == "version":
                    none_left = (
                        "" if where else f", or if the job rolls back to before version {was}"
                    )
                    what_to_do = (
                        f"run version {was}; or declare restores=({was},) if version {now} reads the state of version "
                        f"{was}{none_left}; or use another job id"
                    )
                raise RestoreError(job_id, f"{words} {operator_id!r}{where}", was, now, what_to_do)


def _check_options(
    job_id: str,
    recorded: Mapping[str, Mapping[str, object]],
    own: Mapping[str, Mapping[str, object]],
) -> None:
    """Refuse a changed option of an operator, among those that both descriptions have."""
    for operator_id in sorted({*recorded} & {*own}):
        was, now = _options(recorded[operator_id]), _options(own[operator_id])
        for name in sorted({*was} & {*now}):
            if was[name] != now[name]:
                raise RestoreError(
                    job_id,
                    f"option {name} of operator {operator_id!r}",
                    was[name],
                    now[name],
                    "set it as it was, or use another job id",
                )


def _check_location(
    job_id: str,
    state: JobState,
    source: SourceSpec,
    recorded: Mapping[str, Mapping[str, object]],
    *,
    is_begun: bool,
) -> None:
    """Refuse another location of a listed source: it would not be read, or read a second time as a whole.

    A location that was never listed, such as a mistyped path, may be changed.
    """
    was, now = recorded.get(source.operator_id, {}).get("location"), source.location
    if was in (None, now) or now is None or source.allows_other_location:
        return
    splits_state = state.projections.get(source.operator_id)
    if not (
        is_begun or (isinstance(splits_state, (SplitsState, ReadsState)) and splits_state.splits)
    ):
        return
    raise RestoreError(
        job_id,
        "the source",
        str(was),
        now,
        "set it as it was, or use another job id: listed files are read as they were listed, and a "
        "file is known by its path, so that the same file by another path is read again; if the "
        "new one is meant, pass `allow_other_path=True`",
    )


def _options(described: Mapping[str, object]) -> Mapping[str, str]:
    options = described.get("options", {})
    assert isinstance(options, dict), "it was written as a dict"
    return cast("dict[str, str]", options)


def _described(operators: str) -> dict[str, dict[str, object]]:
    return {operator["id"]: operator for operator in json.loads(operators)}


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the state that a restore would hand to an operator."""

    operator_id: str
    what: str
    is_owed: bool = False
    """An intent: it is carried out, never dropped (clause E6)."""


def _refusal(job_id: str, part: _Part) -> RestoreError:
    operator_id = part.operator_id
    if part.is_owed:
        return RestoreError(
            job_id,
            f"{part.what} of operator {operator_id!r}",
            "without an outcome",
            "of no operator",
            "run the job with this operator until it has an outcome",
        )
    return RestoreError(
        job_id,
        f"the state of operator {operator_id!r}",
        part.what,
        "of no operator",
        f"keep the operator, or drop its state with `allow_non_restored_state=({operator_id!r},)`",
    )


def _parts_to_restore(
    state: JobState, mode: RestoreMode, recorded: Mapping[str, Mapping[str, object]]
) -> Sequence[_Part]:
    """Parts that a restore in this mode would hand to operators, including operators that still exist."""
    parts = [
        _Part(intent.operator_id, f"the intent of checkpoint {intent.checkpoint_id}", is_owed=True)
        for intent in sorted_values(state.intents)
    ]
    if mode is RestoreMode.ROLLBACK:
        parts += _in_checkpoint(state)
    elif mode is RestoreMode.SETTLE:
        what = "a part of the batch's end, which no intent covers,"
        for grants in sorted_values(state.granted):
            parts += [_Part(grant.operator_id, what) for grant in grants]
    elif mode is RestoreMode.AGAIN:
        parts += [*_coordinated(recorded), *_in_checkpoint(state)]
    elif mode is RestoreMode.RESUME:
        parts += _coordinated(recorded)
        for subtask in sorted_values(state.subtasks):
            if subtask.completion is None:
                continue
            what = f"that of subtask {subtask.subtask}, which has finished,"
            states = [part for part in subtask.completion.states if part.state is not None]
            parts += [_Part(state_part.operator_id, what) for state_part in states]
            committables = subtask.completion.all_committables()
            parts += [_Part(committable.operator_id, what) for committable in committables]
        for kept in sorted_values(state.kept_splits):
            what = f"that of split {kept.split_id!r}, which has finished,"
            parts += [_Part(committable.operator_id, what) for committable in kept.committables]
        parts += _in_checkpoint(state)
    return parts


def _coordinated(recorded: Mapping[str, Mapping[str, object]]) -> Sequence[_Part]:
    return [
        _Part(operator_id, "its coordinator's, as folded from the log")
        for operator_id, operator in recorded.items()
        if operator["coordinated"]
    ]


def _in_checkpoint(state: JobState) -> Sequence[_Part]:
    checkpoint = state.completed.get(state.last_checkpoint)
    if checkpoint is None:
        return ()
    what = f"part of checkpoint {checkpoint.checkpoint_id}"
    # If a cut has no bytes, its state is the fold there; `b""` is the result of a coordinator without a state.
    parts = [
        _Part(operator_id, what)
        for operator_id, cut in sorted_items(checkpoint.cuts)
        if cut.state != b""
    ]
    by_subtask = [*sorted_values(checkpoint.states)]
    by_subtask += [finished.states for finished in sorted_values(checkpoint.finished)]
    parts += [
        _Part(operator.operator_id, what)
        for states in by_subtask
        for operator in states
        if operator.state is not None
    ]
    parts += [_Part(event.operator_id, what) for event in checkpoint.in_flight]
    allowed, _ = allowed_by(state, checkpoint.checkpoint_id)
    for grants in sorted_values(allowed):
        parts += [_Part(grant.operator_id, what) for grant in grants]
    return parts
