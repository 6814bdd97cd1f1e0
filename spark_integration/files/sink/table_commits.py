"""The state of the sinks of files and tables: numbers of the commits to a table, by which the table knows each of them.

A sink of files numbers nothing, and keeps what a sink of tables has counted under its id: its next life may write
to a table again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from coordlog.projections.operators.operator_projection import OperatorProjection
from coordlog.projections.operators.state_schema import DerivedCodec
from coordlog.schemas.payload import Payload
from coordlog.schemas.record import Kind, Record
from coordlog.spark_integration.files.payloads import CommitToTable

__all__ = ["TABLE_COMMITS", "TableCommits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommits:
    """State of an operator's commits to its table by the log."""

    following: int = 0
    """Number of the next checkpoint with files: each is above all earlier ones, in every history of the job."""


def _apply(state: TableCommits, record: Record, value: Payload | None) -> TableCommits:
    if record.kind is Kind.COMMIT_INTENT and isinstance(value, CommitToTable):
        return TableCommits(following=value.number + 1)
    return state


TABLE_COMMITS: Final[OperatorProjection[TableCommits]] = OperatorProjection(
    name="coordlog.table_commits",
    version=1,
    initial=TableCommits(),
    apply=_apply,
    codec=DerivedCodec(TableCommits),
    # A reset undoes no commit, and a number that is used again would be taken for one that is done.
    survives_resets=True,
    reads=(CommitToTable,),
)
