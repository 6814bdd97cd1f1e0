"""The audit of a whole job with the real driver, over kills: what it says must add up."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordlog.projections.tables.attempts import AttemptEnd
from coordlog.projections.tables.audit import Audit, audit
from coordlog.projections.tables.splits import SplitPlace
from coordlog.schemas.record import NO_CHECKPOINT
from driven_history import FILES, ROWS, SUBTASKS, driven_log

pytestmark = pytest.mark.slow


@pytest.fixture(params=[False, True], ids=["streaming", "batch"])
def found(request: pytest.FixtureRequest, tmp_path: Path) -> Audit:
    """What the audit says of a job."""
    return audit(driven_log(tmp_path, "job", is_batch=request.param).records)


def test_each_split_is_committed_once_with_all_its_rows(found: Audit) -> None:
    assert {one.place for one in found.splits} == {SplitPlace.COMMITTED}
    assert [one.rows for one in found.splits] == [ROWS] * FILES


def test_what_was_thrown_away_was_read_again_by_a_later_attempt(found: Audit) -> None:
    lost = [one for split in found.splits for one in split.thrown_away]

    assert lost
    for one in lost:
        assert one.reread_by is not None
        assert one.reread_by != (one.subtask, one.attempt_number)


def test_rows_read_are_the_sum_of_rows_kept_and_rows_thrown_away(
    found: Audit,
) -> None:
    read = sum(one.rows for one in found.attempts)
    thrown = [one for split in found.splits for one in split.thrown_away if one.was_finished]

    assert read == FILES * ROWS + len(thrown) * ROWS


def test_one_attempt_per_subtask_completes_and_each_other_has_a_reason(found: Audit) -> None:
    completed = [one.subtask for one in found.attempts if one.end is AttemptEnd.COMPLETED]

    assert completed == list(range(SUBTASKS))
    for one in found.attempts:
        assert one.end is not AttemptEnd.RUNNING
        assert (one.reason is None) == (one.end is AttemptEnd.COMPLETED)


def test_an_attempt_starts_at_the_checkpoint_of_its_subtasks_reset(found: Audit) -> None:
    for before, after in zip(found.attempts, found.attempts[1:], strict=False):
        if before.subtask == after.subtask:
            assert after.restored_from == before.resets[-1]
        else:
            assert after.restored_from == NO_CHECKPOINT


def test_a_log_that_one_driver_at_a_time_has_written_has_no_void_records(found: Audit) -> None:
    assert found.void_count == 0
