"""The guide to upgrading: its code and its steps, on a history that the first version of its job wrote (clause E9).

`tests/golden/upgrade-history.avro` was written by `first_version` of the guide, as it was before it knew of a second.
"""

# No `from __future__ import annotations` here: events are declared below.

import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from coordlog.api.chain import Chain, SourceSpec
from coordlog.cli.exit_status import Exit
from coordlog.errors import PayloadTypeError, RecordError, RestoreError
from coordlog.log.copy import to_append
from coordlog.log.file import ExportedLog
from coordlog.log.interface import LogIdentity
from coordlog.log.memory import MemoryLog
from coordlog.offline.fork import find_fork_point, fork_to
from coordlog.projections.inspection.verify import verify
from coordlog.schemas.payload import Payload, PayloadTypes, event
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.testing.driven_job import HandDrivenJob
from histories.one_log import savepoint_command

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "upgrading.md"
GOLDEN = ROOT / "tests" / "golden" / "upgrade-history.avro"

pytestmark = pytest.mark.clause("E9")


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The page's blocks as one module."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    path = tmp_path_factory.mktemp("guide") / "upgrading_of_the_docs.py"
    path.write_text("\n\n".join(blocks), "utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[path.stem]


class Imported(MemoryLog):
    """The log that was exported, to go on with."""

    @property
    def identity(self) -> LogIdentity:
        """As it was."""
        return ExportedLog(GOLDEN).identity


def history() -> MemoryLog:
    """What the first version has written: prices of 250, 199 and 50 cents, checkpoints after the first two."""
    log = Imported("job")
    exported = ExportedLog(GOLDEN)
    for one in exported.read(exported.start_offset(), exported.high_watermark()):
        log.store(to_append(one))
    return log


def sums(job: HandDrivenJob) -> object:
    return job.runtime.state.projections["prices"]


def test_the_history_of_the_first_version_is_still_read_by_it(guide: ModuleType) -> None:
    log = history()
    assert verify(log.read(0, log.high_watermark())).faults == []
    job = HandDrivenJob(guide.first_version(), log=log)
    assert (job.mode, job.runtime.state.last_checkpoint, sums(job)) == ("rollback", 2, 449)


def test_the_steps_of_the_guide_lead_to_the_second_version_and_back(
    guide: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path))
    log = history()
    kept = savepoint_command(log, "before-upgrade", "--take-over")
    assert kept.exit_code == Exit.DONE, kept.output

    job = HandDrivenJob(guide.second_version(), log=log)
    assert (job.mode, sums(job)) == ("rollback", {"EUR": 449})
    attempt = job.register(0)
    assert [one.state for one in attempt.accepted.states] == [b"first"]
    attempt.send("prices", guide.Price(cents=100, currency="USD"))
    assert sums(job) == {"EUR": 449, "USD": 100}
    assert job.trigger() == 3
    attempt.ack_checkpoint(3, states={"prices": b"second"})
    job.crash()
    job = HandDrivenJob(guide.second_version(), log=log)
    assert sums(job) == {"EUR": 449, "USD": 100}
    job.crash()
    assert verify(log.read(0, log.high_watermark())).faults == []

    with pytest.raises((RestoreError, RecordError)):
        HandDrivenJob(guide.first_version(), log=log)
    back = MemoryLog("again")
    fork_to(log, back, find_fork_point(log, "job", "before-upgrade"), job_id="again")
    again = HandDrivenJob(guide.first_version(), job_id="again", log=back)
    assert (again.mode, sums(again)) == ("rollback", 449)
    again.crash()
    released = savepoint_command(log, "before-upgrade", "--release", "--take-over")
    assert released.exit_code == Exit.DONE, released.output


def refused(chain: Chain, **options: bool) -> str:
    log = history()
    before = log.high_watermark()
    with pytest.raises((RestoreError, RecordError)) as raised:
        HandDrivenJob(chain, log=log, **options)  # type: ignore[arg-type]
    assert log.high_watermark() == before
    return str(raised.value)


def with_source(chain: Chain, **changed: object) -> Chain:
    source: SourceSpec = replace(chain.source, **changed)  # type: ignore[arg-type]
    return Chain(source=source, operators=chain.operators)


def test_what_the_history_does_not_fit_is_refused_by_name(guide: ModuleType) -> None:
    second = guide.second_version()
    assert "the version of operator 'prices' is 1 in the log and 2 here" in refused(
        with_source(second, restores=())
    )
    assert "keeping of state across splits by operator 'prices' is True in the log" in refused(
        with_source(second, keeps_state_across_splits=False)
    )
    assert "option unit of operator 'prices' is cents in the log and euros here" in refused(
        with_source(second, options={"unit": "euros"})
    )
    assert "mode is streaming in the log and batch here" in refused(second, is_batch=True)


@event("shop.price", version=1)
class Renamed(Payload):
    """`FirstPrice`, but for its name."""

    cents: int


@event("shop.price", version=1)
class FirstPrice(Payload):
    """Of the name of that in the history, and with another field."""

    euros: int


@pytest.mark.parametrize(
    ("payload_class", "what_to_do"),
    [
        (Renamed, "its class was named 'FirstPrice' and is 'Renamed' now; name it as it was"),
        (FirstPrice, "declare the change as a new version, and keep the earlier class"),
    ],
)
def test_a_changed_class_of_a_used_type_is_refused_with_what_to_do(
    guide: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    payload_class: type[Payload],
    what_to_do: str,
) -> None:
    monkeypatch.setattr(guide.SecondProvider, "payload_types", (payload_class, guide.Price))

    assert what_to_do in refused(guide.second_version())


def test_the_format_of_files_is_an_option_that_a_sources_state_depends_on() -> None:
    assert FileSource("in", format="jsonl").spec().options == {"format": "jsonl"}


def test_an_option_that_one_of_the_two_does_not_tell_is_not_compared(guide: ModuleType) -> None:
    chain = with_source(guide.second_version(), options={"other": "1"})
    assert HandDrivenJob(chain, log=history()).mode == "rollback"


# --- upcasting --------------------------------------------------------------------------------------------------------
@event("test.length", version=1)
class FirstLength(Payload):
    metres: int

    def upcast(self) -> Payload:
        return SecondLength(centimetres=100 * self.metres)


@event("test.length", version=2)
class SecondLength(Payload):
    centimetres: int

    def upcast(self) -> Payload:
        return ThirdLength(millimetres=10 * self.centimetres)


@event("test.length", version=3)
class ThirdLength(Payload):
    millimetres: int


@event("test.width", version=1)
class Width(Payload):
    metres: int

    def upcast(self) -> Payload:
        return ThirdLength(millimetres=self.metres)


def test_a_value_is_read_as_the_latest_version_of_its_name() -> None:
    types = PayloadTypes((FirstLength, SecondLength, ThirdLength, Width))
    for value in (
        FirstLength(metres=3),
        SecondLength(centimetres=300),
        ThirdLength(millimetres=3000),
    ):
        declared = types.of(value)
        read = types.decode(declared.key, declared.encode(value))
        assert read == ThirdLength(millimetres=3000)


def test_a_value_is_not_read_as_one_of_another_name() -> None:
    types = PayloadTypes((ThirdLength, Width))
    declared = types.of(Width(metres=1))

    with pytest.raises(PayloadTypeError, match=r"read as test\.length@3, which is no later"):
        types.decode(declared.key, declared.encode(Width(metres=1)))
