"""Which settings of a topic are refused, without a broker."""

from __future__ import annotations

import pytest

from coordlog.errors import TopicError
from coordlog.log.kafka.topic import Durability, FoundTopic, check_topic, settings_to_create

LONG_MAX = str(2**63 - 1)
SINGLE = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": LONG_MAX,
    "message.timestamp.before.max.ms": LONG_MAX,
    "compression.type": "producer",
    "max.message.bytes": "1048588",
    "flush.messages": "1",
}
REPLICATED = {name: value for name, value in SINGLE.items() if name != "flush.messages"} | {
    "unclean.leader.election.enable": "false",
    "min.insync.replicas": "2",
}


def found(settings: dict[str, str], replication: int, partitions: int = 1) -> FoundTopic:
    return FoundTopic(
        name="ingest.log",
        partition_count=partitions,
        replication=replication,
        settings=settings,
    )


def check(settings: dict[str, str], replication: int = 1, wanted: Durability | None = None) -> None:
    check_topic(found(settings, replication), wanted or Durability(), "127.0.0.1:9092")


def test_a_new_topic_of_one_replica_is_on_disk_before_it_acknowledges() -> None:
    assert settings_to_create(Durability(), 1) == SINGLE


def test_a_new_topic_of_three_replicas_is_on_two_before_it_acknowledges() -> None:
    assert settings_to_create(Durability(), 3) == REPLICATED


@pytest.mark.parametrize(("replication", "majority"), [(2, 2), (3, 2), (4, 3), (5, 3)])
def test_above_half_of_the_replicas_must_have_a_record(replication: int, majority: int) -> None:
    wanted = settings_to_create(Durability(), replication)
    assert wanted["min.insync.replicas"] == str(majority)
    check(wanted, replication)
    with pytest.raises(TopicError, match=rf"fewer than {majority} of {replication}"):
        check(wanted | {"min.insync.replicas": str(majority - 1)}, replication)


def test_what_is_created_is_accepted() -> None:
    check(SINGLE, 1)
    check(REPLICATED, 3)
    check(REPLICATED | {"flush.messages": "9"}, 3)
    without = Durability(fsync=False, retention_ms=5)
    check(settings_to_create(without, 1), 1, without)
    assert "flush.messages" not in settings_to_create(without, 1)


def test_an_unclean_leader_is_refused_by_name() -> None:
    with pytest.raises(TopicError, match=r"unclean\.leader\.election\.enable is true"):
        check(REPLICATED | {"unclean.leader.election.enable": "true"}, 3)
    check(SINGLE | {"unclean.leader.election.enable": "true"}, 1)  # one replica elects no other


@pytest.mark.parametrize("codec", ["lz4", "snappy", "zstd"])
def test_a_compression_that_needs_a_package_is_refused(codec: str) -> None:
    with pytest.raises(TopicError, match=f"compression.type is {codec}: .*=producer"):
        check(SINGLE | {"compression.type": codec})
    for readable in ("gzip", "uncompressed"):
        check(SINGLE | {"compression.type": readable})


def test_a_setting_that_an_older_broker_does_not_know_does_no_harm() -> None:
    check({name: value for name, value in SINGLE.items() if "timestamp" not in name})


def test_the_refusal_says_what_to_run() -> None:
    with pytest.raises(TopicError) as caught:
        check(SINGLE | {"retention.ms": "5", "retention.bytes": "6"})
    assert str(caught.value) == (
        "topic ingest.log: retention.ms is 5: the broker removes older records; "
        "retention.bytes is 6: the broker removes records above that size; "
        "run kafka-configs.sh --bootstrap-server 127.0.0.1:9092 --alter --entity-type topics"
        " --entity-name ingest.log --add-config retention.ms=-1,retention.bytes=-1"
    )


def test_more_than_one_partition_is_refused() -> None:
    with pytest.raises(TopicError, match="it has 3 partitions") as caught:
        check_topic(found(SINGLE, 1, partitions=3), Durability(), "127.0.0.1:9092")
    # The adopted job needs its large payloads.
    assert "`coordlog delete JOB --keep-payloads`" in caught.value.next_step


@pytest.mark.parametrize(
    ("in_topic", "asked", "fits"),
    [
        ("-1", -1, True),
        ("-1", 10, True),
        ("10", 10, True),
        ("11", 10, True),
        ("9", 10, False),
        ("9", -1, False),
    ],
)
def test_retention_must_be_at_least_what_is_asked(in_topic: str, asked: int, *, fits: bool) -> None:
    settings, wanted = SINGLE | {"retention.ms": in_topic}, Durability(retention_ms=asked)
    if fits:
        check(settings, 1, wanted)
    else:
        with pytest.raises(TopicError, match=r"retention\.ms"):
            check(settings, 1, wanted)
