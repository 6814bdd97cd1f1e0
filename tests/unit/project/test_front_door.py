"""The front door: what README, pages and examples import, and what an import of it costs."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
DOORS: Final = (
    "coordlog",
    "coordlog.coordinators",
    "coordlog.spark_integration",
    "coordlog.testing",
)
BLOCK: Final = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def programs() -> dict[str, list[str]]:
    """The Python of each page and example, by the file's name."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = {page.name: BLOCK.findall(page.read_text("utf-8")) for page in pages}
    examples = sorted((ROOT / "examples").glob("*.py"))
    return found | {example.name: [example.read_text("utf-8")] for example in examples}


def modules_imported(program: str) -> set[str]:
    tree = ast.parse(program)
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {
        name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names
    }
    return {name for name in names if name and name.partition(".")[0] == "coordlog"}


def test_pages_and_examples_import_through_the_front_door() -> None:
    past = {
        (name, module)
        for name, texts in programs().items()
        for text in texts
        for module in modules_imported(text)
        if module not in DOORS
    }

    assert past == set()


@pytest.mark.parametrize("door", DOORS)
def test_each_name_of_a_door_is_there(door: str) -> None:
    module = importlib.import_module(door)

    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("door", ["coordlog", "coordlog.spark_integration"])
def test_no_name_of_a_lazy_door_is_one_of_its_modules(door: str) -> None:
    """Once such a module is imported, the door would have the module in place of the name."""
    module = importlib.import_module(door)

    names = [name for name in module.__all__ if importlib.util.find_spec(f"{door}.{name}")]
    assert names == []


def test_a_name_that_a_door_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Jobb'"):
        importlib.import_module("coordlog").Jobb  # noqa: B018, the access is what is tested


def test_the_front_door_itself_imports_nothing_but_the_standard_library() -> None:
    program = (
        "import coordlog, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    heavy = {
        "fastavro",
        "filelock",
        "kafka",
        "psutil",
        "pandas",
        "pyarrow",
        "pyspark",
        "numpy",
        "websockets",
        "click",
    }
    assert heavy & set(ran.stdout.split()) == set()
