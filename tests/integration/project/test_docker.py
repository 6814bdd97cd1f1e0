"""The two ways to a broker in a container: docker-compose.yml, and what the other tests use."""

from __future__ import annotations

import os
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from servers.containers import docker_engine_or_skip, kafka_container

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.docker, pytest.mark.kafka, pytest.mark.slow]


def read_back(bootstrap_servers: str) -> bytes:
    """The value of a record that was just sent there."""
    topic = TopicPartition("hello", 0)
    producer = KafkaProducer(bootstrap_servers=bootstrap_servers)
    try:
        offset = producer.send(topic.topic, b"there and back", partition=0).get(60).offset
    finally:
        producer.close()
    consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers, consumer_timeout_ms=30_000)
    try:
        consumer.assign([topic])
        consumer.seek(topic, offset)
        value: bytes = next(consumer).value
    finally:
        consumer.close()
    return value


@pytest.fixture
def compose_port() -> Iterator[int]:
    """The port of a broker that `docker compose up` started, under a project name of its own."""
    docker_engine_or_skip()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    compose = ["docker", "compose", "--project-name", f"coordlog-test-{uuid.uuid4().hex[:8]}"]
    env = {**os.environ, "KAFKA_PORT": str(port)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*compose, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )

    if run("version").returncode != 0:
        pytest.skip("this Docker has no compose plugin")
    try:
        up = run("up", "-d", "--wait")
        assert up.returncode == 0, up.stderr + run("logs").stdout
        yield port
    finally:
        run("down", "--volumes")


def test_a_broker_of_the_compose_file_takes_a_record_and_gives_it_back(compose_port: int) -> None:
    assert read_back(f"127.0.0.1:{compose_port}") == b"there and back"


def test_a_broker_of_the_fixture_takes_a_record_and_gives_it_back() -> None:
    with kafka_container() as bootstrap_servers:
        assert read_back(bootstrap_servers) == b"there and back"


def docker(*arguments: str, limit_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_s,
    )


def test_the_compose_file_has_a_broker_a_page_and_the_demo() -> None:
    docker_engine_or_skip()
    if docker("compose", "version").returncode != 0:
        pytest.skip("this Docker has no compose plugin")
    services = docker("compose", "--profile", "*", "config", "--services")

    assert services.returncode == 0, services.stderr
    assert sorted(services.stdout.split()) == ["coordlog", "demo", "kafka", "web"]


@pytest.mark.timeout(1800)
def test_the_image_has_a_broker_that_needs_no_network() -> None:
    docker_engine_or_skip()
    base = next(
        line.split()[1]
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("FROM")
    )
    if docker("image", "inspect", base).returncode and docker("pull", base, limit_s=300).returncode:
        pytest.skip(f"{base} cannot be fetched")
    built = docker("build", "--tag", "coordlog:test", ".", limit_s=1500)
    assert built.returncode == 0, built.stdout + built.stderr
    program = "from coordlog import ensure_shared_broker as start; print(start().started)"
    started = docker(
        "run", "--rm", "--network", "none", "--entrypoint", "python", "coordlog:test", "-c", program
    )

    assert started.stdout.split() == ["True"], started.stderr
