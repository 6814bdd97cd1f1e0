"""One command as a process of its own, on a real broker, with a step around each append and before each removal."""

from __future__ import annotations

from dataclasses import dataclass

from chaos.child import Ordered, enter
from chaos.driver_process import SteppedLog
from chaos.steps import Steps
from coordlog.cli.log_access import KafkaLogs, LogPlace
from coordlog.cli.main import main
from coordlog.log.interface import Log
from coordlog.log.kafka import Security

__all__ = ["CommandOrders", "run_command"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOrders:
    """What a command is told."""

    name: str
    root: str
    bootstrap_servers: str
    arguments: tuple[str, ...]
    pause_at: tuple[str, int] | None = None


def run_command(orders: Ordered) -> None:
    """Run it as a shell would. The process's target."""
    assert isinstance(orders, CommandOrders)
    steps = enter(orders)
    logs = _SteppedLogs(orders.bootstrap_servers, steps)
    main(args=list(orders.arguments), prog_name="coordlog", obj=lambda _servers: logs)


class _SteppedLogs:
    """`CreatingLogs` and `WritableLogs`."""

    def __init__(self, servers: str, steps: Steps) -> None:
        self._inner = KafkaLogs(LogPlace(servers=servers, security=Security()))
        self._steps = steps

    @property
    def where(self) -> str:
        """See `Logs`."""
        return self._inner.where

    def jobs(self) -> tuple[str, ...]:
        """See `Logs`."""
        return self._inner.jobs()

    def open(self, job_id: str) -> Log:
        """See `Logs`."""
        return self._inner.open(job_id)

    def open_to_write(self, job_id: str) -> SteppedLog:
        """See `WritableLogs`."""
        return SteppedLog(self._inner.open_to_write(job_id), self._steps)

    def create(self, job_id: str) -> SteppedLog:
        """See `CreatingLogs`."""
        return SteppedLog(self._inner.create(job_id), self._steps)

    def delete(self, job_id: str) -> None:
        """See `Logs`."""
        self._inner.delete(job_id)
