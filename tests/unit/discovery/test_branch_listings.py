"""What one branch of a job has listed, and another one reads: no row twice, none missing (clauses E5, L6)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from coordlog.api.chain import Chain
from coordlog.coordinators.splits import Assignment, DefaultEnumerator, SplitCoordinatorProvider
from coordlog.log.memory import MemoryLog
from coordlog.offline.epoch import append_fact, read_records
from coordlog.projections.inspection.verify import Fault, verify
from coordlog.projections.job.state import Phase
from coordlog.projections.tables.audit import audit
from coordlog.projections.tables.splits import SplitPlace
from coordlog.schemas.builtin_types import SavepointTaken, SnapshotWanted, TakeSavepoint
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import Kind
from coordlog.schemas.source_types import (
    LASTING,
    EnumeratorState,
    KnownSplitsForgotten,
    LastingState,
    Split,
    SplitsDiscovered,
    SplitsWithdrawn,
)
from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.source.relisting import OTHER_CUT
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import prefix_of
from fakes.split_fakes import (
    NO_MORE,
    Hello,
    ack_all,
    ask,
    chain_of,
    checkpoint,
    listing,
    places,
    split,
    state_of,
    told,
)

pytestmark = [pytest.mark.clause("E5"), pytest.mark.clause("L6")]


class Scripted(DefaultEnumerator):
    """Lists once, and records the scripted facts at an event of a reader."""

    facts: ClassVar[Sequence[Payload]] = ()

    def handle_source_event(self, subtask: int, attempt_number: int, event: Payload) -> None:
        for fact in self.facts:
            self._context.record(fact)


def chain() -> Chain:
    provider = SplitCoordinatorProvider(
        "source",
        enumerator=lambda context, _: Scripted(context, listing("a", "b")),
        keeps_listed=True,
        payload_types=(Hello,),
    )
    return chain_of(provider)


def read_one(attempt: FakeAttempt, name: str) -> None:
    ask(attempt)
    ack_all(attempt)
    attempt.finish_split("source", name, rows=1)


def with_savepoint(*facts: Payload, is_read_to_the_end: bool = False) -> HandDrivenJob:
    """A job with checkpoint 1, at which nothing is read, and 2, a savepoint at which `a` is read; its driver died.

    Its enumerator records these facts after that.
    """
    job = HandDrivenJob(chain())
    (attempt,) = job.register_all()
    checkpoint(job, attempt)
    read_one(attempt, "a")
    if is_read_to_the_end:
        read_one(attempt, "b")
        ask(attempt)
        assert told(job, attempt) == ["a", "b", NO_MORE]
    number = checkpoint(job, attempt)
    job.ask("", TakeSavepoint(name="read", checkpoint=number))
    if facts:
        Scripted.facts = facts
        attempt.send("source", Hello())
    job.crash()
    return job


def on_branch(job: HandDrivenJob, number: int, *facts: Payload) -> HandDrivenJob:
    """The job, back at a checkpoint; its enumerator records these facts there, and the driver dies."""
    Scripted.facts = facts
    job = HandDrivenJob(chain(), log=job.log, from_checkpoint=number)
    (attempt,) = job.register_all()
    attempt.send("source", Hello())
    job.crash()
    return job


def found(*names: str) -> SplitsDiscovered:
    return SplitsDiscovered(splits=[split(name) for name in names], is_complete=False)


def test_a_split_withdrawn_on_another_branch_stays_read_at_a_savepoint() -> None:
    """Else its file would be found again, as by a watch, and its rows would be there twice."""
    job = on_branch(with_savepoint(), 1, SplitsWithdrawn(split_ids=["a"], why="left out"))
    assert places(job) == {"b": "enumerator"}

    job = HandDrivenJob(chain(), log=job.log, from_checkpoint=2)

    assert places(job) == {"a": "finished by 0", "b": "enumerator"}


def test_a_split_forgotten_on_the_way_stays_forgotten_after_a_rollback() -> None:
    """Its name may be that of a new file by now."""
    job = with_savepoint(KnownSplitsForgotten(split_ids=["a"], why="too old"), found("a"))

    job = HandDrivenJob(chain(), log=job.log, from_checkpoint=2)

    assert places(job) == {"a": "enumerator", "b": "enumerator"}


def test_splits_that_another_branch_has_found_are_read_at_a_savepoint() -> None:
    """Its listing has ended there, and its reader has been sent the end: both begin again."""
    job = on_branch(with_savepoint(is_read_to_the_end=True), 1, found("c"))

    job = HandDrivenJob(chain(), log=job.log, from_checkpoint=2)

    (attempt,) = job.register_all()
    assert told(job, attempt) == ["c"], "unasked: its last request has no valid answer"
    read_one(attempt, "c")
    ack_all(attempt)
    assert told(job, attempt) == ["c", NO_MORE]
    attempt.complete()
    assert job.runtime.state.phase is Phase.FINISHED


def opened_again(job: HandDrivenJob, *facts: Payload) -> HandDrivenJob:
    """The job, finished and opened again; its enumerator records these facts there, and the driver dies."""
    job = HandDrivenJob(chain(), log=job.log)
    (attempt,) = job.register_all()
    ack_all(attempt)
    attempt.complete()
    assert job.runtime.state.phase is Phase.FINISHED
    Scripted.facts = facts
    job = HandDrivenJob(chain(), log=job.log, again=True)
    (attempt,) = job.register_all()
    attempt.send("source", Hello())
    job.crash()
    return job


def test_splits_of_a_later_opening_are_read_at_an_earlier_savepoint() -> None:
    """Its readers had been sent the end: no reader would ask for these splits, and the job could never finish."""
    job = opened_again(with_savepoint(is_read_to_the_end=True), found("c"))

    job = HandDrivenJob(chain(), log=job.log, from_checkpoint=2)

    (attempt,) = job.register_all()
    assert told(job, attempt) == ["c"]
    read_one(attempt, "c")
    ack_all(attempt)
    attempt.complete()
    assert job.runtime.state.phase is Phase.FINISHED


def ended_with_another_branch(*, is_cut_first: bool = False) -> MemoryLog:
    """The log of a job whose only reader had ended at checkpoint 2, and which has found "c" on another branch."""
    job = HandDrivenJob(chain())
    (attempt,) = job.register_all()
    checkpoint(job, attempt)
    for name in ("a", "b"):
        read_one(attempt, name)
    ask(attempt)
    ack_all(attempt)
    if is_cut_first:
        assert job.trigger() == 2
    attempt.complete()
    (end,) = (
        one.offset + 1 + one.record().turn_remaining
        for one in job.log.read(0, job.log.high_watermark())
        if one.record().kind is Kind.CHECKPOINT_COMPLETED and one.record().checkpoint_id == 2
    )
    log = prefix_of(job.log, end)
    fact = SavepointTaken(name="ended", checkpoint=2)
    append_fact(
        log, read_records(log), fact, command="checkpoint", check=lambda _state: None, why="a test"
    )
    Scripted.facts = (found("c"),)
    job = HandDrivenJob(chain(), log=log, from_checkpoint=1)
    (attempt,) = job.register_all()
    attempt.send("source", Hello())
    assert "c" in places(job)
    job.crash()
    return log


def faults_of(log: MemoryLog) -> list[Fault]:
    """The faults of a log that begins with a copy of another."""
    found_faults = verify(list(log.read(0, log.high_watermark()))).faults
    return [one for one in found_faults if "it was written to the log of" not in one.what]


@pytest.mark.parametrize("is_cut_first", [False, True])
def test_what_another_branch_has_found_waits_if_all_readers_had_ended(
    *, is_cut_first: bool
) -> None:
    """No reader is left at the savepoint: the job finishes there, as it would have without the other branch.

    Likewise if the last reader ended between the cut and its barrier.
    """
    log = ended_with_another_branch(is_cut_first=is_cut_first)

    job = HandDrivenJob(chain(), log=log, from_checkpoint=2)

    assert job.runtime.state.phase is Phase.FINISHED
    assert {*places(job)} == {"a", "b"}
    assert faults_of(job.log) == []


@pytest.mark.parametrize("is_cut_first", [False, True])
def test_a_reader_more_than_had_ended_reads_what_another_branch_has_found(
    *, is_cut_first: bool
) -> None:
    log = ended_with_another_branch(is_cut_first=is_cut_first)

    job = HandDrivenJob(chain(), log=log, from_checkpoint=2, parallelism=2)
    (attempt,) = job.register_all()
    ask(attempt)
    read_one(attempt, "c")
    ask(attempt)
    ack_all(attempt)
    attempt.complete()

    assert job.runtime.state.phase is Phase.FINISHED
    assert places(job)["c"] == "finished by 1"
    assert faults_of(job.log) == []


def test_what_an_ended_savepoint_leaves_out_stays_unknown_at_another() -> None:
    """No record names the split again, so the tables have no record of its own that says so."""
    log = ended_with_another_branch()
    fact = SavepointTaken(name="start", checkpoint=1)
    append_fact(
        log, read_records(log), fact, command="checkpoint", check=lambda _state: None, why="a test"
    )
    HandDrivenJob(chain(), log=log, from_checkpoint=2)
    HandDrivenJob(chain(), log=log, again=True).crash()

    job = HandDrivenJob(chain(), log=log, from_checkpoint=1)
    (attempt,) = job.register_all()
    for name in ("a", "b"):
        read_one(attempt, name)
    ask(attempt)
    ack_all(attempt)
    attempt.complete()

    assert job.runtime.state.phase is Phase.FINISHED
    assert {*places(job)} == {"a", "b"}
    assert faults_of(job.log) == []


def test_a_reader_more_and_one_less_leaves_out_what_was_found() -> None:
    log = ended_with_another_branch()
    job = HandDrivenJob(chain(), log=log, from_checkpoint=2, parallelism=2)
    assert {*places(job)} == {"a", "b", "c"}
    job.crash()

    job = HandDrivenJob(chain(), log=log, from_checkpoint=2)

    assert job.runtime.state.phase is Phase.FINISHED
    assert {*places(job)} == {"a", "b"}
    assert faults_of(job.log) == []


def test_a_branch_that_has_found_nothing_more_leaves_a_listing_ended() -> None:
    job = on_branch(with_savepoint(is_read_to_the_end=True), 1)

    job = HandDrivenJob(chain(), log=job.log, from_checkpoint=2)

    assert state_of(job).is_discovery_complete
    (attempt,) = job.register_all()
    assert told(job, attempt) == [NO_MORE]


def test_what_another_branch_has_forgotten_is_found_at_a_savepoint() -> None:
    """The limit below which it finds no file is not in force there: the savepoint knows all that it has read."""
    lasting = payload_type_of(LastingState).encode(LastingState(lasting=b"9", content=None))
    limit = EnumeratorState(content=LASTING + lasting)
    job = on_branch(with_savepoint(), 1, limit)
    assert state_of(job).enumerator_state == limit.content

    other = HandDrivenJob(chain(), log=job.log, from_checkpoint=2)
    assert state_of(other).enumerator_state is None
    other.crash()

    job = HandDrivenJob(chain(), log=on_branch(other, 2, limit).log, from_checkpoint=2)
    assert state_of(job).enumerator_state == limit.content, "on its own branch"


def cut(folder: Path, split_bytes: int) -> list[Split]:
    """The splits of the one file of a folder, in this cut."""
    csv = CsvOptions(no_newlines_in_fields=True)
    listed = FileSource(folder, csv=csv, split_bytes=split_bytes).discover_again(())
    return list(listed.discovered.splits)


def withdrawn(folder: Path, known: list[Split], unread: list[Split], *skipped: Split) -> list[str]:
    """Ids of the known splits that a new listing withdraws as of another cut."""
    source = FileSource(folder, csv=CsvOptions(no_newlines_in_fields=True), split_bytes=15)
    relisted = source.discover_again(
        known,
        None,
        frozenset(one.split_id for one in skipped),
        frozenset(one.split_id for one in unread),
    )
    return sorted(relisted.withdrawn.get(OTHER_CUT, ()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.csv").write_text("i\n" + "".join(f"{i}\n" for i in range(14)), encoding="utf-8")
    return tmp_path


def ids(splits: Sequence[Split]) -> list[str]:
    return sorted(one.split_id for one in splits)


def test_a_file_that_is_read_is_not_read_again_in_another_branchs_cut(folder: Path) -> None:
    whole, parts = cut(folder, 1_000), cut(folder, 8)
    assert len(whole) == 1
    assert len(parts) > 2

    assert withdrawn(folder, whole + parts, parts) == ids(parts)
    assert withdrawn(folder, parts + whole, whole) == ids(whole)


def test_a_file_that_is_read_in_part_is_read_on_in_the_same_cut(folder: Path) -> None:
    """Also if the other cut has splits of the rest alone."""
    fine, coarse = cut(folder, 8), cut(folder, 16)

    assert withdrawn(folder, coarse + fine, coarse[1:] + fine) == ids(fine)
    assert withdrawn(folder, coarse + fine, coarse + fine[1:]) == ids(coarse)


def test_two_cuts_of_as_many_splits_are_distinguished_by_their_places(folder: Path) -> None:
    one, other = cut(folder, 18), cut(folder, 20)
    assert len(one) == len(other) == 2

    assert withdrawn(folder, one + other, one[1:] + other) == ids(other)
    assert withdrawn(folder, one + other, one + other[1:]) == ids(one)


def test_a_file_that_is_skipped_as_a_whole_is_skipped_in_every_cut(folder: Path) -> None:
    whole, parts = cut(folder, 1_000), cut(folder, 8)

    assert withdrawn(folder, whole + parts, parts, *whole) == ids(parts)


def test_a_job_that_changes_branches_and_finishes_has_no_fault() -> None:
    """The rows that the savepoint has count again, also in the tables: no split waits."""
    job = on_branch(with_savepoint(), 1)
    job = HandDrivenJob(chain(), log=job.log, from_checkpoint=2)
    (attempt,) = job.register_all()
    read_one(attempt, "b")
    ask(attempt)
    attempt.complete()
    assert job.runtime.state.phase is Phase.FINISHED

    stored = list(job.log.read(0, job.log.high_watermark()))
    assert verify(stored).faults == []
    rows = {row.split_id: row for row in audit(stored).splits}
    assert {name: row.place for name, row in rows.items()} == dict.fromkeys(
        "ab", SplitPlace.COMMITTED
    )
    assert rows["a"].finished_by == (0, 0)
    assert rows["a"].thrown_away == (), "for a time only"


def test_rows_that_only_another_branch_has_read_do_not_count() -> None:
    """Its reader had passed no barrier since the checkpoint of both."""
    job = with_savepoint()
    Scripted.facts = (found("c"),)
    job = HandDrivenJob(chain(), log=job.log, from_checkpoint=1)
    (attempt,) = job.register_all()
    attempt.send("source", Hello())
    for name in "abc":
        read_one(attempt, name)
    job.crash()

    job = HandDrivenJob(chain(), log=job.log, from_checkpoint=2)

    rows = {row.split_id: row for row in audit(job.log.read(0, job.log.high_watermark())).splits}
    assert places(job) == {"a": "finished by 0", "b": "enumerator", "c": "enumerator"}
    assert rows["a"].finished_by == (0, 0)
    assert [rows[name].place for name in "bc"] == [SplitPlace.WAITING] * 2


@pytest.mark.clause("J2")
def test_a_savepoints_reader_gets_a_skip_recorded_on_another_branch() -> None:
    """It has the split, and would read on at the place where attempts fail again and again."""
    job = HandDrivenJob(chain())
    (attempt,) = job.register_all()
    ask(attempt)
    checkpoint(job, attempt)
    number = checkpoint(job, attempt)
    job.ask("", TakeSavepoint(name="read", checkpoint=number))
    job.crash()
    job = HandDrivenJob(chain(), log=job.log, from_checkpoint=1)
    (attempt,) = job.register_all()
    attempt.last_barrier = 1
    attempt.skip_split("source", "a", rows=3)
    job.crash()

    job = HandDrivenJob(chain(), log=job.log, from_checkpoint=number)

    assert places(job)["a"] == "skipped, None rows"
    (attempt,) = job.register_all()
    assert attempt.accepted.skipped_splits == ("a",)


def test_a_pruned_history_with_a_change_of_branches_has_no_fault() -> None:
    """The log does not have the records that say what the savepoint has read."""
    job = HandDrivenJob(chain(), log=with_savepoint().log)
    job.ask("", SnapshotWanted(why="prune")).answer()
    job.log.delete_below(job.runtime.snapshot_offset)
    job.crash()
    job = HandDrivenJob(chain(), log=job.log, from_checkpoint=1)
    (attempt,) = job.register_all()
    read_one(attempt, "a")
    job.crash()

    job = HandDrivenJob(chain(), log=job.log, from_checkpoint=2)
    (attempt,) = job.register_all()
    read_one(attempt, "b")
    ask(attempt)
    attempt.complete()

    assert job.runtime.state.phase is Phase.FINISHED
    stored = list(job.log.read(job.log.start_offset(), job.log.high_watermark()))
    assert verify(stored).faults == []
    assert [row.split_id for row in audit(stored).splits] == ["b"]


def test_a_split_that_ended_before_its_barrier_is_read_there() -> None:
    """At the cut of the checkpoint the split is with a reader, and it ends after the cut."""
    job = HandDrivenJob(chain())
    (attempt,) = job.register_all()
    ask(attempt)
    ack_all(attempt)
    assert job.trigger() == 1
    attempt.finish_split("source", "a", rows=1)
    attempt.ack_checkpoint(1)
    job.ask("", TakeSavepoint(name="read", checkpoint=1))
    read_one(attempt, "b")
    checkpoint(job, attempt)
    job.crash()

    job = HandDrivenJob(chain(), log=job.log, from_checkpoint=1)

    assert places(job) == {"a": "finished by 0", "b": "enumerator"}


@pytest.mark.parametrize("is_cut_first", [False, True])
@pytest.mark.parametrize("assignment", ["pull", "static"])
def test_readers_that_are_left_at_a_savepoint_read_what_was_found_since(
    assignment: Assignment, *, is_cut_first: bool
) -> None:
    """The first reader had ended there, before the cut or between the cut and its barrier."""

    def chain_with(*names: str) -> Chain:
        provider = SplitCoordinatorProvider(
            "source", discover=listing(*names), assignment=assignment
        )
        return chain_of(provider)

    def read_all(attempt: FakeAttempt) -> None:
        while NO_MORE not in told(job, attempt):
            ask(attempt)
        ack_all(attempt)
        for name in told(job, attempt):
            if places(job).get(name) == f"with {attempt.subtask}":
                attempt.finish_split("source", name)

    job = HandDrivenJob(chain_with("a", "b"), parallelism=2)
    first, second = job.register_all()
    read_all(first)
    if not is_cut_first:
        first.complete()
    ack_all(second)
    assert job.trigger() == 1
    if is_cut_first:
        first.complete()
    second.ack_checkpoint(1)
    job.ask("", TakeSavepoint(name="left", checkpoint=1)).answer()
    read_all(second)
    second.complete()
    job.advance(5.0)
    assert job.runtime.state.phase is Phase.FINISHED
    found_since = chain_with("a", "b", "c", "d")
    HandDrivenJob(found_since, parallelism=2, log=job.log, again=True).crash()

    job = HandDrivenJob(found_since, parallelism=2, log=job.log, from_checkpoint=1)
    (left,) = job.register_all()
    read_all(left)
    left.complete()

    assert job.runtime.state.phase is Phase.FINISHED
    assert {"finished by 1"} == {places(job)[name] for name in "cd"}
