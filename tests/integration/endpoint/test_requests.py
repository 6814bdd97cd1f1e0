"""Requests to a real driver: from its own process, and from others over its endpoint, with the token and without."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from websockets.exceptions import InvalidStatus

from coordlog.errors import (
    CoordinatorRestartingError,
    EnvironmentSetupError,
    NoSuchOperatorError,
    OptionError,
    PayloadTypeError,
    RequestFailedError,
    RequestRefusedError,
    RequestUnansweredError,
    TooLargeError,
    UsageError,
)
from coordlog.limits import CONNECTION_CLOSE_S
from coordlog.log.memory import MemoryLog
from coordlog.runtime.driver import DriverOptions, JobDriver
from coordlog.runtime.requests import Answer, Requests
from coordlog.schemas.payload import Payload, PayloadTypes
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration import request_coordinator
from coordlog.spark_integration.driver.endpoint import Endpoint
from coordlog.spark_integration.wire.client import CoordinatorClient
from coordlog.spark_integration.wire.messages import REQUEST_PATH, AskCoordinator, Heartbeat, encode
from coordlog.spark_integration.wire.token import Token
from fakes import request_fakes_changed
from fakes.endpoint_parts import TOKEN, EndpointSurroundings, connected, running, wait_for
from fakes.kernel_fakes import Noting, Stranger, chain_of
from fakes.request_fakes import AnsweringProvider, HowMany, SoMany

WAIT_S = 20.0
CLIENTS = 8

pytestmark = [pytest.mark.slow, pytest.mark.clause("J1")]


class RunningJob:
    """One driver of a job that never ends by itself."""

    def __init__(self) -> None:
        self.provider = AnsweringProvider()
        self.log = MemoryLog("job")
        chain = chain_of(self.provider)
        self.surroundings = EndpointSurroundings(chain, "job", 1)
        self.released: list[Record] = []
        self.driver = JobDriver(
            chain=chain,
            log=self.log,
            options=DriverOptions(
                job_id="job", parallelism=1, is_batch=False, restart_backoff_s=0.01
            ),
            surroundings=self.surroundings,
            on_released=self._released,
        )
        self.driver.start()

    def _released(self, records: Sequence[Record]) -> None:
        self.released.extend(records)

    def ask(
        self, of: str = "", *, operator_id: str = "source", request: Payload | None = None
    ) -> Answer:
        """From this process."""
        return self.driver.request(operator_id, request or HowMany(of=of), timeout_s=WAIT_S)

    def ask_over(
        self,
        of: str = "",
        *,
        operator_id: str = "source",
        token: Token | None = TOKEN,
        request: Payload | None = None,
    ) -> Answer:
        """From another."""
        return request_coordinator(
            operator_id,
            request or HowMany(of=of),
            job_id="job",
            endpoint=self.surroundings.endpoint.address,
            response_types=(SoMany,),
            token=token,
            timeout_s=WAIT_S,
        )

    def end(self) -> None:
        self.driver.stop(with_checkpoint=False)
        assert self.driver.wait(WAIT_S) is not None

    def recorded(self, *kinds: Kind) -> list[Record]:
        stored = self.log.read(0, self.log.high_watermark())
        records = [one.record() for one in stored]
        return [one for one in records if one.kind in kinds]


@pytest.fixture
def job() -> Iterator[RunningJob]:
    made = RunningJob()
    yield made
    made.end()


@pytest.mark.flink("SD30")
@pytest.mark.parametrize("way", ["ask", "ask_over"])
def test_each_of_many_clients_gets_its_own_answer(job: RunningJob, way: str) -> None:
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(getattr(job, way), map(str, range(CLIENTS))))

    counts = [one.response.n for one in answers if isinstance(one.response, SoMany)]
    assert sorted(counts) == list(range(1, CLIENTS + 1))
    by_count = sorted(zip(counts, (one.sequence for one in answers), strict=True))
    said = [one.sequence for one in job.recorded(Kind.RESPONSE)]
    assert [sequence for _, sequence in by_count] == said
    released = {one.sequence for one in job.released}
    assert released.issuperset(said), "released before it was told"


def test_a_client_process_sends_a_request_with_the_token_in_its_variable(
    job: RunningJob,
) -> None:
    script = (
        "import json, sys\n"
        "from coordlog.spark_integration import request_coordinator\n"
        "from fakes.request_fakes import HowMany, SoMany\n"
        "answer = request_coordinator('source', HowMany(of='from afar'), job_id='job',\n"
        "    endpoint=sys.argv[1], response_types=(SoMany,), timeout_s=20)\n"
        "print(json.dumps([answer.response.n, answer.sequence]))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, job.surroundings.endpoint.address],
        env={
            **os.environ,
            "COORDLOG_TOKEN": TOKEN.text(),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    (said,) = job.recorded(Kind.RESPONSE)
    assert json.loads(ran.stdout) == [1, said.sequence]
    assert job.provider.said("request") == [("request", "from afar")]


def test_a_clients_open_connection_does_not_keep_the_driver_from_ending() -> None:
    job = RunningJob()
    client = CoordinatorClient(
        endpoint=job.surroundings.endpoint.address,
        token=TOKEN,
        response_types=(SoMany,),
    )
    with client:
        answers = [client.ask("source", HowMany(), timeout_s=WAIT_S).response for _ in range(3)]
        tasks = [t for t in threading.enumerate() if "recv_events" in t.name]
        began = time.monotonic()
        job.end()
        assert time.monotonic() - began < CONNECTION_CLOSE_S, "it waits for no idle client"
        with pytest.raises(RequestUnansweredError):
            client.ask("source", HowMany(), timeout_s=WAIT_S)

    assert answers == [SoMany(n=1), SoMany(n=2), SoMany(n=3)]
    assert len(tasks) <= 1, "one connection"


def test_without_the_token_a_client_gets_nothing_and_nothing_is_recorded(job: RunningJob) -> None:
    with pytest.raises(RequestUnansweredError, match="the token was not sent"):
        job.ask_over(token=Token(bytes(32)))
    assert job.recorded(Kind.REQUEST) == []
    assert job.provider.said("request") == []
    assert job.ask_over().response == SoMany(n=1), "the driver goes on"


def test_a_client_that_has_no_token_is_told_which_it_needs(
    job: RunningJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COORDLOG_HOME", str(tmp_path))
    monkeypatch.delenv("COORDLOG_TOKEN", raising=False)
    with pytest.raises(OptionError, match="the token of job job"):
        job.ask_over(token=None)


def refuse(_coordinator: Noting) -> None:
    raise RequestRefusedError("not on Sundays")


@pytest.mark.parametrize("way", ["ask", "ask_over"])
@pytest.mark.flink("SD32")
def test_an_error_reaches_the_client_as_what_it_is(job: RunningJob, way: str) -> None:
    ask = getattr(job, way)
    with pytest.raises(NoSuchOperatorError, match=r"'sauce' has a coordinator: .* are: source"):
        ask(operator_id="sauce")
    job.provider.on["request"] = refuse
    with pytest.raises(RequestRefusedError, match="not on Sundays"):
        ask()
    with pytest.raises(PayloadTypeError, match=r"test\.stranger@1"):
        ask(request=Stranger(n=1))
    del job.provider.on["request"]
    assert ask().response == SoMany(n=2)


def test_a_client_with_another_schema_than_the_job_s_is_refused(job: RunningJob) -> None:
    client = CoordinatorClient(
        endpoint=job.surroundings.endpoint.address,
        token=TOKEN,
        response_types=(request_fakes_changed.SoMany,),
    )
    with client, pytest.raises(PayloadTypeError, match=r"test\.so_many@1: .* another schema"):
        client.ask("source", HowMany())
    with pytest.raises(PayloadTypeError, match=r"test\.how_many@1: .* another schema"):
        job.ask_over(request=request_fakes_changed.HowMany(to="x"))
    assert job.recorded(Kind.REQUEST) == [], "its bytes would be another value in the job"
    assert job.ask_over().response == SoMany(n=1)


@pytest.mark.clause("A3")
@pytest.mark.parametrize("way", ["ask", "ask_over"])
def test_a_raising_handler_fails_the_job_and_a_later_request_is_answered(
    job: RunningJob, way: str
) -> None:
    def blunder(_coordinator: Noting) -> None:
        del job.provider.on["request"]
        raise ValueError("no such thing")

    job.provider.on["request"] = blunder
    ask = getattr(job, way)
    with pytest.raises(RequestFailedError, match="ValueError: no such thing"):
        ask()

    def again() -> Answer | None:
        try:
            answer: Answer = ask()
        except CoordinatorRestartingError:
            return None
        return answer

    answer = wait_for(again, "the coordinator has been made anew")
    assert answer is not None
    assert answer.response == SoMany(n=2)
    assert len(job.recorded(Kind.GLOBAL_FAILURE)) == 1


@pytest.mark.fault("X13")
@pytest.mark.parametrize("way", ["ask", "ask_over"])
def test_a_driver_that_ends_answers_every_open_request(job: RunningJob, way: str) -> None:
    entered, gate = threading.Event(), threading.Event()

    def block(_coordinator: Noting) -> None:
        entered.set()
        gate.wait(WAIT_S)

    job.provider.on["request"] = block
    with ThreadPoolExecutor(CLIENTS) as pool:
        first = pool.submit(getattr(job, way), "first")
        assert entered.wait(WAIT_S)
        others = [pool.submit(getattr(job, way), "other") for _ in range(CLIENTS - 1)]
        job.driver.stop(with_checkpoint=False)
        gate.set()
        job.end()
        errors = [one.exception(WAIT_S) for one in (first, *others)]

    assert {type(one) for one in errors} == {RequestUnansweredError}
    assert "the driver ended before its answer was in the log" in str(errors[0])
    with pytest.raises(RequestUnansweredError, match="the driver has ended"):
        job.ask()


def test_a_request_from_the_mailbox_itself_is_refused_at_once(job: RunningJob) -> None:
    errors: list[Exception] = []

    def ask_oneself(_coordinator: Noting) -> None:
        with pytest.raises(UsageError, match="call it on another thread") as raised:
            job.ask()
        errors.append(raised.value)

    job.provider.on["request"] = ask_oneself
    job.ask()

    assert len(errors) == 1


def test_refused_clients_are_counted_by_the_next_checkpoint_only(
    job: RunningJob,
) -> None:
    wait_for(lambda: job.recorded(Kind.ATTEMPT_STARTED), "the attempt is there")
    before = job.log.high_watermark()
    for _ in range(3):
        with (
            pytest.raises(InvalidStatus),
            connected(job.surroundings.endpoint.address, token=Token(bytes(32))),
        ):
            pass
    assert job.log.high_watermark() == before

    job.driver.trigger_checkpoint()

    wait_for(lambda: job.recorded(Kind.CHECKPOINT_TRIGGERED), "a checkpoint begins")
    (triggered,) = job.recorded(Kind.CHECKPOINT_TRIGGERED)
    assert triggered.attributes == {"refused_connections": "3"}


# --- the endpoint alone ----------------------------------------------------------------------------------------------
def test_a_client_waits_no_longer_than_it_says() -> None:
    requests = Requests(PayloadTypes((HowMany, SoMany)))
    requests.begin(lambda _given: None)  # never answered
    with (
        running(requests=requests) as (endpoint, _),
        pytest.raises(RequestUnansweredError, match="timed out"),
    ):
        request_coordinator(
            "source",
            HowMany(),
            job_id="ingest",
            endpoint=endpoint.address,
            response_types=(SoMany,),
            token=TOKEN,
            timeout_s=0.2,
        )


class FullChannel:
    """A connection whose other side reads nothing: a message fills the buffers, and its `send` waits."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def send(self, data: bytes) -> None:
        self.socket.sendall(data.ljust(4 * 1024 * 1024))


def test_a_request_that_is_not_read_ends_within_the_clients_time() -> None:
    ours, theirs = socket.socketpair()
    client = CoordinatorClient(endpoint="ws://127.0.0.1:1", token=TOKEN, response_types=(SoMany,))
    client._channel = cast("Any", FullChannel(ours))
    with ours, theirs, pytest.raises(RequestUnansweredError, match=r"not read .* within 0.3 s"):
        client.ask("source", HowMany(), timeout_s=0.3)


def test_a_request_above_the_limit_is_refused_before_it_is_sent() -> None:
    client = CoordinatorClient(endpoint="ws://127.0.0.1:1", token=TOKEN, response_types=(SoMany,))
    with pytest.raises(TooLargeError, match=r"tests\.how_many.* 262145 .* 262144"):
        client.ask_encoded("source", "tests.how_many@1", bytes(256 * 1024 + 1))


@pytest.mark.clause("K2")
def test_a_driver_whose_endpoint_ends_fails_with_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No task could reach it, and its closed port looked like the end of its process."""

    async def broken(_self: Endpoint) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Endpoint, "_serve", broken)
    job = RunningJob()

    with pytest.raises(
        EnvironmentSetupError, match=r"endpoint at ws://.*Too many open files.*again"
    ):
        job.driver.wait(WAIT_S)


def test_a_client_that_goes_away_is_forgotten() -> None:
    requests = Requests(PayloadTypes((HowMany, SoMany)))
    given: list[object] = []
    requests.begin(given.append)
    with running(requests=requests) as (endpoint, _):
        with connected(endpoint.address, path=REQUEST_PATH) as channel:
            channel.send(encode_ask())
            wait_for(lambda: given, "the request arrives")
        wait_for(lambda: requests.open_count == 0, "it is forgotten")


def encode_ask() -> bytes:
    declared = HowMany.coordlog_type
    ask = AskCoordinator(
        operator_id="source", payload_type=declared.key, payload=declared.encode(HowMany())
    )
    return encode(ask)


def test_what_is_no_request_ends_the_connection_of_its_client_alone(job: RunningJob) -> None:
    address = job.surroundings.endpoint.address
    for said in (encode(Heartbeat()), b"no message"):
        with connected(address, path=REQUEST_PATH) as channel:
            channel.send(said)
            with pytest.raises(Exception, match="close"):
                channel.recv(timeout=WAIT_S)
    assert job.ask_over().response == SoMany(n=1)
