"""Jobs on real brokers, which break: `make chaos ARGS="--minutes 30"`.

In each round one fault strikes a running job; the job goes on, or a driver ends with one clear error and is started
again. Then an independent reader of the topic says what counts, and a look at the destination what anybody can see.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.faults import OF_ONE_BROKER, OF_THREE_BROKERS, ChaosError, Fault, Scene, orders_of
from chaos.ground import Ground, single_broker, three_brokers
from chaos.job_parts import ROWS_PER_FILE, Folders, doubled
from chaos.topic_reader import read_history

__all__ = ["Report", "faults_on", "main", "repeating", "run_round"]

_FILES = 24
_GOES_ON_S = 60.0
"""After a fault is mended something must be released, or the driver have ended, within this."""
_JOB_S = 240.0
_DRIVERS_MAX = 8
_LOOK_S = 0.05


@dataclass(kw_only=True)
class Report:
    """What came of the rounds."""

    rounds: collections.Counter[str] = field(default_factory=collections.Counter)
    """By fault."""
    records: int = 0
    void: int = 0
    drivers: int = 0
    rows: int = 0
    slowest_s: float = 0.0
    """From the fault's end to the next released record."""
    errors: collections.Counter[str] = field(default_factory=collections.Counter)
    """By which drivers have ended, without what differs from round to round."""
    faults: list[str] = field(default_factory=list)
    """What must not be."""
    lost: int = 0
    twice: int = 0
    cut_bytes: int = 0
    """Of jobs' logs, that were not on a disk when a machine crashed."""

    def lines(self, seconds: float) -> list[str]:
        """As text."""
        lines = [f"{name:<48} {count:>4} rounds" for name, count in sorted(self.rounds.items())]
        lines += [
            f"{count:>4} drivers ended: {error}" for error, count in self.errors.most_common()
        ]
        lines.append(
            f"{sum(self.rounds.values())} rounds in {seconds:.0f} s; {self.records:,} records "
            f"appended, {self.void:,} of them void; {self.drivers} drivers; {self.rows:,} rows; "
            f"{self.slowest_s:.1f} s at most until a job went on; "
            f"{self.cut_bytes:,} bytes cut off by crashes; lost {self.lost}, doubled {self.twice}"
        )
        return lines


def run_round(seed: int, fault: Fault, ground: Ground, root: Path, report: Report) -> None:
    """One round.

    Raises:
        ChaosError: Something is as it must not be.
        TimeoutError: Something does not come.
    """
    chance = random.Random(f"{seed} {fault.name}")
    folders = Folders(root)
    folders.add_files(range(_FILES))
    job_id = f"chaos-{os.getpid()}-{seed}"
    orders = orders_of(job_id, ground.servers, root, has_snapshots=fault.has_snapshots)
    scene = Scene(ground=ground, folders=folders, orders=orders, chance=chance)
    try:
        scene.start()
        scene.work(chance.randint(10, 120))
        fault.act(scene)
        ground.heal()
        if not scene.is_over:
            _finish(scene, report)
            _check(scene, report)
    finally:
        for one in scene.drivers:
            one.end()
        ground.heal()
    report.rounds[_shown(fault, ground)] += 1
    report.cut_bytes += scene.cut_bytes
    report.drivers += len(scene.drivers)
    for error in scene.errors:
        report.errors[_alike(error, scene)] += 1


def _shown(fault: Fault, ground: Ground) -> str:
    brokers = len(ground.cluster.numbers)
    return fault.name if brokers == 1 else f"of {brokers} brokers: {fault.name}"


def _finish(scene: Scene, report: Report) -> None:
    """Until the job has finished; a driver that ends with one clear error is started again."""
    before, healed, went_on = scene.released, time.monotonic(), False
    deadline = healed + _JOB_S
    while True:
        driver = scene.driver
        if driver.has_ended and driver.status == 0:
            return
        if driver.has_ended:
            if driver.status != -9:  # the fault itself has killed it
                scene.ended_with({1, 5})
            if len(scene.drivers) >= _DRIVERS_MAX:
                raise ChaosError(f"{_DRIVERS_MAX} drivers have ended: {scene.errors}")
            scene.start()
        if not went_on and scene.released > before:
            went_on = True
            report.slowest_s = max(report.slowest_s, time.monotonic() - healed)
        if not went_on and time.monotonic() - healed > _GOES_ON_S:
            raise ChaosError(f"nothing is released for {_GOES_ON_S:g} s, and no driver has ended")
        if time.monotonic() > deadline:
            raise ChaosError(f"the job has not finished within {_JOB_S:g} s")
        time.sleep(_LOOK_S)


def _check(scene: Scene, report: Report) -> None:
    history = read_history(scene.ground.servers, scene.topic)
    faults = history.faults()
    for one in scene.drivers:
        who = (one.orders.name, one.driver_id, one.notes)
        faults += history.faults_of(*who) + history.faults_of_order(*who)
    if len(history.of_kind("JOB_FINISHED")) != 1:
        faults.append("not one record says that the job has finished")
    rows, wanted = scene.folders.rows(), range(_FILES * ROWS_PER_FILE)
    missing, twice = sorted(set(wanted) - set(rows)), doubled(rows)
    if missing or twice:
        faults.append(f"rows LOST: {missing[:9]}, DOUBLED: {twice[:9]}")
    report.records += len(history.lines)
    report.void += history.void_count
    report.rows += len(rows)
    report.lost += len(missing) + sum("LOST: driver" in one for one in faults)
    report.twice += len(twice) + sum("DOUBLED: driver" in one for one in faults)
    if faults:
        raise ChaosError("\n".join(faults))


def _alike(error: str, scene: Scene) -> str:
    """The first words, which tell one kind from another."""
    return error.replace(scene.orders.job_id, "JOB").removeprefix("error: ")[:100]


def faults_on(ground: Ground, faults: Sequence[Fault]) -> list[Fault]:
    """Those that can be tried here."""
    return [one for one in faults if not one.needs_disk or ground.disks]


def told_round(seed: int, fault: Fault, ground: Ground, report: Report) -> bool:
    """One round; where it fails, what is wrong, the command that repeats it, and where its files are are printed."""
    root = Path(tempfile.mkdtemp(prefix="coordlog-chaos-round-"))
    try:
        run_round(seed, fault, ground, root, report)
    except (ChaosError, TimeoutError) as error:
        report.faults.append(str(error))
        print(f"round {seed}, {_shown(fault, ground)}: {error}")
        repeat = repeating(seed, fault, ground)
        print(f"to repeat: {repeat}; its files: {root}", flush=True)
        return False
    shutil.rmtree(root)
    return True


def repeating(seed: int, fault: Fault, ground: Ground) -> str:
    """The command that runs a round again."""
    brokers = len(ground.cluster.numbers)
    return (
        f"make chaos ARGS='--minutes 0 --brokers {brokers} --seed {seed} --only \"{fault.name}\"'"
    )


def main() -> int:
    """Run rounds; 0 where all was as it must be."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (5); 0: one round")
    parser.add_argument("--seed", type=int, metavar="N", help="of the first; the others follow")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults with TEXT in their name")
    parser.add_argument("--brokers", type=int, choices=(1, 3), help="on so many only")
    parser.add_argument("--keep-going", action="store_true", help="after a round that failed")
    given = parser.parse_args()
    first = random.SystemRandom().randrange(10**9) if given.seed is None else given.seed
    kinds = [
        (make, chosen)
        for count, make, faults in (
            (1, single_broker, OF_ONE_BROKER),
            (3, three_brokers, OF_THREE_BROKERS),
        )
        if given.brokers in (None, count)
        and (chosen := [one for one in faults if given.only in one.name])
    ]
    report, began, seed = Report(), time.monotonic(), first
    for number, (make, faults) in enumerate(kinds):
        until = began + given.minutes * 60 * (number + 1) / len(kinds)
        with make() as ground:
            seed = _run(ground, faults, seed, until, report, keeps_going=given.keep_going)
        if report.faults and not given.keep_going:
            break
    print(f"seeds {first} to {seed - 1}")
    for line in report.lines(time.monotonic() - began):
        print(line)
    return 1 if report.faults else 0


def _run(
    ground: Ground,
    faults: Sequence[Fault],
    seed: int,
    until: float,
    report: Report,
    *,
    keeps_going: bool,
) -> int:
    """Rounds on one ground until the time is over, at least one; the next seed."""
    left_out = [one.name for one in faults if one not in faults_on(ground, faults)]
    if left_out:
        print(f"not tried here: {', '.join(left_out)}: {ground.why_no_disk}")
    faults = faults_on(ground, faults)
    order: list[Fault] = []
    while faults:
        if not order:
            order = random.Random(seed).sample(faults, len(faults))
        fault, began = order.pop(), time.monotonic()
        is_well = told_round(seed, fault, ground, report)
        print(f"  {seed} {_shown(fault, ground)}: {time.monotonic() - began:.1f} s", flush=True)
        seed += 1
        if time.monotonic() > until or (not is_well and not keeps_going):
            break
    return seed


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
