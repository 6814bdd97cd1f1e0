"""The metadata of a completed checkpoint in every version that there has been, read as today's.

Version 1 has the subtasks' states only; version 2 the coordinators' cuts and states and the events in flight too.
What a restore needs beyond that the fold has from the records of the cuts and acks.
"""

from __future__ import annotations

from dataclasses import dataclass

from .builtin import CheckpointMetadata, CheckpointMetadataV1
from .payload import Payload, payload_type_of

__all__ = ["ReadMetadata", "UnknownMetadataError", "is_metadata", "read_metadata"]

_NAME = payload_type_of(CheckpointMetadata).name
_VERSIONS: dict[str, tuple[int, type[Payload]]] = {
    payload_type_of(CheckpointMetadataV1).key: (1, CheckpointMetadataV1),
    payload_type_of(CheckpointMetadata).key: (2, CheckpointMetadata),
}


class UnknownMetadataError(ValueError):
    """Metadata of a version that this release does not read."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.version = version

    def __str__(self) -> str:
        known = ", ".join(str(number) for number, _ in _VERSIONS.values())
        return (
            f"its metadata is of version {self.version}, and this release of coordlog reads "
            f"{known}: read it with the release that wrote it, or a newer one"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadMetadata:
    """A checkpoint's metadata with the version that stands in the log."""

    version: int
    value: CheckpointMetadata
    """As today's; of version 1 without coordinators and events in flight, which it does not tell."""


def is_metadata(payload_type: str | None) -> bool:
    """Whether a type of this name is one of checkpoint metadata, of whatever version."""
    return payload_type is not None and payload_type.partition("@")[0] == _NAME


def read_metadata(payload_type: str | None, payload: bytes | None) -> ReadMetadata:
    """The metadata in a `CHECKPOINT_COMPLETED`.

    Raises:
        UnknownMetadataError: It is of a version that is not known here.
        ValueError: It is damaged.
    """
    _, _, number = (payload_type or "").partition("@")
    known = _VERSIONS.get(payload_type or "")
    if known is None:
        raise UnknownMetadataError(number or "unknown")
    version, payload_class = known
    value = payload_type_of(payload_class).decode(payload or b"")
    assert isinstance(value, (CheckpointMetadata, CheckpointMetadataV1)), "it is metadata"
    if value.metadata_version != version:
        raise UnknownMetadataError(str(value.metadata_version))
    if isinstance(value, CheckpointMetadata):
        return ReadMetadata(version=version, value=value)
    return ReadMetadata(
        version=version,
        value=CheckpointMetadata(
            metadata_version=version,
            job_id=value.job_id,
            epoch=value.epoch,
            checkpoint_id=value.checkpoint_id,
            triggered_sequence=value.triggered_sequence,
            cluster_id=value.cluster_id,
            topic_id=value.topic_id,
            parallelism=value.parallelism,
            coordinators=[],
            subtasks=value.subtasks,
            finished=value.finished,
            in_flight_events=[],
            oldest_retained=value.oldest_retained,
        ),
    )
