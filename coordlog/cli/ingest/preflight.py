"""What can be refused before Spark starts is refused here: a start of Spark takes seconds."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from coordlog.api.chain import Chain
from coordlog.cli.ingest.options import IngestOptions
from coordlog.cli.ingest.parts import IngestParts
from coordlog.cli.log_access import LogPlace
from coordlog.coordinators.listing import listed_in_time
from coordlog.errors import CoordlogError, RecordError, RestoreError
from coordlog.limits import LOG_CONNECT_TIMEOUT_S
from coordlog.log.interface import Log, StoredRecord
from coordlog.log.kafka import KafkaLog
from coordlog.payloads.offload import DriverPayloads
from coordlog.projections.job.state import JobState
from coordlog.projections.splits.fold import SplitsState
from coordlog.projections.tables.apply_errors import Applying
from coordlog.projections.tables.audit import counting_at
from coordlog.projections.tables.progress import JobEnd, ProgressFold
from coordlog.restore.destination_claim import former_logs
from coordlog.restore.rebuild import (
    check_counts,
    check_fits,
    check_identity,
    projection_of,
    rebuild,
)
from coordlog.schemas.validity import NOTHING_COUNTED, Counting, Verdict, count
from coordlog.spark_integration.driver.liveness import NamedDriver, refuse_unless_gone
from coordlog.spark_integration.driver.payload_options import PayloadChoice
from coordlog.spark_integration.files.sink.sink import ParquetSink

__all__ = ["Found", "UnreadableHistoryError", "look"]

_MAGIC: Final = frozenset("*?[")


class UnreadableHistoryError(RestoreError):
    """A record that counts cannot be read by this version; nothing was appended."""

    def __init__(self, job_id: str, problem: str) -> None:
        CoordlogError.__init__(self, job_id, problem)
        self.job_id, self.problem = job_id, problem

    def __str__(self) -> str:
        return f"job {self.job_id} cannot be restored: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What stands in the log of a job that is about to run."""

    log: KafkaLog
    progress: ProgressFold
    catch_up: Callable[[], None]
    """Gives `progress` what has been appended since."""

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to do."""
        return self.progress.progress.end is JobEnd.FINISHED


def look(
    parts: IngestParts,
    place: LogPlace,
    options: IngestOptions,
    *,
    on_progress: Callable[[int, int], None],
) -> Found:
    """Open or make the job's log, and refuse all that can be refused by now.

    A job that is new has its source listed and its destination taken; nothing is appended.

    Raises:
        LogUnavailableError, AccessError: The broker does not answer, or not to this user.
        TopicError: The topic would lose history.
        RestoreError: The history is not one of this job, or of another version; or a live driver
            holds it.
        SourceError: There is nothing to read.
        SinkError: The destination is not this job's.
    """
    job_id = parts.job_id
    patience_s = min(options.log_timeout_s, LOG_CONNECT_TIMEOUT_S)
    is_there = job_id in place.jobs(patience_s)
    log = place.log(job_id, patience_s)
    watched = _Watched(log, ProgressFold())
    found = Found(log=log, progress=watched.fold, catch_up=watched.catch_up)
    try:
        choice = PayloadChoice(job_id, options.payload_store, options.payload_limit_bytes)
        # A pruned log may begin with a snapshot of which a part is in the payload store.
        payloads = DriverPayloads(choice.before_session(log))
        state, chain = JobState(), parts.chain().opening(payloads.open)
        if is_there:
            # The whole log: what is shown of a job's progress no snapshot holds.
            made = rebuild(
                log,
                chain,
                projection_of(chain),
                on_progress=on_progress,
                is_whole=True,
                watch=watched.feed,
            )
            check_counts(job_id, made)
            state = made.state
        is_new = state.epoch == -1
        elsewhere: tuple[str, ...] = ()
        if is_new and options.from_checkpoint is None:
            listed_in_time(options.source, parts.source.check)
        else:
            check_identity(job_id, state, log.identity)
            elsewhere = _check_fits(job_id, state, chain, options)
            if not options.allow_other_source:
                _check_source(job_id, _known_splits(state, watched.fold), options.source)
            if found.is_finished and not options.is_again:
                return found
            if not options.is_take_over:
                refuse_unless_gone(NamedDriver.of(state))  # as the driver does, before Spark starts
            if not elsewhere:
                _check_destination(job_id, watched.fold, parts.sink)
        parts.sink.prepare(job_id)
        if is_new or elsewhere:
            parts.sink.refuse_earlier_output(job_id)
        log.create()
        parts.sink.claim(job_id, log.identity, former_logs(state.launch))
    except RecordError as error:
        log.close()
        raise UnreadableHistoryError(job_id, str(error)) from error
    except BaseException:
        log.close()
        raise
    return found


def _check_fits(
    job_id: str, state: JobState, chain: Chain, options: IngestOptions
) -> tuple[str, ...]:
    return check_fits(
        job_id,
        state,
        chain,
        parallelism=options.parallelism,
        mode="batch" if options.is_batch else "streaming",
        restore=options.restore,
        is_again=options.is_again,
        allow_non_restored_state=options.allow_non_restored_state,
        from_checkpoint=options.from_checkpoint,
    )


def _known_splits(state: JobState, fold: ProgressFold) -> Collection[str]:
    """All that have been listed; of a pruned log the job state alone has them."""
    found: set[str] = set(fold.progress.known)
    for one in state.projections.values():
        if isinstance(one, SplitsState):
            found.update(one.splits)
    return found


def _check_source(job_id: str, known: Collection[str], source_path: str) -> None:
    """Splits are listed once: another source under an old name would not be read, silently.

    Of a history that does not say what its source was; of others `check_fits` knows it.
    """
    if not known or "://" in source_path or _MAGIC & set(source_path):
        return
    here = os.path.abspath(os.path.expanduser(source_path))  # noqa: PTH100, PTH111, as FileSource has it
    first = min(known)
    if first.partition("#")[0] != here and not first.startswith(f"{here.rstrip('/')}/"):
        raise RestoreError(
            job_id,
            "the source",
            f"that of {first}",
            here,
            "give the source of its first run, or another job id",
        )


def _check_destination(job_id: str, fold: ProgressFold, sink: ParquetSink) -> None:
    """What an earlier run has published or staged is in the folder that it had."""
    if not fold.progress.attempts_started:
        return
    if not sink.is_taken():
        raise RestoreError(
            job_id,
            "the destination",
            "a folder that this job has written to",
            f"{sink.destination}, to which it has not",
            "give the destination of its first run, or another job id",
        )


class _Watched:
    """A log whose records, where they count, are given to a fold, in offset order."""

    def __init__(self, log: Log, fold: ProgressFold) -> None:
        self.fold = fold
        self._log = log
        self._next_offset = 0
        self._counting: Counting = NOTHING_COUNTED
        self._turn: list[StoredRecord] = []

    def catch_up(self) -> None:
        """Read what has been appended since the last reading."""
        for stored in self._log.read(self._next_offset, self._log.high_watermark()):
            self.feed(stored)

    def feed(self, stored: StoredRecord) -> None:
        """The next record; the first is the log's, or a snapshot that counts."""
        if self._next_offset == 0 and stored.offset > 0:
            with contextlib.suppress(RecordError):  # the restore tells of it
                self._counting = counting_at(stored)
        self._next_offset = stored.offset + 1
        self._counting, verdict = count(self._counting, stored.header)
        if verdict.is_void:
            return
        if verdict is Verdict.EPOCH:
            self._turn.clear()
        self._turn.append(stored)
        if verdict is not Verdict.FITS:
            for one in self._turn:
                record = one.record()
                with Applying(one.offset, record):
                    self.fold.apply(record)
            self._turn.clear()
