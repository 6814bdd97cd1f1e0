"""What `coordlog ingest` shows of failures while a job tries again, and how tables show a reason."""

from __future__ import annotations

from coordlog.cli.console import reason_text
from coordlog.cli.ingest.failures import FailureLines
from coordlog.schemas.record import Kind, Record

COMMAND = "coordlog failures flights"
BAD = (
    "poll of operator 'source' raised coordlog.errors.SourceError: in/b.csv: row 52, column 'id': the value '6x' is "
    "no int64; set another type for the column with `schema=`"
)


def record(
    kind: Kind,
    reason: str | None = None,
    *,
    attempt: tuple[int, int] | None = None,
    **attributes: str,
) -> Record:
    subtask, attempt_number = attempt or (None, None)
    return Record(
        epoch=0,
        driver_id="d",
        sequence=1,
        kind=kind,
        timestamp_us=0,
        job_id="flights",
        subtask=subtask,
        attempt_number=attempt_number,
        reason=reason,
        attributes=attributes,
    )


def failed(subtask: int, number: int, reason: str = BAD, *, split: str = "in/b.csv") -> Record:
    trace = f"{reason}\nTraceback (most recent call last):\n  File ..."
    return record(Kind.ATTEMPT_FAILED, trace, attempt=(subtask, number), split_id=split)


def test_a_cause_is_shown_once_with_attempt_split_and_next_step() -> None:
    lines = FailureLines(COMMAND)

    first = lines.see([failed(1, 3)])
    again = lines.see([failed(1, 4)]) + lines.see([failed(0, 9)])

    assert first == [
        (
            "attempt 3 of subtask 1 failed at split in/b.csv, and is replaced: "
            f"{BAD} (all failures: coordlog failures flights)"
        )
    ]
    assert again == []


def test_another_split_or_another_cause_is_another_line() -> None:
    lines = FailureLines(COMMAND)
    lines.see([failed(1, 3)])

    (other_split,) = lines.see([failed(1, 4, split="in/c.csv")])
    (other_cause,) = lines.see([failed(1, 5, "its task has closed it")])

    assert "at split in/c.csv" in other_split
    assert "its task has closed it" in other_cause


def test_causes_that_differ_in_numbers_alone_are_one() -> None:
    lines = FailureLines(COMMAND)

    shown = [
        line
        for run in range(5)
        for line in lines.see([record(Kind.GLOBAL_FAILURE, f"Spark ended stage run {run}")])
    ]

    assert shown == [
        (
            "the whole job failed, and goes back to its last checkpoint: Spark ended stage run 0 "
            "(all failures: coordlog failures flights)"
        )
    ]


def test_attempts_that_end_with_the_job_or_with_another_one_are_no_causes() -> None:
    lines = FailureLines(COMMAND)

    assert lines.see([failed(0, 0, "global failover"), record(Kind.RESET_TO_CHECKPOINT)]) == []
    assert lines.see([failed(0, 1), record(Kind.JOB_FAILED, BAD)]) == [], "the end has it"
    taken_along = record(Kind.ATTEMPT_FAILED, "it broke", attempt=(0, 2), with_another="true")
    assert lines.see([taken_along]) == []


def test_the_number_of_causes_that_are_shown_has_a_bound() -> None:
    lines = FailureLines(COMMAND)

    shown = [line for n in range(100) for line in lines.see([failed(0, n, split=f"in/{n}.csv")])]

    assert len(shown) == 21
    assert shown[-1] == "failed again, by further causes; all of them: coordlog failures flights"


def test_a_reason_is_shown_whole_and_a_longer_one_keeps_its_end() -> None:
    path = "/data/" + "long-folder-name/" * 20
    reason = f"poll raised SourceError: {path}b.csv: row 52: no int64; give it another type"

    assert reason_text(f"{reason}\nTraceback ...") == reason
    assert reason_text(None) == ""
    cut = reason_text(reason, chars_max=90)
    assert len(cut) == 90
    assert cut.startswith("poll raised SourceError: /data")
    assert cut.endswith("row 52: no int64; give it another type")
