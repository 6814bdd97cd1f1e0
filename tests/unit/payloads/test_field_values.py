"""Values of payload fields: what a reader gets is what was sent, or the value is refused where it is encoded."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from dataclasses_avroschema import AvroModel, types

from coordlog.errors import PayloadTypeError
from coordlog.schemas.payload import Payload, event, payload, payload_type_of

UTC = dt.UTC
NOON = dt.datetime(2026, 1, 31, 12, tzinfo=UTC)
CUT = NOON.replace(microsecond=123_456)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Word(str, enum.Enum):  # noqa: UP042, such classes are older than StrEnum
    FIRST = "the first"


@payload("test.circle", version=1)
class Circle(Payload):
    size: float


@payload("test.square", version=1)
class Square(Payload):
    size: float


# A model that is no payload; made so because its library refuses annotations that are strings.
Point: Any = dataclasses.make_dataclass(
    "Point",
    [
        ("x", int),
        ("born", dt.date, dataclasses.field(default=dt.date(1950, 1, 1))),
        ("of", Circle | None, dataclasses.field(default=None)),
    ],
    bases=(AvroModel,),
)


def type_of(hint: Any, *default: object) -> type[Payload]:  # noqa: ANN401, an annotation
    namespace: dict[str, Any] = {"__annotations__": {"field": hint}, "__module__": __name__}
    if default:
        namespace["field"] = default[0]
    return event("test.value", version=1)(type("Value", (Payload,), namespace))


def read_back(hint: Any, value: object, *default: object) -> object:  # noqa: ANN401, an annotation
    cls = type_of(hint, *default)
    declared = payload_type_of(cls)
    return vars(declared.decode(declared.encode(cls(field=value))))["field"]  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("hint", "value", "reason"),
    [
        (int, 1.5, "is no integer"),
        (int, 2.0, "is no integer"),
        (int, None, "is no integer"),
        (float, "1", "is no number"),
        (float, True, "is no number"),
        (float, 2**53 + 1, "would be rounded to 9007199254740992.0"),
        (types.Float32, 0.1, "would be rounded to 0.10000000149011612"),
        (types.Float32, 2**24 + 1, "would be rounded to 16777216.0"),
        (types.Float32, 1e39, "is beyond the largest float of 32 bits: declare the field as float"),
        (list[types.Float32 | None], [0.1], "would be rounded"),
        (types.Int32, 2**31, "is no integer of 32 bits: declare the field as int"),
        (types.Int32 | None, -(2**31) - 1, "is no integer of 32 bits"),
        (bool, None, "is neither True nor False"),
        (bool, "no", "is neither True nor False"),
        (bytes, "text", "is no bytes"),
        (list[int], [1, 1.5], "is no integer"),
        (list[str], "text", "is no list"),
        (list[str], iter(["once"]), "is no list"),
        (dict[str, int], {1: 1}, "is no text"),
        (dict[str, int], {"a": 1.5}, "is no integer"),
        (int | None, 1.5, "is no integer"),
        (dt.date, NOON, "is no date"),
        (dt.datetime, CUT, "types.DateTimeMicro"),
        (dt.datetime, NOON.replace(tzinfo=None), "has no zone"),
        (dt.datetime | None, CUT, "has microseconds"),
        (types.DateTimeMicro, CUT.replace(tzinfo=None), "has no zone"),
        (types.LocalDateTime, NOON, "has a zone"),
        (dt.time, dt.time(12, 0, 0, 1), "types.TimeMicro"),
        (dt.time, dt.time(12, tzinfo=UTC), "has a zone"),
        (dt.timedelta, dt.timedelta.max, "does not fit"),
        (Circle, Square(size=1.0), "is no Circle"),
        (list[Circle], [Square(size=1.0)], "is no Circle"),
        (Point, {"x": 1.5}, "is no integer"),
        (list[Circle], [{"size": 1.0, "colour": "red"}], "colour"),
        (Colour, "green", "is not a valid Colour"),
        (uuid.UUID, "text", "is no UUID"),
        (list[uuid.UUID], [5], "is no UUID"),
    ],
)
def test_a_value_that_would_be_read_as_another_is_refused(
    hint: object, value: object, reason: str
) -> None:
    with pytest.raises(PayloadTypeError, match=reason):
        read_back(hint, value)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, -(2**63)),
        (int, np.int64(5)),
        (float, 3),
        (float, 2**60),
        (float, math.inf),
        (float, np.float32(0.1)),
        (types.Float32, np.float32(0.1)),
        (types.Float32, -math.inf),
        (types.Float32, 2**24),
        (types.Int32, -(2**31)),
        (types.Int32 | None, None),
        (bool, np.bool_(True)),  # noqa: FBT003, a value
        (str, Word.FIRST),
        (bytes, bytearray(b"\xff")),
        (dict[str, int], {Word.FIRST: 1}),
        (Point, Point(x=1, of=Circle(size=-0.5))),
        (Point | None, Point(x=1)),
        (list[Point], [Point(x=1, born=dt.date(1969, 12, 31)), Point(x=2)]),
        (dict[str, Point | None], {"a": Point(x=1), "b": None}),
        (dict[str, list[Circle]], {"a": [Circle(size=1.0)]}),
        (list[int | None], [1, None]),
        (Sequence[Circle], [Circle(size=1.0)]),
        (Sequence[Colour] | None, [Colour.RED]),
        (Mapping[str, Circle], {"a": Circle(size=1.0)}),
        (tuple[int, ...], (1, 2)),
        (float | int, 2**53 + 1),
        (int | float, 0.5),
        (int | str, "1"),
        (str | dt.datetime, NOON),
        (dt.datetime | dt.date, NOON),
        (int | dt.datetime, 5),
        (str | uuid.UUID, "text"),
        (Circle | None, None),
        (Circle | None, Circle(size=2.0)),
        (Colour, Colour.RED),
        (dt.datetime, NOON),
        (dt.datetime, NOON.astimezone(dt.timezone(dt.timedelta(hours=-3)))),
        (types.DateTimeMicro, CUT),
        (types.LocalDateTimeMicro, CUT.replace(tzinfo=None)),
        (types.TimeMicro, dt.time(23, 59, 59, 999_999)),
        (dt.timedelta, dt.timedelta(days=-1, microseconds=1)),
    ],
)
def test_a_value_is_read_back_as_it_was(hint: object, value: object) -> None:
    assert read_back(hint, value) == value


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Circle | Square, Square(size=1.0)),
        (Circle | int, Circle(size=1.0)),
        (Colour | str, Colour.RED),
        (dt.date | dt.datetime | None, NOON),
        (dt.date | types.DateTimeMicro, NOON),
        (types.LocalDateTime | dt.datetime, NOON),
        (dt.datetime | int, 5),
        (dt.date | int | None, 5),
        (dt.timedelta | float, 1.5),
        (uuid.UUID | str, "text"),
        (list[Circle] | int, [Circle(size=1.0)]),
        (dict[str, Colour | None] | str, {"a": Colour.RED}),
    ],
)
def test_a_value_of_a_union_that_readers_take_for_another_is_refused(
    hint: object, value: object
) -> None:
    with pytest.raises(PayloadTypeError, match="in a union with other types"):
        read_back(hint, value)
    assert read_back(Circle | int, 5) == 5


@pytest.mark.parametrize(
    ("hint", "default", "value"),
    [
        (int, None, None),
        (int, None, 5),
        (Circle, None, None),
        (dt.datetime, None, None),
        (types.DateTimeMicro, None, CUT),
        (uuid.UUID | str, "", "text"),
    ],
)
def test_the_type_of_a_default_is_the_first_of_a_union(
    hint: object, default: object, value: object
) -> None:
    assert read_back(hint, value, default) == value
