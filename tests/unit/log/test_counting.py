"""The three rules of what counts, by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from coordlog.schemas.header import Header
from coordlog.schemas.validity import (
    NOTHING_COUNTED,
    Counting,
    Turns,
    Verdict,
    count,
    counted_turns,
    judge,
)


@dataclass(frozen=True)
class Entry:
    """A record with a name."""

    name: str
    header: Header | None


def e(epoch: int) -> Entry:
    """An `EPOCH_STARTED`."""
    return Entry(
        f"E{epoch}",
        Header(epoch=epoch, sequence=-1, turn_remaining=0, is_epoch_started=True, fingerprint=0),
    )


def r(epoch: int, sequence: int, remaining: int = 0) -> Entry:
    """Any other record."""
    return Entry(
        f"{epoch}.{sequence}",
        Header(
            epoch=epoch,
            sequence=sequence,
            turn_remaining=remaining,
            is_epoch_started=False,
            fingerprint=0,
        ),
    )


FOREIGN = Entry("foreign", None)


def verdicts(*entries: Entry) -> list[Verdict]:
    state, found = NOTHING_COUNTED, []
    for entry in entries:
        state, verdict = count(state, entry.header)
        found.append(verdict)
    return found


def names(*entries: Entry) -> list[list[str]]:
    """The names of the turns that count."""
    return [[one.name for one in turn.entries] for turn in counted_turns(entries)]


def test_before_the_first_epoch_nothing_counts() -> None:
    assert names(r(0, 0), FOREIGN, r(-1, 0)) == []


@pytest.mark.parametrize("epoch", [-1, 0, 2, 7])
def test_an_epoch_counts_only_if_it_is_exactly_one_above_the_one_in_force(epoch: int) -> None:
    assert verdicts(e(0), e(epoch)) == [Verdict.EPOCH, Verdict.VOID_TAKE_OVER]
    assert verdicts(e(0), e(1)) == [Verdict.EPOCH, Verdict.EPOCH]


def test_a_record_of_an_older_epoch_is_void() -> None:
    assert verdicts(e(0), e(1), r(0, 0)) == [Verdict.EPOCH, Verdict.EPOCH, Verdict.VOID_EPOCH]


def test_a_record_of_a_newer_epoch_is_void_before_its_epoch_has_started() -> None:
    assert verdicts(e(0), r(1, 0)) == [Verdict.EPOCH, Verdict.VOID_EPOCH]


@pytest.mark.parametrize("sequence", [0, 2])
def test_a_record_counts_only_with_the_next_sequence(sequence: int) -> None:
    assert verdicts(e(0), r(0, 0), r(0, sequence))[-1] is Verdict.VOID_SEQUENCE
    assert verdicts(e(0), r(0, 0), r(0, 1))[-1] is Verdict.COMPLETES


def test_a_turn_counts_with_its_last_record_and_not_before() -> None:
    assert names(e(0), r(0, 0, 1)) == [["E0"]]
    assert names(e(0), r(0, 0, 1), r(0, 1)) == [["E0"], ["0.0", "0.1"]]


def test_a_turn_may_be_interrupted_by_void_records() -> None:
    assert names(e(0), r(0, 0, 1), FOREIGN, r(0, 0, 1), e(5), r(0, 1)) == [
        ["E0"],
        ["0.0", "0.1"],
    ]


def test_a_new_epoch_makes_an_unfinished_turn_void_and_takes_its_sequences() -> None:
    entries = (e(0), r(0, 0), r(0, 1, 2), r(0, 2, 1), e(1), r(1, 1), r(0, 3))
    assert names(*entries) == [["E0"], ["0.0"], ["E1"], ["1.1"]]
    assert [judged.verdict for judged in judge(entries)] == [
        Verdict.EPOCH,
        Verdict.COMPLETES,
        Verdict.VOID_TURN,
        Verdict.VOID_TURN,
        Verdict.EPOCH,
        Verdict.COMPLETES,
        Verdict.VOID_EPOCH,
    ]


def test_an_audit_tells_a_records_fate_in_log_order() -> None:
    entries = (e(0), r(0, 0, 1), FOREIGN, r(0, 0, 1), r(0, 1), r(0, 2, 1))
    assert [(judged.entry.name, judged.verdict) for judged in judge(entries)] == [
        ("E0", Verdict.EPOCH),
        ("0.0", Verdict.COMPLETES),
        ("foreign", Verdict.VOID_HEADER),
        ("0.0", Verdict.VOID_SEQUENCE),
        ("0.1", Verdict.COMPLETES),
        ("0.2", Verdict.FITS),  # its turn is not finished
    ]


def test_a_fold_that_starts_in_the_middle_goes_on_alike() -> None:
    entries = (e(0), r(0, 0), r(0, 1), e(1), r(1, 2))
    whole = list(counted_turns(entries))
    assert list(counted_turns(entries[2:], whole[1].after)) == whole[2:]


def test_each_turn_comes_with_where_the_log_stands_after_it() -> None:
    after = [turn.after for turn in counted_turns((e(0), r(0, 0, 1), r(0, 1)))]
    assert after == [
        Counting(epoch=0, next_sequence=0, turn_began=0),
        Counting(epoch=0, next_sequence=2, turn_began=2),
    ]
    assert after[-1].counted_end == 2


def test_void_is_what_never_counts() -> None:
    assert [verdict.name for verdict in Verdict if not verdict.is_void] == [
        "EPOCH",
        "FITS",
        "COMPLETES",
    ]


@pytest.mark.clause("K5")
def test_epochs_and_sequences_of_any_size_count() -> None:
    epochs = [e(one) for one in range(400)]
    last = [r(399, one) for one in range(400)]

    assert names(*epochs, *last) == [[one.name] for one in (*epochs, *last)]
    assert verdicts(*epochs, *last, r(398, 400), r(399, 401)) == [
        *[Verdict.EPOCH] * 400,
        *[Verdict.COMPLETES] * 400,
        Verdict.VOID_EPOCH,
        Verdict.VOID_SEQUENCE,
    ]


@pytest.mark.clause("K5")
def test_a_negative_count_of_following_records_completes_no_turn() -> None:
    assert verdicts(e(0), r(0, 0, -1)) == [Verdict.EPOCH, Verdict.FITS]


def test_an_assembler_gives_a_turn_whole_with_the_void_records_inside() -> None:
    turns = Turns[Entry]()
    given = [turns.feed(one) for one in (e(0), r(0, 0, 1), FOREIGN, r(0, 1), FOREIGN)]
    assert [[(one.entry.name, one.counts) for one in part] for part in given] == [
        [("E0", True)],
        [],
        [],
        [("0.0", True), ("foreign", False), ("0.1", True)],
        [("foreign", False)],
    ]


def test_an_assembler_keeps_an_unfinished_turn_until_its_end_comes() -> None:
    turns = Turns[Entry]()
    for one in (e(0), r(0, 0, 1), FOREIGN):
        turns.feed(one)
    assert [(one.entry.name, one.verdict) for one in turns.waiting] == [
        ("0.0", Verdict.FITS),
        ("foreign", Verdict.VOID_HEADER),
    ]
    turns.feed(e(1))
    assert turns.waiting == []
