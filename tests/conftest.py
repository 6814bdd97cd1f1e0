"""What all tests have in common: their options, and how much chance they take."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
import zlib
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Final

import hypothesis
import pytest

from contract_table import SHOWS, closing_lines, contract_ids, marks_of, unknown_marks
from coordlog.testing.driven_job import HandDrivenJob
from servers.old_brokers import BROKERS, holds, older_brokers
from tiers import Share, Tier, tier_of, unknown_tiers

# A shell ignores this signal for its background commands.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_IS_CI: Final = bool(os.environ.get("CI"))

hypothesis.settings.register_profile(
    "local",
    deadline=None,  # a loaded machine is not a finding
    suppress_health_check=[hypothesis.HealthCheck.too_slow],  # nor here
    print_blob=True,
)
hypothesis.settings.register_profile(
    "ci",
    parent=hypothesis.settings.get_profile("local"),
    database=None,
    derandomize=True,  # what was green for one commit is green for it again
)
hypothesis.settings.load_profile("ci" if _IS_CI else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("coordlog")
    group.addoption("--no-skips", action="store_true", help="a test that is skipped has failed")
    group.addoption(
        "--tier",
        choices=[*Tier],
        default=None,
        help="only the tests of this tier, see tests/README.md (default: all)",
    )
    group.addoption(
        "--share",
        type=Share.parse,
        default=Share(1, 1),
        metavar="K/N",
        help="only the K-th of N shares of the test files (default: 1/1)",
    )
    group.addoption(
        "--dose",
        type=int,
        default=1,
        metavar="N",
        help="how many times the usual number of random runs (default: 1)",
    )
    group.addoption(
        "--seed",
        type=int,
        default=None,
        metavar="N",
        help="the seed of every random run (default: another one each time, printed on failure; "
        "with CI set, one of each test's own that stays)",
    )
    group.addoption(
        "--broker",
        choices=BROKERS,
        default=None,
        help="embedded brokers are of this older version; its jars are fetched where they are missing",
    )


def pytest_configure(config: pytest.Config) -> None:
    version: str | None = config.option.broker
    if version is not None:
        stack = ExitStack()
        stack.enter_context(older_brokers(version))
        config.add_cleanup(stack.close)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exempt the imported modules and the collected tests from garbage collection: half a million objects that stay."""
    gc.collect()
    gc.freeze()


_ENDS_WITHIN_S = 30.0


@pytest.fixture(scope="module", autouse=True)
def no_client_is_left() -> Iterator[None]:
    """A Kafka client that outlives its module goes on connecting and logging into all others."""
    before = set(threading.enumerate())
    yield
    gc.collect()
    end = time.monotonic() + _ENDS_WITHIN_S
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("kafka-io-"):
            thread.join(max(0.0, end - time.monotonic()))
            assert not thread.is_alive(), f"{thread.name} was left behind"


@pytest.fixture
def dose(request: pytest.FixtureRequest) -> int:
    """By how much to multiply the number of random runs."""
    value: int = request.config.option.dose
    return value


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Where this test's chance begins; a failure prints it with the command that repeats it."""
    given: int | None = request.config.option.seed
    if given is not None:
        value = given
    elif _IS_CI:
        value = zlib.crc32(request.node.nodeid.encode())
    else:
        value = random.SystemRandom().randrange(2**32)
    command = f"make test-all ARGS='{request.node.nodeid} --seed={value}'"
    request.node.add_report_section("setup", "seed", f"seed {value}; to repeat: {command}")
    return value


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A mark with an id that the contract does not have shows nothing, and one without its texts hides failures."""
    unknown = [
        *unknown_marks(contract_ids(), items),
        *_marks_without_texts(items),
        *unknown_tiers(items),
    ]
    if unknown:
        raise pytest.UsageError("\n".join(unknown))
    for item in items:
        item.user_properties.append((SHOWS, [*marks_of(item)]))
    tier: str | None = config.option.tier
    share: Share = config.option.share
    kept = [item for item in items if tier in (None, tier_of(item)) and share.has(item)]
    if len(kept) < len(items):
        is_kept = {*kept}
        config.hook.pytest_deselected(items=[item for item in items if item not in is_kept])
        items[:] = kept
    version: str | None = config.option.broker
    if version is not None:
        items[:] = [
            one
            for one in items
            if all(holds(version, mark.args[0]) for mark in one.iter_markers("newer_broker"))
        ]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A run of a tier reports which clauses, scenarios and faults it has shown."""
    if terminalreporter.config.option.tier is None or terminalreporter.config.option.collectonly:
        return
    reports = terminalreporter.stats
    failed = [*reports.get("failed", []), *reports.get("error", [])]
    for line in closing_lines(contract_ids(), reports.get("passed", []), failed):
        terminalreporter.write_line(line)


def _marks_without_texts(items: list[pytest.Item]) -> list[str]:
    return [
        f"{item.nodeid}: may_fail names a text of each failure that the test means"
        for item in items
        for mark in item.iter_markers("may_fail")
        if not mark.args or not all(mark.args)
    ]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.config.getoption("--no-skips"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"with --no-skips a skip is a failure: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and collector.config.getoption("--no-skips"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"with --no-skips a skip is a failure: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """The texts of the mark `may_fail` are those of the failures that a test means; any other failure is an error."""
    mark = item.get_closest_marker("may_fail")
    HandDrivenJob.may_fail_by_default = mark is not None and mark.args
    return (yield)
