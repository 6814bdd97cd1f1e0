"""The broker of a job's log if the caller names none: the same as for the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from coordlog.errors import EnvironmentSetupError
from coordlog.log.kafka.security import Security

__all__ = ["SERVERS_VARIABLE", "default_broker", "full_disk_of", "security_for"]

SERVERS_VARIABLE: Final = "COORDLOG_BOOTSTRAP_SERVERS"


def default_broker(environment: Mapping[str, str] | None = None) -> tuple[str, Security]:
    """The broker that `COORDLOG_BOOTSTRAP_SERVERS` names, else the shared local one; with its security options.

    The shared broker is started if it does not run, and requires no password.

    Raises:
        OptionError: A security option is unknown or wrong.
        EnvironmentSetupError: No Java, no jars.
        BrokerError: The shared broker does not come up, or does not answer.
    """
    variables = os.environ if environment is None else environment
    servers = variables.get(SERVERS_VARIABLE)
    if servers:
        return servers, Security.load(variables)
    from coordlog.log.broker.shared import ensure_shared_broker  # noqa: PLC0415, none is started else

    return ensure_shared_broker().bootstrap_servers, Security()


def security_for(bootstrap_servers: str, environment: Mapping[str, str] | None = None) -> Security:
    """Security options of a named broker: those of the environment, or none for the shared local broker.

    Raises:
        OptionError: An option is unknown or wrong.
    """
    from coordlog.log.broker.shared import shared_status  # noqa: PLC0415, as above

    loaded = Security.load(os.environ if environment is None else environment)
    if loaded == Security():
        return loaded
    try:
        is_shared = shared_status().bootstrap_servers == bootstrap_servers
    except EnvironmentSetupError:  # the shared broker's folder is another user's
        is_shared = False
    return Security() if is_shared else loaded


def full_disk_of(bootstrap_servers: str) -> str:
    """As `full_disk` of the shared local broker: empty for any other."""
    from coordlog.log.broker.shared import full_disk  # noqa: PLC0415, as above

    return full_disk(bootstrap_servers)
