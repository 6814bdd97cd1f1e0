"""Streams of Spark over a folder whose read files are released: random schedules, with crashes of the service."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordlog.errors import RequestRefusedError
from coordlog.spark_integration.files.source import discovery
from jobs.watched_reads import Service

SCHEDULES, STEPS, CRASHES_MAX = 8, 60, 8


@dataclass
class Stream:
    """A query with its checkpoint: offsets and commits, as Spark has them."""

    name: str
    reader: str
    offsets: list[tuple[int, int, str, str]] = field(default_factory=list)
    """Start, end, and names of the stream in the end and in the start of each batch."""
    rows: list[list[int]] = field(default_factory=list)
    """Rows of each committed batch."""
    has_begun: bool = False
    is_refused: bool = False

    @property
    def is_constructed(self) -> bool:
        return len(self.offsets) > len(self.rows)


class World:
    """A folder, a service and streams. A row is the number of its file's version."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.options = {"after_commit": chance.choice(["delete", f"archive:{folder.parent}/done"])}
        self.service = Service(folder, **self.options)  # type: ignore[arg-type]
        self.streams = [Stream(name, f"{name}0") for name in "ab"[: chance.choice([1, 2])]]
        self.names: dict[int, str] = {}
        """Names of all files, by version."""
        self.crashes = 0

    def step(self) -> None:
        chance = self.chance
        match chance.choice(
            ["write", "list", "list", "work", "crash", "batch", "batch", "batch", "rerun"]
        ):
            case "write":
                name = f"f{chance.randrange(7)}.csv"
                if not (self.folder / name).exists():
                    version = len(self.names) + 1
                    (self.folder / name).write_text(f"i\n{version}\n")
                    self.names[version] = name
            case "list":
                self.service.list_files()
            case "work" if self.service.job.works:
                self.service.job.run(self.service.job.works.popleft())
            case "crash" if self.crashes < CRASHES_MAX:
                self.crashes += 1
                self.service = self.service.crash(self.folder, **self.options)
                for stream in self.streams:
                    stream.reader = f"{stream.name}{self.crashes}"
            case "batch":
                self.batch(chance.choice(self.streams))
            case "rerun":
                stream = chance.choice(self.streams)
                if stream.is_constructed and not stream.is_refused:
                    self.read(stream)
            case _:
                pass

    def batch(self, stream: Stream, *, is_whole: bool = False) -> None:
        """Construct a batch, with the commit of the one before, and run it, perhaps later."""
        if stream.is_refused:
            return
        if not stream.is_constructed:
            start, follows = stream.offsets[-1][1:3] if stream.offsets else (0, stream.reader)
            seen = self.service.look(after=start)
            stream.is_refused = not stream.offsets and seen.first > 0
            end = seen.end if is_whole else min(seen.end, start + self.chance.choice([1, 2, 9]))
            if stream.is_refused or end <= start:
                return
            stream.offsets.append((start, end, stream.reader, follows))
            if stream.rows and (is_whole or self.chance.random() < 0.8):
                self.service.commit(start, reader=follows)
            if not is_whole and self.chance.random() < 0.3:
                return
        rows = self.read(stream)
        if not stream.is_refused:
            stream.rows.append(rows)

    def read(self, stream: Stream) -> list[int]:
        """Rows of the newest batch: its files are there, however often it runs."""
        start, end, reader, follows = stream.offsets[-1]
        try:
            planned = self.service.plan_batch(start, end, reader=reader, follows=follows)
        except RequestRefusedError:
            assert not stream.has_begun
            stream.is_refused = True
            return []
        stream.has_begun, stream.reader = True, reader
        tasks = [self.service.task(planned, number) for number in range(planned.partitions)]
        return [int(Path(name).read_text().split()[1]) for task in tasks for name in task.run()]

    def check(self) -> None:
        """Check that each file that is gone is in a committed batch of every stream that has begun."""
        gone = {version for version, name in self.names.items() if not self.is_there(version, name)}
        read = [{row for rows in stream.rows for row in rows} for stream in self.streams]
        assert gone <= set().union(*read)
        for stream, rows in zip(self.streams, read, strict=True):
            assert gone <= rows or stream.is_refused or not stream.has_begun

    def is_there(self, version: int, name: str) -> bool:
        path = self.folder / name
        return path.exists() and path.read_text() == f"i\n{version}\n"


@pytest.mark.slow
def test_streams_read_each_file_once_though_files_go(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "WATCH_REPORT_S", 0.02)
    chance, released = random.Random(seed), 0
    for number in range(SCHEDULES):
        folder = tmp_path / str(number) / "in"
        folder.mkdir(parents=True)
        world = World(folder, chance)
        for _ in range(STEPS):
            world.step()
            world.check()
        for _ in range(4):
            world.service.list_files(2)
            for stream in world.streams:
                world.batch(stream, is_whole=True)
            world.check()
        for stream in world.streams:
            rows = sorted(row for batch in stream.rows for row in batch)
            assert stream.is_refused or rows == sorted(world.names)
        released += len(world.names) - len(list(folder.glob("*.csv")))
    assert released, "files of committed batches have gone"
