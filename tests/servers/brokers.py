"""A broker of its own for the tests of a folder or a module: a real one, as a child of the run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coordlog.log.broker.embedded import EmbeddedBroker, embedded_broker

__all__ = ["broker"]


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    """The broker of the whole run: for tests that do not end it; each takes topics of its own.

    Where it is wanted, a conftest.py says `from servers.brokers import broker`.
    """
    with embedded_broker() as one:
        yield one
