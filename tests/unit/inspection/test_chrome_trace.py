"""A report as a trace keeps the rules of the Trace Event Format that its viewers depend on."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import pytest

from coordlog.log.interface import UnstoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.report.chrome_trace import chrome_trace
from driven_history import recorded_history
from histories.hand_history import HandHistory, batch_history, skipping_history, streaming_history
from histories.hostile_history import hostile_history
from histories.report_facts import document_of, log_of

Event = dict[str, Any]

_FIELDS: Final = {
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "name", "pid", "tid", "ts", "dur", "args"},
    "b": {"ph", "name", "pid", "tid", "ts", "cat", "id", "args"},
    "e": {"ph", "name", "pid", "tid", "ts", "cat", "id"},
    "i": {"ph", "name", "pid", "tid", "ts", "s", "args"},
}
_OPTIONAL: Final = {"cname"}
_COLOURS: Final = {"good", "bad", "terrible", "grey"}
"""Names that the format reserves, of those that are used here."""


def problems_of(trace: Event) -> Iterator[str]:
    """Each rule of the format that a trace breaks."""
    if not {"traceEvents"} <= trace.keys() <= {"traceEvents", "displayTimeUnit", "otherData"}:
        yield f"fields of the trace: {sorted(trace)}"
    if trace["displayTimeUnit"] not in ("ms", "ns"):
        yield "displayTimeUnit"
    events: list[Event] = trace["traceEvents"]
    for event in events:
        yield from problems_of_event(event)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    for event in events:
        if event["ph"] != "M" and (event["pid"], event["tid"]) not in named:
            yield f"a thread without a name: {event}"
        if event["pid"] not in processes:
            yield f"a process without a name: {event}"
    yield from problems_of_slices(events)
    yield from problems_of_asynchronous(events)


def problems_of_event(event: Event) -> Iterator[str]:
    fields = _FIELDS.get(event["ph"])
    if fields is None:
        yield f"an unknown phase: {event}"
        return
    if not fields <= event.keys() <= fields | _OPTIONAL:
        yield f"fields: {event}"
    if not isinstance(event["name"], str) or not isinstance(event.get("args", {}), dict):
        yield f"types: {event}"
    for name in ("pid", "tid"):
        if type(event[name]) is not int or event[name] < 1:  # 0 is the kernel's idle thread
            yield f"{name}: {event}"
    for name in ("ts", "dur"):
        if name in fields and (type(event[name]) not in (int, float) or event[name] < 0):
            yield f"{name}: {event}"
    if event["ph"] == "M":
        if event["name"] not in ("process_name", "thread_name", "thread_sort_index"):
            yield f"metadata: {event}"
        kind = int if event["name"] == "thread_sort_index" else str
        if type(event["args"].get("sort_index" if kind is int else "name")) is not kind:
            yield f"metadata: {event}"
    if event["ph"] == "i" and event["s"] not in ("g", "p", "t"):
        yield f"scope: {event}"
    if "cname" in event and event["cname"] not in _COLOURS:
        yield f"colour: {event}"


def problems_of_slices(events: list[Event]) -> Iterator[str]:
    """Slices of a thread are nested: one that overlaps another one is cut or dropped by viewers."""
    threads: dict[tuple[int, int], list[tuple[int, int, str]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            place = (event["ts"], -event["dur"], event["name"])
            threads[event["pid"], event["tid"]].append(place)
    for slices in threads.values():
        open_until: list[int] = []
        for begin, minus, name in sorted(slices):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            if open_until and begin - minus > open_until[-1]:
                yield f"{name} at {begin} overlaps a slice that ends at {open_until[-1]}"
            open_until.append(begin - minus)


def problems_of_asynchronous(events: list[Event]) -> Iterator[str]:
    """Those of an id are nested in the order of their times, and of the file at the same time."""
    open_slices: dict[tuple[str, Any], list[str]] = defaultdict(list)
    timed = [event for event in events if event["ph"] in "be"]
    for event in sorted(timed, key=lambda event: event["ts"]):
        stack = open_slices[event["cat"], event["id"]]
        if event["ph"] == "b":
            stack.append(event["name"])
        elif not stack or stack.pop() != event["name"]:
            yield f"an end without its begin: {event}"
    for key, stack in open_slices.items():
        if stack:
            yield f"{key} does not end: {stack}"


def overlapping() -> list[UnstoredRecord]:
    """Attempts of a subtask of which the later one has begun, by its driver's clock, before the earlier one ended."""
    history = HandHistory()
    history.epoch()
    history.turn(history.started((0, 0), -1, 0))
    history.now_us += 5_000_000
    history.turn(history.failed((0, 0), "boom"), history.reset_subtask(0, -1))
    history.now_us -= 3_000_000
    history.turn(history.started((0, 1), -1, 1))
    history.now_us += 6_000_000
    history.turn(history.failed((0, 1), "boom"))
    return history.records


HISTORIES: Final = {
    "streaming": lambda: streaming_history().records,
    "batch": lambda: batch_history().records,
    "skipping": lambda: skipping_history().records,
    "recorded": recorded_history,
    "running": lambda: recorded_history()[:110],
    "hostile": hostile_history,
    "overlapping": overlapping,
    "empty": list,
}


@pytest.mark.parametrize("name", HISTORIES)
def test_a_trace_keeps_the_rules_of_its_format(name: str) -> None:
    log: MemoryLog = log_of(HISTORIES[name]())
    trace: Event = json.loads(json.dumps(chrome_trace(document_of(log)), allow_nan=False))

    assert list(problems_of(trace)) == []
    assert name == "empty" or any(event["ph"] == "X" for event in trace["traceEvents"])
