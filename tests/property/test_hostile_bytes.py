"""A dose of `make fuzz`: hostile bytes in the topic and on the endpoint are refused, and disturb nobody."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path

import pytest

from coordlog.schemas.untrusted_schema import foreign_avro
from hostile.driver import hostile_run
from hostile.growth import GROWTH_MAX, grown, tracing
from hostile.topic import HostileTopic
from hostile.wire import HostileMessages, hostile_clients

pytestmark = [pytest.mark.slow, pytest.mark.tier("faults")]

RECORDS, MESSAGES, CLIENTS, STRANGERS = 400, 1_000, 200, 50


@pytest.fixture
def chance(seed: int) -> random.Random:
    return random.Random(seed)


@pytest.fixture(autouse=True)
def _no_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Each refusal is a line, which would be kept."""
    caplog.set_level(logging.CRITICAL)


def test_each_record_is_void_refused_by_its_offset_or_harmless(
    chance: random.Random, dose: int, tmp_path: Path
) -> None:
    topic = HostileTopic(tmp_path, chance)
    with tracing() as memory:
        assert grown(topic.case, RECORDS * dose, memory) < GROWTH_MAX
    assert topic.refused > 0
    assert topic.void > 0


def test_each_message_is_one_or_a_value_error(chance: random.Random, dose: int) -> None:
    messages = HostileMessages(chance)
    with tracing() as memory:
        assert grown(messages.case, MESSAGES * dose, memory) < GROWTH_MAX
    assert messages.refused > messages.taken > 0


def test_an_attempt_is_served_beside_clients_that_do_everything_wrong(
    chance: random.Random, dose: int
) -> None:
    """The endpoint and its clients are in this process: what either keeps of a connection is seen."""
    with hostile_clients(chance) as clients, tracing() as memory:

        def settled() -> int:
            clients.settle()
            return memory()

        assert grown(clients.case, CLIENTS * dose, settled) < GROWTH_MAX


@pytest.mark.parametrize("count", [RECORDS, MESSAGES, CLIENTS])
def test_two_kilobytes_that_are_left_behind_by_each_are_seen(count: int) -> None:
    kept: list[bytes] = []
    with tracing() as memory:
        assert grown(lambda: kept.append(bytes(2_048)), count, memory) > GROWTH_MAX
        assert grown(lambda: kept.append(b""), count, memory) < GROWTH_MAX


def test_a_job_runs_on_beside_strangers_that_hold_the_token(
    chance: random.Random, dose: int, tmp_path: Path
) -> None:
    hostile_run(tmp_path, chance, STRANGERS * dose)


NULLS = {"type": "array", "items": "null"}
SELF = {"type": "record", "name": "n", "fields": [{"name": "x", "type": ["null", "n"]}]}
FREE = {"type": "fixed", "name": "z", "size": 0}


def doubled(times: int) -> list[object]:
    """Records of two of the one before, down to nothing: 2**times values of no bytes."""
    first = {"type": "record", "name": "r0", "fields": [{"name": "a", "type": "null"}]}
    two = [
        {
            "type": "record",
            "name": f"r{n}",
            "fields": [{"name": one, "type": f"r{n - 1}"} for one in "ab"],
        }
        for n in range(1, times)
    ]
    return [first, *two]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (json.dumps(SELF), "n contains itself"),
        (json.dumps(NULLS), "an array of items with almost no bytes"),
        (json.dumps({"type": "map", "values": NULLS}), "an array of items"),
        (json.dumps({"type": "array", "items": FREE}), "an array of items"),
        (json.dumps(doubled(40)), "parts and no bytes"),
        ("[" * 100_000, "nested too deeply"),
        ('{"type":' * 100 + '"int"' + "}" * 100, "nested more than 64 deep"),
        ('"nothing"', "nothing is no type"),
        ('{"type": "record"}', "it is no schema"),
        ("{", "Expecting"),
    ],
)
def test_a_schema_of_the_log_that_makes_much_of_few_bytes_is_refused(schema: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        foreign_avro(schema)
