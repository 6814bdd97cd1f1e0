"""Reads a report's document as its page does: facts by offset, without a fold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from coordlog.history import History
from coordlog.log.interface import Log, UnstoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.report.document import Document, document
from coordlog.report.lanes import SizeOf

__all__ = ["Facts", "document_of", "log_of"]

MADE_US = 1_800_000_000_000_000


def log_of(records: Sequence[UnstoredRecord], name: str = "ingest") -> MemoryLog:
    """A log with these records."""
    log = MemoryLog(name)
    log.store(*records)
    return log


def document_of(
    log: Log,
    job: str = "ingest",
    moment_us: int | None = None,
    size_of: SizeOf = lambda _content: None,
) -> Document:
    """The document of a log."""
    return document(
        History(log).records(),
        job=job,
        where="memory",
        made_us=MADE_US,
        made_by="0",
        moment_us=moment_us,
        size_of=size_of,
    )


class Facts:
    """The questions that the page asks of a document, as `facts.js` answers them."""

    def __init__(self, made: Document) -> None:
        self.facts = cast("dict[str, Any]", made.facts)
        self.records = cast("dict[str, Any]", made.records)

    def text(self, number: int | None) -> str | None:
        """Text by number."""
        return None if number is None else str(self.facts["texts"][number])

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Rows of a table."""
        columns: dict[str, list[Any]] = self.facts[table]
        return [
            dict(zip(columns, values, strict=True))
            for values in zip(*columns.values(), strict=True)
        ]

    def attempts(self, moment: int) -> dict[tuple[int, int], str]:
        """End of each attempt at the moment."""
        return {
            (row["sub"], row["att"]): str(self.text(row["end"]))
            if is_over(row["end_off"], moment)
            else "running"
            for row in self.rows("attempts")
            if is_so(row["off"], moment)
        }

    def checkpoints(self, moment: int) -> dict[int, tuple[str, int]]:
        """State of each checkpoint at the moment, and number of its acks."""
        acks = [ack for ack in self.rows("acks") if is_so(ack["off"], moment)]
        states: dict[int, tuple[str, int]] = {}
        for number, row in enumerate(self.rows("checkpoints")):
            if not is_so(row["off"], moment):
                continue
            state = "pending"
            if is_over(row["abandoned_off"], moment):
                state = "abandoned"
            elif is_over(row["end_off"], moment):
                state = str(self.text(row["end"]))
            states[row["cp"]] = (state, sum(ack["checkpoint"] == number for ack in acks))
        return states

    def splits(self, moment: int) -> dict[str, str]:
        """Place of each split at the moment."""
        holds = self.rows("holds")
        return {
            row["id"]: self._place(row, [hold for hold in holds if hold["split"] == number], moment)
            for number, row in enumerate(self.rows("splits"))
            if is_so(row["off"], moment)
        }

    @staticmethod
    def _place(row: dict[str, Any], holds: list[dict[str, Any]], moment: int) -> str:
        place = "waiting"
        for hold in holds:
            if not is_so(hold["off"], moment) or is_over(hold["thrown_off"], moment):
                continue
            if hold["is_skipped"] and is_over(hold["end_off"], moment):
                continue
            if is_over(hold["committed_off"], moment):
                return "committed"
            if is_over(hold["cp_off"], moment):
                place = "in checkpoint"
            elif is_over(hold["end_off"], moment):
                place = "finished"
            elif place == "waiting":
                place = "assigned"
        if is_over(row["skipped_off"], moment) and place in ("waiting", "assigned"):
            return "skipped"
        if is_over(row["withdrawn_off"], moment) and place == "waiting":
            return "withdrawn"
        return place

    def commits(self, moment: int) -> dict[int, bool]:
        """Whether each intent is settled at the moment, by its sequence."""
        return {
            row["sequence"]: is_over(row["end_off"], moment)
            for row in self.rows("commits")
            if is_so(row["off"], moment)
        }

    def epochs(self, moment: int) -> dict[int, str]:
        """End of each epoch at the moment."""
        return {
            row["epoch"]: str(self.text(row["end"])) if is_over(row["end_off"], moment) else "open"
            for row in self.rows("epochs")
            if is_so(row["off"], moment)
        }

    def failures(self, moment: int) -> list[tuple[str, int | None, bool]]:
        """Scope, checkpoint of the reset, and whether work went on, of each failure."""
        return [
            (
                str(self.text(row["scope"])),
                row["reset_cp"] if is_over(row["reset_off"], moment) else None,
                is_over(row["restarted_off"], moment),
            )
            for row in self.rows("failures")
            if is_so(row["off"], moment)
        ]

    def lost(self, moment: int) -> dict[str, list[bool]]:
        """Whether the work thrown away was whole, by split, in log order."""
        ids = self.facts["splits"]["id"]
        lost: dict[str, list[bool]] = {}
        for row in self.rows("lost"):
            if is_so(row["off"], moment):
                lost.setdefault(ids[row["split"]], []).append(row["is_whole"])
        return lost


def is_so(offset: int | None, moment: int) -> bool:
    """Whether a fact with that offset is so at the moment."""
    return offset is None or offset <= moment


def is_over(offset: int | None, moment: int) -> bool:
    """Whether an end with that offset has come at the moment."""
    return offset is not None and offset <= moment
