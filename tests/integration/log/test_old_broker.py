"""A broker that is too old for a log is refused by its number, before anything is asked of it.

`make test-old-broker` runs the last test on real brokers of older versions.
"""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from kafka.protocol.api_key import ApiKey
from kafka.protocol.broker_version_data import BrokerVersionData

from coordlog.cli.main import main
from coordlog.errors import TopicError
from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.kafka import KafkaLog
from coordlog.log.kafka.errors import OLDEST_BROKER, refuse_old
from servers.old_broker import broker_of_version

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("version", [(2, 8), (2, 7), (1, 1), (0, 11)])
def test_a_broker_that_is_too_old_is_refused_by_number(version: tuple[int, ...]) -> None:
    number = ".".join(map(str, version))
    with broker_of_version(version) as servers:
        log = KafkaLog("a.log", servers)
        with pytest.raises(TopicError, match=f"is Kafka {number}, .* use Kafka 3.0 or newer"):
            log.create()
        log.close()
        command = ["history", "a", "--bootstrap-servers", servers]
        result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert f"is Kafka {number}" in result.stderr


def test_the_oldest_that_is_named_is_not_refused() -> None:
    """By the client's own table; `make test-old-broker` asks brokers."""
    major, minor = map(int, OLDEST_BROKER.split("."))
    refuse_old("a.log", "there", BrokerVersionData((major, minor)))


def test_a_broker_without_idempotent_producers_is_refused() -> None:
    """As Kafka 2.8 is without ZooKeeper."""
    known = BrokerVersionData((2, 8)).api_versions or {}
    without = {key: versions for key, versions in known.items() if key != ApiKey.InitProducerId}
    with pytest.raises(TopicError, match=r"is Kafka 2\.8, without InitProducerId"):
        refuse_old("a.log", "there", BrokerVersionData(api_versions=without))


REFUSED = {
    "2.7.2": r"is Kafka 2\.7, whose Metadata ends at version 9",
    "2.8.0": r"is Kafka 2\.8, which needs a ZooKeeper",
    "2.8.0-kraft": r"is Kafka 2\.8, without InitProducerId",
}
"""Brokers that `--broker` names; all others are taken."""


@pytest.mark.kafka
def test_the_broker_of_the_run_is_taken_or_refused_as_the_docs_say(
    broker: EmbeddedBroker, pytestconfig: pytest.Config
) -> None:
    why = REFUSED.get(pytestconfig.option.broker)
    log = KafkaLog.for_job("of-the-run", broker.bootstrap_servers)
    try:
        if why is None:
            assert log.create().topic_id
            assert log.high_watermark() == 0
            log.delete()
        else:
            with pytest.raises(
                TopicError, match=f"{why}.*use Kafka 3.0 or newer, without ZooKeeper"
            ):
                log.create()
    finally:
        log.close()
