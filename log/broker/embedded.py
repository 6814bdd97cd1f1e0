"""A real Kafka broker for one process: for tests, and for trying things out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path

from coordlog.log.broker import limits
from coordlog.log.broker.guard import LOCK_FILE
from coordlog.log.broker.process import (
    StartOptions,
    end_guard,
    kill_broker,
    start_broker,
    stop_broker,
)
from coordlog.log.broker.state import BrokerState, running_state
from coordlog.log.local.environment_errors import BrokerBusyError
from coordlog.log.local.file_lock import file_lock
from coordlog.log.local.paths import private_folder
from coordlog.log.local.processes import is_alive, wait_until_gone

__all__ = ["EmbeddedBroker", "embedded_broker"]


class EmbeddedBroker:
    """A running single-node broker on the loopback interface; created by `embedded_broker`.

    Not for several threads at once. After `kill` or `terminate` only `restart` starts it again, with
    the same data, on the same port.
    """

    def __init__(self, folder: Path, options: StartOptions) -> None:
        self._folder = folder
        self._options = options
        self._started = start_broker(folder, options)

    @property
    def port(self) -> int:
        """Port of the broker; the same after a restart."""
        return self._state.port

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients."""
        return self._state.bootstrap_servers

    @property
    def pid(self) -> int:
        """The broker's own process, of the last start."""
        return self._state.java.pid

    @property
    def folder(self) -> Path:
        """Folder of its data, its settings and its log."""
        return self._folder

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return is_alive(self._state.java)

    def kill(self) -> None:
        """End it by SIGKILL; returns when it is gone. Acknowledged records stay."""
        kill_broker(self._state)
        self._drop_guard()

    def terminate(self, *, limit_s: float = limits.STOP_LIMIT_S) -> None:
        """End it in order; returns when it is gone, after SIGKILL if it takes longer than `limit_s`."""
        stop_broker(self._state, limit_s=limit_s)
        self._drop_guard()

    def restart(self) -> None:
        """Start it again, on the same data and port; ends it first if it runs."""
        self.terminate()
        options = dataclasses.replace(self._options, port=self.port, port_is_fixed=True)
        self._started = start_broker(self._folder, options)

    @property
    def _state(self) -> BrokerState:
        return self._started.state

    def _drop_guard(self) -> None:
        assert self._started.guard is not None
        end_guard(self._started.guard)


@contextlib.contextmanager
def embedded_broker(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
    start_limit_s: float = limits.START_LIMIT_S,
) -> Generator[EmbeddedBroker, None, None]:
    """Run a private broker for the block; it ends with the block, or with this process.

    It listens on 127.0.0.1 only and requires no password.

    Args:
        data_dir: Folder in which its data stay; default: a temporary folder, which is removed.
        port: Port on which it must listen; default: any free port.
        settings: Settings of the broker, which override those that make it small.
        start_limit_s: How long its start may take, in seconds.

    Raises:
        BrokerStartError: The broker did not start; with the end of its log.
        BrokerBusyError: Another broker uses `data_dir`.
        EnvironmentSetupError: No Java, no jars, a port that is taken.
    """
    with contextlib.ExitStack() as stack:
        if data_dir is None:
            temporary = tempfile.TemporaryDirectory(
                prefix="coordlog-broker-", ignore_cleanup_errors=True
            )
            folder = Path(stack.enter_context(temporary))
        else:
            folder = private_folder(Path(data_dir).absolute())
            limit_s = limits.STOP_LIMIT_S  # a broker whose process was killed may be about to end
            busy = functools.partial(_busy, folder)
            stack.enter_context(file_lock(folder / LOCK_FILE, limit_s=limit_s, busy=busy))
            left = running_state(folder)
            if left is not None and not wait_until_gone(left.java, limit_s):
                raise _busy(folder, f"the broker of process {left.java.pid}")
        options = StartOptions(
            port=port,
            port_is_fixed=port is not None,
            settings=settings or {},
            follow=True,
            delete=data_dir is None,
            limit_s=start_limit_s,
        )
        broker = EmbeddedBroker(folder, options)
        try:
            yield broker
        finally:
            broker.terminate()


def _busy(folder: Path, holder: str) -> BrokerBusyError:
    return BrokerBusyError(f"{holder} uses {folder}", "choose another data_dir, or end that one")
