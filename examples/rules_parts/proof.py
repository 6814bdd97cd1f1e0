"""Checks that no rule and no row was lost or doubled: by the topic, the last checkpoint, and the output."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, cast

import pyarrow.parquet as pq

from coordlog.schemas.builtin_types import CheckpointMetadata, OperatorState

from .account import Account
from .coordinator import OPERATOR_ID, RulesState
from .operator import NO_RULE, RuleInForce

__all__ = ["Found", "OutputRow", "amount_of", "find", "lost_rules", "problems", "read_output"]


class OutputRow(TypedDict):
    """A committed row."""

    id: int
    amount: int
    subtask: int
    nth: int
    rule: int
    price: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The final state, from three independent sources."""

    coordinator: RulesState
    """State from the last checkpoint's bytes, and the events that were in flight at its cut."""
    operators: Mapping[int, RuleInForce]
    """States by subtask, from the last checkpoint's snapshots."""
    rows: Sequence[OutputRow]
    """Rows of the files, in the order in which the files were committed."""


def amount_of(row_id: int) -> int:
    """Amount of an input row."""
    return row_id * 7919 % 1000 + 1


def find(account: Account, output: Path) -> Found:
    """The final state. Raises ValueError if no checkpoint has completed."""
    metadata = account.last_checkpoint
    if metadata is None:
        raise ValueError("no checkpoint has completed")
    return Found(
        coordinator=_coordinator_state(account, metadata),
        operators={
            **{part.subtask: _operator_state(part.states) for part in metadata.subtasks},
            **{part.subtask: _operator_state(part.states) for part in metadata.finished},
        },
        rows=list(read_output(output, account.published)),
    )


def read_output(output: Path, names: Sequence[str]) -> Iterator[OutputRow]:
    """The rows of these files, in order."""
    for name in names:
        yield from cast("list[OutputRow]", pq.read_table(output / name).to_pylist())


def lost_rules(account: Account, found: Found) -> list[tuple[int, int]]:
    """Subtask and number of each rule that should be in force on the surviving branch and is not.

    Includes events that were neither acked nor failed.
    """
    lost = [
        (account.sent[event_id].subtask, account.sent[event_id].rule.number)
        for event_id in account.undecided
    ]
    for subtask in sorted(found.operators):
        handled = {sent.rule.number for sent in account.handled.get(subtask, [])}
        expected = range(1, _last(found, subtask) + 1)
        lost += [(subtask, number) for number in expected if number not in handled]
    return lost


def problems(account: Account, found: Found, *, parallelism: int, row_count: int) -> list[str]:
    """Errors of the final state, a line each."""
    wrong = [
        f"{path} was committed twice"
        for path, group in itertools.groupby(sorted(account.published))
        if len(list(group)) > 1
    ]
    for subtask in range(parallelism):
        wrong += [f"subtask {subtask}: {line}" for line in _rules(account, found, subtask)]
        wrong += [f"subtask {subtask}: {line}" for line in _rows(found, subtask)]
    ids = sorted(row["id"] for row in found.rows)
    if ids != list(range(row_count)):
        wrong.append(
            f"{len(ids)} rows committed, {len(set(ids))} of them different; {row_count} were read"
        )
    if lost := lost_rules(account, found):
        wrong.append(f"lost: subtask and rule {lost[:10]}")
    return wrong


def _rules(account: Account, found: Found, subtask: int) -> Iterator[str]:
    """Errors of the events in both directions: they must be 1, 2, 3 … up to the operator's rule in force."""
    last = _last(found, subtask)
    view = found.coordinator.view(subtask)
    expected = list(range(1, last + 1))
    handled = [sent.rule.number for sent in account.handled.get(subtask, [])]
    if handled != expected:
        yield f"handled rules {_first_gap(handled)}, expected 1 to {last}"
    factors = [sent.rule.factor for sent in account.handled.get(subtask, [])]
    if factors != found.coordinator.factors[: len(factors)]:
        yield "a rule that it handled differs from the coordinator's rule of that number"
    heard = [word.event.number for word in account.heard.get(subtask, [])]  # type: ignore[attr-defined]
    if heard != [*expected, last]:
        yield f"the coordinator heard {_first_gap(heard)}, expected 1 to {last}, and {last} again"
    if view.applied != last:
        yield f"the coordinator has rule {view.applied} as in force; the operator's is {last}"
    if view.rows != found.operators.get(subtask, NO_RULE).rows:
        yield f"the coordinator has {view.rows} reported rows"


def _rows(found: Found, subtask: int) -> Iterator[str]:
    """Errors of the rows in committed order: numbered without a gap, never an older rule, priced by that rule."""
    rows = [row for row in found.rows if row["subtask"] == subtask]
    nth = [row["nth"] for row in rows]
    if nth != list(range(1, found.operators.get(subtask, NO_RULE).rows + 1)):
        yield f"rows are not counted 1, 2, 3 …: {_first_gap(nth)}"
    rules = [row["rule"] for row in rows]
    if rules != sorted(rules):
        yield "a row has an older rule than the row before"
    if rules and rules[-1] > _last(found, subtask):
        yield f"a row has rule {rules[-1]}, which was not in force"
        return
    factors = [1, *found.coordinator.factors]
    for row in rows:
        expected = amount_of(row["id"]) * factors[row["rule"]]
        if (row["amount"], row["price"]) != (amount_of(row["id"]), expected):
            yield f"row {row['id']} has price {row['price']} by rule {row['rule']}, not {expected}"
            return


def _last(found: Found, subtask: int) -> int:
    return found.operators.get(subtask, NO_RULE).number


def _first_gap(numbers: Sequence[int]) -> str:
    for place, number in enumerate(numbers, start=1):
        if number != place:
            return f"{number} in place {place} of {len(numbers)}"
    return f"1 to {len(numbers)}"


def _coordinator_state(account: Account, metadata: CheckpointMetadata) -> RulesState:
    """The state at the cut, and the events that a restore of this checkpoint would redeliver."""
    cut = next(cut for cut in metadata.coordinators if cut.operator_id == OPERATOR_ID)
    assert cut.state is not None, "the rules' coordinator has a state"
    state = RulesState.from_bytes(cut.state)
    for sequence in metadata.in_flight_events:
        word = account.words.get(sequence)
        if word is not None:  # else another operator's
            state.view(word.subtask).hear(word.event)
    return state


def _operator_state(states: Sequence[OperatorState]) -> RuleInForce:
    for operator in states:
        if operator.operator_id == OPERATOR_ID and operator.state is not None:
            return RuleInForce.from_bytes(operator.state)
    return NO_RULE
