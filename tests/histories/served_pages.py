"""Served pages of logs in memory, for tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import uvicorn

from coordlog.cli.log_access import Logs, no_such_job
from coordlog.cli.web.connections import BoundedConnection
from coordlog.cli.web.pages import application
from coordlog.errors import LogUnavailableError
from coordlog.log.interface import Log
from coordlog.log.memory import MemoryLog

__all__ = ["GrowingLogs", "served"]

_START_S = 30.0


class GrowingLogs:
    """Logs in memory at a place that can go away."""

    where = "memory"

    def __init__(self, **logs: MemoryLog) -> None:
        self.logs = logs
        self.is_away = False

    def jobs(self) -> tuple[str, ...]:
        """All of them."""
        self._check("jobs")
        return tuple(sorted(self.logs))

    def open(self, job_id: str) -> Log:
        """One of them."""
        self._check(job_id)
        if job_id not in self.logs:
            raise no_such_job(job_id, self.where, tuple(self.logs))
        return self.logs[job_id]

    def delete(self, job_id: str) -> None:
        """Delete one."""
        del self.logs[job_id]

    def _check(self, name: str) -> None:
        if self.is_away:
            raise LogUnavailableError(name, "reading", 1.0)


@contextmanager
def served(
    logs: Logs | None, token: str | None = None, files: Mapping[str, Logs] | None = None
) -> Generator[int]:
    """The port of a server of these logs."""
    app = application(
        logs, (), files or {}, size_of=lambda _content: None, host="127.0.0.1", token=token
    )
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            port=0,
            log_level="warning",
            ws="none",
            http=BoundedConnection,
            timeout_graceful_shutdown=1,
        )
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until = time.monotonic() + _START_S
        while not server.started:
            assert time.monotonic() < until
            time.sleep(0.02)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(_START_S)
