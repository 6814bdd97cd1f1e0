"""A real Kafka broker that belongs to this process: for tests and experiments."""

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

    Not safe for several threads. After `kill` or `terminate` only `restart` starts it again.
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
        """Process id of the broker's JVM; another one after a restart."""
        return self._state.java.pid

    @property
    def folder(self) -> Path:
        """Folder of data, settings and the broker's own log."""
        return self._folder

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return is_alive(self._state.java)

    def kill(self) -> None:
        """Kill the broker by SIGKILL and wait for its end. Acknowledged records stay."""
        kill_broker(self._state)
        self._drop_guard()

    def terminate(self, *, limit_s: float = limits.STOP_LIMIT_S) -> None:
        """Stop the broker in order and wait for its end; after `limit_s` seconds kill it."""
        stop_broker(self._state, limit_s=limit_s)
        self._drop_guard()

    def restart(self) -> None:
        """Terminate the broker if it runs, then start it with the same data and port."""
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
    """Run a broker until the block or this process ends. It listens on 127.0.0.1 only and requires no password.

    Args:
        data_dir: Folder for the data, which stay; None for a temporary folder, which is removed.
        port: Port to listen on; None for any free one.
        settings: Broker settings; they override coordlog's own, which keep the broker small.
        start_limit_s: Longest time of the start, in seconds.

    Raises:
        BrokerStartError: The broker did not start; the message has the end of its log.
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
            limit_s = limits.STOP_LIMIT_S  # the broker of a killed process may still be ending
            busy = functools.partial(_busy, folder)
            stack.enter_context(file_lock(folder / LOCK_FILE, limit_s=limit_s, busy=busy))
            previous = running_state(folder)
            if previous is not None and not wait_until_gone(previous.java, limit_s):
                raise _busy(folder, f"the broker of process {previous.java.pid}")
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
    return BrokerBusyError(
        f"{holder} uses {folder}", "choose another data_dir, or end that process"
    )
