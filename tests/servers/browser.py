"""A headless Chromium of this machine, and reports opened in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from coordlog.report.document import Document
from coordlog.report.page_file import page as page_of

CHROMIUMS: Final = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS: Final = (
    "--no-sandbox",  # as root there is none
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_OPEN_MS: Final = 60_000

OpenReport = Callable[..., Page]
"""Opens a document as a page: `open_report(document, width=1280, scheme="light")`."""


@pytest.fixture(scope="session")
def browser() -> Generator[Browser]:
    """The browser; without one the test is skipped."""
    path = next((found for name in CHROMIUMS if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"this machine has none of {', '.join(CHROMIUMS)}: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def open_report(browser: Browser, tmp_path: Path) -> Generator[OpenReport]:
    """Opens reports as files; errors of the script, and any request but that for the file, fail the test."""
    contexts, faults = [], list[str]()

    def opened(document: Document, *, width: int = 1280, scheme: str = "light") -> Page:
        file = tmp_path / "report.html"
        file.write_text(page_of(document), encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
            offline=True,
        )
        contexts.append(context)
        shown = context.new_page()
        shown.on("pageerror", lambda error: faults.append(f"error: {error}"))
        shown.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
        shown.on(
            "request",
            lambda request: (
                None
                if request.url in (file.as_uri(), "data:,")
                else faults.append(f"request: {request.url}")
            ),
        )
        shown.goto(file.as_uri())
        shown.wait_for_selector("#panels[data-state=records]", timeout=_OPEN_MS)
        return shown

    yield opened
    for context in contexts:
        context.close()
    assert faults == []
