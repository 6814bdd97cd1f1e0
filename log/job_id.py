"""Names of jobs. A job's topic has its name, so Kafka and file systems must both accept it."""

from __future__ import annotations

import re
from typing import Final

from coordlog.errors import OptionError

__all__ = ["JOB_ID", "check_job_id", "check_log_of_job"]

JOB_ID: Final = r"[a-z0-9][a-z0-9-]{0,99}"
"""A regular expression."""
_LOG: Final = ".log"
"""End of the name of a job's topic."""


def check_job_id(job_id: str) -> None:
    """Raise OptionError if this is no job id."""
    if not re.fullmatch(JOB_ID, job_id):
        raise OptionError(
            "job_id",
            job_id,
            "lower-case letters, digits and hyphens, beginning with a letter or digit, "
            "at most 100 characters",
        )


def check_log_of_job(job_id: str, log: object) -> None:
    """Refuse a log that was made for another job, or has a topic of another job's name.

    A log without the name of a job is accepted: a log in memory, or a topic whose name does not end with `.log`.

    Raises:
        OptionError: The log is another job's.
    """
    wanted = f"that of job {job_id}, and of no other"
    other = getattr(log, "job_id", None)
    if other is not None and other != job_id:
        raise OptionError("log", f"that of job {other}", wanted)
    topic = getattr(log, "topic", "")
    if topic.endswith(_LOG) and not topic.endswith(f"{job_id}{_LOG}"):  # a prefix may be before it
        raise OptionError("log", f"topic {topic}", wanted)
