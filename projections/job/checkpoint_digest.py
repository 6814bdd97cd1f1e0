"""The hash of a completed checkpoint, and the check of the metadata in the log against the fold.

The driver that completes a checkpoint records the hash of the checkpoint in its fold, and the fingerprints of the
payload types that the job has used so far. A reader that folds the same records to another state (changed fold, altered
history) would restore a state that no driver has had. So a restore compares both.

The states of projections are not hashed: they have their own versions, and a newer version folds to another state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Final

from coordlog.projections.job.state import CompletedCheckpoint, JobState, sorted_items
from coordlog.schemas.builtin_types import CheckpointMetadata, OperatorState, SchemaFingerprint

__all__ = ["NO_DIGEST", "digest_of_checkpoint", "fingerprints_of", "metadata_differences"]

NO_DIGEST: Final = bytes(32)
"""Hash in metadata of versions that have none, and in redacted copies: nothing is compared."""

_NONE: Final = b"-"
_BYTES: Final = b"+"
"""Before bytes: no state and an empty one are different states."""
_Part = bytes | tuple[bytes, bytes]


def digest_of_checkpoint(checkpoint: CompletedCheckpoint) -> bytes:
    """SHA-256 of all parts of the checkpoint that a restore uses; 32 bytes. Linear in the bytes of its states."""
    digest = hashlib.sha256()
    for part in _parts_of(checkpoint):
        pieces = part if isinstance(part, tuple) else (part,)  # a join would copy each state
        size_bytes = sum(map(len, pieces))
        digest.update(size_bytes.to_bytes(8, "big"))  # so that no two lists of parts are one text
        for piece in pieces:
            digest.update(piece)
    return digest.digest()


def _parts_of(checkpoint: CompletedCheckpoint) -> Iterator[_Part]:
    yield _numbers(checkpoint.checkpoint_id, checkpoint.parallelism)
    yield _numbers(len(checkpoint.cuts), len(checkpoint.states), len(checkpoint.finished))
    for operator_id, cut in sorted_items(checkpoint.cuts):
        yield operator_id.encode()
        yield _numbers(cut.sequence)
        yield _optional(cut.state)
    for subtask, states in sorted_items(checkpoint.states):
        yield _numbers(subtask, len(states))
        yield from _states(states)
    for subtask, finished in sorted_items(checkpoint.finished):
        yield _numbers(subtask, finished.attempt_number, finished.sequence, len(finished.states))
        yield from _states(finished.states)
    for event in checkpoint.in_flight:
        yield event.operator_id.encode()
        yield _numbers(event.sequence, event.subtask, event.attempt_number, event.last_barrier)
        yield event.payload_type.encode()
        yield event.payload


def _states(states: tuple[OperatorState, ...]) -> Iterator[_Part]:
    for operator in states:
        yield operator.operator_id.encode()
        yield _optional(operator.state)


def _optional(state: bytes | None) -> _Part:
    return _NONE if state is None else (_BYTES, state)


def _numbers(*numbers: int) -> bytes:
    return ",".join(map(str, numbers)).encode()


def fingerprints_of(state: JobState) -> list[SchemaFingerprint]:
    """Fingerprints of the payload types that the job has used, by the types' names, ascending."""
    return [
        SchemaFingerprint(payload_type=key, fingerprint=fingerprint)
        for key, fingerprint in sorted_items(state.types)
    ]


def metadata_differences(
    metadata: CheckpointMetadata, checkpoint: CompletedCheckpoint, types: Mapping[str, str]
) -> Iterator[str]:
    """Differences of a checkpoint's hash and fingerprints from the fold's, each with both values.

    Args:
        metadata: Metadata of the checkpoint in the log.
        checkpoint: The same checkpoint in the fold.
        types: Fingerprints of the payload types that the fold has registered, by name.
    """
    name = f"checkpoint {checkpoint.checkpoint_id}"
    if metadata.state_sha256 != NO_DIGEST:
        folded = digest_of_checkpoint(checkpoint)
        if folded != metadata.state_sha256:
            yield (
                f"{name} has state hash {metadata.state_sha256.hex()} in the log, and the fold here "
                f"comes to {folded.hex()}"
            )
    for schema in metadata.schemas:
        fingerprint = types.get(schema.payload_type, "none")
        if fingerprint != schema.fingerprint:
            yield (
                f"{name} names payload type {schema.payload_type} with schema {schema.fingerprint}, "
                f"and the fold here has {fingerprint}"
            )
