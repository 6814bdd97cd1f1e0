"""Checks of a rollback to an older checkpoint, which begins a new branch (clauses E5, E6: no intent is dropped)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from immutables import Map

from coordlog.api.chain import Chain
from coordlog.api.coordinator import CoordinatorProvider
from coordlog.errors import OptionError, RestoreError
from coordlog.projections.job.branches import GOING_BACK, ahead_of, is_on_the_way
from coordlog.projections.job.launch import LaunchInfo
from coordlog.projections.job.savepoints import why_not_retained
from coordlog.projections.job.state import Granted, JobState, Phase, sorted_items, sorted_values
from coordlog.restore.compatibility import RestoreMode

__all__ = [
    "branched",
    "check_begun",
    "check_branch",
    "check_goes_on",
    "check_kept_commits",
    "going_back_to",
    "refuse_earlier_output",
]


@runtime_checkable
class _OutputChecking(Protocol):
    """A sink that can check its destination for earlier output of a job."""

    def refuse_earlier_output(self, job_id: str) -> None:
        """Raise SinkError if the destination has output of the job."""
        ...


def branched(state: JobState, from_checkpoint: int | None) -> JobState:
    """State to roll back to: that of `from_checkpoint`, or the last completed checkpoint if None."""
    return state if from_checkpoint is None else replace(state, last_checkpoint=from_checkpoint)


def going_back_to(from_checkpoint: int | None) -> dict[str, str]:
    """Attribute of an `EPOCH_STARTED`: until the reset is recorded, the next driver must roll back too."""
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
    """Refuse a checkpoint that the job cannot roll back to, with the reason.

    Args:
        job_id: Id of the job.
        state: State folded from its log.
        chain: Chain of the job.
        from_checkpoint: Checkpoint to roll back to.
        restore: Option of the user.
        is_batch: Whether the job runs without checkpoints.
        is_again: Whether it is to be opened again.

    Returns:
        Operators that write elsewhere than before, in the order of the chain: their destinations must not hold
        output of this job (`refuse_earlier_output`).

    Raises:
        OptionError: The checkpoint is incompatible with another option.
        RestoreError: Before anything was appended.
    """
    _check_options(from_checkpoint, restore=restore, is_batch=is_batch, is_again=is_again)
    wanted = f"checkpoint {from_checkpoint}"
    if state.phase is Phase.FINISHED:
        raise RestoreError(
            job_id,
            "its state",
            "that it has finished",
            f"to be that of {wanted}",
            "there is nothing to go back to: run it without, or begin another job",
        )
    why_not = why_not_retained(state, from_checkpoint)
    if why_not is not None:
        retained = ", ".join(str(number) for number in sorted(state.completed)) or "none"
        raise RestoreError(
            job_id,
            wanted,
            why_not,
            "to be rolled back to",
            f"those that can be are: {retained}; `coordlog checkpoint {job_id}` lists each",
        )
    return tuple(
        provider.operator_id
        for provider in chain.coordinators
        if provider.sink is not None and _check_sink(job_id, state, provider, from_checkpoint)
    )


def check_goes_on(job_id: str, state: JobState, chain: Chain) -> None:
    """Refuse to continue from the newest checkpoint of the branch if rows would be committed a second time.

    Args:
        job_id: Id of the job.
        state: State folded from its log.
        chain: Chain of the job.

    Raises:
        RestoreError: A sink's destination holds more commits than the branch has, as after a `--from-checkpoint`
            elsewhere; or the last driver ended before its rollback was recorded.
    """
    wanted = state.launch.get(GOING_BACK)
    if wanted is not None and state.phase is Phase.STARTING:
        raise RestoreError(
            job_id,
            "the checkpoint that its last driver was to roll back to, and did not reach,",
            wanted,
            "none",
            f"pass --from-checkpoint {wanted} again",
        )
    for provider in chain.coordinators:
        if provider.sink is not None:
            _check_sink(job_id, state, provider, state.last_checkpoint)


def check_kept_commits(job_id: str, state: JobState, chain: Chain) -> None:
    """Refuse another destination at a resume that keeps work of finished splits and subtasks (E6: no commit is lost).

    Their rows are staged at the former destination, and cannot be published at another one.

    Args:
        job_id: Id of the job.
        state: State folded from its log.
        chain: Chain of the job.

    Raises:
        RestoreError: Before anything was appended.
    """
    for provider in chain.coordinators:
        operator_id, destination = provider.operator_id, provider.destination
        if provider.sink is None or destination is None:
            continue
        for kept, was in _kept(state, operator_id):
            if was in (None, destination):
                continue
            raise RestoreError(
                job_id,
                f"{kept} of operator {operator_id!r}",
                f"to be committed to {was}",
                f"to go to {destination}",
                f"run the job with {was} until it has ended, or read all again with restore='rollback'",
            )


def _kept(state: JobState, operator_id: str) -> Iterator[tuple[str, str | None]]:
    """Work with committables that no checkpoint grants, in words, and the destination of each, if declared."""
    for split in sorted_values(state.kept_splits):
        if any(part.operator_id == operator_id for part in split.committables):
            for place in _places(state, operator_id, (split.sequence,)):
                yield f"the rows of split {split.split_id!r}, which has finished,", place
    for subtask in sorted_values(state.subtasks):
        completion = subtask.completion
        if completion is not None and any(
            part.operator_id == operator_id for part in completion.all_committables()
        ):
            for place in _places(state, operator_id, (completion.sequence,)):
                yield f"the rows of subtask {subtask.subtask}, which has finished,", place


def check_begun(
    job_id: str, state: JobState, chain: Chain, *, restore: str | None = None
) -> tuple[str, ...]:
    """Refuse a destination of another job, if this job begins from that job's checkpoint.

    Args:
        job_id: Id of the job.
        state: State folded from its log.
        chain: Chain of the job.
        restore: Option of the user.

    Returns:
        Operators with a sink, in the order of the chain, as in `check_branch`, until a driver of this job has rolled
        back to the checkpoint; none for any other job.

    Raises:
        OptionError: A resume of another job's history is impossible.
        RestoreError: Before anything was appended.
    """
    if not state.begun_from:
        return ()
    if restore == RestoreMode.RESUME and state.is_another_jobs:
        why = f"'rollback': its history is that of {state.begun_from}"
        raise OptionError("restore", restore, why)
    providers = [provider for provider in chain.coordinators if provider.sink is not None]
    for provider in providers:
        if provider.releases_input:
            continue  # it writes no rows
        destination, operator_id = provider.destination, provider.operator_id
        places = {place for place, _ in sorted_items(state.begun_places)}
        of_operator = [place for name, place in sorted(places) if name == operator_id]
        if destination is not None and destination in {place for _, place in places}:
            was = destination
        elif destination is None or "" in of_operator:
            was = next((place for place in of_operator if place), "an undeclared one")
        else:
            continue
        raise RestoreError(
            job_id,
            f"the destination of operator {operator_id!r}",
            f"{was}, that of {state.begun_from},",
            destination or "an undeclared one",
            "a job that begins from another one's checkpoint writes elsewhere: set a "
            "destination of its own",
        )
    return tuple(provider.operator_id for provider in providers) if state.is_another_jobs else ()


def _check_options(
    from_checkpoint: int, *, restore: str | None, is_batch: bool, is_again: bool
) -> None:
    for is_set, why in (
        (is_batch, "a batch job has no checkpoints"),
        (restore == RestoreMode.RESUME, "a resume continues from the end of the log"),
        (is_again, "a job that is opened again continues from its end"),
    ):
        if is_set:
            raise OptionError("from_checkpoint", from_checkpoint, f"left out: {why}")


def _check_sink(
    job_id: str, state: JobState, provider: CoordinatorProvider, from_checkpoint: int
) -> bool:
    """Whether the destination is new. Earlier commits there stay unchanged (clause E6: no intent is dropped)."""
    operator_id, destination = provider.operator_id, provider.destination
    for name, place, newest in ahead_of(state, from_checkpoint):
        is_undeclared = name == operator_id and (destination is None or not place)
        # Whichever operator has committed the rows there: a sink may be renamed.
        if is_undeclared or place == destination:
            if provider.releases_input:
                raise _is_released(job_id, name, newest, from_checkpoint)
            raise _is_ahead(job_id, state, name, place, newest, from_checkpoint)
    _check_set_aside(job_id, state, operator_id, destination, from_checkpoint)
    if destination is None:
        return False
    for debt, owed_to in _owed(state, operator_id, from_checkpoint):
        if owed_to not in (None, destination):
            raise RestoreError(
                job_id,
                f"{debt} of operator {operator_id!r}",
                f"to be committed to {owed_to}",
                f"to go to {destination}",
                f"run the job with {owed_to} until that is done, then change the destination; if it is the same place "
                "under another name, keep the former name",
            )
    was = state.launch_info.destinations.get(operator_id)
    if operator_id in state.away:
        was = LaunchInfo({"operators": state.away[operator_id]}).destinations.get(operator_id)
    known = {was, *(place for (_, place), _ in sorted_items(state.last_intents))}
    return was is not None and destination not in known


def _check_set_aside(
    job_id: str, state: JobState, operator_id: str, destination: str | None, from_checkpoint: int
) -> None:
    """Refuse another destination for open commits of a savepoint of another branch."""
    for number in _numbers(state.set_aside, operator_id):
        if destination is None or not is_on_the_way(state, number, from_checkpoint):
            continue
        for place in _places(state, operator_id, state.granted_at(number)):
            if place in (None, destination):
                continue
            raise RestoreError(
                job_id,
                f"the open commit of checkpoint {number} of operator {operator_id!r}",
                f"to be committed to {place}",
                f"to go to {destination}",
                f"it was prepared for that place: let it write to {place}, or choose another checkpoint",
            )


def _is_released(job_id: str, operator_id: str, newest: int, from_checkpoint: int) -> RestoreError:
    return RestoreError(
        job_id,
        f"the newest checkpoint of which {operator_id!r} has archived or deleted the input",
        str(newest),
        f"no ancestor of checkpoint {from_checkpoint}, from which it is to continue,",
        "rows of files that are not there any more would be missing: roll back to a later checkpoint, or put "
        "archived files back and read them in another job",
    )


def _is_ahead(
    job_id: str, state: JobState, operator_id: str, place: str, newest: int, from_checkpoint: int
) -> RestoreError:
    what = f"the newest checkpoint that operator {operator_id!r} commits"
    subject = what + (f" to {place}" if place else "")
    if newest > from_checkpoint:
        return RestoreError(
            job_id,
            subject,
            str(newest),
            f"above {from_checkpoint}, which it is to roll back to,",
            f"its rows would be committed again: roll back to {newest} or a later one, or "
            "have it write elsewhere",
        )
    compatible = [
        str(number) for number in sorted(state.completed) if is_on_the_way(state, newest, number)
    ]
    advice = f", or roll back to one of that branch: {', '.join(compatible)}" if compatible else ""
    return RestoreError(
        job_id,
        subject,
        str(newest),
        f"no ancestor of checkpoint {from_checkpoint}, from which it is to continue,",
        f"that is another branch, and its rows would be committed again: have it write elsewhere{advice}",
    )


def _owed(
    state: JobState, operator_id: str, from_checkpoint: int
) -> Iterator[tuple[str, str | None]]:
    """Open commits of an operator, in words, and the destination of each, if declared."""
    for intent in sorted_values(state.intents):
        if intent.operator_id == operator_id:
            place = state.launch_info.destinations.get(operator_id)
            yield f"the intent of checkpoint {intent.checkpoint_id}", place
    for number in _numbers(state.granted, operator_id):
        if is_on_the_way(state, number, from_checkpoint):
            for place in _places(state, operator_id, state.granted_at(number)):
                yield f"the open commit of checkpoint {number}", place


def _places(state: JobState, operator_id: str, sequences: Sequence[int]) -> Iterator[str | None]:
    """Destinations of an operator in the epochs that wrote at these sequences, or in the last one if there are none.

    The last epoch may have been without the operator.
    """
    if not sequences:
        yield state.launch_info.destinations.get(operator_id)
    for sequence in sequences:
        epoch = LaunchInfo({"operators": state.operators_at(sequence)})
        yield epoch.destinations.get(operator_id)


def _numbers(grants: Map[int, tuple[Granted, ...]], operator_id: str) -> Iterator[int]:
    """Checkpoints with grants of this operator, ascending."""
    for number, granted in sorted_items(grants):
        if any(grant.operator_id == operator_id for grant in granted):
            yield number


def refuse_earlier_output(chain: Chain, job_id: str, operators: tuple[str, ...]) -> None:
    """Check the destinations of these operators for earlier output of the job.

    Raises:
        SinkError: There is earlier output: rows would be there twice.
    """
    for provider in chain.coordinators:
        sink = provider.sink
        if provider.operator_id in operators and isinstance(sink, _OutputChecking):
            sink.refuse_earlier_output(job_id)
