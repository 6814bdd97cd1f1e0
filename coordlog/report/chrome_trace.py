"""A report as a trace in Chrome's format, which Perfetto opens: a process for subtasks, one for the job."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any, Final, cast

from coordlog.projections.tables.payload_json import Json
from coordlog.report.document import Document

__all__ = ["chrome_trace"]

_JOB, _SUBTASKS = 1, 2
"""Ids of the two processes of the trace."""
_EPOCHS, _CHECKPOINTS, _COMMITS = 1, 2, 3
"""Threads of the job. A subtask's thread is its number and 1: viewers take thread 0 for an idle processor."""
_COLOURS: Final = {
    "completed": "good",
    "failed": "terrible",
    "aborted": "terrible",
    "fenced": "bad",
    "stopped": "grey",
}


def chrome_trace(document: Document) -> dict[str, Json]:
    """The document as `{"traceEvents": [...]}`: times in microseconds since the first record.

    Attempts and splits are slices of their subtask; checkpoints and commits are asynchronous slices, because they
    overlap; failures and resets are instants. Slices of one thread are nested, as the format demands: if the clocks of
    two drivers differ, the later slice begins at the end of the earlier one.
    """
    facts = _Facts(document.facts)
    attempts = _in_turn(facts, "attempts", "sub")
    events = [*_names(facts), *_epochs(facts), *_attempts(facts, attempts)]
    events += _splits(facts, attempts)
    events += [*_checkpoints(facts), *_commits(facts), *_marks(facts)]
    return {
        "displayTimeUnit": "ms",
        "otherData": {"job": document.facts["job"], "made_by": document.facts["made_by"]},
        "traceEvents": cast("Json", events),
    }


class _Facts:
    """Rows of the tables, with texts in place of their numbers."""

    def __init__(self, facts: dict[str, Json]) -> None:
        self._facts = cast("dict[str, Any]", facts)
        self.last_t = int(self._facts["last_t"] or 0)

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Values of these columns; one that ends in `*` is a text."""
        texts = self._facts["texts"]
        lists = [
            [None if number is None else texts[number] for number in self._facts[table][name[:-1]]]
            if name.endswith("*")
            else self._facts[table][name]
            for name in columns
        ]
        return zip(*lists, strict=True)


def _names(facts: _Facts) -> Iterator[dict[str, Json]]:
    names: dict[tuple[int, int | None], str]
    names = {(_JOB, None): "job", (_SUBTASKS, None): "subtasks"}
    names |= {(_JOB, _EPOCHS): "epochs", (_JOB, _CHECKPOINTS): "checkpoints"}
    names[_JOB, _COMMITS] = "commits"
    for (subtask,) in facts.rows("attempts", "sub"):
        names[_SUBTASKS, subtask + 1] = f"subtask {subtask}"
    for (process, thread), name in names.items():
        is_process = thread is None
        yield {
            "ph": "M",
            "name": "process_name" if is_process else "thread_name",
            "pid": process,
            "tid": 1 if thread is None else thread,
            "args": {"name": name},
        }


_Span = tuple[int, int]
"""Begin and end."""


def _in_turn(facts: _Facts, table: str, lane: str | None = None) -> list[_Span]:
    """Span of each row of a table, none before the end of the row before it in its lane.

    The clocks of drivers may differ, and viewers drop a slice that overlaps another one.
    """
    last: dict[int, int] = {}
    spans: list[_Span] = []
    for number, t, end_t in facts.rows(table, lane or "t", "t", "end_t"):
        key = 0 if lane is None else number
        begin = max(t or 0, last.get(key, 0))
        last[key] = max(begin, facts.last_t if end_t is None else end_t)
        spans.append((begin, last[key]))
    return spans


def _slice(process: int, thread: int, name: str, span: _Span, **args: Json) -> dict[str, Json]:
    t, end_t = span
    return {
        "ph": "X",
        "pid": process,
        "tid": thread,
        "name": name,
        "ts": t,
        "dur": end_t - t,
        "args": {key: value for key, value in args.items() if value is not None},
    }


def _epochs(facts: _Facts) -> Iterator[dict[str, Json]]:
    columns = ("epoch", "end*", "driver*", "host*", "restored_by*")
    rows = zip(facts.rows("epochs", *columns), _in_turn(facts, "epochs"), strict=True)
    for (epoch, end, driver, host, restored), span in rows:
        args = {"driver": driver, "host": host, "restored_by": restored, "end": end}
        yield _slice(_JOB, _EPOCHS, f"epoch {epoch}", span, **args)


def _attempts(facts: _Facts, spans: list[_Span]) -> Iterator[dict[str, Json]]:
    columns = ("sub", "att", "end*", "reason*", "host*", "from_cp", "epoch")
    rows = zip(facts.rows("attempts", *columns), spans, strict=True)
    for (sub, att, end, reason, host, start, epoch), span in rows:
        args = {"end": end or "running", "reason": reason, "host": host, "from": start}
        event = _slice(_SUBTASKS, sub + 1, f"attempt {att}", span, epoch=epoch, **args)
        yield event | ({"cname": _COLOURS[end]} if end in _COLOURS else {})


def _splits(facts: _Facts, attempts: list[_Span]) -> Iterator[dict[str, Json]]:
    ids = [split_id for (split_id,) in facts.rows("splits", "id")]
    columns = ("end_t", "split", "attempt", "sub", "read_t", "rows", "thrown_off")
    # Without an attempt: of a query, which has no lane.
    ended = [row for row in facts.rows("holds", *columns) if None not in (row[0], row[2], row[4])]
    last: dict[int, int] = {}
    for end_t, split, attempt, sub, read_t, rows, thrown in sorted(ended, key=itemgetter(0)):
        begin, limit = attempts[attempt]
        t = min(max(read_t, last.get(attempt, begin)), limit)
        last[attempt] = min(max(t, end_t), limit)
        args: dict[str, Json] = {"rows": rows, "thrown_away": thrown is not None}
        yield _slice(_SUBTASKS, sub + 1, ids[split], (t, last[attempt]), **args)


def _async(
    thread: int, category: str, name: str, number: int, span: _Span, **args: Json
) -> tuple[dict[str, Json], dict[str, Json]]:
    """Begin and end of an asynchronous slice."""
    shared: dict[str, Json] = {
        "cat": category,
        "name": name,
        "id": number,
        "pid": _JOB,
        "tid": thread,
    }
    known: Json = {key: value for key, value in args.items() if value is not None}
    t = max(0, span[0])
    begun = shared | {"ph": "b", "ts": t, "args": known}
    return begun, shared | {"ph": "e", "ts": max(t, span[1])}


def _checkpoints(facts: _Facts) -> Iterator[dict[str, Json]]:
    columns = ("cp", "t", "cut_t", "end_t", "end*", "reason*", "bytes", "epoch")
    for cp, t, cut_t, end_t, end, reason, size, epoch in facts.rows("checkpoints", *columns):
        begin = 0 if t is None else max(0, t)
        until = max(begin, facts.last_t if end_t is None else end_t)
        args = {"end": end or "pending", "reason": reason, "bytes": size, "epoch": epoch}
        span = (begin, until)
        whole = _async(_CHECKPOINTS, "checkpoint", f"checkpoint {cp}", cp, span, **args)
        yield whole[0]
        if cut_t is not None:
            cut = min(max(begin, cut_t), until)
            yield from _async(_CHECKPOINTS, "checkpoint", "trigger to cut", cp, (begin, cut))
            yield from _async(_CHECKPOINTS, "checkpoint", "cut to end", cp, (cut, until))
        yield whole[1]


def _commits(facts: _Facts) -> Iterator[dict[str, Json]]:
    columns = ("sequence", "op*", "cp", "t", "end_t", "rows", "tries")
    for number, operator, cp, t, end_t, rows, tries in facts.rows("commits", *columns):
        until = facts.last_t if end_t is None else end_t
        args = {"operator": operator, "rows": rows, "failed_tries": tries}
        name = f"commit of checkpoint {cp}"
        yield from _async(_COMMITS, "commit", name, number, (t or 0, until), **args)


def _marks(facts: _Facts) -> Iterator[dict[str, Json]]:
    for t, sub, scope, reason in facts.rows("failures", "t", "sub", "scope*", "reason*"):
        yield _instant(f"failure: {scope}", t, sub, reason)
    for t, sub, cp, words in facts.rows("resets", "t", "sub", "cp", "words*"):
        yield _instant(f"back to checkpoint {cp}", t, sub, words)


def _instant(name: str, t: int, subtask: int | None, reason: str | None) -> dict[str, Json]:
    return {
        "ph": "i",
        "s": "p" if subtask is None else "t",
        "pid": _JOB if subtask is None else _SUBTASKS,
        "tid": _EPOCHS if subtask is None else subtask + 1,
        "name": name,
        "ts": max(0, t),
        "args": {"reason": reason},
    }
