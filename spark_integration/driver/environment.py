"""Surroundings of one driver on Spark: the endpoint, the token, and the stage with the job's attempts."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from coordlog.api.chain import Chain
from coordlog.limits import CALL_TIMEOUT_S
from coordlog.payloads.offload import NO_STORE, PayloadOptions
from coordlog.projections.job.state import JobState
from coordlog.runtime.driver import DriverOptions
from coordlog.runtime.mailbox import Mailbox
from coordlog.runtime.ports import Connections, Stage
from coordlog.spark_integration.driver.endpoint_options import EndpointOptions
from coordlog.spark_integration.driver.stage import (
    SparkStage,
    check_slots,
    claim_slots,
    new_claim,
    probe_of,
)
from coordlog.spark_integration.driver.stageless import StagelessSurroundings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkSurroundings"]

_log = logging.getLogger(__name__)


class SparkSurroundings:
    """`Surroundings` on a Spark session.

    Raises:
        EnvironmentSetupError: The session has fewer slots than subtasks.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        chain: Chain,
        job_id: str,
        parallelism: int,
        call_timeout_s: float = CALL_TIMEOUT_S,
        payloads: PayloadOptions = NO_STORE,
        endpoint: EndpointOptions | None = None,
    ) -> None:
        check_slots(spark, parallelism)
        self._payloads = payloads
        self._call_timeout_s = call_timeout_s
        self._spark, self._chain = spark, chain
        self._job_id, self._parallelism = job_id, parallelism
        self._reached = StagelessSurroundings(
            spark, job_id=job_id, endpoint=endpoint, subtasks=parallelism
        )
        # Begun here: it starts a worker, and imports the modules of tasks, while the driver reads the log.
        self._probe = probe_of(spark, chain, job_id)
        self._stage: SparkStage | None = None
        self._claim = new_claim(spark, parallelism, first_tag=self._probe.tag)

    def with_versions(self, options: DriverOptions) -> DriverOptions:
        """The options, with Spark's version for `EPOCH_STARTED`."""
        versions = {**options.versions, "pyspark_version": self._spark.version}
        return replace(options, versions=versions)

    def begin(self, driver_id: str, mailbox: Mailbox) -> str:
        """See `Surroundings`."""
        # Before anything is appended; the constructor's check is for those that have no chance.
        claim_slots(self._spark, self._claim)
        address = self._reached.begin(driver_id, mailbox)
        self._stage = SparkStage(
            self._spark,
            chain=self._chain,
            job_id=self._job_id,
            driver_id=driver_id,
            parallelism=self._parallelism,
            endpoint=address,
            token=self._reached.token,
            certificate=self._reached.certificate,
            events=mailbox,
            call_timeout_s=self._call_timeout_s,
            payloads=self._payloads,
            on_lost=mailbox.session_lost,
            on_import_failure=mailbox.workers_unfit,
        )
        self._stage.probe, self._stage.claim = self._probe, self._claim
        return address

    def took_over(self) -> None:
        """See `Surroundings`."""
        self._reached.took_over()

    def connections(self) -> Connections:
        """See `Surroundings`."""
        return self._reached.connections()

    def stage(self) -> Stage:
        """See `Surroundings`."""
        assert self._stage is not None, "begun"
        return self._stage

    def is_driver_alive(self, state: JobState) -> bool:
        """See `Surroundings`."""
        return self._reached.is_driver_alive(state)

    def end(self) -> None:
        """See `Surroundings`."""
        try:
            self._claim.release()
            self._probe.cancel()
            if self._stage is not None:
                self._stage.end()
        finally:
            self._reached.end()
