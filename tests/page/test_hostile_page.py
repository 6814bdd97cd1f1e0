"""Texts of a job are untrusted: names, reasons and payloads with script in them are shown as texts, and run nowhere."""

from __future__ import annotations

import shlex
import unicodedata

import pytest
from playwright.sync_api import Page, expect

from coordlog.report.page_file import page as page_of
from histories.hostile_history import ATTACKS, hostile_history
from histories.report_facts import document_of, log_of
from servers.browser import OpenReport

pytestmark = [pytest.mark.page, pytest.mark.slow, pytest.mark.tier("matrix")]


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


def test_texts_that_hide_turn_or_flood_others_are_tamed(open_report: OpenReport) -> None:
    page = open_report(document_of(log_of(hostile_history()), "ingest"), width=390)
    show_everything(page)
    texts: list[str] = page.evaluate(
        """() => {
          const walker = document.createTreeWalker(document.querySelector("#panels"), NodeFilter.SHOW_TEXT);
          const texts = [];
          while (walker.nextNode()) texts.push(walker.currentNode.data);
          return texts;
        }"""
    )

    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert max(map(len, texts)) < 1_000
    marks = {mark for text in texts for mark in text if unicodedata.category(mark) in ("Cc", "Cf")}
    assert marks <= {"\n"}
    assert any("one\\u2028two" in text for text in texts)
    story = page.locator("#panel-story li", has_text="subtask 9").inner_text()
    assert story.endswith("Work has not gone on so far.")
    row = page.evaluate("(id) => coordlogView.facts.splits.id.indexOf(id)", ATTACKS[-1])
    page.evaluate("(row) => coordlogView.select({kind: 'splits', row})", row)
    expect(page.locator("#panel-details h3").first).to_contain_text("… (10,000 characters)")


def test_a_command_with_a_name_in_it_is_one_command(open_report: OpenReport) -> None:
    page = open_report(document_of(log_of(hostile_history()), "ingest"))
    row = page.evaluate("(id) => coordlogView.facts.splits.id.indexOf(id)", ATTACKS[7])
    page.evaluate("(row) => coordlogView.select({kind: 'splits', row})", row)
    command = page.locator("#panel-details .command code").inner_text()

    assert shlex.split(command) == ["coordlog", "explain", "ingest", "--split", ATTACKS[7]]


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
