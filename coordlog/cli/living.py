"""Whether a driver of a job lives: asked before a command takes its place, or what it needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from coordlog.errors import CommandError, DriverAliveError, PayloadLostError, RecordError
from coordlog.log.port import Log
from coordlog.projections.audit import audit_records
from coordlog.projections.snapshots import SnapshotUnusableError, state_of
from coordlog.projections.state import JobState
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.liveness import Liveness, driver_liveness
from coordlog.spark_integration.token import TOKEN_VARIABLE

__all__ = ["Reign", "driver_lives", "refuse_live_driver", "reign_in"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reign:
    """The epoch in force, and where its driver listens."""

    epoch: int
    driver_id: str
    endpoint: str
    """Empty where nobody does."""
    is_over: bool
    """Whether the job has ended."""

    @classmethod
    def of(cls, state: JobState) -> Reign:
        """That of a state."""
        return cls(
            epoch=state.epoch,
            driver_id=state.driver_id,
            endpoint=state.launch.get("endpoint", ""),
            is_over=state.is_over,
        )


def reign_in(log: Log, job: str) -> Reign | None:
    """The reign in force by the headers and the reigns alone, whatever else of the log can be read.

    None where none has begun.

    Raises:
        CommandError: What counts in the log cannot be told.
    """
    found: Reign | None = None
    try:
        for one in audit_records(log.read(log.start_offset(), log.high_watermark())):
            if one.counts and one.record is not None:
                found = _after(found, one.record)
    except (RecordError, SnapshotUnusableError, PayloadLostError) as error:
        raise CommandError(
            job,
            f"whether a driver of it lives cannot be told: {error}",
            "where it is surely gone, --take-over",
        ) from error
    return found


def _after(before: Reign | None, record: Record) -> Reign | None:
    if record.kind is Kind.EPOCH_STARTED:
        return Reign(
            epoch=record.epoch,
            driver_id=record.driver_id,
            endpoint=record.attributes.get("endpoint", ""),
            is_over=False,
        )
    if record.kind is Kind.SNAPSHOT and before is None:  # a pruned log begins with it
        return Reign.of(state_of(record))
    if record.kind in (Kind.JOB_FINISHED, Kind.JOB_FAILED) and before is not None:
        return replace(before, is_over=True)
    return before


def driver_lives(
    job: str, reign: Reign, *, is_take_over: bool, refusal: type[CommandError] = CommandError
) -> bool:
    """Whether a driver of the job answers, and proves itself.

    Args:
        job: The job.
        reign: The one in force.
        is_take_over: The user says that none does.
        refusal: What is raised.

    Raises:
        CommandError: Nobody here can tell: there is no token to ask with.
    """
    if is_take_over:
        return False
    found = driver_liveness(job, endpoint=reign.endpoint, driver_id=reign.driver_id)
    if found in (Liveness.LIVES, Liveness.GONE) or reign.is_over:
        return found is Liveness.LIVES
    raise refusal(job, *_untold(found, reign))


def _untold(found: Liveness, reign: Reign) -> tuple[str, str]:
    """What is not known, and what to do."""
    if found is Liveness.UNPROVED:
        problem = (
            f"something at {reign.endpoint} answers as its driver {reign.driver_id}, and no token "
            "that is here proves that it is"
        )
    else:
        problem = (
            f"whether its driver at {reign.endpoint} lives cannot be asked from here, without its "
            "token"
        )
    next_step = (
        f"run this where the driver ran, or give its token in {TOKEN_VARIABLE}; where it is surely "
        "gone, --take-over"
    )
    return problem, next_step


def refuse_live_driver(job: str, reign: Reign, *, is_take_over: bool) -> None:
    """Go on only where no driver of the job lives.

    Raises:
        DriverAliveError: One does; the message says where.
        CommandError: As `driver_lives`.
    """
    if driver_lives(job, reign, is_take_over=is_take_over):
        raise DriverAliveError(job, reign.epoch, reign.driver_id, reign.endpoint)
