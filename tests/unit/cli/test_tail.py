"""`coordlog tail`, and the follower behind it: a log that grows, goes away, is pruned or deleted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from click.testing import CliRunner, Result

from coordlog.cli.exit_status import Exit
from coordlog.cli.following import Follower, FollowOptions, LogGoneError
from coordlog.cli.main import main
from coordlog.errors import LogUnavailableError, TopicError
from coordlog.log.interface import StoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.audit import AuditRecord
from coordlog.schemas.record import Kind
from driven_history import RECORDED_JOB, recorded_history
from histories.hand_history import HandHistory
from histories.one_log import OneLog

pytestmark = pytest.mark.clause("K5")

RECORDS = recorded_history()
END = len(RECORDS)


@dataclass
class Growing:
    """A log that a script changes each time its follower waits."""

    script: list[Callable[[], None]]
    log: MemoryLog = field(default_factory=lambda: MemoryLog(RECORDED_JOB))
    messages: list[str] = field(default_factory=list)

    def wait(self, _seconds: float) -> None:
        """The next step."""
        if not self.script:
            raise KeyboardInterrupt
        self.script.pop(0)()

    def entries(self, *, patience_s: float = 300.0, check_s: float = 0.0) -> Iterator[AuditRecord]:
        """What the follower yields, until the script is over."""
        options = FollowOptions(
            patience_s=patience_s, notify=self.messages.append, check_s=check_s, wait=self.wait
        )
        follower = Follower(OneLog(self.log, RECORDED_JOB), RECORDED_JOB, options)
        try:
            for entry in follower.entries(0):
                if entry is not None:
                    yield entry
        except KeyboardInterrupt:
            return

    def store(self, first: int, end: int) -> Callable[[], None]:
        return lambda: self.log.store(*RECORDS[first:end])


def nothing() -> None:
    """A step without a change."""


def test_records_come_in_order_and_once_however_they_are_appended() -> None:
    growing = Growing([])
    growing.script += [growing.store(n, n + 7) for n in range(0, END, 7)]

    offsets = [entry.offset for entry in growing.entries()]

    assert offsets == list(range(END))
    assert growing.messages == []


def test_the_records_of_a_turn_wait_for_its_end() -> None:
    history = HandHistory(job_id=RECORDED_JOB)
    history.epoch()
    first = history.record(Kind.COORDINATORS_STARTED)
    history.turn(first, history.record(Kind.SUBTASK_RESET, subtask=0, checkpoint_id=-1))
    growing = Growing([])
    counts: list[int] = []
    seen: list[AuditRecord] = []
    growing.script += [
        lambda: growing.log.store(*history.records[:-1]),
        lambda: counts.append(len(seen)),
    ]
    growing.script += [lambda: growing.log.store(history.records[-1]), nothing]

    for entry in growing.entries():
        seen.append(entry)  # noqa: PERF402, the script looks at it meanwhile

    assert counts == [1]
    assert [entry.counts for entry in seen] == [True] * len(history.records)


def test_a_log_that_goes_away_and_comes_back_is_reported_once_each() -> None:
    growing = Growing([])
    growing.script += [
        growing.store(0, 10),
        lambda: growing.log.faults.next_reads(3),
        nothing,
        growing.store(10, END),
        nothing,
        nothing,
        nothing,
    ]

    assert [entry.offset for entry in growing.entries()] == list(range(END))
    gone, back = growing.messages
    assert gone.startswith("the log does not answer, tried again for 300 s: ")
    assert back == "the log answers again"


def test_a_log_that_stays_away_ends_the_following() -> None:
    growing = Growing([])

    def leave() -> None:
        growing.log.faults.is_gone = True

    growing.script += [growing.store(0, 10), leave, nothing, nothing]
    with pytest.raises(LogUnavailableError):
        list(growing.entries(patience_s=0.0))


def test_a_log_that_is_created_again_is_not_taken_for_the_old_one() -> None:
    growing = Growing([])
    growing.script += [growing.store(0, 10), growing.log.recreate, nothing]

    with pytest.raises(LogGoneError, match="was deleted, and another one has been created"):
        list(growing.entries())


def test_a_log_whose_reading_notices_that_it_is_another_one_is_named_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A log in Kafka compares the topic's id at each reading."""
    growing = Growing([])
    whole = growing.log.read

    def read(first: int, end: int) -> Iterator[StoredRecord]:
        if growing.log.identity != known:
            raise TopicError("a.log", "it was deleted and made again", "run the command again")
        return whole(first, end)

    known = growing.log.identity
    monkeypatch.setattr(growing.log, "read", read)

    def replace_by_a_longer_one() -> None:
        growing.log.recreate()
        growing.store(0, 20)()

    growing.script += [growing.store(0, 10), replace_by_a_longer_one, nothing]

    with pytest.raises(LogGoneError, match="and another one has been created"):
        list(growing.entries(check_s=math.inf))


def test_a_prune_while_it_follows_is_reported_and_loses_nothing() -> None:
    growing = Growing([])
    growing.script += [growing.store(0, 40), lambda: growing.log.remove_below(30)]
    growing.script += [growing.store(40, END), nothing]

    assert [entry.offset for entry in growing.entries()] == list(range(END))
    assert growing.messages == ["the log was pruned: it begins at offset 30 now"]


# --- the command -----------------------------------------------------------------------------------------------------
def tail(log: MemoryLog, *arguments: str) -> Result:
    logs = OneLog(log, RECORDED_JOB)
    return CliRunner().invoke(main, ("tail", RECORDED_JOB, *arguments), obj=lambda _servers: logs)


@pytest.fixture
def whole() -> MemoryLog:
    log = MemoryLog(RECORDED_JOB)
    log.store(*RECORDS)
    return log


def offsets(result: Result) -> list[int]:
    return [json.loads(line)["offset"] for line in result.stdout.splitlines()]


def test_a_job_that_has_ended_is_shown_to_its_end(whole: MemoryLog) -> None:
    done = tail(whole)

    assert done.exit_code == Exit.DONE, done.output
    records = [line for line in done.stdout.splitlines() if not line.startswith("-- ")]
    assert [int(line.split()[0]) for line in records] == list(range(END - 10, END))
    assert f"job {RECORDED_JOB} is finished for " in done.stderr
    assert "--forever waits for a later run" in done.stderr


@pytest.mark.parametrize(
    ("options", "first"),
    [
        (("--from-offset", "5"), 5),
        (("-n", "3"), END - 3),
        (("-n", "0"), END),
        (("--since", "5m"), END),
        (("--since", "9999d"), 0),
    ],
    ids=["offset", "lines", "now", "5m", "days"],
)
def test_it_begins_at_an_offset_a_time_or_now(
    whole: MemoryLog, options: tuple[str, ...], first: int
) -> None:
    assert offsets(tail(whole, "--json", *options)) == list(range(first, END))


def test_each_epoch_is_told_with_its_driver(whole: MemoryLog) -> None:
    told = tail(whole, "--from-offset", "0").stderr

    assert "epoch 0 begins: a driver on " in told
    assert "epoch 1 begins: a driver on " in told
    assert "; the driver of epoch 0 is over" in told


def test_a_failed_job_ends_it_with_status_1() -> None:
    history = HandHistory(job_id=RECORDED_JOB)
    history.epoch()
    history.turn(history.record(Kind.JOB_FAILED, reason="no space"))
    log = MemoryLog(RECORDED_JOB)
    log.store(*history.records)

    done = tail(log)

    assert done.exit_code == Exit.FAILED
    assert "is failed for " in done.stderr
    assert ": no space" in done.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--from-offset", "3", "--since", "5m"), "give one of --lines, --from-offset and --since"),
        (("--since", "soon"), "'soon' is no duration, as in 90s, 5m or 2h"),
        (("--forever", "--no-follow"), "give either --forever or --no-follow"),
    ],
    ids=["two", "word", "both"],
)
def test_contradicting_options_are_refused(
    whole: MemoryLog, options: tuple[str, ...], problem: str
) -> None:
    refused = tail(whole, *options)

    assert refused.exit_code == Exit.USAGE
    assert problem in refused.stderr


def test_an_offset_that_was_pruned_is_refused_with_the_first_one(whole: MemoryLog) -> None:
    whole.remove_below(30)
    refused = tail(whole, "--from-offset", "3")

    assert refused.exit_code == Exit.USAGE
    assert "the log begins at offset 30: earlier records were pruned" in refused.stderr


def test_ctrl_c_ends_it_without_a_word(whole: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("coordlog.cli.commands.look.tail.is_reader_gone", interrupted)
    log = MemoryLog(RECORDED_JOB)
    log.store(*RECORDS[:20])

    done = tail(log, "--forever")

    assert done.exit_code == Exit.INTERRUPTED
    assert "Traceback" not in done.output
    assert "stopped" not in done.output
