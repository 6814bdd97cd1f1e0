"""Which commands look at a log whatever its topic's settings are, and which refuse to change one that could lose it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.errors import TopicError
from coordlog.log.memory import MemoryLog
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import NotingProvider, chain_of
from histories.one_log import OneLog


@dataclass(frozen=True)
class Unfit(OneLog):
    """Its log can be read only."""

    def open_to_write(self, job_id: str) -> MemoryLog:
        raise TopicError(f"{job_id}.log", "max.message.bytes is 300", "mend it")


def run(log: MemoryLog, *arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, obj=lambda _servers: Unfit(log))


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    job = HandDrivenJob(chain_of(NotingProvider()), job_id="job")
    job.register(0)
    job.crash()
    return job.log


@pytest.mark.parametrize(
    "arguments",
    [
        ("history", "job"),
        ("attempts", "job"),
        ("splits", "job"),
        ("checkpoints", "job"),
        ("checkpoint", "job"),
        ("events", "job"),
        ("commits", "job"),
        ("failures", "job"),
        ("epochs", "job"),
        ("state", "job"),
        ("diff", "job"),
        ("verify", "job"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_only_reads_reads_a_log_that_is_unfit_to_be_written(
    log: MemoryLog, arguments: tuple[str, ...]
) -> None:
    result = run(log, *arguments)

    assert result.exit_code == Exit.DONE, result.output


def test_an_unfit_log_can_be_exported(log: MemoryLog, tmp_path: Path) -> None:
    assert run(log, "export", "job", str(tmp_path / "out.avro")).exit_code == Exit.DONE


@pytest.mark.parametrize(
    "arguments",
    [
        ("skip", "job", "--split", "a"),
        ("savepoint", "job", "good"),
        ("savepoint", "job", "good", "--release"),
        ("prune", "job", "--yes", "--take-over"),
    ],
    ids=" ".join,
)
def test_what_changes_a_log_refuses_one_that_could_lose_the_change(
    log: MemoryLog, arguments: tuple[str, ...]
) -> None:
    before = log.high_watermark()
    result = run(log, *arguments)

    assert result.exit_code == Exit.FAILED
    assert "max.message.bytes is 300; mend it" in result.stderr
    assert log.high_watermark() == before
