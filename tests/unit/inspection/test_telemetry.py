"""Parts of telemetry: the endpoint, the queue, the options, the dashboard, log lines."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner
from google.protobuf import json_format
from openlineage.client.event_v2 import RunEvent as LineageEvent
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from coordlog import Chain, KafkaSource, Kind, Record
from coordlog.cli.main import main
from coordlog.errors import EnvironmentSetupError, OptionError, OptionsError
from coordlog.history import History
from coordlog.limits import METRICS_CONNECTIONS_MAX
from coordlog.log.file import ExportedLog
from coordlog.projections.inspection.verdict import Verdict, VerdictState
from coordlog.projections.telemetry.lineage import LineageFold, dataset_of
from coordlog.projections.telemetry.metrics import (
    JOB_LABEL,
    METRICS,
    Instrument,
    prometheus_label,
    prometheus_name,
)
from coordlog.projections.telemetry.spans import spans
from coordlog.restore.compatibility import describe_operators
from coordlog.spark_integration.job_options import Telemetry
from coordlog.telemetry import opening
from coordlog.telemetry.health import Health, health_of
from coordlog.telemetry.lineage import lineage_event
from coordlog.telemetry.logs import JobLogFilter, JsonFormatter
from coordlog.telemetry.opening import open_telemetry
from coordlog.telemetry.otlp import otlp_lines
from coordlog.telemetry.server import MetricsServer
from coordlog.telemetry.worker import BoundedWorker
from metric_table import DOCS, renewed

ROOT: Final = Path(__file__).parents[3]
GOLDEN: Final = ROOT / "tests" / "golden" / "audited-history.avro"
DASHBOARD: Final = ROOT / "docs" / "grafana" / "coordlog.json"
LIBRARIES: Final = ("opentelemetry", "prometheus_client", "openlineage")
WAIT_S: Final = 10.0


# --- the endpoint -----------------------------------------------------------------------------------------------------
@contextmanager
def served(health: Health | None = None) -> Iterator[MetricsServer]:
    health = health or Health(is_healthy=True, state="progressing", reason="as usual", since_us=1)
    server = MetricsServer(
        "127.0.0.1",
        0,
        metrics=lambda accept: (f"for {accept}\n".encode(), "text/plain"),
        health=lambda: health,
    )
    try:
        yield server
    finally:
        server.close()


def respond(server: MetricsServer, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=WAIT_S)
    with closing(connection):
        connection.request(method, path, headers={"Accept": "openmetrics"})
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_the_endpoint_serves_metrics_and_health_and_nothing_else() -> None:
    with served() as server:
        assert respond(server, "/metrics") == (200, "for openmetrics\n")
        status, body = respond(server, "/healthz?verbose")
        assert (status, json.loads(body)["state"]) == (200, "progressing")
        assert respond(server, "/metrics", "HEAD") == (200, "")
        assert respond(server, "/../etc/passwd")[0] == 404
        assert respond(server, "/metrics", "POST")[0] == 501


def test_an_unhealthy_job_is_a_503_with_the_reason() -> None:
    stuck = Health(is_healthy=False, state="stuck", reason="checkpoint 7 waits", since_us=5)

    with served(stuck) as server:
        status, body = respond(server, "/healthz")

    assert status == 503
    assert json.loads(body) == {
        "is_healthy": False,
        "state": "stuck",
        "reason": "checkpoint 7 waits",
        "since_us": 5,
    }


def test_connections_above_the_limit_are_closed_at_once() -> None:
    with served() as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        silent = [
            socket.create_connection((host, int(port)), WAIT_S)
            for _ in range(METRICS_CONNECTIONS_MAX + 3)
        ]
        admitted, refused = silent[:METRICS_CONNECTIONS_MAX], silent[METRICS_CONNECTIONS_MAX:]

        assert [connection.recv(1) for connection in refused] == [b""] * 3
        for connection in admitted:
            connection.settimeout(0)
            with pytest.raises(BlockingIOError):
                connection.recv(1)
        for connection in silent:
            connection.close()


def test_silent_connections_lose_their_places_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coordlog.telemetry.server._Handler.timeout", 0.3)
    with served() as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        silent = [
            socket.create_connection((host, int(port)), WAIT_S)
            for _ in range(METRICS_CONNECTIONS_MAX)
        ]
        assert [connection.recv(1) for connection in silent] == [b""] * len(silent)
        for connection in silent:
            connection.close()
        until_s = time.monotonic() + WAIT_S
        while True:  # a place is free a moment after its connection is closed
            try:
                assert respond(server, "/healthz")[0] == 200
                break
            except (OSError, http.client.HTTPException):
                assert time.monotonic() < until_s


def test_clients_that_send_a_byte_at_times_lose_their_places_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each byte began the time limit of a read again: sixteen such clients held all places for good."""
    monkeypatch.setattr("coordlog.telemetry.server._Server.request_s", 0.5, raising=False)

    def send_on(connection: socket.socket) -> None:
        until_s = time.monotonic() + 4.0
        while time.monotonic() < until_s:
            connection.sendall(b"a")
            time.sleep(0.05)

    with served() as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        slow = socket.create_connection((host, int(port)), WAIT_S)
        slow.sendall(b"GET /")
        with closing(slow), pytest.raises((BrokenPipeError, ConnectionResetError)):
            send_on(slow)


def test_a_port_in_use_is_refused_before_the_job_begins() -> None:
    with served() as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(EnvironmentSetupError, match=f"127.0.0.1:{port}.*another metrics_port"):
            open_telemetry(
                metrics_port=port, metrics_host="127.0.0.1", otel="off", openlineage=False
            )
    assert not [t for t in threading.enumerate() if t.name == "coordlog-metrics"]


@pytest.mark.parametrize(
    ("state", "is_healthy"),
    [
        (VerdictState.PROGRESSING, True),
        (VerdictState.SLOW, True),
        (VerdictState.STUCK, False),
        (VerdictState.FAILED, False),
        (VerdictState.STOPPED, True),
        (VerdictState.FINISHED, True),
    ],
)
def test_stuck_and_failed_jobs_are_unhealthy(state: VerdictState, *, is_healthy: bool) -> None:
    health = health_of(Verdict(state=state, since_us=7, reason="so"))

    assert (health.is_healthy, health.state, health.reason) == (is_healthy, state.value, "so")


def test_a_job_that_is_being_restored_is_healthy() -> None:
    assert health_of(None).is_healthy


# --- the queue --------------------------------------------------------------------------------------------------------
def test_a_full_queue_drops_and_counts_and_never_waits() -> None:
    entered, release, handled = threading.Event(), threading.Event(), list[int]()

    def handle(items: list[int]) -> None:
        entered.set()
        release.wait(WAIT_S)
        handled.extend(items)

    worker = BoundedWorker("test", handle, 3)
    assert worker.offer(0)
    assert entered.wait(WAIT_S)
    offered = [worker.offer(number) for number in range(1, 6)]
    release.set()
    worker.end(WAIT_S)

    assert offered == [True, True, True, False, False]
    assert (handled, worker.dropped) == ([0, 1, 2, 3], 2)


# --- options and extras -----------------------------------------------------------------------------------------------
def test_without_options_nothing_is_opened() -> None:
    assert (
        open_telemetry(metrics_port=None, metrics_host="127.0.0.1", otel="off", openlineage=False)
        is None
    )


def test_a_job_without_telemetry_imports_none_of_the_libraries() -> None:
    code = (
        "import sys, coordlog.spark_integration.job, coordlog.cli.ingest.run, coordlog.cli.commands.repair.export\n"
        f"print([name for name in {LIBRARIES} if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("option", "value", "library", "extra"),
    [
        ("metrics_port", 0, "prometheus_client", "prometheus"),
        ("otel", "global", "opentelemetry.sdk.trace", "otel"),
        ("otel", "otlp", "opentelemetry.exporter.otlp.proto.http", "otel"),
        ("openlineage", True, "openlineage.client", "openlineage"),
    ],
)
def test_an_option_without_its_extra_is_refused_with_the_command(
    monkeypatch: pytest.MonkeyPatch, option: str, value: object, library: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    options: dict[str, Any] = {
        "metrics_port": None,
        "metrics_host": "127.0.0.1",
        "otel": "off",
        "openlineage": False,
        option: value,
    }

    with pytest.raises(EnvironmentSetupError) as caught:
        open_telemetry(**options)

    assert f"pip install 'coordlog[{extra}]'" in str(caught.value)
    assert option in str(caught.value)


def test_options_out_of_range_are_refused_all_at_once() -> None:
    with pytest.raises(OptionsError) as caught:
        Telemetry(metrics_port=70_000, metrics_host="http://0.0.0.0")
    assert [problem.partition(" ")[0] for problem in caught.value.problems] == [
        "metrics_port",
        "metrics_host",
    ]
    with pytest.raises(OptionError, match="otel is 'jaeger'"):
        Telemetry(otel="jaeger")  # type: ignore[arg-type]


def test_the_port_is_open_on_the_loopback_interface_by_default() -> None:
    assert Telemetry(metrics_port=0).metrics_host == "127.0.0.1"
    opened = open_telemetry(
        metrics_port=0, metrics_host=Telemetry().metrics_host, otel="off", openlineage=False
    )
    assert opened is not None
    assert opened.url is not None
    assert opened.url.startswith("http://127.0.0.1:")
    opened.end()
    opened.end()  # a failed start and the driver may both end it


def test_each_extra_has_the_libraries_that_its_option_imports() -> None:
    assert opening._LIBRARIES.keys() == {"prometheus", "otel", "otlp", "openlineage"}


# --- docs and dashboard -----------------------------------------------------------------------------------------------
def test_the_page_has_the_table_of_the_metrics() -> None:
    page = DOCS.read_text("utf-8")

    assert renewed(page) == page, "run tests/metric_table.py --write"


def test_names_of_metrics_follow_the_conventions() -> None:
    names = [metric.name for metric in METRICS]
    assert sorted(set(names)) == sorted(names)
    assert len(set(map(prometheus_name, METRICS))) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"coordlog(\.[a-z]+)+", metric.name), metric.name
        assert all(re.fullmatch(r"coordlog(\.[a-z_]+)+", label) for label in metric.labels)
        # No name is the namespace of another one, except a pair of a counter and its time.
        assert metric.unit == "s" or not metric.name.endswith("duration")


def exported_names() -> dict[str, set[str]]:
    """Labels of each series that a scrape can contain."""
    found: dict[str, set[str]] = {}
    for metric in METRICS:
        name, labels = prometheus_name(metric), {prometheus_label(JOB_LABEL)}
        labels |= {prometheus_label(label) for label in metric.labels}
        if metric.instrument is Instrument.HISTOGRAM:
            found[f"{name}_bucket"] = labels | {"le"}
            found[f"{name}_sum"] = found[f"{name}_count"] = labels
        else:
            found[name] = labels
    return found


def expressions(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("expr", "query", "legendFormat", "textFormat") and isinstance(value, str):
                yield value
            else:
                yield from expressions(value)
    elif isinstance(node, list):
        for item in node:
            yield from expressions(item)


def test_the_dashboard_names_series_and_labels_that_exist() -> None:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    known, labels = exported_names(), set[str]()
    for of_series in exported_names().values():
        labels |= of_series
    used: set[str] = set()
    for text in expressions(dashboard):
        words = set(re.findall(r"\bcoordlog_[a-z_]+", text))
        assert words <= known.keys() | labels, text
        used |= words & known.keys()

    assert len(used) >= 25, "most metrics have a panel"


def test_each_panel_has_a_place_a_title_and_a_source_of_its_own_choice() -> None:
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    panels = dashboard["panels"]

    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["title"]
        if panel["type"] != "row":
            assert panel["description"]
            assert [target["refId"] for target in panel["targets"]] == [
                chr(ord("A") + number) for number in range(len(panel["targets"]))
            ]
            for target in panel["targets"]:
                assert target["datasource"]["uid"] == "${datasource}"


# --- traces of a stored log -------------------------------------------------------------------------------------------
def as_protobuf_json(line: bytes) -> str:
    """OTLP's JSON has ids in hexadecimal digits, and protobuf's in base64."""

    def to_base64(match: re.Match[bytes]) -> bytes:
        return match[1] + base64.b64encode(bytes.fromhex(match[2].decode())) + b'"'

    return re.sub(rb'("(?:traceId|spanId|parentSpanId)":")([0-9a-f]+)"', to_base64, line).decode()


def test_the_file_is_what_the_protocol_describes() -> None:
    records = [entry.known() for entry in History(ExportedLog(GOLDEN)).records() if entry.counts]
    expected = spans(records)

    lines = [line for line, _ in otlp_lines(expected)]

    read = [
        span
        for line in lines
        for resource in json_format.Parse(
            as_protobuf_json(line), ExportTraceServiceRequest()
        ).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    assert [(s.trace_id.hex(), s.span_id.hex(), s.name, s.end_time_unix_nano) for s in read] == [
        (f"{s.trace_id:032x}", f"{s.span_id:016x}", s.name, s.end_us * 1000) for s in expected
    ]
    assert [s.status.message or None for s in read] == [s.error for s in expected]


def test_export_writes_the_traces_of_a_file(tmp_path: Path) -> None:
    runner, target = CliRunner(), tmp_path / "traces.json"

    first = runner.invoke(main, ["export", str(GOLDEN), str(target), "--otlp"])
    again = runner.invoke(main, ["export", str(GOLDEN), str(target), "--otlp"])
    forced = runner.invoke(main, ["export", str(GOLDEN), str(target), "--otlp", "--force"])

    assert (first.exit_code, again.exit_code, forced.exit_code) == (0, 2, 0)
    assert "exported 45 spans of job" in first.stderr
    [line] = target.read_text("utf-8").splitlines()
    [resource] = json.loads(line)["resourceSpans"]
    assert len(resource["scopeSpans"][0]["spans"]) == 45
    assert sorted(path.name for path in tmp_path.iterdir()) == ["traces.json"]


def test_an_endpoint_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1/traces"
        result = CliRunner().invoke(main, ["export", str(GOLDEN), url, "--otlp"])

    assert result.exit_code == 1
    assert "has not accepted the spans; 0 were sent before" in result.stderr


def test_health_of_a_file_is_that_of_its_last_record() -> None:
    result = CliRunner().invoke(main, ["health", str(GOLDEN), "--json"])

    assert result.exit_code == 0
    assert json.loads(result.stdout)["state"] == "finished"


# --- lineage ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("place", "namespace", "name"),
    [
        ("/data/in", "file", "/data/in"),
        ("file:///data/in", "file", "/data/in"),
        ("s3://bucket/a/b", "s3://bucket", "a/b"),
        ("s3://bucket", "s3://bucket", "/"),
        ("https://host:8443/x.csv", "https://host:8443", "x.csv"),
        ("kafka://broker:9092/orders", "kafka://broker:9092", "orders"),
    ],
)
def test_datasets_have_the_names_of_the_conventions(place: str, namespace: str, name: str) -> None:
    dataset = dataset_of(place)

    assert (dataset.namespace, dataset.name) == (namespace, name)


def test_topics_are_inputs_and_have_rows_if_there_is_one() -> None:
    def begun(*topics: str) -> LineageEvent:
        source = KafkaSource(topics, bootstrap_servers="k1:9092,k2:9092").spec()
        record = Record(
            epoch=0,
            driver_id="d",
            sequence=None,
            kind=Kind.EPOCH_STARTED,
            timestamp_us=1,
            job_id="job",
            attributes={"operators": describe_operators(Chain(source=source, operators=[]))},
        )
        (started,) = LineageFold().apply(record)
        return lineage_event(started)

    [orders] = begun("orders").inputs or []
    assert (orders.namespace, orders.name) == ("kafka://k1:9092", "orders")
    assert "inputStatistics" in (orders.inputFacets or {})
    both = begun("orders", "refunds").inputs or []
    assert [dataset.name for dataset in both] == ["orders", "refunds"]
    assert not any(dataset.inputFacets for dataset in both)


# --- log lines --------------------------------------------------------------------------------------------------------
def line_of(logger: str, message: str, *args: object, **extra: object) -> dict[str, object]:
    record = logging.getLogger(logger).makeRecord(
        logger, logging.INFO, "f.py", 1, message, args, None, extra=extra or None
    )
    JobLogFilter(lambda: ("ingest", 3, 812)).filter(record)
    fields: dict[str, object] = json.loads(JsonFormatter().format(record))
    return fields


def test_a_line_has_the_fields_of_its_message() -> None:
    line = line_of("coordlog.log.appender", "took over job=%s epoch=%d offset=%d", "other", 4, 9)

    assert (line["job"], line["epoch"], line["offset"]) == ("other", 4, 9)
    assert line["message"] == "took over job=other epoch=4 offset=9"


def test_a_line_of_another_library_has_the_fields_of_the_job() -> None:
    line = line_of("py4j.clientserver", "closed job=%s", "no job of ours")

    assert (line["job"], line["epoch"], line["offset"]) == ("ingest", 3, 812)


def test_text_from_outside_replaces_no_field() -> None:
    line = line_of("coordlog.x", "job=%s refused %s", "ingest", 'a"\n{"job": 1} job=evil epoch=99')

    assert line["job"] == "ingest"
    assert line["message"] == 'job=ingest refused a"\n{"job": 1} job=evil epoch=99'


def test_a_line_with_an_error_has_its_traceback() -> None:
    error = ValueError("no number")
    record = logging.getLogger("coordlog").makeRecord(
        "coordlog", logging.ERROR, "f.py", 1, "failed", (), (ValueError, error, None)
    )

    line = json.loads(JsonFormatter().format(record))

    assert line["exception"].endswith("ValueError: no number")
    assert "job" not in line
