"""The endpoint's certificate: each driver creates its own, and its tasks and clients trust this one alone.

No authority signs it and it contains no name: a task has it from its closure, a client from the
driver's file or from the file that `COORDLOG_CERTIFICATE` names. Its key is only in the driver's memory,
and ends with the driver.
"""

from __future__ import annotations

import os
import secrets
import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from coordlog.errors import EnvironmentSetupError, OptionError
from coordlog.spark_integration.wire.shared_tls import SharedTLSSocket

__all__ = [
    "CERTIFICATE_VARIABLE",
    "Certificate",
    "certificate_of_environment",
    "is_encrypted",
    "new_certificate",
    "unverified_context",
]

CERTIFICATE_VARIABLE: Final = "COORDLOG_CERTIFICATE"

_SCHEME: Final = "wss://"
_NAME: Final = "coordlog driver"
# The certificate is valid for as long as its driver lives, for any clock.
_BEGIN: Final = datetime(1970, 1, 1, tzinfo=UTC)
_END: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A driver's certificate as PEM; no secret. Can be pickled, for a task's closure."""

    pem: str

    def context(self) -> ssl.SSLContext:
        """A client's context that trusts this certificate and no other.

        Raises:
            OptionError: The text is no certificate.
        """
        context = _client_context()
        try:
            context.load_verify_locations(cadata=self.pem)
        except (ssl.SSLError, ValueError) as error:
            raise OptionError(CERTIFICATE_VARIABLE, "another text", "a PEM file") from error
        return context


def is_encrypted(endpoint: str) -> bool:
    """Whether the address is that of a driver with TLS."""
    return endpoint.startswith(_SCHEME)


def new_certificate() -> tuple[Certificate, ssl.SSLContext]:
    """A new certificate, and the context of the server that shows it.

    Raises:
        EnvironmentSetupError: The library `cryptography` is missing.
    """
    try:
        from cryptography import x509  # noqa: PLC0415, tens of milliseconds, and not in each process
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
        from cryptography.x509.oid import NameOID  # noqa: PLC0415
    except ImportError as error:
        raise EnvironmentSetupError(
            f"the driver cannot make a certificate for its endpoint: {error}",
            "pip install cryptography, or set endpoint_tls='off' if the network is your own",
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_END)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")
    # Python loads a key from a file only: there it is encrypted by a password of this process alone.
    password = secrets.token_bytes(32)
    encrypted_key = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.NamedTemporaryFile(prefix=".coordlog-", suffix=".pem") as file:
        file.write(encrypted_key + pem.encode("ascii"))
        file.flush()
        context.load_cert_chain(file.name, password=password)
    return Certificate(pem), context


def unverified_context() -> ssl.SSLContext:
    """Context of a client that sends no secret, and gets the driver's proof instead of a certificate."""
    context = _client_context()
    context.verify_mode = ssl.CERT_NONE
    return context


def _client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The single trusted certificate identifies the driver; it contains no addresses.
    context.check_hostname = False
    context.sslsocket_class = SharedTLSSocket
    return context


def certificate_of_environment() -> Certificate | None:
    """The certificate in the file that `COORDLOG_CERTIFICATE` names; None if it is not set.

    Raises:
        OptionError: The file cannot be read.
    """
    path = os.environ.get(CERTIFICATE_VARIABLE)
    if not path:
        return None
    try:
        return Certificate(Path(path).read_text("ascii"))
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(CERTIFICATE_VARIABLE, path, f"a PEM file: {error}") from error
