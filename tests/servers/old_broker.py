"""What a broker of another version says when a client connects; it has no topics."""

from __future__ import annotations

import contextlib
import socketserver
import struct
import threading
from collections.abc import Iterator
from typing import Any

from kafka.protocol.admin import (
    DescribeClusterResponse,  # pyright: ignore[reportAttributeAccessIssue]  # its stubs are older
)
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS
from kafka.protocol.metadata import (
    ApiVersionsResponse,  # pyright: ignore[reportAttributeAccessIssue]  # its stubs are older
    MetadataResponse,
)

__all__ = ["broker_of_version"]

_METADATA, _API_VERSIONS, _DESCRIBE_CLUSTER = 3, 18, 60
_UNSUPPORTED = 35


@contextlib.contextmanager
def broker_of_version(version: tuple[int, ...]) -> Iterator[str]:
    """Bootstrap servers."""
    every: Any = BROKER_API_VERSIONS  # its stubs have another key
    supported: dict[int, tuple[int, int]] = every[version]
    keys = [(key, low, high) for key, (low, high) in supported.items()]

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while head := self.rfile.read(4):
                request = self.rfile.read(*struct.unpack(">i", head))
                api, api_version, correlation = struct.unpack(">hhi", request[:8])
                answer = struct.pack(">i", correlation) + self.answer(api, api_version)
                self.wfile.write(struct.pack(">i", len(answer)) + answer)

        def answer(self, api: int, api_version: int) -> bytes:
            highest = supported[api][1]
            if api == _API_VERSIONS:
                known = api_version <= highest
                said = ApiVersionsResponse(
                    version=api_version if known else 0,
                    error_code=0 if known else _UNSUPPORTED,
                    api_keys=keys,
                )
                return bytes(said.encode())
            host, port, *_ = self.request.getsockname()
            if api == _DESCRIBE_CLUSTER:
                cluster: Any = DescribeClusterResponse(
                    version=api_version,
                    error_code=0,
                    cluster_id="old",
                    controller_id=1,
                    brokers=[(1, str(host), port, None)],
                )
                return b"\0" + bytes(cluster.encode())
            assert api == _METADATA, "nothing else is asked of it"
            response: Any = MetadataResponse(
                version=api_version,
                brokers=[(1, str(host), port, None)],
                cluster_id="old",
                controller_id=1,
                topics=[],
            )
            no_tags = b"\0" if response.flexible_version_q(api_version) else b""
            return no_tags + bytes(response.encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
