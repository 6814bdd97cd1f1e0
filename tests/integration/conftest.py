"""What the integration tests share."""

from __future__ import annotations

from brokers import broker

__all__ = ["broker"]
