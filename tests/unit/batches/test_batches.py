"""Batches that are committed once: replays, drivers that die or stand still anywhere, queries that change (H3, K2)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from coordlog.causes import SESSION_LOST
from coordlog.errors import (
    CoordlogError,
    DriverAliveError,
    FencedError,
    JobFailedError,
    OptionError,
    SessionLostError,
    SinkError,
    UsageError,
)
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.audit import audit_records
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.batches import exactly_once as exactly_once_module
from coordlog.spark_integration.batches import frame_writer, query, service
from coordlog.spark_integration.batches.exactly_once import ExactlyOnce, exactly_once
from coordlog.spark_integration.batches.ledger import BATCHES
from coordlog.spark_integration.batches.payloads import (
    BatchPart,
    BatchStanding,
    CommitBatch,
    PartOutcome,
)
from coordlog.spark_integration.batches.service import BatchService
from coordlog.spark_integration.batches.sinks import At, Batch, nowhere
from coordlog.spark_integration.files.payloads import StagedFile
from fakes.batch_fakes import FakeFrame, FakeSpark, MemoryTable, Stop

pytestmark = pytest.mark.slow

PLACES = (
    "before staging",
    "staged",
    "before part sink",
    "looked",
    "moved",
    "after part sink",
    "intent recorded",
    "outcome recorded",
)
"""All at which a driver can die between the beginning of a batch and its end, in their order."""

BATCH = ["a", "b"]
WAIT_S = 30.0


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("COORDLOG_TOKEN", raising=False)


class Drivers:
    """Drivers of one job over one log, as many as a test wants; all end with it."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.made: list[ExactlyOnce] = []
        self.stops: list[Stop] = []
        self.threads: list[threading.Thread] = []

    def make(
        self,
        sink: MemoryTable | Mapping[str, MemoryTable],
        *,
        at: At = nowhere,
        take_over: bool = True,
        instead_of: str = "",
        function: Any = None,  # noqa: ANN401, it takes and gives a FakeFrame
    ) -> ExactlyOnce:
        made = exactly_once(
            function,
            job_id="orders",
            log=self.log,
            sink=cast("Any", sink),
            at=at,
            take_over=take_over,
            instead_of=instead_of,
        )
        self.made.append(made)
        return made

    def stand_still(self, sink: MemoryTable, place: str) -> tuple[Stop, list[BaseException | None]]:
        """A driver that writes the batch and stands still at this place; what comes of it when it is let go."""
        stop, came = Stop(place), list[BaseException | None]()
        driver = self.make(sink, at=stop)

        def work() -> None:
            try:
                write(driver)
            except CoordlogError as error:
                came.append(error)
            else:
                came.append(None)

        thread = threading.Thread(target=work, daemon=True)
        self.stops.append(stop)
        self.threads.append(thread)
        thread.start()
        assert stop.reached.wait(WAIT_S), f"it comes by {place}: {stop.seen}, {came}"
        return stop, came

    def records(self) -> list[Record]:
        found = audit_records(self.log.read(0, self.log.high_watermark()))
        return [one.record for one in found if one.counts and one.record is not None]

    def kinds(self) -> list[Kind]:
        return [one.kind for one in self.records()]

    def end(self) -> None:
        for stop in self.stops:
            stop.gone_on.set()
        for thread in self.threads:
            thread.join(WAIT_S)
        for one in self.made:
            with suppress(CoordlogError):
                one.close()


@pytest.fixture
def drivers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Drivers]:
    monkeypatch.setattr(service, "_END_CHECK_S", 0.02)  # how soon the end of a driver is seen
    made = Drivers()
    yield made
    made.end()


def write(
    driver: ExactlyOnce, batch_id: int = 0, query_id: str = "q-1", rows: list[str] | None = None
) -> None:
    frame = FakeFrame(BATCH if rows is None else rows, query_id=query_id, batch_id=batch_id)
    driver(cast("Any", frame), batch_id)


def test_a_batch_is_an_intent_then_the_doing_then_an_outcome(drivers: Drivers) -> None:
    table, seen = MemoryTable(), list[str]()

    def at(place: str) -> None:
        seen.append(place)
        if place == "before part sink":
            assert Kind.COMMIT_INTENT in drivers.kinds(), "the log has it before anything is done"
            assert table.rows == []
        if place == "outcome recorded":
            assert table.rows == BATCH

    write(drivers.make(table, at=at))
    assert sorted(seen) == sorted(PLACES)
    kinds = [one for one in drivers.kinds() if one is not Kind.TYPE_REGISTERED]
    assert kinds == [
        Kind.EPOCH_STARTED,
        Kind.COORDINATORS_STARTED,
        Kind.REQUEST,
        Kind.COMMIT_INTENT,
        Kind.RESPONSE,
        Kind.COMMIT_OUTCOME,
    ]


def test_a_batch_that_is_committed_is_skipped_when_it_is_replayed(drivers: Drivers) -> None:
    table, calls = MemoryTable(), list[int]()

    def function(frame: object, batch_id: int) -> object:
        calls.append(batch_id)
        return frame

    first = drivers.make(table, function=function)
    write(first)
    write(first)
    first.close()
    second = drivers.make(table, function=function)
    write(second)
    write(second, 1, rows=["c"])
    assert table.rows == ["a", "b", "c"]
    assert calls == [0, 1]
    assert drivers.kinds().count(Kind.COMMIT_INTENT) == 2


def test_a_second_frame_of_one_batch_is_refused_and_not_dropped(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = ["run-1"]
    monkeypatch.setattr(exactly_once_module, "run_of", lambda _frame, _key: runs[0])
    table = MemoryTable()
    driver = drivers.make(table)

    write(driver, rows=["good"])
    with pytest.raises(UsageError, match="by an earlier call"):
        write(driver, rows=["bad"])
    runs[0] = "run-2"  # Spark runs the batch again
    write(driver, rows=["good"])
    with pytest.raises(UsageError, match="by an earlier call"):
        write(driver, rows=["bad"])
    write(driver, 1, rows=["more"])
    assert table.rows == ["good", "more"]


def test_a_second_frame_of_a_batch_is_refused_by_another_object_too(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exactly_once_module, "run_of", lambda _frame, _key: "run-1")
    good, bad, elsewhere = MemoryTable(), MemoryTable(), MemoryTable()
    with drivers.make(good) as driver:
        write(driver, rows=["good"])
    with drivers.make(bad) as driver, pytest.raises(UsageError, match="by an earlier call"):
        write(driver, rows=["bad"])
    drivers.log = MemoryLog()
    with drivers.make(elsewhere) as driver:
        write(driver, rows=["good"])
    assert (good.rows, bad.rows, elsewhere.rows) == (["good"], [], ["good"])


@pytest.mark.parametrize("has_state", [True, False])
def test_a_skipped_batch_is_run_if_its_query_has_a_state(
    drivers: Drivers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_state: bool
) -> None:
    """Spark takes the state's version and the watermark from the run alone; its rows go nowhere."""
    (tmp_path / ("state" if has_state else "offsets")).mkdir()
    files = SimpleNamespace(exists=lambda path: Path(path).exists())
    monkeypatch.setattr(query, "_checkpoint_root", lambda _spark, _id: str(tmp_path))
    monkeypatch.setattr(query, "_check_root", lambda _spark, _id, _root: None)
    monkeypatch.setattr(query, "_file", lambda _spark, name: (files, name))
    table, frame = MemoryTable(), FakeFrame(BATCH)
    frame.write = mock.MagicMock()
    runs = frame.write.format.return_value.mode.return_value.save
    driver = drivers.make(table)
    driver(cast("Any", frame), 0)
    assert runs.call_count == 0, "staging has run it"
    driver(cast("Any", frame), 0)
    assert runs.call_count == has_state
    assert not has_state or frame.write.format.call_args == mock.call("noop")
    assert table.rows == BATCH


@pytest.mark.clause("H3")
@pytest.mark.clause("K2")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("is_staging", [True, False], ids=["staged", "one step"])
def test_a_driver_paused_anywhere_doubles_nothing_when_it_continues(
    drivers: Drivers, place: str, *, is_staging: bool
) -> None:
    """Until it goes on it is a driver that was killed there: the next one finds all, and writes the batch once."""
    table = MemoryTable(is_staging=is_staging)
    stop, came = drivers.stand_still(table.of_driver(), place)
    second = drivers.make(table.of_driver())
    write(second)
    assert table.rows == BATCH, "as if the first had been killed"
    stop.gone_on.set()
    drivers.threads[0].join(WAIT_S)
    assert table.rows == BATCH, "what the first does late changes nothing"
    write(second, 1, rows=["c"])
    assert table.rows == ["a", "b", "c"]
    assert len(came) == 1
    if place == "outcome recorded":
        assert came == [None], "its batch was committed before it stood still"
    elif place != "intent recorded":  # its worker goes on: one of the two has committed the batch
        assert isinstance(came[0], FencedError), came
    outcomes = drivers.kinds().count(Kind.COMMIT_OUTCOME)
    assert outcomes == drivers.kinds().count(Kind.COMMIT_INTENT)


def test_a_driver_is_refused_while_another_one_lives(drivers: Drivers) -> None:
    table = MemoryTable()
    write(drivers.make(table))
    with pytest.raises(DriverAliveError):
        write(drivers.make(table, take_over=False))
    assert table.rows == BATCH


@pytest.mark.parametrize("take_over", [False, True])
def test_a_fenced_driver_does_not_take_its_place_back_by_itself(
    drivers: Drivers, *, take_over: bool
) -> None:
    table = MemoryTable()
    first = drivers.make(table, take_over=take_over)
    write(first)
    write(drivers.make(table), 1, rows=["c"])
    with pytest.raises(FencedError):
        write(first, 2, rows=["d"])
    with pytest.raises(DriverAliveError):
        write(first, 2, rows=["d"])
    assert table.rows == ["a", "b", "c"]


def test_a_new_query_is_refused_until_it_is_allowed_by_the_older_ones_name(
    drivers: Drivers,
) -> None:
    table = MemoryTable()
    first = drivers.make(table)
    write(first, 4)
    with pytest.raises(UsageError, match=r"batches of query q-1, up to 4, .* instead_of='q-1'"):
        write(first, 0, "q-2")
    with pytest.raises(UsageError, match="instead_of='q-1'"):
        write(drivers.make(table, instead_of="q-7"), 0, "q-2")
    second = drivers.make(table, instead_of="q-1")
    write(second, 0, "q-2", ["c"])
    write(second, 0, "q-2", ["c"])
    assert table.rows == ["a", "b", "c"]
    with pytest.raises(UsageError, match="q-2 has taken the place of query q-1"):
        write(second, 5, "q-1")
    second.close()
    with pytest.raises(UsageError, match="q-2 has taken the place of query q-1"):
        write(drivers.make(table, instead_of="q-2"), 4, "q-1")
    assert table.rows == ["a", "b", "c"], "its last batch is not published again"


def test_an_instead_of_that_has_done_its_work_is_to_be_removed(
    drivers: Drivers, caplog: pytest.LogCaptureFixture
) -> None:
    table = MemoryTable()
    with drivers.make(table) as first:
        write(first, 0)
    with drivers.make(table, instead_of="q-1") as second:
        write(second, 0, "q-2", ["c"])
    assert "remove instead_of" not in caplog.text
    with drivers.make(table, instead_of="q-1") as third:
        write(third, 1, "q-2", ["d"])
    assert "remove instead_of='q-1': query q-2 has taken its place already" in caplog.text


def test_several_sinks_get_their_parts_and_only_missing_parts_are_redone(
    drivers: Drivers,
) -> None:
    tables = {"bad": MemoryTable(), "good": MemoryTable(is_staging=False)}
    stop = Stop("after part bad")

    def function(frame: Any, batch_id: int) -> object:  # noqa: ANN401, a FakeFrame
        return {name: FakeFrame([f"{name} {one}" for one in frame.rows]) for name in tables}

    first = drivers.make(
        {name: one.of_driver() for name, one in tables.items()}, at=stop, function=function
    )
    drivers.stops.append(stop)
    thread = threading.Thread(target=lambda: suppressed(first), daemon=True)
    drivers.threads.append(thread)
    thread.start()
    assert stop.reached.wait(WAIT_S)
    second = drivers.make(
        {name: one.of_driver() for name, one in tables.items()}, function=function
    )
    write(second)
    stop.gone_on.set()
    thread.join(WAIT_S)
    assert {name: one.rows for name, one in tables.items()} == {
        "bad": ["bad a", "bad b"],
        "good": ["good a", "good b"],
    }
    intents = [one for one in drivers.records() if one.kind is Kind.COMMIT_INTENT]
    assert len(intents) == 2, "the second one is of what the sink with one step did not have"


def test_a_batch_replanned_with_more_rows_is_refused_by_name(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file in the checkpoint was lost: by its number alone it would be skipped, with rows that nothing has."""
    ranges = ["upto-2"]
    monkeypatch.setattr(exactly_once_module, "ranges_of", lambda _frame, _key: ranges[0])
    table = MemoryTable()
    first = drivers.make(table)
    write(first)
    write(first)
    first.close()
    ranges[0] = "upto-3"
    second = drivers.make(table)
    with pytest.raises(UsageError, match=r"batch 0 of query q-1 is committed with other rows"):
        write(second, rows=["a", "b", "c"])
    write(second, 1, rows=["c"])
    assert table.rows == ["a", "b", "c"]


def test_a_fingerprint_is_of_the_positions_and_of_the_listed_files() -> None:
    """A position of Spark's file source is the number of a listing, which may be of other files in another plan."""

    def fingerprint(**changes: bytes | None) -> str:
        files = {
            "offsets/9": b'v1\n{"batchTimestampMs":1}\n{"logOffset":9}\n{"t":{"0":5}}',
            "sources/0/9.compact": b"v1\na",
            **{name.replace("_", "/"): content for name, content in changes.items()},
        }
        return query.fingerprint_of(9, lambda name, _end_bytes: files.get(name))

    known = fingerprint()
    ranges, _, listed = known.partition(".")
    assert ranges
    assert listed
    assert fingerprint(offsets_9=b'v1\n{"other":2}\n{"logOffset":9}\n{"t":{"0":5}}') == known
    assert fingerprint(**{"sources/0/9.compact": b"v1\nb"}).startswith(f"{ranges}.")
    assert fingerprint(**{"sources/0/9.compact": b"v1\nb"}) != known
    assert fingerprint(**{"sources/0/9.compact": None}) == ranges
    assert not fingerprint(offsets_9=b'v1\n{}\n{"logOffset":9}\n{"t":{"0":6}}').startswith(ranges)
    assert fingerprint(offsets_9=None) == ""


def test_a_fingerprint_is_of_all_positions_however_many(tmp_path: Path) -> None:
    """Spark writes the positions of a whole topic source on one line."""

    def fingerprint(end: int) -> str:
        positions = {"t": {str(partition): end for partition in range(10_000)}}
        file = tmp_path / "offsets" / "9"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f'v1\n{{"batchTimestampMs":1}}\n{json.dumps(positions)}')
        return frame_writer._ranges(str(tmp_path), 9)

    assert fingerprint(1_000_000) != fingerprint(1_000_001)


def test_a_sink_that_is_taken_out_while_its_part_is_open_is_named(drivers: Drivers) -> None:
    class WithoutRows(MemoryTable):
        def settle(self, part: BatchPart, batch: Batch, *, at: At = nowhere) -> PartOutcome:
            return PartOutcome(sink=part.sink, is_done=False, rows=-1, details={})

    files = MemoryTable()

    def both(frame: Any, _batch_id: int) -> object:  # noqa: ANN401, a FakeFrame
        return {"delta": frame, "files": frame}

    first = drivers.make({"files": files, "delta": WithoutRows()}, function=both)
    with pytest.raises(UsageError, match="sink 'delta' refused its part"):
        write(first)
    first.close()
    second = drivers.make({"files": files}, function=lambda frame, _batch_id: {"files": frame})
    with pytest.raises(
        UsageError, match=r"has an uncommitted part for sink 'delta'.*start the job with this sink"
    ):
        write(second)
    second.close()
    write(drivers.make({"files": files, "delta": MemoryTable()}, function=both))
    assert files.rows == BATCH


def test_an_open_batch_that_is_given_again_gets_no_second_intent(drivers: Drivers) -> None:
    stop = Stop("before part sink")
    drivers.stops.append(stop)
    sinks = cast("Any", {"sink": MemoryTable()})
    with BatchService(job_id="orders", log=drivers.log, sinks=sinks, at=stop) as service:
        service.start(cast("Any", FakeSpark("q-1", 0)))
        part = BatchPart(sink="sink", rows=0, files=[], details={"staged": "nothing"})
        request = CommitBatch(
            query_id="q-1",
            batch_id=0,
            is_write=False,
            instead_of="",
            driver_id=service.driver_id,
            parts=[part],
        )
        driver = service._driver  # pyright: ignore[reportPrivateUsage]
        assert driver is not None
        driver.request(BATCHES, request)
        assert stop.reached.wait(WAIT_S)
        answer = driver.request(BATCHES, request)
        stop.gone_on.set()
    assert isinstance(answer.response, BatchStanding)
    assert answer.response.is_open
    assert drivers.kinds().count(Kind.COMMIT_INTENT) == 1


class _OrderedService(BatchService):
    """Lets its sink settle what is left only once it waits for that."""

    def __init__(self, waits: threading.Event, **options: Any) -> None:  # noqa: ANN401, as BatchService
        super().__init__(**options)
        self._waits = waits

    def _settle_open(self) -> None:
        self._waits.set()
        super()._settle_open()


def test_what_an_open_intent_needs_is_settled_before_anything_is_swept(drivers: Drivers) -> None:
    table, waits = MemoryTable(), threading.Event()
    stop, _ = drivers.stand_still(table.of_driver(), "before part sink")
    assert len(table.staged) == 1

    def at(place: str) -> None:
        if place == "before part sink":
            assert waits.wait(WAIT_S), "the start waits for what is left"

    service = _OrderedService(
        waits,
        job_id="orders",
        log=drivers.log,
        sinks=cast("Any", {"sink": table}),
        take_over=True,
        at=at,
    )
    with service:
        service.start(cast("Any", FakeSpark("q-1", 0)))
        assert table.rows == BATCH
        assert table.staged == {}
    stop.gone_on.set()


def suppressed(driver: ExactlyOnce) -> None:
    with suppress(CoordlogError):
        write(driver)


def test_a_failing_sink_ends_the_driver_and_the_next_start_settles(
    drivers: Drivers,
) -> None:
    table = MemoryTable()
    sinks = cast("Any", {"sink": table})
    first = ExactlyOnce(
        None,
        service=lambda: BatchService(
            job_id="orders", log=drivers.log, sinks=sinks, retry_backoff_s=0.001
        ),
    )
    drivers.made.append(first)
    write(first)
    table.problem = "the disk is full"
    with pytest.raises(JobFailedError, match="the disk is full"):
        write(first, 1, rows=["c"])
    assert table.tries == 1 + 5
    assert drivers.kinds()[-3:] == [Kind.JOB_FAILED, Kind.TYPE_REGISTERED, Kind.SNAPSHOT]
    table.problem = ""
    write(first, 1, rows=["c"])
    assert table.rows == ["a", "b", "c"]
    assert Kind.RESET_TO_CHECKPOINT in drivers.kinds()
    write(first, 1, rows=["c"])
    assert table.rows == ["a", "b", "c"], "no reset makes a batch that is committed unknown"
    write(first, 2, rows=["d"])
    assert table.rows == ["a", "b", "c", "d"]
    assert drivers.kinds().count(Kind.COMMIT_INTENT) == 3


def test_a_staging_that_fails_removes_nothing_while_another_is_going_on(drivers: Drivers) -> None:
    """The thread of a query that was stopped may be late, behind the query's next start."""
    table, stop = MemoryTable(), Stop("staged")
    driver = drivers.make(table, at=stop)
    late = threading.Thread(target=write, args=[driver], daemon=True)
    late.start()
    assert stop.reached.wait(WAIT_S)
    with mock.patch.object(MemoryTable, "stage", side_effect=SinkError("memory", "full", "mend")):
        with pytest.raises(SinkError):
            write(driver)
        assert table.staged
        stop.gone_on.set()
        late.join(WAIT_S)
        assert table.rows == BATCH
        table.staged["left"] = ["x"]
        with pytest.raises(SinkError):
            write(driver, 1)
    assert table.staged == {}


def test_the_error_of_a_staging_is_raised_though_its_removal_fails_too(drivers: Drivers) -> None:
    driver = drivers.make(MemoryTable())
    write(driver)
    with (
        mock.patch.object(MemoryTable, "stage", side_effect=SinkError("memory", "full", "mend")),
        mock.patch.object(MemoryTable, "sweep", side_effect=OSError("no space left")),
        pytest.raises(SinkError, match="full"),
    ):
        write(driver, 1)


def test_a_batch_that_begins_while_another_is_removed_loses_nothing(drivers: Drivers) -> None:
    table, stop = MemoryTable(), Stop("staged")
    driver = drivers.make(table, at=stop)
    second = threading.Thread(target=write, args=[driver], daemon=True)
    sweep, stage = MemoryTable.sweep, MemoryTable.stage

    def slowly(swept: MemoryTable, is_in_force: Callable[[], bool]) -> None:
        second.start()
        stop.reached.wait(0.3)
        sweep(swept, is_in_force)

    def failing_once(staged: MemoryTable, frame: object, batch: Batch) -> BatchPart:
        if not second.ident:
            raise SinkError("memory", "full", "mend")
        return stage(staged, frame, batch)

    stop.gone_on.set()
    with (
        mock.patch.object(MemoryTable, "sweep", slowly),
        mock.patch.object(MemoryTable, "stage", failing_once),
        pytest.raises(SinkError),
    ):
        write(driver, query_id="q-2")
    second.join(WAIT_S)
    assert table.rows == BATCH


def test_a_batch_after_the_close_is_refused_and_makes_no_driver(drivers: Drivers) -> None:
    """A query that outlives its `with` block would else leave a driver that no caller closes."""
    table = MemoryTable()
    with drivers.make(table) as driver:
        write(driver)
    records = drivers.log.high_watermark()

    with pytest.raises(UsageError, match="the batches of job orders are closed, and a query still"):
        write(driver, 1, rows=["c"])

    assert drivers.log.high_watermark() == records
    assert table.rows == ["a", "b"]


def test_a_batch_in_the_middle_of_a_close_says_that_it_was_closed(drivers: Drivers) -> None:
    """No other driver has taken its place, as the error of a closed object would say."""
    stop, came = drivers.stand_still(MemoryTable(), "staged")
    drivers.made[0].close()
    stop.gone_on.set()
    drivers.threads[0].join(WAIT_S)
    assert "job orders were closed while one was being written" in str(came[0])


@pytest.mark.parametrize(
    "error",
    [
        ValueError("An error occurred while calling o67.sql."),
        SinkError("t", "o67", "fix the table"),
    ],
)
def test_a_sink_that_fails_because_its_session_has_ended_is_named_so(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Errors of py4j name a call, and neither the session nor the next step. No retry has another session."""
    table = MemoryTable()

    def settle(*_args: object, **_options: object) -> PartOutcome:
        table.tries += 1
        monkeypatch.setattr(FakeSpark, "_jsc", None)
        raise error

    monkeypatch.setattr(table, "settle", settle)
    with pytest.raises(
        JobFailedError, match="its context has been stopped; start the job again with a"
    ) as failed:
        write(drivers.make(table))
    assert table.tries == 1
    assert failed.value.final == SESSION_LOST
    assert "checkpoint" not in str(failed.value), "a batch has none"


def test_staging_that_fails_because_its_session_has_ended_is_named_so(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = MemoryTable()

    def stage(*_args: object) -> BatchPart:
        monkeypatch.setattr(FakeSpark, "_jsc", None)
        raise SinkError("t", "a snapshot cannot be staged", "fix the table")

    monkeypatch.setattr(table, "stage", stage)
    with pytest.raises(SessionLostError, match="its context has been stopped"):
        write(drivers.make(table))


def test_a_query_on_a_new_session_gets_a_driver_on_that_session(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its first batch would fail once more: the sink would settle on the session that has ended."""
    prepared = list[object]()
    table = MemoryTable()
    monkeypatch.setattr(table, "prepare", lambda _job_id, spark: prepared.append(spark))
    driver = drivers.make(table)
    write(driver)
    monkeypatch.setattr(prepared[0], "_jsc", None)
    write(driver, 1, rows=["c"])
    assert len(prepared) == 2
    assert table.rows == ["a", "b", "c"]


def test_a_restart_from_a_snapshot_knows_the_batches(drivers: Drivers) -> None:
    table = MemoryTable()
    sinks = cast("Any", {"sink": table})

    def made() -> ExactlyOnce:
        one = ExactlyOnce(
            None,
            service=lambda: BatchService(
                job_id="orders", log=drivers.log, sinks=sinks, snapshot_every=10
            ),
        )
        drivers.made.append(one)
        return one

    first = made()
    for batch_id in range(8):
        write(first, batch_id, rows=[str(batch_id)])
    first.close()
    assert Kind.SNAPSHOT in drivers.kinds()
    second = made()
    write(second, 7, rows=["7"])
    write(second, 8, rows=["8"])
    assert table.rows == [str(n) for n in range(9)]


def test_what_a_dead_driver_has_staged_and_not_intended_is_swept(drivers: Drivers) -> None:
    table = MemoryTable()
    drivers.stand_still(table.of_driver(), "staged")
    assert len(table.staged) == 1
    write(drivers.make(table), 1, rows=["c"])
    assert table.staged == {}


def test_the_function_must_return_a_frame_for_each_sink(drivers: Drivers) -> None:
    two = {"a": MemoryTable(), "b": MemoryTable()}
    with pytest.raises(UsageError, match="frames for 'sink', and the sinks are 'a', 'b'"):
        write(drivers.make(two))
    with pytest.raises(UsageError, match="returned a NoneType for sink 'sink'"):
        write(drivers.make(MemoryTable(), function=lambda _frame, _batch_id: None))


class ManyFiles(MemoryTable):
    """Says that it has staged so many files."""

    count = 2_000

    def stage(self, frame: Any, batch: Batch) -> BatchPart:  # noqa: ANN401, a FakeFrame
        staged = super().stage(frame, batch)
        name = ".coordlog/staging/0123456789abcdef.query/0-7-0.parquet"
        file = StagedFile(staged=name, final=name, size_bytes=1, checksum="0" * 64, rows=1)
        return replace(staged, files=[file] * self.count)


def test_more_files_than_a_record_names_are_refused_before_the_intent(drivers: Drivers) -> None:
    table = ManyFiles()
    driver = drivers.make(table)
    with pytest.raises(UsageError, match=r"has 2000 files, .* coalesce the frame"):
        write(driver)
    assert Kind.COMMIT_INTENT not in drivers.kinds()
    table.count = 900
    write(driver)
    assert table.rows == BATCH


def test_outside_foreach_batch_there_is_no_batch(drivers: Drivers) -> None:
    driver = drivers.make(MemoryTable())
    with pytest.raises(UsageError, match="no streaming query is running batch 3 on this thread"):
        driver(cast("Any", FakeFrame([], batch_id=2)), 3)


def test_options_are_looked_at_when_they_are_given() -> None:
    with pytest.raises(OptionError, match="job_id"):
        exactly_once(job_id="A b", log=MemoryLog(), sink=cast("Any", MemoryTable()))
    with pytest.raises(OptionError, match="sink"):
        exactly_once(job_id="a", log=MemoryLog(), sink={})
    with pytest.raises(OptionError, match="bootstrap_servers is None; it must be set, or `log`"):
        exactly_once(job_id="a", sink=cast("Any", MemoryTable()))
    with pytest.raises(OptionError, match="bootstrap_servers is 'b:1'; it must be set, or `log`"):
        exactly_once(
            job_id="a", bootstrap_servers="b:1", log=MemoryLog(), sink=cast("Any", MemoryTable())
        )
    with pytest.raises(OptionError, match="function"):
        exactly_once(cast("Any", 7), job_id="a", log=MemoryLog(), sink=cast("Any", MemoryTable()))
