"""The colours of the report's page: contrasts of WCAG 2.2, level AA, on each background and in both schemes."""

from __future__ import annotations

import re
from importlib import resources
from typing import Final

import pytest

_TEXTS: Final = ("text", "dim", "ok", "bad", "warn", "run", "stop")
_SHAPES: Final = ("ok", "bad", "warn", "run", "idle", "stop", "edge", "focus")
"""Bars, dots and borders without which a thing could not be seen or told from another one."""
_BACKGROUNDS: Final = ("page", "card", "soft")
_TEXT_MIN: Final = 4.5
_SHAPE_MIN: Final = 3.0


def colours() -> dict[str, dict[str, str]]:
    """Colours of both schemes by name, as `#rrggbb`."""
    css = (resources.files("coordlog.report") / "page" / "page.css").read_text("utf-8")
    light, dark = css.split("prefers-color-scheme: dark", 1)
    schemes = {"light": light, "dark": dark.split("* {", 1)[0]}
    return {
        scheme: dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", text))
        for scheme, text in schemes.items()
    }


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_of_black_and_white_is_21() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_and_shapes_can_be_told_from_each_background(scheme: str) -> None:
    of_scheme = colours()[scheme]
    weak = {
        (name, background): round(found, 2)
        for names, least in ((_TEXTS, _TEXT_MIN), (_SHAPES, _SHAPE_MIN))
        for name in names
        for background in _BACKGROUNDS
        if (found := contrast(of_scheme[name], of_scheme[background])) < least
    }

    assert weak == {}
