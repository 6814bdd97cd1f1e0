"""`coordlog report`: a job's history as one file for people, or for other tools."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import click

from coordlog.amounts import in_bytes, many
from coordlog.cli.living import DriverFold
from coordlog.cli.log_access import FileLogs, Logs, argument_of, with_history
from coordlog.cli.reading import note_beginning, opened, whole
from coordlog.errors import CoordlogError, OptionError
from coordlog.report.chrome_trace import chrome_trace
from coordlog.report.document import Document, DocumentFold
from coordlog.report.page_file import page
from coordlog.spark_integration.files.source.split_bytes import decode_split

__all__ = ["report", "size_of_split"]

_ENDINGS = {"html": "html", "json": "json", "chrome-trace": "trace.json"}


@click.command()
@click.argument("job")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File to write; by default JOB.html, and - is the standard output.",
)
@click.option(
    # The first name is the key: `format` is that of `ingest`, with other values.
    "--report-format",
    "--format",
    "form",
    type=click.Choice(tuple(_ENDINGS)),
    default="html",
    show_default=True,
    help="html: one page that needs no network. chrome-trace: for Perfetto.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@with_history
def report(logs: Logs, *, job: str, output: Path | None, form: str, force: bool) -> None:
    """Write the report of JOB: verdict, lanes, failures, checkpoints, splits, commits over time.

    The file has all facts in it, and opens without a network. JOB may be an exported file.
    """
    target = output if output is not None else Path(f"{job}.{_ENDINGS[form]}")
    is_stdout = str(target) == "-"
    if not is_stdout and target.exists() and not force:
        raise click.BadParameter(f"{target} exists; --force replaces it", param_hint="FILE")
    history = _document(logs, job)
    text = _text(history, form)
    if is_stdout:
        click.echo(text, nl=False)
        return
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(
            "output", str(target), f"a file that can be written: {error.strerror}"
        ) from error
    counts = history.facts["counts"]
    records = counts["records"] if isinstance(counts, dict) else 0
    count = many(records if isinstance(records, int) else 0, "record")
    click.echo(f"wrote {count} of job {job} to {target}, {in_bytes(len(text))}", err=True)


def _document(logs: Logs, job: str) -> Document:
    now_us = time.time_ns() // 1000
    is_file = isinstance(logs, FileLogs)
    fold = DocumentFold(size_of=size_of_split)
    with opened(logs, job) as log:
        note_beginning(log)
        driver = DriverFold(job, log.identity)
        for entry in whole(log).records():
            fold.apply(entry)
            driver.apply(entry)
    answers: bool | None = None
    if not is_file and not fold.is_over:
        with suppress(CoordlogError):  # the user's token is none
            answers = driver.answers()
    return fold.document(
        job=job,
        where=logs.where,
        made_us=now_us,
        made_by=metadata.version("coordlog"),
        moment_us=None if is_file else now_us,
        argument=argument_of(logs, job),
        driver_answers=answers,
    )


def size_of_split(content: bytes) -> int | None:
    """Bytes of a file source's split: those of its file, divided by its parts; None if unknown."""
    try:
        split = decode_split(content)
    except ValueError:  # records are untrusted
        return None
    return None if split.size_bytes < 0 else split.size_bytes // max(split.parts, 1)


def _text(history: Document, form: str) -> str:
    if form == "html":
        return page(history)
    value = (
        chrome_trace(history)
        if form == "chrome-trace"
        else history.facts | {"records": history.records}
    )
    return json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n"
