"""Options of Spark's Kafka source that a history refuses, or sets, before Spark is asked anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from coordlog.errors import OptionError
from coordlog.spark_integration.history_frames import create_views, history, history_stream

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
