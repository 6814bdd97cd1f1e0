"""A job's chain: a source first, then operators, each with the provider of its coordinator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from coordlog.api.coordinator import CoordinatorProvider
from coordlog.api.operator import Operator, SourceReader
from coordlog.errors import OptionError
from coordlog.schemas.builtin_types import BUILTIN_PAYLOADS
from coordlog.schemas.payload import Payload, PayloadTypes

__all__ = ["Chain", "OperatorSpec", "RowRejects", "SourceSpec"]

RejectsOf = Callable[[pa.RecordBatch, Sequence[str]], pa.RecordBatch]


@dataclass(frozen=True, kw_only=True)
class RowRejects:
    """A source's treatment of rows that the operator behind it leaves out. Pickles."""

    create_reader: Callable[[], SourceReader]
    """Factory of a reader whose batches have the place of their rows; the operator removes it."""
    rejects_of: RejectsOf | None = None
    """Factory of batches for the source's followers, of such rows and the reason of each; None: they are counted."""
    needed_for: str = ""
    """Name and value of the option that has no effect without such an operator; empty if it has one."""


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """The first link of a chain. `create_reader` is sent to the tasks, so that it must pickle."""

    operator_id: str
    version: int = 1
    restores: Sequence[int] = ()
    """Earlier versions whose state this version reads; a restore refuses any other."""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Options that the state depends on; a restore with another value is refused, with its name. No secrets."""
    create_reader: Callable[[], SourceReader]
    coordinator: CoordinatorProvider
    keeps_state_across_splits: bool = False
    """False: a reader's state is its unfinished splits, nothing else."""
    merge_states: Callable[[Sequence[bytes]], bytes] | None = None
    """Function that merges the states of several readers into one, if a restore has fewer readers (clause E7: restore
    with another parallelism). Must pickle."""
    location: str | None = None
    """Path or URL of the input, without secrets; None if the source does not report it.

    A restore with another location is refused once a part of the input was listed or read.
    """
    allows_other_location: bool = False
    """Whether the user allows a restore with another location than that in the history."""
    inputs: Sequence[str] = ()
    """Paths and URLs of what is read, without secrets, if `location` is None or has several: a restore does not compare
    them."""
    archive: str | None = None
    """Place to which the source moves input that was read, without secrets: it must be apart from all others."""
    is_unbounded: bool = False
    """Whether the source never ends by itself; a batch job refuses it."""
    reads_in_order: bool = False
    """Whether a reader reads its splits one after the other, in the order in which they were added. Then a process that
    was killed was reading the first unfinished split."""
    groups_splits: bool = False
    """Whether a reader may set `FinishedSplit.has_next`."""

    followers: Sequence[OperatorSpec] = ()
    """Operators of the source's own, directly after it, or after the first operator if that `passes_rejects`: they take
    batches that are not for the chain."""
    row_rejects: RowRejects | None = None
    """None: no operator may leave out rows of this source."""


@dataclass(frozen=True, kw_only=True)
class OperatorSpec:
    """One further link of a chain."""

    operator_id: str
    version: int = 1
    restores: Sequence[int] = ()
    """Earlier versions whose state this version reads; a restore refuses any other."""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    """Options that the state depends on; a restore with another value is refused, with its name. No secrets."""
    create_operator: Callable[[], Operator]
    coordinator: CoordinatorProvider | None = None
    payload_types: Sequence[type[Payload]] = ()
    """Payload types of an operator without a coordinator; otherwise the provider declares them."""
    keeps_state_across_splits: bool = True
    """False: after `end_of_split` the operator holds nothing of the split."""
    takes_all_rows: bool = False
    """Whether it emits no rows, as a sink: a chain with a link behind it is refused."""
    passes_rejects: bool = False
    """Whether batches for the source's followers pass through unchanged: as the first operator it is before them."""
    leaving_out: Callable[[RejectsOf | None], Operator] | None = None
    """Factory of an operator that leaves out bad rows, in place of `create_operator`: for the first operator, if the
    source has `row_rejects`, whose `rejects_of` it gets. Must pickle."""
    groups_splits: bool = False
    """Whether one `end_of_split` may be called for several small splits: a committable may hold rows of all of them.

    Has an effect only if all operators of a chain allow it, and none keeps state across splits.
    """
    merge_states: Callable[[Sequence[bytes]], bytes] | None = None
    """Function that merges the states of several subtasks into one, if a restore has fewer subtasks (clause E7: restore
    with another parallelism). Must pickle."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """All links of a job, checked as a whole at construction.

    Raises:
        OptionError: Two links of one operator id, a provider for another id, an object instead of a factory, or rows
            that no link leaves out.
        PayloadTypeError: A payload type without a name, or two of one name.
    """

    source: SourceSpec
    operators: Sequence[OperatorSpec]
    payload_types: PayloadTypes = field(init=False)

    def __post_init__(self) -> None:
        self._let_first_leave_out()
        seen: set[str] = set()
        taking = ""
        for link in self.links:
            if not link.operator_id or link.operator_id in seen:
                raise OptionError(
                    "operator_id", link.operator_id, "set, and unlike that of any other operator"
                )
            seen.add(link.operator_id)
            _check_factory(link)
            _check_behind(link, taking)
            if isinstance(link, OperatorSpec) and link.takes_all_rows:
                taking = link.operator_id
            if link.coordinator is not None and link.coordinator.operator_id != link.operator_id:
                raise OptionError(
                    f"the coordinator's operator_id of {link.operator_id!r}",
                    link.coordinator.operator_id,
                    f"{link.operator_id!r}",
                )
        classes: list[type[Payload]] = [*BUILTIN_PAYLOADS]
        for provider in self.coordinators:
            classes.extend(provider.payload_types)
        for operator in (*self.source.followers, *self.operators):
            classes.extend(operator.payload_types)
        object.__setattr__(self, "payload_types", PayloadTypes(dict.fromkeys(classes)))

    def _let_first_leave_out(self) -> None:
        """Connect source and first operator, if rows that the operator leaves out have a place."""
        first, rejects = next(iter(self.operators), None), self.source.row_rejects
        if rejects is None:
            return
        if first is None or first.leaving_out is None:
            if rejects.needed_for:
                raise OptionError(
                    "bad_rows",
                    rejects.needed_for,
                    "'fail' here: this source can read all of its rows, so that only a transform declared with "
                    "`row_transform` has bad ones",
                )
            return
        create_operator = partial(first.leaving_out, rejects.rejects_of)
        leaving_out = replace(first, create_operator=create_operator, leaving_out=None)
        source = replace(self.source, create_reader=rejects.create_reader, row_rejects=None)
        object.__setattr__(self, "source", source)
        object.__setattr__(self, "operators", (leaving_out, *self.operators[1:]))

    @property
    def links(self) -> tuple[SourceSpec | OperatorSpec, ...]:
        """All links, in order."""
        first = [spec for spec in self.operators[:1] if spec.passes_rejects]
        return (self.source, *first, *self.source.followers, *self.operators[len(first) :])

    @property
    def coordinators(self) -> tuple[CoordinatorProvider, ...]:
        """The providers, in the order of the chain."""
        return tuple(link.coordinator for link in self.links if link.coordinator is not None)

    def opening(self, open_payload: Callable[[bytes], bytes]) -> Chain:
        """The same chain, with `open_payload` for payloads that are stored outside the log."""
        chain = copy(self)
        object.__setattr__(chain, "payload_types", self.payload_types.opened_by(open_payload))
        return chain

    @property
    def keeps_state_across_splits(self) -> bool:
        """Whether any link does; if none, a batch job's finished splits stay finished."""
        return any(link.keeps_state_across_splits for link in self.links)

    @property
    def groups_splits(self) -> bool:
        """Whether the rows of several small splits may be handed over together, in batch."""
        return not self.keeps_state_across_splits and all(each.groups_splits for each in self.links)


def _check_behind(link: SourceSpec | OperatorSpec, taking: str) -> None:
    """Refuse a link behind an operator that takes all rows: it would have none, without an error."""
    if taking:
        raise OptionError(
            "operators",
            f"[…, {taking!r}, {link.operator_id!r}, …]",
            f"a chain that ends with its sink: {taking!r} takes all rows, and {link.operator_id!r} behind it would get "
            "none; write it before the sink, or give each sink a job of its own",
        )


def _check_factory(link: SourceSpec | OperatorSpec) -> None:
    """Refuse an object in place of its factory: each attempt would fail to call it."""
    name, factory = (
        ("create_reader", link.create_reader)
        if isinstance(link, SourceSpec)
        else ("create_operator", link.create_operator)
    )
    if not callable(factory):
        raise OptionError(
            f"{name} of {link.operator_id!r}",
            f"a {type(factory).__name__}",
            "callable, as a class is: each attempt calls it for an object of its own",
        )
