"""The committables that completed checkpoints allow to be committed and no intent covers yet (H4, I3: intents).

An intent covers all committables of its operator by default. If it covers only some, its record lists their places: by
granting checkpoint, the ranges of places in the list of that checkpoint before the intent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from immutables import Map

from coordlog.projections.job.state import (
    GRANTED_AT,
    Granted,
    JobState,
    KeptSplit,
    OpenIntent,
    sorted_items,
    sorted_values,
)
from coordlog.schemas.builtin_types import Committable

__all__ = [
    "COVERS",
    "batch_grants",
    "batch_sequences",
    "covering",
    "granted_to",
    "is_held_back",
    "marks_of_grants",
    "uncommitted",
    "without_covered",
]

COVERS: Final = "covers"
"""Attribute of a `COMMIT_INTENT`: the places that it covers, as in `7:0-2,5;8:0`; absent if it covers all."""

_RELEASE: Final = "coordlog.release_splits@"
"""Prefix of the payload type of intents to release input, before its version."""

_Grants = Map[int, tuple[Granted, ...]]
_Place = tuple[int, int]
"""A checkpoint, or -1 for a batch job's end, and an index in its list."""


def granted_to(
    state: JobState, operator_id: str, checkpoint_id: int
) -> Iterable[tuple[_Place, Granted]]:
    """An operator's committables up to a checkpoint, whose completion subsumes older ones (H1), with their places."""
    for granted_by, grants in sorted_items(state.granted):
        if granted_by <= checkpoint_id:
            for index, grant in enumerate(grants):
                if grant.operator_id == operator_id:
                    yield (granted_by, index), grant


def uncommitted(state: JobState) -> Mapping[str, int]:
    """Number of the committables that no intent covers, by operator with a coordinator, in the order of the chain."""
    counts = dict.fromkeys(state.operators, 0)
    for _, grants in sorted_items(state.granted):
        for grant in grants:
            if grant.operator_id in counts:
                counts[grant.operator_id] += 1
    return {operator_id: count for operator_id, count in counts.items() if count}


def is_held_back(state: JobState, intent: OpenIntent) -> bool:
    """Whether an intent is to release input whose rows are not committed by all other operators yet (H3: in order)."""
    if not intent.payload_type.startswith(_RELEASE):
        return False
    others = state.operators
    return any(
        other.operator_id != intent.operator_id and other.checkpoint_id <= intent.checkpoint_id
        for other in sorted_values(state.intents)
    ) or any(
        grant.operator_id != intent.operator_id and grant.operator_id in others
        for number, grants in sorted_items(state.granted)
        if number <= intent.checkpoint_id
        for grant in grants
    )


def covering(places: Iterable[_Place]) -> str:
    """The text of `COVERS` for these places."""
    by_checkpoint: dict[int, list[list[int]]] = {}
    for granted_by, index in sorted(places):
        ranges = by_checkpoint.setdefault(granted_by, [])
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ";".join(
        f"{granted_by}:{','.join(_range(first, last) for first, last in ranges)}"
        for granted_by, ranges in by_checkpoint.items()
    )


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def without_covered(
    grants: _Grants, operator_id: str, checkpoint_id: int, covers: str | None
) -> _Grants:
    """The grants that an intent of this operator and checkpoint leaves.

    Args:
        grants: Grants before the intent.
        operator_id: Operator of the intent.
        checkpoint_id: Checkpoint of the intent.
        covers: `COVERS` of the record, or None if the intent covers all committables of the operator.
    """
    if covers is None:
        for granted_by, each in sorted_items(grants):
            if granted_by <= checkpoint_id:
                left = tuple(grant for grant in each if grant.operator_id != operator_id)
                grants = _with(grants, granted_by, left)
        return grants
    for part in covers.split(";") if covers else ():
        checkpoint, _, text = part.partition(":")
        granted_by = int(checkpoint)
        assert granted_by <= checkpoint_id, "an intent covers what its checkpoint allows"
        each = grants[granted_by]
        kept: list[Sequence[Granted]] = []
        place = 0
        for first, last in map(_bounds, text.split(",")):
            assert place <= first <= last < len(each), f"{part} of {len(each)} committables"
            covered = each[first : last + 1]
            assert all(grant.operator_id == operator_id for grant in covered), "of its own operator"
            kept.append(each[place:first])
            place = last + 1
        kept.append(each[place:])
        grants = _with(
            grants, granted_by, tuple(grant for each_kept in kept for grant in each_kept)
        )
    return grants


def batch_grants(state: JobState) -> tuple[Granted, ...]:
    """All committables of a batch job's end: by subtask, then in the order of their creation."""
    grants: list[tuple[int, int, Granted]] = []
    for kept in sorted_values(state.kept_splits):
        grants.extend(
            (kept.subtask, kept.sequence, _grant(kept, committable))
            for committable in kept.committables
        )
    for subtask in sorted_values(state.subtasks):
        if subtask.completion is not None:
            for committable in subtask.completion.all_committables():
                granted = Granted(
                    operator_id=committable.operator_id,
                    subtask=subtask.subtask,
                    attempt_number=subtask.completion.attempt_number,
                    split_id=None,
                    content=committable.content,
                )
                grants.append((subtask.subtask, subtask.completion.sequence, granted))
    grants.sort(key=lambda grant: grant[:2])
    return tuple(grant for _, _, grant in grants)


def batch_sequences(state: JobState) -> tuple[int, ...]:
    """Sequences at which the committables of `batch_grants` were written."""
    kept_splits = [kept.sequence for kept in sorted_values(state.kept_splits) if kept.committables]
    ends = [
        subtask.completion.sequence
        for subtask in sorted_values(state.subtasks)
        if subtask.completion is not None and subtask.completion.all_committables()
    ]
    return (*kept_splits, *ends)


def marks_of_grants(state: JobState, checkpoint_id: int, sequences: Iterable[int]) -> Map[str, str]:
    """The launch with the mark of a checkpoint's grants, some of which former epochs may have written (E7: upgrades).

    There is none if all were written by the operators in force. Else the mark has the end of each former epoch that
    wrote some, and the present sequence, for those of this epoch.

    Args:
        state: State before the grants.
        checkpoint_id: The checkpoint, or -1 for the end of a batch.
        sequences: Sequences of the ends of subtasks and splits that left their committables.
    """
    name = f"{GRANTED_AT}{checkpoint_id}"
    writers = state.ends_of_writers(sequences)
    if writers:
        return state.launch.set(name, " ".join(map(str, (*writers, state.next_sequence))))
    return state.launch.delete(name) if name in state.launch else state.launch


def _grant(kept: KeptSplit, committable: Committable) -> Granted:
    return Granted(
        operator_id=committable.operator_id,
        subtask=kept.subtask,
        attempt_number=kept.attempt_number,
        split_id=kept.split_id,
        content=committable.content,
    )


def _bounds(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _with(grants: _Grants, granted_by: int, left: tuple[Granted, ...]) -> _Grants:
    return grants.set(granted_by, left) if left else grants.delete(granted_by)
