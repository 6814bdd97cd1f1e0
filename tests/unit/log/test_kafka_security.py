"""Security options: where they come from, and that nothing shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordlog.errors import OptionError
from coordlog.limits import CONFIG_BYTES_MAX
from coordlog.log.kafka import KafkaLog, Security

SASL = {
    "COORDLOG_KAFKA_PROTOCOL": "SASL_SSL",
    "COORDLOG_KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
    "COORDLOG_KAFKA_SASL_USERNAME": "ann",
    "COORDLOG_KAFKA_SASL_PASSWORD": "s3cret",
}


def test_nothing_said_is_plaintext() -> None:
    assert Security.load({}).client_options() == {"security_protocol": "PLAINTEXT"}


def test_the_environment_is_read() -> None:
    options = Security.load(SASL).client_options()
    assert options["security_protocol"] == "SASL_SSL"
    assert options["sasl_mechanism"] == "SCRAM-SHA-512"
    assert options["sasl_plain_username"] == "ann"
    assert options["sasl_plain_password"] == "s3cret"
    assert options["ssl_check_hostname"] is True


def test_a_file_is_read_and_the_environment_goes_before_it(tmp_path: Path) -> None:
    file = tmp_path / "security.toml"
    file.write_text('protocol = "SSL"\nssl_cafile = "/ca.pem"\nssl_check_hostname = "no"\n')
    named = {"COORDLOG_KAFKA_SECURITY_FILE": str(file), "COORDLOG_KAFKA_SSL_CAFILE": "/other.pem"}
    for options in (
        Security.load(named),
        Security.load({"COORDLOG_KAFKA_SSL_CAFILE": "/other.pem"}, file),
    ):
        assert options.protocol == "SSL"
        assert options.client_options()["ssl_cafile"] == "/other.pem"
        assert options.client_options()["ssl_check_hostname"] is False


def test_spark_gets_the_same_in_its_own_words(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("the authority")
    variables = SASL | {"COORDLOG_KAFKA_SSL_CAFILE": str(authority)}
    variables["COORDLOG_KAFKA_SASL_PASSWORD"] = 's3"c\\ret'
    variables["COORDLOG_KAFKA_SSL_CHECK_HOSTNAME"] = "no"
    assert Security.load(variables).spark_options() == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required"
            ' username="ann" password="s3\\"c\\\\ret";'
        ),
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "the authority",
    }


def test_spark_gets_certificate_and_key_as_text(tmp_path: Path) -> None:
    for name in ("cert", "key"):
        (tmp_path / name).write_text(f"the {name}")
    security = Security(
        protocol="SSL",
        ssl_certfile=str(tmp_path / "cert"),
        ssl_keyfile=str(tmp_path / "key"),
        ssl_key_password="s3cret",
    )
    assert security.spark_options() == {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "the cert",
        "kafka.ssl.keystore.key": "the key",
        "kafka.ssl.key.password": "s3cret",
    }
    (tmp_path / "key").unlink()
    with pytest.raises(OptionError, match=r"ssl_keyfile is .*a PEM file that can be read"):
        security.spark_options()


def test_a_secret_is_in_no_repr() -> None:
    security = Security.load(SASL)
    shown = f"{security!r} {security} {security.client_options()}"
    shown += repr(KafkaLog("ingest.log", "127.0.0.1:9092", security=security))
    assert "s3cret" not in shown
    assert "SASL_SSL" in shown


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('protocol = "TLS"', "protocol is 'TLS'"),
        ('protocol = "SASL_SSL"', "sasl_mechanism is None"),
        ('protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"', "sasl_username"),
        ('passwort = "s3cret"', "security option is 'passwort'"),
        ("sasl_password = 5", "sasl_password is 'int'"),
        ('sasl_password = "s3cret', "security file"),
        ('ssl_check_hostname = "maybe"', "ssl_check_hostname is 'maybe'"),
        (f'sasl_password = "s3cret" #{"x" * CONFIG_BYTES_MAX}', "of at most 1,048,576 bytes"),
    ],
)
def test_a_wrong_option_is_named_and_its_secret_is_not(
    tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "security.toml"
    file.write_text(content)
    with pytest.raises(OptionError) as caught:
        Security.load({}, file)
    assert message in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": None}, "protocol is 'NoneType'"),
        ({"sasl_password": b"s3cret"}, "sasl_password is 'bytes'"),
        ({"ssl_check_hostname": ["s3cret"]}, "ssl_check_hostname is 'list'"),
        ({"sasl_password": "s3cret"}, "SASL_SSL if sasl_password is set: it does nothing here"),
        ({"protocol": "SSL", "sasl_username": "ann"}, "sasl_username is set"),
        ({"ssl_cafile": "ca.pem"}, "SSL or SASL_SSL if ssl_cafile is set"),
        ({"protocol": "SSL", "ssl_keyfile": "key.pem"}, "set together with ssl_keyfile"),
    ],
)
def test_an_option_without_effect_is_refused_and_no_secret_is_shown(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError) as caught:
        Security(**options)
    assert message in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"nowhere\.toml"):
        Security.load({}, tmp_path / "nowhere.toml")
