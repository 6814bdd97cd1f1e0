"""Rejects of splits that queries read: one file for each split, whoever reads it, how often, and in what batches."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.api.operator import PollStatus
from coordlog.coordinators.query_rejects import RejectsPlace, TaskName
from coordlog.coordinators.query_source import CoordinatedSource
from coordlog.errors import OptionError, SinkError
from coordlog.limits import SPLIT_REJECTS_GROUP_ROWS
from coordlog.log.memory import MemoryLog
from coordlog.schemas.source_types import Split
from coordlog.spark_integration.dataframes.read_options import with_read_options
from coordlog.spark_integration.dataframes.ticket import Ticket
from coordlog.spark_integration.files.formats.bad_rows import (
    REJECTS_SCHEMA,
    BadRow,
    are_rejects,
    rejects_batch,
)
from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.store.local import LocalStore
from coordlog.spark_integration.kafka.source import KafkaSource
from fakes.chain_fakes import FakeContext

SPLIT = Split(split_id="/in/a.csv", content=b"a")


class CrashError(Exception):
    """A task is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    task_attempt_id: int = 1
    attempt_number: int = 0


def rejects(*lines: int) -> pa.RecordBatch:
    return rejects_batch(
        "/in/a.csv",
        [BadRow(line=n, offset=n * 10, reason="bad", text=f"row {n}") for n in lines],
    )


def coordinated(folder: Path, **options: Any) -> CoordinatedSource:  # noqa: ANN401, of a source
    options.setdefault("schema", "a bigint")
    return FileSource(folder / "in", bad_rows=folder / "rejects", **options).coordinated()


def place(folder: Path, service_id: str = "reads-1", **options: Any) -> RejectsPlace:  # noqa: ANN401, as above
    query_rejects = coordinated(folder, **options).rejects
    assert query_rejects is not None
    query_rejects.prepare("job")
    return query_rejects.claim("job", LOG.identity, (), service_id)


LOG = MemoryLog("job")


def read(folder: Path) -> list[int]:
    """Lines of the published rejects, sorted."""
    files = list((folder / "rejects").glob("*.parquet"))
    return sorted(line for file in files for line in pq.read_table(file).column("line").to_pylist())


def publish(
    where: RejectsPlace, task: TaskName, *batches: pa.RecordBatch, split: Split = SPLIT
) -> None:
    writer = where.writer(task)
    for batch in batches:
        writer.add(batch)
    writer.publish(split)
    writer.discard()


def test_a_split_that_is_read_again_adds_nothing(tmp_path: Path) -> None:
    where = pickle.loads(pickle.dumps(place(tmp_path)))
    for attempt in range(3):
        publish(where, Task(task_attempt_id=attempt), rejects(1, 2), rejects(3))

    assert read(tmp_path) == [1, 2, 3]
    (file,) = (tmp_path / "rejects").glob("*.parquet")
    assert pq.read_schema(file).names == REJECTS_SCHEMA.names
    assert pq.read_schema(file).metadata is None


def test_another_service_finds_the_rejects_of_the_one_before(tmp_path: Path) -> None:
    publish(place(tmp_path, "reads-1"), Task(), rejects(1))
    publish(place(tmp_path, "reads-2"), Task(), rejects(1))
    assert read(tmp_path) == [1]


def test_batches_of_any_size_make_the_same_file(tmp_path: Path, seed: int) -> None:
    chance, count = random.Random(seed), 2 * SPLIT_REJECTS_GROUP_ROWS + 17
    where = place(tmp_path)
    for attempt in range(6):
        cuts = sorted({0, count, *(chance.randrange(count) for _ in range(chance.randrange(9)))})
        pieces = itertools.pairwise(cuts)
        publish(
            where, Task(task_attempt_id=attempt), *(rejects(*range(*piece)) for piece in pieces)
        )

    assert read(tmp_path) == list(range(count))
    (file,) = (tmp_path / "rejects").glob("*.parquet")
    groups = pq.read_metadata(file)
    assert [groups.row_group(n).num_rows for n in range(groups.num_row_groups)] == [1000, 1000, 17]


def test_the_first_rejects_of_a_split_stay_whatever_a_later_reader_finds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A compacted topic has fewer records later, and another pyarrow writes other bytes."""
    where = place(tmp_path)
    publish(where, Task(), rejects(1, 2))
    publish(where, Task(task_attempt_id=2), rejects(2))
    assert read(tmp_path) == [1, 2]
    assert "other rejects" in caplog.text
    staging = tmp_path / "rejects" / ".coordlog" / "staging"
    assert list(staging.rglob("*.parquet")) == []


def test_a_publication_that_the_store_refuses_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise SinkError("/out", "no space", "free some")

    monkeypatch.setattr(LocalStore, "publish", refuse)
    with pytest.raises(SinkError, match="no space"):
        publish(place(tmp_path), Task(), rejects(1))


def test_a_changed_file_is_another_split(tmp_path: Path) -> None:
    where = place(tmp_path)
    publish(where, Task(), rejects(1))
    publish(where, Task(), rejects(2), split=Split(split_id=SPLIT.split_id, content=b"b"))
    assert read(tmp_path) == [1, 2]


def test_a_split_that_is_not_read_whole_has_no_rejects(tmp_path: Path) -> None:
    where = place(tmp_path)
    writer = where.writer(Task())
    writer.add(rejects(*range(SPLIT_REJECTS_GROUP_ROWS + 1)))
    writer.discard()
    publish(where, Task(task_attempt_id=2))  # a split without bad rows
    assert read(tmp_path) == []
    staging = tmp_path / "rejects" / ".coordlog" / "staging"
    assert [path for path in staging.rglob("*") if path.is_file()] == []


def places_of_a_crash(where: RejectsPlace) -> Iterator[str]:
    seen: list[str] = []
    writer = cast("Any", where.writer(Task(task_attempt_id=99)))
    writer.add(rejects(1))
    writer.publish(Split(split_id="other", content=b""), at=seen.append)
    yield from seen


def test_a_task_that_dies_anywhere_in_a_publication_doubles_no_reject(tmp_path: Path) -> None:
    names = [name.rpartition(" ")[0] for name in places_of_a_crash(place(tmp_path / "x"))]
    assert len(names) == 4
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        where = place(folder)

        def crash(at: str, name: str = name) -> None:
            if at.startswith(name):
                raise CrashError

        writer = cast("Any", where.writer(Task()))
        writer.add(rejects(1, 2))
        with pytest.raises(CrashError):
            writer.publish(SPLIT, at=crash)
        publish(where, Task(task_attempt_id=2, attempt_number=1), rejects(1, 2))
        assert read(folder) == [1, 2], name
        place(folder, "reads-2")
        staged = (folder / "rejects" / ".coordlog" / "staging").rglob("*.parquet")
        assert list(staged) == [], "the next service removes what a killed task has left"


@pytest.mark.parametrize(
    "options",
    [
        {"csv": CsvOptions(null_values=("NA",))},
        {"block_bytes": 100},
        {"format": "jsonl"},
        {"encoding": "latin-1"},
    ],
    ids=["null values", "block size", "format", "encoding"],
)
def test_a_folder_is_refused_to_options_by_which_other_rows_are_bad(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    place(tmp_path)
    place(tmp_path, batch_rows=7)
    with pytest.raises(SinkError, match="other rows are bad"):
        place(tmp_path, **options)


def test_a_folder_belongs_to_one_job_and_one_log(tmp_path: Path) -> None:
    place(tmp_path)
    query_rejects = coordinated(tmp_path).rejects
    assert query_rejects is not None
    with pytest.raises(SinkError, match="job"):
        query_rejects.prepare("another")
    query_rejects.prepare("job")
    with pytest.raises(SinkError, match="log"):
        query_rejects.claim("job", MemoryLog("other").identity, (), "reads-1")
    here = LOG.identity
    adopted = query_rejects.claim(
        "job", MemoryLog("other").identity, [(here.cluster_id, here.topic_id)], "reads-2"
    )
    publish(adopted, Task(), rejects(1))


def output_of(source: CoordinatedSource, create_reader: Callable[[], Any]) -> tuple[list[int], int]:
    """Rows of the only split, and its number of bad rows."""
    discovered = cast("Any", source.open_watch(None).watch.look([], frozenset()))
    (split,) = getattr(discovered, "discovered", discovered).splits
    reader = create_reader()
    reader.open(FakeContext(), None)
    reader.add_splits([split.content])
    rows: list[int] = []
    while (poll := reader.poll()).status is not PollStatus.SPLIT_FINISHED:
        if poll.batch is not None and not are_rejects(poll.batch):
            rows += poll.batch.column("a").to_pylist()
    return rows, poll.finished.rejected


def test_a_query_chooses_its_treatment_of_bad_rows(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("a\n1\nx\n2\n")
    source = coordinated(tmp_path)
    folder = str(tmp_path / "rejects")
    ticket = Ticket(
        job_id="job",
        endpoint="",
        token=cast("Any", SimpleNamespace()),
        create_reader=source.create_reader,
        schema_json="{}",
        partitions=1,
        splits_max=0,
        rejects=place(tmp_path),
        readers=source.readers,
    )

    assert with_read_options(ticket, {}) == ticket
    for name, has_place in (("skip", False), (folder, True)):
        chosen = with_read_options(ticket, {"BAD_ROWS": name})
        assert (chosen.rejects is not None) is has_place
        assert output_of(source, chosen.create_reader) == ([1, 2], 1)
    strict = with_read_options(ticket, {"bad_rows": "fail"})
    with pytest.raises(Exception, match="'x' is no int64"):
        output_of(source, strict.create_reader)
    with pytest.raises(OptionError, match=r"bad_rows .*'fail', 'skip', .*rejects'"):
        with_read_options(ticket, {"bad_rows": "/elsewhere"})


def test_sources_without_a_folder_have_no_place_for_rejects(tmp_path: Path) -> None:
    for bad_rows in ("fail", "skip"):
        source = FileSource(tmp_path, bad_rows=bad_rows).coordinated()
        assert (source.rejects, set(source.readers)) == (None, {"fail", "skip"})
    text = FileSource(tmp_path, format="text").coordinated()
    assert (text.rejects, set(text.readers)) == (None, {"fail"})
    topic = KafkaSource(
        "t", bootstrap_servers="h:9", decode="utf8", bad_rows=tmp_path / "rejects"
    ).coordinated()
    assert topic.rejects is not None
    assert set(topic.readers) == {"fail", "skip", str(tmp_path / "rejects")}
