"""Answers of brokers that kafka-python loses in part."""

from __future__ import annotations

from typing import Any

from kafka import errors
from kafka.admin import ConfigResource, ConfigResourceType

__all__ = ["cluster_of", "settings_of"]


def cluster_of(admin: Any) -> dict[str, Any]:  # noqa: ANN401, the client has no types
    """The cluster, by a request that every broker supports: its brokers have a `node_id`.

    `describe_cluster` fails on brokers before Kafka 3.7: it needs a field that they do not send.
    """
    request = admin._get_cluster_metadata  # noqa: SLF001, not public
    return dict(admin._manager.run(request, []))  # noqa: SLF001, as above


def settings_of(admin: Any, topic: str) -> dict[str, str]:  # noqa: ANN401
    """A topic's settings, without those that have no value: the broker stores them without a meaning.

    Raises:
        TopicAuthorizationFailedError: The broker returned none, and every topic has some: the user lacks
            the right, which the client does not report.
    """
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    configs = admin.describe_configs([resource], config_filter="all")["topic"][topic]
    if not configs:
        raise errors.TopicAuthorizationFailedError(topic)
    values = {name: config["value"] for name, config in configs.items()}
    return {name: str(value) for name, value in values.items() if value is not None}
