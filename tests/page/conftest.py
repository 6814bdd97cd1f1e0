"""The browser of `browser.py`."""

from __future__ import annotations

from servers.browser import browser, open_report

__all__ = ["browser", "open_report"]
