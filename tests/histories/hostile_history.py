"""A history whose texts are attacks on a page."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coordlog.log.interface import UnstoredRecord
from coordlog.schemas.record import Kind, Record
from histories.hand_history import BEGAN_US, SOURCE, HandHistory, discovery, unstored

ATTACKS: Final = (
    "<img src=x onerror=\"document.title='attacked'\">",
    "</script><script>document.title='attacked'</script>",
    "<svg onload=document.title='attacked'>",
    "javascript:document.title='attacked'",
    '"><iframe srcdoc="<script>parent.document.title=1</script>">',
    "{{data}}{{script}}<!--",
    "\u202e\u0000\ud7ff${document.title='attacked'}`",
    "x'; touch /tmp/attacked; echo '",
    "one\u2028two\u2029three\u2066four\u202e\u200f",
    "long-" * 2_000,
)


def hostile_history() -> list[UnstoredRecord]:
    """Each attack as a split, a reason, a host, a driver, an operator, a request of another program."""
    history = HandHistory()
    history.epoch()
    epoch = history.records.pop()
    assert epoch.value
    record = Record(
        epoch=0,
        driver_id=ATTACKS[0],
        sequence=None,
        kind=Kind.EPOCH_STARTED,
        timestamp_us=BEGAN_US,
        job_id=history.job_id,
        attributes={
            "mode": ATTACKS[1],
            "host": ATTACKS[2],
            "coordlog_version": ATTACKS[4],
            "parallelism": str(len(ATTACKS)),
        },
    )
    history.records.append(unstored(record))
    history.turn(history.record(Kind.COORDINATORS_STARTED, attributes={"restore": ATTACKS[0]}))
    history.turn(discovery(history, *ATTACKS))
    for subtask, attack in enumerate(ATTACKS):
        attempt = (subtask, 0)
        started = history.started(attempt, -1, subtask)
        history.turn(replace(started, attributes={**started.attributes, "host": attack}))
        history.turn(history.assigned(attempt, subtask, attack))
        history.turn(history.finished(attempt, attack, 1, -1))
        history.turn(history.failed(attempt, attack), history.reset_subtask(subtask, -1))
    history.turn(history.record(Kind.GLOBAL_FAILURE, operator_id=ATTACKS[0], reason=ATTACKS[1]))
    history.turn(history.record(Kind.COMMIT_INTENT, operator_id=ATTACKS[2], checkpoint_id=1))
    history.turn(history.of_checkpoint(Kind.CHECKPOINT_TRIGGERED, 1))
    aborted = history.of_checkpoint(Kind.CHECKPOINT_ABORTED, 1)
    history.turn(replace(aborted, reason=ATTACKS[1]))
    history.foreign()
    history.void(history.skipped(SOURCE, ATTACKS[0]), epoch=0, sequence=0)
    history.turn(history.record(Kind.JOB_FAILED, reason=ATTACKS[0]))
    return history.records
