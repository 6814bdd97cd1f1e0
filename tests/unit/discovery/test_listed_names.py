"""Names of a source: their order, where a listing begins, several paths, and files that the log has already."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from coordlog.api.chain import Chain
from coordlog.errors import OptionError, SourceError
from coordlog.projections.splits.table import SplitTable, WithEnumerator
from coordlog.schemas.source_types import Split
from coordlog.spark_integration.files.listing import ListedFile
from coordlog.spark_integration.files.local_globs import names_matching
from coordlog.spark_integration.files.payloads import FileSplit
from coordlog.spark_integration.files.places import check_apart
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source import discovery
from coordlog.spark_integration.files.source.known_files import KnownFiles
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.split_bytes import decode_split, encode_split
from coordlog.spark_integration.files.source.watch import Watch
from fakes.plain_watch import PlainWatch

NAMES = ("2026-01/a.csv", "2026-01/b.csv", "2026-02/a.csv", "2026-02.csv", "2026-02-x/a.csv")


def fill(folder: Path, names: Sequence[str] = NAMES) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("i\n1\n")


def walked(source: FileSource, below: Path) -> list[str]:
    return [os.path.relpath(file.path, below) for file in source._discovery.files.walk()]


# --- globs ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["", "*", "2026-0?", "*/a.csv"])
def test_a_link_back_to_a_folder_above_doubles_no_file(tmp_path: Path, path: str) -> None:
    """Below a match of a glob it was followed: all rows of the other matches were read twice."""
    fill(tmp_path, ["2026-01/a.csv", "2026-02/a.csv"])
    (tmp_path / "2026-01/up").symlink_to(tmp_path)

    assert walked(FileSource(tmp_path / path), tmp_path) == ["2026-01/a.csv", "2026-02/a.csv"]


def test_a_glob_from_the_root_enters_the_present_folder_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, ["a.csv"])
    first = Path(tmp_path.parts[0], tmp_path.parts[1])
    monkeypatch.chdir(first)
    below = tmp_path.relative_to(first)
    pattern = f"/{first.name[:-1]}?/{below}/a.csv"

    assert list(names_matching("", pattern, lambda _: False)) == [f"{tmp_path}/a.csv"]


def test_a_glob_enters_no_folder_that_cannot_match(tmp_path: Path) -> None:
    fill(tmp_path, ["2026-01/a.csv", "lost+found/a.csv", "2026-lost/a.csv"])
    listed: list[str] = []

    def noted(path: str) -> bool:
        listed.append(os.path.relpath(path, tmp_path))
        return "lost" in path

    assert list(names_matching(str(tmp_path), f"{tmp_path}/2026*/*.csv", noted)) == [
        f"{tmp_path}/2026-01/a.csv"
    ]
    assert sorted(listed) == ["2026-01", "2026-lost"]


# --- the order ------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["", "2026*", "**/*.csv"])
def test_local_files_are_walked_in_the_order_of_their_paths(tmp_path: Path, path: str) -> None:
    fill(tmp_path)

    assert walked(FileSource(tmp_path / path), tmp_path) == sorted(NAMES)


@pytest.mark.parametrize(
    ("start_after", "expected"),
    [
        ("2026-01/a.csv", sorted(NAMES)[1:]),
        ("2026-01", sorted(NAMES)),
        ("2026-01/b.csv", ["2026-02-x/a.csv", "2026-02.csv", "2026-02/a.csv"]),
        ("2026-02.", ["2026-02.csv", "2026-02/a.csv"]),
        ("2026-02/", ["2026-02/a.csv"]),
        ("2026-03", []),
    ],
)
def test_names_up_to_the_given_one_are_not_listed(
    tmp_path: Path, start_after: str, expected: list[str]
) -> None:
    fill(tmp_path)
    watch = Watch(start_after=start_after)

    assert walked(FileSource(tmp_path, watch=watch), tmp_path) == expected
    assert walked(FileSource(tmp_path / "*", watch=watch), tmp_path) == expected


def test_a_folder_before_the_given_name_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    opened: list[str] = []
    scan = os.scandir

    def scandir(path: str) -> os.ScandirIterator[str]:  # type: ignore[name-defined]
        opened.append(os.path.relpath(path, tmp_path))
        return scan(path)

    monkeypatch.setattr("coordlog.spark_integration.files.listing.os.scandir", scandir)
    walked(FileSource(tmp_path, watch=Watch(start_after="2026-02")), tmp_path)

    assert opened == [".", "2026-02-x", "2026-02"]


def test_names_of_unusual_characters_are_walked_in_the_order_of_a_sort(tmp_path: Path) -> None:
    chance = random.Random(7)
    letters = "aA-./0é\U0001f600~ "
    names = {
        "".join(chance.choice(letters) for _ in range(chance.randint(1, 9))) for _ in range(300)
    }
    for name in sorted(names):
        if any(part in ("", ".", "..") or part[0] in "._" for part in name.split("/")):
            continue
        path = tmp_path / name
        if not any((tmp_path / part).is_file() for part in (path, *path.parents)):
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_dir():
                path.write_text("i\n1\n")

    found = walked(FileSource(tmp_path), tmp_path)
    assert len(found) > 50
    assert found == sorted(found)
    for after in chance.sample(found, 10):
        source = FileSource(tmp_path, watch=Watch(start_after=after))
        assert walked(source, tmp_path) == [name for name in found if name > after]


@pytest.mark.parametrize("name", ["", "/", "/data/a", ".", ".."])
def test_a_start_that_is_no_name_below_the_path_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="start_after"):
        Watch(start_after=name)


# --- several paths --------------------------------------------------------------------------------
def test_several_paths_are_one_source(tmp_path: Path) -> None:
    fill(tmp_path, ["b/1.csv", "a/1.csv", "a/no.csv", "c/1.csv"])
    source = FileSource(
        tmp_path / "b", also=[tmp_path / "a", tmp_path / "a" / "*.csv"], exclude="no.csv"
    )

    splits = source.discover().splits
    assert [os.path.relpath(split.split_id, tmp_path) for split in splits] == ["a/1.csv", "b/1.csv"]
    spec = source.spec()
    assert spec.location == f"{tmp_path}/b + {tmp_path}/a + {tmp_path}/a/*.csv"
    assert spec.inputs == (f"{tmp_path}/b", f"{tmp_path}/a", f"{tmp_path}/a/*.csv")


def test_a_link_in_a_further_path_is_compared_as_it_was_listed(tmp_path: Path) -> None:
    fill(tmp_path, ["a/1.csv", "far/2.csv"])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.csv").symlink_to(tmp_path / "far" / "2.csv")
    source = FileSource(tmp_path / "a", also=tmp_path / "b")

    for file in source._discovery.files.list():
        source._discovery.files.open(file).close()
        assert source._discovery.files.look(file) == file


@pytest.mark.parametrize(
    ("path", "also"),
    [("a/b", "a"), ("a", "a/b"), ("a/*.csv", "a/b"), ("a/*", "a/b"), ("a/b/2.csv", "a")],
)
def test_paths_that_overlap_list_and_open_each_file_once(
    tmp_path: Path, path: str, also: str
) -> None:
    fill(tmp_path, ["a/1.csv", "a/b/2.csv"])
    source = FileSource(tmp_path / path, also=tmp_path / also)

    splits = source.discover().splits
    names = [os.path.relpath(split.split_id, tmp_path) for split in splits]
    assert names in (["a/1.csv", "a/b/2.csv"], ["a/b/2.csv"])
    for split in splits:
        source._discovery.files.check(decode_split(split.content))
    assert source.discover_again(splits).discovered.splits == []


def test_a_destination_within_any_of_several_paths_is_refused(tmp_path: Path) -> None:
    source = FileSource(tmp_path / "a", also=tmp_path / "b").spec()
    check_apart(Chain(source=source, operators=[ParquetSink(tmp_path / "c").spec()]))

    with pytest.raises(OptionError, match="apart from what is read"):
        check_apart(Chain(source=source, operators=[ParquetSink(tmp_path / "b" / "out").spec()]))


@pytest.mark.parametrize("also", ["s3://bucket/a", "", "https://host/a/"])
def test_a_further_path_of_another_file_system_is_refused(tmp_path: Path, also: str) -> None:
    with pytest.raises(OptionError, match="also"):
        FileSource(tmp_path, also=[also])


def test_one_path_with_a_plus_in_it_stays_one(tmp_path: Path) -> None:
    spec = FileSource(tmp_path / "a + b").spec()

    assert (spec.location, spec.inputs) == (f"{tmp_path}/a + b", ())


# --- files that the log has -----------------------------------------------------------------------
def split(path: str, part: int = 0, parts: int = 1, *, size_bytes: int = 5) -> Split:
    split_id = path if parts == 1 else f"{path}#{part}"
    content = FileSplit(
        split_id=split_id,
        path=path,
        size_bytes=size_bytes,
        mark=f"etag {path}",
        real_path="",
        parts=parts,
        listed_by="run",
        start=part,
        end=part + 1,
        arrow_schema=b"",
    )
    return Split(split_id=split_id, content=encode_split(content))


def listed(path: str, *, size_bytes: int = 5) -> ListedFile:
    return ListedFile(path=path, size_bytes=size_bytes, mark=f"etag {path}")


def test_known_files_are_those_of_the_splits_however_these_grow_and_shrink() -> None:
    chance = random.Random(3)
    every = [split(f"f{n:03}") for n in range(600)]
    every += [split(f"g{n}", part, 3) for n in range(50) for part in range(3)]
    chance.shuffle(every)
    known = KnownFiles()
    chosen: list[Split] = []
    for _ in range(12):
        if chance.random() < 0.3:
            chosen = [one for one in chosen if chance.random() < 0.7]
        chosen = [*chosen, *(one for one in every if one not in chosen)][
            : len(chosen) + chance.randint(0, 90)
        ]
        table = SplitTable().extended(chosen, lambda _: WithEnumerator())
        known.update(chance.choice([chosen, table.in_order()]))

        by_path: dict[str, list[str]] = {}
        for one in chosen:
            by_path.setdefault(one.split_id.partition("#")[0], []).append(one.split_id)
        assert list(known) == list(by_path)
        assert {path: [s.split_id for s in splits] for path, splits in known.items()} == by_path
        for path, ids in by_path.items():
            is_whole = len(ids) == (3 if path.startswith("g") else 1)
            assert known.is_as_listed(listed(path)) == is_whole
            assert not known.is_as_listed(listed(path, size_bytes=6))
        assert not known.is_as_listed(listed("other"))


def test_more_new_files_than_a_listing_takes_are_all_found_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "WATCH_UNSETTLED_MAX", 2)
    fill(tmp_path, [f"{n}.csv" for n in range(5)])
    source = FileSource(tmp_path, watch=Watch(), schema="i bigint")
    watch = PlainWatch(
        source._discovery, interval_s=1.0, idle_timeout_s=None, wait=lambda _s: False
    )
    known: list[Split] = []
    counts = []
    while len(known) < 5:
        found = watch.look(known).splits
        counts.append(len(found))
        known += found

    assert [Path(one.split_id).name for one in known] == [f"{n}.csv" for n in range(5)]
    assert counts == [2, 2, 1]


def test_a_known_file_that_has_changed_is_found_behind_many_others(tmp_path: Path) -> None:
    fill(tmp_path, [f"{n:03}.csv" for n in range(300)])
    source = FileSource(tmp_path, watch=Watch(), schema="i bigint")
    watch = PlainWatch(
        source._discovery, interval_s=1.0, idle_timeout_s=None, wait=lambda _s: False
    )
    known = watch.look([]).splits
    assert len(known) == 300
    (tmp_path / "299.csv").write_text("i\n1\n2\n")

    with pytest.raises(SourceError, match=r"299\.csv: it has changed since it was listed"):
        watch.look(known)


@pytest.mark.parametrize("start", ["", "/", "file://", "file:///", "local://"])
@pytest.mark.parametrize("end", ["/in", "//in", "/./in/", "/x/../in"])
def test_a_file_has_one_path_however_the_source_is_spelled(
    tmp_path: Path, start: str, end: str
) -> None:
    """Another path would be another file: a job that continues would read its rows again."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.csv").write_text("i\n1\n")
    files = FileSource(tmp_path / "in", also=f"{start}{tmp_path}{end}")._discovery.files
    assert [file.path for file in files.list()] == [str(tmp_path / "in/a.csv")]
