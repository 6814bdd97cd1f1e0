"""The tutorial's code runs as it stands."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from coordlog.testing import HandDrivenJob

_PAGE = Path(__file__).parents[3] / "docs" / "write-your-own-coordinator.md"


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The page's blocks as one module."""
    blocks = re.findall(
        r"^```python\n(.*?)^```", _PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    path = tmp_path_factory.mktemp("tutorial") / "tutorial_of_the_docs.py"
    path.write_text("\n\n".join(blocks), "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[path.stem]


@pytest.mark.parametrize(
    "name", sorted(re.findall(r"^def (test_\w+)", _PAGE.read_text("utf-8"), re.MULTILINE))
)
def test_a_test_of_the_tutorial_passes(
    tutorial: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HandDrivenJob, "may_fail_by_default", False)  # as a user has it
    getattr(tutorial, name)()


def test_the_tutorial_has_tests() -> None:
    assert len(re.findall(r"^def test_", _PAGE.read_text("utf-8"), re.MULTILINE)) == 4
