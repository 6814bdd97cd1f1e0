"""The file of a driver: its address for clients of this user, and the proof of its end.

One file for each driver, `COORDLOG_HOME/jobs/JOB/DRIVER.json`, mode 0600. It is on disk before the
driver appends any record, so that the driver of the epoch in force has a file on the machine where it
ran. Its name is the driver's id, which `EPOCH_STARTED` contains. A driver that ends in order marks its
file as ended, and removes its token from it.
A checksum covers all fields: a changed bit could otherwise turn a process number into that of an ended process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from coordlog.errors import EnvironmentSetupError, OptionError, UsageError
from coordlog.log.job_id import check_job_id
from coordlog.log.local.drafts import draft_of, remove_drafts
from coordlog.log.local.fsync import naming, open_plain, sync_path
from coordlog.log.local.paths import home_folder, private_folder
from coordlog.log.local.processes import Process, find_process, is_alive
from coordlog.spark_integration.driver.machine import Machine
from coordlog.spark_integration.wire.certificate import Certificate
from coordlog.spark_integration.wire.token import Token

__all__ = [
    "DriverFile",
    "driver_file_path",
    "driver_files",
    "end_driver_file",
    "forget_former_files",
    "former_files",
    "job_folder",
    "read_driver_file",
    "sealed",
    "write_driver_file",
]

_log = logging.getLogger(__name__)

_DRIVER_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_SUFFIX: Final = ".json"
_NAMES: Final = rf"{_DRIVER_ID.pattern}\.json"
_CHECKSUM: Final = "sha256"
_BYTES_MAX: Final = 64 * 1024
_VERSION: Final = 1
"""Version of the format: increased if a field changes its meaning, not for a new field."""
_PID_MAX: Final = 2**31 - 1
_PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFile:
    """Content of a driver's file."""

    job_id: str
    driver_id: str
    endpoint: str
    """Address for tasks and clients, as in `EPOCH_STARTED`."""
    listens: tuple[str, int]
    """Address and port to which the endpoint is bound on its machine."""
    token: Token | None
    """None once the driver has ended."""
    certificate: Certificate | None = None
    """Certificate of the endpoint, or None if it is not encrypted."""
    machine: Machine
    process: Process | None
    """Process of the driver, or None if its system does not report the start times of processes."""
    is_ended: bool = False
    """Whether the driver, as its last step, has recorded its end."""
    is_of_this_user: bool = True
    """Whether this user owns the file. Another user's file is no proof: any user with access to the folder may
    have written it."""

    @classmethod
    def of_this_process(
        cls,
        *,
        job_id: str,
        driver_id: str,
        endpoint: str,
        listens: tuple[str, int],
        token: Token,
        certificate: Certificate | None = None,
    ) -> DriverFile:
        """File of a driver that runs in this process."""
        return cls(
            job_id=job_id,
            driver_id=driver_id,
            endpoint=endpoint,
            listens=listens,
            token=token,
            certificate=certificate,
            machine=Machine.here(),
            process=find_process(os.getpid()),
        )

    @property
    def why_over(self) -> str | None:
        """Proof that the driver has ended, without a connection to it; None if there is none."""
        if not self.is_of_this_user:
            return None
        if self.is_ended:
            return "its file records its end"
        here = Machine.here()
        if self.machine.has_restarted_as(here):
            return f"its machine {here.host} has been restarted since"
        if not self.machine.is_same_run(here) or self.process is None:
            return None
        try:
            return None if is_alive(self.process) else f"its process {self.process.pid} has ended"
        except OSError:
            return None  # not known


def job_folder(job_id: str) -> Path:
    """Folder of a job on this machine; it may not exist yet."""
    return home_folder() / "jobs" / job_id


def driver_file_path(job_id: str, driver_id: str) -> Path:
    """Path of a driver's file.

    Raises:
        UsageError: One of the ids cannot be that of a job or a driver: records may hold anything.
    """
    check_job_id(job_id)
    if not _DRIVER_ID.fullmatch(driver_id):
        raise UsageError(f"{driver_id!r:.120} is no id of a driver: letters, digits, _ and -")
    return job_folder(job_id) / f"{driver_id}{_SUFFIX}"


def write_driver_file(file: DriverFile) -> Path:
    """Write the file durably, name and content, in folders of this user only; returns its path.

    Raises:
        EnvironmentSetupError: A folder is another user's.
        OSError: The file cannot be written.
    """
    path = driver_file_path(file.job_id, file.driver_id)
    for folder in (home_folder(), path.parent.parent, path.parent):
        private_folder(folder)
    remove_drafts(path.parent, _NAMES)
    with naming(path), draft_of(path, mode=0o600) as (draft, stream):
        stream.write(json.dumps(sealed(_fields(file)), indent=1).encode())
        stream.flush()
        os.fsync(stream.fileno())
        draft.replace(path)
    for folder in (path.parent, path.parent.parent, path.parent.parent.parent):
        sync_path(folder)
    return path


def end_driver_file(file: DriverFile) -> None:
    """Record in the file that its driver has ended. The driver's last step; errors of writing are only logged."""
    try:
        write_driver_file(replace(file, token=None, is_ended=True))
    except (OSError, EnvironmentSetupError) as error:
        _log.warning("job=%s the driver's file stays as it was: %s", file.job_id, error)


def read_driver_file(job_id: str, driver_id: str) -> DriverFile | None:
    """File of this driver on this machine; None if it is missing or cannot be read."""
    try:
        path = driver_file_path(job_id, driver_id)
    except UsageError:
        return None
    file = _read(path)
    return (
        file if file is not None and (file.job_id, file.driver_id) == (job_id, driver_id) else None
    )


def driver_files(job_id: str) -> tuple[DriverFile, ...]:
    """Files of the job's drivers on this machine, the newest first."""
    files = [(_mtime_ns(path), _read(path)) for path in _paths(job_id)]
    return tuple(file for _, file in sorted(files, key=lambda pair: -pair[0]) if file is not None)


def former_files(job_id: str) -> tuple[Path, ...]:
    """Files of the job's drivers that have ended. A driver lists them before it writes its own file.

    The file of a newer driver is never among them, whatever the clocks say: a driver that was suspended removes no
    newer file.
    """
    files = ((path, _read(path)) for path in _paths(job_id))
    return tuple(path for path, file in files if file is not None and file.why_over is not None)


def forget_former_files(paths: Iterable[Path]) -> None:
    """Remove the files that `former_files` has returned. For a driver whose epoch is or was in force."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def _paths(job_id: str) -> list[Path]:
    try:
        names = sorted(job_folder(job_id).iterdir())
    except OSError:
        return []
    return [path for path in names if path.suffix == _SUFFIX and not path.name.startswith(".")]


def _mtime_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _fields(file: DriverFile) -> Mapping[str, object]:
    process, machine = file.process, file.machine
    return {
        "version": _VERSION,
        "job_id": file.job_id,
        "driver_id": file.driver_id,
        "endpoint": file.endpoint,
        "listens": list(file.listens),
        "token": None if file.token is None else file.token.text(),
        "certificate": None if file.certificate is None else file.certificate.pem,
        "host": machine.host,
        "machine_id": machine.machine_id,
        "boot_id": machine.boot_id,
        "namespaces": machine.namespaces,
        "pid": None if process is None else process.pid,
        "process_started": None if process is None else process.born,
        "is_ended": file.is_ended,
    }


def sealed(fields: Mapping[str, object]) -> Mapping[str, object]:
    """The fields with their checksum, which is replaced if they have one."""
    content = {name: value for name, value in fields.items() if name != _CHECKSUM}
    canonical = json.dumps(content, sort_keys=True).encode()
    return {**content, _CHECKSUM: hashlib.sha256(canonical).hexdigest()}


def _read(path: Path) -> DriverFile | None:
    """Content of a file; None if it is missing, no plain file, damaged, of another version, or has a wrong field.

    No field is converted: a process number from a damaged file would prove an end.
    """
    try:
        with open_plain(path) as opened:
            owner = os.fstat(opened.fileno()).st_uid
            content = json.loads(opened.read(_BYTES_MAX))
        file = _parsed(content, where=str(path))
    except (OSError, ValueError, RecursionError, OptionError) as error:
        _log.debug("%s is no driver's file: %s", path, error)
        return None
    return replace(file, is_of_this_user=owner == os.geteuid())


def _parsed(content: object, *, where: str) -> DriverFile:
    """Raises ValueError or OptionError if it is no content of a driver's file of this version."""
    if not isinstance(content, dict) or content.get("version") != _VERSION:
        raise ValueError(f"it has no version, or not {_VERSION}")
    if content != sealed(content):
        raise ValueError("its checksum is not that of its fields")
    token, certificate, listens = (_any(content, n) for n in ("token", "certificate", "listens"))
    if not isinstance(listens, list) or len(listens) != len(("host", "port")):
        raise ValueError(f"listens is {listens!r:.80}, no host and port")
    process = None
    if _any(content, "pid") is not None:
        pid = _number(content["pid"], "pid", _PID_MAX)
        process = Process(pid=pid, born=_text(content, "process_started"))
    return DriverFile(
        job_id=_text(content, "job_id"),
        driver_id=_text(content, "driver_id"),
        endpoint=_text(content, "endpoint"),
        listens=(_text({"host": listens[0]}, "host"), _number(listens[1], "port", _PORT_MAX)),
        token=None if token is None else Token.parse(_text(content, "token"), where=where),
        certificate=None if certificate is None else Certificate(_text(content, "certificate")),
        machine=Machine(
            host=_text(content, "host"),
            machine_id=_text(content, "machine_id"),
            boot_id=_text(content, "boot_id"),
            namespaces=_text(content, "namespaces"),
        ),
        process=process,
        is_ended=_flag(content, "is_ended"),
    )


def _any(fields: Mapping[str, object], name: str) -> object:
    if name not in fields:
        raise ValueError(f"it has no {name}")
    return fields[name]


def _text(fields: Mapping[str, object], name: str) -> str:
    value = _any(fields, name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")  # noqa: TRY004, of a file's content
    return value


def _flag(fields: Mapping[str, object], name: str) -> bool:
    value = _any(fields, name)
    if not isinstance(value, bool):
        raise ValueError(f"{name} is neither true nor false")  # noqa: TRY004, of a file's content
    return value


def _number(value: object, name: str, highest: int) -> int:
    if type(value) is not int or not 1 <= value <= highest:
        raise ValueError(f"{name} is {value!r:.80}, no number from 1 to {highest}")
    return value
