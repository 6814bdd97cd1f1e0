"""HTTP endpoint of one job: `/metrics` for Prometheus, `/healthz` for Kubernetes. Reads only."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final, NamedTuple

from coordlog.errors import EnvironmentSetupError
from coordlog.limits import METRICS_CONNECTIONS_MAX, METRICS_REQUEST_S
from coordlog.log.local.time_limit import limited_time
from coordlog.telemetry.health import Health

__all__ = ["MetricsServer"]

_log = logging.getLogger(__name__)

_POLL_S: Final = 0.2
_JSON: Final = "application/json"


class MetricsServer:
    """Open from its creation to `close`.

    Args:
        host: Address to bind to.
        port: Port, or 0 for any free one.
        metrics: Returns the text of `/metrics` and its content type, for the client's `Accept`. Any thread.
        health: Returns the health for `/healthz`. Any thread.

    Raises:
        EnvironmentSetupError: The address cannot be bound.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        metrics: Callable[[str], tuple[bytes, str]],
        health: Callable[[], Health],
    ) -> None:
        self._metrics, self._health = metrics, health
        try:
            self._server = _Server(host, port, self._response)
        except OSError as error:
            raise EnvironmentSetupError(
                f"the metrics of the job cannot be served at {host}:{port}: {error.strerror or error}",
                "choose another metrics_port, 0 for any free one, or another metrics_host",
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="coordlog-metrics", daemon=True
        )
        self._thread.start()
        _log.info("metrics and health are served at %s", self.url)

    @property
    def url(self) -> str:
        """Address with its port, as in `http://127.0.0.1:9464`."""
        host, port = self._server.server_address[:2]
        text = host if isinstance(host, str) else bytes(host).decode()
        return f"http://[{text}]:{port}" if ":" in text else f"http://{text}:{port}"

    def close(self) -> None:
        """Close the port. Requests in progress end within their time limit. May be called twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(METRICS_REQUEST_S)

    def _response(self, path: str, accept: str) -> _Response:
        match path:
            case "/metrics":
                body, content_type = self._metrics(accept)
                return _Response(HTTPStatus.OK, body, content_type)
            case "/healthz":
                health = self._health()
                status = HTTPStatus.OK if health.is_healthy else HTTPStatus.SERVICE_UNAVAILABLE
                text = json.dumps(asdict(health), ensure_ascii=False)
                return _Response(status, text.encode() + b"\n", _JSON)
            case _:
                body = b"there are /metrics and /healthz\n"
                return _Response(HTTPStatus.NOT_FOUND, body, "text/plain; charset=utf-8")


class _Response(NamedTuple):
    status: HTTPStatus
    body: bytes
    content_type: str


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_s: ClassVar[float] = METRICS_REQUEST_S
    """Longest time of a whole request: a client may send a byte from time to time without an end."""

    def __init__(self, host: str, port: int, respond: Callable[[str, str], _Response]) -> None:
        self.respond = respond
        self._places = threading.BoundedSemaphore(METRICS_CONNECTIONS_MAX)
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((host, port), _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401, the signature above
        """Close connections above the limit."""
        return self._places.acquire(blocking=False)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, as above
        """Handle a connection, and free its place."""
        try:
            with limited_time(request, self.request_s):
                super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401, as above
        """Log an error of a connection in one line: a client that goes away is no fault."""
        _log.debug("a request for metrics failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout: ClassVar[float | None] = METRICS_REQUEST_S
    server_version = "coordlog"
    sys_version = ""

    def do_GET(self) -> None:
        """Respond to a request."""
        server = self.server
        assert isinstance(server, _Server), "it makes the handlers"
        path = self.path.partition("?")[0]
        response = server.respond(path, self.headers.get("Accept", ""))
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    do_HEAD = do_GET  # noqa: N815, the name decides

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002, the signature above
        """Requests are not logged: a scraper comes every few seconds."""
