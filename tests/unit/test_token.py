"""The job's token: where it is kept, who may read it, and what never shows it."""

from __future__ import annotations

import hashlib
import hmac
import os
import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest

from coordlog.errors import OptionError
from coordlog.spark_integration.token import (
    TOKEN_VARIABLE,
    Token,
    find_token,
    find_tokens,
    forget_token,
    job_folder,
    new_nonce,
    write_token,
)

TOKEN = Token(bytes(range(32)))
HEX = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    return tmp_path / "home"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_each_driver_has_another_token_of_256_bits() -> None:
    first, second = Token.new(), Token.new()

    assert first != second
    assert len(bytes.fromhex(first.text())) == 32


def test_what_was_written_is_found(home: Path) -> None:
    assert find_token("ingest") is None

    path = write_token("ingest", TOKEN)

    assert path == home / "jobs" / "ingest" / "token" == job_folder("ingest") / "token"
    assert path.read_text("ascii") == HEX + "\n"
    assert find_token("ingest") == TOKEN
    assert find_token("other") is None


def test_only_the_user_can_read_it_whatever_the_umask_is(home: Path) -> None:
    before = os.umask(0)
    try:
        path = write_token("ingest", TOKEN)
    finally:
        os.umask(before)

    assert mode(path) == 0o600
    assert [mode(one) for one in (home, home / "jobs", path.parent)] == [0o700] * 3


def test_folders_that_were_open_to_others_are_closed(home: Path) -> None:
    folder = home / "jobs" / "ingest"
    folder.mkdir(parents=True)
    for one in (home, home / "jobs", folder):
        one.chmod(0o755)

    write_token("ingest", TOKEN)

    assert [mode(one) for one in (home, home / "jobs", folder)] == [0o700] * 3


def test_a_newer_driver_takes_the_place_of_the_last_one_and_leaves_nothing_else(home: Path) -> None:
    write_token("ingest", Token.new())

    path = write_token("ingest", TOKEN)

    assert find_token("ingest") == TOKEN
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_last_token(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_token("ingest", TOKEN)

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "no space left")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_token("ingest", Token.new())

    assert find_token("ingest") == TOKEN
    assert list(path.parent.iterdir()) == [path]


def test_the_variable_goes_before_the_last_drivers_file_and_behind_the_endpoints_own(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It belongs to no job: one that is left from another driver must not hide this driver's own."""
    own, last = Token.new(), Token.new()
    write_token("ingest", own, endpoint="ws://127.0.0.1:1")
    write_token("ingest", last)
    monkeypatch.setenv(TOKEN_VARIABLE, HEX)

    assert find_token("ingest") == TOKEN
    assert find_token("ingest", endpoint="ws://127.0.0.1:2") == TOKEN
    assert list(find_tokens("ingest", endpoint="ws://127.0.0.1:1")) == [own, TOKEN, last]


@pytest.mark.clause("K2")
def test_a_driver_that_writes_its_token_late_takes_no_newer_one_away(home: Path) -> None:
    newer, late = Token.new(), Token.new()
    write_token("ingest", newer, endpoint="ws://127.0.0.1:2")
    write_token("ingest", late, endpoint="ws://127.0.0.1:1")

    assert find_token("ingest", endpoint="ws://127.0.0.1:2") == newer
    assert find_token("ingest", endpoint="ws://127.0.0.1:1") == late

    forget_token("ingest", "ws://127.0.0.1:1")
    forget_token("ingest", "ws://127.0.0.1:1")
    assert find_token("ingest", endpoint="ws://127.0.0.1:2") == newer
    paths = [job_folder("ingest"), *job_folder("ingest").iterdir()]
    assert len(paths) == 3
    assert [path.stat().st_mode & 0o077 for path in paths] == [0, 0, 0]


def test_an_endpoint_whose_token_is_not_kept_has_the_last_one(home: Path) -> None:
    write_token("ingest", TOKEN)

    assert find_token("ingest", endpoint="ws://127.0.0.1:1") == TOKEN
    assert find_token("other", endpoint="ws://127.0.0.1:1") is None


@pytest.mark.parametrize("text", ["secret-but-wrong", "", HEX[:-2], HEX + "00"])
def test_what_is_no_token_is_refused_and_not_shown(
    home: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = write_token("ingest", TOKEN)
    path.write_text(text, "ascii")
    with pytest.raises(OptionError, match="64 hexadecimal digits") as refused:
        find_token("ingest")
    assert str(path) in str(refused.value)
    if text:
        assert text not in str(refused.value)

        monkeypatch.setenv(TOKEN_VARIABLE, text)
        with pytest.raises(OptionError, match=TOKEN_VARIABLE) as refused:
            find_token("ingest")
        assert text not in str(refused.value)


def test_only_the_whole_header_lets_in() -> None:
    assert TOKEN.header() == "Bearer " + HEX
    assert TOKEN.is_in("Bearer " + HEX)
    for wrong in (None, "", HEX, "Bearer ", "Bearer " + HEX[:-1], Token.new().header(), "Bearer é"):
        assert not TOKEN.is_in(wrong), wrong


def test_a_proof_holds_for_one_challenge_job_and_driver_only() -> None:
    nonce = bytes(32)
    expected = hmac.new(bytes(range(32)), nonce + b"|ingest|d1", hashlib.sha256).digest()

    proof = TOKEN.prove(nonce, job_id="ingest", driver_id="d1")

    assert proof == expected
    assert TOKEN.is_proof(proof, nonce, job_id="ingest", driver_id="d1")
    assert not TOKEN.is_proof(proof, new_nonce(), job_id="ingest", driver_id="d1")
    assert not TOKEN.is_proof(proof, nonce, job_id="ingest", driver_id="d2")
    assert not TOKEN.is_proof(proof, nonce, job_id="other", driver_id="d1")
    assert not Token.new().is_proof(proof, nonce, job_id="ingest", driver_id="d1")


def test_it_travels_in_a_closure_and_prints_nothing_of_itself() -> None:
    @dataclass
    class Holder:
        token: Token

    assert pickle.loads(pickle.dumps(TOKEN)) == TOKEN
    for shown in (repr(TOKEN), str(TOKEN), f"{Holder(TOKEN)}", f"{[TOKEN]}"):
        assert HEX[:8] not in shown
        assert repr(bytes(range(32)))[2:10] not in shown
