"""A glob of local files has the files that the same names without wildcards have, or is an error."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordlog.errors import SourceUnavailableError
from coordlog.spark_integration.files.listing import InputFiles

GLOBS = ["in/*/x.csv", "in/*/*.csv", "in/**/*.csv", "in/[ab]/x.csv", "*/?/x.csv", "in/*"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("in/a/x.csv", "in/b/x.csv"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("i\n1\n")
    return tmp_path


def names_of(folder: Path, pattern: str) -> list[str]:
    listed = InputFiles(url=f"{folder}/{pattern}").list(allow_none=True)
    return [file.path.removeprefix(f"{folder}/") for file in listed]


def failing(call: Callable[..., Any], path: Path, number: int) -> Callable[..., Any]:
    """`call`, which fails for one path, as that of a network file system may for a moment."""

    def call_or_fail(name: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401, as `os` has it
        if name == str(path):
            raise OSError(number, os.strerror(number), str(path))
        return call(name, *args, **options)

    return call_or_fail


@pytest.mark.parametrize("pattern", GLOBS)
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES])
def test_a_folder_that_cannot_be_listed_is_an_error_of_a_glob(
    folder: Path, pattern: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the error the job would finish without the rows of this folder."""
    assert names_of(folder, pattern) == ["in/a/x.csv", "in/b/x.csv"]
    monkeypatch.setattr(os, "scandir", failing(os.scandir, folder / "in/b", number))

    with pytest.raises(SourceUnavailableError, match=rf"in/b: .*errno {number}"):
        names_of(folder, pattern)


@pytest.mark.parametrize("pattern", [*GLOBS[:-1], "in/b/x.csv"])
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
def test_a_file_that_cannot_be_looked_at_is_an_error_of_a_glob(
    folder: Path, pattern: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "stat", failing(os.stat, folder / "in/b/x.csv", number))

    with pytest.raises(SourceUnavailableError, match=rf"in/b/x.csv: .*errno {number}"):
        names_of(folder, pattern)


def test_a_glob_follows_links_to_folders_as_a_folder_does(folder: Path) -> None:
    (folder / "in/b").rename(folder / "far")
    (folder / "in/current").symlink_to(folder / "far")
    (folder / "in/a/above").symlink_to(folder / "in")  # it is not followed for ever

    for pattern in ("in", "in/*", "in/*/x.csv", "in/**/*.csv", "in/cur*/x.csv"):
        found = names_of(folder, pattern)
        assert "in/current/x.csv" in found, pattern
        assert len(found) == (1 if "cur" in pattern else 2), pattern


def test_a_glob_leaves_out_hidden_names_and_what_is_gone_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("in/_temporary/x.csv", "in/.x/x.csv", "in/a/.x.csv"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("i\n1\n")
    assert names_of(folder, "in/*/*") == ["in/a/x.csv", "in/b/x.csv"]

    monkeypatch.setattr(os, "scandir", failing(os.scandir, folder / "in/b", errno.ENOENT))
    assert names_of(folder, "in/*/*.csv") == ["in/a/x.csv"]


def test_the_folder_of_a_glob_must_exist(folder: Path) -> None:
    """A file system that is not mounted is no empty source: a watch tries again."""
    with pytest.raises(SourceUnavailableError, match="No such file"):
        names_of(folder, "far/*.csv")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("**/*.csv", ["in/a/x.csv", "in/b/x.csv"]),
        ("in/**", ["in/a/x.csv", "in/b/x.csv"]),
        ("in/**/b/**/x.csv", ["in/b/x.csv"]),
        ("in/*/b/x.csv", []),
        ("i?/[!a]/*", ["in/b/x.csv"]),
    ],
)
def test_each_part_of_a_glob_matches_a_name(folder: Path, pattern: str, names: list[str]) -> None:
    assert names_of(folder, pattern) == names


@pytest.mark.parametrize("pattern", ["in", "in/*", "in/*/*.csv", "in/**/x.csv"])
@pytest.mark.parametrize("exclude", ["b", "in/b", "lost*"])
def test_a_folder_that_is_left_out_need_not_be_readable(
    folder: Path, pattern: str, exclude: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as `lost+found`, which only root may open."""
    name = "lost+found" if "lost" in exclude else "b"
    (folder / "in/b").rename(folder / "in" / name)
    monkeypatch.setattr(os, "scandir", failing(os.scandir, folder / "in" / name, errno.EACCES))
    left_out = f"{folder}/{exclude}" if "/" in exclude else exclude

    files = InputFiles(url=f"{folder}/{pattern}", exclude=(left_out,))
    assert [file.path for file in files.list()] == [f"{folder}/in/a/x.csv"]
