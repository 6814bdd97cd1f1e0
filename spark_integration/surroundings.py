"""What runs a job's attempts on Spark: the endpoint, the token, and the stage; made for one driver."""

from __future__ import annotations

import logging
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING

from coordlog.chain import Chain
from coordlog.driver import DriverOptions
from coordlog.limits import CALL_TIMEOUT_S
from coordlog.mailbox import Mailbox
from coordlog.outside import Connections, Stage
from coordlog.payloads import NO_STORE, PayloadOptions
from coordlog.projections.state import JobState

from .certificate import Certificate, forget_certificate, new_certificate, write_certificate
from .endpoint import Endpoint
from .endpoint_options import EndpointOptions
from .liveness import Liveness, driver_liveness
from .stage import SparkStage, check_slots
from .token import Token, forget_token, write_token

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
        self._place = (endpoint or EndpointOptions()).on(spark)
        self._endpoint: Endpoint | None = None
        self._certificate: Certificate | None = None
        self._stage: SparkStage | None = None
        self._token: Token | None = None

    def with_versions(self, options: DriverOptions) -> DriverOptions:
        """The options, with what `EPOCH_STARTED` says of Spark."""
        versions = {**options.versions, "pyspark_version": self._spark.version}
        return replace(options, versions=versions)

    def begin(self, driver_id: str, mailbox: Mailbox) -> str:
        """See `Surroundings`."""
        token = Token.new()
        tls: ssl.SSLContext | None = None
        if self._place.is_encrypted:
            self._certificate, tls = new_certificate()
        endpoint = Endpoint(
            job_id=self._job_id,
            driver_id=driver_id,
            token=token,
            arrivals=mailbox,
            on_refused=mailbox.connections_refused,
            requests=mailbox.requests,
            host=self._place.bind,
            advertised=self._place.host,
            ports=self._place.ports,
            tls=tls,
        )
        self._endpoint = endpoint
        address = endpoint.start()
        self._token = token
        self._stage = SparkStage(
            self._spark,
            chain=self._chain,
            job_id=self._job_id,
            driver_id=driver_id,
            parallelism=self._parallelism,
            endpoint=address,
            token=token,
            certificate=self._certificate,
            events=mailbox,
            call_timeout_s=self._call_timeout_s,
            payloads=self._payloads,
            on_lost=mailbox.session_lost,
        )
        return address

    def took_over(self) -> None:
        """See `Surroundings`: only now is the driver that wrote the last token known to be over."""
        assert self._token is not None, "begun"
        assert self._endpoint is not None, "begun"
        if self._certificate is not None:
            write_certificate(self._job_id, self._certificate, endpoint=self._endpoint.address)
        write_token(self._job_id, self._token, endpoint=self._endpoint.address)

    def connections(self) -> Connections:
        """See `Surroundings`."""
        assert self._endpoint is not None, "begun"
        return self._endpoint

    def stage(self) -> Stage:
        """See `Surroundings`."""
        assert self._stage is not None, "begun"
        return self._stage

    def is_driver_alive(self, state: JobState) -> bool:
        """See `Surroundings`: asks the endpoint in the epoch in force.

        What answers under its name is taken for it, proved or not: to take over is said by the user.
        """
        endpoint = state.launch.get("endpoint")
        found = driver_liveness(self._job_id, endpoint=endpoint, driver_id=state.driver_id)
        return found in (Liveness.LIVES, Liveness.UNPROVED)

    def end(self) -> None:
        """See `Surroundings`."""
        try:
            if self._stage is not None:
                self._stage.end()
        finally:
            if self._endpoint is not None:
                forget_token(self._job_id, self._endpoint.address)
                forget_certificate(self._job_id, self._endpoint.address)
                self._endpoint.stop()
