"""What reads a topic to judge the rest finds what it is to find: a history by hand, and one fault at a time."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.steps import Note, Told
from chaos.topic_reader import History, Line

OLD, NEW = "driver-old", "driver-new"


def line(
    offset: int, epoch: int, sequence: int, left: int = 0, /, *, driver: str = OLD, **value: object
) -> Line:
    given: dict[str, Any] = {
        "driver_id": driver,
        "epoch": epoch,
        "sequence": sequence,
        "timestamp": offset,
        "kind": "FACT",
        "payload": b"",
        "reason": None,
        "cause": None,
        "attributes": {},
        "subtask": None,
        "attempt_number": None,
        "event_id": None,
        **value,
    }
    return Line(
        offset=offset,
        starts_epoch=sequence == -1,
        epoch=epoch,
        sequence=sequence,
        left=left,
        value=given,
    )


def history(*lines: Line) -> History:
    made = History(lines=list(lines))
    made.fold()
    return made


def test_what_counts_is_dense_whole_and_of_the_epoch_in_force() -> None:
    one = history(
        line(0, 0, -1),
        line(1, 0, 0),
        line(2, 0, 1, 1),  # its turn is cut off
        line(3, 1, -1, driver=NEW),
        line(4, 1, -1, driver="driver-late"),
        line(5, 0, 2),
        line(6, 1, 2, driver=NEW),
        line(7, 1, 1, 1, driver=NEW),
        line(8, 1, 1, 1, driver=NEW),
        line(9, 1, 2, driver=NEW),
        line(10, 3, -1, driver="driver-late"),
    )

    assert [found.offset for found in one.counted] == [1, 7, 9]
    assert [found.driver_id for found in one.epoch_starts] == [OLD, NEW]
    assert (one.void_count, one.epoch_of(NEW), one.epoch_of("driver-late")) == (6, 1, None)
    assert one.faults() == []


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (line(2, 0, 1, driver=NEW), "is not its driver's"),
        (line(2, 0, 1, timestamp=0), "time goes back"),
        (line(2, 0, 1, sequence=7), "its header and its value differ"),
    ],
)
def test_a_record_that_may_not_count_is_told(wrong: Line, fault: str) -> None:
    (found,) = history(line(0, 0, -1), line(1, 0, 0), wrong).faults()

    assert fault in found


@pytest.mark.parametrize(("second", "is_well"), [(1, False), (0, False), (2, True)])
def test_an_attempts_events_keep_their_order(*, second: int, is_well: bool) -> None:
    sent = [
        line(n + 1, 0, n, kind="EVENT_TO_COORDINATOR", subtask=0, attempt_number=0, event_id=event)
        for n, event in enumerate((1, second))
    ]

    assert (history(line(0, 0, -1), *sent).faults() == []) is is_well


@pytest.mark.parametrize(
    ("notes", "fault"),
    [
        ([Note(released=[0]), Note(released=[1])], ""),
        ([Note(delivers=5), Note(publishes=["part-1"])], ""),
        ([Note(released=[2])], "LOST"),
        ([Note(released=[3])], "LOST"),
        ([Note(released=[0]), Note(released=[0])], "DOUBLED"),
        ([Note(delivers=6)], "without its record"),
        ([Note(publishes=["part-2"])], "without its intent"),
        ([Note(refuses="no slot")], ""),
        ([Note(refuses="late")], "without a record"),
    ],
)
def test_what_a_driver_has_done_stands_in_the_topic(notes: list[Note], fault: str) -> None:
    one = history(
        line(0, 0, -1),
        line(1, 0, 0, kind="EVENT_TO_SUBTASK", event_id=5),
        line(2, 0, 1, kind="COMMIT_INTENT", payload=b"..part-1..", reason="no slot"),
        line(3, 1, -1, driver=NEW),
        line(4, 1, 2, driver=NEW, reason="late"),
    )
    found = one.faults_of("old", OLD, notes)

    assert len(found) == (1 if fault else 0)
    assert fault in "".join(found)


def told(how: str, *, says: str = "ask 1", is_stranger: bool = False, sequence: int = 1) -> Note:
    asked = Told(
        name="ask 1",
        is_refused=False,
        is_stranger=is_stranger,
        how=how,
        says=says,
        sequence=sequence,
    )
    return Note(told=asked)


@pytest.mark.parametrize(
    ("note", "fault"),
    [
        (told("answered"), ""),
        (told("unanswered"), ""),
        (told("open"), "is open still"),
        (told("answered", says="ask 2"), "LOST"),
        (told("answered", sequence=0), "LOST"),
        (told("answered", sequence=9), "LOST"),
        (told("refused"), "LOST"),
        (told("answered", is_stranger=True), "without the token"),
        (told("unanswered", is_stranger=True), "without the token"),
    ],
)
def test_what_a_client_was_told_stands_in_the_topic(note: Note, fault: str) -> None:
    one = history(
        line(0, 0, -1),
        line(1, 0, 0, kind="REQUEST", payload=b"..ask 1.."),
        line(2, 0, 1, kind="RESPONSE", payload=b"..ask 1.."),
    )
    found = one.faults_of_client(OLD, [note])

    assert len(found) == (1 if fault else 0)
    assert fault in "".join(found)


def test_a_request_that_counts_twice_is_told() -> None:
    one = history(
        line(0, 0, -1),
        line(1, 0, 0, kind="REQUEST", payload=b"..ask 1.."),
        line(2, 0, 1, kind="REQUEST", payload=b"..ask 1.."),
    )

    assert "DOUBLED" in "".join(one.faults_of_client(OLD, [told("unanswered")]))


STORED = Note(stored=[0, 1, 2, 3, 4])


@pytest.mark.parametrize(
    "effect",
    [
        Note(answers=0),
        Note(works="work 1"),
        Note(delivers=5),
        Note(publishes=["part-1"]),
        Note(refuses="no slot"),
    ],
    ids=lambda note: next(iter(note)),
)
def test_nothing_is_done_before_its_own_record_is_released(effect: Note) -> None:
    asking = [
        line(1, 0, 0, kind="RESPONSE"),
        line(2, 0, 1, payload=b"..work 1.."),
        line(3, 0, 2, kind="EVENT_TO_SUBTASK", event_id=5),
        line(4, 0, 3, kind="COMMIT_INTENT", payload=b"..part-1.."),
        line(5, 0, 4, reason="no slot"),
    ]
    one = history(line(0, 0, -1), *asking)
    (by,) = [
        n
        for n, key in enumerate(("answers", "works", "delivers", "publishes", "refuses"))
        if key in effect
    ]
    others = [n for n in range(5) if n != by]

    def faults(*notes: Note) -> list[str]:
        return one.faults_of_order("old", OLD, [STORED, *notes])

    assert faults(Note(released=[by]), effect) == []
    for notes in (
        [effect, Note(released=[by])],
        [Note(released=others), effect, Note(released=[by])],
        [Note(released=others), effect],
    ):
        (found,) = faults(*notes)
        assert "before it is released" in found


@pytest.mark.parametrize(
    ("driver", "is_well"), [(OLD, False), (NEW, True), ("driver-nobody", False)]
)
def test_what_an_earlier_epoch_has_left_may_be_done_at_once(driver: str, *, is_well: bool) -> None:
    one = history(
        line(0, 0, -1),
        line(1, 0, 0, kind="COMMIT_INTENT", payload=b"..part-1.."),
        line(2, 1, -1, driver=NEW),
    )

    assert (one.faults_of_order("one", driver, [Note(publishes=["part-1"])]) == []) is is_well


@pytest.mark.parametrize(
    ("notes", "is_well"),
    [
        ([Note(stored=[0, 1]), Note(released=[0]), Note(released=[1])], True),
        ([Note(stored=[0]), Note(released=[0, 1]), Note(stored=[1])], False),
        ([Note(released=[0])], False),
    ],
)
def test_nothing_is_released_before_it_is_stored(notes: list[Note], *, is_well: bool) -> None:
    one = history(line(0, 0, -1), line(1, 0, 0), line(2, 0, 1))
    found = one.faults_of_order("old", OLD, notes)

    assert (found == []) is is_well
    assert is_well or "before it is stored" in found[0]
