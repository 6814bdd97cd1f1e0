"""A column of a frame goes into a table if no value of its type could become another one."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

from coordlog.errors import SinkError
from coordlog.spark_integration.batches.tables.frame_types import check_frame, is_always_exact

LONG, INT, DOUBLE = t.LongType(), t.IntegerType(), t.DoubleType()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (INT, LONG),
        (INT, DOUBLE),
        (t.ShortType(), t.FloatType()),
        (t.FloatType(), DOUBLE),
        (LONG, t.DecimalType(19, 0)),
        (INT, t.DecimalType(12, 2)),
        (t.DecimalType(10, 2), t.DecimalType(12, 3)),
        (t.NullType(), t.StringType()),
        (t.ArrayType(INT), t.ArrayType(LONG)),
        (t.StructType([t.StructField("a", INT)]), t.StructType([t.StructField("a", LONG)])),
        (t.MapType(t.StringType(), INT), t.MapType(t.StringType(), LONG)),
    ],
)
def test_a_wider_type_is_taken_and_never_the_other_way(
    source: t.DataType, target: t.DataType
) -> None:
    assert is_always_exact(source, target)
    assert is_always_exact(source, source)
    assert not is_always_exact(target, source)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (LONG, DOUBLE),
        (INT, t.FloatType()),
        (DOUBLE, LONG),
        (t.TimestampType(), t.TimestampNTZType()),
        (t.TimestampNTZType(), t.TimestampType()),
        (t.DateType(), t.TimestampType()),
        (t.TimestampType(), t.DateType()),
        (t.DecimalType(10, 3), t.DecimalType(10, 2)),
        (t.DecimalType(10, 2), t.DecimalType(10, 3)),
        (t.StringType(), LONG),
        (LONG, t.StringType()),
        (LONG, t.DecimalType(18, 0)),
        (t.BooleanType(), INT),
    ],
)
def test_what_spark_would_round_cut_or_guess_is_not(source: t.DataType, target: t.DataType) -> None:
    assert not is_always_exact(source, target)


def test_each_column_that_does_not_fit_is_named() -> None:
    frame = t.StructType([t.StructField("a", DOUBLE), t.StructField("b", INT)])
    table = t.StructType([t.StructField("b", LONG), t.StructField("a", LONG)])

    with pytest.raises(SinkError, match="column 'a' is double and in the table bigint;") as caught:
        check_frame("iceberg shop.orders", frame, table)
    assert "'b'" not in caught.value.problem
    with pytest.raises(SinkError, match="column 'A' is double"):
        check_frame("iceberg shop.orders", t.StructType([t.StructField("A", DOUBLE)]), table)
    check_frame("iceberg shop.orders", t.StructType([t.StructField("b", INT)]), table)


def test_names_that_differ_only_in_case_may_be_two_columns() -> None:
    table = t.StructType([t.StructField("a", INT), t.StructField("A", DOUBLE)])
    check_frame("iceberg shop.orders", table, table)
    with pytest.raises(SinkError, match="column 'a' is double and in the table int"):
        check_frame("iceberg shop.orders", t.StructType([t.StructField("a", DOUBLE)]), table)
