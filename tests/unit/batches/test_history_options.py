"""Options of Spark's Kafka source that a history refuses, or sets, before Spark is asked anything."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordlog.errors import OptionError
from coordlog.spark_integration.history_frames.frames import (
    _Source,
    create_views,
    history,
    history_stream,
)

NO_SPARK = cast("Any", None)


@pytest.mark.parametrize("reads", [history, history_stream, create_views])
@pytest.mark.parametrize(
    ("name", "value"), [("failOnDataLoss", "false"), ("FAILONDATALOSS", "False")]
)
def test_a_history_that_passes_over_lost_records_is_refused(
    reads: Callable[..., object], name: str, value: str
) -> None:
    options = {name: value}
    with pytest.raises(OptionError, match=rf"{name}.*new checkpointLocation"):
        reads(NO_SPARK, "j", bootstrap_servers="127.0.0.1:1", kafka_options=options)


@pytest.mark.parametrize(
    ("given", "used"),
    [({}, ["10000"]), ({"maxoffsetspertrigger": "70"}, ["70"])],
)
def test_a_micro_batch_is_small_enough_for_one_value_of_arrow(
    given: dict[str, str], used: list[str]
) -> None:
    """A record takes up to three times its size in it: its payload stands beside it, in hexadecimal."""
    asked: dict[str, str] = {}

    class Reader:
        """Takes the options, and reads nothing."""

        def format(self, _source: str) -> Reader:
            return self

        def options(self, **options: str) -> Reader:
            asked.update(options)
            return self

        def load(self) -> None:
            raise InterruptedError

    spark = cast("Any", SimpleNamespace(readStream=Reader()))
    with pytest.raises(InterruptedError):
        _Source(spark, "j", "127.0.0.1:1", "", None, given).load(is_stream=True)
    assert [asked[one] for one in asked if one.lower() == "maxoffsetspertrigger"] == used
