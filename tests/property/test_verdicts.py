"""What batches of headers are worth, against the fold that takes one record at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from coordlog.projections.tables.audit import UNFINISHED
from coordlog.schemas.header import Header, decode_header, encode_header
from coordlog.schemas.validity import NOTHING_COUNTED, Counting, Turns, Verdict, judge
from coordlog.spark_integration.history_frames.bulk_validity import Teller, why_not


def _plain(epoch: int, sequence: int, remaining: int) -> bytes:
    return encode_header(Header(epoch, sequence, remaining, is_epoch_started=False, fingerprint=1))


def _started(epoch: int) -> bytes:
    return encode_header(Header(epoch, -1, 0, is_epoch_started=True, fingerprint=1))


@dataclass(frozen=True)
class Entry:
    header: Header | None


def by_judge(headers: Sequence[bytes | None], state: Counting) -> list[str | None]:
    """Why each does not count, one at a time."""
    reasons: list[str | None] = []
    for one in judge([Entry(decode_header(header)) for header in headers], state):
        if one.verdict in (Verdict.EPOCH, Verdict.COMPLETES):
            reasons.append(None)
        else:
            reasons.append(UNFINISHED if one.verdict is Verdict.FITS else one.verdict.value)
    return reasons


PLAIN = st.builds(
    lambda epoch, sequence, remaining, started: encode_header(
        Header(epoch, -1 if started else sequence, remaining, started, fingerprint=1)
    ),
    st.integers(-1, 3),
    st.integers(0, 6),
    st.integers(-1, 2),
    st.sampled_from([False, False, False, True]),
)
FOREIGN = st.one_of(st.none(), st.binary(max_size=40), PLAIN.map(lambda one: b"\x02" + one[1:]))


@st.composite
def logs(draw: st.DrawFn) -> list[bytes | None]:
    """Turns in order, broken by doubles, gaps, take-overs and other programs' records."""
    log: list[bytes | None] = [_started(0)]
    epoch = sequence = began = 0
    for step in draw(st.lists(st.sampled_from(STEPS), max_size=20)):
        if step == "foreign":
            log.append(draw(FOREIGN))
        elif step == "any":
            log.append(draw(PLAIN))
        elif step == "take over":
            epoch += 1
            sequence = began  # an unfinished turn's places are given again
            log.append(_started(epoch))
        elif step == "jump":
            sequence = max(0, sequence + draw(st.integers(-3, 1)))
        else:
            for remaining in draw(st.lists(st.sampled_from([0, 0, 1]), min_size=1, max_size=6)):
                log.append(_plain(epoch, sequence, remaining))
                sequence += 1
                began = sequence if remaining == 0 else began
    return log


STEPS = ["turns", "turns", "turns", "take over", "take over", "foreign", "any", "jump"]


@given(logs(), st.lists(st.integers(1, 9), min_size=1), st.sampled_from(["whole", "sliced"]))
def test_batches_are_told_as_one_record_at_a_time_is(
    headers: list[bytes | None], sizes: list[int], form: str
) -> None:
    for state in (NOTHING_COUNTED, Counting(epoch=0, next_sequence=2, turn_began=2)):
        teller, reasons = Teller(state), list[str | None]()
        rest = headers
        while rest:
            size = sizes[len(reasons) % len(sizes)]
            column = pa.array([b"before", *rest[:size], b"after"], pa.binary())
            batch = (
                column.slice(1, len(column) - 2)
                if form == "sliced"
                else pa.array(rest[:size], pa.binary())
            )
            rest = rest[size:]
            reasons += why_not(teller.tell(batch)).to_pylist()
            # As a stream does it between two of its batches.
            teller = Teller(teller.state, teller.rest().tolist())
        assert len(reasons) + teller.waiting == len(headers)
        assert reasons + why_not(teller.rest()).to_pylist() == by_judge(headers, state)


@given(logs(), st.integers(1, 9))
def test_runs_of_whole_turns_are_judged_as_one_record_at_a_time_is(
    headers: list[bytes | None], size: int
) -> None:
    entries = [Entry(decode_header(header)) for header in headers]
    for state in (NOTHING_COUNTED, Counting(epoch=0, next_sequence=2, turn_began=2)):
        alone, together = Turns[Entry](state), Turns[Entry](state)
        expected = [
            (judged.header, judged.counts) for entry in entries for judged in alone.feed(entry)
        ]
        found: list[tuple[Header | None, bool]] = []
        place = 0
        while place < len(entries):
            run = together.feed_whole(headers[place : place + size])
            found += [(header, True) for header in run]
            place += len(run)
            if not run:
                judged_now = together.feed(entries[place])
                found += [(judged.header, judged.counts) for judged in judged_now]
                place += 1
        assert found == expected
        assert together.counting == alone.counting
        assert together.waiting == alone.waiting


def test_a_record_that_is_decided_is_told_at_once() -> None:
    started = _started(0)
    open_turn = _plain(0, 0, 1)
    teller = Teller(NOTHING_COUNTED)

    assert why_not(teller.tell(pa.array([None, started], pa.binary()))).to_pylist() == [
        Verdict.VOID_HEADER.value,
        None,
    ]
    assert len(teller.tell(pa.array([open_turn, None], pa.binary()))) == 0
    whole = _plain(0, 1, 0)
    assert why_not(teller.tell(pa.array([whole], pa.binary()))).to_pylist() == [
        None,
        Verdict.VOID_HEADER.value,
        None,
    ]
