"""A source that queries read, driven by hand: scripted finds, planners and tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from coordlog.api.chain import Chain, SourceSpec
from coordlog.api.operator import SourceReader
from coordlog.coordinators.query_source import CoordinatedSource, QueryWatch, ReadsProvider
from coordlog.errors import SourceError
from coordlog.log.memory import MemoryLog
from coordlog.projections.splits.query_reads import ReadsState
from coordlog.schemas.payload import Payload
from coordlog.schemas.reads import (
    CommitRead,
    NextSplits,
    PlanRead,
    QueryReads,
    ReadCommitted,
    ReadPlanned,
    ReadsSeen,
    SplitRead,
    SplitsGiven,
)
from coordlog.schemas.source_types import Split, SplitsDiscovered
from coordlog.testing.driven_job import FakeRequest, HandDrivenJob

P = TypeVar("P", bound=Payload)

OPERATOR = "reads"


def no_reader() -> SourceReader:
    raise AssertionError("nothing is read here")


@dataclass
class Outside:
    """What there is to be found. A split's weight is the length of its content."""

    names: list[str] = field(default_factory=list)
    weights: dict[str, int] = field(default_factory=dict)
    is_complete: bool = True
    error: Exception | None = None
    closed: int = 0

    def look(self, known: Sequence[Split], skipped: frozenset[str]) -> SplitsDiscovered:
        assert not skipped
        if self.error is not None:
            raise self.error
        had = {one.split_id for one in known}
        return SplitsDiscovered(
            splits=[self.split(name) for name in self.names if name not in had],
            is_complete=self.is_complete,
        )

    def split(self, name: str) -> Split:
        return Split(split_id=name, content=name.encode())

    def close(self) -> None:
        self.closed += 1


class ReadsJob:
    """One service. Make another on the same log for the next.

    With `source`, this is read instead of `outside`, which then only says whether more may come.
    """

    def __init__(
        self,
        outside: Outside,
        *,
        log: MemoryLog | None = None,
        lane_of: Callable[[Split], str] | None = None,
        abandoned: Collection[str] = (),
        end_query: Callable[[int, str], None] | None = None,
        source: CoordinatedSource | None = None,
    ) -> None:
        self.outside = outside
        source = source or CoordinatedSource(
            create_reader=no_reader,
            open_watch=lambda _kept: QueryWatch(watch=outside),
            is_unbounded=not outside.is_complete,
            schema_of=lambda _split: pa.schema([]),
            settle_schema=lambda _kept: pa.schema([]),
            weight_of=lambda one: outside.weights.get(one.split_id, 0),
            lane_of=lane_of,
        )
        provider = ReadsProvider(
            OPERATOR, source, listing_timeout_s=0.0, abandoned=abandoned, end_query=end_query
        )
        spec = SourceSpec(operator_id=OPERATOR, create_reader=no_reader, coordinator=provider)
        self.job = HandDrivenJob(
            Chain(source=spec, operators=()),
            parallelism=0,
            is_batch=True,
            log=log,
            is_held=not outside.is_complete,
        )
        if not outside.is_complete:
            self.job.is_work_held = True
            self.job.release()
            if not self.state.history:
                self.job.run(self.job.works.popleft())  # the first service names the history
                self.job.release()
            self.job.is_held = False

    @property
    def state(self) -> ReadsState:
        state = self.job.runtime.state.projections[OPERATOR]
        assert isinstance(state, ReadsState)
        return state

    def find(self, *names: str) -> None:
        """Unbounded: these come, and the watch looks once."""
        self.outside.names.extend(names)
        works = self.job.works
        assert works, "the watch has a look to make"
        self.job.run(works.popleft())

    def asked(self, request: Payload) -> FakeRequest:
        return self.job.ask(OPERATOR, request)

    def ask(self, request: Payload, answer_type: type[P]) -> P:
        answer = self.asked(request).answer().response
        assert isinstance(answer, answer_type)
        return answer

    # --- planners and tasks -----------------------------------------------------------------------
    def plan(self, read_id: str = "r", *, partitions: int = 2) -> ReadPlanned:
        """A batch query's."""
        return self.ask(plan_request(read_id, partitions=partitions), ReadPlanned)

    def plan_batch(
        self, start: int, end: int, *, reader: str = "q", follows: str = "", partitions: int = 2
    ) -> ReadPlanned:
        """A stream's."""
        request = PlanRead(
            read_id=f"{reader}:{start}-{end}",
            reader=reader,
            follows=follows or reader,
            history=self.state.history,
            start=start,
            end=end,
            partitions=partitions,
        )
        return self.ask(request, ReadPlanned)

    def commit(self, end: int, *, reader: str = "q") -> ReadCommitted:
        request = CommitRead(reader=reader, history=self.state.history, end=end)
        return self.ask(request, ReadCommitted)

    def look(self, *, after: int = -1, splits_max: int = 0) -> ReadsSeen:
        request = QueryReads(after=after, splits_max=splits_max)
        return self.ask(request, ReadsSeen)

    def task(self, read: ReadPlanned, partition: int) -> Task:
        return Task(self, read.read_id, partition)


@dataclass
class Task:
    """One task of one partition."""

    reads: ReadsJob
    read_id: str
    partition: int
    had: list[str] = field(default_factory=list)
    is_over: bool = False

    def step(self) -> list[str]:
        """Ask once; what it is given."""
        request = next_request(self.read_id, self.partition, len(self.had))
        given = [one.split_id for one in self.reads.ask(request, SplitsGiven).splits]
        self.had += given
        self.is_over = not given
        return given

    def run(self) -> list[str]:
        """To its end; all that it was given."""
        while not self.is_over:
            self.step()
        return self.had


def plan_request(read_id: str = "r", *, partitions: int = 2, end: int = -1) -> PlanRead:
    return PlanRead(
        read_id=read_id,
        reader="",
        follows="",
        history="",
        start=0,
        end=end,
        partitions=partitions,
    )


def next_request(
    read_id: str,
    partition: int,
    position: int,
    *,
    task_attempt_id: int = 7,
    finished: Sequence[SplitRead] = (),
) -> NextSplits:
    return NextSplits(
        read_id=read_id,
        partition=partition,
        position=position,
        task_attempt_id=task_attempt_id,
        spark_attempt_number=0,
        stage_id=1,
        host="here",
        pid=1,
        finished=list(finished),
    )


def unreachable() -> SourceError:
    return SourceError("s3://bucket", "access denied", "see to the rights")
