"""Secrets in URLs are recognised whatever signs they have, and are shown nowhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordlog.cli.ingest.kafka import kafka_source
from coordlog.cli.ingest.options import IngestOptions
from coordlog.errors import CoordlogError, OptionError
from coordlog.log.credentials import refuse_credentials, without_credentials
from coordlog.log.payload_store import PayloadStore
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.tables.delta import DeltaSink

SECRETS = st.text("abcXYZ019/+=:?#@%", min_size=1).filter(lambda text: "://" not in text)


@given(secret=SECRETS, scheme=st.sampled_from(["s3", "S3A", "gs", "az"]))
def test_a_key_of_an_object_store_is_recognised_whatever_signs_it_has(
    secret: str, scheme: str
) -> None:
    url = f"{scheme}://AKIAX:{secret}@bucket/prefix"
    with pytest.raises(OptionError) as refused:
        refuse_credentials("path", url)

    assert f"{scheme}://***@bucket/prefix" in str(refused.value)
    assert without_credentials(f"at {url} now", "(hidden)") == (
        f"at {scheme}://(hidden)@bucket/prefix now"
    )


@given(secret=SECRETS.filter(lambda text: not text[0].isdigit()))
def test_a_password_of_a_host_is_recognised_whatever_signs_it_has(secret: str) -> None:
    with pytest.raises(OptionError) as refused:
        refuse_credentials("path", f"ftp://me:{secret}@host/in")
    assert "ftp://***@host/in" in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://host:8080/in/a@b.csv",
        "http://[::1]:8080/in/a@b.csv",
        "abfs://container@account.example/in",
        "s3://bucket/in/a@b.csv",
        "s3://bucket/in/a:b@c.csv",
        "file:///in/a:b@c.csv",
        "/in/a:b@c.csv",
        "zip://*.csv::s3://bucket/a@b.zip",
    ],
)
def test_a_path_with_such_signs_is_none(url: str) -> None:
    refuse_credentials("path", url)


def test_a_link_behind_the_first_is_masked_too() -> None:
    assert without_credentials("simplecache::s3://K:a/b@c/d", "***") == "simplecache::s3://***@c/d"
    assert without_credentials("zip://x::s3://K:a/b@c/d", "***") == "zip://x::s3://***@c/d"


def _kafka(url: str) -> object:
    return kafka_source(IngestOptions(source=url, destination="out"))


@pytest.mark.parametrize(
    ("take", "url"),
    [
        (FileSource, "s3://AKIAX:hun/ter2@bucket/in"),
        (FileSource, "zip://*.csv::s3://AKIAX:hun/ter2@bucket/in"),
        (ParquetSink, "s3://AKIAX:hun/ter2@bucket/out"),
        (DeltaSink, "s3://AKIAX:hun/ter2@bucket/table"),
        (lambda url: PayloadStore(url, "job"), "s3://AKIAX:hun/ter2@bucket/store"),
        (lambda url: PayloadStore(url, "job"), "s3://AKIAX:hun#ter2@bucket/store"),
        (_kafka, "kafka://me:hun/ter2@host:9092/topic"),
    ],
)
def test_all_that_take_a_url_refuse_it_and_do_not_show_it(
    take: Callable[[str], object], url: str
) -> None:
    with pytest.raises(CoordlogError) as refused:
        take(url)
    for part in ("AKIAX", "hun", "ter2"):
        assert part not in str(refused.value)
        assert part not in repr(refused.value)
