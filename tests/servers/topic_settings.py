"""Settings of a topic, changed as an operator does it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from coordlog.log.kafka.admin_compat import settings_of

__all__ = ["change_settings"]

_LIMIT_S: Final = 30.0


def change_settings(admin: KafkaAdminClient, topic: str, settings: Mapping[str, str]) -> None:
    """Change settings, and return once the broker shows them: it confirms a change before it applies it."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=dict(settings))
    admin.alter_configs([resource])
    deadline_s = time.monotonic() + _LIMIT_S
    while not settings.items() <= settings_of(admin, topic).items():
        assert time.monotonic() < deadline_s, f"not within {_LIMIT_S:g} s: {dict(settings)}"
        time.sleep(0.01)
