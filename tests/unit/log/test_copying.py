"""How a history goes to another log: its first record alone, and what is said where a driver was there before."""

from __future__ import annotations

import pytest

from coordlog.limits import GROUP_RECORDS_MAX
from coordlog.log.copy import groups, taken_by
from coordlog.log.memory import MemoryLog
from histories.log_records import epoch_started, plain

pytestmark = pytest.mark.clause("K2")


def test_the_first_record_goes_alone_and_the_others_in_groups() -> None:
    records = [epoch_started(0, "a"), *(plain("x", 0, n) for n in range(GROUP_RECORDS_MAX + 2))]

    made = list(groups(iter(records)))

    assert [len(one) for one in made] == [1, GROUP_RECORDS_MAX, 2]
    assert [one for group in made for one in group] == records
    assert list(groups([])) == []


def test_who_is_in_force_is_told_by_what_counts() -> None:
    log = MemoryLog("new")
    log.store(plain("void", 0, 0))
    assert taken_by(log, "job", epoch_started(0, "copied")) is None
    log.store(epoch_started(0, "first"), epoch_started(0, "late"), epoch_started(1, "second"))
    log.store(epoch_started(3, "never"))

    taken = taken_by(log, "job", epoch_started(0, "copied"))

    assert taken is not None
    assert (taken.epoch, taken.epoch_in_force, taken.driver_in_force) == (0, 1, "second")


def test_the_copy_s_own_epochs_are_nobody_else_s() -> None:
    first, log = epoch_started(0, "copied"), MemoryLog("new")
    log.store(first, epoch_started(0, "late"), epoch_started(1, "copied too"))

    assert taken_by(log, "job", first) is None


def test_one_that_cannot_be_read_is_told_by_its_place() -> None:
    log = MemoryLog("new")
    log.store(epoch_started(0, "first")._replace(value=b"of another version"))

    taken = taken_by(log, "job", epoch_started(0, "copied"))

    assert taken is not None
    assert taken.driver_in_force == "(of another version, at offset 0)"
