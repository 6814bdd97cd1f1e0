"""The exit statuses, as code, docs, the systemd unit and the Kubernetes manifest have them: all the same."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import kubernetes_validate
import pytest
import yaml

from coordlog.cli.exit_status import Exit, exit_of
from coordlog.cli.ingest.command import ingest
from coordlog.errors import AccessError, JobFailedError, LogUnavailableError
from coordlog.limits import STOP_TIMEOUT_S
from coordlog.log.local.environment_errors import BrokerError

ROOT = Path(__file__).resolve().parents[3]
UNIT = ROOT / "examples" / "systemd" / "coordlog-ingest.service"
MANIFEST = ROOT / "examples" / "kubernetes" / "coordlog-ingest.yaml"


def statuses() -> dict[int, bool]:
    """Of the docs' table: whether to restart, by status."""
    text = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| (yes|no)[ :|]", text, re.MULTILINE)
    return {int(status): word == "yes" for status, word in rows}


def unit() -> configparser.SectionProxy:
    """The unit's service section; its names are as they are written."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text(encoding="utf-8"))
    assert list(parser) == ["DEFAULT", "Unit", "Service", "Install"]
    return parser["Service"]


def test_the_docs_table_has_every_status_and_no_other() -> None:
    assert sorted(statuses()) == sorted(Exit)


def test_the_unit_restarts_as_documented_and_counts_a_stop_as_success() -> None:
    service = unit()
    never = {int(one) for one in service["RestartPreventExitStatus"].split()}
    good = {int(one) for one in service["SuccessExitStatus"].split()}

    assert service["Restart"] == "on-failure"
    assert good == {Exit.INTERRUPTED, Exit.TERMINATED}
    restarted = set(Exit) - never - good - {Exit.DONE}
    assert restarted == {status for status, is_restarted in statuses().items() if is_restarted}


def test_the_unit_gives_a_stop_its_time_and_the_signal_to_the_driver_alone() -> None:
    service = unit()

    assert service["KillMode"] == "mixed"
    assert int(service["TimeoutStopSec"]) >= STOP_TIMEOUT_S + 30


def test_the_units_command_is_one_that_the_command_line_takes() -> None:
    program, command, *arguments = shlex.split(unit()["ExecStart"])

    assert program.endswith("/bin/coordlog")
    assert command == "ingest"
    context = ingest.make_context("ingest", arguments)
    assert context.params["job_id"] == "flights"
    assert context.params["stop_timeout_s"] == STOP_TIMEOUT_S


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.slow
def test_systemd_itself_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    here = Path(sys.executable).with_name("coordlog")
    text = UNIT.read_text(encoding="utf-8").replace("/opt/coordlog/bin/coordlog", str(here))
    copy = tmp_path / UNIT.name
    copy.write_text(text, encoding="utf-8")

    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    about_it = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, about_it) == (0, [])


@pytest.mark.parametrize("version", ["1.31", "1.34", "1.37"])
def test_the_manifest_is_valid_by_the_schemas_of_kubernetes(version: str) -> None:
    manifests = list(yaml.safe_load_all(MANIFEST.read_text("utf-8")))
    assert [manifest["kind"] for manifest in manifests] == ["Job"]
    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)
        manifest["spec"]["podReplacement"] = manifest["spec"].pop("podReplacementPolicy")
        with pytest.raises(kubernetes_validate.ValidationError, match="podReplacement"):
            kubernetes_validate.validate(manifest, version, strict=True)


def test_the_manifest_fails_the_job_where_the_docs_say_no() -> None:
    text = MANIFEST.read_text(encoding="utf-8")
    found = re.search(r"values: \[([\d, ]+)\]", text)
    assert found is not None
    failing = {int(one) for one in found[1].split(",")}
    grace = re.search(r"terminationGracePeriodSeconds: (\d+)", text)
    assert grace is not None

    never = {status for status, is_restarted in statuses().items() if not is_restarted}
    assert failing == never - {Exit.DONE, Exit.INTERRUPTED, Exit.TERMINATED}
    assert int(grace[1]) >= STOP_TIMEOUT_S + 30
    command = re.findall(r"^            - (\S+)$", text, re.MULTILINE)
    assert command[:2] == ["coordlog", "ingest"]
    assert isinstance(ingest.make_context("ingest", command[2:]), click.Context)


def test_a_refused_login_is_not_restarted_and_a_silent_log_is() -> None:
    closed = AccessError("job.log", "the broker does not accept user 'ann'", "see the password")
    silent = LogUnavailableError("job.log", "opening it", 120.0, "no route to host")

    assert exit_of(closed) is Exit.REFUSED
    assert exit_of(silent) is exit_of(BrokerError("it does not run", "x")) is Exit.UNREACHABLE
    assert (statuses()[exit_of(closed)], statuses()[exit_of(silent)]) == (False, True)


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("SinkError: /out: it cannot be written: [errno 28] No space left", Exit.NO_SPACE),
        ("OSError: [Errno 28] No space left on device", Exit.NO_SPACE),
        ("OSError: [Errno 122] Disk quota exceeded", Exit.NO_SPACE),
        ("OSError: [Errno 2] No such file or directory", Exit.FAILED),
    ],
)
def test_a_job_that_failed_without_disk_space_in_a_task_has_that_status(
    reason: str, status: Exit
) -> None:
    assert exit_of(JobFailedError("job", (reason, "OSError: [Errno 28] before that"))) is status
