"""The subtask's side of a file source: reads splits, and keeps the number of rows read of each."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from coordlog.api.operator import (
    FinishedSplit,
    OperatorContext,
    Poll,
    PollStatus,
    SkippedSplit,
    SourceReader,
)
from coordlog.errors import SourceError
from coordlog.limits import SPLITS_AT_ONCE_WEIGHT
from coordlog.schemas.source_types import RequestSplit
from coordlog.spark_integration.files.faults import EmptyFileError, is_fault_of_file
from coordlog.spark_integration.files.formats.bad_rows import BadRow, placed, rejects_batch
from coordlog.spark_integration.files.formats.formats import FileFormat, SplitRows
from coordlog.spark_integration.files.links import leads_elsewhere
from coordlog.spark_integration.files.listing import InputFiles, as_listed
from coordlog.spark_integration.files.payloads import (
    FileChanged,
    FileReaderState,
    FileSplit,
    SplitProgress,
)
from coordlog.spark_integration.files.source.split_bytes import (
    decode_schema,
    decode_split,
    decode_state,
    encode_state,
    size_of,
)

__all__ = ["FileReader", "FileReaderOptions", "merge_reader_states"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReaderOptions:
    """Options of a reader. Pickles."""

    files: InputFiles
    format: FileFormat
    batch_rows: int
    asks_for_splits: bool
    """False: splits are assigned without a request."""
    skips_unreadable: bool = False
    """True: a split whose file is at fault is skipped; else the attempt fails."""
    emits_rejects: bool = False
    """True: rows that the format leaves out are emitted as batches of rejects; else they are counted alone."""
    places_rows: bool = False
    """Whether batches have the place of their rows, for an operator that leaves out some of them."""
    run_id: str | None
    """Id of this run of the job, or None. With it a file that an earlier run has listed, and that
    has changed since, is read as it is now, if none of its rows was read before."""

    @property
    def groups_splits(self) -> bool:
        """Whether a reader may announce the next split, which must then not be skipped with rows of it emitted."""
        return self.asks_for_splits and not self.skips_unreadable


def merge_reader_states(states: Sequence[bytes]) -> bytes:
    """The state of one reader that continues several readers (clause E7: restore with other parallelism)."""
    restored = [decode_state(state) for state in states]
    splits = [progress for state in restored for progress in state.splits]
    return encode_state(FileReaderState(splits=splits))


class FileReader(SourceReader):
    """Reads splits in the order in which they were added, each from the first row not yet emitted.

    Its state is its unfinished splits and the number of rows emitted of each, good ones and bad ones.
    A restored reader opens the file again and passes over exactly that many of each. In pull mode it requests the next
    split once a split has been read and the chain has handled its end, so that a slow subtask gets
    fewer; if it got several small ones at once, it requests the next when half of them are left.
    """

    emits_own_memory = True

    def __init__(self, options: FileReaderOptions) -> None:
        self._options = options
        self._splits: deque[SplitProgress] = deque()
        self._context: OperatorContext | None = None
        self._rows: SplitRows | None = None
        self._parsed: pa.RecordBatch | None = None
        self._emitted = 0
        self._rejected = 0
        self._rejects_to_skip = 0
        """Bad rows of the first split that are still to be passed over."""
        self._is_as_begun = False
        """Whether the first split is read by other rules than those of the options."""
        self._finished_split_id: str | None = None
        self._is_skipped = False
        """Whether the split of `_finished_split_id` was skipped."""
        self._no_more_splits = False
        self._is_requested = False
        """Whether a request has no answer yet."""
        self._request_at = 0
        """Number of unfinished splits at which the next are requested."""

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Continue the splits in `state`."""
        self._context = context
        if state is not None:
            restored = decode_state(state)
            self._splits.extend(restored.splits)
            self._request_at = len(self._splits) // 2
            self._go_to_first()

    def start(self) -> None:
        """Request the first split, unless a restored one is to be continued."""
        if not self._splits:
            self._request(None)

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Queue `splits`, each an encoded FileSplit."""
        self._is_requested, self._request_at = False, len(splits) // 2
        for encoded in splits:
            self._splits.append(
                SplitProgress(split=decode_split(encoded), rows=0, rejected=0, read_as="")
            )

    def notify_no_more_splits(self) -> None:
        """End once all queued splits have been read."""
        self._no_more_splits = True

    def poll(self) -> Poll:
        """Up to `batch_rows` rows of the first unfinished split.

        One call parses at most one block: while rows are passed over after a restore, calls return
        WAITING.
        """
        if self._finished_split_id is not None:
            finished, self._finished_split_id = self._finished_split_id, None
            if len(self._splits) <= self._request_at and not self._is_requested:
                self._request(None if self._is_skipped else finished)
        if not self._splits:
            return Poll(status=PollStatus.END if self._no_more_splits else PollStatus.WAITING)
        if not self._options.skips_unreadable:
            return self._read()
        try:
            return self._read()
        except SourceError as error:
            if not is_fault_of_file(error, self._options.files):
                raise
            return self._skip(error)

    def _read(self) -> Poll:
        if self._rows is None:
            self._rows = self._open(self._splits[0])
        if self._parsed is None:
            self._parsed = self._next(self._rows)
            if self._parsed is None:
                return self._finish()
            passed_over = min(self._rows.skip_rows, self._parsed.num_rows)
            self._rows.skip_rows -= passed_over
            self._parsed = self._parsed.slice(passed_over)
            if (rejects := self._rejects(self._rows.bad_rows)) is not None:
                return Poll(status=PollStatus.BATCH, batch=rejects)
        return self._emit(self._parsed)

    def _rejects(self, bad_rows: Sequence[BadRow]) -> pa.RecordBatch | None:
        """Count bad rows that were not counted before a restore. Returns the batch of them, if it is to be emitted."""
        passed_over = min(self._rejects_to_skip, len(bad_rows))
        self._rejects_to_skip -= passed_over
        new = bad_rows[passed_over:]
        self._rejected += len(new)
        if not new or not self._options.emits_rejects:
            return None
        return rejects_batch(self._splits[0].split.path, new)

    def _go_to_first(self) -> None:
        """Set the position to that of the first unfinished split."""
        first = self._splits[0] if self._splits else None
        self._emitted, self._rejected = (0, 0) if first is None else (first.rows, first.rejected)

    def skip_splits(self, split_ids: Collection[str]) -> Sequence[SkippedSplit]:
        """Drop those of these splits that the restored state has."""
        skips = frozenset(split_ids)
        dropped = [each for each in self._splits if each.split.split_id in skips]
        self._splits = deque(each for each in self._splits if each.split.split_id not in skips)
        self._go_to_first()
        return [
            SkippedSplit(split_id=each.split.split_id, rows=each.rows, reason="it is skipped")
            for each in dropped
        ]

    def current_split(self) -> str | None:
        """Id of the first unfinished split; at the end of a split, id of that split."""
        if self._finished_split_id is not None:
            return self._finished_split_id
        return self._splits[0].split.split_id if self._splits else None

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        """Unfinished splits and the rows emitted of each."""
        return encode_state(
            FileReaderState(
                splits=[
                    replace(progress, rows=self._emitted, rejected=self._rejected)
                    if index == 0
                    else progress
                    for index, progress in enumerate(self._splits)
                ]
            )
        )

    def close(self) -> None:
        """Close the open file."""
        rows, self._rows, self._parsed = self._rows, None, None
        if rows is not None:
            rows.close()

    def _emit(self, parsed: pa.RecordBatch) -> Poll:
        batch = parsed.slice(0, self._options.batch_rows)
        rest = parsed.slice(batch.num_rows)
        self._parsed = rest if rest.num_rows else None
        if not batch.num_rows:
            return Poll(status=PollStatus.WAITING, retry_s=0.0)
        self._emitted += batch.num_rows
        if self._options.places_rows:
            split = self._splits[0].split
            batch = placed(batch, split.split_id, split.path)
        return Poll(status=PollStatus.BATCH, batch=batch)

    def _open(self, progress: SplitProgress) -> SplitRows:
        split, run_id = progress.split, self._options.run_id
        is_of_earlier_run = run_id is not None and split.listed_by != run_id
        is_begun = bool(progress.rows or progress.rejected)
        if is_of_earlier_run and not is_begun and split.parts == 1:
            progress = self._splits[0] = replace(progress, split=self._as_it_is(split))
        self._go_to_first()
        self._rejects_to_skip = progress.rejected
        schema = self._schema_of(progress.split)
        return self._format_for(progress, schema).read(
            self._options.files,
            progress.split,
            schema,
            skip_rows=progress.rows,
            batch_rows=self._options.batch_rows,
        )

    def _schema_of(self, split: FileSplit) -> pa.Schema:
        """The settled schema; settled now for a file that could not be read when it was listed."""
        if split.arrow_schema:
            return decode_schema(split.arrow_schema)
        try:
            return self._options.format.settle(self._options.files, [as_listed(split)], None)
        except EmptyFileError:
            return pa.schema([])

    def _format_for(self, progress: SplitProgress, schema: pa.Schema) -> FileFormat:
        """The format of a split: with the rules with which it was begun.

        By other rules row N would be another row. So options may change between two runs, to read
        files that could not be read: they hold for all splits that are not begun yet.
        """
        wanted = self._options.format
        rules = wanted.row_rules()
        is_begun = bool(progress.rows or progress.rejected)
        begun = progress.read_as if is_begun and progress.read_as else rules
        as_begun = wanted
        if begun != rules:
            as_begun = wanted.ruled_by(begun, schema, left_out_rows=progress.rejected > 0)
        # Some rules count only if rows are left out.
        self._is_as_begun = as_begun.row_rules() != rules
        self._splits[0] = replace(progress, read_as=as_begun.row_rules())
        if not self._is_as_begun:
            return wanted
        _log.warning(
            "%s was begun with %s: it is continued so, and splits that are not begun yet with %s",
            progress.split.split_id,
            begun,
            rules,
        )
        return as_begun

    def _as_it_is(self, split: FileSplit) -> FileSplit:
        """The split of a whole file of which nothing was read, as the file is now.

        No row of it can be in use: rows after the last barrier of an attempt, or in batch before the
        end of its split, are not committed. So a file that could not be read may be fixed before the
        job is run again; within one run a change means that the file is still being written.
        """
        now = self._options.files.look(split)
        difference = self._options.files.difference(split, now)
        if difference is None or leads_elsewhere(split.path, split.real_path, now.real_path):
            return split
        _log.warning(
            "%s has changed since the source was listed (%s); no row of it was read before: it is "
            "read as it is now",
            split.path,
            difference,
        )
        assert self._context is not None, "`open` comes first"
        self._context.send_event(
            FileChanged(
                path=split.path,
                size_bytes=now.size_bytes,
                mark=now.mark,
                listed_size_bytes=split.size_bytes,
                listed_mark=split.mark,
            )
        )
        end = now.size_bytes if self._options.format.unit == "bytes" else -1
        return replace(split, size_bytes=now.size_bytes, mark=now.mark, end=end)

    def _next(self, rows: SplitRows) -> pa.RecordBatch | None:
        """The next rows. If the file has changed meanwhile, that is the error that is raised.

        Rows of a changed file must not go on: a checkpoint would commit them before the end of the split.
        """
        progress = self._splits[0]
        try:
            batch = rows.next()
        except SourceError as error:
            self._options.files.check(progress.split)
            if not self._is_as_begun:
                raise
            raise SourceError(
                error.where,
                f"{error.problem}; {self._emitted} rows of {progress.split.split_id} had been read "
                f"with {progress.read_as}, and it is continued so, not with the present options",
                "skip it (`coordlog skip`), and add its other rows in a new file",
            ) from error.__cause__
        self._options.files.check_so_far(progress.split)
        return batch

    def _finish(self) -> Poll:
        rows, split = self._rows, self._splits[0].split
        assert rows is not None, "only an open split comes to its end"
        self._options.files.check(split)
        if rows.skip_rows:
            raise SourceError(
                split.path,
                f"split {split.split_id} ends {rows.skip_rows} rows before row {self._emitted}, up "
                "to which it was read before",
                "put back the file as it was: its content has changed since",
            )
        if self._rejects_to_skip:
            raise SourceError(
                split.path,
                f"split {split.split_id} has {self._rejects_to_skip} bad rows less than the "
                f"{self._rejected} that were left out before",
                "put back the file as it was, and the options of the source",
            )
        if self._rejected and not self._options.emits_rejects:
            _log.warning("%s: %d bad rows were left out", split.split_id, self._rejected)
        finished = FinishedSplit(
            split_id=split.split_id,
            rows=self._emitted,
            bytes_read=rows.bytes_read,
            rejected=self._rejected,
            has_next=self._has_small_next(),
        )
        self.close()
        self._splits.popleft()
        self._go_to_first()
        self._finished_split_id, self._is_skipped = split.split_id, False
        return Poll(status=PollStatus.SPLIT_FINISHED, finished=finished)

    def _has_small_next(self) -> bool:
        """Whether a small split follows the first one."""
        if len(self._splits) == 1 or not self._options.groups_splits:
            return False
        size = size_of(self._splits[1].split)
        return size is not None and size <= SPLITS_AT_ONCE_WEIGHT

    def _skip(self, error: SourceError) -> Poll:
        split_id, rows = self._splits[0].split.split_id, self._emitted
        self.close()
        self._splits.popleft()
        self._go_to_first()
        self._finished_split_id, self._is_skipped = split_id, True
        skipped = SkippedSplit(split_id=split_id, rows=rows, reason=str(error))
        return Poll(status=PollStatus.SPLIT_SKIPPED, skipped=skipped)

    def _request(self, finished_split_id: str | None) -> None:
        if self._options.asks_for_splits and not self._no_more_splits:
            assert self._context is not None, "`open` comes first"
            self._is_requested = True
            self._context.send_event(RequestSplit(finished_split_id=finished_split_id))
