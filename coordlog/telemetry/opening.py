"""From the options of a job to its observer and its endpoint."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Final, Literal

from coordlog.errors import EnvironmentSetupError
from coordlog.limits import VERDICT_STUCK_INTERVALS
from coordlog.projections.inspection.verdict import Thresholds
from coordlog.projections.job.state import JobState
from coordlog.projections.telemetry.metrics import Pulse
from coordlog.schemas.record import Record
from coordlog.telemetry.observer import Observer, Reporter
from coordlog.telemetry.server import MetricsServer

__all__ = ["JobTelemetry", "Otel", "check_extras", "open_telemetry"]

Otel = Literal["off", "global", "otlp"]

_LIBRARIES: Final = {
    "prometheus": ("prometheus_client",),
    "otel": ("opentelemetry.sdk.trace",),
    "otlp": ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"),
    "openlineage": ("openlineage.client",),
}
_EXTRAS: Final = {"otlp": "otel"}


class JobTelemetry:
    """Telemetry of one job: an `Observer` of its driver that also closes the port."""

    def __init__(self, observer: Observer, server: MetricsServer | None) -> None:
        self._observer, self._server = observer, server
        self.url = None if server is None else server.url
        """Address of the endpoint, or None without one."""

    def begin(self, state: JobState, pulse: Callable[[], Pulse]) -> None:
        """See `Observer`."""
        self._observer.begin(state, pulse)

    def released(self, records: Sequence[Record], state: JobState, append_s: float | None) -> None:
        """See `Observer`."""
        self._observer.released(records, state, append_s)

    def end(self) -> None:
        """See `Observer`."""
        self._observer.end()
        if self._server is not None:
            self._server.close()


def open_telemetry(
    *,
    metrics_port: int | None,
    metrics_host: str,
    otel: Otel,
    openlineage: bool,
    stuck_intervals: float = VERDICT_STUCK_INTERVALS,
) -> JobTelemetry | None:
    """Telemetry for the options of a job; None if they request none.

    Raises:
        EnvironmentSetupError: An extra is not installed, or the port is not free.
    """
    reporters: list[Reporter] = []
    prometheus = None
    if metrics_port is not None:
        check_extras("prometheus", "metrics_port")
        from coordlog.telemetry.prometheus import PrometheusReporter  # noqa: PLC0415, an extra

        prometheus = PrometheusReporter()
        reporters.append(prometheus)
    if otel != "off":
        check_extras("otlp" if otel == "otlp" else "otel", "otel")
        if otel == "otlp":
            from coordlog.telemetry.otlp_http import otlp_reporter  # noqa: PLC0415, an extra

            reporters.append(otlp_reporter())
        else:
            from coordlog.telemetry.otel import OtelReporter  # noqa: PLC0415, an extra

            reporters.append(OtelReporter())
    if openlineage:
        check_extras("openlineage", "openlineage")
        from coordlog.telemetry.lineage import LineageReporter  # noqa: PLC0415, an extra

        reporters.append(LineageReporter())
    if not reporters:
        return None
    observer = Observer(reporters, Thresholds(stuck_intervals=stuck_intervals))
    if prometheus is None or metrics_port is None:
        return JobTelemetry(observer, None)
    try:
        server = MetricsServer(
            metrics_host, metrics_port, metrics=prometheus.text, health=observer.health
        )
    except BaseException:
        observer.end()
        raise
    return JobTelemetry(observer, server)


def check_extras(extra: str, option: str) -> None:
    """Refuse an option if its libraries are not installed.

    Raises:
        EnvironmentSetupError: With the command that installs them.
    """
    for library in _LIBRARIES[extra]:
        try:
            importlib.import_module(library)
        except ImportError as error:
            raise EnvironmentSetupError(
                f"the option {option} needs the package {library.partition('.')[0]}, which is not installed",
                f"pip install 'coordlog[{_EXTRAS.get(extra, extra)}]'",
            ) from error
