"""A dose of `make fuzz`: hostile bytes in the topic and on the endpoint are refused, and disturb nobody."""

from __future__ import annotations

import json
import random
import resource
from pathlib import Path

import pytest

from coordlog.schemas.foreign import foreign_avro
from endpoint_parts import wait_for
from hostile.driver import hostile_run
from hostile.topic import HostileTopic
from hostile.wire import HostileMessages, hostile_clients

pytestmark = pytest.mark.slow

RECORDS, MESSAGES, CLIENTS, STRANGERS = 150, 1_000, 40, 50
GROWTH_MB = 200


@pytest.fixture
def chance(seed: int) -> random.Random:
    return random.Random(seed)


def megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def test_each_record_is_void_refused_by_its_offset_or_harmless(
    chance: random.Random, dose: int, tmp_path: Path
) -> None:
    topic = HostileTopic(tmp_path, chance)
    before = megabytes()
    for _ in range(RECORDS * dose):
        topic.case()
    assert topic.refused > 0
    assert topic.void > 0
    assert megabytes() - before < GROWTH_MB


def test_each_message_is_one_or_a_value_error(chance: random.Random, dose: int) -> None:
    messages = HostileMessages(chance)
    before = megabytes()
    for _ in range(MESSAGES * dose):
        messages.case()
    assert messages.refused > messages.taken > 0
    assert megabytes() - before < GROWTH_MB


def test_an_attempt_is_served_beside_clients_that_do_everything_wrong(
    chance: random.Random, dose: int
) -> None:
    with hostile_clients(chance) as clients:
        for _ in range(CLIENTS * dose):
            clients.case()
        wait_for(lambda: clients.settled() == 0, "every other connection is gone")


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
        (json.dumps(NULLS), "an array of what takes almost no bytes"),
        (json.dumps({"type": "map", "values": NULLS}), "an array of what"),
        (json.dumps({"type": "array", "items": FREE}), "an array of what"),
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
