"""The metadata of a completed checkpoint, of every version, converted to the present version.

Version 1 has the subtasks' states only; version 2 the coordinators' cuts and states and the events in flight too;
version 3 the fingerprints of the job's payload types and a hash of the checkpoint.
Other parts that a restore needs are in the fold, from the records of the cuts and acks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from coordlog.schemas.builtin_types import (
    CheckpointMetadata,
    CheckpointMetadataV1,
    CheckpointMetadataV2,
)
from coordlog.schemas.payload import Payload, payload_type_of

__all__ = ["ReadMetadata", "UnknownMetadataError", "is_metadata", "read_metadata"]

_NAME = payload_type_of(CheckpointMetadata).name
_VERSIONS: dict[str, tuple[int, type[Payload]]] = {
    payload_type_of(CheckpointMetadataV1).key: (1, CheckpointMetadataV1),
    payload_type_of(CheckpointMetadataV2).key: (2, CheckpointMetadataV2),
    payload_type_of(CheckpointMetadata).key: (3, CheckpointMetadata),
}
_NO_HASH = bytes(32)


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
    """Metadata of a checkpoint, with its version in the log."""

    version: int
    value: CheckpointMetadata
    """Metadata of the present version. From version 1 without coordinators and events in flight; from both older
    versions without fingerprints, and with zeros as the hash."""


def is_metadata(payload_type: str | None) -> bool:
    """Whether this is the type of checkpoint metadata, in any version."""
    return payload_type is not None and payload_type.partition("@")[0] == _NAME


def read_metadata(payload_type: str | None, payload: bytes | None) -> ReadMetadata:
    """The metadata in a `CHECKPOINT_COMPLETED`.

    Raises:
        UnknownMetadataError: Its version is unknown.
        ValueError: It is damaged.
    """
    _, _, number = (payload_type or "").partition("@")
    known = _VERSIONS.get(payload_type or "")
    if known is None:
        raise UnknownMetadataError(number or "unknown")
    version, payload_class = known
    value = payload_type_of(payload_class).decode(payload or b"")
    assert isinstance(value, (CheckpointMetadata, CheckpointMetadataV2, CheckpointMetadataV1)), (
        "it is metadata"
    )
    if value.metadata_version != version:
        raise UnknownMetadataError(str(value.metadata_version))
    if isinstance(value, CheckpointMetadataV1):
        value = _as_version_2(value)
    if isinstance(value, CheckpointMetadataV2):
        value = _as_version_3(value)
    return ReadMetadata(version=version, value=value)


def _as_version_2(value: CheckpointMetadataV1) -> CheckpointMetadataV2:
    names = (field.name for field in fields(value))
    content = {name: getattr(value, name) for name in names}
    return CheckpointMetadataV2(**content, coordinators=[], in_flight_events=[])


def _as_version_3(value: CheckpointMetadataV2) -> CheckpointMetadata:
    names = (field.name for field in fields(value))
    content = {name: getattr(value, name) for name in names}
    return CheckpointMetadata(**content, schemas=[], state_sha256=_NO_HASH)
