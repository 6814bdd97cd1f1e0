"""Tests of coordinators and operators: a source without rows, and an attempt that runs the real chain by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from coordlog.api.chain import SourceSpec
from coordlog.api.coordinator import CoordinatorProvider, EventSourcedCoordinator, provide
from coordlog.api.operator import Operator, Poll, PollStatus, SourceReader
from coordlog.coordinators.commits import COMMITS
from coordlog.errors import UsageError
from coordlog.messages import DownMessage
from coordlog.schemas.payload import Payload
from coordlog.task.attempt import AttemptRunner, StepOutcome
from coordlog.testing.driven_job import HandDrivenJob

__all__ = ["RealAttempt", "RowsReader", "silent_source"]


class RowsReader(SourceReader):
    """Returns the batches that a test appends; has no splits."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        """Unread batches."""
        self.is_at_end = False
        """Whether the input ends after the unread batches."""

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Always raises."""
        raise UsageError("a `silent_source` has no splits: pass its rows to `RealAttempt.read`")

    def poll(self) -> Poll:
        """The next batch; at the end of the batches END or WAITING."""
        if self.batches:
            return Poll(status=PollStatus.BATCH, batch=self.batches.pop(0))
        return Poll(status=PollStatus.END if self.is_at_end else PollStatus.WAITING)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        """No bytes: there is no state."""
        return b""


_NO_STATE: Final = replace(COMMITS, name="coordlog.silent_source")


class _Silent(EventSourcedCoordinator[None]):
    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        raise UsageError(f"{type(event).__name__} was sent to a `silent_source`")


def silent_source(
    coordinator: CoordinatorProvider | None = None, *, operator_id: str = "source"
) -> SourceSpec:
    """A source without rows, for tests of operators and of the source's coordinator.

    Args:
        coordinator: Coordinator of the source; None for one that does nothing.
        operator_id: Id of the source if there is no `coordinator`.
    """
    provider = coordinator or provide(
        _Silent, operator_id=operator_id, payload_types=(), projection=_NO_STATE
    )
    return SourceSpec(
        operator_id=provider.operator_id,
        create_reader=RowsReader,
        coordinator=provider,
        merge_states=_no_state,
    )


def _no_state(_states: Sequence[bytes]) -> bytes:
    return b""


class RealAttempt:
    """An attempt that runs the real chain of a `HandDrivenJob`, whose source is a `silent_source`.

    It registers at once. Then it acts only in calls of this object: `take` handles messages, `read` processes rows.
    """

    def __init__(self, job: HandDrivenJob, subtask: int) -> None:
        self.attempt = job.register(subtask)
        self.attempt.returns_markers = False  # the runner returns them
        self._taken = 1
        """Number of handled messages. The first is the answer to the registration."""
        self.runner = AttemptRunner(
            job.chain,
            self.attempt.accepted,
            job_id=job.runtime.state.job_id,
            subtask=subtask,
            outbox=self.attempt.say,
            why_over=lambda: "its connection is lost" if self.attempt.is_closed else None,
            payloads=job.payloads.options,
        )
        self.runner.open()

    def operator(self, operator_id: str) -> Operator:
        """The operator object with this id, for inspection."""
        link = self.runner.link(operator_id)
        assert isinstance(link, Operator), f"{operator_id!r} is the source"
        return link

    def take(self, count: int | None = None) -> list[DownMessage]:
        """Handle the next `count` messages of the inbox, or all if None, and return them."""
        taken = list[DownMessage]()
        while self._taken < len(self.attempt.inbox) and len(taken) != count:
            message = self.attempt.inbox[self._taken]
            self._taken += 1
            self.runner.handle(message)
            taken.append(message)
        return taken

    def read(self, *batches: pa.RecordBatch) -> None:
        """Pass these batches through the chain."""
        self._reader.batches.extend(batches)
        for _ in batches:
            self.runner.step()

    def step(self) -> StepOutcome:
        """Read the next batch, unless an operator holds rows and waits; then `read` has left the batch unread."""
        return self.runner.step()

    def end(self) -> StepOutcome:
        """End the input. Call it again after `take` if the outcome is that an operator waits."""
        self._reader.is_at_end = True
        return self.runner.step()

    @property
    def is_completed(self) -> bool:
        """Whether the attempt has completed."""
        return self.runner.is_completed

    @property
    def _reader(self) -> RowsReader:
        reader = self.runner.link(self.runner.source_id)
        assert isinstance(reader, RowsReader), "the chain begins with a `silent_source`"
        return reader
