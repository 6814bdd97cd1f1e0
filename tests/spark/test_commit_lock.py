"""The lock of a table's commits on a local disk, held by the JVM of a real session."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordlog import limits
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


HOLD = (
    "import fcntl, sys; file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX); "
    "print('held', flush=True); sys.stdin.read()"
)


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Another process has the lock of a file for the block."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            holder.stdin.close()


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


def test_the_process_that_is_waited_for_is_named_before_the_wait_ends(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "TABLE_LOCK_S", 0.5)
    monkeypatch.setattr(module, "TABLE_LOCK_SLOW_S", 0.1)
    with commit_lock(spark, str(tmp_path), "orders"):
        pass
    file = tmp_path / "_coordlog" / "commit.lock"
    with (
        held(file),
        pytest.raises(SinkError, match=rf"process {os.getpid()} has committed there for 0.5 s"),
        commit_lock(spark, str(tmp_path), "orders"),
    ):
        pass
    (message,) = [one.getMessage() for one in caplog.records if one.name == module.__name__]
    assert message == f"orders: a batch waits for process {os.getpid()}, which holds {file}"


def test_a_try_to_settle_lasts_longer_than_its_wait_for_the_lock() -> None:
    """Else the try would end first, without the name of the process."""
    assert limits.TABLE_LOCK_S <= limits.SETTLE_CALL_S - 600
