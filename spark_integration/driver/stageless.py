"""A driver without subtasks: its coordinators answer requests and commit, and no Spark stage runs."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from coordlog.api.chain import Chain, SourceSpec
from coordlog.api.coordinator import CoordinatorProvider
from coordlog.api.operator import SourceReader
from coordlog.errors import EnvironmentSetupError, UsageError
from coordlog.limits import PAYLOAD_BYTES_MAX, RESTART_BACKOFF_S
from coordlog.log.appender import Patience
from coordlog.log.interface import Log
from coordlog.log.job_id import check_job_id
from coordlog.option_types import check_all, check_range
from coordlog.projections.job.state import JobState
from coordlog.runtime.driver import DriverOptions
from coordlog.runtime.mailbox import Mailbox
from coordlog.runtime.ports import Connections, Stage
from coordlog.runtime.runtime import RuntimeOptions
from coordlog.spark_integration.driver.driver_file import (
    DriverFile,
    end_driver_file,
    forget_former_files,
    former_files,
    write_driver_file,
)
from coordlog.spark_integration.driver.endpoint import Endpoint
from coordlog.spark_integration.driver.endpoint_options import EndpointOptions
from coordlog.spark_integration.driver.liveness import NamedDriver, refuse_unless_gone
from coordlog.spark_integration.driver.payload_options import PayloadChoice
from coordlog.spark_integration.wire.certificate import Certificate, new_certificate
from coordlog.spark_integration.wire.token import Token

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["StagelessOptions", "StagelessSurroundings", "refuse_connect", "stageless_chain"]


def stageless_chain(provider: CoordinatorProvider) -> Chain:
    """A chain of one link that no subtask runs: a job of parallelism 0 with this coordinator."""
    return Chain(
        source=SourceSpec(
            operator_id=provider.operator_id, create_reader=_no_reader, coordinator=provider
        ),
        operators=(),
    )


def _no_reader() -> SourceReader:
    raise UsageError("a job without subtasks reads nothing")


def refuse_connect(spark: SparkSession, what: str) -> None:
    """Raises EnvironmentSetupError if the session is one of Spark Connect, in which `what` can have no coordinator."""
    if not hasattr(spark, "_jsparkSession"):
        raise EnvironmentSetupError(
            f"{what} has its coordinator in the process that owns the Spark session; with Spark Connect that is the "
            "server, which runs no program of the client",
            "run this program beside the server's Spark, with spark-submit, or in a classic session",
        )


class StagelessOptions:
    """The user's options of a driver without subtasks, before a session exists.

    Args:
        job_id: Id of the job, `[a-z0-9][a-z0-9-]{0,99}`.
        take_over: Take a live driver's place.
        log_timeout_s: Longest time without an answer of the log before the driver ends.
        snapshot_every: Records from one snapshot to the next; None for no snapshots.
        payload_store: Store of payloads that are too large for the log, as for a `Job`.
        restart_backoff_s: Seconds before the first restart.

    Raises:
        OptionError: An option is invalid for any session.
    """

    def __init__(
        self,
        job_id: str,
        *,
        take_over: bool,
        log_timeout_s: float,
        snapshot_every: int | None,
        payload_store: str | None,
        restart_backoff_s: float = RESTART_BACKOFF_S,
    ) -> None:
        check_all(
            lambda: check_job_id(job_id),
            lambda: check_range("log_timeout_s", log_timeout_s, 1, 86_400),
            lambda: check_range("snapshot_every", snapshot_every, 1, 10_000_000),
        )
        self.job_id, self._is_take_over = job_id, take_over
        self._restart_backoff_s = restart_backoff_s
        self._patience = Patience(log_timeout_s=log_timeout_s)
        self._runtime = RuntimeOptions(snapshot_every=snapshot_every)
        self._payloads = PayloadChoice(job_id, payload_store, PAYLOAD_BYTES_MAX)

    def on(self, spark: SparkSession, log: Log) -> DriverOptions:
        """Options of a driver on this session.

        Raises:
            OptionError: The store of payloads cannot be used there.
        """
        return DriverOptions(
            job_id=self.job_id,
            parallelism=0,
            is_batch=True,
            is_take_over=self._is_take_over,
            restart_backoff_s=self._restart_backoff_s,
            runtime=self._runtime,
            patience=self._patience,
            payloads=self._payloads.on(spark, log),
            versions={"pyspark_version": spark.version},
        )


class StagelessSurroundings:
    """`Surroundings` of a job of parallelism 0: only an endpoint for clients.

    Args:
        spark: The session.
        job_id: Id of the job.
        endpoint: Address at which the driver listens, and its encryption.
        on_end: Called when the driver ends, while clients still reach its endpoint.
        subtasks: Number of tasks that may connect at the same moment.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        job_id: str,
        endpoint: EndpointOptions | None = None,
        on_end: Callable[[], None] | None = None,
        subtasks: int = 0,
    ) -> None:
        self._on_end, self._subtasks = on_end, subtasks
        self._place, self._job_id = (endpoint or EndpointOptions()).on(spark), job_id
        self.certificate: Certificate | None = None
        """Certificate of the endpoint; after `begin`. None if it is not encrypted."""
        self._endpoint: Endpoint | None = None
        self._token: Token | None = None
        self._file: DriverFile | None = None
        self._former_files: Sequence[Path] = ()

    @property
    def address(self) -> str:
        """Address of the driver for clients; after `begin`."""
        assert self._endpoint is not None, "begun"
        return self._endpoint.address

    @property
    def token(self) -> Token:
        """Token that clients need; after `begin`."""
        assert self._token is not None, "begun"
        return self._token

    def begin(self, driver_id: str, mailbox: Mailbox) -> str:
        """See `Surroundings`."""
        self._token = Token.new()
        tls: ssl.SSLContext | None = None
        if self._place.is_encrypted:
            self.certificate, tls = new_certificate()
        self._endpoint = Endpoint(
            job_id=self._job_id,
            driver_id=driver_id,
            token=self._token,
            arrivals=mailbox,
            on_refused=mailbox.connections_refused,
            on_failed=mailbox.end,
            requests=mailbox.requests,
            host=self._place.bind,
            advertised=self._place.host,
            ports=self._place.ports,
            tls=tls,
            subtasks=self._subtasks,
        )
        address = self._endpoint.start()
        self._file = DriverFile.of_this_process(
            job_id=self._job_id,
            driver_id=driver_id,
            endpoint=address,
            listens=self._endpoint.listens,
            token=self._token,
            certificate=self.certificate,
        )
        self._former_files = former_files(self._job_id)
        # Before the driver's epoch can be in force: the file proves the driver's end later.
        write_driver_file(self._file)
        return address

    def took_over(self) -> None:
        """See `Surroundings`: only now the earlier drivers are known to have ended."""
        forget_former_files(self._former_files)

    def connections(self) -> Connections:
        """See `Surroundings`."""
        assert self._endpoint is not None, "begun"
        return self._endpoint

    def stage(self) -> Stage:
        """See `Surroundings`."""
        return _NoStage()

    def is_driver_alive(self, state: JobState) -> bool:
        """See `Surroundings`."""
        refuse_unless_gone(NamedDriver.of(state))
        return False

    def end(self) -> None:
        """See `Surroundings`."""
        if self._on_end is not None:
            self._on_end()
        if self._endpoint is not None:
            self._endpoint.stop()
        if self._file is not None:
            end_driver_file(self._file)


class _NoStage:
    """Stage of a job of parallelism 0, which is never submitted."""

    def submit(self, stage_run: int) -> NoReturn:
        raise AssertionError(f"stage run {stage_run} of a job without subtasks")

    def cancel(self, stage_run: int, reason: str) -> None:
        """Do nothing: there is no stage."""

    def kill_task(self, stage_run: int, task_attempt_id: int, reason: str) -> None:
        """Do nothing: there is no stage."""
