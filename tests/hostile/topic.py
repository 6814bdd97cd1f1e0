"""A history with records in it that no driver has written, or that were changed on the way."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from coordlog.cli.commands.look.history import record_json
from coordlog.errors import OptionError, RecordError, RestoreError
from coordlog.log.interface import LogIdentity, LogWriter, StoredRecord
from coordlog.projections.inspection.explain import explain_split
from coordlog.projections.inspection.state_at import moment
from coordlog.projections.inspection.verify import verify
from coordlog.projections.job.state import JobState
from coordlog.projections.tables.audit import audit, audit_records
from coordlog.projections.tables.progress import ProgressFold
from coordlog.restore.rebuild import Rebuild, projection_of, rebuild
from coordlog.runtime.driver import JobStatus
from coordlog.schemas.codec import decode_record, encode_record
from coordlog.schemas.header import Header, encode_header
from coordlog.schemas.record import Kind, Record
from jobs.file_pipeline import Pipeline

from .damage import damaged

__all__ = ["HostileTopic"]

_SPACING: Final = 10
"""Between two offsets of the true history: another's records stand between them."""

_WHOLE_EVERY: Final = 100
"""Cases: the whole history is read by all that read it, which takes a while."""

_ATTRIBUTES: Final = (
    "attempts",
    "cause",
    "cluster_id",
    "endpoint",
    "fingerprint",
    "mode",
    "operators",
    "parallelism",
    "retained",
    "topic_id",
)

_SCHEMAS: Final = (
    '{"type":"record","name":"n","fields":[{"name":"x","type":["null","n"]}]}',
    '{"type":"array","items":"null"}',
    '{"type":"map","values":{"type":"array","items":{"type":"fixed","name":"z","size":0}}}',
    "[" * 100_000,
    '{"type":' * 3000 + '"int"' + "}" * 3000,
    '{"type":"record"}',
    '"nothing"',
    "null",
    "\x00",
)


class _Records:
    """A log that is a list."""

    identity = LogIdentity(cluster_id="c", topic_id="t", name="hostile")

    def __init__(self, records: Sequence[StoredRecord]) -> None:
        self._records = records

    def start_offset(self) -> int:
        return 0

    def high_watermark(self) -> int:
        return self._records[-1].offset + 1

    def read(
        self, from_offset: int, to_offset: int, *, stall_s: float | None = None
    ) -> Iterator[StoredRecord]:
        del stall_s
        for one in self._records:
            if from_offset <= one.offset < to_offset:
                yield one

    def writer(self) -> LogWriter:
        raise AssertionError("nothing is written")

    def close(self) -> None:
        pass


class HostileTopic:
    """One true history, of a job that has run; `case` puts something into it and reads it.

    Args:
        folder: For the job.
        chance: Decides everything.
    """

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._chance = chance
        pipeline = Pipeline(folder, is_batch=False, transform=lambda batch: batch)
        assert pipeline.drive().status is JobStatus.FINISHED
        self._chain = pipeline.chain
        self._a_split = pipeline.folder / "000.csv"
        self._projection = projection_of(self._chain)
        self._true = [_spaced(one) for one in pipeline.log.records]
        self._before: list[Rebuild] = []
        self._states: list[JobState] = []
        fold = self._fold()
        for one in self._true:
            self._before.append(_copied(fold))
            fold.feed(one)
            self._states.append(fold.state)
        self._ways: tuple[Callable[[int], list[StoredRecord]], ...] = (
            self._header,
            self._value,
            self._field,
            self._field,
            self._payload,
            self._payload,
            self._pointer,
            self._schema,
            self._stranger,
        )
        self.refused = self.void = self.harmless = 0
        self._count = 0

    def case(self) -> None:
        """One; raises what nobody may see."""
        self._count += 1
        at = self._chance.randrange(len(self._true))
        put = self._chance.choice(self._ways)(at)
        self._fold_on(at, put)
        if self._count % _WHOLE_EVERY == 0:
            self._read_whole([*self._true[:at], *put, *self._true[at + 1 :]])

    # --- reading --------------------------------------------------------------------------------------
    def _fold(self) -> Rebuild:
        operators = frozenset(link.operator_id for link in self._chain.links)
        return Rebuild(self._projection, self._chain.payload_types, operators)

    def _fold_on(self, at: int, put: Sequence[StoredRecord]) -> None:
        """From the place on: what is void changes nothing, what counts is refused by its offset or folds."""
        fold = _copied(self._before[at])
        try:
            for one in put:
                fold.feed(one)
        except RecordError as error:
            refused: RecordError | None = error
        else:
            refused = None
        if refused is not None:
            assert refused.offset in {one.offset for one in put} | _open(fold), refused
            assert refused.problem
            self.refused += 1
            return
        after = fold.state
        if len(put) > 1 and fold.void_count > self._before[at].void_count:
            # A stranger's record beside the true one.
            assert after == self._states[at]
            self.void += 1
        else:
            self.harmless += 1

    def _read_whole(self, records: Sequence[StoredRecord]) -> None:
        """By all that reads histories."""
        log = _Records(records)
        for read in (
            lambda: rebuild(log, self._chain, self._projection),
            lambda: audit(log.read(0, log.high_watermark())),
            lambda: verify(log.read(0, log.high_watermark())),
            lambda: self._told(records),
            lambda: moment(log.read(0, log.high_watermark())),
            lambda: explain_split(log.read(0, log.high_watermark()), str(self._a_split)),
            lambda: self._progress(records),
        ):
            try:
                read()
            except (OptionError, RecordError, RestoreError) as error:
                assert str(error)  # noqa: PT017, which errors come is what is asked

    def _told(self, records: Sequence[StoredRecord]) -> None:
        told = 0
        for one in audit_records(records):
            json.dumps(record_json(one), allow_nan=False)
            assert one.counts or one.why_not
            told += 1
        assert told == len(records), "each is told of"

    def _progress(self, records: Sequence[StoredRecord]) -> None:
        fold = ProgressFold()
        for one in audit_records(records):
            if one.counts:
                fold.apply(
                    decode_record(one.offset, one.value, self._header_of(one.offset, records))
                )

    @staticmethod
    def _header_of(offset: int, records: Sequence[StoredRecord]) -> bytes | None:
        return next(one.header_bytes for one in records if one.offset == offset)

    # --- what is put there ----------------------------------------------------------------------------
    def _header(self, at: int) -> list[StoredRecord]:
        one = self._true[at]
        header = damaged(self._chance, one.header_bytes or b"")
        return [one._replace(header_bytes=header)]

    def _value(self, at: int) -> list[StoredRecord]:
        one = self._true[at]
        return [one._replace(value=damaged(self._chance, one.value or b""))]

    def _stranger(self, at: int) -> list[StoredRecord]:
        """Beside the true one; with a header of ours by chance, of another place."""
        one, other = self._true[at], self._chance.choice(self._true)
        header = self._chance.choice((None, b"", self._chance.randbytes(34), other.header_bytes))
        if header == one.header_bytes:
            header = None
        value = self._chance.choice((None, b"", other.value, self._chance.randbytes(50)))
        stranger = StoredRecord(one.offset - 1 if at else 1, None, value, header, 0)
        return [stranger, one] if at else [one, stranger]

    def _pointer(self, at: int) -> list[StoredRecord]:
        one = self._true[at]
        assert one.header is not None
        bounds = (-(2**63), -2, 0, 1, one.offset, one.offset + 1, 2**63 - 1)
        header = one.header._replace(snapshot_offset=self._chance.choice(bounds))
        return [one._replace(header_bytes=encode_header(header))]

    def _field(self, at: int) -> list[StoredRecord]:
        """The envelope is well-formed and says something that it must not."""
        record = self._record(at)
        name = self._chance.choice([one.name for one in dataclasses.fields(Record)])
        changed: dict[str, Any] = {name: self._another(name, getattr(record, name))}
        return [self._stored(at, dataclasses.replace(record, **changed))]

    def _payload(self, at: int) -> list[StoredRecord]:
        record = self._record(at)
        payload = damaged(self._chance, record.payload or b"")
        return [self._stored(at, dataclasses.replace(record, payload=payload))]

    def _schema(self, at: int) -> list[StoredRecord]:
        """A type's schema, in the place of whatever stands there, and with or without what must be said of it."""
        record = dataclasses.replace(
            self._record(at),
            kind=Kind.TYPE_REGISTERED,
            payload_type=self._chance.choice(("evil@1", "coordlog.split@1", "")),
            payload=self._chance.choice(_SCHEMAS).encode(),
            attributes=self._chance.choice(({}, {"fingerprint": "00"}, {"fingerprint": ""})),
        )
        return [self._stored(at, record)]

    def _another(self, name: str, value: Any) -> object:  # noqa: ANN401, of any field
        chance = self._chance
        if name == "kind":
            return chance.choice(list(Kind))
        if name == "attributes":
            value = chance.choice(("", "x", "[{}]", "[1]", "{}", "null", "[" * 5000, "-1", "\x00"))
            return chance.choice(({}, {"": ""}, dict.fromkeys(_ATTRIBUTES, value)))
        if name == "payload":
            return chance.choice((None, b"", chance.randbytes(30)))
        if name == "turn_remaining":
            return chance.choice((0, 1, 2**31 - 1, -1))
        if name in ("driver_id", "job_id"):
            return chance.choice(("", "x" * 1000, "\x00"))
        if isinstance(value, str) or name in ("operator_id", "payload_type", "reason"):
            return chance.choice((None, "", "nobody", "evil@1", "source", "coordlog.split@1"))
        small = name in ("subtask", "attempt_number", "epoch")
        top = 2**31 - 1 if small else 2**63 - 1
        wild = (0, 1, -1, 7, top, -top - 1)
        is_needed = name in ("epoch", "timestamp_us")
        return chance.choice(wild if is_needed else (None, *wild))

    # --- records --------------------------------------------------------------------------------------
    def _record(self, at: int) -> Record:
        return self._record_of(self._true[at])

    @staticmethod
    def _record_of(stored: StoredRecord) -> Record:
        return stored.record()

    def _stored(self, at: int, record: Record) -> StoredRecord:
        """With the header that goes with it, or with the true one's."""
        true = self._true[at]
        assert true.header is not None
        header: Header = true.header
        if self._chance.random() < 0.5:
            header = header._replace(
                epoch=record.epoch,
                sequence=-1 if record.sequence is None else record.sequence,
                turn_remaining=record.turn_remaining,
                is_epoch_started=record.kind is Kind.EPOCH_STARTED,
            )
        return true._replace(value=encode_record(record), header_bytes=encode_header(header))


def _spaced(one: StoredRecord) -> StoredRecord:
    assert one.header is not None
    pointer = one.header.snapshot_offset
    header = one.header._replace(snapshot_offset=pointer * _SPACING if pointer > 0 else pointer)
    return one._replace(offset=one.offset * _SPACING, header_bytes=encode_header(header))


def _copied(fold: Rebuild) -> Rebuild:
    made = copy.copy(fold)
    made._turns = copy.copy(fold._turns)
    made._turns.waiting = list(fold._turns.waiting)
    made._undeclared = dict(fold._undeclared)
    return made


def _open(fold: Rebuild) -> set[int]:
    """The offsets of the turn that was under way, and of the types that nobody declares."""
    return {one.entry.offset for one in fold._turns.waiting} | set(fold._undeclared.values())
