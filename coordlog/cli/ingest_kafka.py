"""`coordlog ingest kafka://…`: topics in the place of files."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from coordlog.errors import OptionError
from coordlog.limits import LISTING_TIMEOUT_S
from coordlog.log.kafka import Security

if TYPE_CHECKING:
    from coordlog.spark_integration.kafka.source import KafkaSource

    from .ingest_options import IngestOptions

__all__ = ["is_kafka", "kafka_problems", "kafka_source"]

_SCHEME: Final = "kafka://"
_FORM: Final = "kafka://HOST:PORT[,HOST:PORT]/TOPIC[,TOPIC]"


def is_kafka(source: str) -> bool:
    """Whether SRC names topics."""
    return source.lower().startswith(_SCHEME)


def kafka_problems(options: IngestOptions) -> list[str]:
    """The options that do not go together with their SRC."""
    if is_kafka(options.source):
        wrong = [
            (name, "files")
            for name, is_given in (
                ("--format", options.file_format != "csv"),
                ("--null-value", bool(options.null_values)),
                ("--encoding", options.encoding != "utf-8"),
                ("--delimiter", options.delimiter != ","),
                ("--no-newlines-in-fields", options.no_newlines_in_fields),
                ("--on-error", options.on_error != "fail"),
                ("--watch", options.is_watching),
                ("--schemas", options.schemas != "one"),
                ("--listing-timeout", options.listing_timeout_s != LISTING_TIMEOUT_S),
            )
            if is_given
        ]
        if options.is_batch and not options.is_bounded:
            return ["--unbounded is given with --batch; a batch ends", *_said(wrong)]
        return _said(wrong)
    return _said(
        [
            (name, _SCHEME)
            for name, is_given in (
                ("--unbounded", not options.is_bounded),
                ("--starting", options.starting != "earliest"),
                ("--decode", options.decode is not None),
            )
            if is_given
        ]
    )


def _said(wrong: list[tuple[str, str]]) -> list[str]:
    return [f"{name} is given; it is for {kind}" for name, kind in wrong]


def kafka_source(options: IngestOptions) -> KafkaSource:
    """The source that SRC and the options name; who is asked for is in the environment, as for the log.

    Raises:
        OptionError: The URL or an option is wrong.
    """
    from coordlog.spark_integration.kafka.source import KafkaSource  # noqa: PLC0415, heavy

    url = urlsplit(options.source)
    if "@" in url.netloc:
        # Not shown: it holds a user, perhaps a password.
        raise OptionError(
            "SRC",
            "(hidden)",
            f"{_FORM} without a user: credentials come from COORDLOG_KAFKA_SASL_USERNAME and so on",
        )
    topics = url.path.strip("/")
    if not url.netloc or not topics or url.query or url.fragment:
        raise OptionError("SRC", options.source, _FORM)
    return KafkaSource(
        topics.split(","),
        bootstrap_servers=url.netloc,
        starting=_starting(options.starting),
        bounded=options.is_bounded,
        decode=options.decode,
        batch_rows=options.batch_rows,
        security=Security.load(os.environ),
    )


def _starting(text: str) -> Literal["earliest", "latest"] | datetime:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        expected = "earliest, latest, or a moment with its zone as in 2026-01-31T08:00:00Z"
        raise OptionError("--starting", text, expected)
    return moment
