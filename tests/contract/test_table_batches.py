"""Batches of a streaming query into a table of each format: each is there once, whatever driver dies where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from coordlog.errors import CoordlogError, JobMovedError, SinkError, UsageError
from coordlog.log.interface import LogIdentity
from coordlog.log.memory import MemoryLog
from coordlog.schemas.record import Kind
from coordlog.spark_integration.batches import service as services
from coordlog.spark_integration.batches.exactly_once import AnySink, ExactlyOnce
from coordlog.spark_integration.batches.ledger import BatchKey
from coordlog.spark_integration.batches.service import BatchService
from coordlog.spark_integration.batches.sinks import Batch
from coordlog.spark_integration.batches.table import TableBatches, addition_of
from coordlog.spark_integration.files.tables.sink import TableSink
from data.table_places import DeltaInBucket, Place, no_pause
from data.table_steps import MakePlace, new_place, place, stepping
from fakes.batch_fakes import ArrowFrame, FakeSpark
from jobs.batch_cases import BatchCase
from servers.rest_catalog import rest_catalog
from servers.s3_server import s3_server, s3_store

__all__ = ["new_place", "place", "rest_catalog", "s3_server", "s3_store"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COORDLOG_TOKEN", raising=False)
    monkeypatch.setattr(services, "_END_CHECK_S", 0.02)  # how soon the end of a driver is seen


def frame(*partitions: list[int], batch_id: int = 0, query_id: str = "q-1", **columns: str) -> Any:  # noqa: ANN401, it stands for a DataFrame
    tables = [
        pa.table(
            {
                "i": pa.array(numbers, pa.int64()),
                **{name: [value] * len(numbers) for name, value in columns.items()},
            }
        )
        for numbers in partitions
    ]
    return ArrowFrame(tables, batch_id=batch_id, query_id=query_id)


def case_of(place: Place) -> BatchCase:
    def make_sink() -> TableSink:
        sink = place.new_sink()
        sink._files.pause = no_pause
        return sink

    return BatchCase(cast("Callable[[], AnySink]", make_sink))


def give(case: BatchCase, *frames: Any) -> None:  # noqa: ANN401, see `frame`
    """The batches of these frames, in their order, by a driver of its own."""
    driver = case.driver()
    try:
        for number, one in enumerate(frames):
            case.give(driver, number, one)
    finally:
        driver.close()


def kinds(log: MemoryLog) -> list[Kind]:
    return [stored.record().kind for stored in log.read(0, log.high_watermark())]


def lose_outcomes(log: MemoryLog, *, kind: Kind = Kind.COMMIT_OUTCOME) -> None:
    """The log has lost its end, from the first record of this kind on."""
    log.lose_from(kinds(log).index(kind))


def test_each_batch_is_one_commit_that_names_it(place: Place) -> None:
    case = case_of(place)
    give(case, frame([0, 1], [], [2]), frame([3], batch_id=1))

    assert place.rows() == Counter(range(4))
    of_sink = {"coordlog.job": "case", "coordlog.operator": "sink", "coordlog.epoch": "0"}
    assert place.described() == [
        {**of_sink, "coordlog.query": "q-1", "coordlog.batch": str(number)} for number in (0, 1)
    ]
    assert place.staged() == []


def test_a_batch_without_rows_is_no_commit(place: Place) -> None:
    give(case_of(place), frame([]), frame([1], batch_id=1), frame([], batch_id=2))

    assert place.rows() == Counter([1])
    assert len(place.described()) == 1


def places_of(place: Place) -> list[str]:
    """Places that a driver passes with a batch, without the names of files."""
    passed: list[str] = []
    case = case_of(place)
    driver = case.driver(passed.append)
    case.give(driver, 0, frame([0, 1], [2, 3, 4]))
    driver.close()
    names = dict.fromkeys(" ".join(name.split()[:2]) for name in passed)
    # At these the thread of the batch waits, and not the settlement, which may be done when the other driver starts.
    not_held = ("before staging", "intent recorded", "outcome recorded")
    return [name for name in names if name not in not_held]


@pytest.mark.clause("H3")
@pytest.mark.clause("K2")
@pytest.mark.slow
def test_a_batch_is_in_a_table_once_whatever_driver_stands_still_where(
    new_place: MakePlace,
) -> None:
    names = places_of(new_place())
    assert {"staged", "before part", "before commit", "after commit", "after part"} <= {*names}
    for name in names:
        place = new_place()
        look = looking(place, Counter(range(5)))
        case_of(place).dies_at(name, 0, frame([0, 1], [2, 3, 4]), look)
        assert len(place.described()) == 1, name
        assert place.staged() == [], name


def looking(place: Place, expected: Counter[int]) -> Callable[[], None]:
    def look() -> None:
        assert place.rows() == expected

    return look


@pytest.mark.clause("H3")
@pytest.mark.parametrize("loses", ["request", "answer"])
def test_a_commit_of_a_batch_without_an_answer_is_made_once(place: Place, loses: str) -> None:
    place.make(pa.schema([("i", pa.int64())]))
    with place.broken(loses=loses, times=1):
        give(case_of(place), frame([0, 1]))

    assert place.rows() == Counter([0, 1])
    assert len(place.described()) == 1


def test_rows_that_another_program_adds_beside_a_batch_stay(place: Place) -> None:
    case, appended = case_of(place), list[str]()
    give(case, frame([0]))
    place.append(pa.table({"i": [90]}))

    def at(name: str) -> None:
        if name.startswith(("before commit", "after manifests", "after footers")):
            appended.append(name)
            if len(appended) < 3:
                place.append(pa.table({"i": [90 + len(appended)]}))

    driver = case.driver(at)
    case.give(driver, 1, frame([1], batch_id=1))
    driver.close()
    assert place.rows() == Counter([0, 1, 90, 91, 92])


@pytest.mark.clause("H3")
def test_a_batch_is_known_after_a_rewrite_of_its_files_without_its_outcome(
    place: Place,
) -> None:
    case = case_of(place)
    give(case, frame([0, 1]))
    lose_outcomes(case.log)
    place.rewrite()
    give(case, frame([0, 1]), frame([2], batch_id=1))

    assert place.rows() == Counter([0, 1, 2])


@pytest.mark.clause("H3")
@pytest.mark.parametrize("kind", [Kind.COMMIT_INTENT, Kind.COMMIT_OUTCOME])
def test_a_batch_is_known_to_a_log_that_has_lost_its_end(place: Place, kind: Kind) -> None:
    case = case_of(place)
    give(case, *(frame([number], batch_id=number) for number in range(3)))
    lose_outcomes(case.log, kind=kind)
    driver = case.driver()
    for number in (2, 3):  # Spark's checkpoint is whole
        case.give(driver, number, frame([number], batch_id=number))
    driver.close()

    assert place.rows() == Counter(range(4))


@pytest.mark.clause("H3")
def test_a_number_below_the_tables_newest_batch_is_not_taken_for_written(place: Place) -> None:
    """Log and checkpoint are older copies: Spark plans the batch again, with rows that came since."""
    case = case_of(place)
    give(case, *(frame([number], batch_id=number) for number in range(3)))
    case.log.lose_from(
        [n for n, kind in enumerate(kinds(case.log)) if kind is Kind.COMMIT_INTENT][1]
    )
    driver = case.driver()
    for _ in range(2):
        with pytest.raises(SinkError, match="the table has batch 2 of query q-1"):
            case.give(driver, 1, frame([1, 2, 3], batch_id=1))
    case.give(driver, 2, frame([2], batch_id=2))  # the newest checkpoint is back
    case.give(driver, 3, frame([3], batch_id=3))
    driver.close()

    assert place.rows() == Counter(range(4))


def test_a_batch_is_known_after_the_topic_was_deleted_and_made_again(place: Place) -> None:
    case = case_of(place)
    give(case, frame([0]), frame([1], batch_id=1))
    case.log.recreate()
    driver = case.driver()
    for number in (1, 2):
        case.give(driver, number, frame([number], batch_id=number))
    driver.close()

    assert place.rows() == Counter(range(3))


def test_a_log_made_again_is_refused_under_another_name_of_the_sink(place: Place) -> None:
    """The marks of the former name are not looked for: a new query would write its rows a second time."""
    log = MemoryLog()

    def give_to(name: str, batch_id: int, query_id: str) -> None:
        case = BatchCase(cast("Any", lambda: {name: place.new_sink()}))
        case.log = log
        driver = case.driver()
        try:
            case.give(driver, batch_id, frame([batch_id], batch_id=batch_id, query_id=query_id))
        finally:
            driver.close()

    give_to("one", 0, "q-1")
    give_to("other", 1, "q-1")
    log.recreate()
    with pytest.raises(SinkError, match="by a sink of another id than 'third', with a log that is"):
        give_to("third", 0, "q-2")
    give_to("other", 2, "q-1")

    assert place.rows() == Counter(range(3))


def test_another_log_of_the_job_is_refused_before_anything_is_appended(place: Place) -> None:
    case = case_of(place)
    give(case, frame([0]))
    case.log = MemoryLog("another.log")
    with pytest.raises(SinkError, match=r"job 'case' writes there with another log, .*memory"):
        give(case, frame([0]))

    assert case.log.high_watermark() == 0
    assert place.rows() == Counter([0])


def log_of(cluster: str) -> LogIdentity:
    return LogIdentity(cluster_id=cluster, topic_id="1", name=f"log at {cluster}", topic="log")


def batches(place: Place, log: LogIdentity, *former: tuple[str, str]) -> TableBatches:
    sink = TableBatches(place.new_sink(), "sink")
    sink._files.pause = no_pause
    sink.prepare("case", cast("Any", None))
    sink.claim("case", log, former)
    return sink


def write(name: str, *, number: int = 0, place: int = 0) -> Batch:
    key = BatchKey(query_id=name, batch_id=0, is_write=True)
    return Batch(job_id="case", driver_id="d", key=key, sink="sink", number=number, place=place)


def test_a_driver_from_before_an_adoption_adds_nothing_more(place: Place) -> None:
    before = batches(place, log_of("here"))
    part = before.stage(frame([0]), write("a"))
    batches(place, log_of("there"), ("here", "1"))
    with pytest.raises(JobMovedError, match="since this driver began"):
        before.settle(part, write("a", number=1))
    with pytest.raises(SinkError, match="with another log"):
        batches(place, log_of("here"))

    assert place.described() == []


def test_two_sinks_of_a_job_write_to_one_table(place: Place) -> None:
    sink, log = place.new_sink(), MemoryLog()
    sinks = {name: TableBatches(sink, name) for name in ("one", "other")}
    for _ in range(2):
        with ExactlyOnce(
            lambda rows, _batch_id: {"one": rows, "other": frame([10, 11])},
            service=lambda: BatchService(job_id="both", log=log, sinks=sinks),
        ) as both:
            both(frame([0, 1]), 0)

    assert place.rows() == Counter([0, 1, 10, 11])
    assert [one["coordlog.operator"] for one in place.described()] == ["one", "other"]


# --- batch writes --------------------------------------------------------------------------------
def test_writes_that_are_settled_at_once_are_added_once_each_in_any_order(place: Place) -> None:
    sink = batches(place, log_of("here"))
    first, second = write("a", number=5), write("b", number=6, place=1)
    parts = {one: sink.stage(frame([number]), one) for number, one in enumerate((first, second))}
    for one in (second, first, second, first):
        assert batches(place, log_of("here")).settle(parts[one], one).is_done
    third = write("c", number=7)
    parts[third] = sink.stage(frame([2]), third)
    for one in (third, first, second):
        assert sink.settle(parts[one], one).is_done

    assert place.rows() == Counter(range(3))
    assert [one["coordlog.write"] for one in place.described()] == ["b", "a", "c"]


def test_a_log_made_again_after_batch_writes_is_refused(place: Place) -> None:
    """It does not have their names: each would be written a second time."""
    sink, log = batches(place, log_of("here")), MemoryLog()
    sink.settle(sink.stage(frame([0]), write("a")), write("a", number=1))
    again = LogIdentity(cluster_id="here", topic_id="2", name="log again", topic="log")
    with pytest.raises(SinkError, match="it has batch writes of job 'case' that its log has not"):
        batches(place, again)
    assert log.high_watermark() == 0


def test_a_log_that_lacks_a_batch_write_of_the_table_is_refused(place: Place) -> None:
    """An older copy: the write would be written a second time, or a later one be taken for it."""
    log = MemoryLog()

    def write_by_a_driver(name: str) -> None:
        sink = TableBatches(place.new_sink(), "sink")
        with BatchService(job_id="case", log=log, sinks={"sink": sink}) as service:
            service.start(cast("Any", FakeSpark("", 0)))
            key = write(name).key
            batch = Batch(job_id="case", driver_id=service.driver_id, key=key, sink="sink")
            assert service.commit(key, [sink.stage(frame([ord(name)]), batch)]).is_done

    write_by_a_driver("a")
    write_by_a_driver("b")
    log.lose_from(len(kinds(log)) - 1 - kinds(log)[::-1].index(Kind.COMMIT_INTENT))
    for name in ("b", "c"):
        with pytest.raises(
            SinkError, match=r"sink/write\.0 is \d+, and the log's newest intent is number \d+"
        ):
            write_by_a_driver(name)

    assert place.rows() == Counter([ord("a"), ord("b")])


# --- batches that the table does not take --------------------------------------------------------
def changed_at(place: Place, name: str) -> Callable[[str], None]:
    """The table's owner drops column `s` once a driver passes there."""
    if isinstance(place, DeltaInBucket):
        pytest.skip("needs delta-rs' writer")  # not within a driver's thread
    passed: list[str] = []

    def at(here: str) -> None:
        if here.startswith(name) and not passed:
            passed.append(here)
            place.drop_column("s")

    return at


@pytest.mark.clause("H3")
@pytest.mark.parametrize("name", ["staged", "before commit"])
def test_a_batch_whose_column_was_dropped_is_given_back(place: Place, name: str) -> None:
    case = case_of(place)
    give(case, frame([0], s="x"))
    driver = case.driver(changed_at(place, name))
    with pytest.raises(
        UsageError, match=r"refused its part \(.*'s' was dropped.*runs the batch again"
    ):
        case.give(driver, 1, frame([1], batch_id=1, s="y"))
    assert place.rows() == Counter([0])
    driver.close()
    corrected = case.driver()
    case.give(corrected, 1, frame([2], batch_id=1))
    case.give(corrected, 2, frame([3], batch_id=2))
    corrected.close()

    assert place.rows() == Counter([0, 2, 3])


@pytest.mark.clause("H3")
def test_a_batch_whose_files_are_gone_is_given_back_and_made_again(place: Place) -> None:
    """Such as published files that the table's own removal of orphans has deleted while no driver ran."""
    case = case_of(place)
    give(case, frame([0]))
    files: list[str] = []

    def remove(name: str) -> None:
        if name == "staged" and not files:
            files.extend(place.staged())
            for file in files:
                place.remove_file(file)

    driver = case.driver(remove)
    with pytest.raises(UsageError, match=r"refused its part \(neither it nor its staged"):
        case.give(driver, 1, frame([1], batch_id=1))
    assert len(files) == 1
    case.give(driver, 1, frame([1], batch_id=1))
    driver.close()

    assert place.rows() == Counter([0, 1])


@pytest.mark.clause("H3")
def test_a_refusal_is_known_to_the_next_driver_if_its_outcome_is_lost(place: Place) -> None:
    """Also if the table takes the rows again: its batch was given back, and is staged a second time."""
    case = case_of(place)
    give(case, frame([0], s="x"))
    driver = case.driver(changed_at(place, "staged"))
    with pytest.raises(UsageError, match="refused its part"):
        case.give(driver, 1, frame([1], batch_id=1, s="y"))
    driver.close()
    outcomes = [n for n, kind in enumerate(kinds(case.log)) if kind is Kind.COMMIT_OUTCOME]
    case.log.lose_from(outcomes[1])
    driver = case.driver()
    case.give(driver, 1, frame([2], batch_id=1))
    driver.close()

    assert place.rows() == Counter([0, 2])
    intents = kinds(case.log).count(Kind.COMMIT_INTENT)
    assert intents == kinds(case.log).count(Kind.COMMIT_OUTCOME) == 3


@pytest.mark.clause("H3")
@pytest.mark.slow
def test_a_slow_driver_and_one_that_refuses_agree_wherever_they_meet(new_place: MakePlace) -> None:
    """One driver is to add the files while another one refuses them: the table has one answer for both."""
    passed: list[str] = []
    settle_beside_refusal(new_place(), passed.append)
    ends = Counter[bool]()
    for at_place in range(len(passed)):
        place = new_place()
        ends[settle_beside_refusal(place, None, at_place=at_place)] += 1
    assert set(ends) == {True, False}


def settle_beside_refusal(
    place: Place, at: Callable[[str], None] | None, *, at_place: int = 0
) -> bool:
    """Whether the files were added, by a driver that another one interrupts at a place to refuse them."""
    batch, adds, refuses = write("a", number=5), *(batches(place, log_of("here")) for _ in "ab")
    part = adds.stage(frame([1]), batch)
    answers: list[bool] = []

    def refuse() -> None:
        answers.append(not refuses._files.refuse(addition_of(part, batch)))

    outcome = adds.settle(part, batch, at=at or stepping(refuse, at_place=at_place))
    assert answers in ([], [outcome.is_done])
    assert adds.settle(part, batch).is_done is outcome.is_done
    assert refuses.settle(part, batch).is_done is outcome.is_done
    assert place.rows() == (Counter([1]) if outcome.is_done else Counter())
    return outcome.is_done


def test_a_table_that_takes_no_commit_fails_the_job_and_not_the_batch(place: Place) -> None:
    place.make(pa.schema([("i", pa.int64())]))
    case = case_of(place)
    with place.broken(loses="request", times=1000), pytest.raises(CoordlogError, match="30 tries"):
        give(case, frame([0]))
    assert place.rows() == Counter()
    give(case, frame([0]))

    assert place.rows() == Counter([0])
