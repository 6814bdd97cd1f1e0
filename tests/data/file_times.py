"""The driver's time for tests of watched folders, in days after a first one."""

from __future__ import annotations

import pytest

from coordlog.spark_integration.files.source import ages, discovery

DAY_S = 86_400
NOW_S = 1_800_000_000
"""The first day, seconds since 1970."""


class DriverTime:
    """The driver's time, which a test sets; a look that finds nothing returns at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.days = 0.0
        monkeypatch.setattr(discovery, "WATCH_REPORT_S", 0.03)
        monkeypatch.setattr(ages, "_machine_us", self)

    def __call__(self) -> int:
        return int((NOW_S + self.days * DAY_S) * 10**6)
