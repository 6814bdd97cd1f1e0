"""A standalone Spark cluster on this machine, from the pip-installed Spark, and `spark-submit` to it.

A master and workers are processes of their own; each worker has a loopback address of its own,
because Spark runs a speculative copy on another host only. All of them carry a tag in their
environment, which executors inherit; nothing without it is ever killed. Knows nothing of what is run.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

import pyspark

__all__ = ["Executor", "SparkCluster", "Submission", "wait_for"]

T = TypeVar("T")

SPARK_HOME: Final = Path(pyspark.__file__).parent
_TAG: Final = "SPARK_CLUSTER_TAG"
_WAIT_S: Final = 90.0
_GONE_S: Final = 30.0
_OUTPUT_CHARS: Final = 8000
_QUICK_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# They end with the process that has started them, whatever ends that.
_BOUND: Final = ("setpriv", "--pdeathsig", "KILL", "--")


def wait_for(look: Callable[[], T], what: str, limit_s: float = _WAIT_S) -> T:
    """What `look` gives once that is true; an AssertionError after the limit."""
    deadline = time.monotonic() + limit_s
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """A JVM in which tasks run."""

    pid: int
    host: str
    app_id: str


class SparkCluster:
    """A master and workers, for a `with` block.

    Args:
        folder: For their logs and their work; emptied by nobody.
        workers: How many; number n is at 127.0.0.n, from 1 on.
        cores: Of each: so many tasks run on it at once.
    """

    def __init__(self, folder: Path, *, workers: int = 2, cores: int = 3) -> None:
        self.folder, self.cores = folder, cores
        self.master_url = ""
        self._tag = secrets.token_hex(8)
        self._worker_count = workers
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._submissions: list[Submission] = []

    def __enter__(self) -> Self:
        """Start all, and wait until the workers have registered."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._master = self._start(
                "master", "Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
            )
            self.master_url = wait_for(
                lambda: self._said("master", r"Starting Spark master at (spark://\S+)"),
                "the master starts",
            )
            for number in range(1, self._worker_count + 1):
                self.start_worker(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End all of it, and whatever still carries its tag."""
        for submission in self._submissions:
            submission.kill()
        for process in (*self._workers.values(), self._master):
            if process is not None:
                process.kill()
                process.wait(_GONE_S)
        for pid in self._tagged():
            _kill(pid, signal.SIGKILL)
        wait_for(lambda: not self._tagged(), "the cluster's processes are gone", _GONE_S)

    def start_worker(self, number: int) -> None:
        """Start worker `number`, which must not run; returns once the master has it."""
        registered = self._registered(number)
        self._workers[number] = self._start(
            f"worker-{number}",
            *("Worker", "--host", f"127.0.0.{number}", "--port", "0", "--webui-port", "0"),
            *("--cores", str(self.cores), "--memory", "2g"),
            *("--work-dir", str(self.folder / f"work-{number}"), self.master_url),
        )
        wait_for(lambda: self._registered(number) > registered, f"worker {number} registers")

    def stop_worker(self, number: int) -> None:
        """Stop a worker as an operator does, by SIGTERM; its executors end with it."""
        process = self._workers.pop(number)
        process.terminate()
        process.wait(_GONE_S)

    def executors(self, app_id: str | None = None) -> list[Executor]:
        """Those that run, sorted by host."""
        found = []
        for pid in self._tagged():
            words = _command(pid)
            if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in words:
                host, app = _after(words, "--hostname"), _after(words, "--app-id")
                if app_id in (None, app):
                    found.append(Executor(pid=pid, host=host, app_id=app))
        return sorted(found, key=lambda one: (one.host, one.pid))

    def kill_executor(self, executor: Executor) -> None:
        """End an executor's JVM by SIGKILL, once it is seen to be this cluster's."""
        assert executor in self.executors(), f"{executor} is none of this cluster's"
        os.kill(executor.pid, signal.SIGKILL)

    def shown(self) -> bytes:
        """What `ps` shows of its processes, those of submissions too: command lines, environments."""
        names = ("cmdline", "environ")
        return b"\n".join(_read(pid, name) for pid in self._tagged() for name in names)

    def submit(
        self,
        script: Path,
        *arguments: str,
        python: Path,
        py_files: Sequence[Path] = (),
        conf: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Submission:
        """Start `spark-submit` in client mode, on an interpreter for driver and executors."""
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.pyspark.python": str(python),
            "spark.pyspark.driver.python": str(python),
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": _QUICK_JVM,
            "spark.executor.extraJavaOptions": _QUICK_JVM,
            **(conf or {}),
        }
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.master_url]
        for name, value in sorted(settings.items()):
            command += ["--conf", f"{name}={value}"]
        if py_files:
            command += ["--py-files", ",".join(map(str, py_files))]
        log = self.folder / f"submission-{len(self._submissions)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*_BOUND, *command, str(script), *arguments],
                env={**self._environment(), "PYTHONUNBUFFERED": "1", **(environment or {})},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        submission = Submission(process, log, self._tag)
        self._submissions.append(submission)
        return submission

    def _start(self, name: str, role: str, *arguments: str) -> subprocess.Popen[bytes]:
        wanted = f"org.apache.spark.deploy.{role.lower()}.{role}"
        with (self.folder / f"{name}.log").open("ab") as output:
            return subprocess.Popen(
                [*_BOUND, str(SPARK_HOME / "bin" / "spark-class"), wanted, *arguments],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        # Neither this interpreter nor what stands on its path: an executor has what was shipped to it.
        dropped = {"PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_SUBMIT_ARGS"}
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        return {
            **kept,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _QUICK_JVM,
            _TAG: self._tag,
        }

    def _said(self, name: str, pattern: str) -> str:
        found = re.search(pattern, (self.folder / f"{name}.log").read_text("utf-8", "replace"))
        return found[1] if found else ""

    def _registered(self, number: int) -> int:
        text = (self.folder / "master.log").read_text("utf-8", "replace")
        return len(re.findall(rf"Registering worker 127\.0\.0\.{number}:", text))

    def _tagged(self) -> list[int]:
        return _pids_with(f"{_TAG}={self._tag}")


class Submission:
    """One run of `spark-submit`: a JVM, and the driver's Python below it."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, tag: str) -> None:
        self._process, self._log, self._tag = process, log, tag

    @property
    def output(self) -> str:
        """What both have printed until now."""
        return self._log.read_text("utf-8", "replace")

    @property
    def has_ended(self) -> bool:
        """Whether the JVM is gone."""
        return self._process.poll() is not None

    @property
    def jvm_pid(self) -> int:
        """The JVM's."""
        return self._process.pid

    def wait(self, limit_s: float) -> int:
        """Its exit status. Raises AssertionError, with the end of its output, after the limit."""
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(
                f"it has not ended within {limit_s:g} s:\n{self.output[-_OUTPUT_CHARS:]}"
            ) from error

    def kill_jvm(self) -> None:
        """End the JVM alone by SIGKILL."""
        self._process.kill()
        self._process.wait(_GONE_S)

    def kill(self) -> None:
        """End JVM and Python by SIGKILL, and wait until both are gone."""
        for pid in self.pids():
            _kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait(_GONE_S)
        wait_for(lambda: not self.pids(), "the driver is gone", _GONE_S)

    def pids(self) -> list[int]:
        """The processes of its session that are left."""
        return [pid for pid in _pids_with(f"{_TAG}={self._tag}") if _session(pid) == self.jvm_pid]


def _pids_with(setting: str) -> list[int]:
    wanted = setting.encode()
    pids = (int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal())
    return sorted(pid for pid in pids if wanted in _read(pid, "environ").split(b"\0"))


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _command(pid: int) -> list[str]:
    return _read(pid, "cmdline").decode("utf-8", "replace").split("\0")


def _after(words: Sequence[str], name: str) -> str:
    return words[words.index(name) + 1] if name in words[:-1] else ""


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
