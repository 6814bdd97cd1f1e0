"""Global failovers: all attempts end, and the coordinators are made anew from the last checkpoint."""

from __future__ import annotations

from typing import Final

from coordlog.kernel.builder import StepBuilder
from coordlog.kernel.inputs import (
    FailGlobally,
)
from coordlog.kernel.job_end import fail_job, final_of
from coordlog.kernel.outputs import (
    CancelStage,
)
from coordlog.kernel.poison import attributes_of_event, marked, with_poison
from coordlog.kernel.restart_policy import backoff_s, is_exhausted
from coordlog.projections.job.grants import uncommitted
from coordlog.projections.job.state import (
    Phase,
)
from coordlog.schemas import builtin_types as builtin
from coordlog.schemas.record import Kind

__all__ = ["fail_globally"]


_COMMITTED: Final = (
    "a part is committed, and no reset follows: the next start goes on with the rest"
)
"""Why a batch job that fails in the middle of its commits is not restarted."""


def fail_globally(step: StepBuilder, given: FailGlobally) -> None:
    """`GLOBAL_FAILURE`: until the next reset nothing from attempts is handled. Several make one reset."""
    state = step.state
    if state.is_over:
        return
    is_committing = state.phase is Phase.ENDING and state.is_end_committed
    if is_committing and not uncommitted(state):
        # Batch, past its last completion: there is no reset any more, only settling.
        step.add(
            Kind.FACT,
            operator_id=given.operator_id,
            reason=f"only settling is left: {given.reason}",
            attributes={"closed": "true"},
            value=builtin.Refused(what="failure"),
        )
        return
    attributes = {} if given.event is None else attributes_of_event(given.event)
    attributes = attributes | final_of(given.final) if given.final else marked(state, attributes)
    reason = with_poison(state.job_id, given.reason, attributes)
    step.add(
        Kind.GLOBAL_FAILURE,
        operator_id=given.operator_id,
        subtask=given.subtask,
        reason=reason,
        attributes=attributes,
    )
    if state.phase is Phase.FAILING and not given.final:
        return
    if given.final or is_committing or is_exhausted(step.config, state, step.clock_us):
        fail_job(step, reason, final=given.final or (_COMMITTED if is_committing else ""))
        return
    step.effects.append(
        CancelStage(reason=given.reason, backoff_s=backoff_s(step.config, state, step.clock_us))
    )
