"""A coordinator that answers clients, and has work done before each of its cuts; the one of the rounds' transform.

Each request, answer, fact and piece of work carries a name in angle brackets, which a reader of the topic finds again.
"""

# No `from __future__ import annotations` here: payloads are declared below.

import os
from collections.abc import Callable
from pathlib import Path

from chaos.steps import Steps
from coordlog.api.coordinator import (
    CheckpointResult,
    CoordinatorContext,
    CoordinatorProvider,
    OperatorCoordinator,
)
from coordlog.errors import RequestRefusedError
from coordlog.schemas.payload import Payload, fact, payload_type_of, request, response

__all__ = ["WORK_TYPE", "AskedProvider", "NameWanted", "Named", "work_name"]


@request("chaos.name_wanted", version=1)
class NameWanted(Payload):
    """Asks for its own name."""

    name: str
    is_refused: bool


@response("chaos.named", version=1)
class Named(Payload):
    """The name that was asked for."""

    name: str


@fact("chaos.work_wanted", version=1)
class WorkWanted(Payload):
    """Some work is to be done, once this is in the log."""

    name: str


@fact("chaos.work_done", version=1)
class WorkDone(Payload):
    """What it came to."""

    name: str


WORK_TYPE = payload_type_of(WorkWanted).key


def work_name(checkpoint_id: int) -> str:
    """Of the work before a checkpoint's cut: no two checkpoints of a job that count share an id (clause F7)."""
    return f"<work {checkpoint_id}>"


class AskedProvider(CoordinatorProvider):
    """Makes the coordinators of one driver.

    Args:
        operator_id: The operator.
        folder: Where the work leaves a file: its name is the work's, in it stands who has done it.
        who: The driver's name.
        steps: One before the work's file is made.
    """

    payload_types: tuple[type[Payload], ...] = (NameWanted, Named, WorkWanted, WorkDone)

    def __init__(self, operator_id: str, *, folder: Path, who: str, steps: Steps) -> None:
        self.operator_id = operator_id
        self._folder, self._who, self._steps = folder, who, steps

    def create(self, context: CoordinatorContext) -> OperatorCoordinator:
        """See `CoordinatorProvider`."""
        return _Asked(context, self._do)

    def _do(self, name: str) -> WorkDone:
        """On a worker. A file that is there already is an error: a name belongs to one driver."""
        self._steps.did(works=name)
        self._steps.at("in asynchronous work")
        self._folder.mkdir(parents=True, exist_ok=True)
        file = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, self._who.encode())
        finally:
            os.close(file)
        return WorkDone(name=name)


class _Asked(OperatorCoordinator):
    """Its cut of each checkpoint waits for the work that it has begun for it."""

    def __init__(self, context: CoordinatorContext, do: Callable[[str], WorkDone]) -> None:
        self._context, self._do = context, do

    def handle_event_from_operator(self, subtask: int, attempt_number: int, event: Payload) -> None:
        raise AssertionError(f"attempt {attempt_number} of subtask {subtask} sends {event}")

    def handle_coordination_request(self, request: Payload) -> Payload:
        assert isinstance(request, NameWanted)
        if request.is_refused:
            raise RequestRefusedError(f"{request.name} was to be refused")
        return Named(name=request.name)

    def checkpoint_coordinator(self, checkpoint_id: int, result: CheckpointResult) -> None:
        name = work_name(checkpoint_id)

        def done(value: Payload | None, error: str | None) -> None:
            if error is not None:
                result.fail(error)
                return
            assert isinstance(value, WorkDone)
            assert value.name == name
            result.complete(b"")

        self._context.record(WorkWanted(name=name))
        self._context.call_async(lambda: self._do(name), done)
