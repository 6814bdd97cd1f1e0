"""Fields that a payload type marks secret are redacted or encrypted before they are bytes."""

from __future__ import annotations

import json
import pickle
import traceback

import pytest

from coordlog.errors import OptionError, PayloadTypeError
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.secret_fields import REDACTED, REDACTED_TEXT
from coordlog.secret_fields import KEY_VARIABLE, Encrypted
from histories.secret_payloads import (
    SEALED,
    Login,
    Logins,
    PlainLogin,
    declare_list,
    declare_number,
)
from jobs.secret_job import SECRETS as JOB_SECRETS
from jobs.secret_job import secret_log

KEY, OTHER_KEY = "ab" * 64, "cd" * 64
PASSWORD, PIN, TOKEN = "hunter-two", "0815-4711", "tok-en-99"
LOGIN = Login(user="ann", password=PASSWORD, pin=PIN)
SECRETS = (PASSWORD, PIN, TOKEN)


@pytest.fixture
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)


def encoded(value: Payload) -> bytes:
    return payload_type_of(value).encode(value)


def again(value: Payload) -> Payload:
    return payload_type_of(value).decode(encoded(value))


def test_what_is_redacted_is_not_in_the_bytes_and_everybody_gets_what_is() -> None:
    assert again(LOGIN) == Login(user="ann", password=REDACTED_TEXT, pin=REDACTED_TEXT)
    assert not any(one.encode() in encoded(LOGIN) for one in SECRETS)
    assert b"ann" in encoded(LOGIN)


def test_a_dict_in_place_of_a_payload_has_its_secrets_redacted_too() -> None:
    login = {"user": "ann", "password": PASSWORD, "pin": PIN, "token": None}
    value = Logins(first=login, others=[login])  # type: ignore[arg-type, list-item]

    redacted = Login(user="ann", password=REDACTED_TEXT, pin=REDACTED_TEXT)
    assert again(value) == Logins(first=redacted, others=[redacted])
    assert not any(one.encode() in encoded(value) for one in SECRETS)


def test_a_value_that_is_not_there_stays_so() -> None:
    assert again(Login(user="ann", password="")) == Login(user="ann", password=REDACTED_TEXT)


@pytest.mark.usefixtures("_key")
def test_what_is_encrypted_is_opened_by_the_key_and_by_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = Login(user="ann", password=PASSWORD, token=TOKEN)
    got = again(value)
    assert isinstance(got, Login)
    assert got.token is not None
    assert TOKEN not in got.token
    assert SEALED.open(got.token) == TOKEN
    assert encoded(value) == encoded(value), "a replay is exact"
    assert encoded(got) == encoded(value), "what is sealed stays as it is"

    monkeypatch.setenv(KEY_VARIABLE, OTHER_KEY)
    with pytest.raises(ValueError, match="cannot be opened by the key in COORDLOG_SECRET_KEY"):
        SEALED.open(got.token)
    again(got)  # and nothing but opening needs the key that it was sealed by


@pytest.mark.usefixtures("_key")
@pytest.mark.parametrize(
    "text", ["", "a", "sealed:1:", "sealed:1:AAAA", "sealed:1:é", "x" * 10_000]
)
def test_any_text_is_sealed_whatever_it_looks_like(text: str) -> None:
    sealed = SEALED.seal(text)
    assert sealed != text
    assert SEALED.open(sealed) == text


@pytest.mark.usefixtures("_key")
def test_what_was_changed_is_not_opened() -> None:
    sealed = SEALED.seal(TOKEN)
    for one in (sealed[:-4] + "AAAA", sealed[:-4], sealed + "AAAA", TOKEN, ""):
        with pytest.raises(ValueError, match="cannot be opened"):
            SEALED.open(one)


@pytest.mark.parametrize(
    ("key", "said"), [("", "it must be set"), ("abc", r"\(not shown\)"), ("ab" * 32, "128 hex")]
)
def test_without_a_key_nothing_is_appended(
    monkeypatch: pytest.MonkeyPatch, key: str, said: str
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, key)
    with pytest.raises(OptionError, match=said) as caught:
        encoded(Login(user="ann", password=PASSWORD, token=TOKEN))
    assert TOKEN not in str(caught.value)
    assert not key or key not in str(caught.value)
    encoded(LOGIN)  # one that has nothing to encrypt needs none


@pytest.mark.usefixtures("_key")
def test_a_guard_crosses_to_a_task_without_its_key() -> None:
    assert KEY.encode() not in pickle.dumps(SEALED)
    assert pickle.loads(pickle.dumps(SEALED)) == SEALED
    assert pickle.loads(pickle.dumps(REDACTED)) is REDACTED
    assert KEY not in repr(SEALED)


@pytest.mark.usefixtures("_key")
def test_fields_of_payloads_inside_payloads_are_sealed_too() -> None:
    one = Login(user="bob", password=PASSWORD, pin=PIN, token=TOKEN)
    data = encoded(Logins(first=LOGIN, others=[one, one]))
    assert not any(text.encode() in data for text in SECRETS)


def test_no_repr_and_no_error_shows_a_secret() -> None:
    shown = f"{LOGIN!r} {LOGIN} {Logins(first=LOGIN, others=[LOGIN])}"
    assert shown.startswith("Login(user='ann', password=(secret), pin=(secret), token=(secret))")
    with pytest.raises(PayloadTypeError) as caught:
        encoded(Login(user=7, password=PASSWORD, pin=PIN))  # type: ignore[arg-type]
    assert not any(one in shown + str(caught.value) for one in SECRETS)


@pytest.mark.usefixtures("_key")
@pytest.mark.parametrize("wrong", [PIN.encode(), [PIN], {PIN: PIN}, 8154711])
@pytest.mark.parametrize("field", ["password", "pin", "token"])
def test_a_secret_that_is_no_text_is_refused_by_its_field_and_not_shown(
    field: str, wrong: object
) -> None:
    given = {"password": PASSWORD, field: wrong}
    value = Login(user="ann", **given)  # type: ignore[arg-type]
    for one in (value, Logins(first=LOGIN, others=[value])):
        with pytest.raises(PayloadTypeError) as caught:
            encoded(one)
        said = "".join(traceback.format_exception(caught.value))
        named = f"its secret field {field} is of type {type(wrong).__name__} (not shown)"
        assert named in str(caught.value)
        assert PIN not in said
        assert "8154711" not in said


def test_a_mark_does_not_change_the_schema() -> None:
    marked, plain = (json.loads(payload_type_of(one).schema_json) for one in (Login, PlainLogin))
    assert marked["fields"] == plain["fields"]


def test_what_is_no_text_cannot_be_marked() -> None:
    with pytest.raises(PayloadTypeError, match="pins: only a field that is a text"):
        declare_list()
    with pytest.raises(PayloadTypeError, match="pin: only a field that is a text"):
        declare_number()


def test_another_variable_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_KEY", OTHER_KEY)
    guard = Encrypted(variable="TEAM_KEY")
    assert guard.open(guard.seal(PIN)) == PIN


@pytest.mark.usefixtures("_key")
def test_no_secret_of_a_job_is_in_its_log() -> None:
    bytes_of = b"|".join((one.key or b"") + (one.value or b"") for one in secret_log().records)
    assert b"of the attempt" in bytes_of, "the right bytes are looked at"
    assert b"of the coordinator" in bytes_of
    assert b"(redacted)" in bytes_of
    assert b"sealed:1:" in bytes_of
    assert not any(one.encode() in bytes_of for one in JOB_SECRETS)
