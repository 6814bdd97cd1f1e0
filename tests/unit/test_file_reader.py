"""What a file reader says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain_fakes import FakeContext, contents
from coordlog.spark_integration.files.source.reader import merge_reader_states
from coordlog.spark_integration.files.source.source import FileSource


def source_of(folder: Path) -> FileSource:
    for name in ("a", "b", "c"):
        (folder / f"{name}.csv").write_text("i\n1\n2\n3\n")
    return FileSource(folder, batch_rows=2)


@pytest.mark.clause("M3")
def test_it_names_the_split_that_is_being_read_after_a_restore_too(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    splits, create = contents(source.discover()), source.spec().create_reader
    first = create()
    first.open(FakeContext(), None)
    assert first.current_split() is None
    first.add_splits(splits)
    said = []
    for _ in range(4):
        first.poll()
        said.append(Path(first.current_split() or "").name)
    assert said == ["a.csv", "a.csv", "a.csv", "b.csv"], "two batches, the end, the next batch"

    state = first.snapshot_state(1)
    first.close()
    second = create()
    second.open(FakeContext(attempt_number=1), state)
    assert Path(second.current_split() or "").name == "b.csv"


@pytest.mark.clause("E7")
def test_merged_states_are_read_on_from_where_each_was(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    splits, create = contents(source.discover()), source.spec().create_reader
    states = []
    for one in splits:
        reader = create()
        reader.open(FakeContext(), None)
        reader.add_splits([one])
        reader.poll()
        states.append(reader.snapshot_state(1))
        reader.close()
    merged = create()
    merged.open(FakeContext(), merge_reader_states(states))
    merged.start()
    merged.notify_no_more_splits()

    rows: list[int] = []
    ended: list[str] = []
    while len(ended) < len(splits):
        got = merged.poll()
        if got.batch is not None:
            rows += got.batch.column("i").to_pylist()
        if got.finished is not None:
            ended.append(Path(got.finished.split_id).name)
    assert rows == [3, 3, 3]
    assert ended == ["a.csv", "b.csv", "c.csv"]
