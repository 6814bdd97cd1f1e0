"""Files behind the S3 protocol and HTTP, from servers on this machine, are read as local ones are."""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import botocore.session
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer

from coordlog.errors import SourceError
from coordlog.schemas.source_types import SplitsDiscovered
from coordlog.spark_integration.files import web_files
from coordlog.spark_integration.files.faults import is_fault_of_file
from coordlog.spark_integration.files.formats.csv.options import CsvOptions
from coordlog.spark_integration.files.listing import InputFiles, modified_us
from coordlog.spark_integration.files.payloads import ReadFile
from coordlog.spark_integration.files.source.disposal import NotDisposedError, dispose
from coordlog.spark_integration.files.source.source import FileSource, Format
from coordlog.spark_integration.files.source.watch import Watch
from fakes.chain_fakes import FakeContext, ReadOut, contents, read_all, read_on
from fakes.plain_watch import PlainWatch

pytestmark = [pytest.mark.slow]

FORMATS: tuple[Format, ...] = ("csv", "jsonl", "parquet", "text")
ROWS = [(i, f"x{i}") for i in range(40)]


def fill(folder: Path) -> None:
    """A folder for each format, with a file of all rows, and where it may be a packed one."""
    texts = {
        "csv": "i,s\n" + "".join(f"{i},{s}\n" for i, s in ROWS),
        "jsonl": "".join(json.dumps({"i": i, "s": s}) + "\n" for i, s in ROWS),
        "text": "".join(f"{i} {s}\n" for i, s in ROWS),
    }
    for name, text in texts.items():
        (folder / name).mkdir()
        (folder / name / "a.plain").write_text(text)
        (folder / name / "b.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "parquet").mkdir()
    table = pa.table({"i": [i for i, _ in ROWS], "s": [s for _, s in ROWS]})
    for name in ("a", "b"):
        pq.write_table(table, folder / "parquet" / f"{name}.parquet", row_group_size=10)


def expected(name: Format) -> Sequence[tuple[object, ...]]:
    if name == "text":
        return [(f"{i} {s}",) for i, s in ROWS] * 2
    return [*ROWS, *ROWS]


def source_of(url: str, name: Format, **options: Any) -> FileSource:  # noqa: ANN401
    return FileSource(
        url,
        format=name,
        split_bytes=100,
        csv=CsvOptions(no_newlines_in_fields=name == "csv"),
        batch_rows=10,
        **options,
    )


def read(source: FileSource) -> ReadOut:
    return read_all(source.spec().create_reader(), contents(source.discover()))


def refusal(do: Callable[[], object]) -> SourceError:
    with pytest.raises(SourceError) as caught:
        do()
    return caught.value


# --- S3 -------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A file system on a server of the S3 protocol, with a bucket of all formats."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        # As a user gives them: nothing of it is in the source, its URL or the log.
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "somebody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        file_system = fsspec.filesystem("s3", skip_instance_cache=True)
        file_system.mkdir("bucket")
        folder = tmp_path_factory.mktemp("s3")
        fill(folder)
        for path in sorted(folder.rglob("*.*")):
            file_system.put_file(str(path), f"bucket/in/{path.relative_to(folder)}")
        yield file_system
    server.stop()


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_read_from_s3_in_splits(s3: Any, name: Format) -> None:  # noqa: ANN401
    source = source_of(f"s3://bucket/in/{name}", name)

    discovered = source.discover()
    assert len(discovered.splits) > 2
    assert b"hunter2" not in b"".join(contents(discovered))
    assert read(source).rows == expected(name)
    assert len(read(source_of(f"s3://bucket/in/{name}/a*", name)).rows) == len(ROWS)


def test_an_object_that_is_put_again_is_seen_by_its_etag(s3: Any) -> None:  # noqa: ANN401
    s3.pipe("bucket/again/a.csv", b"i\n" + b"1\n" * 40)
    source = FileSource("s3://bucket/again", batch_rows=5)
    splits = contents(source.discover())
    reader = source.spec().create_reader()
    reader.open(FakeContext(), None)
    reader.add_splits(splits)
    read_on(reader, ReadOut(), batches_max=1)
    s3.pipe("bucket/again/a.csv", b"i\n" + b"2\n" * 40)

    error = refusal(lambda: read_on(reader, ReadOut()))
    reader.close()
    assert error.where == "bucket/again/a.csv"
    assert "it has changed while it was read: its content may be another: etag " in error.problem


def test_objects_that_come_are_found_and_no_name_leads_out(s3: Any) -> None:  # noqa: ANN401
    s3.pipe("bucket/watched/a.csv", b"i\n1\n")
    source = FileSource("s3://bucket/watched", watch=Watch())

    def discovered(known: SplitsDiscovered | None) -> SplitsDiscovered:
        watch = PlainWatch(
            source._discovery, interval_s=1.0, idle_timeout_s=None, wait=lambda _: False
        )
        return watch.look([] if known is None else known.splits)

    first = discovered(None)
    s3.pipe("bucket/watched/b.csv", b"i\n2\n")
    second = discovered(first)
    assert [one.split_id for one in first.splits] == ["bucket/watched/a.csv"]
    assert [one.split_id for one in second.splits] == ["bucket/watched/b.csv"]

    s3.pipe("bucket/watched/../outside.csv", b"i\n3\n")
    error = refusal(FileSource("s3://bucket/watched").discover)
    assert error.where == "bucket/watched/../outside.csv"
    assert "leads out of it" in error.problem


def test_a_listing_of_s3_begins_behind_a_name_and_goes_on_page_by_page(
    s3: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("2026-01/a.csv", "2026-01/b.csv", "2026-02/a.csv", "2026-02.csv", "2027/_no.csv"):
        s3.pipe(f"bucket/days/{name}", b"i\n1\n")
    requests: list[dict[str, Any]] = []
    real = type(s3).call_s3

    def call_s3(self: Any, method: str, **request: Any) -> Any:  # noqa: ANN401
        requests.append(request)
        return real(self, method, **request, MaxKeys=2)

    monkeypatch.setattr(type(s3), "call_s3", call_s3)

    def walked(path: str, start_after: str | None = None) -> list[str]:
        source = FileSource(path, watch=Watch(start_after=start_after))
        return [one.path.removeprefix("bucket/days/") for one in source._discovery.files.walk()]

    every = ["2026-01/a.csv", "2026-01/b.csv", "2026-02.csv", "2026-02/a.csv"]
    assert walked("s3://bucket/days") == every
    assert len(requests) == 3, "pages of two of five"
    assert walked("s3://bucket/days", "2026-01/a.csv") == every[1:]
    assert requests[3]["StartAfter"] == "days/2026-01/a.csv"
    assert walked("s3://bucket/days/2026*", "2026-01/z") == every[2:]
    assert requests[-1]["Prefix"] == "days/2026"
    assert walked("s3://bucket/days/2026*/") == [every[0], every[1], every[3]]
    assert walked("s3://bucket/days/**/a.csv") == [every[0], every[3]]
    assert walked("s3://bucket/days/*/a.csv", "2026-01/b") == [every[3]]
    whole = "s3://bucket/days/2026-01/a.csv"
    assert walked(whole, "z") == [every[0]], "it is the path itself, and not below it"
    source = FileSource("s3://bucket/days", also=[whole], watch=Watch(start_after="2026-02/"))
    files = source._discovery.files
    names = [file.path for file in files.list()]
    assert names == ["bucket/days/2026-01/a.csv", "bucket/days/2026-02/a.csv"]
    assert [name for name in names if files.has_name(name)] == names


@pytest.mark.parametrize("path", ["s3://bucket/in/csv", "s3://bucket/in/csv/*"])
def test_an_answer_of_s3_that_is_no_listing_is_an_error(
    s3: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
    path: str,
) -> None:
    """As of a proxy that sends a page of its own: the names behind it were left out."""
    assert FileSource(path).discover().splits
    monkeypatch.setattr(type(s3), "call_s3", lambda *_, **__: {"ResponseMetadata": {}})
    error = refusal(FileSource(path).discover)
    assert error.retriable
    assert "no listing" in error.problem


def test_prefixes_of_several_buckets_are_one_source(s3: Any) -> None:  # noqa: ANN401
    s3.mkdir("second")
    s3.pipe("second/x/a.csv", b"i\n1\n")
    s3.pipe("bucket/x/a.csv", b"i\n2\n")

    source = FileSource("s3://second/x", also=["s3a://bucket/x"])
    assert read(source).rows == [(2,), (1,)]
    assert source.spec().inputs == ("s3://second/x", "s3://bucket/x")


# --- objects that were read -----------------------------------------------------------------------
class CrashedError(BaseException):
    """The process ends here."""


def to_dispose(url: str, target: str = "") -> tuple[InputFiles, ReadFile]:
    files = FileSource(url, watch=Watch())._discovery.files
    (listed,) = files.walk()
    return files, ReadFile(
        path=listed.path,
        size_bytes=listed.size_bytes,
        mark=listed.mark,
        real_path="",
        target=target,
    )


def put(key: str, body: bytes, **more: Any) -> None:  # noqa: ANN401
    client: Any = botocore.session.get_session().create_client(
        "s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"]
    )
    client.put_object(Bucket="bucket", Key=key, Body=body, **more)


@pytest.mark.parametrize("step", ["checked", "target checked", "archived", None])
def test_an_object_is_archived_with_its_metadata_over_a_crash_at_each_step(
    s3: Any,  # noqa: ANN401
    step: str | None,
) -> None:
    name = f"read/{step}"
    put(f"{name}/a.csv", b"i\n1\n", Metadata={"by": "me"}, ContentType="text/csv")
    files, file = to_dispose(f"s3://bucket/{name}", f"bucket/done/{name}/a.csv")

    def crash(at: str) -> None:
        if at == step:
            raise CrashedError

    for _ in range(2):
        with suppress(CrashedError):
            dispose(files, file, crash)
        bodies = {s3.cat(path) for path in s3.find("bucket") if f"{name}/a.csv" in path}
        assert bodies == {b"i\n1\n"}
    dispose(files, file)

    s3.invalidate_cache()
    assert [path for path in s3.find("bucket") if name in path] == [f"bucket/done/{name}/a.csv"]
    head = s3.call_s3("head_object", Bucket="bucket", Key=f"done/{name}/a.csv")
    assert (head["ContentType"], head["Metadata"]["by"]) == ("text/csv", "me")


def test_an_object_put_again_stays_and_its_name_is_archived_beside(
    s3: Any,  # noqa: ANN401
) -> None:
    put("put/a.csv", b"i\n1\n")
    files, file = to_dispose("s3://bucket/put", "bucket/put-done/a.csv")
    put("put/a.csv", b"i\n2\n")
    with pytest.raises(NotDisposedError, match="it has changed since it was read"):
        dispose(files, file)
    assert s3.cat("bucket/put/a.csv") == b"i\n2\n"

    for body in (b"i\n3\n", b"i\n4\n"):
        put("put/a.csv", body)
        dispose(*to_dispose("s3://bucket/put", "bucket/put-done/a.csv"))
    s3.invalidate_cache()
    archived = s3.find("bucket/put-done")
    assert [s3.cat(path) for path in archived] == [b"i\n3\n", b"i\n4\n"]
    assert archived[0] == "bucket/put-done/a.csv"
    assert s3.find("bucket/put/") == []


def test_an_archived_object_whose_name_comes_again_too_early_is_done(
    s3: Any,  # noqa: ANN401
) -> None:
    put("early-done/a.csv", b"i\n0\n")  # the archive has another object of the name
    put("early/a.csv", b"i\n1\n")
    files, file = to_dispose("s3://bucket/early", "bucket/early-done/a.csv")
    dispose(files, file)

    put("early/a.csv", b"i\n2, and more\n")
    dispose(files, file)  # by the next driver: the log of the first has no outcome

    s3.invalidate_cache()
    assert s3.cat("bucket/early/a.csv") == b"i\n2, and more\n"
    assert {s3.cat(path) for path in s3.find("bucket/early-done")} == {b"i\n0\n", b"i\n1\n"}


def test_an_object_that_is_put_again_while_it_is_archived_stays(
    s3: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put("late/a.csv", b"i\n1\n")
    files, file = to_dispose("s3://bucket/late", "bucket/late-done/a.csv")
    requests: list[tuple[str, dict[str, Any]]] = []
    real = type(s3).call_s3

    def call_s3(self: Any, method: str, **request: Any) -> Any:  # noqa: ANN401
        requests.append((method, request))
        return real(self, method, **request)

    monkeypatch.setattr(type(s3), "call_s3", call_s3)

    def again(at: str) -> None:
        if at == "target checked":
            put("late/a.csv", b"i\n2\n")

    with pytest.raises(NotDisposedError, match="it was replaced"):
        dispose(files, file, again)
    deleted = [request["Key"] for method, request in requests if method == "delete_object"]
    assert deleted == ["late-done/a.csv"], "the copy of another object"
    assert s3.cat("bucket/late/a.csv") == b"i\n2\n"
    files, file = to_dispose("s3://bucket/late")
    dispose(files, file)
    assert requests[-1][1]["IfMatch"] == file.mark.split()[1]


def test_two_objects_with_one_name_in_the_archive_are_both_there(
    s3: Any,  # noqa: ANN401
) -> None:
    """A copy replaces: the second begins between the look at the archive and the copy of the first."""
    put("pair/one/a.csv", b"i\n1\n")
    put("pair/two/a.csv", b"i\n2\n")
    first = to_dispose("s3://bucket/pair/one", "bucket/pair-done/a.csv")
    second = to_dispose("s3://bucket/pair/two", "bucket/pair-done/a.csv")

    def dispose_of_other(at: str) -> None:
        if at == "target checked":
            dispose(*second)

    dispose(*first, dispose_of_other)
    s3.invalidate_cache()
    assert {s3.cat(path) for path in s3.find("bucket/pair-done")} == {b"i\n1\n", b"i\n2\n"}
    assert s3.find("bucket/pair") == []


def test_an_object_that_a_hanging_try_is_copying_is_not_copied_again(s3: Any) -> None:  # noqa: ANN401
    put("again/a.csv", b"i\n1\n")
    files, file = to_dispose("s3://bucket/again", "bucket/again-done/a.csv")

    def again(at: str) -> None:
        if at == "target checked":
            with pytest.raises(NotDisposedError, match="being copied"):
                dispose(files, file)

    dispose(files, file, again)
    s3.invalidate_cache()
    assert s3.find("bucket/again-done") == ["bucket/again-done/a.csv"]


def test_the_age_of_an_object_is_that_of_its_listing(s3: Any) -> None:  # noqa: ANN401
    s3.pipe("bucket/age/a.csv", b"i\n1\n")
    files = FileSource("s3://bucket/age")._discovery.files
    (listed,) = files.walk()

    age_s = time.time() - (modified_us(listed) or 0) / 1e6
    assert -2 < age_s < 60
    assert files.difference(listed, files.look(listed)) is None


def test_an_object_and_a_folder_of_one_name_are_both_read(s3: Any) -> None:  # noqa: ANN401
    s3.pipe("bucket/twins/in", b"i\n1\n")
    s3.pipe("bucket/twins/in/a.csv", b"i\n2\n")
    s3.pipe("bucket/twins/in2/a.csv", b"i\n3\n")

    assert read(FileSource("s3://bucket/twins/in")).rows == [(1,), (2,)]
    assert read(FileSource("s3://bucket/twins/in*")).rows == [(1,), (2,), (3,)]
    assert read(FileSource("s3://bucket/twins/in/")).rows == [(2,)], "the folder, by its slash"


def test_an_empty_object_is_a_sign_of_the_folder_of_its_name(s3: Any) -> None:  # noqa: ANN401
    s3.pipe("bucket/signs/in", b"")
    s3.pipe("bucket/signs/in/a.csv", b"i\n2\n")

    (one,) = FileSource("s3://bucket/signs/in").discover().splits
    assert one.split_id == "bucket/signs/in/a.csv"


@pytest.mark.parametrize("path", ["s3://bucket/versions", "s3://bucket/versions/*"])
def test_a_name_that_would_be_read_as_another_object_is_refused(s3: Any, path: str) -> None:  # noqa: ANN401
    s3.pipe("bucket/versions/a.csv", b"i\n1\n")
    client: Any = botocore.session.get_session().create_client(
        "s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"]
    )
    client.put_object(Bucket="bucket", Key="versions/a.csv?versionId=x.csv", Body=b"i\n2\n")

    error = refusal(FileSource(path).discover)
    assert error.where == "bucket/versions/a.csv?versionId=x.csv"
    assert "takes for a version of another object" in error.problem
    assert read(FileSource(path, exclude="*versionId*")).rows == [(1,)]


def test_a_bucket_that_is_not_there_is_an_error_that_names_it(s3: Any) -> None:  # noqa: ANN401
    error = refusal(FileSource("s3://nobodys/in").discover)
    assert "nobodys/in" in error.where


# --- HTTP -----------------------------------------------------------------------------------------
class Quiet(SimpleHTTPRequestHandler):
    """Says nothing of requests; knows no ranges, as the simplest of servers."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, the base's
        pass


@contextmanager
def serving(handler: type[Quiet], folder: Path) -> Generator[str]:
    """The address of a server of these files."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(10.0)
        server.server_close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a server, and its folder of all formats."""
    folder = tmp_path_factory.mktemp("http")
    fill(folder)
    with serving(Quiet, folder) as url:
        yield url, folder


@pytest.mark.parametrize("name", FORMATS)
def test_files_of_each_format_are_read_over_http(site: tuple[str, Path], name: Format) -> None:
    url, _ = site
    first, second = {"parquet": ("a.parquet", "b.parquet")}.get(name, ("a.plain", "b.gz"))

    also = [f"{url}/{name}/{second}"]
    assert read(source_of(f"{url}/{name}/{first}", name, also=also)).rows == expected(name)


def test_large_parquet_of_a_server_without_ranges_names_what_it_lacks(
    site: tuple[str, Path],
) -> None:
    url, folder = site
    (folder / "large").mkdir()
    table = pa.table({"i": pa.array(range(40_000), pa.int64())})
    pq.write_table(table, folder / "large" / "a.parquet", use_dictionary=False, compression="none")
    error = refusal(lambda: read(source_of(f"{url}/large/a.parquet", "parquet")))
    assert "sends ranges" in error.next_step
    assert "whole Parquet file" not in str(error)


class Compressing(Quiet):
    """Sends ranges of a file, and the whole of it to clients that accept gzip, as nginx with `gzip_types *` does."""

    def do_GET(self) -> None:
        """Send the file, or the range of it."""
        data = Path(self.translate_path(self.path)).read_bytes()
        if "gzip" in self.headers["Accept-Encoding"]:
            data = gzip.compress(data)
            self.send_response(200)
            self.send_header("Content-Encoding", "gzip")
        else:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            data = data[int(first) : int(last) + 1]
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.mark.parametrize("count", [100, 400_000])
def test_parquet_of_a_server_that_compresses_is_read_by_ranges(tmp_path: Path, count: int) -> None:
    table = pa.table({"i": pa.array(range(count), pa.int64())})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, compression="none")
    with serving(Compressing, tmp_path) as url:
        read_out = read(source_of(f"{url}/a.parquet", "parquet"))
    assert pa.Table.from_batches(read_out.batches).equals(table)


def test_a_page_that_changes_or_is_gone_is_named(site: tuple[str, Path]) -> None:
    url, folder = site
    page = folder / "page.csv"
    page.write_text("i\n" + "1\n" * 40)
    source = FileSource(f"{url}/page.csv", batch_rows=5)
    splits = contents(source.discover())
    reader = source.spec().create_reader()
    reader.open(FakeContext(), None)
    reader.add_splits(splits)
    read_on(reader, ReadOut(), batches_max=1)
    page.write_text("i\n" + "1\n" * 41)
    error = refusal(lambda: read_on(reader, ReadOut()))
    reader.close()
    assert error.where == f"{url}/page.csv"
    assert "it has 84 bytes; it had 82 when the source was listed" in error.problem

    page.unlink()
    error = refusal(lambda: read_all(source.spec().create_reader(), splits))
    assert "it has vanished: it was there with 82 bytes" in error.problem


class Busy(Quiet):
    """Refuses what `refused` names, and cuts off what `cut` names."""

    refused = "/in/busy"
    cut = "/in/cut"

    def send_head(self) -> Any:  # noqa: ANN401, as the base has it
        if self.path.startswith(self.refused):
            self.send_error(503)
            return None
        if self.path.startswith(self.cut) and self.command == "GET":
            content = Path(self.translate_path(self.path)).read_bytes()
            self.send_response(200)
            self.end_headers()
            return io.BytesIO(content[: len(content) // 2])
        return super().send_head()


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a busy server, and its folder `in`."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("i\n1\n")
    with serving(Busy, tmp_path) as url:
        yield url, tmp_path / "in"


def test_a_file_that_a_server_refuses_is_an_error_of_the_listing(busy: tuple[str, Path]) -> None:
    url, folder = busy
    (folder / "busy.csv").write_text("i\n2\n")

    error = refusal(FileSource(f"{url}/in/a.csv", also=[f"{url}/in/busy.csv"]).discover)
    assert error.retriable
    assert "503" in error.problem
    assert f"{url}/in/busy.csv" in error.problem


@pytest.mark.parametrize("name", ["cut.csv", "cut.jsonl", "cut.txt"])
def test_an_answer_that_ends_early_is_an_error(busy: tuple[str, Path], name: str) -> None:
    """It ends with its connection, and has no length of its own: the rows behind the cut were missing."""
    url, folder = busy
    lines = {"cut.csv": "i\n" + "1\n" * 39, "cut.jsonl": '{"i":1}\n' * 40, "cut.txt": "x\n" * 40}
    (folder / name).write_text(lines[name])
    formats: dict[str, Format] = {"cut.csv": "csv", "cut.jsonl": "jsonl", "cut.txt": "text"}

    error = refusal(lambda: read(FileSource(f"{url}/in/{name}", format=formats[name])))
    size = len(lines[name])
    assert error.retriable
    assert f"the answer ends after {size // 2} bytes of {size}" in error.problem


def test_an_index_in_place_of_a_file_is_no_text(busy: tuple[str, Path]) -> None:
    """The lines of its page became rows."""
    url, folder = busy
    (folder / "sub").mkdir()
    (folder / "sub" / "b.txt").write_text("x\n")

    error = refusal(FileSource(f"{url}/in/sub", format="text").discover)
    assert "is HTML, not the file" in error.problem
    assert "the index of a folder" in error.next_step


class Leading(Quiet):
    """Leads from names to others, and sends a page without its size in place of what `closed` names."""

    closed = "/in/closed"
    is_closed = True
    redirects = True

    def send_head(self) -> Any:  # noqa: ANN401, as the base has it
        is_moved = self.path.startswith("/in/moved/")
        to = self.path.replace("/in/", "/archive/") if is_moved else None
        if self.is_closed and self.path.startswith(self.closed):
            to = "/login?key=secret" if self.redirects else None
            if to is None:
                return self.send_login()
        if self.path.startswith("/login"):
            return self.send_login()
        if to is None:
            return super().send_head()
        self.send_response(302)
        self.send_header("Location", to)
        self.end_headers()
        return None

    def send_login(self) -> Any:  # noqa: ANN401, as above
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if self.redirects else "text/plain")
        self.end_headers()
        return io.BytesIO(b"<p>\nname:\n</p>\n" * 40)


@pytest.fixture
def leading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """The address of a server that leads to other names, and its folder."""
    monkeypatch.setattr(Leading, "is_closed", True)
    for name in ("in/a.csv", "in/closed/b.csv", "archive/moved/a.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("i\n1\n")
    with serving(Leading, tmp_path) as url:
        yield url, tmp_path


def test_a_login_in_place_of_a_file_is_an_error(leading: tuple[str, Path]) -> None:
    """The lines of the page became rows."""
    url, _ = leading
    error = refusal(FileSource(f"{url}/in/closed/b.csv").discover)
    assert error.retriable
    assert f"the page at {url}/login is " in error.problem
    assert "secret" not in str(error)


def test_a_file_to_which_a_server_leads_is_read(leading: tuple[str, Path]) -> None:
    url, _ = leading
    assert read(FileSource(f"{url}/in/moved/a.csv")).rows == [(1,)]


@pytest.mark.parametrize("problem", ["is HTML, not the file", "the answer "])
@pytest.mark.parametrize("lines", [2, 2_000])
def test_a_login_instead_of_a_listed_file_is_no_text(
    leading: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, lines: int, problem: str
) -> None:
    """It has no size to compare: its lines became rows in place of the file's."""
    url, folder = leading
    (folder / "in" / "closed" / "b.csv").write_text("x\n" * lines)
    source = FileSource(f"{url}/in/closed/b.csv", format="text")
    monkeypatch.setattr(Leading, "is_closed", False)
    splits = contents(source.discover())
    monkeypatch.setattr(Leading, "is_closed", True)
    monkeypatch.setattr(Leading, "redirects", "HTML" in problem)

    error = refusal(lambda: read_all(source.spec().create_reader(), splits))
    assert error.retriable
    assert problem in error.problem
    assert not is_fault_of_file(error, source._discovery.files), "it is not skipped"


class Slow(Quiet):
    """Sends a file in pieces, with pauses."""

    def copyfile(self, source: Any, outputfile: Any) -> None:  # noqa: ANN401, as the base has it
        with suppress(OSError):
            while piece := source.read(20):
                outputfile.write(piece)
                time.sleep(0.1)


@pytest.mark.parametrize(("silence_s", "is_read"), [(1.5, True), (0.02, False)])
def test_an_answer_may_take_any_time_but_not_fall_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silence_s: float, is_read: object
) -> None:
    """After aiohttp's 300 s a large file was cut each time: no attempt came to its end."""
    monkeypatch.setattr(aiohttp.client, "DEFAULT_TIMEOUT", aiohttp.ClientTimeout(total=1.0))
    monkeypatch.setattr(web_files, "WEB_SILENCE_S", silence_s)
    (tmp_path / "a.csv").write_text("i\n" + "1\n" * 200)
    with serving(Slow, tmp_path) as url:
        source = FileSource(f"{url}/a.csv")
        if is_read:
            assert read(source).rows == [(1,)] * 200
        else:
            assert refusal(lambda: read(source)).retriable
