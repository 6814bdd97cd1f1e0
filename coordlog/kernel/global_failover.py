"""Global failovers: all attempts end, and new coordinators are created from the last checkpoint."""

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


def fail_globally(step: StepBuilder, failure: FailGlobally) -> None:
    """Record `GLOBAL_FAILURE`: until the next reset no message of attempts is handled. Several lead to one reset."""
    state = step.state
    if state.is_over:
        return
    is_committing = state.phase is Phase.ENDING and state.is_end_committed
    if is_committing and not uncommitted(state):
        # A batch job behind its last completion has no reset any more, only commits to settle.
        step.add(
            Kind.FACT,
            operator_id=failure.operator_id,
            reason=f"only settling is left: {failure.reason}",
            attributes={"closed": "true"},
            value=builtin.Refused(what="failure"),
        )
        return
    attributes = {} if failure.event is None else attributes_of_event(failure.event)
    attributes = (
        attributes | final_of(failure.final) if failure.final else marked(state, attributes)
    )
    reason = with_poison(state.job_id, failure.reason, attributes)
    step.add(
        Kind.GLOBAL_FAILURE,
        operator_id=failure.operator_id,
        subtask=failure.subtask,
        reason=reason,
        attributes=attributes,
    )
    if state.phase is Phase.FAILING and not failure.final:
        return
    if failure.final or is_committing or is_exhausted(step.config, state, step.clock_us):
        fail_job(step, reason, final=failure.final or (_COMMITTED if is_committing else ""))
        return
    step.effects.append(
        CancelStage(reason=failure.reason, backoff_s=backoff_s(step.config, state, step.clock_us))
    )
