"""One job's log in memory, where the commands look for logs."""

from __future__ import annotations

from dataclasses import dataclass

from click.testing import CliRunner, Result

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.log.interface import Log
from coordlog.log.memory import MemoryLog

__all__ = ["OneLog", "checkpoint_command", "savepoint_command", "shown"]


@dataclass(frozen=True)
class OneLog:
    """A `Logs` with one job, which cannot be deleted."""

    log: MemoryLog
    job_id: str = "job"
    where: str = "memory"

    def jobs(self) -> tuple[str, ...]:
        """Its one job."""
        return (self.job_id,)

    def open(self, job_id: str) -> Log:
        """The log of that job."""
        assert job_id == self.job_id
        return self.log

    def open_to_write(self, job_id: str) -> MemoryLog:
        """The same."""
        assert job_id == self.job_id
        return self.log

    def delete(self, job_id: str) -> None:
        """Nothing that a test of the commands does."""
        raise AssertionError(job_id)


def checkpoint_command(log: MemoryLog, *arguments: str) -> Result:
    """`coordlog checkpoint job` with these arguments."""
    return CliRunner().invoke(
        main, ("checkpoint", "job", *arguments), obj=lambda _servers: OneLog(log)
    )


def savepoint_command(log: MemoryLog, *arguments: str) -> Result:
    """`coordlog savepoint job` with these arguments."""
    return CliRunner().invoke(
        main, ("savepoint", "job", *arguments), obj=lambda _servers: OneLog(log)
    )


def shown(log: MemoryLog, *arguments: str) -> str:
    """What it prints; it succeeds."""
    result = checkpoint_command(log, *arguments)
    assert result.exit_code == Exit.DONE, result.output
    return result.stdout
