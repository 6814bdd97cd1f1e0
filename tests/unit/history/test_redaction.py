"""A redacted history: as long, folds to the same places, and has none of the contents."""

from __future__ import annotations

import json
import socket
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import fastavro
import pytest
from click.testing import CliRunner

from coordlog.cli.main import main
from coordlog.export import write_exported
from coordlog.log.file import ExportedLog
from coordlog.log.interface import StoredRecord
from coordlog.log.memory import MemoryLog
from coordlog.log.payload_store import PayloadStore
from coordlog.messages import DeliverEvent, Fail
from coordlog.offline.adopt import copy_history
from coordlog.offline.epoch import begin_epoch, read_records
from coordlog.offline.fork import find_fork_point, fork_to
from coordlog.payloads.offload import PayloadOptions
from coordlog.projections.inspection.redact import Redaction
from coordlog.projections.inspection.state_at import moment
from coordlog.projections.inspection.verify import verify
from coordlog.projections.job.state import MARK
from coordlog.projections.snapshot.codec import SNAPSHOT_TYPE, snapshot_in
from coordlog.projections.tables.audit import audit
from coordlog.projections.tables.splits import SplitPlace, SplitRow
from coordlog.restore import snapshots
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import (
    EventSkipped,
    JobSnapshot,
    SkipEvent,
    StopRequested,
    TakeSavepoint,
)
from coordlog.schemas.codec import Avro, encode_record
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.payload_address import address_in, addresses_among
from coordlog.schemas.record import Kind, Record
from coordlog.testing.driven_job import HandDrivenJob
from driven_history import driven_log
from fakes.kernel_fakes import (
    HANDLED,
    Down,
    FakeSink,
    Intent,
    Noting,
    NotingProvider,
    Up,
    chain_of,
    inside,
)
from histories.hand_history import HandHistory, skipping_history, streaming_history
from histories.one_log import OneLog
from histories.payload_samples import Colour, Inner, Outer
from histories.sweep_runs import RUNS

KEY = b"of this test"
HOST = "worker-of-mine"


def redacted(stored: Sequence[StoredRecord]) -> tuple[list[StoredRecord], Redaction]:
    redaction, made = Redaction(KEY), []
    for one in stored:
        key, value, header = redaction.record(one)
        made.append(StoredRecord(one.offset, key, value, header, one.timestamp_ms))
    return made, redaction


def places(splits: Sequence[SplitRow]) -> Counter[SplitPlace]:
    """Without their order, which is by id."""
    return Counter(one.place for one in splits)


def is_snapshot(one: StoredRecord) -> bool:
    return one.header is not None and one.record().kind is Kind.SNAPSHOT


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_redacted_log_folds_to_the_redacted_state_at_each_offset(
    name: str,
) -> None:
    stored = RUNS[name].recorded().job.log.records
    made, redaction = redacted(stored)

    assert verify(made).faults == []
    for at in range(0, len(stored), 7):
        was, now = moment(stored, offset=at), moment(made, offset=at)
        assert now.state == redaction.state(was.state)
        assert places(now.splits) == places(was.splits)
    for before, after in zip(stored, made, strict=True):
        assert after.header_bytes == before.header_bytes
        if not is_snapshot(before):
            assert len(after.value or b"") == len(before.value or b"")


@pytest.mark.parametrize("history", [streaming_history(), skipping_history()])
def test_what_cannot_be_read_and_what_does_not_count_is_redacted_too(history: HandHistory) -> None:
    log = MemoryLog()
    log.store(*history.records)
    made, _ = redacted(log.records)

    assert [len(one.value or b"") for one in made] == [len(one.value or b"") for one in log.records]
    assert not any(b"garbage" in (one.value or b"") for one in made)
    was, now = audit(log.records), audit(made)
    assert (now.record_count, now.void_count) == (was.record_count, was.void_count)
    assert places(now.splits) == places(was.splits)
    assert {one.split_id for one in now.splits}.isdisjoint({one.split_id for one in was.splits})


SAMPLE = Outer(
    inner=Inner(name="a name", size=70_000),
    many=[Inner(name="x"), Inner(name="sécret", size=-3)],
    by_name={"key of a map": 12_345_678},
    colour=Colour.BLUE,
    maybe=Inner(name="x", size=5),
    content=b"\x01\x02bytes",
    share=2.75,
    is_on=True,
)


def test_a_users_payload_keeps_its_shape_and_length_and_nothing_else() -> None:
    declared = payload_type_of(SAMPLE)
    plain = Record(
        epoch=0,
        driver_id="d",
        sequence=0,
        kind=Kind.TYPE_REGISTERED,
        timestamp_us=1,
        job_id="j",
        payload_type=declared.key,
        payload=declared.schema_json.encode(),
        attributes={"fingerprint": f"{declared.fingerprint:016x}"},
    )
    event = replace(
        plain,
        sequence=1,
        kind=Kind.EVENT_TO_SUBTASK,
        payload=declared.encode(SAMPLE),
        reason="because of /data/in.csv",
        attributes={
            "host": "worker-7",
            "split_id": "12",
            "rows_with": "12",
            "held_by": "3,4",
            "n": "5",
        },
    )
    redaction = Redaction(KEY)
    redaction._redacted(plain)
    made = redaction._redacted(event)

    assert len(encode_record(made)) == len(encode_record(event))
    value = declared.decode(made.payload or b"")
    assert isinstance(value, Outer)
    assert (value.inner.name, value.inner.size) != ("a name", 70_000)
    assert len(value.inner.name) == 6
    assert value.many[0].name == value.maybe.name != "x"  # type: ignore[union-attr]
    assert len(value.many[1].name) == len("sécret".encode())
    assert value.colour is Colour.RED
    assert (value.share, value.is_on, value.content) == (0.0, False, bytes(7))
    assert "12345678" not in str(value)
    assert made.reason is not None
    assert "data" not in made.reason
    assert made.attributes["held_by"] == "3,4"
    assert made.attributes["n"] == "5"
    assert made.attributes["host"] != "worker-7"
    assert made.attributes["split_id"] == made.attributes["rows_with"] != "12"


@pytest.mark.parametrize(("by", "is_kept"), [("SIGTERM", True), ("stop", True), ("4711", False)])
def test_a_stop_keeps_the_names_of_signals_and_not_the_words_of_its_caller(
    by: str,
    is_kept: bool,  # noqa: FBT001, a parameter
) -> None:
    stop = payload_type_of(StopRequested)
    redaction = Redaction(KEY)
    redaction._learn(stop.key, stop.schema_json)
    asked = StopRequested(by=by, with_checkpoint=True, is_at_once=False)

    made = redaction._payload(stop.key, stop.encode(asked))
    assert made is not None
    redacted = stop.decode(made)
    assert isinstance(redacted, StopRequested)
    assert (redacted.by == by, len(redacted.by)) == (is_kept, len(by))
    assert redacted.with_checkpoint


@pytest.mark.parametrize("name", ["host", "path", "payload_store", "endpoint", "location"])
def test_a_host_or_path_that_looks_like_a_number_is_a_text(name: str) -> None:
    redacted = Redaction(KEY)._attributes({name: "4711", "parallelism": "4711", "skipped": "true"})

    assert redacted[name] != "4711"
    assert (redacted["parallelism"], redacted["skipped"]) == ("4711", "true")


INNER = {
    "type": "record",
    "name": "Inner",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "either", "type": ["null", "string", {"type": "array", "items": "int"}]},
    ],
}


@pytest.mark.parametrize(
    "hostile", [{"type": "array", "items": "null"}, ["null", "T", {"type": "array", "items": "T"}]]
)
def test_a_schema_that_makes_much_of_few_bytes_is_not_followed(hostile: object) -> None:
    schema = {"type": "record", "name": "T", "fields": [{"name": "x", "type": hostile}]}
    redaction = Redaction(KEY)
    redaction._learn("t@1", json.dumps(schema))
    # 1,000 nulls; followed, 2**62 of them would take for ever
    data = b"\xd0\x0f\x00"

    assert redaction._payload("t@1", data) == bytes(3)
    assert redaction._schemas["t@1"] is None


def test_payloads_of_times_and_of_a_type_that_nobody_registered() -> None:
    schema = {
        "type": "record",
        "name": "T",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "either", "type": ["null", INNER, "string"]},
        ],
    }
    redaction, avro = Redaction(KEY), Avro(json.dumps(schema))
    redaction._learn("t@1", json.dumps(schema))
    inner = {"at": 1_700_000_000_000, "either": [1, 2]}
    data = avro.encode({"at": 1_700_000_000_001, "either": inner})  # type: ignore[dict-item]

    made = redaction._payload("t@1", data)
    assert made is not None
    assert len(made) == len(data)
    assert avro.decode(made)["either"] == {"at": avro.decode(made)["at"], "either": [0, 0]}
    assert redaction._payload("unknown@1", data) == bytes(len(data))
    assert redaction._payload("t@1", data[:-1]) == bytes(len(data) - 1)
    assert redaction._payload(None, None) is None


@pytest.mark.parametrize(("was", "now"), [(0, 0), (63, 0), (64, 64), (99, 64)])
def test_an_enumeration_is_redacted_to_its_first_symbol_of_equal_length(was: int, now: int) -> None:
    symbols = [f"S{n}" for n in range(100)]
    field = {"name": "mood", "type": {"type": "enum", "name": "Mood", "symbols": symbols}}
    schema = json.dumps({"type": "record", "name": "T", "fields": [field]})
    redaction, avro = Redaction(KEY), Avro(schema)
    data = avro.encode({"mood": f"S{was}"})
    for key, expected in (("shop.mood@1", now), ("coordlog.mood@1", was)):
        redaction._learn(key, schema)

        made = redaction._payload(key, data)

        assert made is not None
        assert len(made) == len(data)
        assert avro.decode(made) == {"mood": f"S{expected}"}


def test_texts_stay_apart_however_short() -> None:
    redaction = Redaction(KEY)
    texts = [chr(c) for c in range(65, 91)] + [f"{n:02}" for n in range(100)]

    assert len({redaction.text(one) for one in texts}) == len(texts)
    assert redaction.text("A") == redaction.text("A")
    assert Redaction(b"other").text("x" * 30) != redaction.text("x" * 30)


@pytest.fixture
def with_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HandDrivenJob:
    """A job whose event, states and snapshots stand in a payload store."""
    monkeypatch.setattr(snapshots, "SNAPSHOT_BYTES_PER_RECORD", 1_000_000)
    chance = Random(3)
    payloads = PayloadOptions(
        store=PayloadStore(str(tmp_path / "payloads"), "job"), limit_bytes=2_000
    )
    provider = NotingProvider()
    job = HandDrivenJob(
        chain_of(provider), payloads=payloads, options=RuntimeOptions(snapshot_every=10)
    )
    (attempt,) = job.register_all()
    job.trigger()
    attempt.ack_checkpoint(1, states={"source": b"secret" * 500})
    inside(attempt, provider, lambda c: c.gateways[0].send_event(Down(n=1, text="secret" * 500)))
    for n in range(20):
        attempt.send("source", Down(n=n, text=chance.randbytes(500).hex()))
    attempt.send("source", Down(n=99, text="secret" * 500))
    job.crash()
    return job


def test_what_is_in_the_payload_store_is_said_to_be_absent_and_is_no_fault(
    with_stored: HandDrivenJob, tmp_path: Path
) -> None:
    log = with_stored.log
    stored = list(log.read(0, log.high_watermark()))
    made, redaction = redacted(stored)
    was = {one for each in stored for one in addresses_among(each.value or b"")}
    now = {one for each in made for one in addresses_among(each.value or b"")}

    for before, after in zip(stored, made, strict=True):
        if not is_snapshot(before) or b"coordlog-payload" in (before.value or b""):
            assert len(after.value or b"") == len(before.value or b"")
    assert {one.sha256 for one in was}.isdisjoint({one.sha256 for one in now})
    assert Counter((one.owner, one.length) for one in was) == Counter(
        (one.owner, one.length) for one in now
    )
    held = [snapshot_in_place(one) for one in stored if is_snapshot(one)]
    assert any(address_in(one.state) for one in held)
    found = verify(made, open_payload=None)
    assert found.faults == []
    assert (found.absent_count, found.stored_count) == (len(was), 0)
    assert moment(made).state == redaction.state(moment(stored).state)

    path = tmp_path / "out.avro"
    place = OneLog(log)
    done = CliRunner().invoke(
        main, ["export", "job", str(path), "--redact"], obj=lambda _servers: place
    )
    assert done.exit_code == 0, done.output
    said = CliRunner().invoke(main, ["verify", str(path)])
    assert said.exit_code == 0, said.output
    assert f"{len(was)} stored payloads are not in this redacted export" in said.stdout
    assert "all of it holds" in said.stdout


def snapshot_in_place(one: StoredRecord) -> JobSnapshot:
    record = one.record()
    value = SNAPSHOT_TYPE.decode(record.payload or b"")
    assert isinstance(value, JobSnapshot)
    return value


def test_an_adoption_that_holds_holds_when_it_is_redacted() -> None:
    log = MemoryLog("adopted")
    copy_history(RUNS[next(iter(RUNS))].recorded().job.log, log, "job")
    was = read_records(log).state.launch
    attributes = {"cluster_id": "memory", "topic_id": log.identity.topic_id}
    attributes |= {f"adopted_{one}": was[one] for one in attributes}
    begin_epoch(log, read_records(log), lambda _state: [], command="adopt", attributes=attributes)
    assert verify(log.records).faults == []

    made, _ = redacted(log.records)

    assert verify(made).faults == []


@pytest.mark.slow
def test_branches_and_where_a_job_has_begun_stay_what_they_were() -> None:
    """Destinations of checkpoints that are kept, and of the job that another one has begun from, are state too."""

    def started(place: str, log: MemoryLog | None, job_id: str, number: int | None) -> MemoryLog:
        provider = NotingProvider(sink=FakeSink())
        provider.destination = place
        job = HandDrivenJob(
            chain_of(provider),
            log=log,
            job_id=job_id,
            from_checkpoint=number,
            options=RuntimeOptions(snapshot_every=3),
        )
        attempt = job.register(0)
        checkpoint_id: int | None = None
        for _ in range(3):
            checkpoint_id = job.trigger()
            assert checkpoint_id is not None
            attempt.ack_checkpoint(checkpoint_id, committables=[("source", b"rows")])
        job.ask("", TakeSavepoint(name=f"kept-at-{checkpoint_id}")).answer()
        job.crash()
        return job.log

    old = started("/data/secret/a", None, "job", None)
    log = MemoryLog("trial")
    fork_to(old, log, find_fork_point(old, "job", "2"), job_id="trial")
    started("/data/secret/b", log, "trial", None)
    started("/data/secret/c", log, "trial", 4)
    was = read_records(log).state
    assert (len(was.begun_places), len(was.abandoned), len(was.savepoints)) == (1, 1, 2)
    made, redaction = redacted(log.records)

    assert verify(log.records).faults == []
    assert verify(made).faults == []
    assert sum(is_snapshot(one) for one in made) > 3
    for at in range(0, len(made), 5):
        now = moment(made, offset=at).state
        assert now == redaction.state(moment(log.records, offset=at).state)
    assert not any(b"secret" in (one.value or b"") for one in made if not is_snapshot(one))


@pytest.mark.parametrize("is_skipped", [False, True])
def test_an_event_that_attempts_failed_at_is_recognised_after_redaction(
    *, is_skipped: bool
) -> None:
    provider = NotingProvider()
    event = Down(n=1, text="secret")
    provider.on["ready"] = lambda c, *_: c.gateways[0].send_event(event)
    job = HandDrivenJob(chain_of(provider), options=RuntimeOptions(snapshot_every=3))
    failing = job.register(0)
    (sent,) = failing.got(DeliverEvent)
    fail = Fail(operator_id="source", callback="event", reason="x", event_id=sent.event_id)
    job.run(lambda: job.runtime.arrived(failing.connection_id, fail))
    (poison,) = job.runtime.state.poison
    if is_skipped:
        digest = poison.rpartition("/")[2]
        skipped = EventSkipped(
            event_sequence=0, is_down=True, event_type=sent.payload_type, digest=digest
        )
        job.ask("", SkipEvent(operator_id="source", subtask=0, skipped=skipped, why="it kills"))
    attempt = job.register(0)
    if not is_skipped:
        attempt.ack("source", attempt.got(DeliverEvent)[0].event_id)
    for n in range(6):
        attempt.send("source", Up(n=n))
    job.crash()
    assert not job.runtime.state.poison
    assert verify(job.log.records).faults == []

    made, redaction = redacted(job.log.records)

    assert sum(map(is_snapshot, made)) > 2
    assert verify(made).faults == []
    assert moment(made).state == redaction.state(moment(job.log.records).state)
    named = poison.rpartition("/")[2].encode()
    assert any(named in (one.value or b"") for one in job.log.records)
    assert not any(named in (one.value or b"") for one in made)


def test_where_operators_write_and_their_options_are_taken_out() -> None:
    said = [
        {
            "id": "sink",
            "version": 2,
            "coordinated": True,
            "keeps_state": False,
            "destination": "/data/secretfolder/out",
            "options": {"secretname": "secretvalue"},
        }
    ]
    text = json.dumps(said, sort_keys=True)
    made = Redaction(KEY)._attributes({"operators": text})["operators"]

    assert "secret" not in made
    assert len(made) == len(text)
    (one,) = json.loads(made)
    assert (one["id"], one["version"]) == ("sink", 2)
    assert one["destination"] == Redaction(KEY).text("/data/secretfolder/out")


class _OneLog:
    where = "memory"

    def __init__(self, log: MemoryLog) -> None:
        self.log = log

    def jobs(self) -> tuple[str, ...]:
        return ("driven",)

    def open(self, job_id: str) -> MemoryLog:
        assert job_id == "driven"
        return self.log

    def delete(self, job_id: str) -> None:
        raise AssertionError(job_id)


@pytest.mark.slow
def test_the_exported_file_has_no_bytes_of_paths_rows_reasons_or_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    secret = tmp_path / "secretfolder"
    secret.mkdir()
    log = driven_log(secret, "driven", is_batch=False)
    path = tmp_path / "out.avro"
    done = CliRunner().invoke(
        main, ["export", "driven", str(path), "--redact"], obj=lambda _servers: _OneLog(log)
    )
    assert done.exit_code == 0, done.output

    data = path.read_bytes()
    for one in ExportedLog(path).read(0, log.high_watermark()):
        if is_snapshot(one):
            held = snapshot_in(one.record())
            data += zlib.decompress(held.state)
    plain = b"".join(one.value or b"" for one in log.records)
    for word in (b"secretfolder", b".csv", b"killed by the test", b".parquet", HOST.encode()):
        assert word in plain, word
        assert word not in data, word
    with path.open("rb") as file:
        metadata = fastavro.reader(file).metadata
    assert metadata["coordlog.redacted"] == "true"
    assert metadata["coordlog.name"] == "driven.log"
    for looked in (("verify",), ("state",), ("splits",), ("attempts",), ("history",)):
        seen = CliRunner().invoke(main, [*looked, str(path)])
        assert seen.exit_code == 0, seen.output
    assert ExportedLog(path).is_redacted
    again = tmp_path / "again.avro"
    write_exported(ExportedLog(path), "driven", again)
    assert ExportedLog(again).is_redacted
    was, now = moment(log.records), moment(ExportedLog(path).read(0, log.high_watermark()))
    assert sorted(now.state.completed) == sorted(was.state.completed)


@pytest.mark.clause("E8")
def test_marks_of_ends_and_former_operators_stay_what_they_were() -> None:
    options = RuntimeOptions(snapshot_every=3)
    log: MemoryLog | None = None
    for parallelism, ended, place in ((4, 0, "a"), (4, 2, "b"), (2, None, "c")):
        provider = NotingProvider(projection=HANDLED)
        provider.destination = f"/data/secret/{place}"
        chain = chain_of(provider)
        chain = replace(chain, source=replace(chain.source, merge_states=b"".join))
        job = HandDrivenJob(chain, parallelism=parallelism, log=log, options=options)
        log, attempts = job.log, {attempt.subtask: attempt for attempt in job.register_all()}
        if ended is not None:
            attempts.pop(ended).complete(states={"source": b"s"})
        number = job.trigger()
        assert number is not None
        for attempt in attempts.values():
            attempt.ack_checkpoint(number, states={"source": b"s"})
        job.crash()
    assert log is not None
    marks = {name for name in read_records(log).state.launch if name.startswith(MARK)}
    assert {name.rpartition(".")[0] for name in marks} >= {
        "fold.written_at",
        "fold.operators_below",
    }
    made, redaction = redacted(log.records)

    assert verify(log.records).faults == []
    assert verify(made).faults == []
    assert moment(made).state == redaction.state(moment(log.records).state)


def test_an_operator_that_is_away_keeps_its_name_and_not_its_place() -> None:
    gone = NotingProvider("sink", projection=HANDLED)
    gone.destination = "/data/secret"
    job = HandDrivenJob(chain_of(NotingProvider(), gone))
    job.crash()
    options = RuntimeOptions(snapshot_every=1)
    job = HandDrivenJob(chain_of(NotingProvider()), log=job.log, options=options)
    job.register(0)
    assert "/data/secret" in job.runtime.state.away["sink"]
    made, redaction = redacted(job.log.records)

    assert verify(made).faults == []
    state = moment(made).state
    assert state == redaction.state(moment(job.log.records).state)
    assert "secret" not in state.away["sink"]
    assert json.loads(state.away["sink"])[0]["id"] == "sink"


def test_what_an_intent_covers_stays_what_it_was() -> None:
    """Else no reader could fold the history behind the first intent of a part."""
    provider = NotingProvider("sink", sink=FakeSink(), is_committing=False)

    def odd_ones(coordinator: Noting, checkpoint_id: int) -> None:
        some = coordinator.context.committables(checkpoint_id)[::2]
        names = [one.content.decode() for one in some]
        coordinator.context.commit(checkpoint_id, Intent(names=names), committables=some)

    provider.on["complete"] = odd_ones
    job = HandDrivenJob(chain_of(NotingProvider(), provider))
    (attempt,) = job.register_all()
    number = job.trigger()
    assert number is not None
    attempt.ack_checkpoint(number, committables=[("sink", b"a"), ("sink", b"b"), ("sink", b"c")])

    plain, _ = redacted(job.log.records)

    assert verify(plain).faults == []
