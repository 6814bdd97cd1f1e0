"""What every sink of a table must do: one suite, for each format, read back by the format's own library."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import multiprocessing
import pickle
import threading
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from coordlog import Job
from coordlog.errors import DestinationMisfitError, JobMovedError, SinkError
from coordlog.log.interface import LogIdentity
from coordlog.log.memory import MemoryLog
from coordlog.projections.job.state import JobState
from coordlog.restore.destination_claim import refuse_unknown_commits
from coordlog.spark_integration.files.payloads import (
    FilesPublished,
)
from coordlog.spark_integration.files.sink.table_commits import TableCommits
from coordlog.spark_integration.files.tables.sink import TableSink
from coordlog.spark_integration.job import prepare_sinks
from coordlog.testing import HandDrivenJob
from coordlog.testing.real_attempt import RealAttempt, silent_source
from data.table_places import JOB, Place
from data.table_steps import (
    SAVED,
    MakePlace,
    files_of,
    intent,
    new_place,
    opened,
    place,
    places_of,
    refusal,
    rows,
    staged,
    stepping,
    write,
)
from data.table_tasks import first_rows, meet
from fakes.chain_fakes import FakeContext
from servers.rest_catalog import rest_catalog
from servers.s3_server import s3_server, s3_store

__all__ = ["new_place", "place", "rest_catalog", "s3_server", "s3_store"]


@pytest.mark.clause("H3")
def test_settling_adds_the_files_by_one_commit_and_again_nothing(place: Place) -> None:
    files = staged(place)
    assert place.rows() == Counter()
    assert len(place.staged()) == 2
    outcome = place.sink().settle(intent(files))
    assert outcome == FilesPublished(
        checkpoint_id=7, file_count=2, rows=4, size_bytes=sum(one.size_bytes for one in files)
    )

    assert place.sink().settle(intent(files)) == outcome
    assert place.rows() == SAVED
    assert place.described() == [
        {
            "coordlog.job": JOB,
            "coordlog.operator": "sink",
            "coordlog.epoch": "3",
            "coordlog.checkpoint": "7",
            "coordlog.intent": "0.0",
        }
    ]
    assert place.staged() == []


class Crash(BaseException):
    """The process ends here."""


def die() -> None:
    raise Crash


@pytest.mark.clause("H3")
@pytest.mark.slow
def test_a_crash_at_any_place_of_settling_is_made_good_by_the_next(new_place: MakePlace) -> None:
    for crash_at in range(len(places_of(new_place()))):
        place = new_place()
        files = staged(place)
        with pytest.raises(Crash):
            place.sink().settle(intent(files), at=stepping(die, at_place=crash_at))
        assert place.rows() in (Counter(), SAVED)
        place.sink().settle(intent(files))
        assert place.rows() == SAVED
        assert place.intents() == ["0.0"]
        assert place.staged() == []


@pytest.mark.clause("H3")
@pytest.mark.slow
def test_a_second_driver_anywhere_within_the_first_has_the_effect_of_one(
    new_place: MakePlace,
) -> None:
    for pause_at in range(len(places_of(new_place()))):
        place = new_place()
        files, other = staged(place), place.sink()
        at = stepping(lambda: other.settle(intent(files)), at_place=pause_at)  # noqa: B023, called in this turn
        place.sink().settle(intent(files), at=at)
        assert place.rows() == SAVED, pause_at
        assert place.intents() == ["0.0"]
        assert place.staged() == []


@pytest.mark.clause("H3")
def test_without_the_look_for_its_mark_a_second_driver_commits_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of the tests before."""
    files = staged(place)
    place.sink().settle(intent(files))
    look = type(place.sink()._files._table.look())
    monkeypatch.setattr(look, "settled", lambda _look, _mark: None)
    place.sink().settle(intent(files))

    assert place.intents() == ["0.0", "0.0"]


@pytest.mark.clause("H3")
def test_two_drivers_at_once_add_the_files_once(place: Place) -> None:
    files, together = staged(place), threading.Barrier(2)
    errors: list[BaseException] = []

    def settle() -> None:
        sink = place.sink()

        def at(name: str) -> None:
            if name.startswith(("before commit", "after manifests", "after footers")):
                with contextlib.suppress(threading.BrokenBarrierError):
                    together.wait(5)  # the second look of the slower one finds nobody waiting
                if name.startswith("after"):
                    together.abort()

        try:
            sink.settle(intent(files), at=at)
        except BaseException as error:  # noqa: BLE001, shown below
            errors.append(error)

    threads = [threading.Thread(target=settle) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    assert errors == []
    assert place.rows() == SAVED
    assert place.intents() == ["0.0"]


@pytest.mark.slow
def test_a_commit_of_another_program_at_any_place_loses_nothing(new_place: MakePlace) -> None:
    for pause_at in range(len(places_of(new_place()))):
        place = new_place()
        files = staged(place)
        append = place.append
        at = stepping(lambda: append(pa.table({"i": [99]})), at_place=pause_at)  # noqa: B023, as above
        place.sink().settle(intent(files), at=at)
        assert place.rows() == SAVED + Counter([99]), pause_at
        assert place.intents() == ["0.0"]


@pytest.mark.clause("K2")
@pytest.mark.slow
def test_a_late_driver_brings_nothing_back_after_its_files_were_rewritten(
    new_place: MakePlace,
) -> None:
    for pause_at in range(len(places_of(new_place()))):
        place = new_place()
        files, other = staged(place), place.sink()

        def overtake(place: Place = place, other: TableSink = other, files: Any = files) -> None:  # noqa: ANN401
            other.settle(intent(files))
            place.rewrite()

        at = stepping(overtake, at_place=pause_at)
        place.sink().settle(intent(files), at=at)
        assert place.rows() == SAVED, pause_at
        assert place.staged() == []


@pytest.mark.clause("H3")
def test_a_commit_is_known_after_its_snapshot_has_expired(place: Place) -> None:
    files = staged(place)
    place.sink().settle(intent(files))
    hidden = [name for name in place.names() if "/.coordlog/" in name]
    place.rewrite()
    assert place.intents() == []
    assert [name for name in place.names() if "/.coordlog/" in name] == hidden != []
    place.sink().settle(intent(files))

    assert place.rows() == SAVED


@pytest.mark.clause("H3")
@pytest.mark.slow
def test_intents_of_one_checkpoint_are_settled_once_each_in_any_order(
    new_place: MakePlace,
) -> None:
    for order in itertools.permutations(range(3)):
        place = new_place()
        files = staged(place, rows(0), rows(1), rows(2))
        parts = [intent([file], part=part) for part, file in enumerate(files)]
        for part in order:
            place.sink().settle(parts[part])
        for part in range(3):
            place.sink().settle(parts[part])
        later = staged(place, rows(3), attempt_number=1)
        place.sink().settle(intent(later, number=1))
        for part in range(3):
            place.sink().settle(parts[part])
        assert place.rows() == Counter(range(4))
        assert len(place.intents()) == 4


@pytest.mark.clause("H3")
@pytest.mark.parametrize("loses", ["request", "answer"])
def test_a_commit_without_an_answer_is_looked_for_before_it_is_tried_again(
    place: Place, loses: str
) -> None:
    files, pauses = staged(place), list[float]()
    sink = place.sink(pause=pauses.append)
    with place.broken(loses=loses, times=1):
        sink.settle(intent(files))

    assert place.rows() == SAVED
    assert place.intents() == ["0.0"]
    assert len(pauses) == 1


def test_a_table_that_takes_no_commit_is_an_error_after_thirty_tries(
    place: Place,
) -> None:
    files, pauses = staged(place), list[float]()
    sink = place.sink(pause=pauses.append)
    with place.broken(loses="request", times=1000):
        error = refusal(lambda: sink.settle(intent(files)))

    assert "30 tries to commit checkpoint 7 have failed" in error.problem
    assert "the connection was reset" in error.problem
    assert len(pauses) == 30
    assert max(pauses) <= 10
    assert place.rows() == Counter()
    place.sink().settle(intent(files))
    assert place.rows() == SAVED


def test_a_new_table_has_the_columns_of_the_first_rows(place: Place) -> None:
    batch = pa.record_batch(
        {
            "i": pa.array([1], pa.int16()),
            "s": pa.array(["x"]).dictionary_encode(),
            "t": pa.array([5_000], pa.timestamp("ns", "Europe/Zurich")),
            "n": pa.array([{"a": [1.5]}]),
        }
    )
    files = staged(place, batch)
    place.sink().settle(intent(files))

    (row,) = place.table().to_pylist()
    assert row["i"] == 1
    assert row["s"] == "x"
    assert row["t"].timestamp() == 5e-6
    assert row["n"] == {"a": [1.5]}


def test_tasks_whose_first_rows_come_at_once_make_one_table(new_place: MakePlace) -> None:
    tasks, processes = 4, multiprocessing.get_context("spawn")
    meeting = (processes.Barrier(tasks),)
    with ProcessPoolExecutor(tasks, processes, initializer=meet, initargs=meeting) as pool:
        for _ in range(4):
            place = new_place()
            sink = place.sink()
            make = sink.spec().create_operator
            files = files_of(*pool.map(first_rows, [make] * tasks, range(tasks)))
            sink.settle(intent(files))
            assert place.rows() == Counter(range(tasks))
            place.sink()  # by the next driver: the job's folder is that of the table


def test_a_new_table_has_the_columns_of_the_schema(place: Place) -> None:
    sink = place.sink(schema="i bigint, s string")
    assert place.table().schema.names == ["i", "s"]
    writer = opened(sink)
    list(writer.process(pa.record_batch({"s": ["x"], "i": pa.array([1], pa.int8())})))
    sink.settle(intent(files_of(writer.final_snapshot())))

    assert place.table().to_pylist() == [{"i": 1, "s": "x"}]


@pytest.mark.parametrize(
    ("batch", "difference"),
    [
        (pa.record_batch({"i": ["x"]}), "column 'i' is string and in the files int64"),
        (pa.record_batch({"i": [1.5]}), "column 'i' is double and in the files int64"),
        (pa.record_batch({"i": [1], "x": [1]}), "column 'x' of int64 is new"),
    ],
)
def test_rows_that_the_table_does_not_take_are_refused_with_the_difference(
    place: Place, batch: pa.RecordBatch, difference: str
) -> None:
    staged(place)
    writer = opened(place.sink(), attempt_number=1)

    with pytest.raises(DestinationMisfitError) as caught:
        list(writer.process(batch))
    assert difference in caught.value.problem
    assert "`widen=True`" in caught.value.next_step


def test_columns_that_the_table_lacks_are_added_for_the_rows(place: Place) -> None:
    files = staged(place, pa.record_batch({"i": [1]}))
    place.sink().settle(intent(files))
    sink = place.sink(widen=True)
    first, second = (opened(sink, subtask=i, attempt_number=1) for i in (0, 1))
    list(first.process(pa.record_batch({"i": [2], "a": ["x"]})))
    list(second.process(pa.record_batch({"i": [3], "b": [True]})))
    list(first.process(pa.record_batch({"b": [False]})))
    sink.settle(intent(files_of(first.final_snapshot(), second.final_snapshot()), number=1))

    assert sorted(map(str, place.table().to_pylist())) == sorted(
        [
            "{'i': 1, 'a': None, 'b': None}",
            "{'i': 2, 'a': 'x', 'b': None}",
            "{'i': 3, 'a': None, 'b': True}",
            "{'i': None, 'a': None, 'b': False}",
        ]
    )


def test_columns_are_widened_as_the_format_does_it(place: Place) -> None:
    narrow = pa.record_batch({"i": pa.array([1], pa.int32()), "f": pa.array([0.5], pa.float32())})
    wide = pa.record_batch({"i": [2**40], "f": [0.1]})
    files = staged(place, narrow)
    sink = place.sink(widen=True)
    writer = opened(sink, attempt_number=1)
    if not place.widens_types:
        with pytest.raises(DestinationMisfitError, match="this sink widens no column of a Delta"):
            list(writer.process(wide))
        return
    list(writer.process(wide))
    sink.settle(intent(files))
    sink.settle(intent(files_of(writer.final_snapshot()), number=1))

    found = place.table().sort_by("i")
    assert found.to_pylist() == [{"i": 1, "f": 0.5}, {"i": 2**40, "f": 0.1}]
    with pytest.raises(
        DestinationMisfitError, match="Cannot change column type: i: long -> double"
    ):
        list(opened(sink, attempt_number=2).process(pa.record_batch({"i": [0.5], "f": [0.5]})))


@pytest.mark.parametrize("plain", [pa.string(), pa.binary(), pa.list_(pa.string())], ids=str)
def test_a_column_is_added_beside_texts_of_large_types(place: Place, plain: pa.DataType) -> None:
    """Files of polars and pandas have them: no table has another type for such values."""
    types = {
        pa.string(): pa.large_string(),
        pa.binary(): pa.large_binary(),
        pa.list_(pa.string()): pa.large_list(pa.large_string()),
    }
    values = {pa.string(): "x", pa.binary(): b"x", pa.list_(pa.string()): ["x"]}
    first = staged(place, pa.record_batch({"s": pa.array([values[plain]], plain)}))
    sink = place.sink(widen=True)
    writer = opened(sink, attempt_number=1)
    large = pa.array([values[plain]], types[plain])
    list(writer.process(pa.record_batch({"s": large, "new": [0.5]})))
    sink.settle(intent(first))
    sink.settle(intent(files_of(writer.final_snapshot()), number=1))

    assert [row["s"] for row in place.table().to_pylist()] == [values[plain]] * 2


def test_a_column_is_added_beside_categories_of_pandas(place: Place) -> None:
    words = pa.array(["x"]).dictionary_encode()
    first = staged(place, pa.record_batch({"i": [1], "s": words}))
    sink = place.sink(widen=True)
    writer = opened(sink, attempt_number=1)
    list(writer.process(pa.record_batch({"i": [2], "s": words, "new": [0.5]})))
    sink.settle(intent(first))
    sink.settle(intent(files_of(writer.final_snapshot()), number=1))

    assert place.table().sort_by("i").to_pylist() == [
        {"i": 1, "s": "x", "new": None},
        {"i": 2, "s": "x", "new": 0.5},
    ]


def test_columns_that_must_have_values_keep_that_in_a_widening(place: Place) -> None:
    place.make(
        pa.schema(
            [
                pa.field("i", pa.int64(), nullable=False),
                pa.field("l", pa.list_(pa.field("element", pa.int64(), nullable=False))),
            ]
        )
    )
    writer = opened(place.sink(widen=True))
    list(writer.process(pa.record_batch({"i": [1], "l": [[2]], "new": ["x"]})))
    lacking = [
        pa.record_batch({"i": pa.array([None], pa.int64())}),
        pa.record_batch({"new": ["y"]}),
        pa.record_batch({"i": [2], "l": [[None, 3]]}),
    ]
    for number, batch in enumerate(lacking):
        other = opened(place.sink(widen=True), attempt_number=1 + number)
        with pytest.raises(DestinationMisfitError):
            write(other, batch)
        other.close()
    place.sink().settle(intent(files_of(writer.final_snapshot())))

    assert place.table().to_pylist() == [{"i": 1, "l": [2], "new": "x"}]


def test_a_start_takes_the_columns_that_the_table_has_by_then(place: Place) -> None:
    staged(place)
    other = opened(place.sink(widen=True), attempt_number=1)
    list(other.process(pa.record_batch({"i": [2], "a": ["x"]})))
    writer = opened(place.sink(), attempt_number=2)
    list(writer.process(pa.record_batch({"i": [3], "a": ["y"]})))
    place.sink().settle(intent(files_of(writer.final_snapshot())))

    assert place.table().to_pylist() == [{"i": 3, "a": "y"}]


WORDS = ["plain", "../up", "a=b/c", "50%", "%41", "ä:{[]}^", ".hidden", " x ", "+", None, ""]
NUMBERS = [1, -2, 0, 7, None, 2**40, 3, 4, 5, 6, 7]
DAYS = [*(dt.date(2013, 1, i + 1) for i in range(10)), None]
FLAGS = [True, False, None, *[True] * 8]


def test_rows_of_partitions_are_read_back_with_their_values(place: Place) -> None:
    batch = pa.record_batch(
        {"i": list(range(11)), "w": WORDS, "n": NUMBERS, "d": DAYS, "b": FLAGS, "s": WORDS}
    )
    sink = place.sink(partition_by=["w", "n", "d", "b"])
    writer = opened(sink)
    list(writer.process(batch))
    sink.settle(intent(files_of(writer.final_snapshot())))

    found = place.table().sort_by("i")
    words = [place.empty_word if word == "" else word for word in WORDS]
    assert found["w"].to_pylist() == words
    assert found["n"].to_pylist() == NUMBERS
    assert found["d"].to_pylist() == DAYS
    assert found["b"].to_pylist() == FLAGS
    assert found["s"].to_pylist() == WORDS
    for i, word in enumerate(words):
        if word is not None:
            assert place.numbers_of("w", word) == [i]
    assert place.numbers_of("n", 7) == [3, 10]
    assert place.numbers_of("d", dt.date(2013, 1, 4)) == [3]
    with pytest.raises(SinkError, match="it is partitioned by w, n, d, b, the job by s"):
        place.sink(partition_by=["s"])
    assert place.sink()._writers.writers.options.partition_by == ("w", "n", "d", "b")  # type: ignore[union-attr]


def test_statistics_of_the_files_show_where_no_value_is(place: Place) -> None:
    days = [dt.datetime(2013, 1, 1, 12, 0, 0, 1001, dt.UTC), dt.datetime(2014, 1, 1, tzinfo=dt.UTC)]
    columns = {
        "i": [1, 2],
        "t": pa.array(days, pa.timestamp("us", "UTC")),
        "d": [one.date() for one in days],
        "s": ["x" * 100, None],
        "b": [True, False],
        "y": [b"1", b"2"],
        "l": [[1], None],
        "st": [{"a": 1}, None],
        "e": pa.array([None, None], pa.int64()),
    }
    batch = pa.record_batch(columns)
    files = staged(place, batch.slice(0, 1), batch.slice(1))
    place.sink().settle(intent(files))

    for column in "itds":
        value = batch.column(column)[0].as_py()
        assert place.numbers_of(column, value) == [1], column
        assert place.files_for(column, value) == 1, column
    assert place.numbers_of("b", value=False) == [2]
    assert place.numbers_of("y", b"1") == [1]
    assert place.numbers_of("s", "x" * 101) == []


@pytest.mark.parametrize(
    ("kind", "values"), [(pa.float64(), [float("nan"), 1.5]), (pa.decimal128(5, 2), [1, 2])]
)
def test_rows_are_found_beside_columns_whose_bounds_are_unknown(
    place: Place, kind: pa.DataType, values: list[Any]
) -> None:
    column = pa.array(values, pa.float64()).cast(kind)
    batch = pa.record_batch({"i": [1, 2], "f": column, "s": ["\U0010ffff" * 70, "x"]})
    files = staged(place, batch.slice(0, 1), batch.slice(1), batch)
    place.sink().settle(intent(files))

    assert place.numbers_of("f", column[1].as_py()) == [2, 2]
    assert place.numbers_of("i", 1) == [1, 1]
    assert place.numbers_of("s", "\U0010ffff" * 70) == [1, 1]


def test_the_writer_travels_to_the_tasks(place: Place) -> None:
    sink = place.sink()
    writer = pickle.loads(pickle.dumps(sink.spec().create_operator))()
    writer.open(FakeContext(job_id=JOB), None)
    list(writer.process(rows(1)))

    assert len(files_of(writer.final_snapshot())) == 1


# --- which job, which log -------------------------------------------------------------------------
def log_named(topic: str) -> LogIdentity:
    return LogIdentity(cluster_id="c", topic_id=topic, name=topic, topic=topic)


def test_a_history_that_begins_does_not_write_what_an_earlier_one_has(place: Place) -> None:
    place.sink().refuse_earlier_output(JOB)
    files = staged(place)
    place.sink().settle(intent(files))
    place.rewrite()

    error = refusal(lambda: place.sink().refuse_earlier_output(JOB))
    assert "has 1 commits of job 'ingest' that its log has not" in error.problem


def test_a_history_that_lacks_a_commit_of_the_table_is_refused(place: Place) -> None:
    """An older copy of the log: its next commit would have a number of the table, and be taken for done."""
    state = JobState()
    job = Job(job_id=JOB, log=MemoryLog(JOB), source=silent_source(), sink=place.new_sink())
    prepare_sinks(job.chain, JOB)
    refuse_unknown_commits(job.chain, JOB, state)
    for number in range(2):
        files = staged(place, rows(number), attempt_number=number)
        place.sink().settle(intent(files, number=number))
        error = refusal(lambda: refuse_unknown_commits(job.chain, JOB, state))  # noqa: B023, called in this turn
        assert "has 1 commits of job 'ingest' that its log has not" in error.problem
        commits = TableCommits(following=number + 1)
        state = replace(state, projections=state.projections.set("sink", commits))
        refuse_unknown_commits(job.chain, JOB, state)


def test_a_history_that_lacks_a_later_part_of_a_checkpoint_is_refused(place: Place) -> None:
    """A driver was killed after the second part of a checkpoint, and before the first."""
    place.sink().settle(intent(staged(place, rows(0))))
    later = staged(place, rows(1), attempt_number=1)
    place.sink().settle(intent(later, number=1, part=2))
    error = refusal(lambda: place.sink()._refuse_commits_from(JOB, 1))
    assert f"mark coordlog.commits.{JOB}.sink/2 is 1" in error.problem
    place.sink()._refuse_commits_from(JOB, 2)


def test_another_log_is_refused_and_the_driver_that_is_left_behind_stops(
    place: Place,
) -> None:
    files, sink = staged(place), place.sink()
    sink.claim(JOB, log_named("a"))
    error = refusal(lambda: place.sink().claim(JOB, log_named("b")))
    assert "writes there with another log" in error.problem
    place.sink().claim(JOB, log_named("b"), [("c", "a")])

    with pytest.raises(JobMovedError):
        sink.settle(intent(files))
    assert place.rows() == Counter()


def renamed(place: Place) -> TableSink:
    """The sink under another id."""
    sink = place.new_sink()
    sink.spec("renamed")
    sink.prepare(JOB)
    return sink


def test_another_log_is_refused_under_another_id_of_the_sink_too(place: Place) -> None:
    files, sink = staged(place), place.sink()
    sink.claim(JOB, log_named("a"))
    error = refusal(lambda: renamed(place).claim(JOB, log_named("b")))
    assert "writes there with another log" in error.problem
    # Others write to the table too: nobody is told to remove what is in it.
    assert error.next_step.endswith("else use another destination (or another job id)")
    renamed(place).claim(JOB, log_named("b"), [("c", "a")])

    with pytest.raises(JobMovedError):
        sink.settle(intent(files))
    assert place.rows() == Counter()


def test_a_log_that_was_made_again_is_refused_under_each_id_of_the_sink(place: Place) -> None:
    """It would write all rows again."""
    first = log_named("a")
    sink, files = place.sink(), staged(place)
    sink.claim(JOB, first)
    sink.settle(intent(files))
    anew = replace(first, topic_id="made again")
    for _ in range(2):
        assert "that its log has not" in refusal(lambda: place.sink().claim(JOB, anew)).problem
        error = refusal(lambda: renamed(place).claim(JOB, anew))
        assert "by a sink of another id" in error.problem

    renamed(place).claim(JOB, first)


def test_a_log_that_was_made_again_goes_on_in_a_table_without_rows(place: Place) -> None:
    first = log_named("a")
    place.sink().claim(JOB, first)
    sink = place.sink()
    sink.claim(JOB, replace(first, topic_id="made again"))
    sink.settle(intent(staged(place)))

    assert place.rows() == SAVED


def test_two_jobs_write_to_one_table(place: Place) -> None:
    files = staged(place)
    place.sink().settle(intent(files))
    other = place.new_sink()
    other.spec()
    other.prepare("second")
    writer = other.spec().create_operator()
    writer.open(FakeContext(job_id="second"), None)
    list(writer.process(rows(5)))
    other.settle(intent(files_of(writer.final_snapshot())))

    assert place.rows() == SAVED + Counter([5])


def test_a_table_knows_the_jobs_that_have_begun_and_committed(place: Place) -> None:
    sink = place.new_sink()
    assert sink.jobs() == frozenset()
    files = staged(place)
    assert sink.is_taken(JOB)
    assert not sink.is_taken("other")
    assert sink.jobs() == frozenset()

    place.sink().settle(intent(files))
    assert sink.jobs() == {JOB}


@pytest.mark.clause("H3")
def test_one_sink_object_serves_two_jobs_at_once(place: Place) -> None:
    sink, runs = place.new_sink(), list[tuple[HandDrivenJob, RealAttempt]]()
    for job_id in ("first", "second"):
        job = Job(job_id=job_id, log=MemoryLog(job_id), source=silent_source(), sink=sink)
        prepare_sinks(job.chain, job_id)
        driven = HandDrivenJob(job.chain, job_id=job_id)
        runs.append((driven, RealAttempt(driven, 0)))

    for number, run in enumerate([1, 1, 0, 0]):
        driven, attempt = runs[run]
        attempt.read(rows(number))
        driven.trigger()
        attempt.take()

    assert place.rows() == Counter(range(4))


def test_another_table_of_the_name_is_refused(place: Place) -> None:
    files = staged(place)
    place.sink().settle(intent(files))
    place.replace()

    assert "not the table that this job has written to" in refusal(place.sink).problem


# --- cleaning -------------------------------------------------------------------------------------
@pytest.mark.clause("I4")
def test_files_of_attempts_that_are_over_are_removed_but_those_kept(place: Place) -> None:
    mine, others = staged(place), staged(place, subtask=1)
    keep = place.sink().intent_names(intent(mine[:1]))
    place.sink().clean(driver_id="driver-a", subtask=0, attempt_number=0, keep=keep)
    left = [Path(one.staged).name for one in [mine[0], *others]]
    assert [Path(one).name for one in place.staged()] == sorted(left)
    place.sink().sweep(keep=keep)

    assert [Path(one).name for one in place.staged()] == [Path(mine[0].staged).name]
    place.sink().settle(intent(mine[:1]))
    assert place.rows() == Counter([0, 10])
