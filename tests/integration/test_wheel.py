"""The wheel, in an environment that has never seen this checkout: it runs, and leaves nothing."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
VERSION: Final[str] = PROJECT["project"]["version"]
PACKAGES: Final[list[str]] = PROJECT["tool"]["setuptools"]["packages"]

pytestmark = pytest.mark.slow


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves folders beside its sources."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in sorted(set(PROJECT["tool"]["setuptools"]["package-dir"].values())):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(built), str(source))
    (found,) = built.glob("*.whl")
    return found


class Environment:
    """A new one. What ours depends on is seen from here while a command runs, and not by pip."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.bin = folder / "bin"
        (self.packages,) = folder.glob("lib/python*/site-packages")
        self._link = self.packages / "dependencies.pth"
        self.folder = folder

    def files(self) -> list[str]:
        return sorted(str(one.relative_to(self.folder)) for one in self.folder.rglob("*"))

    def run(self, *command: str, where: Path) -> str:
        # The finder of an editable install is in a file of that folder that is not read from here.
        self._link.write_text("\n".join(site.getsitepackages()), encoding="utf-8")
        try:
            done = subprocess.run(
                [str(self.bin / command[0]), *command[1:]],
                cwd=where,
                env={
                    "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
                    "HOME": str(where),
                    "PYTHONDONTWRITEBYTECODE": "1",
                },
                capture_output=True,
                text=True,
                check=False,
            )
        finally:
            self._link.unlink()
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout


def test_the_wheel_installs_runs_and_leaves_nothing(wheel: Path, tmp_path: Path) -> None:
    environment, where = Environment(tmp_path / "environment"), tmp_path / "elsewhere"
    where.mkdir()
    before = environment.files()

    python = str(environment.bin / "python")
    pip("--python", python, "install", "--no-deps", "--no-index", str(wheel))

    assert environment.run("coordlog", "--version", where=where).startswith(f"coordlog {VERSION}\n")
    assert "SRC DEST" in environment.run("coordlog", "ingest", "--help", where=where)
    assert "coordlog history" in environment.run("coordlog", "history", "--help", where=where)
    program = (
        "import importlib\n"
        f"for name in {PACKAGES!r}:\n"
        "    print(importlib.import_module(name).__file__)\n"
        "from coordlog.log.jar_lock import JarSet, locked\n"
        "assert all(locked(one) for one in JarSet)\n"
    )
    files = environment.run("python", "-W", "ignore", "-c", program, where=where).splitlines()
    assert [Path(one).parent for one in files] == [
        environment.packages.joinpath(*one.split(".")) for one in PACKAGES
    ]
    assert list(where.iterdir()) == [], "asking for help makes no folder"

    pip("--python", python, "uninstall", "--yes", "coordlog")
    assert environment.files() == before


def test_the_wheel_has_our_packages_their_data_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    own = [one for one in names if not one.startswith(f"coordlog-{VERSION}.dist-info/")]

    folders = {one.replace(".", "/") for one in PACKAGES}
    data = {str(Path(one).parent) for one in own if not one.endswith(".py")}
    assert {str(Path(one).parent) for one in own if one.endswith(".py")} == folders
    assert data == {
        "coordlog",
        "coordlog/log",
        "coordlog/schemas/avro",
        "coordlog/spark_integration/avro",
    }
    assert f"coordlog-{VERSION}.dist-info/licenses/LICENSE" in names
