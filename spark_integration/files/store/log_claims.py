"""Claims: which log writes at a destination. One protocol for folders of files and for tables.

A job's id says nothing of another broker: two logs of one id would write the same rows twice, and the driver of
one would remove what a batch of the other has staged. So the destination keeps the logs of a job, numbered from 0,
and each entry is written once: the newest is the one that writes there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from coordlog.errors import JobMovedError, SinkError
from coordlog.log.interface import LogIdentity

__all__ = ["Claim", "ClaimKeeper", "check_held", "claim_for"]

_LOG_FIELDS: Final = ("cluster_id", "topic_id", "name", "topic")


class ClaimKeeper(Protocol):
    """Where one destination keeps the claims of one job."""

    @property
    def where(self) -> str:
        """The destination, for people."""
        ...

    @property
    def release(self) -> str:
        """The last step that a message offers, such as how a person removes the claims: the end of a sentence."""
        ...

    def read_claim(self, number: int) -> bytes | None:
        """The entry of this number; None if there is none."""
        ...

    def write_claim(self, number: int, content: bytes) -> None:
        """Write this entry, for readers of all processes; if it is there already it stays as it is."""
        ...

    def claim_path(self, number: int) -> str:
        """Name of this entry, for people."""
        ...

    def refuse_earlier_output(self, job_id: str, /) -> None:
        """Raise SinkError if a log that begins anew would write rows there a second time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The fact that a log writes at a destination."""

    log: LogIdentity
    following: int
    """Number of the entry that the next log would write."""
    begins_anew: bool = False
    """Whether an earlier topic of this log's name was deleted, and the log does not continue it."""


def claim_for(
    keeper: ClaimKeeper,
    job_id: str,
    log: LogIdentity,
    former: Collection[tuple[str, str]],
    *,
    refuse_earlier_output: Callable[[], None] | None = None,
) -> Claim:
    """See that no other log of this job writes there, and keep that `log` does.

    Of two that claim at once one gets it.

    Args:
        keeper: The destination's.
        job_id: The job.
        log: The one that it writes.
        former: Cluster id and topic id of each log that it has left by an adoption.
        refuse_earlier_output: Called in place of the keeper's if the job's topic was deleted and made again.

    Returns:
        What `check_held` is given.

    Raises:
        SinkError: Another log does, and this one does not continue it; or it is gone, and its rows would be
            written again; or the destination does not keep what is written there.
    """
    refuse = refuse_earlier_output or partial(keeper.refuse_earlier_output, job_id)
    number, holder = _holder(keeper, 0)
    while holder is None or not _is_same_log(holder, log):
        if holder is not None:
            _check_continues(keeper, job_id, holder, log, former, refuse)
        keeper.write_claim(number, _encoded(log))
        written, (number, holder) = number, _holder(keeper, number)
        if holder is None:
            raise SinkError(
                keeper.where,
                f"{keeper.claim_path(written)} was written, and is not there",
                "check that what is written there can be read, then start the job again",
            )
    content = keeper.read_claim(number - 2) if number > 1 else None
    before = None if content is None else _decoded(keeper.claim_path(number - 2), content)
    begins_anew = before is not None and _is_made_again(before, log) and _id(before) not in former
    return Claim(log=log, following=number, begins_anew=begins_anew)


def check_held(keeper: ClaimKeeper, claim: Claim) -> None:
    """See that no other log writes there since: one look for an entry, as a rule.

    Raises:
        JobMovedError: The job has been adopted, and continues in another log.
    """
    _, holder = _holder(keeper, claim.following)
    if holder is not None and not _is_same_log(holder, claim.log):
        raise JobMovedError(
            keeper.where,
            f"since this driver began the job continues there with another log, {_described(holder)}; "
            f"this one's is {_described(claim.log)}: rows would be written a second time",
            "nothing more is published from here: stop this driver, and leave the job to the other one",
        )


def _holder(keeper: ClaimKeeper, number: int) -> tuple[int, LogIdentity | None]:
    """The log that writes there, and the number of the entry that another one would write."""
    holder = None
    while (content := keeper.read_claim(number)) is not None:
        holder = _decoded(keeper.claim_path(number), content)
        number += 1
    return number, holder


def _check_continues(
    keeper: ClaimKeeper,
    job_id: str,
    holder: LogIdentity,
    log: LogIdentity,
    former: Collection[tuple[str, str]],
    refuse_earlier_output: Callable[[], None],
) -> None:
    if _id(holder) in former:
        return
    if _is_made_again(holder, log):
        refuse_earlier_output()
        return
    if holder.topic and holder.cluster_id == log.cluster_id:
        use_that_log = (
            f"use the topic prefix of that log (`--topic-prefix`), whose topic is {holder.topic}"
        )
    else:
        use_that_log = "use the broker that the job was begun on"
    raise SinkError(
        keeper.where,
        f"job {job_id!r} writes there with another log, {_described(holder)}; this one is "
        f"{_described(log)}: rows would be written a second time, and what the other has staged be "
        "removed",
        f"{use_that_log}; if that is lost `coordlog adopt` moves its "
        f"history here; else use another destination (or {keeper.release})",
    )


def _decoded(path: str, content: bytes) -> LogIdentity:
    try:
        fields = json.loads(content)
        return LogIdentity(**{name: str(fields[name]) for name in _LOG_FIELDS})
    except (ValueError, KeyError, TypeError) as error:
        raise SinkError(
            path,
            f"it does not say which log writes there: {error!r}",
            "put it back as it was, or use another destination",
        ) from error


def _encoded(log: LogIdentity) -> bytes:
    return json.dumps({name: getattr(log, name) for name in _LOG_FIELDS}).encode()


def _id(log: LogIdentity) -> tuple[str, str]:
    return log.cluster_id, log.topic_id


def _is_same_log(log: LogIdentity, other: LogIdentity) -> bool:
    return _id(log) == _id(other)


def _is_made_again(holder: LogIdentity, log: LogIdentity) -> bool:
    """Whether the holder's topic was deleted: a cluster has one topic of a name."""
    return bool(log.topic) and (holder.cluster_id, holder.topic) == (log.cluster_id, log.topic)


def _described(log: LogIdentity) -> str:
    return f"{log.name} (cluster {log.cluster_id}, topic id {log.topic_id})"
