"""Requests that the driver answers itself: a stop, a checkpoint, the kill of an attempt (clause J1)."""

from __future__ import annotations

import pytest

from coordlog.errors import RequestRefusedError
from coordlog.kernel.inputs import Asker, RequestArrived
from coordlog.kernel.outputs import StopDriver
from coordlog.kernel.step import step
from coordlog.projections.job.state import DriverStop
from coordlog.schemas.builtin_types import (
    AttemptKilled,
    CheckpointQueued,
    CheckpointWanted,
    KillAttempt,
    StopRecorded,
    StopWanted,
)
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.record import Kind, Record
from coordlog.testing.driven_job import HandDrivenJob
from fakes.kernel_fakes import NotingProvider, chain_of

pytestmark = pytest.mark.clause("J1")

ADA = Asker(user="ada", host="laptop-3", pid=9012, command="stop")


def made_job(*, is_batch: bool = False) -> HandDrivenJob:
    job = HandDrivenJob(chain_of(NotingProvider()), is_batch=is_batch, parallelism=2)
    job.register_all()
    return job


def turn_of(job: HandDrivenJob, request: Payload, asker: Asker | None = ADA) -> tuple[Record, ...]:
    """The records of one request, from a client that names itself."""
    declared = payload_type_of(request)
    arrived = RequestArrived(
        request_id=1,
        operator_id="",
        payload_type=declared.key,
        payload=declared.encode(request),
        asked_by=asker,
    )
    runtime = job.runtime
    made = step(runtime._config, runtime.state, arrived, runtime.now_us + 1)
    return tuple(record for record in made.records if record.kind is not Kind.TYPE_REGISTERED)


def refused(job: HandDrivenJob, request: Payload) -> str:
    with pytest.raises(RequestRefusedError) as error:
        job.ask("", request).answer()
    return error.value.reason


def test_a_stop_is_one_turn_of_request_fact_and_answer_with_its_asker() -> None:
    request, fact, response = turn_of(made_job(), StopWanted(with_checkpoint=True))

    assert [request.kind, fact.kind, response.kind] == [Kind.REQUEST, Kind.FACT, Kind.RESPONSE]
    assert dict(request.attributes) == {
        "user": "ada",
        "host": "laptop-3",
        "pid": "9012",
        "command": "stop",
    }
    assert fact.reason == "stop requested by ada on laptop-3 (process 9012, coordlog stop)"
    assert response.cause == request.sequence


def test_names_of_a_client_are_cut_before_they_are_recorded() -> None:
    long = Asker(user="u" * 5000, host="h" * 5000, pid=1, command="c" * 5000)
    request, *_ = turn_of(made_job(), StopWanted(with_checkpoint=True), long)

    assert max(map(len, request.attributes.values())) == 200
    nameless, *_ = turn_of(made_job(), StopWanted(with_checkpoint=True), None)
    assert dict(nameless.attributes) == {}


def test_a_stop_begins_only_once_its_record_is_in_the_log() -> None:
    stops: list[StopDriver] = []
    job = HandDrivenJob(chain_of(NotingProvider()), is_held=True)
    job.runtime._on_stop = stops.append
    asked = job.ask("", StopWanted(with_checkpoint=False))
    assert (asked.is_open, stops) == (True, [])

    job.release()

    assert asked.answer().response == StopRecorded(with_checkpoint=False, was_asked_before=False)
    assert [stop.with_checkpoint for stop in stops] == [False]
    assert job.runtime.state.driver_stop is DriverStop.ASKED
    assert job.runtime.is_stopping


def test_a_batch_stops_without_a_checkpoint_and_takes_no_savepoint() -> None:
    job = made_job(is_batch=True)
    assert "a batch takes no checkpoint" in refused(
        job, StopWanted(with_checkpoint=True, savepoint="x")
    )
    assert "the job is a batch and takes no checkpoints" in refused(job, CheckpointWanted())
    answer = job.ask("", StopWanted(with_checkpoint=True)).answer().response
    assert answer == StopRecorded(with_checkpoint=False, was_asked_before=False)


def test_a_wanted_checkpoint_is_the_next_one_and_begins_at_once() -> None:
    job = made_job()
    answer = job.ask("", CheckpointWanted()).answer().response

    assert answer == CheckpointQueued(checkpoint=1)
    assert [record.checkpoint_id for record in job.history(Kind.CHECKPOINT_TRIGGERED)] == [1]


def test_a_killed_attempt_is_reset_alone_and_not_counted() -> None:
    job = made_job()
    answer = job.ask("", KillAttempt(subtask=1, why="stands still")).answer().response

    assert answer == AttemptKilled(attempt_number=0)
    (failed,) = job.history(Kind.ATTEMPT_FAILED)
    assert (failed.subtask, failed.attempt_number) == (1, 0)
    assert failed.reason == "killed by a client: stands still"
    (reset,) = job.history(Kind.SUBTASK_RESET)
    assert reset.attributes["counted"] == "false"
    assert job.runtime.state.failures_us == ()
    assert job.runtime.state.attempt(0, 0) is not None


@pytest.mark.parametrize(
    ("kill", "reason"),
    [
        (KillAttempt(subtask=2, why=""), "there is no subtask 2: they are 0 to 1"),
        (KillAttempt(subtask=1, attempt_number=5, why=""), "attempt 5 of subtask 1 is not live"),
    ],
    ids=["subtask", "attempt"],
)
def test_an_attempt_that_does_not_live_is_not_killed(kill: KillAttempt, reason: str) -> None:
    job = made_job()
    assert reason in refused(job, kill)
    assert job.history(Kind.ATTEMPT_FAILED) == []
    (response,) = job.history(Kind.RESPONSE)
    assert response.attributes["outcome"] == "refused", "the refusal is in the history"


def test_a_subtask_without_an_attempt_has_none_to_kill() -> None:
    job = made_job()
    job.ask("", KillAttempt(subtask=1, why=""))
    assert refused(job, KillAttempt(subtask=1, why="")) == "subtask 1 has no attempt now"
