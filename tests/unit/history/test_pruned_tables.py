"""The tables of a log that begins with a snapshot: what they show is what the whole log shows, for its time."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from coordlog.cli.main import main
from coordlog.log.copy import to_append
from coordlog.log.interface import Log
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.attempts import AttemptEnd
from coordlog.projections.tables.audit import Audit, audit, audit_records, state_at_beginning
from coordlog.projections.tables.checkpoints import CheckpointStatus
from coordlog.projections.tables.commits import CommitStatus
from coordlog.projections.tables.epochs import EpochEnd
from coordlog.projections.tables.events import EventFold, EventRow, EventStatus, events
from coordlog.report.document import document
from coordlog.schemas.record import Kind
from driven_history import DrivenJob
from histories.report_facts import Facts

pytestmark = [pytest.mark.slow, pytest.mark.clause("E9")]


@pytest.fixture(scope="module", params=[False, True], ids=["streaming", "batch"])
def log(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MemoryLog:
    """Two epochs with a killed attempt each, and with snapshots."""
    job = DrivenJob(tmp_path_factory.mktemp("job"), "job", is_batch=request.param)
    log = MemoryLog("job")
    job.drive(log, kill_attempt_at=6, kill_driver_at=13, snapshot_every=17)
    job.drive(log, kill_attempt_at=3, snapshot_every=17)
    return log


def cuts(log: MemoryLog) -> list[int]:
    """Offsets of the snapshots."""
    stored = log.read(0, log.high_watermark())
    return [entry.offset for entry in stored if entry.record().kind is Kind.SNAPSHOT]


def parts(log: MemoryLog, offset: int) -> tuple[Audit, Audit, Audit]:
    """Tables of the records before the snapshot, of those from it on, and of the whole log."""
    stored = list(log.read(0, log.high_watermark()))
    return audit(stored[:offset]), audit(stored[offset:]), audit(stored)


def test_attempts_that_live_at_the_snapshot_are_shown_with_their_end(log: MemoryLog) -> None:
    for cut in cuts(log):
        before, pruned, whole = parts(log, cut)
        known = {(row.subtask, row.attempt_number) for row in before.attempts}
        live = {
            (row.subtask, row.attempt_number)
            for row in before.attempts
            if row.end is AttemptEnd.RUNNING
        }
        wanted = {
            key: row
            for row in whole.attempts
            if (key := (row.subtask, row.attempt_number)) in live or key not in known
        }
        assert [(row.subtask, row.attempt_number) for row in pruned.attempts] == [*wanted]
        for row in pruned.attempts:
            key = row.subtask, row.attempt_number
            if key in live:
                full = wanted[key]
                assert (row.end, row.ended_us, row.reason) == (full.end, full.ended_us, full.reason)
                assert (row.epoch, row.restored_from) == (full.epoch, full.restored_from)
                assert (row.started_us, row.host) == (None, None)
            else:
                assert row == wanted[key]


def test_other_tables_of_a_pruned_log_are_those_of_the_whole_log(log: MemoryLog) -> None:
    for cut in cuts(log):
        before, pruned, whole = parts(log, cut)
        assert pruned.failures == whole.failures[len(before.failures) :]
        done = sum(row.status is CommitStatus.SETTLED for row in before.commits)
        assert [(row.sequence, row.status) for row in pruned.commits] == [
            (row.sequence, row.status) for row in whole.commits[done:]
        ]
        over = sum(row.status is not CheckpointStatus.PENDING for row in before.checkpoints)
        assert [(row.checkpoint_id, row.epoch, row.status) for row in pruned.checkpoints] == [
            (row.checkpoint_id, row.epoch, row.status) for row in whole.checkpoints[over:]
        ]
        first, *rest = pruned.epochs
        full, *later = whole.epochs[len(before.epochs) - 1 :]
        assert (first.epoch, first.host, first.pid, first.parallelism, first.end) == (
            *(full.epoch, full.host, full.pid, full.parallelism, full.end),
        )
        assert first.started_us is None
        assert first.record_count == full.record_count - before.epochs[-1].record_count
        assert rest == later


def test_splits_have_the_places_of_the_whole_log(log: MemoryLog) -> None:
    for cut in cuts(log):
        before, pruned, whole = parts(log, cut)
        full = {row.split_id: row for row in whole.splits}
        for row in pruned.splits:
            assert (row.place, row.finished_by) == (
                full[row.split_id].place,
                full[row.split_id].finished_by,
            )
            assert row.rows in (None, full[row.split_id].rows)
        is_over = before.epochs[-1].end is EpochEnd.FINISHED
        if not whole.checkpoints and not is_over:  # the state of a batch has its finished splits
            assert {row.split_id for row in pruned.splits} >= {
                row.split_id for row in before.splits if row.rows is not None
            } - {row.split_id for row in whole.splits if row.thrown_away}


def test_events_in_flight_at_the_snapshot_are_shown_once_they_are_acked(log: MemoryLog) -> None:
    def ends(rows: list[EventRow]) -> dict[int, EventStatus]:
        return {row.sequence: row.status for row in rows}

    stored = list(log.read(0, log.high_watermark()))
    whole = ends([*events(entry.record() for entry in stored)])
    for cut in cuts(log):
        fold = EventFold()
        settled: list[EventRow] = []
        for entry in audit_records(stored[cut:]):
            state = state_at_beginning(entry)
            if state is not None:
                fold.begin(state)
            if entry.counts:
                settled += fold.apply(entry.known())
        pruned = ends([*settled, *fold.rows()])
        open_before = {
            row.sequence
            for row in events(entry.record() for entry in stored[:cut])
            if row.status is EventStatus.SENT
        }
        first = stored[cut].record().sequence
        assert first is not None
        assert pruned == {
            sequence: status
            for sequence, status in whole.items()
            if sequence >= first or sequence in open_before
        }


class _Logs:
    """One log in memory."""

    where = "memory"

    def __init__(self, log: Log) -> None:
        self._log = log

    def jobs(self) -> tuple[str, ...]:
        """Its job."""
        return ("job",)

    def open(self, _job_id: str) -> Log:
        """The log."""
        return self._log


TABLES = ("attempts", "splits", "checkpoints", "events", "commits", "failures", "epochs", "reads")


def test_each_table_of_a_pruned_log_is_said_to_be_partial(log: MemoryLog) -> None:
    pruned = MemoryLog("job")
    pruned.store(*(to_append(entry) for entry in log.read(0, log.high_watermark())))
    cut = cuts(log)[2]
    for command in TABLES:
        for option in ((), ("--json",)):
            full = CliRunner().invoke(main, [command, "job", *option], obj=lambda _: _Logs(log))
            assert (full.exit_code, full.stderr) == (0, "")
    pruned.remove_below(cut)
    for command in TABLES:
        for option in ((), ("--json",)):
            part = CliRunner().invoke(main, [command, "job", *option], obj=lambda _: _Logs(pruned))
            assert part.exit_code == 0, part.output
            assert part.stderr.startswith(
                f"the log begins at offset {cut}: rows and counts of before"
            )


def test_the_facts_of_a_report_are_those_of_the_pruned_tables(log: MemoryLog) -> None:
    stored = list(log.read(0, log.high_watermark()))
    for cut in cuts(log):
        pruned = audit(stored[cut:])
        made = document(
            audit_records(stored[cut:]), job="job", where="memory", made_us=0, made_by="0"
        )
        facts, end = Facts(made), len(stored)

        assert made.facts["is_partial"] is True
        assert facts.attempts(end) == {
            (row.subtask, row.attempt_number): row.end.value for row in pruned.attempts
        }
        assert facts.checkpoints(end) == {
            row.checkpoint_id: (row.status.value, row.acks) for row in pruned.checkpoints
        }
        assert facts.commits(end) == {
            row.sequence: row.status is CommitStatus.SETTLED for row in pruned.commits
        }
        assert facts.epochs(end) == {row.epoch: row.end.value for row in pruned.epochs}
        assert facts.splits(end) == {row.split_id: row.place.value for row in pruned.splits}
