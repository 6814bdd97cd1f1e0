"""Whether a job may go back to an older checkpoint, as a new branch of its history (clauses E5, E6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol, runtime_checkable

from immutables import Map

from coordlog.api.chain import Chain
from coordlog.api.coordinator import CoordinatorProvider
from coordlog.errors import OptionError, RestoreError
from coordlog.projections.job.branches import GOING_BACK, ahead_of, destinations_in, is_on_the_way
from coordlog.projections.job.retention import why_not_retained
from coordlog.projections.job.state import Granted, JobState, Phase, sorted_items, sorted_values

__all__ = [
    "branched",
    "check_begun",
    "check_branch",
    "check_goes_on",
    "going_back_to",
    "refuse_earlier_output",
]


@runtime_checkable
class _Looking(Protocol):
    """A sink that can tell whether a job has been at its destination before."""

    def refuse_earlier_output(self, job_id: str) -> None:
        """Raise SinkError where it has."""
        ...


def branched(state: JobState, from_checkpoint: int | None) -> JobState:
    """The state as one looks at it who goes back to `from_checkpoint`; None: to where it stands."""
    return state if from_checkpoint is None else replace(state, last_checkpoint=from_checkpoint)


def going_back_to(from_checkpoint: int | None) -> dict[str, str]:
    """What an `EPOCH_STARTED` says of it: until the reset is there, the next driver must go back too."""
    return {} if from_checkpoint is None else {GOING_BACK: str(from_checkpoint)}


def check_branch(
    job_id: str,
    state: JobState,
    chain: Chain,
    from_checkpoint: int,
    *,
    restore: str | None = None,
    is_batch: bool = False,
    is_again: bool = False,
) -> tuple[str, ...]:
    """Refuse a checkpoint that cannot be gone back to, naming why.

    Args:
        job_id: The job.
        state: What its log says.
        chain: The job's.
        from_checkpoint: The one that is asked for.
        restore: As the user says.
        is_batch: Whether the job runs without checkpoints.
        is_again: Whether it is to be opened again.

    Returns:
        The operators that write elsewhere than before, in the order of the chain: nothing of this
        job may stand there (`refuse_earlier_output`).

    Raises:
        OptionError: It does not fit another option.
        RestoreError: Before anything was appended.
    """
    _check_options(from_checkpoint, restore=restore, is_batch=is_batch, is_again=is_again)
    asked = f"checkpoint {from_checkpoint}"
    if state.phase is Phase.FINISHED:
        raise RestoreError(
            job_id,
            "its state",
            "that it has finished",
            f"to be that of {asked}",
            "there is nothing to go back to: run it without, or begin another job",
        )
    why_not = why_not_retained(state, from_checkpoint)
    if why_not is not None:
        kept = ", ".join(str(one) for one in sorted(state.completed)) or "none"
        raise RestoreError(
            job_id,
            asked,
            why_not,
            "to be gone back to",
            f"those that can be are: {kept}; `coordlog checkpoint {job_id}` tells of each",
        )
    sinks = [one for one in chain.coordinators if one.sink is not None]
    return tuple(
        one.operator_id for one in sinks if _check_sink(job_id, state, one, from_checkpoint)
    )


def check_goes_on(job_id: str, state: JobState, chain: Chain) -> None:
    """Refuse to go on, from the newest checkpoint of the branch, where rows would be committed a second time.

    Args:
        job_id: The job.
        state: What its log says.
        chain: The job's.

    Raises:
        RestoreError: A sink writes where more has been committed than the branch has, as after a
            `--from-checkpoint` elsewhere; or the last driver did not come to go back, as it was to.
    """
    wanted = state.launch.get(GOING_BACK)
    if wanted is not None and state.phase is Phase.STARTING:
        raise RestoreError(
            job_id,
            "the checkpoint that its last driver was to go back to, and did not come to,",
            wanted,
            "none",
            f"give --from-checkpoint {wanted} again",
        )
    for one in chain.coordinators:
        if one.sink is not None:
            _check_sink(job_id, state, one, state.last_checkpoint)


def check_begun(
    job_id: str, state: JobState, chain: Chain, *, restore: str | None = None
) -> tuple[str, ...]:
    """Refuse that a job which begins from another one's checkpoint writes where that one does.

    Args:
        job_id: The job.
        state: What its log says.
        chain: The job's.
        restore: As the user says.

    Returns:
        The operators that write, in the order of the chain, as in `check_branch`, until a driver of its own
        has gone back to the checkpoint; none for any other job.

    Raises:
        OptionError: A resume was asked for, of what is another job's.
        RestoreError: Before anything was appended.
    """
    if not state.begun_from:
        return ()
    if restore == "resume" and state.is_another_jobs:
        why = f"'rollback': its history is that of {state.begun_from}"
        raise OptionError("restore", restore, why)
    sinks = [one for one in chain.coordinators if one.sink is not None]
    for one in sinks:
        here, operator_id = one.destination, one.operator_id
        places = {place for place, _ in sorted_items(state.begun_places)}
        theirs = [there for name, there in sorted(places) if name == operator_id]
        if here is not None and here in {there for _, there in places}:
            was = here
        elif here is None or "" in theirs:
            was = next((there for there in theirs if there), "one that is not told")
        else:
            continue
        raise RestoreError(
            job_id,
            f"the destination of operator {operator_id!r}",
            f"{was}, that of {state.begun_from},",
            here or "one that is not told",
            "a job that begins from another one's checkpoint writes elsewhere: give it a "
            "destination of its own",
        )
    return tuple(one.operator_id for one in sinks) if state.is_another_jobs else ()


def _check_options(
    from_checkpoint: int, *, restore: str | None, is_batch: bool, is_again: bool
) -> None:
    for is_given, why in (
        (is_batch, "a batch job has no checkpoints"),
        (restore == "resume", "a resume goes on from where the log ends"),
        (is_again, "a job that is opened again goes on from its end"),
    ):
        if is_given:
            raise OptionError("from_checkpoint", from_checkpoint, f"left out: {why}")


def _check_sink(
    job_id: str, state: JobState, provider: CoordinatorProvider, from_checkpoint: int
) -> bool:
    """Whether it writes where it never has. What it has committed at this place stays as it is (clause E6)."""
    operator_id, here = provider.operator_id, provider.destination
    for name, there, newest in ahead_of(state, from_checkpoint):
        if name == operator_id and (here is None or there in ("", here)):
            raise _is_ahead(job_id, state, operator_id, there, newest, from_checkpoint)
    _check_set_aside(job_id, state, operator_id, here, from_checkpoint)
    was = destinations_in(state.launch.get("operators", "[]")).get(operator_id)
    if here is None or was in (None, here):
        return False
    for what in _owed(state, operator_id, from_checkpoint):
        raise RestoreError(
            job_id,
            f"{what} of operator {operator_id!r}",
            f"to be committed to {was}",
            f"to go to {here}",
            f"run the job with {was} until that is done, then go elsewhere",
        )
    return (operator_id, here) not in state.last_intents


def _check_set_aside(
    job_id: str, state: JobState, operator_id: str, here: str | None, from_checkpoint: int
) -> None:
    """Refuse to bring elsewhere what a kept checkpoint of another branch has not committed yet."""
    checkpoint = state.completed.get(from_checkpoint)
    made_for = None if checkpoint is None else checkpoint.destinations.get(operator_id)
    if here is None or made_for in (None, here):
        return
    for number in _numbers(state.set_aside, operator_id):
        if is_on_the_way(state, number, from_checkpoint):
            raise RestoreError(
                job_id,
                f"what checkpoint {number} allows to commit of operator {operator_id!r}",
                f"to be committed to {made_for}",
                f"to go to {here}",
                f"it was made for that place: have it write to {made_for}, or go back to another checkpoint",
            )


def _is_ahead(
    job_id: str, state: JobState, operator_id: str, there: str, newest: int, from_checkpoint: int
) -> RestoreError:
    what = f"the newest checkpoint that operator {operator_id!r} commits"
    found = what + (f" to {there}" if there else "")
    if newest > from_checkpoint:
        return RestoreError(
            job_id,
            found,
            str(newest),
            f"above {from_checkpoint}, which it is to go back to,",
            f"its rows would be committed again: go back to {newest} or a later one, or "
            "have it write elsewhere",
        )
    fitting = [str(one) for one in sorted(state.completed) if is_on_the_way(state, newest, one)]
    advice = f", or go back to one of that branch: {', '.join(fitting)}" if fitting else ""
    return RestoreError(
        job_id,
        found,
        str(newest),
        f"not one that checkpoint {from_checkpoint}, which it is to go on from, has come from,",
        f"that is another branch, and its rows would be committed again: have it write elsewhere{advice}",
    )


def _owed(state: JobState, operator_id: str, from_checkpoint: int) -> Iterator[str]:
    """What stands ready at the place where the operator wrote before."""
    for intent in sorted_values(state.intents):
        if intent.operator_id == operator_id:
            yield f"the intent of checkpoint {intent.checkpoint_id}"
    for number in _numbers(state.granted, operator_id):
        if is_on_the_way(state, number, from_checkpoint):
            yield f"what checkpoint {number} allows to commit"


def _numbers(grants: Map[int, tuple[Granted, ...]], operator_id: str) -> Iterator[int]:
    """Of which checkpoints there is something of this operator, ascending."""
    for number, each in sorted_items(grants):
        if any(one.operator_id == operator_id for one in each):
            yield number


def refuse_earlier_output(chain: Chain, job_id: str, operators: tuple[str, ...]) -> None:
    """Let the sinks of these operators look whether the job has written there before.

    Raises:
        SinkError: It has: its rows would stand there twice.
    """
    for provider in chain.coordinators:
        sink = provider.sink
        if provider.operator_id in operators and isinstance(sink, _Looking):
            sink.refuse_earlier_output(job_id)
