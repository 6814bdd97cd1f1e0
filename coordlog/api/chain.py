"""A job's chain: a source first, then operators, each with the provider of its coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

from coordlog.api.coordinator import CoordinatorProvider
from coordlog.api.operator import Operator, SourceReader
from coordlog.errors import OptionError
from coordlog.schemas.builtin_types import BUILTIN_PAYLOADS
from coordlog.schemas.payload import Payload, PayloadTypes

__all__ = ["Chain", "OperatorSpec", "SourceSpec"]


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """The first link of a chain. `create_reader` travels to the tasks, so that it must pickle."""

    operator_id: str
    version: int = 1
    restores: Sequence[int] = ()
    """The earlier versions whose state it reads; any other is refused by a restore."""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those that its state depends on: a restore with another value is refused by name. No secrets."""
    create_reader: Callable[[], SourceReader]
    coordinator: CoordinatorProvider
    keeps_state_across_splits: bool = False
    """False: a reader's state is its unfinished splits, nothing else."""
    merge_states: Callable[[Sequence[bytes]], bytes] | None = None
    """One reader's state of several readers', where a restore has fewer of them (clause E7); pickles."""
    location: str | None = None
    """What it reads, as a path or a URL without secrets; None: it does not tell.

    A restore with another one is refused once something of it was listed or read.
    """
    allows_other_location: bool = False
    """The user's word that another one than the history has is meant."""
    is_unbounded: bool = False
    """It never ends by itself: no input of a batch job."""
    reads_in_order: bool = False
    """A reader reads its splits one after the other, in the order in which they were added: so the first that is not
    finished is the one at which a process that was killed has ended."""


@dataclass(frozen=True, kw_only=True)
class OperatorSpec:
    """One further link of a chain."""

    operator_id: str
    version: int = 1
    restores: Sequence[int] = ()
    """The earlier versions whose state it reads; any other is refused by a restore."""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those that its state depends on: a restore with another value is refused by name. No secrets."""
    create_operator: Callable[[], Operator]
    coordinator: CoordinatorProvider | None = None
    payload_types: Sequence[type[Payload]] = ()
    """What a coordinator-less operator exchanges with nobody; normally the provider's."""
    keeps_state_across_splits: bool = True
    """False: after `end_of_split` nothing of the split is left in the operator."""
    merge_states: Callable[[Sequence[bytes]], bytes] | None = None
    """One subtask's state of several subtasks', where a restore has fewer of them (clause E7); pickles."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """All links of a job, checked as a whole when it is made.

    Raises:
        OptionError: Two links of one operator id, or a provider for another id.
        PayloadTypeError: A payload type without a name, or two of one name.
    """

    source: SourceSpec
    operators: Sequence[OperatorSpec]
    payload_types: PayloadTypes = field(init=False)

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for link in self.links:
            if not link.operator_id or link.operator_id in seen:
                raise OptionError(
                    "operator_id", link.operator_id, "given, and unlike that of any other operator"
                )
            seen.add(link.operator_id)
            if link.coordinator is not None and link.coordinator.operator_id != link.operator_id:
                raise OptionError(
                    f"the coordinator's operator_id of {link.operator_id!r}",
                    link.coordinator.operator_id,
                    f"{link.operator_id!r}",
                )
        classes: list[type[Payload]] = [*BUILTIN_PAYLOADS]
        for provider in self.coordinators:
            classes.extend(provider.payload_types)
        for operator in self.operators:
            classes.extend(operator.payload_types)
        object.__setattr__(self, "payload_types", PayloadTypes(dict.fromkeys(classes)))

    @property
    def links(self) -> tuple[SourceSpec | OperatorSpec, ...]:
        """All links, in order."""
        return (self.source, *self.operators)

    @property
    def coordinators(self) -> tuple[CoordinatorProvider, ...]:
        """The providers, in the order of the chain."""
        return tuple(link.coordinator for link in self.links if link.coordinator is not None)

    def opening(self, open_payload: Callable[[bytes], bytes]) -> Chain:
        """The same chain, for who can open payloads that stand outside the log."""
        made = copy(self)
        object.__setattr__(made, "payload_types", self.payload_types.opened_by(open_payload))
        return made

    @property
    def keeps_state_across_splits(self) -> bool:
        """Whether any link does; if none, a batch job's finished splits stay finished."""
        return any(link.keeps_state_across_splits for link in self.links)
