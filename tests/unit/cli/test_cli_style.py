"""What all commands share: no colour into a pipe, NO_COLOR, a pager on a terminal alone, completed job ids."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import json
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from coordlog.cli.completing import JOB
from coordlog.cli.json_payload import from_json
from coordlog.cli.log_access import LogPlace
from coordlog.cli.main import main
from coordlog.cli.paging import pager_of
from coordlog.errors import LogUnavailableError

COORDLOG = str(Path(sys.executable).parent / "coordlog")
HISTORY = str(Path(__file__).parents[2] / "golden" / "audited-history.avro")
LIMIT_S = 60.0


def on_a_terminal(*arguments: str, rows: int, variables: dict[str, str] | None = None) -> str:
    """What the command prints on a terminal of 80 columns."""
    pid, terminal = pty.fork()
    if pid == 0:
        # LINES and COLUMNS, which a worker of xdist may have, are not the size of this terminal.
        others = {"LESS", "LINES", "COLUMNS"}
        environment = {name: os.environ[name] for name in os.environ if name not in others}
        environment |= {"TERM": "xterm-256color", **(variables or {})}
        os.execve(COORDLOG, [COORDLOG, *arguments], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
    shown, until = b"", time.monotonic() + LIMIT_S
    with contextlib.suppress(OSError):  # the end of a terminal
        while time.monotonic() < until:
            if select.select([terminal], [], [], 0.5)[0]:
                shown += os.read(terminal, 65536)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0, shown
    return shown.decode()


@pytest.mark.slow
@pytest.mark.parametrize("table", ["attempts", "splits", "checkpoints", "epochs", "commits"])
def test_a_table_on_80_columns_has_no_longer_line(table: str) -> None:
    shown = on_a_terminal(table, HISTORY, "--no-pager", rows=24, variables={"NO_COLOR": "1"})

    rows = shown.replace("\r", "").split("\n\n")[0].splitlines()
    assert max(map(len, rows)) <= 80
    assert "\x1b" not in shown, "no colour and no other style"


@pytest.mark.slow
def test_a_long_table_goes_to_the_pager_and_a_short_one_does_not(tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text('#!/bin/sh\necho "IN THE PAGER"\ncat\n', encoding="utf-8")
    pager.chmod(0o755)
    variables = {"PAGER": str(pager)}

    long = on_a_terminal("attempts", HISTORY, rows=8, variables=variables)
    assert "IN THE PAGER" in long
    assert "9 attempts of 3 subtasks" in long
    assert "\x1b[" in long, "with its colours"
    for rows, more in ((60, ()), (8, ("--no-pager",)), (8, ("--json",))):
        shown = on_a_terminal("attempts", HISTORY, *more, rows=rows, variables=variables)
        assert "IN THE PAGER" not in shown


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", None), ("cat", None), ("no-such-program-at-all", None), ("sh -c 'more", None)],
)
def test_a_pager_that_is_none_is_not_used(value: str, expected: list[str] | None) -> None:
    assert pager_of({"PAGER": value}) == expected


def test_the_pager_of_the_user_keeps_its_options() -> None:
    program, *options = pager_of({"PAGER": "sh -c 'cat -n'"}) or []
    assert (Path(program).name, options) == ("sh", ["-c", "cat -n"])


# --- completion ------------------------------------------------------------------------------------------------------
def completed(*arguments: str, incomplete: str) -> list[str]:
    shell = ShellComplete(main, {}, "coordlog", "_COORDLOG_COMPLETE")
    return [item.value for item in shell.get_completions(list(arguments), incomplete)]


@pytest.mark.parametrize(
    "command",
    ["tail", "stop", "trigger", "kill-attempt", "request", "history", "savepoint", "prune"],
)
def test_the_ids_of_jobs_are_completed(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[str] = []

    def jobs(place: LogPlace, _patience_s: float) -> tuple[str, ...]:
        places.append(place.servers)
        return ("ingest", "invoices", "other")

    monkeypatch.setattr(LogPlace, "jobs", jobs)

    assert completed(command, "--bootstrap-servers", "k:9092", incomplete="in") == [
        "ingest",
        "invoices",
    ]
    assert places == ["k:9092"]


def test_a_broker_that_does_not_answer_completes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def jobs(_place: LogPlace, _patience_s: float) -> tuple[str, ...]:
        raise LogUnavailableError("k:9092", "listing", 2.0)

    monkeypatch.setattr(LogPlace, "jobs", jobs)
    assert completed("tail", "--bootstrap-servers", "k:9092", incomplete="in") == []


def test_an_exported_file_is_completed_by_the_shell() -> None:
    context = click.Context(main)
    (item,) = JOB(context, main.params[0], "./in")
    assert (item.type, item.value) == ("file", "./in")


# --- JSON of a request -----------------------------------------------------------------------------------------------
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "count", "type": ["null", "long"], "default": None},
        {"name": "raw", "type": "bytes", "default": ""},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}, "default": 0},
        {
            "name": "parts",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Part",
                    "fields": [{"name": "share", "type": "double"}],
                },
            },
            "default": [],
        },
    ],
}


def test_json_becomes_the_types_of_the_schema() -> None:
    value = from_json(
        SCHEMA,
        {
            "name": "a",
            "count": 3,
            "raw": "0x00ff",
            "at": "2026-01-31T12:00:00Z",
            "parts": [{"share": 1}],
        },
    )
    assert value == {
        "name": "a",
        "count": 3,
        "raw": b"\x00\xff",
        "at": dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC),
        "parts": [{"share": 1.0}],
    }


def test_fields_left_out_have_their_defaults() -> None:
    value = from_json(SCHEMA, {"name": "a"})
    assert (value["count"], value["raw"], value["parts"]) == (None, b"", [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"count": 1}', "the field 'name' is missing, and has no default"),
        ('{"name": "a", "nmae": 1}', "it has no field 'nmae'; its fields are: name, count,"),
        ('{"name": 1}', "name is 1; it must be a string"),
        ('{"name": "a", "count": "3"}', "count is '3'; it must be a long"),
        ('{"name": "a", "count": true}', "count is True; it must be a long"),
        ('{"name": "a", "raw": "xyz"}', "raw is 'xyz'; it must be 0x and hexadecimal digits"),
        ('{"name": "a", "raw": "0xf"}', "raw is '0xf'; it must be 0x and hexadecimal digits"),
        ('{"name": "a", "at": "noon"}', "at is 'noon'; it must be a timestamp-micros"),
        ('{"name": "a", "parts": [{"share": "1"}]}', "parts[0].share is '1'; it must be a double"),
        ("[]", "it is []; it must be an object"),
    ],
)
def test_json_that_does_not_match_is_refused_by_its_place(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        from_json(SCHEMA, json.loads(text))
