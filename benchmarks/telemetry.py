"""What telemetry costs a driver: `python -m benchmarks.telemetry [--rounds N]`.

One job of simulated subtasks takes checkpoints, in rounds that change the telemetry in turn; the log is in memory, so
that the driver is all that is measured. CPU seconds are those of the whole process, all threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Final

import click
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from coordlog.log.memory import MemoryLog
from coordlog.runtime.driver import DriverOptions, JobDriver
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind
from coordlog.telemetry.observer import Observer
from coordlog.telemetry.otel import DerivedIds, OtelReporter
from coordlog.telemetry.prometheus import PrometheusReporter

from .measured.connected import Watch
from .scale import Provider, Simulated, chain_of

SUBTASKS: Final = 50
CHECKPOINTS: Final = 40


def _otel() -> OtelReporter:
    tracers = TracerProvider(id_generator=DerivedIds(), shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    return OtelReporter(meters, tracers)


SIDES: Final[dict[str, Callable[[], Observer | None]]] = {
    "off": lambda: None,
    "metrics": lambda: Observer([PrometheusReporter()]),
    "metrics and traces": lambda: Observer([PrometheusReporter(), _otel()]),
}


@click.command()
@click.option("--rounds", default=7)
def main(rounds: int) -> None:
    """Print wall and CPU milliseconds of a checkpoint, and the ratios to telemetry that is off."""
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    for number in range(rounds + 1):  # the first one warms up
        for side, make in SIDES.items():
            measured = _measure(make())
            if number:
                found[side].append(measured)
    for side, values in found.items():
        ratios = [
            median(value[n] / off[n] for value, off in zip(values, found["off"], strict=True))
            for n in range(2)
        ]
        wall_ms, cpu_ms = (1000 * median(value[n] for value in values) for n in range(2))
        print(
            f"{side:20} {wall_ms:8.2f} ms wall {cpu_ms:8.2f} ms CPU a checkpoint of {SUBTASKS} subtasks; "
            f"ratios {ratios[0]:.2f} and {ratios[1]:.2f}"
        )


def _measure(observer: Observer | None) -> tuple[float, float]:
    """Wall and CPU seconds of a checkpoint."""
    watch = Watch()
    driver = JobDriver(
        chain=chain_of(Provider()),
        log=MemoryLog("scale"),
        options=DriverOptions(
            job_id="scale",
            parallelism=SUBTASKS,
            is_batch=False,
            runtime=RuntimeOptions(snapshot_every=None),
        ),
        surroundings=Simulated(SUBTASKS),
        on_released=watch.released,
        observer=observer,
    )
    watch.timed_ms(Kind.ATTEMPT_STARTED, SUBTASKS, driver.start)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for _ in range(CHECKPOINTS):
        watch.timed_ms(Kind.CHECKPOINT_COMPLETED, 1, driver.trigger_checkpoint)
    wall_s = time.perf_counter() - wall_s
    driver.end_at_once(by="benchmark")
    driver.wait()
    return wall_s / CHECKPOINTS, (time.process_time() - cpu_s) / CHECKPOINTS


if __name__ == "__main__":
    main()
