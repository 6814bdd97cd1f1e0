"""Texts of a job are untrusted: names, reasons and payloads with script in them are shown as texts, and run nowhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from playwright.sync_api import Page

from browser import OpenReport
from coordlog.log.interface import UnstoredRecord
from coordlog.report.page_file import page as page_of
from coordlog.schemas.record import Kind, Record
from hand_history import BEGAN_US, SOURCE, HandHistory, discovery, unstored
from report_facts import document_of, log_of

pytestmark = [pytest.mark.page, pytest.mark.slow, pytest.mark.tier("matrix")]

ATTACKS: Final = (
    "<img src=x onerror=\"document.title='attacked'\">",
    "</script><script>document.title='attacked'</script>",
    "<svg onload=document.title='attacked'>",
    "javascript:document.title='attacked'",
    '"><iframe srcdoc="<script>parent.document.title=1</script>">',
    "{{data}}{{script}}<!--",
    "\u202e\u0000\ud7ff${document.title='attacked'}`",
)


def hostile_history() -> list[UnstoredRecord]:
    """Each attack as a split, a reason, a host, a driver, an operator, a request of another program."""
    history = HandHistory()
    history.epoch()
    epoch = history.records.pop()
    assert epoch.value
    record = Record(
        epoch=0,
        driver_id=ATTACKS[0],
        sequence=None,
        kind=Kind.EPOCH_STARTED,
        timestamp_us=BEGAN_US,
        job_id=history.job_id,
        attributes={
            "mode": ATTACKS[1],
            "host": ATTACKS[2],
            "coordlog_version": ATTACKS[4],
            "parallelism": str(len(ATTACKS)),
        },
    )
    history.records.append(unstored(record))
    history.turn(history.record(Kind.COORDINATORS_STARTED, attributes={"restore": ATTACKS[0]}))
    history.turn(discovery(history, *ATTACKS))
    for subtask, attack in enumerate(ATTACKS):
        attempt = (subtask, 0)
        started = history.started(attempt, -1, subtask)
        history.turn(replace(started, attributes={**started.attributes, "host": attack}))
        history.turn(history.assigned(attempt, subtask, attack))
        history.turn(history.finished(attempt, attack, 1, -1))
        history.turn(history.failed(attempt, attack), history.reset_subtask(subtask, -1))
    history.turn(history.record(Kind.GLOBAL_FAILURE, operator_id=ATTACKS[0], reason=ATTACKS[1]))
    history.turn(history.record(Kind.COMMIT_INTENT, operator_id=ATTACKS[2], checkpoint_id=1))
    history.turn(history.of_checkpoint(Kind.CHECKPOINT_TRIGGERED, 1))
    aborted = history.of_checkpoint(Kind.CHECKPOINT_ABORTED, 1)
    history.turn(replace(aborted, reason=ATTACKS[1]))
    history.foreign()
    history.void(history.skipped(SOURCE, ATTACKS[0]), epoch=0, sequence=0)
    history.turn(history.record(Kind.JOB_FAILED, reason=ATTACKS[0]))
    return history.records


def show_everything(page: Page) -> None:
    """Draw each panel and the details of each thing."""
    page.evaluate(
        """async () => {
          const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
          for (const panel of document.querySelectorAll(".panel")) { panel.scrollIntoView(); await frame(); }
          for (const kind of Object.keys(DETAILS)) {
            const table = coordlogView.facts[kind];
            const size = table === undefined ? 0 : Object.values(table)[0].length;
            for (let row = 0; row < size && kind !== "gaps"; row += 1) {
              coordlogView.select({kind, row});
              await frame();
            }
          }
        }"""
    )


def test_script_in_names_and_reasons_is_text_and_does_not_run(open_report: OpenReport) -> None:
    page = open_report(document_of(log_of(hostile_history()), "ingest"))
    show_everything(page)

    assert page.title() == "ingest: coordlog report"
    assert page.locator("img, iframe, svg, object, embed, a[href]").count() == 0
    assert page.locator("script").count() == 3
    shown = page.locator("#panels").inner_text()
    for attack in ATTACKS[:3]:
        assert attack in shown


def test_the_policy_forbids_script_that_is_not_in_the_file(open_report: OpenReport) -> None:
    page = open_report(document_of(log_of(hostile_history()), "ingest"))
    page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "document.title = 'attacked'";
          document.body.append(script);
          const image = document.createElement("p");
          document.body.append(image);
          image.innerHTML = "<img onerror=\\"document.title='attacked'\\">";
          image.firstChild.dispatchEvent(new Event("error"));
        }"""
    )

    assert page.title() == "ingest: coordlog report"


def test_no_text_of_a_job_is_in_the_file_as_it_was_written() -> None:
    document = document_of(log_of(hostile_history()), ATTACKS[1])
    text = page_of(document)

    assert text.count("<script") == 3
    assert text.count("</script>") == 3
    for attack in ATTACKS:
        if "{{" not in attack:
            assert attack not in text
    assert "&lt;/script&gt;" in text
