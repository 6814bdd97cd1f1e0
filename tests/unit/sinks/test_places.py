"""A destination stands apart from what its job reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordlog.api.chain import Chain
from coordlog.cli.ingest.options import IngestOptions
from coordlog.cli.ingest.parts import parts_of
from coordlog.errors import OptionError, OptionsError
from coordlog.log.memory import MemoryLog
from coordlog.spark_integration.files.places import check_apart, location_of
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.job import Job


def is_refused(source: str | Path, destination: str | Path) -> bool:
    chain = Chain(source=FileSource(source).spec(), operators=[ParquetSink(destination).spec()])
    try:
        check_apart(chain)
    except OptionError as error:
        assert str(destination).replace("s3a:", "s3:") in str(error)  # noqa: PT017, both are asked
        assert str(chain.source.location) in str(error)  # noqa: PT017, as above
        return True
    return False


@pytest.mark.parametrize(
    ("source", "destination", "expected"),
    [
        ("d", "d/out", True),
        ("d", "d/a/b/out", True),
        ("d", "d", True),
        ("d/in", "d", True),
        ("d/in.csv", "d", True),
        ("d/*", "d/out", True),
        ("d/*", "d/a/out", True),
        ("d/*/*", "d/out", True),
        ("d/*/part-*.parquet", "d/out", True),
        ("d/**/*.parquet", "d/a/out", True),
        ("d/*/year=2024", "d/out", True),
        ("d/out/2024-*.csv", "d/out", True),
        ("d/in", "d/out", False),
        ("d/in", "d/inside", False),
        ("d/*.csv", "d/out", False),
        ("d/*/*.csv", "d/out", False),
        ("d/**/*.csv", "d/out", False),
        ("d/2024-*", "d/out", False),
    ],
)
def test_a_destination_in_what_is_read_or_around_it_is_refused(
    tmp_path: Path,
    source: str,
    destination: str,
    expected: bool,  # noqa: FBT001, a parameter
) -> None:
    assert is_refused(tmp_path / source, tmp_path / destination) == expected
    assert is_refused(f"file://{tmp_path}/{source}", tmp_path / destination) == expected
    assert is_refused(f"s3://bucket/{source}", f"s3a://bucket/{destination}") == expected
    assert not is_refused(f"s3://bucket/{source}", f"s3://other/{destination}")
    assert not is_refused(tmp_path / source, f"s3://bucket/{destination}")


def test_a_link_hides_no_overlap_and_a_name_with_a_star_is_that_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "in")
    (tmp_path / "a*").mkdir()

    assert is_refused(tmp_path / "link", tmp_path / "in" / "out")
    assert is_refused(tmp_path / "in", tmp_path / "link" / "out")
    assert is_refused(tmp_path / "link" / "*", tmp_path / "in" / "out")
    assert is_refused(tmp_path / "a*", tmp_path / "a*" / "out")
    assert not is_refused(tmp_path / "a*", tmp_path / "ab" / "out")


def test_a_link_below_the_source_that_leads_to_the_destination_is_refused(tmp_path: Path) -> None:
    source, out, beside = tmp_path / "in", tmp_path / "out", tmp_path / "beside"
    for folder in (source / "deep", out / "month=1", beside):
        folder.mkdir(parents=True)
    (out / "month=1" / "a.parquet").touch()
    assert not is_refused(source, out)

    for place, target in [
        (source / "link", out),
        (source / "deep" / "link", out),
        (source / "above", tmp_path),
        (source / "part", out / "month=1"),
        (source / "file.parquet", out / "month=1" / "a.parquet"),
    ]:
        place.symlink_to(target)
        assert is_refused(source, out), place
        assert is_refused(source, out / "not" / "yet") == (target in (out, tmp_path)), place
        place.unlink()

    (source / "elsewhere").symlink_to(beside)
    (source / "round").symlink_to(source)
    (source / ".hidden").symlink_to(out)
    (source / "nowhere").symlink_to(tmp_path / "nothing")
    (source / "itself").symlink_to(source / "itself")
    (tmp_path / "way").symlink_to(source)
    assert not is_refused(source, out)
    (beside / "next").symlink_to(out)
    assert is_refused(source, out), "by two links"
    assert is_refused(tmp_path / "way", out)
    assert is_refused(source / "*" / "*", out)
    assert not is_refused(source / "*.csv", out)


def test_the_command_and_the_job_refuse_it_by_name(tmp_path: Path) -> None:
    source, out = str(tmp_path), str(tmp_path / "out")
    with pytest.raises(
        OptionsError, match=f"'{out}'; it must be apart from what is read, {source}"
    ):
        parts_of(IngestOptions(source=source, destination=out, watch=True))
    with pytest.raises(OptionError, match=f"'{out}'; it must be apart from what is read, {source}"):
        Job(job_id="job", log=MemoryLog(), source=FileSource(source), sink=ParquetSink(out))


def test_what_names_the_same_files_is_spelled_alike() -> None:
    assert location_of("file:///a/b/") == location_of("/a/b") == "/a/b"
    assert location_of("S3A://bucket/a/") == location_of("s3://bucket/a") == "s3://bucket/a"
    assert location_of("http://h/a") != location_of("https://h/a")
    assert location_of("zip://x/::s3://b/a.zip") == "zip://x/::s3://b/a.zip"
