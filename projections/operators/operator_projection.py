"""The state of one event-sourced coordinator, as a fold of its operator's records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Record

__all__ = ["OperatorProjection", "SharingCodec", "StateCodec", "StatesReader", "StatesWriter"]

S = TypeVar("S")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)


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


class StatesWriter(Protocol[In_contra]):
    """Encodes the states that one snapshot holds: `own` for each, then `shared`."""

    def own(self, state: In_contra) -> bytes:
        """What this state alone has; equal for equal states."""
        ...

    def shared(self) -> bytes:
        """What they are made of, each part once."""
        ...


class StatesReader(Protocol[Out_co]):
    """Decodes the states that one snapshot holds."""

    def state(self, own: bytes) -> Out_co:
        """The state. Raises ValueError where the bytes are none."""
        ...


class SharingCodec(Protocol[S]):
    """A codec of states that are large and have most in common: it is encoded once in a snapshot, not once for each.

    `reader(shared).state(own) == state` for each state that a writer has been given.
    """

    @property
    def fingerprint(self) -> str:
        """Changes when the bytes do: what another one has written is not decoded."""
        ...

    def writer(self, *, is_plain: bool = False) -> StatesWriter[S]:
        """Of one snapshot. `is_plain`: for a hash, the same on any machine; nothing reads it again."""
        ...

    def reader(self, shared: bytes) -> StatesReader[S]:
        """Of one snapshot. Raises ValueError where the bytes are none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorProjection(Generic[S]):
    """A pure fold: no clock, no chance, no I/O; its state is frozen and shares structure with the one before.

    `apply` is given, in log order: every record of its operator that counts, and those of attempts, resets and
    checkpoints. `EVENT_REDELIVERED` comes as the `EVENT_TO_COORDINATOR` that it repeats. The payload is decoded where
    the record has one of a registered type, else None. At `RESET_TO_CHECKPOINT(n)` the state goes back to the cut of n
    (to `initial` at -1) before the record itself is applied, unless it `survives_resets`; `after_reset` may keep more.
    """

    name: str
    version: int
    initial: S
    apply: Callable[[S, Record, Payload | None], S]
    codec: StateCodec[S] | SharingCodec[S] | None = None
    """What a job's snapshots hold its states with: `DerivedCodec(MyState)`, for most. Without one
    the job has no snapshots, and each restore folds its log from the start."""
    survives_resets: bool = False
    """The state is of what has been done outside, such as batches that are committed: no reset undoes that."""
    goes_on_from: tuple[int, ...] = ()
    """Earlier versions of it: a snapshot's state of theirs is one that this version may begin with."""
    after_reset: Callable[[S, S], S] | None = None
    """The state that a reset leaves, of the state before it and that of its checkpoint; None: the latter."""

    @property
    def own_codec(self) -> StateCodec[S] | None:
        """The codec, where it encodes each state by itself."""
        return None if self._is_sharing else cast("StateCodec[S] | None", self.codec)

    @property
    def sharing_codec(self) -> SharingCodec[S] | None:
        """The codec, where states share what they have in common."""
        return cast("SharingCodec[S]", self.codec) if self._is_sharing else None

    @property
    def _is_sharing(self) -> bool:
        # A protocol's `isinstance` takes a hundred times as long.
        return hasattr(self.codec, "writer")
