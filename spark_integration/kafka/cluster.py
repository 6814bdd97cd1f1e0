"""Queries of a Kafka source to its cluster: partitions and offsets."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from kafka import errors
from kafka.protocol.consumer.offsets import IsolationLevel, OffsetSpec
from kafka.structs import TopicPartition

from coordlog.errors import (
    AccessError,
    LogError,
    LogUnavailableError,
    OutOfRangeError,
    RecordError,
    SourceError,
    TopicError,
)
from coordlog.limits import LOG_CONNECT_TIMEOUT_S
from coordlog.log.kafka import KafkaLog, Security
from coordlog.log.kafka.client import Connection, Questions

__all__ = [
    "SPREAD_PAUSES_S",
    "Cluster",
    "FoundTopic",
    "Isolation",
    "Partition",
    "Starting",
    "named",
]

Partition = tuple[str, int]
"""A topic's name, and the number of one of its partitions."""

Isolation = Literal["read_committed", "read_uncommitted"]

Starting = Literal["earliest", "latest"] | datetime | Mapping[Partition, int]
"""Start of reading in the first listing."""

SPREAD_PAUSES_S: Final = (0.5, 0.5, 1.0)
"""Pauses between questions for a new topic: all brokers of a cluster know it within a second, even under load."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_NO_TOPIC: Final = errors.UnknownTopicOrPartitionError.errno
_NOT_ALLOWED: Final = errors.TopicAuthorizationFailedError.errno


def named(partition: Partition) -> str:
    """Text of a partition for messages and ids: `TOPIC/NUMBER`."""
    return f"{partition[0]}/{partition[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTopic:
    """A topic that exists."""

    name: str
    topic_id: str
    """UUID of the topic; empty if the cluster gives none."""
    partitions: tuple[int, ...]
    is_internal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster of topics, and the options to connect to it. Pickles. Each method blocks, within `timeout_s`."""

    bootstrap_servers: str
    security: Security = field(default_factory=Security, repr=False)
    isolation: Isolation = "read_committed"
    timeout_s: float = LOG_CONNECT_TIMEOUT_S
    _is_job_log: dict[str, bool] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Whether a topic is the log of a job, by its id: it stays so once it has a record."""

    @property
    def connection(self) -> Connection:
        """Options of clients of kafka-python."""
        return Connection(
            topic="topics",
            bootstrap_servers=self.bootstrap_servers,
            security=self.security,
            connect_timeout_s=self.timeout_s,
        )

    def topics(self, names: Sequence[str], pattern: str | None) -> dict[str, FoundTopic]:
        """Those of `names` that exist, and all that match `pattern` as a whole but internal topics and logs of jobs.

        Raises:
            SourceError: The cluster does not answer, or does not let this user see a topic.
        """

        def question(admin: Any) -> list[dict[str, Any]]:  # noqa: ANN401, its stubs are older
            wanted = set(names)
            if pattern is not None:
                wanted.update(name for name in admin.list_topics() if re.fullmatch(pattern, name))
            described: list[dict[str, Any]] = (
                admin.describe_topics(sorted(wanted)) if wanted else []
            )
            for topic in described:
                code = int(topic["error_code"])
                if code not in {0, _NO_TOPIC, _NOT_ALLOWED}:
                    raise errors.for_code(code)(str(topic["name"]))
            return described

        topics_found: dict[str, FoundTopic] = {}
        for topic in self._ask("listing topics", question):
            name, code = str(topic["name"]), int(topic["error_code"])
            if code == _NOT_ALLOWED:
                raise SourceError(
                    f"topic {name} at {self.bootstrap_servers}",
                    "the broker does not let this user see it",
                    "check that the security options and the user's rights are right",
                )
            is_internal = bool(topic["is_internal"])
            if code == 0 and (name in names or not is_internal):
                topics_found[name] = FoundTopic(
                    name=name,
                    topic_id=topic_id_text(topic.get("topic_id")),
                    partitions=tuple(
                        sorted(int(entry["partition_index"]) for entry in topic["partitions"])
                    ),
                    is_internal=is_internal,
                )
        return {
            name: topic
            for name, topic in topics_found.items()
            if name in names or not self._may_be_job_log(topic)
        }

    def _may_be_job_log(self, topic: FoundTopic) -> bool:
        """Whether a topic is the log of a job, by its name and its first record; or may become one: it has no record.

        The source of the job `orders` by the pattern `orders.*` would read `orders.log`, which grows as it is read.
        """
        known = self._is_job_log.get(topic.topic_id)
        if known is not None:
            return known
        if not topic.name.endswith(".log"):
            return False
        log = KafkaLog(
            topic.name,
            self.bootstrap_servers,
            security=self.security,
            connect_timeout_s=self.timeout_s,
        )
        try:
            if not self._is_known(log):
                return True  # it has been deleted
            log.open_to_read()
            start, end = log.start_offset(), log.high_watermark()
            if start == end:
                return True
            is_log = _begins_as_log(log, start, end, self.timeout_s)
        except (LogUnavailableError, OutOfRangeError) as error:
            raise SourceError(
                f"topic {topic.name} at {self.bootstrap_servers}",
                f"its first record is not known: {error}",
                "check that its broker runs and can be reached, then run the same command again",
            ) from error
        except (LogError, RecordError):
            return False  # its reader reports why it cannot be read
        finally:
            log.close()
        # A cluster without ids may have another topic of this name later.
        if topic.topic_id:
            self._is_job_log[topic.topic_id] = is_log
        return is_log

    def _is_known(self, log: KafkaLog) -> bool:
        """Whether a topic exists that a broker has listed: another one may not know it yet."""
        for pause_s in SPREAD_PAUSES_S:
            if log.find():
                return True
            self.pause(pause_s)
        return log.find()

    def pause(self, seconds: float) -> None:
        """Wait before the next query."""
        time.sleep(seconds)

    def beginnings(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first existing offset of each partition."""
        return self._offsets(partitions, OffsetSpec.EARLIEST)

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset after the last that may be read now: with `read_committed` the last stable one."""
        return self._offsets(partitions, OffsetSpec.LATEST)

    def written(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset after the last record, also after those of transactions that are still open."""
        return self._offsets(partitions, OffsetSpec.LATEST, isolation="read_uncommitted")

    def since(
        self, partitions: Iterable[Partition], moment: datetime
    ) -> dict[Partition, int | None]:
        """The first offset whose record is not older than `moment`; None if there is none.

        Also if it may not be read yet: the records before it are older, whatever becomes of them.
        """
        offsets = self._offsets(partitions, _first_ms(moment), isolation="read_uncommitted")
        return {partition: offset if offset >= 0 else None for partition, offset in offsets.items()}

    def _offsets(
        self,
        partitions: Iterable[Partition],
        spec: OffsetSpec | int,
        *,
        isolation: Isolation | None = None,
    ) -> dict[Partition, int]:
        # By the admin client: a consumer leaves out partitions without a leader, without an error.
        wanted = {TopicPartition(*partition): spec for partition in partitions}
        if not wanted:
            return {}
        level = IsolationLevel.build_from(isolation or self.isolation)

        def question(admin: Any) -> dict[Partition, int]:  # noqa: ANN401, its stubs are older
            answer = admin.list_partition_offsets(dict(wanted), isolation_level=level)
            missing = set(wanted) - set(answer)
            if missing:
                raise errors.LeaderNotAvailableError(str(min(missing)))
            return {(key.topic, key.partition): int(answer[key].offset) for key in wanted}

        offsets: dict[Partition, int] = self._ask("asking for offsets", question)
        return offsets

    def _ask(self, doing: str, question: Any) -> Any:  # noqa: ANN401, typed where it is called
        questions = Questions(self.connection)
        try:
            return questions.ask(doing, question)
        except LogUnavailableError as error:
            raise SourceError(
                f"Kafka at {self.bootstrap_servers}",
                f"no answer for {error.waited_s:.1f} s while {doing} (last: {error.last_error})",
                "check that its broker runs and can be reached, then run the same command again",
            ) from error
        except (AccessError, TopicError) as error:
            raise SourceError(
                f"Kafka at {self.bootstrap_servers}", error.problem, error.next_step
            ) from error
        finally:
            questions.close()


def _begins_as_log(log: KafkaLog, start: int, end: int, limit_s: float) -> bool:
    """Whether the first record has the header of a log. Raises as `KafkaLog.read`."""
    try:
        first = next(log.read(start, end, stall_s=limit_s), None)
    except LogUnavailableError:
        log.high_watermark()  # if the broker answers this, compaction has removed all records
        return False
    return first is not None and first.header is not None


def _first_ms(moment: datetime) -> int:
    """The first whole millisecond that is not before `moment`: records have no finer times."""
    return -((_EPOCH - moment) // _MS)


def topic_id_text(value: object) -> str:
    """A topic's id as text; empty for None, and for the id of zeros, which means none."""
    text = "" if value is None else str(value)
    return text if text.strip("0-") else ""
