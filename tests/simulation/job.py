"""The job that a simulation runs: splits in, numbers both ways, rows out; and the book of what must not be."""

# No `from __future__ import annotations` here: payloads are declared below.

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random

import pyarrow as pa

from coordlog.api.chain import Chain, OperatorSpec, SourceSpec
from coordlog.api.coordinator import (
    CheckpointResult,
    CommittableOf,
    CoordinatorContext,
    CoordinatorProvider,
    OperatorCoordinator,
    SubtaskGateway,
)
from coordlog.api.operator import (
    FinishedSplit,
    Operator,
    OperatorContext,
    Poll,
    PollStatus,
    SkippedSplit,
    Snapshot,
    SourceReader,
)
from coordlog.coordinators.commits import CommitCoordinatorProvider
from coordlog.coordinators.splits import DefaultEnumerator, SplitCoordinatorProvider
from coordlog.schemas.payload import Payload, event, payload
from coordlog.schemas.record import NO_CHECKPOINT
from coordlog.schemas.source_types import RequestSplit, Split, SplitsDiscovered
from simulation.orders import (
    TALK,
    TILL,
    Order,
    Passing,
    Taken,
    TillProvider,
    place_of,
)

__all__ = ["Book", "Desk", "JobSize", "Published", "chain_of", "lanes_of"]

SOURCE, SINK = "source", "sink"


@event("simulation.down", version=1)
class Down(Payload):
    """On a lane to the subtask that has it: 0, then 1, and so on."""

    lane: int
    n: int


@event("simulation.up", version=1)
class Up(Payload):
    """On a lane to the coordinator: 0, then 1, and so on."""

    lane: int
    n: int


@payload("simulation.published", version=1)
class Published(Payload):
    """An intent, and its outcome: the names of files, and the rows in each."""

    names: list[str]
    rows: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSize:
    """How much a job has to do."""

    parallelism: int = 2
    """At the beginning; so many lanes there are, which subtasks take over from one another."""
    is_batch: bool = False
    splits: int = 3
    rows: int = 3
    """Of each split."""
    down: int = 3
    """Numbers down each lane."""
    up: int = 3
    """Numbers up each lane."""
    orders: int = 0
    """Of clients, each of another one."""
    skips: int = 0
    """Splits that a client wants skipped, the first ones."""
    bad: int = 0
    """Splits that cannot be read beyond their first row, the last ones: readers give them up."""
    together: bool = False
    """Whether small splits are assigned several at once and, if it is a batch without talk, ended together."""

    @property
    def talks(self) -> bool:
        """Whether the chain has the operator that talks; without it every coordinator is event-sourced."""
        return self.down + self.up > 0


class ScriptedError(Exception):
    """A failure by chance."""


@dataclass(kw_only=True, eq=False)
class Book:
    """What a run has seen, over all drivers, coordinators and attempts."""

    chance: Random
    faults: list[str] = field(default_factory=list)
    """What must not be."""
    published: dict[str, str] = field(default_factory=dict)
    """Outside: the rows of each file, by its name."""
    is_intended: Callable[[Published], bool] = lambda _: True
    """Whether a `COMMIT_INTENT` with this payload counts."""
    sink_fails: float = 0.0
    """How often settling raises, before or after it has done its work."""
    coordinator_fails: float = 0.0
    """How often a step of a coordinator raises."""
    is_cut_late: float = 0.0
    """How often a coordinator's part of a checkpoint comes in a later callback."""

    def slip(self) -> None:
        """A step of a coordinator: by chance it raises."""
        if self.coordinator_fails and self.chance.random() < self.coordinator_fails:
            raise ScriptedError("by chance")

    def look(self, is_so: bool, fault: str) -> None:  # noqa: FBT001, reads like an assertion
        """Note the fault unless it is so."""
        if not is_so:
            self.faults.append(fault)


@dataclass(eq=False)
class Desk:
    """The links of one attempt, who know of one another."""

    reader: "Reader | None" = None
    talk: "TalkingLink | None" = None


# --- the driver's side ------------------------------------------------------------------------------------------------
class Talker(OperatorCoordinator):
    """Sends numbers down and hears numbers, and takes orders; keeps its own books, which are its checkpoint."""

    def __init__(self, context: CoordinatorContext, provider: "TalkProvider") -> None:
        self.context, self.size, self.book = context, provider.size, provider.book
        self.gateways: dict[int, SubtaskGateway] = {}
        self.results: list[CheckpointResult] = []
        lanes, now = self.size.parallelism, context.current_parallelism()
        self.sent, self.heard = [0] * lanes, [0] * lanes
        self.owner = [lane % now for lane in range(lanes)]
        """Which subtask has a lane."""
        self.taken: list[int] = []

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        """Go back to the books of the cut; lanes of a subtask that there is no more are dealt in turn."""
        if state is not None:
            self.sent, self.heard, owner, self.taken = json.loads(state)
            now = self.context.current_parallelism()
            self.owner = [one if one < now else one % now for one in owner]

    def start(self) -> None:
        """Begin to send."""
        self.context.schedule(0.004, self._tick)

    def _tick(self) -> None:
        self.book.slip()
        for result in self.results:
            self._cut(result)
        self.results.clear()
        for lane, subtask in enumerate(self.owner):
            if subtask in self.gateways and self.sent[lane] < self.size.down:
                self.gateways[subtask].send_event(Down(lane=lane, n=self.sent[lane]))
                self.sent[lane] += 1
        self.context.schedule(0.008, self._tick)

    def _cut(self, result: CheckpointResult) -> None:
        books = [self.sent, self.heard, self.owner, self.taken]
        result.complete(json.dumps(books).encode())

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        """Cut now, or at the next step."""
        if self.context.random().random() < self.book.is_cut_late:
            self.results.append(result)
        else:
            self._cut(result)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Forget it."""
        self.results = [one for one in self.results if one.checkpoint_id != checkpoint_id]

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """The next number of its lane, neither less nor more."""
        assert isinstance(event, Up)
        lane, heard = event.lane, self.heard[event.lane]
        self.book.look(
            event.n == heard, f"the coordinator heard {event.n} on lane {lane}, not {heard}"
        )
        self.book.look(
            self.owner[lane] == subtask or self.context.is_redelivery,
            f"lane {lane} is with {self.owner[lane]}, and {subtask} spoke on it",
        )
        self.heard[lane] = event.n + 1

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        """Send to it from now on."""
        self.gateways[subtask] = gateway

    def execution_attempt_failed(self, subtask: int, attempt_number: int, reason: str) -> None:
        """Send to it no more."""
        self.gateways.pop(subtask, None)

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        """Undo what the failover loses."""
        lost = self.context.lost_events(subtask)
        down = [(one.lane, one.n) for one in lost.to_subtask if isinstance(one, Down)]
        up = [(one.lane, one.n) for one in lost.to_coordinator if isinstance(one, Up)]
        lanes = [lane for lane, owner in enumerate(self.owner) if owner == subtask]
        self._undo(self.sent, down, lanes)
        self._undo(self.heard, up, lanes)

    def _undo(self, counts: list[int], lost: list[tuple[int, int]], lanes: list[int]) -> None:
        for lane in lanes:
            numbers = [n for one, n in lost if one == lane]
            kept = counts[lane] - len(numbers)
            expected = list(range(kept, counts[lane]))
            self.book.look(numbers == expected, f"lost {numbers} of lane {lane}, not {expected}")
            counts[lane] = kept
        others = [one for one in lost if one[0] not in lanes]
        self.book.look(not others, f"lost {others}, and has the lanes {lanes}")

    def handle_coordination_request(self, request: Payload) -> Taken:
        """Take an order; by chance fail behind that."""
        place, is_new = place_of(request, self.taken)
        assert isinstance(request, Order)
        if is_new:
            self.taken.append(request.number)
        self.book.slip()
        return Taken(number=request.number, place=place)


class TalkProvider(CoordinatorProvider):
    """Makes Talkers."""

    operator_id = TALK
    payload_types: tuple[type[Payload], ...] = (Down, Up, Order, Taken)

    def __init__(self, size: JobSize, book: Book) -> None:
        self.size, self.book = size, book

    def create(self, context: CoordinatorContext) -> Talker:
        """A new coordinator."""
        return Talker(context, self)


class OutsideSink:
    """Where files become visible: a name is published once, whoever does it how often."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def settle(self, intent: Payload) -> Payload:
        """Publish what is not there. By chance it raises before or after."""
        assert isinstance(intent, Published)
        book = self._book
        if book.sink_fails and book.chance.random() < book.sink_fails:
            raise ScriptedError("before")
        book.look(
            book.is_intended(intent), f"published {intent.names} without an intent that counts"
        )
        for name, rows in zip(intent.names, intent.rows, strict=True):
            there = book.published.setdefault(name, rows)
            book.look(there == rows, f"{name} is published as {there} and as {rows}")
        if book.sink_fails and book.chance.random() < book.sink_fails:
            raise ScriptedError("after")
        return intent


def _intent(_checkpoint_id: int, committables: Sequence[CommittableOf]) -> Payload:
    files = [json.loads(one.content) for one in committables]
    return Published(names=[name for name, _ in files], rows=[rows for _, rows in files])


# --- the subtask's side -----------------------------------------------------------------------------------------------
@lru_cache(maxsize=1024)
def _row(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [number]})


class Reader(SourceReader):
    """Reads splits of so many rows; asks for one at a time, and then waits, restored or not.

    Or, like a reader of files, for the next ones when half of those that it was given are left.
    """

    def __init__(self, size: JobSize, desk: Desk) -> None:
        self.size, self.desk = size, desk
        desk.reader = self
        self.holds: list[list[int]] = []
        """Split and how many of its rows are read."""
        self.ask_at = 0
        """How many splits are left when it asks."""
        self.is_asking = self.is_told = False
        self.context: OperatorContext | None = None

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Go on where the checkpoint was."""
        self.context = context
        if state is not None:
            self.holds, self.is_asking = json.loads(state)
            if self.size.together:
                self.is_asking, self.ask_at = False, len(self.holds) // 2

    def skip_splits(self, split_ids: Collection[str]) -> Sequence[SkippedSplit]:
        """Let go of these."""
        gone = [one for one in self.holds if str(one[0]) in split_ids]
        self.holds = [one for one in self.holds if one not in gone]
        return [SkippedSplit(split_id=str(s), rows=read, reason="skipped") for s, read in gone]

    def start(self) -> None:
        """Ask, unless it has splits."""
        if not self.holds:
            self._ask()

    def _ask(self) -> None:
        if len(self.holds) <= self.ask_at and not self.is_asking and not self.is_told:
            assert self.context is not None, "open"
            self.is_asking = True
            self.context.send_event(RequestSplit())

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Read them next."""
        self.is_asking, self.ask_at = False, len(splits) // 2 if self.size.together else 0
        self.holds += [[int(one), 0] for one in splits]

    def notify_no_more_splits(self) -> None:
        """End after those that are held."""
        self.is_asking, self.is_told = False, True

    def poll(self) -> Poll:
        """A row, the end of a split, or the end of all."""
        talk = self.desk.talk
        if talk is not None:
            talk.tell()
        if self.holds:
            split, read = self.holds[0]
            if read and split >= self.size.splits - self.size.bad:
                self.holds.pop(0)
                self._ask()
                gone = SkippedSplit(split_id=str(split), rows=read, reason="it is bad")
                return Poll(status=PollStatus.SPLIT_SKIPPED, skipped=gone)
            if read < self.size.rows:
                self.holds[0][1] += 1
                return Poll(status=PollStatus.BATCH, batch=_row(split * self.size.rows + read))
            self.holds.pop(0)
            self._ask()
            finished = FinishedSplit(
                split_id=str(split), rows=read, bytes_read=read, has_next=self._has_next
            )
            return Poll(status=PollStatus.SPLIT_FINISHED, finished=finished)
        if self.is_told and (talk is None or talk.is_done):
            return Poll(status=PollStatus.END)
        return Poll(status=PollStatus.WAITING)

    @property
    def _has_next(self) -> bool:
        """Whether a split that can be read to its end is at hand."""
        size = self.size
        return size.together and bool(self.holds) and self.holds[0][0] < size.splits - size.bad

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        """All but what is told anew."""
        return json.dumps([self.holds, self.is_asking]).encode()


class TalkingLink(Operator):
    """Hears numbers and sends numbers on its lanes; passes rows on."""

    def __init__(self, size: JobSize, book: Book, desk: Desk) -> None:
        self.size, self.book = size, book
        desk.talk = self
        self.lanes: dict[int, list[int]] = {}
        """Of each, how many numbers it has got and told."""
        self.context: OperatorContext | None = None

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Go on where the checkpoint was; at the beginning the lanes are dealt in turn."""
        self.context = context
        if state is not None:
            self.lanes = lanes_of(state)
        elif context.restored_checkpoint == NO_CHECKPOINT:
            own = range(context.subtask, self.size.parallelism, context.parallelism)
            self.lanes = {lane: [0, 0] for lane in own}

    @property
    def is_done(self) -> bool:
        """Whether all numbers went both ways."""
        whole = [self.size.down, self.size.up]
        return all(one == whole for one in self.lanes.values())

    def tell(self) -> None:
        """Send the next number of each lane."""
        for lane, counts in self.lanes.items():
            if counts[1] < self.size.up:
                assert self.context is not None, "open"
                self.context.send_event(Up(lane=lane, n=counts[1]))
                counts[1] += 1

    def handle_event(self, event: Payload) -> None:
        """The next number of its lane, neither less nor more."""
        assert isinstance(event, Down)
        assert self.context is not None, "open"
        where = f"attempt {self.context.attempt_number} of {self.context.subtask}"
        counts = self.lanes.get(event.lane)
        if counts is None:
            self.book.look(False, f"{where} has the lanes {list(self.lanes)} and got {event}")  # noqa: FBT003
            return
        self.book.look(event.n == counts[0], f"{where} got {event}, not {counts[0]}")
        counts[0] = event.n + 1

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Pass it on."""
        return (batch,)

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        """All counts."""
        return self.final_snapshot()

    def final_snapshot(self) -> Snapshot:
        """All counts."""
        return Snapshot(state=_lanes_state(self.lanes))


def lanes_of(state: bytes) -> dict[int, list[int]]:
    """The lanes in a talking link's state: of each, how many numbers it has got and told."""
    return {int(lane): counts for lane, counts in json.loads(state).items()}


def _lanes_state(lanes: Mapping[int, Sequence[int]]) -> bytes:
    return json.dumps(dict(sorted(lanes.items()))).encode()


def _merged_lanes(states: Sequence[bytes]) -> bytes:
    return _lanes_state({lane: one for state in states for lane, one in lanes_of(state).items()})


class Writer(Operator):
    """Writes rows to files, under names that no other attempt makes."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.files = 0
        self.context: OperatorContext | None = None

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """A file is open."""
        self.context = context

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Write it."""
        self.rows.append(batch["n"][0].as_py())
        return ()

    def _closed(self) -> Snapshot:
        if not self.rows:
            return Snapshot()
        assert self.context is not None, "open"
        one = self.context
        name = f"{one.driver_id}-{one.subtask}-{one.attempt_number}-{self.files}"
        content = json.dumps([name, " ".join(map(str, self.rows))]).encode()
        self.rows, self.files = [], self.files + 1
        return Snapshot(committables=[content])

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        """Close the file."""
        return self._closed()

    def end_of_split(self, split_id: str) -> Snapshot:
        """Close the file."""
        return self._closed()

    def final_snapshot(self) -> Snapshot:
        """Close the file."""
        return self._closed()


def _merged_readers(states: Sequence[bytes]) -> bytes:
    restored = [json.loads(one) for one in states]
    holds = [one for splits, _ in restored for one in splits]
    return json.dumps([holds, any(is_asking for _, is_asking in restored)]).encode()


def chain_of(size: JobSize, book: Book, desk: Callable[[], Desk]) -> Chain:
    """The job's chain. `desk` gives the desk of the attempt whose links are being made."""
    numbers = range(size.splits)
    found = [Split(split_id=str(one), content=str(one).encode()) for one in numbers]
    source = SourceSpec(
        operator_id=SOURCE,
        create_reader=lambda: Reader(size, desk()),
        coordinator=SplitCoordinatorProvider(
            # No thread beside the schedule's one.
            SOURCE,
            enumerator=lambda context, kept: DefaultEnumerator(
                context,
                lambda: SplitsDiscovered(splits=found, is_complete=True),
                kept=kept,
                is_bounded=False,
                weight_of=(lambda _split: 1) if size.together else None,
            ),
        ),
        merge_states=_merged_readers,
        groups_splits=size.together,
    )
    talk = OperatorSpec(
        operator_id=TALK,
        create_operator=lambda: TalkingLink(size, book, desk()),
        coordinator=TalkProvider(size, book),
        merge_states=_merged_lanes,
    )
    till = OperatorSpec(
        operator_id=TILL,
        create_operator=Passing,
        coordinator=TillProvider(book.slip),
        keeps_state_across_splits=False,
        groups_splits=size.together,
    )
    sink = OperatorSpec(
        operator_id=SINK,
        create_operator=Writer,
        coordinator=CommitCoordinatorProvider(
            SINK, sink=OutsideSink(book), make_intent=_intent, payload_types=[Published]
        ),
        keeps_state_across_splits=False,
        groups_splits=size.together,
    )
    between = [talk] if size.talks else [till] if size.orders else []
    return Chain(source=source, operators=[*between, sink])
