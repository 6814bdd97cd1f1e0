"""Whatever a state holds, its bytes give it back, and equal states have equal bytes, whatever made them (clause K3)."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from immutables import Map

from coordlog.limits import PARALLELISM_MAX
from coordlog.projections.job.fold import JobProjection
from coordlog.projections.job.state import JobState
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.projections.snapshot.codec import SnapshotCodec
from coordlog.projections.snapshot.splits_codec import SPLITS, SplitsCodec
from coordlog.projections.splits.fold import SplitsState
from coordlog.projections.splits.table import (
    PAGE_SPLITS,
    Assigned,
    Place,
    SplitTable,
    WithEnumerator,
)
from coordlog.schemas.payload import PayloadTypes
from coordlog.schemas.source_types import Split
from fakes.kernel_fakes import HANDLED
from state_digest import digest

SIMPLE: dict[object, st.SearchStrategy[Any]] = {
    type(None): st.none(),
    None: st.none(),
    Any: st.none(),
    bool: st.booleans(),
    bytes: st.binary(max_size=4),
    float: st.floats(allow_nan=False),
    int: st.integers(-(2**63), 2**63 - 1),
    str: st.text(max_size=4),
}


def values_of(hint: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401, a type
    """Any value of a type: a twin of what derives the schemas."""
    if hint in SIMPLE:
        return SIMPLE[hint]
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(one) for one in inner])
    if origin is tuple and Ellipsis not in inner:
        return st.tuples(*[values_of(one) for one in inner])
    if origin in (tuple, list):
        return st.lists(values_of(inner[0]), max_size=2).map(origin)
    if origin in (Map, Mapping, dict):
        entries = st.dictionaries(values_of(inner[0]), values_of(inner[1]), max_size=2)
        return entries if origin is dict else entries.map(Map)
    if issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    made: Callable[..., Any] = hint
    hints = typing.get_type_hints(hint)
    names = (
        [f.name for f in dataclasses.fields(hint)]
        if dataclasses.is_dataclass(hint)
        else hint._fields
    )
    return st.builds(made, **{name: values_in(name, hints[name]) for name in names})


def values_in(field: str, hint: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401, a type
    """Any value of a field that a codec reads."""
    return st.integers(0, PARALLELISM_MAX) if field == "parallelism" else values_of(hint)


@st.composite
def job_states(draw: st.DrawFn) -> JobState:
    """Most are of no job's; the projections are those of one operator."""
    hints = typing.get_type_hints(JobState)
    names = draw(
        st.sets(st.sampled_from([f.name for f in dataclasses.fields(JobState)]), max_size=5)
    )
    ours = {"projections", "opening"}
    fields = {name: draw(values_in(name, hints[name])) for name in sorted(names - ours)}
    handled = st.lists(SIMPLE[int], max_size=3).map(lambda one: Map({"source": tuple(one)}))
    return JobState(**fields, projections=draw(handled), opening=draw(st.none() | handled))


def shuffled(value: Any) -> Any:  # noqa: ANN401, anything
    """An equal value whose maps have been filled in another order."""
    if isinstance(value, (Map, dict)):
        made = {k: shuffled(value[k]) for k in reversed(list(value))}
        return Map(made) if isinstance(value, Map) else made
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(
            value, **{f.name: shuffled(getattr(value, f.name)) for f in dataclasses.fields(value)}
        )
    return value


@pytest.mark.slow
@pytest.mark.clause("K3")
@settings(max_examples=150, deadline=None)
@given(job_states())
def test_any_job_state_is_decoded_as_it_was_encoded(state: JobState) -> None:
    codec = SnapshotCodec(JobProjection(PayloadTypes(()), {"source": HANDLED}))
    assert codec.encode(shuffled(state)) == codec.encode(state)
    # What the types say of payload types is the job's, which declares none.
    found = codec.decode(codec.encode(dataclasses.replace(state, types=Map()))).state
    assert found == dataclasses.replace(state, types=Map())
    assert digest(found) == digest(dataclasses.replace(state, types=Map()))


@st.composite
def split_states(draw: st.DrawFn) -> list[SplitsState]:
    """Some of one source, as at several cuts: a listing goes on, or another one is made."""
    hints = typing.get_type_hints(SplitsState)
    own = [f.name for f in dataclasses.fields(SplitsState)]
    own = [one for one in own if one not in ("splits", "fresh_from", "passed_over")]
    place = st.one_of([values_of(one) for one in typing.get_args(Place)])
    table, states = SplitTable(), list[SplitsState]()
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            table = table.shortened(draw(st.integers(0, len(table))))
        prefix, count = draw(st.sampled_from("ab")), draw(st.integers(0, 2 * PAGE_SPLITS))
        found = [Split(split_id=f"{prefix}{n}", content=draw(CONTENTS)) for n in range(count)]
        table = table.extended(found, lambda _: WithEnumerator())
        names = list(table)[:: draw(st.integers(1, 300))]
        table = table.moved({name: draw(place) for name in names[:5]})
        fresh_from = draw(st.integers(0, len(table)))
        states.append(
            SplitsState(
                splits=table,
                fresh_from=fresh_from,
                passed_over=Map(dict.fromkeys(table.with_enumerator(fresh_from))),
                **{
                    name: draw(values_of(hints[name]))
                    for name in draw(st.sets(st.sampled_from(own), max_size=3))
                },
            )
        )
    return states


CONTENTS = st.sampled_from([b"", b"one", b"another", bytes(300)])


def encoded(states: list[SplitsState]) -> tuple[list[bytes], bytes]:
    writer = SplitsCodec().writer()
    return [writer.own(one) for one in states], writer.shared()


@pytest.mark.slow
@pytest.mark.clause("K3")
@settings(max_examples=50, deadline=None)
@given(split_states())
def test_the_states_of_a_source_are_decoded_as_they_were_encoded(states: list[SplitsState]) -> None:
    owns, shared = encoded(states)
    reader = SplitsCodec().reader(shared)
    found = [reader.state(one) for one in owns]

    assert found == states
    assert [digest(one) for one in found] == [digest(one) for one in states]
    assert encoded(found) == (owns, shared), "equal states have equal bytes"
    for one in found:
        assert list(one.splits) == [split.split_id for split in one.in_order()]
        assert [one.splits.ordinal(name) for name in one.splits] == list(range(len(one.splits)))


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(split_states(), st.data())
def test_harmed_bytes_of_states_are_refused_or_are_states(
    states: list[SplitsState], data: st.DataObject
) -> None:
    owns, shared = encoded(states)
    harmed = bytearray(data.draw(st.sampled_from([shared, *owns])))
    if harmed:
        harmed[data.draw(st.integers(0, len(harmed) - 1))] ^= data.draw(st.integers(1, 255))
    is_shared = data.draw(st.booleans())
    try:
        reader = SplitsCodec().reader(bytes(harmed) if is_shared else shared)
        found = reader.state(owns[-1] if is_shared else bytes(harmed))
    except ValueError:
        return
    assert isinstance(found, SplitsState)
    assert len(found.splits) == len(set(found.splits))


def test_what_states_of_a_source_have_in_common_is_encoded_once() -> None:
    table = SplitTable().extended(
        [Split(split_id=f"part-{n}", content=bytes([n % 256]) * 50) for n in range(5_000)],
        lambda _: WithEnumerator(),
    )
    first = SplitsState(splits=table)
    second = SplitsState(
        splits=table.moved({"part-17": Assigned(subtask=0, sequence=1)}), last_cut=1
    )
    (_, alone), (_, both) = encoded([first]), encoded([first, second])

    assert len(both) - len(alone) < 2 * PAGE_SPLITS
    writer = SnapshotCodec(JobProjection(PayloadTypes(()), {"source": SPLITS}))
    hashes = {
        writer.state_hash(JobState(projections=Map({"source": one})))
        for one in (first, second, first)
    }
    assert len(hashes) == 2


@dataclasses.dataclass(frozen=True)
class Loop:
    """Holds itself."""

    inner: tuple[Loop, ...]


@dataclasses.dataclass(frozen=True)
class Bare:
    """Says nothing of what it holds."""

    what: Any
    also: int = 0


class Colour(enum.Enum):
    """Not of text."""

    RED = "red"


@pytest.mark.parametrize(
    ("state_type", "why"),
    [
        (Loop, "Loop holds itself"),
        (Bare, "Bare_what is Any"),
        (set, "State is set"),
        (tuple[int | str | None, ...], "State is one of"),
        (object, "State is object"),
    ],
)
def test_a_type_that_is_not_understood_is_refused_with_its_place(state_type: Any, why: str) -> None:  # noqa: ANN401
    with pytest.raises(TypeError, match=why):
        DerivedCodec(state_type)


@pytest.mark.parametrize(
    ("state_type", "state"),
    [
        (tuple[int, ...], [1]),
        (list[int], (1,)),
        (Map[str, int], {"a": 1}),
        (tuple[int, int], (1,)),
        (tuple[int, int], (1, 2, 3)),
        (tuple[int, ...], ("one",)),
        (tuple[int, ...], (2**63,)),
        (Colour, "red"),
        (int, "one"),
        (Bare, None),
    ],
)
def test_a_state_that_is_not_of_its_type_is_not_encoded(state_type: Any, state: Any) -> None:  # noqa: ANN401
    codec = DerivedCodec(state_type, any_as=int)
    with pytest.raises((TypeError, ValueError, AttributeError, OverflowError)):
        codec.encode(state)


def test_values_of_several_classes_are_told_apart() -> None:
    codec: DerivedCodec[tuple[int | str | bool, ...]] = DerivedCodec(tuple[int | str | bool, ...])
    found = codec.decode(codec.encode((1, "1", True, 0, False, "")))

    assert [(type(one), one) for one in found] == [
        (int, 1),
        (str, "1"),
        (bool, True),
        (int, 0),
        (bool, False),
        (str, ""),
    ]
