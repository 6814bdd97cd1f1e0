"""`coordlog adopt`: an exported history as a log, in which its job continues."""

from __future__ import annotations

from pathlib import Path

import click

from coordlog.cli.commands.look.verify import ahead_text
from coordlog.cli.completing import JOB
from coordlog.cli.living import refuse_live_driver
from coordlog.cli.log_access import NewLogs, with_logs
from coordlog.cli.payload_store import StoreFinder, payload_store_option
from coordlog.cli.table_output import print_result, result_option
from coordlog.errors import CommandError, OptionError
from coordlog.log.file import ExportedLog
from coordlog.log.interface import Log
from coordlog.offline.adopt import Adopted, checked
from coordlog.offline.adopt import adopt as adopt_history
from coordlog.offline.mirror import from_its_beginning
from coordlog.projections.inspection.verify import Verified
from coordlog.projections.tables.payload_json import Json
from coordlog.spark_integration.driver.liveness import NamedDriver

__all__ = ["FILE", "adopt", "copied"]


FILE = click.Path(dir_okay=False, path_type=Path)


_PROGRESS_EVERY = 50_000


def copied(done: int, _end: int) -> None:
    """Print the number of copied records, now and then."""
    if done % _PROGRESS_EVERY == 0:
        click.echo(f"copied {done:,} records", err=True)


def _checked(offset: int) -> None:
    if offset and offset % _PROGRESS_EVERY == 0:
        click.echo(f"checked {offset:,} records", err=True)


@click.command()
@click.argument("job", shell_complete=JOB)
@click.option(
    # The variable and the key have the first name: `--from` of another command has another type.
    "--from-file",
    "--from",
    "file",
    type=FILE,
    metavar="FILE",
    help="File written by `coordlog export`.",
)
@click.option("--from-topic", "topic", metavar="TOPIC", help="A mirrored topic at the same broker.")
@click.option(
    "--take-over",
    "is_take_over",
    is_flag=True,
    help="Assume that no driver runs, also at the old cluster, if that cannot be known.",
)
@payload_store_option
@result_option
@with_logs
def adopt(
    logs: NewLogs,
    *,
    job: str,
    file: Path | None,
    topic: str | None,
    is_take_over: bool,
    payload_store: str | None,
    as_json: bool,
) -> None:
    """Let JOB continue at this broker, from an exported or a mirrored history, after the loss of its cluster.

    All of the history is checked first, with every hash, and read back afterwards. The copy lacks
    later work of the job: see docs/adopting.md. Only the driver named in the copy is checked; a
    driver that began later at the old cluster is unknown to the copy.
    """
    if (file is None) == (topic is None):
        raise click.UsageError("pass either --from or --from-topic")
    copy = _source(logs, job, file, topic)
    try:
        source = from_its_beginning(copy)
        verified = checked(
            source,
            job,
            open_payload=StoreFinder(job, payload_store, source).open_unless_copy,
            on_progress=_checked,
        )
        _refuse_unchecked(verified)
        _warn_of_ahead(verified)
        state = verified.state
        driver = NamedDriver.of(state)
        _refuse_unknown_driver(job, driver, is_take_over=is_take_over)
        refuse_live_driver(driver, is_take_over=is_take_over)
        target = logs.create(job)
        try:
            if state.launch_info.log[1] == target.identity.topic_id:
                raise CommandError(
                    job, f"its log at {logs.where} is the one of this history", "start the job"
                )
            adopted = adopt_history(source, target, job, on_progress=copied)
        finally:
            target.close()
    finally:
        copy.close()
    _report(logs, job, adopted, verified, as_json=as_json)
    if adopted.is_before:
        return
    if not driver.is_over:
        click.echo(
            f"a driver that has begun at the old cluster after epoch {driver.epoch} is not in this "
            "copy, and was not checked: check that none runs there before you start the job",
            err=True,
        )
        click.echo(
            "rows that the job has published after the copy was made are published again, in further files: "
            "docs/adopting.md shows how to find them",
            err=True,
        )


def _report(
    logs: NewLogs, job: str, adopted: Adopted, verified: Verified, *, as_json: bool
) -> None:
    from_there = f"it comes from cluster {adopted.cluster_id}, topic {adopted.topic_id}, and continues in epoch"
    sentence = (
        f"job {job} has been adopted already at {logs.where}: {from_there} {adopted.epoch + 1}; start it"
        if adopted.is_before
        else f"adopted job {job} at {logs.where}: {adopted.record_count:,} records, {verified.payload_count:,} "
        f"payloads and {verified.snapshot_count:,} snapshots checked; {from_there} {adopted.epoch + 1}"
    )
    facts: dict[str, Json] = {
        "job_id": job,
        "status": "was adopted before" if adopted.is_before else "adopted",
        "where": logs.where,
        "record_count": adopted.record_count,
        "payload_count": verified.payload_count,
        "snapshot_count": verified.snapshot_count,
        "from_cluster_id": adopted.cluster_id,
        "from_topic_id": adopted.topic_id,
        "next_epoch": adopted.epoch + 1,
    }
    print_result(sentence, facts, as_json=as_json)


def _refuse_unchecked(verified: Verified) -> None:
    if verified.absent_count:
        recorded_url = verified.state.launch_info.payload_store
        raise OptionError(
            "--payload-store",
            None,
            f"set: the history has {verified.absent_count:,} stored payloads, and a copy of a history opens "
            "no store by itself" + (f" (it names {recorded_url})" if recorded_url else ""),
        )


def _warn_of_ahead(verified: Verified) -> None:
    if verified.ahead is not None:
        text = ahead_text(verified.ahead, verified.state.next_sequence - 1)
        click.echo(
            f"warning: {text}; if there is another copy, compare: the job continues from the last record that counts",
            err=True,
        )


def _refuse_unknown_driver(job: str, driver: NamedDriver, *, is_take_over: bool) -> None:
    if driver.endpoint or driver.is_over or is_take_over:
        return
    raise CommandError(
        job,
        f"the history ends in epoch {driver.epoch}, a command's, in which no driver listens: whether "
        "one has begun at the old cluster since cannot be checked",
        "check that none runs there, and pass --take-over",
    )


def _source(logs: NewLogs, job: str, file: Path | None, topic: str | None) -> Log:
    if file is None:
        assert topic is not None, "one of the two options is set"
        if topic == logs.topic_of(job):
            raise CommandError(
                job,
                f"{topic} is the name of its log here, and a mirrored topic cannot keep that name",
                f"`coordlog export {job} FILE`, `coordlog delete {job} --keep-payloads`, then adopt it --from FILE",
            )
        return logs.open_topic(topic)
    source = ExportedLog(file)
    if source.is_redacted:
        raise CommandError(job, f"{file} is redacted", "export it without --redact")
    return source
