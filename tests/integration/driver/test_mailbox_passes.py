"""Work that has arrived at a mailbox is handled together: turn by turn, in order, and appended as one group."""

from __future__ import annotations

import threading
import time

import pytest

from coordlog.log.interface import UnstoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.messages import SendEvent
from coordlog.runtime.driver import DriverOptions, JobDriver
from coordlog.runtime.waiting_turns import WaitingTurns
from coordlog.schemas.payload import payload_type_of
from coordlog.testing.in_memory import InMemorySurroundings
from fakes.kernel_fakes import NotingProvider, Up, chain_of

WAIT_S = 30.0


@pytest.mark.clause("K1")
def test_events_that_wait_together_are_turns_of_one_append(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = groups_of_five_events(monkeypatch)
    assert max(groups[:2]) >= 5, f"appends of {groups} records"


def test_an_append_does_not_wait_for_many_slow_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordlog.runtime.mailbox._PASS_S", 0.0)  # as if each took longer
    monkeypatch.setattr("coordlog.runtime.waiting_turns.APPEND_LINGER_S", 0.0)
    groups = groups_of_five_events(monkeypatch)
    assert groups[0] < 5, f"appends of {groups} records"


def groups_of_five_events(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of records that the mailbox hands over to be appended, from where five events wait."""
    groups: list[int] = []
    take_group = WaitingTurns.take_group

    def noted(turns: WaitingTurns) -> list[UnstoredRecord]:
        group = take_group(turns)
        groups.append(len(group))
        return group

    monkeypatch.setattr(WaitingTurns, "take_group", noted)
    provider = NotingProvider()
    chain = chain_of(provider)
    surroundings = InMemorySurroundings(chain, "job", 1)
    driver = JobDriver(
        chain=chain,
        log=MemoryLog("job"),
        options=DriverOptions(job_id="job", parallelism=1, is_batch=False),
        surroundings=surroundings,
    )
    driver.start()
    checkpoint_id = driver.trigger_checkpoint().wait(WAIT_S)
    assert checkpoint_id is not None
    connection_id = surroundings._of_subtask[0].connection_id
    mailbox, key = driver._mailbox, payload_type_of(Up).key
    is_held, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        may_go.wait(WAIT_S)

    mailbox.post(hold)
    assert is_held.wait(WAIT_S)
    runtime, until_s = mailbox._runtime, time.monotonic() + WAIT_S
    assert runtime is not None
    while runtime.turns.append_pending_s() and not mailbox._control:
        assert time.monotonic() < until_s, "the append before the events has no end"
        time.sleep(0.001)
    for n in range(5):
        event = payload_type_of(Up).encode(Up(n=n))
        mailbox.arrived(
            connection_id,
            SendEvent(
                operator_id="source",
                event_id=n,
                last_barrier=checkpoint_id,
                payload_type=key,
                payload=event,
            ),
        )
    groups.clear()
    may_go.set()
    assert driver.trigger_checkpoint().wait(WAIT_S) is not None
    driver.stop(with_checkpoint=False)
    driver.wait(WAIT_S)

    assert [said[-1] for said in provider.said("event")] == [0, 1, 2, 3, 4]
    return groups
