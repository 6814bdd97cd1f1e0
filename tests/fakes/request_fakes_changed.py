"""The types of `request_fakes` with other fields of the same bytes, as a client of another version has them."""

# No `from __future__ import annotations` here: payloads are declared below.

from coordlog.schemas.payload import Payload, request, response


@request("test.how_many", version=1)
class HowMany(Payload):
    to: str = ""


@response("test.so_many", version=1)
class SoMany(Payload):
    left: int
