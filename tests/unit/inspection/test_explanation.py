"""What `explain` says of an event is what became of it: skipped, refused and recorded-only things included."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordlog.errors import OptionError
from coordlog.log.memory import MemoryLog
from coordlog.projections.inspection.explain import Explained, explain_checkpoint, explain_event
from coordlog.projections.tables.events import EventStatus, events
from coordlog.runtime.runtime import to_unstored
from coordlog.schemas.builtin_types import EventSkipped, Refused, TakeSavepoint
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import Kind, Record
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import (
    Down,
    NotingProvider,
    Up,
    chain_of,
    event_ids,
    inside,
    skip_event,
)
from fakes.split_fakes import fail_globally


def explained(job: HandDrivenJob, sequence: int | None) -> Explained:
    assert sequence is not None
    return explain_event(job.log.records, sequence)


def last_words(job: HandDrivenJob, sequence: int | None) -> tuple[str, str]:
    """Of the last step, and what it comes to."""
    made = explained(job, sequence)
    return made.steps[-1].words, made.outcome.partition(": ")[2]


def skip(job: HandDrivenJob, record: Record) -> None:
    assert record.sequence is not None
    skip_event(job, record.sequence).answer()


def sending() -> tuple[HandDrivenJob, NotingProvider]:
    """A job that sends an event to each attempt that is ready."""
    provider = NotingProvider()
    provider.on["ready"] = lambda c, *_: c.gateways[0].send_event(Down(n=1))
    return HandDrivenJob(chain_of(provider)), provider


def test_an_event_down_on_its_way_then_acked_then_failed() -> None:
    job, _ = sending()
    first = job.register(0)
    (sent,) = job.history(Kind.EVENT_TO_SUBTASK)
    assert explained(job, sent.sequence).outcome.endswith("no record answers it yet")
    first.ack("source", event_ids(first)[0])
    assert last_words(job, sent.sequence) == (
        "attempt 0 of subtask 0 had processed event 0",
        "acked",
    )
    first.fail()
    job.register(0).fail()
    sent = job.history(Kind.EVENT_TO_SUBTASK)[-1]
    words, outcome = last_words(job, sent.sequence)
    assert words.startswith("event 1 to attempt 1 of subtask 0 failed, because ")
    assert outcome == "failed"


def test_an_event_down_that_is_skipped_was_not_processed() -> None:
    job, _ = sending()
    job.register(0).fail()
    (sent,) = job.history(Kind.EVENT_TO_SUBTASK)
    skip(job, sent)
    job.register(0)
    sent = job.history(Kind.EVENT_TO_SUBTASK)[-1]
    (row,) = [one for one in events(job.history()) if one.sequence == sent.sequence]
    assert row.status is EventStatus.SKIPPED

    assert last_words(job, sent.sequence) == (
        (
            "event 1 to attempt 1 of subtask 0 counts as processed, because it is skipped and "
            "not delivered: it kills them"
        ),
        "skipped: it was not delivered",
    )


def test_an_event_to_an_attempt_that_is_over_was_never_sent() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider), parallelism=2)
    first, second = job.register_all()
    gone: list[object] = []
    inside(second, provider, lambda c: gone.append(c.gateways[0]))
    first.fail()
    inside(second, provider, lambda _c: gone[0].send_event(Down(n=1)))  # type: ignore[attr-defined]
    (failed,) = job.history(Kind.EVENT_FAILED)
    assert failed.attributes["never_sent"] == "true"

    words, outcome = last_words(job, failed.sequence)
    assert words.startswith(
        "event 0, test.down (n: 1, text: ), to attempt 0 of subtask 0 was never sent"
    )
    assert outcome == "failed: it was never sent"


def redelivered() -> tuple[HandDrivenJob, NotingProvider, Record]:
    """A job with an event that is channel state of its last checkpoint."""
    provider = NotingProvider()
    job = HandDrivenJob(chain_of(provider))
    attempt = job.register(0)
    job.trigger()
    attempt.send("source", Up(n=5))
    attempt.ack_checkpoint(1)
    return job, provider, job.history(Kind.EVENT_TO_COORDINATOR)[0]


@pytest.mark.may_fail("scripted")
def test_an_event_up_is_handled_and_handled_again() -> None:
    job, _, sent = redelivered()
    assert last_words(job, sent.sequence) == (
        "attempt 0 of subtask 0 sent test.up (n: 5) to the coordinator of 'source'",
        "handled",
    )
    fail_globally(job)
    assert last_words(job, sent.sequence) == (
        f"the event of sequence {sent.sequence} was handled again by 'source'",
        "handled, and handled again after a restore",
    )


@pytest.mark.may_fail("scripted")
def test_an_event_up_that_is_skipped_was_not_handled_again() -> None:
    job, _, sent = redelivered()
    skip(job, sent)
    fail_globally(job)
    again = job.history(Kind.EVENT_REDELIVERED)[-1]
    (fact,) = [
        one
        for one in job.history(Kind.FACT)
        if one.payload_type == payload_type_of(EventSkipped).key
    ]
    assert again.attributes == {"skipped": str(fact.sequence)}

    assert last_words(job, sent.sequence) == (
        (
            f"the event of sequence {sent.sequence} was not handled again by 'source', because not "
            "handled: it is skipped: it kills them"
        ),
        "handled, and skipped after a restore",
    )


def test_what_is_no_event_is_refused_with_what_it_is() -> None:
    job, _, _ = redelivered()
    with pytest.raises(OptionError, match="no record has this sequence"):
        explain_event(job.log.records, 10**6)
    acked = job.history(Kind.CHECKPOINT_ACKED)[0]
    with pytest.raises(OptionError, match="a CHECKPOINT_ACKED has this sequence"):
        explained(job, acked.sequence)


def with_cause(job: HandDrivenJob, sequence: int, *records: Record) -> tuple[str, ...]:
    """The words for such records, as if the event of that sequence had caused them."""
    log = MemoryLog("job")
    stored = list(job.log.records)
    log.store(*(to_unstored(one.record()) for one in stored))
    last = stored[-1].record()
    assert last.sequence is not None
    for n, one in enumerate(records):
        log.store(
            to_unstored(
                replace(
                    one,
                    epoch=last.epoch,
                    driver_id=last.driver_id,
                    job_id=last.job_id,
                    sequence=last.sequence + 1 + n,
                    timestamp_us=last.timestamp_us,
                    cause=sequence,
                    turn_remaining=0,
                )
            )
        )
    made = explain_event(log.records, sequence)
    return tuple(one.words for one in made.steps[-len(records) :])


def record(kind: Kind, **changes: object) -> Record:
    one = Record(
        epoch=0, driver_id="", sequence=0, kind=kind, timestamp_us=0, job_id="", operator_id="sink"
    )
    return replace(one, **changes)  # type: ignore[arg-type]


def test_what_was_not_done_is_never_told_as_done() -> None:
    job, _, sent = redelivered()
    (attempt,) = job.attempts.values()
    attempt.ack("source", 99)  # refused, so that the log has that type
    refused = payload_type_of(Refused)
    assert sent.sequence is not None

    assert with_cause(
        job,
        sent.sequence,
        record(
            Kind.FACT,
            subtask=0,
            attempt_number=0,
            operator_id=None,
            payload_type=refused.key,
            payload=refused.encode(Refused(what="ack")),
            reason="it is late",
        ),
        record(
            Kind.FACT,
            payload_type=refused.key,
            payload=refused.encode(Refused(what="failure")),
            reason="only settling is left: gone",
            attributes={"closed": "true"},
        ),
        record(
            Kind.FACT,
            payload_type="test.noted@1",
            reason="its coordinator is closed",
            attributes={"closed": "true"},
        ),
        record(Kind.RESPONSE, reason="the job is starting", attributes={"outcome": "restarting"}),
        record(Kind.RESPONSE, attributes={"outcome": "answered"}),
        record(Kind.COMMIT_OUTCOME, attributes={"settled": "false"}, reason="the disk is full"),
        record(
            Kind.COMMIT_OUTCOME, attributes={"settled": "false", "final": "no"}, reason="no such"
        ),
        record(Kind.COMMIT_OUTCOME, attributes={"settled": "true"}),
        record(Kind.COORDINATOR_NOTIFIED, checkpoint_id=7, attributes={"what": "aborted"}),
        record(Kind.COORDINATOR_NOTIFIED, checkpoint_id=7, attributes={"what": "complete"}),
    ) == (
        "ack of attempt 0 of subtask 0 was recorded only, because it is late",
        "failure of 'sink' was recorded only, because only settling is left: gone",
        "what came for 'sink' was recorded only: test.noted, because its coordinator is closed",
        (
            f"the request of sequence {sent.sequence} to 'sink' was not answered (restarting), because "
            "the job is starting"
        ),
        f"'sink' answered the request of sequence {sent.sequence}",
        (
            f"the commit of sequence {sent.sequence} for 'sink' could not be settled, because the disk "
            "is full"
        ),
        (
            f"the commit of sequence {sent.sequence} for 'sink' could not be settled, and no other try "
            "can help, because no such"
        ),
        f"the commit of sequence {sent.sequence} for 'sink' is settled",
        "the coordinator of 'sink' was notified that checkpoint 7 was aborted",
        "the coordinator of 'sink' was notified that checkpoint 7 completed",
    )


def test_a_checkpoint_that_the_job_left_by_rollback_is_abandoned() -> None:
    job, _, _ = redelivered()
    (attempt,) = job.attempts.values()
    assert job.trigger() == 2
    attempt.ack_checkpoint(2)
    assert explain_checkpoint(job.log.records, 2).outcome == "checkpoint 2 is completed"
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log, clock=job.clock, from_checkpoint=1)

    made = explain_checkpoint(job.log.records, 2)
    assert made.outcome == "checkpoint 2 is abandoned"
    assert made.steps[-1].words == "the whole job went back to checkpoint 1"
    assert explain_checkpoint(job.log.records, 1).outcome == "checkpoint 1 is completed"


def test_a_checkpoint_abandoned_twice_names_the_reset_that_holds() -> None:
    """The first one was undone: the job went back to a savepoint there. The last one is to a higher number."""
    job = HandDrivenJob(chain_of(NotingProvider()))

    def back_at(number: int) -> HandDrivenJob:
        job.ask("", TakeSavepoint(name=f"s{job.runtime.state.last_checkpoint}"))
        job.crash()
        return HandDrivenJob(job.chain, log=job.log, clock=job.clock, from_checkpoint=number)

    for number in (1, 2):
        checkpointed(job)
        assert job.runtime.state.last_checkpoint == number
    job = back_at(1)
    checkpointed(job)
    for number in (2, 3):
        job = back_at(number)
        if number == 2:
            checkpointed(job)

    made = explain_checkpoint(job.log.records, 2)
    assert made.outcome == "checkpoint 2 is abandoned"
    assert made.steps[-1].words == "the whole job went back to checkpoint 3"
    resets = [step.words for step in made.steps if step.kind is Kind.RESET_TO_CHECKPOINT]
    assert resets == [
        "the whole job went back to checkpoint 2",
        "the whole job went back to checkpoint 3",
    ]


def checkpointed(job: HandDrivenJob) -> None:
    live = [attempt for attempt in job.attempts.values() if not attempt.is_closed]
    attempt = live[0] if live else job.register(0)
    number = job.trigger()
    assert number is not None
    attempt.ack_checkpoint(number)
