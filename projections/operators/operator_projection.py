"""The state of an event-sourced coordinator, as a fold of its operator's records."""

from __future__ import annotations

from collections.abc import Callable, Collection
from copy import deepcopy
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import Record

__all__ = ["OperatorProjection", "SharingCodec", "StateCodec", "StatesReader", "StatesWriter"]

S = TypeVar("S")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)


class StateCodec(Protocol[S]):
    """Codec of the states of one projection: equal states have equal bytes, and `decode(encode(s)) == s`."""

    @property
    def fingerprint(self) -> str:
        """Hash of the format: bytes of a codec with another fingerprint are not decoded."""
        ...

    def encode(self, state: S) -> bytes:
        """The state's bytes."""
        ...

    def decode(self, data: bytes) -> S:
        """The state in `data`. Raises ValueError if the bytes are no state."""
        ...


class StatesWriter(Protocol[In_contra]):
    """Encoder of the states of one snapshot: call `own` for each state, then `shared` once."""

    def own(self, state: In_contra) -> bytes:
        """The part that only this state has; equal for equal states."""
        ...

    def shared(self) -> bytes:
        """The parts that the states share, each once."""
        ...


class StatesReader(Protocol[Out_co]):
    """Decoder of the states of one snapshot."""

    def state(self, own: bytes) -> Out_co:
        """The state with this own part. Raises ValueError if the bytes are no state."""
        ...


class SharingCodec(Protocol[S]):
    """Codec of large states that share most parts: a snapshot holds each shared part once.

    `reader(shared).state(own) == state` for each state that a writer has encoded.
    """

    @property
    def fingerprint(self) -> str:
        """Hash of the format: bytes of a codec with another fingerprint are not decoded."""
        ...

    def writer(self, *, is_plain: bool = False) -> StatesWriter[S]:
        """Encoder for one snapshot. `is_plain`: for a hash, the same bytes on any machine; never decoded."""
        ...

    def reader(self, shared: bytes) -> StatesReader[S]:
        """Decoder for one snapshot. Raises ValueError if the bytes are no shared parts."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorProjection(Generic[S]):
    """A pure fold: no clock, no chance, no I/O; its state is best frozen, and shares structure with the state before.

    A state of lists and dicts, which `apply` could change in place, is copied at each cut and at each reset, and for
    each callback and query that reads it; one that resets leave as it is, for each record too.
    `apply` receives, in log order, every valid record of its operator and those of attempts, resets and checkpoints.
    `EVENT_REDELIVERED` arrives as the `EVENT_TO_COORDINATOR` that it repeats. The payload is decoded if it is of a type
    that the projection `reads`, and None if the record has none. At `RESET_TO_CHECKPOINT(n)` the state goes back to the
    cut of n (to `initial` at -1) before the record itself is applied, unless it `survives_resets`; `at_completion` may
    add to the state of the cut. `after_reset` may keep more, or `after_branch` if n is on another branch, or
    `after_end` if all subtasks have finished at n.
    """

    name: str
    version: int
    initial: S
    apply: Callable[[S, Record, Payload | None], S]
    codec: StateCodec[S] | SharingCodec[S] | None = None
    """Codec of its states in the job's snapshots, mostly `DerivedCodec(MyState)`. Without a codec
    the job has no snapshots, and each restore folds its log from the start."""
    survives_resets: bool = False
    """Whether resets leave the state unchanged: it describes effects outside, such as committed batches."""
    goes_on_from: tuple[int, ...] = ()
    """Earlier versions of the projection whose states in snapshots this version accepts."""
    at_completion: Callable[[int, Collection[int], S, S], S] | None = None
    """Function of a completed checkpoint's id, the subtasks that have finished in it, the state at its completion and
    that at its cut to the state to which resets go back; None: that at its cut. Readers are part of a checkpoint by
    their barriers, which are later than the cut."""
    after_reset: Callable[[S, S], S] | None = None
    """Function of the state before a reset and that of its checkpoint to the state after it; None: the latter."""
    after_branch: Callable[[S, S], S] | None = None
    """As `after_reset`, at a reset to a checkpoint that is no ancestor of the state before, as a savepoint of another
    branch; None: `after_reset`. If all subtasks have finished there, the state is that of the checkpoint."""
    after_end: Callable[[S, S], S] | None = None
    """As `after_reset`, at a reset to an ancestor at which all subtasks have finished; None: `after_reset`."""
    reads: tuple[type[Payload], ...] | None = None
    """Types of payloads that `apply` reads, in all their versions; None: all of the job. A payload of another type is
    not decoded, and not fetched if it is in the payload store: `apply` receives None instead."""

    @property
    def read_names(self) -> frozenset[str] | None:
        """Names of the types in `reads`, without versions; None: all."""
        if self.reads is None:
            return None
        return frozenset(payload_type_of(cls).name for cls in self.reads)

    def after(self, *, is_ancestor: bool, has_ended: bool) -> Callable[[S, S], S] | None:
        """Function of the states before a reset and at its checkpoint to the state after it; None: the latter.

        Of a projection that does not survive resets.

        Args:
            is_ancestor: Whether the checkpoint is an ancestor of the state before.
            has_ended: Whether all subtasks have finished at the checkpoint.
        """
        if not is_ancestor and self.after_branch is not None:
            return None if has_ended else self.after_branch
        return self.after_end if has_ended and self.after_end is not None else self.after_reset

    @property
    def outlives_resets(self) -> bool:
        """Whether a reset leaves the state, or parts of it, as they are."""
        return self.survives_resets or self.after_reset is not None or self.after_branch is not None

    def apart(self, state: S) -> S:
        """The state as an object of its own, if `apply` could change it in place: the state at a cut must stay."""
        if self._is_sharing or not getattr(self.codec, "is_changeable", True):
            return state
        try:
            return deepcopy(state)
        except Exception:  # noqa: BLE001, of any object in it
            return state  # it holds an object that Python cannot copy, or is nested too deeply

    @property
    def own_codec(self) -> StateCodec[S] | None:
        """The codec if it encodes each state by itself, else None."""
        return None if self._is_sharing else cast("StateCodec[S] | None", self.codec)

    @property
    def sharing_codec(self) -> SharingCodec[S] | None:
        """The codec if it encodes shared parts once, else None."""
        return cast("SharingCodec[S]", self.codec) if self._is_sharing else None

    @property
    def _is_sharing(self) -> bool:
        # `isinstance` with a protocol takes a hundred times as long.
        return hasattr(self.codec, "writer")
