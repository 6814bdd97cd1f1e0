"""A source whose attempts are driven by hand, and what can be seen of it."""

# No `from __future__ import annotations` here: events are declared below.
# What their methods do is their contract's to say.

from collections.abc import Callable, Sequence

from coordlog.api.chain import Chain, SourceSpec
from coordlog.api.operator import Poll, PollStatus, SourceReader
from coordlog.coordinators.enumerator import EnumeratorContext, SplitEnumerator
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.messages import DeliverEvent
from coordlog.projections.splits.fold import (
    Assigned,
    Finished,
    Skipped,
    SplitsState,
    WithEnumerator,
)
from coordlog.schemas.payload import Payload, event
from coordlog.schemas.source_types import (
    AddSplits,
    NoMoreSplits,
    RequestSplit,
    Split,
    SplitsDiscovered,
)
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob

NO_MORE = "no more"


class IdleReader(SourceReader):
    """Never asked for anything: the attempts of these tests are driven by hand."""

    def add_splits(self, splits: Sequence[bytes]) -> None:
        raise AssertionError(splits)

    def poll(self) -> Poll:
        return Poll(status=PollStatus.WAITING)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        return b""


def split(name: str, content: bytes = b"") -> Split:
    return Split(split_id=name, content=content)


def listing(*names: str) -> Callable[[], SplitsDiscovered]:
    return lambda: SplitsDiscovered(splits=[split(one) for one in names], is_complete=True)


def pull_of(*names: str) -> SplitCoordinatorProvider:
    return SplitCoordinatorProvider("source", discover=listing(*names))


def chain_of(
    provider: SplitCoordinatorProvider,
    *,
    keeps_state_across_splits: bool = False,
    reads_in_order: bool = False,
    groups_splits: bool = False,
) -> Chain:
    return Chain(
        source=SourceSpec(
            operator_id="source",
            create_reader=IdleReader,
            coordinator=provider,
            keeps_state_across_splits=keeps_state_across_splits,
            reads_in_order=reads_in_order,
            groups_splits=groups_splits,
        ),
        operators=[],
    )


def state_of(job: HandDrivenJob) -> SplitsState:
    state = job.runtime.state.projections["source"]
    assert isinstance(state, SplitsState)
    return state


def decoded(job: HandDrivenJob, message: DeliverEvent) -> Payload:
    return job.chain.payload_types.decode(message.payload_type, message.payload)


def told(job: HandDrivenJob, attempt: FakeAttempt) -> list[str]:
    """What an attempt was sent, in order: split ids, and `no more`."""
    found: list[str] = []
    for message in attempt.got(DeliverEvent):
        value = decoded(job, message)
        if isinstance(value, AddSplits):
            found += [one.split_id for one in value.splits]
        elif isinstance(value, NoMoreSplits):
            found.append(NO_MORE)
        else:
            found.append(type(value).__name__)
    return found


def ask(attempt: FakeAttempt) -> None:
    attempt.send("source", RequestSplit())


def ack_all(attempt: FakeAttempt) -> None:
    for message in attempt.got(DeliverEvent):
        attempt.ack("source", message.event_id)


def checkpoint(job: HandDrivenJob, *attempts: FakeAttempt) -> int:
    """A checkpoint that completes at once: all acked, all barriers passed."""
    for one in attempts:
        ack_all(one)
    checkpoint_id = job.trigger()
    assert checkpoint_id is not None
    for one in attempts:
        one.ack_checkpoint(checkpoint_id)
    assert job.runtime.state.last_checkpoint == checkpoint_id
    return checkpoint_id


def fail_globally(job: HandDrivenJob) -> None:
    """A global failover, up to the new coordinators; attempts register next."""
    job.run(lambda: job.runtime.fail_job("source", "scripted"))
    job.stage_ends("cancelled")
    job.advance(60.0)


def places(job: HandDrivenJob) -> dict[str, str]:
    """Where each split is, in a word."""
    shown: dict[str, str] = {}
    for name, known in sorted(state_of(job).splits.items()):
        match known.place:
            case WithEnumerator():
                shown[name] = "enumerator"
            case Assigned(subtask=subtask):
                shown[name] = f"with {subtask}"
            case Finished(subtask=subtask):
                shown[name] = f"finished by {subtask}"
            case Skipped(rows=rows):
                shown[name] = "skipped" if rows == 0 else f"skipped, {rows} rows"
    return shown


def unlisted(chain: Chain, *, parallelism: int = 1, is_batch: bool = False) -> HandDrivenJob:
    """A job that has started and whose listing waits for a worker."""
    job = HandDrivenJob(chain, parallelism=parallelism, is_batch=is_batch, is_held=True)
    job.is_work_held = True
    job.release()
    job.is_held = False
    assert len(job.works) == 1
    return job


@event("test.more", version=1)
class More(Payload):
    """A reader has heard of another split."""

    name: str


@event("test.hello", version=1)
class Hello(Payload):
    """To a reader."""


class Slowly(SplitEnumerator):
    """Knows of split `a`, and of others when readers say so; never signals an end."""

    def __init__(self, context: EnumeratorContext, kept: bytes | None) -> None:
        self.context = context

    def start(self) -> None:
        if not self.context.state.splits:
            self._found("a")

    def handle_split_request(self, subtask: int, finished_split_id: str | None) -> None:
        self._serve()

    def add_splits_back(self, splits: Sequence[Split], subtask: int) -> None:
        self._serve()

    def handle_source_event(self, subtask: int, attempt_number: int, event: Payload) -> None:
        assert isinstance(event, More)
        self._found(event.name)
        self._serve()

    def _found(self, name: str) -> None:
        self.context.record(SplitsDiscovered(splits=[split(name)], is_complete=False))

    def _serve(self) -> None:
        waiting = self.context.waiting_readers()
        for subtask, one in zip(waiting, self.context.unassigned_splits(), strict=False):
            self.context.assign_splits({subtask: [one]})
