"""The reference pages are those that the code of today makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_reference_pages_are_those_of_the_code(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "make_reference.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=120)
    made = {page.name: page.read_text("utf-8") for page in tmp_path.iterdir()}
    kept = {page.name: page.read_text("utf-8") for page in (ROOT / "docs/reference").iterdir()}

    assert made == kept, "make them anew: .venv/bin/python scripts/make_reference.py"
