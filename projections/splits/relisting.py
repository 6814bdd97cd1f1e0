"""The fold of a source whose listing can be repeated: listed splits stay known (L6: no split waits).

It differs from `splits.fold` in four places. A reset undoes assignments and ends, not discoveries. A split that no
reader has had gets the content of the latest listing. And a split that a later listing has cut differently or left out
is withdrawn, by a record that names it. So a waiting split is read, skipped, or an error: none is forgotten because a
later listing did not find it. And a split of which a completed checkpoint has every row may be forgotten, by a record
that names it; a reset does not undo this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import cast

from coordlog.projections.splits.fold import Request, SplitsState, apply_record
from coordlog.projections.splits.table import (
    Assigned,
    Finished,
    Place,
    Skipped,
    SplitTable,
    WithEnumerator,
)
from coordlog.schemas.evolution import evolve
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import NO_CHECKPOINT, Kind, Record
from coordlog.schemas.source_types import (
    LASTING,
    KnownSplitsForgotten,
    LastingState,
    ListingStarted,
    SplitsDiscovered,
    SplitsReleased,
    SplitsWithdrawn,
)

__all__ = ["after_branch", "after_end", "after_reset", "apply_listed"]

_WITH_ENUMERATOR = WithEnumerator()
_LASTING = payload_type_of(LastingState)


def after_reset(before: SplitsState, restored: SplitsState) -> SplitsState:
    """The state of the checkpoint, with the splits found later, which no reader has any more.

    A split that was released or forgotten since then stays so: a completed checkpoint has all of its rows. If the split
    is assigned at the cut, either it ended before the barrier, and no reader has it, or the checkpoint is older than
    its end, and the reader that is restored with it needs no record of it.

    If the job was opened again since the checkpoint, the checkpoint's listing has not ended, as on another branch.
    """
    is_opened_since = before.listed_before > restored.listed_before
    continued = after_branch if is_opened_since else _continued
    return continued(before, after_end(before, restored))


def after_end(before: SplitsState, restored: SplitsState) -> SplitsState:
    """As `after_reset`, but without the splits found later: all readers have ended, and none could read these.

    The listing of the next opening finds them. Likewise at such a checkpoint of another branch.
    """
    state = _without_names(restored, _forgotten_since(restored.splits, before.splits))
    kept = _lasting(before.enumerator_state, restored.enumerator_state)
    return state if kept == state.enumerator_state else evolve(state, enumerator_state=kept)


def after_branch(before: SplitsState, restored: SplitsState) -> SplitsState:
    """The state of a checkpoint of another branch, with the splits found on this one, which no reader has any more.

    A split that this branch does not know may have been withdrawn here, where no reader had it. The checkpoint has its
    rows all the same: if it were forgotten, a listing would find its file again, and its rows would be read twice.
    As none is forgotten, the lasting part of the enumerator's state is that of the checkpoint too: files that only this
    branch has read and forgotten are found again.

    If this branch has found further splits, the checkpoint's listing has not ended: a new one withdraws those that this
    branch has only cut otherwise.
    """
    state = _continued(before, restored)
    is_more = state.splits is not restored.splits
    return _listed_again(state) if is_more and state.is_discovery_complete else state


def _continued(before: SplitsState, restored: SplitsState) -> SplitsState:
    """The restored state, with the splits of the state before that it lacks."""

    def place_of(split_id: str) -> Place:
        return Skipped() if split_id in before.skips else _WITH_ENUMERATOR

    splits = restored.splits.continued(before.splits, place_of)
    return restored if splits is restored.splits else evolve(restored, splits=splits)


def _listed_again(state: SplitsState) -> SplitsState:
    """The state before the end of its listing: readers that have a `NoMoreSplits` wait for another answer."""
    readers = state.readers
    for subtask in sorted(readers):
        reader = readers[subtask]
        if reader.is_completed or not reader.has_no_more:
            continue
        requests = tuple(
            replace(request, answered=None)
            if request.answered == reader.no_more_sequence
            else request
            for request in reader.requests
        )
        if not any(request.answered is None for request in requests):
            again = Request(sequence=state.last_cut, last_barrier=NO_CHECKPOINT)
            requests = (*requests, again)
        waiting = evolve(
            reader, requests=requests, no_more_sequence=None, has_no_more_in_checkpoint=False
        )
        readers = readers.set(subtask, waiting)
    return evolve(state, readers=readers, is_discovery_complete=False)


def apply_listed(state: SplitsState, record: Record, value: Payload | None) -> SplitsState:
    """The state after one more record that counts."""
    if record.kind is Kind.FACT and record.attributes.get("closed") != "true":
        if isinstance(value, SplitsDiscovered):
            return apply_record(_with_latest_content(state, value), record, value)
        if isinstance(value, ListingStarted):
            return state
        if isinstance(value, SplitsWithdrawn):
            return _without_names(state, filter(state.is_unassigned, value.split_ids))
        if isinstance(value, KnownSplitsForgotten):
            return _without_names(state, filter(_is_committed(state), value.split_ids))
    if record.kind is Kind.COMMIT_OUTCOME and isinstance(value, SplitsReleased):
        return _released(state, value)
    if record.kind is Kind.SUBTASK_COMPLETED:
        state = _ended_at(state, record)
    return apply_record(state, record, value)


def _ended_at(state: SplitsState, record: Record) -> SplitsState:
    """The state in which finished splits of a completed subtask have the sequence of this completion.

    The sequence of their assignment is needed no more, because such a subtask is never reset alone.
    """
    subtask, sequence = record.subtask, record.sequence
    assert subtask is not None, "the kind has it"
    assert sequence is not None, "a record that counts has it"
    moved: dict[str, Place] = {}
    for name in state.reader(subtask).splits:
        place = state.splits.place(name)
        if isinstance(place, Finished):
            moved[name] = replace(place, sequence=sequence)
    return evolve(state, splits=state.splits.moved(moved)) if moved else state


def _with_latest_content(state: SplitsState, value: SplitsDiscovered) -> SplitsState:
    """The state with the content of the latest listing for splits that no reader has had."""
    changed = [
        split
        for split in value.splits
        if state.is_unassigned(split.split_id) and state.splits[split.split_id].split != split
    ]
    return evolve(state, splits=state.splits.replaced(changed)) if changed else state


def _lasting(before: bytes | None, restored: bytes | None) -> bytes | None:
    """The enumerator's restored state, with the part of its later state that no reset undoes."""
    if before is None or not before.startswith(LASTING):
        return restored
    later = cast("LastingState", _LASTING.decode(before.removeprefix(LASTING)))
    content = restored
    if restored is not None and restored.startswith(LASTING):
        content = cast("LastingState", _LASTING.decode(restored.removeprefix(LASTING))).content
    return LASTING + _LASTING.encode(LastingState(lasting=later.lasting, content=content))


def _forgotten_since(then: SplitTable, now: SplitTable) -> list[str]:
    """Ids of splits that readers had then, or had read, and that are not known now, or were discovered later."""
    if not now.has_gaps:
        return []
    return [
        name
        for name, ordinal in ((then.name_at(n), n) for n in then.live())
        if isinstance(then.place_at(ordinal), (Assigned, Finished))
        and (name not in now or now.ordinal(name) > ordinal)
    ]


def _is_committed(state: SplitsState) -> Callable[[str], bool]:
    """Whether a split is known and no failover can undo its end."""

    def is_committed(name: str) -> bool:
        place = state.splits.place(name) if name in state.splits else None
        return isinstance(place, Finished) and place.sequence < 0

    return is_committed


def _released(state: SplitsState, value: SplitsReleased) -> SplitsState:
    """The state without the released splits.

    A rollback may have put them back to where they were at the cut of the checkpoint that has their rows: assigned, or
    finished without a record that no failover undoes it.
    """
    splits = state.splits
    names = (name for name in value.split_ids if name in splits and not state.is_unassigned(name))
    return _without_names(
        state, [name for name in names if splits.ordinal(name) < value.discovered_below]
    )


def _without_names(state: SplitsState, names: Iterable[str]) -> SplitsState:
    """The state with gaps in place of these splits, which are known."""
    gone = dict.fromkeys(names)
    if not gone:
        return state
    readers = state.readers
    for subtask in sorted(readers):
        reader = readers[subtask]
        kept = tuple(name for name in reader.splits if name not in gone)
        if len(kept) < len(reader.splits):
            readers = readers.set(subtask, evolve(reader, splits=kept))
    passed_over = state.passed_over
    for name in gone:
        ordinal = state.splits.ordinal(name)
        passed_over = passed_over.delete(ordinal) if ordinal in passed_over else passed_over
    return evolve(
        state,
        splits=state.splits.forgetting(list(gone)),
        readers=readers,
        passed_over=passed_over,
    )
