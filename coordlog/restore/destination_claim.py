"""Whose destination it is, told by the log that a job writes: its id alone says nothing of another broker."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final, Protocol, runtime_checkable

from coordlog.api.chain import Chain
from coordlog.log.interface import LogIdentity

__all__ = ["FORMER_LOGS", "claim_destinations", "former_logs", "said_of_former_logs"]

FORMER_LOGS: Final = "former_logs"
"""The attribute of `EPOCH_STARTED` that names the logs that a job has left by an adoption."""


@runtime_checkable
class _Claiming(Protocol):
    """A sink whose destination holds which log writes there."""

    def claim(
        self, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]] = ()
    ) -> None:
        """Raise SinkError where another one does."""
        ...


def former_logs(launch: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Cluster id and topic id of each log that a job has left, the oldest first.

    Args:
        launch: The attributes of the `EPOCH_STARTED` in force.
    """
    found = [
        (str(cluster), str(topic)) for cluster, topic in json.loads(launch.get(FORMER_LOGS, "[]"))
    ]
    if "adopted_topic_id" in launch:  # the epoch that records an adoption
        found.append((launch.get("adopted_cluster_id", ""), launch["adopted_topic_id"]))
    return tuple(dict.fromkeys(found))


def said_of_former_logs(former: Collection[tuple[str, str]]) -> dict[str, str]:
    """What an `EPOCH_STARTED` says of them: each epoch hands it on to the next."""
    return {FORMER_LOGS: json.dumps([list(one) for one in former])} if former else {}


def claim_destinations(
    chain: Chain, job_id: str, log: LogIdentity, former: Collection[tuple[str, str]]
) -> None:
    """Let each sink see that no other log writes where it does, and hold from now on that this one does.

    Raises:
        SinkError: Another one does; nothing was appended.
    """
    for provider in chain.coordinators:
        if isinstance(provider.sink, _Claiming):
            provider.sink.claim(job_id, log, former)
