"""An operator that was away comes back to what the fold has kept of it, as it was itself (clauses E8, E9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from coordlog.api.chain import Chain, OperatorSpec
from coordlog.errors import RestoreError
from coordlog.projections.inspection.verify import verify
from coordlog.projections.job.state import AWAY, Phase
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import TakeSavepoint
from coordlog.testing.driven_job import HandDrivenJob
from fakes import split_fakes
from fakes.kernel_fakes import (
    HANDLED,
    FakeSink,
    IdleOperator,
    NotingProvider,
    Up,
    chain_of,
    prefix_of,
)

pytestmark = [pytest.mark.clause("E8"), pytest.mark.clause("E9")]

CSV: Final = {"format": "csv"}


def reading(source: str = "source", **more: Any) -> Chain:  # noqa: ANN401, of fields
    """A chain with this source, which reads CSV files of `/in/a`, and the operator `sink`."""
    ids = (source, "sink")
    chain = chain_of(*(NotingProvider(one, projection=HANDLED) for one in ids), keeps_state=False)
    described = {"options": CSV, "location": "/in/a", **more}
    return replace(chain, source=replace(chain.source, **described))


def listing(**more: Any) -> Chain:  # noqa: ANN401, of fields
    """A source of two splits."""
    chain = split_fakes.chain_of(split_fakes.pull_of("a-1", "a-2"))
    return replace(chain, source=replace(chain.source, location="/in/a", options=CSV, **more))


def next_of(old: HandDrivenJob, chain: Chain, **more: Any) -> HandDrivenJob:  # noqa: ANN401, of options
    """The next driver, which may drop any state."""
    old.crash()
    allowed = ("source", "other", "sink")
    is_batch = old.runtime.state.is_batch
    return HandDrivenJob(
        chain, log=old.log, is_batch=is_batch, allow_non_restored_state=allowed, **more
    )


def refused(old: HandDrivenJob, chain: Chain, **more: Any) -> str:  # noqa: ANN401, of options
    before = old.log.high_watermark()
    with pytest.raises(RestoreError) as raised:
        next_of(old, chain, **more)
    assert old.log.high_watermark() == before
    return str(raised.value)


def worked(chain: Chain, *, is_batch: bool = False) -> HandDrivenJob:
    """A job whose source has handled an event."""
    job = HandDrivenJob(chain, is_batch=is_batch, options=RuntimeOptions(snapshot_every=3))
    job.register(0).send(chain.source.operator_id, Up(n=1))
    return job


def resumed(*, is_batch: bool) -> tuple[HandDrivenJob, Mapping[str, Any]]:
    """A job that runs with another source, and the options with which the first one gets its fold."""
    job = worked(reading(), is_batch=is_batch)
    for _ in range(2):  # it is away for two epochs
        job = next_of(job, reading("other"), restore="resume")
    return job, {"restore": "resume"}


def ended(*, is_batch: bool) -> tuple[HandDrivenJob, Mapping[str, Any]]:
    """A job that has ended with another source."""
    job, _ = resumed(is_batch=is_batch)
    job.register(0).complete()
    job.advance(5)
    return job, {"again": True}


CHANGES: Final = [
    (
        {"version": 2},
        "version of operator 'source' in the last epoch with it is 1 in the log and 2",
    ),
    (
        {"options": {"format": "json"}},
        "option format of operator 'source' is csv in the log and json",
    ),
    ({"location": "/in/b"}, "the source is /in/a in the log and /in/b here"),
]


@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
@pytest.mark.parametrize("made", [resumed, ended])
@pytest.mark.parametrize(("changed", "says"), CHANGES, ids=["version", "format", "location"])
def test_it_is_compared_with_its_own_last_epoch(
    made: Callable[..., tuple[HandDrivenJob, Mapping[str, Any]]],
    changed: dict[str, Any],
    says: str,
    *,
    is_batch: bool,
) -> None:
    job, options = made(is_batch=is_batch)

    assert says in refused(job, reading(**changed), **options)
    back = next_of(job, reading(), **options)
    assert back.runtime.state.projections["source"] == (1,)
    assert not back.runtime.state.away.keys() - {"other"}


def test_a_version_that_reads_its_own_is_accepted() -> None:
    job, options = resumed(is_batch=False)
    back = next_of(job, reading(version=2, restores=(1,)), **options)

    third = reading(version=3, restores=(2,))
    assert next_of(back, third, **options).mode == "resume", "it is at work as version 2"


@pytest.mark.parametrize(
    ("changed", "says"),
    [CHANGES[1], CHANGES[2]],
    ids=["format", "location"],
)
def test_a_listing_outlives_a_rollback_and_is_compared(changed: dict[str, Any], says: str) -> None:
    """The checkpoint has nothing of the source; the splits that it has listed are read all the same."""
    first = HandDrivenJob(listing())
    first.register(0)
    other = next_of(first, reading("other"))
    split_fakes.checkpoint(other, other.register(0))

    assert says in refused(other, replace(listing(), source=replace(listing().source, **changed)))
    back = next_of(other, listing())
    assert back.mode == "rollback"
    assert split_fakes.places(back) == {"a-1": "enumerator", "a-2": "enumerator"}


def gone_at_a_checkpoint() -> HandDrivenJob:
    """A job whose source is away, and was so at the last checkpoint."""
    other, _ = resumed(is_batch=False)
    split_fakes.checkpoint(other, other.register(0))
    return other


def test_a_rollback_without_its_state_lets_it_begin_anew() -> None:
    changed = reading(version=2, options={"format": "json"}, location="/in/b")
    back = next_of(gone_at_a_checkpoint(), changed)

    assert back.mode == "rollback"
    assert back.runtime.state.projections["source"] == ()
    again = next_of(back, changed, restore="resume")
    assert again.mode == "resume", "it is at work since, as it is now"


def test_an_epoch_that_died_before_its_rollback_has_not_replaced_it() -> None:
    """The state is still that of the first version."""
    changed = reading(version=2)
    back = next_of(gone_at_a_checkpoint(), changed)
    records = back.log.read(0, back.log.high_watermark())
    starts = [one.offset for one in records if one.header and one.header.is_epoch_started]
    back.log = prefix_of(back.log, starts[-1] + 1)

    assert "in the last epoch with it is 1" in refused(back, changed, restore="resume")
    assert next_of(back, changed).mode == "rollback"


def test_one_that_had_done_nothing_is_not_compared() -> None:
    """It has left its initial state: an epoch that rolled back has undone its work, or it never had an event."""
    options = {"restore": "resume"}
    undone = next_of(worked(reading()), reading("other"))
    idle = HandDrivenJob(reading())
    idle = next_of(idle, reading("other"), **options)
    for job in (undone, idle):
        assert next_of(job, reading(version=2), **options).mode == "resume"


def test_it_may_change_its_place_as_any_other() -> None:
    """An operator that is only moved, or has no coordinator, has left nothing to compare."""
    job, options = resumed(is_batch=False)
    chain = reading()
    plain = replace(chain.operators[0], operator_id="plain", coordinator=None)
    job = next_of(job, replace(reading("other"), operators=[plain, *chain.operators]), **options)
    job = next_of(job, reading("other"), **options)

    second = replace(plain, version=2)
    job = next_of(job, replace(chain, operators=[second, *chain.operators]), **options)
    assert job.mode == "resume"


def test_what_is_known_of_it_is_bounded_by_the_operators() -> None:
    job, options = resumed(is_batch=False)
    for source in ("source", "other", "source", "other"):
        job = next_of(job, reading(source), **options)
    assert {name for name in job.runtime.state.launch if name.startswith(AWAY)} == {f"{AWAY}source"}


def test_a_savepoint_with_its_state_is_read_as_before() -> None:
    job = worked(reading())
    split_fakes.checkpoint(job, *job.attempts.values())
    assert job.ask("", TakeSavepoint(name="first")).answer().sequence > 0
    other = next_of(job, reading("other"))
    split_fakes.checkpoint(other, other.register(0))

    said = refused(other, reading(version=2), from_checkpoint=1)
    assert "the version of operator 'source' in checkpoint 1 is 1 in the log and 2 here" in said
    back = next_of(other, reading(), from_checkpoint=1)
    assert back.runtime.state.projections["source"] == (1,)


def opened_with_it_and_left(*, is_batch: bool) -> HandDrivenJob:
    """A job whose source came back when the job was opened again, and was removed after that."""
    job, options = ended(is_batch=is_batch)
    back = next_of(job, reading(), **options)
    assert back.runtime.state.projections["source"] == (1,)
    return next_of(back, reading("other"), restore="rollback")


@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"version": 2}, "the version of operator 'source' "),
        ({"options": {"format": "json"}}, "option format of operator 'source' is csv"),
        ({"location": "/in/b"}, "the source is /in/a in the log and /in/b here"),
    ],
    ids=["version", "format", "location"],
)
def test_an_opening_holds_its_state_as_its_epoch_wrote_it(
    changed: dict[str, Any], says: str, *, is_batch: bool
) -> None:
    job = opened_with_it_and_left(is_batch=is_batch)

    assert says in refused(job, reading(**changed), restore="rollback")
    back = next_of(job, reading(), restore="rollback")
    assert (back.mode, back.runtime.state.projections["source"]) == ("rollback", (1,))


@pytest.mark.parametrize("restore", ["rollback", "resume"])
@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_an_opening_is_read_by_its_own_version_alone(*, is_batch: bool, restore: str) -> None:
    """Later epochs have written nothing that a failover to the opening would keep."""
    job = worked(reading(), is_batch=is_batch)
    (attempt,) = job.attempts.values()
    attempt.complete()
    job.advance(5)
    second, third = reading(version=2, restores=(1,)), reading(version=3, restores=(2,))
    job = next_of(next_of(job, reading(), again=True), second, restore="resume")

    said = refused(job, third, restore=restore)
    assert "'source' in " in said
    assert "rolls back" not in said, "its state is there"
    job = next_of(job, second, restore=restore)
    assert job.runtime.state.projections["source"] == (1,)
    job.register(0).complete()
    job.advance(5)
    again = next_of(job, third, again=True) if is_batch else next_of(job, second, again=True)
    assert again.mode == "again"


@pytest.mark.parametrize("restore", ["rollback", "resume"])
@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_an_opening_at_which_it_was_away_is_read_by_its_writer(
    *, is_batch: bool, restore: str
) -> None:
    """It has come back since, and a failover goes back to the opening."""
    job = worked(reading(), is_batch=is_batch)
    (attempt,) = job.attempts.values()
    attempt.complete()
    job.advance(5)
    second = reading(version=2, restores=(1,))
    job = next_of(next_of(job, reading("other"), again=True), second, restore="resume")

    for _ in range(2):
        said = refused(job, reading(version=2), restore=restore)
        assert "the version of operator 'source' in " in said
        job = next_of(job, second, restore=restore)
        assert job.runtime.state.projections["source"] == (1,)


def test_an_opening_at_which_it_was_away_without_state_is_no_reason() -> None:
    job = HandDrivenJob(reading(), is_batch=True)
    job.register(0).complete()
    job.advance(5)
    job = next_of(next_of(job, reading("other"), again=True), reading(version=2), restore="resume")

    assert next_of(job, reading(version=2), restore="rollback").mode == "rollback"


def test_an_opening_without_it_keeps_its_state_in_a_batch() -> None:
    job, options = ended(is_batch=True)
    job = next_of(job, reading("other"), **options)

    said = refused(job, reading(version=2), restore="rollback")
    assert "the version of operator 'source' in the last epoch with it is 1" in said
    assert next_of(job, reading(), restore="rollback").runtime.state.projections["source"] == (1,)


@pytest.mark.clause("I3")
@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_commits_left_open_by_a_removal_are_no_fault(*, is_batch: bool) -> None:
    """The job has finished without the operator, as it was allowed to by name."""
    sink = FakeSink()
    both = chain_of(
        NotingProvider(projection=HANDLED), NotingProvider("sink", sink=sink, projection=HANDLED)
    )
    without = replace(both, operators=[])
    idle = NotingProvider("sink", sink=sink, projection=HANDLED, is_committing=False)
    idle.on["complete"] = lambda coordinator, _: coordinator.context.schedule(99, lambda: None)
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED), idle), is_batch=is_batch)
    attempt = job.register(0)
    if is_batch:
        attempt.complete(committables=[("sink", b"rows")])
    else:
        job.trigger()
        attempt.ack_checkpoint(1, committables=[("sink", b"rows")])
    gone = next_of(job, without)
    if not is_batch:
        gone.register(0).complete()
    gone.advance(5)
    assert gone.runtime.state.phase is Phase.FINISHED

    back = next_of(gone, both)
    assert back.mode == "finished"
    assert verify(back.log.read(0, back.log.high_watermark())).faults == []
    again = next_of(back, both, again=True)
    again.register(0).complete()
    again.advance(5)
    assert again.runtime.state.phase is Phase.FINISHED
    assert sink.settled == ([] if is_batch else [("rows",)]), "another batch has its own end"
    assert verify(again.log.read(0, again.log.high_watermark())).faults == []


@pytest.mark.parametrize("is_batch", [False, True], ids=["streaming", "batch"])
def test_an_opening_has_no_state_of_an_operator_without_coordinator(*, is_batch: bool) -> None:
    def with_operator(version: int, *restores: int) -> Chain:
        added = OperatorSpec(
            operator_id="added", create_operator=IdleOperator, version=version, restores=restores
        )
        chain = reading()
        return replace(chain, operators=(*chain.operators, added))

    job = worked(reading(), is_batch=is_batch)
    job.trigger()
    (attempt,) = job.attempts.values()
    attempt.complete()
    job.advance(5)
    job = next_of(job, with_operator(1), again=True)
    job = next_of(job, with_operator(2, 1), restore="rollback")
    assert next_of(job, with_operator(3, 2), restore="rollback").mode == "rollback"
