"""The fold of a source whose listing can be repeated: listed splits stay known (L6: no split waits).

It differs from `splits.fold` in three places. A reset undoes assignments and ends, not discoveries. A split that no
reader has had gets the content of the latest listing. And a split that a later listing has cut differently or left out
is withdrawn, by a record that names it. So a waiting split is read, skipped, or an error: none is forgotten because a
later listing did not find it.
"""

from __future__ import annotations

from immutables import Map

from coordlog.projections.splits.fold import SplitsState, apply_record
from coordlog.projections.splits.table import Place, Skipped, WithEnumerator
from coordlog.schemas.evolution import evolve
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.source_types import ListingStarted, SplitsDiscovered, SplitsWithdrawn

__all__ = ["after_reset", "apply_listed"]

_WITH_ENUMERATOR = WithEnumerator()


def after_reset(before: SplitsState, restored: SplitsState) -> SplitsState:
    """The state of the checkpoint, with the splits found later, which no reader has any more."""

    def place_of(split_id: str) -> Place:
        return Skipped() if split_id in before.skips else _WITH_ENUMERATOR

    splits = restored.splits.continued(before.splits, place_of)
    return restored if splits is restored.splits else evolve(restored, splits=splits)


def apply_listed(state: SplitsState, record: Record, value: Payload | None) -> SplitsState:
    """The state after one more record that counts."""
    if record.kind is Kind.FACT and record.attributes.get("closed") != "true":
        if isinstance(value, SplitsDiscovered):
            return apply_record(_with_latest_content(state, value), record, value)
        if isinstance(value, ListingStarted):
            return state
        if isinstance(value, SplitsWithdrawn):
            return _withdrawn(state, value)
    return apply_record(state, record, value)


def _with_latest_content(state: SplitsState, value: SplitsDiscovered) -> SplitsState:
    """The state with the content of the latest listing for splits that no reader has had."""
    changed = [
        split
        for split in value.splits
        if state.is_unassigned(split.split_id) and state.splits[split.split_id].split != split
    ]
    return evolve(state, splits=state.splits.replaced(changed)) if changed else state


def _withdrawn(state: SplitsState, value: SplitsWithdrawn) -> SplitsState:
    """The state without the withdrawn splits that are with the enumerator; others stay."""
    names = [name for name in value.split_ids if state.is_unassigned(name)]
    ordinals = [state.splits.ordinal(name) for name in names]
    fresh_from = state.fresh_from - sum(1 for ordinal in ordinals if ordinal < state.fresh_from)
    splits = state.splits.without(names)
    return evolve(
        state,
        splits=splits,
        fresh_from=fresh_from,
        passed_over=Map(dict.fromkeys(splits.with_enumerator(fresh_from))),
        listed_before=state.listed_before
        - sum(1 for ordinal in ordinals if ordinal < state.listed_before),
    )
