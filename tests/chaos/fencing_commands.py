"""A command that begins an epoch on a job whose driver was killed, and stands still while a driver takes over.

One whose record counts by then has done what it was asked for, and says so when it goes on. Any other is fenced.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.child import Child, wait_until
from chaos.command_process import CommandOrders, run_command
from chaos.driver_process import DriverProcess, Orders
from chaos.fencing_plans import LOSER_ENDS_S, FencingError, Outcome, Plan, fenced_faults
from chaos.job_parts import ROWS_PER_FILE, Folders, doubled
from chaos.topic_reader import History, Line, read_history

__all__ = ["COMMAND_PLANS", "run_command_round"]

_FILES = 8
_SKIPPED = _FILES - 1
_SKIPPED_ROWS = set(range(_SKIPPED * ROWS_PER_FILE, _FILES * ROWS_PER_FILE))
_BEGINS_S = 60.0
_JOB_S = 90.0
_FORMER_BATCH_S = 0.1
"""So that it has not finished when it is killed."""
_FORMER_SNAPSHOT_EVERY = 5
"""So that it has taken one when it is killed: `prune` cuts the log there."""
_DONE_AT = {"between ack and release", "before removing records"}
"""Steps at which the command's record counts already."""

COMMAND_PLANS = (
    Plan(command="savepoint", step="before the take-over"),
    Plan(command="savepoint", step="after the take-over"),
    Plan(command="savepoint", step="before append"),
    Plan(command="savepoint", step="between ack and release"),
    Plan(command="skip", step="after the take-over"),
    Plan(command="skip", step="before append"),
    Plan(command="skip", step="between ack and release"),
    Plan(command="prune", step="before removing records"),
    Plan(command="fork", step="before the take-over"),
    Plan(command="fork", step="before append"),
)
"""`fork` appends a copy first: its first record, before any other, begins an epoch too."""


@dataclass(kw_only=True)
class _CommandRound:
    seed: int
    servers: str
    folders: Folders
    plan: Plan
    chance: random.Random
    former: DriverProcess | None = None
    command: Child | None = None
    second: DriverProcess | None = None
    third: DriverProcess | None = None
    before: Sequence[Line] = ()
    """What stood in the topic before the command went on: it may remove records."""
    faults: list[str] = field(default_factory=list)

    @property
    def former_id(self) -> str:
        """The job whose driver was killed."""
        return f"fencing-{os.getpid()}-{self.seed}"

    @property
    def is_fork(self) -> bool:
        """Whether the command makes a job of its own."""
        return self.plan.command == "fork"

    @property
    def is_copy_begun(self) -> bool:
        """Whether the new job's log has a record that keeps drivers away."""
        return self.is_fork and self.plan.step == "before append"

    @property
    def is_done(self) -> bool:
        """Whether nothing takes away any more what the command has done."""
        return self.plan.step in _DONE_AT or self.is_copy_begun

    @property
    def job_id(self) -> str:
        """The job that the command is about."""
        return f"{self.former_id}-new" if self.is_fork else self.former_id

    @property
    def job_folders(self) -> Folders:
        """That job's."""
        return Folders(self.folders.root / "new") if self.is_fork else self.folders

    def start(self, name: str, job_id: str, folders: Folders, **more: object) -> DriverProcess:
        """A driver; all have the same source."""
        folders.root.mkdir(exist_ok=True)
        return DriverProcess(
            Orders(
                name=name,
                root=str(folders.root),
                source=str(self.folders.source),
                job_id=job_id,
                bootstrap_servers=self.servers,
                **more,  # type: ignore[arg-type]
            )
        )

    def prepare(self) -> None:
        """A job with a checkpoint that is committed, and a driver that is gone.

        One to begin from has a later checkpoint too, whose commit it has never done.
        """
        pause_at = ("before publishing a second checkpoint", 1) if self.is_fork else None
        former = self.former = self.start(
            "former",
            self.former_id,
            self.folders,
            batch_s=_FORMER_BATCH_S,
            pause_at=pause_at,
            snapshot_every=_FORMER_SNAPSHOT_EVERY,
        )

        def is_far_enough() -> bool:
            is_there = former.is_stopped if self.is_fork else bool(self.folders.published())
            return is_there or former.status is not None

        wait_until(is_far_enough, _BEGINS_S, "published")
        former.end()
        if former.status != -signal.SIGKILL:
            raise FencingError(f"the former driver ended with {former.status}: {former.error}")

    def begin(self) -> None:
        """Start the command, and have it stand still."""
        assert self.plan.step is not None
        orders = CommandOrders(
            name="command",
            root=str(self.folders.root),
            bootstrap_servers=self.servers,
            arguments=self._arguments(),
            pause_at=(self.plan.step, 1),
        )
        command = self.command = Child(run_command, orders)
        wait_until(lambda: command.is_stopped or command.status is not None, _BEGINS_S, "stopped")
        if not command.is_stopped:
            raise FencingError(f"{orders.arguments} ended with {command.status}: {command.output}")

    def _arguments(self) -> tuple[str, ...]:
        match self.plan.command:
            case "savepoint":
                return ("savepoint", self.job_id, "here")
            case "skip":
                return ("skip", self.job_id, "--split", str(self.folders.source / _name(_SKIPPED)))
            case "prune":
                return ("prune", self.job_id, "--yes")
            case _:
                done = read_history(self.servers, f"{self.former_id}.log")
                return ("fork", self.job_id, f"{self.former_id}@{_newest_settled(done)}")

    def follow(self) -> None:
        """Start a driver of the job, and let it work."""
        is_asked_to = self.chance.random() < 0.5
        # It is to have few records by then, so that those of a copy could take the next places in its epoch.
        pause_at = ("before append", 2) if self.is_fork else None
        second = self.second = self.start(
            "second", self.job_id, self.job_folders, take_over=is_asked_to, pause_at=pause_at
        )
        how_far = self.chance.choice(("taken over", "at work", "to its end"))

        def is_far_enough() -> bool:
            if second.status is not None or second.is_stopped:
                return True
            if how_far == "to its end" or second.driver_id is None or self.is_fork:
                return False
            return how_far == "taken over" or len(second.released) > 30

        wait_until(is_far_enough, _JOB_S, f"the second is {how_far}")
        self.before = read_history(self.servers, f"{self.job_id}.log").lines

    def wake(self) -> float:
        """Let the command go on, and wait for both; how long it has taken to end."""
        assert self.command is not None
        assert self.second is not None
        began = time.monotonic()
        self.command.signal(signal.SIGCONT)
        if self.command.wait(LOSER_ENDS_S) is None:
            self.faults.append(f"the command has not ended {LOSER_ENDS_S:g} s after SIGCONT")
        took_s = time.monotonic() - began
        self.second.signal(signal.SIGCONT)
        self._must_end(self.second, 3 if self.is_copy_begun else 0)
        if self.is_done:
            # It begins with what the command has left.
            third = self.third = self.start("third", self.job_id, self.job_folders)
            self._must_end(third, 0)
        return took_s

    def _must_end(self, driver: DriverProcess, status: int) -> None:
        if driver.wait(_JOB_S) != status:
            said = driver.error or driver.output[-2000:]
            self.faults.append(
                f"the {driver.orders.name} driver ended with {driver.status}, not {status}: {said}"
            )

    def check(self) -> tuple[History, list[Line]]:
        """What the topic and the destination say; and the records of the command's own."""
        history = read_history(self.servers, f"{self.job_id}.log", before=self.before)
        self.faults += history.faults()
        assert self.command is not None
        for one in (self.former, self.second, self.third):
            if one is not None and one.orders.job_id == self.job_id:
                who = (one.orders.name, one.driver_id, one.notes)
                self.faults += history.faults_of(*who) + history.faults_of_order(*who)
        begun = [
            one.driver_id
            for one in history.lines
            if one.starts_epoch and one.value["attributes"].get("command") == self.plan.command
        ]
        own = [one for one in history.lines if one.driver_id in begun]
        counted = [one for one in history.counted if one.driver_id in begun]
        has_own = self.is_done and not self.is_fork and self.plan.command != "prune"
        if bool(counted) != has_own:
            self.faults.append(f"{len(counted)} records of the command's count")
        if len(history.of_kind("JOB_FINISHED")) != 1:
            self.faults.append("there is not one record that says that the job has finished")
        self._check_rows()
        if self.plan.command == "skip" and counted:
            self._check_skipped(history, counted[0])
        return history, own

    def _check_rows(self) -> None:
        rows, wanted = self.job_folders.rows(), set(range(_FILES * ROWS_PER_FILE))
        if self.is_copy_begun:
            # What the checkpoint has committed is the other's, and nothing else: together each row is there once.
            rows = sorted(rows + self.folders.rows())
        missing = wanted - set(rows)
        if self.plan.command == "skip" and self.is_done:
            missing -= _SKIPPED_ROWS
        if missing or doubled(rows) or not wanted.issuperset(rows):
            self.faults.append(f"rows missing: {sorted(missing)[:9]}, doubled: {doubled(rows)[:9]}")

    def _check_skipped(self, history: History, skip: Line) -> None:
        """Of the skipped split nobody publishes a row that no intent had before."""
        intents = [one for one in history.of_kind("COMMIT_INTENT") if one.sequence < skip.sequence]
        stays = b"".join(one.value["payload"] for one in intents)
        late = {
            row
            for file, rows in self.job_folders.rows_by_file().items()
            if file.encode() not in stays
            for row in rows
        }
        if read := sorted(late & _SKIPPED_ROWS):
            self.faults.append(
                f"rows of the skipped split are published after the skip: {read[:9]}"
            )

    def loser(self, history: History) -> str:
        """How the command ended, and whether that is as it must be."""
        command = self.command
        assert command is not None
        if command.status == 4 and not self.is_done:
            own = [one for one in history.epoch_starts if "command" in one.value["attributes"]]
            epoch = own[-1].epoch if own else None
            self.faults += fenced_faults("the command", command.error, history, epoch)
            return "fenced"
        if command.status == 0 and self.is_done:
            return "done before"
        self.faults.append(f"the command ended with {command.status}: {command.output[-2000:]}")
        return "wrongly"

    def end(self) -> None:
        """Nothing of it stays."""
        for one in (self.former, self.command, self.second, self.third):
            if one is not None:
                one.end()


def run_command_round(seed: int, plan: Plan, servers: str, root: Path) -> Outcome:
    """One round.

    Raises:
        FencingError: Something is as it must not be.
    """
    chance = random.Random(f"{seed} {plan.shown}")
    one = _CommandRound(seed=seed, servers=servers, folders=Folders(root), plan=plan, chance=chance)
    one.folders.add_files(range(_FILES))
    try:
        one.prepare()
        one.begin()
        one.follow()
        took_s = one.wake()
        history, own = one.check()
        loser = one.loser(history)
        assert one.second is not None
        later = history.epoch_of(one.second.driver_id)
    except TimeoutError as error:
        one.faults.append(str(error))
        raise FencingError("\n".join(one.faults)) from error
    finally:
        one.end()
    if one.faults:
        raise FencingError("\n".join(one.faults))
    begin = len(history.lines) if later is None else history.epoch_starts[later].offset
    return Outcome(
        plan=plan,
        has_stood=True,
        loser=loser,
        loser_took_s=took_s,
        records=len(history.lines),
        late=sum(line.offset > begin for line in own),
    )


def _newest_settled(history: History) -> int:
    """The checkpoint whose rows the former driver has published: those of a later one nobody ever will."""
    open_intents = {
        one.sequence: one.value["checkpoint_id"] for one in history.of_kind("COMMIT_INTENT")
    }
    newest = -1
    for one in history.of_kind("COMMIT_OUTCOME"):
        if one.value["attributes"]["settled"] == "true":
            newest = open_intents.pop(one.value["cause"])
    if newest < 0 or not open_intents or min(open_intents.values()) <= newest:
        raise FencingError(f"settled: {newest}, open: {open_intents}; there is to be one of each")
    return newest


def _name(number: int) -> str:
    return f"{number:04}.csv"
