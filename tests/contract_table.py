"""Which tests show which clause of the contract, which scenario and which fault of others, and how they ended.

    python tests/contract_table.py [--everywhere] [ARGUMENTS FOR PYTEST]

runs every test that is marked with one of them and needs neither Spark nor Docker (`--everywhere`: those
too), and prints the table. The ids are those of `docs/contract.md`. Exit code 1 where

- one has no test, or only tests that did not run, or a test that failed;
- a clause marked as ours has no test whose docstring says what would go wrong otherwise.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

__all__ = ["ContractIds", "ContractTable", "Shown", "read_ids", "table", "unknown_marks"]

ROOT: Final = Path(__file__).parents[1]
CONTRACT: Final = ROOT / "docs" / "contract.md"
MARKS: Final[Mapping[str, str]] = {"clause": "clause", "flink": "scenario", "fault": "fault"}
"""What each mark shows."""
ELSEWHERE: Final = frozenset({"docker", "kafka_source", "spark"})
"""Marks of the tests that are listed, and not run unless asked for."""

PASSED: Final = "passed"
FAILED: Final = "FAILED"
SKIPPED: Final = "skipped"
NOT_RUN: Final = "not run here"
_WORST_FIRST: Final = (FAILED, SKIPPED, NOT_RUN, PASSED)
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
    """What the tests of one clause, scenario or fault came to."""

    results: dict[str, str] = field(default_factory=dict)
    """By test, all values of its parameters together: the worst."""
    is_explained: bool = False
    """Whether one of the tests has a docstring."""

    def add(self, node: str, result: str, *, is_explained: bool = False) -> None:
        """One more test, or one more value of its parameters."""
        self.is_explained = self.is_explained or is_explained
        name = node.partition("[")[0]
        known = self.results.get(name, PASSED)
        self.results[name] = min(known, result, key=_WORST_FIRST.index)

    @property
    def fault(self) -> str | None:
        """What is missing; None where it is shown."""
        if not self.results:
            return "NO TEST"
        if FAILED in self.results.values():
            return "FAILED"
        if PASSED not in self.results.values():
            return "NO TEST OF IT RAN"
        return None


def table(
    ids: ContractIds, shown: Mapping[tuple[str, str], Shown], *, has_run: bool = True
) -> tuple[list[str], bool]:
    """The lines of the table, and whether all is shown. Where nothing `has_run`, a test is enough."""
    good = "shown" if has_run else "has tests"
    lines: list[str] = []
    faults: list[str] = []
    for mark, title in MARKS.items():
        wanted = ids.of(mark)
        lacking: dict[str, list[str]] = {}
        lines.append(f"{title.upper():<9} {'RESULT':<18} TESTS")
        for one in wanted:
            found = shown.get((mark, one), Shown())
            fault = found.fault if has_run or not found.results else None
            if fault is None and one in ids.ours and not found.is_explained:
                fault = "NO REASON TOLD"
            if fault is not None:
                lacking.setdefault(fault, []).append(one)
            lines.append(f"{one:<9} {fault or good:<18} {len(found.results)}")
            lines += [f"    {result:<12} {node}" for node, result in sorted(found.results.items())]
        count = sum(map(len, lacking.values()))
        faults.append(f"{len(wanted)} {title}s: {len(wanted) - count} {good}, {count} not")
        faults += [f"  {what}: {' '.join(those)}" for what, those in sorted(lacking.items())]
        lines.append("")
    is_whole = not any(one.startswith("  ") for one in faults)
    return [*lines, *faults], is_whole


class ContractTable:
    """A pytest plugin that runs what is marked, and prints the table at the end."""

    def __init__(self, ids: ContractIds, *, is_everywhere: bool = False) -> None:
        self.ids, self.is_everywhere = ids, is_everywhere
        self.shown: dict[tuple[str, str], Shown] = {}
        self.is_whole = False
        self._marks: dict[str, tuple[tuple[str, str], ...]] = {}
        self._explained: set[str] = set()
        self._results: dict[str, str] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Keep what is marked, and of that what can run here."""
        kept: list[pytest.Item] = []
        gone: list[pytest.Item] = []
        for item in items:
            self._marks[item.nodeid] = tuple(marks_of(item))
            if isinstance(item, pytest.Function) and item.function.__doc__:
                self._explained.add(item.nodeid)
            is_here = self.is_everywhere or not any(
                mark.name in ELSEWHERE for mark in item.iter_markers()
            )
            (kept if is_here and self._marks[item.nodeid] else gone).append(item)
        items[:] = kept
        config.hook.pytest_deselected(items=gone)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has failed if any of its phases has."""
        if report.when == "call" or report.failed or report.skipped:
            known = self._results.get(report.nodeid, PASSED)
            result = FAILED if report.failed else SKIPPED if report.skipped else PASSED
            self._results[report.nodeid] = min(known, result, key=_WORST_FIRST.index)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        for node, marks in self._marks.items():
            for mark in marks:
                shown = self.shown.setdefault(mark, Shown())
                result = self._results.get(node, NOT_RUN)
                shown.add(node, result, is_explained=node in self._explained)
        has_run = not terminalreporter.config.option.collectonly
        lines, self.is_whole = table(self.ids, self.shown, has_run=has_run)
        terminalreporter.section("the contract")
        for line in lines:
            terminalreporter.write_line(line)


def main(arguments: Sequence[str]) -> int:
    """Run pytest with the plugin; its own exit code where that is not 0."""
    is_everywhere = "--everywhere" in arguments
    given = [one for one in arguments if one != "--everywhere"]
    sys.path.insert(0, str(ROOT))  # as `python -m pytest` does: tests of the examples import them
    plugin = ContractTable(contract_ids(), is_everywhere=is_everywhere)
    code = pytest.main(["-q", *given], plugins=[plugin])
    return int(code) or (0 if plugin.is_whole else 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
