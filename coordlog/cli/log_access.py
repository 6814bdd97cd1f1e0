"""Access of the commands to the logs of jobs: at a named broker, else at the shared local one."""

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
    "PREFIX_HELP",
    "SERVERS_HELP",
    "SERVERS_VARIABLE",
    "CreatingLogs",
    "FileLogs",
    "KafkaLogs",
    "LogPlace",
    "Logs",
    "NewLogs",
    "argument_of",
    "find_logs",
    "is_file",
    "no_such_job",
    "options_given",
    "security_of",
    "with_finder",
    "with_history",
    "with_logs",
]

SERVERS_VARIABLE: Final = "COORDLOG_BOOTSTRAP_SERVERS"
SERVERS_HELP: Final = "The Kafka broker; by default the shared local one, started if needed."
PREFIX_HELP: Final = "Prefix of the names of the logs' topics: PREFIX, the job, `.log`."
_FILE: Final = re.compile(r"[./\\]")
"""Characters that make a name that of a file: ids of jobs have none of them."""


class Logs(Protocol):
    """The logs at one place."""

    @property
    def where(self) -> str:
        """Name of the place, for messages."""
        ...

    def jobs(self) -> tuple[str, ...]:
        """Ids of the jobs that have a log, sorted."""
        ...

    def open(self, job_id: str) -> Log:
        """The log of a job for reading, whatever its settings; the caller closes it.

        Raises:
            TopicError: There is no such log.
        """
        ...

    def delete(self, job_id: str) -> None:
        """Delete the log of a job."""
        ...


@runtime_checkable
class CreatingLogs(Logs, Protocol):
    """A place where a new log can be created."""

    def create(self, job_id: str) -> PrunableLog:
        """A job's log, created if there is none; the caller closes it."""
        ...


class NewLogs(CreatingLogs, Protocol):
    """A broker with other topics too."""

    def topic_of(self, job_id: str) -> str:
        """Name of the topic of a job's log here, whether it exists or not."""
        ...

    def open_topic(self, topic: str) -> Log:
        """Any topic as a log for reading, whatever its settings; the caller closes it. Raises TopicError as `open`."""
        ...


class WritableLogs(Logs, Protocol):
    """A place with logs that can be appended to and pruned."""

    def open_to_write(self, job_id: str) -> PrunableLog:
        """The log of a job; the caller closes it.

        Raises:
            TopicError: There is no such log, or with its settings appended records would be lost.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlace:
    """Place of logs: a broker, its security options, and the prefix of the topics' names."""

    servers: str
    security: Security
    topic_prefix: str = ""

    def jobs(self, patience_s: float = LOG_CONNECT_TIMEOUT_S) -> tuple[str, ...]:
        """Ids of the jobs that have a log there, sorted."""
        from coordlog.log.kafka import list_jobs  # noqa: PLC0415, `--help` does not wait for it

        return list_jobs(
            self.servers,
            topic_prefix=self.topic_prefix,
            security=self.security,
            connect_timeout_s=patience_s,
        )

    def topic_of(self, job_id: str) -> str:
        """Name of the topic of a job's log."""
        from coordlog.log.kafka import topic_of  # noqa: PLC0415, as above

        return topic_of(job_id, self.topic_prefix)

    def log(self, job_id: str, patience_s: float = LOG_CONNECT_TIMEOUT_S) -> KafkaLog:
        """A job's log for writing; no connection is made yet."""
        from coordlog.log.kafka import KafkaLog  # noqa: PLC0415, as above

        return KafkaLog.for_job(
            job_id,
            self.servers,
            topic_prefix=self.topic_prefix,
            security=self.security,
            connect_timeout_s=patience_s,
        )


class KafkaLogs:
    """Logs in the topics of a Kafka broker. The durability of a topic is checked by its driver, not here."""

    def __init__(self, place: LogPlace) -> None:
        self._place = place

    @property
    def where(self) -> str:
        """Bootstrap servers of the broker."""
        return self._place.servers

    def jobs(self) -> tuple[str, ...]:
        """As in `Logs`."""
        return self._place.jobs()

    def open(self, job_id: str) -> Log:
        """As in `Logs`."""
        log = self._existing(job_id)
        with _closed_on_error(log):
            log.open_to_read()
        return log

    def open_to_write(self, job_id: str) -> PrunableLog:
        """As in `WritableLogs`."""
        log = self._existing(job_id)
        with _closed_on_error(log):
            log.open()
        return log

    def _existing(self, job_id: str) -> KafkaLog:
        """The log of a job, which exists; not opened yet."""
        check_job_id(job_id)
        log = self._log(self.topic_of(job_id))
        with _closed_on_error(log):
            job_ids = self.jobs()
            # A topic without the right to describe it is in no list; a query by its name reports that.
            if job_id not in job_ids and not log.find():
                raise no_such_job(job_id, self.where, job_ids)
        return log

    def _log(self, topic: str) -> KafkaLog:
        from coordlog.log.kafka import KafkaLog  # noqa: PLC0415, as above

        # Neither fsync nor retention is checked: the driver does.
        place = self._place
        return KafkaLog(topic, place.servers, security=place.security, fsync=False, retention_ms=0)

    def create(self, job_id: str) -> PrunableLog:
        """As in `CreatingLogs`; with settings that lose no record."""
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
        """Facts of the brokers and of the topics of these jobs."""
        from coordlog.log.kafka import cluster_info  # noqa: PLC0415, as above

        place = self._place
        topics = tuple(map(place.topic_of, job_ids))
        return cluster_info.examine(place.servers, topics, security=place.security)

    def clock_ahead_s(self) -> float:
        """Seconds by which a broker's clock is ahead of this machine's."""
        from coordlog.log.kafka import cluster_info  # noqa: PLC0415, as above

        return cluster_info.clock_ahead_s(self._place.servers, security=self._place.security)

    def delete(self, job_id: str) -> None:
        """As in `Logs`."""
        log = self._place.log(job_id)
        try:
            log.delete()
        finally:
            log.close()


@contextlib.contextmanager
def _closed_on_error(log: Log) -> Generator[None]:
    """Close the log if the block raises: no caller gets it then."""
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
        """Path of the file."""
        return str(self._path)

    def jobs(self) -> tuple[str, ...]:
        """As in `Logs`."""
        return (self._log.job_id,)

    def open(self, job_id: str) -> Log:
        """As in `Logs`."""
        assert job_id == self._log.job_id, "the only id that `jobs` returns"
        return self._log

    def delete(self, job_id: str) -> None:
        """Raise TopicError: no command deletes a file."""
        raise TopicError(f"{job_id}.log", f"{self._path} is a file", "remove it yourself")


def is_file(job: str) -> bool:
    """Whether the argument JOB is the name of an exported file, and not a job's id."""
    return _FILE.search(job) is not None


def security_of(*, is_shared: bool) -> Security:
    """Security options of a broker, from file and environment.

    The shared local broker has none, whatever these set for other brokers.

    Raises:
        OptionError: An option is unknown or wrong.
    """
    from coordlog.log.kafka import Security  # noqa: PLC0415, `--help` does not wait for it

    return Security() if is_shared else Security.load(os.environ)


def argument_of(logs: Logs, job_id: str) -> str:
    """Argument JOB of a command about a job at that place, for a shell: its id, or the path of its file."""
    if not isinstance(logs, FileLogs):
        return job_id
    return shlex.quote(logs.where if is_file(logs.where) else f"./{logs.where}")


def no_such_job(job_id: str, where: str, job_ids: tuple[str, ...]) -> TopicError:
    """Error about a job without a log, with the ids of those at the same place."""
    jobs = (
        f"the jobs there are {', '.join(job_ids)}" if job_ids else "there are no jobs there at all"
    )
    return TopicError(f"{job_id}.log", f"there is no job {job_id!r} at {where}", jobs)


def find_logs(bootstrap_servers: str | None, topic_prefix: str = "") -> Logs:
    """The logs at that broker; by default at the shared local broker, started if needed."""
    servers = bootstrap_servers
    if not servers:
        from coordlog.log.broker.shared import ensure_shared_broker  # noqa: PLC0415, as above

        broker = ensure_shared_broker(notify=lambda line: click.echo(line, err=True))
        servers = broker.bootstrap_servers
    security = security_of(is_shared=not bootstrap_servers)
    return KafkaLogs(LogPlace(servers=servers, security=security, topic_prefix=topic_prefix))


def options_given() -> str:
    """Options of this command line with the place of the logs, to be appended to an advised command.

    Values of variables and of a file are left out: they hold for the advised command too.
    """
    context = click.get_current_context()
    options = ""
    for name in ("bootstrap_servers", "topic_prefix"):
        value = context.params.get(name)
        if value and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            options += f" --{name.replace('_', '-')} {shlex.quote(value)}"
    return options


def with_history(command: Callable[..., None]) -> Callable[..., None]:
    """As `with_logs`, but JOB may be an exported file: a name with a dot or a slash, which no job has."""
    from_broker = with_logs(command)

    @functools.wraps(from_broker)
    def from_broker_or_file(
        *, job: str, bootstrap_servers: str | None, topic_prefix: str, **options: object
    ) -> None:
        if not is_file(job):
            where = {"bootstrap_servers": bootstrap_servers, "topic_prefix": topic_prefix}
            from_broker(job=job, **where, **options)
            return
        logs = FileLogs(Path(job))
        command(logs, job=logs.jobs()[0], **options)

    return from_broker_or_file


def with_logs(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options for the place of logs, and these logs as its first argument."""

    @functools.wraps(command)
    def with_found(find: Callable[[], Logs], **options: object) -> None:
        command(find(), **options)

    return with_finder(with_found)


def with_finder(command: Callable[..., None]) -> Callable[..., None]:
    """As `with_logs`, but the first argument is a function that finds the logs, so that the command handles errors.

    A test puts its own finder into the context's `obj`.
    """

    @click.option(
        "--bootstrap-servers",
        envvar=SERVERS_VARIABLE,
        show_envvar=True,
        metavar="HOST:PORT",
        help=SERVERS_HELP,
    )
    @click.option("--topic-prefix", default="", metavar="PREFIX", help=PREFIX_HELP)
    @functools.wraps(command)
    def with_options(
        *, bootstrap_servers: str | None, topic_prefix: str, **options: object
    ) -> None:
        finder: Callable[[str | None], Logs] | None = click.get_current_context().obj

        job = options.get("job")
        if isinstance(job, str):
            check_job_id(job)  # before a broker is started for it

        def find() -> Logs:
            if finder:
                return finder(bootstrap_servers)
            return find_logs(bootstrap_servers, topic_prefix)

        command(find, **options)

    return with_options
