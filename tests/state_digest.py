"""A canonical digest of a job's state, and a program that folds a history in a file and prints it."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from coordlog.projections.job.state import JobState
from coordlog.restore.rebuild import projection_of
from coordlog.schemas.codec import decode_record
from fakes.kernel_fakes import HANDLED, NotingProvider, chain_of


def digest(state: object) -> str:
    """The same for equal states, in whatever order their maps iterate."""
    found = hashlib.blake2b(digest_size=16)
    for part in _parts(state):
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.hexdigest()


def _parts(value: object) -> Iterator[bytes]:
    yield type(value).__name__.encode()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for one in dataclasses.fields(value):
            yield one.name.encode()
            yield from _parts(getattr(value, one.name))
    elif isinstance(value, Mapping):
        for key, item in sorted(value.items(), key=lambda item: repr(item[0])):
            yield repr(key).encode()
            yield from _parts(item)
    elif isinstance(value, (tuple, list)):
        yield str(len(value)).encode()
        for item in value:
            yield from _parts(item)
    elif isinstance(value, enum.Enum):
        yield value.name.encode()
    else:
        yield repr(value).encode()


def fold(stored: list[tuple[str, str]]) -> JobState:
    """The state after records given as value and header in hexadecimal, each of which counts."""
    projection = projection_of(chain_of(NotingProvider(projection=HANDLED)))
    records = [
        decode_record(offset, bytes.fromhex(value), bytes.fromhex(header))
        for offset, (value, header) in enumerate(stored)
    ]
    return projection.fold(projection.initial(), records)


if __name__ == "__main__":
    sys.stdout.write(digest(fold(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
