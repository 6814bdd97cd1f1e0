"""A report as one self-contained HTML file, which needs no network: facts, script and style are in it."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import html
import json
import re
from importlib import resources
from typing import Final

from coordlog.projections.tables.payload_json import Json
from coordlog.report.document import Document

__all__ = ["SCRIPTS", "index_page", "live_page", "page", "script_text", "style_text"]

SCRIPTS: Final = (
    "vendor/uPlot.iife.min.js",
    "dom.js",
    "facts.js",
    "time_axis.js",
    "view.js",
    "verdict.js",
    "lanes.js",
    "details.js",
    "waterfall.js",
    "story.js",
    "splits.js",
    "cost.js",
    "epochs.js",
    "commits.js",
    "curves.js",
    "moment.js",
    "opening.js",
    "start.js",
)
"""Files of the script, in order: all are one script, and each uses the names of those before it."""
_STYLES: Final = ("vendor/uPlot.min.css", "page.css")
_PLACE: Final = re.compile(r"\{\{([a-z]+)\}\}")


def script_text(start: str = SCRIPTS[-1]) -> str:
    """The script of the page, which ends with the file `start`."""
    parts = ["'use strict';", *(_file(name) for name in (*SCRIPTS[:-1], start))]
    return "\n".join(parts)


def style_text() -> str:
    """The style of the page."""
    return "\n".join(_file(name) for name in _STYLES)


def page(document: Document) -> str:
    """The page of a document.

    Its policy lets only the script and the style in it run, and forbids any connection. All texts of the job are in
    base64 until the script makes text nodes of them; its id in the title is escaped.
    """
    script, style = script_text(), style_text()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    data = "\n".join(
        f'<script type="application/gzip" id="{name}">{_packed(value)}</script>'
        for name, value in (("facts", document.facts), ("records", document.records))
    )
    values = {
        "policy": html.escape(policy),
        "title": html.escape(f"{document.facts['job']}: coordlog report"),
        "style": style,
        "script": script,
        "data": data,
    }
    return _PLACE.sub(lambda place: values[place[1]], _file("page.html"))


def live_page(job: str) -> tuple[str, str]:
    """The page of a served job, without its facts, and its policy: requests to its own server are permitted."""
    script, style = _live_script(), style_text()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )
    values = {
        "policy": html.escape(policy),
        "title": html.escape(f"{job}: coordlog"),
        "style": style,
        "script": script,
        "data": "",
    }
    text = _PLACE.sub(lambda place: values[place[1]], _file("page.html"))
    brand = '<span class="brand">coordlog</span>'
    text = text.replace(brand, '<a class="brand" href="/">coordlog</a>', 1)
    return text, f"{policy}; frame-ancestors 'none'"


def index_page(content: str) -> tuple[str, str]:
    """The list of served jobs, which has no script, and its policy.

    Args:
        content: HTML of the list; its texts are escaped.
    """
    style = style_text()
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    values = {"style": style, "content": content}
    return _PLACE.sub(lambda place: values[place[1]], _file("index.html")), policy


@functools.cache
def _live_script() -> str:
    return script_text("live.js")


def _packed(value: Json) -> str:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _file(name: str) -> str:
    return (resources.files("coordlog.report") / "page" / name).read_text(encoding="utf-8")
