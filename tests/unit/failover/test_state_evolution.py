"""States of projections that an earlier schema has encoded: read with defaults, or refused by the field's name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from click.testing import CliRunner
from immutables import Map

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.api.coordinator import (
    CoordinatorContext,
    CoordinatorProvider,
    EventSourcedCoordinator,
)
from coordlog.api.operator import Operator, Poll, PollStatus, SourceReader
from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.errors import RestoreError
from coordlog.log.memory import MemoryLog
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import SnapshotWanted
from coordlog.schemas.payload import Payload, event
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.source_types import EnumeratorState
from coordlog.testing.driven_job import HandDrivenJob
from histories.one_log import OneLog


def state(named: str = "Counted", **fields: Any) -> type[Any]:  # noqa: ANN401, a type and perhaps a default
    """A dataclass with these fields."""
    return make_dataclass(
        named,
        [
            (name, *given) if isinstance(given, tuple) else (name, given)
            for name, given in fields.items()
        ],
        frozen=True,
    )


COUNT = (int, field(default=0))
FIRST = state(count=COUNT)
LATER = state(count=COUNT, last=(int, field(default=7)))


class Pair(NamedTuple):
    """Named tuples have defaults too."""

    left: int
    right: str = "none"


def read(earlier: Any, now: Any, value: Any) -> Any:  # noqa: ANN401, any types of states
    before = DerivedCodec(earlier)
    return DerivedCodec(now).reader_of(before.schema_json)(before.encode(value))


def test_an_added_field_has_its_default_and_one_that_is_gone_is_left_out() -> None:
    assert read(FIRST, LATER, FIRST(count=3)) == LATER(count=3, last=7)
    assert read(LATER, FIRST, LATER(count=3, last=9)) == FIRST(count=3)
    many = state(names=(tuple[str, ...], field(default_factory=tuple)), count=COUNT)
    assert read(FIRST, many, FIRST(count=3)) == many(names=(), count=3)


def test_a_record_inside_of_maps_sequences_and_options_is_read_alike() -> None:
    earlier = state("Outer", by=Map[str, FIRST], some=tuple[FIRST, ...], maybe=FIRST | None)  # type: ignore[valid-type]
    now = state("Outer", by=Map[str, LATER], some=tuple[LATER, ...], maybe=LATER | None)  # type: ignore[valid-type]
    value = earlier(by=Map({"a": FIRST(count=1)}), some=(FIRST(count=2),), maybe=None)

    assert read(earlier, now, value) == now(
        by=Map({"a": LATER(count=1, last=7)}), some=(LATER(count=2, last=7),), maybe=None
    )
    assert read(Pair, Pair, Pair(1, "b")) == Pair(1, "b")


@pytest.mark.parametrize(
    ("earlier", "now", "why_not"),
    [
        (FIRST, state(last=int, count=COUNT), "Counted.last is new, and has no default"),
        (FIRST, state(count=str), "Counted.count was 'long', and is 'string' now"),
        (FIRST, state(count=int | None), "Counted.count was 'long', and is 'null' or 'long' now"),
        (int, str, "state was 'long', and is 'string' now"),
        (FIRST, Pair, "state was a Counted, and is a Pair now"),
        (tuple[int, ...], int, "state was 'array', and is 'long' now"),
        (tuple[int, ...], tuple[str, ...], "state was 'long', and is 'string' now"),
    ],
)
def test_any_other_difference_is_refused_by_its_place(
    earlier: Any,  # noqa: ANN401, any type of states
    now: Any,  # noqa: ANN401, as above
    why_not: str,
) -> None:
    with pytest.raises(ValueError, match=why_not):
        DerivedCodec(now).reader_of(DerivedCodec(earlier).schema_json)


def test_a_schema_of_a_stranger_is_not_followed() -> None:
    hostile = '{"type":"record","name":"Encoded","fields":[{"name":"state","type":{"type":"array","items":"null"}}]}'
    with pytest.raises(ValueError, match="array of items with almost no bytes"):
        DerivedCodec(tuple[int, ...]).reader_of(hostile)


# --- a pruned log and the next version of its job ---------------------------------------------------------------------
class Reader(SourceReader):
    """Reads nothing."""

    def add_splits(self, splits: Sequence[bytes]) -> None:
        raise AssertionError(splits)

    def poll(self) -> Poll:
        return Poll(status=PollStatus.WAITING)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        return b""


class Counter(EventSourcedCoordinator[Any]):
    """Counts events: its projection does."""

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """The projection has it."""


def chain_of(state_type: type[Any], *, version: int = 1) -> Chain:
    def apply(state: Any, record: Record, value: Payload | None) -> Any:  # noqa: ANN401, the state
        del value
        is_event = record.kind is Kind.EVENT_TO_COORDINATOR
        return state_type(count=state.count + 1) if is_event else state

    counting = OperatorProjection(
        name="mine",
        version=version,
        initial=state_type(count=0),
        apply=apply,
        codec=DerivedCodec(state_type),
        survives_resets=True,  # there is no checkpoint
    )

    class Provider(CoordinatorProvider):
        operator_id = "source"
        payload_types: tuple[type[Payload], ...] = (EnumeratorState,)
        projection: OperatorProjection[Any] | None = counting

        def create(self, context: CoordinatorContext) -> Counter:
            return Counter(context)

    source = SourceSpec(operator_id="source", create_reader=Reader, coordinator=Provider())
    return Chain(source=source, operators=[])


class Passing(Operator):
    """Passes no row on."""

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        return ()


@event("evolution.noted", version=1)
class Noted(Payload):
    """Sent by no other operator."""

    count: int


def with_added(chain: Chain, *types: type[Payload], operator_id: str = "added") -> Chain:
    """The chain with one more operator. Its coordinator is of the same class as the source's."""
    provider = copy(chain.coordinators[0])
    provider.operator_id = operator_id
    provider.payload_types = (*provider.payload_types, *types)
    added = OperatorSpec(operator_id=operator_id, create_operator=Passing, coordinator=provider)
    return Chain(source=chain.source, operators=[added])


def counted(log: MemoryLog, chain: Chain, events: int) -> HandDrivenJob:
    job = HandDrivenJob(chain, log=log, options=RuntimeOptions(snapshot_every=5))
    attempt, *_ = job.register_all()
    for _ in range(events):
        attempt.send("source", EnumeratorState(content=b"x"))
    return job


def snapshots_in(log: MemoryLog) -> list[int]:
    stored = log.read(log.start_offset(), log.high_watermark())
    return [one.offset for one in stored if one.record().kind is Kind.SNAPSHOT]


@pytest.fixture
def pruned() -> MemoryLog:
    """Begins with a snapshot, behind which the job has counted on, to 30."""
    log = MemoryLog("job in memory")
    counted(log, chain_of(FIRST), 30).crash()
    log.delete_below(snapshots_in(log)[2])
    return log


def pruned_with_added() -> MemoryLog:
    """Begins with a snapshot, of a job whose added operator has used a payload type of its own."""
    log = MemoryLog("job in memory")
    chain, options = with_added(chain_of(FIRST), Noted), RuntimeOptions(snapshot_every=5)
    job = HandDrivenJob(chain, log=log, options=options)
    attempt, *_ = job.register_all()
    for _ in range(9):
        attempt.send("added", Noted(count=1))
    job.crash()
    log.delete_below(snapshots_in(log)[-1])
    return log


@pytest.mark.clause("E9")
def test_a_pruned_log_is_restored_after_a_field_with_a_default_is_added(
    pruned: MemoryLog,
) -> None:
    later = HandDrivenJob(chain_of(LATER), log=pruned)
    assert later.runtime.state.projections["source"] == LATER(count=30, last=7)
    later.crash()

    counted(pruned, chain_of(LATER), 10).crash()
    again = HandDrivenJob(chain_of(LATER), log=pruned)
    assert again.runtime.state.projections["source"] == LATER(count=40, last=7)


@pytest.mark.clause("E9")
@pytest.mark.parametrize(
    ("chain", "why_not"),
    [
        (
            chain_of(state(count=(float, field(default=0.0)))),
            "Counted.count was 'long', and is 'do",
        ),
        (chain_of(LATER, version=2), "it has mine@1, and the job has mine@2"),
    ],
)
def test_another_version_is_refused_with_the_reason(
    pruned: MemoryLog, chain: Chain, why_not: str
) -> None:
    before = pruned.high_watermark()
    with pytest.raises(RestoreError, match=why_not) as refused:
        HandDrivenJob(chain, log=pruned)
    assert "start the version of the job that pruned it" in str(refused.value)
    assert pruned.high_watermark() == before


@pytest.mark.clause("E9")
def test_an_operator_is_added_to_a_job_with_a_pruned_log(pruned: MemoryLog) -> None:
    chain = with_added(chain_of(FIRST))
    job = HandDrivenJob(chain, log=pruned, options=RuntimeOptions(snapshot_every=5))
    assert job.runtime.state.projections["source"] == FIRST(count=30)
    assert job.runtime.state.projections["added"] == FIRST(count=0)
    attempt, *_ = job.register_all()
    attempt.send("added", EnumeratorState(content=b"x"))
    job.crash()

    again = HandDrivenJob(with_added(chain_of(FIRST)), log=pruned)
    assert again.runtime.state.projections["source"] == FIRST(count=30)
    assert again.runtime.state.projections["added"] == FIRST(count=1)


@pytest.mark.clause("E8")
def test_an_operator_is_removed_from_a_job_with_a_pruned_log() -> None:
    log, options = pruned_with_added(), RuntimeOptions(snapshot_every=5)
    HandDrivenJob(chain_of(FIRST), log=log, options=options).crash()
    others = with_added(chain_of(FIRST), operator_id="another")
    again = HandDrivenJob(others, log=log, options=options)
    assert again.runtime.state.projections["another"] == FIRST(count=0)


@pytest.mark.clause("E8")
def test_an_operator_that_comes_back_after_a_prune_is_refused() -> None:
    log, options = pruned_with_added(), RuntimeOptions(snapshot_every=5)
    without = counted(log, chain_of(FIRST), 9)
    without.crash()
    whole = HandDrivenJob(with_added(chain_of(FIRST), Noted), log=log, options=options)
    assert whole.runtime.state.projections["added"] == FIRST(count=9)
    whole.crash()

    counted(log, chain_of(FIRST), 9).crash()
    log.delete_below(snapshots_in(log)[-1])
    before = log.high_watermark()
    with pytest.raises(RestoreError, match="operator 'added' had been removed from the job"):
        HandDrivenJob(with_added(chain_of(FIRST), Noted), log=log, options=options)
    assert log.high_watermark() == before


@pytest.mark.clause("E9")
def test_a_type_of_an_operator_that_stays_is_still_needed_on_a_pruned_log() -> None:
    log, options = pruned_with_added(), RuntimeOptions(snapshot_every=5)
    said = (
        r"is at offset \d+ in the log and not usable \(payload type evolution\.noted@1 in it is not one of .*\) here; "
        "start a version of the job that declares this payload type, as the pruning one did"
    )
    with pytest.raises(RestoreError, match=said):
        HandDrivenJob(with_added(chain_of(FIRST)), log=log, options=options)


@pytest.mark.clause("E9")
def test_a_finished_job_with_a_pruned_log_is_opened_with_one_more() -> None:
    log = MemoryLog("job in memory")
    job = counted(log, chain_of(FIRST), 3)
    job.attempts[1].complete()
    job.ask("", SnapshotWanted(why="a prune"))
    job.crash()
    first = HandDrivenJob(
        chain_of(FIRST), log=log, again=True, options=RuntimeOptions(snapshot_every=5)
    )
    first.ask("", SnapshotWanted(why="a prune"))
    log.delete_below(snapshots_in(log)[-1])
    first.crash()

    added = HandDrivenJob(with_added(chain_of(FIRST)), log=log, restore="rollback")
    assert added.runtime.state.projections["source"] == FIRST(count=3)
    assert added.runtime.state.projections["added"] == FIRST(count=0)


def test_a_prune_warns_that_versions_of_projections_are_bound_by_it(tmp_path: Path) -> None:
    log = MemoryLog("job in memory")
    job = counted(log, chain_of(FIRST), 30)
    job.crash()
    archive = str(tmp_path / "archive.avro")
    done = CliRunner().invoke(
        main,
        ("prune", "job", "--yes", "--take-over", "--archive", archive),
        obj=lambda _servers: OneLog(log),
    )

    assert done.exit_code == Exit.DONE, done.output
    assert "only a job with the projections mine@1 of operator 'source' starts" in done.stderr
