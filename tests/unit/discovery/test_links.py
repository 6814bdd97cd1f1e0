"""Links on the way to a file, seen from the folder that has listed it, which may be another one now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coordlog.spark_integration.files.links import is_behind_link, leads_elsewhere


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("in/day/a.csv", "in/old/day/a.csv", "far/day/a.csv", "far/a.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("i\n1\n")
    (tmp_path / "in/linked").symlink_to(tmp_path / "in/old/day")
    return tmp_path


def real_path(path: Path, root: Path) -> str:
    return os.path.relpath(os.path.realpath(path), os.path.realpath(root))


@pytest.mark.parametrize(
    ("name", "was"),
    [
        ("in/day/a.csv", ""),
        ("in/day/a.csv", "in"),
        ("in/day/a.csv", "in/day"),
        ("in/linked/a.csv", ""),
        ("in/linked/a.csv", "in"),
        ("in/linked/a.csv", "in/linked"),
    ],
)
@pytest.mark.parametrize("now", ["", "in", "far"])
def test_another_folder_of_the_source_is_no_change(
    folder: Path, name: str, was: str, now: str
) -> None:
    path = folder / name
    seen, present = real_path(path, folder / was), real_path(path, folder / now)
    assert not leads_elsewhere(str(path), seen, present)


@pytest.mark.parametrize("target", ["in/old/day", "far", "far/day"])
@pytest.mark.parametrize("now", ["", "in"])
def test_a_folder_that_became_a_link_is_a_change(folder: Path, target: str, now: str) -> None:
    path = folder / "in/day/a.csv"
    seen = real_path(path, folder / "in")
    (folder / "in/day").rename(folder / "moved")
    (folder / "in/day").symlink_to(folder / target)

    assert leads_elsewhere(str(path), seen, real_path(path, folder / now))
    assert is_behind_link(str(path), seen)


def test_a_link_with_another_target_is_a_change(folder: Path) -> None:
    path = folder / "in/linked/a.csv"
    seen = real_path(path, folder / "in")
    assert is_behind_link(str(path), seen)
    (folder / "in/linked").unlink()
    (folder / "in/linked").symlink_to(folder / "far")

    assert leads_elsewhere(str(path), seen, real_path(path, folder / "in"))


@pytest.mark.parametrize("seen", ["", ".", "a.csv", "day/a.csv", "in/day/a.csv"])
def test_a_plain_file_is_behind_no_link(folder: Path, seen: str) -> None:
    assert not is_behind_link(str(folder / "in/day/a.csv"), seen)
