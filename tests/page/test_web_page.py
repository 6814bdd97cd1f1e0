"""The served pages, in a real browser: what they show is what the folds say, also of a log that grows."""

from __future__ import annotations

import gzip
import http.client
import json
import time
from collections.abc import Callable, Sequence

import pytest
from playwright.sync_api import Browser, expect

from coordlog.cli.living import DriverFold
from coordlog.cli.log_access import KafkaLogs, LogPlace
from coordlog.cli.web import live_jobs
from coordlog.cli.web.access import COOKIE
from coordlog.cli.web.live_jobs import LiveJobs
from coordlog.errors import CoordlogError
from coordlog.log.broker.embedded import embedded_broker
from coordlog.log.interface import UnstoredRecord
from coordlog.log.kafka import KafkaLog, Security
from coordlog.projections.tables.audit import audit
from driven_history import recorded_history
from histories.hostile_history import ATTACKS, hostile_history
from histories.report_facts import log_of
from histories.served_pages import GrowingLogs, served

pytestmark = [pytest.mark.page, pytest.mark.slow, pytest.mark.tier("matrix")]

_TOKEN = "0123456789abcdef0123"


def status_of(port: int, path: str, method: str = "GET", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_page_follows_a_growing_log_over_an_absence(browser: Browser) -> None:
    records = recorded_history()
    logs = GrowingLogs(flights=log_of(records[: len(records) // 2], "flights"))
    faults: list[str] = []
    with served(logs) as port:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"http://127.0.0.1:{port}/")
        page.get_by_role("link", name="flights").click()
        page.wait_for_selector("#panels[data-state=records]")
        attempts: Callable[[], int] = lambda: page.evaluate(  # noqa: E731
            "window.coordlogView.facts.size('attempts')"
        )
        assert attempts() == len(audit(logs.logs["flights"].records).attempts)
        selected = """(() => {
          const {selection, facts} = coordlogView;
          return [facts.attempts.sub[selection.row], facts.attempts.att[selection.row]];
        })()"""
        page.evaluate(
            "coordlogView.select({kind: 'attempts', row: coordlogView.facts.size('attempts') - 1})"
        )
        before = page.evaluate(selected)
        page.evaluate("window.coordlogView.lanes.axis.zoom(0.5, 300)")
        page.evaluate("coordlogView.drawAll()")
        page.locator("#panel-epochs button.pick").first.focus()
        logs.is_away = True
        expect(page.locator("p[role=status]")).to_contain_text("does not answer", timeout=20_000)
        logs.is_away = False
        logs.logs["flights"] = log_of(records, "flights")
        expect(page.locator("#panels")).to_have_attribute(
            "data-end", str(len(records)), timeout=20_000
        )
        assert attempts() == len(audit(logs.logs["flights"].records).attempts)
        assert page.evaluate(selected) == before
        assert page.evaluate("document.activeElement.closest('.panel').id") == "panel-epochs"
        assert page.evaluate("window.coordlogView.lanes.axis.isZoomed")
        page.locator("#panel-lanes canvas").focus()
        page.keyboard.press("0")
        assert not page.evaluate("window.coordlogView.lanes.axis.isZoomed")
        logs.delete("flights")
        expect(page.locator("p[role=status]")).to_contain_text("there is no job", timeout=20_000)
        page.context.close()
    assert faults == []


def test_the_page_of_an_empty_log_reports_it_until_its_first_record(browser: Browser) -> None:
    records = recorded_history()
    logs = GrowingLogs(flights=log_of([], "flights"))
    with served(logs) as port:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/jobs/flights")
        status = page.locator("p[role=status]")
        expect(status).to_have_text("The log has no record yet.")
        with page.expect_response(lambda answer: answer.status == 204):
            pass
        page.wait_for_timeout(500)  # the script has handled the answer
        assert status.is_visible()
        logs.logs["flights"] = log_of(records, "flights")
        expect(page.locator("#panels")).to_have_attribute(
            "data-end", str(len(records)), timeout=20_000
        )
        expect(status).to_be_hidden()
        page.context.close()


def test_a_page_follows_a_broker_that_is_killed_and_returns(browser: Browser) -> None:
    records = recorded_history()
    half = len(records) // 2
    with embedded_broker() as broker:
        log = KafkaLog.for_job("flights", broker.bootstrap_servers)
        log.create()
        append(log, records[:half])
        with served(
            KafkaLogs(LogPlace(servers=broker.bootstrap_servers, security=Security()))
        ) as port:
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{port}/jobs/flights")
            expect(page.locator("#panels")).to_have_attribute("data-end", str(half), timeout=30_000)
            broker.kill()
            expect(page.locator("p[role=status]")).to_contain_text("answer", timeout=60_000)
            broker.restart()
            append(log, records[half:])
            end = str(len(records))
            expect(page.locator("#panels")).to_have_attribute("data-end", end, timeout=60_000)
            expect(page.locator("p[role=status]")).to_be_hidden()
            page.context.close()
        log.close()


def append(log: KafkaLog, records: Sequence[UnstoredRecord]) -> None:
    writer = log.writer()
    writer.append(records, timeout_s=60.0)
    writer.close(timeout_s=1.0)


def test_a_silent_job_becomes_stuck_on_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody appends: only the time passes."""
    records = recorded_history()
    live = LiveJobs(lambda _content: None)
    logs = GrowingLogs(flights=log_of(records[: len(records) // 2], "flights"))
    last_us = logs.logs["flights"].records[-1].timestamp_ms * 1000
    monkeypatch.setattr(live_jobs, "_VERDICT_S", 0.0)
    monkeypatch.setattr(live_jobs, "_REST", 0)
    states = []
    for seconds in (0, 100_000):
        monkeypatch.setattr(time, "time_ns", lambda s=seconds: (last_us + s * 1_000_000) * 1000)
        facts = json.loads(gzip.decompress(live.answer(logs, "flights", "flights").body))["facts"]
        states.append(facts["texts"][facts["verdicts"]["state"][-1]])

    assert states == ["progressing", "stuck"]


def test_a_job_whose_driver_is_gone_is_stuck_on_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    records = recorded_history()
    logs = GrowingLogs(flights=log_of(records[: len(records) // 2], "flights"))
    last_us = logs.logs["flights"].records[-1].timestamp_ms * 1000
    monkeypatch.setattr(time, "time_ns", lambda: last_us * 1000)
    states = []
    for answers in (True, False):
        monkeypatch.setattr(DriverFold, "answers", lambda _self, answers=answers: answers)
        live = LiveJobs(lambda _content: None)
        answer = live.answer(logs, "flights", "flights")
        facts = json.loads(gzip.decompress(answer.body))["facts"]
        states.append(facts["texts"][facts["verdicts"]["state"][-1]])

    assert states == ["progressing", "stuck"]


def test_a_name_of_no_job_takes_no_place_of_one_that_is_read() -> None:
    logs = GrowingLogs(flights=log_of(recorded_history(), "flights"))
    live = LiveJobs(lambda _content: None)
    version = live.answer(logs, "flights", "flights").version
    for n in range(20):
        with pytest.raises(CoordlogError):
            live.answer(logs, f"no-job-{n}", f"no-job-{n}")

    assert live.answer(logs, "flights", "flights").version == version


def test_names_and_payloads_with_script_run_nowhere(browser: Browser) -> None:
    logs = GrowingLogs(
        **{ATTACKS[0]: log_of(hostile_history()), "plain": log_of(hostile_history())}
    )
    with served(logs) as port:
        page = browser.new_page()
        for path in ("/", "/jobs/plain"):
            page.goto(f"http://127.0.0.1:{port}{path}")
            if path != "/":
                page.wait_for_selector("#panels[data-state=records]")
            assert "attacked" not in page.title()
        page.context.close()
        for path in ("/jobs/..%2f..%2fetc%2fpasswd", "/jobs/%3Cimg%3E", "/../etc/passwd"):
            assert status_of(port, path) == 404


def test_only_readers_with_the_token_are_answered() -> None:
    with served(GrowingLogs(), _TOKEN) as port:
        assert status_of(port, "/") == 403
        assert status_of(port, "/?token=wrong") == 403
        assert status_of(port, "/", Cookie=f"{COOKIE}=wrong") == 403
        assert status_of(port, f"/?token={_TOKEN}") == 303


def test_writes_and_foreign_hosts_are_refused() -> None:
    with served(GrowingLogs()) as port:
        assert status_of(port, "/") == 200
        assert status_of(port, "/", "POST") == 405
        assert status_of(port, "/", Host="attacker.example") == 421
