"""The log that a user names: one that is theirs, or a broker's, whose topic is made where there is none."""

from __future__ import annotations

from coordlog.errors import OptionError
from coordlog.log.interface import Log

__all__ = ["LogChoice"]


class LogChoice:
    """One job's log, opened where it is wanted. One thread at a time.

    Args:
        job_id: The job.
        bootstrap_servers: Of Kafka; reached by the security options of the environment, as each command does.
        log: Instead of them, for other options; its maker closes it.

    Raises:
        OptionError: Both are given, or neither.
    """

    def __init__(self, job_id: str, bootstrap_servers: str | None, log: Log | None) -> None:
        if (bootstrap_servers is None) == (log is None):
            raise OptionError(
                "bootstrap_servers",
                bootstrap_servers,
                "given, or `log` in its place; `log=KafkaLog.for_job(job)` is that of the shared "
                "local broker",
            )
        self._job_id, self._servers, self._given = job_id, bootstrap_servers or "", log
        self._made: Log | None = None

    def open(self) -> Log:
        """The log; `close` it.

        Raises:
            OptionError: A security option of the environment is unknown or wrong.
            LogError: The broker cannot be reached, or the topic not be made or used.
        """
        if self._given is not None:
            return self._given
        from coordlog.log.kafka import KafkaLog  # noqa: PLC0415, only if none is given
        from coordlog.log.kafka.default_broker import security_for  # noqa: PLC0415, as above

        self.close()
        security = security_for(self._servers)
        made = self._made = KafkaLog.for_job(self._job_id, self._servers, security=security)
        try:
            made.create()
        except BaseException:
            self.close()
            raise
        return made

    def close(self) -> None:
        """Close what `open` has made. Again: nothing."""
        made, self._made = self._made, None
        if made is not None:
            made.close()
