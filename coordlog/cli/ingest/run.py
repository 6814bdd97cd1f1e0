"""Runs the job of `coordlog ingest`: broker, preflight, Spark, the job; and shows their progress."""

from __future__ import annotations

import shlex
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from coordlog.cli.exit_status import Exit
from coordlog.cli.ingest.display import Display
from coordlog.cli.ingest.failures import FailureLines
from coordlog.cli.ingest.options import IngestOptions, Part
from coordlog.cli.ingest.output import Followed, output_file, redirected
from coordlog.cli.ingest.parts import IngestParts, parts_of
from coordlog.cli.ingest.preflight import Found, look
from coordlog.cli.ingest.signals import StoppedError, StopSignals
from coordlog.cli.ingest.text import (
    Surrounding,
    already_finished,
    before_lines,
    left_out_line,
    not_listed_line,
    restored_line,
    stopped_lines,
    summary_lines,
    unreleased_line,
)
from coordlog.cli.log_access import LogPlace, security_of
from coordlog.log.broker.shared import ensure_shared_broker, shared_status
from coordlog.projections.tables.progress import Progress, ProgressFold
from coordlog.restore.rebuild import Restored, RestoreMode
from coordlog.runtime.driver import JobResult, JobStatus
from coordlog.schemas.record import Record
from coordlog.spark_integration.job import Job
from coordlog.spark_integration.job_options import Callbacks
from coordlog.spark_integration.session import end_session, local_session

__all__ = ["run_ingest"]

_LOOK_S: Final = 0.2
_AT_ONCE_S: Final = 1.0
"""Seconds that an immediate end waits for its record in the log."""

_LONG_HISTORY: Final = 50_000
"""Number of records from which the progress of reading a history is shown."""


def run_ingest(options: IngestOptions, in_options: Callable[[str], str]) -> Exit:
    """Run to the end, or to a stop signal; checks that need no Spark come first.

    Args:
        options: Options of the command.
        in_options: Function of a text to the text with options as the command names them.

    Raises:
        CoordlogError: As `Job.run`; the process's output is restored.
    """
    parts = parts_of(options)
    path = output_file(parts.job_id)
    ingest = _Ingest(options, parts, path)
    with (
        redirected(path) as former,
        Display(former, lambda: ingest.progress, in_options=in_options) as display,
        StopSignals(
            lambda number: ingest.ends_at_once(display, number),
            noted=lambda: display.doing("stopping; the same signal again ends at once"),
        ) as signals,
    ):
        try:
            return ingest.run(display, signals)
        except StoppedError as stopped:
            status = _status_of(stopped.signal_number)
        except KeyboardInterrupt:  # raised by Spark's own handler
            status = Exit.INTERRUPTED
        display.say("stopped before the job had begun; nothing is lost")
        return status


def _status_of(signal_number: int) -> Exit:
    return Exit.TERMINATED if signal_number == signal.SIGTERM else Exit.INTERRUPTED


class _Ingest:
    """One run; `run` is called once."""

    def __init__(self, options: IngestOptions, parts: IngestParts, output: Path) -> None:
        self._options, self._parts, self._output = options, parts, output
        self._began_s = time.monotonic()
        self._fold = ProgressFold()
        self._failures = FailureLines(f"coordlog failures {parts.job_id}{self._servers_option()}")
        self._job_log: Found | None = None
        self._is_running = False
        self._is_waiting = False
        self._display: Display | None = None
        self._running: Job | None = None

    def ends_at_once(self, display: Display, number: int) -> None:
        """Handle a second signal: record it in the history, if that takes no longer than a moment."""
        job = self._running
        if job is not None:
            # On another thread: this one may hold a lock that the recording needs.
            by = signal.Signals(number).name
            last = threading.Thread(target=lambda: job.end_at_once(by=by), daemon=True)
            last.start()
            last.join(_AT_ONCE_S)
        display.restore_terminal()

    @property
    def progress(self) -> Progress | None:
        """Progress for the display, or None while the job does not run."""
        return self._fold.progress if self._is_running else None

    def run(self, display: Display, signals: StopSignals) -> Exit:
        """Run the job. Returns the exit status."""
        self._display = display
        display.say(self._first_line())
        paths = [self._output]
        if self._options.bootstrap_servers is None:
            paths.append(shared_status().log_path)
        followed = None
        if self._options.verbose:
            followed = Followed(paths, lambda line: display.say(line, style="dim"))
        try:
            return self._run_against(self._servers(), signals)
        finally:
            self._is_running = False
            if followed is not None:
                followed.close()

    def _first_line(self) -> str:
        line = f"job {self._parts.job_id}; output of Spark: {self._output}"
        if self._options.bootstrap_servers is None:
            line += f", of the broker: {shared_status().log_path}"
        return line

    def _servers(self) -> str:
        if self._options.bootstrap_servers is not None:
            return self._options.bootstrap_servers
        self._shown.doing("looking for the shared broker")
        return ensure_shared_broker(notify=self._shown.say).bootstrap_servers

    @property
    def _shown(self) -> Display:
        assert self._display is not None, "`run` has set it"
        return self._display

    def _run_against(self, servers: str, signals: StopSignals) -> Exit:
        job_log = self._look(servers)
        try:
            progress = self._fold.progress
            if job_log.is_finished and not self._options.again:
                self._shown.doing("")
                self._shown.say(already_finished(progress, self._parts.job_id))
                return Exit.DONE
            for line in before_lines(
                progress, is_again=self._options.again, now_us=time.time_ns() // 1000
            ):
                self._shown.say(line)
            return self._run_on_spark(job_log, signals)
        finally:
            job_log.log.close()

    def _look(self, servers: str) -> Found:
        options, parts = self._options, self._parts
        self._shown.doing(f"reading the history of job {parts.job_id} at {servers}")
        place = LogPlace(
            servers=servers,
            security=security_of(is_shared=options.bootstrap_servers is None),
            topic_prefix=options.topic_prefix,
        )
        job_log = look(parts, place, options, on_progress=self._folded)
        self._fold, self._job_log = job_log.progress, job_log
        if options.watch and not options.again and job_log.progress.progress.is_listing_complete:
            self._shown.say(
                "its listing has ended before: remaining splits are read, but no new files, unless the job goes back "
                "to a checkpoint before that end"
            )
        return job_log

    def _run_on_spark(self, job_log: Found, signals: StopSignals) -> Exit:
        self._shown.doing("starting Spark")
        job = self._job(job_log)
        with ExitStack() as stack:
            # An interruption during the start of the JVM would leave it running.
            with signals.deferred():
                spark = local_session(
                    self._options.parallelism,
                    app_name="coordlog ingest",
                    master=self._options.master,
                )
                stack.callback(end_session, spark)
                signals.take()  # Spark has replaced the handlers
            self._shown.doing("starting the job")
            job.start(spark)
            signals.keep()  # at once: a signal is now a stop of the job
            self._running = job
            if job.metrics_url is not None:
                self._shown.say(
                    f"metrics at {job.metrics_url}/metrics, health at {job.metrics_url}/healthz"
                )
            self._shown.doing("")
            self._is_running = True
            result = self._wait(job, signals)
            self._is_running, self._running = False, None
            self._shown.doing("ending Spark")
        self._shown.doing("")
        return self._report(result, job_log, signals)

    def _job(self, job_log: Found) -> Job:
        options, parts = self._options, self._parts
        return Job(
            job_id=parts.job_id,
            log=job_log.log,
            source=parts.source,
            transform=parts.transform,
            sink=parts.sink,
            history=parts.history,
            endpoint=parts.endpoint,
            start=parts.start,
            restart_policy=parts.restart_policy,
            timeouts=parts.timeouts,
            telemetry=parts.telemetry,
            callbacks=Callbacks(
                on_restored=self._restored,
                on_progress=self._folded,
                on_waiting=self._waits,
                on_released=self._released,
            ),
            **options.keywords(Part.JOB),
        )

    def _wait(self, job: Job, signals: StopSignals) -> JobResult:
        is_stopping = False
        while True:
            result = job.wait(_LOOK_S)
            if result is not None:
                return result
            if signals.received is not None and not is_stopping:
                is_stopping = True
                with_checkpoint = not self._options.batch
                effect = "with a checkpoint" if with_checkpoint else "finished splits stay finished"
                self._shown.doing(f"stopping, {effect}; the same signal again ends at once")
                by = signal.Signals(signals.received).name
                job.stop(with_checkpoint=with_checkpoint, by=by)

    def _report(self, result: JobResult, job_log: Found, signals: StopSignals) -> Exit:
        if result.status is JobStatus.ALREADY_FINISHED:
            job_log.catch_up()  # another driver was faster: its records were not read yet
            self._shown.say(already_finished(self._fold.progress, self._parts.job_id))
            return Exit.DONE
        progress = self._fold.progress
        around = Surrounding(
            job_id=self._parts.job_id,
            destination=self._parts.sink.destination,
            log_name=job_log.log.identity.name,
            servers_option=self._servers_option(),
            seconds=time.monotonic() - self._began_s,
            rejects=None if self._parts.rejects is None else self._parts.rejects.destination,
        )
        if result.status is JobStatus.STOPPED:
            lines = stopped_lines(progress, around, stop_checkpoint=result.stop_checkpoint)
            # Without a signal here, `coordlog stop` has stopped it: as by SIGTERM.
            status = _status_of(signals.received or signal.SIGTERM)
        else:
            lines, status = summary_lines(progress, around), Exit.DONE
        for line in lines:
            self._shown.say(line)
        return status

    def _servers_option(self) -> str:
        servers, prefix = self._options.bootstrap_servers, self._options.topic_prefix
        where = "" if servers is None else f" --bootstrap-servers {shlex.quote(servers)}"
        return f"{where} --topic-prefix {shlex.quote(prefix)}" if prefix else where

    # The job calls the following methods, on its threads.
    def _folded(self, offset: int, high_watermark: int) -> None:
        if high_watermark >= _LONG_HISTORY:
            self._shown.doing(f"reading the history: offset {offset:,} of {high_watermark:,}")

    def _restored(self, restored: Restored) -> None:
        if restored.mode is RestoreMode.FINISHED:
            return
        self._shown.say(restored_line(restored, self._fold.progress))
        # By now the log's last record is that of the take-over.
        assert self._job_log is not None, "the job was made from it"
        self._job_log.catch_up()

    def _show_listing(self, earlier: Progress, now: Progress) -> None:
        """Show a failed listing, the first successful one after it, and files that were left out, or stay."""
        limit_s = self._options.listing_timeout_s
        failing_s = (now.last_us - now.listing_failing_since_us) / 1e6
        if now.listing_tries > earlier.listing_tries:
            if (
                failing_s < limit_s
            ):  # else that was the last try, and the job's failure has the cause
                self._shown.doing(not_listed_line(now, limit_s))
        elif earlier.listing_tries and not now.listing_tries:
            self._shown.doing("")
            self._shown.say("the source is listed again")
        if now.left_out > earlier.left_out:
            self._shown.say(left_out_line(now.left_out - earlier.left_out, now.left_out_first))
        if now.unreleased > earlier.unreleased:
            count = now.unreleased - earlier.unreleased
            self._shown.say(unreleased_line(count, now.unreleased_problem))

    def _waits(self, seconds: float, last_error: str) -> None:
        self._is_waiting = True
        limit_s = self._options.log_timeout_s
        self._shown.doing(
            f"the log does not answer: waiting for {seconds:.0f} of {limit_s:g} s ({last_error})"
        )

    def _released(self, records: Sequence[Record]) -> None:
        earlier = self._fold.progress
        for record in records:
            self._fold.apply(record)
        progress = self._fold.progress
        self._show_listing(earlier, progress)
        for line in self._failures.see(records):
            self._shown.say(line, style="yellow")
        for place, command in sorted(progress.poison.items()):
            if place not in earlier.poison:
                self._shown.say(
                    f"warning: the job fails again and again at {place}; to continue without it: "
                    f"{command}{self._servers_option()}"
                )
        if self._is_waiting:
            self._is_waiting = False
            self._shown.doing("")
            self._shown.say("the log answers again")
