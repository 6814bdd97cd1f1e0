"""What file sources and sinks say in the log: splits, states, committables, intents, outcomes."""

# No `from __future__ import annotations` here: the library that derives the schemas refuses it.

from coordlog.schemas.payload import Payload, payload

__all__ = [
    "FileReaderState",
    "FileSplit",
    "FilesPublished",
    "PublishFiles",
    "SplitProgress",
    "StagedFile",
]


@payload("coordlog.file_split", version=1)
class FileSplit(Payload):
    """A file, or a part of one, with the schema that was settled when it was listed."""

    split_id: str
    path: str
    """As the source's file system names it."""
    size_bytes: int
    """Of the file when it was listed; -1 where its file system does not say."""
    start: int
    """CSV: the first byte. Parquet: the first row group."""
    end: int
    """CSV: the byte after the last; a line belongs to the split that holds its first byte.

    Parquet: likewise, row groups.
    """
    arrow_schema: bytes
    """Arrow's IPC encoding of the schema, deflated."""


@payload("coordlog.split_progress", version=1)
class SplitProgress(Payload):
    """How far a reader has come in one split."""

    split: FileSplit
    rows: int
    """Rows that it has given to the chain."""


@payload("coordlog.file_reader_state", version=1)
class FileReaderState(Payload):
    """A file reader's unfinished splits, in the order in which it reads them."""

    splits: list[SplitProgress]


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
