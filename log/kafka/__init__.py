"""A log that is a Kafka topic of one partition, through kafka-python."""

from __future__ import annotations

from coordlog.log.kafka.log import KafkaLog, list_jobs, topic_of
from coordlog.log.kafka.security import Security

__all__ = ["KafkaLog", "Security", "list_jobs", "topic_of"]
