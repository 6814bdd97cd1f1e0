"""Folders and files of coordlog's own that belong to another user are refused, with the owner and the next step."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from coordlog.cli.config.file import load_config
from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.errors import EnvironmentSetupError
from coordlog.log.broker.shared import ensure_shared_broker, shared_status
from coordlog.log.local.file_lock import file_lock
from coordlog.log.local.paths import private_folder
from coordlog.spark_integration.driver.driver_file import end_driver_file, write_driver_file
from coordlog.spark_integration.wire.token import Token
from fakes.driver_files import file_of

FILE = file_of("wss://10.0.0.7:40123", Token(bytes(range(32))))
NOBODY = 65_534


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("COORDLOG_HOME", str(folder))
    monkeypatch.setenv("COORDLOG_CACHE", str(tmp_path / "cache"))
    return folder


@contextmanager
def without_rights(folder: Path) -> Iterator[None]:
    """The block runs without any right to the folder."""
    own = os.geteuid()
    folder.chmod(0o000)
    if own == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(own)
        folder.chmod(0o700)


def names(own: int) -> tuple[str, str]:
    """The owner of what this process creates, and the user that `without_rights` makes of it."""
    owner = pwd.getpwuid(own).pw_name
    return owner, pwd.getpwuid(NOBODY).pw_name if own == 0 else owner


def test_a_drivers_file_in_the_home_of_another_user_names_owner_and_remedy(home: Path) -> None:
    owner, user = names(os.geteuid())

    with pytest.raises(EnvironmentSetupError) as caught, without_rights(home):
        write_driver_file(FILE)

    said = str(caught.value)
    assert said.startswith(f"{home}: Permission denied; ")
    assert f" belongs to user {owner}, and this process runs as user {user}; " in said
    assert said.endswith(f"run as user {owner}, or set COORDLOG_HOME to a folder of user {user}")


def test_the_end_of_a_driver_is_only_logged_if_its_folder_is_refused(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_driver_file(FILE)

    with without_rights(home):
        end_driver_file(FILE)

    assert "the driver's file stays as it was" in caplog.text
    assert "belongs to user" in caplog.text


def test_a_broker_of_another_user_is_not_reported_as_not_running(home: Path) -> None:
    broker = private_folder(home / "broker")
    (broker / "broker.json").write_text("{}")

    with pytest.raises(EnvironmentSetupError) as caught, without_rights(broker):
        shared_status()
    assert str(caught.value).startswith(f"{broker / 'broker.json'}: Permission denied; ")
    with pytest.raises(EnvironmentSetupError), without_rights(home):
        ensure_shared_broker()


def test_a_lock_of_another_user_names_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lock"
    path.parent.mkdir()

    with (
        pytest.raises(EnvironmentSetupError) as caught,
        without_rights(path.parent),
        file_lock(path, limit_s=0, busy=RuntimeError),
    ):
        pass

    assert "belongs to user" in str(caught.value)
    assert str(caught.value).endswith("the right to use it")


def test_a_configuration_of_another_user_names_the_owner(home: Path) -> None:
    with pytest.raises(EnvironmentSetupError) as caught, without_rights(home):
        load_config(None)

    assert str(caught.value).startswith(f"{home / 'coordlog.toml'}: Permission denied; ")


def test_a_command_without_right_to_its_configuration_ends_with_one_line(home: Path) -> None:
    with without_rights(home):
        ended = CliRunner().invoke(main, ["version"])

    assert ended.exit_code == Exit.USAGE
    assert ended.stderr.startswith(f"error: {home / 'coordlog.toml'}: Permission denied; ")
    assert len(ended.stderr.splitlines()) == 1
