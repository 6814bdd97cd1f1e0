"""Rejects of a job: each line of its files is published once, as a row or as a reject, whatever dies when."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.api.chain import Chain
from coordlog.errors import OptionError, RestoreError
from coordlog.history import History
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.progress import Progress, progress
from coordlog.projections.tables.splits import SplitRow, splits
from coordlog.runtime.driver import DriverOptions, JobDriver, JobStatus
from coordlog.schemas.record import Record
from coordlog.spark_integration.files.places import check_apart
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.row_transforms import row_transform
from coordlog.testing.in_memory import InMemorySurroundings
from jobs.file_pipeline import KilledError
from jobs.rejecting_job import SUBTASKS, drive

FILES, LINES = 6, 60

pytestmark = pytest.mark.slow


def is_bad(number: int) -> bool:
    return number % 5 == 2


def is_refused(number: int) -> bool:
    """Whether the transform raises at a row."""
    return number % 7 == 3


def refusing(batch: pa.RecordBatch) -> pa.RecordBatch:
    if refused := [number for number in batch.column("a").to_pylist() if is_refused(number)]:
        raise ValueError(f"{refused[0]} is refused")
    return batch


@dataclass
class Case:
    """Files with bad rows, a destination, a folder of rejects and one log; a driver after the other."""

    folder: Path
    is_batch: bool
    format: str = "csv"
    rescued: str | None = None
    refuses: bool = False
    """Whether the transform raises at some rows."""
    log: MemoryLog = field(default_factory=lambda: MemoryLog("job"))

    def __post_init__(self) -> None:
        (self.folder / "in").mkdir(parents=True)
        for number in range(FILES):
            lines = range(number * LINES, (number + 1) * LINES)
            text = "".join(map(self._line, lines))
            (self.folder / "in" / f"{number}.{self.format}").write_text(text, encoding="utf-8")

    def _line(self, number: int) -> str:
        if self.format == "jsonl":
            value = f'"bad {number}"' if is_bad(number) else str(number)
            further = "" if self.rescued is None or number % 2 else f', "c": {number}.50'
            return f'{{"a": {value}{further}}}\n'
        header = "a,b\n" if number % LINES == 0 else ""
        return header + (f"bad {number},x\n" if is_bad(number) else f"{number},x\n")

    def drive(self, kill_after: int | None = None) -> JobStatus:
        """Run one driver to its end, or up to its kill after so many records."""
        options: dict[str, Any] = {"format": self.format, "schema": "a bigint, b string"}
        source = FileSource(
            self.folder / "in",
            batch_rows=9,
            block_bytes=100,
            bad_rows=self.folder / "rejects",
            rescued=self.rescued,
            **options,
        )
        return drive(
            source,
            row_transform(refusing) if self.refuses else lambda batch: batch,
            self.folder / "out",
            self.log,
            is_batch=self.is_batch,
            kill_after=kill_after,
        )

    def rows(self) -> list[int]:
        """Published rows, sorted."""
        out = self.folder / "out"
        return (
            sorted(pq.read_table(out).column("a").to_pylist())
            if list(out.glob("*.parquet"))
            else []
        )

    def rejects(self) -> list[tuple[str, int | None, int | None, str]]:
        """Published rejects: file, line, offset and row, sorted."""
        folder = self.folder / "rejects"
        if not list(folder.glob("*.parquet")):
            return []
        table = pq.read_table(folder).select(["file", "line", "offset", "row"])
        return sorted((tuple(row.values()) for row in table.to_pylist()), key=str)

    def expected_rejects(self) -> list[tuple[str, int | None, int | None, str]]:
        """As the files have them."""
        found: list[tuple[str, int | None, int | None, str]] = []
        for path in sorted((self.folder / "in").iterdir()):
            offset = 0
            for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
                value = line.partition(b",")[0]
                if b"bad" in line:
                    found.append((str(path), number, offset, line.decode().rstrip("\n")))
                elif self.refuses and value.isdigit() and is_refused(int(value)):
                    found.append((str(path), None, None, f'{{"a": {int(value)}, "b": "x"}}'))
                offset += len(line)
        return sorted(found, key=str)

    def check_partial(self) -> None:
        """No row and no reject is there twice, or wrong."""
        rows, rejects = self.rows(), self.rejects()
        assert len(set(rows)) == len(rows)
        assert len(set(rejects)) == len(rejects)
        assert set(rejects) <= set(self.expected_rejects())

    def check_whole(self) -> None:
        """Each line is published once."""
        every = range(FILES * LINES)
        assert self.rows() == [
            number
            for number in every
            if not is_bad(number) and not (self.refuses and is_refused(number))
        ]
        assert self.rejects() == self.expected_rejects()
        assert len(self.rows()) + len(self.rejects()) == FILES * LINES
        staged = self.folder.rglob(".coordlog/staging/**/*")
        assert [path for path in staged if path.is_file()] == []

    def records(self) -> list[Record]:
        return [one.record() for turn in History(self.log).turns() for one in turn.entries]

    def progress(self) -> Progress:
        return progress(self.records())

    def splits(self) -> tuple[SplitRow, ...]:
        return splits(self.records())


@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_each_line_is_a_row_or_a_reject_and_the_history_has_their_numbers(
    tmp_path: Path,
    format: str,  # noqa: A002, the option
    is_batch: bool,  # noqa: FBT001, a parameter
) -> None:
    case = Case(tmp_path, is_batch, format)
    assert case.drive() is JobStatus.FINISHED

    case.check_whole()
    bad = sum(map(is_bad, range(FILES * LINES)))
    counted = case.progress()
    assert (counted.rejected, counted.rows) == (bad, FILES * LINES - bad)
    assert counted.rows_published == FILES * LINES - bad, "rejects are no published rows"
    assert {(one.rows, one.rejected) for one in case.splits()} == {(48, 12)}


@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_rows_at_which_the_transform_raises_are_rejects_after_a_kill_too(
    tmp_path: Path,
    is_batch: bool,  # noqa: FBT001, a parameter
) -> None:
    case = Case(tmp_path, is_batch, refuses=True)
    with pytest.raises(KilledError):
        case.drive(kill_after=50)
    case.check_partial()
    assert case.drive() is JobStatus.FINISHED

    case.check_whole()
    counted = case.progress()
    assert (counted.rows, counted.rejected) == (len(case.rows()), len(case.rejects()))


@pytest.mark.clause("H1")
@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
@pytest.mark.parametrize(
    "refuses",
    [
        pytest.param(False, id="parser"),
        pytest.param(True, id="transform", marks=pytest.mark.tier("faults")),
    ],
)
def test_a_driver_that_dies_after_any_record_loses_and_doubles_no_reject(
    tmp_path: Path,
    refuses: bool,  # noqa: FBT001, a parameter
    is_batch: bool,  # noqa: FBT001, a parameter
    seed: int,
    dose: int,
) -> None:
    whole = Case(tmp_path / "whole", is_batch, refuses=refuses)
    whole.drive()
    whole.check_whole()
    assert whole.progress().rejected == len(whole.rejects())
    assert whole.progress().rows == len(whole.rows())
    count = len(whole.records())
    chance = random.Random(seed)
    places = chance.sample(range(1, count), min(count - 1, 8 * dose))
    for place in places:
        case = Case(tmp_path / str(place), is_batch, refuses=refuses)
        try:
            case.drive(kill_after=place)
        except KilledError:
            case.check_partial()
            # The next driver dies too, somewhere else.
            try:
                case.drive(kill_after=chance.randrange(1, count))
            except KilledError:
                case.check_partial()
                case.drive()
        case.check_whole()
        assert case.progress().rejected == whole.progress().rejected
        assert case.progress().rows == whole.progress().rows


@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_further_fields_are_published_with_their_rows_after_a_kill(
    tmp_path: Path,
    is_batch: bool,  # noqa: FBT001, a parameter
) -> None:
    case = Case(tmp_path, is_batch, "jsonl", rescued="_rescued")
    with pytest.raises(KilledError):
        case.drive(kill_after=50)
    assert case.drive() is JobStatus.FINISHED

    case.check_whole()
    table = pq.read_table(tmp_path / "out", columns=["a", "_rescued"])
    assert {row["a"]: row["_rescued"] for row in table.to_pylist()} == {
        number: None if number % 2 else f'{{"c":{number}.50}}'
        for number in range(FILES * LINES)
        if not is_bad(number)
    }


def test_a_reset_takes_the_rejects_of_a_split_with_its_rows(tmp_path: Path) -> None:
    """The number of a split that is read again counts once."""
    case = Case(tmp_path, is_batch=False)
    count = 0
    for place in (40, 60, 80):
        try:
            case.drive(kill_after=place)
        except KilledError:
            count += 1
    if case.progress().end.value != "finished":
        case.drive()

    assert count
    case.check_whole()
    assert sum(one.rejected or 0 for one in case.splits()) == case.progress().rejected == 72


def test_rejects_are_not_written_into_the_source_or_the_destination(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for rejects in (tmp_path / "in" / "bad", tmp_path / "out" / "bad"):
        source = FileSource(tmp_path / "in", bad_rows=rejects)
        with pytest.raises(OptionError, match="apart from"):
            check_apart(
                Chain(source=source.spec(), operators=[ParquetSink(tmp_path / "out").spec()])
            )


def test_a_job_that_wrote_rejects_is_refused_without_their_operator(tmp_path: Path) -> None:
    case = Case(tmp_path, is_batch=False)
    with pytest.raises(KilledError):
        case.drive(kill_after=60)
    source = FileSource(tmp_path / "in", bad_rows="skip", schema="a bigint, b string")
    chain = Chain(source=source.spec(), operators=[ParquetSink(tmp_path / "out").spec()])
    driver = JobDriver(
        chain=chain,
        log=case.log,
        options=DriverOptions(job_id="job", parallelism=SUBTASKS, is_batch=False),
        surroundings=InMemorySurroundings(chain, "job", SUBTASKS),
    )
    with pytest.raises(RestoreError, match="rejects"):
        driver.start()
    case.drive()
    case.check_whole()
