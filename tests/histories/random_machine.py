"""What random runs of a machine print when they fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["printed_if_it_fails"]


@contextmanager
def printed_if_it_fails(seed: int, done: Sequence[str], **choices: object) -> Iterator[None]:
    """Print the seed, what chance has chosen for the machine and what was done with it, if the block raises."""
    try:
        yield
    except BaseException:
        print(f"seed {seed}, {', '.join(f'{name}={value}' for name, value in choices.items())}")
        print(" ".join(done))
        raise
