"""What pyproject.toml builds is what is on disk; what it asks for is what set-up installs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[3]
PYPROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
SETUPTOOLS: Final = PYPROJECT["tool"]["setuptools"]
PACKAGES: Final[list[str]] = SETUPTOOLS["packages"]
PACKAGE_DIR: Final[dict[str, str]] = SETUPTOOLS["package-dir"]
PACKAGE_DATA: Final[dict[str, list[str]]] = SETUPTOOLS["package-data"]
NOT_DATA: Final = {".py", ".pyc"}


def folder_of(package: str) -> Path:
    """Where the build reads a package from."""
    root = max((name for name in PACKAGE_DIR if f"{package}.".startswith(f"{name}.")), key=len)
    return ROOT / PACKAGE_DIR[root] / package.removeprefix(root).lstrip(".").replace(".", "/")


def packages_on_disk() -> set[str]:
    found: set[str] = set()
    for name, folder in PACKAGE_DIR.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            relative = init.parent.relative_to(ROOT / folder)
            if not any((ROOT / folder / p).is_symlink() for p in [relative, *relative.parents]):
                found.add(".".join([name, *relative.parts]))
    return found


def test_every_package_on_disk_is_built_and_no_other() -> None:
    assert sorted(PACKAGES) == sorted(packages_on_disk())


def test_the_packages_are_listed_in_order_and_once() -> None:
    assert sorted(set(PACKAGES)) == PACKAGES


def test_every_module_is_in_a_package() -> None:
    folders = {folder_of(package) for package in PACKAGES}
    modules = {
        path
        for folder in PACKAGE_DIR.values()
        for path in (ROOT / folder).rglob("*.py")
        if not any(parent.is_symlink() for parent in path.parents)
    }

    assert sorted(str(path) for path in modules if path.parent not in folders) == []


def test_every_data_file_is_built() -> None:
    """A file that is no module and not declared would be missing from the wheel."""
    declared = {
        path
        for package, patterns in PACKAGE_DATA.items()
        for pattern in patterns
        for path in folder_of(package).glob(pattern)
    }
    on_disk = {
        path
        for folder in PACKAGE_DIR.values()
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
        and path.suffix not in NOT_DATA
        and path.name != "ruff.toml"  # the linter's
        and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        and not path.is_symlink()
        and not any(parent.is_symlink() for parent in path.parents)
    }

    assert sorted(str(path) for path in on_disk - declared) == []


def test_every_link_leads_to_the_folder_that_is_built() -> None:
    links = {name: ROOT / name.replace(".", "/") for name in PACKAGE_DIR if "." in name}
    if not any(link.is_symlink() for link in links.values()):
        pytest.skip("this checkout has no symbolic links: `make setup` makes them")

    assert {n: p.resolve() for n, p in links.items()} == {
        n: (ROOT / PACKAGE_DIR[n]).resolve() for n in links
    }


def pins() -> dict[str, str]:
    found: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            name, version = re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+)", line).groups()  # type: ignore[union-attr]
            assert canonicalize_name(name) not in found, f"{name} is pinned twice"
            found[canonicalize_name(name)] = version
    return found


def test_every_requirement_has_a_pin_that_fits_it() -> None:
    project = PYPROJECT["project"]
    asked = [*project["dependencies"], *PYPROJECT["build-system"]["requires"]]
    for extra in project["optional-dependencies"].values():
        asked += extra
    known = pins()
    misfits: list[str] = []
    for requirement in map(Requirement, asked):
        pin = known.get(canonicalize_name(requirement.name))
        if pin is None or not requirement.specifier.contains(pin):
            misfits.append(f"{requirement}: pinned {pin}")

    assert misfits == []
