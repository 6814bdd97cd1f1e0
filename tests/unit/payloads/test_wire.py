"""Messages as bytes: what today's code writes, it and every later one of this version reads."""

from __future__ import annotations

import io
import json
from dataclasses import fields
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordlog.kernel.inputs import Asker
from coordlog.messages import (
    Accepted,
    AckCheckpoint,
    AckEvent,
    AlreadyFinished,
    CheckpointAborted,
    CheckpointCompleted,
    Complete,
    DeliverEvent,
    Fail,
    Fenced,
    FinishSplit,
    InjectBarrier,
    Marker,
    Refused,
    Register,
    SendEvent,
    SkipSplit,
)
from coordlog.schemas.builtin_types import (
    AttemptSnapshot,
    Committable,
    OperatorState,
    SplitFinished,
)
from coordlog.schemas.codec import avro_fingerprint
from coordlog.schemas.untrusted_schema import foreign_avro
from coordlog.spark_integration.wire.messages import (
    WIRE_SCHEMA,
    WIRE_VERSION,
    AskCoordinator,
    ClientHello,
    CoordinatorAnswer,
    DescribeTypes,
    DriverHello,
    FromTask,
    Heartbeat,
    MoreStates,
    TypeDescription,
    TypesDescribed,
    WireMessage,
    decode,
    decode_down,
    decode_up,
    encode,
)

SNAPSHOT: Final = AttemptSnapshot(
    states=[
        OperatorState(operator_id="source", state=b"\x01"),
        OperatorState(operator_id="sink", state=None),
    ],
    committables=[Committable(operator_id="sink", content=b"\x02\x03")],
)

# In the order of the schema's union, whose index goes first. Then the fields: integers zigzag, texts and bytes with
# their lengths, arrays in one counted block with an empty one after it, unions with their index.
GOLDEN: Final[list[tuple[WireMessage, str]]] = [
    (
        Register(
            driver_id="d",
            subtask=3,
            stage_run=1,
            task_attempt_id=-1,
            spark_attempt_number=2,
            host="h",
            pid=64,
        ),
        "0264 06 02 01 04 0268 8001",
    ),
    (
        SendEvent(
            operator_id="o", event_id=0, last_barrier=-1, payload_type="a@1", payload=b"\xff"
        ),
        "026f 00 01 06614031 02ff",
    ),
    (AckEvent(operator_id="o", event_id=1, last_barrier=2), "026f 02 04 00"),
    (
        AckCheckpoint(checkpoint_id=7, last_barrier=7, snapshot=SNAPSHOT),
        "0e 0e 04 0c736f75726365 02 0201 0873696e6b 00 00 02 0873696e6b 040203 00",
    ),
    (
        FinishSplit(
            operator_id="o",
            last_barrier=-1,
            finished=SplitFinished(split_id="s", rows=1, bytes_read=2, committables=[]),
            rejected=3,
        ),
        "026f 01 0273 02 04 00 06 00",
    ),
    (
        SkipSplit(operator_id="o", last_barrier=-1, split_id="s", rows=3, reason="no"),
        "026f 01 0273 06 046e6f",
    ),
    (
        Complete(last_barrier=0, snapshot=AttemptSnapshot(states=[], committables=[])),
        "00 00 00",
    ),
    (
        Fail(operator_id="o", callback="poll", reason="r", split_id="s", event_id=None),
        "026f 08706f6c6c 0272 02 0273 00 00",
    ),
    (Marker(number=150), "ac02"),
    (Heartbeat(), ""),
    (
        Accepted(
            driver_id="d",
            epoch=1,
            attempt_number=2,
            restored_checkpoint=-1,
            parallelism=4,
            is_batch=True,
            states=(OperatorState(operator_id="o", state=b""),),
            skipped_splits=("s",),
        ),
        "0264 02 04 01 08 01 02 026f 02 00 00 02 0273 00",
    ),
    (AlreadyFinished(attempt_number=5), "0a"),
    (Refused(reason="no"), "046e6f"),
    (
        DeliverEvent(operator_id="o", event_id=300, payload_type="a@1", payload=b""),
        "026f d804 06614031 00",
    ),
    (InjectBarrier(checkpoint_id=1), "02"),
    (CheckpointCompleted(checkpoint_id=1), "02"),
    (CheckpointAborted(checkpoint_id=1), "02"),
    (Fenced(reason="x", is_finished=True), "0278 01"),
    (
        MoreStates(
            states=(OperatorState(operator_id="o", state=b"\x05"),), skipped_splits=("s", "t")
        ),
        "02 026f 02 0205 00 04 0273 0274 00",
    ),
    (ClientHello(nonce=b"\x00\x01"), "040001"),
    (DriverHello(job_id="j", driver_id="d", proof=b"\x09"), "026a 0264 0209"),
    (AskCoordinator(operator_id="o", payload_type="a@1", payload=b"\x07"), "026f 06614031 0207 00"),
    (
        AskCoordinator(
            operator_id="o",
            payload_type="a@1",
            payload=b"\x07",
            asked_by=Asker(user="u", host="h", pid=3, command="stop"),
        ),
        "026f 06614031 0207 02 0275 0268 06 0873746f70",
    ),
    (
        CoordinatorAnswer(outcome="answered", sequence=9, payload_type="b@1", payload=b""),
        "10616e737765726564 02 12 02 06624031 02 00 00",
    ),
    (CoordinatorAnswer(outcome="refused", reason="no"), "0e72656675736564 00 00 00 02 046e6f"),
    (DescribeTypes(), ""),
    (
        TypesDescribed(types=(TypeDescription(key="a@1", role="event", schema_json="{}"),)),
        "02 06614031 0a6576656e74 047b7d 00 00",
    ),
]
PLACES: Final = list(dict.fromkeys(type(message) for message, _ in GOLDEN))

VALUES: Final[dict[object, st.SearchStrategy[Any]]] = {
    bool: st.booleans(),
    bytes: st.binary(max_size=50),
    int: st.integers(min_value=-(2**63), max_value=2**63 - 1),
    str: st.text(max_size=20),
    type(None): st.none(),
}


def values(hint: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401, an annotation
    """Values of an annotation; of a class with every field, those with a default too."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in VALUES:
        return VALUES[hint]
    if origin in (Union, UnionType):
        return st.one_of(*map(values, arguments))
    if origin in (list, tuple):
        return st.lists(values(arguments[0]), max_size=3).map(origin)
    hints = get_type_hints(hint)
    return st.builds(hint, **{field.name: values(hints[field.name]) for field in fields(hint)})


messages: Final[st.SearchStrategy[WireMessage]] = st.one_of(*map(values, get_args(WireMessage)))


@pytest.mark.parametrize(("message", "fields_hex"), GOLDEN, ids=lambda one: type(one).__name__)
def test_each_message_has_the_bytes_of_its_version(message: WireMessage, fields_hex: str) -> None:
    expected = bytes([2 * PLACES.index(type(message))]) + bytes.fromhex(fields_hex)

    assert encode(message) == expected
    assert decode(expected) == message


def test_the_bytes_of_every_message_are_pinned() -> None:
    assert tuple(PLACES) == get_args(WireMessage)


def test_the_schema_of_version_1_never_changes() -> None:
    # Once it is released, another fingerprint is another version: WIRE_VERSION is one higher.
    assert WIRE_VERSION == 1
    assert f"{avro_fingerprint(WIRE_SCHEMA):016x}" == "25a545706659b750"


def test_no_message_makes_many_values_of_few_bytes() -> None:
    foreign_avro(
        WIRE_SCHEMA
    )  # raises ValueError for an array of what takes no bytes, and for recursion


@given(messages)
def test_what_is_written_is_read_again(message: WireMessage) -> None:
    assert decode(encode(message)) == message


@given(messages)
def test_a_message_has_the_bytes_of_the_union_of_all_messages(message: WireMessage) -> None:
    union, encoded, again = (
        fastavro.parse_schema(json.loads(WIRE_SCHEMA)),
        encode(message),
        io.BytesIO(),
    )

    value = fastavro.schemaless_reader(io.BytesIO(encoded), union, None, return_record_name=True)
    fastavro.schemaless_writer(again, union, value, strict=True)

    assert again.getvalue() == encoded


@given(messages, st.data())
def test_a_message_that_was_cut_off_is_refused(message: WireMessage, data: st.DataObject) -> None:
    encoded = encode(message)
    length = data.draw(st.integers(min_value=0, max_value=len(encoded) - 1))

    with pytest.raises(ValueError, match=r"wire version 1|left over|no message"):
        decode(encoded[:length])


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_refused_and_nothing_else_is_raised(data: bytes) -> None:
    try:
        message = decode(data)
    except ValueError:
        return
    assert decode(encode(message)) == message


@given(st.lists(st.one_of(*map(values, get_args(FromTask))), min_size=1, max_size=5))
def test_the_messages_of_a_frame_are_read_in_order_with_their_sizes(
    sent: list[WireMessage],
) -> None:
    parts = [encode(message) for message in sent]

    assert list(decode_up(b"".join(parts))) == [
        (message, len(part)) for message, part in zip(sent, parts, strict=True)
    ]


def test_what_precedes_the_damage_in_a_frame_is_read() -> None:
    frame = decode_up(encode(Heartbeat()) + b"\xff")

    assert next(frame) == (Heartbeat(), 1)
    with pytest.raises(ValueError, match="no message of wire version 1"):
        next(frame)


def test_a_frame_without_a_message_is_refused() -> None:
    with pytest.raises(ValueError, match="no message of wire version 1"):
        list(decode_up(b""))


def test_bytes_after_a_message_are_refused() -> None:
    with pytest.raises(ValueError, match="1 bytes are left over"):
        decode(encode(Heartbeat()) + b"\x00")


def test_each_side_hears_only_what_the_other_says() -> None:
    assert list(decode_up(encode(Heartbeat()))) == [(Heartbeat(), 1)]
    assert list(decode_down(encode(Heartbeat()))) == [(Heartbeat(), 1)]
    with pytest.raises(ValueError, match="an attempt does not send InjectBarrier"):
        list(decode_up(encode(InjectBarrier(checkpoint_id=1))))
    with pytest.raises(ValueError, match="a driver does not send AckEvent"):
        list(decode_down(encode(AckEvent(operator_id="o", event_id=1, last_barrier=-1))))


def test_a_field_of_another_type_is_refused_by_the_sender() -> None:
    with pytest.raises(ValueError, match="is incompatible with its schema"):
        encode(InjectBarrier(checkpoint_id="1"))  # type: ignore[arg-type]
