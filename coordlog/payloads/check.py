"""Checks of payloads: a restore is refused if one is missing in the job's store; an attempt fails with its event's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from coordlog.api.chain import Chain
from coordlog.errors import PayloadLostError, PayloadStoreUnreachableError, RestoreError
from coordlog.limits import PAYLOAD_READS_AT_ONCE
from coordlog.log.payload_store import PayloadStore
from coordlog.messages import SendEvent
from coordlog.payloads.offload import PayloadOptions
from coordlog.projections.inspection.payload_refs import (
    NeededPayload,
    StrangeAddress,
    needed_payloads,
)
from coordlog.projections.job.state import JobState
from coordlog.schemas.payload import Payload, PayloadTypes

__all__ = ["check_payloads", "read_event"]


def check_payloads(job_id: str, state: JobState, options: PayloadOptions, chain: Chain) -> None:
    """Check that the store has all payloads that a new epoch needs (clause E9: refused before any append).

    Payloads that the driver opens are read and checked; of those that attempts open, the lengths are checked.
    `PAYLOAD_READS_AT_ONCE` are read at a time.

    Raises:
        RestoreError: A payload, or its address, is missing or damaged; before anything was appended.
        PayloadStoreError: The store cannot be read.
    """
    needs = list[NeededPayload]()
    operators = {link.operator_id for link in chain.links}
    for needed in needed_payloads(state, operators):
        if isinstance(needed, StrangeAddress):
            raise _strange(job_id, needed, state)
        if options.store is None:
            url = state.launch_info.payload_store
            step = f"name it with --payload-store (payload_store); the history names {url!r}"
            raise _refusal(job_id, needed, "not readable (this job has no payload store)", step)
        needs.append(needed)
    store = options.store
    if store is None or not needs:
        return
    readers = ThreadPoolExecutor(PAYLOAD_READS_AT_ONCE, "coordlog-payload")
    try:
        # In order, so that the error names the first missing payload.
        for _ in readers.map(lambda needed: _check(job_id, needed, state, store), needs):
            pass
    finally:
        readers.shutdown(wait=False, cancel_futures=True)


def read_event(types: PayloadTypes, event: SendEvent) -> Payload | str | None:
    """The payload of an attempt's event, or the reason why it cannot be read; None if its type is unknown here.

    If it cannot be read, the attempt that sent it fails, alone. If the store does not answer, the restarted attempt
    sends the event again, and the restart policy limits how often (D2: refusals fail alone).
    """
    if event.payload_type not in types:
        return None
    try:
        return types.decode(event.payload_type, event.payload)
    except (ValueError, PayloadLostError) as error:
        return f"it sent a damaged event of type {event.payload_type}: {error}"
    except PayloadStoreUnreachableError as error:
        return f"it sent an event of type {event.payload_type} that cannot be read now: {error}"


def _check(job_id: str, needed: NeededPayload, state: JobState, store: PayloadStore) -> None:
    try:
        if needed.is_for_driver:
            store.get(needed.address)
        else:
            store.find(needed.address)
    except PayloadLostError as error:
        url = state.launch_info.payload_store or store.url
        other = "" if url == store.url else f"; the history names the store {url}"
        raise _refusal(
            job_id,
            needed,
            f"not readable ({error.where}: {error.problem})",
            f"{error.next_step}{other}",
        ) from error


def _strange(job_id: str, needed: StrangeAddress, state: JobState) -> RestoreError:
    version = state.launch_info.coordlog_version
    version_note = f" ({version})" if version else ""
    step = (
        f"run the job with the version of coordlog that wrote it{version_note}, or continue from a checkpoint "
        "that does not need it (--from-checkpoint)"
    )
    here = "no address of a stored payload that this version reads"
    return RestoreError(job_id, needed.what, needed.shown, here, step)


def _refusal(job_id: str, needed: NeededPayload, here: str, step: str) -> RestoreError:
    address = needed.address
    in_log = f"the stored payload {address.path} of {address.length} bytes"
    return RestoreError(job_id, needed.what, in_log, here, step)
