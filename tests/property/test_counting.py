"""The fold of what counts against a twin that looks at the whole prefix again for each record."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from coordlog.schemas.header import Header
from coordlog.schemas.validity import Verdict, counted_turns, judge


@dataclass(frozen=True)
class Entry:
    """A record."""

    number: int
    header: Header | None


def twin(headers: list[Header | None]) -> list[int]:
    """The places of what counts, by the words of the design, slowly."""
    counts: list[int] = []
    for place, header in enumerate(headers):
        before = headers[:place]
        epochs = [n for n in twin(before) if (h := headers[n]) is not None and h.is_epoch_started]
        in_force = len(epochs) - 1
        if header is None:
            continue
        if header.is_epoch_started:
            if header.epoch == in_force + 1:
                counts = [*twin(before), place]
            continue
        if header.epoch != in_force:
            continue
        # The records that fit since the epoch in force began, this one included.
        whole = [n for n in twin(headers[: epochs[-1]]) if not _is_epoch(headers[n])]
        fitting: list[int] = []
        for other in range(epochs[-1] + 1, place + 1):
            h = headers[other]
            if h is None or h.is_epoch_started or h.epoch != in_force:
                continue
            if h.sequence == len(whole) + len(fitting):
                fitting.append(other)
        if place in fitting:
            ends = [n for n in fitting if (h := headers[n]) is not None and h.turn_remaining == 0]
            last = max(ends, default=-1)
            counts = [n for n in twin(before) if n <= epochs[-1]]
            counts += [n for n in fitting if n <= last]
    return counts


def _is_epoch(header: Header | None) -> bool:
    return header is not None and header.is_epoch_started


HEADERS = st.one_of(
    st.none(),
    st.builds(
        Header,
        epoch=st.integers(0, 2),
        sequence=st.integers(0, 3),
        turn_remaining=st.integers(0, 1),
        is_epoch_started=st.booleans(),
        fingerprint=st.just(0),
    ),
)


@given(st.lists(HEADERS, max_size=9))
def test_the_fold_counts_what_its_dumb_twin_counts(headers: list[Header | None]) -> None:
    entries = [Entry(number, header) for number, header in enumerate(headers)]
    found = [entry.number for turn in counted_turns(entries) for entry in turn.entries]
    assert found == twin(headers)


@given(st.lists(HEADERS, max_size=30), st.integers(0, 30))
def test_what_counts_in_a_prefix_counts_for_ever(headers: list[Header | None], cut: int) -> None:
    entries = [Entry(number, header) for number, header in enumerate(headers)]
    whole = [turn.entries for turn in counted_turns(entries)]
    part = [turn.entries for turn in counted_turns(entries[:cut])]
    assert whole[: len(part)] == part


@given(st.lists(HEADERS, max_size=30))
def test_an_audit_shows_every_record_once_and_agrees_with_the_fold(
    headers: list[Header | None],
) -> None:
    entries = [Entry(number, header) for number, header in enumerate(headers)]
    judged = list(judge(entries))
    assert [one.entry for one in judged] == entries
    counts = [
        one.entry.number for one in judged if one.verdict in {Verdict.EPOCH, Verdict.COMPLETES}
    ]
    assert counts == [entry.number for turn in counted_turns(entries) for entry in turn.entries]


@given(st.lists(HEADERS, max_size=30))
def test_sequences_of_what_counts_are_dense_and_turns_are_whole(
    headers: list[Header | None],
) -> None:
    entries = [Entry(number, header) for number, header in enumerate(headers)]
    sequence = 0
    for turn in counted_turns(entries):
        for entry in turn.entries:
            assert entry.header is not None
            if not entry.header.is_epoch_started:
                assert entry.header.sequence == sequence
                sequence += 1
        last = turn.entries[-1].header
        assert last is not None
        assert last.turn_remaining == 0 or last.is_epoch_started
        assert turn.after.counted_end == sequence
