"""Codec of states, by an Avro schema that is derived from the type of a state."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from coordlog.projections.operators.state_evolution import check_readable
from coordlog.schemas.codec import Avro, avro_fingerprint
from coordlog.schemas.derived_schema import Derivation
from coordlog.schemas.untrusted_schema import foreign_avro

__all__ = ["DerivedCodec"]

S = TypeVar("S")


class DerivedCodec(Generic[S]):
    """The `StateCodec` of a type of states, derived from its annotations, with which the states must comply.

    Args:
        state_type: Type of the states, such as a frozen dataclass or `tuple[int, ...]`. Keys of maps
            must be sortable.
        any_as: Type to use in place of the annotation `Any`.

    Raises:
        TypeError: The type holds an unsupported annotation, such as `Any`; the message has the place.
    """

    __slots__ = ("_avro", "_optional", "_shape", "fingerprint", "is_changeable")

    def __init__(self, state_type: type[S], *, any_as: object = None) -> None:
        derived = Derivation(any_as)
        self._shape = derived.shape(state_type, "State")
        self._optional = derived.optional
        schema = {
            "type": "record",
            "name": "Encoded",
            "fields": [{"name": "state", "type": self._shape.schema}],
        }
        text = json.dumps(schema, separators=(",", ":"))
        self._avro = Avro(text)
        self.fingerprint: str = f"{avro_fingerprint(text):016x}"
        """Hash of the schema: bytes of another schema are not decoded."""
        self.is_changeable = derived.is_changeable
        """Whether states hold lists, dicts or dataclasses that are not frozen: `apply` could change them in place."""

    @property
    def schema_json(self) -> str:
        """The derived Avro schema."""
        return self._avro.schema_json

    def encode(self, state: S) -> bytes:
        """The state's bytes. Raises ValueError, TypeError or AttributeError if it is not of its type."""
        return self._avro.encode({"state": self._shape.write(state)})

    def decode(self, data: bytes) -> S:
        """The state in `data`. Raises ValueError if the bytes are no state."""
        try:
            return cast("S", self._shape.read(self._avro.decode(data)["state"]))
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a state of this type: {error!r}") from error

    def reader_of(self, schema_json: str) -> Callable[[bytes], S]:
        """A decoder of states that an earlier schema of this type has encoded.

        An added field has its default; a removed field is left out. All else must be equal.

        Raises:
            ValueError: The schemas are incompatible; the message has the place.
        """
        avro = foreign_avro(schema_json)
        check_readable(json.loads(schema_json), json.loads(self.schema_json), self._optional)

        def read(data: bytes) -> S:
            try:
                return cast("S", self._shape.read(avro.decode(data)["state"]))
            except (TypeError, KeyError) as error:
                raise ValueError(f"not a state of this type: {error!r}") from error

        return read
