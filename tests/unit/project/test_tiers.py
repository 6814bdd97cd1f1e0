"""The tier of a test follows from one rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiers import Share, Tier, tier_of, unknown_tiers


class FakeItem:
    """A test with marks, the closest first."""

    nodeid = "t.py::a"

    def __init__(self, *marks: pytest.MarkDecorator, path: str = "t.py") -> None:
        self.path = Path(path)
        self.marks = [decorator.mark for decorator in marks]

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        return [mark for mark in self.marks if mark.name == name]

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next(iter(self.iter_markers(name)), None)


@pytest.mark.parametrize(
    ("marks", "tier"),
    [
        ((), Tier.TEST),
        ((pytest.mark.kafka, pytest.mark.slow), Tier.TEST),
        ((pytest.mark.spark,), Tier.MATRIX),
        ((pytest.mark.kill, pytest.mark.spark), Tier.FAULTS),
        ((pytest.mark.docker, pytest.mark.kill), Tier.MATRIX),
        ((pytest.mark.tier("test"), pytest.mark.tier("matrix"), pytest.mark.kill), Tier.TEST),
    ],
)
def test_the_closest_mark_tier_goes_before_all_others(
    marks: tuple[pytest.MarkDecorator, ...], tier: Tier
) -> None:
    assert tier_of(FakeItem(*marks)) is tier  # type: ignore[arg-type]


def test_a_tier_without_a_known_name_is_named() -> None:
    items = [FakeItem(pytest.mark.tier("tests")), FakeItem(pytest.mark.tier("faults"))]

    assert unknown_tiers(items) == [  # type: ignore[arg-type]
        "t.py::a: tier('tests',): a tier is one of test, faults, matrix"
    ]


def test_each_file_is_in_exactly_one_share_and_the_shares_are_alike() -> None:
    shares = [Share.parse(f"{number}/3") for number in (1, 2, 3)]
    items = [FakeItem(path=f"tests/test_{number}.py") for number in range(90)]

    holders = [[share for share in shares if share.has(item)] for item in items]  # type: ignore[arg-type]

    assert {len(holder) for holder in holders} == {1}
    assert all(20 < holders.count([share]) < 40 for share in shares)


@pytest.mark.parametrize("text", ["", "1", "0/3", "4/3", "1/0", "-1/3", "a/b", "1/3/5"])
def test_a_share_that_there_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no share: the second of three is 2/3"):
        Share.parse(text)
