"""The Kafka source: partitions, ranges, reader.

May import `files.formats` for JSON.
Read first: `source.KafkaSource`.
"""
