"""Findings on a machine, a broker and jobs' logs, derived from facts that were read before."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from coordlog.amounts import in_bytes
from coordlog.log.kafka.cluster_info import BrokerFacts, Disk, TopicFacts
from coordlog.log.kafka.errors import OLDEST_BROKER
from coordlog.log.kafka.topic import Durability, command_to_set, unfit_settings
from coordlog.projections.inspection.prune_plan import PrunePlan

__all__ = ["Finding", "Grade", "JobFacts", "MachineFacts", "Needed", "NoBroker", "examine_all"]

_DISK_LOW = 0.10
_DISK_OUT = 0.02
_DAYS_LOW = 14.0
_CLOCK_S = 30.0
_HOUR_US = 3_600_000_000
_SILENT_US = 24 * _HOUR_US
"""Age of a log's last record above which the log counts as silent: it fills no disk."""
_RETENTION_LEFT = 0.5
"""Share of the retention time below which the rest, for a record that a restart needs, is a warning."""
_PRUNE_SHARE = 0.5
_PRUNE_BYTES = 64 * 1024 * 1024
_HOURS_SHOWN = 48.0
"""Longest span shown in hours; longer ones are shown in days."""
_SPARK = ((4, 1), (4, 4))


class Grade(enum.Enum):
    """Severity of a finding."""

    FINE = "ok"
    NOTE = "note"
    """For information; no action is needed."""
    WARNING = "warning"
    """Works now, and fails later if nothing changes."""
    WRONG = "wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check."""

    grade: Grade
    subject: str
    value: str
    should_be: str = ""
    next_step: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """The oldest record that a restart of a job needs."""

    offset: int
    timestamp_us: int
    is_snapshot: bool
    """Whether it is the newest snapshot; if not, it is the log's first record."""
    is_there: bool = True
    """False if the log begins after this record, and not with a snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """Facts of a job's log, as far as it was read."""

    job_id: str
    records: int
    began_us: int
    """Time of the log's first record, microseconds since 1970, UTC; 0 if the log is empty."""
    last_us: int
    """Time of the log's last record."""
    start: int = 0
    """First offset of the log."""
    plan: PrunePlan | None = None
    """Result of folding all of the log, or None if the log was not read."""
    needed: Needed | None = None
    """Record named by the log's last records; None if the log is empty, or if there is a plan."""
    problem: str = ""
    """Why the log could not be read; empty if it was."""
    waiting: str = ""
    """Splits still waiting when the job finished, in words; empty if none, or if the log was not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Facts of this machine and this environment."""

    now_us: int
    clock_ahead_s: float | None
    """Seconds by which the broker's clock is ahead of this machine's, or None if not measured."""
    clock_problem: str = ""
    java: str = ""
    java_problem: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Version of each package, by its name; empty for a missing package."""
    home: str = ""
    home_total_bytes: int = 0
    home_free_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoBroker:
    """A broker that could not be queried."""

    where: str
    """Name of the broker, for people."""
    problem: str
    next_step: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Advice:
    """Commands for the next steps, complete enough to be copied and run."""

    broker: BrokerFacts
    where: str
    """Options with the place of the logs, after a blank; see `examine_all`."""

    def own(self, command: str) -> str:
        """A command of coordlog."""
        return f"coordlog {command}{self.where}"

    def setting(self, topic: TopicFacts, settings: Mapping[str, str]) -> str:
        """A command of Kafka that sets these settings of a topic."""
        command = command_to_set(self.broker.bootstrap_servers, topic.name, settings)
        if self.broker.protocol == "PLAINTEXT":
            return command
        return (
            f"{command} --command-config client.properties"
            f" ; that file has security.protocol={self.broker.protocol} and the options of that protocol"
        )


def examine_all(
    machine: MachineFacts,
    broker: BrokerFacts | NoBroker,
    jobs: tuple[JobFacts, ...],
    *,
    where: str = "",
) -> tuple[Finding, ...]:
    """Every finding, dependencies first: the machine, the broker, each job.

    The broker's topics are those of the jobs, in their order. `where` is appended to each advised command of
    coordlog: options with the place of the logs, after a blank.
    """
    findings = [*_machine(machine)]
    if isinstance(broker, NoBroker):
        unreachable = Finding(
            grade=Grade.WRONG,
            subject=broker.where,
            value=broker.problem,
            next_step=broker.next_step,
        )
        return (*findings, unreachable)
    advice = _Advice(broker=broker, where=where)
    findings += _broker(advice, jobs, machine)
    for job, topic in zip(jobs, broker.topics, strict=True):
        findings += [*_topic(job, topic, advice)]
        findings += [*_job(job, topic, advice, machine.now_us)]
    return tuple(findings)


# --- the machine ------------------------------------------------------------------------------------------------------
def _machine(machine: MachineFacts) -> Iterator[Finding]:
    if machine.java_problem:
        yield Finding(grade=Grade.WRONG, subject="Java", value=machine.java_problem)
    else:
        yield Finding(grade=Grade.FINE, subject="Java", value=machine.java)
    for name, version in sorted(machine.versions.items()):
        yield _package(name, version)
    total = machine.home_total_bytes
    share = machine.home_free_bytes / total if total else 1.0
    yield _disk(
        f"disk of {machine.home}",
        share,
        machine.home_free_bytes,
        "free some, or set COORDLOG_HOME elsewhere",
    )


def _package(name: str, version: str) -> Finding:
    if not version:
        return Finding(
            grade=Grade.WRONG,
            subject=name,
            value="not installed",
            next_step="install coordlog again: pip install coordlog",
        )
    if name == "pyspark":
        lowest, above = _SPARK
        if not lowest <= _numbers(version)[:2] < above:
            return Finding(
                grade=Grade.WRONG,
                subject=name,
                value=version,
                should_be=f"{_dotted(lowest)} or newer, below {_dotted(above)}",
                next_step="install one of these",
            )
    return Finding(grade=Grade.FINE, subject=name, value=version)


def _clock(machine: MachineFacts) -> Finding:
    ahead = machine.clock_ahead_s
    if ahead is None:
        return Finding(
            grade=Grade.NOTE,
            subject="clock",
            value=f"not compared: {machine.clock_problem or 'not queried'}",
        )
    value = f"the broker's is {abs(ahead):.1f} s {'ahead of' if ahead >= 0 else 'behind'} this machine's"
    if abs(ahead) <= _CLOCK_S:
        return Finding(grade=Grade.FINE, subject="clock", value=value)
    return Finding(
        grade=Grade.WARNING,
        subject="clock",
        value=value,
        should_be=f"within {_CLOCK_S:.0f} s",
        next_step="synchronise both clocks (NTP): a job's times and backoffs depend on them",
    )


# --- the broker -------------------------------------------------------------------------------------------------------
def _broker(
    advice: _Advice, jobs: tuple[JobFacts, ...], machine: MachineFacts
) -> Iterator[Finding]:
    broker = advice.broker
    for number, version in sorted(broker.versions.items()):
        is_old = bool(version) and _numbers(version)[:2] < _numbers(OLDEST_BROKER)
        yield Finding(
            grade=Grade.WARNING if is_old else Grade.FINE if version else Grade.NOTE,
            subject=f"broker {number}",
            value=f"Kafka {version} or newer" if version else "does not report its version",
            should_be=f"{OLDEST_BROKER} or newer" if is_old else "",
            next_step="upgrade it" if is_old else "",
        )
    yield _clock(machine)
    rates = [
        _per_hour(topic.size_bytes, job, machine.now_us)
        for job, topic in zip(jobs, broker.topics, strict=True)
    ]
    total_rate = sum(rate for rate in rates if rate is not None)
    for disk in broker.disks:
        yield from _broker_disk(disk, total_rate, advice)
        if disk.error_code:
            yield Finding(
                grade=Grade.WRONG,
                subject=f"disk of broker {disk.broker}, {disk.folder}",
                value=f"error {disk.error_code}: the broker does not use it",
                next_step="see the broker's log",
            )


def _broker_disk(disk: Disk, bytes_per_hour: float, advice: _Advice) -> Iterator[Finding]:
    subject = f"disk of broker {disk.broker}, {disk.folder}"
    total, usable = disk.total_bytes, disk.usable_bytes
    if total <= 0:
        yield Finding(
            grade=Grade.NOTE, subject=subject, value="the broker is too old to report its size"
        )
        return
    yield _disk(
        subject,
        usable / total,
        usable,
        "add room, or remove history: coordlog prune, coordlog delete",
    )
    if bytes_per_hour > 0:
        days = usable / bytes_per_hour / 24
        is_soon = days < _DAYS_LOW
        yield Finding(
            grade=Grade.WARNING if is_soon else Grade.NOTE,
            subject=f"{subject}, full in",
            value=f"{days:,.0f} days, at {in_bytes(bytes_per_hour * 24)} a day from the examined jobs that write",
            should_be=f"{_DAYS_LOW:.0f} days or more" if is_soon else "",
            next_step=f"{advice.own('prune JOB')}, or a larger disk" if is_soon else "",
        )


def _disk(subject: str, share: float, free: int, next_step: str) -> Finding:
    grade = Grade.WRONG if share < _DISK_OUT else Grade.WARNING if share < _DISK_LOW else Grade.FINE
    is_fine = grade is Grade.FINE
    return Finding(
        grade=grade,
        subject=subject,
        value=f"{in_bytes(free)} free, {share:.0%}",
        should_be="" if is_fine else f"{_DISK_LOW:.0%} or more",
        next_step="" if is_fine else next_step,
    )


# --- a job ------------------------------------------------------------------------------------------------------------
def _topic(job: JobFacts, topic: TopicFacts, advice: _Advice) -> Iterator[Finding]:
    name = f"topic {topic.name}"
    if topic.partition_count != 1:
        yield Finding(
            grade=Grade.WRONG,
            subject=f"{name}, partitions",
            value=str(topic.partition_count),
            should_be="1: a history has one order",
            next_step="create the topic again, from an export if any of its records are needed",
        )
    # Retention is compared with the log's content, in `_retention`; fsync is an option of the driver.
    durability = Durability(fsync=False, retention_ms=0)
    broken_rules = unfit_settings(topic.settings, durability, topic.replication)
    for rule in broken_rules:
        yield Finding(
            grade=Grade.WRONG,
            subject=f"{name}, {rule.setting}",
            value=f"{topic.settings[rule.setting]}: {rule.why}",
            should_be=rule.wanted,
            next_step=advice.setting(topic, {rule.setting: rule.wanted}),
        )
    flush = topic.settings.get("flush.messages", "1")
    if topic.replication == 1 and flush != "1":
        yield Finding(
            grade=Grade.NOTE,
            subject=f"{name}, flush.messages",
            value=f"{flush}: with its one replica, a crash of the broker's machine can lose records "
            "that were acknowledged; KafkaLog(..., fsync=False) makes such topics",
            next_step="if that is not meant: " + advice.setting(topic, {"flush.messages": "1"}),
        )
    elif not broken_rules:
        yield Finding(
            grade=Grade.FINE,
            subject=f"{name}, settings",
            value=f"{_kept(job, topic)}; {topic.replication} replicas, {topic.in_sync} in sync",
        )
    if topic.in_sync < topic.replication:
        needed = int(topic.settings.get("min.insync.replicas", "1"))
        yield Finding(
            grade=Grade.WRONG if topic.in_sync < needed else Grade.WARNING,
            subject=f"{name}, replicas in sync",
            value=f"{topic.in_sync} of {topic.replication}; an append needs {needed}",
            should_be=str(topic.replication),
            next_step="find out why a broker lags or is down",
        )
    for transaction in topic.open_transactions:
        yield Finding(
            grade=Grade.WRONG,
            subject=f"{name}, open transaction",
            value=f"{transaction}; no driver of coordlog opens any",
            should_be="none",
            next_step=f"find the other writer to {topic.name}; kafka-transactions.sh abort ends it",
        )
    if job.problem:
        yield Finding(grade=Grade.WRONG, subject=f"log of job {job.job_id}", value=job.problem)


def _job(job: JobFacts, topic: TopicFacts, advice: _Advice, now_us: int) -> Iterator[Finding]:
    name = f"job {job.job_id}"
    yield Finding(
        grade=Grade.NOTE,
        subject=f"{name}, size",
        value=f"{job.records:,} records, {in_bytes(topic.size_bytes)}{_pace(topic, job, now_us)}",
    )
    ahead_s = (job.last_us - now_us) / 1e6
    if ahead_s > _CLOCK_S:
        yield Finding(
            grade=Grade.WARNING,
            subject=f"{name}, time of its last record",
            value=f"{ahead_s:,.0f} s ahead of this machine's clock",
            should_be="in the past",
            next_step="synchronise the clocks of the driver's machine and this one (NTP)",
        )
    if job.waiting:
        yield Finding(
            grade=Grade.WRONG,
            subject=f"{name}, its splits",
            value=job.waiting,
            should_be="each read or skipped when a job finishes",
            next_step="read these files with another job: this one has not read them",
        )
    yield from _retention(job, topic, advice, now_us)
    if job.plan is not None:
        yield _prune(job, job.plan, advice)


def _prune(job: JobFacts, plan: PrunePlan, advice: _Advice) -> Finding:
    freed, offset = (
        (0, 0)
        if plan.begins_with is None
        else (plan.begins_with.bytes_below, plan.begins_with.offset)
    )
    share = freed / plan.byte_count if plan.byte_count else 0.0
    is_much = freed > _PRUNE_BYTES and share > _PRUNE_SHARE
    return Finding(
        grade=Grade.NOTE,
        subject=f"job {job.job_id}, prune",
        value=f"would free {in_bytes(freed)} ({share:.0%}), all below offset {offset:,}"
        if plan.begins_with is not None
        else f"would free nothing: {plan.why_not}",
        next_step=advice.own(f"prune {job.job_id}") if is_much else "",
    )


def _kept(job: JobFacts, topic: TopicFacts) -> str:
    """The effect of correct settings on records, in words."""
    retention_ms = _retention_ms(topic)
    if retention_ms < 0:
        return "lose nothing"
    return f"remove only records older than {_span(retention_ms * 1000)}: see job {job.job_id}, retention"


def _retention_ms(topic: TopicFacts) -> int:
    """Retention time in milliseconds, or -1 for ever."""
    return int(topic.settings.get("retention.ms", "-1"))


def _needed(job: JobFacts) -> Needed | None:
    """The oldest record that a restart needs, or None if the log is empty or could not be read."""
    plan = job.plan
    if plan is None:
        return job.needed
    if plan.newest is not None:
        offset, timestamp_us = plan.newest.offset, plan.newest.timestamp_us
        return Needed(offset=offset, timestamp_us=timestamp_us, is_snapshot=True)
    if plan.record_count:
        return Needed(offset=plan.start, timestamp_us=plan.began_us, is_snapshot=False)
    return None


def _retention(job: JobFacts, topic: TopicFacts, advice: _Advice, now_us: int) -> Iterator[Finding]:
    name = f"job {job.job_id}, retention"
    needed, retention_ms = _needed(job), _retention_ms(topic)
    kept = "for ever" if retention_ms < 0 else _span(retention_ms * 1000)
    repair = (
        f"{advice.setting(topic, {'retention.ms': '-1'})}"
        f" ; then remove history with {advice.own('prune')}"
    )
    should_be = "-1, or much longer than from one snapshot to the next"
    if needed is None:
        if job.problem and retention_ms >= 0:
            yield Finding(
                grade=Grade.WARNING,
                subject=name,
                value=f"{kept}; the record that a restart needs could not be read",
                should_be=should_be,
                next_step=repair,
            )
        return
    what = "its newest snapshot" if needed.is_snapshot else "its first record"
    if not needed.is_there:
        yield Finding(
            grade=Grade.WRONG,
            subject=name,
            value=f"{kept}; a restart needs {what}, at offset {needed.offset:,}, and the log begins at offset "
            f"{job.start:,}: it was removed",
            should_be=should_be,
            next_step=f"put an older export on a new topic with {advice.own('adopt')}",
        )
        return
    what += f", at offset {needed.offset:,}" if needed.is_snapshot else ""
    restorable = job.plan.checkpoints if job.plan is not None else ()
    oldest = f"; its oldest restorable checkpoint is {restorable[0]}" if restorable else ""
    if retention_ms < 0:
        yield Finding(
            grade=Grade.FINE, subject=name, value=f"for ever; a restart needs {what}{oldest}"
        )
        return
    left_us = needed.timestamp_us + retention_ms * 1000 - now_us
    is_fine = left_us > _RETENTION_LEFT * retention_ms * 1000
    rest = (
        "it may be removed at any moment" if left_us <= 0 else f"it is kept {_span(left_us)} more"
    )
    yield Finding(
        grade=Grade.FINE if is_fine else Grade.WRONG if left_us <= 0 else Grade.WARNING,
        subject=name,
        value=f"{kept}; a restart needs {what}, which is {_span(now_us - needed.timestamp_us)} old: {rest}{oldest}",
        should_be="" if is_fine else should_be,
        next_step="" if is_fine else repair,
    )


# --- figures ----------------------------------------------------------------------------------------------------------
def _pace(topic: TopicFacts, job: JobFacts, now_us: int) -> str:
    """Bytes and records an hour, after a semicolon; empty if not known."""
    hours = _measured_hours(job, now_us)
    if hours is None:
        return ""
    rate = _per_hour(topic.size_bytes, job, now_us)
    size = "" if rate is None else f"{in_bytes(rate)} and "
    return f"; {size}{job.records / hours:,.0f} records an hour"


def _measured_hours(job: JobFacts, now_us: int) -> float | None:
    """Hours since the log's first record, or None if it is silent, or too short for a pace."""
    elapsed_us = now_us - job.began_us
    is_enough = job.records > 1 and elapsed_us > _HOUR_US / 60
    is_silent = now_us - job.last_us > _SILENT_US
    return elapsed_us / _HOUR_US if is_enough and not is_silent else None


def _per_hour(size_bytes: int, job: JobFacts, now_us: int) -> float | None:
    """Bytes of a job's log an hour, or None if there is no pace, or if the log's beginning was removed.

    Brokers free whole segments: a part of the bytes on disk may then be older than the log's first record.
    """
    hours = _measured_hours(job, now_us)
    return size_bytes / hours if hours is not None and job.start == 0 else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _span(us: float) -> str:
    hours = us / _HOUR_US
    if hours < 1:
        return f"{hours * 60:,.0f} min"
    return f"{hours:,.1f} h" if hours < _HOURS_SHOWN else f"{hours / 24:,.1f} days"
