"""The state of one event-sourced coordinator, as a fold of its operator's records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Record

__all__ = ["OperatorProjection", "StateCodec"]

S = TypeVar("S")


class StateCodec(Protocol[S]):
    """States of one projection to bytes and back: equal states have equal bytes, and `decode(encode(s)) == s`."""

    @property
    def fingerprint(self) -> str:
        """Changes when the bytes do: what another one has written is not decoded."""
        ...

    def encode(self, state: S) -> bytes:
        """The state's bytes."""
        ...

    def decode(self, data: bytes) -> S:
        """The state in `data`. Raises ValueError where the bytes are none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorProjection(Generic[S]):
    """A pure fold: no clock, no chance, no I/O; its state is frozen and shares structure with the one before.

    `apply` is given, in log order: every record of its operator that counts, and those of attempts, resets and
    checkpoints. `EVENT_REDELIVERED` comes as the `EVENT_TO_COORDINATOR` that it repeats. The payload is decoded where
    the record has one of a registered type, else None. At `RESET_TO_CHECKPOINT(n)` the state goes back to the cut of n
    (to `initial` at -1) before the record itself is applied.
    """

    name: str
    version: int
    initial: S
    apply: Callable[[S, Record, Payload | None], S]
    codec: StateCodec[S] | None = None
    """What a job's snapshots hold its states with: `DerivedCodec(MyState)`, for most. Without one
    the job has no snapshots, and each restore folds its log from the start."""
