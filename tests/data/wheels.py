"""The package as a user gets it: a wheel, and an environment that has never seen this checkout."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any, Final

__all__ = ["PACKAGES", "PROJECT", "VERSION", "Environment", "build_wheel", "pip"]

ROOT: Final = Path(__file__).parents[2]
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
VERSION: Final[str] = PROJECT["project"]["version"]
PACKAGES: Final[list[str]] = PROJECT["tool"]["setuptools"]["packages"]


def pip(*arguments: str) -> None:
    """Run pip, which must succeed."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def build_wheel(source: Path, built: Path) -> Path:
    """The wheel, in `built`; from a copy in `source`: a build leaves folders beside its sources."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in sorted(set(PROJECT["tool"]["setuptools"]["package-dir"].values())):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(built), str(source))
    (found,) = built.glob("*.whl")
    return found


class Environment:
    """A new one. What ours depends on is seen from here, and not by pip."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self.bin = folder / "bin"
        (self.packages,) = folder.glob("lib/python*/site-packages")
        self._link = self.packages / "dependencies.pth"
        self.folder = folder

    def files(self) -> list[str]:
        """All that is in it."""
        return sorted(str(one.relative_to(self.folder)) for one in self.folder.rglob("*"))

    def link(self) -> None:
        """Let it see what ours depends on.

        The finder of an editable install is in a file of that folder that is not read from here.
        """
        self._link.write_text("\n".join(site.getsitepackages()), encoding="utf-8")

    def run(self, *command: str, where: Path) -> str:
        """What a command prints; the link is there only while it runs."""
        self.link()
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
