"""The history of every rule, from the records in the topic alone, without the driver.

This is a reader's own fold. It implements resets, and uses no code of the coordinator.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeVar, cast

from coordlog import Kind, Payload, Record
from coordlog.history import History
from coordlog.log.interface import Log
from coordlog.schemas.builtin_types import CheckpointMetadata
from coordlog.schemas.payload import payload_type_of
from coordlog.schemas.record import acked_events
from coordlog.spark_integration.files.payloads import PublishFiles

from .coordinator import OPERATOR_ID
from .events import RuleApplied, RulesFinished, RuleUpdate

__all__ = ["Account", "SentRule", "Word", "read_account"]

P = TypeVar("P", bound=Payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRule:
    """A `rules.update` to an attempt."""

    sequence: int
    subtask: int
    rule: RuleUpdate
    is_held: bool
    """Whether a checkpoint held the gateway when the event was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """An event from an attempt to the coordinator."""

    sequence: int
    subtask: int
    last_barrier: int
    event: Payload


@dataclass(slots=True)
class Account:
    """The fold. `apply` each record that counts, in log order."""

    sent: dict[int, SentRule] = field(default_factory=dict)
    """Sent rules by event id, of all branches."""
    acked: set[int] = field(default_factory=set)
    """Ids of acked events."""
    failed: dict[int, str] = field(default_factory=dict)
    """Reasons of failed events, by event id."""
    words: dict[int, Word] = field(default_factory=dict)
    """Events to the coordinator by sequence, of all branches."""
    redelivered: int = 0
    """Number of redelivered events."""
    handled: dict[int, list[SentRule]] = field(default_factory=dict)
    """Handled rules of the current branch by subtask, in the order of the acks."""
    heard: dict[int, list[Word]] = field(default_factory=dict)
    """Events of the current branch by subtask, in the order in which the coordinator handled them."""
    checkpoints: dict[int, CheckpointMetadata] = field(default_factory=dict)
    """Completed checkpoints by id."""
    published: list[str] = field(default_factory=list)
    """Names of committed files, in the order of their intents."""
    kinds: Counter[Kind] = field(default_factory=Counter)
    counted: int = 0

    @property
    def undecided(self) -> list[int]:
        """Ids of sent events that were neither acked nor failed."""
        return sorted(self.sent.keys() - self.acked - self.failed.keys())

    @property
    def last_checkpoint(self) -> CheckpointMetadata | None:
        """The newest completed checkpoint, or None."""
        return self.checkpoints[max(self.checkpoints)] if self.checkpoints else None

    def apply(self, record: Record) -> None:
        """Apply the next record."""
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
                self.published += [file.final for file in _payload(record, PublishFiles).files]
            case _ if record.operator_id == OPERATOR_ID:
                self._apply_event(record)
            case _:
                pass

    def _apply_event(self, record: Record) -> None:
        match record.kind:
            case Kind.EVENT_TO_SUBTASK:
                self._send(record)
            case Kind.EVENT_ACKED:
                for event_id in acked_events(record):
                    self.acked.add(event_id)
                    rule = self.sent[event_id]
                    self.handled.setdefault(rule.subtask, []).append(rule)
            case Kind.EVENT_FAILED:
                if _int(record.event_id) not in self.sent:
                    self._send(record)  # there was no attempt: one record for sent and failed
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
        """Take a subtask back; the coordinator continues and undoes the subtask's later events."""
        cut = self._cut(checkpoint_id)
        handled, heard = self.handled.get(subtask, []), self.heard.get(subtask, [])
        self.handled[subtask] = [rule for rule in handled if rule.sequence < cut]
        self.heard[subtask] = [word for word in heard if word.last_barrier < checkpoint_id]

    def _reset_all(self, checkpoint_id: int) -> None:
        """Take all back; events in flight to the coordinator are redelivered, after this record."""
        cut = self._cut(checkpoint_id)
        for subtask, rules in self.handled.items():
            self.handled[subtask] = [rule for rule in rules if rule.sequence < cut]
        for subtask, words in self.heard.items():
            self.heard[subtask] = [word for word in words if word.sequence < cut]

    def _cut(self, checkpoint_id: int) -> int:
        """The sequence at which the coordinator's part of a checkpoint was taken."""
        if checkpoint_id not in self.checkpoints:
            return -1
        cuts = self.checkpoints[checkpoint_id].coordinators
        return next(cut.sequence for cut in cuts if cut.operator_id == OPERATOR_ID)


def read_account(log: Log) -> Account:
    """The account of all records of the topic that count."""
    account = Account()
    for turn in History(log).turns():
        for entry in turn.entries:
            account.apply(entry.record())
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
    assert value is not None, "records of this kind have a value"
    return value
