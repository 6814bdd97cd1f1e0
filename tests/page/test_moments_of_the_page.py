"""The slider: each of its steps is the end of a turn, and each panel then shows the tables of the log up to there."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from playwright.sync_api import Page

from coordlog.log.memory import MemoryLog
from coordlog.projections.inspection.verdict_fold import VerdictFold
from coordlog.projections.tables.audit import Audit, audit, audit_records
from coordlog.projections.tables.events import EventDirection, events
from coordlog.schemas.record import Record
from driven_history import recorded_history
from histories.report_facts import document_of, log_of
from servers.browser import OpenReport

pytestmark = [pytest.mark.page, pytest.mark.slow, pytest.mark.tier("matrix")]

_MOMENTS = 20

_SHOWN = """async (offset) => {
  const slider = document.querySelector("#moment");
  slider.value = coordlogView.facts.momentRow(offset);
  slider.dispatchEvent(new Event("input"));
  const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  await frame();
  coordlogView.drawAll();
  await frame();
  const body = (id) => document.querySelector(`#panel-${id} .body`);
  const texts = (elements) => [...elements].map((element) => element.textContent);
  const rows = (id) => [...body(id).querySelectorAll(".scroll tbody tr")].map((row) => texts(row.cells));
  return {
    moment: coordlogView.moment,
    state: body("verdict").querySelector("strong").textContent,
    attempts: rows("lanes"), splits: rows("splits"), checkpoints: rows("waterfall"), epochs: rows("epochs"),
    stories: texts(body("story").querySelectorAll("li")),
    cost: rows("cost").pop() ?? null, commits: body("commits").querySelector("p").textContent,
    latency: rows("latency")[0] ?? null, backlog: body("backlog").querySelector("p").textContent,
  };
}"""


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    return log_of(recorded_history(), "flights")


def open_all(open_report: OpenReport, log: MemoryLog) -> Page:
    page = open_report(document_of(log, "flights"))
    page.locator("#panel-lanes summary").click()
    return page


def test_each_panel_shows_the_folds_at_random_moments(
    log: MemoryLog, open_report: OpenReport, seed: int
) -> None:
    page = open_all(open_report, log)
    end = log.high_watermark()
    for offset in sorted(random.Random(seed).sample(range(end), _MOMENTS)):
        shown: dict[str, Any] = page.evaluate(_SHOWN, offset)
        moment = shown["moment"]
        assert moment <= offset
        records = counted(log, moment)
        assert records[-1].turn_remaining == 0
        assert len(records) == len(counted(log, offset)), f"no whole turn is left out at {offset}"
        assert_tables(shown, audit(log.read(0, moment + 1)))
        assert_verdict(shown, records)
        assert_slowest_event(shown, records)


def counted(log: MemoryLog, offset: int) -> list[Record]:
    return [
        entry.record
        for entry in audit_records(log.read(0, offset + 1))
        if entry.counts and entry.record is not None
    ]


def assert_tables(shown: dict[str, Any], tables: Audit) -> None:
    assert {row[0]: row[4] for row in shown["attempts"]} == {
        f"{row.subtask}/{row.attempt_number}": row.end.value for row in tables.attempts
    }
    assert {row[0]: row[1] for row in shown["splits"]} == {
        row.split_id: row.place.value for row in tables.splits
    }
    assert {row[0]: row[5] for row in shown["checkpoints"]} == {
        str(row.checkpoint_id): row.status.value for row in tables.checkpoints
    }
    assert {row[0]: row[4] for row in shown["epochs"]} == {
        str(row.epoch): row.end.value for row in tables.epochs
    }
    resets = [
        row.sequence if row.reset_us is None else ("reset", row.reset_us) for row in tables.failures
    ]
    assert len(shown["stories"]) == len(set(resets))
    thrown = sum(len(row.thrown_away) for row in tables.splits)
    if shown["cost"] is None:
        assert (tables.failures, thrown) == ((), 0)
    else:
        assert shown["cost"][1] == str(len(tables.failures))
        assert shown["cost"][3] == str(thrown)
    ends = Counter(row.status.value for row in tables.commits)
    if tables.commits:
        intents = f"{ends['open']} intent{'' if ends['open'] == 1 else 's'} without an outcome"
        assert shown["commits"].startswith(f"{intents}, {ends['settled']} settled")
    unfinished = sum(row.place.value in ("waiting", "assigned") for row in tables.splits)
    if tables.splits:
        assert shown["backlog"].startswith(f"{unfinished} split")


def assert_verdict(shown: dict[str, Any], records: list[Record]) -> None:
    fold = VerdictFold()
    for record in records:
        fold.apply(record)
    assert shown["state"] == fold.state(records[-1].timestamp_us).value


def assert_slowest_event(shown: dict[str, Any], records: list[Record]) -> None:
    took = [
        row.milliseconds
        for row in events(iter(records))
        if row.direction is EventDirection.DOWN and row.milliseconds is not None
    ]
    if not took:
        assert shown["latency"] is None
        return
    number, unit = shown["latency"][3].split(" ")
    assert float(number) * {"µs": 0.001, "ms": 1.0, "s": 1000.0}[unit] == pytest.approx(
        max(took), rel=0.06
    )


def test_a_step_of_the_slider_is_the_next_end_of_a_turn(
    log: MemoryLog, open_report: OpenReport
) -> None:
    page = open_all(open_report, log)
    slider = page.locator("#moment")
    slider.focus()
    page.keyboard.press("Home")
    moments = [page.evaluate("coordlogView.moment")]
    for _ in range(12):
        page.keyboard.press("ArrowRight")
        moments.append(page.evaluate("coordlogView.moment"))
    expected = [
        entry.offset
        for entry in audit_records(log.records)
        if entry.record is not None and entry.record.turn_remaining == 0
    ]
    assert moments == expected[:13]
    assert moments != list(range(13)), "some turns have more records than one"
    assert f"offset {moments[-1]} of 192" in (slider.get_attribute("aria-valuetext") or "")
    page.evaluate("(offset) => coordlogView.setMoment(offset)", moments[-1] - 1)
    assert page.evaluate("coordlogView.moment") == moments[-2]
