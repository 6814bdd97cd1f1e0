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

from coordlog.projections.job import JobProjection
from coordlog.projections.snapshots import SnapshotCodec
from coordlog.projections.splits import SplitsState
from coordlog.projections.state import JobState
from coordlog.projections.state_codec import DerivedCodec
from coordlog.schemas.payload import PayloadTypes
from kernel_fakes import HANDLED
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
    return st.builds(made, **{name: values_of(hints[name]) for name in names})


@st.composite
def job_states(draw: st.DrawFn) -> JobState:
    """Most are of no job's; the projections are those of one operator."""
    hints = typing.get_type_hints(JobState)
    names = draw(
        st.sets(st.sampled_from([f.name for f in dataclasses.fields(JobState)]), max_size=5)
    )
    ours = {"projections", "opening"}
    fields = {name: draw(values_of(hints[name])) for name in sorted(names - ours)}
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
@settings(max_examples=300, deadline=None)
@given(job_states())
def test_any_job_state_is_decoded_as_it_was_encoded(state: JobState) -> None:
    codec = SnapshotCodec(JobProjection(PayloadTypes(()), {"source": HANDLED}))
    assert codec.encode(shuffled(state)) == codec.encode(state)
    # What the types say of payload types is the job's, which declares none.
    found = codec.decode(codec.encode(dataclasses.replace(state, types=Map()))).state
    assert found == dataclasses.replace(state, types=Map())
    assert digest(found) == digest(dataclasses.replace(state, types=Map()))


@pytest.mark.slow
@pytest.mark.clause("K3")
@settings(max_examples=300, deadline=None)
@given(values_of(SplitsState))
def test_any_state_of_a_source_is_decoded_as_it_was_encoded(state: SplitsState) -> None:
    codec = DerivedCodec(SplitsState)
    assert codec.encode(shuffled(state)) == codec.encode(state)
    assert codec.decode(codec.encode(state)) == state


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_bytes_that_are_no_state_are_refused_or_are_one(data: bytes) -> None:
    codec = DerivedCodec(SplitsState)
    try:
        found = codec.decode(data)
    except ValueError:
        return
    assert isinstance(found, SplitsState)


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
