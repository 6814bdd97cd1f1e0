"""Links to places in the same listing: each file is listed once, and none is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coordlog.spark_integration.files.listing import InputFiles

pytestmark = pytest.mark.slow


@pytest.fixture
def days(tmp_path: Path) -> Path:
    """A folder with two days' folders, and `latest`, a link to the second."""
    folder = tmp_path / "in"
    for day in ("24", "25"):
        (folder / day).mkdir(parents=True)
        (folder / day / "x.csv").write_text("i\n1\n")
    (folder / "latest").symlink_to("25")
    return folder


def names(folder: Path, url: str = "", **options: object) -> list[str]:
    files = InputFiles(url=f"{folder}{url}", **options)  # type: ignore[arg-type]
    return [os.path.relpath(file.path, folder) for file in files.walk()]


@pytest.mark.parametrize("url", ["", "/*", "/*/x.csv", "/**/*.csv", "/**"])
def test_a_link_to_a_folder_of_the_listing_adds_nothing(days: Path, url: str) -> None:
    assert names(days, url) == ["24/x.csv", "25/x.csv"]


def test_a_link_to_a_file_of_the_listing_adds_nothing(days: Path) -> None:
    (days / "a.csv").symlink_to("25/x.csv")

    assert names(days) == ["24/x.csv", "25/x.csv"]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("/l*/x.csv", {}),  # the glob does not match the folder itself
        ("/latest", {}),
        ("", {"exclude": ("25",)}),
        ("", {"start_after": "25/y"}),
    ],
)
def test_a_link_is_followed_if_its_place_is_not_listed(
    days: Path, url: str, options: dict[str, object]
) -> None:
    assert "latest/x.csv" in names(days, url, **options)
    assert "25/x.csv" not in names(days, url, **options)


def test_links_to_hidden_folders_and_out_of_the_source_are_followed(
    days: Path, tmp_path: Path
) -> None:
    (days / "..data").mkdir()
    (days / "..data" / "y.csv").write_text("i\n2\n")
    (days / "y.csv").symlink_to("..data/y.csv")
    (tmp_path / "z.csv").write_text("i\n3\n")
    (days / "z.csv").symlink_to(tmp_path / "z.csv")

    assert names(days) == ["24/x.csv", "25/x.csv", "y.csv", "z.csv"]


def test_a_further_path_that_is_a_link_to_the_first_adds_nothing(
    days: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").symlink_to(days)

    assert names(days, also=(str(tmp_path / "other"),)) == ["24/x.csv", "25/x.csv"]


def test_a_source_below_a_link_is_listed(days: Path, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(days)

    assert names(tmp_path / "other") == ["24/x.csv", "25/x.csv"]


def test_a_folder_whose_name_looks_like_a_glob_lists_its_links(days: Path) -> None:
    (days / "[2]").mkdir()
    (days / "[2]" / "linked.csv").symlink_to(days / "24" / "x.csv")

    assert names(days / "[2]") == ["linked.csv"]
