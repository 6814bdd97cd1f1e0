"""`coordlog import` and `adopt`: an exported history as a log, to be looked at, or for its job to go on there."""

from __future__ import annotations

from pathlib import Path

import click

from coordlog.cli.commands.inspect import ahead_text
from coordlog.cli.living import refuse_live_driver
from coordlog.cli.log_access import NewLogs, with_logs
from coordlog.cli.payload_store import StoreFinder, payload_store_option
from coordlog.errors import CommandError, OptionError
from coordlog.log.file import ExportedLog
from coordlog.log.interface import Log
from coordlog.log.job_id import check_job_id
from coordlog.offline.adopt import adopt as adopt_history
from coordlog.offline.adopt import checked, copy_history
from coordlog.projections.inspection.verify import Verified
from coordlog.schemas.payload_address import STORE_ATTRIBUTE
from coordlog.spark_integration.driver.liveness import NamedDriver

__all__ = ["adopt", "import_"]

_FILE = click.Path(dir_okay=False, path_type=Path)
_PROGRESS_EVERY = 50_000


def _copied(done: int, _end: int) -> None:
    if done % _PROGRESS_EVERY == 0:
        click.echo(f"copied {done:,} records", err=True)


def _checked(offset: int) -> None:
    if offset and offset % _PROGRESS_EVERY == 0:
        click.echo(f"checked {offset:,} records", err=True)


@click.command(name="import")
@click.argument("file", type=_FILE)
@click.option("--as", "name", metavar="JOB", help="Under this name; default: its own.")
@with_logs
def import_(logs: NewLogs, *, file: Path, name: str | None) -> None:
    """Put an exported history into a log at the broker, to be looked at there, as with Spark SQL.

    No job goes on from it: `coordlog adopt` is for that. The commands that show a history read FILE
    itself too.
    """
    source = ExportedLog(file)
    job = name or source.job_id
    check_job_id(job)
    for _ in source.read(source.start_offset(), source.high_watermark()):
        pass  # a file that is cut off leaves no part of it at the broker
    target = logs.create(job)
    try:
        count = copy_history(source, target, job, on_progress=_copied)
    finally:
        target.close()
    click.echo(f"imported {count:,} records as the log of job {job} at {logs.where}", err=True)


@click.command()
@click.argument("job")
@click.option(
    # Its variable and its key are of the first name: another command has a `--from` of another kind.
    "--from-file",
    "--from",
    "file",
    type=_FILE,
    metavar="FILE",
    help="What `coordlog export` wrote.",
)
@click.option("--from-topic", "topic", metavar="TOPIC", help="A mirrored topic at the same broker.")
@click.option(
    "--take-over",
    "is_take_over",
    is_flag=True,
    help="Where it cannot be known whether a driver lives, at the old cluster too: it does not.",
)
@payload_store_option
@with_logs
def adopt(
    logs: NewLogs,
    *,
    job: str,
    file: Path | None,
    topic: str | None,
    is_take_over: bool,
    payload_store: str | None,
) -> None:
    """Let JOB go on at this broker, from an exported or a mirrored history: its own cluster is lost.

    Everything in the history is checked first, every hash too, and read back afterwards. What the
    job did after the copy was made is not in it: see docs/adopting.md. Only the driver that the
    copy names is asked whether it lives; one that began at the old cluster later no copy can know.
    """
    if (file is None) == (topic is None):
        raise click.UsageError("give either --from or --from-topic")
    source = _source(logs, job, file, topic)
    try:
        found = checked(
            source,
            job,
            open_payload=StoreFinder(job, payload_store, source).open_unless_copy,
            on_progress=_checked,
        )
        _refuse_unchecked(found)
        _warn_of_ahead(found)
        state = found.state
        epoch_start = NamedDriver.of(state)
        _refuse_unknown_driver(job, epoch_start, is_take_over=is_take_over)
        refuse_live_driver(epoch_start, is_take_over=is_take_over)
        target = logs.create(job)
        try:
            here = target.identity
            if state.launch.get("topic_id") == here.topic_id:
                raise CommandError(
                    job, f"its log at {logs.where} is the one of this history", "start the job"
                )
            done = adopt_history(source, target, job, on_progress=_copied)
        finally:
            target.close()
    finally:
        source.close()
    if done.is_before:
        click.echo(
            f"job {job} has been adopted already at {logs.where}: it comes from cluster "
            f"{done.cluster_id}, topic {done.topic_id}, and goes on in epoch {done.epoch + 1}; "
            "start it",
            err=True,
        )
        return
    click.echo(
        f"adopted job {job} at {logs.where}: {done.record_count:,} records, "
        f"{found.payload_count:,} payloads and {found.snapshot_count:,} snapshots checked; it comes "
        f"from cluster {done.cluster_id}, topic {done.topic_id}, and goes on in epoch "
        f"{done.epoch + 1}",
        err=True,
    )
    if not epoch_start.is_over:
        click.echo(
            f"a driver that has begun at the old cluster after epoch {epoch_start.epoch} is not in this "
            "copy, and was not asked: see that none runs there before you start the job",
            err=True,
        )
        click.echo(
            "what the job has published after the copy was made it publishes again, beside that: "
            "docs/adopting.md tells how to find those files",
            err=True,
        )


def _refuse_unchecked(found: Verified) -> None:
    if found.absent_count:
        named = found.state.launch.get(STORE_ATTRIBUTE, "")
        raise OptionError(
            "--payload-store",
            None,
            f"given: the history has {found.absent_count:,} stored payloads, and a copy of a history opens "
            "no store by itself" + (f" (it names {named})" if named else ""),
        )


def _warn_of_ahead(found: Verified) -> None:
    if found.ahead is not None:
        click.echo(
            f"warning: {ahead_text(found.ahead, found.state.next_sequence - 1)}; if there is another copy, "
            "compare: the job goes on from the last record that counts",
            err=True,
        )


def _refuse_unknown_driver(job: str, epoch_start: NamedDriver, *, is_take_over: bool) -> None:
    if epoch_start.endpoint or epoch_start.is_over or is_take_over:
        return
    raise CommandError(
        job,
        f"the history ends in epoch {epoch_start.epoch}, a command's, in which no driver listens: whether "
        "one has begun at the old cluster since cannot be asked",
        "see that none runs there, and give --take-over",
    )


def _source(logs: NewLogs, job: str, file: Path | None, topic: str | None) -> Log:
    if file is None:
        assert topic is not None, "one of the two is given"
        if topic == logs.topic_of(job):
            raise CommandError(
                job,
                f"{topic} is the name of its log here, and a mirrored one cannot stay in its place",
                f"`coordlog export {job} FILE`, `coordlog delete {job} --keep-payloads`, then adopt it --from FILE",
            )
        return logs.open_topic(topic)
    source = ExportedLog(file)
    if source.is_redacted:
        raise CommandError(job, f"{file} is redacted", "export it without --redact")
    return source
