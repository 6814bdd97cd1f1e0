"""Payloads that are too large for the log, through a whole driver by hand: stored first, then addressed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from coordlog.coordinators.commits import COMMITS
from coordlog.errors import (
    PayloadLostError,
    PayloadStoreError,
    PayloadStoreUnreachableError,
    RecordError,
    RestoreError,
    TooLargeError,
)
from coordlog.limits import (
    LEASE_S,
    PAYLOAD_BYTES_MAX,
    PAYLOAD_READS_AT_ONCE,
    RECORD_BYTES_MAX,
)
from coordlog.log.memory import MemoryLog
from coordlog.log.payload_store import PayloadStore
from coordlog.messages import DeliverEvent, Fenced, SendEvent
from coordlog.offline.fork import find_fork_point, fork_to
from coordlog.payloads.offload import AttemptPayloads, DriverPayloads, HeldPayload, PayloadOptions
from coordlog.projections.job.state import Phase
from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.projections.snapshot.codec import SNAPSHOT_TYPE
from coordlog.projections.snapshot.splits_codec import LISTED_SPLITS, SPLITS
from coordlog.projections.splits.query_reads import READS
from coordlog.restore import snapshots
from coordlog.restore.rebuild import projection_of, rebuild
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.schemas.builtin_types import JobSnapshot
from coordlog.schemas.payload import Payload
from coordlog.schemas.payload_address import PayloadAddress, address_in, owner_of
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.validity import counted_turns
from coordlog.spark_integration.batches.ledger import BatchProvider
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import Down, Noted, Noting, NotingProvider, chain_of, inside, prefix_of

MEGABYTES = b"state " * 500_000


@pytest.fixture
def options(tmp_path: Path) -> PayloadOptions:
    return PayloadOptions(store=PayloadStore(str(tmp_path / "payloads"), "job"))


def store_of(options: PayloadOptions) -> PayloadStore:
    assert options.store is not None
    return options.store


def started(
    provider: NotingProvider, payloads: PayloadOptions, **more: object
) -> tuple[HandDrivenJob, FakeAttempt]:
    job = HandDrivenJob(chain_of(provider), payloads=payloads, **more)  # type: ignore[arg-type]
    (attempt,) = job.register_all()
    return job, attempt


def records(job: HandDrivenJob, kind: Kind) -> list[Record]:
    return job.history(kind)


def addresses(job: HandDrivenJob, kind: Kind) -> list[PayloadAddress | None]:
    return [address_in(one.payload) for one in records(job, kind)]


def test_a_large_event_down_is_stored_addressed_and_opened_by_its_attempt(
    options: PayloadOptions,
) -> None:
    provider, text = NotingProvider(), "x" * 3_000_000
    job, attempt = started(provider, options)

    inside(attempt, provider, lambda c: c.gateways[0].send_event(Down(n=1, text=text)))

    (address,) = addresses(job, Kind.EVENT_TO_SUBTASK)
    assert address is not None
    assert address.owner == "0-driver-0"
    (delivered,) = attempt.got(DeliverEvent)
    assert delivered.payload == address.encode(), "by address: a connection takes no such message"
    types = job.chain.payload_types.opened_by(attempt.payloads.open)
    assert types.decode(delivered.payload_type, delivered.payload) == Down(n=1, text=text)


def test_what_is_addressed_is_stored_before_its_record_is_appended(options: PayloadOptions) -> None:
    provider = NotingProvider()
    job, attempt = started(provider, options)
    job.is_held = True
    inside(attempt, provider, lambda c: c.gateways[0].send_event(Down(n=1, text="x" * 300_000)))
    assert store_of(options).listed() == (), "the log has not been asked yet"

    job.runtime.turns.take_group()
    (held,) = job.runtime.turns.group_payloads()
    job.payloads.keep([held])

    assert store_of(options).get(held.address) == held.data
    assert job.history()[-1].kind is not Kind.EVENT_TO_SUBTASK


def test_a_large_event_up_is_handled_and_its_record_holds_the_address(
    options: PayloadOptions,
) -> None:
    provider = NotingProvider()
    handled = list[object]()
    provider.on["event"] = lambda _c, _s, _a, said: handled.append(said)
    job, attempt = started(provider, options)

    attempt.send("source", Down(n=7, text="y" * 2_000_000))

    assert handled == [7]
    (address,) = addresses(job, Kind.EVENT_TO_COORDINATOR)
    assert address is not None
    assert len(store_of(options).get(address)) > 2_000_000


@pytest.mark.clause("D2")
@pytest.mark.parametrize("harm", ["missing", "cut off", "damaged"])
def test_an_event_with_a_missing_payload_fails_its_sender_alone(
    options: PayloadOptions, harm: str
) -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), payloads=options, parallelism=2)
    one, other = job.register_all()
    event = Down(n=7, text="y" * 400_000)
    sealed = one.payloads.seal("it", "test.down@1", _encoded(event))
    spoil(store_of(options), sealed, harm)

    job.run(
        lambda: job.runtime.arrived(
            one.connection_id,
            SendEvent(
                operator_id="source",
                event_id=0,
                last_barrier=-1,
                payload_type="test.down@1",
                payload=sealed,
            ),
        )
    )

    (told,) = one.got(Fenced)
    assert "it sent a damaged event of type test.down@1: the stored payload 0-driver-0/" in (
        told.reason
    )
    assert not other.got(Fenced)
    assert job.runtime.state.phase is Phase.RUNNING
    assert not records(job, Kind.EVENT_TO_COORDINATOR)
    assert not provider.said("event")


def _encoded(event: Payload) -> bytes:
    return type(event).coordlog_type.encode(event)


def spoil(store: PayloadStore, sealed: bytes, harm: str) -> None:
    address = address_in(sealed)
    assert address is not None
    path = Path(store.where) / address.path
    data = path.read_bytes()
    match harm:
        case "missing":
            path.unlink()
        case "cut off":
            path.write_bytes(data[:-1])
        case _:
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.mark.clause("F2")
def test_large_checkpoint_states_are_addressed_and_restored(
    options: PayloadOptions,
) -> None:
    provider = NotingProvider(is_cut_at_once=False)
    provider.on["cut"] = lambda c, n: c.results[n].complete(MEGABYTES + b"%d" % n)
    job, attempt = started(provider, options)
    job.trigger()
    attempt.ack_checkpoint(1, states={"source": MEGABYTES})
    job.crash()

    assert len(store_of(options).listed()) == 2
    assert sum(len(one.value or b"") for one in job.log.records) < 20_000
    cut = job.runtime.state.completed[1].cuts["source"].state
    assert address_in(cut) is not None, "the state of the job holds addresses, no megabytes"

    restored = NotingProvider()
    job, attempt = started(restored, options, log=job.log)
    assert restored.said("restore") == [("restore", 1, MEGABYTES + b"1")]
    (state,) = attempt.accepted.states
    assert state.state is not None
    assert attempt.payloads.open(state.state) == MEGABYTES


@pytest.mark.clause("E9")
@pytest.mark.parametrize("whose", ["cut", "subtask"])
@pytest.mark.parametrize("harm", ["missing", "cut off", "damaged"])
def test_a_restore_with_a_missing_payload_is_refused_before_any_append(
    options: PayloadOptions, whose: str, harm: str
) -> None:
    provider = NotingProvider(is_cut_at_once=False)
    provider.on["cut"] = lambda c, n: c.results[n].complete(MEGABYTES + b"%d" % n)
    job, attempt = started(provider, options)
    job.trigger()
    attempt.ack_checkpoint(1, states={"source": MEGABYTES})
    job.crash()
    checkpoint = job.runtime.state.completed[1]
    state = checkpoint.cuts["source"].state if whose == "cut" else checkpoint.states[0][0].state
    assert state is not None
    spoil(store_of(options), state, harm)
    end = job.log.high_watermark()

    if (whose, harm) == ("subtask", "damaged"):
        # Its length alone is looked at: the attempt that opens it refuses by name.
        _, again = started(NotingProvider(), options, log=job.log)
        with pytest.raises(PayloadLostError, match="it is damaged: 3000000 bytes with SHA-256"):
            again.payloads.open(state)
        return
    with pytest.raises(RestoreError) as refused:
        HandDrivenJob(chain_of(NotingProvider()), payloads=options, log=job.log)

    said, address = str(refused.value), address_in(state)
    assert address is not None
    what = {"cut": "coordinator 'source'", "subtask": "operator 'source' of subtask 0"}[whose]
    assert f"job job cannot be restored: the state of {what} in checkpoint 1 (sequence " in said
    assert f"is the stored payload {address.path} of {address.length} bytes in the log" in said
    assert f" in the log and not readable ({store_of(options).where}: it is " in said
    assert job.log.high_watermark() == end


@pytest.mark.clause("E9")
def test_a_job_that_has_lost_its_store_is_refused_and_told_the_option(
    options: PayloadOptions,
) -> None:
    job, attempt = started(NotingProvider(), options)
    job.trigger()
    attempt.ack_checkpoint(1, states={"source": MEGABYTES})
    job.crash()

    with pytest.raises(
        RestoreError, match=r"has no payload store\) here; name it with --payload-st"
    ):
        HandDrivenJob(chain_of(NotingProvider()), log=job.log)


@pytest.mark.clause("E9")
def test_an_invalid_address_is_refused_with_its_record_and_advice(
    options: PayloadOptions,
) -> None:
    newer = b"coordlog-payload:2:5:0-driver-0/" + b"a" * 200
    job, attempt = started(NotingProvider(), options)
    job.trigger()
    attempt.ack_checkpoint(1, states={"source": newer})
    job.crash()
    end = job.log.high_watermark()

    with pytest.raises(RestoreError) as refused:
        HandDrivenJob(chain_of(NotingProvider()), payloads=options, log=job.log)

    said = str(refused.value)
    assert said.startswith(
        "job job cannot be restored: the state of operator 'source' of subtask 0 in checkpoint 1 "
        "(sequence "
    )
    assert f" is {newer[:120]!r} in the log and no address of a stored payload that" in said
    assert said.endswith(
        "run the job with the version of coordlog that wrote it, or continue from a checkpoint that "
        "does not need it (--from-checkpoint)"
    )
    assert job.log.high_watermark() == end


@pytest.mark.clause("K6")
def test_without_a_store_the_error_names_the_option() -> None:
    provider, caught = NotingProvider(), list[str]()
    job, attempt = started(provider, PayloadOptions())

    def act(coordinator: Noting) -> None:
        with pytest.raises(TooLargeError) as refused:
            coordinator.gateways[0].send_event(Down(n=1, text="x" * PAYLOAD_BYTES_MAX))
        caught.append(str(refused.value))

    inside(attempt, provider, act)

    assert "the limit is 262144: name a folder for large payloads with payload_store" in caught[0]
    assert "--payload-store" in caught[0]
    assert not records(job, Kind.EVENT_TO_SUBTASK)


def test_payloads_above_the_limit_are_stored_unless_log_readers_need_them(
    options: PayloadOptions,
) -> None:
    provider = NotingProvider()
    job, attempt = started(provider, replace(options, limit_bytes=1_000))

    def act(coordinator: Noting) -> None:
        coordinator.context.record(Noted(text="z" * 990))
        coordinator.context.record(Noted(text="z" * 1_000))

    inside(attempt, provider, act)
    job.trigger()
    names = [("source", b"n" * 100)] * 50
    attempt.ack_checkpoint(1, states={"source": b"s" * 900}, committables=names)

    small, large = (one for one in addresses(job, Kind.FACT))
    assert small is None
    assert large is not None
    (acked,) = job.history(Kind.CHECKPOINT_ACKED)
    assert len(acked.payload or b"") > 5_000
    assert address_in(acked.payload) is None


def folded(state: tuple[int, ...], _record: Record, value: Payload | None) -> tuple[int, ...]:
    return (*state, len(value.text)) if isinstance(value, Noted) else state


LENGTHS: OperatorProjection[tuple[int, ...]] = OperatorProjection(
    name="test.lengths",
    version=1,
    initial=(),
    apply=folded,
    codec=DerivedCodec(tuple[int, ...]),
)


@pytest.mark.clause("K3")
def test_a_projection_gets_contents_live_and_restored_or_is_refused(
    options: PayloadOptions,
) -> None:
    provider = NotingProvider(projection=LENGTHS)
    job, attempt = started(provider, options)
    inside(attempt, provider, lambda c: c.context.record(Noted(text="z" * 600_000)))
    assert job.runtime.state.projections["source"] == (600_000,)
    job.crash()
    before = prefix_of(job.log, job.log.high_watermark())

    chain = chain_of(NotingProvider(projection=LENGTHS))
    chain = chain.opening(DriverPayloads(fresh(options)).open)
    made = rebuild(before, chain, projection_of(chain))
    assert made.state == job.runtime.state

    (record,) = records(job, Kind.FACT)
    assert record.payload is not None
    spoil(store_of(options), record.payload, "missing")
    end = before.high_watermark()
    with pytest.raises(RecordError) as refused:
        HandDrivenJob(
            chain_of(NotingProvider(projection=LENGTHS)), payloads=fresh(options), log=before
        )
    at = next(n for n, one in enumerate(before.records) if record.payload in (one.value or b""))
    assert refused.value.offset == at
    assert "PayloadLostError: the stored payload 0-driver-0/" in str(refused.value)
    assert before.high_watermark() == end


@pytest.mark.clause("K3")
def test_a_fold_does_not_fetch_payloads_that_no_projection_reads(
    options: PayloadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A projection that names the types that it reads gets None for others, live and at a restore."""
    projection = replace(LENGTHS, reads=(Noted,))
    provider = NotingProvider(projection=projection)
    job, attempt = started(provider, options)
    attempt.send("source", Down(n=7, text="y" * 2_000_000))
    inside(attempt, provider, lambda c: c.context.record(Noted(text="z" * 100)))
    assert job.runtime.state.projections["source"] == (100,)
    job.crash()

    def refuse(_address: PayloadAddress) -> bytes:
        raise AssertionError("the store is read")

    again = fresh(options)
    monkeypatch.setattr(store_of(again), "get", refuse)
    chain = chain_of(NotingProvider(projection=projection)).opening(DriverPayloads(again).open)
    rebuilt = rebuild(job.log, chain, projection_of(chain))
    assert rebuilt.state == job.runtime.state


def test_own_projections_read_only_payloads_that_are_always_in_the_log() -> None:
    for projection in (SPLITS, LISTED_SPLITS, COMMITS, READS, BatchProvider.projection):
        assert projection is not None
        names = projection.read_names
        assert names is not None
        assert all(name.startswith("coordlog.") for name in names)


def test_a_restore_during_a_store_outage_names_it_and_blames_no_record(
    options: PayloadOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = NotingProvider(projection=LENGTHS)
    job, attempt = started(provider, options)
    inside(attempt, provider, lambda c: c.context.record(Noted(text="z" * 600_000)))
    job.crash()
    end = job.log.high_watermark()
    again = fresh(options)
    chain = chain_of(NotingProvider(projection=LENGTHS))

    with monkeypatch.context() as harm:
        harm.setattr(store_of(again), "get", refusing(store_of(again), 1_000))
        with pytest.raises(PayloadStoreUnreachableError, match="503 Slow Down"):
            HandDrivenJob(chain, payloads=again, log=job.log)
    assert job.log.high_watermark() == end

    with monkeypatch.context() as harm:
        harm.setattr(store_of(again), "get", refusing(store_of(again), 1))
        restored = HandDrivenJob(chain, payloads=again, log=job.log)
    assert restored.runtime.state.phase is Phase.RUNNING


def fresh(options: PayloadOptions) -> PayloadOptions:
    return replace(options, store=PayloadStore(store_of(options).url, "job"))


def test_a_fork_has_its_own_copies_of_the_payloads(
    options: PayloadOptions,
) -> None:
    provider = NotingProvider(is_cut_at_once=False)
    provider.on["cut"] = lambda c, n: c.results[n].complete(MEGABYTES + b"%d" % n)
    job, attempt = started(provider, options)
    job.trigger()
    attempt.ack_checkpoint(1, states={"source": MEGABYTES})
    job.crash()
    log, theirs = MemoryLog("other"), store_of(options)
    fork_to(
        job.log, log, find_fork_point(job.log, "job", "1"), job_id="other", payload_store=theirs
    )
    theirs.remove(theirs.listed())

    restored = NotingProvider()
    own = replace(options, store=PayloadStore(theirs.url, "other"))
    other = HandDrivenJob(chain_of(restored), payloads=own, log=log, job_id="other")
    (attempt,) = other.register_all()

    assert restored.said("restore") == [("restore", 1, MEGABYTES + b"1")]
    (state,) = attempt.accepted.states
    assert state.state is not None
    assert attempt.payloads.open(state.state) == MEGABYTES


# --- the ways to die --------------------------------------------------------------------------------------------------
@pytest.mark.clause("K1")
def test_payloads_stored_before_an_append_that_never_came_are_garbage(
    options: PayloadOptions,
) -> None:
    provider = NotingProvider()
    job, attempt = started(provider, options)
    job.is_held = True
    inside(attempt, provider, lambda c: c.gateways[0].send_event(Down(n=1, text="x" * 300_000)))
    job.runtime.turns.take_group()
    job.payloads.keep(job.runtime.turns.group_payloads())
    job.crash()

    again, attempt = started(NotingProvider(), options, log=job.log)

    assert len(store_of(options).listed()) == 1
    assert not records(again, Kind.EVENT_TO_SUBTASK)
    assert not attempt.got(DeliverEvent)


@pytest.mark.clause("K2")
def test_a_fenced_driver_never_writes_under_the_name_of_another(options: PayloadOptions) -> None:
    provider = NotingProvider()
    first, attempt = started(provider, options)
    first.is_held = True
    inside(attempt, provider, lambda c: c.gateways[0].send_event(Down(n=1, text="x" * 300_000)))
    first.runtime.turns.take_group()
    late = first.runtime.turns.group_payloads()

    other = NotingProvider()
    second, attempt = started(other, options, log=first.log)
    inside(attempt, other, lambda c: c.gateways[0].send_event(Down(n=1, text="x" * 300_000)))
    first.payloads.keep(late)

    (mine,) = addresses(second, Kind.EVENT_TO_SUBTASK)
    assert mine is not None
    assert (mine.owner, late[0].address.owner) == ("1-driver-1", "0-driver-0")
    assert mine.sha256 == late[0].address.sha256
    assert len(store_of(options).listed()) == 2


class Broken:
    """A store that refuses so often."""

    def __init__(self, failures: int, *, is_final: bool = False) -> None:
        self.failures, self.is_final, self.kept = failures, is_final, list[str]()

    def put(self, address: PayloadAddress, _data: bytes) -> None:
        if self.failures:
            self.failures -= 1
            kind = PayloadStoreError if self.is_final else PayloadStoreUnreachableError
            raise kind("s3://b/job", "keeping", "no route", "x")
        self.kept.append(address.sha256)

    def get(self, address: PayloadAddress) -> bytes:
        self.put(address, b"")
        return b"x"


def kept_by(store: Broken, **more: object) -> tuple[list[float], Callable[[], None]]:
    waits, seconds = list[float](), itertools.count(0, 10)
    payloads = DriverPayloads(
        PayloadOptions(store=store),  # type: ignore[arg-type]
        clock=lambda: next(seconds),
        sleep=waits.append,
    )
    data = b"x"
    held = HeldPayload(address=PayloadAddress.of(data, owner_of(0, "a")), data=data)
    return waits, lambda: payloads.keep([held], **more)  # type: ignore[arg-type]


def test_a_store_that_is_away_for_a_while_is_waited_for() -> None:
    store = Broken(3)
    waits, keep = kept_by(store)

    keep()

    assert waits == [0.05, 0.1, 0.2]
    assert len(store.kept) == 1


@pytest.mark.parametrize(
    ("store", "more", "waited"),
    [
        (Broken(100), {"timeout_s": 35.0}, 3),
        (Broken(100, is_final=True), {}, 0),
        (Broken(100), {"is_over": lambda: True}, 0),
    ],
    ids=["too long", "full", "the driver ends"],
)
def test_a_store_that_stays_away_ends_the_driver(
    store: Broken, more: dict[str, object], waited: int
) -> None:
    waits, keep = kept_by(store, **more)

    with pytest.raises(PayloadStoreError):
        keep()

    assert len(waits) == waited
    assert not store.kept


@pytest.mark.parametrize(
    ("store", "waited"),
    [
        (Broken(3), [0.05, 0.1, 0.2]),
        (Broken(100), [0.05, 0.1, 0.2, 0.4, 0.8, 1.6]),
        (Broken(100, is_final=True), []),
    ],
    ids=["for a while", "for good", "not for this user"],
)
def test_a_store_that_is_away_is_read_again_for_seconds_and_no_longer(
    store: Broken, waited: list[float]
) -> None:
    waits = list[float]()
    payloads = DriverPayloads(
        PayloadOptions(store=store),  # type: ignore[arg-type]
        clock=lambda: sum(waits),
        sleep=waits.append,
    )
    sealed = PayloadAddress.of(b"x", owner_of(0, "a")).encode()

    if store.failures == 3:
        assert payloads.open(sealed) == b"x"
    else:
        with pytest.raises(PayloadStoreError):
            payloads.open(sealed)

    assert waits == pytest.approx(waited)
    assert sum(waits) < LEASE_S / 5


@pytest.mark.parametrize("does", ["open", "store"])
def test_an_attempt_is_as_patient_with_the_store_until_it_is_over(does: str) -> None:
    waits = list[float]()
    is_over = False
    store = Broken(3)
    payloads = AttemptPayloads(
        PayloadOptions(store=store),  # type: ignore[arg-type]
        0,
        "a",
        is_over=lambda: is_over,
        clock=lambda: sum(waits),
        sleep=waits.append,
    )
    sealed = PayloadAddress.of(b"x", owner_of(0, "a")).encode()

    def use() -> bytes:
        return payloads.store(b"x") if does == "store" else payloads.open(sealed)

    assert use() == (sealed if does == "store" else b"x")
    assert len(waits) == 3

    store.failures, waits[:] = 1_000, []
    with pytest.raises(PayloadStoreUnreachableError):
        use()
    assert 1 < sum(waits) < LEASE_S / 5

    is_over, waits[:] = True, []
    with pytest.raises(PayloadStoreUnreachableError):
        use()
    assert not waits, "nobody waits for it"


def refusing(store: PayloadStore, failures: int) -> Callable[[PayloadAddress], bytes]:
    """Its `get`, which first refuses so often."""
    left, get = iter(range(failures)), store.get

    def refused(address: PayloadAddress) -> bytes:
        if next(left, None) is not None:
            raise PayloadStoreUnreachableError(store.where, "reading", "503 Slow Down", "x")
        return get(address)

    return refused


@pytest.mark.parametrize("failures", [1, 1_000])
def test_one_store_read_error_is_retried_and_a_long_one_fails_the_sender(
    options: PayloadOptions, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    provider = NotingProvider()
    handled = list[object]()
    provider.on["event"] = lambda _c, _s, _a, said: handled.append(said)
    job = HandDrivenJob(chain_of(provider), payloads=options, parallelism=2)
    one, other = job.register_all()
    store = store_of(options)
    began_s = job.clock.seconds

    with monkeypatch.context() as harm:
        harm.setattr(store, "get", refusing(store, failures))
        one.send("source", Down(n=7, text="y" * 400_000))

    assert job.clock.seconds - began_s < LEASE_S / 5
    assert job.runtime.state.phase is Phase.RUNNING
    assert not other.got(Fenced)
    if failures == 1:
        assert handled == [7]
        assert not one.got(Fenced)
        return
    assert not handled
    (told,) = one.got(Fenced)
    assert "it sent an event of type test.down@1 that cannot be read now: the payload store" in (
        told.reason
    )
    assert len(records(job, Kind.ATTEMPT_FAILED)) == 1
    other.send("source", Down(n=8, text="z" * 400_000))
    assert handled == [8]


# --- snapshots --------------------------------------------------------------------------------------------------------
@pytest.mark.clause("K3")
@pytest.mark.parametrize("harm", ["", "missing", "damaged"])
def test_a_state_beyond_a_record_has_snapshots_and_lost_ones_are_skipped(
    options: PayloadOptions,
    harm: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The state holds what was sent up since the last checkpoint: here 30 events of 100 kB that do not compress."""
    monkeypatch.setattr(snapshots, "SNAPSHOT_BYTES_PER_RECORD", 1_000_000)
    chance = Random(1)
    job, attempt = started(NotingProvider(), options, options=RuntimeOptions(snapshot_every=10))
    for n in range(30):
        attempt.send("source", Down(n=n, text=chance.randbytes(50_000).hex()))
    job.crash()
    taken = [_state_in(one) for one in job.history(Kind.SNAPSHOT)]
    kept = [one for one in map(address_in, taken) if one is not None]
    assert [one.length > RECORD_BYTES_MAX for one in kept][-2:] == [True, True]
    assert all(len(one.value or b"") < RECORD_BYTES_MAX for one in job.log.records)
    if harm:
        spoil(store_of(options), taken[-1], harm)

    chain = chain_of(NotingProvider()).opening(DriverPayloads(fresh(options)).open)
    made = rebuild(job.log, chain, projection_of(chain))
    whole = rebuild(job.log, chain, projection_of(chain), is_whole=True)

    assert made.started_at is not None
    assert made.record_count < whole.record_count
    assert ("passed over the snapshot" in caplog.text) is bool(harm)
    assert made.state == whole.state == job.runtime.state


def _state_in(record: Record) -> bytes:
    snapshot = SNAPSHOT_TYPE.decode(record.payload or b"")
    assert isinstance(snapshot, JobSnapshot)
    return snapshot.state


def test_no_record_is_ever_larger_than_the_log_takes(options: PayloadOptions) -> None:
    provider = NotingProvider(is_cut_at_once=False)
    provider.on["cut"] = lambda c, n: c.results[n].complete(MEGABYTES)
    job, attempt = started(provider, options)
    job.trigger()
    attempt.ack_checkpoint(1, states={"source": MEGABYTES})

    turns = list(counted_turns(job.log.records))
    for turn in turns:
        for stored in turn.entries:
            assert len(stored.value or b"") < RECORD_BYTES_MAX
            stored.record()


class Hanging:
    """A store whose calls come back only when the test ends."""

    url = "s3://b/job"

    def __init__(self) -> None:
        self.ended = threading.Event()

    def get(self, address: PayloadAddress) -> bytes:
        self.ended.wait(30)
        return b"x" * address.length


def test_a_hanging_call_blocks_the_mailbox_for_the_stated_time_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coordlog.payloads.offload.PAYLOAD_OPEN_S", 0.05)
    store = Hanging()
    payloads = DriverPayloads(PayloadOptions(store=store))  # type: ignore[arg-type]
    sealed = PayloadAddress.of(b"x" * 10, owner_of(0, "a")).encode()

    try:
        with pytest.raises(PayloadStoreUnreachableError, match=r"not answered within 0\.1 s"):
            payloads.open(sealed)
        assert not store.ended.is_set(), "it hangs still"
    finally:
        store.ended.set()


def test_the_payloads_of_one_turn_share_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordlog.payloads.offload.PAYLOAD_OPEN_S", 0.05)
    monkeypatch.setattr("coordlog.payloads.offload.PAYLOAD_TURN_S", 0.08)
    store = Hanging()
    payloads = DriverPayloads(PayloadOptions(store=store))  # type: ignore[arg-type]

    def said(data: bytes) -> str:
        sealed = PayloadAddress.of(data, owner_of(0, "a")).encode()
        with pytest.raises(PayloadStoreUnreachableError) as raised:
            payloads.open(sealed)
        return raised.value.problem

    try:
        payloads.take()
        first = [said(bytes([n])) for n in range(4)]
        assert first[0] == "it has not answered within 0.1 s"
        assert first[2:] == ["it has not answered within 0.0 s"] * 2, "the turn's time is over"
        payloads.take()
        assert said(b"another turn") == "it has not answered within 0.1 s"
    finally:
        store.ended.set()


class AtOnce:
    """A store that answers once so many reads are under way."""

    url = "s3://b/job"

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count)
        self.running = self.most = 0
        self.lock = threading.Lock()

    def get(self, address: PayloadAddress) -> bytes:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.barrier.wait(20)
        with self.lock:
            self.running -= 1
        return b"x"


def test_an_attempt_reads_the_states_of_many_former_subtasks_in_portions() -> None:
    store = AtOnce(PAYLOAD_READS_AT_ONCE)
    payloads = AttemptPayloads(PayloadOptions(store=store), 0, "a")  # type: ignore[arg-type]
    sealed = PayloadAddress.of(b"x", owner_of(0, "a")).encode()

    assert payloads.open_all([sealed] * 12) == [b"x"] * 12
    assert store.most == PAYLOAD_READS_AT_ONCE
