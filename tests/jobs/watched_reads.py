"""A service of queries on a watched folder, whose listings and releases are run one by one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from coordlog.schemas.payload import Payload
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.watch import Watch
from data.file_times import DAY_S, NOW_S
from jobs.reads_job import OPERATOR, Outside, ReadsJob

LISTED = "coordlog.splits_discovered@"


def write(folder: Path, *names: str, day: float = 0, text: str = "i\n1\n") -> None:
    """Files that were modified so many days after the first day."""
    for name in names:
        (folder / name).write_text(text)
        os.utime(folder / name, (NOW_S + day * DAY_S, NOW_S + day * DAY_S))


class Service(ReadsJob):
    """A service on a folder, whose listings and releases are run one by one."""

    def __init__(
        self,
        folder: Path,
        former: Service | None = None,
        *,
        abandoned: tuple[str, ...] = (),
        **options: Any,  # noqa: ANN401
    ) -> None:
        watch = Watch(watch_interval_s=0.01, **options)
        super().__init__(
            Outside(is_complete=False),
            log=None if former is None else former.job.log,
            abandoned=abandoned,
            source=FileSource(folder, schema="i bigint", watch=watch).coordinated(),
        )

    def list_files(self, count: int = 1) -> None:
        """Run so many listings, each with its facts, and what else waits."""
        for _ in range(count):
            is_listed = False
            while not is_listed and self.job.works:
                end = self.job.log.high_watermark()
                for _ in range(len(self.job.works)):
                    self.job.run(self.job.works.popleft())
                fresh = self.job.log.read(end, self.job.log.high_watermark())
                types = [stored.record().payload_type or "" for stored in fresh]
                is_listed = any(name.startswith(LISTED) for name in types)

    def read(self, start: int, end: int, *, reader: str = "q", follows: str = "") -> list[str]:
        """Plan a batch of a stream, and read it; names of its files."""
        planned = self.plan_batch(start, end, reader=reader, follows=follows, partitions=1)
        if not planned.partitions:
            return []
        return sorted(Path(name).name for name in self.task(planned, 0).run())

    @property
    def known(self) -> list[str]:
        splits = self.state.splits
        return [Path(splits[number].split.split_id).name for number in sorted(splits)]

    def payloads(self, payload_type: type[Payload]) -> list[Any]:
        decode = self.job.chain.payload_types.decode
        values = [
            decode(record.payload_type or "", record.payload or b"")
            for record in self.job.history()
            if record.operator_id == OPERATOR and record.payload_type
        ]
        return [value for value in values if isinstance(value, payload_type)]

    def crash(self, folder: Path, **options: Any) -> Service:  # noqa: ANN401
        self.job.crash()
        return Service(folder, self, **options)
