"""Which jars are used, and that a cache holds all of them, checked, or none."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from coordlog.errors import OptionError
from coordlog.log.broker import jars as jars_module
from coordlog.log.broker import limits as broker_limits
from coordlog.log.broker.jar_lock import Jar, JarSet, fingerprint, format_lock, locked, parse_lock
from coordlog.log.broker.jars import base_url, class_path, install, main, resolve
from coordlog.log.broker.java import find_java, java_version
from coordlog.log.local.environment_errors import (
    BrokerStartError,
    ChecksumError,
    JarsError,
    JavaError,
)

# printf 'one' | sha256sum
ONE_SHA256: Final = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
# printf 'two' | sha256sum
TWO_SHA256: Final = "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3"
ONE: Final = Jar(group="org.a", artifact="one", version="1.0", sha256=ONE_SHA256, size=3)
TWO: Final = Jar(group="org.b", artifact="two_2.13", version="2.0-M1", sha256=TWO_SHA256, size=3)

LOCK: Final = f"""\
# a comment

[broker]
org.a:one:1.0 {ONE_SHA256} 3

[spark]
org.b:two_2.13:2.0-M1 {TWO_SHA256} 3
"""

Fetch = Callable[[Path], None]


def good(target: Path) -> None:
    """Fetches both jars, and what else a resolver leaves."""
    (target / "one-1.0.jar").write_bytes(b"one")
    (target / "two_2.13-2.0-M1.jar").write_bytes(b"two")
    (target / "cache").mkdir()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# The lock


def test_a_lock_is_read_as_sets_of_jars() -> None:
    assert parse_lock(LOCK) == {JarSet.BROKER: (ONE,), JarSet.SPARK: (TWO,)}


def test_a_lock_that_is_written_is_read_as_the_same() -> None:
    sets = {JarSet.BROKER: (ONE, TWO), JarSet.SPARK: (TWO,)}

    assert parse_lock(format_lock(sets)) == sets


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("one:1.0 7692", "one:1.0 692"), "line 4"),
        (("[broker]\n", ""), "line 3"),
        (("[spark]", "[broker]"), "stands twice"),
        (("[spark]", "[shark]"), "shark"),
        (("org.b:two_2.13:2.0-M1", "org.a:one:1.0"), None),
        ((f"org.b:two_2.13:2.0-M1 {TWO_SHA256} 3\n", ""), "no jars of spark"),
        ((" 3\n\n[", f" 3\norg.c:one:1.0 {TWO_SHA256} 3\n["), "one-1.0.jar stands twice"),
    ],
)
def test_a_damaged_lock_is_refused_with_its_line(
    change: tuple[str, str], message: str | None
) -> None:
    text = LOCK.replace(*change)
    assert text != LOCK

    if message is None:  # the same jar in two sets is no damage
        assert len(parse_lock(text)) == 2
    else:
        with pytest.raises(ValueError, match=message):
            parse_lock(text)


def test_the_committed_lock_holds_what_is_needed() -> None:
    broker = {jar.coordinates for jar in locked(JarSet.BROKER)}
    spark = {jar.coordinates for jar in locked(JarSet.SPARK)}

    assert len(broker) == 46
    assert {
        "org.apache.kafka:kafka_2.13:4.3.1",
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
    } <= broker
    assert spark == {
        "org.apache.commons:commons-pool2:2.12.1",
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.spark:spark-avro_2.13:4.1.1",
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.1",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    }
    assert {jar.coordinates for jar in locked(JarSet.DELTA)} == {
        "io.delta:delta-kernel-api:4.4.0",
        "io.delta:delta-kernel-defaults:4.4.0",
        "io.delta:delta-spark_4.1_2.13:4.4.0",
        "io.delta:delta-storage:4.4.0",
    }
    assert {jar.coordinates for jar in locked(JarSet.ICEBERG)} == {
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
    }


def test_another_content_has_another_fingerprint() -> None:
    changed = Jar(group="org.a", artifact="one", version="1.0", sha256=TWO_SHA256, size=3)

    assert fingerprint([ONE]) != fingerprint([changed])
    assert fingerprint([ONE]) == fingerprint([ONE])


# Installing


def test_jars_are_installed_and_nothing_else(tmp_path: Path) -> None:
    install(tmp_path / "set", [ONE, TWO], good, work_in=tmp_path)

    assert names(tmp_path / "set") == ["one-1.0.jar", "two_2.13-2.0-M1.jar"]
    assert names(tmp_path) == ["set"]


def test_one_wrong_byte_leaves_nothing_and_names_the_jar_and_both_sums(tmp_path: Path) -> None:
    def fetch(target: Path) -> None:
        good(target)
        (target / "two_2.13-2.0-M1.jar").write_bytes(b"twp")

    with pytest.raises(ChecksumError) as caught:
        install(tmp_path / "set", [ONE, TWO], fetch, work_in=tmp_path)

    assert names(tmp_path) == []
    assert caught.value.jar == "org.b:two_2.13:2.0-M1"
    assert TWO_SHA256 in str(caught.value)
    assert hashlib.sha256(b"twp").hexdigest() in str(caught.value)
    assert not caught.value.retriable


def test_a_missing_jar_leaves_nothing(tmp_path: Path) -> None:
    def fetch(target: Path) -> None:
        (target / "one-1.0.jar").write_bytes(b"one")

    with pytest.raises(JarsError, match=r"org\.b:two_2\.13:2\.0-M1"):
        install(tmp_path / "set", [ONE, TWO], fetch, work_in=tmp_path)

    assert names(tmp_path) == []


def test_nothing_is_to_be_seen_before_everything_is_checked(tmp_path: Path) -> None:
    seen: list[bool] = []

    def fetch(target: Path) -> None:
        good(target)
        seen.append((tmp_path / "set").exists())

    install(tmp_path / "set", [ONE, TWO], fetch, work_in=tmp_path)

    assert seen == [False]


def test_an_incomplete_set_is_replaced_and_kept_if_that_fails(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "one-1.0.jar").write_bytes(b"one")

    with pytest.raises(JarsError):
        install(tmp_path / "set", [ONE, TWO], lambda _target: None, work_in=tmp_path)
    assert names(tmp_path / "set") == ["one-1.0.jar"]

    install(tmp_path / "set", [ONE, TWO], good, work_in=tmp_path)
    assert names(tmp_path / "set") == ["one-1.0.jar", "two_2.13-2.0-M1.jar"]


# Resolving


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test, and a lock of two small jars."""
    monkeypatch.setenv("COORDLOG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(jars_module, "locked", lambda _set: (ONE, TWO))
    return tmp_path / "cache"


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that jars would have been fetched."""
    counted: list[int] = []

    def fetch(jars: tuple[Jar, ...], target: Path, _received: object) -> None:
        counted.append(len(jars))
        good(target)

    monkeypatch.setattr(jars_module, "fetch_jars", fetch)
    return counted


def test_jars_are_fetched_once_and_told_of_once(cache: Path, fetches: list[int]) -> None:
    lines: list[str] = []

    first = resolve(JarSet.BROKER, progress=lines.append)
    told = len(lines)
    second = resolve(JarSet.BROKER, progress=lines.append)

    assert first == second
    assert [path.read_bytes() for path in first] == [b"one", b"two"]
    assert fetches == [2]
    assert (told, len(lines)) == (1, 1)
    assert class_path(JarSet.BROKER) == f"{first[0]}:{first[1]}"
    assert stat.S_IMODE((cache / "jars").stat().st_mode) == 0o700


def test_a_jar_that_was_cut_short_or_removed_is_fetched_again(
    cache: Path, fetches: list[int]
) -> None:
    paths = resolve(JarSet.BROKER)
    paths[0].write_bytes(b"on")
    assert resolve(JarSet.BROKER)[0].read_bytes() == b"one"
    paths[1].unlink()
    assert resolve(JarSet.BROKER)[1].read_bytes() == b"two"

    assert fetches == [2, 2, 2]


def test_what_a_killed_process_left_is_removed(cache: Path, fetches: list[int]) -> None:
    left = cache / "jars" / ".unfinished-abc" / "fetched"
    left.mkdir(parents=True)

    folder = resolve(JarSet.BROKER)[0].parent

    assert names(cache / "jars") == [".lock", folder.name]


def test_of_several_at_once_one_fetches(cache: Path, fetches: list[int]) -> None:
    """Threads stand for processes: the lock is one between open files, whoever opened them."""
    barrier = threading.Barrier(3)
    found: list[tuple[Path, ...]] = []

    def work() -> None:
        barrier.wait(10)
        found.append(resolve(JarSet.BROKER))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)

    assert len(found) == 3
    assert len(set(found)) == 1
    assert fetches == [2]


def test_a_cache_that_cannot_be_written_is_named_with_what_to_do(
    cache: Path, fetches: list[int]
) -> None:
    cache.write_text("a file where the folder should be")

    with pytest.raises(JarsError, match="COORDLOG_CACHE"):
        resolve(JarSet.BROKER)


def test_the_command_prints_one_line_for_each_set_that_is_there(
    cache: Path, fetches: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main() == 0
    capsys.readouterr()
    assert main() == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" in ")[0] for line in lines] == ["broker: 2 jars", "spark: 2 jars"]


# The repository: a server of this test


Serve = Callable[[BaseHTTPRequestHandler], None]

FILES: Final = {
    "/maven2/org/a/one/1.0/one-1.0.jar": b"one",
    "/maven2/org/b/two_2.13/2.0-M1/two_2.13-2.0-M1.jar": b"two",
}


def begin(request: BaseHTTPRequestHandler, size: int | None = None) -> None:
    request.send_response(200)
    if size is not None:
        request.send_header("Content-Length", str(size))
    request.end_headers()


def serve_files(request: BaseHTTPRequestHandler) -> None:
    content = FILES[request.path]
    begin(request, len(content))
    request.wfile.write(content)


@contextmanager
def repository(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mirror on this machine, named by the variable; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(ConnectionError):
                serve(self)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002, its name in the base class
            pass

    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}/maven2"
        monkeypatch.setenv("COORDLOG_MAVEN_URL", f"{address}/")
        try:
            yield address
        finally:
            server.shutdown()
            thread.join(10)


def test_jars_come_from_the_mirror_that_the_variable_names(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars_module, "_PROGRESS_BYTES", 3)
    lines: list[str] = []
    with repository(serve_files, monkeypatch):
        paths = resolve(JarSet.BROKER, progress=lines.append)

    assert [path.read_bytes() for path in paths] == [b"one", b"two"]
    assert lines == ["broker: fetching 2 jars, 1 MiB, once", *["broker: 0 of 1 MiB"] * 2]
    assert names(cache / "jars") == [".lock", paths[0].parent.name]


def test_a_folder_can_be_the_mirror(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_MAVEN_URL", (tmp_path / "maven2").as_uri())
    for path, content in FILES.items():
        with pytest.raises(JarsError, match=r"\.jar was not fetched from file:.*No such file"):
            resolve(JarSet.BROKER)
        file = tmp_path / path.lstrip("/")
        file.parent.mkdir(parents=True)
        file.write_bytes(content)

    assert [path.read_bytes() for path in resolve(JarSet.BROKER)] == [b"one", b"two"]


def missing(request: BaseHTTPRequestHandler) -> None:
    request.send_error(404)


def failing(request: BaseHTTPRequestHandler) -> None:
    request.send_error(503)


def cut_short(request: BaseHTTPRequestHandler) -> None:
    begin(request, 3)
    request.wfile.write(b"on")


def no_http(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"220 ready" + b" at last" * 1_000 + b"\r\n\r\n")


def closing(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"")


@pytest.mark.parametrize(
    ("serve", "message"),
    [
        (missing, r"status 404 for org/a/one/1\.0/one-1\.0\.jar; .*by COORDLOG_MAVEN_URL"),
        (failing, r"responds with status 503 for org/a"),
        (cut_short, r"one-1\.0\.jar was not fetched from .*: the connection ended after 2 of 3"),
        (no_http, r"was not fetched from .*: 220 ready.*; check the network; .*HTTPS_PROXY"),
        (closing, r"was not fetched from .*: Remote end closed connection"),
    ],
)
def test_a_jar_that_cannot_be_fetched_is_named_with_what_to_do(
    cache: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve, message: str
) -> None:
    with repository(serve, monkeypatch), pytest.raises(JarsError, match=message) as caught:
        resolve(JarSet.BROKER)

    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert names(cache / "jars") == [".lock"]


def test_a_repository_that_is_not_reached_is_named(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with repository(serve_files, monkeypatch) as address:
        pass
    with pytest.raises(JarsError, match=f"was not fetched from {address}: .*refused"):
        resolve(JarSet.BROKER)


def test_a_full_disk_is_not_taken_for_a_lost_network(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with (
        repository(serve_files, monkeypatch),
        pytest.raises(JarsError, match=r"could not be written to .*No space.*COORDLOG_CACHE"),
    ):
        resolve(JarSet.BROKER)

    assert names(cache / "jars") == [".lock"]


@pytest.mark.parametrize("extra", [b"", b"!" * 1_000_000])
def test_another_file_is_never_used_whatever_its_size(
    cache: Path, monkeypatch: pytest.MonkeyPatch, extra: bytes
) -> None:
    """Of a file that is too large, one byte more than the lock's size is read."""

    def serve(request: BaseHTTPRequestHandler) -> None:
        begin(request)
        request.wfile.write(b"onf" + extra)

    with repository(serve, monkeypatch), pytest.raises(ChecksumError) as caught:
        resolve(JarSet.BROKER)

    digest = hashlib.sha256(b"onf" + extra[:1]).hexdigest()
    assert str(caught.value).startswith(
        f"org.a:one:1.0 has SHA-256 {digest}, the lock says {ONE_SHA256}"
    )
    assert "do the same again; if the result is the same, check the mirror" in str(caught.value)
    assert names(cache / "jars") == [".lock"]


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n\r\no"])
def test_a_server_that_hangs_is_left_at_the_limit(
    cache: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """Before its answer, and within a file."""
    released = threading.Event()

    def serve(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(answer)
        released.wait(60)

    monkeypatch.setattr(broker_limits, "FETCH_WAIT_S", 0.2)
    with repository(serve, monkeypatch):
        try:
            with pytest.raises(JarsError, match=r"one-1\.0\.jar was not fetched from .*: "):
                resolve(JarSet.BROKER)
        finally:
            released.set()

    assert names(cache / "jars") == [".lock"]


def test_jars_that_arrive_too_slowly_are_left_at_the_limit(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part comes in time, and all together do not."""
    released = threading.Event()

    def serve(request: BaseHTTPRequestHandler) -> None:
        begin(request, 3)
        request.wfile.write(b"o")
        released.wait(60)

    passed = [0.0, 0.0]  # at the beginning, and at the request

    def now() -> float:
        return passed.pop() if passed else broker_limits.RESOLVE_LIMIT_S + 1

    monkeypatch.setattr(jars_module, "monotonic", now)
    with repository(serve, monkeypatch):
        try:
            with pytest.raises(
                JarsError, match=r"within 300 s: of one-1\.0\.jar 1 of 3 bytes had arrived; check"
            ):
                resolve(JarSet.BROKER)
        finally:
            released.set()

    assert names(cache / "jars") == [".lock"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ftp://a.example/maven2", "'ftp://a.example/maven2'"),
        ("a.example", "'a.example'"),
        ("https:///maven2", "'https:///maven2'"),
        ("https://user:secret@a.example/maven2", r"'\(hidden\)'; it must be .* without user"),
    ],
)
def test_an_address_of_a_mirror_that_is_none_is_refused_by_name(
    cache: Path, monkeypatch: pytest.MonkeyPatch, text: str, shown: str
) -> None:
    monkeypatch.setenv("COORDLOG_MAVEN_URL", text)

    with pytest.raises(OptionError, match=f"COORDLOG_MAVEN_URL is {shown}"):
        resolve(JarSet.BROKER)


def test_without_a_mirror_maven_central_is_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COORDLOG_MAVEN_URL", raising=False)

    assert f"{base_url()}/{TWO.path}" == (
        "https://maven.example/maven2/org/b/two_2.13/2.0-M1/two_2.13-2.0-M1.jar"
    )


# Java


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_412"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Da="b"\nopenjdk version "21" 2023-09-19', 21),
        ("command not found", None),
    ],
)
def test_the_version_of_java_is_read(text: str, version: int | None) -> None:
    assert java_version(text) == version


def test_no_java_and_an_old_java_are_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaError, match=r"no `java` on the PATH.*install Java 17 or newer"):
        find_java()

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match=r"does not run.*install Java 17 or newer"):
        find_java()

    (tmp_path / "bin").mkdir()
    old = tmp_path / "bin" / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(JavaError, match="is Java 11; install Java 17 or newer"):
        find_java()


# Errors


@pytest.mark.parametrize(
    "error",
    [
        ChecksumError("org.a:one:1.0", "00", "11"),
        BrokerStartError("it ended", "/tmp/broker.log", ("one", "two")),
        JarsError("what", "next"),
    ],
)
def test_errors_survive_pickle(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert type(copy) is type(error)


def test_the_last_lines_of_a_failed_start_are_shown() -> None:
    error = BrokerStartError("it ended", "/x/broker.log", ("one", "two"))

    assert str(error) == (
        "it ended; its log is /x/broker.log, and the last that it said is:\n    one\n    two"
    )
