"""The file of a driver: one on disk each, who may read it, and which ends it proves."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coordlog.errors import UsageError
from coordlog.log.local import processes
from coordlog.log.local.drafts import draft_of
from coordlog.log.local.processes import find_process, is_alive
from coordlog.spark_integration.driver.driver_file import (
    driver_file_path,
    driver_files,
    end_driver_file,
    forget_former_files,
    former_files,
    read_driver_file,
    sealed,
    write_driver_file,
)
from coordlog.spark_integration.driver.machine import Machine
from coordlog.spark_integration.wire.certificate import Certificate
from coordlog.spark_integration.wire.token import Token
from fakes.driver_files import ENDED_PROCESS, file_of, write_file

TOKEN = Token(bytes(range(32)))
ENDPOINT = "wss://10.0.0.7:40123"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_the_file_of_a_driver_is_read_as_it_was_written(home: Path) -> None:
    file = file_of(ENDPOINT, TOKEN, certificate=Certificate("a certificate\n"))
    assert read_driver_file("ingest", "d1") is None

    path = write_driver_file(file)

    assert path == home / "jobs" / "ingest" / "d1.json"
    assert read_driver_file("ingest", "d1") == file
    assert (file.endpoint, file.listens) == (ENDPOINT, ("10.0.0.7", 40123))
    assert file.process is not None
    assert file.process.pid == os.getpid()
    assert read_driver_file("ingest", "d2") is None
    assert read_driver_file("other", "d1") is None


@pytest.mark.usefixtures("open_umask")
def test_only_the_user_can_read_it_whatever_the_umask_is(home: Path) -> None:
    path = write_driver_file(file_of(ENDPOINT, TOKEN))

    assert mode(path) == 0o600
    assert [mode(one) for one in (home, home / "jobs", path.parent)] == [0o700] * 3
    assert list(path.parent.iterdir()) == [path]


def test_the_home_keeps_its_mode_and_the_folders_below_are_closed(home: Path) -> None:
    """It may be the root of a volume, which is another user's and serves others too."""
    (home / "jobs" / "ingest").mkdir(parents=True)
    for one in (home, home / "jobs", home / "jobs" / "ingest"):
        one.chmod(0o2775)

    write_driver_file(file_of(ENDPOINT, TOKEN))

    assert mode(home) == 0o2775
    assert [mode(one) & 0o777 for one in (home / "jobs", home / "jobs" / "ingest")] == [0o700] * 2


def test_content_and_names_are_on_disk_before_it_returns(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is: a power cut must not leave a driver in force whose file is empty."""
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    path = write_driver_file(file_of(ENDPOINT, TOKEN))

    assert synced[0].startswith(str(path.parent / f".{path.name}."))
    assert synced[1:] == [str(path.parent), str(home / "jobs"), str(home)]


def test_a_write_that_fails_leaves_what_was_there(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(ENDPOINT, TOKEN)
    path = write_driver_file(file)

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "no space left")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_driver_file(replace(file, token=Token.new()))
    end_driver_file(file)  # is only logged

    assert read_driver_file("ingest", "d1") == file
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"job_id": "ingest"}', "null", "\0" * 700])
def test_a_file_that_was_cut_short_is_none(home: Path, content: str) -> None:
    write_driver_file(file_of(ENDPOINT, TOKEN)).write_text(content)

    assert read_driver_file("ingest", "d1") is None
    assert driver_files("ingest") == ()


def test_a_file_of_a_newer_version_is_read(home: Path) -> None:
    path = write_driver_file(file_of(ENDPOINT, TOKEN))
    path.write_text(json.dumps(sealed({**json.loads(path.read_text()), "of_a_newer_version": [1]})))

    assert read_driver_file("ingest", "d1") == file_of(ENDPOINT, TOKEN)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", 2),
        ("version", None),
        ("pid", -1),
        ("pid", True),
        ("pid", "1"),
        ("pid", math.inf),
        ("process_started", None),
        ("boot_id", None),
        ("machine_id", 5),
        ("is_ended", "true"),
        ("is_ended", 1),
        ("listens", ["127.0.0.1", 99_999_999]),
        ("listens", ["127.0.0.1", math.inf]),
        ("listens", ["127.0.0.1"]),
        ("token", 5),
        ("certificate", 5),
    ],
)
def test_a_field_of_another_type_or_version_proves_nothing(
    home: Path, field: str, value: object
) -> None:
    """Each of them, made to fit, would be a process that has ended or a machine that was restarted."""
    path = write_driver_file(file_of(ENDPOINT, TOKEN))
    path.write_text(json.dumps(sealed({**json.loads(path.read_text()), field: value})))

    assert read_driver_file("ingest", "d1") is None


@pytest.mark.slow
def test_no_changed_bit_proves_the_end_of_a_live_driver(home: Path) -> None:
    """A changed bit leaves the fields as they are, or makes the file none."""
    file = file_of(ENDPOINT, TOKEN)
    path = write_driver_file(file)
    written = path.read_bytes()

    for bit in range(0, 8 * len(written), 7):  # of each byte one or two, each of the eight alike
        changed = bytearray(written)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        assert read_driver_file("ingest", "d1") in {None, file}, f"bit {bit}"


def test_a_file_without_a_checksum_proves_nothing(home: Path) -> None:
    path = write_driver_file(file_of(ENDPOINT, TOKEN))
    fields = json.loads(path.read_text())
    del fields["sha256"]
    path.write_text(json.dumps(fields))

    assert read_driver_file("ingest", "d1") is None


@pytest.mark.kill
def test_the_next_writer_removes_the_draft_of_a_killed_one(home: Path) -> None:
    """And leaves that of a live one."""
    before = file_of(ENDPOINT, TOKEN, driver_id="d0")
    path = write_driver_file(before)
    live, (reads, writes) = path.with_name("d0.json"), os.pipe()
    with draft_of(live) as (draft, _):
        if (child := os.fork()) == 0:
            with draft_of(path, mode=0o600) as (_, stream):
                stream.write(b"half")
                stream.flush()
                os.write(writes, b".")
                signal.pause()
        os.read(reads, 1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert len(list(path.parent.iterdir())) == 3

        own = write_driver_file(file_of(ENDPOINT, TOKEN))

        assert set(path.parent.iterdir()) == {path, draft, own}
        assert read_driver_file("ingest", "d0") == before
    assert set(path.parent.iterdir()) == {path, own}
    os.close(reads)
    os.close(writes)


@pytest.mark.parametrize("content", ["[" * 60_000, '{"a":' * 10_000])
def test_a_file_nested_without_end_is_none(home: Path, content: str) -> None:
    write_driver_file(file_of(ENDPOINT, TOKEN)).write_text(content)

    assert read_driver_file("ingest", "d1") is None


def test_a_pipe_under_its_name_is_none_and_is_not_waited_for(home: Path) -> None:
    path = write_driver_file(file_of(ENDPOINT, TOKEN))
    path.unlink()
    os.mkfifo(path)

    assert read_driver_file("ingest", "d1") is None
    assert driver_files("ingest") == ()


def test_the_file_of_another_user_proves_no_end(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home may be a folder to which others write."""
    file = file_of(ENDPOINT, TOKEN)
    write_driver_file(file)
    end_driver_file(file)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)

    foreign = read_driver_file("ingest", "d1")

    assert foreign is not None
    assert foreign.why_over is None


def test_a_system_without_a_boot_id_has_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in sandboxes: the driver starts there too."""
    monkeypatch.setattr(processes, "_BOOT_ID", tmp_path / "none")
    processes._boot_id.cache_clear()
    try:
        process = find_process(os.getpid())

        assert process is not None
        assert is_alive(process)
    finally:
        processes._boot_id.cache_clear()


def test_a_file_under_another_drivers_name_is_none(home: Path) -> None:
    path = write_driver_file(file_of(ENDPOINT, TOKEN))
    path.rename(path.with_name("d2.json"))

    assert read_driver_file("ingest", "d2") is None


@pytest.mark.parametrize("driver_id", ["../other/d1", "", ".", "d1/../d2", "a\0b", "x" * 101])
def test_an_id_from_a_record_leads_out_of_no_folder(home: Path, driver_id: str) -> None:
    with pytest.raises(UsageError, match="no id of a driver"):
        driver_file_path("ingest", driver_id)
    assert read_driver_file("ingest", driver_id) is None
    assert read_driver_file("../ingest", "d1") is None


def proof(**changed: object) -> str | None:
    file = file_of(ENDPOINT, TOKEN)
    machine = replace(file.machine, **changed)  # type: ignore[arg-type]
    return replace(file, machine=machine, process=ENDED_PROCESS).why_over


def test_a_process_that_ended_on_this_run_of_this_machine_proves_the_end() -> None:
    assert proof() == f"its process {ENDED_PROCESS.pid} has ended"
    assert file_of(ENDPOINT, TOKEN).why_over is None, "this process"
    assert replace(file_of(ENDPOINT, TOKEN), process=None).why_over is None


def test_a_process_that_cannot_be_looked_up_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command with too many open files must not take a live driver for one that has ended."""
    file = file_of(ENDPOINT, TOKEN)

    def no_descriptor_left(*_args: object, **_options: object) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Path, "read_text", no_descriptor_left)
    assert file.why_over is None


def test_a_process_number_of_another_machine_or_container_proves_nothing() -> None:
    """It counts there, and names nothing, or another process, here."""
    assert proof(boot_id="another run", machine_id="another machine") is None
    assert proof(machine_id="a clone with its own id") is None
    assert proof(namespaces="pid:[4026532999] net:[4026532998]") is None
    assert proof(boot_id="") is None


def test_a_machine_that_was_restarted_proves_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Machine(
        host="m1", machine_id="a", boot_id="2", namespaces="pid:[4026531836] net:[4026531833]"
    )
    before = replace(now, boot_id="1")
    assert before.has_restarted_as(now)
    assert not now.has_restarted_as(now)
    assert not replace(before, host="m2").has_restarted_as(now), "an id that was cloned"
    assert not replace(before, machine_id="").has_restarted_as(replace(now, machine_id=""))
    contained = "pid:[4026532999] net:[4026532998]"
    assert not replace(before, namespaces=contained).has_restarted_as(now), "an image's id"

    monkeypatch.setattr(Machine, "here", lambda: now)
    file = replace(file_of(ENDPOINT, TOKEN), machine=before)
    assert file.why_over == "its machine m1 has been restarted since"


def test_a_file_records_the_end_of_its_driver_and_leaves_no_token(home: Path) -> None:
    file = file_of(ENDPOINT, TOKEN)
    path = write_driver_file(file)

    end_driver_file(file)

    ended = read_driver_file("ingest", "d1")
    assert ended is not None
    assert (ended.token, ended.why_over) == (None, "its file records its end")
    assert TOKEN.text() not in path.read_text()


@pytest.mark.clause("K2")
@pytest.mark.parametrize("clock_s", [10, -10], ids=["a clock that goes on", "one that goes back"])
def test_only_files_of_drivers_that_were_over_before_it_began_are_removed(
    home: Path, clock_s: int
) -> None:
    """A driver that stood still may remove late: what a newer driver needs stays."""
    killed = write_file(ENDPOINT, TOKEN, driver_id="killed", process=ENDED_PROCESS)
    ended = write_file(ENDPOINT, TOKEN, driver_id="ended")
    end_driver_file(ended)
    alive = write_file(ENDPOINT, TOKEN, driver_id="alive")
    former = former_files("ingest")
    late = write_file(ENDPOINT, TOKEN, driver_id="late")
    newer = write_file(ENDPOINT, TOKEN, driver_id="newer")
    end_driver_file(newer)
    for count, file in enumerate((killed, ended, alive, late, newer), start=1):
        second = 1_000 + clock_s * count
        os.utime(driver_file_path(file.job_id, file.driver_id), (second, second))

    forget_former_files(former)

    names = {file.driver_id for file in driver_files("ingest")}
    assert names == {"newer", "late", "alive"}


def test_a_full_disk_is_named_with_the_driver_s_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system names no file in an error of a write."""

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as raised:
        write_driver_file(file_of(ENDPOINT, TOKEN))
    assert str(raised.value.filename).startswith(str(home))
