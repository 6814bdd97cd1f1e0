"""A client of one driver, in a process of its own: asks again and again, and notes what it is told."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from chaos.asked import Named, NameWanted
from chaos.child import Ordered, enter, wait_until
from chaos.steps import Steps, Told, read_notes
from coordlog.errors import RequestError, RequestRefusedError
from coordlog.spark_integration.driver.driver_file import driver_files
from coordlog.spark_integration.wire.client import CoordinatorClient
from coordlog.spark_integration.wire.token import Token

__all__ = ["ASKED_OPERATOR", "ClientOrders", "run_client"]

ASKED_OPERATOR = "transform"
_BEGINS_S = 90.0
_ANSWER_S = 120.0
"""Longer than any driver stands still."""
_PAUSE_S = 0.02
_ASKS_MAX = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOrders:
    """What a client is told."""

    name: str
    root: str
    job_id: str
    driver: str
    """The name of the driver that it asks."""
    over: str
    """Once this file is there it asks no more."""
    pause_at: tuple[str, int] | None = None


def run_client(orders: Ordered) -> None:
    """Ask until it is told that the round is over. The process's target."""
    assert isinstance(orders, ClientOrders)
    steps = enter(orders)
    over = Path(orders.over)
    token: Token | None = None
    endpoint = ""

    def is_found() -> bool:
        nonlocal token, endpoint
        notes = read_notes(Path(orders.root) / f"{orders.driver}.notes")
        endpoint = next((one["listens"] for one in notes if "listens" in one), "")
        token = _token_at(orders.job_id, endpoint)
        return over.exists() or token is not None

    wait_until(is_found, _BEGINS_S, f"where driver {orders.driver} listens")
    if token is None:
        return
    ours = CoordinatorClient(endpoint=endpoint, token=token, response_types=(Named,))
    stranger = _Stranger(endpoint=endpoint, token=Token.new(), response_types=(Named,))
    pause = threading.Event()
    with ours, stranger:
        for number in range(_ASKS_MAX):
            if over.exists():
                return
            name = f"<ask {os.getpid()} {number}>"
            client = stranger if number % 4 == 3 else ours
            _ask(client, name, steps, is_refused=number % 4 == 1, is_stranger=client is stranger)
            pause.wait(_PAUSE_S)


class _Stranger(CoordinatorClient):
    """Shows its token at once, as no client of ours does: the driver is to refuse it."""

    def _require_proof(self, timeout_s: float) -> None:
        del timeout_s


def _token_at(job_id: str, endpoint: str) -> Token | None:
    at_endpoint = (one.token for one in driver_files(job_id) if one.endpoint == endpoint)
    return next(at_endpoint, None)


def _ask(
    client: CoordinatorClient, name: str, steps: Steps, *, is_refused: bool, is_stranger: bool
) -> None:
    told = Told(
        name=name,
        is_refused=is_refused,
        is_stranger=is_stranger,
        how="open",
        says="",
        sequence=None,
    )
    steps.did(told=told)
    try:
        answer = client.ask(
            ASKED_OPERATOR, NameWanted(name=name, is_refused=is_refused), timeout_s=_ANSWER_S
        )
    except RequestRefusedError as error:
        told["how"], told["says"] = "refused", str(error)
    except RequestError as error:
        told["how"], told["says"] = "unanswered", str(error)
    else:
        assert isinstance(answer.response, Named)
        told["how"], told["says"] = "answered", answer.response.name
        told["sequence"] = answer.sequence
    steps.did(told=told)
