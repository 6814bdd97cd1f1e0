"""Every error survives pickle, and its message has its values."""

from __future__ import annotations

import inspect
import pickle

import pytest

from coordlog import errors
from coordlog.errors import CoordlogError

SAMPLES: dict[str, object] = {
    "str": "some text",
    "int": 7341,
    "float": 12.5,
    "object": "a value",
    "tuple[str, ...]": ("one reason", "another"),
}


def leaves() -> list[type[CoordlogError]]:
    found = [getattr(errors, name) for name in errors.__all__]
    return [one for one in found if "__init__" in one.__dict__]


def made(cls: type[CoordlogError]) -> tuple[CoordlogError, list[object]]:
    """An error with a different value for each of its arguments."""
    values: list[object] = []
    for number, one in enumerate(list(inspect.signature(cls).parameters.values())):
        sample = SAMPLES[str(one.annotation)]
        if isinstance(sample, str):
            sample = f"{sample} {number}"
        elif isinstance(sample, (int, float)):
            sample = sample + number
        values.append(sample)
    return cls(*values), values


@pytest.mark.parametrize("cls", leaves(), ids=lambda cls: cls.__name__)
def test_an_error_survives_pickle_with_its_values(cls: type[CoordlogError]) -> None:
    error, _ = made(cls)
    again = pickle.loads(pickle.dumps(error))

    assert type(again) is cls
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert again.retriable is cls.retriable


@pytest.mark.parametrize("cls", leaves(), ids=lambda cls: cls.__name__)
def test_its_message_has_its_values(cls: type[CoordlogError]) -> None:
    error, values = made(cls)
    # Which job it is says the command that raised it.
    unsaid = {"OutOfRangeError": 0, "DriverAliveError": 0}.get(cls.__name__, 0)
    parts: list[str] = []
    for value in values:
        parts.extend(value if isinstance(value, tuple) else [str(value)])
    missing = [one for one in parts if one not in str(error)]

    assert len(missing) <= unsaid, missing


@pytest.mark.parametrize(
    ("cls", "step"),
    [
        (errors.OffsetGapError, "put an export on a new topic with `coordlog adopt`"),
        (errors.OutOfRangeError, "on a new topic with `coordlog adopt`, or use another job id"),
        (errors.AppendRefusedError, "fix that, then run the same command again"),
        (errors.RequestFailedError, "fix its handler, then ask again"),
        (errors.RequestUnansweredError, "if `coordlog history` has its REQUEST, it was handled"),
        (errors.LogUnavailableError, "run the same command again"),
        (errors.JobFailedError, "fix the cause and run the same command again"),
    ],
)
def test_one_that_is_given_no_advice_has_its_own(cls: type[CoordlogError], step: str) -> None:
    error, values = made(cls)

    assert step in str(error)
    assert step not in map(str, values)


def test_every_error_is_in_the_tree_that_the_module_draws() -> None:
    drawn = str(errors.__doc__)

    assert [name for name in errors.__all__ if name not in drawn] == []
