"""What a small change of the kernel would break unseen: each of these was found by mutating its code."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from coordlog.schemas.builtin import CheckpointMetadata
from coordlog.schemas.record import Kind
from coordlog.testing.by_hand import HandDrivenJob
from kernel_fakes import HANDLED, FakeSink, NotingProvider, Up, chain_of, inside, send_down


@pytest.mark.clause("D5")
def test_lost_events_are_those_of_the_coordinators_own_operator() -> None:
    source, other = NotingProvider("source"), NotingProvider("other")
    job = HandDrivenJob(chain_of(source, other))
    attempt = job.register(0)
    attempt.send("source", Up(n=1))
    attempt.send("other", Up(n=2))
    inside(attempt, source, send_down(source, 0, 3))
    inside(attempt, other, send_down(other, 0, 4))
    attempt.lose()

    assert [set(up) & {1, 2} for up, _ in source.lost] == [{1}]
    assert [set(up) & {1, 2} for up, _ in other.lost] == [{2}]
    assert [down for _, down in source.lost] == [[3]]
    assert [down for _, down in other.lost] == [[4]]


@pytest.mark.clause("E2")
def test_a_reset_says_whether_a_failover_or_a_new_driver_made_it() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()))
    job.register(0)
    job.run(lambda: job.runtime.fail_job("source", "scripted"))
    job.stage_ends("cancelled")
    job.advance(60)
    job.crash()
    job = HandDrivenJob(job.chain, log=job.log)

    said = [
        (one.attributes["restore"], one.attributes["counted"])
        for one in job.history(Kind.RESET_TO_CHECKPOINT)
    ]
    assert said == [("failover", "true"), ("rollback", "false")]


@pytest.mark.clause("E2")
def test_what_died_with_its_driver_does_not_count_against_the_restart_policy() -> None:
    job = HandDrivenJob(chain_of(NotingProvider(projection=HANDLED)), is_batch=True)
    job.register(0)
    job.crash()
    job = HandDrivenJob(job.chain, is_batch=True, log=job.log)

    assert [one.attributes.get("counted") for one in job.history(Kind.SUBTASK_RESET)] == ["false"]
    assert job.runtime.state.failures_us == ()


@pytest.mark.clause("F11")
def test_the_metadata_of_a_checkpoint_name_the_subtasks_that_had_finished() -> None:
    job = HandDrivenJob(chain_of(NotingProvider()), parallelism=3)
    first, second, third = job.register_all()
    second.complete()
    number = job.trigger()
    assert number is not None
    for one in (first, third):
        one.ack_checkpoint(number)

    (record,) = job.history(Kind.CHECKPOINT_COMPLETED)
    found = job.chain.payload_types.decode(record.payload_type or "", record.payload)
    metadata = cast("CheckpointMetadata", found)
    assert [one.subtask for one in metadata.finished] == [1]
    assert [one.subtask for one in metadata.subtasks] == [0, 2]


@pytest.mark.clause("H3")
def test_a_commit_that_fails_is_tried_again_after_pauses_that_double() -> None:
    sink = FakeSink()
    job = HandDrivenJob(
        chain_of(NotingProvider(sink=sink)),
        configure=lambda config: replace(config, restart_backoff_s=1.0, restart_backoff_max_s=60.0),
    )
    attempt = job.register(0)
    sink.failures = 3
    job.trigger()
    attempt.ack_checkpoint(1, committables=[("source", b"a")])
    tried = [sink.tries]
    for factor in (2, 4, 8):
        job.advance(factor * 0.9)
        tried.append(sink.tries)
        job.advance(factor * 0.2)
        tried.append(sink.tries)

    assert tried == [1, 1, 2, 2, 3, 3, 4]
    assert sink.settled == [("a",)]


@pytest.mark.clause("F10")
@pytest.mark.clause("F12")
def test_neither_a_subsumed_checkpoint_nor_a_declined_one_counts_as_timed_out() -> None:
    provider = NotingProvider()
    job = HandDrivenJob(
        chain_of(provider), configure=lambda config: replace(config, is_overlap_allowed=True)
    )
    attempt = job.register(0)
    job.trigger()
    job.trigger()
    attempt.ack_checkpoint(2)
    provider.is_cut_at_once = False
    job.trigger()
    inside(attempt, provider, lambda coordinator: coordinator.results[3].fail("declined"))

    aborted = {one.checkpoint_id: one.attributes for one in job.history(Kind.CHECKPOINT_ABORTED)}
    assert {one: dict(said) for one, said in aborted.items()} == {1: {"subsumed": "true"}, 3: {}}
    assert job.runtime.state.timeouts_in_a_row == 0
    assert job.runtime.state.aborts_in_a_row == 1
