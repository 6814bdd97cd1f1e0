"""What `coordlog doctor` makes of what it is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.errors import AccessError, LogUnavailableError
from coordlog.log.copy import to_append
from coordlog.log.interface import StoredRecord, UnstoredRecord
from coordlog.log.kafka.cluster_info import BrokerFacts, Disk, TopicFacts
from coordlog.log.kafka.topic import Durability, settings_to_create
from coordlog.log.memory import MemoryLog
from coordlog.offline.doctor import Finding, Grade, JobFacts, MachineFacts, Needed, examine_all
from coordlog.projections.inspection.prune_plan import PrunePlan, SnapshotPlace, plan_prune
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.header import encode_header
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import HANDLED, NotingProvider, Up, chain_of

HOUR_US = 3_600_000_000
NOW_US = 1_000 * HOUR_US
GB = 10**9

MACHINE = MachineFacts(
    now_us=NOW_US,
    clock_ahead_s=0.1,
    java="/usr/bin/java",
    versions={"pyspark": "4.1.1", "kafka-python": "3.0.12"},
    home="/home",
    home_total_bytes=100 * GB,
    home_free_bytes=50 * GB,
)
TOPIC = TopicFacts(
    name="j.log",
    partition_count=1,
    replication=3,
    in_sync=3,
    settings={**settings_to_create(Durability(), 3), "other": "x"},
    size_bytes=GB,
    open_transactions=(),
)
BROKER = BrokerFacts(
    bootstrap_servers="127.0.0.1:9092",
    cluster_id="c",
    versions={1: "4.0"},
    disks=(Disk(broker=1, folder="/data", total_bytes=1000 * GB, usable_bytes=500 * GB),),
    topics=(TOPIC,),
)
SNAPSHOT = SnapshotPlace(
    offset=900,
    sequence=890,
    timestamp_us=NOW_US - 10 * HOUR_US,
    bytes_below=9 * GB // 10,
    records_below=900,
)
PLAN = PrunePlan(
    start=0,
    end=1000,
    state=plan_prune([]).state,
    began_us=NOW_US - 100 * HOUR_US,
    checkpoints=(5, 6, 7),
    begins_with=SNAPSHOT,
    why_not="",
    record_count=1000,
    byte_count=GB,
    newest=SNAPSHOT,
)
JOB = JobFacts(job_id="j", records=1000, began_us=NOW_US - 100 * HOUR_US, last_us=NOW_US, plan=PLAN)


def found(
    machine: MachineFacts = MACHINE, broker: BrokerFacts = BROKER, job: JobFacts = JOB
) -> dict[str, Finding]:
    return {one.subject: one for one in examine_all(machine, broker, (job,))}


def with_topic(**changes: object) -> BrokerFacts:
    return replace(BROKER, topics=(replace(TOPIC, **changes),))  # type: ignore[arg-type]


def with_setting(name: str, value: str) -> BrokerFacts:
    return with_topic(settings={**TOPIC.settings, name: value})


def bad(findings: dict[str, Finding]) -> dict[str, Grade]:
    return {
        what: one.grade
        for what, one in findings.items()
        if one.grade in (Grade.WARNING, Grade.WRONG)
    }


def test_where_all_is_well_figures_are_told_and_nothing_is_to_be_done() -> None:
    made = found()

    assert bad(made) == {}
    assert made["job j, size"].value == "1,000 records, 1.0 GB; 10.0 MB and 10 records an hour"
    # 500 GB at 10 MB an hour
    assert made["disk of broker 1, /data, full in"].value.startswith("2,083 days, at 240.0 MB a")
    assert made["job j, prune"].value == "would free 900.0 MB (90%), all below offset 900"
    assert made["job j, prune"].next_step == "coordlog prune j"
    assert made["job j, retention"].value == (
        "for ever; a restart needs its newest snapshot, at offset 900; its oldest restorable "
        "checkpoint is 5"
    )


@pytest.mark.parametrize(
    ("hours", "grade", "said"),
    [
        (30, Grade.FINE, "kept 20.0 h more"),
        (12, Grade.WARNING, ""),
        (9, Grade.WRONG, "it may be removed at any moment"),
    ],
)
def test_retention_is_told_before_it_eats_what_a_restart_needs(
    hours: int, grade: Grade, said: str
) -> None:
    broker = with_setting("retention.ms", str(hours * 3_600_000))
    one = found(broker=broker)["job j, retention"]

    assert one.grade is grade
    if grade is Grade.WARNING:
        said = "12.0 h; a restart needs its newest snapshot, at offset 900, which is 10.0 h old: it is kept 2.0 h more"
    assert said in one.value
    assert ("retention.ms=-1" in one.next_step) is (grade is not Grade.FINE)


def test_without_a_snapshot_the_first_record_is_what_a_restart_needs() -> None:
    plan = replace(PLAN, newest=None, begins_with=None, why_not="it has no snapshot")
    broker = with_setting("retention.ms", str(101 * 3_600_000))
    made = found(broker=broker, job=replace(JOB, plan=plan))

    assert made["job j, retention"].grade is Grade.WARNING
    assert "its first record, which is 4.2 days old: it is kept 1.0 h more" in (
        made["job j, retention"].value
    )
    assert made["job j, prune"].value == "would free nothing: it has no snapshot"


OF_PLAIN = replace(JOB, plan=None)


@pytest.mark.parametrize(
    ("hours", "grade", "said"),
    [
        (-1, Grade.FINE, "for ever; a restart needs its newest snapshot, at offset 900"),
        (30, Grade.FINE, "which is 10.0 h old: it is kept 20.0 h more"),
        (12, Grade.WARNING, "which is 10.0 h old: it is kept 2.0 h more"),
        (9, Grade.WRONG, "which is 10.0 h old: it may be removed at any moment"),
    ],
)
def test_of_a_log_that_is_not_read_whole_retention_is_told_too(
    hours: int, grade: Grade, said: str
) -> None:
    needed = Needed(offset=900, timestamp_us=NOW_US - 10 * HOUR_US, is_snapshot=True)
    broker = with_setting("retention.ms", str(max(-1, hours * 3_600_000)))
    made = found(broker=broker, job=replace(OF_PLAIN, needed=needed))

    one = made["job j, retention"]
    assert one.grade is grade
    assert said in one.value
    assert ("retention.ms=-1" in one.next_step) is (grade is not Grade.FINE)
    assert "job j, prune" not in made


def test_settings_with_a_retention_are_not_said_to_lose_nothing() -> None:
    assert found()["topic j.log, settings"].value == "lose nothing; 3 replicas, 3 in sync"
    one = found(broker=with_setting("retention.ms", "3600000"))["topic j.log, settings"]
    assert one.value == (
        "remove only records older than 1.0 h: see job j, retention; 3 replicas, 3 in sync"
    )


def test_where_a_log_cannot_be_read_its_retention_is_a_warning() -> None:
    job = replace(OF_PLAIN, problem="damaged")
    made = found(broker=with_setting("retention.ms", "3600000"), job=job)

    assert made["job j, retention"].grade is Grade.WARNING
    assert (
        made["job j, retention"].value == "1.0 h; the record that a restart needs could not be read"
    )
    assert "job j, retention" not in found(job=job)


def test_what_is_gone_already_is_wrong_whatever_the_retention_is_now() -> None:
    needed = Needed(offset=3, timestamp_us=0, is_snapshot=True, is_there=False)
    one = found(job=replace(OF_PLAIN, start=5, needed=needed))["job j, retention"]

    assert one.grade is Grade.WRONG
    assert one.value == (
        "for ever; a restart needs its newest snapshot, at offset 3, and the log begins at offset 5: it was removed"
    )
    assert "coordlog adopt" in one.next_step


BROKEN: dict[str, tuple[BrokerFacts, str, Grade]] = {
    "compaction": (
        with_setting("cleanup.policy", "compact"),
        "topic j.log, cleanup.policy",
        Grade.WRONG,
    ),
    "size": (with_setting("retention.bytes", "5"), "topic j.log, retention.bytes", Grade.WRONG),
    "small": (
        with_setting("max.message.bytes", "1000"),
        "topic j.log, max.message.bytes",
        Grade.WRONG,
    ),
    "min": (
        with_setting("min.insync.replicas", "1"),
        "topic j.log, min.insync.replicas",
        Grade.WRONG,
    ),
    "lags": (with_topic(in_sync=2), "topic j.log, replicas in sync", Grade.WARNING),
    "down": (with_topic(in_sync=1), "topic j.log, replicas in sync", Grade.WRONG),
    "two": (with_topic(partition_count=2), "topic j.log, partitions", Grade.WRONG),
    "hangs": (
        with_topic(open_transactions=("producer 7 since offset 3",)),
        "topic j.log, open transaction",
        Grade.WRONG,
    ),
    "old": (replace(BROKER, versions={1: "2.4"}), "broker 1", Grade.WARNING),
    "full": (
        replace(BROKER, disks=(replace(BROKER.disks[0], usable_bytes=GB),)),
        "disk of broker 1, /data",
        Grade.WRONG,
    ),
    "offline": (
        replace(BROKER, disks=(replace(BROKER.disks[0], error_code=56),)),
        "disk of broker 1, /data",
        Grade.WRONG,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_with_a_broker_or_topic_is_told_with_what_to_do(name: str) -> None:
    broker, what, grade = BROKEN[name]
    one = found(broker=broker)[what]

    assert one.grade is grade
    assert one.next_step


@pytest.mark.parametrize(
    ("change", "what", "grade"),
    [
        ({"java_problem": "no java"}, "Java", Grade.WRONG),
        ({"clock_ahead_s": -45.0}, "clock", Grade.WARNING),
        ({"clock_ahead_s": None}, "clock", Grade.NOTE),
        ({"versions": {"pyspark": "3.5.1"}}, "pyspark", Grade.WRONG),
        ({"versions": {"fastavro": ""}}, "fastavro", Grade.WRONG),
        ({"home_free_bytes": 5 * GB}, "disk of /home", Grade.WARNING),
        ({"now_us": NOW_US - HOUR_US}, "job j, time of its last record", Grade.WARNING),
    ],
)
def test_what_is_wrong_with_the_machine_is_told(
    change: dict[str, object], what: str, grade: Grade
) -> None:
    assert found(machine=replace(MACHINE, **change))[what].grade is grade  # type: ignore[arg-type]


def test_topics_are_matched_with_requested_jobs_whatever_their_names() -> None:
    other = replace(TOPIC, name="team.k.log", size_bytes=2 * GB)
    broker = replace(BROKER, topics=(replace(TOPIC, name="team.j.log"), other))
    jobs = (JOB, replace(JOB, job_id="k"))

    made = {one.subject: one for one in examine_all(MACHINE, broker, jobs)}

    assert made["topic team.j.log, settings"].grade is Grade.FINE
    assert made["job j, size"].value.startswith("1,000 records, 1.0 GB; 10.0 MB and ")
    assert made["job k, size"].value.startswith("1,000 records, 2.0 GB; 20.0 MB and ")
    assert ", at 720.0 MB a day" in made["disk of broker 1, /data, full in"].value


@pytest.mark.parametrize("setting", ["cleanup.policy=delete", "retention.ms=-1"])
def test_the_command_that_is_told_runs_as_it_is_typed(setting: str) -> None:
    name = setting.partition("=")[0]
    broker = with_setting(name, {"cleanup.policy": "compact", "retention.ms": "1000"}[name])

    (step,) = [one.next_step for one in found(broker=broker).values() if setting in one.next_step]

    command = step.partition(" ; ")[0]
    assert command == (
        "kafka-configs.sh --bootstrap-server 127.0.0.1:9092 --alter --entity-type topics"
        f" --entity-name j.log --add-config {setting}"
    )


def test_a_command_for_a_tls_broker_names_the_file_that_kafkas_tools_read() -> None:
    broker = replace(with_setting("cleanup.policy", "compact"), protocol="SASL_SSL")

    step = found(broker=broker)["topic j.log, cleanup.policy"].next_step

    assert step.endswith(
        "--entity-name j.log --add-config cleanup.policy=delete --command-config client.properties"
        " ; that file has security.protocol=SASL_SSL and the options of that protocol"
    )


def test_an_advised_command_of_ours_looks_where_the_user_has_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What stands in a variable need not be said again."""
    monkeypatch.setenv("COORDLOG_BOOTSTRAP_SERVERS", "kafka-1:9092")
    place = Place(BROKER)
    last = place.log.records[-1].header
    assert last is not None
    header = encode_header(last._replace(sequence=last.sequence + 1, turn_remaining=0))
    place.log.store(UnstoredRecord(key=b"", value=b"damaged", header=header, timestamp_us=0))
    given = ["doctor", "j", "--topic-prefix", "team a."]

    made = CliRunner().invoke(main, given, obj=lambda _servers: place)

    assert "`coordlog verify j --topic-prefix 'team a.'` lists all faults" in made.stdout


def test_advice_on_a_prune_says_where() -> None:
    where = " --bootstrap-servers kafka-1:9092 --topic-prefix a."
    made = {one.subject: one for one in examine_all(MACHINE, BROKER, (JOB,), where=where)}

    assert made["job j, prune"].next_step == f"coordlog prune j{where}"


@pytest.mark.clause("L6")
def test_splits_that_wait_in_a_finished_job_are_wrong_by_name() -> None:
    finding = found(job=replace(JOB, waiting="2 of its splits: a, b"))["job j, its splits"]

    assert (finding.grade, finding.value) == (Grade.WRONG, "2 of its splits: a, b")
    assert "read these files with another job" in finding.next_step


def test_an_empty_topic_loses_nothing_to_a_retention() -> None:
    plan = plan_prune([])
    job = JobFacts(job_id="j", records=0, began_us=0, last_us=0, plan=plan)

    assert bad(found(broker=with_setting("retention.ms", "3600000"), job=job)) == {}


def test_one_replica_that_is_not_flushed_is_told_and_is_nothing_to_do() -> None:
    settings = settings_to_create(Durability(fsync=False), 1) | {"flush.messages": str(2**63 - 1)}
    broker = with_topic(replication=1, in_sync=1, settings=settings)
    made = found(broker=broker)

    assert len(made) == len(examine_all(MACHINE, broker, (JOB,))), "each is said once"
    one = made["topic j.log, flush.messages"]
    assert bad(made) == {}
    assert one.grade is Grade.NOTE
    assert "KafkaLog(..., fsync=False)" in one.value
    assert one.next_step.endswith("--entity-name j.log --add-config flush.messages=1")
    assert "topic j.log, settings" not in made
    settings = settings_to_create(Durability(), 1)
    made = found(broker=with_topic(replication=1, in_sync=1, settings=settings))
    assert made["topic j.log, settings"].grade is Grade.FINE


@pytest.mark.parametrize(
    ("change", "pace"),
    [
        # 1 GB in ten minutes, and then nothing for two days
        ({"began_us": NOW_US - 48 * HOUR_US, "last_us": NOW_US - 47 * HOUR_US}, None),
        # a burst, and then little: by now, not by its last record
        ({"began_us": NOW_US - 20 * HOUR_US, "last_us": NOW_US - 19 * HOUR_US}, "1.2 GB a day"),
    ],
)
def test_a_disk_is_not_said_to_fill_by_what_is_over(
    change: dict[str, int], pace: str | None
) -> None:
    made = found(job=replace(JOB, **change))  # type: ignore[arg-type]

    one = made.get("disk of broker 1, /data, full in")
    assert (one is None) == (pace is None)
    assert ("an hour" in made["job j, size"].value) == (pace is not None)
    if one is not None and pace is not None:
        assert pace in one.value
    assert bad(made) == {}


def test_of_a_pruned_log_records_an_hour_are_told_and_bytes_are_not() -> None:
    """When the rest of the disk was filled is not known of what is left."""
    made = found(job=replace(JOB, began_us=NOW_US - 2 * HOUR_US, start=5_000))

    assert made["job j, size"].value == "1,000 records, 1.0 GB; 500 records an hour"
    assert "disk of broker 1, /data, full in" not in made
    assert bad(made) == {}


_IN_2100_US = 4_102_444_800_000_000


class _EndsWithMarker(MemoryLog):
    """A log whose last offsets are ends of transactions, which no reader is given."""

    def __init__(self, markers: int) -> None:
        super().__init__("j.log")
        self._markers = markers

    def read(
        self, from_offset: int, to_offset: int, *, stall_s: float | None = None
    ) -> Iterator[StoredRecord]:
        end = max(from_offset, min(to_offset, self.high_watermark() - self._markers))
        return super().read(from_offset, end, stall_s=stall_s)


@pytest.mark.parametrize("markers", [1, 3])
def test_the_end_of_a_transaction_is_no_last_record(markers: int) -> None:
    place = Place(BROKER)
    log = _EndsWithMarker(markers)
    for one in place.log.records + (place.log.records[-1],) * markers:
        log.store(to_append(one)._replace(timestamp_us=_IN_2100_US))
    place.log = log
    made = CliRunner().invoke(main, ["doctor"], obj=lambda _servers: place)

    assert made.exit_code == Exit.FAILED, made.output
    assert "job j, time of its last record: " in made.stdout
    assert f"job j, size: {log.high_watermark()} records" in made.stdout


def with_snapshots() -> MemoryLog:
    job = HandDrivenJob(
        chain_of(NotingProvider(projection=HANDLED)),
        job_id="j",
        options=RuntimeOptions(snapshot_every=7),
    )
    attempt = job.register(0)
    for n in range(20):
        attempt.send("source", Up(n=n))
    job.crash()
    return job.log


def retention_told(log: MemoryLog) -> str:
    """By the plain doctor."""
    place = Place(BROKER)
    place.log = log
    made = CliRunner().invoke(main, ["doctor", "--json"], obj=lambda _servers: place)
    rows = [json.loads(one) for one in made.stdout.splitlines()]
    (value,) = [one["value"] for one in rows if one["subject"] == "job j, retention"]
    return str(value)


def test_the_plain_doctor_finds_what_a_restart_needs_by_the_last_records() -> None:
    log = with_snapshots()
    kinds = [one.record().kind for one in log.records]
    offsets = [offset for offset, kind in enumerate(kinds) if kind is Kind.SNAPSHOT]
    assert len(offsets) >= 2

    newest = f"for ever; a restart needs its newest snapshot, at offset {offsets[-1]}"
    assert retention_told(log) == newest
    log.remove_below(offsets[-1])
    assert retention_told(log) == newest, "a pruned log begins with it"
    log.remove_below(offsets[-1] + 1)
    assert retention_told(log) == (
        f"for ever; a restart needs its newest snapshot, at offset {offsets[-1]}, and the log begins at offset "
        f"{offsets[-1] + 1}: it was removed"
    )


def test_doctor_reports_a_log_that_lost_a_beginning_it_needs() -> None:
    log = Place(BROKER).log
    assert retention_told(log) == "for ever; a restart needs its first record"
    log.remove_below(2)
    assert retention_told(log) == (
        "for ever; a restart needs its first record, at offset 0, and the log begins at offset 2: it was removed"
    )


def test_a_log_of_which_all_is_gone_is_told_as_that() -> None:
    log = Place(BROKER).log
    end = log.high_watermark()
    log.remove_below(end)
    assert retention_told(log) == (
        f"for ever; a restart needs its first record, at offset 0, and the log begins at offset {end}: it was removed"
    )


def test_what_a_stranger_names_that_is_not_there_yet_is_no_snapshot() -> None:
    log = with_snapshots()
    told = retention_told(log)
    (*_, last) = log.records
    assert last.header is not None
    named = last.header._replace(snapshot_offset=10**6)
    log.store(UnstoredRecord(key=b"", value=b"", header=encode_header(named), timestamp_us=0))

    assert retention_told(log) == told


def test_a_log_of_one_snapshot_that_nothing_names_is_whole() -> None:
    """As a prune leaves it that has taken the snapshot itself."""
    log = with_snapshots()
    (*_, last) = [one for one in log.records if one.record().kind is Kind.SNAPSHOT]
    alone = _EndsWithMarker(len(log.records) - last.offset - 1)
    for one in log.records:
        alone.store(to_append(one))
    alone.remove_below(last.offset)

    assert retention_told(alone) == (
        f"for ever; a restart needs its newest snapshot, at offset {last.offset}"
    )


class Place:
    """A broker with one log."""

    where = "memory"

    def __init__(self, broker: BrokerFacts) -> None:
        self.broker = broker
        job = HandDrivenJob(chain_of(NotingProvider()), job_id="j")
        job.register(0)
        job.crash()
        self.log = job.log

    def jobs(self) -> tuple[str, ...]:
        return ("j",)

    def open(self, job_id: str) -> MemoryLog:
        assert job_id == "j"
        return self.log

    def delete(self, job_id: str) -> None:
        raise AssertionError(job_id)

    def examine(self, job_ids: tuple[str, ...]) -> BrokerFacts:
        assert job_ids == ("j",)
        return self.broker

    def clock_ahead_s(self) -> float:
        raise LogUnavailableError("memory", "asking its time", 1.0)


def test_the_exit_status_tells_whether_anything_is_to_be_done() -> None:
    fine = CliRunner().invoke(main, ["doctor", "j"], obj=lambda _servers: Place(BROKER))
    lines = fine.stdout.splitlines()
    assert "note    clock: not compared: the log memory did not answer" in fine.stdout
    assert any(
        one.startswith("note    job j, prune: would free nothing: it has no") for one in lines
    )
    assert lines[-1].endswith("things checked: 0 wrong, 0 warnings")
    assert fine.exit_code == Exit.DONE

    broken = with_setting("cleanup.policy", "compact")
    wrong = CliRunner().invoke(main, ["doctor", "--json"], obj=lambda _servers: Place(broken))
    assert wrong.exit_code == Exit.FAILED
    rows = [json.loads(one) for one in wrong.stdout.splitlines()]
    (one,) = [row for row in rows if row["grade"] == "wrong"]
    assert one["subject"] == "topic j.log, cleanup.policy"
    assert "--add-config cleanup.policy=delete" in one["next_step"]

    unknown = CliRunner().invoke(main, ["doctor", "k"], obj=lambda _servers: Place(BROKER))
    assert unknown.exit_code == Exit.FAILED
    assert "the jobs there are j" in unknown.stderr


class Closed(Place):
    """A broker of which something is asked in vain."""

    def __init__(self, error: Exception) -> None:
        super().__init__(BROKER)
        self.error = error

    def jobs(self) -> tuple[str, ...]:
        if isinstance(self.error, LogUnavailableError):
            raise self.error
        return super().jobs()

    def examine(self, job_ids: tuple[str, ...]) -> BrokerFacts:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status", "problem", "next_step"),
    [
        (
            LogUnavailableError("(all topics) at kafka-1:9092", "listing jobs", 10.0, "refused"),
            Exit.UNREACHABLE,
            "no answer for 10.0 s while listing jobs (last: refused)",
            "check that it runs and can be reached, then run the same command again",
        ),
        (
            AccessError("(all topics) at kafka-1:9092", "it asks for a password", "give it one"),
            Exit.REFUSED,
            "it asks for a password",
            "give it one",
        ),
    ],
    ids=["unreachable", "closed"],
)
@pytest.mark.parametrize("job", [(), ("j",)], ids=["plain", "job"])
def test_of_a_broker_that_cannot_be_asked_the_machine_is_told_still(
    job: tuple[str, ...], error: Exception, status: Exit, problem: str, next_step: str
) -> None:
    arguments = ("doctor", *job, "--bootstrap-servers", "kafka-1:9092")
    said = CliRunner().invoke(main, arguments, obj=lambda _servers: Closed(error))
    rows = CliRunner().invoke(main, (*arguments, "--json"), obj=lambda _servers: Closed(error))

    assert (said.exit_code, rows.exit_code) == (status, status)
    assert said.stderr == ""
    lines = said.stdout.splitlines()
    assert any("Java: " in one for one in lines)
    assert any("disk of " in one for one in lines)
    assert lines[-3:-1] == [
        f"wrong   broker at kafka-1:9092: {problem}",
        f"        to do: {next_step}",
    ]
    found = [json.loads(one) for one in rows.stdout.splitlines()]
    assert {"Java", "kafka-python", "pyspark"} <= {one["subject"] for one in found}
    assert (found[-1]["grade"], found[-1]["value"]) == ("wrong", problem)


def test_without_java_and_a_named_broker_both_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The shared local broker is to be started, and cannot be."""
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.delenv("COORDLOG_BOOTSTRAP_SERVERS", raising=False)

    said = CliRunner().invoke(main, ["doctor", "--json"])

    assert said.exit_code == Exit.FAILED, said.output
    found = {one["subject"]: one for one in map(json.loads, said.stdout.splitlines())}
    java = f"{tmp_path / 'nowhere' / 'bin' / 'java'} does not run"
    assert found["Java"]["grade"] == "wrong"
    assert found["shared local broker"]["grade"] == "wrong"
    for what in ("Java", "shared local broker"):
        assert found[what]["value"].startswith(java)
    assert "set JAVA_HOME to one" in found["shared local broker"]["next_step"]
    assert any(one.startswith("disk of ") for one in found)


def test_a_log_that_does_not_answer_is_told_among_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(BROKER)

    def gone() -> int:
        raise LogUnavailableError("j.log", "asking for its offsets", 1.0)

    monkeypatch.setattr(place.log, "start_offset", gone)
    said = CliRunner().invoke(main, ["doctor"], obj=lambda _servers: place)

    assert said.exit_code == Exit.FAILED
    assert "wrong   log of job j: the log j.log did not answer for 1.0 s" in said.stdout
