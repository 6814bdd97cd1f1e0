"""A log that is a Kafka topic of one partition, through kafka-python."""

from __future__ import annotations

from .kafka_log import KafkaLog, list_jobs, topic_of
from .security import Security

__all__ = ["KafkaLog", "Security", "list_jobs", "topic_of"]
