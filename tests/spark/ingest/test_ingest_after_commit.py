"""`coordlog ingest --watch --after-commit`: read files are archived or deleted, and a driver dies meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Final, cast

import pytest

from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.source_types import SplitsReleased
from jobs.ingest_case import LIMIT_S, ROWS, IngestCase
from servers.brokers import broker

__all__ = ["broker"]

pytestmark = [
    pytest.mark.any_spark,
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.kill,
    pytest.mark.slow,
    pytest.mark.tier("matrix"),
]

WATCH: Final = ["--watch", "--watch-interval", "0.2", "--idle-timeout", "4"]
RELEASED: Final = payload_type_of(SplitsReleased)


def is_intent(record: Record) -> bool:
    """Whether it is an intent to archive or delete files."""
    return record.kind is Kind.COMMIT_INTENT and "release_splits" in (record.payload_type or "")


def released_by(record: Record) -> list[str]:
    """Splits whose files were archived or deleted according to this record."""
    if record.kind is not Kind.COMMIT_OUTCOME or "splits_released" not in (
        record.payload_type or ""
    ):
        return []
    assert record.payload is not None
    return cast("SplitsReleased", RELEASED.decode(record.payload)).split_ids


@pytest.mark.timeout(600)
@pytest.mark.clause("H3")
@pytest.mark.parametrize("effect", ["archive", "delete"])
def test_read_files_go_once_their_rows_are_out_though_the_driver_dies(
    effect: str, tmp_path: Path, broker: EmbeddedBroker
) -> None:
    """It is killed once the first intent is in the log: some files have gone, or none."""
    archive = tmp_path / "done"
    value = f"archive:{archive}" if effect == "archive" else effect
    case = IngestCase(
        folder=tmp_path,
        servers=broker.bootstrap_servers,
        arguments=[*WATCH, "--checkpoint-interval", "1", "--after-commit", value],
    )
    contents = {path.name: path.read_bytes() for path in case.source.iterdir()}
    try:
        run = case.start()
        follower = case.follower()
        follower.wait_for(is_intent, is_over=lambda: run.has_ended, limit_s=2 * LIMIT_S)
        run.kill()
        case.check_partial()
        gone = len(contents) - len(list(case.source.glob("*.csv")))
        assert gone * ROWS <= case.rows_out().total(), "only files of published rows go"
        case.finish()
        case.check_whole()
        follower.catch_up()
        released = [name for record in follower.records for name in released_by(record)]
    finally:
        case.clear()
    assert sorted(released) == sorted(str(case.source / name) for name in contents)
    assert list(case.source.rglob("*")) == []
    archived = {path.name: path.read_bytes() for path in archive.rglob("*") if path.is_file()}
    assert archived == (contents if effect == "archive" else {})
