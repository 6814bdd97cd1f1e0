"""Ownership of a destination. Identified by the job's log, because job ids repeat across brokers."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Protocol, runtime_checkable

from coordlog.api.chain import Chain
from coordlog.api.coordinator import CoordinatorProvider
from coordlog.log.interface import LogIdentity
from coordlog.projections.job.launch import FORMER_LOGS
from coordlog.projections.job.state import JobState

__all__ = ["LossChecking", "claim_destinations", "former_logs_attributes", "refuse_unknown_commits"]


@runtime_checkable
class _Claiming(Protocol):
    """A sink whose destination stores the identity of the log that writes there."""

    def claim(
        self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]] = ()
    ) -> None:
        """Raise SinkError if the destination belongs to another log."""
        ...


@runtime_checkable
class LossChecking(Protocol):
    """A sink that can see whether its destination is that of its earlier commits."""

    def refuse_lost_output(self, job_id: str) -> None:
        """Raise SinkError if the destination is new."""
        ...


@runtime_checkable
class _OfOperators(Protocol):
    """A sink whose destination can tell the commits of one operator from those of another."""

    def refuse_lost_commits(self, operator_id: str) -> None:
        """Raise SinkError if the destination has no trace of the commits of this other operator."""
        ...


@runtime_checkable
class _OfParts(Protocol):
    """A sink of several destinations, all of which its provider's `destination` names."""

    def refuse_lost_parts(self, job_id: str, committed: Collection[str]) -> None:
        """Raise SinkError if a destination that one of `committed` names is new."""
        ...


@runtime_checkable
class _CommitChecking(Protocol):
    """A provider that can see whether its log has every commit of the destination."""

    # `Any`: the projection is the provider's own.
    def refuse_unknown_commits(self, job_id: str, state: Any | None) -> None:  # noqa: ANN401
        """Raise SinkError if the destination has a commit that the state of the projection has not."""
        ...


def former_logs_attributes(former: Collection[tuple[str, str]]) -> dict[str, str]:
    """Attribute of an `EPOCH_STARTED` with the former logs, which each epoch passes on to the next."""
    return {FORMER_LOGS: json.dumps([list(identity) for identity in former])} if former else {}


def claim_destinations(
    chain: Chain,
    job_id: str,
    log: LogIdentity,
    former: Collection[tuple[str, str]],
    committed: Collection[tuple[str, str]] = (),
) -> None:
    """Claim each sink's destination for this log.

    Args:
        chain: Chain of the job.
        job_id: Id of the job.
        log: Log of the job.
        former: Cluster id and topic id of each log that the job has left.
        committed: Operator id and destination of each commit of the log.

    Raises:
        SinkError: The destination belongs to another log, or has lost the commits of this one; nothing was
            appended.
    """
    for provider in chain.coordinators:
        _refuse_lost(provider, job_id, committed)
        if isinstance(provider.sink, _Claiming):
            provider.sink.claim(job_id, log, former)


def _refuse_lost(
    provider: CoordinatorProvider, job_id: str, committed: Collection[tuple[str, str]]
) -> None:
    """Refuse a destination that has lost commits, whichever operator has made them: a sink may be renamed."""
    sink = provider.sink
    if isinstance(sink, _OfParts):
        own = provider.operator_id
        sink.refuse_lost_parts(job_id, {place for writer, place in committed if writer == own})
        return
    writers = {writer for writer, place in committed if place == provider.destination}
    others = sorted(writers - {provider.operator_id})
    if isinstance(sink, _OfOperators):
        for writer in others:
            sink.refuse_lost_commits(writer)
        writers -= set(others)
    if writers and isinstance(sink, LossChecking):
        sink.refuse_lost_output(job_id)


def refuse_unknown_commits(chain: Chain, job_id: str, state: JobState) -> None:
    """Refuse a destination with commits that the log has not, as an older copy of it.

    Args:
        chain: Chain of the job.
        job_id: Id of the job.
        state: State folded from the log once no other driver appends to it.

    Raises:
        SinkError: A destination has such commits.
    """
    for provider in chain.coordinators:
        if isinstance(provider, _CommitChecking):
            provider.refuse_unknown_commits(job_id, state.projections.get(provider.operator_id))
