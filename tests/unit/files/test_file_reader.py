"""What a file reader says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordlog.api.operator import PollStatus, SourceReader
from coordlog.limits import SPLITS_AT_ONCE_WEIGHT
from coordlog.schemas.source_types import RequestSplit
from coordlog.spark_integration.files.source import reader as reading
from coordlog.spark_integration.files.source.reader import merge_reader_states
from coordlog.spark_integration.files.source.source import FileSource
from fakes.chain_fakes import FakeContext, contents


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


def ends_of(reader: SourceReader, context: FakeContext) -> list[tuple[str, bool, int]]:
    """Each end of a split until the reader waits: its name, whether a small one follows, and the requests by then."""
    found: list[tuple[str, bool, int]] = []
    while (poll := reader.poll()).status is not PollStatus.WAITING or len(found) < SPLITS:
        if poll.finished is not None:
            name = Path(poll.finished.split_id).name
            found.append((name, poll.finished.has_next, len(context.sent)))
    return found


SPLITS = 3


def test_of_several_splits_it_requests_more_when_half_are_left(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    context = FakeContext()
    reader = source.spec().create_reader()
    reader.open(context, None)
    reader.add_splits(contents(source.discover()))

    assert ends_of(reader, context) == [("a.csv", True, 0), ("b.csv", True, 0), ("c.csv", False, 1)]
    assert context.sent == [RequestSplit(finished_split_id=context.sent[0].finished_split_id)]  # type: ignore[attr-defined]
    reader.add_splits(contents(source.discover())[:1])
    while (poll := reader.poll()).finished is None:
        pass
    assert len(context.sent) == 1
    reader.poll()
    assert len(context.sent) == 2, "of one split, when it is read"
    assert poll.finished.has_next is False


def test_of_restored_splits_it_requests_more_when_half_are_left(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    first = source.spec().create_reader()
    first.open(FakeContext(), None)
    first.add_splits(contents(source.discover()))
    context = FakeContext(attempt_number=1)
    second = source.spec().create_reader()
    second.open(context, first.snapshot_state(1))
    second.start()

    assert [sent for _, _, sent in ends_of(second, context)] == [0, 0, 1]


def test_it_announces_no_large_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the small one would be told as late as that of the large one."""
    sizes = {"b.csv": SPLITS_AT_ONCE_WEIGHT, "c.csv": SPLITS_AT_ONCE_WEIGHT + 1}
    source = source_of(tmp_path)
    monkeypatch.setattr(reading, "size_of", lambda split: sizes.get(Path(split.path).name))
    reader = source.spec().create_reader()
    context = FakeContext()
    reader.open(context, None)
    reader.add_splits(contents(source.discover()))

    announced = [has_next for _, has_next, _ in ends_of(reader, context)]
    assert announced == [True, False, False]


def test_it_announces_no_split_that_may_be_skipped(tmp_path: Path) -> None:
    """The rows of a skipped split could not be told from those of the split before."""
    source_of(tmp_path)
    source = FileSource(tmp_path, on_error="skip")
    assert not source.spec().groups_splits
    assert FileSource(tmp_path).spec().groups_splits
    context = FakeContext()
    reader = source.spec().create_reader()
    reader.open(context, None)
    reader.add_splits(contents(source.discover()))

    assert [has_next for _, has_next, _ in ends_of(reader, context)] == [False] * SPLITS
