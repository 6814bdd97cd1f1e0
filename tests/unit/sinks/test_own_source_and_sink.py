"""The pages of an own source and an own sink: their code is one program, and their tests pass."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from coordlog.testing import HandDrivenJob
from jobs.own_pages import program

NAMES: Final = re.findall(r"^def (test_\w+)", program(), re.MULTILINE)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    path = tmp_path_factory.mktemp("pages") / "own_source_and_sink_of_the_docs.py"
    path.write_text(program(), "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[path.stem]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_test_of_the_pages_passes(pages: ModuleType, name: str, tmp_path: Path) -> None:
    test = getattr(pages, name)
    test(*([tmp_path] if inspect.signature(test).parameters else []))


def test_the_pages_have_tests() -> None:
    assert len(NAMES) == 3
    assert HandDrivenJob.__name__ in program()
