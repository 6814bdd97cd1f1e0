"""The packing of a file: by its name, or by the source's option."""

from __future__ import annotations

from typing import BinaryIO, Final, Literal, cast, get_args

import pyarrow as pa

from coordlog.errors import OptionError, SourceError
from coordlog.spark_integration.files.members import Members

__all__ = ["Compression", "check_compression", "codec_of", "refuse_archive", "unpacked"]

Compression = Literal["infer", "none", "gzip", "bz2", "zstd", "xz", "lz4"]

_ENDS: Final = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".bz2": "bz2",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".xz": "xz",
    ".lz4": "lz4",
}
_REFUSED: Final = (
    *(".zip", ".7z", ".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst", ".rar"),
    *(".br", ".snappy", ".sz", ".z"),
)


def check_compression(value: str) -> None:
    """Raise OptionError if `value` is no compression."""
    known = get_args(Compression)
    if value not in known:
        raise OptionError("compression", value, f"one of {', '.join(known)}")


def codec_of(path: str, compression: Compression) -> str | None:
    """The codec of a file, or None if it is not packed."""
    if compression == "infer":
        end = _end_of(path)
        return None if end is None else _ENDS[end]
    return None if compression == "none" else compression


def refuse_archive(path: str, compression: Compression) -> None:
    """Raise SourceError if the end of the file's name is that of a packing that cannot be read.

    Also of the name without the end of a packing that can: unpacked, `days.tar.gz` is an archive still.
    """
    if compression != "infer":
        return
    name = path.lower().removesuffix(_end_of(path) or "")
    for end in _REFUSED:
        if name.endswith(end):
            raise SourceError(
                path,
                f"{end} files are not read",
                f"unpack it, or pack it in one of {', '.join(sorted(_ENDS))}; `compression=` says "
                "which it is if the name does not",
            ) from ValueError("an archive, or a codec that is not known")


def _end_of(path: str) -> str | None:
    return next((end for end in _ENDS if path.lower().endswith(end)), None)


def unpacked(file: BinaryIO, codec: str) -> BinaryIO:
    """The content of a packed file, to be read from its start. Closing it leaves `file` open.

    A file that ends before its packed content does, or continues with something else, raises OSError,
    EOFError or LZMAError when it is read.
    """
    if codec in ("xz", "bz2"):
        return cast("BinaryIO", Members(file, codec))
    stream = pa.CompressedInputStream(pa.PythonFile(file, mode="r"), codec)
    return cast("BinaryIO", stream)
