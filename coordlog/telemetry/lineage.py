"""Events of runs by OpenLineage's client, on a thread of their own: a catalog may be slow."""

# Pyright does not know that a facet's attribute `_producer` is the parameter `producer`.
# pyright: reportCallIssue=false

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Final

from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunState
from openlineage.client.event_v2 import RunEvent as LineageEvent
from openlineage.client.facet_v2 import (
    RunFacet,
    error_message_run,
    input_statistics_input_dataset,
    job_type_job,
    output_statistics_output_dataset,
    processing_engine_run,
)

from coordlog.limits import LINEAGE_EVENTS_MAX
from coordlog.projections.telemetry.lineage import RunEvent, RunStep
from coordlog.projections.telemetry.metrics import Sample
from coordlog.projections.telemetry.spans import Span
from coordlog.telemetry.worker import BoundedWorker

__all__ = ["LineageReporter", "lineage_event"]

_NAMESPACE_VARIABLE: Final = "OPENLINEAGE_NAMESPACE"
_NAMESPACE: Final = "coordlog"
_US: Final = 1_000_000


class LineageReporter:
    """Emits through a client.

    Args:
        client: The client; None: one that `openlineage.yml` and the variables `OPENLINEAGE_…` configure.
    """

    takes_spans, takes_events = False, True

    def __init__(self, client: OpenLineageClient | None = None) -> None:
        self._client = client or OpenLineageClient()
        self._worker = BoundedWorker("lineage", self._emit, LINEAGE_EVENTS_MAX)

    def begin(self, job_id: str, gauges: Callable[[], list[Sample]]) -> None:
        """See `Reporter`."""

    def report(
        self, samples: Sequence[Sample], spans: Sequence[Span], events: Sequence[RunEvent]
    ) -> None:
        """See `Reporter`."""
        for event in events:
            self._worker.offer(event)

    def end(self, timeout_s: float) -> None:
        """See `Reporter`."""
        self._worker.end(timeout_s)
        self._client.close(0)

    def _emit(self, events: Sequence[RunEvent]) -> None:
        for event in events:
            self._client.emit(lineage_event(event))


def lineage_event(event: RunEvent) -> LineageEvent:
    """The event in the classes of the client."""
    version = metadata.version("coordlog")
    producer = f"urn:coordlog:{version}"
    namespace = os.environ.get(_NAMESPACE_VARIABLE) or _NAMESPACE
    engine = processing_engine_run.ProcessingEngineRunFacet(
        version=version, name=_NAMESPACE, producer=producer
    )
    facets: dict[str, RunFacet] = {"processing_engine": engine}
    if event.step is RunStep.FAIL:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=event.reason or "the job has failed",
            programmingLanguage="Python",
            producer=producer,
        )
    job_type = job_type_job.JobTypeJobFacet(
        processingType="BATCH" if event.is_batch else "STREAMING",
        integration="COORDLOG",
        jobType="JOB",
        producer=producer,
    )
    # A job's counts are of all its inputs, and of all its outputs: of one they can be reported.
    read = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
        rowCount=event.rows_read, producer=producer
    )
    written = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=event.rows_published,
        size=event.bytes_published,
        fileCount=event.files_published,
        producer=producer,
    )
    is_one_in, is_one_out = len(event.inputs) == 1, len(event.outputs) == 1
    return LineageEvent(
        eventTime=dt.datetime.fromtimestamp(event.time_us / _US, dt.UTC).isoformat(),
        producer=producer,
        eventType=RunState(event.step.value),
        run=Run(runId=str(event.run_id), facets=facets),
        job=Job(namespace=namespace, name=event.job_id, facets={"jobType": job_type}),
        inputs=[
            InputDataset(
                namespace=dataset.namespace,
                name=dataset.name,
                inputFacets={"inputStatistics": read} if is_one_in else {},
            )
            for dataset in event.inputs
        ],
        outputs=[
            OutputDataset(
                namespace=dataset.namespace,
                name=dataset.name,
                outputFacets={"outputStatistics": written} if is_one_out else {},
            )
            for dataset in event.outputs
        ],
    )
