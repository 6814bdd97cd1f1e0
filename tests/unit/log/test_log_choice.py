"""The broker of a job's log, and how it is reached, if a user gives a part of it or nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from coordlog.cli import log_access as logs
from coordlog.errors import OptionError
from coordlog.log.broker import shared as shared_broker
from coordlog.log.kafka import KafkaLog, Security, default_broker, list_jobs
from coordlog.spark_integration.driver.log_choice import LogChoice

ENVIRONMENT = {
    "COORDLOG_KAFKA_PROTOCOL": "SASL_SSL",
    "COORDLOG_KAFKA_SASL_MECHANISM": "PLAIN",
    "COORDLOG_KAFKA_SASL_USERNAME": "loader",
    "COORDLOG_KAFKA_SASL_PASSWORD": "secret",
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path))
    monkeypatch.delenv("COORDLOG_BOOTSTRAP_SERVERS", raising=False)


@pytest.fixture
def secured(monkeypatch: pytest.MonkeyPatch) -> Security:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return Security.load(ENVIRONMENT)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> str:
    """A shared broker that is said to run."""
    servers = "127.0.0.1:4711"
    address = SimpleNamespace(bootstrap_servers=servers)
    monkeypatch.setattr(shared_broker, "ensure_shared_broker", lambda: address)
    monkeypatch.setattr(shared_broker, "shared_status", lambda: address)
    return servers


def security_of(log: object) -> Security:
    assert isinstance(log, KafkaLog)
    return log._connection.security


@pytest.fixture
def uncreated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KafkaLog, "create", lambda _log: None)


@pytest.mark.usefixtures("uncreated")
def test_a_named_broker_is_reached_with_the_environments_security_options(
    secured: Security,
) -> None:
    log = LogChoice("orders", "kafka-1:9093", None).open()
    assert security_of(log) == secured
    assert isinstance(log, KafkaLog)
    assert log.bootstrap_servers == "kafka-1:9093"


@pytest.mark.usefixtures("uncreated", "secured")
def test_the_shared_broker_is_reached_without_options_that_are_for_others(shared: str) -> None:
    assert security_of(LogChoice("orders", shared, None).open()) == Security()


def test_a_log_without_a_broker_is_at_the_shared_one_as_that_of_a_command(shared: str) -> None:
    log = KafkaLog.for_job("orders")
    assert (log.topic, log.bootstrap_servers) == ("orders.log", shared)


@pytest.mark.usefixtures("secured")
def test_the_shared_broker_asks_a_log_without_a_broker_for_no_password(shared: str) -> None:
    log = KafkaLog.for_job("orders")
    assert (log.bootstrap_servers, security_of(log)) == (shared, Security())


def test_a_log_without_a_broker_is_at_the_one_that_the_environment_names(
    shared: str, secured: Security, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_broker.SERVERS_VARIABLE == logs.SERVERS_VARIABLE
    monkeypatch.setenv(logs.SERVERS_VARIABLE, "kafka-1:9093")
    log = KafkaLog.for_job("orders", topic_prefix="team.")
    assert (log.topic, log.bootstrap_servers) == ("team.orders.log", "kafka-1:9093")
    assert security_of(log) == secured
    assert security_of(KafkaLog.for_job("orders", security=Security())) == Security()
    assert shared != log.bootstrap_servers


def test_a_choice_of_nothing_names_the_log_of_the_shared_broker() -> None:
    with pytest.raises(
        OptionError,
        match=r"`KafkaLog\.for_job\(job\)`, after its `create\(\)`, is that of the shared",
    ):
        LogChoice("orders", None, None)


@pytest.mark.parametrize(
    "servers",
    [
        "",
        ",",
        "host",
        "host:0",
        "host:99999",
        "a b:1",
        "http://host:1",
        "::1:9092",
        "host:1,",
        "h:x",
    ],
)
def test_what_is_no_address_of_a_broker_is_refused_before_it_is_waited_for(servers: str) -> None:
    with pytest.raises(OptionError, match="it must be HOST:PORT"):
        KafkaLog.for_job("orders", servers)
    with pytest.raises(OptionError, match="it must be HOST:PORT"):
        list_jobs(servers, connect_timeout_s=0.001)


@pytest.mark.parametrize("servers", ["h:1", "h-1.x:9092, h_2:9093", "[::1]:9092", "10.0.0.7:65535"])
def test_addresses_of_brokers_are_taken(servers: str) -> None:
    assert KafkaLog.for_job("orders", servers).bootstrap_servers == servers


def test_a_password_among_the_addresses_is_not_shown() -> None:
    with pytest.raises(OptionError, match="hidden") as caught:
        KafkaLog.for_job("orders", "me:secret@host:9092")
    assert "secret" not in str(caught.value)


def test_a_prefix_that_no_topic_can_have_is_refused_before_jobs_are_listed() -> None:
    with pytest.raises(OptionError, match=r"topic_prefix is 'x y'; it must be at most 100 of"):
        list_jobs("localhost:1", topic_prefix="x y", connect_timeout_s=0.1)
