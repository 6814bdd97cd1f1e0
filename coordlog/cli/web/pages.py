"""The served application: an index of jobs, a page for each, and its facts."""

from __future__ import annotations

import html
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from coordlog.cli.console import lasted
from coordlog.cli.job_states import JobRow, job_rows
from coordlog.cli.log_access import FileLogs, Logs
from coordlog.cli.web.access import Guard
from coordlog.cli.web.live_jobs import MEMORY_MB, LiveJobs
from coordlog.errors import CoordlogError, LogUnavailableError, OptionError
from coordlog.log.job_id import check_job_id
from coordlog.report.lanes import SizeOf
from coordlog.report.page_file import index_page, live_page

__all__ = ["application", "names_of_files"]

_LIST_S: Final = 3.0
"""Seconds for which a list of jobs is reused."""
_INDEX_S: Final = 30.0
"""Seconds for which a reader waits for the first list of jobs."""
_REASON_CHARS: Final = 200
_CLASSES: Final = {
    "progressing": "run", "slow": "warn", "stuck": "bad", "failed": "bad", "finished": "ok", "stopped": "stop",
    "unreadable": "bad",
}  # fmt: skip


class _Pages:
    def __init__(
        self,
        broker: Logs | None,
        only: tuple[str, ...],
        files: Mapping[str, Logs],
        live: LiveJobs,
    ) -> None:
        self._broker, self._only, self._files, self._live = broker, only, files, live
        self._lock = threading.Lock()
        self._index: tuple[float, str] | None = None

    def index(self, _request: Request) -> Response:
        # One request reads the logs; meanwhile the others get the previous list.
        if self._lock.acquire(timeout=_INDEX_S if self._index is None else 0):
            try:
                if self._index is None or time.monotonic() - self._index[0] > _LIST_S:
                    self._index = (time.monotonic(), self._made_index())
            finally:
                self._lock.release()
        if self._index is None:
            return PlainTextResponse("the jobs are still being read\n", 503)
        text, policy = index_page(self._index[1])
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    def job(self, request: Request) -> Response:
        job = request.path_params["job"]
        if not self._is_served(job):
            return PlainTextResponse("there is no such job\n", 404)
        text, policy = live_page(job)
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    def facts(self, request: Request) -> Response:
        job, known = request.path_params["job"], request.query_params.get("known", "")
        if not self._is_served(job):
            return PlainTextResponse("there is no such job", 404)
        file = self._files.get(job)
        place = self._broker if file is None else file
        assert place is not None, "served"
        try:
            answer = self._live.answer(place, job if file is None else file.jobs()[0], job)
        except LogUnavailableError as error:
            return PlainTextResponse(f"the log does not answer: {error}", 503)
        except CoordlogError as error:
            return PlainTextResponse(str(error), 410)
        if answer.version == known:
            return Response(status_code=204)
        headers = {
            "Content-Encoding": "gzip",
            "X-Coordlog-End": str(answer.end),
            "X-Coordlog-Version": answer.version,
        }
        return Response(answer.body, media_type="application/json", headers=headers)

    def _is_served(self, job: str) -> bool:
        if job in self._files:
            return True
        if self._broker is None or (self._only and job not in self._only):
            return False
        try:
            check_job_id(job)
        except OptionError:
            return False
        return True

    def _made_index(self) -> str:
        rows: list[JobRow] = []
        problem = ""
        try:
            if self._broker is not None:
                rows.extend(job_rows(self._broker, self._only or self._broker.jobs()))
        except CoordlogError as error:
            problem = f'<p class="partial">The jobs cannot be listed: {html.escape(str(error))}</p>'
        for name, logs in self._files.items():
            rows.extend(replace(row, job_id=name) for row in job_rows(logs, logs.jobs()))
        if not rows and not problem:
            problem = '<p class="partial">There are no jobs.</p>'
        body = "".join(map(_row, rows))
        head = "".join(map(_head, ("job", "status", "checkpoint", "last record", "rows", "reason")))
        table = (
            f'<table role="table"><thead role="rowgroup"><tr role="row">{head}</tr></thead>'
            f'<tbody role="rowgroup">{body}</tbody></table>'
            if rows
            else ""
        )
        return f'{problem}<div class="scroll">{table}</div>'


def _row(row: JobRow) -> str:
    now_us = time.time_ns() // 1000
    checkpoint = (
        ""
        if row.last_checkpoint is None
        else f"{row.last_checkpoint}, {_ago(row.last_checkpoint_us, now_us)}"
    )
    colour = _CLASSES.get(row.status, "idle")
    job = f'<a href="/jobs/{html.escape(quote(row.job_id, safe=""))}">{html.escape(row.job_id)}</a>'
    more = "+" if row.counted_from else ""
    state = f'<span class="state {colour}">{html.escape(row.status)}</span>'
    cells = (
        _cell("job", job, "words"),
        _cell("status", state),
        _cell("checkpoint", html.escape(checkpoint)),
        _cell("last record", _ago(row.last_record_us, now_us)),
        _cell("rows", f"{row.rows:,}{more}", "number"),
        _cell("reason", html.escape((row.reason or "")[:_REASON_CHARS]), "words"),
    )
    return f'<tr role="row">{"".join(cells)}</tr>'


def _head(column: str) -> str:
    kind = ' class="number"' if column == "rows" else ""
    return f'<th role="columnheader" scope="col"{kind}>{column}</th>'


def _cell(column: str, content: str, kind: str = "") -> str:
    """A cell; the name of its column is shown beside it in a narrow window."""
    return f'<td role="cell" data-column="{column}" class="{kind}">{content}</td>'


def _ago(time_us: int | None, now_us: int) -> str:
    return "" if time_us is None else f"{lasted(time_us, max(now_us, time_us))} ago"


def names_of_files(files: Sequence[FileLogs], taken: Collection[str]) -> dict[str, FileLogs]:
    """The files by the names of their pages: the id of the job, with the name of the file if that is not enough.

    Args:
        files: Exported histories, each path at most once.
        taken: Ids of jobs with a page of their own.
    """
    ids = Counter(logs.jobs()[0] for logs in files)
    named: dict[str, FileLogs] = {}
    for logs in files:
        (job,) = logs.jobs()
        name = job if ids[job] == 1 and job not in taken else f"{job}@{Path(logs.where).name}"
        number = 2
        while name in named:
            name = f"{job}@{Path(logs.where).name} ({number})"
            number += 1
        named[name] = logs
    return named


def application(
    broker: Logs | None,
    only: tuple[str, ...],
    files: Mapping[str, Logs],
    *,
    size_of: SizeOf,
    host: str,
    token: str | None,
    memory_bytes: int = MEMORY_MB * 1_000_000,
) -> Guard:
    """The application.

    Args:
        broker: Logs of a broker, or None: only files are served.
        only: Ids of the broker's jobs that are served; empty: all.
        files: Exported histories by the name of their page, as of `names_of_files`.
        size_of: As in `coordlog.report.document.document`.
        host: Address at which it listens.
        token: Secret of the readers, or None.
        memory_bytes: As in `LiveJobs`.
    """
    live = LiveJobs(size_of, memory_bytes)
    pages = _Pages(broker, only, files, live)

    @asynccontextmanager
    async def closed_at_end(_app: Starlette) -> AsyncGenerator[None]:
        yield
        await run_in_threadpool(live.close)

    routes = [
        Route("/", pages.index),
        Route("/jobs/{job}", pages.job),
        Route("/jobs/{job}/facts", pages.facts),
    ]
    return Guard(Starlette(routes=routes, lifespan=closed_at_end), host, token)
