"""The progress of a job, folded from records that are written out here."""

from __future__ import annotations

from dataclasses import replace

from coordlog.projections.tables.progress import JobEnd, Progress, ProgressFold, apply, progress
from coordlog.schemas.builtin_types import (
    CheckpointMetadata,
    SavepointReleased,
    SavepointTaken,
    SplitFinished,
)
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.source_types import ListingFailed, Split, SplitsDiscovered

MODES = {"mode": "streaming", "parallelism": "2"}


class History:
    """Makes records, each with the next sequence and a time that is its sequence in seconds."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._epoch = -1
        self._sequence = 0
        self._types: set[str] = set()

    def epoch(self, **attributes: str) -> None:
        """An epoch begins."""
        self._epoch += 1
        self.records.append(
            Record(
                epoch=self._epoch,
                driver_id=f"driver-{self._epoch}",
                sequence=None,
                kind=Kind.EPOCH_STARTED,
                timestamp_us=self._sequence * 1_000_000,
                job_id="ingest",
                attributes=MODES | attributes,
            )
        )

    def add(
        self,
        kind: Kind,
        *,
        value: Payload | None = None,
        subtask: int | None = None,
        attempt_number: int | None = None,
        checkpoint_id: int | None = None,
        last_barrier: int | None = None,
        reason: str | None = None,
        **attributes: str,
    ) -> None:
        """One record; before the first of a payload type, that type's schema."""
        declared = None if value is None else payload_type_of(value)
        if declared is not None and declared.key not in self._types:
            self._types.add(declared.key)
            self._append(
                Kind.TYPE_REGISTERED,
                payload_type=declared.key,
                payload=declared.schema_json.encode(),
            )
        self._append(
            kind,
            payload_type=None if declared is None else declared.key,
            payload=None if declared is None or value is None else declared.encode(value),
        )
        self.records[-1] = replace(
            self.records[-1],
            subtask=subtask,
            attempt_number=attempt_number,
            checkpoint_id=checkpoint_id,
            last_barrier=last_barrier,
            reason=reason,
            attributes=attributes,
        )

    def _append(self, kind: Kind, *, payload_type: str | None, payload: bytes | None) -> None:
        self.records.append(
            Record(
                epoch=self._epoch,
                driver_id=f"driver-{self._epoch}",
                sequence=self._sequence,
                kind=kind,
                timestamp_us=self._sequence * 1_000_000,
                job_id="ingest",
                payload_type=payload_type,
                payload=payload,
            )
        )
        self._sequence += 1

    def discover(self, *ids: str, is_complete: bool = True) -> None:
        """A listing finds splits."""
        found = [Split(split_id=one, content=b"") for one in ids]
        self.add(Kind.FACT, value=SplitsDiscovered(splits=found, is_complete=is_complete))

    def attempt(self, subtask: int, attempt_number: int) -> None:
        """An attempt begins."""
        self.add(Kind.ATTEMPT_STARTED, subtask=subtask, attempt_number=attempt_number)

    def finish(
        self, split_id: str, subtask: int, *, barrier: int = -1, rows: int = 10, kept: bool = False
    ) -> None:
        """Attempt 0 of the subtask ends a split of 100 bytes a row."""
        self.add(
            Kind.SPLIT_FINISHED,
            value=SplitFinished(
                split_id=split_id, rows=rows, bytes_read=rows * 100, committables=[]
            ),
            subtask=subtask,
            attempt_number=0,
            last_barrier=barrier,
            kept=str(kept).lower(),
        )

    @property
    def progress(self) -> Progress:
        """What it all comes to."""
        return progress(self.records)


def metadata(number: int, *, oldest: int) -> CheckpointMetadata:
    """What a completed checkpoint holds, without parts."""
    return CheckpointMetadata(
        metadata_version=3,
        job_id="ingest",
        epoch=0,
        checkpoint_id=number,
        triggered_sequence=0,
        cluster_id="",
        topic_id="",
        parallelism=2,
        coordinators=[],
        subtasks=[],
        finished=[],
        in_flight_events=[],
        oldest_retained=oldest,
        schemas=[],
        state_sha256=bytes(32),
    )


def test_nothing_is_known_before_the_first_record() -> None:
    assert progress([]) == Progress()


def test_an_epoch_says_whose_job_it_is_and_how_it_runs() -> None:
    history = History()
    history.epoch(mode="batch", parallelism="7")

    found = history.progress

    assert (found.job_id, found.epoch, found.driver_id) == ("ingest", 0, "driver-0")
    assert (found.is_batch, found.parallelism, found.started_us) == (True, 7, 0)


def test_splits_are_counted_once_however_often_a_listing_tells_of_them() -> None:
    history = History()
    history.epoch()
    history.discover("a", "b", is_complete=False)
    history.discover("b", "c")

    assert history.progress.splits_known == 3
    assert history.progress.is_listing_complete


def test_a_listing_of_several_pages_is_complete_with_its_last_one() -> None:
    history = History()
    history.epoch()
    history.discover("a", is_complete=False)

    assert not history.progress.is_listing_complete


def test_failed_listings_are_counted_until_a_whole_one_or_a_new_epoch() -> None:
    history = History()
    history.epoch()
    failed = ListingFailed(problem="503", is_retriable=True)
    history.add(Kind.FACT, value=failed)
    history.add(Kind.FACT, value=ListingFailed(problem="504", is_retriable=True))
    failing = progress(history.records)
    assert (failing.listing_tries, failing.listing_problem) == (2, "504")
    assert failing.last_us - failing.listing_failing_since_us == 1_000_000

    history.add(Kind.FACT, value=SplitsDiscovered(splits=[], is_complete=False))
    assert progress(history.records).listing_tries == 0
    history.add(Kind.FACT, value=failed)
    assert progress(history.records).listing_tries == 1
    history.epoch()
    assert progress(history.records).listing_tries == 0


def test_finished_splits_add_their_rows_and_bytes() -> None:
    history = History()
    history.epoch()
    history.finish("a", 0, rows=3)
    history.finish("b", 1, rows=4)

    found = history.progress

    assert (found.splits_finished, found.rows, found.bytes_read) == (2, 7, 700)


def test_a_local_failover_takes_back_splits_finished_after_the_barrier() -> None:
    history = History()
    history.epoch()
    history.attempt(0, 0)
    history.attempt(1, 0)
    history.finish("before", 0, barrier=0)
    history.finish("after", 0, barrier=1)
    history.finish("of another", 1, barrier=1)
    history.add(Kind.ATTEMPT_FAILED, subtask=0, attempt_number=0, reason="killed")
    history.add(Kind.SUBTASK_RESET, subtask=0, checkpoint_id=1)

    found = history.progress

    assert sorted(found.finished) == ["before", "of another"]
    assert (found.rows, found.splits_thrown_away) == (20, 1)
    assert (found.attempts_started, found.attempts_lost) == (2, 1)
    assert (found.failures, found.last_failure) == (1, "killed")
    assert dict(found.live) == {1: 0}


def test_in_batch_a_kept_split_stays_finished_when_its_attempt_dies() -> None:
    history = History()
    history.epoch(mode="batch")
    history.finish("kept", 0, kept=True)
    history.finish("not kept", 0)
    history.add(Kind.SUBTASK_RESET, subtask=0, checkpoint_id=-1)

    assert sorted(history.progress.finished) == ["kept"]


def test_a_global_failover_ends_all_attempts_and_returns_to_its_checkpoint() -> None:
    history = History()
    history.epoch()
    history.attempt(0, 0)
    history.attempt(1, 0)
    history.finish("before", 0, barrier=0)
    history.add(Kind.CHECKPOINT_COMPLETED, checkpoint_id=1)
    history.finish("after", 1, barrier=1)
    history.add(Kind.GLOBAL_FAILURE, reason="a callback raised")
    for subtask in (0, 1):
        history.add(
            Kind.ATTEMPT_FAILED, subtask=subtask, attempt_number=0, reason="global failover"
        )
    history.add(Kind.RESET_TO_CHECKPOINT, checkpoint_id=1)

    found = history.progress

    assert sorted(found.finished) == ["before"]
    assert (found.last_checkpoint, len(found.live), found.attempts_lost) == (1, 0, 2)
    assert (found.failures, found.last_failure) == (1, "a callback raised")


def completed(history: History, number: int, *, oldest: int) -> None:
    """A checkpoint completes, and says which it retains."""
    history.add(
        Kind.CHECKPOINT_COMPLETED, value=metadata(number, oldest=oldest), checkpoint_id=number
    )


def test_a_job_that_goes_from_branch_to_branch_has_the_splits_of_each() -> None:
    history = History()
    history.epoch()
    history.discover("a", "b", "c", "d")
    history.finish("a", 0)
    completed(history, 1, oldest=1)
    history.add(Kind.FACT, value=SavepointTaken(name="one", checkpoint=1))
    history.finish("b", 0, barrier=1)
    completed(history, 2, oldest=2)
    history.add(Kind.FACT, value=SavepointTaken(name="two", checkpoint=2))
    history.add(Kind.RESET_TO_CHECKPOINT, checkpoint_id=1)
    history.finish("c", 0, barrier=1)
    history.finish("d", 0, barrier=1)
    completed(history, 3, oldest=3)
    assert sorted(history.progress.finished) == ["a", "c", "d"]

    history.add(Kind.RESET_TO_CHECKPOINT, checkpoint_id=2)

    found = history.progress
    assert sorted(found.finished) == ["a", "b"]
    assert (found.rows, found.bytes_read) == (20, 2_000)
    assert found.splits_thrown_away == 3, "b, then c and d"


def test_a_savepoint_from_before_an_opening_has_the_splits_of_then() -> None:
    history = History()
    history.epoch()
    history.discover("a", "b")
    history.finish("a", 0)
    completed(history, 1, oldest=1)
    history.add(Kind.FACT, value=SavepointTaken(name="one", checkpoint=1))
    history.finish("b", 0, barrier=1)
    completed(history, 2, oldest=2)
    history.add(Kind.JOB_FINISHED)
    history.add(Kind.COORDINATORS_STARTED, restore="again")
    history.add(Kind.RESET_TO_CHECKPOINT, checkpoint_id=2)
    assert sorted(history.progress.finished) == ["a", "b"]

    history.add(Kind.RESET_TO_CHECKPOINT, checkpoint_id=1)

    assert sorted(history.progress.finished) == ["a"]


def test_the_work_of_a_checkpoint_is_kept_as_long_as_the_checkpoint() -> None:
    history = History()
    history.epoch()
    completed(history, 1, oldest=1)
    history.add(Kind.FACT, value=SavepointTaken(name="one", checkpoint=1))
    completed(history, 2, oldest=2)
    completed(history, 3, oldest=3)
    assert sorted(history.progress.retained) == [1, 3]

    history.add(Kind.FACT, value=SavepointReleased(name="one"))
    completed(history, 4, oldest=4)

    assert sorted(history.progress.retained) == [4]


def test_a_reset_to_the_start_throws_away_what_batch_keeps_too() -> None:
    history = History()
    history.epoch(mode="batch")
    history.finish("kept", 0, kept=True)
    history.add(Kind.RESET_TO_CHECKPOINT, checkpoint_id=-1)

    assert history.progress.splits_finished == 0


def test_an_attempt_that_its_driver_took_with_it_is_lost_once() -> None:
    history = History()
    history.epoch()
    history.attempt(0, 0)
    history.epoch()
    history.add(Kind.ATTEMPT_FAILED, subtask=0, attempt_number=0, reason="its driver is gone")

    found = history.progress

    assert (found.attempts_lost, found.failures, found.epoch) == (1, 0, 1)
    assert found.started_us == 0


def test_an_attempt_that_completes_its_subtask_is_not_lost() -> None:
    history = History()
    history.epoch()
    history.attempt(0, 0)
    history.add(Kind.SUBTASK_COMPLETED, subtask=0, attempt_number=0)
    history.epoch()

    assert history.progress.attempts_lost == 0


def test_checkpoints_are_counted_by_how_they_ended() -> None:
    history = History()
    history.epoch()
    history.add(Kind.CHECKPOINT_COMPLETED, checkpoint_id=1)
    history.add(Kind.CHECKPOINT_ABORTED, checkpoint_id=2)
    history.add(Kind.CHECKPOINT_COMPLETED, checkpoint_id=3)

    found = history.progress

    assert (found.checkpoints_completed, found.checkpoints_aborted) == (2, 1)
    assert (found.last_checkpoint, found.last_checkpoint_us) == (3, 2_000_000)


def test_only_a_settled_outcome_publishes() -> None:
    state = Progress()
    record = Record(
        epoch=0,
        driver_id="d",
        sequence=0,
        kind=Kind.COMMIT_OUTCOME,
        timestamp_us=5,
        job_id="ingest",
        attributes={"settled": "false"},
    )
    published = {"rows": 4, "file_count": 2, "size_bytes": 99}

    failed = apply(state, record, None)
    settled = apply(state, replace(record, attributes={"settled": "true"}), published)

    assert failed.rows_published == 0
    assert (settled.rows_published, settled.files_published, settled.bytes_published) == (4, 2, 99)


def test_a_job_ends_and_a_failed_one_begins_again() -> None:
    history = History()
    history.epoch()
    history.attempt(0, 0)
    history.add(Kind.JOB_FAILED, reason="too often")
    failed = history.progress
    history.epoch()
    history.add(Kind.RESET_TO_CHECKPOINT, checkpoint_id=-1)
    again = history.progress
    history.add(Kind.JOB_FINISHED)
    finished = history.progress

    assert (failed.end, failed.last_failure, failed.attempts_lost) == (
        JobEnd.FAILED,
        "too often",
        1,
    )
    assert (again.end, again.ended_us) == (JobEnd.OPEN, None)
    assert (finished.end, finished.ended_us) == (JobEnd.FINISHED, 3_000_000)


def test_records_that_were_folded_before_change_nothing() -> None:
    history = History()
    history.epoch()
    history.discover("a")
    history.attempt(0, 0)
    history.finish("a", 0)
    fold = ProgressFold()
    for record in history.records:
        fold.apply(record)
    before = fold.progress
    for record in history.records:
        fold.apply(record)

    assert fold.progress is before
    assert before.attempts_started == 1
