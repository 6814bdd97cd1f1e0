"""A few rounds of jobs whose brokers break. `make chaos` runs more, and every fault."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from chaos.disk import NoDiskError, SmallDisk
from chaos.faults import OF_ONE_BROKER, OF_THREE_BROKERS, Fault
from chaos.ground import Ground, single_broker, three_brokers
from chaos.proxy import Proxy
from chaos.rounds import Report, faults_on, run_round


def rounds(
    make: Callable[[], AbstractContextManager[Ground]],
    faults: tuple[Fault, ...],
    seed: int,
    count: int,
    root: Path,
    first: str = "",
) -> Report:
    report = Report()
    with make() as ground:
        possible = faults_on(ground, faults)
        chosen = random.Random(seed).sample(possible, min(count, len(possible)))
        # Where it can be tried, on a broker that was formatted a moment ago.
        always = [one for one in possible if one.name == first]
        chosen = [*always, *(one for one in chosen if one not in always)]
        for each, fault in enumerate(chosen, start=seed):
            folder = root / str(each)
            folder.mkdir()
            try:
                run_round(each, fault, ground, folder, report)
            except BaseException:
                print(f"{fault.name}; to repeat this round:")
                print(f"make chaos ARGS='--minutes 0 --seed {each} --only \"{fault.name}\"'")
                raise
    assert sum(report.rounds.values()) == len(chosen)
    return report


@pytest.mark.kafka
@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.clause("K4")
@pytest.mark.clause("K5")
def test_whatever_happens_to_the_broker_nothing_is_lost_or_doubled(
    seed: int, dose: int, tmp_path: Path
) -> None:
    report = rounds(single_broker, OF_ONE_BROKER, seed, 2 * dose, tmp_path, "machine crash")

    assert (report.lost, report.twice) == (0, 0)


@pytest.mark.kafka
@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.clause("K4")
def test_whatever_happens_to_one_or_two_of_three_brokers_nothing_is_lost_or_doubled(
    seed: int, dose: int, tmp_path: Path
) -> None:
    report = rounds(three_brokers, OF_THREE_BROKERS, seed, dose, tmp_path)

    assert (report.lost, report.twice) == (0, 0)


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
