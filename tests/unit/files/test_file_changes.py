"""Files that change, grow or vanish after they were listed are noticed and named."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordlog.api.chain import Chain
from coordlog.api.operator import SourceReader
from coordlog.errors import SourceError
from coordlog.schemas.record import Kind
from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.payloads import FileChanged
from coordlog.spark_integration.files.source.kept import files_as_read, note_change
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.split_bytes import decode_split
from coordlog.spark_integration.files.source.watch import Watch
from coordlog.testing.driven_job import HandDrivenJob
from fakes.chain_fakes import FakeContext, ReadOut, contents, read_all, read_on
from fakes.split_fakes import ack_all, ask, state_of

TEN = "i\n" + "".join(f"{i}\n" for i in range(10))


def refusal(do: Callable[[], object]) -> SourceError:
    with pytest.raises(SourceError) as caught:
        do()
    return caught.value


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def begun(source: FileSource) -> SourceReader:
    """A reader that has given its first rows."""
    reader = source.spec().create_reader()
    reader.open(FakeContext(), None)
    reader.add_splits(contents(source.discover()))
    read_on(reader, ReadOut(), batches_max=1)
    return reader


def read_to_the_end(reader: SourceReader) -> SourceError:
    error = refusal(lambda: read_on(reader, ReadOut()))
    reader.close()
    return error


def touch(path: Path) -> None:
    """Another time, the content as it was."""
    os.utime(path, ns=(1_700_000_000_000_000_000, 1_700_000_000_123_456_789))


def test_a_file_that_grows_while_it_is_read_is_an_error_with_both_sizes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", TEN)
    reader = begun(FileSource(path, batch_rows=3))
    write(path, TEN + "10\n")

    error = read_to_the_end(reader)
    assert error.where == str(path)
    assert error.problem == (
        "it has changed while it was read: it has 25 bytes; it had 22 when the source was listed"
    )
    assert "into a new file" in error.next_step


@pytest.mark.parametrize("change", ["grow", "shrink"])
@pytest.mark.parametrize(
    "options",
    [
        {"format": "csv"},
        {"format": "csv", "bad_rows": "skip"},
        {"format": "jsonl"},
        {"format": "jsonl", "bad_rows": "skip"},
        {"format": "text"},
    ],
    ids=lambda options: "-".join(options.values()),
)
def test_no_row_of_a_changed_file_goes_on_and_the_file_may_be_put_back(
    tmp_path: Path, options: dict[str, Any], change: str
) -> None:
    """In streaming a checkpoint may commit rows before the end of their split."""
    is_json = options["format"] == "jsonl"
    lines = [f'{{"i": {number}}}\n' if is_json else f"{number}\n" for number in range(1000, 3010)]
    header = "i\n" if options["format"] == "csv" else ""
    text = header + "".join(lines[:2000])
    path = write(tmp_path / "a.txt", text)
    before = path.stat()
    source = FileSource(path, block_bytes=100, batch_rows=1, **options)
    reader, read = begun(source), ReadOut()
    if change == "grow":
        with path.open("a", encoding="utf-8") as file:
            file.writelines(lines[2000:])
    else:
        os.truncate(path, before.st_size - 2 * len(lines[0]) - 3)
    error = refusal(lambda: read_on(reader, read))
    assert "it has changed while it was read" in error.problem
    state = reader.snapshot_state(1)
    reader.close()

    with path.open("r+", encoding="utf-8") as file:
        file.write(text)
        file.truncate()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    again = source.spec().create_reader()
    again.open(FakeContext(), state)
    again.notify_no_more_splits()
    read_on(again, read)
    again.close()

    assert [int(str(row[0])) for row in read.rows] == list(range(1001, 3000))


def test_a_file_rewritten_in_equal_length_is_detected_by_its_time(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a.csv", TEN)
    reader = begun(FileSource(path, batch_rows=3))
    touch(path)

    error = read_to_the_end(reader)
    assert "it has changed while it was read: its content may be another: " in error.problem
    assert "modified 2023-11-14T22:13:20.123456789Z; when the source was listed" in error.problem

    reader = begun(FileSource(path, batch_rows=3, changed_by="size"))
    write(path, TEN.replace("9", "8"))
    read_on(reader, ReadOut())
    reader.close()


def test_a_file_of_which_rows_were_read_must_be_the_same_after_a_restore(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", TEN)
    source = FileSource(path, batch_rows=3)
    first = begun(source)
    state = first.snapshot_state(1)
    first.close()
    write(path, TEN + "10\n")

    second = source.spec().create_reader()
    second.open(FakeContext(), state)
    error = read_to_the_end(second)
    assert error.problem.startswith("it has changed since the source was listed: it has 25 bytes")


def test_a_part_of_a_changed_file_is_not_read_even_if_no_row_was(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "a.csv", TEN)
    source = FileSource(path, split_bytes=8, csv=CsvOptions(no_newlines_in_fields=True))
    splits = contents(source.discover())
    write(path, TEN + "10\n")
    source = FileSource(path)

    error = refusal(lambda: read_all(source.spec().create_reader(), splits))
    assert "it has 25 bytes; it had 22 when the source was listed" in error.problem


def test_a_whole_file_mended_before_its_first_row_is_read_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "a.csv", "i,s\n1,x\n2,y\n")
    parquet = tmp_path / "b.parquet"
    pq.write_table(pa.table({"i": list(range(9))}), parquet, row_group_size=3)
    source, other = FileSource(path), FileSource(parquet, format="parquet")
    splits, others = contents(source.discover()), contents(other.discover())
    write(path, "i,s\n1,x\n2\n")
    error = refusal(lambda: read_all(FileSource(path).spec().create_reader(), splits))
    assert "has 1 fields where 2 are expected" in error.problem
    write(path, "i,s\n1,x\n2,mended\n")
    pq.write_table(pa.table({"i": list(range(12))}), parquet, row_group_size=3)

    error = refusal(lambda: read_all(source.spec().create_reader(), splits))
    assert "it has 17 bytes; it had 12 when the source was listed" in error.problem
    source, other = FileSource(path), FileSource(parquet, format="parquet")  # as a new run makes it
    rows = read_all(source.spec().create_reader(), splits).rows
    assert rows == [(1, "x"), (2, "mended")]
    assert f"{path} has changed since the source was listed (it has 17 bytes" in caplog.text
    assert len(read_all(other.spec().create_reader(), others).rows) == 12


def test_that_a_file_was_mended_is_in_the_history_and_known_from_then_on(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", TEN)
    source = FileSource(path)
    found = source.discover()
    write(path, TEN + "10\n")
    source = FileSource(path)
    chain = Chain(source=source.spec(), operators=[])
    job = HandDrivenJob(chain)
    (attempt,) = job.register_all()
    context, reader = FakeContext(), chain.source.create_reader()
    reader.open(context, None)
    reader.add_splits(contents(found))
    read_on(reader, ReadOut())
    reader.close()
    event = context.sent[0]
    assert isinstance(event, FileChanged)
    assert (event.path, event.size_bytes, event.listed_size_bytes) == (str(path), 25, 22)
    assert event.listed_mark == decode_split(found.splits[0].content).mark != event.mark

    attempt.send("source", event)

    kept = state_of(job).enumerator_state
    assert kept is not None
    assert source.discover_again(found.splits, kept).discovered.splits == []
    with pytest.raises(SourceError, match="it has changed since it was listed: it has 25 bytes"):
        source.discover_again(found.splits)
    write(path, TEN)
    with pytest.raises(SourceError, match="it has 22 bytes; it had 25"):
        source.discover_again(found.splits, kept)


def test_a_change_that_a_lost_attempt_has_met_counts_no_more(tmp_path: Path) -> None:
    """The next attempt may find the file as it was listed, and says nothing of it then."""
    path = write(tmp_path / "a.csv", TEN)
    first = HandDrivenJob(Chain(source=FileSource(path).spec(), operators=[]))
    ask(first.register_all()[0])
    first.crash()
    job = HandDrivenJob(Chain(source=FileSource(path).spec(), operators=[]), log=first.log)
    (attempt,) = job.register_all()
    ask(attempt)
    listed = decode_split(state_of(job).splits[str(path)].split.content)
    attempt.send(
        "source",
        FileChanged(
            path=str(path),
            size_bytes=25,
            mark="modified later",
            listed_size_bytes=listed.size_bytes,
            listed_mark=listed.mark,
        ),
    )
    assert list(files_as_read(state_of(job).enumerator_state)) == [str(path)]

    attempt.fail("lost")

    kept = state_of(job).enumerator_state
    assert files_as_read(kept) == {}
    known = [one.split for one in state_of(job).splits.values()]
    assert FileSource(path).discover_again(known, kept).discovered.splits == []


def test_a_watch_knows_a_file_that_was_mended_before_it(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", TEN)
    job = HandDrivenJob(Chain(source=FileSource(tmp_path).spec(), operators=[]))
    (attempt,) = job.register_all()
    was = decode_split(state_of(job).splits[str(path)].split.content)
    write(path, TEN + "10\n")
    now = decode_split(FileSource(tmp_path).discover().splits[0].content)
    event = FileChanged(
        path=str(path),
        size_bytes=now.size_bytes,
        mark=now.mark,
        listed_size_bytes=was.size_bytes,
        listed_mark=was.mark,
    )
    attempt.send("source", event)
    ask(attempt)
    attempt.finish_split("source", str(path))
    ask(attempt)
    ack_all(attempt)
    attempt.complete()
    job.stage_ends()
    watching = FileSource(tmp_path, watch=Watch(watch_interval_s=0.01, idle_timeout_s=0.01))

    again = HandDrivenJob(Chain(source=watching.spec(), operators=[]), log=job.log, again=True)
    assert not again.history(Kind.JOB_FAILED, Kind.GLOBAL_FAILURE)
    assert state_of(again).is_discovery_complete
    # What a run without a watch has said may be delivered again to one with a watch.
    (attempt,) = again.register_all()
    attempt.send("source", replace(event, path="/in/b.csv"))
    assert sorted(files_as_read(state_of(again).enumerator_state)) == ["/in/b.csv", str(path)]


def test_a_change_of_an_earlier_listing_is_none_of_a_later_file(tmp_path: Path) -> None:
    """The name was released or forgotten, and is that of another file now."""
    path = write(tmp_path / "a.csv", TEN)
    source = FileSource(path)
    change = FileChanged(
        path=str(path),
        size_bytes=25,
        mark="modified later",
        listed_size_bytes=17,
        listed_mark="modified before",
    )
    known = source.discover().splits
    assert source.discover_again(known, note_change(None, change)).discovered.splits == []


def test_a_mended_file_counts_from_then_on_as_it_was_when_it_was_opened(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "i\n1\n")
    source = FileSource(path, batch_rows=3)
    splits = contents(source.discover())
    write(path, TEN)
    source = FileSource(path, batch_rows=3)
    first, out = source.spec().create_reader(), ReadOut()
    first.open(FakeContext(), None)
    first.add_splits(splits)
    read_on(first, out, batches_max=2)
    state = first.snapshot_state(1)
    first.close()

    second = source.spec().create_reader()
    second.open(FakeContext(), state)
    read_on(second, out)
    second.close()
    assert out.rows == [(i,) for i in range(10)]


def test_a_file_that_vanished_is_named_with_what_it_was(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", TEN)
    source = FileSource(path)
    splits = contents(source.discover())
    path.unlink()

    error = refusal(lambda: read_all(source.spec().create_reader(), splits))
    assert str(error) == (
        f"{path}: it has vanished: it was there with 22 bytes when the source was listed; put it "
        "back as it was; the job has to read its rows"
    )


def test_a_folder_replaced_by_a_link_is_named_even_if_files_look_equal(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "in" / "day" / "a.csv", TEN)
    source = FileSource(tmp_path / "in")
    splits = contents(source.discover())
    shutil.copytree(path.parent, tmp_path / "elsewhere", copy_function=shutil.copy2)
    shutil.rmtree(path.parent)
    path.parent.symlink_to(tmp_path / "elsewhere")

    error = refusal(lambda: read_all(source.spec().create_reader(), splits))
    assert error.where == str(path)
    assert "a link on its way leads to ../elsewhere/a.csv now" in error.problem
    assert "when the source was listed it was day/a.csv" in error.problem


def test_a_link_that_was_one_when_it_was_listed_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "a.csv", TEN)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "day").symlink_to(tmp_path / "elsewhere")
    source = FileSource(tmp_path / "in")

    assert len(read_all(source.spec().create_reader(), contents(source.discover())).rows) == 10


def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", TEN)
    source = FileSource(tmp_path)
    splits = contents(source.discover())
    file.unlink()
    os.mkfifo(file)
    errors: list[SourceError] = []

    def read() -> None:
        errors.append(refusal(lambda: read_all(source.spec().create_reader(), splits)))

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    reading.join(10.0)
    (error,) = errors
    assert "it has changed since the source was listed: it has 0 bytes" in error.problem


def test_a_remote_file_that_changes_is_noticed_too() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/changes/a.csv", TEN.encode())
    source = FileSource("memory://changes", batch_rows=3)
    same = begun(source)
    memory.pipe("/changes/a.csv", TEN.encode())
    error = read_to_the_end(same)
    assert "its content may be another: modified 20" in error.problem

    gone = begun(source)
    memory.rm("/changes/a.csv")
    assert "it has vanished" in read_to_the_end(gone).problem


@pytest.mark.clause("L3")
def test_a_file_begun_by_an_earlier_run_is_not_continued_after_a_change(
    tmp_path: Path,
) -> None:
    """Its first rows may be in use: only one of which nothing was read is taken as it is."""
    path = write(tmp_path / "a.csv", TEN)
    reader = begun(FileSource(path, batch_rows=3))
    state = reader.snapshot_state(1)
    reader.close()
    write(path, "i\n" + "".join(f"{i}\n" for i in range(100, 110)))
    later = FileSource(path, batch_rows=3).spec().create_reader()
    later.open(FakeContext(), state)

    error = read_to_the_end(later)

    assert error.problem.startswith("it has changed since the source was listed: ")
