"""Messages as bytes: what today's code writes, it and every later one of this version reads."""

from __future__ import annotations

import json
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from coordlog.spark_integration.wire.messages import (
    WIRE_SCHEMA,
    WIRE_VERSION,
    AskCoordinator,
    ClientHello,
    CoordinatorAnswer,
    DriverHello,
    Heartbeat,
    MoreStates,
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

# The union's index of the record, then its fields: integers zigzag, texts and bytes with their
# lengths, arrays in one counted block with an empty one after it, unions with their index.
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
        "00 0264 06 02 01 04 0268 8001",
    ),
    (
        SendEvent(
            operator_id="o", event_id=0, last_barrier=-1, payload_type="a@1", payload=b"\xff"
        ),
        "02 026f 00 01 06614031 02ff",
    ),
    (AckEvent(operator_id="o", event_id=1, last_barrier=2), "04 026f 02 04"),
    (
        AckCheckpoint(checkpoint_id=7, last_barrier=7, snapshot=SNAPSHOT),
        "06 0e 0e 04 0c736f75726365 02 0201 0873696e6b 00 00 02 0873696e6b 040203 00",
    ),
    (
        FinishSplit(
            operator_id="o",
            last_barrier=-1,
            finished=SplitFinished(split_id="s", rows=1, bytes_read=2, committables=[]),
        ),
        "08 026f 01 0273 02 04 00",
    ),
    (
        Complete(last_barrier=0, snapshot=AttemptSnapshot(states=[], committables=[])),
        "0a 00 00 00",
    ),
    (
        Fail(operator_id="o", callback="poll", reason="r", split_id="s", event_id=None),
        "0c 026f 08706f6c6c 0272 02 0273 00 00",
    ),
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
        "0e 0264 02 04 01 08 01 02 026f 02 00 00 02 0273 00",
    ),
    (AlreadyFinished(attempt_number=5), "10 0a"),
    (Refused(reason="no"), "12 046e6f"),
    (
        DeliverEvent(operator_id="o", event_id=300, payload_type="a@1", payload=b""),
        "14 026f d804 06614031 00",
    ),
    (InjectBarrier(checkpoint_id=1), "16 02"),
    (CheckpointCompleted(checkpoint_id=1), "18 02"),
    (CheckpointAborted(checkpoint_id=1), "1a 02"),
    (Fenced(reason="x", is_finished=True), "1c 0278 01"),
    (Heartbeat(), "1e"),
    (ClientHello(nonce=b"\x00\x01"), "20 040001"),
    (DriverHello(job_id="j", driver_id="d", proof=b"\x09"), "22 026a 0264 0209"),
    (AskCoordinator(operator_id="o", payload_type="a@1", payload=b"\x07"), "24 026f 06614031 0207"),
    (
        CoordinatorAnswer(outcome="answered", sequence=9, payload_type="b@1", payload=b""),
        "26 10616e737765726564 02 12 02 06624031 02 00 00",
    ),
    (CoordinatorAnswer(outcome="refused", reason="no"), "26 0e72656675736564 00 00 00 02 046e6f"),
    (
        SkipSplit(operator_id="o", last_barrier=-1, split_id="s", rows=3, reason="no"),
        "28 026f 01 0273 06 046e6f",
    ),
    (Marker(number=150), "2a ac02"),
    (
        MoreStates(
            states=(OperatorState(operator_id="o", state=b"\x05"),), skipped_splits=("s", "t")
        ),
        "2c 02 026f 02 0205 00 04 0273 0274 00",
    ),
]

text = st.text(max_size=20)
integers = st.integers(min_value=-(2**31), max_value=2**31 - 1)
longs = st.integers(min_value=-(2**63), max_value=2**63 - 1)
content = st.binary(max_size=50)
states = st.builds(OperatorState, operator_id=text, state=st.none() | content)
committables = st.lists(st.builds(Committable, operator_id=text, content=content), max_size=3)
snapshots = st.builds(
    AttemptSnapshot, states=st.lists(states, max_size=3), committables=committables
)
messages: Final[st.SearchStrategy[WireMessage]] = st.one_of(
    st.builds(
        Register,
        driver_id=text,
        subtask=integers,
        stage_run=integers,
        task_attempt_id=longs,
        spark_attempt_number=integers,
        host=text,
        pid=integers,
    ),
    st.builds(
        SendEvent,
        operator_id=text,
        event_id=longs,
        last_barrier=longs,
        payload_type=text,
        payload=content,
    ),
    st.builds(AckEvent, operator_id=text, event_id=longs, last_barrier=longs),
    st.builds(AckCheckpoint, checkpoint_id=longs, last_barrier=longs, snapshot=snapshots),
    st.builds(
        FinishSplit,
        operator_id=text,
        last_barrier=longs,
        finished=st.builds(
            SplitFinished, split_id=text, rows=longs, bytes_read=longs, committables=committables
        ),
    ),
    st.builds(
        SkipSplit, operator_id=text, last_barrier=longs, split_id=text, rows=longs, reason=text
    ),
    st.builds(Complete, last_barrier=longs, snapshot=snapshots),
    st.builds(
        Fail,
        operator_id=text,
        callback=text,
        reason=text,
        split_id=st.none() | text,
        event_id=st.none() | longs,
        final=text,
    ),
    st.builds(
        Accepted,
        driver_id=text,
        epoch=integers,
        attempt_number=integers,
        restored_checkpoint=longs,
        parallelism=integers,
        is_batch=st.booleans(),
        states=st.lists(states, max_size=3).map(tuple),
    ),
    st.builds(AlreadyFinished, attempt_number=integers),
    st.builds(Refused, reason=text),
    st.builds(DeliverEvent, operator_id=text, event_id=longs, payload_type=text, payload=content),
    st.builds(InjectBarrier, checkpoint_id=longs),
    st.builds(CheckpointCompleted, checkpoint_id=longs),
    st.builds(CheckpointAborted, checkpoint_id=longs),
    st.builds(Fenced, reason=text, is_finished=st.booleans()),
    st.builds(Marker, number=longs),
    st.builds(
        MoreStates,
        states=st.lists(states, max_size=3).map(tuple),
        skipped_splits=st.lists(text, max_size=3).map(tuple),
    ),
    st.builds(Heartbeat),
    st.builds(ClientHello, nonce=content),
    st.builds(DriverHello, job_id=text, driver_id=text, proof=content),
    st.builds(AskCoordinator, operator_id=text, payload_type=text, payload=content),
    st.builds(
        CoordinatorAnswer,
        outcome=text,
        sequence=st.none() | longs,
        payload_type=st.none() | text,
        payload=st.none() | content,
        reason=st.none() | text,
    ),
)


@pytest.mark.parametrize(("message", "expected"), GOLDEN, ids=lambda one: type(one).__name__)
def test_each_message_has_the_bytes_of_its_version(message: WireMessage, expected: str) -> None:
    assert encode(message).hex() == expected.replace(" ", "")
    assert decode(bytes.fromhex(expected)) == message


def test_the_schema_of_version_5_never_changes() -> None:
    # Another fingerprint is another version: a new file, and WIRE_VERSION one higher.
    assert WIRE_VERSION == 5
    assert f"{avro_fingerprint(WIRE_SCHEMA):016x}" == "5f3c07cbab30801e"


def test_every_field_of_the_schema_says_what_it_is() -> None:
    undocumented = [
        f"{record['name']}.{field.get('name', '')}"
        for record in json.loads(WIRE_SCHEMA)
        for field in [record, *record["fields"]]
        if not field.get("doc")
    ]

    assert undocumented == []


@given(messages)
def test_what_is_written_is_read_again(message: WireMessage) -> None:
    assert decode(encode(message)) == message


@given(messages, st.data())
def test_a_message_that_was_cut_off_is_refused(message: WireMessage, data: st.DataObject) -> None:
    encoded = encode(message)
    length = data.draw(st.integers(min_value=0, max_value=len(encoded) - 1))

    with pytest.raises(ValueError, match=r"wire version 4|left over|no message"):
        decode(encoded[:length])


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_refused_and_nothing_else_is_raised(data: bytes) -> None:
    try:
        message = decode(data)
    except ValueError:
        return
    assert decode(encode(message)) == message


def test_bytes_after_a_message_are_refused() -> None:
    with pytest.raises(ValueError, match="1 bytes are left over"):
        decode(encode(Heartbeat()) + b"\x00")


def test_each_side_hears_only_what_the_other_says() -> None:
    assert decode_up(encode(Heartbeat())) == Heartbeat()
    assert decode_down(encode(Heartbeat())) == Heartbeat()
    with pytest.raises(ValueError, match="an attempt does not say InjectBarrier"):
        decode_up(encode(InjectBarrier(checkpoint_id=1)))
    with pytest.raises(ValueError, match="a driver does not say AckEvent"):
        decode_down(encode(AckEvent(operator_id="o", event_id=1, last_barrier=-1)))


def test_a_field_of_another_type_is_refused_by_the_sender() -> None:
    with pytest.raises(ValueError, match="does not fit its schema"):
        encode(InjectBarrier(checkpoint_id="1"))  # type: ignore[arg-type]
