"""Reads a job's topic without the code under test: a plain consumer, the header's layout and what counts written anew.

Nothing of the package is used but the record's schema, which is a file.
"""

from __future__ import annotations

import io
import json
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import fastavro
from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from chaos.steps import Note, Told

__all__ = ["History", "Line", "read_history"]

_HEADER = struct.Struct(
    ">BBQiqiq"
)  # version, flags, schema, epoch, sequence, left in turn, snapshot
_SCHEMA = Path(__file__).parents[2] / "schemas" / "avro" / "record-v1.avsc"
_STALL_S = 30.0
_OPTIONS: dict[str, Any] = {
    "group_id": None,
    "enable_auto_commit": False,
    "auto_offset_reset": "none",
    "allow_auto_create_topics": False,
    "reconnect_backoff_max_ms": 500,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One record as it stands in the topic."""

    offset: int
    starts_epoch: bool
    epoch: int
    sequence: int
    left: int
    value: dict[str, Any]

    @property
    def driver_id(self) -> str:
        """Who wrote it."""
        return str(self.value["driver_id"])


@dataclass(kw_only=True)
class History:
    """A topic, and what of it counts."""

    lines: list[Line]
    counted: list[Line] = field(default_factory=list)
    """At its sequence's place."""
    epoch_starts: list[Line] = field(default_factory=list)
    """At its epoch's place, the record that began it."""

    def fold(self) -> None:
        """What counts, by the three rules, in as few words as they take."""
        turn: list[Line] = []
        for line in self.lines:
            if line.starts_epoch:
                if line.epoch == len(self.epoch_starts):
                    self.epoch_starts.append(line)
                    turn = []
                continue
            is_next = line.sequence == len(self.counted) + len(turn)
            if is_next and line.epoch == len(self.epoch_starts) - 1:
                turn.append(line)
                if line.left == 0:
                    self.counted += turn
                    turn = []

    @property
    def void_count(self) -> int:
        """Records that do not count."""
        return len(self.lines) - len(self.counted) - len(self.epoch_starts)

    def of_kind(self, kind: str) -> list[Line]:
        """Those of a kind that count."""
        return [one for one in self.counted if one.value["kind"] == kind]

    def epoch_of(self, driver_id: str | None) -> int | None:
        """Of a driver; None where it never had one."""
        return next((one.epoch for one in self.epoch_starts if one.driver_id == driver_id), None)

    def faults(self) -> list[str]:
        """What no history may have: another's records in an epoch, an order that is not the sender's."""
        found: list[str] = []
        last_up: dict[tuple[int, int], int] = {}
        last = self.epoch_starts[0].value["timestamp"] if self.epoch_starts else None
        for line in self.counted:
            value, where = line.value, f"offset {line.offset}"
            if line.driver_id != self.epoch_starts[line.epoch].driver_id:
                found.append(f"{where}: counts in epoch {line.epoch}, and is not its driver's")
            if value["epoch"] != line.epoch or value["sequence"] != line.sequence:
                found.append(f"{where}: its header and its value differ")
            if value["timestamp"] < last:
                found.append(f"{where}: time goes back")
            last = value["timestamp"]
            if value["kind"] == "EVENT_TO_COORDINATOR":
                attempt, number = (value["subtask"], value["attempt_number"]), value["event_id"]
                if number is not None and number <= last_up.get(attempt, -1):
                    found.append(f"{where}: event {number} of {attempt} is not behind the last")
                last_up[attempt] = -1 if number is None else number
        return found

    def faults_of(self, name: str, driver_id: str | None, notes: Sequence[Note]) -> list[str]:
        """What a driver has done without its record, or has released and does not count."""
        epoch = self.epoch_of(driver_id)
        released = [n for one in notes for n in one.get("released", [])]
        found = [
            f"LOST: driver {name} has released sequence {n}, which is not its own in the topic"
            for n in released
            if n >= len(self.counted) or self.counted[n].epoch != epoch
        ]
        if released != sorted(set(released)):
            found.append(f"DOUBLED: driver {name} has released a sequence twice, or not in order")
        sent = {one.value["event_id"] for one in self.of_kind("EVENT_TO_SUBTASK")}
        refused = {one.value["reason"] for one in self.counted if one.epoch == epoch}
        intents = b"".join(one.value["payload"] for one in self.of_kind("COMMIT_INTENT"))
        for note in notes:
            if "delivers" in note and note["delivers"] not in sent:
                found.append(f"driver {name} delivers event {note['delivers']} without its record")
            if "refuses" in note and note["refuses"] not in refused:
                found.append(f"driver {name} refuses a task without a record: {note['refuses']}")
            found += [
                f"driver {name} publishes {file} without its intent"
                for file in note.get("publishes", [])
                if file.encode() not in intents
            ]
        return found

    def faults_of_client(self, driver_id: str | None, notes: Sequence[Note]) -> list[str]:
        """What a client of a driver was told and does not count, and what it still waits for."""
        found: list[str] = []
        heard = {one["told"]["name"]: one["told"] for one in notes if "told" in one}
        for name, told in heard.items():
            asked = self._asked(name)
            how, says = told["how"], told["says"]
            if how == "open":
                found.append(f"request {name} is open still")
            if len(asked) > 1:
                found.append(f"DOUBLED: request {name} counts {len(asked)} times")
            if told["is_stranger"]:
                if how != "unanswered" or asked:
                    found.append(f"{name}, without the token, is {how} ({says})")
            elif how == "answered" and not self._is_answer(told, driver_id):
                found.append(f"LOST: {name} has an answer that is not its driver's in the topic")
            elif how == "refused" and not self._is_refusal(asked, driver_id):
                found.append(f"LOST: {name} has a refusal that is not its driver's in the topic")
        return found

    def _asked(self, name: str) -> list[Line]:
        sought = name.encode()
        return [one for one in self.of_kind("REQUEST") if sought in one.value["payload"]]

    def _is_answer(self, told: Told, driver_id: str | None) -> bool:
        if told["is_refused"] or told["says"] != told["name"]:
            return False
        at = told["sequence"]
        line = self.counted[at] if at is not None and at < len(self.counted) else None
        return (
            line is not None
            and line.value["kind"] == "RESPONSE"
            and line.driver_id == driver_id
            and told["name"].encode() in (line.value["payload"] or b"")
        )

    def _is_refusal(self, asked: Sequence[Line], driver_id: str | None) -> bool:
        return any(
            one.driver_id == driver_id
            and one.value["attributes"].get("outcome") == "refused"
            and one.value["cause"] in {each.sequence for each in asked}
            for one in self.of_kind("RESPONSE")
        )

    def faults_of_order(self, name: str, driver_id: str | None, notes: Sequence[Note]) -> list[str]:
        """What a driver has released before it was stored, or has done before its record was released (clause K1).

        What stands in earlier epochs is released by them: it counts before this driver begins.
        """
        epoch = self.epoch_of(driver_id)
        found: list[str] = []
        stored: set[int] = set()
        released: set[int] = set()
        for note in notes:
            stored.update(note.get("stored", []))
            now = note.get("released", [])
            found += [
                f"driver {name} releases {n} before it is stored" for n in now if n not in stored
            ]
            released.update(now)
            found += [
                f"driver {name} {what} before it is released"
                for what, asking in self._asking(note)
                if not any(
                    one.sequence in released or (epoch is not None and one.epoch < epoch)
                    for one in asking
                )
            ]
        return found

    def _asking(self, note: Note) -> list[tuple[str, list[Line]]]:
        """Each effect of a note, and the records that ask for it."""
        asking: list[tuple[str, list[Line]]] = []
        if "delivers" in note:
            sent = self.of_kind("EVENT_TO_SUBTASK")
            by = [one for one in sent if one.value["event_id"] == note["delivers"]]
            asking.append((f"delivers event {note['delivers']}", by))
        for file in note.get("publishes", []):
            intents = self.of_kind("COMMIT_INTENT")
            by = [one for one in intents if file.encode() in one.value["payload"]]
            asking.append((f"publishes {file}", by))
        if "refuses" in note:
            by = [one for one in self.counted if one.value["reason"] == note["refuses"]]
            asking.append((f"refuses a task ({note['refuses']})", by))
        if "answers" in note:
            by = self.counted[note["answers"] : note["answers"] + 1]
            asking.append((f"answers {note['answers']}", by))
        if "works" in note:
            work = note["works"].encode()
            facts = [one for one in self.counted if self._is_fact(one)]
            by = [one for one in facts if work in one.value["payload"]]
            asking.append((f"begins {note['works']}", by))
        return asking

    @staticmethod
    def _is_fact(line: Line) -> bool:
        return bool(line.value["kind"] == "FACT" and line.value["payload"])

    def faults_of_work(self, done: Mapping[str, str], driver_ids: Mapping[str, str]) -> list[str]:
        """Work that was done without its record. `done`: by whom, by the work's name."""
        facts = [one for one in self.counted if self._is_fact(one)]
        return [
            f"driver {who} has done {name} without its record"
            for name, who in sorted(done.items())
            if not any(
                name.encode() in one.value["payload"] and one.driver_id == driver_ids.get(who)
                for one in facts
            )
        ]


def read_history(bootstrap_servers: str, topic: str, *, before: Sequence[Line] = ()) -> History:
    """The topic from its first record to its last.

    Args:
        bootstrap_servers: The broker.
        topic: The topic.
        before: What was read of it earlier, from its first record on: that may be gone by now.

    Raises:
        TimeoutError: It does not come.
    """
    partition = TopicPartition(topic, 0)
    consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers.split(","), **_OPTIONS)
    schema = fastavro.parse_schema(json.loads(_SCHEMA.read_text("utf-8")))
    lines = list(before)
    try:
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        begin = consumer.beginning_offsets([partition])[partition]
        assert begin <= len(lines), f"the topic begins at {begin}"
        consumer.seek(partition, len(lines))
        deadline = time.monotonic() + _STALL_S
        while len(lines) < end:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: {len(lines)} of {end} records within {_STALL_S:g} s")
            for one in consumer.poll(timeout_ms=200).get(partition, ()):
                assert one.offset == len(lines), f"offset {one.offset} after {len(lines)} records"
                lines.append(_line(one, schema))
    finally:
        consumer.close()
    history = History(lines=lines)
    history.fold()
    return history


def _line(one: Any, schema: Any) -> Line:  # noqa: ANN401, the libraries have no types
    (header,) = [value for name, value in one.headers if name == "coordlog"]
    _, flags, _, epoch, sequence, left, _ = _HEADER.unpack(header)
    value = cast("dict[str, Any]", fastavro.schemaless_reader(io.BytesIO(one.value), schema, None))
    return Line(
        offset=one.offset,
        starts_epoch=bool(flags & 1),
        epoch=epoch,
        sequence=sequence,
        left=left,
        value=value,
    )
