"""Texts of records are untrusted: no control sequence in them reaches the terminal of a command."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

import click
import pytest
from click.testing import CliRunner
from rich.text import Text

from coordlog.cli.console import Column, json_text, new_console, print_table
from coordlog.cli.main import main
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.payload_json import Json
from coordlog.schemas.codec import decode_record
from coordlog.schemas.header import decode_header
from coordlog.schemas.record import Record
from histories.hand_history import HandHistory, batch_history, streaming_history, unstored
from histories.one_log import OneLog

ATTACK: Final = "\x1b]0;owned\x07\x1b[8m\x9b31m\x7f\u202e\r\u2028\x85"
"""Sets the title, hides text, colours it, turns it around, returns to the line's begin."""

_READ_BY_THE_FOLD: Final = frozenset({"restore", "settled", "what", "kept", "complete"})

COMMANDS: Final = (
    ("attempts",),
    ("checkpoint",),
    ("checkpoints",),
    ("commits",),
    ("diff",),
    ("epochs",),
    ("events",),
    ("explain", "--checkpoint", "1"),
    ("explain", "--split", "no-such"),
    ("failures",),
    ("health",),
    ("history",),
    ("kill-attempt", "0"),
    ("prune", "--yes"),
    ("splits",),
    ("state",),
    ("state", "--at", "checkpoint:1"),
    ("stop",),
    ("tail", "--no-follow", "-n", "1000"),
    ("trigger",),
    ("verify",),
)


def attacked(history: HandHistory) -> MemoryLog:
    """The history with the attack in each text of each record."""
    log = MemoryLog(history.job_id)
    for offset, stored in enumerate(history.records):
        header = decode_header(stored.header)
        if header is None:
            log.store(stored)
            continue
        record = decode_record(offset, stored.value, stored.header, header=header)
        log.store(unstored(_attacked(record)))
    return log


def _attacked(record: Record) -> Record:
    attributes = {
        name: value if name in _READ_BY_THE_FOLD else value + ATTACK
        for name, value in record.attributes.items()
    }
    payload_type = record.payload_type
    is_event = record.event_id is not None and payload_type is not None
    return replace(
        record,
        driver_id=record.driver_id + ATTACK,
        operator_id=None if record.operator_id is None else record.operator_id + ATTACK,
        payload_type=f"{payload_type}{ATTACK}" if is_event else payload_type,
        reason=None if record.reason is None else record.reason + ATTACK,
        attributes={**attributes, f"host{ATTACK}": ATTACK, "host": ATTACK, "endpoint": ATTACK},
    )


def controls(text: str) -> list[str]:
    """Characters that a terminal obeys or hides, beyond the ends of lines."""
    return sorted({repr(one) for one in text if one != "\n" and not one.isprintable()})


@pytest.fixture(scope="module", params=[streaming_history, batch_history])
def log(request: pytest.FixtureRequest) -> MemoryLog:
    return attacked(request.param("job"))


@pytest.mark.parametrize("command", [("jobs",), *COMMANDS], ids=" ".join)
def test_no_text_of_a_record_controls_the_terminal(
    log: MemoryLog, command: tuple[str, ...]
) -> None:
    name, *options = command
    place = [] if name == "jobs" else ["job"]
    has_json = name not in {"prune", "stop", "trigger", "kill-attempt"}
    for form in ([], ["--json"]) if has_json else ([],):
        result = CliRunner().invoke(
            main, (name, *place, *options, *form), obj=lambda _servers: OneLog(log)
        )

        assert result.output or form  # a table without rows has no line of JSON
        assert "fault of coordlog" not in result.output
        assert controls(result.output) == []


def test_cells_of_a_table_keep_their_lines_and_styles(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(new_console(), (Column("A"), Column("B")), [(Text("x\x1by", "red"), "one\ntwo")])

    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["A", "B"],
        ["x", "y", "one"],
        ["two"],
    ]


def test_a_narrow_terminal_cuts_no_number(capsys: pytest.CaptureFixture[str]) -> None:
    columns = (
        Column("JOB"),
        Column("ROWS", is_right=True),
        Column("LEFT OUT", rank=1),
        Column("WHY"),
    )
    console = new_console()
    console.width = 12
    print_table(console, columns, [("ingest", "1,234,567", "x", "because")])

    shown = capsys.readouterr().out
    assert shown.splitlines()[1].split() == ["ingest", "1,234,567", "because"]
    assert "LEFT OUT" in "".join(shown.splitlines()[2:]).replace("\n", " ")


def test_a_long_table_is_printed_in_parts_that_are_aligned(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = (Column("N", is_right=True), Column("NAME"), Column("WHY"))
    rows = [(str(number), "x" * (number // 100), "because") for number in range(1_200)]
    console = new_console()
    parts: list[int] = []
    monkeypatch.setattr(console, "print", lambda *_args, **_options: parts.append(1))
    print_table(console, columns, rows)
    assert len(parts) > 2

    print_table(new_console(), columns, rows)

    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["N", "NAME", "WHY"]
    assert [line.split() for line in lines] == [list(filter(None, row)) for row in rows]
    assert {line.index("because") for line in lines} == {head.index("WHY")}


@pytest.mark.parametrize("indent", [None, 2])
def test_json_escapes_what_a_terminal_obeys(indent: int | None) -> None:
    value: Json = {"é": f"a{ATTACK}b", "list": ["\U000e0001"]}

    @click.command()
    def show() -> None:
        click.echo(json_text(value, indent=indent))

    shown = CliRunner(charset="utf-8").invoke(show).stdout
    assert json.loads(shown) == value
    assert controls(shown) == []
    assert "é" in shown
