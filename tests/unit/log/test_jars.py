"""Which jars are used, and that a cache holds all of them, checked, or none."""

from __future__ import annotations

import hashlib
import pickle
import shutil
import stat
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from coordlog.cli.exit_status import Exit, exit_of
from coordlog.log.broker import jars as jars_module
from coordlog.log.broker import limits as broker_limits
from coordlog.log.broker.folder import start_failure
from coordlog.log.broker.jar_lock import Jar, JarSet, fingerprint, format_lock, locked, parse_lock
from coordlog.log.broker.jars import class_path, install, main, proxy_options, resolve
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


def test_a_jar_of_a_classifier_is_another_one_than_the_main_jar() -> None:
    tests = replace(ONE, classifier="tests")
    sets = {JarSet.BROKER: (ONE, tests), JarSet.SPARK: (TWO,)}

    assert parse_lock(format_lock(sets)) == sets
    assert (tests.file_name, tests.coordinates) == ("one-1.0-tests.jar", "org.a:one:1.0:tests")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("one:1.0 7692", "one:1.0 692"), "line 4"),
        (("[broker]\n", ""), "line 3"),
        (("[spark]", "[broker]"), "is listed twice"),
        (("[spark]", "[shark]"), "shark"),
        (("org.b:two_2.13:2.0-M1", "org.a:one:1.0"), None),
        ((f"org.b:two_2.13:2.0-M1 {TWO_SHA256} 3\n", ""), "no jars of spark"),
        ((" 3\n\n[", f" 3\norg.c:one:1.0 {TWO_SHA256} 3\n["), "one-1.0.jar is listed twice"),
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
    """One entry for each time that Ivy would have been started."""
    counted: list[int] = []

    def fetch(jars: tuple[Jar, ...], target: Path, _fetched: object) -> None:
        counted.append(len(jars))
        good(target)

    monkeypatch.setattr(jars_module, "fetch_with_ivy", fetch)
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


# Ivy, as a program that does what a test wants


def fake_java(folder: Path, script: str) -> None:
    """A `java` in JAVA_HOME that tells version 17, and runs a script else."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    version = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"
    path.write_text(f'#!/bin/sh\nif [ "$1" = -version ]; then {version}; exit; fi\n{script}\n')
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "echo '\tHttpClientHandler: no route url=u'; echo ':: a#b;1: not found'; exit 1",
            r"cannot be reached \(no route\); check the network; behind a proxy set HTTPS_PROXY",
        ),
        ("echo '\t\t:: org.a#one;1.0: not found'; exit 1", r"has no org\.a#one;1\.0"),
        ("echo broken; exit 3", "Ivy failed: broken"),
        ("exit 0", r"org\.a:one:1\.0 was not fetched"),
    ],
)
def test_what_ivy_cannot_do_is_told_in_one_sentence_with_what_to_do(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    fake_java(tmp_path / "java", script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))

    with pytest.raises(JarsError, match=message) as caught:
        resolve(JarSet.BROKER)

    assert "\n" not in str(caught.value)
    assert names(cache / "jars") == [".lock"]


def test_an_ivy_that_hangs_is_ended_at_the_limit(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "java", "exec sleep 60")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setattr(broker_limits, "RESOLVE_LIMIT_S", 0.05)

    with pytest.raises(JarsError, match="0 of 2 jars were fetched within 0 s; check the network"):
        resolve(JarSet.BROKER)

    assert names(cache / "jars") == [".lock"]


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ({}, []),
        (
            {"HTTPS_PROXY": "http://proxy.example:3128"},
            ["-Dhttps.proxyHost=proxy.example", "-Dhttps.proxyPort=3128"],
        ),
        (
            {"https_proxy": "proxy.example:3128"},
            ["-Dhttps.proxyHost=proxy.example", "-Dhttps.proxyPort=3128"],
        ),
        ({"HTTPS_PROXY": "p:1", "JAVA_TOOL_OPTIONS": "-Dhttps.proxyHost=q"}, []),
    ],
)
def test_the_proxy_of_the_environment_is_told_to_java(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], options: list[str]
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "JAVA_TOOL_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert proxy_options() == options


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


def test_a_broker_that_does_not_start_on_a_full_disk_is_out_of_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 512
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))

    error = start_failure(tmp_path, "Java could not be started")

    assert f"Java could not be started: the disk of {tmp_path} is full; make room" in str(error)
    assert exit_of(error) is Exit.NO_SPACE
    free = 1024 * 1024
    assert str(start_failure(tmp_path, "it ended")).startswith("it ended; its log is ")
    assert exit_of(start_failure(tmp_path, "it ended")) is Exit.UNREACHABLE
