"""`coordlog export`, on logs in memory."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from coordlog.cli.commands.repair.export import export
from coordlog.cli.exit_status import Exit
from coordlog.cli.log_access import Logs, no_such_job
from coordlog.cli.main import main
from coordlog.log.file import ExportedLog
from coordlog.log.memory import MemoryLog
from histories.hand_history import batch_history


class _OneLog:
    """One job's log."""

    def __init__(self) -> None:
        history = batch_history()
        self.log = MemoryLog(f"{history.job_id}.log")
        self.log.store(*history.records)
        self.name = history.job_id

    @property
    def where(self) -> str:
        return "memory"

    def jobs(self) -> tuple[str, ...]:
        return (self.name,)

    def open(self, job_id: str) -> MemoryLog:
        if job_id != self.name:
            raise no_such_job(job_id, self.where, self.jobs())
        return self.log

    def delete(self, job_id: str) -> None:
        raise AssertionError(job_id)


def _run(logs: Logs, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["export", *arguments], obj=lambda _servers: logs)


def test_the_whole_log_is_written_with_its_identity(tmp_path: Path) -> None:
    logs = _OneLog()
    path = tmp_path / "out.avro"

    done = _run(logs, logs.name, str(path))

    assert done.exit_code == 0, done.output
    read = ExportedLog(path)
    assert read.identity == logs.log.identity
    assert tuple(read.read(0, read.high_watermark())) == logs.log.records
    assert f"exported {len(batch_history().records)} records of job {logs.name}" in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["out.avro"]


def test_a_file_that_is_there_is_replaced_only_with_force(tmp_path: Path) -> None:
    logs = _OneLog()
    path = tmp_path / "out.avro"
    path.write_text("mine")

    refused = _run(logs, logs.name, str(path))
    assert refused.exit_code == 2
    assert "--force" in refused.output
    assert path.read_text() == "mine"

    assert _run(logs, logs.name, str(path), "--force").exit_code == 0
    read = ExportedLog(path)
    assert read.identity == logs.log.identity
    assert tuple(read.read(0, read.high_watermark())) == logs.log.records


def test_a_job_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    done = _run(_OneLog(), "nobody", str(tmp_path / "out.avro"))

    assert done.exit_code == 1
    assert "there is no job 'nobody' at memory" in done.output
    assert not list(tmp_path.iterdir())


def test_an_export_that_is_cut_off_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = _OneLog()
    monkeypatch.setattr(logs.log, "read", _broken)

    done = _run(logs, logs.name, str(tmp_path / "out.avro"))

    assert done.exit_code == 1
    assert not list(tmp_path.iterdir())


def _broken(start: int, end: int) -> object:
    raise OSError(start, f"broken before {end}")


def test_it_is_a_command_with_help() -> None:
    assert isinstance(export, click.Command)
    assert "--force" in CliRunner().invoke(main, ["export", "--help"]).output


@pytest.mark.parametrize("options", [(), ("--force",)])
def test_a_pipe_or_device_is_not_replaced(tmp_path: Path, options: tuple[str, ...]) -> None:
    """`--force` at /dev/null, by root, took the device away from the machine."""
    logs = _OneLog()
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)

    for path in (pipe, link):
        refused = _run(logs, logs.name, str(path), *options)

        assert refused.exit_code == Exit.USAGE
        assert "no device, pipe or folder is replaced" in refused.stderr
        assert "--force" not in refused.stderr
    assert pipe.is_fifo()
    assert link.is_symlink()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    logs = _OneLog()

    refused = _run(logs, logs.name, str(tmp_path / "none" / "out.avro"))

    assert refused.exit_code == Exit.USAGE
    assert f"in a folder that is there: {tmp_path / 'none'} is none" in refused.stderr
