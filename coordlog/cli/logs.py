"""Where the commands find the logs of jobs: at a named broker, else at the shared local one."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import click

from coordlog.errors import TopicError
from coordlog.log.exported import ExportedLog
from coordlog.log.port import Log, PrunableLog

if TYPE_CHECKING:
    from coordlog.log.kafka.examining import BrokerFacts

__all__ = [
    "SERVERS_VARIABLE",
    "CreatingLogs",
    "FileLogs",
    "KafkaLogs",
    "Logs",
    "NewLogs",
    "PrunableLogs",
    "find_logs",
    "no_such_job",
    "with_history",
    "with_logs",
]

SERVERS_VARIABLE: Final = "COORDLOG_BOOTSTRAP_SERVERS"
_FILE: Final = re.compile(r"[./\\]")
"""In a name it is a file's: a job's id has none of these."""


class Logs(Protocol):
    """The logs at one place."""

    @property
    def where(self) -> str:
        """The place, for messages."""
        ...

    def jobs(self) -> tuple[str, ...]:
        """The ids of the jobs that have a log, sorted."""
        ...

    def open(self, job_id: str) -> Log:
        """The log of a job, which the caller closes. Raises TopicError where there is none."""
        ...

    def delete(self, job_id: str) -> None:
        """Remove the log of a job, with all that is in it."""
        ...


@runtime_checkable
class CreatingLogs(Logs, Protocol):
    """A place where a new log can be made."""

    def create(self, job_id: str) -> PrunableLog:
        """A job's log, made where there is none; the caller closes it."""
        ...


class NewLogs(CreatingLogs, Protocol):
    """A broker with other topics too."""

    def open_topic(self, topic: str) -> Log:
        """Any topic as a log to be read, which the caller closes. Raises TopicError where there is none."""
        ...


class PrunableLogs(Logs, Protocol):
    """Where logs can be shortened."""

    def open(self, job_id: str) -> PrunableLog:
        """As in `Logs`."""
        ...


class KafkaLogs:
    """The topics at a Kafka broker, to be read; a topic's durability is its driver's concern."""

    def __init__(self, bootstrap_servers: str) -> None:
        # Imported here: `--help` need not wait for the client.
        from coordlog.log import kafka  # noqa: PLC0415

        self._kafka = kafka
        self._servers = bootstrap_servers
        self._security = kafka.Security.load(os.environ)

    @property
    def where(self) -> str:
        """The broker."""
        return self._servers

    def jobs(self) -> tuple[str, ...]:
        """As in `Logs`."""
        return self._kafka.list_jobs(self._servers, security=self._security)

    def open(self, job_id: str) -> PrunableLog:
        """As in `Logs`."""
        # Neither fsync nor a retention is asked of it: it is only read.
        log = self._kafka.KafkaLog.for_job(
            job_id, self._servers, security=self._security, fsync=False, retention_ms=0
        )
        there = self.jobs()
        if job_id not in there:
            raise no_such_job(job_id, self._servers, there)
        log.open()
        return log

    def create(self, job_id: str) -> PrunableLog:
        """As in `CreatingLogs`; with the settings that lose nothing."""
        log = self._kafka.KafkaLog.for_job(job_id, self._servers, security=self._security)
        log.create()
        return log

    def open_topic(self, topic: str) -> Log:
        """As in `NewLogs`."""
        log = self._kafka.KafkaLog(
            topic, self._servers, security=self._security, fsync=False, retention_ms=0
        )
        log.open()
        return log

    def examine(self, job_ids: tuple[str, ...]) -> BrokerFacts:
        """What the brokers say of themselves, and of the topics of these jobs."""
        from coordlog.log.kafka import examining  # noqa: PLC0415, as above

        topics = tuple(f"{one}.log" for one in job_ids)
        return examining.examine(self._servers, topics, security=self._security)

    def clock_ahead_s(self) -> float:
        """By how much a broker's clock is ahead of this machine's, in seconds."""
        from coordlog.log.kafka import examining  # noqa: PLC0415, as above

        return examining.clock_ahead_s(self._servers, security=self._security)

    def delete(self, job_id: str) -> None:
        """As in `Logs`."""
        log = self._kafka.KafkaLog.for_job(job_id, self._servers, security=self._security)
        try:
            log.delete()
        finally:
            log.close()


class FileLogs:
    """The one log of an exported history."""

    def __init__(self, path: Path) -> None:
        self._log = ExportedLog(path)
        self._path = path

    @property
    def where(self) -> str:
        """The file."""
        return str(self._path)

    def jobs(self) -> tuple[str, ...]:
        """As in `Logs`."""
        return (self._log.job_id,)

    def open(self, job_id: str) -> Log:
        """As in `Logs`."""
        assert job_id == self._log.job_id, "it is asked for by `jobs`"
        return self._log

    def delete(self, job_id: str) -> None:
        """As in `Logs`; nothing is removed from a file."""
        raise TopicError(f"{job_id}.log", f"{self._path} is a file", "remove it yourself")


def no_such_job(job_id: str, where: str, there: tuple[str, ...]) -> TopicError:
    """The error that says so, and what there is."""
    jobs = f"the jobs there are {', '.join(there)}" if there else "there are no jobs there at all"
    return TopicError(f"{job_id}.log", f"there is no job {job_id!r} at {where}", jobs)


def find_logs(bootstrap_servers: str | None) -> Logs:
    """The logs at that broker; without one at the shared local broker, started where needed."""
    if bootstrap_servers:
        return KafkaLogs(bootstrap_servers)
    from coordlog.log.shared_broker import ensure_shared_broker  # noqa: PLC0415, as above

    broker = ensure_shared_broker(notify=lambda line: click.echo(line, err=True))
    return KafkaLogs(broker.bootstrap_servers)


def with_history(command: Callable[..., None]) -> Callable[..., None]:
    """As `with_logs`, and JOB may be an exported file: a name with a dot or a slash, which no job has."""
    from_broker = with_logs(command)

    @functools.wraps(from_broker)
    def found(*, job: str, bootstrap_servers: str | None, **options: object) -> None:
        if _FILE.search(job) is None:
            from_broker(job=job, bootstrap_servers=bootstrap_servers, **options)
            return
        logs = FileLogs(Path(job))
        command(logs, job=logs.jobs()[0], **options)

    return found


def with_logs(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option `--bootstrap-servers`, and the logs found by it as first argument.

    A test puts its own way to find them into the context's `obj`.
    """

    @click.option(
        "--bootstrap-servers",
        envvar=SERVERS_VARIABLE,
        show_envvar=True,
        metavar="HOST:PORT",
        help="The Kafka broker; without it the shared local one, started where needed.",
    )
    @functools.wraps(command)
    def found(*, bootstrap_servers: str | None, **options: object) -> None:
        find: Callable[[str | None], Logs] = click.get_current_context().obj or find_logs
        command(find(bootstrap_servers), **options)

    return found
