"""The commands that look into a log at any place, on a driven job's log in memory."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
from click.testing import CliRunner, Result

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.log.copy import to_append
from coordlog.log.memory import MemoryLog
from coordlog.projections.tables.audit import AuditRecord, audit, audit_records
from coordlog.schemas.builtin_types import SnapshotWanted
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from driven_history import driven_log
from fakes.kernel_fakes import HANDLED, NotingProvider, chain_of
from histories.one_log import OneLog

pytestmark = pytest.mark.slow

JOB = "looked-at"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> MemoryLog:
    return driven_log(tmp_path_factory.mktemp("driven"), JOB, is_batch=False)


def run(log: MemoryLog, command: str, *options: str) -> Result:
    return CliRunner().invoke(main, (command, JOB, *options), obj=lambda _servers: OneLog(log, JOB))


def shown(log: MemoryLog, command: str, *options: str) -> str:
    result = run(log, command, *options)
    assert result.exit_code == Exit.DONE, result.output
    return result.stdout


def records(log: MemoryLog, kind: Kind) -> list[AuditRecord]:
    found = audit_records(log.read(0, log.high_watermark()))
    return [one for one in found if one.counts and one.record and one.record.kind is kind]


def test_the_state_in_the_middle_and_at_the_end(log: MemoryLog) -> None:
    middle = records(log, Kind.CHECKPOINT_ACKED)[-1].offset
    then = shown(log, "state", "--at", str(middle))
    end = shown(log, "state")

    assert "running; streaming" in then
    assert "last failure: killed by the test" in then
    assert "is pending: the ack of subtask" in then or "completed at sequence" in then
    assert "finished; streaming" in end
    assert "splits: 24 committed\n  committed: " in end
    assert end.endswith(", and 14 more\n")
    assert len(end.splitlines()[-1].split(".csv")) == 11


def test_the_checkpoint_that_a_next_attempt_begins_from_is_shown() -> None:
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED)), job_id=JOB)
    attempt = job.register(0)
    job.trigger()
    attempt.ack_checkpoint(1)
    while_live = next_begins_from(job)
    attempt.fail()
    lost = next_begins_from(job)
    again = job.register(0)

    assert (while_live, lost) == ("1", "1")
    assert job.history(Kind.ATTEMPT_STARTED)[-1].checkpoint_id == 1
    again.complete()
    assert next_begins_from(job) == ""


def next_begins_from(job: HandDrivenJob) -> str:
    """The last cell of the line of subtask 0."""
    lines = shown(job.log, "state").splitlines()
    head, line = next(pair for pair in pairwise(lines) if pair[0].startswith("SUBTASK"))
    return line[head.index("NEXT BEGINS FROM") :].strip()


def completed(log: MemoryLog) -> list[int]:
    """The ids of the checkpoints that have completed: which ones is up to the threads of the run."""
    found = [one.record for one in records(log, Kind.CHECKPOINT_COMPLETED)]
    return [one.checkpoint_id for one in found if one and one.checkpoint_id is not None]


def test_the_state_as_json_has_everything(log: MemoryLog) -> None:
    checkpoint = completed(log)[1]
    made = json.loads(shown(log, "state", "--at", f"checkpoint:{checkpoint}", "--json"))

    assert made["last_checkpoint"] == checkpoint
    assert made["completed"][str(checkpoint)]["cuts"]["source"]["sequence"] > 0
    end = json.loads(shown(log, "state", "--json"))
    assert len(end["splits"]) == 24


def test_what_changed_is_shown_by_path(log: MemoryLog) -> None:
    old, new = completed(log)[:2]
    between = ("--from", f"checkpoint:{old}", "--to", f"checkpoint:{new}")
    lines = shown(log, "diff", *between).splitlines()

    assert lines[0].startswith("from offset ")
    assert f"- last_checkpoint: {old}" in lines
    assert f"+ last_checkpoint: {new}" in lines
    assert lines[-1].endswith(" differences")


def test_what_changed_in_a_pruned_log_begins_where_that_begins(log: MemoryLog) -> None:
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED)), job_id=JOB)
    attempt = job.register(0)
    job.ask("", SnapshotWanted(why="test"))
    job.trigger()
    attempt.ack_checkpoint(1)
    start = next(one.offset for one in job.log.records if one.record().kind is Kind.SNAPSHOT)
    whole = shown(job.log, "diff", "--from", str(start))
    job.log.delete_below(start)
    result = run(job.log, "diff")

    assert result.stdout == whole
    assert result.stdout.startswith(f"from offset {start} to offset ")
    assert "+ completed.1" in result.stdout
    assert "launch" not in result.stdout
    assert f"the log begins at offset {start}: " in result.stderr
    assert "begins" not in run(log, "diff").stderr
    refused = run(job.log, "state", "--at", "0")
    assert refused.exit_code == Exit.USAGE
    assert f"offset is 0; it must be {start} or above, where this log begins" in refused.stderr


def test_a_split_with_discarded_work_is_explained_from_listing_to_commit(
    log: MemoryLog,
) -> None:
    rows = audit(log.read(0, log.high_watermark())).splits
    split = next(one.split_id for one in rows if one.thrown_away)

    lines = shown(log, "explain", "--split", split).splitlines()

    words = [line[21:] for line in lines[:-1]]
    order = ["learnt of 24 new splits", "sent splits", "failed, because", "went back to"]
    order += ["had read the split to its end", "is settled"]
    places = [max(i for i, one in enumerate(words) if part in one) for part in order[:2]]
    assert places == sorted(places)
    assert all(any(part in one for one in words) for part in order), words
    assert lines[-1] == f"so split {split} is committed"


def test_an_event_is_explained_with_its_ack(log: MemoryLog) -> None:
    one = records(log, Kind.EVENT_TO_SUBTASK)[0].record
    assert one is not None
    lines = shown(log, "explain", "--event", str(one.sequence)).splitlines()

    assert "sent splits" in lines[-3]
    assert "had processed event" in lines[-2]
    assert lines[-1] == f"so event at sequence {one.sequence}: acked"


def test_a_checkpoint_is_explained(log: MemoryLog) -> None:
    text = shown(log, "explain", "--checkpoint", "1")

    for part in ("was triggered", "made its cut of 1", "the barrier of 1 was sent to attempt"):
        assert part in text
    assert text.endswith("so checkpoint 1 is completed\n")


def test_a_sound_log_verifies_and_a_damaged_one_does_not(log: MemoryLog) -> None:
    assert "all of it holds" in shown(log, "verify")
    damaged = MemoryLog(JOB)
    place = records(log, Kind.SPLIT_FINISHED)[0].offset
    for one in log.read(0, log.high_watermark()):
        damaged.store(
            to_append(one)._replace(key=b"elsewhere" if one.offset == place else one.key or b"")
        )

    result = run(damaged, "verify")

    assert result.exit_code == Exit.FAILED
    assert f"offset {place}: its key is b'elsewhere'" in result.stdout
    assert ": it was written to the log of topic_id memory-" in result.stdout
    assert result.stdout.endswith(" faults\n")


def test_a_verification_as_json_has_what_was_checked(log: MemoryLog) -> None:
    made = json.loads(shown(log, "verify", "--json"))

    assert (made["fault_count"], made["faults"], made["is_whole"]) == (0, [], True)
    assert made["record_count"] + made["void_count"] == log.high_watermark()
    assert "state" not in made


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("state", ("--at", "nonsense"), "no offset, no checkpoint:N and no time"),
        ("state", ("--at", "checkpoint:77"), "one that has completed in this log ("),
        ("state", ("--at", "999999"), "offset is 999999; it must be "),
        ("diff", ("--from", "999999"), "offset is 999999; it must be "),
        ("explain", (), "pass one of --split, --event and --checkpoint"),
        ("explain", ("--split", "x"), "one that the log knows"),
        ("explain", ("--event", "0"), "the sequence of an event; a "),
        ("explain", ("--checkpoint", "99"), "one that was triggered in this log"),
    ],
)
def test_what_is_not_there_is_named(
    command: str, options: tuple[str, ...], message: str, log: MemoryLog
) -> None:
    result = run(log, command, *options)

    assert result.exit_code == Exit.USAGE
    assert message in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("state",),
        ("diff",),
        ("verify",),
        ("explain", "--checkpoint", "1"),
        ("attempts",),
        ("splits",),
        ("checkpoints",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_long_reading_says_how_far_it_is_and_not_on_the_standard_output(
    arguments: tuple[str, ...], log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = run(log, *arguments)
    monkeypatch.setattr("coordlog.cli.reading._PROGRESS_S", -1.0)

    told = run(log, *arguments)

    assert quiet.stderr == ""
    assert re.search(r"^(read|checked) 0 of [\d,]+ records$", told.stderr, re.MULTILINE)
    seconds = re.compile(r"in \d+\.\d s")
    assert seconds.sub("", told.stdout) == seconds.sub("", quiet.stdout)


@pytest.mark.parametrize("command", ["state", "tail", "stop", "delete", "doctor"])
def test_an_impossible_job_id_is_refused_before_a_broker_is_started_for_it(command: str) -> None:
    def started(_servers: str | None) -> OneLog:
        raise AssertionError("a broker was looked for")

    result = CliRunner().invoke(main, (command, "My_Job"), obj=started)
    assert result.exit_code == Exit.USAGE, result.output
    assert "job_id" in result.stderr
    assert "lower-case letters" in result.stderr
