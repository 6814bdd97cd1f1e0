"""`coordlog ingest kafka://…`: topics in the place of files."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from coordlog.cli.ingest.options import IngestOptions, Part
from coordlog.errors import OptionError
from coordlog.log.kafka import Security
from coordlog.spark_integration.kafka.source import KafkaSource

__all__ = ["kafka_source"]

_FORM: Final = "kafka://HOST:PORT[,HOST:PORT]/TOPIC[,TOPIC]"


def kafka_source(options: IngestOptions) -> KafkaSource:
    """The source of SRC and the options; its credentials come from the environment, as those of the log.

    Raises:
        OptionError: The URL or an option is wrong.
    """
    url = urlsplit(options.source)
    if "@" in options.source:  # no host and no topic has one
        # Hidden: it has a user, and perhaps a password.
        raise OptionError(
            "SRC",
            "(hidden)",
            f"{_FORM} without a user: credentials come from COORDLOG_KAFKA_SASL_USERNAME and so on",
        )
    topics = url.path.strip("/")
    if not url.netloc or not topics or url.query or url.fragment:
        raise OptionError("SRC", options.source, _FORM)
    keywords: dict[str, Any] = options.keywords(Part.TOPICS)
    keywords["starting"] = _starting(options.starting)
    return KafkaSource(
        topics.split(","),
        bootstrap_servers=url.netloc,
        batch_rows=options.batch_rows,
        bad_rows=options.bad_rows,
        security=Security.load(os.environ),
        **keywords,
    )


def _starting(text: str) -> Literal["earliest", "latest"] | datetime:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        expected = "earliest, latest, or a time with its zone as in 2026-01-31T08:00:00Z"
        raise OptionError("--starting", text, expected)
    return time
