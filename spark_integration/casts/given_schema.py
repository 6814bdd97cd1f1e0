"""Schemas of users: pyarrow's, Spark's `StructType`, or a DDL string such as `id bigint, name string`."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from coordlog.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["arrow_schema_of"]

_EXPECTED: Final = (
    "a pyarrow schema, a StructType of Spark, or a DDL string such as 'id bigint, name string'"
)
_TYPES: Final = {
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "date": pa.date32(),
    "double": pa.float64(),
    "float": pa.float32(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "real": pa.float32(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "tinyint": pa.int8(),
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\w+|[<>(),:])")
_DEPTH_MAX: Final = 32


def arrow_schema_of(option: str, schema: pa.Schema | StructType | str | None) -> pa.Schema | None:
    """The schema in pyarrow's form; None if none is set.

    Raises:
        OptionError: It is no schema, has no column, or one twice; the message has the place.
    """
    if schema is None:
        return None
    converted = _converted(option, schema)
    names = converted.names
    if not names or len(set(names)) < len(names):
        raise OptionError(option, str(converted), "of at least one column, each named once")
    return converted


def _converted(option: str, schema: pa.Schema | StructType | str) -> pa.Schema:
    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, str):
        try:
            return pa.schema(_Ddl(schema).columns())
        except ValueError as error:
            raise OptionError(option, schema, f"{_EXPECTED} ({error})") from error
    if type(schema).__module__.startswith("pyspark."):
        from pyspark.errors import PySparkException  # noqa: PLC0415, takes a second
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415, as above
        from pyspark.sql.types import StructType  # noqa: PLC0415, as above

        if isinstance(schema, StructType):
            is_told = "timezone" in inspect.signature(to_arrow_schema).parameters
            try:
                if is_told:
                    return to_arrow_schema(schema, timezone="UTC")  # type: ignore[call-arg]
                return to_arrow_schema(schema)
            except PySparkException as error:
                raise OptionError(
                    option, schema.simpleString(), f"{_EXPECTED} ({error})"
                ) from error
    raise OptionError(option, schema, _EXPECTED)


class _Ddl:
    """One DDL string, read from its beginning."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        place = 0
        while text[place:].strip():
            token = _TOKEN.match(text, place)
            if token is None:
                raise ValueError(f"it cannot be read at {text[place:].strip()[:20]!r}")
            self._tokens.append(token[1])
            place = token.end()

    def columns(self) -> list[pa.Field]:
        """Parse all columns.

        Raises:
            ValueError: It is no DDL string, or has a column twice.
        """
        fields = [self._field(0)]
        while self._tokens:
            self._take(",")
            fields.append(self._field(0))
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise ValueError(f"a column is listed twice in {', '.join(names)}")
        return fields

    def _field(self, depth: int) -> pa.Field:
        name = self._next("a name")
        if not re.fullmatch(r"\w+|`.*`", name, re.DOTALL):
            raise ValueError(f"{name!r} is no name")
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        if self._is_next(":"):
            self._take(":")
        kind = self._type(depth)
        is_nullable = not self._is_next("not")
        if not is_nullable:
            self._take("not")
            self._take("null")
        if self._is_next("comment"):
            self._take("comment")
            self._next("a comment")
        return pa.field(name, kind, nullable=is_nullable)

    def _type(self, depth: int) -> pa.DataType:
        if depth > _DEPTH_MAX:
            raise ValueError(f"it is nested more than {_DEPTH_MAX} deep")
        name = self._next("a type").lower()
        if name in _DECIMALS:
            precision, scale = self._numbers((10, 0))
            return pa.decimal128(precision, scale)
        if name == "array":
            self._take("<")
            item = self._type(depth + 1)
            self._take(">")
            return pa.list_(item)
        if name == "map":
            self._take("<")
            key = self._type(depth + 1)
            self._take(",")
            value = self._type(depth + 1)
            self._take(">")
            return pa.map_(key, value)
        if name == "struct":
            self._take("<")
            fields = [self._field(depth + 1)]
            while self._is_next(","):
                self._take(",")
                fields.append(self._field(depth + 1))
            self._take(">")
            return pa.struct(fields)
        if name not in _TYPES:
            raise ValueError(f"{name!r} is no type")
        return _TYPES[name]

    def _numbers(self, default: tuple[int, int]) -> tuple[int, int]:
        """Precision and scale in parentheses."""
        if not self._is_next("("):
            return default
        self._take("(")
        precision, scale = int(self._next("a number")), 0
        if self._is_next(","):
            self._take(",")
            scale = int(self._next("a number"))
        self._take(")")
        return precision, scale

    def _is_next(self, token: str) -> bool:
        return bool(self._tokens) and self._tokens[0].lower() == token

    def _take(self, token: str) -> None:
        following = self._next(repr(token))
        if following.lower() != token:
            raise ValueError(f"{token!r} is expected, and {following!r} is there")

    def _next(self, expected: str) -> str:
        if not self._tokens:
            raise ValueError(f"it ends, and {expected} is expected")
        return self._tokens.pop(0)
