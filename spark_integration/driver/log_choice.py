"""The log of a job by the user's options: a given log, or a broker's topic, created if it does not exist."""

from __future__ import annotations

from coordlog.errors import OptionError
from coordlog.log.interface import Log
from coordlog.log.job_id import check_log_of_job

__all__ = ["LogChoice"]


class LogChoice:
    """Log of one job, opened by `open`. One thread at a time.

    Args:
        job_id: The job.
        bootstrap_servers: Kafka's; connected with the security options of the environment, as by each command.
        log: Instead of the servers, for other options; closed by the caller that created it.

    Raises:
        OptionError: Both are given, or neither; or the log is another job's.
    """

    def __init__(self, job_id: str, bootstrap_servers: str | None, log: Log | None) -> None:
        if (bootstrap_servers is None) == (log is None):
            raise OptionError(
                "bootstrap_servers",
                bootstrap_servers,
                "set, or `log` in its place; `KafkaLog.for_job(job)`, after its `create()`, is that of "
                "the shared local broker",
            )
        check_log_of_job(job_id, log)
        self._job_id, self._servers, self._callers = job_id, bootstrap_servers or "", log
        self._own: Log | None = None

    def open(self) -> Log:
        """The log; `close` it.

        Raises:
            OptionError: A security option of the environment is unknown or wrong.
            LogError: The broker cannot be reached, or the topic cannot be created or used.
        """
        if self._callers is not None:
            return self._callers
        from coordlog.log.kafka import KafkaLog  # noqa: PLC0415, only if none is given
        from coordlog.log.kafka.default_broker import security_for  # noqa: PLC0415, as above

        self.close()
        security = security_for(self._servers)
        log = self._own = KafkaLog.for_job(self._job_id, self._servers, security=security)
        try:
            log.create()
        except BaseException:
            self.close()
            raise
        return log

    def close(self) -> None:
        """Close the log that `open` has created. A second call does nothing."""
        log, self._own = self._own, None
        if log is not None:
            log.close()
