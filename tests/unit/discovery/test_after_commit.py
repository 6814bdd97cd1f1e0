"""Files that are read are archived or deleted after the commits of all of their rows, and known no more."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from coordlog.api.chain import Chain, OperatorSpec
from coordlog.api.coordinator import CommittableOf, Sink
from coordlog.coordinators.commits import CommitCoordinatorProvider
from coordlog.errors import RestoreError, SinkError, SourceError
from coordlog.projections.inspection.verify import verify
from coordlog.schemas.payload import Payload, decode_versioned, payload, payload_type_of
from coordlog.schemas.record import Kind
from coordlog.schemas.source_types import Split, SplitsReleased
from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.listing import InputFiles
from coordlog.spark_integration.files.payloads import FileChanged, ReadFile
from coordlog.spark_integration.files.source import discovery
from coordlog.spark_integration.files.source.release import (
    CommittedFiles,
    CommittedSplits,
    ReleaseResults,
)
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.split_bytes import decode_split, schema_of
from coordlog.spark_integration.files.source.watch import Watch
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import IdleOperator
from fakes.split_fakes import ack_all, ask, state_of, told

LISTED = "coordlog.splits_discovered@"
TWO_SPLITS: dict[str, Any] = {
    "split_bytes": 5,
    "csv": CsvOptions(no_newlines_in_fields=True),
}


@payload("test.release_commit", version=1)
class Published(Payload):
    """An intent, and the outcome too."""

    checkpoint_id: int


class FakeSink(Sink):
    """Publishes nothing. Refuses as often as it is told to."""

    def __init__(self) -> None:
        self.settled: list[int] = []
        self.refusals = 0

    def settle(self, intent: Payload) -> Payload:
        assert isinstance(intent, Published)
        if self.refusals:
            self.refusals -= 1
            raise SinkError("memory", "scripted", "try again")
        self.settled.append(intent.checkpoint_id)
        return intent


def make_intent(checkpoint_id: int, committables: Sequence[CommittableOf]) -> Published:
    return Published(checkpoint_id=checkpoint_id)


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that finds nothing returns at once."""
    monkeypatch.setattr(discovery, "WATCH_REPORT_S", 0.03)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def write(path: Path, text: str = "i\n1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


class Watched:
    """A job that reads a folder, and whose listings and checkpoints are run one by one."""

    def __init__(
        self,
        folder: Path,
        former: Watched | None = None,
        *,
        after_commit: str | None = None,
        sink: FakeSink | None = None,
        **options: Any,  # noqa: ANN401
    ) -> None:
        self.folder, self.sink = folder, sink or FakeSink()
        self.after_commit = after_commit or f"archive:{folder.parent}/done"
        watch = Watch(watch_interval_s=0.01, after_commit=self.after_commit)
        is_watching = options.pop("is_watching", True)
        from_checkpoint = options.pop("from_checkpoint", None)
        parallelism = options.pop("parallelism", 1)
        options = {"schema": "i bigint", **options}
        self.source = FileSource(folder, watch=watch if is_watching else None, **options)
        operator = OperatorSpec(
            operator_id="sink",
            create_operator=IdleOperator,
            coordinator=CommitCoordinatorProvider(
                "sink",
                sink=self.sink,
                make_intent=make_intent,
                payload_types=(Published,),
                destination="elsewhere" if from_checkpoint is not None else "here",
            ),
        )
        self.job: HandDrivenJob = HandDrivenJob(
            Chain(source=self.source.spec(), operators=[operator]),
            log=None if former is None else former.job.log,
            from_checkpoint=from_checkpoint,
            parallelism=parallelism,
            is_held=True,
        )
        self.job.is_work_held = True
        self.job.release()
        self.job.is_held = False
        self.job.advance(0.0)
        self.settle()
        self.attempt, *self.others = self.job.register_all()

    def look(self, count: int = 2) -> None:
        """Run so many listings, each with all of its facts."""
        for _ in range(count):
            is_listed = False
            while not is_listed:
                end = self.job.log.high_watermark()
                self.job.run(self.job.works.popleft())
                fresh = self.job.log.read(end, self.job.log.high_watermark())
                types = [stored.record().payload_type or "" for stored in fresh]
                is_listed = any(name.startswith(LISTED) for name in types)

    def settle(self, count: int = 6) -> None:
        """Run what is to be settled, and its next tries: a listing is the last work, and waits."""
        for _ in range(count):
            self.job.advance(60.0)
            while len(self.job.works) > 1:
                self.job.run(self.job.works.popleft())

    def read(self, count: int = 1_000) -> None:
        while state_of(self.job).waiting_count and count:
            ask(self.attempt)
            ack_all(self.attempt)
            self.attempt.finish_split("source", told(self.job, self.attempt)[-1], rows=1)
            count -= 1

    def checkpoint(self) -> int:
        ack_all(self.attempt)
        checkpoint_id = self.job.trigger()
        assert checkpoint_id is not None
        self.attempt.ack_checkpoint(checkpoint_id, committables=[("sink", b"rows")])
        assert self.job.runtime.state.last_checkpoint == checkpoint_id
        return checkpoint_id

    def crash(self, **options: Any) -> Watched:  # noqa: ANN401
        self.job.crash()
        options = {"after_commit": self.after_commit, **options}
        return Watched(self.folder, self, **options)

    @property
    def known(self) -> list[str]:
        return [Path(name).name for name in state_of(self.job).splits]

    @property
    def present(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*.csv"))

    @property
    def archived(self) -> list[str]:
        done = self.folder.parent / "done"
        return sorted(str(path.relative_to(done)) for path in done.rglob("*") if path.is_file())


def test_a_file_is_archived_after_its_rows_commit_and_is_known_no_more(
    folder: Path,
) -> None:
    for name in ("a.csv", "day/b.csv", "c.csv"):
        write(folder / name)
    job = Watched(folder)
    job.look()
    job.read(2)
    job.settle()
    assert job.present == ["a.csv", "b.csv", "c.csv"], "no checkpoint has their rows"

    job.checkpoint()
    assert job.archived == [], "first in the log"
    job.settle()
    assert job.archived == ["a.csv", "c.csv"]
    assert (job.present, job.known) == (["b.csv"], ["b.csv"])
    job.look()
    job.read()
    job.checkpoint()
    job.settle()
    assert job.archived == ["a.csv", "c.csv", "day/b.csv"]
    assert job.known == []


@pytest.mark.clause("H3")
def test_no_file_goes_before_every_sink_has_committed_its_rows(folder: Path) -> None:
    write(folder / "a.csv")
    job = Watched(folder)
    job.look()
    job.read()
    job.sink.refusals = 2
    job.checkpoint()
    job.settle(1)
    assert (job.sink.settled, job.present) == ([], ["a.csv"])

    job.settle()
    assert (job.sink.settled, job.present) == ([1], [])
    order = [
        (record.kind, record.operator_id)
        for record in job.job.history(Kind.COMMIT_INTENT, Kind.COMMIT_OUTCOME)
        if record.attributes.get("settled") != "false"
    ]
    assert order == [
        (Kind.COMMIT_INTENT, "source"),
        (Kind.COMMIT_INTENT, "sink"),
        (Kind.COMMIT_OUTCOME, "sink"),
        (Kind.COMMIT_OUTCOME, "source"),
    ]


def test_a_file_of_several_splits_goes_when_all_are_committed(folder: Path) -> None:
    write(folder / "a.csv", "i\n" + "1\n" * 10)
    options: dict[str, Any] = {
        "split_bytes": 8,
        "csv": CsvOptions(no_newlines_in_fields=True),
        "after_commit": "delete",
    }
    job = Watched(folder, **options)
    job.look()
    assert len(state_of(job.job).splits) == 3
    for left in (2, 1):
        job.read(1)
        job.checkpoint()
        job.settle()
        assert state_of(job.job).waiting_count == left
        assert job.present == ["a.csv"]

    job.read()
    job.checkpoint()
    job.settle()
    assert (job.present, job.known) == ([], [])


@pytest.mark.fault("X11")
@pytest.mark.clause("E6")
@pytest.mark.parametrize("is_crashed", [True, False], ids=["crash", "no crash"])
def test_files_of_subtasks_that_have_ended_go_with_the_checkpoint_after_it(
    folder: Path, *, is_crashed: bool
) -> None:
    """The subtask ends after its part of a checkpoint: its last file is no part of that checkpoint."""
    write(folder / "a.csv")
    job = Watched(folder, parallelism=2)
    job.look()
    first = job.job.trigger()
    assert first is not None
    job.attempt.ack_checkpoint(first, committables=[("sink", b"none")])
    job.read()
    job.attempt.complete(committables=[("sink", b"rows")])
    (other,) = job.others
    other.ack_checkpoint(first)
    assert job.job.runtime.state.last_checkpoint == first
    job.settle()
    assert (job.sink.settled, job.present) == ([first], ["a.csv"])

    second = job.job.trigger()
    assert second is not None
    other.ack_checkpoint(second)
    assert job.job.runtime.state.last_checkpoint == second
    if is_crashed:
        job = job.crash(parallelism=2)
    job.settle()
    assert (job.present, job.archived, job.known) == ([], ["a.csv"], [])


def test_the_last_files_of_a_job_go_with_its_last_checkpoint(folder: Path) -> None:
    for name in ("a.csv", "b.csv"):
        write(folder / name)
    job = Watched(folder)
    job.look()
    job.read(1)
    job.checkpoint()
    job.settle()
    assert job.present == ["b.csv"]
    job.read()
    job.attempt.complete(committables=[("sink", b"rows")])
    job.settle()
    assert (job.present, job.archived) == ([], ["a.csv", "b.csv"])


@pytest.mark.clause("F8")
def test_the_last_files_go_with_a_checkpoint_that_the_end_acks(folder: Path) -> None:
    """The subtask ends while a checkpoint waits for it: its end is its ack, and no further checkpoint follows."""
    for name in ("a.csv", "b.csv"):
        write(folder / name)
    job = Watched(folder, parallelism=2)
    job.look()
    (other,) = job.others
    other.complete()
    job.read()
    last = job.job.trigger()
    assert last is not None
    ack_all(job.attempt)
    job.attempt.complete(committables=[("sink", b"rows")])
    assert job.job.runtime.state.last_checkpoint == last
    job.settle()
    assert (job.present, job.archived, job.known) == ([], ["a.csv", "b.csv"], [])


def test_a_driver_that_dies_after_the_intent_leaves_the_rest_to_the_next(folder: Path) -> None:
    write(folder / "a.csv")
    write(folder / "b.csv")
    job = Watched(folder)
    job.look()
    job.read()
    job.checkpoint()
    assert job.present == ["a.csv", "b.csv"]

    again = job.crash()
    assert (again.present, again.archived) == ([], ["a.csv", "b.csv"])
    assert again.known == []
    again.checkpoint()
    again.settle()
    assert (
        len([one for one in again.job.history(Kind.COMMIT_INTENT) if one.operator_id == "source"])
        == 1
    )


def schemas_of(splits: Iterable[Split]) -> list[str]:
    return [str(schema_of(split)) for split in splits]


@pytest.mark.parametrize("is_crashed", [True, False], ids=["crash", "no crash"])
def test_later_files_have_the_schema_of_those_that_were_released(
    folder: Path, *, is_crashed: bool
) -> None:
    """The schema is inferred: a column without a value would have another type."""
    write(folder / "a.csv", "i,s\n1,x\n")
    job = Watched(folder, schema=None)
    job.look()
    job.read()
    job.checkpoint()
    job.settle()
    assert job.known == []
    if is_crashed:
        job = job.crash(schema=None)
    write(folder / "b.csv", "i,s\n,y\n")
    job.look()
    assert schemas_of(state_of(job.job).unassigned_splits()) == ["i: int64\ns: string"]

    job = job.crash(schema=None)
    assert schemas_of(state_of(job.job).unassigned_splits()) == ["i: int64\ns: string"]
    kept = state_of(job.job).enumerator_state
    listed = job.source.discover_again((), kept).discovered.splits
    assert schemas_of(listed) == ["i: int64\ns: string"], "a run without a watch"
    other = FileSource(folder, schema="i string, s string")
    with pytest.raises(SourceError, match="files read before"):
        other.discover_again((), kept)


def test_a_file_mended_before_the_watch_is_released_as_it_was_read(folder: Path) -> None:
    path = write(folder / "a.csv")
    job = Watched(folder)
    job.look()
    job.read()
    checkpoint_id = job.checkpoint()
    was = decode_split(state_of(job.job).splits[str(path)].split.content)
    change = FileChanged(
        path=str(path),
        size_bytes=9,
        mark="modified later",
        listed_size_bytes=was.size_bytes,
        listed_mark=was.mark,
    )
    files = InputFiles(url=str(folder))
    read = CommittedFiles(files, None, ReleaseResults(), lambda: {str(path): change})
    state = state_of(job.job)
    (intent,) = read.intents(state.splits, CommittedSplits().since_last(state, checkpoint_id))
    (released,) = intent.inputs
    file = decode_versioned(ReadFile, released.content)
    assert (file.path, file.size_bytes, file.mark) == (str(path), 9, "modified later")


def test_a_run_without_a_watch_finds_nothing_after_all_files_were_released(folder: Path) -> None:
    write(folder / "a.csv")
    job = Watched(folder, after_commit="delete")
    job.look()
    job.read()
    job.checkpoint()
    job.settle()
    assert (job.present, job.known) == ([], [])

    job.job.crash()
    job = Watched(folder, job, is_watching=False)
    while job.job.works:
        job.job.run(job.job.works.popleft())
    assert job.job.history(Kind.JOB_FAILED) == []
    assert (state_of(job.job).is_discovery_complete, job.known) == (True, [])


def test_a_bounded_run_lists_after_a_release_that_a_commit_holds_back(
    folder: Path,
) -> None:
    write(folder / "a.csv")
    job = Watched(folder)
    job.look()
    job.read()
    job.checkpoint()  # neither the sink's commit nor the release that waits for it is carried out
    job = job.crash(is_watching=False)
    while job.job.works:
        job.job.run(job.job.works.popleft())
        job.job.advance(60.0)

    kinds = [
        stored.record().payload_type or ""
        for stored in job.job.log.read(0, job.job.log.high_watermark())
    ]
    named = [kind.partition("@")[0] for kind in kinds]
    assert named.index("coordlog.splits_released") < named.index("coordlog.listing_started")


def test_a_name_may_come_again_before_the_outcome_while_other_files_wait(folder: Path) -> None:
    """The next driver lists the waiting file before it has carried out the intent of the former one."""
    first = write(folder / "a.csv")
    write(folder / "b.csv")
    job = Watched(folder)
    job.look()
    job.read(1)
    job.checkpoint()
    (folder.parent / "done").mkdir()
    first.rename(folder.parent / "done" / "a.csv")
    write(folder / "a.csv", "i\n1\n2\n")
    job = job.crash()
    job.look(1)
    job.settle()
    job.look()
    assert (job.known, job.present) == (["b.csv", "a.csv"], ["a.csv", "b.csv"])
    assert job.archived == ["a.csv"]
    assert state_of(job.job).waiting_count == 2


@pytest.mark.fault("X11")
@pytest.mark.clause("E6")
@pytest.mark.parametrize(
    "options",
    [{"is_watching": False}, {"after_commit": "keep"}],
    ids=["without a watch", "keeping files"],
)
def test_a_run_that_keeps_files_lists_after_an_open_release(
    folder: Path, options: dict[str, Any]
) -> None:
    first = write(folder / "a.csv")
    job = Watched(folder)
    job.look()
    job.read()
    job.checkpoint()
    while not job.sink.settled:
        job.job.run(job.job.works.popleft())
    (folder.parent / "done").mkdir()
    first.rename(folder.parent / "done" / "a.csv")  # and the driver dies before the outcome
    write(folder / "a.csv", "i\n1\n2\n")
    job = job.crash(**options)
    for _ in range(5):
        if not state_of(job.job).waiting_count:
            job.job.run(job.job.works.popleft())
            job.job.advance(1.0)
    assert job.job.history(Kind.JOB_FAILED) == []
    assert (job.known, state_of(job.job).waiting_count) == (["a.csv"], 1)
    assert (job.archived, job.present) == (["a.csv"], ["a.csv"])


def test_a_released_name_is_a_new_file_also_over_a_crash(folder: Path) -> None:
    write(folder / "a.csv", "i\n1\n")
    job = Watched(folder)
    job.look()
    job.read()
    job.checkpoint()
    job.settle()
    write(folder / "a.csv", "i\n2\n")
    job.look()
    assert job.known == ["a.csv"]

    again = job.crash()
    assert state_of(again.job).waiting_count == 1, "it is not the one that the checkpoint has"
    again.look()
    again.read()
    again.checkpoint()
    again.settle()
    assert again.present == []
    assert len(again.archived) == 2
    assert again.job.history(Kind.GLOBAL_FAILURE) == []


def released_over_a_crash(folder: Path, *, is_settled: bool) -> Watched:
    """A job that was restored from a checkpoint which has all rows of a file, but at its cut not all of its ends."""
    write(folder / "a.csv", "i\n1\n1\n1\n")
    job = Watched(folder, **TWO_SPLITS)
    job.look()
    job.read(1)
    job.checkpoint()
    ask(job.attempt)
    ack_all(job.attempt)
    checkpoint_id = job.job.trigger()
    assert checkpoint_id is not None
    job.attempt.finish_split("source", told(job.job, job.attempt)[-1], rows=1)
    job.attempt.ack_checkpoint(checkpoint_id, committables=[("sink", b"rows")])
    if is_settled:
        job.settle()
        assert (job.archived, job.known) == (["a.csv"], [])
    return job.crash(**TWO_SPLITS)


@pytest.mark.fault("X11")
@pytest.mark.clause("E6")
@pytest.mark.parametrize("is_settled", [True, False])
def test_ends_at_the_cut_of_a_release_are_of_no_later_file_of_the_name(
    folder: Path, *, is_settled: bool
) -> None:
    job = released_over_a_crash(folder, is_settled=is_settled)
    assert (job.archived, job.known) == (["a.csv"], [])
    write(folder / "a.csv", "i\n2\n2\n2\n2\n")
    job.look(3)
    assert len(job.known) == 2

    job.read(1)
    job.checkpoint()
    job.settle()
    assert (job.archived, job.present, len(job.known)) == (["a.csv"], ["a.csv"], 2)
    job.read()
    job.checkpoint()
    job.settle()
    assert (len(job.archived), job.present, job.known) == (2, [], [])
    assert job.job.history(Kind.GLOBAL_FAILURE, Kind.JOB_FAILED) == []


@pytest.mark.fault("X11")
@pytest.mark.clause("E6")
def test_a_later_file_of_a_released_name_is_read_again_after_a_crash(folder: Path) -> None:
    write(folder / "a.csv", "i\n1\n")
    job = Watched(folder)
    job.look()
    ask(job.attempt)
    ack_all(job.attempt)
    checkpoint_id = job.job.trigger()
    assert checkpoint_id is not None
    job.attempt.finish_split("source", told(job.job, job.attempt)[-1], rows=1)
    job.attempt.ack_checkpoint(checkpoint_id, committables=[("sink", b"rows")])
    job.settle()
    write(folder / "a.csv", "i\n2\n")
    job.look(3)
    assert state_of(job.job).waiting_count == 1

    again = job.crash()
    assert state_of(again.job).waiting_count == 1, "the checkpoint has the former file alone"
    again.look(3)
    again.read()
    again.checkpoint()
    again.settle()
    assert (len(again.archived), again.present, again.known) == (2, [], [])
    assert again.job.history(Kind.GLOBAL_FAILURE, Kind.JOB_FAILED) == []


def test_while_a_release_is_open_another_file_of_the_name_waits(folder: Path) -> None:
    write(folder / "a.csv", "i\n1\n")
    job = Watched(folder)
    job.look()
    job.read()
    job.sink.refusals = 4  # the intent of the source waits for the sink
    job.checkpoint()
    write(folder / "a.csv", "i\n2\n2\n")
    job.look(4)
    assert job.sink.settled == []
    assert (job.known, job.job.history(Kind.JOB_FAILED)) == (["a.csv"], [])


@pytest.mark.may_fail("it has changed since it was listed")
def test_a_committed_file_that_is_replaced_stays_and_then_fails_the_job(folder: Path) -> None:
    write(folder / "a.csv", "i\n1\n")
    job = Watched(folder)
    job.look()
    job.read()
    write(folder / "a.csv", "i\n1\n2\n")
    job.checkpoint()
    job.settle()
    (outcome,) = [
        one for one in job.job.history(Kind.COMMIT_OUTCOME) if one.operator_id == "source"
    ]
    released = payload_type_of(SplitsReleased).decode(outcome.payload or b"")
    assert isinstance(released, SplitsReleased)
    assert released.split_ids == []
    assert "it has changed since it was read" in released.unreleased[0].problem
    assert (folder / "a.csv").read_text() == "i\n1\n2\n"
    job.checkpoint()
    while job.job.works:
        job.job.run(job.job.works.popleft())
    (failed,) = job.job.history(Kind.JOB_FAILED)
    assert "a.csv: it has changed since it was listed" in str(failed.reason)


def test_a_release_that_fails_is_tried_again_and_fails_no_row(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "a.csv")
    job = Watched(folder)
    job.look()
    job.read()
    real, tries = os.rename, [0]

    def rename(source: str, target: str) -> None:
        tries[0] += 1
        if tries[0] <= 2:
            raise PermissionError(13, "Permission denied")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    for _ in range(8):
        job.checkpoint()
        job.settle()
    assert (tries[0], job.present, job.known) == (3, [], [])
    assert job.job.history(Kind.JOB_FAILED, Kind.GLOBAL_FAILURE) == []


@pytest.mark.clause("E6")
def test_a_job_does_not_go_back_below_a_release(folder: Path) -> None:
    write(folder / "a.csv")
    job = Watched(folder)
    first = job.checkpoint()
    job.look()
    job.read()
    job.checkpoint()
    job.settle()

    job.job.crash()
    with pytest.raises(RestoreError, match="has archived or deleted the input"):
        Watched(folder, job, from_checkpoint=first)


def test_the_next_run_may_keep_files_and_settles_what_is_open(folder: Path) -> None:
    write(folder / "a.csv")
    write(folder / "b.csv")
    job = Watched(folder)
    job.look()
    job.read(1)
    job.checkpoint()

    again = job.crash(after_commit="keep")
    for _ in range(2):  # the sink's commit, then the release that waits for it
        again.job.run(again.job.works.popleft())
    assert again.archived == ["a.csv"]
    again.attempt, *_ = again.job.register_all()
    again.settle()
    again.look()
    again.read()
    again.checkpoint()
    again.settle()
    assert again.present == ["b.csv"]


def test_the_history_of_releases_is_whole(folder: Path) -> None:
    job = Watched(folder)
    for number in range(5):
        write(folder / "a.csv", f"i\n{number}\n")
        write(folder / f"{number}.csv")
        job.look(4)  # the first may not know yet that the former file of the name is released
        job.read()
        job.checkpoint()
        job.settle()
        if number == 2:
            job = job.crash()
    assert (job.known, job.present) == ([], [])
    assert state_of(job.job).splits.end >= 10
    log = job.job.log
    assert list(verify(log.read(log.start_offset(), log.high_watermark())).faults) == []
