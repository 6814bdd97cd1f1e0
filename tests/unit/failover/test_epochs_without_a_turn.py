"""An epoch that died before its first turn has written nothing: starts are compared with the one before (clause E9)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordlog.api.chain import Chain
from coordlog.errors import RestoreError
from coordlog.log.memory import MemoryLog
from coordlog.projections.inspection.verify import verify
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import HANDLED, NotingProvider, Up, chain_of
from histories.one_log import savepoint_command

pytestmark = [pytest.mark.clause("E8"), pytest.mark.clause("E9")]


def of_version(version: int, *restores: int) -> Chain:
    """A chain whose source has an event-sourced coordinator."""
    chain = chain_of(NotingProvider("source", projection=HANDLED))
    return replace(chain, source=replace(chain.source, version=version, restores=restores))


def start(log: MemoryLog, chain: Chain, **more: Any) -> HandDrivenJob:  # noqa: ANN401, of options
    options = RuntimeOptions(snapshot_every=3)
    restore = "resume" if log.high_watermark() else None
    return HandDrivenJob(chain, log=log, options=options, restore=restore, **more)


def died(log: MemoryLog, chain: Chain, **more: Any) -> None:  # noqa: ANN401, of options
    """A driver of this chain appends its first record and dies."""
    start(log, chain, is_held=True, **more).crash()


def worked() -> MemoryLog:
    """The log of version 1, with a fold of three events and checkpoint 1, and of a driver of version 2 that died."""
    log = MemoryLog("job")
    job = start(log, of_version(1))
    attempt = job.register(0)
    attempt.send("source", Up(n=1))
    job.trigger()
    attempt.ack_checkpoint(1)
    for n in (2, 3):
        attempt.send("source", Up(n=n))
    job.crash()
    died(log, of_version(2, 1))
    return log


def commanded() -> MemoryLog:
    """The log of `worked`, with a turn of a command at its end."""
    log = worked()
    assert savepoint_command(log, "kept", "--take-over").exit_code == 0
    return log


@pytest.mark.parametrize("made", [worked, commanded])
def test_the_version_that_wrote_the_fold_must_be_read(made: Callable[[], MemoryLog]) -> None:
    log = made()
    end = log.high_watermark()
    with pytest.raises(RestoreError, match="version of operator 'source' is 1 in the log and 3"):
        start(log, of_version(3, 2))

    assert log.high_watermark() == end
    for chain in (of_version(3, 1), of_version(1)):
        log = made()
        job = start(log, chain)
        assert job.runtime.state.projections["source"] == (1, 2, 3)
        job.crash()
        assert verify(log.records).faults == []


def test_of_several_that_died_none_has_written_anything() -> None:
    log = worked()
    died(log, of_version(3, 1))
    died(log, of_version(2, 1, 3))
    with pytest.raises(RestoreError, match="version of operator 'source' is 1 in the log and 3"):
        start(log, of_version(3, 2))
    start(log, of_version(1)).crash()


def test_an_operator_that_it_lacked_is_away_as_it_was_before() -> None:
    log = worked()
    other = chain_of(NotingProvider("other", projection=HANDLED))
    died(log, other, allow_non_restored_state=("source",))
    job = start(log, other, allow_non_restored_state=("source",))
    (away,) = json.loads(job.runtime.state.away["source"])
    assert away["version"] == 1
    job.crash()
    with pytest.raises(RestoreError, match="is 1 in the log and 3"):
        start(log, of_version(3, 2), allow_non_restored_state=("other",))


def test_any_version_follows_one_that_has_never_worked() -> None:
    log = MemoryLog("job")
    died(log, of_version(2))
    job = start(log, of_version(1))
    job.register(0).send("source", Up(n=1))
    assert job.runtime.state.projections["source"] == (1,)
