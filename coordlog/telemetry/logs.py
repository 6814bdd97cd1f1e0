"""Log lines as JSON objects, with job, epoch and offset as fields.

Messages of coordlog have texts such as `job=… epoch=… offset=…`. The formatter makes fields of these, and of the
attributes with the same names that a caller passes as `extra`.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
from collections.abc import Callable
from typing import Final

__all__ = ["JobLogFilter", "JsonFormatter"]

_FIELDS: Final = ("job", "epoch", "offset")
_PAIR: Final = re.compile(r"(?<![\w.])(job|epoch|offset)=([^\s,;:]+)")


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON.

    Fields: `time` (ISO 8601, UTC), `level`, `logger`, `thread`, `message`; if known `job`, `epoch`, `offset`; and
    `exception` with the traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        message = record.getMessage()
        fields: dict[str, str | int] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName or "",
            "message": message,
        }
        in_text = _pairs(message) if _is_ours(record) else {}
        for name in _FIELDS:
            value = in_text.get(name, getattr(record, name, None))
            if value is not None:
                fields[name] = _number_or_text(name, value)
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class JobLogFilter(logging.Filter):
    """Adds job, epoch and offset to log records that have none; for a handler of a process with one job.

    Args:
        place: Returns job id, epoch and offset of the newest record in force, None for an unknown one; as
            `Job.log_place`. Any thread.
    """

    def __init__(self, place: Callable[[], tuple[str, int | None, int | None]]) -> None:
        super().__init__()
        self._place = place

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; no record is held back."""
        for name, value in zip(_FIELDS, self._place(), strict=True):
            if value is not None and not hasattr(record, name):
                setattr(record, name, value)
        return True


def _pairs(message: str) -> dict[str, str]:
    """The fields in a message. The first of two with one name, because untrusted text may follow."""
    pairs: dict[str, str] = {}
    for match in _PAIR.finditer(message):
        pairs.setdefault(match[1], match[2])
    return pairs


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name == "coordlog" or record.name.startswith("coordlog.")


def _number_or_text(name: str, value: object) -> str | int:
    text = str(value)
    return int(text) if name != "job" and text.isdecimal() else text
