"""What file sources and sinks say in the log: splits, states, committables, intents, outcomes."""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

from typing import Final

from coordlog.schemas.payload import Payload, event, fact, payload

__all__ = [
    "SINK_PAYLOADS",
    "AgeLimit",
    "CommitToTable",
    "FileChanged",
    "FileReaderState",
    "FileSplit",
    "FilesAsRead",
    "FilesLeftOut",
    "FilesPublished",
    "PublishFiles",
    "ReadFile",
    "RejectsPublished",
    "RowsLeftOut",
    "SchemaSettled",
    "SplitLeftOut",
    "SplitProgress",
    "StagedFile",
]


@payload("coordlog.file_split", version=1)
class FileSplit(Payload):
    """A file, or a part of one, with the schema that was settled when it was listed."""

    split_id: str
    path: str
    """Path of the file in its file system."""
    size_bytes: int
    """Size of the file when it was listed; -1 if its file system does not report it."""
    mark: str
    """Mark of the content when it was listed; empty if none is known."""
    real_path: str
    """Target of the links of a local file, relative to the source's folder; else empty."""
    parts: int
    """Number of splits of its file."""
    listed_by: str
    """Id of the run of the job that listed it."""
    start: int
    """Text: the first byte. Parquet: the first row group."""
    end: int
    """Text: the byte after the last; a line belongs to the split that holds its first byte.

    Parquet: likewise, row groups. -1: to the end of the file, whatever that holds.
    """
    arrow_schema: bytes
    """Arrow's IPC encoding of the schema, deflated."""


@payload("coordlog.split_progress", version=1)
class SplitProgress(Payload):
    """How far a reader has come in one split."""

    split: FileSplit
    rows: int
    """Number of rows emitted to the chain."""
    rejected: int
    """Number of bad rows that were left out, and emitted as rejects if there is a place for them."""
    read_as: str
    """By which options it was begun, where they decide which row is which (`FileFormat.row_rules`).

    Empty: nothing of it was given yet.
    """


@payload("coordlog.file_reader_state", version=1)
class FileReaderState(Payload):
    """A file reader's unfinished splits, in the order in which it reads them."""

    splits: list[SplitProgress]


@payload("coordlog.split_left_out", version=1)
class SplitLeftOut(Payload):
    """Rows of an unfinished split that a transform has left out."""

    split_id: str
    rows: int


@payload("coordlog.rows_left_out", version=1)
class RowsLeftOut(Payload):
    """State of a transform that leaves out rows."""

    splits: list[SplitLeftOut]


@event("coordlog.file_changed", version=1)
class FileChanged(Payload):
    """A reader to its coordinator: this file is read as it is now, and not as it was listed."""

    path: str
    size_bytes: int
    mark: str
    listed_size_bytes: int
    listed_mark: str


@payload("coordlog.files_as_read", version=1)
class FilesAsRead(Payload):
    """What the coordinator keeps of these, one for each file, by path."""

    files: list[FileChanged]


@fact("coordlog.age_limit", version=1)
class AgeLimit(Payload):
    """From now on, files that were modified before this time are not discovered. It only rises."""

    modified_from_us: int
    clock_us: int
    """The listing's clock: the lower of the driver's time and the newest modification in the listing."""


@fact("coordlog.files_left_out", version=1)
class FilesLeftOut(Payload):
    """Files that a listing has left out for their age, each listed for the first time by this driver."""

    modified_from_us: int
    file_count: int
    paths: list[str]
    """The first ones."""
    may_be_read: bool
    """Whether some may have been read, and forgotten since: it is the first listing of a driver."""


@fact("coordlog.schema_settled", version=1)
class SchemaSettled(Payload):
    """Schema of the source, recorded before the first of its splits is forgotten or released: later files have it."""

    arrow_schema: bytes
    """As in `FileSplit`."""


@payload("coordlog.read_file", version=1)
class ReadFile(Payload):
    """A file all rows of which are committed, as it was read, and its place in the archive."""

    path: str
    size_bytes: int
    mark: str
    real_path: str
    target: str
    """Path or object in the archive; empty: the file is deleted."""


@payload("coordlog.staged_file", version=1)
class StagedFile(Payload):
    """A committable: a whole file, on disk under a hidden name, with the name that it is to get."""

    staged: str
    """Relative to the destination, normalised."""
    final: str
    """Relative to the destination, normalised."""
    size_bytes: int
    checksum: str
    """BLAKE2b of the content, 32 bytes, in hexadecimal."""
    rows: int


@payload("coordlog.publish_files", version=1)
class PublishFiles(Payload):
    """An intent: these files get their final names."""

    checkpoint_id: int
    files: list[StagedFile]


@payload("coordlog.commit_to_table", version=1)
class CommitToTable(Payload):
    """An intent: these files get their final names, and one commit of a table adds them."""

    checkpoint_id: int
    number: int
    """Number of the checkpoint among those of its operator that had files, 0 first; in batch of the job's end."""
    part: int
    """Number of the intent among those of its checkpoint, 0 first."""
    epoch: int
    """Epoch of the driver that recorded it, for the description of the commit."""
    files: list[StagedFile]


@payload("coordlog.files_published", version=1)
class FilesPublished(Payload):
    """The outcome: these files have their final names, on disk."""

    checkpoint_id: int
    file_count: int
    rows: int
    size_bytes: int


@payload("coordlog.rejects_published", version=1)
class RejectsPublished(Payload):
    """The outcome of an intent whose files hold rejects: they have their final names, on disk."""

    checkpoint_id: int
    reject_file_count: int
    rejects: int
    reject_bytes: int


SINK_PAYLOADS: Final[tuple[type[Payload], ...]] = (
    StagedFile,
    PublishFiles,
    CommitToTable,
    FilesPublished,
    RejectsPublished,
)
"""Payload types of each sink of files and of tables: a job may continue with a sink of another format."""
