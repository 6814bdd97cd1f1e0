"""`coordlog cache clear` removes what this package has fetched, and nothing of anybody else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coordlog.cli.commands.machine import cache as command
from coordlog.cli.main import main
from coordlog.log.broker.shared import SharedBrokerStatus
from coordlog.log.local.file_lock import file_lock


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of two sets, one fetch that was killed, and what is somebody else's."""
    cache = tmp_path / "cache"
    for name, size in (("broker-0a1b/kafka.jar", 1_000), ("spark-2c3d/a.jar", 200)):
        path = cache / "jars" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * size)
    (cache / "jars" / ".unfinished-x" / "fetched").mkdir(parents=True)
    (cache / "jars" / ".unfinished-x" / "fetched" / "half.jar").write_bytes(b"x" * 34)
    (cache / "jars" / ".lock").touch()
    (cache / "jars" / "mine.jar").write_bytes(b"mine")
    (cache / "thesis.txt").write_bytes(b"mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    (cache / "jars" / "spark-4e5f").symlink_to(tmp_path / "elsewhere")
    (cache / "jars" / "spark-2c3d" / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("COORDLOG_CACHE", str(cache))
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    return cache


def clear(*options: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(main, ["cache", "clear", *options], input=answer)


def left(folder: Path) -> list[str]:
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*"))


STRANGERS = ["jars", "jars/.lock", "jars/mine.jar", "jars/spark-4e5f", "thesis.txt"]


def test_it_says_what_and_how_much_and_asks(folder: Path) -> None:
    before = left(folder)
    done = clear(answer="n\n")

    jars = folder / "jars"
    assert done.exit_code == 1
    assert done.stdout.splitlines()[:3] == [
        f"            34 bytes  {jars}/.unfinished-x",
        f"         1,000 bytes  {jars}/broker-0a1b",
        f"           200 bytes  {jars}/spark-2c3d",
    ]
    assert "Remove these 1,234 bytes? [y/N]" in done.stdout
    assert left(folder) == before


def test_it_removes_what_is_ours_and_follows_no_link(folder: Path, tmp_path: Path) -> None:
    done = clear("--yes")

    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == f"removed 1,234 bytes from {folder}"
    assert done.stderr.splitlines() == [
        f"not of coordlog, and stays: {folder}/thesis.txt",
        f"not of coordlog, and stays: {folder}/jars/mine.jar",
        f"not of coordlog, and stays: {folder}/jars/spark-4e5f",
    ]
    assert left(folder) == STRANGERS
    assert (tmp_path / "elsewhere" / "kept").exists()
    assert clear().stdout == f"there is nothing to remove in {folder}\n"


def test_where_there_is_no_cache_there_is_nothing_to_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_CACHE", str(tmp_path / "none"))

    assert clear("--yes").stdout == f"there is nothing to remove in {tmp_path / 'none'}\n"
    assert not (tmp_path / "none").exists()


def test_while_the_shared_broker_runs_its_jars_stay(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = SharedBrokerStatus(
        running=True,
        answering=True,
        folder=folder,
        log_path=folder / "log",
        bootstrap_servers="127.0.0.1:9192",
    )
    monkeypatch.setattr(command, "shared_status", lambda: status)
    before = left(folder)
    done = clear("--yes")

    assert (done.exit_code, done.stderr.splitlines()[-1]) == (
        2,
        (
            "error: the shared broker at 127.0.0.1:9192 runs from the jars in the cache; "
            "end it with `coordlog broker stop`, then run the same command again"
        ),
    )
    assert left(folder) == before


def test_it_waits_for_who_is_fetching(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordlog.log.broker.limits.RESOLVE_LIMIT_S", 0.0)
    with file_lock(folder / "jars" / ".lock", limit_s=0, busy=AssertionError):
        done = clear("--yes")

    assert done.exit_code == 1
    assert f"process {os.getpid()} has been fetching jars" in done.stderr
    assert (folder / "jars" / "broker-0a1b").is_dir()
