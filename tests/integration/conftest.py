"""What the integration tests share."""

from __future__ import annotations

from servers.brokers import broker

__all__ = ["broker"]
