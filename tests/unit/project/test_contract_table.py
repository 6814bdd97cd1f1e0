"""The table of clauses against tests, and the list of what there is to show."""

from __future__ import annotations

from contract_table import (
    SHOWS,
    ContractIds,
    Shown,
    closing_lines,
    contract_ids,
    read_ids,
    table,
    unknown_marks,
)
from tiers import Tier


class FakeMark:
    def __init__(self, *args: object) -> None:
        self.args = args


class FakeItem:
    def __init__(self, nodeid: str, **marks: object) -> None:
        self.nodeid, self.marks = nodeid, marks

    def iter_markers(self, name: str) -> list[FakeMark]:
        return [FakeMark(self.marks[name])] if name in self.marks else []


IDS = ContractIds(clauses=("A1", "A2"), scenarios=("HO1",), faults=("X1",), ours=frozenset({"A2"}))


def shown(*tiers: Tier, is_explained: bool = True) -> Shown:
    tests = Shown()
    for n, tier in enumerate(tiers):
        tests.add(f"t.py::test_{n}[0]", tier, is_explained=is_explained)
        tests.add(f"t.py::test_{n}[1]", tier)
    return tests


def test_the_contract_has_every_clause_and_scenario_that_must_be_shown() -> None:
    ids = contract_ids()
    counts = {"A": 6, "B": 8, "C": 9, "D": 5, "E": 9, "F": 12, "G": 5, "H": 5, "I": 4}
    counts |= {"J": 2, "K": 7, "L": 6, "M": 8}
    series = {"HO": 17, "SD": 32, "GW": 8, "FT": 6, "RC": 8, "TE": 3, "ITs": 4, "OE": 4, "ST": 6}

    assert ids.clauses == tuple(f"{a}{n}" for a, last in counts.items() for n in range(1, last + 1))
    assert {f"{a}{n}" for a, last in series.items() for n in range(1, last + 1)} <= {*ids.scenarios}
    assert {f"SC{n}" for n in (*range(1, 14), 17, 18, 21, 22, 23)} <= {*ids.scenarios}
    assert {f"PC{n}" for n in range(10, 15)} <= {*ids.scenarios}
    assert {f"CC{n}" for n in range(1, 6)} <= {*ids.scenarios}
    assert ids.faults == tuple(f"X{n}" for n in range(1, 15))
    assert {"HO-del", "ITs-del", "IT1", "DH1", "CP4", "DF2"} <= {*ids.scenarios}
    assert sorted(ids.ours) == ["A3", "C3", "C8", "D3", "D4", "F11", "F4", "G1", "I4", "L4"]


def test_ids_begin_an_item_and_scenarios_are_below_their_heading() -> None:
    text = "- **A1** One (A9).\n  **ours** Two.\n- **A2** **ours** B.\n\n## Scenarios\n\n- **X-y** C.\n"
    text += "\n## Faults seen elsewhere\n\n- **X1** D.\n"

    assert read_ids(text) == ContractIds(
        clauses=("A1", "A2"), scenarios=("X-y",), faults=("X1",), ours=frozenset({"A1", "A2"})
    )


def test_a_mark_with_an_id_that_there_is_not_is_named() -> None:
    items = [FakeItem("t.py::a[0]", clause="A1", flink="HO9"), FakeItem("t.py::b", clause="HO1")]

    assert unknown_marks(IDS, items) == [  # type: ignore[arg-type]
        't.py::a: flink("HO9"): docs/contract.md has no such id',
        't.py::b: clause("HO1"): docs/contract.md has no such id',
    ]


def test_the_table_is_whole_if_each_id_has_a_test_and_clauses_in_tier_1() -> None:
    lines, is_whole = table(
        IDS,
        {
            ("clause", "A1"): shown(Tier.TEST, Tier.MATRIX),
            ("clause", "A2"): shown(Tier.TEST),
            ("flink", "HO1"): shown(Tier.FAULTS),
            ("fault", "X1"): shown(Tier.MATRIX),
        },
    )

    assert is_whole
    assert lines[:4] == [
        "CLAUSE    TIERS                  TESTS",
        "A1        test, matrix           2",
        "    matrix   t.py::test_1",
        "    test     t.py::test_0",
    ]
    assert lines[-3:] == [
        "2 clauses: 2 shown, 0 not",
        "1 scenarios: 1 shown, 0 not",
        "1 faults: 1 shown, 0 not",
    ]


def test_ids_without_a_test_or_a_reason_are_listed() -> None:
    lines, is_whole = table(
        IDS,
        {
            ("clause", "A1"): shown(Tier.FAULTS),
            ("clause", "A2"): shown(Tier.TEST, is_explained=False),
        },
    )

    assert not is_whole
    assert lines[-7:] == [
        "2 clauses: 0 shown, 2 not",
        "  NO REASON TOLD: A2",
        "  NO TEST IN TIER 1: A1",
        "1 scenarios: 0 shown, 1 not",
        "  NO TEST: HO1",
        "1 faults: 0 shown, 1 not",
        "  NO TEST: X1",
    ]


class FakeReport:
    def __init__(self, *marks: tuple[str, str]) -> None:
        self.user_properties: list[tuple[str, object]] = [(SHOWS, [*marks]), ("other", 1)]


def test_a_run_counts_an_id_with_a_failed_test_as_not_shown() -> None:
    passed = [FakeReport(("clause", "A1"), ("flink", "HO1")), FakeReport(("clause", "A2"))]
    failed = [FakeReport(("clause", "A1"))]

    assert closing_lines(IDS, passed, failed) == [
        "clauses shown by this run: 1 of 2; FAILED: A1",
        "scenarios shown by this run: 1 of 1",
        "faults shown by this run: 0 of 1",
    ]
