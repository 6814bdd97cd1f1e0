"""What brokers answer, past what kafka-python 3.0.12 loses of it."""

from __future__ import annotations

from typing import Any

from kafka import errors
from kafka.admin import ConfigResource, ConfigResourceType

__all__ = ["cluster_of", "settings_of"]


def cluster_of(admin: Any) -> dict[str, Any]:  # noqa: ANN401, the client has no types
    """The cluster, by the request that every broker knows: its brokers have a `node_id`.

    `describe_cluster` fails on brokers before Kafka 3.7: it looks for a field that they do not send.
    """
    asked = admin._get_cluster_metadata  # noqa: SLF001, the version is pinned
    return dict(admin._manager.run(asked, []))  # noqa: SLF001, as above


def settings_of(admin: Any, topic: str) -> dict[str, str]:  # noqa: ANN401
    """A topic's settings, those without a value left out: the broker keeps them and does not know them.

    Raises:
        TopicAuthorizationFailedError: The broker gave none, and every topic has some: it refuses to
            tell, which the client does not say.
    """
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    found = admin.describe_configs([resource], config_filter="all")["topic"][topic]
    if not found:
        raise errors.TopicAuthorizationFailedError(topic)
    values = {name: one["value"] for name, one in found.items()}
    return {name: str(value) for name, value in values.items() if value is not None}
