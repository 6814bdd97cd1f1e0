"""The expressions of the Grafana dashboard, evaluated by a real Prometheus that has scraped a driven job.

Needs the program `prometheus` (Debian: `apt-get install prometheus`).
"""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import pytest

from coordlog.log.memory import MemoryLog
from coordlog.telemetry.health import Health
from coordlog.telemetry.observer import Observer
from coordlog.telemetry.prometheus import PrometheusReporter
from coordlog.telemetry.server import MetricsServer
from driven_history import DrivenJob

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.tier("matrix"),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus here"),
]

DASHBOARD: Final = Path(__file__).parents[3] / "docs" / "grafana" / "coordlog.json"
JOB: Final = "flights"
WAIT_S: Final = 90.0
VARIABLES: Final = {"$job": ".*", "$__rate_interval": "1m", "$__interval": "1m"}
WITHOUT_DATA: Final = 'coordlog_commit_outcome="failed"'
"""Part of the expression whose series begins with an event that this job does not have."""


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def queried(port: int, expression: str) -> list[dict[str, Any]]:
    """Series of an expression now."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with closing(connection):
        query = urllib.parse.urlencode({"query": expression})
        connection.request("GET", f"/api/v1/query?{query}")
        response = connection.getresponse()
        body = response.read()
    if response.status == HTTPStatus.SERVICE_UNAVAILABLE:
        raise ConnectionError("it is starting")
    assert response.status == HTTPStatus.OK, body
    series: list[dict[str, Any]] = json.loads(body)["data"]["result"]
    return series


def wait_until(is_true: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while True:
        try:
            if is_true():
                return
        except OSError:
            pass
        assert time.monotonic() < until
        time.sleep(0.2)


def expressions() -> Iterator[tuple[str, str]]:
    """Title and expression of each target, with the dashboard's variables replaced."""
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            yield panel["title"], text


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[int]:
    """Port of a Prometheus that has scraped a job before and after its work."""
    reporter = PrometheusReporter()
    observer = Observer([reporter])
    healthy = Health(is_healthy=True, state="progressing", reason="as usual")
    server = MetricsServer("127.0.0.1", 0, metrics=reporter.text, health=lambda: healthy)
    port = free_port()
    config = tmp_path / "prometheus.yml"
    target = server.url.removeprefix("http://")
    config.write_text(
        "scrape_configs:\n"
        "  - job_name: coordlog\n    scrape_interval: 1s\n    scrape_timeout: 1s\n"
        f"    static_configs: [{{targets: ['{target}']}}]\n",
        encoding="utf-8",
    )
    program = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def scrapes() -> float:
        result = queried(port, "count_over_time(up[5m])")
        return float(result[0]["value"][1]) if result else 0.0

    try:
        wait_until(lambda: scrapes() >= 1)
        DrivenJob(tmp_path, JOB, is_batch=False).drive(
            MemoryLog(JOB), observer=observer, kill_attempt_at=3
        )
        before = scrapes()
        wait_until(lambda: scrapes() >= before + 3)
        yield port
    finally:
        program.terminate()
        program.wait(WAIT_S)
        server.close()
        observer.end()


def test_each_panel_of_the_dashboard_has_data_in_a_real_prometheus(scraped: int) -> None:
    empty = {text for _, text in expressions() if not queried(scraped, text)}

    assert {text for text in empty if WITHOUT_DATA not in text} == set()
