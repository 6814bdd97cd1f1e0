"""Settings of a log's topic: those of a new topic, and checks of an existing one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from coordlog.errors import TopicError
from coordlog.limits import RECORD_BYTES_MAX

__all__ = [
    "TIMESTAMP_BOUNDS",
    "Durability",
    "FoundTopic",
    "Rule",
    "check_partitions",
    "check_topic",
    "command_to_set",
    "settings_to_create",
    "unfit_settings",
]

TIMESTAMP_BOUNDS: Final = frozenset(
    {"message.timestamp.after.max.ms", "message.timestamp.before.max.ms"}
)
"""Settings that brokers have since Kafka 3.6."""

_READABLE: Final = frozenset({"producer", "uncompressed", "gzip"})
"""Compressions by the broker that need no package: drivers do not compress."""
_FOREVER: Final = -1
_LONG_MAX: Final = 2**63 - 1
_MESSAGE_BYTES: Final = 1_048_588
_MESSAGE_BYTES_MIN: Final = RECORD_BYTES_MAX + 4096
"""With room for the key, the header and the batch around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durability:
    """The user's requirements of a topic."""

    fsync: bool = True
    """Whether a record must be on disk before it is acknowledged, if there is one replica."""
    retention_ms: int = _FOREVER
    """Milliseconds for which the broker must keep records at least; -1 for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTopic:
    """A topic as its broker describes it."""

    name: str
    partition_count: int
    replication: int
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Rule:
    """Requirement of one setting."""

    setting: str
    wanted: str
    fits: Callable[[str], bool]
    why: str


def _rules(wanted: Durability, replication: int) -> list[Rule]:
    retention = str(wanted.retention_ms)
    return [
        Rule("cleanup.policy", "delete", lambda v: v == "delete", "compaction removes records"),
        Rule(
            "retention.ms",
            retention,
            lambda v: int(v) == _FOREVER or _FOREVER < wanted.retention_ms <= int(v),
            "the broker removes older records",
        ),
        Rule(
            "retention.bytes",
            str(_FOREVER),
            lambda v: int(v) == _FOREVER,
            "the broker removes records above that size",
        ),
        Rule(
            "message.timestamp.type",
            "CreateTime",
            lambda v: v == "CreateTime",
            "the time of a turn would be lost",
        ),
        Rule(
            "message.timestamp.after.max.ms",
            str(_LONG_MAX),
            lambda v: int(v) == _LONG_MAX,
            "a driver whose clock is ahead could not append",
        ),
        Rule(
            "message.timestamp.before.max.ms",
            str(_LONG_MAX),
            lambda v: int(v) == _LONG_MAX,
            "older history could not be appended",
        ),
        Rule(
            "compression.type",
            "producer",
            lambda v: v in _READABLE,
            "the client of a driver or a command may lack the package to read the records",
        ),
        Rule(
            "max.message.bytes",
            str(_MESSAGE_BYTES),
            lambda v: int(v) >= _MESSAGE_BYTES_MIN,
            "records of the size that is allowed here would be refused",
        ),
        *_rules_of_copies(wanted, replication),
    ]


def _rules_of_copies(wanted: Durability, replication: int) -> list[Rule]:
    """The rules of what an acknowledged record has been written to."""
    if replication > 1:
        majority = replication // 2 + 1
        return [
            Rule(
                "unclean.leader.election.enable",
                "false",
                lambda v: v == "false",
                "a replica that has missed acknowledged records may become leader",
            ),
            Rule(
                "min.insync.replicas",
                str(majority),
                lambda v: int(v) >= majority,
                f"an acknowledged record may be on fewer than {majority} of {replication} replicas",
            ),
        ]
    if not wanted.fsync:
        return []
    return [
        Rule(
            "flush.messages",
            "1",
            lambda v: v == "1",
            "an acknowledged record may not be on disk yet (KafkaLog with fsync=False accepts that)",
        )
    ]


def settings_to_create(wanted: Durability, replication: int) -> dict[str, str]:
    """The settings of a new topic, by name."""
    return {rule.setting: rule.wanted for rule in _rules(wanted, replication)}


def unfit_settings(settings: Mapping[str, str], wanted: Durability, replication: int) -> list[Rule]:
    """The rules that a topic's settings break."""
    return [
        rule
        for rule in _rules(wanted, replication)
        # A setting that the broker does not have cannot do harm: the broker is older than the setting.
        if rule.setting in settings and not rule.fits(settings[rule.setting])
    ]


def command_to_set(bootstrap_servers: str, topic: str, settings: Mapping[str, str]) -> str:
    """The command of Kafka's own that sets these settings of a topic."""
    config = ",".join(f"{name}={value}" for name, value in settings.items())
    return (
        f"kafka-configs.sh --bootstrap-server {bootstrap_servers} --alter"
        f" --entity-type topics --entity-name {topic} --add-config {config}"
    )


def check_partitions(topic: str, count: int) -> None:
    """Refuse a topic that can hold no history.

    Raises:
        TopicError: It has more than one partition.
    """
    if count != 1:
        raise TopicError(
            topic,
            f"it has {count} partitions, and a history with one order needs one",
            "choose another name, or remove the topic if nothing in it is needed; if partitions were added to a job's "
            "log, run `coordlog export JOB FILE`, `coordlog delete JOB --keep-payloads` and "
            "`coordlog adopt JOB --from FILE`",
        )


def check_topic(topic: FoundTopic, wanted: Durability, bootstrap_servers: str) -> None:
    """Refuse a topic that could lose history, or become unreadable.

    Raises:
        TopicError: It names every wrong setting, its value, and the command that corrects them.
    """
    check_partitions(topic.name, topic.partition_count)
    wrong = unfit_settings(topic.settings, wanted, topic.replication)
    if wrong:
        problems = "; ".join(
            f"{rule.setting} is {topic.settings[rule.setting]}: {rule.why}" for rule in wrong
        )
        fixed = {rule.setting: rule.wanted for rule in wrong}
        raise TopicError(
            topic.name,
            problems,
            f"run {command_to_set(bootstrap_servers, topic.name, fixed)}",
        )
