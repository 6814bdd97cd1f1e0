"""Folders such as `month=3`, by which Hive and Spark keep a column out of the files: refused, or ignored."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final, Literal

from coordlog.errors import SourceError
from coordlog.spark_integration.files.listing import InputFiles

__all__ = ["PartitionFolders", "check_partition_folders"]

PartitionFolders = Literal["refuse", "ignore"]

_FOLDER: Final = re.compile(r"([^=]+)=.*")


def check_partition_folders(
    files: InputFiles, paths: Iterable[str], columns: Collection[str]
) -> None:
    """Refuse files whose folders hold a column that their rows lack: it would be lost silently.

    Folders of the source's own paths are no columns: a path that ends with `/month=3` means that month.

    Args:
        files: The source's files.
        paths: Of its files.
        columns: Of their rows.

    Raises:
        SourceError: A folder is such a partition.
    """
    for path in paths:
        if "=" not in path:
            continue
        for folder in files.below_root(path).split("/")[:-1]:
            partition = _FOLDER.fullmatch(folder)
            if partition is None or partition[1] in columns:
                continue
            raise SourceError(
                path,
                f"its folder {folder!r} holds the column {partition[1]!r}, which the rows in the file do not have: "
                "columns of Hive-style partition folders are not read",
                "read one partition as a source of its own, write the column into the files, or read without it: "
                "partition_folders='ignore', --partition-folders ignore",
            )
