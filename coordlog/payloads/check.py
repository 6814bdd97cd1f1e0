"""Refuses a restore that needs a payload which the job's store does not have."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from coordlog.errors import PayloadLostError, RestoreError
from coordlog.limits import PAYLOAD_READS_AT_ONCE
from coordlog.log.payload_store import PayloadStore
from coordlog.payloads.offload import PayloadOptions
from coordlog.projections.inspection.payload_refs import (
    NeededPayload,
    StrangeAddress,
    needed_payloads,
)
from coordlog.projections.job.state import JobState
from coordlog.schemas.payload_address import STORE_ATTRIBUTE

__all__ = ["check_payloads"]


def check_payloads(job_id: str, state: JobState, options: PayloadOptions) -> None:
    """See that what a new epoch needs is there (clause E9).

    What the driver opens is read and checked; of what attempts open, the lengths are.

    Some are read at a time.

    Raises:
        RestoreError: One, or its address, is missing or damaged; before anything was appended.
        PayloadStoreError: The store cannot be read.
    """
    needs = list[NeededPayload]()
    for needed in needed_payloads(state):
        if isinstance(needed, StrangeAddress):
            raise _strange(job_id, needed, state)
        if options.store is None:
            said = state.launch.get(STORE_ATTRIBUTE, "")
            step = f"name it with --payload-store (payload_store); the history says {said!r}"
            raise _refusal(job_id, needed, "not to be had (this job has no payload store)", step)
        needs.append(needed)
    store = options.store
    if store is None or not needs:
        return
    readers = ThreadPoolExecutor(PAYLOAD_READS_AT_ONCE, "coordlog-payload")
    try:
        # In order, so that the first that is missing is the one that is told.
        for _ in readers.map(lambda needed: _check(job_id, needed, state, store), needs):
            pass
    finally:
        readers.shutdown(wait=False, cancel_futures=True)


def _check(job_id: str, needed: NeededPayload, state: JobState, store: PayloadStore) -> None:
    try:
        if needed.is_for_driver:
            store.get(needed.address)
        else:
            store.find(needed.address)
    except PayloadLostError as error:
        said = state.launch.get(STORE_ATTRIBUTE, store.url)
        other = "" if said == store.url else f"; the history names the store {said}"
        raise _refusal(
            job_id,
            needed,
            f"not to be had ({error.where}: {error.problem})",
            f"{error.next_step}{other}",
        ) from error


def _strange(job_id: str, found: StrangeAddress, state: JobState) -> RestoreError:
    wrote = state.launch.get("coordlog_version", "")
    named = f" ({wrote})" if wrote else ""
    step = (
        f"run the job with the version of coordlog that wrote it{named}, or go on from a checkpoint "
        "that does not need it (--from-checkpoint)"
    )
    here = "no address of a stored payload that this version reads"
    return RestoreError(job_id, found.what, found.shown, here, step)


def _refusal(job_id: str, needed: NeededPayload, here: str, step: str) -> RestoreError:
    address = needed.address
    in_log = f"the stored payload {address.path} of {address.length} bytes"
    return RestoreError(job_id, needed.what, in_log, here, step)
