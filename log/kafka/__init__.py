"""The log in a Kafka topic.

May import the rest of `log`.
Read first: `log.KafkaLog`.
"""

from __future__ import annotations

from coordlog.log.kafka.log import KafkaLog, list_jobs, topic_of
from coordlog.log.kafka.security import Security

__all__ = ["KafkaLog", "Security", "list_jobs", "topic_of"]
