"""Whether a job's operators fit those that wrote its history, and who would lose what (clauses E8, E9)."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.errors import RestoreError
from coordlog.projections.job.branches import allowed_by
from coordlog.projections.job.state import JobState, sorted_items, sorted_values
from coordlog.projections.splits.fold import SplitsState
from coordlog.projections.splits.query_reads import ReadsState

__all__ = ["check_operators", "describe_operators"]

_SAME: Mapping[str, str] = {
    "version": "the version of operator",
    "coordinated": "the presence of a coordinator of operator",
    "keeps_state": "the keeping of state across splits by operator",
}
"""What one operator must not change, and how it is spoken of."""


def describe_operators(chain: Chain) -> str:
    """What the fingerprint of a job is made of, as JSON text: the operators, their versions, what they keep."""
    return json.dumps(
        [
            {
                "id": link.operator_id,
                "version": link.version,
                "coordinated": link.coordinator is not None,
                "keeps_state": link.keeps_state_across_splits,
                **({"options": dict(sorted(link.options.items()))} if link.options else {}),
                **_destination_of(link),
                **_projection_of(link),
                **_location_of(link),
            }
            for link in chain.links
        ],
        sort_keys=True,
    )


def _destination_of(link: SourceSpec | OperatorSpec) -> dict[str, str]:
    """Where it writes, where it tells that: another place is no other operator (clause E6)."""
    provider = link.coordinator
    there = None if provider is None else provider.destination
    return {} if there is None else {"destination": there}


def _projection_of(link: SourceSpec | OperatorSpec) -> dict[str, str]:
    """Its projection, by name and version; another one may read its history otherwise, and is no other operator."""
    there = None if link.coordinator is None else link.coordinator.projection
    return {} if there is None else {"projection": f"{there.name}@{there.version}"}


def _location_of(link: SourceSpec | OperatorSpec) -> dict[str, str]:
    """What a source reads, where it tells that."""
    location = link.location if isinstance(link, SourceSpec) else None
    return {} if location is None else {"location": location}


def check_operators(
    job_id: str, state: JobState, chain: Chain, *, mode: str, allowed: Collection[str]
) -> None:
    """Refuse operators that have changed, and those that are gone and have left a state behind.

    Args:
        job_id: The job.
        state: What its log says.
        chain: What it consists of now. An operator that the log does not know begins with no state.
        mode: How it would go on.
        allowed: Operators whose state may go.

    Raises:
        RestoreError: Names the operator.
    """
    there = _described(state.launch["operators"])
    here = _described(describe_operators(chain))
    restores = {link.operator_id: [str(one) for one in link.restores] for link in chain.links}
    has_begun = any(one.next_attempt_number for one in sorted_values(state.subtasks))
    for operator_id in sorted({*there} & {*here}):
        if has_begun:
            _check_options(job_id, operator_id, there[operator_id], here[operator_id])
        for what, words in _SAME.items():
            was, now = str(there[operator_id][what]), str(here[operator_id][what])
            if was != now and not (what == "version" and was in restores[operator_id]):
                raise RestoreError(
                    job_id,
                    f"{words} {operator_id!r}",
                    was,
                    now,
                    "run the chain that wrote the history, or use another job id",
                )
    _check_location(job_id, state, chain.source, there, is_begun=has_begun)
    order, order_here = [one for one in there if one in here], [one for one in here if one in there]
    if order != order_here:
        raise RestoreError(
            job_id,
            "the order of the operators",
            ", ".join(order),
            ", ".join(order_here),
            "put them in the order that wrote the history, or use another job id",
        )
    for left in _left_behind(state, mode, there):
        if left.operator_id not in here and (left.is_owed or left.operator_id not in allowed):
            raise _refusal(job_id, left)


def _check_options(
    job_id: str, operator_id: str, there: Mapping[str, object], here: Mapping[str, object]
) -> None:
    """Of the options that both tell, each must be as it was."""
    was, now = _options(there), _options(here)
    for name in sorted({*was} & {*now}):
        if was[name] != now[name]:
            raise RestoreError(
                job_id,
                f"option {name} of operator {operator_id!r}",
                was[name],
                now[name],
                "give it as it was, or use another job id",
            )


def _check_location(
    job_id: str,
    state: JobState,
    source: SourceSpec,
    there: Mapping[str, Mapping[str, object]],
    *,
    is_begun: bool,
) -> None:
    """Another source under an old job would not be read, where the listing stands; or all of it again.

    One that was never listed, a path that was mistyped say, may be mended.
    """
    was, now = there.get(source.operator_id, {}).get("location"), source.location
    if was in (None, now) or now is None or source.allows_other_location:
        return
    listed = state.projections.get(source.operator_id)
    if not (is_begun or (isinstance(listed, (SplitsState, ReadsState)) and listed.splits)):
        return
    raise RestoreError(
        job_id,
        "the source",
        str(was),
        now,
        "give it as it was, or use another job id: what is listed is read as it was listed, and a "
        "file is known by its path, so that the same file by another path is read again; where the "
        "new one is meant, give --allow-other-source (`allow_other_path=True`)",
    )


def _options(described: Mapping[str, object]) -> Mapping[str, str]:
    options = described.get("options", {})
    assert isinstance(options, dict), "it was written as that"
    return cast("dict[str, str]", options)


def _described(operators: str) -> dict[str, dict[str, object]]:
    return {one["id"]: one for one in json.loads(operators)}


@dataclass(frozen=True, slots=True)
class _Left:
    """Something of an operator that a restore would hand to it."""

    operator_id: str
    what: str
    is_owed: bool = False
    """An intent: it is carried out, never dropped (clause E6)."""


def _refusal(job_id: str, left: _Left) -> RestoreError:
    operator_id = left.operator_id
    if left.is_owed:
        return RestoreError(
            job_id,
            f"{left.what} of operator {operator_id!r}",
            "without an outcome",
            "nobody's to carry out",
            "run the job with this operator until it has an outcome",
        )
    return RestoreError(
        job_id,
        f"the state of operator {operator_id!r}",
        left.what,
        "nobody's",
        f"keep the operator, or let its state go with allow_non_restored_state=({operator_id!r},)",
    )


def _left_behind(
    state: JobState, mode: str, there: Mapping[str, Mapping[str, object]]
) -> Sequence[_Left]:
    """What a restore in this mode would hand to operators, those that are still there included."""
    left = [
        _Left(intent.operator_id, f"the intent of checkpoint {intent.checkpoint_id}", is_owed=True)
        for intent in sorted_values(state.intents)
    ]
    if mode == "rollback":
        left += _in_checkpoint(state)
    elif mode == "again":
        left += [*_coordinated(there), *_in_checkpoint(state)]
    elif mode == "resume":
        left += _coordinated(there)
        for subtask in sorted_values(state.subtasks):
            if subtask.completion is None:
                continue
            what = f"that of subtask {subtask.subtask}, which has finished,"
            states = [one for one in subtask.completion.states if one.state is not None]
            left += [_Left(one.operator_id, what) for one in states]
            committables = subtask.completion.all_committables()
            left += [_Left(one.operator_id, what) for one in committables]
        for kept in sorted_values(state.kept_splits):
            what = f"that of split {kept.split_id!r}, which has finished,"
            left += [_Left(one.operator_id, what) for one in kept.committables]
        left += _in_checkpoint(state)
    return left


def _coordinated(there: Mapping[str, Mapping[str, object]]) -> Sequence[_Left]:
    return [
        _Left(operator_id, "its coordinator's, as the log tells it")
        for operator_id, one in there.items()
        if one["coordinated"]
    ]


def _in_checkpoint(state: JobState) -> Sequence[_Left]:
    checkpoint = state.completed.get(state.last_checkpoint)
    if checkpoint is None:
        return ()
    part = f"part of checkpoint {checkpoint.checkpoint_id}"
    # A cut without bytes is one whose state is the fold there; `b""` is what one without a state says.
    left = [_Left(one, part) for one, cut in sorted_items(checkpoint.cuts) if cut.state != b""]
    parts = [*sorted_values(checkpoint.states)]
    parts += [one.states for one in sorted_values(checkpoint.finished)]
    left += [
        _Left(one.operator_id, part) for states in parts for one in states if one.state is not None
    ]
    left += [_Left(one.operator_id, part) for one in checkpoint.in_flight]
    allowed, _ = allowed_by(state, checkpoint.checkpoint_id)
    for grants in sorted_values(allowed):
        left += [_Left(one.operator_id, part) for one in grants]
    return left
