"""Secrets in URLs: recognised before the URL is used, shown or recorded."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl

from coordlog.errors import OptionError

__all__ = ["refuse_credentials", "without_credentials"]

_SECRET: Final = re.compile(
    r"(secret|password|passwd|token|signature|credential|access.?key|api.?key)|^(sig|key|pwd)$",
    re.IGNORECASE,
)
_NAME_IS_SECRET: Final = ("http", "https", "s3", "s3a", "s3n")
"""Schemes whose user alone is a token or a key."""
_WITHOUT_PORTS: Final = frozenset(
    {"s3", "s3a", "s3n", "gs", "gcs", "az", "abfs", "abfss", "wasb", "wasbs", "oss"}
)
_HOST_AND_PORT: Final = re.compile(r"(\[[^\]]*\]|[^:]*):\d+")
_CHAIN: Final = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]*:(?://|:))")
"""Between the links of a chained URL; an address such as [::1] is none."""
_URL: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>[^\s]+)")


def refuse_credentials(option: str, url: str) -> None:
    """Raise OptionError, which does not show it, if a URL holds a secret.

    A user's name alone is none, unless the scheme is HTTP or S3: there it is a token or a key. URLs are in the log for
    good, so that each reader of the log would find the secret.
    """
    for link in _CHAIN.split(url):
        scheme, separator, rest = link.partition("://")
        if not separator:
            continue
        user = _user_in(scheme, rest)
        is_secret = user is not None and (
            any(sign in user for sign in ":/?#") or scheme.lower() in _NAME_IS_SECRET
        )
        names = [] if is_secret else _secret_parameters(rest)
        if not is_secret and not names:
            continue
        where = f" in its parameter {names[0]!r}" if names else ""
        shown = f"***@{rest.rpartition('@')[2]}" if is_secret else re.split("[/?#]", rest)[0]
        if is_secret and _secret_parameters(rest):
            shown = "***"
        raise OptionError(
            option,
            f"{scheme}://{shown}",
            f"a URL without credentials (this one has some{where}): paths are in the log; set "
            "them to fsspec by its environment or configuration (AWS_ACCESS_KEY_ID, FSSPEC_S3_KEY, "
            "~/.config/fsspec)" + (", or with `storage_options=`" if option == "path" else ""),
        )


def without_credentials(text: str, hidden: str) -> str:
    """A text with `hidden` in place of users and secrets of the URLs in it."""
    return _URL.sub(lambda url: _masked(url["scheme"], url["rest"], hidden), text)


def _masked(scheme: str, rest: str, hidden: str) -> str:
    links = _CHAIN.split(rest)
    masked = [_masked_link(scheme, links[0], hidden)]
    for link in links[1:]:
        inner, separator, below = link.partition("://")
        masked.append(_masked_link(inner, below, hidden) if separator else link)
    return "::".join(masked)


def _masked_link(scheme: str, rest: str, hidden: str) -> str:
    user = _user_in(scheme, rest)
    return f"{scheme}://{rest if user is None else hidden + rest[len(user) :]}"


def _user_in(scheme: str, rest: str) -> str | None:
    """The user, with a secret if there is one, before the host; None if there is none.

    A secret may have the signs that end a host, such as the slash of half of all AWS keys: then the part before it is
    no host, because it ends with a colon and something other than a port.

    Args:
        scheme: The URL's.
        rest: What follows `://`.
    """
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        is_plain = ":" not in authority.rpartition("@")[0]
        return authority.rpartition("@")[0] if is_plain else rest.rpartition("@")[0]
    if "@" not in rest or ":" not in authority:
        return None
    if scheme.lower() not in _WITHOUT_PORTS and _HOST_AND_PORT.fullmatch(authority):
        return None
    return rest.rpartition("@")[0]


def _secret_parameters(rest: str) -> list[str]:
    query = rest.partition("#")[0].partition("?")[2]
    return [name for name, _ in parse_qsl(query) if _SECRET.search(name)]
