"""What became of every rule, from the records in the topic alone: nothing of the driver's is asked.

This is a reader's own fold. It knows what a reset means, and nothing of the coordinator's code.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeVar, cast

from coordlog import Kind, Payload, Record
from coordlog.log.interface import Log
from coordlog.log.reader import read_counted
from coordlog.schemas.builtin_types import CheckpointMetadata
from coordlog.schemas.payload import payload_type_of
from coordlog.spark_integration.files.payloads import PublishFiles

from .coordinator import OPERATOR_ID
from .events import RuleApplied, RulesFinished, RuleUpdate

__all__ = ["Account", "SentRule", "Word", "read_account"]

P = TypeVar("P", bound=Payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRule:
    """One `rules.update`, to one attempt."""

    sequence: int
    subtask: int
    rule: RuleUpdate
    is_held: bool
    """A checkpoint held the gateway when it was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One event that an attempt sent up."""

    sequence: int
    subtask: int
    last_barrier: int
    event: Payload


@dataclass(slots=True)
class Account:
    """The fold. `apply` each record that counts, in log order."""

    sent: dict[int, SentRule] = field(default_factory=dict)
    """By event id, all branches."""
    acked: set[int] = field(default_factory=set)
    failed: dict[int, str] = field(default_factory=dict)
    """Why, by event id."""
    words: dict[int, Word] = field(default_factory=dict)
    """By sequence, all branches."""
    redelivered: int = 0
    handled: dict[int, list[SentRule]] = field(default_factory=dict)
    """By subtask, in the order of the acks: those of the branch that is in force."""
    heard: dict[int, list[Word]] = field(default_factory=dict)
    """By subtask, in the order in which the coordinator was given them, on that branch."""
    checkpoints: dict[int, CheckpointMetadata] = field(default_factory=dict)
    """The completed ones."""
    published: list[str] = field(default_factory=list)
    """The names of committed files, in the order of their intents."""
    kinds: Counter[Kind] = field(default_factory=Counter)
    counted: int = 0

    @property
    def undecided(self) -> list[int]:
        """Events that were sent and of which the log does not say what became."""
        return sorted(self.sent.keys() - self.acked - self.failed.keys())

    @property
    def last_checkpoint(self) -> CheckpointMetadata | None:
        """The newest completed one."""
        return self.checkpoints[max(self.checkpoints)] if self.checkpoints else None

    def apply(self, record: Record) -> None:
        """One more record."""
        self.counted += 1
        self.kinds[record.kind] += 1
        match record.kind:
            case Kind.CHECKPOINT_COMPLETED:
                metadata = _payload(record, CheckpointMetadata)
                self.checkpoints[metadata.checkpoint_id] = metadata
            case Kind.SUBTASK_RESET:
                self._reset_subtask(_int(record.subtask), _int(record.checkpoint_id))
            case Kind.RESET_TO_CHECKPOINT:
                self._reset_all(_int(record.checkpoint_id))
            case Kind.COMMIT_INTENT:
                self.published += [one.final for one in _payload(record, PublishFiles).files]
            case _ if record.operator_id == OPERATOR_ID:
                self._apply_event(record)
            case _:
                pass

    def _apply_event(self, record: Record) -> None:
        match record.kind:
            case Kind.EVENT_TO_SUBTASK:
                self._send(record)
            case Kind.EVENT_ACKED:
                self.acked.add(_int(record.event_id))
                rule = self.sent[_int(record.event_id)]
                self.handled.setdefault(rule.subtask, []).append(rule)
            case Kind.EVENT_FAILED:
                if _int(record.event_id) not in self.sent:
                    self._send(record)  # there was nobody to send it to: sent and failed in one
                self.failed[_int(record.event_id)] = record.reason or ""
            case Kind.EVENT_TO_COORDINATOR:
                word = Word(
                    sequence=_int(record.sequence),
                    subtask=_int(record.subtask),
                    last_barrier=_int(record.last_barrier),
                    event=_word(record),
                )
                self.words[word.sequence] = word
                self.heard.setdefault(word.subtask, []).append(word)
            case Kind.EVENT_REDELIVERED:
                self.redelivered += 1
                word = self.words[_int(record.cause)]
                self.heard.setdefault(word.subtask, []).append(word)
            case _:
                pass

    def _send(self, record: Record) -> None:
        self.sent[_int(record.event_id)] = SentRule(
            sequence=_int(record.sequence),
            subtask=_int(record.subtask),
            rule=_payload(record, RuleUpdate),
            is_held="held_by" in record.attributes,
        )

    def _reset_subtask(self, subtask: int, checkpoint_id: int) -> None:
        """One subtask goes back; the coordinator lives on and has undone what it said since."""
        cut = self._cut(checkpoint_id)
        self.handled[subtask] = [one for one in self.handled.get(subtask, []) if one.sequence < cut]
        self.heard[subtask] = [
            one for one in self.heard.get(subtask, []) if one.last_barrier < checkpoint_id
        ]

    def _reset_all(self, checkpoint_id: int) -> None:
        """All go back; what was under way to the coordinator is redelivered, after this record."""
        cut = self._cut(checkpoint_id)
        for subtask, rules in self.handled.items():
            self.handled[subtask] = [one for one in rules if one.sequence < cut]
        for subtask, words in self.heard.items():
            self.heard[subtask] = [one for one in words if one.sequence < cut]

    def _cut(self, checkpoint_id: int) -> int:
        """The sequence at which the coordinator's part of a checkpoint was taken."""
        if checkpoint_id not in self.checkpoints:
            return -1
        cuts = self.checkpoints[checkpoint_id].coordinators
        return next(one.sequence for one in cuts if one.operator_id == OPERATOR_ID)


def read_account(log: Log) -> Account:
    """The whole topic, as far as it counts."""
    account = Account()
    for turn in read_counted(log, log.start_offset(), log.high_watermark()):
        for one in turn.entries:
            account.apply(one.record())
    return account


def _payload(record: Record, cls: type[P]) -> P:
    assert record.payload is not None, f"{record.kind} has a payload"
    return cast("P", payload_type_of(cls).decode(record.payload))


def _word(record: Record) -> Payload:
    for cls in (RuleApplied, RulesFinished):
        if record.payload_type == payload_type_of(cls).key:
            return _payload(record, cls)
    raise AssertionError(f"the operator sends no {record.payload_type}")


def _int(value: int | None) -> int:
    assert value is not None, "records of this kind have it"
    return value
