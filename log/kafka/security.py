"""Options for a broker that requires TLS or SASL; read from file or environment, never printed."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from coordlog.errors import OptionError
from coordlog.limits import CONFIG_BYTES_MAX

__all__ = ["ENVIRONMENT_PREFIX", "FILE_VARIABLE", "Security"]

ENVIRONMENT_PREFIX: Final = "COORDLOG_KAFKA_"
"""`COORDLOG_KAFKA_SASL_PASSWORD` sets `sasl_password`, and so on."""

FILE_VARIABLE: Final = "COORDLOG_KAFKA_SECURITY_FILE"
"""Variable that names a TOML file with the same fields; variables of single fields take precedence."""

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class _Secret(str):
    """A string whose `repr` does not show it: the client logs its configuration at DEBUG."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'(hidden)'"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Security:
    """TLS and SASL options. The default is neither.

    Certificates and keys are paths of PEM files.
    """

    protocol: str = "PLAINTEXT"
    """`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`."""
    sasl_mechanism: str | None = None
    """`PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`."""
    sasl_username: str | None = None
    sasl_password: str | None = None
    ssl_cafile: str | None = None
    """Authority that signed the broker's certificate; None for those of the machine."""
    ssl_certfile: str | None = None
    """The client's certificate, if the broker requires one."""
    ssl_keyfile: str | None = None
    ssl_key_password: str | None = None
    ssl_check_hostname: Literal["yes", "no"] = "yes"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, str) and (value is not None or field.default is not None):
                raise OptionError(field.name, type(value).__name__, "a text")  # may be a secret
        if self.protocol not in _PROTOCOLS:
            raise OptionError("protocol", self.protocol, f"one of {', '.join(_PROTOCOLS)}")
        if self.ssl_check_hostname not in {"yes", "no"}:
            raise OptionError("ssl_check_hostname", self.ssl_check_hostname, "yes or no")
        if self.protocol.startswith("SASL"):
            if self.sasl_mechanism not in _MECHANISMS:
                expected = f"one of {', '.join(_MECHANISMS)}"
                raise OptionError("sasl_mechanism", self.sasl_mechanism, expected)
            if self.sasl_username is None or self.sasl_password is None:
                expected = "set together with sasl_username and sasl_password"
                raise OptionError("protocol", self.protocol, expected)
        self._check_used()

    def _check_used(self) -> None:
        """Refuse options without effect: the user sets options of TLS or SASL, and the protocol has neither."""
        for prefix, is_used, protocols in (
            ("sasl_", self.protocol.startswith("SASL"), "SASL_PLAINTEXT or SASL_SSL"),
            ("ssl_", self.protocol.endswith("SSL"), "SSL or SASL_SSL"),
        ):
            names = [
                field.name
                for field in dataclasses.fields(self)
                if field.name.startswith(prefix) and getattr(self, field.name) != field.default
            ]
            if names and not is_used:
                raise OptionError(
                    "protocol",
                    self.protocol,
                    f"{protocols} if {names[0]} is set: it does nothing here",
                )
        if self.ssl_certfile is None and (self.ssl_keyfile or self.ssl_key_password):
            raise OptionError(
                "ssl_certfile", None, "set together with ssl_keyfile and ssl_key_password"
            )

    def __repr__(self) -> str:
        return f"Security(protocol={self.protocol!r}, the rest hidden)"

    @classmethod
    def load(cls, environment: Mapping[str, str], file: Path | None = None) -> Security:
        """The options in `file`, or in the file that the environment names, and in the environment.

        Raises:
            OptionError: An option is unknown or wrong, or the file cannot be read.
        """
        named = environment.get(FILE_VARIABLE)
        path = file if file is not None else Path(named) if named else None
        options: dict[str, object] = {} if path is None else _read(path)
        known = frozenset(field.name for field in dataclasses.fields(cls))
        for name in sorted(known):
            variable = ENVIRONMENT_PREFIX + name.upper()
            if variable in environment:
                options[name] = environment[variable]
        for name, value in options.items():
            if name not in known:
                raise OptionError("security option", name, f"one of {', '.join(sorted(known))}")
            if not isinstance(value, str):
                raise OptionError(name, type(value).__name__, "a string")  # may be a secret
        return cls(**options)  # type: ignore[arg-type]

    def client_options(self) -> dict[str, object]:
        """The same for kafka-python."""
        options: dict[str, object] = {"security_protocol": self.protocol}
        if self.protocol.startswith("SASL"):
            assert self.sasl_password is not None
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_plain_username"] = self.sasl_username
            options["sasl_plain_password"] = _Secret(self.sasl_password)
        if self.protocol.endswith("SSL"):
            options["ssl_check_hostname"] = self.ssl_check_hostname == "yes"
            options["ssl_cafile"] = self.ssl_cafile
            options["ssl_certfile"] = self.ssl_certfile
            options["ssl_keyfile"] = self.ssl_keyfile
            if self.ssl_key_password is not None:
                options["ssl_password"] = _Secret(self.ssl_key_password)
        return options

    def spark_options(self) -> dict[str, str]:
        """The same for Spark's Kafka source, as options of its reader.

        A client's key must be in PKCS #8 (`-----BEGIN PRIVATE KEY-----`): Kafka's Java client reads
        no other PEM. The options hold the files' contents: executors need no files.

        Raises:
            OptionError: A file cannot be read.
        """
        options = {"kafka.security.protocol": self.protocol}
        if self.protocol.startswith("SASL"):
            module = "plain.Plain" if self.sasl_mechanism == "PLAIN" else "scram.Scram"
            options["kafka.sasl.mechanism"] = str(self.sasl_mechanism)
            options["kafka.sasl.jaas.config"] = (
                f"org.apache.kafka.common.security.{module}LoginModule required"
                f" username={_quoted(self.sasl_username)} password={_quoted(self.sasl_password)};"
            )
        if self.protocol.endswith("SSL"):
            if self.ssl_check_hostname == "no":
                options["kafka.ssl.endpoint.identification.algorithm"] = ""
            if self.ssl_cafile is not None:
                options["kafka.ssl.truststore.type"] = "PEM"
                options["kafka.ssl.truststore.certificates"] = _pem("ssl_cafile", self.ssl_cafile)
            if self.ssl_certfile is not None:
                key = self.ssl_keyfile or self.ssl_certfile
                options["kafka.ssl.keystore.type"] = "PEM"
                chain = _pem("ssl_certfile", self.ssl_certfile)
                options["kafka.ssl.keystore.certificate.chain"] = chain
                options["kafka.ssl.keystore.key"] = _pem("ssl_keyfile", key)
                if self.ssl_key_password is not None:
                    options["kafka.ssl.key.password"] = self.ssl_key_password
        return options


def _quoted(text: str | None) -> str:
    """The text in quotes, as JAAS reads it."""
    escaped = (text or "").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _pem(option: str, path: str) -> str:
    try:
        return Path(path).read_text("ascii")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no text"
        raise OptionError(option, path, f"a PEM file that can be read ({why})") from error


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            content = file.read(CONFIG_BYTES_MAX + 1)
        if len(content) > CONFIG_BYTES_MAX:
            raise OptionError("security file", str(path), f"of at most {CONFIG_BYTES_MAX:,} bytes")
        return dict(tomllib.loads(content.decode()))
    except OSError as error:
        raise OptionError("security file", str(path), f"readable ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        # Without the parser's message: it may quote a line with a password in it.
        raise OptionError("security file", str(path), 'TOML: name = "value" lines') from error
