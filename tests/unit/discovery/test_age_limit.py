"""The age limit of a watched source: files that are left out, names that are forgotten, and clocks that jump."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from coordlog.api.chain import Chain
from coordlog.errors import OptionError, SourceUnavailableError
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind
from coordlog.schemas.source_types import KnownSplitsForgotten
from coordlog.spark_integration.files.listing import InputFiles, ListedFile
from coordlog.spark_integration.files.payloads import AgeLimit, FilesLeftOut
from coordlog.spark_integration.files.source.ages import FileAges
from coordlog.spark_integration.files.source.kept import limit_of
from coordlog.spark_integration.files.source.known_files import KnownFiles
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.split_bytes import schema_of
from coordlog.spark_integration.files.source.watch import Watch
from coordlog.testing.driven_job import HandDrivenJob
from data.file_times import DAY_S, NOW_S, DriverTime
from fakes.split_fakes import ack_all, ask, checkpoint, state_of, told

LISTED = "coordlog.splits_discovered@"
AGE = Watch(watch_interval_s=0.01, max_file_age="10d")


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> DriverTime:
    return DriverTime(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def write(folder: Path, name: str, *, day: float, text: str = "i\n1\n") -> Path:
    """A file that was modified so many days after the first day."""
    path = folder / name
    path.write_text(text)
    os.utime(path, (NOW_S + day * DAY_S, NOW_S + day * DAY_S))
    return path


def day_us(day: float) -> int:
    return int((NOW_S + day * DAY_S) * 10**6)


class Watched:
    """A job on a folder, whose listings are run one by one."""

    def __init__(
        self,
        folder: Path,
        former: Watched | None = None,
        *,
        watch: Watch | None = AGE,
        from_checkpoint: int | None = None,
        again: bool = False,
        **options: Any,  # noqa: ANN401
    ) -> None:
        options.setdefault("schema", "i bigint")
        source = FileSource(folder, watch=watch, **options)
        self.job: HandDrivenJob = HandDrivenJob(
            Chain(source=source.spec(), operators=[]),
            log=None if former is None else former.job.log,
            from_checkpoint=from_checkpoint,
            again=again,
            is_held=True,
        )
        self.job.is_work_held = True
        self.job.release()
        self.job.is_held = False
        (self.attempt,) = self.job.register_all()

    def look(self, count: int = 1) -> None:
        """Run so many listings, each with all of its facts."""
        for _ in range(count):
            is_listed = False
            while not is_listed:
                end = self.job.log.high_watermark()
                self.job.run(self.job.works.popleft())
                fresh = self.job.log.read(end, self.job.log.high_watermark())
                types = [stored.record().payload_type or "" for stored in fresh]
                is_listed = any(name.startswith(LISTED) for name in types)

    def read_all(self) -> int:
        """Read every split; returns the checkpoint that has them."""
        while state_of(self.job).waiting_count:
            ask(self.attempt)
            ack_all(self.attempt)
            self.attempt.finish_split("source", told(self.job, self.attempt)[-1], rows=1)
        return checkpoint(self.job, self.attempt)

    def crash(self, folder: Path, **options: Any) -> Watched:  # noqa: ANN401
        self.job.crash()
        return Watched(folder, self, **options)

    @property
    def known(self) -> list[str]:
        return [Path(name).name for name in state_of(self.job).splits]

    @property
    def waiting(self) -> list[str]:
        return [Path(name).name for name in state_of(self.job).unassigned()]

    def facts(self, kind: type[Payload]) -> list[Any]:
        decode = self.job.chain.payload_types.decode
        own = [fact for fact in self.job.history(Kind.FACT) if fact.operator_id == "source"]
        values = [decode(fact.payload_type or "", fact.payload or b"") for fact in own]
        return [value for value in values if isinstance(value, kind)]


def test_later_files_have_the_schema_of_those_that_were_forgotten(
    folder: Path, now: DriverTime
) -> None:
    """The schema is inferred: a column without a value would have another type."""
    write(folder, "a.csv", day=0, text="i,s\n1,x\n")
    job = Watched(folder, schema=None)
    job.look(2)
    job.read_all()
    now.days = 30
    write(folder, "b.csv", day=29, text="i,s\n")  # is still being written
    job.look(1)
    write(folder, "b.csv", day=30, text="i,s\n,y\n")
    job.look(1)
    assert job.known == []
    job = job.crash(folder, schema=None)
    job.look(2)
    (split,) = state_of(job.job).unassigned_splits()
    assert str(schema_of(split)) == "i: int64\ns: string"


# --- what is discovered, and what is forgotten ----------------------------------------------------
def test_files_older_than_the_age_are_left_out_and_recorded(folder: Path) -> None:
    write(folder, "new.csv", day=-1)
    write(folder, "border.csv", day=-10.9)  # ten days before the newest, not before now
    for name in ("old.csv", "older.csv"):
        write(folder, name, day=-12)
    job = Watched(folder)
    job.look(2)

    assert job.known == ["border.csv", "new.csv"]
    (left_out,) = job.facts(FilesLeftOut)
    assert [Path(path).name for path in left_out.paths] == ["old.csv", "older.csv"]
    assert (left_out.file_count, left_out.may_be_read) == (2, False)
    assert left_out.modified_from_us == day_us(-11)
    job.look(2)
    assert len(job.facts(FilesLeftOut)) == 1, "each is reported once"
    write(folder, "late.csv", day=-11.5)
    job.look(2)
    assert [Path(path).name for path in job.facts(FilesLeftOut)[1].paths] == ["late.csv"]
    assert job.known == ["border.csv", "new.csv"]


def aged(folder: Path, now: DriverTime) -> Watched:
    """A job that has read a.csv, of day 0, and n.csv, of day 9; the limit of day 11 is in the log, and no more."""
    write(folder, "a.csv", day=0)
    write(folder, "n.csv", day=9)
    now.days = 9
    job = Watched(folder)
    job.look(2)
    assert job.known == ["a.csv", "n.csv"]
    job.read_all()
    now.days = 11
    write(folder, "z.csv", day=11)
    job.look()
    return job


def test_files_that_a_failed_listing_has_left_out_are_recorded_by_the_next(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "a-old.csv", day=-12)
    write(folder, "new.csv", day=-1)
    watched = Watched(folder)
    watched.look(2)
    write(folder, "b-old.csv", day=-12)
    walk = InputFiles.walk

    def breaking(files: InputFiles) -> Iterator[ListedFile]:
        yield from walk(files)
        raise SourceUnavailableError("s3", "it does not answer", "try again")

    with monkeypatch.context() as broken:
        broken.setattr(InputFiles, "walk", breaking)
        watched.job.run(watched.job.works.popleft())
    watched.job.advance(60.0)
    watched.look()
    names = [[Path(path).name for path in fact.paths] for fact in watched.facts(FilesLeftOut)]
    assert names == [["a-old.csv"], ["b-old.csv"]]


def test_a_read_file_is_forgotten_behind_the_limit_and_not_found_again(
    folder: Path, now: DriverTime
) -> None:
    job = aged(folder, now)
    assert limit_of(state_of(job.job).enumerator_state) == day_us(1)
    assert job.known == ["a.csv", "n.csv"], "the limit is first in the log"
    job.look()

    assert job.known == ["n.csv", "z.csv"]
    (forgotten,) = job.facts(KnownSplitsForgotten)
    assert [Path(name).name for name in forgotten.split_ids] == ["a.csv"]
    job.look(3)
    assert job.known == ["n.csv", "z.csv"]
    assert job.facts(FilesLeftOut) == [], "it was read"


@pytest.mark.clause("L6")
def test_a_file_that_waits_or_is_in_no_checkpoint_is_not_forgotten(
    folder: Path, now: DriverTime
) -> None:
    for name in ("a.csv", "b.csv", "c.csv"):
        write(folder, name, day=0)
    job = Watched(folder)
    job.look(2)
    ask(job.attempt)
    ack_all(job.attempt)
    job.attempt.finish_split("source", told(job.job, job.attempt)[-1], rows=1)
    ask(job.attempt)
    now.days = 20
    write(folder, "z.csv", day=20)
    job.look(4)
    assert job.known == ["a.csv", "b.csv", "c.csv", "z.csv"], "finished, in work, waiting"
    assert limit_of(state_of(job.job).enumerator_state) == day_us(10)

    ack_all(job.attempt)
    checkpoint(job.job, job.attempt)
    job.look(2)
    assert job.known == ["b.csv", "c.csv", "z.csv"]
    assert job.waiting == ["c.csv", "z.csv"]


# --- a file that comes back -----------------------------------------------------------------------
def test_a_forgotten_file_that_comes_back_is_new_only_by_a_new_time(
    folder: Path, now: DriverTime
) -> None:
    job = aged(folder, now)
    job.look()
    (folder / "a.csv").unlink()
    job.look(2)
    write(folder, "a.csv", day=0)
    job.look(3)
    assert "a.csv" not in job.known

    write(folder, "a.csv", day=10.5)
    job.look(2)
    assert job.waiting[-1] == "a.csv"
    job.read_all()
    assert job.job.history(Kind.GLOBAL_FAILURE) == []


def test_a_file_that_is_gone_is_forgotten_by_the_time_of_its_listing(
    folder: Path, now: DriverTime
) -> None:
    write(folder, "a.csv", day=0)
    job = Watched(folder)
    job.look(2)
    job.read_all()
    (folder / "a.csv").unlink()
    now.days = 11
    write(folder, "z.csv", day=11)
    job.look(3)
    assert job.known == ["z.csv"]


def test_a_file_whose_time_alone_rose_is_not_forgotten(folder: Path, now: DriverTime) -> None:
    write(folder, "a.csv", day=0)
    job = Watched(folder, changed_by="size")
    job.look(2)
    job.read_all()
    now.days = 11
    write(folder, "a.csv", day=11)
    write(folder, "z.csv", day=11)
    job.look(5)
    assert job.known == ["a.csv", "z.csv"], "it would be found again"


# --- restores -------------------------------------------------------------------------------------
@pytest.mark.clause("E1")
def test_what_was_forgotten_since_the_checkpoint_stays_so_after_a_rollback(
    folder: Path, now: DriverTime
) -> None:
    job = aged(folder, now)
    job.look()
    assert job.known == ["n.csv", "z.csv"]

    again = job.crash(folder)
    assert again.known == ["n.csv", "z.csv"]
    assert again.waiting == ["z.csv"]
    again.look(3)
    assert sorted(again.known) == ["n.csv", "z.csv"]
    again.read_all()


def test_a_crash_between_the_limit_and_the_forgetting_reads_nothing_twice(
    folder: Path, now: DriverTime
) -> None:
    job = aged(folder, now)  # the limit is in the log, and nothing is forgotten yet
    for _ in range(3):
        job = job.crash(folder)
        job.look(3)
        assert "a.csv" not in job.waiting
    job.read_all()
    finished = [record.attributes for record in job.job.history(Kind.SPLIT_FINISHED)]
    assert len(finished) == 3


def test_without_the_option_the_limit_of_the_log_stays_in_force(
    folder: Path, now: DriverTime
) -> None:
    job = aged(folder, now)
    job.look()
    plain = job.crash(folder, watch=Watch(watch_interval_s=0.01))
    plain.look(3)
    assert sorted(plain.known) == ["n.csv", "z.csv"]
    (left_out,) = plain.facts(FilesLeftOut)
    assert ([Path(path).name for path in left_out.paths], left_out.may_be_read) == (["a.csv"], True)


def test_a_run_without_a_watch_leaves_out_what_was_forgotten(folder: Path, now: DriverTime) -> None:
    job = aged(folder, now)
    job.look()
    job.read_all()
    plain = job.crash(folder, watch=None)
    write(folder, "new.csv", day=12)
    plain.look()

    assert plain.waiting == ["new.csv"]
    assert [Path(path).name for path in plain.facts(FilesLeftOut)[0].paths] == ["a.csv"]


# --- clocks ---------------------------------------------------------------------------------------
def test_neither_a_clock_nor_a_file_that_is_ahead_moves_the_limit_alone(
    folder: Path, now: DriverTime
) -> None:
    write(folder, "a.csv", day=0)
    job = Watched(folder)
    now.days = 3_650  # the driver's clock is ahead
    job.look(2)
    write(folder, "b.csv", day=0.5)
    job.look(2)
    assert job.known == ["a.csv", "b.csv"]
    now.days = 1  # it is right again, and a file is of the future
    write(folder, "future.csv", day=3_650)
    job.look(2)
    write(folder, "c.csv", day=1)
    job.look(2)
    assert job.known == ["a.csv", "b.csv", "future.csv", "c.csv"]
    assert job.facts(FilesLeftOut) == []


def test_a_clock_that_goes_back_moves_the_limit_nowhere(folder: Path, now: DriverTime) -> None:
    job = aged(folder, now)
    before = limit_of(state_of(job.job).enumerator_state)
    now.days = -100
    write(folder, "y.csv", day=10)
    job.look(4)

    assert limit_of(state_of(job.job).enumerator_state) == before
    assert "y.csv" in job.known


def test_the_limit_rises_in_steps_and_not_with_each_file(folder: Path, now: DriverTime) -> None:
    job = aged(folder, now)
    for hour in range(13):
        now.days = 11 + hour / 24
        write(folder, f"h{hour:02}.csv", day=now.days)
        job.look(2)
    assert len(job.facts(AgeLimit)) == 3, "ten days in twenty steps, and the first one"


# --- bounds ---------------------------------------------------------------------------------------
def test_the_state_stays_as_large_as_the_age_while_files_come(
    folder: Path, now: DriverTime
) -> None:
    job = Watched(folder)
    counts = []
    for day in range(30):
        now.days = day
        for n in range(10):
            write(folder, f"{day:03}-{n}.csv", day=day)
        job.look(3)
        job.read_all()
        counts.append(len(job.known))
    assert max(counts) <= 200
    table = state_of(job.job).splits
    assert (table.end, len(table.pages)) == (300, 1)
    crashed = job.crash(folder)
    assert crashed.known == job.known


def test_splits_of_one_file_are_forgotten_together() -> None:
    known = KnownFiles()
    filter_ = FileAges(10, 100, lambda: 200)
    filter_.begin(known)
    assert filter_.end([]) == []


@pytest.mark.parametrize("age", ["0s", "10", "1w", "", timedelta(0), "50s"])
def test_an_age_that_is_none_or_too_short_is_refused(age: str | timedelta) -> None:
    with pytest.raises(OptionError, match=re.escape("max_file_age")):
        Watch(watch_interval_s=10, max_file_age=age)


def test_queries_refuse_an_age(folder: Path) -> None:
    with pytest.raises(OptionError, match="max_file_age"):
        FileSource(folder, watch=AGE).coordinated()
