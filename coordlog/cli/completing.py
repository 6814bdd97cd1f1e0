"""Completion of values in a shell: the ids of jobs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import click
from click.shell_completion import CompletionItem

from coordlog.errors import CoordlogError

__all__ = ["JOB"]

_PATIENCE_S: Final = 2.0
"""Seconds that a user at a prompt waits for a broker."""


def _jobs(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Ids of the jobs at the broker that the command line names, or at a shared local broker that runs already."""
    from coordlog.cli.log_access import LogPlace, is_file, security_of  # noqa: PLC0415, for a shell alone

    if is_file(incomplete):
        return [CompletionItem(incomplete, type="file")]
    servers = context.params.get("bootstrap_servers")
    is_shared = not servers
    if is_shared:
        from coordlog.log.broker.shared import shared_status  # noqa: PLC0415, as above

        servers = shared_status().bootstrap_servers
    if not servers:
        return []
    job_ids: tuple[str, ...] = ()
    # A prompt shows no errors.
    with contextlib.suppress(CoordlogError, OSError):
        place = LogPlace(
            servers=str(servers),
            security=security_of(is_shared=is_shared),
            topic_prefix=context.params.get("topic_prefix") or "",
        )
        job_ids = place.jobs(_PATIENCE_S)
    return [CompletionItem(job_id) for job_id in job_ids if job_id.startswith(incomplete)]


JOB: Final[Callable[[click.Context, click.Parameter, str], list[CompletionItem]]] = _jobs
"""Completes the id of a job, for `shell_complete`."""
