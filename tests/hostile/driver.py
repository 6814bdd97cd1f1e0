"""Messages of the right form that no attempt of this job would say, into a driver that runs a job."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from coordlog.messages import (
    AckCheckpoint,
    AckEvent,
    Fail,
    Register,
    SendEvent,
    SkipSplit,
    UpMessage,
)
from coordlog.projections.tables.attempts import AttemptEnd, attempts
from coordlog.runtime.driver import JobDriver, JobStatus
from coordlog.schemas.builtin_types import AttemptSnapshot
from coordlog.schemas.record import Kind, Record
from coordlog.testing.in_memory import InMemorySurroundings
from jobs.file_pipeline import ALL_ROWS, SUBTASKS, Pipeline

__all__ = ["hostile_run"]

_FIRST_CONNECTION: Final = 1_000_000
_WILD: Final = (-(2**63), -2, -1, 0, 1, 7, 2**31, 2**63 - 1)


def hostile_run(folder: Path, chance: random.Random, count: int) -> int:
    """Run a job beside which `count` strangers talk: each of its attempts is the first one, and ends by itself.

    Returns:
        How many messages were said.
    """
    pipeline = Pipeline(folder, is_batch=False, transform=lambda batch: batch)
    strangers = _Strangers(chance, count)
    result = pipeline.drive(strangers.released, restarts_max=0)
    assert result.status is JobStatus.FINISHED
    assert pipeline.committed() == ALL_ROWS
    assert strangers.said > 0
    assert not [one for one in strangers.records if one.kind is Kind.GLOBAL_FAILURE]
    rows = attempts(strangers.records)
    ends = sorted((one.subtask, one.attempt_number, one.end) for one in rows)
    assert ends == [(subtask, 0, AttemptEnd.COMPLETED) for subtask in range(SUBTASKS)]
    return strangers.said


class _Strangers:
    """They talk whenever the log has grown, from the thread that tells of it."""

    def __init__(self, chance: random.Random, count: int) -> None:
        self._chance, self._left = chance, count
        self._next = _FIRST_CONNECTION
        self.said = 0
        self.records: list[Record] = []

    def released(
        self, driver: JobDriver, surroundings: InMemorySurroundings, records: Sequence[Record]
    ) -> None:
        self.records += records
        mailbox = surroundings._mailbox
        if mailbox is None or not self._left:
            return
        del driver
        for _ in range(min(self._left, 3)):
            self._left -= 1
            self._next += 1
            for message in self._talk(surroundings._driver_id):
                mailbox.arrived(self._next, message)
                self.said += 1
            mailbox.connection_lost(self._next, "it has gone")

    def _talk(self, driver_id: str) -> list[UpMessage]:
        first: list[UpMessage] = [self._hello(driver_id)] if self._chance.random() < 0.8 else []
        return [*first, *(self._wild() for _ in range(self._chance.randint(0, 4)))]

    def _hello(self, driver_id: str) -> Register:
        """One that is refused: nobody's driver, stage run, task or subtask.

        With all of them right he would be the newest attempt of that subtask, as whoever has the token may.
        """
        chance = self._chance
        good = Register(
            driver_id=driver_id,
            subtask=chance.randrange(SUBTASKS),
            stage_run=0,
            task_attempt_id=2**40 + self._next,
            spark_attempt_number=0,
            host="\x00" * chance.randint(0, 9),
            pid=chance.choice(_WILD),
        )
        match chance.randrange(5):
            case 0:
                return dataclasses.replace(good, driver_id=chance.choice(("", "x", "\x00")))
            case 1:
                return dataclasses.replace(good, stage_run=chance.choice((-1, 7, 2**31)))
            case 2:
                return dataclasses.replace(good, task_attempt_id=chance.choice((-1, -(2**63))))
            case _:
                return dataclasses.replace(
                    good, subtask=chance.choice((-1, SUBTASKS, 2**31, -(2**63)))
                )

    def _wild(self) -> UpMessage:
        chance = self._chance
        name = chance.choice(("", "source", "sink", "nobody", "\x00"))
        number, barrier = chance.choice(_WILD), chance.choice(_WILD)
        match chance.randrange(5):
            case 0:
                return SendEvent(
                    operator_id=name,
                    event_id=number,
                    last_barrier=barrier,
                    payload_type=chance.choice(("", "evil@1", "coordlog.request_split@1")),
                    payload=chance.randbytes(chance.randint(0, 50)),
                )
            case 1:
                return AckEvent(operator_id=name, event_id=number, last_barrier=barrier)
            case 2:
                snapshot = AttemptSnapshot(states=[], committables=[])
                return AckCheckpoint(checkpoint_id=number, last_barrier=barrier, snapshot=snapshot)
            case 3:
                return Fail(operator_id=name, callback="\n", reason="\x00\n" * 3, event_id=number)
            case _:
                return SkipSplit(
                    operator_id=name, last_barrier=barrier, split_id=name, rows=number, reason=""
                )
