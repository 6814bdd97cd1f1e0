"""Which tests show which clause of the contract, which scenario and which fault of others, and in which tier.

    python tests/contract_table.py [ARGUMENTS FOR PYTEST]

collects all tests, runs none, and prints the table; the runs of the tiers themselves report what they have
shown. The ids are those of `docs/contract.md`. Exit code 1 if

- one has no test, or a clause none in the first tier;
- a clause marked as ours has no test whose docstring says what would go wrong otherwise.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import pytest

from tiers import Tier, tier_of

__all__ = [
    "SHOWS",
    "ContractIds",
    "ContractTable",
    "Shown",
    "closing_lines",
    "read_ids",
    "table",
    "unknown_marks",
]

ROOT: Final = Path(__file__).parents[1]
CONTRACT: Final = ROOT / "docs" / "contract.md"
MARKS: Final[Mapping[str, str]] = {"clause": "clause", "flink": "scenario", "fault": "fault"}
"""What each mark shows."""
SHOWS: Final = "shows"
"""Property of a test's report: the marks of the test, as name and id."""

_ID: Final = re.compile(r"^- \*\*([A-Za-z0-9-]+)\*\* ", re.MULTILINE)
_OURS: Final = " **ours** "
_SCENARIOS: Final = "\n## Scenarios\n"
_FAULTS: Final = "\n## Faults seen elsewhere\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractIds:
    """The ids that there are, in the contract's order."""

    clauses: tuple[str, ...]
    scenarios: tuple[str, ...]
    faults: tuple[str, ...] = ()
    ours: frozenset[str] = frozenset()
    """Clauses that differ from Flink on purpose: a test of each tells in its docstring what would go wrong."""

    def of(self, mark: str) -> tuple[str, ...]:
        """Those that a mark of this name may have."""
        return {"clause": self.clauses, "flink": self.scenarios, "fault": self.faults}[mark]


def read_ids(text: str) -> ContractIds:
    """The ids in a text like `docs/contract.md`: clauses, then, each below its heading, scenarios and faults."""
    before, _, faults = text.partition(_FAULTS)
    clauses, _, scenarios = before.partition(_SCENARIOS)
    found = [tuple(_ID.findall(part)) for part in (clauses, scenarios, faults)]
    for ids in found:
        doubled = sorted({one for one in ids if ids.count(one) > 1})
        assert not doubled, f"more than once in the contract: {', '.join(doubled)}"
    ours = {_ID.findall(one)[0] for one in re.split(r"(?m)^(?=- \*\*)", clauses) if _OURS in one}
    return ContractIds(
        clauses=found[0], scenarios=found[1], faults=found[2], ours=frozenset(ours & {*found[0]})
    )


def contract_ids() -> ContractIds:
    """The ids of the project's contract."""
    return read_ids(CONTRACT.read_text(encoding="utf-8"))


def marks_of(item: pytest.Item) -> Iterator[tuple[str, str]]:
    """The marks of a test, as name and id."""
    for name in MARKS:
        for mark in item.iter_markers(name):
            yield name, str(mark.args[0]) if len(mark.args) == 1 else f"{mark.args!r}"


def unknown_marks(ids: ContractIds, items: Iterable[pytest.Item]) -> list[str]:
    """One line for each mark whose id the contract does not have."""
    return sorted(
        {
            f'{item.nodeid.partition("[")[0]}: {name}("{value}"): docs/contract.md has no such id'
            for item in items
            for name, value in marks_of(item)
            if value not in ids.of(name)
        }
    )


@dataclass(slots=True)
class Shown:
    """The tests of one clause, scenario or fault."""

    tests: set[tuple[Tier, str]] = field(default_factory=set)
    """All values of a test's parameters together, once for each tier."""
    is_explained: bool = False
    """Whether one of the tests has a docstring."""

    def add(self, node: str, tier: Tier, *, is_explained: bool = False) -> None:
        """One more test, or one more value of its parameters."""
        self.is_explained = self.is_explained or is_explained
        self.tests.add((tier, node.partition("[")[0]))

    @property
    def tiers(self) -> list[Tier]:
        """The tiers of the tests, in the order of tiers."""
        return [tier for tier in Tier if any(tier is one for one, _ in self.tests)]


def _lacking(mark: str, shown: Shown, *, is_ours: bool) -> str | None:
    """The name of what is missing, or None."""
    if not shown.tests:
        return "NO TEST"
    if mark == "clause" and Tier.TEST not in shown.tiers:
        return "NO TEST IN TIER 1"
    if is_ours and not shown.is_explained:
        return "NO REASON TOLD"
    return None


def table(ids: ContractIds, shown: Mapping[tuple[str, str], Shown]) -> tuple[list[str], bool]:
    """The lines of the table, and whether all is shown."""
    lines: list[str] = []
    totals: list[str] = []
    is_whole = True
    for mark, title in MARKS.items():
        lacking: dict[str, list[str]] = {}
        lines.append(f"{title.upper():<9} {'TIERS':<22} TESTS")
        for contract_id in ids.of(mark):
            tests = shown.get((mark, contract_id), Shown())
            lack = _lacking(mark, tests, is_ours=contract_id in ids.ours)
            if lack is not None:
                lacking.setdefault(lack, []).append(contract_id)
            lines.append(
                f"{contract_id:<9} {lack or ', '.join(tests.tiers):<22} {len(tests.tests)}"
            )
            lines += [f"    {tier:<8} {node}" for tier, node in sorted(tests.tests)]
        count = sum(map(len, lacking.values()))
        totals.append(
            f"{len(ids.of(mark))} {title}s: {len(ids.of(mark)) - count} shown, {count} not"
        )
        totals += [f"  {lack}: {' '.join(those)}" for lack, those in sorted(lacking.items())]
        is_whole = is_whole and not lacking
        lines.append("")
    return [*lines, *totals], is_whole


class Report(Protocol):
    """The part of pytest's report of a test that is read here."""

    @property
    def user_properties(self) -> list[tuple[str, object]]:
        """The properties of the test."""
        ...


def closing_lines(
    ids: ContractIds, passed: Iterable[Report], failed: Iterable[Report]
) -> list[str]:
    """The counts of what a run has shown, one line for each kind of mark, with the ids whose tests failed.

    An id is shown by a test that passed, unless another test of it failed.
    """
    good, bad = _marks_in(passed), _marks_in(failed)
    lines: list[str] = []
    for mark, title in MARKS.items():
        broken = [one for one in ids.of(mark) if (mark, one) in bad]
        count = sum((mark, one) in good - bad for one in ids.of(mark))
        lines.append(
            f"{title}s shown by this run: {count} of {len(ids.of(mark))}"
            + (f"; FAILED: {' '.join(broken)}" if broken else "")
        )
    return lines


def _marks_in(reports: Iterable[Report]) -> set[tuple[str, str]]:
    return {
        (str(mark), str(contract_id))
        for report in reports
        for name, marks in report.user_properties
        if name == SHOWS and isinstance(marks, list)
        for mark, contract_id in marks
    }


class ContractTable:
    """A pytest plugin that prints the table of the tests that were collected."""

    def __init__(self, ids: ContractIds) -> None:
        self.ids = ids
        self.shown: dict[tuple[str, str], Shown] = {}
        self.is_whole = False

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort the tests by their marks."""
        for item in items:
            is_explained = isinstance(item, pytest.Function) and bool(item.function.__doc__)
            for mark in marks_of(item):
                shown = self.shown.setdefault(mark, Shown())
                shown.add(item.nodeid, tier_of(item), is_explained=is_explained)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        lines, self.is_whole = table(self.ids, self.shown)
        terminalreporter.section("the contract")
        for line in lines:
            terminalreporter.write_line(line)


def main(arguments: Sequence[str]) -> int:
    """Collect with the plugin; pytest's own exit code if that is not 0."""
    sys.path.insert(0, str(ROOT))  # as `python -m pytest` does: tests of the examples import them
    plugin = ContractTable(contract_ids())
    code = pytest.main(["--collect-only", "-qq", *arguments], plugins=[plugin])
    return int(code) or (0 if plugin.is_whole else 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
