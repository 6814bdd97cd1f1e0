"""A job whose coordinator and attempt tell each other secrets, and its log."""

from __future__ import annotations

from coordlog.api.chain import Chain, SourceSpec
from coordlog.api.coordinator import (
    CoordinatorContext,
    CoordinatorProvider,
    OperatorCoordinator,
    SubtaskGateway,
)
from coordlog.api.operator import Poll, PollStatus, SourceReader
from coordlog.log.memory import MemoryLog
from coordlog.messages import DeliverEvent
from coordlog.schemas.payload import Payload
from coordlog.testing import HandDrivenJob
from histories.secret_payloads import SEALED, Login, Logins

__all__ = ["SECRETS", "secret_log"]

SECRETS = ("hunter-two-2", "0815-4711-0", "tok-en-99-99")
_PASSWORD, _PIN, _TOKEN = SECRETS


class _Coordinator(OperatorCoordinator):
    def __init__(self, context: CoordinatorContext) -> None:
        self._context = context
        self._gateway: SubtaskGateway | None = None

    def execution_attempt_ready(
        self, subtask: int, attempt_number: int, gateway: SubtaskGateway
    ) -> None:
        del subtask, attempt_number
        self._gateway = gateway
        gateway.send_event(_login("of the coordinator"))
        self._context.record(Logins(first=_login("first"), others=[_login("other")]))

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        """Say it again: what was sealed goes on as it is."""
        del subtask, attempt_number
        assert isinstance(event, Login)
        assert event.token is not None
        assert SEALED.open(event.token) == _TOKEN
        assert self._gateway is not None
        self._gateway.send_event(event)


class _Provider(CoordinatorProvider):
    operator_id = "source"
    payload_types: tuple[type[Payload], ...] = (Login, Logins)

    def create(self, context: CoordinatorContext) -> _Coordinator:
        return _Coordinator(context)


class _Reader(SourceReader):
    def add_splits(self, splits: object) -> None: ...

    def poll(self) -> Poll:
        return Poll(status=PollStatus.WAITING)

    def snapshot_state(self, checkpoint_id: int) -> bytes:
        del checkpoint_id
        return b""


def _login(user: str) -> Login:
    return Login(user=user, password=_PASSWORD, pin=_PIN, token=_TOKEN)


def secret_log() -> MemoryLog:
    """What the job has appended: events down and up, facts, a checkpoint, a restore."""
    source = SourceSpec(operator_id="source", create_reader=_Reader, coordinator=_Provider())
    chain = Chain(source=source, operators=[])
    job = HandDrivenJob(chain)
    (attempt,) = job.register_all()
    attempt.send("source", _login("of the attempt"))
    got = [
        chain.payload_types.decode(one.payload_type, one.payload)
        for one in attempt.got(DeliverEvent)
    ]
    assert [SEALED.open(one.token or "") for one in got if isinstance(one, Login)] == [_TOKEN] * 2
    job.trigger()
    job.crash()
    again = HandDrivenJob(chain, log=job.log)
    again.register_all()
    return again.log
