"""The log in a Kafka topic: finds, creates and checks the topic, and reads and writes its records."""

from __future__ import annotations

import logging
import re
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, Final

from kafka import errors
from kafka.admin import (
    OffsetSpec,  # pyright: ignore[reportAttributeAccessIssue]  # its stubs are older
)
from kafka.structs import TopicPartition

from coordlog.errors import AccessError, OptionError, OutOfRangeError, TopicError
from coordlog.limits import LOG_CONNECT_TIMEOUT_S, READ_STALL_S
from coordlog.log.interface import LogIdentity, LogWriter, StoredRecord
from coordlog.log.job_id import JOB_ID, check_job_id
from coordlog.log.kafka.admin_compat import cluster_of, settings_of
from coordlog.log.kafka.client import Connection, Questions
from coordlog.log.kafka.default_broker import default_broker
from coordlog.log.kafka.errors import refuse_old
from coordlog.log.kafka.reader import IdleConsumer, read_range
from coordlog.log.kafka.security import Security
from coordlog.log.kafka.topic import (
    TIMESTAMP_BOUNDS,
    Durability,
    FoundTopic,
    check_partitions,
    check_topic,
    settings_to_create,
)
from coordlog.log.kafka.writer import KafkaWriter
from coordlog.option_types import check_all, check_types

__all__ = ["KafkaLog", "list_jobs", "topic_of"]

_logging = logging.getLogger(__name__)

_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]{0,100}")
_TOPIC: Final = re.compile(rf"({JOB_ID})\.log")
_REPLICATION_MAX: Final = 3
_REPLICAS_THAT_ALL_ACK: Final = 2
"""As many as `min.insync.replicas`: without any one of them nothing is appended."""
_TIMESTAMP_BOUNDS_SINCE: Final = (3, 6)
"""First Kafka release with the settings `TIMESTAMP_BOUNDS`: an older broker refuses them, and sets no bounds."""

_NO_TOPIC: Final = 3  # UNKNOWN_TOPIC_OR_PARTITION
_POLL_S: Final = 0.05


class KafkaLog:
    """One topic with one partition. The broker is not contacted before the first use.

    `create` creates the topic if there is none; `open` refuses a missing topic. Both check its
    settings. Other methods call `open` first if that is still to be done. `open_to_read` is for
    readers that never append.

    Args:
        topic: The topic's name.
        bootstrap_servers: `host:port`, several with commas between.
        security: TLS and SASL.
        fsync: Whether the broker of a topic with one replica must write a record to disk before it
            acknowledges the record.
        replication: Number of replicas if the topic is created. None: one for each broker, at most 3.
        retention_ms: Time for which the broker must keep records, in milliseconds; -1 for ever.
        connect_timeout_s: Longest wait for the answer to a request, in seconds.

    Raises:
        OptionError: An option has a wrong type or is out of range.
        OptionsError: Several options have a wrong type or are out of range.
    """

    def __init__(
        self,
        topic: str,
        bootstrap_servers: str,
        *,
        security: Security | None = None,
        fsync: bool = True,
        replication: int | None = None,
        retention_ms: int = -1,
        connect_timeout_s: float = LOG_CONNECT_TIMEOUT_S,
    ) -> None:
        check_types(KafkaLog.__init__, locals())
        check_all(
            lambda: _check_replication(replication),
            lambda: _check_timeout(connect_timeout_s),
            lambda: _check_retention(retention_ms),
        )
        self._connection = Connection(
            topic=topic,
            bootstrap_servers=bootstrap_servers,
            security=security or Security(),
            connect_timeout_s=connect_timeout_s,
        )
        self.job_id: str | None = None
        """Job of the log, if `for_job` created it."""
        self._durability = Durability(fsync=fsync, retention_ms=retention_ms)
        self._replication = replication
        self._questions = Questions(self._connection)
        self._idle = IdleConsumer()
        weakref.finalize(self, self._idle.free)
        self._partition = TopicPartition(topic, 0)
        self._lock = threading.Lock()
        self._identity: LogIdentity | None = None
        self._has_unchecked_settings = False

    @classmethod
    def for_job(
        cls,
        job_id: str,
        bootstrap_servers: str | None = None,
        *,
        topic_prefix: str = "",
        security: Security | None = None,
        fsync: bool = True,
        replication: int | None = None,
        retention_ms: int = -1,
        connect_timeout_s: float = LOG_CONNECT_TIMEOUT_S,
    ) -> KafkaLog:
        """The log of a job: topic `<topic_prefix><job_id>.log`.

        Without `bootstrap_servers` the log uses the same broker as the command line: that of
        `COORDLOG_BOOTSTRAP_SERVERS`, with the security options of the environment; or, if the
        variable is not set, the shared local broker, which is started if it does not run.

        Raises:
            OptionError: An option is out of range.
            EnvironmentSetupError, BrokerError: The shared broker is needed, and cannot be started.
        """
        check_types(cls.for_job, locals())
        check_job_id(job_id)
        if bootstrap_servers is None:
            bootstrap_servers, default_security = default_broker()
            security = default_security if security is None else security
        log = cls(
            topic_of(job_id, topic_prefix),
            bootstrap_servers,
            security=security,
            fsync=fsync,
            replication=replication,
            retention_ms=retention_ms,
            connect_timeout_s=connect_timeout_s,
        )
        log.job_id = job_id
        return log

    def __repr__(self) -> str:
        return f"KafkaLog({self._connection.name!r}, {self._connection.security!r})"

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._connection.topic

    @property
    def bootstrap_servers(self) -> str:
        """The broker's addresses, as passed."""
        return self._connection.bootstrap_servers

    @property
    def identity(self) -> LogIdentity:
        """The log's identity when it was opened."""
        with self._lock:
            if self._identity is not None:
                return self._identity
        return self.open()

    def find(self) -> bool:
        """Whether the topic exists. Does not check its settings.

        Raises:
            LogUnavailableError, AccessError: As `open`.
        """
        _, described = self._questions.ask("opening it", self._describe, needs="Describe")
        return bool(described["error_code"] != _NO_TOPIC)

    def open(self) -> LogIdentity:
        """Check that the topic exists, and that its settings keep every record.

        Raises:
            TopicError: The topic is missing, or a setting is not fit for a history, or the broker is too old.
            LogUnavailableError: No answer within `connect_timeout_s`.
            AccessError: The broker refuses the user, or the user lacks a right; or the broker is not trusted.
        """
        identity, partitions = self._identify()
        settings = self._questions.ask(
            "asking for its settings",
            lambda admin: settings_of(admin, self.topic),
            needs="DescribeConfigs",
        )
        topic = FoundTopic(
            name=self.topic,
            partition_count=len(partitions),
            replication=len(partitions[0]["replica_nodes"]),
            settings=settings,
        )
        check_topic(topic, self._durability, self._connection.bootstrap_servers)
        return self._opened(identity, has_unchecked_settings=False)

    def open_to_read(self) -> LogIdentity:
        """Check that the topic exists, but not its settings: reading needs no particular ones.

        The settings are checked later, as in `open`, before a record is appended or removed.

        Raises:
            TopicError: The topic is missing, or has several partitions and no record in the first, or the broker is
                too old.
            LogUnavailableError, AccessError: As `open`.
        """
        identity, partitions = self._identify()
        self._opened(identity, has_unchecked_settings=True)
        # Partitions may have been added to a history, which is whole in the first one.
        if len(partitions) > 1 and self.start_offset() == self.high_watermark():
            with self._lock:
                self._identity = None
            check_partitions(self.topic, len(partitions))
        return identity

    def _identify(self) -> tuple[LogIdentity, list[dict[str, Any]]]:
        """The topic's identity, and its partitions."""
        cluster_id, described = self._questions.ask("opening it", self._describe, needs="Describe")
        if described["error_code"] == _NO_TOPIC:
            raise TopicError(
                self.topic,
                f"there is no such topic at {self._connection.bootstrap_servers}",
                "check that the job's name and the broker's address are right, or start the job: a program "
                "calls `create()` of its `KafkaLog` first",
            )
        identity = LogIdentity(
            cluster_id=str(cluster_id),
            topic_id=str(described["topic_id"]),
            name=self._connection.name,
            topic=self.topic,
        )
        return identity, described["partitions"]

    def _opened(self, identity: LogIdentity, *, has_unchecked_settings: bool) -> LogIdentity:
        with self._lock:
            self._identity = identity
            self._has_unchecked_settings = has_unchecked_settings
        return identity

    def _check_before_change(self) -> None:
        """Check the settings before a change, if the log was opened by `open_to_read`, and that it is the same log."""
        with self._lock:
            has_unchecked_settings, identity = self._has_unchecked_settings, self._identity
        if has_unchecked_settings and self.open() != identity:
            raise self._made_again()

    def create(self) -> LogIdentity:
        """Create the topic if it does not exist, then open the log.

        Raises:
            TopicError: As `open`; or the broker refuses to create the topic, for the reason in the error.
            LogUnavailableError, AccessError: As `open`.
        """
        if not self.find():
            try:
                self._questions.ask("creating its topic", self._create, needs="Create")
            except AccessError as error:
                how = f"{error.next_step}; or: {self._creating_command()}"
                raise AccessError(error.log, error.problem, how) from error
        return self.open()

    def _creating_command(self) -> str:
        replication = self._replication or _REPLICATION_MAX
        settings = settings_to_create(self._durability, replication)
        configs = "".join(f" --config {name}={value}" for name, value in settings.items())
        return (
            f"kafka-topics.sh --bootstrap-server {self._connection.bootstrap_servers} --create"
            f" --topic {self.topic} --partitions 1 --replication-factor {replication}{configs}"
        )

    def delete(self) -> None:
        """Remove the topic, if there is one, with all its records, and wait until it is gone.

        Raises:
            LogUnavailableError: The topic is not gone within `connect_timeout_s`.
        """
        self._idle.free()
        self._questions.ask("deleting its topic", self._delete, needs="Delete")
        self._questions.saw_topic(is_there=False)
        with self._lock:
            self._identity = None

    def start_offset(self) -> int:
        """As in `Log`."""
        return self._offsets(OffsetSpec.EARLIEST)[0]

    def high_watermark(self) -> int:
        """As in `Log`."""
        # With read_uncommitted, the latest offset is the high watermark.
        return self._offsets(OffsetSpec.LATEST)[0]

    def read(
        self, from_offset: int, to_offset: int, *, stall_s: float | None = None
    ) -> Iterator[StoredRecord]:
        """As in `Log`. Topic and range are checked at once; the records are fetched during the iteration."""
        start, end = self._limits()
        if not start <= from_offset <= to_offset <= end:
            wrong = from_offset if from_offset < start else to_offset
            raise OutOfRangeError(self._connection.name, wrong, start, end)
        stall_s = READ_STALL_S if stall_s is None else stall_s
        return read_range(
            self._connection, self._idle, from_offset, to_offset, stall_s, self._limits
        )

    def _limits(self) -> tuple[int, int]:
        start, end = self._offsets(OffsetSpec.EARLIEST, OffsetSpec.LATEST)
        return start, end

    def _offsets(self, *specs: OffsetSpec) -> tuple[int, ...]:
        """These offsets, of the topic that was opened.

        Raises:
            TopicError: It was deleted and made again since then: what it holds is another history.
        """
        identity = self.identity
        offsets = tuple(self._offset(spec) for spec in specs)
        _, described = self._questions.ask("asking for its id", self._describe, needs="Describe")
        is_there = described["error_code"] != _NO_TOPIC
        if is_there and str(described["topic_id"]) != identity.topic_id:
            raise self._made_again()
        return offsets

    def _made_again(self) -> TopicError:
        return TopicError(
            self.topic,
            f"it was deleted and made again at {self._connection.bootstrap_servers} since it was opened here, and "
            "holds another history",
            "run the same command again to use that one",
        )

    def writer(self) -> LogWriter:
        """As in `Log`. The writer connects at its first append.

        Raises:
            TopicError, LogUnavailableError, AccessError: As `open`, if the log was opened to be read.
        """
        self._check_before_change()
        return KafkaWriter(self._connection)

    def delete_below(self, offset: int) -> None:
        """As in `Log`. Refuses a topic whose settings would lose history, as `open` does."""
        self._check_before_change()
        start, end = self._limits()
        if offset > end:
            raise OutOfRangeError(self._connection.name, offset, start, end)
        if offset > start:
            partition = self._partition

            def delete(admin: Any) -> None:  # noqa: ANN401, the client has no types
                admin.delete_records({partition: offset})

            self._questions.ask("deleting records", delete, needs="Delete")

    def close(self) -> None:
        """As in `Log`."""
        self._questions.close()
        self._idle.free()

    def _offset(self, spec: OffsetSpec) -> int:
        partition = self._partition

        def question(admin: Any) -> int:  # noqa: ANN401, the client has no types
            offset: int = admin.list_partition_offsets({partition: spec})[partition].offset
            return offset

        return self._questions.ask("asking for its offsets", question, needs="Describe")

    def _describe(self, admin: Any) -> tuple[str, dict[str, Any]]:  # noqa: ANN401
        servers = self._connection.bootstrap_servers
        refuse_old(self.topic, servers, admin._manager.broker_version_data)  # noqa: SLF001, not public
        described = admin.describe_topics([self.topic])[0]
        if described["error_code"] == _NO_TOPIC and not self._questions.has_just_seen_topic:
            return "", described
        if described["error_code"] != 0 or not described["partitions"]:
            raise errors.for_code(described["error_code"] or errors.LeaderNotAvailableError.errno)(
                "described"
            )
        self._questions.saw_topic(is_there=True)
        return cluster_of(admin)["cluster_id"], described

    def _create(self, admin: Any) -> None:  # noqa: ANN401
        if admin.describe_topics([self.topic])[0]["error_code"] != _NO_TOPIC:
            # An earlier try may have made it just now: another broker may not know it yet.
            self._questions.saw_topic(is_there=True)
            return
        replication = self._replication
        if replication is None:
            replication = min(_REPLICATION_MAX, len(cluster_of(admin)["brokers"]))
        configs = settings_to_create(self._durability, replication)
        if admin._manager.broker_version < _TIMESTAMP_BOUNDS_SINCE:  # noqa: SLF001, not public
            configs = {
                name: value for name, value in configs.items() if name not in TIMESTAMP_BOUNDS
            }
        new_topic = {"num_partitions": 1, "replication_factor": replication, "configs": configs}
        try:
            admin.create_topics({self.topic: new_topic})
        except errors.TopicAlreadyExistsError:
            pass  # another driver has created it; `open` checks the topic
        except (
            errors.InvalidReplicationFactorError,
            errors.InvalidConfigurationError,
            errors.PolicyViolationError,
            errors.InvalidTopicError,
        ) as error:
            raise TopicError(
                self.topic,
                f"the broker refuses to create it with {replication} replicas ({error})",
                "choose what it allows, or let its administrator create the topic",
            ) from error
        else:
            _logging.info("created topic=%s replication=%d", self.topic, replication)
            if self._replication is None and replication == _REPLICAS_THAT_ALL_ACK:
                _logging.warning(
                    "topic %s has 2 replicas, one for each broker that runs, and an append needs both: if the cluster "
                    "has more brokers, give the topic a third one by kafka-reassign-partitions.sh",
                    self.topic,
                )
        self._questions.saw_topic(is_there=True)
        admin.wait_for_topics([self.topic], timeout_ms=self._connection.connect_timeout_s * 1000)

    def _delete(self, admin: Any) -> None:  # noqa: ANN401
        try:
            admin.delete_topics([self.topic])
        except errors.UnknownTopicOrPartitionError:
            return
        # `Questions` bounds this loop from outside, and closes the client during it.
        while admin.describe_topics([self.topic])[0]["error_code"] != _NO_TOPIC:
            time.sleep(_POLL_S)


def topic_of(job_id: str, topic_prefix: str = "") -> str:
    """The topic of a job's log.

    Raises:
        OptionError: The prefix cannot begin a topic's name.
    """
    _check_prefix(topic_prefix)
    return f"{topic_prefix}{job_id}.log"


def list_jobs(
    bootstrap_servers: str,
    *,
    topic_prefix: str = "",
    security: Security | None = None,
    connect_timeout_s: float = LOG_CONNECT_TIMEOUT_S,
) -> tuple[str, ...]:
    """The ids of the jobs that have a log with this prefix at these brokers, sorted.

    The broker leaves out topics that the user may not see.

    Raises:
        OptionError: The prefix cannot begin a topic's name.
        LogUnavailableError: No answer within `connect_timeout_s`.
    """
    _check_prefix(topic_prefix)
    connection = Connection(
        topic="(all topics)",
        bootstrap_servers=bootstrap_servers,
        security=security or Security(),
        connect_timeout_s=connect_timeout_s,
    )
    questions = Questions(connection)
    try:
        names: list[str] = questions.ask("listing jobs", lambda admin: admin.list_topics())
    finally:
        questions.close()
    ours = [name.removeprefix(topic_prefix) for name in names if name.startswith(topic_prefix)]
    return tuple(sorted(match[1] for name in ours if (match := _TOPIC.fullmatch(name))))


def _check_prefix(topic_prefix: str) -> None:
    if not _PREFIX.fullmatch(topic_prefix):
        raise OptionError("topic_prefix", topic_prefix, "at most 100 of [A-Za-z0-9._-]")


def _check_replication(replication: int | None) -> None:
    if replication is not None and replication < 1:
        raise OptionError("replication", replication, "1 or more")


def _check_timeout(connect_timeout_s: float) -> None:
    if connect_timeout_s <= 0:
        raise OptionError("connect_timeout_s", connect_timeout_s, "above 0")


def _check_retention(retention_ms: int) -> None:
    if retention_ms < -1:
        raise OptionError("retention_ms", retention_ms, "-1 for ever, or milliseconds")
