"""Two drivers of one job on a real broker: the first stands still at a step, the second takes over, the first goes on.

`make fencing ARGS="--rounds 200"`. After each round an independent reader of the topic says what counts, and a look at
the destination what anybody can see.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from chaos.child import Child, wait_until
from chaos.client_process import ClientOrders, run_client
from chaos.driver_process import DriverProcess, Orders
from chaos.fencing_commands import COMMAND_PLANS, run_command_round
from chaos.fencing_plans import LOSER_ENDS_S, FencingError, Outcome, Plan, fenced_faults
from chaos.job_parts import ROWS_PER_FILE, Folders, doubled
from chaos.topic_reader import History, read_history
from coordlog.log.broker.embedded import embedded_broker

__all__ = ["PLANS", "main", "run_round"]

_FILES = 8
_BEGINS_S = 60.0
_JOB_S = 90.0
_CLIENT_ENDS_S = 10.0
_ANSWERS = {"before an answer", "before refusing a client", "before refusing a stranger"}
_COPIES = 10
"""Older tasks of each subtask."""
_BATCH_S = {"before former files go": 0.15, "before sweeping": 0.03, "after the listing": 0.03}
"""Where the second driver is to be at work still when the first goes on."""

PLANS = (
    Plan(step=None),
    Plan(step="before the take-over"),
    Plan(step="after the take-over"),
    Plan(step="before former files go"),
    Plan(step="before the stage"),
    Plan(step="before append", times_max=30),
    Plan(step="between ack and release", times_max=30),
    Plan(step="between release and effects", times_max=40),
    Plan(step="before delivery", times_max=6),
    Plan(step="before a barrier", times_max=4),
    Plan(step="before publishing", times_max=2),
    Plan(step="before link", times_max=2),
    Plan(step="after link", times_max=2),
    Plan(step="after fsync", times_max=2),
    Plan(step="after unlink", times_max=2),
    Plan(step="before deleting"),
    Plan(step="before sweeping"),
    Plan(step="after the listing"),
    Plan(step="before an answer", times_max=8, is_slow=True),
    Plan(step="before refusing a client", times_max=8, is_slow=True),
    Plan(step="before refusing a task", times_max=3, is_slow=True),
    Plan(step="before refusing a stranger", times_max=4, is_slow=True),
    Plan(step="before asynchronous work", times_max=3, is_slow=True),
    Plan(step="in asynchronous work", times_max=3, is_slow=True),
    *COMMAND_PLANS,
)


@dataclass(kw_only=True)
class _Round:
    seed: int
    servers: str
    folders: Folders
    plan: Plan
    chance: random.Random
    first: DriverProcess | None = None
    second: DriverProcess | None = None
    third: DriverProcess | None = None
    clients: dict[str, Child] = field(default_factory=dict)
    """By the name of the driver that they ask."""
    has_stood: bool = False
    faults: list[str] = field(default_factory=list)

    @property
    def job_id(self) -> str:
        return f"fencing-{os.getpid()}-{self.seed}"

    @property
    def is_sweep(self) -> bool:
        """The first has finished the job by then; the second opens it again."""
        return self.plan.step in {"before sweeping", "after the listing"}

    @property
    def is_asked(self) -> bool:
        """Only a job whose coordinators are all folded is opened again."""
        return not self.is_sweep

    @property
    def _over(self) -> Path:
        """Once it is there clients ask no more."""
        return self.folders.root / "over"

    def start_asked(self, name: str, **more: object) -> DriverProcess:
        """A driver of this round's job, and its client."""
        orders = ClientOrders(
            name=f"client-of-{name}",
            root=str(self.folders.root),
            job_id=self.job_id,
            driver=name,
            over=str(self._over),
        )
        if self.is_asked:
            self.clients[name] = Child(run_client, orders)
        return self.start(name, **more)

    def start(self, name: str, **more: object) -> DriverProcess:
        """A driver of this round's job."""
        return DriverProcess(
            Orders(
                is_asked=self.is_asked,
                older_copies=_COPIES if self.plan.step == "before refusing a task" else 0,
                name=name,
                root=str(self.folders.root),
                job_id=self.job_id,
                bootstrap_servers=self.servers,
                batch_s=_BATCH_S.get(self.plan.step or "", 0.005),
                **more,  # type: ignore[arg-type]
            )
        )

    def begin(self) -> None:
        """Start the first, and have it stand still."""
        step = self.plan.step
        pause_at = None if step is None else (step, self.chance.randint(1, self.plan.times_max))
        if self.plan.is_slow:
            self.folders.slowly.touch()
        first = self.first = self.start_asked("first", pause_at=pause_at)
        if step is None:
            after_s = self.chance.uniform(0.0, 1.0)
            if self.chance.random() < 0.8:
                wait_until(lambda: first.driver_id or first.status is not None, _BEGINS_S, "begun")
                after_s /= 2
            time.sleep(after_s)
            first.signal(signal.SIGSTOP)
        wait_until(lambda: first.is_stopped or first.status is not None, _BEGINS_S, "stopped")
        self.has_stood = first.is_stopped
        self.folders.slowly.unlink(missing_ok=True)

    def follow(self) -> bool:
        """Start the second and let it work; whether it has ended by now."""
        if self.is_sweep:
            self.folders.add_files(range(_FILES, 2 * _FILES))
        second = self.second = self.start_asked("second", take_over=True, again=self.is_sweep)
        how_far = self.chance.choice(("taken over", "at work", "to its end"))
        if self.is_sweep:
            # The first is to go on while something is staged that it does not know.
            how_far = "staging"
        if self.plan.step == "before former files go":
            how_far = "taken over"

        def is_far_enough() -> bool:
            if second.status is not None:
                return True
            driver_id = second.driver_id
            if how_far == "to its end" or driver_id is None:
                return False
            if how_far == "staging":
                return bool(self.folders.staged(driver_id))
            return how_far == "taken over" or len(second.released) > 30

        wait_until(is_far_enough, _JOB_S, f"the second is {how_far}")
        return second.status is not None

    def wake(self, *, is_over: bool) -> float:
        """Let the first go on, and wait for both; how long the first has taken to end."""
        assert self.first is not None
        assert self.second is not None
        seen = self.folders.published() if is_over else None
        if self.has_stood and self.plan.step in _ANSWERS and not self.is_owed_answer():
            self.faults.append("the first driver stands before an answer for which nobody waits")
        began = time.monotonic()
        self.first.signal(signal.SIGCONT)
        if self.first.wait(LOSER_ENDS_S) is None:
            self.faults.append(f"the first driver has not ended {LOSER_ENDS_S:g} s after SIGCONT")
        took_s = time.monotonic() - began
        if self.plan.step == "before former files go" and not is_over:
            self.ask_third()
        if self.second.wait(_JOB_S) is None:
            self.faults.append(f"the second driver has not ended within {_JOB_S:g} s")
        elif self.second.status != 0:
            said = self.second.error or self.second.output[-2000:]
            self.faults.append(f"the second driver ended with {self.second.status}: {said}")
        if seen is not None and self.folders.published() != seen:
            self.faults.append("what a reader sees has changed after the second had finished")
        self._over.touch()
        for name, client in self.clients.items():
            if client.wait(_CLIENT_ENDS_S) != 0:
                self.faults.append(
                    f"the client of the {name} driver has not ended well {_CLIENT_ENDS_S:g} s after "
                    f"the drivers: {client.output[-2000:]}"
                )
        return took_s

    def is_owed_answer(self) -> bool:
        """Whether the first driver's client waits for what it has asked."""
        told = [one["told"] for one in self.clients["first"].notes if "told" in one]
        return bool(told) and told[-1]["how"] == "open"

    def ask_third(self) -> None:
        """One more, without a take-over: refused as long as the second lives, whatever the first did late."""
        assert self.second is not None
        third = self.third = self.start("third")
        status = third.wait(_JOB_S)
        said = third.error
        if status == 3 and f"({self.second.driver_id}, epoch " in said and ", at ws://" in said:
            return
        if self.second.status is None or status != 0:
            self.faults.append(f"a third driver ended with {status}: {third.error}")

    def check(self) -> History:
        """What the topic and the destination say."""
        history = read_history(self.servers, f"{self.job_id}.log")
        assert self.first is not None
        assert self.second is not None
        self.faults += history.faults()
        for one in (self.first, self.second):
            name = one.orders.name
            self.faults += history.faults_of(name, one.driver_id, one.notes)
            self.faults += history.faults_of_order(name, one.driver_id, one.notes)
            if name in self.clients:
                self.faults += history.faults_of_client(one.driver_id, self.clients[name].notes)
        driver_ids = {one.orders.name: one.driver_id or "" for one in (self.first, self.second)}
        self.faults += history.faults_of_work(self.folders.work_done(), driver_ids)
        rows, count = self.folders.rows(), _FILES * ROWS_PER_FILE * (2 if self.is_sweep else 1)
        missing = sorted(set(range(count)) - set(rows))
        if missing or rows != list(range(count)):
            self.faults.append(f"rows missing: {missing[:9]}, doubled: {doubled(rows)[:9]}")
        finished = len(history.of_kind("JOB_FINISHED"))
        if finished != (2 if self.is_sweep else 1):
            self.faults.append(f"{finished} records say that the job has finished")
        return history

    def loser(self, history: History) -> str:
        """How the first driver ended, and whether that is as it must be."""
        first = self.first
        assert first is not None
        epoch = history.epoch_of(first.driver_id)
        ended = [one.epoch for one in history.of_kind("JOB_FINISHED")]
        if first.status == 4:
            self.faults += fenced_faults("the first driver", first.error, history, epoch)
            return "fenced"
        # It may also have taken over when the other had finished, and found nothing to do.
        if first.status == 0 and (epoch is None or any(one <= epoch for one in ended)):
            return "finished before"
        if first.status == 3 and epoch is None:
            return "refused"
        self.faults.append(
            f"the first driver, epoch {epoch}, ended with {first.status}: "
            f"{first.error or first.output[-2000:]}"
        )
        return "wrongly"

    def end(self) -> None:
        """Nothing of it stays."""
        for one in (self.first, self.second, self.third, *self.clients.values()):
            if one is not None:
                one.end()


def run_round(seed: int, plan: Plan, servers: str, root: Path) -> Outcome:
    """One round.

    Raises:
        FencingError: Something is as it must not be.
    """
    if plan.command is not None:
        return run_command_round(seed, plan, servers, root)
    chance = random.Random(f"{seed} {plan.step}")
    one = _Round(seed=seed, servers=servers, folders=Folders(root), plan=plan, chance=chance)
    one.folders.add_files(range(_FILES))
    if plan.step == "before deleting" or chance.random() < 0.3:
        one.folders.fail_once.touch()
    try:
        one.begin()
        is_over = one.follow()
        took_s = one.wake(is_over=is_over)
        history = one.check()
        loser = one.loser(history)
        assert one.first is not None
        assert one.second is not None
        later = history.epoch_of(one.second.driver_id)
        begin = len(history.lines) if later is None else history.epoch_starts[later].offset
        late = [line for line in history.lines[begin:] if line.driver_id == one.first.driver_id]
    except TimeoutError as error:
        one.faults.append(str(error))
        raise FencingError("\n".join(one.faults)) from error
    finally:
        one.end()
    if one.faults:
        raise FencingError("\n".join(one.faults))
    return Outcome(
        plan=plan,
        has_stood=one.has_stood,
        loser=loser,
        loser_took_s=took_s,
        records=len(history.lines),
        late=len(late),
    )


def main() -> int:
    """Run rounds; 0 where all was as it must be."""
    parser = argparse.ArgumentParser(prog="make fencing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="how many (20)")
    parser.add_argument("--seed", type=int, metavar="N", help="of the first; the others follow")
    given = parser.parse_args()
    first = random.SystemRandom().randrange(10**9) if given.seed is None else given.seed
    print(f"rounds {first} to {first + given.rounds - 1}", flush=True)
    outcomes: list[Outcome] = []
    began = time.monotonic()
    with embedded_broker() as broker:
        for seed in range(first, first + given.rounds):
            outcome = told_round(seed, broker.bootstrap_servers)
            if outcome is None:
                return 1
            outcomes.append(outcome)
            if len(outcomes) % 20 == 0:
                print(f"{len(outcomes)} rounds, {time.monotonic() - began:.0f} s", flush=True)
    for line in report(outcomes, time.monotonic() - began):
        print(line)
    return 0


def told_round(seed: int, servers: str) -> Outcome | None:
    """One round; where it fails, its faults, the command that repeats it, and where its files are are printed."""
    plan = PLANS[seed % len(PLANS)]
    root = Path(tempfile.mkdtemp(prefix="coordlog-fencing-"))
    try:
        outcome = run_round(seed, plan, servers, root)
    except FencingError as error:
        print(f"round {seed}, the first driver stopped {plan.shown!r}:\n{error}")
        print(f'to repeat: make fencing ARGS="--rounds 1 --seed {seed}"; its files: {root}')
        return None
    shutil.rmtree(root)
    return outcome


def report(outcomes: list[Outcome], seconds: float) -> list[str]:
    """What came of all rounds, a line for each step."""
    lines = [f"{'the first stood still':<32} rounds  fenced  late records  slowest end"]
    for plan in PLANS:
        of = [one for one in outcomes if one.plan == plan]
        if of:
            fenced = sum(one.loser == "fenced" for one in of)
            late, slowest = sum(one.late for one in of), max(one.loser_took_s for one in of)
            lines.append(f"{plan.shown:<32} {len(of):>6} {fenced:>7} {late:>13} {slowest:>9.1f} s")
    ended = collections.Counter(one.loser for one in outcomes)
    others = ", ".join(f"{n} {how}" for how, n in sorted(ended.items()))
    records = sum(one.records for one in outcomes)
    lines.append(
        f"{len(outcomes)} rounds in {seconds:.0f} s, {records:,} records: {others}; "
        "no record of a loser counts, no row is lost or doubled, nothing that is seen was changed"
    )
    return lines


if __name__ == "__main__":
    sys.exit(main())
