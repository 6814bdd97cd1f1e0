"""Ownership of a destination. Identified by the job's log, because job ids repeat across brokers."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Protocol, runtime_checkable

from coordlog.api.chain import Chain
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
        places = {place for operator_id, place in committed if operator_id == provider.operator_id}
        if isinstance(provider.sink, _OfParts):
            provider.sink.refuse_lost_parts(job_id, places)
        elif provider.destination in places and isinstance(provider.sink, LossChecking):
            provider.sink.refuse_lost_output(job_id)
        if isinstance(provider.sink, _Claiming):
            provider.sink.claim(job_id, log, former)


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
