"""The wheel, in an environment that has never seen this checkout: it runs, and leaves nothing."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from data.wheels import PACKAGES, VERSION, Environment, build_wheel, pip

pytestmark = [pytest.mark.slow, pytest.mark.tier("matrix")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built"))


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
        "from coordlog.log.broker.jar_lock import JarSet, locked\n"
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
        "coordlog/log/broker",
        "coordlog/report/page",
        "coordlog/report/page/vendor",
        "coordlog/schemas/avro",
    }
    assert f"coordlog-{VERSION}.dist-info/licenses/LICENSE" in names
