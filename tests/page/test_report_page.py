"""The page of a report, in a real browser: what it shows is what the folds of the log say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from coordlog.log.interface import UnstoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.projections.inspection.explain import explain_checkpoint, explain_split
from coordlog.projections.tables.audit import Audit, audit, audit_records
from coordlog.report.document import Document
from coordlog.schemas.record import Kind
from coordlog.spark_integration.files.payloads import PublishFiles, StagedFile
from driven_history import recorded_history
from histories.hand_history import HandHistory, discovery
from histories.large_history import LANES, RECORDS, large_history
from histories.report_facts import document_of, log_of
from servers.browser import OpenReport

pytestmark = [pytest.mark.page, pytest.mark.slow, pytest.mark.tier("matrix")]

FIRST_PAINT_MS = 20_000
"""Generous: a loaded machine is not a finding. The figure is printed."""


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    return log_of(recorded_history(), "flights")


@pytest.fixture(scope="module")
def document(log: MemoryLog) -> Document:
    return document_of(log, "flights")


def ends_of_turns(log: MemoryLog) -> list[int]:
    return [
        entry.offset
        for entry in audit_records(log.records)
        if entry.counts and entry.record is not None and entry.record.turn_remaining == 0
    ]


def tables_at(log: MemoryLog, offset: int) -> Audit:
    return audit(log.read(0, offset + 1))


def go_to(page: Page, offset: int) -> None:
    """Move the slider, and wait until the page is drawn."""
    slider = page.locator("#moment")
    slider.evaluate(
        "(slider, offset) => { slider.value = coordlogView.facts.momentRow(offset);"
        " slider.dispatchEvent(new Event('input')); }",
        offset,
    )
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


def lanes_of(page: Page) -> dict[str, Any]:
    """What the lanes show: attempts with end and place in time, and the numbers of what is painted."""
    shown: dict[str, Any] = json.loads(
        page.evaluate(
            """() => {
              const view = coordlogView, {lanes, facts} = view;
              const bars = lanes.hits.filter((hit) => hit.thing.kind === "attempts").map((hit) => ({
                sub: facts.attempts.sub[hit.thing.row], att: facts.attempts.att[hit.thing.row],
                end: facts.attemptEnd(hit.thing.row, view.moment), from: lanes.axis.t(hit.x), to: lanes.axis.t(hit.to),
                pixel: lanes.axis.t(lanes.axis.left + 1) - lanes.axis.t(lanes.axis.left),
              }));
              return JSON.stringify({bars, painted: lanes.painted});
            }"""
        )
    )
    return shown


def test_the_lanes_show_the_attempts_of_the_folds_at_any_moment(
    log: MemoryLog, document: Document, open_report: OpenReport
) -> None:
    page = open_report(document)
    offsets = ends_of_turns(log)
    began_us = document.facts["t0"]
    assert isinstance(began_us, int)

    for offset in [*offsets[5::17], offsets[-1]]:
        go_to(page, offset)
        shown, tables = lanes_of(page), tables_at(log, offset)
        assert {(bar["sub"], bar["att"]): bar["end"] for bar in shown["bars"]} == {
            (row.subtask, row.attempt_number): row.end.value for row in tables.attempts
        }, offset
        by_attempt = {(bar["sub"], bar["att"]): bar for bar in shown["bars"]}
        for row in tables.attempts:
            bar = by_attempt[row.subtask, row.attempt_number]
            assert row.started_us is not None
            assert bar["from"] == pytest.approx(row.started_us - began_us, abs=2 * bar["pixel"])
            if row.ended_us is not None:
                assert bar["to"] == pytest.approx(row.ended_us - began_us, abs=2 * bar["pixel"])
        assert shown["painted"]["lanes"] == len(
            {row.subtask for row in tables.attempts} | {0, 1, 2}
        )
        assert shown["painted"]["checkpoints"] == len(tables.checkpoints)


def test_the_verdict_and_the_numbers_are_those_of_the_moment(
    log: MemoryLog, document: Document, open_report: OpenReport
) -> None:
    page = open_report(document)
    offsets = ends_of_turns(log)

    for offset in (offsets[len(offsets) // 2], offsets[-1]):
        go_to(page, offset)
        tables = tables_at(log, offset)
        tiles = {
            tile.locator("span").inner_text(): tile.locator("b").inner_text()
            for tile in page.locator("#panel-verdict .tile").all()
        }
        states = [row.status.value for row in tables.checkpoints]
        assert tiles["checkpoints completed"] == str(states.count("completed"))
        assert tiles["aborted"] == str(states.count("aborted"))
        ends = [row.end.value for row in tables.attempts]
        lost = str(ends.count("failed") + ends.count("fenced"))
        assert tiles[f"of {len(ends)} attempts lost"] == lost
    expect(page.locator("#panel-verdict strong")).to_have_text("finished")
    assert tiles["rows published"] == "480"


def details_of(page: Page, kind: str, row: int) -> list[int]:
    """Offsets of the records behind a thing, as the details list them."""
    page.evaluate("([kind, row]) => coordlogView.select({kind, row})", [kind, row])
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )
    places = page.locator("#panel-details ol.records .place").all_inner_texts()
    return [int(place.split(" ")[0]) for place in places]


def test_output_files_of_a_split_are_those_since_its_turn_to_be_read(
    open_report: OpenReport,
) -> None:
    history = HandHistory()
    history.epoch()
    history.turn(history.record(Kind.COORDINATORS_STARTED))
    history.turn(discovery(history, "s0", "s1", "s2"), history.started((0, 0), -1, 0))
    history.turn(history.assigned((0, 0), 0, "s0", "s1", "s2"))
    for checkpoint_id, split_id in enumerate(("s0", "s1"), start=1):
        history.checkpoint(checkpoint_id, (0, 0))
        name = f"part-{checkpoint_id}.parquet"
        file = StagedFile(
            staged=f"0-0-{checkpoint_id}.parquet", final=name, size_bytes=1, checksum="", rows=1
        )
        history.commit(checkpoint_id, PublishFiles(checkpoint_id=checkpoint_id, files=[file]))
        history.turn(history.finished((0, 0), split_id, 9, checkpoint_id))
    page = open_report(document_of(log_of(history.records)))

    assert page.evaluate("() => [0, 1, 2].map((split) => filesOf(coordlogView, split))") == [
        ["part-1.parquet", "part-2.parquet"],
        ["part-2.parquet"],
        [],
    ]


def test_the_records_behind_a_split_are_those_that_explain_it(
    log: MemoryLog, document: Document, open_report: OpenReport
) -> None:
    page = open_report(document)
    splits = document.facts["splits"]
    assert isinstance(splits, dict)
    ids = splits["id"]
    assert isinstance(ids, list)

    for row in (0, 5, 11):
        explained = explain_split(log.records, str(ids[row]))
        shown = details_of(page, "splits", row)
        assert {step.offset for step in explained.steps} <= set(shown)


def test_the_records_behind_a_checkpoint_are_those_that_explain_it(
    log: MemoryLog, document: Document, open_report: OpenReport
) -> None:
    page = open_report(document)
    explained = explain_checkpoint(log.records, 2)
    barriers = {step.offset for step in explained.steps if step.kind.value == "BARRIER_INJECTED"}

    shown = details_of(page, "checkpoints", 1)
    assert {step.offset for step in explained.steps} - barriers <= set(shown)
    expect(page.locator("#panel-details h3").first).to_have_text("Checkpoint 2")


def test_a_click_on_a_bar_shows_why_the_attempt_ended(
    document: Document, open_report: OpenReport
) -> None:
    page = open_report(document)
    place = page.evaluate(
        """() => {
          const {lanes} = coordlogView;
          const hit = lanes.hits.find((one) => one.thing.kind === "attempts" && one.thing.row === 0);
          const box = lanes.canvas.getBoundingClientRect();
          return [box.left + hit.x + 1, box.top + hit.y + 1];
        }"""
    )
    page.mouse.click(*place)

    expect(page.locator("#panel-details h3").first).to_have_text("Attempt 0 of subtask 0")
    expect(page.locator("#panel-details dl")).to_contain_text("killed by the test")


def test_the_keyboard_moves_zooms_and_selects(document: Document, open_report: OpenReport) -> None:
    page = open_report(document)
    page.locator("#panel-lanes canvas").focus()

    page.keyboard.press("n")
    expect(page.locator("#panel-details h3").first).to_have_text("Attempt 0 of subtask 0")
    page.keyboard.press("+")
    assert page.evaluate("coordlogView.lanes.axis.isZoomed")
    page.keyboard.press("0")
    assert not page.evaluate("coordlogView.lanes.axis.isZoomed")
    page.keyboard.press("Escape")
    assert page.evaluate("coordlogView.selection") is None
    page.locator("#moment").focus()
    page.keyboard.press("Home")
    assert page.evaluate("coordlogView.moment") == 0


def test_the_lanes_can_be_read_as_a_table_without_a_mouse(
    log: MemoryLog, document: Document, open_report: OpenReport
) -> None:
    page = open_report(document)
    page.locator("#panel-lanes summary").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#panel-lanes tbody tr")).to_have_count(len(audit(log.records).attempts))
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")

    expect(page.locator("#panel-details h3").first).to_have_text("Attempt 0 of subtask 0")
    assert page.evaluate("document.activeElement.className") == "pick"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_each_focusable_thing_has_a_name_and_each_canvas_a_text(
    document: Document, open_report: OpenReport
) -> None:
    page = open_report(document)
    nameless = page.evaluate(
        """() => {
          coordlogView.drawAll();
          const things = document.querySelectorAll("button, input, #panels canvas:not(.uplot *), [tabindex]");
          const isNamed = (thing) => thing.textContent.trim() || thing.ariaLabel || thing.labels?.length;
          return [...things].filter((thing) => !isNamed(thing)).map((thing) => thing.outerHTML);
        }"""
    )

    assert nameless == []


def test_failed_only_leaves_the_lanes_with_a_lost_attempt(open_report: OpenReport) -> None:
    page = open_report(document_of(log_of(one_failure())))
    page.get_by_role("button", name="failed only").click()
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )

    assert page.evaluate("coordlogView.lanes.lanesShown") == [1]


def one_failure() -> list[UnstoredRecord]:
    """Three subtasks, of which one fails."""
    history = HandHistory()
    history.epoch()
    for subtask in range(3):
        history.turn(history.started((subtask, 0), -1, subtask))
    history.turn(history.failed((1, 0), "boom"), history.reset_subtask(1, -1))
    return history.records


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_as_wide_as_the_window_in_both_schemes(
    document: Document, open_report: OpenReport, width: int, scheme: str
) -> None:
    page = open_report(document, width=width, scheme=scheme)

    assert page.evaluate("document.documentElement.scrollWidth") <= width
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    is_dark = sum(map(int, colour[4:-1].split(","))) < 128 * 3
    assert is_dark == (scheme == "dark")


def test_each_panel_names_the_command_that_answers_the_same(
    document: Document, open_report: OpenReport
) -> None:
    page = open_report(document)
    panels = page.locator(".panel").all()

    assert len(panels) >= 4
    for panel in panels:
        if panel.get_attribute("id") != "panel-details":
            expect(panel.locator(".command code")).to_contain_text("coordlog ")


def test_the_verdict_names_the_command_that_judges_the_same(
    document: Document, open_report: OpenReport
) -> None:
    command = open_report(document).locator("#panel-verdict .command code")

    expect(command).to_have_text("coordlog health flights · coordlog state flights")


def test_a_long_command_is_not_broken_within_an_option(
    document: Document, open_report: OpenReport
) -> None:
    page = open_report(document, width=390)
    heights = page.locator("#panel-waterfall .command .option").evaluate_all(
        "(options) => options.map((option) => option.getClientRects().length)"
    )

    assert heights == [1]


def test_details_that_are_scrolled_to_are_not_under_the_head(
    document: Document, open_report: OpenReport
) -> None:
    page = open_report(document, width=390)
    failure = page.locator("#panel-story button.pick").last
    page.locator("#panel-story").scroll_into_view_if_needed()
    failure.click()
    details, head = (
        page.locator("#panel-details").bounding_box(),
        page.locator(".bar").bounding_box(),
    )

    assert details is not None
    assert head is not None
    assert details["y"] >= head["y"] + head["height"]


@pytest.mark.parametrize(
    ("amount", "shown"),
    [
        ("lasted(999.4)", "999 µs"),
        ("lasted(999.6)", "1.0 ms"),
        ("lasted(9_940)", "9.9 ms"),
        ("lasted(9_960)", "10 ms"),
        ("lasted(999_600)", "1.00 s"),
        ("lasted(9_996_000)", "10.0 s"),
        ("lasted(119_960_000)", "2 min 0 s"),
        ("lasted(179_600_000)", "3 min 0 s"),
        ("lasted(7_199_600_000)", "2 h 0 min"),
        ("lasted(10_790_000_000)", "3 h 0 min"),
        ("lasted(172_799_000_000)", "2.0 days"),
        ("inBytes(999)", "999 B"),
        ("inBytes(999_960)", "1.0 MB"),
    ],
)
def test_an_amount_is_rounded_into_its_unit(
    document: Document, open_report: OpenReport, amount: str, shown: str
) -> None:
    assert open_report(document).evaluate(amount) == shown


def test_a_history_of_100000_records_is_painted_without_a_wait(
    open_report: OpenReport, capsys: pytest.CaptureFixture[str]
) -> None:
    document = document_of(log_of(large_history().records, "large"), "large")
    for width in (1280, 390):
        page = open_report(document, width=width)
        painted = page.evaluate("performance.getEntriesByName('coordlog-painted')[0].startTime")
        shown = lanes_of(page)
        with capsys.disabled():
            print(
                f"\n{RECORDS:,} records, {LANES:,} lanes, {width} px: first paint after {painted:.0f} ms"
            )

        assert page.evaluate("coordlogView.facts.records.off.length") >= RECORDS
        assert page.evaluate("coordlogView.lanes.lanesShown.length") == LANES
        assert 10 <= shown["painted"]["lanes"] <= 60
        assert shown["painted"]["holds"] > 0
        assert painted < FIRST_PAINT_MS
