"""What a job may be called: its topic is named after it, so what Kafka takes and file systems keep."""

from __future__ import annotations

import re
from typing import Final

from coordlog.errors import OptionError

__all__ = ["JOB_ID", "check_job_id"]

JOB_ID: Final = r"[a-z0-9][a-z0-9-]{0,99}"
"""A regular expression."""


def check_job_id(job_id: str) -> None:
    """Raise OptionError where this is no job id."""
    if not re.fullmatch(JOB_ID, job_id):
        raise OptionError(
            "job_id",
            job_id,
            "lower-case letters, digits and hyphens, beginning with a letter or digit, "
            "at most 100 characters",
        )
