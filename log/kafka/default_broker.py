"""The broker of a job's log if the caller names none: the same as for the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from coordlog.log.kafka.security import Security

__all__ = ["SERVERS_VARIABLE", "default_broker", "security_for"]

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
    return Security() if shared_status().bootstrap_servers == bootstrap_servers else loaded
