"""What a listing has found is read, skipped, or missed by name, whatever a later listing finds (clause L6)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from immutables import Map

from coordlog.api.chain import Chain
from coordlog.coordinators import splits as splits_module
from coordlog.coordinators.splits import DefaultEnumerator, SplitCoordinatorProvider
from coordlog.errors import SourceError
from coordlog.log.interface import StoredRecord
from coordlog.projections.inspection.verify import verify
from coordlog.projections.job.invariants import faults_of
from coordlog.projections.job.state import JobState, Phase
from coordlog.projections.snapshot.splits_codec import SPLITS
from coordlog.projections.splits.fold import SplitsState
from coordlog.projections.splits.table import PAGE_SPLITS, SplitTable, WithEnumerator
from coordlog.projections.tables.audit import audit
from coordlog.projections.tables.progress import progress
from coordlog.projections.tables.splits import SplitPlace, SplitRow
from coordlog.projections.tables.splits import splits as split_rows
from coordlog.projections.tables.waiting_splits import waiting_in
from coordlog.schemas.builtin_types import SkipSplit
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import Kind
from coordlog.schemas.source_types import Split, SplitsDiscovered, SplitsWithdrawn
from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.split_bytes import decode_split
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import ended
from fakes.split_fakes import (
    NO_MORE,
    Hello,
    ack_all,
    ask,
    chain_of,
    checkpoint,
    fail_globally,
    listing,
    pull_of,
    split,
    state_of,
    told,
)

FREE = WithEnumerator()


def files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text("i\n1\n2\n", encoding="utf-8")


def run(
    folder: Path, job: HandDrivenJob | None = None, *, again: bool = False, **options: object
) -> HandDrivenJob:
    """The job's next run, in batch; the runs before it have ended with a global failure, or `again`."""
    chain = Chain(source=FileSource(folder, **options).spec(), operators=[])  # type: ignore[arg-type]
    return HandDrivenJob(chain, is_batch=True, log=None if job is None else job.log, again=again)


def failed(folder: Path, **options: object) -> HandDrivenJob:
    """A job of this folder that was listed, and failed before anything of it was read to its end."""
    job = run(folder, **options)  # type: ignore[arg-type]
    (attempt,) = job.register_all()
    ask(attempt)
    job.run(lambda: job.runtime.fail_job("source", "scripted", final="scripted"))
    job.crash()
    return job


def names(job: HandDrivenJob) -> list[str]:
    return [Path(one).name for one in state_of(job).unassigned()]


def stored(job: HandDrivenJob) -> Iterator[StoredRecord]:
    return job.log.read(job.log.start_offset(), job.log.high_watermark())


def splits_of(job: HandDrivenJob) -> tuple[SplitRow, ...]:
    return audit(stored(job)).splits


def read_all(job: HandDrivenJob) -> None:
    (attempt,) = job.register_all()
    while True:
        ask(attempt)
        ack_all(attempt)
        asked = told(job, attempt)
        if asked[-1] == NO_MORE:
            attempt.complete()
            return
        attempt.finish_split("source", asked[-1], rows=2)


@pytest.mark.clause("L6")
@pytest.mark.may_fail("scripted", "cannot be found any more")
def test_a_file_missing_after_a_rollback_to_the_start_fails_the_job(
    tmp_path: Path,
) -> None:
    files(tmp_path, "a.csv", "b.csv", "c.csv", "d.csv")
    job = failed(tmp_path)
    (tmp_path / "b.csv").rename(tmp_path.parent / "b.csv")

    again = run(tmp_path, job)

    assert again.mode == "rollback"
    assert again.runtime.state.phase is Phase.FAILED
    (reason,) = [one.reason or "" for one in again.history(Kind.GLOBAL_FAILURE)[1:]]
    assert f"1 file ({tmp_path / 'b.csv'}) of an earlier listing of this job" in reason
    assert "put them back" in reason
    assert "coordlog skip" in reason
    again.crash()
    (tmp_path.parent / "b.csv").rename(tmp_path / "b.csv")
    assert names(run(tmp_path, again)) == ["a.csv", "b.csv", "c.csv", "d.csv"]


@pytest.mark.clause("L6")
@pytest.mark.may_fail("scripted", "cannot be found any more")
def test_of_many_missing_files_the_first_are_named_and_all_are_counted(tmp_path: Path) -> None:
    files(tmp_path, "a.csv", *(f"{number:02}.csv" for number in range(12)))
    job = failed(tmp_path)
    for number in range(12):
        (tmp_path / f"{number:02}.csv").unlink()

    again = run(tmp_path, job)

    reason = again.history(Kind.GLOBAL_FAILURE)[-1].reason or ""
    assert "12 files (" in reason
    assert "09.csv and 2 more)" in reason


@pytest.mark.clause("L6")
@pytest.mark.may_fail("scripted")
def test_a_missing_file_is_given_to_a_reader_that_skips_it_by_name(tmp_path: Path) -> None:
    files(tmp_path, "a.csv", "b.csv")
    job = failed(tmp_path)
    (tmp_path / "b.csv").unlink()

    again = run(tmp_path, job, on_error="skip")

    assert names(again) == ["a.csv", "b.csv"]
    assert again.runtime.state.phase is Phase.RUNNING


@pytest.mark.clause("L6")
@pytest.mark.may_fail("scripted")
def test_a_missing_file_that_is_skipped_by_command_is_not_missed(tmp_path: Path) -> None:
    files(tmp_path, "a.csv", "b.csv")
    job = run(tmp_path)
    job.register_all()
    gone = str(tmp_path / "b.csv")
    job.ask("", SkipSplit(split_id=gone, why="gone"))
    fail_globally(job)
    (tmp_path / "b.csv").unlink()

    again = run(tmp_path, job)

    assert names(again) == ["a.csv"]
    read_all(again)
    assert again.runtime.state.phase is Phase.FINISHED


@pytest.mark.clause("L6")
@pytest.mark.may_fail("scripted")
def test_a_listed_file_that_is_left_out_from_now_on_is_withdrawn_by_name(tmp_path: Path) -> None:
    files(tmp_path, "a.csv", "b.csv")
    job = failed(tmp_path)

    again = run(tmp_path, job, exclude="b.*")
    read_all(again)

    assert again.runtime.state.phase is Phase.FINISHED
    rows = {Path(one.split_id).name: one.place for one in splits_of(again)}
    assert rows == {"a.csv": SplitPlace.COMMITTED, "b.csv": SplitPlace.WITHDRAWN}
    facts = [one for one in again.history(Kind.FACT) if "withdrawn" in (one.payload_type or "")]
    value = again.chain.payload_types.decode(facts[0].payload_type or "", facts[0].payload)
    assert isinstance(value, SplitsWithdrawn)
    assert value.split_ids == [str(tmp_path / "b.csv")]
    assert "`exclude`" in value.why
    assert verify(stored(again)).faults == []


@pytest.mark.may_fail("scripted")
@pytest.mark.parametrize("exclude", ["bad", "{}/bad", "{}/b?d"])
def test_a_listed_folder_that_is_left_out_from_now_on_is_withdrawn(
    tmp_path: Path, exclude: str
) -> None:
    """No listing opened a folder that its whole path named, and its splits stayed: the job failed for its files."""
    (tmp_path / "bad").mkdir()
    files(tmp_path, "a.csv", "bad/b.csv")
    job = failed(tmp_path)

    again = run(tmp_path, job, exclude=exclude.format(tmp_path))
    assert names(again) == ["a.csv"]


@pytest.mark.clause("L6")
@pytest.mark.may_fail("scripted")
def test_a_file_that_no_reader_has_had_is_listed_as_the_options_are_now(tmp_path: Path) -> None:
    files(tmp_path, "a.csv", "b.csv")
    before = failed(tmp_path, csv=CsvOptions(no_newlines_in_fields=True), split_bytes=3)
    assert len(state_of(before).splits) == 4

    again = run(tmp_path, before, csv=CsvOptions(null_values=["1", "2"]))

    assert names(again) == ["a.csv", "b.csv"], "cut otherwise, and each once"
    content = decode_split(state_of(again).splits[str(tmp_path / "a.csv")].split.content)
    assert content.parts == 1
    withdrawn = [one for one in splits_of(again) if "#" in one.split_id]
    assert {one.place for one in withdrawn} == {SplitPlace.WITHDRAWN}


def skipped_in_part(folder: Path) -> tuple[HandDrivenJob, str]:
    """A failed job of one file in three splits, the second of which is skipped; its id."""
    (folder / "a.csv").write_text("i\n" + "".join(f"{i}\n" for i in range(10)), encoding="utf-8")
    job = run(folder, csv=CsvOptions(no_newlines_in_fields=True), split_bytes=8)
    job.register_all()
    second = list(state_of(job).splits)[1]
    job.ask("", SkipSplit(split_id=second, why="bad rows"))
    job.run(lambda: job.runtime.fail_job("source", "scripted", final="scripted"))
    job.crash()
    return job, second


@pytest.mark.clause("J2")
@pytest.mark.clause("L6")
@pytest.mark.parametrize("split_bytes", [5, 1000])
@pytest.mark.may_fail("scripted")
def test_a_file_of_which_a_split_is_skipped_stays_cut_as_it_is(
    tmp_path: Path, split_bytes: int
) -> None:
    """In other cuts the rows that are skipped would be read."""
    job, second = skipped_in_part(tmp_path)
    known = list(state_of(job).splits)

    again = run(tmp_path, job, csv=CsvOptions(no_newlines_in_fields=True), split_bytes=split_bytes)

    assert list(state_of(again).splits) == known
    assert state_of(again).unassigned() == (known[0], known[2])
    assert state_of(again).skipped() == {second}


@pytest.mark.clause("L6")
@pytest.mark.may_fail("scripted")
def test_a_file_recut_and_partly_known_is_an_error_if_a_split_is_skipped(
    tmp_path: Path,
) -> None:
    """A driver ended between two pages of its splits: what is not known would never be read."""
    job, _second = skipped_in_part(tmp_path)
    first, _, last = (one.split for one in state_of(job).splits.values())
    source = FileSource(tmp_path, csv=CsvOptions(no_newlines_in_fields=True), split_bytes=1000)

    with pytest.raises(SourceError, match="2 of its 3 splits are known, some of them are skipped"):
        source.discover_again(
            [first, last],
            None,
            frozenset({last.split_id}),
            frozenset({first.split_id}),
        )


@pytest.mark.clause("L6")
@pytest.mark.may_fail("scripted")
def test_a_file_is_compared_with_a_listing_of_what_is_read_of_it(tmp_path: Path) -> None:
    """A skipped split stays as an older listing had it."""
    job, second = skipped_in_part(tmp_path)
    path = tmp_path / "a.csv"
    options = {"csv": CsvOptions(no_newlines_in_fields=True), "split_bytes": 8}
    source = FileSource(tmp_path, **options)  # type: ignore[arg-type]
    known = [one.split for one in state_of(job).splits.values()]
    unread = frozenset(one.split_id for one in known) - {second}
    skipped = frozenset({second})
    path.write_text("i\n" + "".join(f"{i}\n" for i in range(9, -1, -1)), encoding="utf-8")
    os.utime(path, ns=(1, 1))
    relisted = source.discover_again(known, None, skipped, unread).discovered.splits
    now = {one.split_id: one for one in relisted}
    after = [one if one.split_id == second else now[one.split_id] for one in known]
    after.sort(key=lambda one: one.split_id != second)  # the skipped one first

    assert source.discover_again(after, None, skipped).discovered.splits == []


@pytest.mark.clause("L6")
@pytest.mark.may_fail("scripted")
def test_a_file_mended_after_a_rollback_to_the_start_is_read_as_it_is(
    tmp_path: Path,
) -> None:
    files(tmp_path, "a.csv", "b.csv")
    job = failed(tmp_path)
    (tmp_path / "a.csv").write_text("i\n1\n2\n3\n", encoding="utf-8")

    again = run(tmp_path, job)

    assert names(again) == ["a.csv", "b.csv"]
    content = decode_split(state_of(again).splits[str(tmp_path / "a.csv")].split.content)
    assert content.size_bytes == 8


class Finder(DefaultEnumerator):
    """Lists once, and finds more with each event of a reader."""

    found: ClassVar[list[Split]] = []

    def handle_source_event(self, subtask: int, attempt_number: int, event: Payload) -> None:
        self._context.record(SplitsDiscovered(splits=list(self.found), is_complete=False))


def finding(*found: Split) -> HandDrivenJob:
    """A job that knows `a`, read, and `b`, waiting, at its checkpoint, and finds `found` after it."""
    provider = SplitCoordinatorProvider(
        "source",
        enumerator=lambda context, _: Finder(context, listing("a", "b")),
        keeps_listed=True,
        payload_types=(Hello,),
    )
    job = HandDrivenJob(chain_of(provider))
    (attempt,) = job.register_all()
    ask(attempt)
    checkpoint(job, attempt)
    Finder.found = list(found)
    attempt.send("source", Hello())
    return job


@pytest.mark.clause("L6")
@pytest.mark.may_fail("scripted")
def test_a_split_found_after_a_checkpoint_is_known_after_a_rollback_to_it() -> None:
    job = finding(split("later"))

    fail_globally(job)

    assert list(state_of(job).splits) == ["a", "b", "later"]
    assert state_of(job).unassigned() == ("b", "later")


@pytest.mark.clause("L6")
def test_a_new_listing_replaces_only_splits_that_no_reader_had() -> None:
    job = finding(split("a", b"new"), split("b", b"new"))

    assert state_of(job).splits["a"].split.content == b""
    assert state_of(job).splits["b"].split.content == b"new"


@pytest.mark.clause("L6")
def test_a_finished_job_with_a_split_that_waits_breaks_an_invariant() -> None:
    table = SplitTable().extended([split("a"), split("b")], lambda _: FREE)
    state = JobState(projections=Map({"source": SplitsState(splits=table)}))

    assert faults_of(state) == ()
    assert faults_of(replace(state, phase=Phase.FINISHED)) == (
        "the job has finished, and 2 of 2 splits of 'source' wait, the first 'a'",
    )


@pytest.mark.clause("L6")
@pytest.mark.may_fail("scripted")
def test_a_history_that_ends_with_a_split_that_waits_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As earlier versions wrote them: their folds forgot what was listed before a rollback to the start."""
    files(tmp_path, "a.csv", "b.csv")
    monkeypatch.setattr(SplitCoordinatorProvider, "projection", SPLITS)
    monkeypatch.setattr(splits_module, "LISTED_SPLITS", SPLITS)
    job = failed(tmp_path)
    (tmp_path / "b.csv").unlink()
    again = run(tmp_path, job)
    read_all(again)
    assert again.runtime.state.phase is Phase.FINISHED

    (fault,) = verify(stored(again)).faults

    said = (
        f"the job has finished, and 1 of its splits were neither read nor skipped: {tmp_path}/b.csv"
    )
    assert fault.what == said
    assert waiting_in(stored(again)) == said


@pytest.mark.clause("L6")
def test_a_listing_for_a_closed_coordinator_adds_no_split_to_an_audit(
    tmp_path: Path,
) -> None:
    """The job failed while it was listed; the file was moved away before the next run."""
    files(tmp_path, "a.csv", "b.csv")
    job = run(tmp_path)
    read_all(job)
    find = next(one for one in job.history(Kind.FACT) if "discovered" in (one.payload_type or ""))
    late = replace(
        find,
        payload=payload_type_of(SplitsDiscovered).encode(
            SplitsDiscovered(splits=[split("late")], is_complete=True)
        ),
        attributes={**find.attributes, "closed": "true"},
    )

    rows = split_rows([*job.history(), late])

    assert sorted(Path(one.split_id).name for one in rows) == ["a.csv", "b.csv"]
    assert progress([*job.history(), late]).splits_known == 2


@pytest.mark.parametrize("first", [0, 1, PAGE_SPLITS, PAGE_SPLITS + 3])
def test_a_table_goes_on_with_what_a_later_one_has_beside_it(first: int) -> None:
    splits = [split(f"{number:04}") for number in range(700)]
    whole = SplitTable().extended(splits, lambda _: FREE)
    begun = SplitTable().extended(splits[:first], lambda _: FREE)

    assert begun.continued(whole, lambda _: FREE) == whole
    assert whole.continued(begun, lambda _: FREE) == whole
    other = SplitTable().extended([split("other")], lambda _: FREE)
    assert list(other.continued(begun, lambda _: FREE)) == ["other", *begun]


def test_a_split_gets_other_content_in_a_full_page_and_in_the_last() -> None:
    splits = [split(f"{number:04}", b"old") for number in range(PAGE_SPLITS + 3)]
    table = SplitTable().extended(splits, lambda _: FREE)
    new = [split("0007", b"new"), split(f"{PAGE_SPLITS + 1:04}", b"new")]

    changed = table.replaced(new)

    assert [one.split_id for one in changed.in_order() if one.content == b"new"] == [
        "0007",
        f"{PAGE_SPLITS + 1:04}",
    ]
    assert list(changed) == list(table)


def read_to_the_end(job: HandDrivenJob) -> None:
    """One subtask asks, reads what it is given, and completes."""
    (attempt,) = job.register_all()
    done: list[str] = []
    while NO_MORE not in done:
        ask(attempt)
        for name in told(job, attempt)[len(done) :]:
            done.append(name)
            if name != NO_MORE:
                attempt.finish_split("source", name)
        ack_all(attempt)
    attempt.complete()
    assert job.runtime.state.phase is Phase.FINISHED


class ListingAll(DefaultEnumerator):
    """Records all splits at each start, as an enumerator of a user may."""

    def start(self) -> None:
        self._context.record(SplitsDiscovered(splits=[split("a"), split("b")], is_complete=True))


def opened_again_after_a_prune(provider: SplitCoordinatorProvider) -> HandDrivenJob:
    """A job that has finished, was pruned and opened again, and has finished once more."""
    job = HandDrivenJob(chain_of(provider))
    read_to_the_end(job)
    ended(job)
    job.log.delete_below(job.log.high_watermark() - 1)
    job = HandDrivenJob(chain_of(provider), log=job.log, again=True)
    read_to_the_end(job)
    return job


@pytest.mark.clause("L6")
def test_a_listing_records_no_split_that_a_reader_has_had() -> None:
    """Else the tables of a pruned log show it as waiting: the records of its reading are gone."""
    job = opened_again_after_a_prune(pull_of("a", "b"))

    assert splits_of(job) == ()
    assert verify(stored(job)).faults == []


@pytest.mark.clause("L6")
def test_a_pruned_history_that_lists_all_splits_again_has_no_fault() -> None:
    """The records of their reading are gone."""
    provider = SplitCoordinatorProvider(
        "source", enumerator=lambda context, _: ListingAll(context, listing()), keeps_listed=True
    )
    job = opened_again_after_a_prune(provider)

    assert verify(stored(job)).faults == []
    assert waiting_in(stored(job)) == ""


@pytest.mark.parametrize("options", [{}, {"format": "jsonl"}, {"schemas": "each"}])
def test_a_file_that_was_read_while_it_was_empty_is_read_once_it_has_rows(
    tmp_path: Path, options: dict[str, str]
) -> None:
    """A copy begins with an empty file: every later run would fail for its change, until a person moves it."""
    text = '{"i": 1}\n' if "format" in options else "i\n1\n"
    (tmp_path / "a").write_text(text, encoding="utf-8")
    (tmp_path / "b").touch()
    job = run(tmp_path, **options)  # type: ignore[arg-type]
    assert names(job) == ["a", "b"]
    read_all(job)

    (tmp_path / "b").write_text(text, encoding="utf-8")
    again = run(tmp_path, job, again=True, **options)
    assert names(again) == ["b"]
    read_all(again)
    assert again.runtime.state.phase is Phase.FINISHED
    assert verify(stored(again)).faults == []

    (tmp_path / "b").write_text(text * 2, encoding="utf-8")  # rows of it were read
    with pytest.raises(SourceError, match="it has changed since it was listed"):
        FileSource(tmp_path, **options).discover_again(state_of(again).in_order())  # type: ignore[arg-type]
