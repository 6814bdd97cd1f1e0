"""States of readers and listings as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from coordlog.schemas.payload import decode_versioned, encode_versioned, payload_type_of
from coordlog.spark_integration.kafka.payloads import (
    KafkaEnumeratorState,
    KafkaReaderState,
)

__all__ = ["LISTED", "decode_state", "encode_state", "has_listed", "merge_reader_states"]

_LISTINGS: Final = payload_type_of(KafkaEnumeratorState)

LISTED: Final = _LISTINGS.encode(KafkaEnumeratorState(has_listed=True))
"""Bytes that a coordinator keeps once a listing is in the log whole."""


def has_listed(kept: bytes | None) -> bool:
    """Whether a listing is in the log whole, by the bytes that coordinators kept."""
    return kept is not None and cast("KafkaEnumeratorState", _LISTINGS.decode(kept)).has_listed


def encode_state(state: KafkaReaderState) -> bytes:
    """The state that a reader hands over at a barrier."""
    return encode_versioned(state)


def decode_state(content: bytes) -> KafkaReaderState:
    """The state in `content`. Raises ValueError if it is none that this version knows."""
    return decode_versioned(KafkaReaderState, content)


def merge_reader_states(states: Sequence[bytes]) -> bytes:
    """The state of one reader that continues several (clause E7: restore with other parallelism)."""
    restored = [decode_state(state) for state in states]
    return encode_state(
        KafkaReaderState(
            parallelism=max(state.parallelism for state in restored),
            splits=[progress for state in restored for progress in state.splits],
            to_give_up=[split_id for state in restored for split_id in state.to_give_up],
        )
    )
