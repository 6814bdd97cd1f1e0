"""Brokers for tests: the official `apache/kafka` image in a container, or a skip with a reason."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Generator
from typing import Final, NoReturn

import pytest

__all__ = ["KAFKA_IMAGE", "docker_engine_or_skip", "kafka_container"]

KAFKA_IMAGE: Final = f"apache/kafka:{os.environ.get('KAFKA_VERSION', '4.3.1')}"
"""The image that docker-compose.yml names too."""

_PORT: Final = 9092
_START_TIMEOUT_S: Final = 120
"""From the container's start to a broker that answers; 5 s on a quiet machine."""
_ENGINE_TIMEOUT_S: Final = 10
_ADDRESS_FILE: Final = "/tmp/advertised"

_SETTINGS: Final = {
    "CLUSTER_ID": "4Q1yq0JxTvq1nZkWb9oZpg",
    "KAFKA_NODE_ID": "1",
    "KAFKA_PROCESS_ROLES": "broker,controller",
    "KAFKA_LISTENERS": f"HOST://:{_PORT},CONTROLLER://:9093",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "HOST:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "KAFKA_INTER_BROKER_LISTENER_NAME": "HOST",
    "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
    "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
    "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "1",
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
    "KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "1",
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    "KAFKA_HEAP_OPTS": "-Xms128m -Xmx512m",
}


def _skip(reason: str) -> NoReturn:
    pytest.skip(f"{reason}; with an engine, `make test-docker` runs these")


def docker_engine_or_skip() -> None:
    """Return where a Docker engine answers; elsewhere skip the test, with the reason."""
    reason = _why_no_engine()
    if reason is not None:
        _skip(reason)


def _why_no_engine() -> str | None:
    import docker  # noqa: PLC0415, half a second that only these tests should pay
    from docker.errors import APIError, DockerException  # noqa: PLC0415

    host = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    try:
        if host.startswith("unix://"):
            # By hand first: where nobody listens, docker's own attempt leaves its socket open.
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(_ENGINE_TIMEOUT_S)
                probe.connect(host.removeprefix("unix://"))
        with contextlib.closing(docker.from_env(timeout=_ENGINE_TIMEOUT_S)) as client:
            client.ping()
    except APIError:
        return None  # it answers; what it minds, the test will say
    except (DockerException, OSError) as error:
        return f"no Docker engine answers at {host} ({error})"
    return None


def _image_or_skip() -> None:
    import docker  # noqa: PLC0415
    from docker.errors import APIError, ImageNotFound  # noqa: PLC0415

    client = docker.from_env()
    try:
        client.images.get(KAFKA_IMAGE)
    except ImageNotFound:
        try:
            client.images.pull(KAFKA_IMAGE)
        except APIError as error:
            _skip(f"the image {KAFKA_IMAGE} is not here and cannot be pulled ({error.explanation})")
    finally:
        client.close()


@contextlib.contextmanager
def kafka_container() -> Generator[str, None, None]:
    """One broker of its own in a container; yields its bootstrap servers, removes all at the end.

    A broker must advertise the port that the engine picks, and that is known only once the
    container runs. So the container waits for a file with the address, and starts the broker with
    what it reads there.
    """
    docker_engine_or_skip()
    _image_or_skip()
    # Ryuk would be one more image to pull, to remove what a killed run leaves; the `finally` below
    # removes what any other run leaves.
    os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy  # noqa: PLC0415

    script = (
        f"until [ -s {_ADDRESS_FILE} ]; do sleep 0.05; done; "
        f"export KAFKA_ADVERTISED_LISTENERS=HOST://$(cat {_ADDRESS_FILE}); "
        "exec /etc/kafka/docker/run"
    )
    container = DockerContainer(KAFKA_IMAGE).with_envs(**_SETTINGS).with_exposed_ports(_PORT)
    container.with_command(["bash", "-c", script])
    try:
        container.start()
        address = f"{container.get_container_host_ip()}:{container.get_exposed_port(_PORT)}"
        # Written whole under another name first: the loop must not read half of it.
        tell = f"echo {address} >{_ADDRESS_FILE}.new && mv {_ADDRESS_FILE}.new {_ADDRESS_FILE}"
        told = container.exec(["bash", "-c", tell])
        assert told.exit_code == 0, told.output.decode()
        started = LogMessageWaitStrategy("Kafka Server started")
        started.with_startup_timeout(_START_TIMEOUT_S).wait_until_ready(container)
        yield address
    finally:
        container.stop()
