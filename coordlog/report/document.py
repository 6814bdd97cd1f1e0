"""The document of a report: facts of a job's history, each with its offset.

A reader who moves through time shows the facts with an offset up to X, and folds nothing. All folding is done
here, with the folds of `projections.tables`.

The document is one JSON object. A table is an object with a list for each column, all of the same length. These rules
hold for all tables:

* `off`, and each column that ends in `_off`, is the offset of a record; null: there is no such record (so far). A
  fact holds at offset X if `off` <= X. An end holds at X if `end_off` is not null and `end_off` <= X.
* `t`, and each column that ends in `_t`, is a time in microseconds since `t0`; null if unknown, as before a prune.
* Columns in `*` are numbers of texts: indexes into `texts`; null for none.
* Checkpoint -1 is the start of the job, or the end of a batch job.
* All texts are untrusted.

Values:

`format`: 1
`job`, `where`, `made`, `made_by`: id of the job; place of its log; time of the document (ISO 8601); version of
    coordlog
`argument`: JOB in commands: the id, or the path of a file, quoted for a shell
`mode`, `parallelism`: of the last epoch: `streaming` or `batch`; a count
`t0`: time of the first record; microseconds since 1970, UTC
`first_off`, `last_off`: offsets of the first and the last record of the log
`last_t`, `moment_t`: time of the last record that counts; moment of the last verdict
`is_partial`: whether the log was pruned: earlier facts are missing
`counts`: `records` that count, `void` ones
`moments`: offsets at which no turn is open: the state as of any other one never was in force. The first, then the
    difference of each from the one before
`interval_s`: seconds between periodic checkpoints, or null
`texts`: texts by number
`kinds`, `validity`: names of record kinds and verdicts on records, by the numbers in `records`

Tables:

`clock`: the time at an offset, of at most 2,000 records: `off`, `t`
`gaps`: idle times, which a time axis collapses: `t`, `end_t`
`verdicts`: changes of the verdict: `off`, `t`, `state*`, `since_t`, `reason*`. A row holds until the next one. A
    change between two records has the offset of the first one, and a later `t`
`waiting`: what the job waits for at `moment_t`: `kind*`, `since_t`, `cp`, `subtasks` (a list), `operators` (a
    list), `sequence`
`epochs`: `epoch`, `off`, `t`, `driver*`, `host*`, `pid`, `mode*`, `parallelism`, `version*`, `restored_by*`,
    `restored_from`, `end_off`, `end_t` (of its last record), `end*` (replaced, finished, failed, stopped; null: open)
`late`: records that do not count, of drivers that were fenced: `off`, `t`, `epoch`, `kind*`, `why*`, `sub`, `att`
`attempts`: by subtask and number: `sub`, `att`, `epoch`, `off`, `t`, `host*`, `pid`, `from_cp`, `end_off`, `end_t`,
    `end*` (completed, failed, fenced, stopped; null: running), `reason*`
`splits`: by operator and id: `op*`, `id`, `off`, `t` (discovered), `bytes` (to read), `skipped_off`, `skipped_why*`,
    `withdrawn_off`
`holds`: an attempt with a split: `split`, `attempt` (row numbers; null: a task of a query), `sub`, `att`, `off`,
    `t`, `read_t` (begin of the reading, at the earliest), `end_off`, `end_t` (end of the split), `is_skipped`,
    `rows`, `thrown_off`, `cp`, `cp_off`, `committed_off`
`lost`: work thrown away: `off`, `split`, `hold`, `cp` (of the reset), `is_whole`, `was_finished`, `rows`,
    `reason*`, `reread` (row of the hold that reads the split again)
`checkpoints`: by id: `cp`, `epoch`, `off`, `t`, `expected` (number of subtasks), `cut_off`, `cut_t` (the last cut),
    `end_off`, `end_t`, `end*` (completed, aborted), `abandoned_off`, `bytes`, `reason*`, `missing*`
`cuts`: `checkpoint` (row), `op*`, `off`, `t`, `bytes`
`acks`: `checkpoint` (row), `sub`, `att`, `barrier_off`, `barrier_t`, `off`, `t`, `bytes`
`failures`: `off`, `t`, `epoch`, `scope*`, `op*`, `sub`, `att`, `reason*`, `cause*` (the reason without numbers),
    `with_job`, `reset_off`, `reset_t`, `reset_cp`, `restarted_off`, `restarted_t`
`resets`: `off`, `t`, `epoch`, `sub` (null: the whole job), `cp`, `words*`
`commits`: `op*`, `cp`, `epoch`, `off`, `t`, `tries`, `end_off`, `end_t`, `end_epoch`, `rows`, `files`, `bytes`,
    `reason*`, `sequence`
`files`: output files that an intent names: `commit` (row), `name`, `rows`, `bytes`, `sub`, `att`
`events`: `off`, `t`, `end_off`, `end_t`, `sub`, `ms`, `status*`: the slowest of each part of the time, if there are
    many
`latency`: parts of the time: `off`, `t` (of the last record of the part), `count`, `p50`, `p99`, `max` (event to
    ack, ms), `unacked`, `held` (at the end of the part)
`appends`: as `latency`, of record to log: `off`, `t`, `count`, `p50`, `p99`, `max` (ms); empty if the log does not
    have its own times

The second object, `records`, is needed only for details, and stored apart: `off`, `t`, `seq`, `kind`, `valid` (0: it
counts), `epoch`, `op*`, `sub`, `att`, `cp`, `cause` (row), `words` (a sentence, as in `coordlog explain`), and
`of_split`: for each row of `splits` the rows of its records.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from coordlog.projections.inspection.explain import words_of
from coordlog.projections.inspection.verdict import Thresholds
from coordlog.projections.job.launch import LaunchInfo
from coordlog.projections.tables.audit import Applying, AuditRecord, state_at_beginning
from coordlog.projections.tables.payload_json import Json
from coordlog.report.checkpoints import CheckpointFacts
from coordlog.report.columns import Table, Texts
from coordlog.report.curves import CurveFacts
from coordlog.report.lanes import LaneFacts, SizeOf
from coordlog.report.outcomes import OutcomeFacts
from coordlog.report.places import Places
from coordlog.report.time_tables import time_tables
from coordlog.report.verdicts import VerdictFacts
from coordlog.schemas.record import Kind
from coordlog.schemas.validity import Verdict

__all__ = ["Document", "DocumentFold", "document"]

_KINDS = {kind: number for number, kind in enumerate(Kind)}
_FOREIGN = len(_KINDS)
"""Number of the kind of records that this version cannot read."""

_LATE = frozenset({Verdict.VOID_EPOCH, Verdict.VOID_TAKE_OVER, Verdict.VOID_TURN})
"""Verdicts on records of drivers that were fenced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A report's facts: both objects are for `json.dumps`."""

    facts: dict[str, Json]
    records: dict[str, Json]


def document(
    entries: Iterable[AuditRecord],
    *,
    job: str,
    where: str,
    made_us: int,
    made_by: str,
    moment_us: int | None = None,
    argument: str | None = None,
    thresholds: Thresholds | None = None,
    size_of: SizeOf = lambda _content: None,
) -> Document:
    """The document of a log.

    Args:
        entries: All records of the log, void ones included, in log order.
        job: Id of the job.
        where: Place of the log, for people.
        made_us: Time of the document; microseconds since 1970, UTC.
        made_by: Version of coordlog.
        moment_us: Moment of the last verdict; None: the time of the last record, for a log without a driver.
        argument: JOB in the commands that the page prints, quoted for a shell; None: the id of the job.
        thresholds: Waits from which the job counts as slow and stuck.
        size_of: Bytes to read of the content of a file source's split, or None if unknown.

    Raises:
        RecordError: A record that counts cannot be read or applied.
    """
    fold = DocumentFold(thresholds, size_of)
    for entry in entries:
        fold.apply(entry)
    return fold.document(
        job=job,
        where=where,
        made_us=made_us,
        made_by=made_by,
        moment_us=moment_us,
        argument=argument,
    )


class DocumentFold:
    """The fold behind `document`: `apply` takes each record of a log, in log order; `document` may be called once."""

    def __init__(
        self, thresholds: Thresholds | None = None, size_of: SizeOf = lambda _content: None
    ) -> None:
        self._places, self._texts = Places(), Texts()
        self._lanes = LaneFacts(self._places, self._texts, size_of)
        self._checkpoints = CheckpointFacts(self._places, self._texts)
        self._outcomes = OutcomeFacts(self._places, self._texts)
        self._curves = CurveFacts(self._places, self._texts)
        self._verdicts = VerdictFacts(self._places, self._texts, thresholds or Thresholds())
        self._records = Table(
            "off", "t", "seq", "kind", "valid", "epoch", "op", "sub", "att", "cp", "cause", "words"
        )
        self._row_of: dict[int, int] = {}
        """Row of each record that counts, by sequence."""
        self._first = self._last = -1
        self._last_us = 0
        self._counts = [0, 0]
        self._moments: list[Json] = []
        self._moment = 0
        self._is_in_turn = False
        self._is_partial = False
        self._launch = LaunchInfo({})
        self._validity: dict[str, int] = {"": 0}

    @property
    def is_over(self) -> bool:
        """Whether the verdict stays the same without another record."""
        return self._verdicts.is_over

    def apply(self, entry: AuditRecord) -> None:
        """Apply one record.

        Raises:
            RecordError: It counts, and cannot be read or applied.
        """
        if self._first < 0:
            self._first = entry.offset
        self._last = entry.offset
        record = entry.known() if entry.counts else None
        if record is None:
            self._counts[1] += 1
            self._void(entry)
            self._pass(entry.offset)
            return
        self._counts[0] += 1
        self._last_us = record.timestamp_us
        self._places.add(record.sequence, entry.offset, record.timestamp_us)
        state = state_at_beginning(entry)
        if entry.beginning is not None and entry.beginning.snapshot is not None:
            self._is_partial = True
        if state is not None:
            self._launch = state.launch_info
            for facts in self._all():
                facts.begin(state)
        if record.kind is Kind.EPOCH_STARTED and not LaunchInfo(record.attributes).is_command:
            self._launch = LaunchInfo(record.attributes)
        if record.sequence is not None:
            self._row_of[record.sequence] = len(self._records)
        with Applying(entry.offset, record):
            for facts in self._all():
                facts.apply(entry, record, len(self._records))
            self._add(entry, 0)
        self._is_in_turn = record.turn_remaining > 0
        self._pass(entry.offset)

    def _pass(self, offset: int) -> None:
        if not self._is_in_turn:
            self._moments.append(offset - self._moment)
            self._moment = offset

    def _all(
        self,
    ) -> tuple[LaneFacts, CheckpointFacts, OutcomeFacts, CurveFacts, VerdictFacts]:
        return self._lanes, self._checkpoints, self._outcomes, self._curves, self._verdicts

    def _void(self, entry: AuditRecord) -> None:
        why = entry.why_not or ""
        if entry.verdict in _LATE and entry.record is not None:
            self._lanes.late(entry, entry.record, why)
        self._add(entry, self._validity.setdefault(why, len(self._validity)))

    def _add(self, entry: AuditRecord, valid: int) -> None:
        record = entry.record
        if record is None:
            us = entry.timestamp_ms * 1000
            words = entry.problem or "it cannot be read"
            self._records.add(
                entry.offset, self._places.since(us), None, _FOREIGN, valid, *[None] * 6, words
            )
            return
        cause = None if record.cause is None else self._row_of.get(record.cause)
        self._records.add(
            entry.offset,
            self._places.since(record.timestamp_us),
            record.sequence,
            _KINDS[record.kind],
            valid,
            record.epoch,
            self._texts.number(record.operator_id),
            record.subtask,
            record.attempt_number,
            record.checkpoint_id,
            cause,
            words_of(record, entry.fields),
        )

    def document(
        self,
        *,
        job: str,
        where: str,
        made_us: int,
        made_by: str,
        moment_us: int | None,
        argument: str | None = None,
        driver_answers: bool | None = None,
    ) -> Document:
        """The document of all records so far.

        Args:
            job: As in the function `document`; so are the next ones.
            where: As there.
            made_us: As there.
            made_by: As there.
            moment_us: As there.
            argument: As there.
            driver_answers: Whether the driver answers, if the caller has checked.
        """
        moment_us = self._last_us if moment_us is None else max(moment_us, self._last_us)
        tables = dict(self._tables(moment_us, driver_answers=driver_answers))
        records = self._records.json()
        records["of_split"] = [*self._lanes.records_of_splits()]
        attributes = self._launch.attributes
        parallelism = attributes.get("parallelism", "")
        facts: dict[str, Json] = {
            "format": 1,
            "job": job,
            "argument": job if argument is None else argument,
            "where": where,
            "made": _iso(made_us),
            "made_by": made_by,
            "mode": attributes.get("mode"),
            "parallelism": int(parallelism) if parallelism.isdecimal() else None,
            "t0": self._places.t0_us,
            "first_off": self._first,
            "last_off": self._last,
            "last_t": self._places.since(self._last_us),
            "moment_t": self._places.since(moment_us),
            "is_partial": self._is_partial,
            "moments": self._moments,
            "counts": {"records": self._counts[0], "void": self._counts[1]},
            "interval_s": self._launch.checkpoint_interval_s,
            "kinds": [*[kind.value for kind in Kind], "UNREADABLE"],
            "validity": list(self._validity),
            **{name: table.json() for name, table in tables.items()},
        }
        facts["texts"] = self._texts.json()  # last: the tables above have added theirs
        return Document(facts=facts, records=records)

    def _tables(
        self, moment_us: int, *, driver_answers: bool | None
    ) -> Iterator[tuple[str, Table]]:
        yield from time_tables(self._records)
        yield from self._verdicts.tables(moment_us, driver_answers=driver_answers)
        yield from self._lanes.tables()
        yield from self._checkpoints.tables()
        yield from self._outcomes.tables()
        yield from self._curves.tables()


def _iso(us: int) -> str:
    when = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")
