"""The job that the rounds run: small files in, Parquet out, each row once; its batches take a while."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from chaos.steps import Steps
from coordlog.api.chain import Chain
from coordlog.api.coordinator import CoordinatorProvider
from coordlog.schemas.payload import Payload
from coordlog.spark_integration.files.payloads import PublishFiles
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.store.store import At, nowhere
from coordlog.spark_integration.transform import transform_spec

__all__ = ["ROWS_PER_FILE", "Folders", "SteppedSink", "chain_of", "doubled"]

ROWS_PER_FILE = 40
BATCH_ROWS = 10


class Folders:
    """What lies on disk for one round."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source, self.out, self.home = root / "in", root / "out", root / "home"
        self.work = root / "work"
        self.fail_once = root / "fail-once"
        """While it is there, the next batch of any attempt raises, and takes it away."""
        self.slowly = root / "slowly"
        """While it is there, a batch takes ten times as long."""

    def add_files(self, numbers: range) -> None:
        """Some more files, each with rows of its own."""
        self.source.mkdir(parents=True, exist_ok=True)
        for number in numbers:
            first = number * ROWS_PER_FILE
            rows = "".join(f"{n},x{n}\n" for n in range(first, first + ROWS_PER_FILE))
            (self.source / f"{number:04}.csv").write_text("a,b\n" + rows, "ascii")

    def published(self) -> dict[str, tuple[int, int, int]]:
        """All that a reader sees: by name the file's number, its size, and when it was changed."""
        if not self.out.is_dir():
            return {}
        found = [one for one in self.out.iterdir() if not one.name.startswith(".")]
        stats = {one.name: one.stat() for one in found}
        return {name: (one.st_ino, one.st_size, one.st_mtime_ns) for name, one in stats.items()}

    def rows(self) -> list[int]:
        """The rows that a reader sees, sorted; each as often as it is there."""
        return sorted(row for rows in self.rows_by_file().values() for row in rows)

    def rows_by_file(self) -> dict[str, list[int]]:
        """The same, by the name of the file."""
        return {
            name: pq.ParquetFile(self.out / name).read().column("a").to_pylist()
            for name in self.published()
        }

    def work_done(self) -> dict[str, str]:
        """Who has done which work of the asked coordinator's."""
        found = self.work.iterdir() if self.work.is_dir() else ()
        return {one.name: one.read_text("ascii") for one in found}

    def staged(self, driver_id: str) -> list[str]:
        """What attempts of a driver have staged."""
        folder = self.out / ".coordlog" / "staging" / driver_id
        return sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []


class SteppedSink(ParquetSink):
    """The sink, with a step before each of its effects."""

    def __init__(self, path: Path, steps: Steps) -> None:
        super().__init__(path)
        self._steps = steps
        self._first_checkpoint: int | None = None

    def settle(self, intent: Payload, *, at: At = nowhere) -> Payload:
        """As the sink's, with a step at each place where a crash would leave something."""
        assert isinstance(intent, PublishFiles)
        self._steps.did(publishes=[one.final for one in intent.files])
        self._steps.at("before publishing")
        if self._first_checkpoint is None:
            self._first_checkpoint = intent.checkpoint_id
        elif intent.checkpoint_id != self._first_checkpoint:
            # Checkpoints are settled in order, each once the outcome of the one before is released.
            self._steps.at("before publishing a second checkpoint")
        # `before link x` is told as `before link`.
        return super().settle(intent, at=lambda place: self._steps.at(" ".join(place.split()[:2])))

    def sweep(
        self,
        *,
        keep: AbstractSet[str] = frozenset(),
        is_in_force: Callable[[], bool] = lambda: True,
    ) -> None:
        """As the sink's, with a step before it lists and one before it deletes."""

        def asked() -> bool:
            self._steps.at("after the listing")
            return is_in_force()

        self._steps.at("before sweeping")
        super().sweep(keep=keep, is_in_force=asked)

    def clean(
        self, *, driver_id: str, subtask: int, attempt_number: int, keep: AbstractSet[str]
    ) -> None:
        """As the sink's."""
        self._steps.at("before deleting")
        super().clean(
            driver_id=driver_id, subtask=subtask, attempt_number=attempt_number, keep=keep
        )


def chain_of(
    folders: Folders, sink: ParquetSink, *, batch_s: float, asked: CoordinatorProvider | None = None
) -> Chain:
    """The job's chain; a batch takes `batch_s`. `asked`: what makes the transform's coordinator."""
    transform = transform_spec(_transform(folders, batch_s))
    return Chain(
        source=FileSource(folders.source, batch_rows=BATCH_ROWS).spec(),
        operators=[replace(transform, coordinator=asked), sink.spec()],
    )


def _transform(folders: Folders, batch_s: float) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    fail_once, slowly = folders.fail_once, folders.slowly

    def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(10 * batch_s if slowly.exists() else batch_s)  # the work itself
        if fail_once.exists():
            try:
                fail_once.unlink()
            except FileNotFoundError:
                return batch  # another attempt was faster
            raise RuntimeError("this batch was to fail once")
        return batch

    return slow


def doubled(rows: Sequence[int]) -> list[int]:
    """What stands more than once among sorted rows."""
    return sorted({one for one, other in itertools.pairwise(rows) if one == other})
