"""A driver's certificate: made anew, trusted alone, without its key."""

from __future__ import annotations

import pickle
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509

from coordlog.errors import OptionError
from coordlog.spark_integration.wire.certificate import (
    CERTIFICATE_VARIABLE,
    Certificate,
    certificate_of_environment,
    is_encrypted,
    new_certificate,
)


def handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Both sides, in memory; raises what the client would."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="192.0.2.7"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for one in ends:
            try:
                one.do_handshake()
            except ssl.SSLWantReadError:
                continue
    for one in ends:
        assert one.version() == "TLSv1.3"


def test_each_driver_has_another_and_its_own_is_trusted_alone() -> None:
    (first, of_first), (second, of_second) = new_certificate(), new_certificate()

    handshake(first.context(), of_first)
    handshake(second.context(), of_second)
    assert first != second
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(first.context(), of_second)


def test_no_older_tls_is_spoken() -> None:
    certificate, server = new_certificate()
    client = certificate.context()
    for one in (client, server):
        assert one.minimum_version is ssl.TLSVersion.TLSv1_3
    client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        handshake(client, server)


def test_it_is_valid_for_a_drivers_lifetime_and_does_not_name_the_machine() -> None:
    made = x509.load_pem_x509_certificate(new_certificate()[0].pem.encode())

    assert made.not_valid_before_utc <= datetime(1970, 1, 1, tzinfo=UTC), (
        "a clock that was never set"
    )
    assert made.not_valid_after_utc > datetime(9999, 1, 1, tzinfo=UTC)
    assert made.subject.rfc4514_string() == made.issuer.rfc4514_string() == "CN=coordlog driver"


def test_what_travels_has_no_key_and_no_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    certificate, _ = new_certificate()

    assert pickle.loads(pickle.dumps(certificate)) == certificate
    assert "PRIVATE" not in certificate.pem
    assert list(tmp_path.iterdir()) == []


def test_the_variable_names_a_file_or_is_not_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CERTIFICATE_VARIABLE, raising=False)
    assert certificate_of_environment() is None

    given = tmp_path / "driver.pem"
    given.write_text("given\n", "ascii")
    monkeypatch.setenv(CERTIFICATE_VARIABLE, str(given))
    assert certificate_of_environment() == Certificate("given\n")

    given.unlink()
    with pytest.raises(OptionError, match=rf"{CERTIFICATE_VARIABLE} is .*driver\.pem"):
        certificate_of_environment()


def test_what_is_no_certificate_is_refused() -> None:
    with pytest.raises(OptionError, match="a PEM file"):
        Certificate("nothing of the kind").context()


def test_an_address_says_whether_it_is_encrypted() -> None:
    assert is_encrypted("wss://127.0.0.1:1")
    assert not is_encrypted("ws://127.0.0.1:1")
    assert not is_encrypted("")
