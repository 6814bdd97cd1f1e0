"""A source of CSV, JSON lines, Parquet or text files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, Literal
from uuid import uuid4

import pyarrow as pa

from coordlog.api.chain import RowRejects, SourceSpec
from coordlog.coordinators.enumerator import EnumeratorContext
from coordlog.coordinators.listing import Relisted
from coordlog.coordinators.query_source import CoordinatedSource, QueryWatch
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.coordinators.watching import SplitWatch, WatchingEnumerator
from coordlog.errors import OptionError
from coordlog.limits import (
    CSV_BLOCK_BYTES,
    FILE_BATCH_ROWS,
    FILE_SPLIT_BYTES,
    LISTING_TIMEOUT_S,
)
from coordlog.log.credentials import refuse_credentials
from coordlog.option_types import check_all, check_range, check_types
from coordlog.projections.splits.fold import SplitsState
from coordlog.projections.splits.table import PlacedSplits
from coordlog.schemas.payload import Payload
from coordlog.schemas.source_types import Split, SplitsDiscovered
from coordlog.spark_integration.casts.given_schema import arrow_schema_of
from coordlog.spark_integration.files.compression import Compression, check_compression
from coordlog.spark_integration.files.formats.bad_rows import REJECTS_SCHEMA
from coordlog.spark_integration.files.formats.csv.options import CsvOptions, CsvText
from coordlog.spark_integration.files.formats.csv.rows import check_csv_types
from coordlog.spark_integration.files.formats.formats import (
    CsvFormat,
    FileFormat,
    JsonLinesFormat,
    ParquetFormat,
    TextFormat,
)
from coordlog.spark_integration.files.formats.json.values import check_json_types
from coordlog.spark_integration.files.listing import InputFiles
from coordlog.spark_integration.files.payloads import (
    AgeLimit,
    FileChanged,
    FilesLeftOut,
    SchemaSettled,
)
from coordlog.spark_integration.files.places import absolute, location_of, locations_of
from coordlog.spark_integration.files.rejected_rows import rejects_of_rows
from coordlog.spark_integration.files.rescued import unmarked, with_rescued
from coordlog.spark_integration.files.sink.rejects import FAIL, SKIP, rejects_sink
from coordlog.spark_integration.files.sink.split_rejects import SplitRejects
from coordlog.spark_integration.files.source.ages import FileAges
from coordlog.spark_integration.files.source.discovery import (
    Discovery,
    FileListing,
    FileWatch,
)
from coordlog.spark_integration.files.source.kept import (
    files_as_read,
    limit_of,
    note_change,
    note_fact,
    note_lost_splits,
    settled_of,
)
from coordlog.spark_integration.files.source.known_files import KnownFiles
from coordlog.spark_integration.files.source.notifications import NotifiedWatch, SqsQueue
from coordlog.spark_integration.files.source.partition_folders import PartitionFolders
from coordlog.spark_integration.files.source.paths import check_paths, paths_of, scheme_of
from coordlog.spark_integration.files.source.reader import (
    FileReader,
    FileReaderOptions,
    merge_reader_states,
)
from coordlog.spark_integration.files.source.release import (
    CommittedFiles,
    CommittedSplits,
    FileRelease,
    ReleaseResults,
)
from coordlog.spark_integration.files.source.relisting import relisted
from coordlog.spark_integration.files.source.split_bytes import (
    decode_schema,
    decode_split,
    schema_of,
    size_of,
    weight_of,
)
from coordlog.spark_integration.files.source.watch import Watch

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["FileSource", "Format"]

Format = Literal["csv", "jsonl", "parquet", "text"]
_OF_FORMATS: Final[Mapping[str, tuple[Format, ...]]] = {
    "schema": ("csv", "jsonl", "parquet"),
    "csv": ("csv",),
    "encoding": ("csv", "jsonl", "text"),
    "block_bytes": ("csv", "jsonl", "text"),
    "rescued": ("csv", "jsonl"),
}
"""Formats for which an option has an effect, if not all."""
_WITH_BAD_ROWS: Final[tuple[Format, ...]] = ("csv", "jsonl")
"""Formats with rows that cannot be parsed or cast."""
_PAYLOADS: Final = (FileChanged, AgeLimit, FilesLeftOut, SchemaSettled)
"""Events and facts of the source's own."""
_ENCODING: Final = "utf-8"
_MICROSECOND: Final = timedelta(microseconds=1)


class FileSource:
    """The rows of a file, of all files in a folder and its folders, of a glob, or of an fsspec URL.

    The files are listed once, when the job first starts, in the order of their paths, or with
    `watch` again and again; names that begin with `.` or `_` are left out. The schema is settled
    with the first listing and stored in every split, so that it is the same for every reader, file
    and block, and after every restart. A file is read once and must not change meanwhile: size and
    mark (its time, or an object store's etag) are in its splits, and are compared when it is opened
    and when it has been read. One exception: if the job is run again, without `watch`, a file that
    is one split and of which no row was read is read as it is then, so that a file that could not
    be read may be fixed.

    Args:
        path: A local path or an fsspec URL without credentials; may be a glob, unless something of
            just that name exists.
        format: `"csv"`, `"jsonl"` (JSON lines), `"parquet"` or `"text"` (lines, in one column
            `value`).
        compression: Packing of the files; `"infer"`: by the ends of their names. Not for Parquet,
            whose columns are compressed in the file.
        schema: All columns, in order, with their types: a pyarrow schema, a StructType of Spark, or
            a DDL string such as `"id bigint, name string"`. Without it: CSV names from the header and
            types from a sample of the files; JSON lines fields and types from a sample; Parquet the
            schema of the first file, which the others must have too.
        schemas: `"one"`: a file of another schema is an error. `"each"`: each file is read with its
            own schema, which the next operator must accept.
        storage_options: For fsspec: options of its file system, secrets included. Not in the log.
        batch_rows: Greatest number of rows of a batch.
        split_bytes: Approximate length of a split. Parquet is split between row groups. CSV is split
            only with `no_newlines_in_fields`; formats of lines only if the file is not packed, can
            be read from anywhere, and is in an encoding in which every byte 10 is a line end.
        assignment: `"pull"`: a subtask gets a split when it has read the one before. `"static"`:
            all splits are assigned beforehand.
        watch: Continue to list new files. The job ends only by `idle_timeout_s`, or by a stop.
        listing_timeout_s: Seconds for which tries to list may fail one after the other before the
            job fails; files that were found before are read meanwhile. The first try of a new job
            fails at once if it is made before Spark starts, as `coordlog ingest` does.
        changed_by: Signs that a file has changed: `"modified"`: size, and time or etag. `"size"`:
            the size alone.
        csv: Format of CSV files.
        encoding: Not Parquet: any encoding of Python.
        block_bytes: Not Parquet: bytes that are parsed at once; a longer line is an error.
        on_error: Treatment of a split whose file is at fault: a bad row, a cut file, a file that is
            gone. `"fail"`: the attempt fails, and after repeated failures the job. `"skip"`: the
            split is skipped, and the history has the reason. In batch, if no link of the chain keeps
            state across splits, none of its rows stay; else the rows before the first unreadable one
            stay, and the history has their number.
        bad_rows: Treatment of a row of CSV or JSON lines that cannot be parsed or cast, and of a row at which a
            `row_transform` raises. `"fail"`: an error of its file, see `on_error`, or of the attempt.
            `"skip"`: it is left out; the history has the number for each split. Any other value is a folder or a
            URL as that of a `ParquetSink`: such rows are written there as Parquet, with file, line, offset, reason
            and text, and are published once, with the checkpoint that holds the other rows. A rejects folder
            belongs to one job.
        rescued: Name of a column of strings for fields that `schema` does not have, which is needed: the last
            column, with the fields of a row as the text of one JSON object, or null if it has none. Of JSON lines
            these are fields of the object itself, each with its value as it is written; of CSV columns of the
            file's own header, with their texts. None: JSON fields beyond `schema` are ignored, and CSV
            columns refused.
        exclude: Globs of files and folders that are left out of every listing. A glob without a slash
            is compared with each name below the path, a glob with a slash with the path below it, a
            glob that begins with a slash with the whole path; `*` takes slashes too. A file that was
            listed before, and of which nothing was read, is left out too, and the history has its name; others stay.
        also: Further paths, globs or URLs of the same file system whose files are read too. The schema, the
            options and `watch` are the same for all. In the history they are a part of the source's path.
        allow_other_path: A job may continue although its history has another path, glob or URL.
            Splits in the history are read as they were listed; new listings use this path, and a
            file that has another path than before is another file.

    Raises:
        OptionError: An option is out of range, or has no effect for this format, or the URL holds
            credentials.
    """

    _assignment: Literal["pull", "static"]

    def __init__(  # noqa: PLR0913, the options of a source
        self,
        path: str | os.PathLike[str],
        *,
        format: Format = "csv",  # noqa: A002, the common name
        compression: Compression = "infer",
        schema: pa.Schema | StructType | str | None = None,
        schemas: Literal["one", "each"] = "one",
        storage_options: Mapping[str, str] | None = None,
        batch_rows: int = FILE_BATCH_ROWS,
        split_bytes: int = FILE_SPLIT_BYTES,
        assignment: Literal["pull", "static"] = "pull",
        watch: Watch | None = None,
        listing_timeout_s: float = LISTING_TIMEOUT_S,
        changed_by: Literal["modified", "size"] = "modified",
        csv: CsvOptions | None = None,
        encoding: str = _ENCODING,
        block_bytes: int = CSV_BLOCK_BYTES,
        on_error: Literal["fail", "skip"] = "fail",
        bad_rows: str | os.PathLike[str] = "fail",
        rescued: str | None = None,
        exclude: str | Sequence[str] = (),
        also: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
        allow_other_path: bool = False,
        partition_folders: PartitionFolders = "refuse",
    ) -> None:
        check_types(type(self).__init__, locals())
        url, others = os.fspath(path), paths_of(also)
        columns = arrow_schema_of("schema", schema)
        text = partial(CsvText, csv=csv or CsvOptions(), encoding=encoding, block_bytes=block_bytes)
        check_all(
            lambda: check_paths(url, others),
            lambda: check_compression(compression),
            lambda: _check_positive(batch_rows=batch_rows, split_bytes=split_bytes),
            lambda: _check_watch(watch, assignment, url),
            lambda: check_range("listing_timeout_s", listing_timeout_s, 0, 86_400),
            text,
            lambda: _check_schema(format, columns),
            *_uses(
                format,
                schema=columns,
                csv=None if csv == CsvOptions() else csv,
                encoding=None if encoding == _ENCODING else encoding,
                block_bytes=None if block_bytes == CSV_BLOCK_BYTES else block_bytes,
                rescued=rescued,
            ),
            lambda: _check_columns(format, rescued, columns, text.keywords["csv"]),
            lambda: rejects_sink(bad_rows),
        )
        self.rejects, self._results = rejects_sink(bad_rows), ReleaseResults()
        self._batch_rows, self._assignment = batch_rows, assignment
        self._bad_rows, self._format = os.fspath(bad_rows), format
        self._skips_unreadable, self._allows_other_path = on_error == SKIP, allow_other_path
        self._watching, self._listing_timeout_s = watch, listing_timeout_s
        is_lenient = watch is not None or self._skips_unreadable
        self._discovery = Discovery(
            files=_input_files([url, *others], storage_options, changed_by, exclude, watch),
            format=_format_of(
                format, compression, text(), columns, is_lenient=is_lenient, sifts=bad_rows != FAIL
            ),
            schema=with_rescued(columns, rescued) if columns is not None and rescued else columns,
            schemas=schemas,
            split_bytes=split_bytes,
            run_id=uuid4().hex,
            skips_unreadable=self._skips_unreadable,
            is_lenient=watch is not None and on_error == "skip",
            partition_folders=partition_folders,
        )
        self._places = tuple(locations_of(self._discovery.files.urls))
        self._archive = None if not watch or not watch.archive else absolute(watch.archive)

    @property
    def _location(self) -> str:
        return " + ".join(self._places)

    def spec(self, operator_id: str = "source") -> SourceSpec:
        """The source as the first link of a chain.

        Reads nothing yet: its coordinator does.
        """
        options = FileReaderOptions(
            files=self._discovery.files,
            format=self._discovery.format,
            batch_rows=self._batch_rows,
            asks_for_splits=self._assignment == "pull",
            skips_unreadable=self._skips_unreadable,
            emits_rejects=self.rejects is not None,
            # A watch itself compares the files with their listing.
            run_id=None if self._watching is not None else self._discovery.run_id,
        )
        # Also without the option: a run before this one may have left an intent.
        release = FileRelease(self._discovery.files, self._results)
        if self._watching is not None:
            provider = SplitCoordinatorProvider(
                operator_id,
                enumerator=self._watch,
                keeps_listed=True,
                payload_types=_PAYLOADS,
                release=release,
            )
        else:
            provider = SplitCoordinatorProvider(
                operator_id,
                discover=self.discover,
                discover_again=self.discover_again,
                note_event=note_change,
                note_lost_splits=note_lost_splits,
                assignment=self._assignment,
                payload_types=_PAYLOADS,
                listing_timeout_s=self._listing_timeout_s,
                weight_of=_weight_of,
                release=release,
            )
        return SourceSpec(
            operator_id=operator_id,
            options={"format": _FORMAT_NAMES[type(self._discovery.format)]},
            location=self._location,
            inputs=self._places if len(self._places) > 1 else (),
            archive=None if self._archive is None else location_of(self._archive),
            allows_other_location=self._allows_other_path,
            create_reader=partial(FileReader, options),
            merge_states=merge_reader_states,
            reads_in_order=True,
            groups_splits=options.groups_splits,
            coordinator=provider,
            followers=() if self.rejects is None else (self.rejects.spec(),),
            row_rejects=self._row_rejects(options),
        )

    def _row_rejects(self, options: FileReaderOptions) -> RowRejects | None:
        if self._bad_rows == FAIL:
            return None
        return RowRejects(
            create_reader=partial(FileReader, replace(options, places_rows=True)),
            rejects_of=None if self.rejects is None else rejects_of_rows,
            needed_for="" if self._format in _WITH_BAD_ROWS else self._bad_rows,
        )

    def coordinated(self) -> CoordinatedSource:
        """The source for queries: `coordlog.spark_integration.dataframes`.

        Raises:
            OptionError: An option has no meaning for queries.
        """
        _check_coordinated(
            assignment=(self._assignment, "pull"),
            on_error=("skip" if self._skips_unreadable else "fail", "fail"),
            schemas=(self._discovery.schemas, "one"),
        )
        self._check_forgetting()
        if self._bad_rows != FAIL and self._format not in _WITH_BAD_ROWS:
            raise OptionError(
                "bad_rows",
                self._bad_rows,
                f"'fail' with format={self._format!r}, if queries read the source: all of its rows can be read",
            )
        options = FileReaderOptions(
            files=self._discovery.files,
            format=self._discovery.format,
            batch_rows=self._batch_rows,
            asks_for_splits=False,
            run_id=None,  # files are read as listed, so that a batch that is read again is the same
        )
        readers = self._readers_of_queries(options)
        return CoordinatedSource(
            create_reader=readers[self._bad_rows],
            readers=readers,
            rejects=self._rejects_of_queries(),
            open_watch=self._watch_of_queries,
            is_unbounded=self._watching is not None,
            schema_of=schema_of,
            settle_schema=self._settle_or_given,
            weight_of=weight_of,
            options={"format": _FORMAT_NAMES[type(self._discovery.format)]},
            location=self._location,
            inputs=self._places if len(self._places) > 1 else (),
            archive=None if self._archive is None else location_of(self._archive),
            allows_other_location=self._allows_other_path,
            payload_types=_PAYLOADS,
            # Also without the option: a service before this one may have left an intent.
            sink=FileRelease(self._discovery.files, self._results),
            releases="after_commit" if self._releases else "",
        )

    @property
    def _releases(self) -> bool:
        return self._watching is not None and self._watching.after_commit != "keep"

    def _check_forgetting(self) -> None:
        """Check that the schema stays when the splits that have it are forgotten: a DataFrame has one."""
        watch = self._watching
        if watch is None or self._discovery.schema is not None or self._format == "text":
            return
        for option, value, is_set in (
            ("max_file_age", watch.max_file_age, watch.age is not None),
            ("after_commit", watch.after_commit, self._releases),
        ):
            if is_set:
                raise OptionError(
                    option,
                    value,
                    "set with `schema=`, if queries read the source: names of files are forgotten, and with them "
                    "the schema that was settled",
                )

    def _watch_of_queries(self, kept: bytes | None) -> QueryWatch:
        if self._watching is None:
            return QueryWatch(watch=FileListing(partial(self.discover_again, kept=kept)))
        watch = self._file_watch(self._watching, kept)
        committed = self._committed_files(watch)
        return QueryWatch(
            watch=_watch_of(watch, self._watching),
            note_fact=partial(_note_kept, watch),
            release=None if committed is None else committed.intents,
        )

    def _readers_of_queries(
        self, options: FileReaderOptions
    ) -> dict[str, Callable[[], FileReader]]:
        """Readers by the treatment of bad rows."""
        file_format = self._discovery.format
        if not isinstance(file_format, (CsvFormat, JsonLinesFormat)):
            return {FAIL: partial(FileReader, options)}
        strict = replace(options, format=replace(file_format, sifts=False), emits_rejects=False)
        sifting = replace(options, format=replace(file_format, sifts=True))
        readers: dict[str, Callable[[], FileReader]] = {
            FAIL: partial(FileReader, strict),
            SKIP: partial(FileReader, sifting),
        }
        if self.rejects is not None:
            emitting = replace(sifting, emits_rejects=True)
            for spelling in (self._bad_rows, self.rejects.destination):
                readers[spelling] = partial(FileReader, emitting)
        return readers

    def _rejects_of_queries(self) -> SplitRejects | None:
        if self.rejects is None:
            return None
        rules = f"format={self._format} {self._discovery.format.row_rules()}"
        return SplitRejects(self.rejects, REJECTS_SCHEMA, rules)

    def _settle_or_given(self, kept: bytes | None) -> pa.Schema:
        settled = settled_of(kept)
        schema = decode_schema(settled) if settled else self._discovery.schema
        return self.settle_schema() if schema is None else unmarked(schema)

    def settle_schema(self) -> pa.Schema:
        """The schema that a listing made now would settle; to be changed, and given as `schema`.

        Raises:
            SourceError: There is nothing to read, or the files are not compatible.
        """
        return unmarked(self._discovery.settle(self._discovery.files.list()))

    def check(self) -> None:
        """Check, before a job starts, that there are files that can be read.

        With `watch` there may be no file yet, and present files may not be whole.

        Raises:
            SourceError: As `discover`.
        """
        if self._watching is not None:
            for _file in self._discovery.files.walk():
                pass  # each name is checked
        elif self._discovery.schemas == "each":
            self.discover()
        else:
            self.settle_schema()

    def discover(self) -> SplitsDiscovered:
        """List the files, settle their schema, and cut them into splits. Blocks; runs on a worker.

        Raises:
            SourceError: There is nothing to read, or the files are not compatible.
        """
        return self.discover_again(()).discovered

    def discover_again(
        self,
        known: Sequence[Split],
        kept: bytes | None = None,
        skipped: frozenset[str] = frozenset(),
        unread: frozenset[str] = frozenset(),
    ) -> Relisted:
        """List the files that are not of `known`, the splits of an earlier listing.

        Their schema is the one that was settled then. A file that is gone, and that no reader has had,
        is an error with its name. Blocks; runs on a worker.

        Args:
            known: Splits of the earlier listing.
            kept: Bytes that the coordinator keeps of files that were read otherwise than listed.
            skipped: Ids of splits that are not read; a file may change if all of its splits are skipped.
            unread: Ids of splits that no reader has had: their files are listed anew.

        Raises:
            SourceError: A file of `known` has changed or is missing, or a new file is not compatible.
        """
        return relisted(
            self._discovery,
            KnownFiles(known),
            unread=unread,
            skipped=skipped,
            as_read=files_as_read(kept),
            modified_from_us=limit_of(kept),
            settled=settled_of(kept),
            is_committed=known.is_committed if isinstance(known, PlacedSplits) else _never,
        )

    def _file_watch(self, watching: Watch, kept: bytes | None) -> FileWatch:
        # A limit that was in force stays so without the option: names of read files are forgotten.
        age, limit_us = watching.age, limit_of(kept)
        return FileWatch(
            self._discovery,
            interval_s=watching.watch_interval_s,
            idle_timeout_s=watching.idle_timeout_s,
            as_read=files_as_read(kept),
            ages=None
            if age is None and limit_us is None
            else FileAges(None if age is None else age // _MICROSECOND, limit_us),
            settled=settled_of(kept),
        )

    def _committed_files(self, watch: FileWatch) -> CommittedFiles | None:
        """Intents for committed files, which may be replaced by new ones meanwhile; None: files stay."""
        if not self._releases:
            return None
        committed = CommittedFiles(
            self._discovery.files, self._archive, self._results, lambda: watch.as_read
        )
        watch.tolerates = committed.tolerates
        return committed

    def _watch(self, context: EnumeratorContext, kept: bytes | None) -> WatchingEnumerator:
        assert self._watching is not None, "only a watch has this enumerator"
        watch = self._file_watch(self._watching, kept)

        def note(kept: bytes | None, event: Payload) -> bytes | None:
            noted = note_change(kept, event)
            watch.as_read = files_as_read(noted)
            return noted

        def note_lost(kept: bytes | None, splits: Sequence[Split]) -> bytes | None:
            noted = note_lost_splits(kept, splits)
            watch.as_read = files_as_read(noted)
            return noted

        def relist(
            known: Sequence[Split], skipped: frozenset[str], unread: frozenset[str]
        ) -> Relisted:
            return relisted(
                self._discovery,
                KnownFiles(known),
                unread=unread,
                skipped=skipped,
                as_read=watch.as_read,
                settled=watch.settled,
                with_new=False,
            )

        committed, splits = self._committed_files(watch), CommittedSplits()

        def release(state: SplitsState, checkpoint_id: int) -> Sequence[Payload]:
            assert committed is not None, "without it nothing is released"
            intents = committed.intents(state.splits, splits.since_last(state, checkpoint_id))
            return [*(watch.before_forgetting(state.in_order()) if intents else ()), *intents]

        return WatchingEnumerator(
            context,
            _watch_of(watch, self._watching),
            listing_timeout_s=self._listing_timeout_s,
            note_event=note,
            note_lost_splits=note_lost,
            note_fact=partial(_note_kept, watch),
            kept=kept,
            relist=relist,
            weight_of=_weight_of,
            release=None if committed is None else release,
        )


def _never(_split_id: str) -> bool:
    return False


def _note_kept(watch: FileWatch, kept: bytes | None, fact: Payload) -> bytes | None:
    """Bytes that a coordinator keeps after a fact of the listing, which relies on limit and schema from then on."""
    noted = note_fact(kept, fact)
    watch.settled = settled_of(noted)
    if watch.ages is not None:
        watch.ages.limit_us = limit_of(noted)
    return noted


def _watch_of(watch: FileWatch, options: Watch) -> SplitWatch:
    """The watch, by notifications if there is a queue of them."""
    if options.queue is None:
        return watch
    return NotifiedWatch(
        watch,
        SqsQueue(options.queue),
        listing_s=options.full_listing_interval_s,
        idle_timeout_s=options.idle_timeout_s,
    )


def _weight_of(split: Split) -> int | None:
    return size_of(decode_split(split.content))


def _input_files(
    urls: Sequence[str],
    storage_options: Mapping[str, str] | None,
    changed_by: str,
    exclude: str | Sequence[str],
    watch: Watch | None,
) -> InputFiles:
    patterns = (exclude,) if isinstance(exclude, str) else tuple(exclude)
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern:
            raise OptionError("exclude", pattern, 'a glob, as in "*.tmp"')
    first, *others = map(absolute, urls)
    return InputFiles(
        exclude=patterns,
        url=first,
        also=tuple(others),
        start_after="" if watch is None else watch.start_after or "",
        storage_options=dict(storage_options or {}),
        compares_marks=changed_by == "modified",
    )


_FORMAT_NAMES: Final[dict[type, str]] = {
    CsvFormat: "csv",
    JsonLinesFormat: "jsonl",
    ParquetFormat: "parquet",
    TextFormat: "text",
}


def _check_notify(watch: Watch | None, url: str) -> None:
    if watch is not None and watch.notify is not None:
        refuse_credentials("notify", watch.notify)
        if scheme_of(url) != "s3":
            raise OptionError("notify", watch.notify, "left out, if files are not in S3")


def _check_after_commit(watch: Watch | None, url: str) -> None:
    if watch is None or watch.after_commit == "keep":
        return
    scheme = scheme_of(url)
    if scheme not in ("file", "s3"):
        raise OptionError(
            "after_commit", watch.after_commit, "keep, if files are neither local nor in S3"
        )
    if watch.archive is not None:
        refuse_credentials("after_commit", watch.archive)
        if scheme_of(watch.archive) != scheme:
            place = "a local folder" if scheme == "file" else "s3://BUCKET/PREFIX"
            raise OptionError("after_commit", watch.after_commit, f"archive: with {place}")


def _format_of(
    name: Format,
    compression: Compression,
    text: CsvText,
    schema: pa.Schema | None,
    *,
    is_lenient: bool,
    sifts: bool,
) -> FileFormat:
    match name:
        case "csv":
            return CsvFormat(options=text, compression=compression, sifts=sifts)
        case "jsonl":
            return JsonLinesFormat(
                encoding=text.encoding,
                block_bytes=text.block_bytes,
                compression=compression,
                ignores_new_fields=schema is not None,
                sifts=sifts,
            )
        case "text":
            return TextFormat(
                encoding=text.encoding, block_bytes=text.block_bytes, compression=compression
            )
        case "parquet":
            if compression not in ("infer", "none"):
                raise OptionError(
                    "compression", compression, "for other formats: Parquet packs its columns"
                )
            return ParquetFormat(is_lenient=is_lenient, is_given=schema is not None)


def _uses(name: Format, **values: object) -> Iterator[Callable[[], object]]:
    """Checks that no option without effect for the format is given: its value is None."""
    for option, value in values.items():
        formats = _OF_FORMATS[option]
        if value is not None and name not in formats:
            expected = f"left out with format={name!r}: it is for {' and '.join(formats)}"
            yield partial(_refuse, option, value, expected)


def _refuse(option: str, value: object, expected: str) -> None:
    raise OptionError(option, value, expected)


def _check_names(schema: pa.Schema | None, column_names: Sequence[str] | None) -> None:
    if schema is not None and column_names is not None and schema.names != list(column_names):
        raise OptionError("column_names", column_names, f"those of `schema`: {schema.names}")


def _check_columns(
    name: Format, rescued: str | None, schema: pa.Schema | None, csv: CsvOptions
) -> None:
    _check_names(schema, csv.column_names)
    if rescued is None or name not in _OF_FORMATS["rescued"]:
        return
    if not rescued:
        raise OptionError("rescued", rescued, "a name of a column")
    if schema is None:
        raise OptionError(
            "rescued",
            rescued,
            "set with `schema=`: without it, each field of the sample has a column",
        )
    if rescued in schema.names:
        raise OptionError("rescued", rescued, "a name that `schema` does not have")
    if csv.column_names is not None:
        raise OptionError(
            "rescued", rescued, "left out with `column_names`: such files have no header"
        )


def _check_schema(name: Format, schema: pa.Schema | None) -> None:
    check = {"csv": check_csv_types, "jsonl": check_json_types}.get(name)
    if schema is None or check is None:
        return
    try:
        check(schema)
    except ValueError as error:
        raise OptionError("schema", str(schema), f"of types that {name} has ({error})") from error


def _check_coordinated(**options: tuple[str, str]) -> None:
    for option, (value, needed) in options.items():
        if value != needed:
            raise OptionError(option, value, f"{needed!r}, if queries read the source")


def _check_positive(**options: int) -> None:
    for name, value in options.items():
        if value < 1:
            raise OptionError(name, value, "at least 1")


def _check_watch(watch: Watch | None, assignment: str, url: str) -> None:
    _check_after_commit(watch, url)
    _check_notify(watch, url)
    if watch is not None and assignment != "pull":
        raise OptionError("assignment", assignment, "'pull' with `watch`")
