"""A broker that asks for certificates, passwords and rights: one, with a listener for each way in."""

from __future__ import annotations

import contextlib
import datetime as dt
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
    ScramMechanism,  # pyright: ignore[reportAttributeAccessIssue]  # its stubs are older
    UserScramCredentialUpsertion,  # pyright: ignore[reportAttributeAccessIssue]  # as above
)

from coordlog.log.broker import limits as broker_limits
from coordlog.log.broker.embedded import EmbeddedBroker, embedded_broker
from coordlog.log.broker.process import is_free
from coordlog.log.kafka import Security
from coordlog.log.kafka.topic import Durability, settings_to_create

__all__ = ["PASSWORD", "Certificates", "SecuredBroker", "secured_broker"]

PASSWORD: Final = "s3cret-Passw0rd-of-ann"
"""Of every user; to be found nowhere."""

_SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SASL: Final = ("sasl_ssl", "sasl_plaintext")


@dataclass(frozen=True, kw_only=True)
class Certificates:
    """PEM files: an authority, what it signed for `localhost`, and an authority that nobody asked."""

    authority: Path
    server: Path
    stranger: Path


@dataclass(kw_only=True)
class SecuredBroker:
    """Its listeners, each under the name in the certificate; the plain one is the administrator's."""

    broker: EmbeddedBroker
    certificates: Certificates
    ports: Mapping[str, int]

    def at(self, listener: str, host: str = "localhost") -> str:
        """Bootstrap servers."""
        return f"{host}:{self.ports[listener]}"

    def variables(self, listener: str, user: str = "", **more: str) -> dict[str, str]:
        """The environment of a client that does everything right, with what is to be otherwise."""
        options = {"protocol": listener}
        if listener.endswith("SSL"):
            options |= {"ssl_cafile": str(self.certificates.authority)}
        if listener.startswith("SASL"):
            options |= {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": user}
            options |= {"sasl_password": PASSWORD}
        options |= more
        return {f"COORDLOG_KAFKA_{name.upper()}": value for name, value in options.items()}

    def security(self, listener: str, user: str = "", **more: str) -> Security:
        """The same as options."""
        return Security.load(self.variables(listener, user, **more))

    @contextlib.contextmanager
    def admin(self) -> Iterator[Any]:
        """The administrator's client."""
        client = KafkaAdminClient(bootstrap_servers=self.at("PLAINTEXT"))
        try:
            yield client
        finally:
            client.close()

    def add_user(self, name: str) -> None:
        """A user with SCRAM of both strengths, and no rights."""
        with self.admin() as admin:
            # One of a user at a time: the broker takes no two changes of one user.
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
                made = UserScramCredentialUpsertion(name, mechanism, PASSWORD, iterations=4096)
                assert admin.alter_user_scram_credentials([made]) == {name: None}

    def make_topic(self, name: str) -> None:
        """As the administrator makes a log's topic before its job is there."""
        configs = settings_to_create(Durability(), 1)
        with self.admin() as admin:
            admin.create_topics(
                {name: {"num_partitions": 1, "replication_factor": 1, "configs": configs}}
            )
            admin.wait_for_topics([name])

    def allow(self, user: str, operation: str, topic: str) -> None:
        """Give a user one right on one topic."""
        with self.admin() as admin:
            made = admin.create_acls([_acl(user, operation, topic)])
            assert not made["failed"], made

    def forbid(self, user: str, operation: str, topic: str) -> None:
        """Take it away."""
        one = _acl(user, operation, topic)
        wanted = ACLFilter(
            one.principal, one.host, one.operation, one.permission_type, one.resource_pattern
        )
        with self.admin() as admin:
            ((_, removed, error),) = admin.delete_acls([wanted])
            assert len(removed) == 1, error


def _acl(user: str, operation: str, topic: str) -> ACL:
    name = "".join(f"_{one}" if one.isupper() else one for one in operation).upper().lstrip("_")
    return ACL(
        principal=f"User:{user}",
        host="*",
        operation=ACLOperation[name],
        permission_type=ACLPermissionType.ALLOW,
        resource_pattern=ResourcePattern(ResourceType.TOPIC, topic),
    )


@contextlib.contextmanager
def secured_broker(
    folder: Path, *, plain_users: tuple[str, ...] = ("ann",)
) -> Iterator[SecuredBroker]:
    """Run one for the block; `folder` takes its keys. Users of PLAIN are known from the start."""
    certificates = _certificates(folder)
    names = ("PLAINTEXT", "SSL", "SASL_SSL", "SASL_PLAINTEXT", "CONTROLLER")
    ports: dict[str, int] = dict(zip(names, free_ports(len(names)), strict=True))
    users = " ".join(f'user_{one}="{PASSWORD}"' for one in plain_users)
    settings = {
        "listeners": _listeners(ports, "127.0.0.1"),
        "advertised.listeners": _listeners({n: p for n, p in ports.items() if n != "CONTROLLER"}),
        "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
        "listener.security.protocol.map": ",".join(
            f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in names
        ),
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.server),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    for one in _SASL:
        settings[f"listener.name.{one}.plain.sasl.jaas.config"] = f"{_PLAIN} {users};"
        for strength in ("256", "512"):
            settings[f"listener.name.{one}.scram-sha-{strength}.sasl.jaas.config"] = _SCRAM
    with embedded_broker(port=ports["PLAINTEXT"], settings=settings) as broker:
        yield SecuredBroker(broker=broker, certificates=certificates, ports=ports)


def _listeners(ports: Mapping[str, int], host: str = "localhost") -> str:
    return ",".join(f"{name}://{host}:{port}" for name, port in ports.items())


def free_ports(count: int) -> list[int]:
    candidates = list(broker_limits.PORTS)
    random.SystemRandom().shuffle(candidates)
    found = [port for port in candidates[: 20 * count] if is_free(port)]
    return found[:count]


def _certificates(folder: Path) -> Certificates:
    key, authority = _authority("those who are trusted")
    _, stranger = _authority("somebody else")
    server_key = ec.generate_private_key(ec.SECP256R1())
    server = (
        _begun("localhost", authority.subject, server_key)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = server_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    made = Certificates(
        authority=folder / "authority.pem",
        server=folder / "server.pem",
        stranger=folder / "stranger.pem",
    )
    made.authority.write_bytes(_pem(authority))
    made.stranger.write_bytes(_pem(stranger))
    made.server.write_bytes(private + _pem(server))
    return made


def _authority(name: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    itself = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    made = (
        _begun(name, itself, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return key, made


def _begun(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=2))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
