"""Coordinators that number what they send and hear, and links of a chain that do the same on the other side."""

# No `from __future__ import annotations` here: payloads are declared below.
# What their methods do is their contract's to say.

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from coordlog.api.coordinator import (
    CheckpointResult,
    CoordinatorContext,
    CoordinatorProvider,
    EventFuture,
    OperatorCoordinator,
    SubtaskGateway,
)
from coordlog.api.operator import (
    Operator,
    OperatorContext,
    Poll,
    PollStatus,
    Snapshot,
    SourceReader,
)
from coordlog.errors import AttemptNotRunningError, ClosedError, WrongThreadError
from coordlog.schemas.payload import Payload, event, payload
from simulation.job import ScriptedError

QUESTION = 100


@event("exactly.number", version=1)
class Number(Payload):
    """Down: its place among the numbers, 0 first."""

    n: int


@event("exactly.end", version=1)
class End(Payload):
    """Down: that was the last number."""


@event("exactly.answer", version=1)
class Answer(Payload):
    """Down: the question, and one."""

    n: int


@event("exactly.start", version=1)
class Start(Payload):
    """Up, first of an attempt: what it was restored with, and a question."""

    got: int
    has_end: bool
    sent: int
    question: int


@event("exactly.told", version=1)
class Told(Payload):
    """Up: its place among what is told, 0 first."""

    n: int


@payload("exactly.woken", version=1)
class Woken(Payload):
    """What parked work has come to."""

    subtask: int
    attempt_number: int


TYPES = (Number, End, Answer, Start, Told, Woken)
_BATCH = pa.RecordBatch.from_pydict({"n": [0]})


class NotExactlyOnceError(Exception):
    """Something is lost, doubled, out of order, or has reached whom it must not."""


@dataclass(kw_only=True, eq=False)
class Book:
    """What a run has seen, over all its drivers, coordinators and attempts."""

    faults: list[str] = field(default_factory=list)
    """What must not be."""
    is_lossy: bool = False
    """Events are lost on connections that live on: an attempt may see gaps, as long as no checkpoint does."""
    parked: set[tuple[str, int]] = field(default_factory=set)
    """By operator and subtask: work that waits for the successor."""
    outside: list[Callable[[], None]] = field(default_factory=list)
    """To be called from another thread."""
    refused: int = 0
    """Sends from outside the mailbox."""
    strays: int = 0
    """Sends through a gateway whose attempt was over, all failed."""

    def look(self, is_so: bool, fault: str) -> None:  # noqa: FBT001, reads like an assertion
        """Note the fault unless it is so."""
        if not is_so:
            self.faults.append(fault)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What one operator's coordinator and link send each other."""

    down: int
    """How many numbers go down to each subtask."""
    every_s: float
    """Between two steps of the coordinator; in each it sends one number."""
    up: int
    """How many numbers each subtask sends up."""
    stride: int = 1
    """One number up at each so many batches."""


Script = Callable[["Talker"], bool]
"""Called before each step of a coordinator. False: it sends nothing in this one."""


def _go_on(talker: "Talker") -> bool:
    return True


class Talker(OperatorCoordinator):
    """Sends 0, 1, 2 … to each subtask, then an end; cuts one step after it was asked. Undoes what a failover loses."""

    def __init__(self, context: CoordinatorContext, provider: "TalkerProvider") -> None:
        self.context, self.provider, self.book = context, provider, provider.book
        count = provider.parallelism
        self.next, self.has_ended = [0] * count, [False] * count
        self.heard: list[list[int]] = [[] for _ in range(count)]
        self.gateways: dict[int, SubtaskGateway] = {}
        self.started: set[int] = set()
        self.results: dict[int, CheckpointResult] = {}

    def start(self) -> None:
        self.context.schedule(self.provider.traffic.every_s, self._step)

    def _step(self) -> None:
        self.context.schedule(self.provider.traffic.every_s, self._step)
        is_sending = self.provider.script(self)
        due = sorted(self.results)
        if self.provider.is_cut_first:
            self._cut(due)
        if is_sending:
            for subtask in sorted(self.started):
                self._send(subtask)
        if not self.provider.is_cut_first:
            self._cut(due)

    def _send(self, subtask: int) -> None:
        n = self.next[subtask]
        if n < self.provider.traffic.down:
            self.gateways[subtask].send_event(Number(n=n))
            self.next[subtask] = n + 1
            self.provider.note_sent()
        elif not self.has_ended[subtask]:
            self.gateways[subtask].send_event(End())
            self.has_ended[subtask] = True

    def _cut(self, due: Sequence[int]) -> None:
        for checkpoint_id in due:
            content = json.dumps([self.next, self.has_ended, self.heard]).encode()
            self.results.pop(checkpoint_id).complete(content)
            self.provider.note_cut(checkpoint_id)

    def reset_to_checkpoint(self, checkpoint_id: int, state: bytes | None) -> None:
        if state is not None:
            self.next, self.has_ended, self.heard = json.loads(state)

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        self.results[checkpoint_id] = result

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.provider.completed = max(self.provider.completed, checkpoint_id)
        for told in [one for one in self.results if one <= checkpoint_id]:
            del self.results[told]

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.results.pop(checkpoint_id, None)
        self.provider.note_aborted()

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        heard = self.heard[subtask]
        if isinstance(event, Told):
            what = f"{self.context.operator_id} heard {event.n} of {subtask} after {heard[-3:]}"
            self.book.look(event.n == len(heard), what)
            heard.append(event.n)
        elif isinstance(event, Start) and not self.context.is_redelivery:
            self._started(subtask, event)

    def _started(self, subtask: int, start: Start) -> None:
        """What an attempt was restored with is what its coordinator has sent and heard."""
        if self.provider.is_told:
            self.next[subtask], self.has_ended[subtask] = start.got, start.has_end
            del self.heard[subtask][start.sent :]
        knows = (self.next[subtask], self.has_ended[subtask], len(self.heard[subtask]))
        says = (start.got, start.has_end, start.sent)
        what = f"{self.context.operator_id} knows {knows} of {subtask}, its attempt says {says}"
        self.book.look(knows == says, what)
        self.gateways[subtask].send_event(Answer(n=start.question + 1))
        self.started.add(subtask)
        self.book.parked.discard((self.context.operator_id, subtask))

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        self.gateways[subtask] = gateway

    def execution_attempt_failed(self, subtask: int, attempt_number: int, reason: str) -> None:
        self.park(subtask)
        self.gateways.pop(subtask, None)
        self.started.discard(subtask)

    def subtask_reset(self, subtask: int, checkpoint_id: int) -> None:
        lost = self.context.lost_events(subtask)
        down = [one.n for one in lost.to_subtask if isinstance(one, Number)]
        up = [one.n for one in lost.to_coordinator if isinstance(one, Told)]
        if self.provider.is_told:
            return
        name, sent, heard = self.context.operator_id, self.next[subtask], self.heard[subtask]
        first = sent - len(down)
        self.book.look(down == list(range(first, sent)), f"{name} lost {down} of {sent} sent")
        self.next[subtask] = first
        if any(isinstance(one, End) for one in lost.to_subtask):
            self.has_ended[subtask] = False
        kept = len(heard) - len(up)
        self.book.look(up == heard[kept:], f"{name} lost {up} of {heard[-9:]} heard")
        del heard[kept:]

    # --- failures ---
    def park(self, subtask: int) -> None:
        """Begin work that ends once the subtask's successor is up, and then sends through today's gateway."""
        gateway = self.gateways.get(subtask)
        if gateway is None:
            return
        self.book.parked.add((self.context.operator_id, subtask))

        def work() -> Payload:
            self._refused(gateway)
            thread = threading.Thread(target=self._refused, args=(gateway,))
            thread.start()
            thread.join()
            return Woken(subtask=subtask, attempt_number=gateway.attempt_number)

        def woken(result: Payload | None, error: str | None) -> None:
            self.book.look(error is None, f"parked work: {error}")
            is_newest = self is self.provider.made[-1]
            self.book.look(is_newest, "the handler of a closed coordinator was called")
            gateway.send_event(Number(n=self.next[subtask])).add_done_callback(self._stray)

        self.context.call_async(work, woken)

    def _refused(self, gateway: SubtaskGateway) -> None:
        try:
            gateway.send_event(Number(n=self.next[gateway.subtask]))
        except (WrongThreadError, ClosedError):
            self.book.refused += 1
        else:
            self.book.faults.append("a send from outside the mailbox was taken")

    def _stray(self, future: EventFuture) -> None:
        try:
            future.result()
        except AttemptNotRunningError:
            self.book.strays += 1
        else:
            self.book.faults.append("an event sent through an old gateway has reached an attempt")

    def fail(self, how: str) -> None:
        """Fail the job: by the context, by raising, or from another thread a little later."""
        if how == "raise":
            raise ScriptedError("scripted")
        if how == "call":
            self.context.fail_job("scripted")
        else:
            self.book.outside.append(lambda: self.context.fail_job("scripted"))


@dataclass(eq=False)
class TalkerProvider(CoordinatorProvider):
    """Makes Talkers, and keeps what must survive them: the script, and how far it has come."""

    operator_id: str
    traffic: Traffic
    book: Book
    parallelism: int = 1
    is_cut_first: bool = True
    is_told: bool = False
    """After a failover it goes on from what the new attempt says; otherwise from the context's `lost_events`."""
    script: Script = _go_on
    made: list[Talker] = field(default_factory=list)
    payload_types: tuple[type[Payload], ...] = TYPES
    cuts: list[int] = field(default_factory=list)
    """The checkpoints that it has cut, since the last abort before its first completion."""
    sent: int = 0
    sent_after_cut: int = 0
    """Numbers since the last cut."""
    completed: int = -1

    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        self.made.append(Talker(context, self))
        return self.made[-1]

    def note_sent(self) -> None:
        self.sent += 1
        self.sent_after_cut += 1

    def note_cut(self, checkpoint_id: int) -> None:
        self.cuts.append(checkpoint_id)
        self.sent_after_cut = 0

    def note_aborted(self) -> None:
        if self.completed < 0:
            self.cuts.clear()


@dataclass(eq=False)
class FailOnce:
    """Fails the job at the step at which a subtask has been sent more than so many; work is parked one step before."""

    above: int
    how: str
    has_parked: bool = False
    has_failed: bool = False

    def __call__(self, talker: Talker) -> bool:
        if not self.has_failed and max(talker.next) > self.above:
            if self.has_parked:
                self.has_failed = True
                talker.fail(self.how)
            for subtask in sorted(talker.started):
                talker.park(subtask)
            self.has_parked = True
        return True


@dataclass(eq=False)
class FailBetween:
    """Fails the job once, between its first completed checkpoint and its second cut; sends little before the first."""

    first_burst: int
    how: str
    has_failed: bool = False

    def __call__(self, talker: Talker) -> bool:
        provider = talker.provider
        if not self.has_failed and provider.completed >= 0 and talker.results:
            self.has_failed = True
            talker.fail(self.how)
        return bool(provider.cuts) or provider.sent < self.first_burst


@dataclass(eq=False)
class FailOverlapped:
    """Fails the job once, after its second cut, with the first checkpoint pending still or just completed."""

    first_burst: int
    how: str
    is_first_completed: bool
    has_failed: bool = False

    def __call__(self, talker: Talker) -> bool:
        provider = talker.provider
        is_time = len(provider.cuts) >= 2 and provider.sent_after_cut > 0
        if self.is_first_completed:
            is_time = is_time and provider.completed >= 0
        if not self.has_failed and is_time:
            self.has_failed = True
            talker.fail(self.how)
        return bool(provider.cuts) or provider.sent < self.first_burst


# --- the subtask's side -----------------------------------------------------------------------------------------------
@dataclass(eq=False)
class Link:
    """What one link of one attempt keeps: what it got and how much it has sent."""

    operator_id: str
    traffic: Traffic
    book: Book
    fail_above: list[int]
    """It raises once, at a number above this; then the list is empty."""
    got: list[int] = field(default_factory=list)
    has_end: bool = False
    sent: int = 0
    batches: int = 0
    is_answered: bool = False
    context: OperatorContext | None = None

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        self.context = context
        if state is not None:
            self.got, self.has_end, self.sent = json.loads(state)
        start = Start(got=len(self.got), has_end=self.has_end, sent=self.sent, question=QUESTION)
        context.send_event(start)

    def handle(self, event: Payload) -> None:
        where = f"{self.operator_id} of {self.context and self.context.subtask}"
        match event:
            case Answer(n=n):
                is_first = not self.is_answered and n == QUESTION + 1
                self.book.look(is_first, f"{where} was answered {n}")
                self.is_answered = True
            case Number(n=n):
                if self.fail_above and n > self.fail_above[0]:
                    self.fail_above.clear()
                    raise ScriptedError("scripted")
                is_next = n == len(self.got) and self.is_answered and not self.has_end
                self.book.look(
                    is_next or self.book.is_lossy, f"{where} got {n} after {self.got[-3:]}"
                )
                self.got.append(n)
            case End():
                is_last = len(self.got) == self.traffic.down and not self.has_end
                self.book.look(
                    is_last or self.book.is_lossy, f"{where} got its end after {self.got[-3:]}"
                )
                self.has_end = True
            case _:
                self.book.faults.append(f"{where} got {event}")

    def tell(self) -> None:
        """Another number up, at each so many batches, once answered."""
        self.batches += 1
        if (
            self.is_answered
            and self.sent < self.traffic.up
            and not self.batches % self.traffic.stride
        ):
            assert self.context is not None, "open"
            self.context.send_event(Told(n=self.sent))
            self.sent += 1

    @property
    def is_done(self) -> bool:
        is_whole = len(self.got) == self.traffic.down
        return self.has_end and is_whole and self.is_answered and self.sent == self.traffic.up

    def snapshot(self) -> bytes:
        return json.dumps([self.got, self.has_end, self.sent]).encode()


class TalkingReader(SourceReader):
    """A link that is a source: gives empty rows, so that the links behind it go on, until all links are done."""

    def __init__(self, link: Link, links: dict[str, Link]) -> None:
        self.link, self.links = link, links

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        self.link.open(context, state)

    def add_splits(self, splits: Sequence[bytes]) -> None:
        raise AssertionError(splits)

    def poll(self) -> Poll:
        self.link.tell()
        if all(one.is_done for one in self.links.values()):
            return Poll(status=PollStatus.END)
        return Poll(status=PollStatus.BATCH, batch=_BATCH)

    def handle_source_event(self, event: Payload) -> None:
        self.link.handle(event)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        return self.link.snapshot()


class TalkingOperator(Operator):
    """A link in the middle, or at the end: takes rows and gives none."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        self.link.open(context, state)

    def handle_event(self, event: Payload) -> None:
        self.link.handle(event)

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        self.link.tell()
        return ()

    def snapshot_state(self, checkpoint_id: int) -> Snapshot:
        return Snapshot(state=self.link.snapshot())

    def final_snapshot(self) -> Snapshot:
        return Snapshot(state=self.link.snapshot())
