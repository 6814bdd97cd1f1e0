"""Random histories of a source: each split is in one place, none is lost, none is read twice.

The coordinator, the kernel and the log are the real ones. Readers are played by hand, with the
state that a checkpoint restores. What the projection says is held against a twin that reads the
whole history again, with plain lists and copies.
"""

# What the fakes' methods do is their contract's to say.

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordlog.api.chain import Chain, SourceSpec
from coordlog.api.operator import Poll, PollStatus, SourceReader
from coordlog.coordinators.splits import Assignment, SplitCoordinatorProvider
from coordlog.kernel.builder import KernelConfig
from coordlog.messages import Accepted, DeliverEvent, InjectBarrier
from coordlog.projections.job.state import Phase
from coordlog.projections.splits.fold import (
    Assigned,
    Finished,
    Skipped,
    SplitsState,
    WithEnumerator,
)
from coordlog.schemas.builtin_types import SkipSplit, SplitFinished, SplitSkipped
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.source_types import (
    AddSplits,
    NoMoreSplits,
    RequestSplit,
    Split,
    SplitsDiscovered,
)
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob

NAMES = tuple("abcdefghijklmnop")
PARALLELISM = 3


class IdleReader(SourceReader):
    """Never asked for anything."""

    def add_splits(self, splits: Sequence[bytes]) -> None:
        raise AssertionError(splits)

    def poll(self) -> Poll:
        return Poll(status=PollStatus.WAITING)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        return b""


def chain_of(assignment: Assignment, *, keeps_state_across_splits: bool) -> Chain:
    def discover() -> SplitsDiscovered:
        found = [Split(split_id=one, content=b"") for one in NAMES]
        return SplitsDiscovered(splits=found, is_complete=True)

    return Chain(
        source=SourceSpec(
            operator_id="source",
            create_reader=IdleReader,
            coordinator=SplitCoordinatorProvider(
                "source", discover=discover, assignment=assignment
            ),
            keeps_state_across_splits=keeps_state_across_splits,
        ),
        operators=[],
    )


@dataclass
class PlayedReader:
    """What a subtask's reader knows. Everything but `told_no_more` is in its snapshot.

    It asks once and then waits, restored or not: a request that is forgotten stops the job.
    """

    attempt: FakeAttempt
    holds: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    is_asking: bool = False
    told_no_more: bool = False
    seen: int = 1

    def snapshot(self) -> dict[str, bytes]:
        return {"source": json.dumps([self.holds, self.done, self.is_asking]).encode()}

    def restore(self, accepted: Accepted) -> None:
        for one in accepted.states:
            self.holds, self.done, self.is_asking = json.loads(one.state or b"")
            self.attempt.last_barrier = accepted.restored_checkpoint
        for name in [one for one in self.holds if one in accepted.skipped_splits]:
            self.holds.remove(name)
            self.attempt.skip_split("source", name)


def restarting_at_once(config: KernelConfig) -> KernelConfig:
    """As often as it takes, and without a backoff, in which acks of others would time out."""
    return replace(config, restarts_max=100_000, restart_backoff_s=0.0)


@dataclass
class Played:
    """One job with its readers; every method is one thing that may happen."""

    chain: Chain
    is_batch: bool
    job: HandDrivenJob = field(init=False)
    readers: dict[int, PlayedReader] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.job = HandDrivenJob(
            self.chain,
            parallelism=PARALLELISM,
            is_batch=self.is_batch,
            configure=restarting_at_once,
            may_fail=True,
        )

    def register(self, subtask: int) -> None:
        state = self.job.runtime.state
        if state.phase is not Phase.RUNNING or state.subtasks[subtask].completion is not None:
            return
        reader = PlayedReader(self.job.register(subtask))
        reader.restore(reader.attempt.accepted)
        self.readers[subtask] = reader

    def ask(self, subtask: int) -> None:
        reader = self.readers.get(subtask)
        if reader is not None and not reader.is_asking:
            reader.is_asking = True
            reader.attempt.send("source", RequestSplit())

    def take(self, subtask: int) -> None:
        """The attempt handles the next message."""
        reader = self.readers.get(subtask)
        if reader is None or reader.seen >= len(reader.attempt.inbox):
            return
        message = reader.attempt.inbox[reader.seen]
        reader.seen += 1
        if isinstance(message, DeliverEvent):
            value = self.chain.payload_types.decode(message.payload_type, message.payload)
            if isinstance(value, AddSplits):
                assert not reader.told_no_more, "no split comes after no-more"
                reader.holds += [one.split_id for one in value.splits]
            reader.told_no_more |= isinstance(value, NoMoreSplits)
            reader.is_asking = False
            reader.attempt.ack("source", message.event_id)
        elif isinstance(message, InjectBarrier):
            reader.attempt.ack_checkpoint(message.checkpoint_id, states=reader.snapshot())

    def read(self, subtask: int) -> None:
        """The first split that the reader holds is read to its end."""
        reader = self.readers.get(subtask)
        if reader is not None and reader.holds:
            name = reader.holds.pop(0)
            reader.done.append(name)
            reader.attempt.finish_split("source", name)

    def give_up(self, subtask: int) -> None:
        """The first split that the reader holds cannot be read."""
        reader = self.readers.get(subtask)
        if reader is not None and reader.holds:
            reader.attempt.skip_split("source", reader.holds.pop(0))

    def skip(self, number: int) -> None:
        """Somebody asks that a split be skipped, wherever it is; who has it begins again."""
        name = NAMES[len(self.job.history()) * 7 % len(NAMES) - number]
        self.job.ask("", SkipSplit(split_id=name, why="scripted"))
        for subtask in [n for n, one in self.readers.items() if one.attempt.is_closed]:
            del self.readers[subtask]

    def work(self, subtask: int) -> None:
        """The attempt does what a reader does: handle all there is, read one split, ask."""
        if subtask not in self.readers:
            self.register(subtask)
        self.take_all(subtask)
        self.read(subtask)
        reader = self.readers.get(subtask)
        if reader is not None and not reader.holds and not reader.told_no_more:
            self.ask(subtask)
            self.take_all(subtask)

    def take_all(self, subtask: int) -> None:
        reader = self.readers.get(subtask)
        while reader is not None and reader.seen < len(reader.attempt.inbox):
            self.take(subtask)

    def complete(self, subtask: int) -> None:
        reader = self.readers.get(subtask)
        if reader is not None and reader.told_no_more and not reader.holds:
            del self.readers[subtask]
            reader.attempt.complete(states=reader.snapshot())

    def fail(self, subtask: int) -> None:
        if subtask in self.readers:
            self.readers.pop(subtask).attempt.fail()

    def replace(self, subtask: int) -> None:
        """A newer task takes the place of a live attempt (clause B4)."""
        if subtask in self.readers:
            self.register(subtask)

    def checkpoint(self, _subtask: int) -> None:
        self.job.trigger()

    def checkpoint_with_all(self, asking: int) -> None:
        """A checkpoint to whose barrier all come; one asks between the cut and its barrier."""
        for subtask in range(PARALLELISM):
            if subtask not in self.readers:
                self.register(subtask)
        self.job.trigger()
        self.ask(asking)
        for subtask in range(PARALLELISM):
            self.take_all(subtask)
        for subtask in range(PARALLELISM):
            self.take_all(subtask)

    def fail_globally(self, _subtask: int) -> None:
        if self.job.runtime.state.phase is Phase.RUNNING:
            self.job.run(lambda: self.job.runtime.fail_job("source", "scripted"))
            self.readers.clear()
            self.job.stage_ends("cancelled")
            self.job.advance(61.0)

    def crash(self, _subtask: int) -> None:
        """The next driver resumes in batch, and rolls back in streaming."""
        self.job.crash()
        self.readers.clear()
        self.job = HandDrivenJob(
            self.chain,
            parallelism=PARALLELISM,
            is_batch=self.is_batch,
            log=self.job.log,
            clock=self.job.clock,
            configure=restarting_at_once,
            may_fail=True,
        )

    def is_over(self) -> bool:
        state = self.job.runtime.state
        return state.finished_count == state.parallelism

    def to_the_end(self) -> None:
        for _ in range(200):
            if self.is_over():
                return
            for subtask in range(PARALLELISM):
                if subtask not in self.readers:
                    self.register(subtask)
                self.work(subtask)
                self.complete(subtask)
        raise AssertionError(f"nothing goes on: {self.job.runtime.state.projections['source']}")


@dataclass
class Twin:
    """Where splits are, by lists and copies: slow, and with nothing to be clever about."""

    assigned: list[tuple[int, int, str]] = field(default_factory=list)
    """(sequence, subtask, split)"""
    ended: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """(last barrier, kept) by split"""
    known: list[str] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)
    """No reset takes one away."""
    copies: dict[int, Twin] = field(default_factory=dict)
    """By checkpoint: as it was at the cut."""
    cut_sequences: dict[int, int] = field(default_factory=dict)

    def places(self) -> dict[str, str]:
        shown = dict.fromkeys(self.known, "enumerator")
        for _, subtask, name in self.assigned:
            assert shown[name] == "enumerator", f"{name} is assigned twice"
            shown[name] = f"{'ended' if name in self.ended else 'with'} {subtask}"
        skipped = {one for one in self.skipped if one in shown and "ended" not in shown[one]}
        return {**shown, **dict.fromkeys(skipped, "skipped")}


def twin_of(records: Sequence[Record], chain: Chain) -> Twin:
    twin = Twin()
    for one in records:
        sequence, subtask, n = one.sequence or 0, one.subtask or 0, one.checkpoint_id
        value = None
        if one.payload_type is not None and one.kind is not Kind.TYPE_REGISTERED:
            value = chain.payload_types.decode(one.payload_type, one.payload)
        if isinstance(value, SplitsDiscovered) and "closed" not in one.attributes:
            listed = [split.split_id for split in value.splits]
            # A listing leaves out known splits that do not wait: after a reset those that are skipped.
            twin.known = sorted({*twin.known, *twin.skipped.intersection(NAMES), *listed})
        if one.kind is Kind.EVENT_TO_SUBTASK and isinstance(value, AddSplits):
            twin.assigned += [(sequence, subtask, split.split_id) for split in value.splits]
        if one.kind is Kind.SPLIT_FINISHED and isinstance(value, SplitFinished):
            twin.ended[value.split_id] = (
                one.last_barrier or 0,
                one.attributes.get("kept") == "true",
            )
        if isinstance(value, SplitSkipped):
            twin.skipped.add(value.split_id)
        if one.kind is Kind.COORDINATOR_CHECKPOINTED and n is not None:
            copies, twin.copies = twin.copies, {}
            copied = copy.deepcopy(twin)
            twin.copies = {**copies, n: copied}
            twin.cut_sequences[n] = sequence
        if one.kind is Kind.RESET_TO_CHECKPOINT and n is not None:
            copies, cuts, ends = twin.copies, dict(twin.cut_sequences), twin.ended
            skipped = twin.skipped
            twin = copy.deepcopy(copies[n]) if n >= 0 else Twin()
            twin.copies, twin.cut_sequences, twin.skipped = copies, cuts, skipped
            # No restored reader has a split that ended between the cut and the barrier.
            over = {name for name, (barrier, _) in ends.items() if barrier < n}
            twin.ended |= {name: (-1, False) for _, _, name in twin.assigned if name in over}
        if one.kind is Kind.SUBTASK_RESET and n is not None:
            cut = twin.cut_sequences.get(n, -1)
            lost = [
                entry
                for entry in twin.assigned
                if entry[1] == subtask
                and entry[0] > cut
                and not twin.ended.get(entry[2], (0, False))[1]
            ]
            twin.assigned = [entry for entry in twin.assigned if entry not in lost]
            for _, of, name in [*twin.assigned, *lost]:
                ended, is_kept = twin.ended.get(name, (n - 1, False))
                if of == subtask and ended >= n and not is_kept:
                    del twin.ended[name]
    return twin


def places_of(state: SplitsState) -> dict[str, str]:
    shown = {}
    for name, known in sorted(state.splits.items()):
        match known.place:
            case WithEnumerator():
                shown[name] = "enumerator"
            case Assigned(subtask=subtask):
                shown[name] = f"with {subtask}"
            case Finished(subtask=subtask):
                shown[name] = f"ended {subtask}"
            case Skipped():
                shown[name] = "skipped"
    return shown


def check(played: Played) -> None:
    """Clause L3, and that what is quick to look up agrees with the places."""
    job = played.job
    state: SplitsState = job.runtime.state.projections["source"]
    places = places_of(state)
    assert places == twin_of(job.history(), played.chain).places()
    assert sorted(state.unassigned()) == [n for n, at in places.items() if at == "enumerator"]
    ordinals = [state.splits[name].ordinal for name in state.unassigned()]
    assert ordinals == sorted(ordinals)
    assert state.unassigned(2) == state.unassigned()[:2]
    for subtask, reader in played.readers.items():
        for name in reader.holds:
            assert places[name] == f"with {subtask}", f"{subtask} holds {name}"
        held = Counter(state.reader(subtask).splits)
        assert max(held.values(), default=1) == 1


ACTIONS = (
    # What goes on is drawn more often than what goes wrong.
    *["work"] * 8,
    *["take", "ask", "read", "complete", "checkpoint", "fail", "fail", "replace"] * 2,
    *["checkpoint_with_all"] * 5,
    *["fail_globally", "crash"],
)


def histories_of(actions: Sequence[str]) -> st.SearchStrategy[list[tuple[str, int]]]:
    one = st.tuples(st.sampled_from(actions), st.integers(0, PARALLELISM - 1))
    return st.lists(one, min_size=25, max_size=70)


histories = histories_of(ACTIONS)


def play(played: Played, history: Sequence[tuple[str, int]]) -> None:
    for subtask in range(PARALLELISM):
        played.register(subtask)
    for number, (action, subtask) in enumerate(history):
        if played.is_over():
            break
        getattr(played, action)(subtask)
        if number % 8 == 0 or action in ("fail", "fail_globally", "crash"):
            check(played)  # the twin reads all there is: not after each step
    played.to_the_end()
    check(played)


def done_in_the_end(played: Played) -> list[str]:
    """What the completed subtasks' last states say that they have read."""
    done: list[str] = []
    for subtask in range(PARALLELISM):
        completion = played.job.runtime.state.subtasks[subtask].completion
        assert completion is not None
        for one in completion.states:
            done += json.loads(one.state or b"")[1]
    return sorted(done)


@pytest.mark.slow
@pytest.mark.clause("L3")
@pytest.mark.clause("L4")
@pytest.mark.clause("L5")
@pytest.mark.clause("D3")
@pytest.mark.clause("D5")
@given(history=histories, assignment=st.sampled_from(["pull", "static"]))
@settings(max_examples=30)
def test_a_streaming_job_reads_each_split_once_whatever_fails(
    history: list[tuple[str, int]], assignment: Assignment
) -> None:
    played = Played(chain_of(assignment, keeps_state_across_splits=True), is_batch=False)

    play(played, history)

    assert done_in_the_end(played) == list(NAMES)


@pytest.mark.slow
@pytest.mark.clause("L4")
@given(history=histories, assignment=st.sampled_from(["pull", "static"]))
@settings(max_examples=15)
def test_a_batch_job_with_state_across_splits_reads_each_split_once(
    history: list[tuple[str, int]], assignment: Assignment
) -> None:
    played = Played(chain_of(assignment, keeps_state_across_splits=True), is_batch=True)

    play(played, history)

    assert done_in_the_end(played) == list(NAMES)


@pytest.mark.slow
@pytest.mark.clause("L4")
@given(history=histories, assignment=st.sampled_from(["pull", "static"]))
@settings(max_examples=15)
def test_a_batch_job_that_keeps_finished_splits_finishes_each_once(
    history: list[tuple[str, int]], assignment: Assignment
) -> None:
    """Were all to go back, as without the declaration, a failure late in a long job would begin it again."""
    played = Played(chain_of(assignment, keeps_state_across_splits=False), is_batch=True)

    play(played, history)

    ended: list[str] = []
    for one in played.job.history(Kind.RESET_TO_CHECKPOINT, Kind.SPLIT_FINISHED):
        if one.kind is Kind.RESET_TO_CHECKPOINT:
            ended.clear()  # in batch it is always to -1
        else:
            value = played.chain.payload_types.decode(one.payload_type, one.payload)
            assert isinstance(value, SplitFinished)
            ended.append(value.split_id)
    assert sorted(ended) == list(NAMES)
    assert sorted(name for _, name in played.job.runtime.state.kept_splits) == list(NAMES)


@pytest.mark.slow
@pytest.mark.clause("J2")
@pytest.mark.clause("L3")
@given(
    history=histories_of((*ACTIONS, "give_up", "skip", "skip")),
    assignment=st.sampled_from(["pull", "static"]),
    is_batch=st.booleans(),
)
@settings(max_examples=30)
def test_each_split_is_read_once_or_skipped_for_good_whatever_fails(
    history: list[tuple[str, int]],
    assignment: Assignment,
    is_batch: bool,  # noqa: FBT001, drawn
) -> None:
    played = Played(chain_of(assignment, keeps_state_across_splits=True), is_batch=is_batch)

    play(played, history)

    done = done_in_the_end(played)
    skipped = {name for _, name in played.job.runtime.state.skipped_splits}
    assert len(set(done)) == len(done)
    assert set(done) | skipped == set(NAMES)
    told = [
        played.chain.payload_types.decode(one.payload_type, one.payload)
        for one in played.job.history(Kind.FACT)
    ]
    assert {one.split_id for one in told if isinstance(one, SplitSkipped)} == skipped
