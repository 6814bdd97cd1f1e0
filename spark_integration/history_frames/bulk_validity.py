"""Validity of a log's records, for whole Arrow batches of headers.

The same result as that of `coordlog.schemas.validity.judge` record by record, at a fiftieth of the cost:
runs of records with consecutive sequences are judged together, by their headers alone. A property test
compares the two.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from coordlog.projections.tables.audit import UNFINISHED
from coordlog.schemas.header import HEADER_BYTES, HEADER_VERSION, decode_header
from coordlog.schemas.validity import Counting, Verdict, count

__all__ = ["COUNTS", "REASONS", "Teller", "why_not"]

Codes = npt.NDArray[np.int8]
Headers = npt.NDArray[np.void]

_LAYOUT: Final = np.dtype(
    [
        ("version", "u1"),
        ("flags", "u1"),
        ("fingerprint", ">u8"),
        ("epoch", ">i4"),
        ("sequence", ">i8"),
        ("remaining", ">i4"),
        ("snapshot", ">i8"),
    ]
)
assert _LAYOUT.itemsize == HEADER_BYTES, "the layout is that of `schemas.header`"

COUNTS: Final = 0
_FITS: Final = 1
"""Undecided: the record counts if its turn is completed."""
_VERDICTS: Final = (
    Verdict.COMPLETES,
    Verdict.FITS,
    *(verdict for verdict in Verdict if verdict.is_void),
)
_CODES: Final = {verdict: code for code, verdict in enumerate(_VERDICTS)} | {Verdict.EPOCH: COUNTS}
REASONS: Final = (None, UNFINISHED, *(verdict.value for verdict in _VERDICTS[2:]))
"""Reason for which a record does not count, by code; None if it counts."""
_FOREIGN, _PLAIN, _STARTED = 0, 1, 2


def why_not(codes: Codes) -> pa.Array:
    """Reasons for which records do not count, as a column of text; NULL if a record counts.

    Args:
        codes: Codes of a `Teller`.
    """
    return pa.array(REASONS, pa.string()).take(pa.array(codes))


class Teller:
    """Finds the validity code of each record of a log, in log order.

    `tell` takes the headers of the next records and returns the codes that are decided by then, in log
    order, each once. `waiting` is the number of undecided records; at the end of the log `rest`
    returns their codes.

    Args:
        state: State of counting before the first record.
        waiting: `rest` of an earlier `Teller` that had this state.
    """

    def __init__(self, state: Counting, waiting: Sequence[int] = ()) -> None:
        self.state = state
        self._codes: Codes = np.array(waiting, np.int8)

    @property
    def waiting(self) -> int:
        """Number of records that wait for the end of a turn."""
        return len(self._codes)

    def rest(self) -> Codes:
        """Current codes of the waiting records."""
        return self._codes

    def tell(self, headers: pa.Array) -> Codes:
        """Codes of the next decided records: 0 if a record counts, else see `why_not`.

        Args:
            headers: The packed headers of further records: binary, null if a record has none.
        """
        before = len(self._codes)
        places, kinds = _decoded(headers)
        self._codes = np.concatenate([self._codes, np.empty(len(places), np.int8)])
        for first, end in _runs(places, kinds):
            self._run(places, kinds, headers, first, end, before)
        undecided = np.flatnonzero(self._codes == _FITS)
        count_decided = int(undecided[0]) if len(undecided) else len(self._codes)
        decided, self._codes = self._codes[:count_decided], self._codes[count_decided:]
        return decided

    def _run(
        self,
        places: Headers,
        kinds: npt.NDArray[np.int8],
        headers: pa.Array,
        first: int,
        end: int,
        before: int,
    ) -> None:
        """Judge a run: records of one kind and epoch, with consecutive sequences."""
        codes = self._codes[before:]
        if kinds[first] == _FOREIGN:
            codes[first:end] = _CODES[Verdict.VOID_HEADER]
        elif kinds[first] == _STARTED:
            for index in range(first, end):
                header = decode_header(headers[index].as_py())
                self.state, verdict = count(self.state, header)
                codes[index] = _CODES[verdict]
                if verdict is Verdict.EPOCH:
                    self._decide(before + index, Verdict.VOID_TURN)
        elif int(places["epoch"][first]) != self.state.epoch or self.state.epoch < 0:
            codes[first:end] = _CODES[Verdict.VOID_EPOCH]
        else:
            skipped = self.state.next_sequence - int(places["sequence"][first])
            valid = first + skipped if 0 <= skipped < end - first else end
            codes[first:valid] = _CODES[Verdict.VOID_SEQUENCE]
            if valid < end:
                self._accept(places["remaining"][valid:end], before + valid)

    def _accept(self, remaining: npt.NDArray[Any], place: int) -> None:
        """Judge consecutive records with the expected sequences; `place` is the index of the first one's code."""
        epoch, began, turn_began = self.state.epoch, self.state.next_sequence, self.state.turn_began
        self._codes[place : place + len(remaining)] = _FITS
        completing = np.flatnonzero(remaining == 0)
        if len(completing):
            last = int(completing[-1])
            self._decide(place + last + 1, Verdict.COMPLETES)
            turn_began = began + last + 1
        self.state = Counting(epoch, began + len(remaining), turn_began)

    def _decide(self, end: int, verdict: Verdict) -> None:
        """Set the codes of all undecided records before `end`."""
        part = self._codes[:end]
        part[part == _FITS] = _CODES[verdict]


def _decoded(headers: pa.Array) -> tuple[Headers, npt.NDArray[np.int8]]:
    """The headers as rows, and the kind of each: `_FOREIGN`, `_PLAIN`, or `_STARTED` for an `EPOCH_STARTED`."""
    length = len(headers)
    column = headers.cast(pa.large_binary())
    _, offsets_buffer, data_buffer = column.buffers()
    if data_buffer is None or length == 0:
        return np.zeros(length, _LAYOUT), np.zeros(length, np.int8)
    offsets = np.frombuffer(offsets_buffer, np.int64)[column.offset : column.offset + length + 1]
    data = np.frombuffer(data_buffer, np.uint8)
    whole = np.diff(offsets) == HEADER_BYTES
    if column.null_count:
        whole &= column.is_valid().to_numpy(zero_copy_only=False)
    if whole.all():
        rows = data[offsets[0] : offsets[-1]]
    else:
        rows = np.zeros((length, HEADER_BYTES), np.uint8)
        rows[whole] = data[offsets[:-1][whole][:, None] + np.arange(HEADER_BYTES)]
    places = np.ascontiguousarray(rows).reshape(-1).view(_LAYOUT)
    is_started = places["flags"] & 1 == 1
    kinds = np.where(is_started, _STARTED, _PLAIN).astype(np.int8)
    kinds[~whole | (places["version"] != HEADER_VERSION)] = _FOREIGN
    return places, kinds


def _runs(places: Headers, kinds: npt.NDArray[np.int8]) -> list[tuple[int, int]]:
    """Runs of one kind and epoch whose sequences rise by one, each as its first index and its end (exclusive)."""
    if not len(places):
        return []
    epochs = places["epoch"].astype(np.int64)
    distances = places["sequence"].astype(np.int64) - np.arange(len(places))
    changes = kinds[1:] != kinds[:-1]
    changes |= epochs[1:] != epochs[:-1]
    changes |= distances[1:] != distances[:-1]
    borders = [0, *(np.flatnonzero(changes) + 1).tolist(), len(places)]
    return list(itertools.pairwise(borders))
