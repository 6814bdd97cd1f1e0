"""What file sources and sinks say in the log: splits, states, committables, intents, outcomes."""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

from coordlog.schemas.payload import Payload, event, payload

__all__ = [
    "FileChanged",
    "FileReaderState",
    "FileSplit",
    "FilesAsRead",
    "FilesPublished",
    "FirstFileReaderState",
    "FirstFileSplit",
    "FirstSplitProgress",
    "PublishFiles",
    "SecondFileReaderState",
    "SecondSplitProgress",
    "SplitProgress",
    "StagedFile",
]


@payload("coordlog.file_split", version=2)
class FileSplit(Payload):
    """A file, or a part of one, with the schema that was settled when it was listed."""

    split_id: str
    path: str
    """As the source's file system names it."""
    size_bytes: int
    """Of the file when it was listed; -1 where its file system does not say."""
    mark: str
    """What changes with the file's content, as of then; empty where nothing is known."""
    real_path: str
    """Local: where its links lead, relative to the source's folder; elsewhere empty."""
    parts: int
    """How many splits its file has."""
    listed_by: str
    """By which run of the job: each has a name of its own."""
    start: int
    """Text: the first byte. Parquet: the first row group."""
    end: int
    """Text: the byte after the last; a line belongs to the split that holds its first byte.

    Parquet: likewise, row groups. -1: to the end of the file, whatever that holds.
    """
    arrow_schema: bytes
    """Arrow's IPC encoding of the schema, deflated."""


@payload("coordlog.split_progress", version=3)
class SplitProgress(Payload):
    """How far a reader has come in one split."""

    split: FileSplit
    rows: int
    """Rows that it has given to the chain."""
    read_as: str
    """By which options it was begun, where they decide which row is which (`FileFormat.row_rules`).

    Empty: nothing of it was given yet, or the history does not tell.
    """


@payload("coordlog.file_reader_state", version=3)
class FileReaderState(Payload):
    """A file reader's unfinished splits, in the order in which it reads them."""

    splits: list[SplitProgress]


@payload("coordlog.split_progress", version=2)
class SecondSplitProgress(Payload):
    """As histories of the second version have it."""

    split: FileSplit
    rows: int


@payload("coordlog.file_reader_state", version=2)
class SecondFileReaderState(Payload):
    """As histories of the second version have it."""

    splits: list[SecondSplitProgress]


@payload("coordlog.file_split", version=1)
class FirstFileSplit(Payload):
    """As histories of the first version have it."""

    split_id: str
    path: str
    size_bytes: int
    start: int
    end: int
    arrow_schema: bytes


@payload("coordlog.split_progress", version=1)
class FirstSplitProgress(Payload):
    """As histories of the first version have it."""

    split: FirstFileSplit
    rows: int


@payload("coordlog.file_reader_state", version=1)
class FirstFileReaderState(Payload):
    """As histories of the first version have it."""

    splits: list[FirstSplitProgress]


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


@payload("coordlog.files_published", version=1)
class FilesPublished(Payload):
    """The outcome: these files have their final names, on disk."""

    checkpoint_id: int
    file_count: int
    rows: int
    size_bytes: int
