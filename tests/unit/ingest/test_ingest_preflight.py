"""What `coordlog ingest` looks at before Spark starts: the history's beginning, wherever it stands."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from coordlog.cli.ingest.options import IngestOptions
from coordlog.cli.ingest.parts import parts_of
from coordlog.cli.ingest.preflight import look
from coordlog.errors import RestoreError, SinkError
from coordlog.log.memory import MemoryLog
from coordlog.log.payload_store import PayloadStore
from coordlog.payloads.offload import NO_STORE, PayloadOptions
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.driver import DriverOptions, JobDriver, JobStatus
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from coordlog.testing.in_memory import InMemorySurroundings
from jobs.file_pipeline import WAIT_S, KilledError, at, kill_driver


class _Log(MemoryLog):
    """One at a broker on another machine."""

    bootstrap_servers = "kafka.example:9092"

    def create(self) -> None:
        """It is there."""


class _Place:
    """A broker with that log."""

    def __init__(self, log: _Log) -> None:
        self._log = log

    def jobs(self, _patience_s: float) -> tuple[str, ...]:
        return ("job",)

    def log(self, _job_id: str, _patience_s: float) -> _Log:
        return self._log


def _nothing(_offset: int, _end: int) -> None:
    return None


def _killed(options: IngestOptions, log: MemoryLog) -> None:
    """Run the job of these options, up to its first commit."""
    driver = _begun(options, log, kill_driver, RuntimeOptions(snapshot_every=None))
    with pytest.raises(KilledError):
        driver.wait(WAIT_S)


def _stopped(options: IngestOptions, log: MemoryLog, payloads: PayloadOptions) -> None:
    """As `_killed`, but the driver stops: its last act is a snapshot."""

    def stop(driver: JobDriver, _surroundings: InMemorySurroundings) -> None:
        threading.Thread(target=driver.end_at_once, kwargs={"by": "test"}).start()

    driver = _begun(options, log, stop, RuntimeOptions(), payloads)
    result = driver.wait(WAIT_S)
    assert result is not None
    assert result.status is JobStatus.STOPPED


def _begun(
    options: IngestOptions,
    log: MemoryLog,
    act: Callable[[JobDriver, InMemorySurroundings], None],
    runtime: RuntimeOptions,
    payloads: PayloadOptions = NO_STORE,
) -> JobDriver:
    """A driver of the job of these options, with an act at its first commit."""
    parts = parts_of(options)
    for sink in parts.sinks:
        sink.prepare("job")
    surroundings = InMemorySurroundings(parts.chain(), "job", options.parallelism)
    look_at = at(Kind.COMMIT_OUTCOME, 1, act)
    driver = JobDriver(
        chain=parts.chain(),
        log=log,
        options=DriverOptions(
            job_id="job",
            parallelism=options.parallelism,
            is_batch=False,
            runtime=replace(runtime, checkpoint_interval_s=0.05),
            payloads=payloads,
        ),
        surroundings=surroundings,
        on_released=lambda records: look_at(driver, surroundings, records),
    )
    driver.start()
    return driver


@pytest.mark.slow
@pytest.mark.clause("E9")
def test_a_pruned_log_with_a_snapshot_in_parts_is_read_by_its_named_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("coordlog.restore.snapshots.RECORD_BYTES_MAX", 24_000)
    monkeypatch.setattr("coordlog.restore.snapshots.SNAPSHOT_PART_BYTES", 1_000)
    chance, folder, url = Random(7), tmp_path / "in", str(tmp_path / "payloads")
    folder.mkdir()
    for n in range(400):
        (folder / f"{n:03}-{chance.getrandbits(128):032x}.csv").write_text(f"a\n{n}\n")
    given: dict[str, Any] = {
        "source": str(folder),
        "destination": str(tmp_path / "out"),
        "job_id": "job",
        "parallelism": 2,
        "take_over": True,
    }
    log = _Log("job")
    _stopped(IngestOptions(**given), log, PayloadOptions(store=PayloadStore(url, "job")))
    assert PayloadStore(url, "job").listed(), "it does not fit"
    log.delete_below(log.high_watermark() - 1)

    def looked(**more: object) -> None:
        options = IngestOptions(**given, **more)  # type: ignore[arg-type]
        place = cast("Any", _Place(log))
        look(parts_of(options), place, options, on_progress=_nothing).catch_up()

    with pytest.raises(RestoreError, match="looked for in no payload store"):
        looked()
    looked(payload_store=url)


@pytest.mark.slow
@pytest.mark.clause("E9")
def test_another_source_is_refused_even_if_the_history_names_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    for name in ("in", "elsewhere"):
        (tmp_path / name).mkdir()
        for n in range(3):
            (tmp_path / name / f"{n}.csv").write_text(f"a\n{n}\n")
    given: dict[str, Any] = {
        "destination": str(tmp_path / "out"),
        "job_id": "job",
        "parallelism": 2,
        "take_over": True,
    }
    first = IngestOptions(source=str(tmp_path / "in"), **given)
    log = _Log("job")
    _killed(first, log)
    chain = parts_of(first).chain()
    unnamed = replace(chain, source=replace(chain.source, location=None))
    HandDrivenJob(unnamed, log=log, parallelism=2, again=True).crash()

    def looked(folder: str, **more: Any) -> None:  # noqa: ANN401, options
        options = IngestOptions(source=str(tmp_path / folder), **given, **more)
        look(parts_of(options), cast("Any", _Place(log)), options, on_progress=_nothing)

    with pytest.raises(RestoreError, match=r"the source is that of .*/in/0.csv"):
        looked("elsewhere")
    looked("in")
    looked("elsewhere", allow_other_path=True)


@pytest.mark.slow
@pytest.mark.clause("E9")
def test_files_of_another_path_than_the_first_are_no_other_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first file by name is of a further path, and of the path that the job had before."""
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        for n in range(3):
            (tmp_path / name / f"{n}.csv").write_text(f"a\n{n}\n")
    given: dict[str, Any] = {
        "destination": str(tmp_path / "out"),
        "job_id": "job",
        "parallelism": 2,
        "take_over": True,
    }
    two = IngestOptions(source=str(tmp_path / "b"), also=(str(tmp_path / "a"),), **given)
    log = _Log("job")
    _killed(two, log)

    def looked(options: IngestOptions) -> None:
        look(parts_of(options), cast("Any", _Place(log)), options, on_progress=_nothing)

    looked(two)
    later = IngestOptions(source=str(tmp_path / "c"), **given)
    with pytest.raises(RestoreError, match="allow_other_path"):
        looked(later)
    allowed = replace(later, allow_other_path=True)
    looked(allowed)
    HandDrivenJob(parts_of(allowed).chain(), log=log, parallelism=2, again=True).crash()
    looked(later)


def _with_files(tmp_path: Path, text: str) -> dict[str, Any]:
    """Options of a job that reads many files."""
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(40):
        (folder / f"{n}.csv").write_text(text)
    given = {"source": str(folder), "destination": str(tmp_path / "out"), "job_id": "job"}
    return {**given, "parallelism": 2, "schema": "a bigint"}


@pytest.mark.slow
@pytest.mark.clause("E6")
def test_rejects_stay_at_their_place_if_only_the_rows_go_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    given: dict[str, Any] = {
        **_with_files(tmp_path, "a\nbad\n"),
        "bad_rows": str(tmp_path / "rejects"),
    }
    first = IngestOptions(**given, take_over=True)
    log, chain = _Log("job"), parts_of(first).chain()
    _killed(first, log)
    number = rebuild(log, chain, projection_of(chain)).state.last_checkpoint

    options = replace(first, destination=str(tmp_path / "elsewhere"), from_checkpoint=number)
    look(parts_of(options), cast("Any", _Place(log)), options, on_progress=_nothing)


@pytest.mark.slow
def test_a_destination_that_is_gone_is_to_be_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    options = IngestOptions(**_with_files(tmp_path, "a\n1\n"), take_over=True)
    log, out = _Log("job"), tmp_path / "out"
    _killed(options, log)
    out.rename(tmp_path / "moved")

    with pytest.raises(RestoreError, match=rf"{out} in the log and {out}, .* put it back"):
        look(parts_of(options), cast("Any", _Place(log)), options, on_progress=_nothing)


@pytest.mark.slow
def test_another_table_that_has_nothing_of_the_job_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows so far would stay in the former table, and only the others be in this one."""
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    given = _with_files(tmp_path, "a\n1\n")
    given |= {"destination": f"delta+file://{tmp_path}/t"}
    options = IngestOptions(**given, again=True)
    log = _Log("job")
    assert _begun(options, log, lambda *_: None, RuntimeOptions()).wait(WAIT_S) is not None
    write_deltalake(str(tmp_path / "other"), pa.table({"a": [1]}))

    other = replace(options, destination=f"delta+file://{tmp_path}/other")
    with pytest.raises(RestoreError, match="/other, which has nothing of this job"):
        look(parts_of(other), cast("Any", _Place(log)), other, on_progress=_nothing)
    (tmp_path / "t").rename(tmp_path / "moved")
    moved = replace(options, destination=f"delta+file://{tmp_path}/moved")
    look(parts_of(moved), cast("Any", _Place(log)), moved, on_progress=_nothing)


def test_a_table_by_another_path_is_refused_with_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    before, mine = "ingest-t-0123abcd", "mine"
    for job_id in (before, mine):
        mark = Transaction(f"coordlog.commits.{job_id}.sink", 0)
        write_deltalake(
            str(tmp_path / "t"),
            pa.table({"a": [1]}),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[mark]),
        )
        (tmp_path / "t" / ".coordlog" / f"{job_id}.sink").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path)
    given = _with_files(tmp_path, "a\n1\n")
    given |= {"destination": f"delta+file://{tmp_path}/link/t", "job_id": None}
    options = IngestOptions(**given)

    with pytest.raises(SinkError, match=f'`job_id="{before}"`'):
        look(parts_of(options), cast("Any", _Place(_Log("j"))), options, on_progress=_nothing)
    own = replace(options, job_id="own")
    look(parts_of(own), cast("Any", _Place(_Log("own"))), own, on_progress=_nothing)


@pytest.mark.slow
@pytest.mark.clause("E9")
def test_a_job_that_another_driver_has_begun_meanwhile_is_no_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its source is listed for long; the other driver publishes rows then."""
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    options = IngestOptions(**_with_files(tmp_path, "a\n1\n"), take_over=True)
    log = _Log("job")

    def listed(*_: object) -> None:
        monkeypatch.undo()
        monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
        _killed(options, log)

    monkeypatch.setattr("coordlog.cli.ingest.preflight.listed_in_time", listed)
    found = look(parts_of(options), cast("Any", _Place(log)), options, on_progress=_nothing)

    assert found.progress.progress.attempts_started
