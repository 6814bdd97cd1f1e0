"""The fold of a job's batches: what it refuses, by number and ranges, and what it forgets so that it does not grow."""

from __future__ import annotations

from dataclasses import fields, make_dataclass
from typing import Any, get_type_hints

import pytest

from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.batches import ledger
from coordlog.spark_integration.batches.ledger import (
    BatchesState,
    BatchKey,
    BatchProvider,
    free_place,
    standing_of,
    unnamed_write,
    why_refused,
)
from coordlog.spark_integration.batches.payloads import (
    BatchIntent,
    BatchOutcome,
    BatchPart,
    PartOutcome,
)


class Ledger:
    """A state, and what has come to its log."""

    def __init__(self) -> None:
        self.state, self.sequence = BatchesState(), 0

    def record(self, kind: Kind, value: Payload, cause: int | None = None) -> int:
        self.sequence += 1
        record = Record(
            kind=kind,
            epoch=0,
            driver_id="d",
            sequence=self.sequence,
            timestamp_us=0,
            job_id="orders",
            cause=cause,
        )
        assert BatchProvider.projection is not None
        self.state = BatchProvider.projection.apply(self.state, record, value)
        return self.sequence

    def begin(self, write_id: str, *, number: int, place: int) -> int:
        """An intent of a batch write; its sequence."""
        part = BatchPart(sink="sink", rows=1, files=[], details={})
        return self.record(
            Kind.COMMIT_INTENT,
            BatchIntent(
                query_id=write_id,
                batch_id=0,
                is_write=True,
                parts=[part],
                number=number,
                place=place,
            ),
        )

    def end(self, write_id: str, intent: int) -> None:
        """Its outcome."""
        part = PartOutcome(sink="sink", is_done=True, rows=1, details={})
        outcome = BatchOutcome(query_id=write_id, batch_id=0, is_write=True, parts=[part])
        self.record(Kind.COMMIT_OUTCOME, outcome, intent)

    def give(
        self,
        key: BatchKey,
        *,
        done: tuple[str, ...] = ("sink",),
        left: tuple[str, ...] = (),
        ranges: str = "",
    ) -> None:
        """An intent of these sinks' parts, and its outcome."""
        parts = [BatchPart(sink=name, rows=1, files=[], details={}) for name in (*done, *left)]
        outcomes = [
            PartOutcome(sink=name, is_done=name in done, rows=1, details={})
            for name in (*done, *left)
        ]
        self.record(
            Kind.COMMIT_INTENT,
            BatchIntent(
                query_id=key.query_id,
                batch_id=key.batch_id,
                is_write=key.is_write,
                parts=parts,
                ranges=ranges,
            ),
        )
        self.record(
            Kind.COMMIT_OUTCOME,
            BatchOutcome(
                query_id=key.query_id,
                batch_id=key.batch_id,
                is_write=key.is_write,
                parts=outcomes,
            ),
        )

    def refusal(self, key: BatchKey, ranges: str = "") -> str:
        return why_refused(self.state, key, "", ranges) or ""


def batch(number: int) -> BatchKey:
    return BatchKey(query_id="q-1", batch_id=number)


def write(write_id: str) -> BatchKey:
    return BatchKey(query_id=write_id, batch_id=0, is_write=True)


def test_a_number_that_is_committed_is_refused_with_other_ranges() -> None:
    books = Ledger()
    books.give(batch(3), ranges="aa")
    assert books.refusal(batch(3), "aa") == ""
    assert books.refusal(batch(3)) == "", "not every Spark has the file there"
    assert books.refusal(batch(4), "bb") == ""
    said = books.refusal(batch(3), "bb")
    assert "batch 3 of query q-1 is committed with other rows" in said
    assert "ended at aa (a fingerprint), and end at bb now" in said
    assert "offsets/3" in said
    assert "instead_of='q-1'" in said


def test_a_batch_before_the_last_is_refused_with_other_ranges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checkpoint is an older copy, from which Spark plans the batch with the rows that have arrived since."""
    monkeypatch.setattr(ledger, "BATCH_RANGES_REMEMBERED", 3)
    books = Ledger()
    for number, ranges in enumerate(["aa", "bb", "", "dd", "ee", "ff"]):
        books.give(batch(number), ranges=ranges)
    assert "batch 3 of query q-1 is committed with other rows" in books.refusal(batch(3), "gg")
    assert "older copy" in books.refusal(batch(1), "gg")
    assert books.refusal(batch(3), "dd") == ""
    assert sorted(books.state.earlier_ranges) == [1, 3, 4]


def test_a_batch_before_the_last_is_refused_if_its_ranges_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checkpoint is an older copy: else Spark would run the last batch again, and no other."""
    monkeypatch.setattr(ledger, "BATCH_RANGES_REMEMBERED", 2)
    books = Ledger()
    for number, ranges in enumerate(["aa", "", "cc", "dd", ""]):
        books.give(batch(number), ranges=ranges)
    said = books.refusal(batch(0), "aa")
    assert "batch 0 of query q-1 is committed, as are later ones up to 4" in said
    assert "none then, aa now" in said, "so old a copy is not remembered"
    assert "older copy" in said
    assert "none then, bb now" in books.refusal(batch(1), "bb"), "they were unknown at its commit"
    assert "dd then, none now" in books.refusal(batch(3)), "the checkpoint has no such file"
    assert books.refusal(batch(3), "dd") == ""
    assert books.refusal(batch(4), "ee") == "", "as Spark does after any crash"


def test_listed_files_are_compared_if_both_fingerprints_have_them() -> None:
    books = Ledger()
    books.give(batch(3), ranges="aa.11")
    assert books.refusal(batch(3), "aa.11") == ""
    assert books.refusal(batch(3), "aa") == "", "the listing is not in the checkpoint any more"
    assert "is committed with other rows" in books.refusal(batch(3), "aa.22")
    assert "is committed with other rows" in books.refusal(batch(3), "bb.11")
    books.give(batch(4), ranges="aa")
    assert books.refusal(batch(4), "aa.11") == "", "of an earlier version"


def test_a_part_that_a_sink_has_is_refused_with_other_ranges() -> None:
    books = Ledger()
    books.give(batch(3), done=("files",), left=("delta",), ranges="aa")
    assert books.refusal(batch(3), "aa") == ""
    assert "batch 3 of query q-1 is at 'files' with other rows" in books.refusal(batch(3), "bb")


def test_a_batch_of_which_no_sink_has_anything_may_be_planned_anew() -> None:
    books = Ledger()
    books.give(batch(3), done=(), left=("delta",), ranges="aa")
    assert books.refusal(batch(3), "bb") == ""


def test_a_batch_behind_one_that_was_given_back_is_refused() -> None:
    books = Ledger()
    books.give(batch(3), done=("files",), left=("delta",))
    said = books.refusal(batch(4))
    assert "batch 3 of query q-1 is begun and not committed at 'delta'" in said
    assert "Spark starts batch 4" in said
    books.give(batch(3), done=("delta",))
    assert books.refusal(batch(4)) == ""
    assert standing_of(books.state, batch(3), ["delta", "files"]).is_done


def test_another_query_has_no_ranges_of_the_one_before() -> None:
    books = Ledger()
    books.give(batch(0), ranges="aa")
    books.give(BatchKey(query_id="q-2", batch_id=0), ranges="")
    assert books.refusal(BatchKey(query_id="q-2", batch_id=0), "bb") == ""


def test_of_writes_without_a_name_only_the_newest_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger, "UNNAMED_WRITES_REMEMBERED", 3)
    books = Ledger()
    for number in range(10):
        books.give(write(unnamed_write(f"{number}")))
    books.give(write("named"))
    done = [
        standing_of(books.state, write(unnamed_write(f"{number}")), ["sink"]).is_done
        for number in range(10)
    ]
    assert done == [False] * 7 + [True] * 3
    assert standing_of(books.state, write("named"), ["sink"]).is_done
    assert list(books.state.writes_done) == ["named/sink"]
    assert len(books.state.unnamed_done) == 3
    assert not books.state.writes


def test_a_name_is_refused_once_the_job_has_as_many_as_it_remembers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger, "NAMED_WRITES_MAX", 2)
    books = Ledger()
    for name in ("monday", "tuesday"):
        assert books.refusal(write(name)) == ""
        books.give(write(name))
    assert "the job has 2 writes with a name, and remembers no more than 2" in books.refusal(
        write("wednesday")
    )
    assert books.refusal(write("monday")) == "", "it is known, and not done again"
    assert books.refusal(write("mon")) != ""
    assert books.refusal(write(unnamed_write("1"))) == ""


def test_a_query_is_refused_once_as_many_others_have_been_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger, "FORMER_QUERIES_MAX", 1)
    books = Ledger()
    for query_id in ("q-1", "q-2"):
        books.give(BatchKey(query_id=query_id, batch_id=0))
    said = why_refused(books.state, BatchKey(query_id="q-3", batch_id=0), "q-2")
    assert said is not None
    assert "has had 1 queries before query q-2" in said


def test_an_intent_has_the_lowest_place_without_an_open_one() -> None:
    books = Ledger()
    assert free_place(books.state) == 0
    first = books.begin("a", number=5, place=0)
    second = books.begin("b", number=6, place=1)
    assert free_place(books.state) == 2
    books.end("a", first)
    assert free_place(books.state) == 0
    third = books.begin("c", number=7, place=0)
    assert free_place(books.state) == 2
    books.end("c", third)
    books.end("b", second)
    assert (free_place(books.state), books.state.last_number) == (0, 7)


def test_a_snapshot_without_fingerprints_of_earlier_batches_is_read() -> None:
    hints = get_type_hints(BatchesState)
    names = [one.name for one in fields(BatchesState) if one.name != "earlier_ranges"]
    earlier_type = make_dataclass("BatchesState", [(name, hints[name]) for name in names])
    earlier: DerivedCodec[Any] = DerivedCodec(earlier_type)
    books = Ledger()
    books.begin("w", number=1, place=0)
    stored = earlier.encode(earlier_type(**{name: getattr(books.state, name) for name in names}))

    assert DerivedCodec(BatchesState).reader_of(earlier.schema_json)(stored) == books.state
