"""Spark's own archives on a worker's search path: read once. Others: read anew when Python forgets what it knows."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
import zipimport
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordlog.spark_integration.task.worker_archives import keep_archives

MODULE = "found_in_an_archive"


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Path]]:
    """On the path, and looked into, in a process that has kept none."""
    plain = [hook for hook in sys.path_hooks if hook.__module__ != keep_archives.__module__]
    monkeypatch.setattr(sys, "path_hooks", plain)
    names = ("pyspark.zip", "py4j-0.10.9.9-src.zip", "spark-core_2.13-4.1.1.jar", "theirs.zip")
    found = {name: tmp_path / name for name in names}
    for path in found.values():
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("nothing.txt", "")
        monkeypatch.syspath_prepend(str(path))
    assert importlib.util.find_spec(MODULE) is None
    yield found
    for path in found.values():
        sys.path_importer_cache.pop(str(path), None)


def add_module(archive: Path) -> None:
    with zipfile.ZipFile(archive, "a") as opened:
        opened.writestr(f"{MODULE}.py", "")


def read_again(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The archives that Python reads when it forgets what it knows."""
    read: list[str] = []
    original = zipimport._read_directory  # type: ignore[attr-defined]

    def noted(archive: str) -> object:
        read.append(Path(archive).name)
        return original(archive)

    monkeypatch.setattr(zipimport, "_read_directory", noted)
    importlib.invalidate_caches()
    importlib.util.find_spec(MODULE)
    return sorted(set(read))


def test_sparks_own_are_read_once_and_others_as_ever(
    archives: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(archives) <= set(read_again(monkeypatch)), "what Python does"

    keep_archives()
    keep_archives()

    found = read_again(monkeypatch)
    assert "theirs.zip" in found
    assert not {"pyspark.zip", "py4j-0.10.9.9-src.zip", "spark-core_2.13-4.1.1.jar"} & set(found)


def test_modules_are_found_in_them(archives: dict[str, Path]) -> None:
    add_module(archives["theirs.zip"])
    keep_archives()
    importlib.invalidate_caches()

    found = importlib.util.find_spec(MODULE)

    assert found is not None
    assert found.origin == str(archives["theirs.zip"] / f"{MODULE}.py")


def test_modules_are_still_found_in_sparks_own(
    archives: dict[str, Path],
) -> None:
    add_module(archives["pyspark.zip"])
    importlib.invalidate_caches()  # Spark's archive has it when its worker begins
    keep_archives()
    importlib.invalidate_caches()

    found = importlib.util.find_spec(MODULE)

    assert found is not None
    assert found.origin == str(archives["pyspark.zip"] / f"{MODULE}.py")


def test_a_folder_of_an_archive_that_is_searched_later_is_read_once(
    archives: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_archives()
    for archive in archives.values():
        with zipfile.ZipFile(archive, "a") as opened:
            opened.writestr(f"inside/{MODULE}.py", "")
    importlib.invalidate_caches()
    for archive in archives.values():
        monkeypatch.setattr(sys, "path", [*sys.path, str(archive / "inside")])
    assert importlib.util.find_spec(MODULE) is not None

    assert set(read_again(monkeypatch)) == {"theirs.zip"}
