"""A program that folds histories in files and prints the digest of the job's state after each record.

Without files it plays all runs and prints a digest of each record that they write.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from coordlog.api.chain import Chain
from coordlog.log.interface import StoredRecord
from coordlog.restore.rebuild import Rebuild, projection_of
from histories.sweep_runs import RUNS
from state_digest import digest

__all__ = ["chain_of_run", "digests", "fresh", "read_history", "write_history"]


def chain_of_run(name: str) -> Chain:
    """The chain of a run of `RUNS`, made anew."""
    return RUNS[name].make().job.chain


def fresh(name: str) -> Rebuild:
    """A rebuild of that run's job that has read nothing."""
    chain = chain_of_run(name)
    return Rebuild(projection_of(chain), chain.payload_types)


def digests(name: str, stored: Sequence[StoredRecord]) -> Iterator[str]:
    """The digest after each of these, void ones and cut off turns included."""
    made = fresh(name)
    for one in stored:
        made.feed(one)
        yield digest(made.state)


def write_history(path: Path, name: str, stored: Sequence[StoredRecord]) -> None:
    """Write a history to a file, for this program."""
    rows = [[(one.value or b"").hex(), (one.header_bytes or b"").hex()] for one in stored]
    path.write_text(json.dumps({"run": name, "records": rows}), encoding="utf-8")


def read_history(path: Path) -> tuple[str, list[StoredRecord]]:
    """What `write_history` wrote."""
    read = json.loads(path.read_text(encoding="utf-8"))
    return read["run"], [
        StoredRecord(
            offset=offset,
            key=b"",
            value=bytes.fromhex(value),
            header_bytes=bytes.fromhex(header) or None,
            timestamp_ms=0,
        )
        for offset, (value, header) in enumerate(read["records"])
    ]


def _written() -> Iterator[str]:
    for run in RUNS.values():
        for one in run.recorded().job.log.records:
            parts = (one.key, one.value, one.header_bytes, one.timestamp_ms)
            yield hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.stdout.write("\n".join(_written()))
    for given in sys.argv[1:]:
        sys.stdout.write("\n".join(digests(*read_history(Path(given)))) + "\n")
