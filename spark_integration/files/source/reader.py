"""The subtask's side of a file source: reads splits, and can say how far it is in each."""

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
from coordlog.schemas.source_events import RequestSplit
from coordlog.spark_integration.files.faults import EmptyFileError, is_fault_of_file
from coordlog.spark_integration.files.formats.formats import FileFormat, SplitRows
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
)

__all__ = ["FileReader", "FileReaderOptions", "merge_reader_states"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReaderOptions:
    """All that a reader needs beside its splits; pickles."""

    files: InputFiles
    format: FileFormat
    batch_rows: int
    asks_for_splits: bool
    """False: splits are assigned without being asked for."""
    skips_unreadable: bool = False
    """A split whose file is at fault is given up; else the attempt fails."""
    run_id: str | None
    """Of this run of the job. A file that an earlier one has listed, and that has changed since, is
    read as it is, if no row of it was; None: it is not."""


def merge_reader_states(states: Sequence[bytes]) -> bytes:
    """The state of one reader that reads on where several readers were (clause E7)."""
    restored = [decode_state(one) for one in states]
    return encode_state(FileReaderState(splits=[one for each in restored for one in each.splits]))


class FileReader(SourceReader):
    """Reads splits in the order in which they were added, each from the first row not yet given.

    Its state is its unfinished splits and the rows given of each. A restored reader opens the file
    again and passes over exactly that many rows. In pull mode it holds one split at a time: it asks
    for the next when one has been read and its end has been handled by the chain, so that a slow
    subtask gets fewer.
    """

    def __init__(self, options: FileReaderOptions) -> None:
        self._options = options
        self._splits: deque[SplitProgress] = deque()
        self._context: OperatorContext | None = None
        self._rows: SplitRows | None = None
        self._parsed: pa.RecordBatch | None = None
        self._given = 0
        self._is_as_begun = False
        """Whether the first split is read by other rules than those of the options."""
        self._finished_split_id: str | None = None
        self._is_given_up = False
        """Whether that one was not finished, but skipped."""
        self._no_more_splits = False

    def open(self, context: OperatorContext, state: bytes | None) -> None:
        """Take up the splits in `state`."""
        self._context = context
        if state is not None:
            restored = decode_state(state)
            self._splits.extend(restored.splits)
            self._given = self._splits[0].rows if self._splits else 0

    def start(self) -> None:
        """Ask for the first split, unless there is one to read on."""
        if not self._splits:
            self._ask(None)

    def add_splits(self, splits: Sequence[bytes]) -> None:
        """Queue `splits`, each an encoded FileSplit."""
        for one in splits:
            self._splits.append(SplitProgress(split=decode_split(one), rows=0, read_as=""))

    def notify_no_more_splits(self) -> None:
        """End once what is queued has been read."""
        self._no_more_splits = True

    def poll(self) -> Poll:
        """Up to `batch_rows` rows of the first unfinished split.

        One call parses at most one block: rows that are passed over after a restore cost calls that
        give WAITING.
        """
        if self._finished_split_id is not None:
            finished, self._finished_split_id = self._finished_split_id, None
            if not self._splits:
                self._ask(None if self._is_given_up else finished)
        if not self._splits:
            return Poll(status=PollStatus.END if self._no_more_splits else PollStatus.WAITING)
        if not self._options.skips_unreadable:
            return self._read()
        try:
            return self._read()
        except SourceError as error:
            if not is_fault_of_file(error, self._options.files):
                raise
            return self._give_up(error)

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
        return self._give(self._parsed)

    def skip_splits(self, split_ids: Collection[str]) -> Sequence[SkippedSplit]:
        """Drop those that the restored state has."""
        skips = frozenset(split_ids)
        dropped = [one for one in self._splits if one.split.split_id in skips]
        self._splits = deque(one for one in self._splits if one.split.split_id not in skips)
        self._given = self._splits[0].rows if self._splits else 0
        return [
            SkippedSplit(split_id=one.split.split_id, rows=one.rows, reason="it is skipped")
            for one in dropped
        ]

    def current_split(self) -> str | None:
        """The first unfinished split; at the end of one, that one."""
        if self._finished_split_id is not None:
            return self._finished_split_id
        return self._splits[0].split.split_id if self._splits else None

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        """Unfinished splits and the rows given of each."""
        return encode_state(
            FileReaderState(
                splits=[
                    replace(one, rows=self._given) if i == 0 else one
                    for i, one in enumerate(self._splits)
                ]
            )
        )

    def close(self) -> None:
        """Let go of the open file."""
        rows, self._rows, self._parsed = self._rows, None, None
        if rows is not None:
            rows.close()

    def _give(self, parsed: pa.RecordBatch) -> Poll:
        given = parsed.slice(0, self._options.batch_rows)
        rest = parsed.slice(given.num_rows)
        self._parsed = rest if rest.num_rows else None
        if not given.num_rows:
            return Poll(status=PollStatus.WAITING, retry_s=0.0)
        self._given += given.num_rows
        return Poll(status=PollStatus.BATCH, batch=given)

    def _open(self, progress: SplitProgress) -> SplitRows:
        split, run_id = progress.split, self._options.run_id
        is_of_earlier_run = run_id is not None and split.listed_by != run_id
        if is_of_earlier_run and not progress.rows and split.parts == 1:
            progress = self._splits[0] = replace(progress, split=self._as_it_is(split))
        self._given = progress.rows
        schema = self._schema_of(progress.split)
        return self._format_for(progress, schema).read(
            self._options.files,
            progress.split,
            schema,
            skip_rows=progress.rows,
            batch_rows=self._options.batch_rows,
        )

    def _schema_of(self, split: FileSplit) -> pa.Schema:
        """As it was settled; of a file that could not be read when it was listed, as it is now."""
        if split.arrow_schema:
            return decode_schema(split.arrow_schema)
        try:
            return self._options.format.settle(self._options.files, [as_listed(split)], None)
        except EmptyFileError:
            return pa.schema([])

    def _format_for(self, progress: SplitProgress, schema: pa.Schema) -> FileFormat:
        """A split is read on as it was begun: by other rules row N would be another row.

        So options may change between two runs, to read what could not be read: they hold for all
        that is not begun yet.
        """
        asked = self._options.format
        rules = asked.row_rules()
        begun = progress.read_as if progress.rows and progress.read_as else rules
        self._splits[0] = replace(progress, read_as=begun)
        self._is_as_begun = begun != rules
        if not self._is_as_begun:
            return asked
        _log.warning(
            "%s was begun with %s: it is read on so, and what is not begun yet with %s",
            progress.split.split_id,
            begun,
            rules,
        )
        return asked.ruled_by(begun, schema)

    def _as_it_is(self, split: FileSplit) -> FileSplit:
        """The split of a whole file of which nothing was read, as the file is now.

        No row of it can be in use: what an attempt gives after its last barrier, or in batch before
        the end of its split, is not committed. So somebody may mend a file that could not be read,
        and run the job again; within one run a change is no mending, but a file that is written.
        """
        now = self._options.files.look(split)
        difference = self._options.files.difference(split, now)
        if difference is None or now.real_path != split.real_path:
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
        """The next rows. A file that is another by now is named as that, whatever was read in it."""
        try:
            return rows.next()
        except SourceError as error:
            progress = self._splits[0]
            self._options.files.check(progress.split)
            if not self._is_as_begun:
                raise
            raise SourceError(
                error.where,
                f"{error.problem}; {self._given} rows of {progress.split.split_id} had been read "
                f"with {progress.read_as}, and it is read on so, whatever the options are now",
                "skip it (`coordlog skip`), and give its other rows in a new file",
            ) from error.__cause__

    def _finish(self) -> Poll:
        rows, split = self._rows, self._splits[0].split
        assert rows is not None, "only a split that was opened comes to its end"
        self._options.files.check(split)
        if rows.skip_rows:
            raise SourceError(
                split.path,
                f"split {split.split_id} ends {rows.skip_rows} rows before row {self._given}, up "
                "to which it was read before",
                "put back the file as it was: its content has changed since",
            )
        finished = FinishedSplit(
            split_id=split.split_id, rows=self._given, bytes_read=rows.bytes_read
        )
        self.close()
        self._splits.popleft()
        self._given = self._splits[0].rows if self._splits else 0
        self._finished_split_id, self._is_given_up = split.split_id, False
        return Poll(status=PollStatus.SPLIT_FINISHED, finished=finished)

    def _give_up(self, error: SourceError) -> Poll:
        split_id, given = self._splits[0].split.split_id, self._given
        self.close()
        self._splits.popleft()
        self._given = self._splits[0].rows if self._splits else 0
        self._finished_split_id, self._is_given_up = split_id, True
        skipped = SkippedSplit(split_id=split_id, rows=given, reason=str(error))
        return Poll(status=PollStatus.SPLIT_SKIPPED, skipped=skipped)

    def _ask(self, finished_split_id: str | None) -> None:
        if self._options.asks_for_splits and not self._no_more_splits:
            assert self._context is not None, "`open` comes first"
            self._context.send_event(RequestSplit(finished_split_id=finished_split_id))
