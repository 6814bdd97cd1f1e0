"""The known splits of a source that queries read, as its listing has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import overload

from coordlog.projections.splits.query_reads import ReadsState
from coordlog.schemas.source_types import Split

__all__ = ["KnownOfReads"]


class KnownOfReads(Sequence[Split]):
    """The known splits in the order of discovery: `PlacedSplits`. Any thread.

    Args:
        splits: Those of `state`, in the order of discovery; never changed afterwards.
        state: State of the reads.
    """

    def __init__(self, splits: Sequence[Split], state: ReadsState) -> None:
        self._splits, self._state = splits, state

    def __len__(self) -> int:
        return len(self._splits)

    @overload
    def __getitem__(self, index: int) -> Split: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Split]: ...

    def __getitem__(self, index: int | slice) -> Split | Sequence[Split]:
        return self._splits[index]

    @cached_property
    def _is_settled(self) -> Callable[[int], bool]:
        return self._state.when_settled()

    def is_finished(self, split_id: str) -> bool:
        """Whether every stream has committed the split, and its input may be released. Raises KeyError."""
        return self._state.numbers[split_id] < self._state.first

    def is_committed(self, split_id: str) -> bool:
        """Whether no read may need the split again. Raises KeyError."""
        return self._is_settled(self._state.numbers[split_id])
