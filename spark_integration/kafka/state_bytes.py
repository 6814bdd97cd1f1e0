"""A reader's state as the log has it, in each version that there has been.

The first version stands bare. Later ones begin with a zero byte and their number: a bare one cannot,
because it begins with the parallelism, which is 1 at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, cast

from coordlog.schemas.payload import payload_type_of
from coordlog.spark_integration.kafka.payloads import FirstKafkaReaderState, KafkaReaderState

__all__ = ["decode_state", "encode_state", "merge_reader_states"]

_STATE: Final = payload_type_of(KafkaReaderState)
_FIRST_STATE: Final = payload_type_of(FirstKafkaReaderState)
_MARK: Final = bytes((0, _STATE.version))


def encode_state(state: KafkaReaderState) -> bytes:
    """What a reader hands over at a barrier."""
    return _MARK + _STATE.encode(state)


def decode_state(content: bytes) -> KafkaReaderState:
    """The state in `content`. Raises ValueError where it is none that this version knows."""
    if content[:1] != _MARK[:1]:
        first = cast("FirstKafkaReaderState", _FIRST_STATE.decode(content))
        return KafkaReaderState(parallelism=first.parallelism, splits=first.splits, to_give_up=[])
    if content[: len(_MARK)] != _MARK:
        raise ValueError(
            f"a reader state of version {content[1] if len(content) > 1 else None}; this version reads up to {_MARK[1]}"
        )
    return cast("KafkaReaderState", _STATE.decode(content[len(_MARK) :]))


def merge_reader_states(states: Sequence[bytes]) -> bytes:
    """The state of one reader that reads on where several readers were (clause E7)."""
    restored = [decode_state(one) for one in states]
    return encode_state(
        KafkaReaderState(
            parallelism=max(one.parallelism for one in restored),
            splits=[one for each in restored for one in each.splits],
            to_give_up=[one for each in restored for one in each.to_give_up],
        )
    )
