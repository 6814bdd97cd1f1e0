"""What each record of a log is worth, for whole Arrow batches of headers.

The same as `coordlog.schemas.validity.judge` says one record at a time, at a fiftieth of the cost:
records that follow each other in the ordinary way are told together, by their places alone. A
property test holds the two together.
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
"""May count yet: its turn is not whole."""
_VERDICTS: Final = (Verdict.COMPLETES, Verdict.FITS, *(one for one in Verdict if one.is_void))
_CODES: Final = {one: code for code, one in enumerate(_VERDICTS)} | {Verdict.EPOCH: COUNTS}
REASONS: Final = (None, UNFINISHED, *(one.value for one in _VERDICTS[2:]))
"""Why a record does not count, by code; None where it does."""
_FOREIGN, _PLAIN, _STARTED = 0, 1, 2


def why_not(codes: Codes) -> pa.Array:
    """Why records do not count, NULL where they do, as a column of text.

    Args:
        codes: As `Teller` gives them.
    """
    return pa.array(REASONS, pa.string()).take(pa.array(codes))


class Teller:
    """Says of each record of a log, in log order, what it is worth.

    `tell` takes the headers of the next records and gives the codes of those whose fate is known by
    then, which are the first ones that it has not given yet; `waiting` is how many are left. At the
    end of the log `rest` gives their codes.

    Args:
        state: Where the log stands before the first record.
        waiting: The codes that an earlier one had not given when it was in this state.
    """

    def __init__(self, state: Counting, waiting: Sequence[int] = ()) -> None:
        self.state = state
        self._codes: Codes = np.array(waiting, np.int8)

    @property
    def waiting(self) -> int:
        """How many records wait for the fate of a turn."""
        return len(self._codes)

    def rest(self) -> Codes:
        """Of the records that wait, as of now."""
        return self._codes

    def tell(self, headers: pa.Array) -> Codes:
        """The codes of the next records that are decided; 0 counts, else `why_not` tells.

        Args:
            headers: The packed headers of more records; binary, null where a record has none.
        """
        before = len(self._codes)
        places, kinds = _decoded(headers)
        self._codes = np.concatenate([self._codes, np.empty(len(places), np.int8)])
        for first, end in _runs(places, kinds):
            self._run(places, kinds, headers, first, end, before)
        undecided = np.flatnonzero(self._codes == _FITS)
        told = int(undecided[0]) if len(undecided) else len(self._codes)
        done, self._codes = self._codes[:told], self._codes[told:]
        return done

    def _run(
        self,
        places: Headers,
        kinds: npt.NDArray[np.int8],
        headers: pa.Array,
        first: int,
        end: int,
        before: int,
    ) -> None:
        """Records of one kind and epoch, each with the sequence after the one before."""
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
            fitting = first + skipped if 0 <= skipped < end - first else end
            codes[first:fitting] = _CODES[Verdict.VOID_SEQUENCE]
            if fitting < end:
                self._fit(places["remaining"][fitting:end], before + fitting)

    def _fit(self, remaining: npt.NDArray[Any], place: int) -> None:
        """Records that fit, one after the other; the first of them is the code at `place`."""
        epoch, began, turn_began = self.state.epoch, self.state.next_sequence, self.state.turn_began
        self._codes[place : place + len(remaining)] = _FITS
        completing = np.flatnonzero(remaining == 0)
        if len(completing):
            last = int(completing[-1])
            self._decide(place + last + 1, Verdict.COMPLETES)
            turn_began = began + last + 1
        self.state = Counting(epoch, began + len(remaining), turn_began)

    def _decide(self, end: int, verdict: Verdict) -> None:
        """All that fits before `end` has this fate."""
        part = self._codes[:end]
        part[part == _FITS] = _CODES[verdict]


def _decoded(headers: pa.Array) -> tuple[Headers, npt.NDArray[np.int8]]:
    """The headers as rows, and of each whether it is ours, and whether an `EPOCH_STARTED`."""
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
    """The parts, begin and end, in which kind and epoch are the same and sequences rise by one."""
    if not len(places):
        return []
    epochs = places["epoch"].astype(np.int64)
    distances = places["sequence"].astype(np.int64) - np.arange(len(places))
    changes = kinds[1:] != kinds[:-1]
    changes |= epochs[1:] != epochs[:-1]
    changes |= distances[1:] != distances[:-1]
    borders = [0, *(np.flatnonzero(changes) + 1).tolist(), len(places)]
    return list(itertools.pairwise(borders))
