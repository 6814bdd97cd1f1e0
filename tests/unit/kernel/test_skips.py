"""Skips: facts of the job that no reset undoes, and who keeps to them (clause J2)."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from coordlog.api.coordinator import EventFuture
from coordlog.coordinators.splits import DefaultEnumerator, SplitCoordinatorProvider
from coordlog.errors import AttemptNotRunningError, JobFailedError, RequestRefusedError
from coordlog.kernel.builder import KernelConfig
from coordlog.kernel.driver_requests import why_not_skippable
from coordlog.limits import REASON_CHARS_MAX
from coordlog.messages import DeliverEvent
from coordlog.projections.job.event_skips import event_key
from coordlog.projections.job.skips import reason_in_words
from coordlog.projections.job.state import Phase
from coordlog.schemas.builtin_types import (
    SkipRecorded,
    SkipSplit,
    SplitSkipped,
)
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeRequest, HandDrivenJob
from fakes.kernel_fakes import Down, NotingProvider, Up, skip_event
from fakes.kernel_fakes import chain_of as noting_chain
from fakes.split_fakes import (
    NO_MORE,
    ack_all,
    ask,
    chain_of,
    checkpoint,
    fail_globally,
    listing,
    places,
    pull_of,
    told,
    unlisted,
)

pytestmark = pytest.mark.clause("J2")

SKIPPED = payload_type_of(SplitSkipped).key


def job_of(
    *names: str, is_batch: bool = False, parallelism: int = 1, reads_in_order: bool = False
) -> HandDrivenJob:
    chain = chain_of(pull_of(*names), reads_in_order=reads_in_order)
    return HandDrivenJob(chain, is_batch=is_batch, parallelism=parallelism)


def skip(job: HandDrivenJob, split_id: str, why: str = "bad rows") -> FakeRequest:
    return job.ask("", SkipSplit(split_id=split_id, why=why))


def test_a_skip_of_a_waiting_split_is_a_fact_with_its_reason() -> None:
    job = job_of("a", "b")
    answer = skip(job, "b").answer()

    assert answer.response == SkipRecorded(was_skipped_before=False)
    (fact,) = [one for one in job.history(Kind.FACT) if one.payload_type == SKIPPED]
    assert (fact.operator_id, fact.reason) == ("source", "bad rows")
    assert places(job) == {"a": "enumerator", "b": "skipped"}
    asked, said = job.history(Kind.REQUEST, Kind.RESPONSE)
    assert said.cause == asked.sequence
    assert said.attributes == {"outcome": "answered"}


def test_a_skip_that_is_asked_for_again_is_recorded_once() -> None:
    job = job_of("a", "b")
    skip(job, "b")
    answer = skip(job, "b", "another reason").answer()

    assert answer.response == SkipRecorded(was_skipped_before=True)
    assert [one.reason for one in job.history(Kind.FACT) if one.payload_type == SKIPPED] == [
        "bad rows"
    ]


def test_a_skipped_split_is_never_assigned() -> None:
    job = job_of("a", "b", "c")
    skip(job, "b")
    attempt = job.register(0)
    for _ in range(3):
        ask(attempt)

    assert told(job, attempt) == ["a", "c", NO_MORE]


def test_a_skipped_split_does_not_come_back_with_a_local_failover() -> None:
    job = job_of("a", "b")
    first = job.register(0)
    ask(first)
    first.skip_split("source", "a", rows=7)
    assert places(job) == {"a": "skipped, 7 rows", "b": "enumerator"}
    first.fail()

    assert places(job) == {"a": "skipped", "b": "enumerator"}, "its rows went with the attempt"
    second = job.register(0)
    ask(second)
    ask(second)
    assert told(job, second) == ["b", NO_MORE]
    assert second.accepted.skipped_splits == ()


@pytest.mark.parametrize(
    ("given", "acked", "blamed"),
    [
        ((), (), None),
        (("a",), (), "a"),
        (("a",), ("a",), "a"),
        (("a", "b"), ("a",), "a"),  # what is on its way to it is not read
        (("a", "b"), (), None),
        (("a", "b"), ("a", "b"), None),
    ],
)
def test_an_attempt_dead_without_an_error_is_blamed_on_its_only_split(
    given: tuple[str, ...], acked: tuple[str, ...], blamed: str | None
) -> None:
    job = job_of("a", "b", "c")
    attempt = job.register(0)
    for _ in given:
        ask(attempt)
    assert told(job, attempt) == list(given)
    for event in attempt.got(DeliverEvent)[: len(acked)]:
        attempt.ack("source", event.event_id)
    attempt.lose()

    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert failed.attributes.get("split_id") == blamed


@pytest.mark.parametrize(
    ("acked", "finished", "blamed"),
    [(0, (), "a"), (1, (), "a"), (2, (), "a"), (2, ("a",), "b"), (2, ("a", "b"), None)],
)
def test_of_splits_read_in_order_the_first_unfinished_is_blamed(
    acked: int, finished: tuple[str, ...], blamed: str | None
) -> None:
    job = job_of("a", "b", "c", reads_in_order=True)
    attempt = job.register(0)
    ask(attempt)
    ask(attempt)
    assert told(job, attempt) == ["a", "b"]
    for event in attempt.got(DeliverEvent)[:acked]:
        attempt.ack("source", event.event_id)
    for name in finished:
        attempt.finish_split("source", name)
    attempt.lose()

    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert failed.attributes.get("split_id") == blamed


@pytest.mark.parametrize("keeps_listed", [False, True])
def test_a_split_that_the_checkpoint_has_read_is_blamed_no_more(
    keeps_listed: bool,  # noqa: FBT001, a parameter
) -> None:
    provider = SplitCoordinatorProvider(
        "source",
        enumerator=lambda context, _: DefaultEnumerator(context, listing("a", "b")),
        keeps_listed=keeps_listed,
    )
    chain = chain_of(provider, reads_in_order=True)
    job = HandDrivenJob(chain, may_fail="scripted")
    first = job.register(0)
    ask(first)
    ack_all(first)
    job.trigger()
    first.finish_split("source", "a", rows=1)  # after the cut, before the barrier
    first.ack_checkpoint(1)
    fail_globally(job)
    job.crash()

    restored = HandDrivenJob(chain, log=job.log)
    second = restored.register(0)
    ask(second)
    ack_all(second)
    second.lose()

    assert places(restored) == {"a": "finished by 0", "b": "enumerator"}
    assert restored.history(Kind.ATTEMPT_FAILED)[-1].attributes["split_id"] == "b"
    with pytest.raises(RequestRefusedError, match="has been read to its end"):
        skip(restored, "a").answer()


@pytest.mark.parametrize("parallelism", [2, 1])
def test_a_split_read_by_a_subtask_that_ended_before_its_barrier_is_read(parallelism: int) -> None:
    job = job_of("a", "b", parallelism=2, reads_in_order=True)
    first, second = job.register_all()
    ask(first)
    checkpoint(job, first, second)
    job.trigger()
    first.finish_split("source", "a", rows=1)  # after the cut, and after the barrier before
    first.complete()
    second.ack_checkpoint(2)
    assert job.runtime.state.last_checkpoint == 2
    job.crash()

    restored = HandDrivenJob(job.chain, log=job.log, parallelism=parallelism)

    assert places(restored) == {"a": "finished by 0", "b": "enumerator"}
    with pytest.raises(RequestRefusedError, match="has been read to its end"):
        skip(restored, "a").answer()


@pytest.mark.parametrize("is_completed_since", [False, True])
def test_a_split_read_after_the_barrier_is_with_its_reader_again(
    is_completed_since: bool,  # noqa: FBT001, a parameter
) -> None:
    job = job_of("a")
    attempt = job.register(0)
    ask(attempt)
    first = checkpoint(job, attempt)
    attempt.finish_split("source", "a", rows=1)
    if is_completed_since:
        checkpoint(job, attempt)
    job.crash()

    restored = HandDrivenJob(job.chain, log=job.log, from_checkpoint=first)

    assert places(restored) == {"a": "with 0"}


@pytest.mark.parametrize("is_batch", [True, False])
@pytest.mark.may_fail("scripted")
def test_a_skip_survives_a_reset_to_before_the_listing(is_batch: bool) -> None:  # noqa: FBT001, a parameter
    job = job_of("a", "b", is_batch=is_batch)
    skip(job, "a")
    fail_globally(job)

    assert job.history(Kind.RESET_TO_CHECKPOINT)[-1].checkpoint_id == -1
    assert places(job) == {"a": "skipped", "b": "enumerator"}
    attempt = job.register(0)
    ask(attempt)
    ask(attempt)
    assert told(job, attempt) == ["b", NO_MORE]


def test_a_skip_during_the_listing_is_refused_and_names_the_split() -> None:
    job = unlisted(chain_of(pull_of("a")))

    with pytest.raises(RequestRefusedError, match=r"no split 'a', or it has not been listed yet"):
        skip(job, "a").answer()


def test_a_reader_restored_with_a_skipped_split_gets_the_skip_and_reports() -> None:
    job = job_of("a", "b")
    first = job.register(0)
    ask(first)
    assert checkpoint(job, first) == 1
    skip(job, "a")

    assert first.is_closed, "whoever has it begins again without it"
    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert failed.reason == "split 'a', which it has, is skipped: bad rows"
    assert job.history(Kind.SUBTASK_RESET)[-1].attributes == {"counted": "false"}
    assert places(job) == {"a": "skipped, None rows", "b": "enumerator"}
    second = job.register(0)
    assert second.accepted.skipped_splits == ("a",)
    second.last_barrier = 1
    second.skip_split("source", "a", rows=40, reason="it is skipped")
    assert places(job) == {"a": "skipped, 40 rows", "b": "enumerator"}
    newest = [one for one in job.history(Kind.FACT) if one.payload_type == SKIPPED][-1]
    assert newest.reason == "bad rows", "the reason for which it was skipped, not the reader's"
    ask(second)
    ask(second)
    assert told(job, second) == ["b", NO_MORE]


@pytest.mark.may_fail("scripted")
def test_after_a_checkpoint_of_the_release_no_attempt_gets_the_skip_again() -> None:
    job = job_of("a", "b")
    first = job.register(0)
    ask(first)
    checkpoint(job, first)
    first.skip_split("source", "a", rows=3)
    assert checkpoint(job, first) == 2
    first.fail()

    assert job.register(0).accepted.skipped_splits == ()
    assert places(job)["a"] == "skipped, 3 rows"
    fail_globally(job)
    assert places(job)["a"] == "skipped, 3 rows"
    assert job.register(0).accepted.skipped_splits == ()


@pytest.mark.may_fail("scripted")
def test_rows_after_the_checkpoint_do_not_survive_a_global_failover() -> None:
    job = job_of("a")
    first = job.register(0)
    ask(first)
    checkpoint(job, first)
    first.skip_split("source", "a", rows=9)
    fail_globally(job)

    assert places(job)["a"] == "skipped, None rows"
    assert job.register(0).accepted.skipped_splits == ("a",)


@pytest.mark.may_fail("scripted")
def test_a_split_released_between_cut_and_barrier_survives_a_failover() -> None:
    job = job_of("a")
    first = job.register(0)
    ask(first)
    ack_all(first)
    assert job.trigger() == 1
    first.skip_split("source", "a", rows=3)
    first.ack_checkpoint(1)
    assert job.runtime.state.last_checkpoint == 1
    fail_globally(job)

    assert places(job)["a"] == "skipped, 3 rows"
    assert job.register(0).accepted.skipped_splits == ()


@pytest.mark.parametrize("is_global", [True, False])
@pytest.mark.may_fail("scripted")
def test_a_split_released_after_a_lost_checkpoints_barrier_is_reskipped(
    is_global: bool,  # noqa: FBT001, a parameter
) -> None:
    job = job_of("a", "b", parallelism=2)
    first, second = job.register_all()
    ask(first)
    assert checkpoint(job, first, second) == 1
    assert job.trigger() == 2
    first.ack_checkpoint(2)
    first.skip_split("source", "a", rows=9)
    if is_global:
        fail_globally(job)
    else:
        first.fail()

    assert job.runtime.state.last_checkpoint == 1
    assert places(job)["a"] == "skipped, None rows"
    assert job.register(0).accepted.skipped_splits == ("a",)


def test_a_skip_survives_the_driver() -> None:
    job = job_of("a", "b")
    first = job.register(0)
    ask(first)
    checkpoint(job, first)
    skip(job, "b")
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log, clock=job.clock)

    assert places(job) == {"a": "with 0", "b": "skipped"}
    assert job.runtime.state.skipped_splits["source", "b"].reason == "bad rows"


def test_a_split_that_is_finished_or_unknown_is_not_skipped() -> None:
    job = job_of("a")
    attempt = job.register(0)
    ask(attempt)
    attempt.finish_split("source", "a")

    with pytest.raises(RequestRefusedError, match=r"'a' has been read to its end, by subtask 0"):
        skip(job, "a").answer()
    with pytest.raises(RequestRefusedError, match=r"there is no split 'x'"):
        skip(job, "x").answer()
    assert not [one for one in job.history(Kind.FACT) if one.payload_type == SKIPPED]
    assert [one.attributes["outcome"] for one in job.history(Kind.RESPONSE)] == ["refused"] * 2


@pytest.mark.parametrize("phase", [Phase.ENDING, Phase.FINISHED, Phase.FAILED])
def test_no_split_of_a_job_that_is_over_is_skipped(phase: Phase) -> None:
    state = job_of("a").runtime.state
    assert why_not_skippable(state, "a") is None
    assert why_not_skippable(replace(state, phase=phase), "a") == (
        f"the job is {phase.value}: nothing of it is read any more"
    )


def test_what_a_dead_attempt_says_of_a_skip_is_recorded_only() -> None:
    job = job_of("a")
    attempt = job.register(0)
    ask(attempt)
    job.is_held = True
    attempt.fail()
    attempt.skip_split("source", "a")
    job.release()

    assert places(job) == {"a": "enumerator"}
    assert "attempt 0 of subtask 0 is over" in [one.reason for one in job.history(Kind.FACT)]


def test_a_kept_split_of_a_batch_job_stays_and_a_skipped_one_stays_skipped() -> None:
    job = job_of("a", "b", "c", is_batch=True)
    first = job.register(0)
    ask(first)
    first.finish_split("source", "a")
    ask(first)
    first.skip_split("source", "b")
    first.fail()

    assert places(job) == {"a": "finished by 0", "b": "skipped", "c": "enumerator"}


# --- poison ----------------------------------------------------------------------------------------


def test_the_third_failure_in_a_row_at_a_split_names_the_skip_command() -> None:
    job = job_of("it's here/part-3.csv")
    for _ in range(3):
        attempt = job.register(0)
        attempt.fail("bad row\n" + "x" * 10_000, split_id="it's here/part-3.csv")

    reasons = [str(reason_in_words(one)) for one in job.history(Kind.ATTEMPT_FAILED)]
    assert ["is poison" in one for one in reasons] == [False, False, True]
    command = reasons[-1].split("`")[1]
    assert shlex.split(command) == [
        *("coordlog", "skip", "job", "--split", "it's here/part-3.csv"),
        *("--reason", "3 attempts in a row failed at it"),
    ]


@pytest.mark.parametrize(
    ("at", "what", "option"),
    [
        ({"split_id": "a"}, "split 'a'", "--split a"),
        (
            {"event": "source/test.down@1/9f", "event_sequence": "7"},
            "event 'source/test.down@1/9f'",
            "--event 7",
        ),
    ],
)
def test_poison_is_named_within_a_reason_before_its_traceback(
    at: dict[str, str], what: str, option: str
) -> None:
    job = job_of("a")
    job.register(0).fail("x")
    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    reason = "x" * REASON_CHARS_MAX + "\ntraceback"
    failed = replace(failed, reason=reason, attributes={**at, "poison": "4"})

    assert reason_in_words(replace(failed, attributes=at)) == reason
    assert reason_in_words(failed) == (
        f"{'x' * (REASON_CHARS_MAX // 4)}; {what} is poison: 4 attempts in a row have failed at it; "
        f"to continue without it: "
        f"`coordlog skip job {option} --reason '4 attempts in a row failed at it'`\ntraceback"
    )


@pytest.mark.may_fail("xxx")
def test_a_failed_job_names_poison_once_in_its_record_and_its_error() -> None:
    def twice(config: KernelConfig) -> KernelConfig:
        return replace(config, restarts_max=2)

    job = HandDrivenJob(chain_of(pull_of("a")), configure=twice)
    for _ in range(3):
        job.register(0).fail("bad row\n" + "x" * 10_000, split_id="a")

    (failed,) = job.history(Kind.JOB_FAILED)
    assert failed.attributes["split_id"] == "a"
    assert "coordlog skip" not in str(failed.reason)
    assert "`coordlog skip job --split a --reason" in str(reason_in_words(failed))
    end = job.runtime.outcome
    assert end is not None
    assert len(end.reasons) == 1, "equal reasons are one"
    error = JobFailedError("job", end.reasons, end.where, end.final, end.skip_command)
    command = str(error).split("; to continue without it: `")[1]
    assert shlex.split(command.rstrip("`"))[:5] == ["coordlog", "skip", "job", "--split", "a"]


def test_a_skip_ends_the_count_of_failures() -> None:
    job = job_of("a", "b")
    for _ in range(2):
        job.register(0).fail(split_id="a")
    assert job.runtime.state.poison["split_id:a"] == 2
    skip(job, "a")
    assert "split_id:a" not in job.runtime.state.poison


# --- events ----------------------------------------------------------------------------------------


def test_a_skipped_event_is_not_redelivered_and_counts_as_processed() -> None:
    provider = NotingProvider()
    done: list[str] = []

    def note(future: EventFuture) -> None:
        try:
            future.result()
            done.append("processed")
        except AttemptNotRunningError:
            done.append("failed")

    provider.on["ready"] = lambda c, *_: c.gateways[0].send_event(Down(n=1)).add_done_callback(note)
    job = HandDrivenJob(noting_chain(provider))
    job.register(0).fail()
    sent = job.history(Kind.EVENT_TO_SUBTASK)[0]
    assert done == ["failed"]
    answer = skip_event(job, sent.sequence or 0).answer()
    assert answer.response == SkipRecorded(was_skipped_before=False)
    second = job.register(0)

    assert second.got(DeliverEvent) == []
    assert done == ["failed", "processed"]
    acked = job.history(Kind.EVENT_ACKED)[-1]
    assert acked.reason == "it is skipped and not delivered: it kills them"
    assert job.trigger() == 1, "a checkpoint does not wait for it"
    second.ack_checkpoint(1)
    assert job.runtime.state.last_checkpoint == 1


def test_a_skip_of_an_event_that_is_asked_for_again_is_recorded_once() -> None:
    job = HandDrivenJob(noting_chain(NotingProvider()))
    job.register(0).send("source", Up(n=5))
    sent = job.history(Kind.EVENT_TO_COORDINATOR)[0].sequence or 0
    before = skip_event(job, sent).answer()
    facts = len(job.history(Kind.FACT))
    again = skip_event(job, sent).answer()

    assert before.response == SkipRecorded(was_skipped_before=False)
    assert again.response == SkipRecorded(was_skipped_before=True)
    assert len(job.history(Kind.FACT)) == facts


def test_a_used_skip_of_an_event_can_be_asked_for_again() -> None:
    job = HandDrivenJob(noting_chain(NotingProvider()))
    attempt = job.register(0)
    attempt.send("source", Up(n=5))
    sent = job.history(Kind.EVENT_TO_COORDINATOR)[0].sequence or 0
    for _ in range(2):
        answer = skip_event(job, sent).answer()
        assert answer.response == SkipRecorded(was_skipped_before=False)
        attempt.send("source", Up(n=5))
        attempt.send("source", Up(n=5))

    assert len(job.history(Kind.EVENT_TO_COORDINATOR)) == 3, "two of five are skipped"


def test_an_event_is_skipped_by_way_subtask_type_content_and_operator() -> None:
    """Snapshots hold these keys."""

    def key(*, is_down: bool) -> str:
        return event_key(
            operator_id="source", subtask=3, is_down=is_down, event_type="rate@1", digest="9f"
        )

    assert key(is_down=True) == "down/3/rate@1/9f/source"
    assert key(is_down=False) == "up/3/rate@1/9f/source"


def test_another_event_of_its_type_or_to_another_subtask_is_delivered() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(noting_chain(provider), parallelism=2)
    provider.on["ready"] = lambda c, subtask, *_: (
        c.gateways[subtask].send_event(Down(n=1)),
        c.gateways[subtask].send_event(Down(n=2)),
    )
    job.register(0).fail()
    skip_event(job, job.history(Kind.EVENT_TO_SUBTASK)[0].sequence or 0)

    assert len(job.register(0).got(DeliverEvent)) == 1
    assert len(job.register(1).got(DeliverEvent)) == 2


@pytest.mark.may_fail("scripted", "not this one")
def test_an_event_that_raises_three_times_is_skipped_at_redelivery() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(noting_chain(provider))
    attempt = job.register(0)
    assert job.trigger() == 1
    attempt.send("source", Up(n=5))  # between the coordinator's cut and the barrier: channel state
    attempt.ack_checkpoint(1)
    assert job.runtime.state.last_checkpoint == 1

    def refuse(*_: object) -> None:
        raise ValueError("not this one")

    provider.on["event"] = refuse
    fail_globally(job)
    failures = job.history(Kind.GLOBAL_FAILURE)[1:]
    sent = job.history(Kind.EVENT_TO_COORDINATOR)[0]
    assert {one.attributes["event_sequence"] for one in failures} == {str(sent.sequence)}
    command = f"coordlog skip job --event {sent.sequence} "
    said = [str(reason_in_words(one)) for one in failures[:3]]
    assert [command in reason for reason in said] == [False, False, True]
    skip_event(job, sent.sequence or 0)
    handled = len(provider.said("event"))
    job.advance(600)

    assert job.runtime.state.phase is Phase.RUNNING
    assert len(provider.said("event")) == handled
    again = job.history(Kind.EVENT_REDELIVERED)[-1]
    assert again.reason == "not handled: it is skipped: it kills them"


def test_a_skipped_event_that_is_sent_again_is_recorded_and_not_handled() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(noting_chain(provider))
    attempt = job.register(0)
    attempt.send("source", Up(n=5))
    skip_event(job, job.history(Kind.EVENT_TO_COORDINATOR)[0].sequence or 0)
    attempt.send("source", Up(n=5))
    attempt.send("source", Up(n=6))

    assert len(provider.said("event")) == 2
    refused = [one for one in job.history(Kind.FACT) if one.subtask == 0 and one.reason]
    assert "event test.up@1 is skipped: it kills them" in [one.reason for one in refused]
