"""A report as a trace in Chrome's format, which Perfetto opens: a process for subtasks, one for the job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

from coordlog.projections.tables.payload_json import Json
from coordlog.report.document import Document

__all__ = ["chrome_trace"]

_JOB, _SUBTASKS = 1, 2
"""Ids of the two processes of the trace."""
_EPOCHS, _CHECKPOINTS, _COMMITS = 0, 1, 2
"""Threads of the job."""
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
    overlap; failures and resets are instants.
    """
    facts = _Facts(document.facts)
    events = [*_names(facts), *_epochs(facts), *_attempts(facts), *_splits(facts)]
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
        names[_SUBTASKS, subtask] = f"subtask {subtask}"
    for (process, thread), name in names.items():
        is_process = thread is None
        yield {
            "ph": "M",
            "name": "process_name" if is_process else "thread_name",
            "pid": process,
            "tid": 0 if thread is None else thread,
            "args": {"name": name},
        }


def _slice(
    process: int, thread: int, name: str, t: int, end_t: int, **args: Json
) -> dict[str, Json]:
    return {
        "ph": "X",
        "pid": process,
        "tid": thread,
        "name": name,
        "ts": t,
        "dur": max(0, end_t - t),
        "args": {key: value for key, value in args.items() if value is not None},
    }


def _epochs(facts: _Facts) -> Iterator[dict[str, Json]]:
    columns = ("epoch", "t", "end_t", "end*", "driver*", "host*", "restored_by*")
    for epoch, t, end_t, end, driver, host, restored in facts.rows("epochs", *columns):
        until = facts.last_t if end_t is None else end_t
        args = {"driver": driver, "host": host, "restored_by": restored, "end": end}
        yield _slice(_JOB, _EPOCHS, f"epoch {epoch}", t or 0, until, **args)


def _attempts(facts: _Facts) -> Iterator[dict[str, Json]]:
    columns = ("sub", "att", "t", "end_t", "end*", "reason*", "host*", "from_cp", "epoch")
    for sub, att, t, end_t, end, reason, host, start, epoch in facts.rows("attempts", *columns):
        until = facts.last_t if end_t is None else end_t
        args = {"end": end or "running", "reason": reason, "host": host, "from": start}
        event = _slice(_SUBTASKS, sub, f"attempt {att}", t or 0, until, epoch=epoch, **args)
        yield event | ({"cname": _COLOURS[end]} if end in _COLOURS else {})


def _splits(facts: _Facts) -> Iterator[dict[str, Json]]:
    ids = [split_id for (split_id,) in facts.rows("splits", "id")]
    columns = ("split", "attempt", "sub", "read_t", "end_t", "rows", "thrown_off")
    for split, attempt, sub, t, end_t, rows, thrown in facts.rows("holds", *columns):
        if attempt is None or t is None or end_t is None:
            continue  # of a query, which has no lane, or not ended
        args: dict[str, Json] = {"rows": rows, "thrown_away": thrown is not None}
        yield _slice(_SUBTASKS, sub, ids[split], t, end_t, **args)


def _async(
    thread: int, category: str, name: str, number: int, t: int, end_t: int, **args: Json
) -> Iterator[dict[str, Json]]:
    shared: dict[str, Json] = {
        "cat": category,
        "name": name,
        "id": number,
        "pid": _JOB,
        "tid": thread,
    }
    known: Json = {key: value for key, value in args.items() if value is not None}
    yield shared | {"ph": "b", "ts": t, "args": known}
    yield shared | {"ph": "e", "ts": max(t, end_t)}


def _checkpoints(facts: _Facts) -> Iterator[dict[str, Json]]:
    columns = ("cp", "t", "cut_t", "end_t", "end*", "reason*", "bytes", "epoch")
    for cp, t, cut_t, end_t, end, reason, size, epoch in facts.rows("checkpoints", *columns):
        until = facts.last_t if end_t is None else end_t
        args = {"end": end or "pending", "reason": reason, "bytes": size, "epoch": epoch}
        name = f"checkpoint {cp}"
        yield from _async(_CHECKPOINTS, "checkpoint", name, cp, t, until, **args)
        if cut_t is not None:
            yield from _async(_CHECKPOINTS, "checkpoint", "trigger to cut", cp, t, cut_t)
            yield from _async(_CHECKPOINTS, "checkpoint", "cut to end", cp, cut_t, until)


def _commits(facts: _Facts) -> Iterator[dict[str, Json]]:
    columns = ("sequence", "op*", "cp", "t", "end_t", "rows", "tries")
    for number, operator, cp, t, end_t, rows, tries in facts.rows("commits", *columns):
        until = facts.last_t if end_t is None else end_t
        args = {"operator": operator, "rows": rows, "failed_tries": tries}
        name = f"commit of checkpoint {cp}"
        yield from _async(_COMMITS, "commit", name, number, t or 0, until, **args)


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
        "tid": 0 if subtask is None else subtask,
        "name": name,
        "ts": t,
        "args": {"reason": reason},
    }
