"""Where an endpoint listens, by the session and by what the user says."""

from __future__ import annotations

import pytest

from coordlog.errors import OptionError
from coordlog.spark_integration.driver.endpoint_options import EndpointOptions, EndpointPlace


class FakeSession:
    """A session's settings."""

    def __init__(self, **settings: str) -> None:
        self.conf = {key.replace("_", ".", 2): value for key, value in settings.items()}


LOCAL = FakeSession(spark_master="local[4,1000]", spark_driver_host="192.0.2.2")
CLUSTER = FakeSession(spark_master="spark://m:7077", spark_driver_host="192.0.2.2")
BEHIND = FakeSession(
    spark_master="k8s://x", spark_driver_host="driver.ns.svc", spark_driver_bindAddress="0.0.0.0"
)


def place(
    spark: FakeSession, *, host: str | None = None, bind: str | None = None
) -> tuple[str, str, bool]:
    found = EndpointOptions(host=host, bind=bind).on(spark)  # type: ignore[arg-type]
    return found.host, found.bind, found.is_encrypted


def test_in_local_mode_it_is_the_loopback_address_and_plain() -> None:
    assert place(LOCAL) == ("127.0.0.1", "127.0.0.1", False)


def test_on_a_cluster_it_is_the_drivers_address_and_encrypted() -> None:
    assert place(CLUSTER) == ("192.0.2.2", "192.0.2.2", True)
    assert place(BEHIND) == ("driver.ns.svc", "0.0.0.0", True)


def test_what_the_user_says_goes_before() -> None:
    assert place(CLUSTER, host="driver-7") == ("driver-7", "driver-7", True)
    assert place(CLUSTER, bind="0.0.0.0") == ("192.0.2.2", "0.0.0.0", True)
    assert place(BEHIND, host="a", bind="10.0.0.1") == ("a", "10.0.0.1", True)
    assert place(CLUSTER, host="127.0.0.1") == ("127.0.0.1", "127.0.0.1", True)


def test_in_local_mode_what_leaves_the_machine_is_encrypted() -> None:
    assert place(LOCAL, host="192.0.2.2") == ("192.0.2.2", "192.0.2.2", True)
    assert place(LOCAL, bind="0.0.0.0") == ("127.0.0.1", "0.0.0.0", True)
    assert place(LOCAL, bind="::1") == ("127.0.0.1", "::1", False)
    assert place(LOCAL, host="localhost") == ("localhost", "localhost", False)


def test_tls_can_be_had_and_can_be_left_out() -> None:
    assert EndpointOptions(tls="on").on(LOCAL).is_encrypted  # type: ignore[arg-type]
    assert not EndpointOptions(tls="off").on(CLUSTER).is_encrypted  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, range(1)), ("40000", range(40000, 40001)), ("40000-40002", range(40000, 40003))],
)
def test_ports_are_one_or_a_range(text: str | None, expected: range) -> None:
    assert EndpointOptions(ports=text).on(LOCAL) == EndpointPlace(  # type: ignore[arg-type]
        host="127.0.0.1", bind="127.0.0.1", ports=expected, is_encrypted=False
    )


@pytest.mark.parametrize("ports", ["", "0", "40010-40000", "70000", "1-", "a", "-5", "1-2-3"])
def test_other_ports_are_refused(ports: str) -> None:
    with pytest.raises(OptionError, match=r"endpoint_ports is .*40000-40099"):
        EndpointOptions(ports=ports)


@pytest.mark.parametrize("host", ["", "a b", "http://x", "a/b", "x" * 256])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(OptionError, match="endpoint_host"):
        EndpointOptions(host=host)
    with pytest.raises(OptionError, match="endpoint_bind"):
        EndpointOptions(bind=host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_nobody_can_connect_to_all_addresses(host: str) -> None:
    with pytest.raises(OptionError, match="set it as endpoint_bind"):
        EndpointOptions(host=host)
    EndpointOptions(bind=host)


def test_another_word_for_tls_is_refused() -> None:
    with pytest.raises(OptionError, match=r"endpoint_tls is 'yes'.*'auto' or 'on' or 'off'"):
        EndpointOptions(tls="yes")  # type: ignore[arg-type]
