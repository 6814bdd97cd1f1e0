"""Parquet that Arrow cannot read: refused with the true reason, and never by the end of the process."""

from __future__ import annotations

import base64
import contextlib
import io
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

from coordlog.errors import SourceError
from coordlog.spark_integration.files.source.source import FileSource
from fakes.chain_fakes import contents, read_all

TABLE = pa.table({"a": list(range(150)), "b": [[{"c": "x"}], None, []] * 50})


def rows(folder: Path) -> list[tuple[object, ...]]:
    source = FileSource(folder, format="parquet")
    return read_all(source.spec().create_reader(), contents(source.discover())).rows


class Keys(encryption.KmsClient):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """Keys that wrap nothing."""

    def wrap_key(self, key_bytes: bytes, _master_key: str) -> str:
        return base64.b64encode(key_bytes).decode()

    def unwrap_key(self, wrapped_key: str, _master_key: str) -> bytes:
        return base64.b64decode(wrapped_key)


@pytest.mark.parametrize("is_footer_plain", [False, True])
def test_encrypted_parquet_is_refused_as_that(tmp_path: Path, *, is_footer_plain: bool) -> None:
    make_client: Callable[[object], Keys] = lambda _config: Keys()  # noqa: E731, typed
    properties = encryption.CryptoFactory(make_client).file_encryption_properties(
        encryption.KmsConnectionConfig(),
        encryption.EncryptionConfiguration(
            footer_key="f", column_keys={"k": ["a"]}, plaintext_footer=is_footer_plain
        ),
    )
    table = TABLE.select(["a"])
    with pq.ParquetWriter(
        tmp_path / "a.parquet", table.schema, encryption_properties=properties
    ) as writer:
        writer.write_table(table)

    with pytest.raises(SourceError) as refused:
        rows(tmp_path)
    assert refused.value.next_step == "decrypt it: encrypted Parquet is not read"


def test_what_arrow_has_no_way_to_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    source = FileSource(tmp_path, format="parquet")
    splits = contents(source.discover())

    def refuse() -> None:
        raise pa.ArrowNotImplementedError("Nested data conversions for chunked array outputs")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", lambda *_, **__: iter(refuse, ()))
    with pytest.raises(SourceError, match="after row 0, and may be whole") as refused:
        read_all(source.spec().create_reader(), splits)
    assert "`batch_rows=`" in refused.value.next_step
    assert "whole Parquet file" not in refused.value.next_step


@pytest.mark.parametrize("seed", range(5))
def test_a_damaged_file_has_rows_or_is_refused(seed: int, tmp_path: Path) -> None:
    """Two of 600 such files ended the process: Arrow raises past Python where columns are asked for their bytes."""
    written = io.BytesIO()
    pq.write_table(TABLE, written, row_group_size=60)
    whole = written.getvalue()
    footer_at = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    chance = random.Random(seed)
    for _ in range(30):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 4))):
            damaged[chance.randrange(footer_at, len(whole) - 8)] = chance.randrange(256)
        (tmp_path / "a.parquet").write_bytes(damaged)
        with contextlib.suppress(SourceError):
            rows(tmp_path)


@pytest.mark.parametrize("has_int96", [False, True])
def test_rows_that_arrow_leaves_out_without_an_error_are_missed(
    tmp_path: Path, *, has_int96: bool
) -> None:
    """Here a null list of structs with a list, in pages of the second version and of few bytes."""
    kind = pa.list_(pa.struct([("a", pa.bool_()), ("b", pa.list_(pa.int64()))]))
    table = pa.table({"i": [0], "c": pa.array([None], kind)})
    if has_int96:
        table = table.append_column("t", pa.array([0], pa.timestamp("us")))
    pq.write_table(
        table,
        tmp_path / "a.parquet",
        data_page_version="2.0",
        data_page_size=64,
        use_deprecated_int96_timestamps=has_int96,
    )

    with pytest.raises(SourceError, match="rows from row 1 on is 1, and Arrow reads 0") as refused:
        rows(tmp_path)
    assert "write the file anew" in refused.value.next_step
