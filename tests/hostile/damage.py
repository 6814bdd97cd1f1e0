"""How bytes go wrong."""

from __future__ import annotations

import random
from typing import Final

__all__ = ["LENGTHS", "damaged"]

LENGTHS: Final = (
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # -2**63
    b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # 2**63 - 1
    b"\xfe\xff\xff\xff\x0f",  # 2**31 - 1
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",  # a number without an end
    b"\x01",  # -1
)
"""Numbers as Avro writes them, that no length is."""


def damaged(chance: random.Random, data: bytes) -> bytes:
    """The bytes with one to three things done to them."""
    for _ in range(chance.randint(1, 3)):
        data = _once(chance, data)
    return data


def _once(chance: random.Random, data: bytes) -> bytes:
    at = chance.randint(0, len(data))
    match chance.randrange(8):
        case 0:
            return data[:at]
        case 1:
            return data[at:]
        case 2:
            return data[:at] + chance.randbytes(chance.randint(1, 40)) + data[at:]
        case 3:
            return data[:at] + chance.choice(LENGTHS) + data[at + 1 :]
        case 4:
            end = chance.randint(at, len(data))
            return data[:at] + data[at:end] * chance.randint(2, 4) + data[end:]
        case 5:
            return chance.randbytes(chance.randint(0, 200))
        case _ if not data:
            return data
        case _:
            made = bytearray(data)
            for _ in range(chance.randint(1, 8)):
                made[chance.randrange(len(made))] ^= 1 << chance.randrange(8)
            return bytes(made)
