"""Coordinators that answer requests; what they were asked is noted."""

# No `from __future__ import annotations` here: payloads are declared below.

from dataclasses import dataclass, field

from coordlog.api.coordinator import CoordinatorContext, OperatorCoordinator
from coordlog.schemas.payload import Payload, request, response
from fakes.kernel_fakes import TYPES, Noting, NotingProvider


@request("test.how_many", version=1)
class HowMany(Payload):
    of: str = ""


@response("test.so_many", version=1)
class SoMany(Payload):
    n: int


class Answering(Noting):
    """Notes each request and does what `provider.on["request"]` does; answers how many it was asked."""

    def handle_coordination_request(self, request: Payload) -> Payload:
        of = request.of if isinstance(request, HowMany) else ""
        self.provider.calls.append(("request", of))
        act = self.provider.on.get("request")
        made = None if act is None else act(self)
        return made if isinstance(made, Payload) else SoMany(n=len(self.provider.said("request")))


class AnsweringFolded(Answering):
    """With a projection: its part of a checkpoint is its cut."""

    checkpoint_coordinator = OperatorCoordinator.checkpoint_coordinator


@dataclass(eq=False)
class AnsweringProvider(NotingProvider):
    """Makes `Answering` coordinators."""

    payload_types: tuple[type[Payload], ...] = field(default=(*TYPES, HowMany, SoMany))

    def create(self, context: CoordinatorContext) -> Noting:
        self.calls.append(("create",))
        kind = Answering if self.projection is None else AnsweringFolded
        self.made.append(kind(context, self))
        return self.made[-1]
