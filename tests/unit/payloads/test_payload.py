"""Payload types: names, versions, schemas, values (clauses B6, E9), and the golden file of each builtin schema."""

from __future__ import annotations

import decimal
import enum
import json
from pathlib import Path
from typing import Any

import pytest
from dataclasses_avroschema import AvroModel

import coordlog
from coordlog.errors import PayloadTypeError
from coordlog.schemas import builtin_types as builtin
from coordlog.schemas import reads, source_types
from coordlog.schemas.codec import ENVELOPE_FINGERPRINT
from coordlog.schemas.payload import (
    Payload,
    PayloadRole,
    PayloadTypes,
    event,
    payload,
    payload_type_of,
)
from histories.payload_samples import Colour, Inner, Outer, OuterSecond, another_inner

GOLDEN = Path(__file__).parents[2] / "golden"

VALUE = Outer(
    inner=Inner(name="a", size=1),
    many=[Inner(name="b"), Inner(name="c", size=-3)],
    by_name={"x": 1},
    colour=Colour.BLUE,
    maybe=None,
    content=b"\x00\x01",
    share=0.25,
    is_on=False,
)


def test_a_nested_value_comes_back_as_it_was() -> None:
    declared = payload_type_of(Outer)
    again = declared.decode(declared.encode(VALUE))

    assert again == VALUE
    assert isinstance(again, Outer)
    assert isinstance(again.many[1], Inner)
    assert again.colour is Colour.BLUE


def test_an_optional_value_comes_back_as_its_class() -> None:
    declared = payload_type_of(Outer)
    value = Outer(
        inner=Inner(name=""), many=[], by_name={}, colour=Colour.RED, maybe=Inner(name="m")
    )

    assert declared.decode(declared.encode(value)) == value


class Bare(AvroModel):
    """A model of the user's own, which is no payload; its annotations are strings, as in each module here."""

    x: int


def test_a_nested_class_without_a_schema_is_refused_with_the_next_step() -> None:
    with pytest.raises(PayloadTypeError, match=r"sample.bare: .*field x.* with `@payload\(.* too"):

        @event("sample.bare", version=1)
        class Nesting(Payload):
            inner: Bare


def test_the_decorator_of_nested_classes_is_imported_as_those_of_events() -> None:
    assert coordlog.payload is payload


class Level(enum.Enum):
    """An enum whose values are numbers: Avro has texts alone."""

    LOW = 1


@pytest.mark.parametrize(
    ("field", "advice"),
    [
        (decimal.Decimal, "max_digits.*condecimal"),
        (decimal.Decimal | None, "max_digits.*condecimal"),
        (Level, "Symbol 1 .*member of an enum"),
        (dict[int, str], "field value.*dict\\[str"),
    ],
)
def test_a_field_without_a_schema_is_refused_with_what_to_write(field: object, advice: str) -> None:
    with pytest.raises(PayloadTypeError, match=f"sample.field: .*{advice}"):
        event("sample.field", version=1)(
            type("Field", (Payload,), {"__annotations__": {"value": field}})
        )


def test_a_payload_is_frozen_and_keyword_only() -> None:
    with pytest.raises(AttributeError):
        VALUE.share = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        Inner("a")  # type: ignore[call-arg]


def test_name_and_version_are_what_records_say() -> None:
    first, second = payload_type_of(Outer), payload_type_of(OuterSecond)

    assert (first.key, second.key) == ("sample.outer@1", "sample.outer@2")
    assert first.role is PayloadRole.EVENT
    assert first.fingerprint != second.fingerprint


@pytest.mark.parametrize("name", ["", "Rules", "rules update", "1rules", "rules.", ".rules", "a-b"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(PayloadTypeError, match="lower-case words"):
        event(name, version=1)


def test_a_version_below_one_is_refused() -> None:
    with pytest.raises(PayloadTypeError, match="version is 0"):
        event("rules.update", version=0)


def test_a_class_that_is_no_payload_is_refused() -> None:
    with pytest.raises(PayloadTypeError, match="must inherit"):
        event("rules.update", version=1)(object)  # type: ignore[type-var]


@pytest.mark.parametrize("value", [None, {"n": 1}, 5])
def test_an_object_that_is_no_payload_is_reported_as_that(value: Any) -> None:  # noqa: ANN401, wrong on purpose
    """Mostly a `return` is missing: no declaration would help."""
    with pytest.raises(PayloadTypeError, match=f"{type(value).__name__}: it is no payload: return"):
        payload_type_of(value)


@pytest.mark.clause("B6")
def test_a_class_needs_its_own_name_and_a_subclass_inherits_none() -> None:
    class Nameless(Inner):
        pass

    with pytest.raises(PayloadTypeError, match="it has no name"):
        payload_type_of(Nameless)
    with pytest.raises(PayloadTypeError, match="it has no name"):
        payload_type_of(Payload)


def test_two_classes_of_one_name_are_refused_and_one_class_twice_is_not() -> None:
    with pytest.raises(PayloadTypeError, match="declared twice"):
        PayloadTypes([Inner, another_inner()])

    assert [one.key for one in PayloadTypes([Outer, Inner, Inner, OuterSecond])] == [
        "sample.inner@1",
        "sample.outer@1",
        "sample.outer@2",
    ]


@pytest.mark.clause("B6")
def test_a_type_that_the_job_does_not_have_is_refused() -> None:
    types = PayloadTypes([Inner])
    assert "sample.inner@1" in types
    for ask in (
        lambda: types.of(VALUE),
        lambda: types.by_key("sample.outer@1"),
        lambda: types.decode("sample.outer@1", b""),
        lambda: types.decode(None, b""),
    ):
        with pytest.raises(PayloadTypeError):
            ask()


def test_a_value_that_does_not_fit_its_schema_is_refused_by_name() -> None:
    with pytest.raises(PayloadTypeError, match=r"sample.inner@1: .* does not fit its schema"):
        payload_type_of(Inner).encode(Inner(name=3))  # type: ignore[arg-type]


@pytest.mark.clause("E9")
@pytest.mark.parametrize("data", [b"", b"\x02", b"\x02a\x02\x00", b"\xff" * 20])
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"left over|not a value"):
        payload_type_of(Inner).decode(data)


def builtin_schemas() -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for module in (builtin, reads, source_types, source_types):
        for name in module.__all__:
            one = getattr(module, name)
            if isinstance(one, type) and issubclass(one, Payload):
                declared = payload_type_of(one)
                found[declared.key] = {
                    "fingerprint": f"{declared.fingerprint:016x}",
                    "schema": json.loads(declared.schema_json),
                }
    return dict(sorted(found.items()))


@pytest.mark.clause("E9")
def test_the_builtin_schemas_are_those_that_were_released() -> None:
    """A change here is a new version of the type: what was written under the old one must stay readable."""
    golden = json.loads((GOLDEN / "builtin-schemas.json").read_text(encoding="utf-8"))

    assert builtin_schemas() == golden["types"]


def test_a_payload_whose_field_types_cannot_be_found_is_refused_by_name() -> None:
    class Lost(Payload):
        what: Missing  # type: ignore[name-defined]  # noqa: F821, the case

    with pytest.raises(PayloadTypeError, match=r"sample.lost: .*'Missing'.* import the types"):
        event("sample.lost", version=1)(Lost)


@pytest.mark.clause("E9")
def test_the_envelope_is_the_one_that_was_released() -> None:
    golden = json.loads((GOLDEN / "builtin-schemas.json").read_text(encoding="utf-8"))

    assert f"{ENVELOPE_FINGERPRINT:016x}" == golden["envelope"]
