"""From listed files to splits: new files, changed files, and the schema in which they are read."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import pyarrow as pa

from coordlog.coordinators.listing import Relisted
from coordlog.errors import SourceError
from coordlog.limits import WATCH_REPORT_S, WATCH_UNSETTLED_MAX
from coordlog.projections.splits.table import PlacedSplits
from coordlog.schemas.payload import Payload
from coordlog.schemas.source_types import KnownSplitsForgotten, Split, SplitsDiscovered
from coordlog.spark_integration.files.faults import EmptyFileError, is_fault_of_file
from coordlog.spark_integration.files.formats.formats import FileFormat, JsonLinesFormat
from coordlog.spark_integration.files.formats.inferring import evenly
from coordlog.spark_integration.files.listing import InputFiles, ListedFile
from coordlog.spark_integration.files.payloads import FileChanged, FileSplit, SchemaSettled
from coordlog.spark_integration.files.schema_difference import schema_difference, schemas_differ
from coordlog.spark_integration.files.source.ages import FileAges
from coordlog.spark_integration.files.source.bad_files import bad_files, of_all
from coordlog.spark_integration.files.source.kept import as_it_was_read
from coordlog.spark_integration.files.source.known_files import KnownFiles
from coordlog.spark_integration.files.source.partition_folders import (
    PartitionFolders,
    check_partition_folders,
)
from coordlog.spark_integration.files.source.split_bytes import (
    decode_schema,
    encode_schema,
    encode_split,
    first_schema,
)

__all__ = [
    "Discovery",
    "FileListing",
    "FileWatch",
]

_END_OF_ID: Final = re.compile(r"#(?:bytes|row-groups)=[0-9]+-[0-9]+$")
"""End of the id of a split that is a part of a file."""


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """Makes splits of files. Any thread."""

    files: InputFiles
    format: FileFormat
    schema: pa.Schema | None
    """Schema that the user gave, or None."""
    schemas: Literal["one", "each"]
    split_bytes: int
    run_id: str
    """Id of this run of the job: distinguishes its splits from those of an earlier listing."""
    skips_unreadable: bool = False
    """True: a file that cannot be read is left out of the schema; its reader reports it."""
    is_lenient: bool = False
    """True: it is no error if no file can be read yet."""
    partition_folders: PartitionFolders = "refuse"
    """Treatment of files in folders such as `month=3`, if their rows have no such column."""

    def settle(self, listed: Sequence[ListedFile], expected: pa.Schema | None = None) -> pa.Schema:
        """The one schema of these files, or `expected`, checked against them.

        Raises:
            SourceError: A file cannot be read, or the schemas of two are not compatible.
        """
        schema = self.schema if expected is None else expected
        files = list(listed)
        while True:
            try:
                settled = self.format.settle(self.files, files, schema)
            except SourceError as error:
                # Two incompatible schemas are the fault of neither file: such an error has no cause.
                bad = bad_files(
                    self.files,
                    files,
                    error,
                    lambda file: self.format.settle(self.files, [file], schema),
                )
                readable = [file for file in files if file.path not in bad]
                if not bad or not self.skips_unreadable or not readable:
                    raise (of_all(bad, error)) from error.__cause__
                files = readable
            else:
                self._check_folders(files, settled.names)
                self._check_fields(files, settled)
                return settled

    def fresh(
        self,
        listed: Iterable[ListedFile],
        known: Mapping[str, Sequence[FileSplit]],
        as_read: Mapping[str, FileChanged] | None = None,
        skipped: frozenset[str] = frozenset(),
        *,
        at_most: int | None = None,
        tolerates: Callable[[str], bool] = lambda _path: False,
    ) -> list[ListedFile]:
        """The listed files of which the log does not have every split.

        Args:
            listed: The files as they are now.
            known: Splits in the log, by path.
            as_read: Files that were read otherwise than they were listed, by path.
            skipped: Splits that are not read: a file that is skipped as a whole stays so, fixed or
                not.
            tolerates: Whether a known file may have changed: it is left as it is.
            at_most: Number of files after which the rest is left for a later listing; None: no limit.

        Raises:
            SourceError: A file has changed since it was listed in the log.
        """
        changed: list[tuple[ListedFile, str]] = []
        fresh: list[ListedFile] = []
        is_as_listed = known.is_as_listed if isinstance(known, KnownFiles) else None
        reread = as_read or {}
        for file in listed:
            if len(fresh) == at_most:
                break
            if is_as_listed is not None and file.path not in reread and is_as_listed(file):
                continue
            splits = known.get(file.path)
            if splits is None:
                fresh.append(file)
                continue
            # A skipped split may be of an older listing than the others.
            read = next((split for split in splits if split.split_id not in skipped), None)
            if read is None:
                continue
            difference = self.files.difference(as_it_was_read(read, reread), file)
            if difference is not None:
                if tolerates(file.path):
                    continue
                changed.append((file, difference))
            elif len(splits) < read.parts:
                fresh.append(file)  # a driver ended between two pages of its splits
        if changed:
            first, difference = changed[0]
            more = "" if len(changed) == 1 else f" ({len(changed) - 1} more files have changed too)"
            raise SourceError(
                first.path,
                f"it has changed since it was listed: {difference}{more}",
                "put it back as it was, or move it away, and add new rows in a new file: a "
                "file is read once",
            )
        return fresh

    def splits_of(
        self,
        fresh: Sequence[ListedFile],
        known: Mapping[str, Sequence[FileSplit]],
        *,
        settled: bytes = b"",
        is_checked: bool = False,
    ) -> list[Split]:
        """The splits of files of which the log does not have every split yet.

        Args:
            fresh: See `fresh`.
            known: Splits in the log, by path.
            settled: Schema of files that the log has no splits of any more, as in their splits; empty: none.
            is_checked: Files that are incompatible with the schema of earlier files are an error here,
                and not only when they are read.

        Raises:
            SourceError: A file cannot be cut, or the schema is not that of earlier files.
        """
        one_schema = None if self.schemas == "each" else self._schema_for(fresh, known, settled)
        if is_checked and one_schema and (known or settled) and fresh:
            self._settled_or_none(fresh, decode_schema(one_schema))
        if one_schema and (known or settled):
            self._check_fields(fresh, decode_schema(one_schema))
        discovered: list[Split] = []
        for file in fresh:
            try:
                splits = self._splits_of_file(file, one_schema)
            except SourceError as error:
                bad = bad_files(
                    self.files, fresh, error, lambda split: self._splits_of_file(split, one_schema)
                )
                raise (of_all(bad, error)) from error.__cause__
            encoded = splits[0].arrow_schema if splits else b""
            if encoded and "=" in file.path:  # else its reader reports why there is no schema
                self._check_folders([file], decode_schema(encoded).names)
            before = {split.split_id for split in known.get(file.path, ())}
            if not before <= {split.split_id for split in splits}:
                raise SourceError(
                    file.path,
                    f"{len(before)} splits of it are known, and they are cut otherwise than now",
                    "set `split_bytes=` and the other options as they were when it was listed",
                )
            discovered += [
                Split(split_id=split.split_id, content=encode_split(split)) for split in splits
            ]
        return discovered

    def _check_folders(self, listed: Sequence[ListedFile], columns: Collection[str]) -> None:
        if self.partition_folders == "refuse":
            paths = (file.path for file in listed)
            check_partition_folders(self.files, paths, columns)

    def _check_fields(self, listed: Sequence[ListedFile], schema: pa.Schema) -> None:
        """Check the folders of a sample by its rows: JSON lines may lack a column of the schema, which is then null."""
        if self.partition_folders != "refuse":
            return
        for file in evenly([one for one in listed if "=" in one.path and one.size_bytes != 0]):
            columns: Collection[str] = ()
            try:
                if isinstance(self.format, JsonLinesFormat):
                    columns = self.format.fields_of(self.files, file)
            except SourceError as error:
                if error.__cause__ is None or not is_fault_of_file(error, self.files):
                    raise
                continue  # The file cannot be read: its reader reports it.
            self._check_folders([file], columns or schema.names)

    def _schema_for(
        self,
        fresh: Sequence[ListedFile],
        known: Mapping[str, Sequence[FileSplit]],
        settled: bytes,
    ) -> bytes:
        origin = "that of files read before"
        if not settled:
            first = next((splits[0] for splits in known.values() if splits[0].arrow_schema), None)
            if first is None:
                return self._encoded(fresh, is_alone=False) if fresh else b""
            settled, origin = first.arrow_schema, f"that of {first.path}"
        schema = decode_schema(settled)
        if self.schema is not None and schema_difference(self.schema, schema):
            raise schemas_differ("`schema=`", origin, self.schema, schema)
        return settled

    def _encoded(self, fresh: Sequence[ListedFile], *, is_alone: bool) -> bytes:
        """The schema of these files; empty if all are at fault and their readers are to skip them."""
        if not is_alone and not self.is_lenient:
            return encode_schema(self.settle(fresh))
        try:
            settled = self._settled_or_none(fresh)
        except EmptyFileError:
            if not is_alone:
                raise
            return b""
        return b"" if settled is None else encode_schema(settled)

    def _settled_or_none(
        self, fresh: Sequence[ListedFile], expected: pa.Schema | None = None
    ) -> pa.Schema | None:
        """The schema of these files, or None if all are at fault and the source skips such files."""
        try:
            return self.settle(fresh, expected)
        except SourceError as error:
            is_fault = error.__cause__ is not None and is_fault_of_file(error, self.files)
            if not self.skips_unreadable or not is_fault:
                raise
            return None

    def _splits_of_file(self, file: ListedFile, schema: bytes | None) -> list[FileSplit]:
        if _END_OF_ID.search(file.path):
            raise SourceError(
                file.path,
                "its name ends like the id of a split of another file: two splits would have one id, and one of them "
                "would not be read",
                "rename the file, or leave it out (`exclude=`)",
            ) from ValueError("a name like an id")
        cuts = self.format.cut(self.files, file, self.split_bytes)
        if schema is None:
            schema = self._encoded([file], is_alone=True)
        return [
            FileSplit(
                # The bare path, if the file is one split.
                split_id=file.path
                if len(cuts) == 1
                else f"{file.path}#{self.format.unit}={start}-{end}",
                path=file.path,
                size_bytes=file.size_bytes,
                mark=file.mark,
                real_path=file.real_path,
                parts=len(cuts),
                listed_by=self.run_id,
                start=start,
                end=end,
                arrow_schema=schema or b"",
            )
            for start, end in cuts
        ]


class FileListing:
    """Lists once: the watch of a source that reads the present files alone (`SplitWatch`)."""

    def __init__(self, discover: Callable[[Sequence[Split]], Relisted]) -> None:
        self._discover = discover

    def look(self, known: Sequence[Split], skipped: frozenset[str] = frozenset()) -> Relisted:
        """All splits that are not `known`; `is_complete`."""
        assert not skipped, "queries skip nothing"
        return self._discover(known)

    def close(self) -> None:
        """Does nothing: `look` does not wait."""


class FileWatch:
    """Lists repeatedly: the watch of one enumerator (`SplitWatch`).

    A file becomes splits once two listings, an interval apart, have found it the same: a file that
    is still being written is left alone.

    Args:
        discovery: Makes the splits.
        interval_s: Seconds between two listings.
        idle_timeout_s: Seconds without a new or unsettled file, up to the begin of a listing, after which the watch
            ends; None: it does not end.
        as_read: Files that a run without a watch has read otherwise than they were listed, by path;
            may be set anew at any time.
        ages: The age limit, or None: files of any age are discovered, and none is forgotten.
        settled: Schema of files that were forgotten or released, as in their splits; may be set anew at any time.
        clock: Monotonic seconds.
        wait: Waits for so many seconds, or until `close`; True at once after that.
    """

    def __init__(
        self,
        discovery: Discovery,
        *,
        interval_s: float,
        idle_timeout_s: float | None,
        as_read: Mapping[str, FileChanged] | None = None,
        ages: FileAges | None = None,
        settled: bytes = b"",
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        self._discovery = discovery
        self._interval_s, self._idle_timeout_s = interval_s, idle_timeout_s
        self._clock = clock
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait
        self.as_read = as_read or {}
        self.ages, self.settled = ages, settled
        self.tolerates: Callable[[str], bool] | None = None
        """Whether a file that was read, as far as it is known, may have been released and replaced; None: none is."""
        self.left_for_later: set[str] = set()
        """Known files that this look has found to be changed: perhaps new ones, once the known ones are released."""
        self._suspects: set[str] = set()
        """Files that this look has found to be changed."""
        self._suspects_before: set[str] = set()
        """Those of former looks, until they are known no more: not every look compares all files."""
        self._facts: list[Payload] = []
        """Facts of the last listing."""
        self._known = KnownFiles()
        self._unsettled: dict[str, ListedFile] = {}
        self._last_find_s = clock()
        self._listed_s = -math.inf

    @property
    def files(self) -> InputFiles:
        """The source's files."""
        return self._discovery.files

    @property
    def known(self) -> KnownFiles:
        """The files of which the log has splits, as of the begin of the look."""
        return self._known

    @property
    def has_more(self) -> bool:
        """Whether the last listing has left files to the next one."""
        return len(self._unsettled) >= WATCH_UNSETTLED_MAX

    def begin_look(self, known: Sequence[Split]) -> None:
        """Take over the splits in the log, at the begin of a look."""
        self._known.update(known)
        suspects = self._suspects_before | self._suspects
        self._suspects_before = {path for path in suspects if path in self._known}
        self._suspects = set()
        self.left_for_later.clear()

    def found_by_listing(self, known: Sequence[Split], skipped: frozenset[str]) -> Relisted:
        """New files and facts of one listing: for files that are whole as soon as they are listed.

        Raises:
            SourceError: As `look`.
        """
        self._settled(self._known, known, skipped)
        relisted = self._found(list(self._unsettled.values()), self._facts)
        self._report(is_whole=True)
        return relisted

    def found_of(
        self, files: Sequence[ListedFile], known: Sequence[Split], skipped: frozenset[str]
    ) -> Relisted:
        """New files and facts of these files, which are as they are now; without those of `left_for_later`.

        Raises:
            SourceError: As `look`.
        """
        ages = self.ages
        if ages is not None:
            ages.begin(self._known)
            files = list(filter(ages.takes, files))
        fresh = self._discovery.fresh(
            files,
            self._known,
            self.as_read,
            skipped,
            tolerates=partial(self._may_be_replaced, known),
        )
        facts = [] if ages is None else ages.end_of_some()
        relisted = self._found([file for file in fresh if file.size_bytes != 0], facts)
        self._report(is_whole=False)
        return relisted

    def _found(self, files: Sequence[ListedFile], facts: Sequence[Payload]) -> Relisted:
        splits = self._splits_of(sorted(files, key=lambda file: file.path), self._known)
        return Relisted(discovered=SplitsDiscovered(splits=splits, is_complete=False), facts=facts)

    def look(
        self, known: Sequence[Split], skipped: frozenset[str] = frozenset()
    ) -> SplitsDiscovered | Relisted:
        """New files and facts, as soon as there are some; see `SplitWatch`.

        Raises:
            SourceError: The files cannot be listed, a file cannot be cut, or a known file has changed.
        """
        self.begin_look(known)
        files = self._known
        until_s = self._clock() + WATCH_REPORT_S
        while True:
            # A call after a find waits too: two listings are to be an interval apart.
            due_s = self._listed_s + self._interval_s - self._clock()
            if due_s > 0:
                # Not longer than a report interval: work without a report is taken for a hang.
                is_closed = self._wait(min(due_s, WATCH_REPORT_S))
                if is_closed or due_s > WATCH_REPORT_S:
                    return SplitsDiscovered(splits=[], is_complete=False)
            settled = self._settled(files, known, skipped)
            splits = self._splits_of(settled, files) if settled else []
            self._report(is_whole=True)
            if settled or self._facts:
                discovered = SplitsDiscovered(splits=splits, is_complete=False)
                return (
                    Relisted(discovered=discovered, facts=self._facts)
                    if self._facts
                    else discovered
                )
            if self.left_for_later:  # what these wait for is known to the next look alone
                return SplitsDiscovered(splits=[], is_complete=False)
            # To the begin of the listing: it may have missed a file that came meanwhile.
            idle_s = self._listed_s - self._last_find_s
            if self._idle_timeout_s is not None and idle_s >= self._idle_timeout_s:
                return SplitsDiscovered(splits=[], is_complete=True)
            if self._clock() >= until_s:
                return SplitsDiscovered(splits=[], is_complete=False)

    def before_forgetting(self, known: Iterable[Split]) -> list[Payload]:
        """Facts to record before splits of `known` are forgotten or released: later files have the schema of these."""
        schema = b"" if self.settled else first_schema(known)
        return [SchemaSettled(arrow_schema=schema)] if schema else []

    def close(self) -> None:
        """Make a `look` that waits return. Any thread."""
        self._closed.set()

    def _report(self, *, is_whole: bool) -> None:
        if self.ages is not None:
            self.ages.report(is_whole=is_whole)

    def _may_be_replaced(self, known: Sequence[Split], path: str) -> bool:
        """Whether a known file that has changed may be a new one, after that which was read was released.

        `known` is as old as the look: so a change is an error only if the next look finds it too.
        """
        if self.tolerates is None:
            return False
        if (
            isinstance(known, PlacedSplits)
            and self.tolerates(path)
            and all(map(known.is_finished, self._known.split_ids(path)))
        ):
            self.left_for_later.add(path)
            return True
        if path in self._suspects_before:
            return False
        self._suspects.add(path)
        self.left_for_later.add(path)
        return True

    def _splits_of(
        self, settled: Sequence[ListedFile], files: Mapping[str, Sequence[FileSplit]]
    ) -> list[Split]:
        """The splits, without files that were removed meanwhile: the log has no split of those."""
        while True:  # each round has fewer files
            try:
                return self._discovery.splits_of(settled, files, settled=self.settled)
            except SourceError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                wanted = {file.path for file in settled}
                listed = (file.path for file in self._discovery.files.walk())
                present = {path for path in listed if path in wanted}
                remaining = [f for f in settled if f.path in present or f.path in files]
                if len(remaining) == len(settled):
                    raise
                settled = remaining

    def _settled(
        self, files: KnownFiles, known: Sequence[Split], skipped: frozenset[str]
    ) -> list[ListedFile]:
        """The fresh files that are the same as in the listing before; stores the others."""
        discovery, ages = self._discovery, self.ages
        self._listed_s = self._clock()
        # An empty file has nothing to read yet.
        listed: Iterator[ListedFile] = (
            f for f in discovery.files.walk() if f.size_bytes != 0 or f.path in files
        )
        if ages is not None:
            ages.begin(files)
            listed = filter(ages.takes, listed)
        candidates = discovery.fresh(
            listed,
            files,
            self.as_read,
            skipped,
            at_most=WATCH_UNSETTLED_MAX,
            tolerates=partial(self._may_be_replaced, known),
        )
        if ages is not None:
            deque(listed, maxlen=0)  # the newest file may be behind those that this listing takes
            self._facts = ages.end(known)
            if any(isinstance(fact, KnownSplitsForgotten) for fact in self._facts):
                self._facts = [*self.before_forgetting(known), *self._facts]
        fresh = {file.path: file for file in candidates if file.size_bytes != 0}
        settled = [file for path, file in fresh.items() if self._unsettled.get(path) == file]
        is_changed = any(self._unsettled.get(path) != file for path, file in fresh.items())
        if settled or is_changed or self.left_for_later:
            self._last_find_s = self._clock()
        self._unsettled = fresh
        return settled
