"""Errors of applying a record, with its offset. Records are untrusted: any process may have written them."""

from __future__ import annotations

from types import TracebackType

from coordlog.errors import LogError, PayloadLostError, RecordError
from coordlog.schemas.record import Record

__all__ = ["Applying"]


class Applying:
    """A block that applies a record that counts; its errors become a RecordError with the offset.

    Errors of an unreachable log or payload store pass unchanged: the record is not their cause.
    """

    __slots__ = ("_offset", "_record")

    def __init__(self, offset: int, record: Record) -> None:
        self._offset, self._record = offset, record

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _at: TracebackType | None,
    ) -> None:
        """Add offset and kind of the record to the error."""
        if isinstance(error, RecordError):
            raise RecordError(self._offset, error.kind, error.problem) from error
        if isinstance(error, LogError) and not isinstance(error, PayloadLostError):
            return
        if isinstance(error, Exception):
            problem = f"it cannot be applied: {type(error).__name__}: {error}"
            raise RecordError(self._offset, self._record.kind.value, problem) from error
