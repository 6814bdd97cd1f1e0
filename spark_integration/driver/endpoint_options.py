"""Options of a driver's endpoint: its bound address, its address for tasks and clients, and its encryption."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, Literal

from coordlog.errors import OptionError
from coordlog.option_types import check_all, check_types
from coordlog.spark_integration.driver.endpoint import ANY_PORT
from coordlog.spark_integration.driver.stage import endpoint_host, is_local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["EndpointOptions", "EndpointPlace", "Tls"]

Tls = Literal["auto", "on", "off"]

_PORTS: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_PORT_LAST: Final = 65_535
_HOST: Final = re.compile(r"[A-Za-z0-9._:-]{1,255}")
_LOOPBACK_NAME: Final = "localhost"
_PREFIX: Final = "endpoint_"
"""Prefix of the names of options in errors, as on the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointPlace:
    """Place of an endpoint on a session: its options with all defaults filled in."""

    host: str
    """Address to which tasks and clients connect."""
    bind: str
    """Address to which the endpoint is bound."""
    ports: range
    """Candidates for the port: the first free one is used."""
    is_encrypted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """Endpoint at which a job's driver listens for its tasks and for clients.

    Args:
        host: Address or name to which tasks and clients connect. None: 127.0.0.1 with a `local[…]`
            master, else `spark.driver.host`.
        bind: Address of this machine to which the endpoint is bound, `0.0.0.0` for all. None: 127.0.0.1
            with a `local[…]` master unless `host` is given, else `spark.driver.bindAddress`, else the host.
        ports: One port, or a range as `"40000-40099"`, of which the first free port is taken. None: any.
        tls: `"on"`, `"off"`, or `"auto"`: on, except with a `local[…]` master whose endpoint is bound to
            the loopback interface.

    Raises:
        OptionError: An option has a wrong type or is out of range.
        OptionsError: Several options are wrong.
    """

    host: str | None = None
    bind: str | None = None
    ports: str | None = None
    tls: Tls = "auto"

    def __post_init__(self) -> None:
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        check_types(EndpointOptions.__init__, options, prefix=_PREFIX)
        check_all(
            lambda: _check_host("endpoint_host", self.host),
            lambda: _check_reachable(self.host),
            lambda: _check_host("endpoint_bind", self.bind),
            lambda: _ports(self.ports),
        )

    def on(self, spark: SparkSession) -> EndpointPlace:
        """Place of the endpoint with this session."""
        is_local = is_local_session(spark)
        host = self.host or endpoint_host(spark)
        if self.bind is not None:
            bind = self.bind
        elif is_local:
            bind = host
        else:
            bind = spark.conf.get("spark.driver.bindAddress", None) or host
        is_encrypted = self.tls == "on" or (
            self.tls == "auto" and not (is_local and _is_loopback(bind))
        )
        return EndpointPlace(
            host=host, bind=bind, ports=_ports(self.ports), is_encrypted=is_encrypted
        )


def _check_host(option: str, host: str | None) -> None:
    if host is not None and not _HOST.fullmatch(host):
        raise OptionError(option, host, "an address or a name, without a port")


def _check_reachable(host: str | None) -> None:
    if host is not None and _is_unspecified(host):
        raise OptionError(
            "endpoint_host",
            host,
            "an address that tasks can connect to; to listen at all addresses of this machine, "
            "set it as endpoint_bind",
        )


def _ports(text: str | None) -> range:
    if text is None:
        return ANY_PORT
    match = _PORTS.fullmatch(text)
    first = int(match[1]) if match else 0
    last = int(match[2] or first) if match else 0
    if not 1 <= first <= last <= _PORT_LAST:
        raise OptionError(
            "endpoint_ports", text, f"a port or a range within 1 to {_PORT_LAST}, as in 40000-40099"
        )
    return range(first, last + 1)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == _LOOPBACK_NAME


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
