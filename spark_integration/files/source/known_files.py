"""Files of which the log has splits, for comparison with a listing: there may be a million of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from coordlog.projections.splits.table import SplitsInOrder
from coordlog.schemas.source_types import Split
from coordlog.spark_integration.files.listing import SeenFile, compared_mark, modified_us
from coordlog.spark_integration.files.payloads import FileSplit
from coordlog.spark_integration.files.source.split_bytes import decode_split

__all__ = ["KnownFiles"]

_NO_TIME: Final = -(2**63)


class KnownFiles(Mapping[str, Sequence[FileSplit]]):
    """The splits of each known file by its path, in the order of discovery. For one thread.

    Splits are decoded at each access. Held are, for each file, its path, a place, its time and a hash of size, mark and
    link: about 140 bytes beside the path, which the splits share.

    Args:
        known: Splits that are in the log, in the order of discovery.
    """

    def __init__(self, known: Sequence[Split] = ()) -> None:
        self._known: Sequence[Split] = ()
        self._last = ""
        self._begin()
        self.update(known)

    def _begin(self) -> None:
        self._rows: dict[str, int] = {}
        self._places, self._hashes, self._missing = array("q"), array("q"), array("q")
        self._times = array("q")
        self._more: dict[str, list[int]] = {}
        """Places of the further splits of files that have several."""

    def update(self, known: Sequence[Split]) -> None:
        """Replace the splits. Those of the last call are not decoded again."""
        count = len(self._known)
        is_more = count <= len(known) and (count == 0 or known[count - 1].split_id == self._last)
        self._known = known
        if is_more:
            self._add(range(count, len(known)))
        else:
            self._renew()
        self._last = known[-1].split_id if known else ""

    def is_as_listed(self, file: SeenFile) -> bool:
        """Whether all splits of this file are known, and its size, mark and link are those of its listing."""
        row = self._rows.get(file.path)
        return row is not None and self._missing[row] <= 0 and self._hashes[row] == _hash_of(file)

    def is_whole(self, path: str) -> bool:
        """Whether all splits of this file are known. Raises KeyError if none is."""
        return self._missing[self._rows[path]] <= 0

    def modified_us(self, path: str) -> int | None:
        """Time at which the file was modified when it was listed, or None. Raises KeyError."""
        time_us = self._times[self._rows[path]]
        return None if time_us == _NO_TIME else time_us

    def modified_before(self, time_us: int) -> list[str]:
        """Files that were modified before this time when they were listed."""
        return [path for path, row in self._rows.items() if _NO_TIME < self._times[row] < time_us]

    def split_ids(self, path: str) -> list[str]:
        """Ids of the file's splits. Raises KeyError."""
        if path not in self._more and self._known[self._places[self._rows[path]]].split_id == path:
            return [path]
        return [split.split_id for split in self[path]]

    def __getitem__(self, path: str) -> list[FileSplit]:
        places = (self._places[self._rows[path]], *self._more.get(path, ()))
        return [decode_split(self._known[place].content) for place in places]

    def __contains__(self, path: object) -> bool:
        return path in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def _add(self, places: range) -> None:
        for place in places:
            encoded = self._known[place]
            split = decode_split(encoded.content)
            row = self._rows.get(split.path)
            if row is not None:
                self._missing[row] -= 1
                self._more.setdefault(split.path, []).append(place)
                continue
            path = encoded.split_id if split.path == encoded.split_id else split.path
            time_us = modified_us(split)
            self._set(
                path,
                place,
                hashed=_hash_of(split),
                missing=split.parts - 1,
                time_us=_NO_TIME if time_us is None else time_us,
            )

    def _set(self, path: str, place: int, *, hashed: int, missing: int, time_us: int) -> None:
        self._rows[path] = len(self._places)
        self._places.append(place)
        self._hashes.append(hashed)
        self._missing.append(missing)
        self._times.append(time_us)

    def _renew(self) -> None:
        """Compute all anew, but decode no file again that is one split."""
        rows, hashes, more = self._rows, self._hashes, self._more
        missing, times = self._missing, self._times
        self._begin()
        for place, name in enumerate(_names_of(self._known)):
            row = rows.get(name)
            if row is None or name in more or missing[row] != 0:
                self._add(range(place, place + 1))
            else:
                self._set(name, place, hashed=hashes[row], missing=0, time_us=times[row])


def _names_of(known: Sequence[Split]) -> Iterator[str]:
    """Ids of the splits; those of a table without its contents, which are packed."""
    if isinstance(known, SplitsInOrder):
        return known.names()
    return (split.split_id for split in known)


def _hash_of(file: SeenFile) -> int:
    return hash((file.size_bytes, compared_mark(file.mark), file.real_path))
