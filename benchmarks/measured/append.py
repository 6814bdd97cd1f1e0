"""Appends in groups and one at a time, through an `Appender` and through a plain producer."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import quantiles
from typing import Any, Final

from kafka import KafkaProducer

from benchmarks.results import Row
from coordlog.log.append_protocol import Place
from coordlog.log.appender import Appender, take_over
from coordlog.log.interface import UnstoredRecord
from coordlog.log.kafka import KafkaLog
from coordlog.log.kafka.writer import PRODUCER_OPTIONS
from coordlog.schemas.header import HEADER_NAME
from coordlog.schemas.validity import NOTHING_COUNTED

from .records import JOB, encoded, epoch_started

__all__ = ["APPEND_FULL", "APPEND_QUICK", "AppendPlan", "measure_appends"]

GROUP: Final = 1_000

Producer = Any
"""kafka-python's, which has no types."""

Groups = Callable[[Sequence[Sequence[UnstoredRecord]]], float]
Singles = Callable[[Sequence[UnstoredRecord]], list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendPlan:
    """How much is appended."""

    rounds: int
    groups: int
    """Groups of 1000 a round."""
    singles: int
    """Records one at a time a round."""


APPEND_FULL: Final = AppendPlan(rounds=9, groups=30, singles=600)
APPEND_QUICK: Final = AppendPlan(rounds=3, groups=10, singles=200)


def measure_appends(bootstrap_servers: str, plan: AppendPlan, *, fsync: bool) -> list[Row]:
    """Throughput and latency beside plain kafka-python, on two topics with the same settings."""
    ours_log, raw_log = (
        KafkaLog.for_job(f"{JOB}-{uuid.uuid4().hex[:8]}", bootstrap_servers, fsync=fsync)
        for _ in range(2)
    )
    for log in (ours_log, raw_log):
        log.create()
    appender = take_over(
        ours_log,
        job_id=JOB,
        place=Place(end_offset=0, counting=NOTHING_COUNTED),
        make_epoch_started=epoch_started,
        reading=lambda _record: None,
    )
    raw = {
        # A `flush` ends the lingering of a group; one at a time nobody would linger.
        linger_ms: KafkaProducer(
            bootstrap_servers=bootstrap_servers.split(","),
            **_options(linger_ms),
        )
        for linger_ms in (PRODUCER_OPTIONS["linger_ms"], 0)
    }
    lingering, eager = raw.values()
    try:
        disk = "fsync" if fsync else "no fsync"
        return _measure(appender, lingering, eager, raw_log.topic, plan, disk)
    finally:
        appender.close()
        for producer in raw.values():
            producer.close(timeout=5)
        for log in (ours_log, raw_log):
            log.delete()
            log.close()


def _options(linger_ms: int) -> dict[str, Any]:
    return {**PRODUCER_OPTIONS, "linger_ms": linger_ms}


def _measure(
    appender: Appender,
    lingering: Producer,
    eager: Producer,
    topic: str,
    plan: AppendPlan,
    disk: str,
) -> list[Row]:
    """Three contenders: ours, a plain producer with the same records, and one without header."""
    contenders: dict[str, tuple[Groups, Singles]] = {
        "ours": (partial(_ours_groups, appender), partial(_ours_singles, appender)),
        "raw": (
            partial(_raw_groups, lingering, topic, _with_header),
            partial(_raw_singles, eager, topic, _with_header),
        ),
        "bare": (
            partial(_raw_groups, lingering, topic, _without_header),
            partial(_raw_singles, eager, topic, _without_header),
        ),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    times: dict[str, list[list[float]]] = {name: [] for name in contenders}
    for groups, singles in contenders.values():  # all connect, and the broker's code gets warm
        groups(_groups(appender, 2))
        singles(encoded(appender.epoch, appender.counting.next_sequence, 20))
    for number in range(plan.rounds):
        # Who begins takes turns, because the next one finds the machine as the first has left it.
        order = list(contenders)[number % 3 :] + list(contenders)[: number % 3]
        for name in order:
            groups, singles = contenders[name]
            rates[name].append(plan.groups * GROUP / groups(_groups(appender, plan.groups)))
            first = appender.counting.next_sequence
            times[name].append(
                quantiles(singles(encoded(appender.epoch, first, plan.singles)), n=100)
            )
    return [
        *_throughput_rows(rates, disk),
        *_latency_rows(times, disk),
    ]


def _throughput_rows(rates: dict[str, list[float]], disk: str) -> list[Row]:
    name = f"append, groups of {GROUP}, {disk}"
    what = "a plain producer with the same settings that flushes after each group"
    return [
        Row(
            name=name,
            unit="records/s",
            ours=tuple(rates["ours"]),
            raw=tuple(rates["raw"]),
            raw_is=f"{what}, the same records",
            better="higher",
            target=0.9,
        ),
        Row(
            name=f"{name}, raw without header",
            unit="records/s",
            ours=tuple(rates["ours"]),
            raw=tuple(rates["bare"]),
            raw_is=f"{what}, the same records without our header: what the header costs too",
            better="higher",
            target=None,
        ),
    ]


def _latency_rows(times: dict[str, list[list[float]]], disk: str) -> list[Row]:
    return [
        Row(
            name=f"append, one at a time, {disk}, p{percent}",
            unit="ms",
            ours=tuple(1000 * cuts[percent - 1] for cuts in times["ours"]),
            raw=tuple(1000 * cuts[percent - 1] for cuts in times["raw"]),
            raw_is="a plain producer that does not linger, the same records",
            better="lower",
            target=target,
        )
        for percent, target in ((50, 1.3), (99, None))
    ]


def _groups(appender: Appender, count: int) -> list[list[UnstoredRecord]]:
    first = appender.counting.next_sequence
    records = encoded(appender.epoch, first, count * GROUP)
    return [records[i : i + GROUP] for i in range(0, len(records), GROUP)]


def _ours_groups(appender: Appender, groups: Sequence[Sequence[UnstoredRecord]]) -> float:
    began = time.perf_counter()
    for group in groups:
        appender.append(group)
    return time.perf_counter() - began


def _with_header(record: UnstoredRecord) -> dict[str, object]:
    return {"headers": [(HEADER_NAME, record.header)]}


def _without_header(_record: UnstoredRecord) -> dict[str, object]:
    return {}


def _raw_groups(
    producer: Producer,
    topic: str,
    headers: Callable[[UnstoredRecord], dict[str, object]],
    groups: Sequence[Sequence[UnstoredRecord]],
) -> float:
    arguments = [[_arguments(record, headers) for record in group] for group in groups]
    began = time.perf_counter()
    for group in arguments:
        futures = [producer.send(topic, **one) for one in group]
        producer.flush(timeout=30)
        futures[-1].get(30)
    return time.perf_counter() - began


def _ours_singles(appender: Appender, records: Sequence[UnstoredRecord]) -> list[float]:
    times = []
    for record in records:
        began = time.perf_counter()
        appender.append((record,))
        times.append(time.perf_counter() - began)
    return times


def _raw_singles(
    producer: Producer,
    topic: str,
    headers: Callable[[UnstoredRecord], dict[str, object]],
    records: Sequence[UnstoredRecord],
) -> list[float]:
    times = []
    for one in [_arguments(record, headers) for record in records]:
        began = time.perf_counter()
        producer.send(topic, **one).get(30)
        times.append(time.perf_counter() - began)
    return times


def _arguments(
    record: UnstoredRecord, headers: Callable[[UnstoredRecord], dict[str, object]]
) -> dict[str, object]:
    return {
        "value": record.value,
        "key": record.key,
        "partition": 0,
        "timestamp_ms": record.timestamp_us // 1000,
        **headers(record),
    }
