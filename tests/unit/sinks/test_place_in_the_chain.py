"""A sink's place in a chain, and its own id there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from coordlog.api.chain import Chain, OperatorSpec
from coordlog.errors import OptionError
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.tables.delta import DeltaSink
from coordlog.spark_integration.job import prepare_sinks
from coordlog.spark_integration.transform import transform_spec
from coordlog.testing import silent_source

Make = Callable[[Path], ParquetSink | DeltaSink]
SINKS = [pytest.param(ParquetSink, id="parquet"), pytest.param(DeltaSink, id="delta")]


def chain_of(*operators: OperatorSpec) -> Chain:
    return Chain(source=silent_source(), operators=operators)


@pytest.mark.parametrize("make", SINKS)
def test_a_link_behind_a_sink_is_refused_since_it_would_get_no_rows(
    make: Make, tmp_path: Path
) -> None:
    behind = transform_spec(lambda batch: batch)
    with pytest.raises(OptionError) as caught:
        chain_of(make(tmp_path / "out").spec("files"), behind)
    assert "'files' takes all rows, and 'transform' behind it would get none" in str(caught.value)


def test_a_sink_whose_operator_passes_rows_on_may_have_links_behind_it(tmp_path: Path) -> None:
    passing = replace(ParquetSink(tmp_path / "out").spec("files"), takes_all_rows=False)
    assert len(chain_of(passing, ParquetSink(tmp_path / "other").spec()).links) == 3


@pytest.mark.parametrize("make", SINKS)
def test_a_sink_is_prepared_under_an_id_of_its_own_too(make: Make, tmp_path: Path) -> None:
    prepare_sinks(chain_of(make(tmp_path / "out").spec("files")), "ingest")
    assert list((tmp_path / "out").rglob("owner.json"))
