"""The lock of a table's commits on a local disk, held by the JVM of a real session."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordlog.errors import SinkError
from coordlog.spark_integration.batches.tables import commit_lock as module
from coordlog.spark_integration.batches.tables.commit_lock import commit_lock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.any_spark]

TRY = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"


def is_free(folder: Path) -> bool:
    """Whether another process would get the lock."""
    command = [sys.executable, "-c", TRY, str(folder / "_coordlog" / "commit.lock")]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_two_paths_of_one_table_are_one_lock(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second opening of the file by the JVM, closed again, would end the first one's lock."""
    folder, link = tmp_path / "table", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    monkeypatch.setattr(module, "TABLE_LOCK_S", 0.2)
    errors: list[BaseException] = []

    def take() -> None:
        try:
            with commit_lock(spark, str(link), "the link"):
                pass
        except BaseException as error:  # noqa: BLE001, looked at below
            errors.append(error)

    with commit_lock(spark, str(folder), "the table"):
        other = threading.Thread(target=take)
        other.start()
        other.join(60)
        assert not is_free(folder), "the first one holds it still"
    assert [type(error) for error in errors] == [SinkError], errors
    assert "has committed there for" in str(errors[0])
    assert is_free(folder)
