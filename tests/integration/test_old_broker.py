"""A broker that is too old for a log is refused by its number, before anything is asked of it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from kafka.protocol.api_key import ApiKey
from kafka.protocol.broker_version_data import BrokerVersionData

from coordlog.cli.main import main
from coordlog.errors import TopicError
from coordlog.log.kafka import KafkaLog
from coordlog.log.kafka.access import OLDEST_BROKER, refuse_old
from old_broker import broker_of_version

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("version", [(2, 7), (1, 1), (0, 11)])
def test_a_broker_without_ids_of_topics_is_refused_by_number(version: tuple[int, ...]) -> None:
    number = ".".join(map(str, version))
    with broker_of_version(version) as servers:
        log = KafkaLog("a.log", servers)
        with pytest.raises(TopicError, match=f"is Kafka {number}, .* use Kafka 2.8 or newer"):
            log.create()
        log.close()
        command = ["history", "a", "--bootstrap-servers", servers]
        result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert f"is Kafka {number}" in result.stderr


def test_the_oldest_that_is_named_is_not_refused() -> None:
    major, minor = map(int, OLDEST_BROKER.split("."))
    refuse_old("a.log", "there", BrokerVersionData((major, minor)))
    with pytest.raises(TopicError):
        refuse_old("a.log", "there", BrokerVersionData((major, minor - 1)))


def test_a_broker_without_idempotent_producers_is_refused() -> None:
    """Kafka 2.8.2 without ZooKeeper, as it was seen."""
    known = BrokerVersionData((2, 8)).api_versions or {}
    without = {key: versions for key, versions in known.items() if key != ApiKey.InitProducerId}
    with pytest.raises(TopicError, match=r"is Kafka 2\.8, without InitProducerId"):
        refuse_old("a.log", "there", BrokerVersionData(api_versions=without))
