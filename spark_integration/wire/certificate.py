"""The endpoint's certificate: each driver makes one for itself, and it is trusted by whom it was handed to.

No authority signs it and no name is in it: a task has it from its closure, a client from the
driver's file or from the file that `COORDLOG_CERTIFICATE` names, and each trusts this one and no other. Its
key is in the driver's memory alone, and gone with it.
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
# Whoever has been handed it trusts it for as long as its driver lives, whatever a clock says.
_BEGIN: Final = datetime(2000, 1, 1, tzinfo=UTC)
_END: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a driver shows, as PEM; no secret. Pickles, for a task's closure."""

    pem: str

    def context(self) -> ssl.SSLContext:
        """For a client: this certificate is trusted, and nothing else.

        Raises:
            OptionError: It is none.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Trusting the one certificate says who answers; addresses are not in it.
        context.check_hostname = False
        try:
            context.load_verify_locations(cadata=self.pem)
        except (ssl.SSLError, ValueError) as error:
            raise OptionError(CERTIFICATE_VARIABLE, "what is there", "a PEM file") from error
        return context


def is_encrypted(endpoint: str) -> bool:
    """Whether a driver at this address speaks TLS."""
    return endpoint.startswith(_SCHEME)


def new_certificate() -> tuple[Certificate, ssl.SSLContext]:
    """Another one each time, and the context for the server that shows it.

    Raises:
        EnvironmentSetupError: The library that makes it is not there.
    """
    try:
        from cryptography import x509  # noqa: PLC0415, tens of milliseconds, and not in each process
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
        from cryptography.x509.oid import NameOID  # noqa: PLC0415
    except ImportError as error:
        raise EnvironmentSetupError(
            f"the driver cannot make a certificate for its endpoint: {error}",
            "pip install cryptography, or say endpoint_tls='off' where the network is your own",
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    made = (
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
    shown = made.public_bytes(serialization.Encoding.PEM).decode("ascii")
    # Python takes a key from a file only: there it stands under a password that nobody else has.
    password = secrets.token_bytes(32)
    hidden = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.NamedTemporaryFile(prefix=".coordlog-", suffix=".pem") as file:
        file.write(hidden + shown.encode("ascii"))
        file.flush()
        context.load_cert_chain(file.name, password=password)
    return Certificate(shown), context


def unverified_context() -> ssl.SSLContext:
    """For a client that shows no secret, and is shown one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def certificate_of_environment() -> Certificate | None:
    """The certificate in the file that `COORDLOG_CERTIFICATE` names; None if it is not set.

    Raises:
        OptionError: The file cannot be read.
    """
    given = os.environ.get(CERTIFICATE_VARIABLE)
    if not given:
        return None
    try:
        return Certificate(Path(given).read_text("ascii"))
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(CERTIFICATE_VARIABLE, given, f"a PEM file: {error}") from error
