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

    `describe_configs` has no settings for a topic that the broker refuses or does not know, and no error.

    Raises:
        KafkaError: The broker's error, for example TopicAuthorizationFailedError.
    """
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    manager = admin._manager  # noqa: SLF001, not public
    request = admin._describe_configs_request([resource])  # noqa: SLF001, as above
    (result,) = manager.run(manager.send, request).results
    if result.error_code:
        raise errors.for_code(result.error_code)(topic)
    return {one.name: str(one.value) for one in result.configs if one.value is not None}
