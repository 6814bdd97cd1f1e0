"""A packed file that is cut off anywhere is refused, and never read as a shorter one."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordlog.errors import SourceError
from coordlog.spark_integration.files.source.source import FileSource
from data.awkward_files import PACKINGS, packed
from fakes.chain_fakes import contents, read_all

LINES = [f"line {number}" for number in range(20)]


def lines_in(path: Path) -> list[object]:
    source = FileSource(path, format="text")
    return [
        row[0] for row in read_all(source.spec().create_reader(), contents(source.discover())).rows
    ]


@pytest.mark.parametrize("end", [end for end in PACKINGS if end])
def test_a_packed_file_cut_off_anywhere_is_refused(end: str, tmp_path: Path) -> None:
    text = "".join(f"{line}\n" for line in LINES).encode()
    halves = [packed(half, end, tmp_path) for half in (text[:60], text[60:])]
    whole, path = b"".join(halves), tmp_path / f"a.txt{end}"
    path.write_bytes(whole)
    assert lines_in(path) == LINES

    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        if cut == len(halves[0]):
            assert "\n".join(map(str, lines_in(path))).encode() == text[:60].rstrip(b"\n")
            continue
        with pytest.raises(SourceError, match="cannot be read on"):
            lines_in(path)
