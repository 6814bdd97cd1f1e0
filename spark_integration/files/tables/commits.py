"""The coordinator of a table's sink: numbers the checkpoints that it commits, so that the table knows each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

from coordlog.api.coordinator import (
    CommittableOf,
    CoordinatorContext,
    CoordinatorProvider,
    EventSourcedCoordinator,
    Sink,
)
from coordlog.limits import PAYLOAD_BYTES_MAX
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.spark_integration.files.payloads import SINK_PAYLOADS, CommitToTable, StagedFile
from coordlog.spark_integration.files.sink.table_commits import TABLE_COMMITS, TableCommits

__all__ = ["TableCommitProvider"]

_COMMITTABLE = payload_type_of(StagedFile)

_INTENT_BYTES: Final = PAYLOAD_BYTES_MAX * 3 // 4
"""Limit of the committables of one intent; its encoding stays below `PAYLOAD_BYTES_MAX`."""


class _TableCommitCoordinator(EventSourcedCoordinator[TableCommits]):
    """Records all intents of a checkpoint in one turn, with one number."""

    def __init__(self, context: CoordinatorContext, per_intent: int) -> None:
        super().__init__(context)
        self._per_intent = per_intent

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Always raise NotImplementedError: the writers of a sink send no events."""
        raise NotImplementedError(
            f"the sink {self.context.operator_id!r} handles no events; subtask {subtask} sent a "
            f"{type(event).__name__}"
        )

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Record the intents; a repeated notification finds nothing left."""
        committables = list(self.context.committables(checkpoint_id))
        number = self.state.following  # before the first intent, which counts it up
        for part, covered in enumerate(_parts(committables, self._per_intent)):
            intent = CommitToTable(
                checkpoint_id=checkpoint_id,
                number=number,
                part=part,
                epoch=self.context.epoch,
                files=_files(covered),
            )
            is_all = len(covered) == len(committables)
            self.context.commit(checkpoint_id, intent, committables=None if is_all else covered)


class TableCommitProvider(CoordinatorProvider):
    """Creates the coordinators of a table's sink.

    Args:
        operator_id: Id of the sink.
        sink: Settles the intents.
        files_per_intent: Largest number of files of one intent, and so of one commit of the table.
        destination: Destination of the sink as the log records it, without credentials.
        refuse_commits_from: Raises SinkError if the table has a commit of a job, its first argument, with this number
            or a higher one.
    """

    payload_types: tuple[type[Payload], ...] = SINK_PAYLOADS
    projection: OperatorProjection[Any] | None = TABLE_COMMITS

    def __init__(
        self,
        operator_id: str,
        *,
        sink: Sink,
        files_per_intent: int,
        destination: str,
        refuse_commits_from: Callable[[str, int], None],
    ) -> None:
        self.operator_id, self.sink, self.destination = operator_id, sink, destination
        self._per_intent, self._refuse_commits_from = files_per_intent, refuse_commits_from

    def refuse_unknown_commits(self, job_id: str, state: TableCommits | None) -> None:
        """Refuse a table with commits that the log has not, as after a return to an older copy of it.

        Raises:
            SinkError: The table has some.
        """
        self._refuse_commits_from(job_id, (state or TABLE_COMMITS.initial).following)

    def create(self, context: CoordinatorContext) -> _TableCommitCoordinator:
        """A new coordinator."""
        return _TableCommitCoordinator(context, self._per_intent)


def _parts(committables: Sequence[CommittableOf], count: int) -> Iterator[Sequence[CommittableOf]]:
    """The committables in order, each part with at most `count`, and with at most `_INTENT_BYTES`.

    Names of files have the folders of their partitions, which the job may not know: those of the table.
    """
    start = size_bytes = 0
    for end, committable in enumerate(committables):
        size_bytes += len(committable.content)
        if end > start and (end - start == count or size_bytes > _INTENT_BYTES):
            yield committables[start:end]
            start, size_bytes = end, len(committable.content)
    if committables:
        yield committables[start:]


def _files(committables: Sequence[CommittableOf]) -> list[StagedFile]:
    return [cast("StagedFile", _COMMITTABLE.decode(one.content)) for one in committables]
