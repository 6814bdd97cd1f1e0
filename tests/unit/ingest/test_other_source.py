"""A job goes on with the source that its history has, and with another one only where that is meant (clause E9)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from coordlog.api.chain import Chain
from coordlog.cli.ingest.options import IngestOptions
from coordlog.cli.ingest.parts import parts_of
from coordlog.errors import RestoreError
from coordlog.log.memory import MemoryLog
from coordlog.projections.splits.fold import Finished
from coordlog.schemas.record import Kind
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.split_bytes import decode_split
from coordlog.testing.driven_job import HandDrivenJob
from fakes.split_fakes import ack_all, ask, state_of

pytestmark = pytest.mark.clause("E9")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    for name in ("2024-a", "2024-b", "2025-a"):
        (tmp_path / "in" / f"{name}.csv").write_text("i\n1\n")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    return tmp_path


def chain_of(path: str | Path, **options: bool) -> Chain:
    return Chain(source=FileSource(path, **options).spec(), operators=[])  # type: ignore[arg-type]


def finished(log: MemoryLog, chain: Chain, *, again: bool = False) -> list[str]:
    """The names that the job has read, once it has finished."""
    job = HandDrivenJob(chain, log=log, again=again)
    (attempt,) = job.register_all()
    ask(attempt)
    for split_id, one in sorted(state_of(job).splits.items()):
        if isinstance(one.place, Finished):
            continue
        attempt.finish_split("source", split_id)
        ask(attempt)
    ack_all(attempt)
    attempt.complete()
    job.stage_ends()
    assert job.history(Kind.JOB_FINISHED)
    return [Path(one).name for one in sorted(state_of(job).splits)]


def refused(log: MemoryLog, chain: Chain, *, again: bool = False) -> str:
    before = log.high_watermark()
    with pytest.raises(RestoreError) as caught:
        HandDrivenJob(chain, log=log, again=again)
    assert log.high_watermark() == before
    return str(caught.value)


@pytest.mark.parametrize(
    "other", ["in/2025-*.csv", "in", "link/2024-*.csv", "in/2024-a.csv"], ids=str
)
def test_another_path_is_refused_with_both_and_the_way_out(folder: Path, other: str) -> None:
    was = folder / "in" / "2024-*.csv"
    stopped = HandDrivenJob(chain_of(was))
    stopped.register_all()
    stopped.crash()
    over = MemoryLog("over")
    finished(over, chain_of(was))

    for log, again in ((stopped.log, False), (over, False), (over, True)):
        said = refused(log, chain_of(folder / other), again=again)
        assert f"the source is {was} in the log and {folder / other} here" in said
        assert said.endswith("pass `allow_other_path=True`")
    assert HandDrivenJob(chain_of(was), log=stopped.log).mode == "rollback"
    assert HandDrivenJob(chain_of(f"file://{was}"), log=over, again=True).mode == "again"


def test_a_path_is_the_same_one_in_every_spelling(folder: Path) -> None:
    locations = {
        chain_of(spelled).source.location
        for spelled in (
            f"{folder}/in",
            f"/{folder}/in/",
            f"file:{folder}/in",
            f"file://{folder}/in",
            f"local://{folder}/link/../in",
        )
    }
    assert locations == {f"{folder}/in"}


def test_a_confirmed_other_path_is_read_and_becomes_the_source(
    folder: Path,
) -> None:
    log, whole = MemoryLog("job"), folder / "in"
    assert finished(log, chain_of(whole / "2024-*.csv")) == ["2024-a.csv", "2024-b.csv"]
    meant = chain_of(whole, allow_other_path=True)

    assert finished(log, meant, again=True) == ["2024-a.csv", "2024-b.csv", "2025-a.csv"]
    assert f"the source is {whole} in the log" in refused(
        log, chain_of(whole / "2024-*.csv"), again=True
    )
    assert HandDrivenJob(chain_of(whole), log=log, again=True).mode == "again"


@pytest.mark.parametrize(("was", "new"), [("in/day", "in"), ("in", "in/day"), ("in/day", "far")])
def test_files_of_a_former_folder_are_read_as_they_were_listed(
    folder: Path, was: str, new: str
) -> None:
    for name in ("in/day/b.csv", "far/c.csv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("i\n1\n")
    listed = FileSource(folder / was).discover().splits
    source = FileSource(folder / new, allow_other_path=True)

    for split in listed:
        source._discovery.files.open(decode_split(split.content)).close()
    new_ids = {split.split_id for split in source.discover_again(listed).discovered.splits}
    assert new_ids.isdisjoint(split.split_id for split in listed)


def test_a_path_of_which_nothing_was_listed_may_be_mended(folder: Path) -> None:
    mistyped = HandDrivenJob(chain_of(folder / "inn"), is_batch=True)
    mistyped.crash()

    assert HandDrivenJob(chain_of(folder / "in"), log=mistyped.log, is_batch=True).mode


def test_a_history_that_does_not_say_what_its_source_was_is_gone_on_with(folder: Path) -> None:
    chain = chain_of(folder / "in" / "2024-*.csv")
    job = HandDrivenJob(replace(chain, source=replace(chain.source, location=None)))
    job.register_all()
    job.crash()

    assert HandDrivenJob(chain_of(folder / "in"), log=job.log).mode == "rollback"


def test_the_command_has_an_option_for_it(folder: Path) -> None:
    options = IngestOptions(
        source=str(folder / "in"), destination=str(folder / "out"), allow_other_path=True
    )

    assert parts_of(options).chain().source.allows_other_location
