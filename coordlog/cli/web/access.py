"""Access to the served pages: allowed methods and host names, the token; and the headers of each response."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["COOKIE", "Guard", "is_loopback"]

COOKIE: Final = "coordlog-token"
_POLICY: Final = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """ASGI middleware: refuses requests that may not read, and adds the headers.

    Args:
        app: The application.
        host: Address at which it listens.
        token: Secret of the readers, or None: a reader on this machine needs none.
    """

    def __init__(self, app: ASGIApp, host: str, token: str | None) -> None:
        self._app, self._token = app, token
        self._names = {"localhost", host.lower(), socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(Request(scope))
        await (self._app if refusal is None else refusal)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        if request.method not in {"GET", "HEAD"}:
            return _refused("only GET and HEAD", 405)
        # With a token a foreign name is harmless: no cookie is sent to it.
        if self._token is None and not self._is_known_host(request.headers.get("host", "")):
            return _refused("the header Host names another server", 421)
        if self._token is None or self._is_token(request.cookies.get(COOKIE)):
            return None
        if request.url.path == "/" and self._is_token(request.query_params.get("token")):
            response = RedirectResponse("/", 303)
            response.set_cookie(COOKIE, self._token, httponly=True, samesite="strict")
            return response
        return _refused("open the URL with the token that `coordlog web` has printed", 403)

    def _is_token(self, value: str | None) -> bool:
        if value is None or self._token is None:
            return False
        return hmac.compare_digest(value.encode(), self._token.encode())

    def _is_known_host(self, header: str) -> bool:
        """Whether a name is the server's own, or an IP address: foreign names may lead here too (DNS rebinding)."""
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _refused(words: str, status: int) -> Response:
    return PlainTextResponse(f"{words}\n", status)
