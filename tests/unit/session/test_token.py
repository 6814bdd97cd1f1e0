"""A driver's token: its proofs, its header, and what never shows it."""

from __future__ import annotations

import hashlib
import hmac
import pickle
from dataclasses import dataclass

import pytest

from coordlog.errors import OptionError
from coordlog.spark_integration.wire.token import (
    TOKEN_VARIABLE,
    Token,
    new_nonce,
    token_of_environment,
)

TOKEN = Token(bytes(range(32)))
HEX = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"


def test_each_driver_has_another_token_of_256_bits() -> None:
    first, second = Token.new(), Token.new()

    assert first != second
    assert len(bytes.fromhex(first.text())) == 32


@pytest.mark.parametrize("text", ["secret-but-wrong", HEX[:-2], HEX + "00"])
def test_what_is_no_token_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, text)
    with pytest.raises(OptionError, match=f"{TOKEN_VARIABLE}.*64 hexadecimal digits") as refused:
        token_of_environment()
    assert text not in str(refused.value)


def test_the_variable_holds_a_token_or_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert token_of_environment() is None

    monkeypatch.setenv(TOKEN_VARIABLE, HEX + "\n")
    assert token_of_environment() == TOKEN


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
