"""Where the commands find the logs of jobs: at a named broker, else at the shared local one."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import click
from click.core import ParameterSource

from coordlog.errors import TopicError
from coordlog.limits import LOG_CONNECT_TIMEOUT_S
from coordlog.log.file import ExportedLog
from coordlog.log.interface import Log, PrunableLog
from coordlog.log.job_id import check_job_id

if TYPE_CHECKING:
    from coordlog.log.kafka import KafkaLog, Security
    from coordlog.log.kafka.cluster_info import BrokerFacts

__all__ = [
    "SERVERS_VARIABLE",
    "CreatingLogs",
    "FileLogs",
    "KafkaLogs",
    "LogPlace",
    "Logs",
    "NewLogs",
    "find_logs",
    "no_such_job",
    "options_given",
    "prefix_option",
    "security_of",
    "with_finder",
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
        """The log of a job to be read, whatever its settings; the caller closes it.

        Raises:
            TopicError: There is none.
        """
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

    def topic_of(self, job_id: str) -> str:
        """The topic of a job's log here, whether it is there or not."""
        ...

    def open_topic(self, topic: str) -> Log:
        """Any topic as a log to be read, whatever its settings; the caller closes it. Raises TopicError as `open`."""
        ...


class WritableLogs(Logs, Protocol):
    """Where logs can be appended to, and shortened."""

    def open_to_write(self, job_id: str) -> PrunableLog:
        """The log of a job, which the caller closes.

        Raises:
            TopicError: There is none, or its settings would lose what is appended.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """Where logs are: a broker, how to reach it, and what their topics' names begin with."""

    servers: str
    security: Security
    topic_prefix: str = ""

    def jobs(self, patience_s: float = LOG_CONNECT_TIMEOUT_S) -> tuple[str, ...]:
        """The ids of the jobs that have a log there, sorted."""
        from coordlog.log.kafka import list_jobs  # noqa: PLC0415, `--help` does not wait for it

        return list_jobs(
            self.servers,
            topic_prefix=self.topic_prefix,
            security=self.security,
            connect_timeout_s=patience_s,
        )

    def topic_of(self, job_id: str) -> str:
        """The topic of a job's log."""
        from coordlog.log.kafka import topic_of  # noqa: PLC0415, as above

        return topic_of(job_id, self.topic_prefix)

    def log(self, job_id: str, patience_s: float = LOG_CONNECT_TIMEOUT_S) -> KafkaLog:
        """A job's log, for who writes it; nothing is asked yet."""
        from coordlog.log.kafka import KafkaLog  # noqa: PLC0415, as above

        return KafkaLog.for_job(
            job_id,
            self.servers,
            topic_prefix=self.topic_prefix,
            security=self.security,
            connect_timeout_s=patience_s,
        )


class KafkaLogs:
    """The topics at a Kafka broker; a topic's durability is its driver's concern."""

    def __init__(self, place: LogPlace) -> None:
        self._place = place

    @property
    def where(self) -> str:
        """The broker."""
        return self._place.servers

    def jobs(self) -> tuple[str, ...]:
        """As in `Logs`."""
        return self._place.jobs()

    def open(self, job_id: str) -> Log:
        """As in `Logs`."""
        log = self._found(job_id)
        with _closed_on_error(log):
            log.open_to_read()
        return log

    def open_to_write(self, job_id: str) -> PrunableLog:
        """As in `WritableLogs`."""
        log = self._found(job_id)
        with _closed_on_error(log):
            log.open()
        return log

    def _found(self, job_id: str) -> KafkaLog:
        """One that is there; not opened yet."""
        check_job_id(job_id)
        log = self._log(self.topic_of(job_id))
        with _closed_on_error(log):
            there = self.jobs()
            # A topic that the user may not see is in no list; asked for by name it is refused.
            if job_id not in there and not log.find():
                raise no_such_job(job_id, self.where, there)
        return log

    def _log(self, topic: str) -> KafkaLog:
        from coordlog.log.kafka import KafkaLog  # noqa: PLC0415, as above

        # Neither fsync nor a retention is asked of it: they are its driver's to ask for.
        place = self._place
        return KafkaLog(topic, place.servers, security=place.security, fsync=False, retention_ms=0)

    def create(self, job_id: str) -> PrunableLog:
        """As in `CreatingLogs`; with the settings that lose nothing."""
        log = self._place.log(job_id)
        log.create()
        return log

    def topic_of(self, job_id: str) -> str:
        """As in `NewLogs`."""
        return self._place.topic_of(job_id)

    def open_topic(self, topic: str) -> Log:
        """As in `NewLogs`."""
        log = self._log(topic)
        with _closed_on_error(log):
            log.open_to_read()
        return log

    def examine(self, job_ids: tuple[str, ...]) -> BrokerFacts:
        """What the brokers say of themselves, and of the topics of these jobs."""
        from coordlog.log.kafka import cluster_info as examining  # noqa: PLC0415, as above

        place = self._place
        topics = tuple(map(place.topic_of, job_ids))
        return examining.examine(place.servers, topics, security=place.security)

    def clock_ahead_s(self) -> float:
        """By how much a broker's clock is ahead of this machine's, in seconds."""
        from coordlog.log.kafka import cluster_info as examining  # noqa: PLC0415, as above

        return examining.clock_ahead_s(self._place.servers, security=self._place.security)

    def delete(self, job_id: str) -> None:
        """As in `Logs`."""
        log = self._place.log(job_id)
        try:
            log.delete()
        finally:
            log.close()


@contextlib.contextmanager
def _closed_on_error(log: Log) -> Generator[None]:
    """Nobody gets a log of which something was asked in vain."""
    try:
        yield
    except BaseException:
        log.close()
        raise


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


def security_of(*, is_shared: bool) -> Security:
    """How to reach a broker: as file and environment say.

    The shared local one asks nobody for a password, whatever they say for others.

    Raises:
        OptionError: An option is unknown or wrong.
    """
    from coordlog.log.kafka import Security  # noqa: PLC0415, `--help` does not wait for it

    return Security() if is_shared else Security.load(os.environ)


def no_such_job(job_id: str, where: str, there: tuple[str, ...]) -> TopicError:
    """The error that says so, and what there is.

    Raises:
        OptionError: No job can have this id.
    """
    check_job_id(job_id)
    jobs = f"the jobs there are {', '.join(there)}" if there else "there are no jobs there at all"
    return TopicError(f"{job_id}.log", f"there is no job {job_id!r} at {where}", jobs)


def find_logs(bootstrap_servers: str | None, topic_prefix: str = "") -> Logs:
    """The logs at that broker; without one at the shared local broker, started where needed."""
    servers = bootstrap_servers
    if not servers:
        from coordlog.log.broker.shared import ensure_shared_broker  # noqa: PLC0415, as above

        broker = ensure_shared_broker(notify=lambda line: click.echo(line, err=True))
        servers = broker.bootstrap_servers
    security = security_of(is_shared=not bootstrap_servers)
    return KafkaLogs(LogPlace(servers=servers, security=security, topic_prefix=topic_prefix))


def prefix_option(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option `--topic-prefix`."""
    return click.option(
        "--topic-prefix",
        default="",
        metavar="PREFIX",
        help="What the names of the logs' topics begin with: PREFIX, the job, `.log`.",
    )(command)


def options_given() -> str:
    """The options that say where logs are, as this command was given them: for another one that is advised.

    What stands in a variable or a file holds for that one too.
    """
    given = click.get_current_context()
    said = ""
    for option in ("bootstrap_servers", "topic_prefix"):
        value = given.params.get(option)
        if value and given.get_parameter_source(option) is ParameterSource.COMMANDLINE:
            said += f" --{option.replace('_', '-')} {shlex.quote(value)}"
    return said


def with_history(command: Callable[..., None]) -> Callable[..., None]:
    """As `with_logs`, and JOB may be an exported file: a name with a dot or a slash, which no job has."""
    from_broker = with_logs(command)

    @functools.wraps(from_broker)
    def found(
        *, job: str, bootstrap_servers: str | None, topic_prefix: str, **options: object
    ) -> None:
        if _FILE.search(job) is None:
            where = {"bootstrap_servers": bootstrap_servers, "topic_prefix": topic_prefix}
            from_broker(job=job, **where, **options)
            return
        logs = FileLogs(Path(job))
        command(logs, job=logs.jobs()[0], **options)

    return found


def with_logs(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say where logs are, and these logs as its first argument."""

    @functools.wraps(command)
    def of_found(find: Callable[[], Logs], **options: object) -> None:
        command(find(), **options)

    return with_finder(of_found)


def with_finder(command: Callable[..., None]) -> Callable[..., None]:
    """As `with_logs`, and what finds the logs as the first argument: for who has more to say where that fails.

    A test puts its own way to find them into the context's `obj`.
    """

    @click.option(
        "--bootstrap-servers",
        envvar=SERVERS_VARIABLE,
        show_envvar=True,
        metavar="HOST:PORT",
        help="The Kafka broker; without it the shared local one, started where needed.",
    )
    @prefix_option
    @functools.wraps(command)
    def finding(*, bootstrap_servers: str | None, topic_prefix: str, **options: object) -> None:
        given: Callable[[str | None], Logs] | None = click.get_current_context().obj

        def find() -> Logs:
            return given(bootstrap_servers) if given else find_logs(bootstrap_servers, topic_prefix)

        command(find, **options)

    return finding
