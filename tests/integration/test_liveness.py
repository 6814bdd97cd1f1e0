"""What can be told of a driver from here, and what drivers and commands make of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordlog.cli.living import Reign, driver_lives
from coordlog.errors import CommandError
from coordlog.spark_integration.liveness import Liveness, driver_liveness
from coordlog.spark_integration.token import TOKEN_VARIABLE, Token, write_token
from endpoint_parts import TOKEN, running

GONE = "ws://127.0.0.1:1"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def liveness(endpoint: str) -> Liveness:
    return driver_liveness("ingest", endpoint=endpoint, driver_id="d1")


def reign(endpoint: str) -> Reign:
    return Reign(epoch=3, driver_id="d1", endpoint=endpoint, is_over=False)


def test_a_token_of_another_driver_in_the_variable_does_not_make_a_live_one_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job could be deleted, and its driver fenced, while it ran."""
    monkeypatch.setenv(TOKEN_VARIABLE, Token.new().text())
    with running() as (endpoint, _):
        assert liveness(endpoint.address) is Liveness.UNPROVED
        with pytest.raises(
            CommandError, match="answers as its driver d1, and no token that is here"
        ):
            driver_lives("ingest", reign(endpoint.address), is_take_over=False)
        assert not driver_lives("ingest", reign(endpoint.address), is_take_over=True)

        write_token("ingest", TOKEN, endpoint=endpoint.address)
        assert liveness(endpoint.address) is Liveness.LIVES
        assert driver_lives("ingest", reign(endpoint.address), is_take_over=False)


def test_without_any_token_a_live_driver_is_heard_and_a_silent_one_is_unknown() -> None:
    """A second driver on another machine took the first one's place without a word."""
    with running() as (endpoint, _):
        assert liveness(endpoint.address) is Liveness.UNPROVED
    assert liveness(GONE) is Liveness.UNKNOWN
    with pytest.raises(CommandError, match="cannot be asked from here, without its token"):
        driver_lives("ingest", reign(GONE), is_take_over=False)


def test_where_nobody_answers_who_has_the_token_the_driver_is_gone() -> None:
    write_token("ingest", TOKEN, endpoint=GONE)
    assert liveness(GONE) is Liveness.GONE
    assert liveness("") is Liveness.GONE
    assert not driver_lives("ingest", reign(GONE), is_take_over=False)
