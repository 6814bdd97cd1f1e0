"""Bounds of the served pages: bytes of all views, slow and silent readers; and files of one job."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import uvicorn
from playwright.sync_api import Browser, expect
from starlette.types import ASGIApp, Receive, Scope, Send

from coordlog.cli.log_access import FileLogs
from coordlog.cli.web import connections, live_jobs
from coordlog.cli.web.connections import BoundedConnection
from coordlog.cli.web.live_jobs import LiveJobs
from coordlog.cli.web.pages import names_of_files
from coordlog.errors import LogUnavailableError, TopicError
from coordlog.export import write_exported
from driven_history import recorded_history
from histories.report_facts import log_of
from histories.served_pages import GrowingLogs, served

pytestmark = [pytest.mark.page, pytest.mark.slow, pytest.mark.tier("matrix")]

_RECORDS: Final = len(recorded_history())
_ONE: Final = _RECORDS * 1_900
"""More bytes than one view of the recorded history takes, and fewer than two."""
_WAIT_S: Final = 20.0


def recorded(*names: str) -> GrowingLogs:
    return GrowingLogs(**{name: log_of(recorded_history(), name) for name in names})


def test_the_view_that_was_looked_at_longest_ago_is_dropped_and_rebuilt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs, live = recorded("a", "b", "c"), LiveJobs(lambda _content: None, 2 * _ONE)
    monkeypatch.setattr(live_jobs, "_LOOKED_AT_S", 0.0)
    versions = {job: live.answer(logs, job, job).version for job in ("a", "b")}
    assert live.answer(logs, "a", "a").version == versions["a"]
    live.answer(logs, "c", "c")

    assert live.answer(logs, "a", "a").version == versions["a"]
    assert live.answer(logs, "b", "b").version != versions["b"], "it was dropped, and read again"


def test_a_view_that_is_being_looked_at_is_not_dropped_for_another() -> None:
    logs, live = recorded("a", "b"), LiveJobs(lambda _content: None, _ONE)
    version = live.answer(logs, "a", "a").version

    with pytest.raises(TopicError, match="are taken by others"):
        live.answer(logs, "b", "b")
    assert live.answer(logs, "a", "a").version == version


def test_a_job_that_does_not_fit_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs = recorded("a")
    monkeypatch.setattr(live_jobs, "_STEP", 10)

    with pytest.raises(TopicError, match=r"more than the 100.0 kB .*coordlog report.*--memory MB"):
        LiveJobs(lambda _content: None, 100_000).answer(logs, "a", "a")


def test_a_view_survives_an_absence_of_its_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    logs, live = recorded("a"), LiveJobs(lambda _content: None)
    monkeypatch.setattr(live_jobs, "_CHECK_S", 0.0)
    version = live.answer(logs, "a", "a").version
    logs.is_away = True
    with pytest.raises(LogUnavailableError):
        live.answer(logs, "a", "a")
    logs.is_away = False

    assert live.answer(logs, "a", "a").version == version


def test_a_reader_of_a_log_that_is_being_read_waits_with_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs, live = recorded("a"), LiveJobs(lambda _content: None)
    monkeypatch.setattr(live_jobs, "_WAIT_S", 0.01)
    began, goes_on = threading.Event(), threading.Event()
    opened = logs.open

    def slow(job_id: str) -> object:
        began.set()
        assert goes_on.wait(_WAIT_S)
        return opened(job_id)

    monkeypatch.setattr(logs, "open", slow)
    first = threading.Thread(target=live.answer, args=(logs, "a", "a"))
    first.start()
    try:
        assert began.wait(_WAIT_S)
        with pytest.raises(TopicError, match="the page follows once all of them are"):
            live.answer(logs, "a", "a")
    finally:
        goes_on.set()
        first.join(_WAIT_S)
    assert live.answer(logs, "a", "a").end == _RECORDS


def exported(folder: Path, name: str, count: int) -> FileLogs:
    folder.mkdir(exist_ok=True)
    path = folder / name
    write_exported(log_of(recorded_history()[:count], "flights"), "flights", path)
    return FileLogs(path)


def test_files_of_the_same_job_have_pages_of_their_own(tmp_path: Path, browser: Browser) -> None:
    monday = exported(tmp_path, "monday.avro", 60)
    tuesday = exported(tmp_path, "tue#sday.avro", 120)
    again = exported(tmp_path / "other", "monday.avro", 90)
    files = names_of_files([monday, tuesday, again], ())
    assert files == {
        "flights@monday.avro": monday,
        "flights@tue#sday.avro": tuesday,
        "flights@monday.avro (2)": again,
    }
    assert list(names_of_files([monday], ())) == ["flights"]
    assert list(names_of_files([monday], ("flights",))) == ["flights@monday.avro"]
    with served(None, files=files) as port:
        page = browser.new_page(viewport={"width": 390, "height": 800})
        for name, end in (
            ("flights@monday.avro", 60),
            ("flights@tue#sday.avro", 120),
            ("flights@monday.avro (2)", 90),
        ):
            page.goto(f"http://127.0.0.1:{port}/")
            assert page.evaluate("document.documentElement.scrollWidth") == 390
            page.get_by_role("link", name=name, exact=True).click()
            expect(page.locator("#panels")).to_have_attribute("data-end", str(end))
            command = page.locator("#panel-epochs .command").inner_text()
            assert str(files[name].where) in command
        page.context.close()


_REQUEST: Final = b"GET /%s HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "then"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHost: ", b""),
        (_REQUEST % b"large", b""),
        (_REQUEST % b"", b"GET / HT"),
    ],
    ids=["silent", "half a request", "takes nothing", "half a second request"],
)
def test_a_reader_that_stops_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, sent: bytes, then: bytes
) -> None:
    monkeypatch.setattr(connections, "_PATIENCE_S", 0.2)

    with listening(_small_or_large) as server:
        port = server.servers[0].sockets[0].getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=_WAIT_S) as reader:
            reader.sendall(sent)
            wait_until(lambda: bool(server.server_state.connections))
            if then:
                assert reader.recv(1_000).startswith(b"HTTP/1.1 200")
                reader.sendall(then)
            wait_until(lambda: not server.server_state.connections)


async def _small_or_large(scope: Scope, _receive: Receive, send: Send) -> None:
    size = 50_000_000 if scope["path"] == "/large" else 2
    headers = [(b"content-length", str(size).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(size)})


@contextmanager
def listening(app: ASGIApp) -> Generator[uvicorn.Server]:
    """A server of an application, at any port; it would keep idle connections for longer than the test waits."""
    config = uvicorn.Config(
        app,
        port=0,
        log_level="critical",
        lifespan="off",
        http=BoundedConnection,
        timeout_keep_alive=3_600,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield server
    finally:
        server.should_exit = True
        thread.join(_WAIT_S)


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + _WAIT_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)
