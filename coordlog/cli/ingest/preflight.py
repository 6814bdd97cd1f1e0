"""Checks before the start of Spark, which takes seconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from coordlog.api.chain import Chain
from coordlog.cli.ingest.options import IngestOptions
from coordlog.cli.ingest.parts import IngestParts, is_default_job_id
from coordlog.cli.log_access import LogPlace
from coordlog.coordinators.listing import listed_in_time
from coordlog.errors import CoordlogError, RecordError, RestoreError, SinkError
from coordlog.history import Following
from coordlog.limits import LOG_CONNECT_TIMEOUT_S
from coordlog.log.kafka import KafkaLog
from coordlog.payloads.offload import DriverPayloads
from coordlog.projections.job.state import JobState
from coordlog.projections.splits.fold import SplitsState
from coordlog.projections.tables.audit import Applying
from coordlog.projections.tables.progress import JobEnd, ProgressFold
from coordlog.restore.destination_claim import claim_destinations
from coordlog.restore.rebuild import (
    Rebuild,
    check_counts,
    check_fits,
    check_identity,
    projection_of,
    rebuild,
)
from coordlog.restore.rollback import refuse_earlier_output
from coordlog.schemas.record import JobMode, Record
from coordlog.spark_integration.driver.liveness import NamedDriver, refuse_unless_gone
from coordlog.spark_integration.driver.payload_options import PayloadChoice
from coordlog.spark_integration.files.sink.rejects import REJECTS
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.tables.sink import TableSink

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
    """Log of a job that is about to run, and the progress in it."""

    log: KafkaLog
    progress: ProgressFold
    catch_up: Callable[[], None]
    """Applies records appended since the last call to `progress`."""

    @property
    def is_finished(self) -> bool:
        """Whether the job has finished."""
        return self.progress.progress.end is JobEnd.FINISHED


def look(
    parts: IngestParts,
    place: LogPlace,
    options: IngestOptions,
    *,
    on_progress: Callable[[int, int], None],
    is_second: bool = False,
) -> Found:
    """Open or create the job's log, and make all checks that need no Spark.

    For a new job, the source is listed and the destination claimed. Nothing is appended to the log.

    Raises:
        LogUnavailableError, AccessError: The broker does not answer, or refuses this user.
        TopicError: The topic would lose history.
        RestoreError: The history belongs to another job or version; or a live driver holds it.
        SourceError: The source has no files or cannot be listed.
        SinkError: The destination is not this job's.
    """
    job_id, fold = parts.job_id, ProgressFold()
    patience_s = min(options.log_timeout_s, LOG_CONNECT_TIMEOUT_S)
    exists = job_id in place.jobs(patience_s)
    log = place.log(job_id, patience_s)
    following = Following(log, fold.begin, _applying(fold))
    job_log, read_to = Found(log=log, progress=fold, catch_up=following.catch_up), 0
    try:
        choice = PayloadChoice(job_id, options.payload_store, options.payload_limit_bytes)
        # A pruned log may begin with a snapshot that has a part in the payload store.
        payloads = DriverPayloads(choice.before_session(log))
        state, chain = JobState(), parts.chain().opening(payloads.open)
        if exists:
            result = _rebuilt(job_id, log, chain, following, on_progress)
            state, read_to = result.state, result.end_offset
        is_new = state.epoch == -1
        if is_new and options.from_checkpoint is None:
            _check_new(parts, options)
            new_outputs = _check_fits(job_id, state, chain, options)
        else:
            check_identity(job_id, state, log.identity)
            new_outputs = _check_fits(job_id, state, chain, options)
            if not options.allow_other_path and not _names_source(state):
                _check_source(job_id, _known_splits(state, fold), options.source)
            if job_log.is_finished and not options.again:
                return job_log
            if not options.take_over:
                # The driver checks this too, after Spark's start.
                refuse_unless_gone(NamedDriver.of(state))
            if not new_outputs:
                _check_destinations(job_id, fold, state, parts)
        for sink in parts.sinks:
            sink.prepare(job_id)
        refuse_earlier_output(chain, job_id, new_outputs)
        log.create()
        # The driver claims them again; by then it could not tell that a destination is new.
        former_logs, committed = state.launch_info.former_logs, set(state.last_intents)
        claim_destinations(chain, job_id, log.identity, former_logs, committed)
    except RecordError as error:
        log.close()
        raise UnreadableHistoryError(job_id, str(error)) from error
    except SinkError:
        has_grown = job_id in place.jobs(patience_s) and log.high_watermark() > read_to
        log.close()
        if is_second or not has_grown:
            raise
        # As in the driver: another one has worked since the reading, and the output is its.
        return look(parts, place, options, on_progress=on_progress, is_second=True)
    except BaseException:
        log.close()
        raise
    return job_log


def _rebuilt(
    job_id: str,
    log: KafkaLog,
    chain: Chain,
    following: Following,
    on_progress: Callable[[int, int], None],
) -> Rebuild:
    """The state folded from the whole log, because snapshots do not have all of a job's progress."""
    projection = projection_of(chain)
    result = rebuild(
        log, chain, projection, on_progress=on_progress, is_whole=True, watch=following.feed
    )
    check_counts(job_id, result)
    return result


def _check_fits(
    job_id: str, state: JobState, chain: Chain, options: IngestOptions
) -> tuple[str, ...]:
    return check_fits(
        job_id,
        state,
        chain,
        parallelism=options.parallelism,
        mode=JobMode.BATCH if options.batch else JobMode.STREAMING,
        restore=options.restore,
        is_again=options.again,
        allow_non_restored_state=options.allow_non_restored_state,
        from_checkpoint=options.from_checkpoint,
    )


def _known_splits(state: JobState, fold: ProgressFold) -> Collection[str]:
    """Ids of all listed splits; for a pruned log they are only in the job state."""
    known: set[str] = set(fold.progress.known)
    for projection in state.projections.values():
        if isinstance(projection, SplitsState):
            known.update(projection.splits)
    return known


def _names_source(state: JobState) -> bool:
    """Whether the history has the location of its source."""
    return any(operator.location is not None for operator in state.launch_info.operators)


def _check_source(job_id: str, known: Collection[str], source_path: str) -> None:
    """Refuse another source than that of the listed splits: splits are listed once, so it would not be read.

    For histories without a record of their source, which had one path; for others `check_fits` compares it.
    """
    if not known or "://" in source_path or _MAGIC & set(source_path):
        return
    path = os.path.abspath(os.path.expanduser(source_path))  # noqa: PTH100, PTH111, as FileSource has it
    first = min(known)
    if first != path and not first.startswith((f"{path}#", f"{path.rstrip('/')}/")):
        raise RestoreError(
            job_id,
            "the source",
            f"that of {first}",
            path,
            "use the source of its first run, or another job id",
        )


def _check_destinations(
    job_id: str, fold: ProgressFold, state: JobState, parts: IngestParts
) -> None:
    if not fold.progress.attempts_started:
        return
    _check_destination(job_id, state, parts.sink)
    had_rejects = any(operator.operator_id == REJECTS for operator in state.launch_info.operators)
    if parts.rejects is not None and had_rejects:
        _check_destination(job_id, state, parts.rejects)


def _check_destination(job_id: str, state: JobState, sink: ParquetSink | TableSink) -> None:
    """Refuse another destination than that of earlier runs, which has their published and staged files."""
    if not sink.is_taken(job_id):
        last = state.launch_info.destinations.get(sink.spec().operator_id)
        raise RestoreError(
            job_id,
            "the destination",
            last or "one that this job has written to",
            f"{sink.destination}, which has nothing of this job",
            "use the destination of its last run; if that was removed, moved or is not mounted, put it back; or use "
            "another job id",
        )


def _check_new(parts: IngestParts, options: IngestOptions) -> None:
    """Check a job that has no history: its source can be listed, and DEST is no other spelling of another job's."""
    listed_in_time(options.source, parts.source.check)
    if options.job_id is None and isinstance(parts.sink, TableSink):
        _check_spelling(parts.job_id, parts.sink)


def _check_spelling(job_id: str, table: TableSink) -> None:
    """Refuse an id derived from DEST if the table has rows of another such id: DEST was spelled otherwise then.

    A folder has an owner; a table has no other sign that its rows would be written a second time.
    """
    others = sorted(other for other in table.jobs() - {job_id} if is_default_job_id(other))
    if others:
        raise SinkError(
            table.destination,
            f"it has rows of job {others[0]!r}, whose id looks derived from another path to this table, as by a link "
            f"or before a move; job {job_id!r} would write all of these rows again",
            f'continue that job with `job_id="{others[0]}"`; for rows of another source, set an id of your own',
        )


def _applying(fold: ProgressFold) -> Callable[[int, Record], None]:
    """Function that applies a record, at its offset, to a fold."""

    def apply(offset: int, record: Record) -> None:
        with Applying(offset, record):
            fold.apply(record)

    return apply
