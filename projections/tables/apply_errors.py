"""What a fold cannot take, by its offset: somebody else may have written it, so it may say anything."""

from __future__ import annotations

from types import TracebackType

from coordlog.errors import LogError, PayloadLostError, RecordError
from coordlog.schemas.record import Record

__all__ = ["Applying"]


class Applying:
    """A block that applies a record that counts; what it raises becomes a RecordError with the record's offset.

    But what says that log or payload store cannot be reached now: that is not the record's.
    """

    __slots__ = ("_offset", "_record")

    def __init__(self, offset: int, record: Record) -> None:
        self._offset, self._record = offset, record

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _at: TracebackType | None,
    ) -> None:
        """Name the record."""
        if isinstance(error, RecordError):
            raise RecordError(self._offset, error.kind, error.problem) from error
        if isinstance(error, LogError) and not isinstance(error, PayloadLostError):
            return
        if isinstance(error, Exception):
            problem = f"it cannot be applied: {type(error).__name__}: {error}"
            raise RecordError(self._offset, self._record.kind.value, problem) from error
