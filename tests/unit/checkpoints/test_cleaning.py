"""Only names that the log has given up are cleaned, and only once it has (clause I4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

import pytest

from coordlog.runtime import effects
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kernel_fakes import FakeSink, Intent, Noting, NotingProvider, Up, chain_of


class StagingSink(FakeSink):
    """Notes which attempt is cleaned after, and what stays."""

    def __init__(self) -> None:
        super().__init__()
        self.cleaned: list[tuple[str, int, int, set[str]]] = []

    def clean(
        self, *, driver_id: str, subtask: int, attempt_number: int, keep: AbstractSet[str]
    ) -> None:
        self.cleaned.append((driver_id, subtask, attempt_number, set(keep)))

    def sweep(self, *, keep: AbstractSet[str], is_in_force: Callable[[], bool]) -> None:
        raise AssertionError(keep)

    def staged_names(self, committables: Sequence[bytes]) -> frozenset[str]:
        return frozenset(one.decode() for one in committables)

    def intent_names(self, intent: Payload) -> frozenset[str]:
        assert isinstance(intent, Intent)
        return frozenset(intent.names)


def started(
    provider: NotingProvider, *, is_batch: bool = False
) -> tuple[HandDrivenJob, FakeAttempt, FakeAttempt]:
    job = HandDrivenJob(
        chain_of(provider, keeps_state=not is_batch), parallelism=2, is_batch=is_batch
    )
    first, second = job.register_all()
    return job, first, second


@pytest.mark.clause("I4")
def test_an_attempts_remains_are_cleaned_except_what_the_log_still_holds() -> None:
    sink = StagingSink()
    provider = NotingProvider(sink=sink, is_committing=False)
    job = HandDrivenJob(chain_of(provider), parallelism=3)
    first, second, third = job.register_all()
    job.trigger()
    first.ack_checkpoint(1, committables=[("source", b"granted")])
    second.ack_checkpoint(1)
    third.ack_checkpoint(1)
    job.trigger()
    first.ack_checkpoint(2, committables=[("source", b"given up")])
    second.ack_checkpoint(2, committables=[("source", b"of the other")])

    first.lose()

    assert sink.cleaned == [("driver-0", 0, 0, {"granted", "of the other"})]


@pytest.mark.clause("I4")
@pytest.mark.clause("K1")
def test_cleaning_waits_for_the_record_that_abandons_the_files() -> None:
    sink = StagingSink()
    job, first, second = started(NotingProvider(sink=sink, is_committing=False))
    job.trigger()
    first.ack_checkpoint(1, committables=[("source", b"given up")])
    job.is_held = True

    first.lose()
    assert sink.cleaned == []
    job.release()

    assert sink.cleaned == [("driver-0", 0, 0, set())]
    assert second.got(object), "the other lives on"


@pytest.mark.clause("H3")
@pytest.mark.clause("I4")
def test_what_an_open_intent_names_stays_though_its_attempt_is_gone() -> None:
    sink = StagingSink()
    sink.failures = 1_000
    provider = NotingProvider(sink=sink)
    job, first, second = started(provider)
    job.trigger()
    first.ack_checkpoint(1, committables=[("source", b"intended")])
    second.ack_checkpoint(1)
    assert len(job.runtime.state.intents) == 1

    first.lose()

    assert sink.cleaned == [("driver-0", 0, 0, {"intended"})]


@pytest.mark.clause("I4")
@pytest.mark.clause("L4")
def test_in_batch_files_of_a_finished_split_stay_without_its_attempt() -> None:
    sink = StagingSink()
    _job, first, _second = started(NotingProvider(sink=sink), is_batch=True)
    first.finish_split("source", "a", committables=[("source", b"rows of a")])

    first.lose()

    assert sink.cleaned == [("driver-0", 0, 0, {"rows of a"})]


@pytest.mark.clause("I4")
def test_a_sink_that_cannot_clean_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(StagingSink):
        def clean(
            self, *, driver_id: str, subtask: int, attempt_number: int, keep: AbstractSet[str]
        ) -> None:
            raise OSError("scripted")

    provider = NotingProvider(sink=Broken())
    job, first, _second = started(provider)

    first.lose()

    assert "cleaning after attempt 0/0: scripted" in caplog.text
    assert job.register(0).accepted.attempt_number == 1
    assert isinstance(provider.newest, Noting)


@pytest.mark.clause("I4")
def test_late_messages_of_an_ended_attempt_clean_once_more_only() -> None:
    """It may have staged something before it heard of its end; each message after that would list the destination."""
    sink = StagingSink()
    provider = NotingProvider(sink=sink)
    job, first, _ = started(provider)
    job.register(0)
    assert [one[:3] for one in sink.cleaned] == [("driver-0", 0, 0)]
    for n in range(20):
        first.send("source", Up(n=n))

    assert [one[:3] for one in sink.cleaned] == [("driver-0", 0, 0)] * 2
    refused = [one for one in job.history(Kind.FACT) if one.subtask == 0]
    assert len(refused) == 20


def test_the_number_of_failed_attempts_that_are_remembered_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(effects, "_CLEANED_ATTEMPTS_MAX", 3, raising=False)
    sink = StagingSink()
    job, _first, _ = started(NotingProvider(sink=sink))
    for _ in range(6):
        job.register(0).lose()

    assert len(job.runtime._releasing._cleanings) == 3
    assert len(sink.cleaned) == 7
