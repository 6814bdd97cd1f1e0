"""A task's side of a read, without Spark: when it asks for more, and what it says of what it has read."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Self, cast

import pyarrow as pa
import pytest

from coordlog.api.operator import FinishedSplit, Poll, PollStatus
from coordlog.errors import (
    RequestRefusedError,
    RequestUnansweredError,
    SourceError,
    SourceUnavailableError,
)
from coordlog.schemas.payload import Payload
from coordlog.schemas.reads import EndQuery, NextSplits, ReadFailed, ReadFailureNoted, SplitsGiven
from coordlog.schemas.source_types import Split
from coordlog.spark_integration.dataframes import reading
from coordlog.spark_integration.dataframes.query_end import is_same_again
from coordlog.spark_integration.dataframes.reading import ReadPartition, read_partition
from coordlog.spark_integration.dataframes.ticket import Ticket
from coordlog.spark_integration.files.formats.bad_rows import BadRow, rejects_batch

SCHEMA = pa.schema([("name", pa.string())])
WAIT_S = 20.0


class Service:
    """Gives these splits, answer by answer; notes what is asked and read, in order."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = answers
        self.notes: list[str] = []
        self.ended: list[EndQuery] = []
        self.rejected: list[int] = []
        self.has_rejects = False
        self.told: list[str] = []
        """The splits that were said to be finished."""
        self.asks = threading.Semaphore(0)
        self.holds_at = -1
        """The position at which an answer waits until it `goes_on`."""
        self.is_held, self.goes_on = threading.Event(), threading.Event()

    def ask(self, request: Payload, _answer_type: object, *, retry_s: float = 0.0) -> Payload:
        """A `ServiceClient`'s."""
        if isinstance(request, ReadFailed):
            self.notes.append(f"failed {request.split_id}")
            return ReadFailureNoted()
        if isinstance(request, EndQuery):
            self.ended.append(request)
            return ReadFailureNoted()
        assert isinstance(request, NextSplits)
        self.told += [one.split_id for one in request.finished]
        self.rejected += [one.rejected for one in request.finished]
        if request.position == self.holds_at:
            self.is_held.set()
            assert self.goes_on.wait(WAIT_S)
        self.notes.append(f"ask {request.position}")
        had, given = 0, list[str]()
        for one in self.answers:
            if had == request.position:
                given = list(one)
                break
            had += len(one)
        self.asks.release()
        return SplitsGiven(
            read_id="r",
            partition=0,
            position=request.position,
            splits=[Split(split_id=one, content=one.encode()) for one in given],
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.notes.append("closed")

    def create_reader(self) -> Any:  # noqa: ANN401, a SourceReader as far as it is used
        return Reader(self)

    def ticket(self) -> Ticket:
        place = SimpleNamespace(writer=lambda _task: self) if self.has_rejects else None
        return cast(
            "Ticket",
            SimpleNamespace(job_id="job", create_reader=self.create_reader, rejects=place),
        )

    def add(self, rejects: pa.RecordBatch) -> None:
        """A `RejectsWriter`'s."""
        self.notes.append(f"rejects of {rejects.column('file')[0]}")

    def publish(self, split: Split) -> None:
        """A `RejectsWriter`'s."""
        self.notes.append(f"publish {split.split_id}")

    def discard(self) -> None:
        """A `RejectsWriter`'s."""
        self.notes.append("discard")


class Reader:
    """One row a split. It reads the second half of an answer once the next question has come."""

    def __init__(self, service: Service) -> None:
        self.service, self.splits, self.finished = service, list[str](), ""
        self.seen = 0

    def open(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def current_split(self) -> str | None:
        return self.splits[0] if self.splits else None

    def add_splits(self, splits: Sequence[bytes]) -> None:
        self.splits += [one.decode() for one in splits]

    def poll(self) -> Poll:
        if self.finished:
            finished, self.finished = self.finished, ""
            done = FinishedSplit(split_id=finished, rows=1, rejected=4, bytes_read=1)
            return Poll(status=PollStatus.SPLIT_FINISHED, finished=done)
        name = self.splits[0]
        if name == "bad":
            raise SourceError("bad", "it is cut short", "mend it")
        if name.startswith("late"):
            for _ in range(2):  # the question that gave it, and the next one
                assert self.service.asks.acquire(timeout=WAIT_S), "it asks before it has read all"
        self.service.notes.append(name)
        self.finished = self.splits.pop(0)
        batch, rejects = pa.record_batch([[name]], schema=SCHEMA), None
        if self.service.has_rejects:
            row = BadRow(line=1, offset=0, reason="bad", text="x")
            rejects = rejects_batch(name, [row])
        if name.startswith("only"):
            return Poll(status=PollStatus.BATCH, batch=rejects)
        return Poll(status=PollStatus.BATCH, batch=batch, rejects=rejects)


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    one = SimpleNamespace(task_attempt_id=7, attempt_number=0, stage_id=1)
    monkeypatch.setattr(reading, "CANCEL_WAIT_S", 0.0)
    monkeypatch.setattr(reading, "_Task", SimpleNamespace(of_spark=lambda: one))
    monkeypatch.setattr(reading, "ServiceClient", lambda ticket: ticket.create_reader.__self__)


def rows(service: Service) -> list[str]:
    found = read_partition(service.ticket(), ReadPartition("r", 0, 1), SCHEMA)
    return [name for batch in found for name in batch.column("name").to_pylist()]


def test_the_next_splits_are_asked_for_when_half_of_several_are_read() -> None:
    service = Service(["a", "b", "late"])

    assert rows(service) == ["a", "b", "late"]

    assert service.notes.index("ask 3") < service.notes.index("late")
    assert service.told == ["a", "b", "late"]


def test_a_split_that_was_given_alone_is_read_before_the_next_is_asked_for() -> None:
    """It may take long, and others may be waiting for work."""
    service = Service(["a"], ["b"])

    assert rows(service) == ["a", "b"]

    assert service.notes == ["ask 0", "a", "ask 1", "b", "ask 2", "closed"]
    assert service.told == ["a", "b"]


def test_what_is_read_after_the_last_question_is_told_too() -> None:
    service = Service(["a", "b", "c", "d"])

    assert rows(service) == ["a", "b", "c", "d"]

    assert service.told == ["a", "b", "c", "d"]
    assert service.notes[-2:] == ["ask 4", "closed"]


def test_a_failure_is_told_once_no_question_is_open() -> None:
    service = Service(["a", "bad"], ["never"])

    with pytest.raises(SourceError, match="cut short"):
        rows(service)

    assert service.notes[-2:] == ["failed bad", "closed"]
    assert set(service.notes) == {"ask 0", "ask 2", "a", "failed bad", "closed"}


def test_a_failure_of_the_content_ends_the_query_by_its_stage() -> None:
    service = Service(["bad"])

    with pytest.raises(SourceError, match="cut short"):
        rows(service)

    (ended,) = service.ended
    assert ended.stage_id == 1
    assert "it is cut short" in ended.reason


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SourceError("f", "row 3", "mend it"), True),
        (caused(SourceError("f", "row 3", "mend it"), ValueError("x")), True),
        (caused(SourceError("f", "gone", "put it back"), FileNotFoundError(2, "x")), True),
        (caused(SourceError("f", "cut", "mend it"), OSError("a codec's, without a number")), True),
        (RequestRefusedError("the read is over"), True),
        (caused(SourceError("f", "no answer", "wait"), ConnectionResetError(104, "x")), False),
        (caused(SourceError("f", "no answer", "wait"), TimeoutError(110, "x")), False),
        (SourceUnavailableError("f", "no answer", "wait"), False),
        (RequestUnansweredError("reads", "nobody is there"), False),
        (MemoryError(), False),
    ],
    ids=repr,
)
def test_only_failures_that_another_try_repeats_are_final(error: Exception, expected: bool) -> None:  # noqa: FBT001
    assert is_same_again(error) is expected


def test_a_query_with_enough_rows_waits_for_its_open_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection is for one thread: it is closed once nobody asks by it."""
    monkeypatch.setattr(reading, "DATAFRAME_BATCH_ROWS", 1)
    service = Service(["a", "b", "c"], ["d"])
    service.holds_at = 3
    found = read_partition(service.ticket(), ReadPartition("r", 0, 1), SCHEMA)
    assert [next(found).num_rows for _ in range(2)] == [1, 1]
    assert service.is_held.wait(WAIT_S), "it has asked while it reads"

    closing = threading.Thread(target=cast("Any", found).close)
    closing.start()
    assert "closed" not in service.notes
    service.goes_on.set()
    closing.join(WAIT_S)

    assert service.notes == ["ask 0", "a", "b", "ask 3", "closed"]
    assert not [one for one in threading.enumerate() if one.name.startswith("asks-for-splits")]


def test_rejects_are_published_at_the_end_of_their_split_before_it_counts() -> None:
    service = Service(["a", "only bad"])
    service.has_rejects = True

    assert rows(service) == ["a"]
    done = [note for note in service.notes if not note.startswith("ask")]
    assert done == [
        *("a", "rejects of a", "publish a"),
        *("only bad", "rejects of only bad", "publish only bad"),
        *("discard", "closed"),
    ]
    assert service.told == ["a", "only bad"]
    assert service.rejected == [4, 4], "the number is in the request that a task sends anyway"


def test_rejects_of_a_split_that_is_not_read_whole_are_not_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "DATAFRAME_BATCH_ROWS", 1)
    service = Service(["a"])
    service.has_rejects = True
    found = read_partition(service.ticket(), ReadPartition("r", 0, 1), SCHEMA)
    next(found)
    cast("Any", found).close()

    assert "publish a" not in service.notes
    assert service.notes[-2:] == ["discard", "closed"]
