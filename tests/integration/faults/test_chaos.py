"""Jobs whose brokers break: each fault once on one broker, some on three. `make chaos` runs more, and every fault."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.disk import NoDiskError, SmallDisk
from chaos.faults import OF_ONE_BROKER, OF_THREE_BROKERS, Fault
from chaos.ground import Ground, single_broker, three_brokers
from chaos.proxy import Proxy
from chaos.rounds import Report, faults_on, repeating, run_round

_ON_ONE_OF_ALL = [one for one in OF_ONE_BROKER if one.name != "machine crash"]
_OF_THREE = [
    one for one in OF_THREE_BROKERS if one.name in {"leader killed", "two of three down and back"}
]


@pytest.fixture(scope="module")
def one_broker() -> Iterator[Ground]:
    """For all faults on one but the crash of its machine: each round has a job of its own."""
    with single_broker() as ground:
        yield ground


@pytest.fixture(scope="module")
def of_three() -> Iterator[Ground]:
    with three_brokers() as ground:
        yield ground


def rounds(fault: Fault, ground: Ground, seed: int, count: int, root: Path) -> None:
    """So many rounds of it, in which nothing is lost or doubled."""
    if fault not in faults_on(ground, [fault]):
        pytest.skip(f"{fault.name}: no small disk: {ground.why_no_disk}")
    report = Report()
    for each in range(seed, seed + count):
        folder = root / str(each)
        folder.mkdir()
        try:
            run_round(each, fault, ground, folder, report)
        except BaseException:
            print(f"{fault.name}; to repeat this round:\n{repeating(each, fault, ground)}")
            raise
    assert sum(report.rounds.values()) == count
    assert (report.lost, report.twice) == (0, 0)


@pytest.mark.kafka
@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.clause("K1")
@pytest.mark.clause("K4")
@pytest.mark.clause("K5")
@pytest.mark.parametrize("fault", _ON_ONE_OF_ALL, ids=lambda fault: fault.name)
def test_whatever_happens_to_the_broker_nothing_is_lost_or_doubled(
    seed: int, dose: int, one_broker: Ground, tmp_path: Path, fault: Fault
) -> None:
    rounds(fault, one_broker, seed, dose, tmp_path)


@pytest.mark.kafka
@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.clause("K1")
@pytest.mark.clause("K4")
@pytest.mark.clause("K5")
def test_a_crash_soon_after_formatting_a_broker_loses_and_doubles_nothing(
    seed: int, dose: int, tmp_path: Path
) -> None:
    (fault,) = [one for one in OF_ONE_BROKER if one not in _ON_ONE_OF_ALL]
    with single_broker() as fresh:
        rounds(fault, fresh, seed, dose, tmp_path)


@pytest.mark.kafka
@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.clause("K1")
@pytest.mark.clause("K4")
@pytest.mark.parametrize("fault", _OF_THREE, ids=lambda fault: fault.name)
def test_faults_of_one_or_two_of_three_brokers_lose_and_double_nothing(
    seed: int, dose: int, of_three: Ground, tmp_path: Path, fault: Fault
) -> None:
    rounds(fault, of_three, seed, dose, tmp_path)


def test_a_disk_that_is_cut_back_has_what_was_flushed_and_can_be_full(tmp_path: Path) -> None:
    try:
        disk = SmallDisk(tmp_path)
    except NoDiskError as error:
        pytest.skip(f"no small disk: {error}")
    try:
        flushed, written = disk.path / "flushed", disk.path / "written"
        with flushed.open("wb") as file:
            file.write(b"x" * 5000)
            file.flush()
            os.fsync(file.fileno())
        written.write_bytes(b"x" * 5000)

        disk.put_in_place(disk.copy())
        assert flushed.read_bytes() == b"x" * 5000
        assert not written.exists() or written.stat().st_size == 0

        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            written.write_bytes(b"x" * 5000)
        disk.free()
        written.write_bytes(b"x" * 5000)
    finally:
        disk.close()


@pytest.mark.slow
def test_what_goes_through_the_proxy_is_passed_on_held_or_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, Proxy() as proxy:
        proxy.target_port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", proxy.port), 10) as client:
            there, _ = server.accept()
            there.settimeout(10)
            client.sendall(b"a")
            assert there.recv(1) == b"a"

            proxy.half_open()
            client.sendall(b"b")
            there.settimeout(0.3)
            with pytest.raises(TimeoutError):
                there.recv(1)
            proxy.heal()
            there.settimeout(10)
            assert is_ended(there)
            there.close()
        with socket.create_connection(("127.0.0.1", proxy.port), 10) as client:
            there, _ = server.accept()
            there.settimeout(10)
            client.sendall(b"a")
            assert there.recv(1) == b"a"
            proxy.cut()
            assert is_ended(client)
            there.close()


def is_ended(one: socket.socket) -> bool:
    """Reset, or in order; within the socket's own limit."""
    with contextlib.suppress(ConnectionResetError):
        while one.recv(1):
            pass
    return True
