"""`coordlog web`: the page of each job, served and renewed."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import click

from coordlog.cli.commands.look.report import size_of_split
from coordlog.cli.log_access import FileLogs, Logs, is_file, with_finder
from coordlog.errors import EnvironmentSetupError, OptionError

__all__ = ["web"]

_CLIENTS_MAX = 64
_REQUEST_BYTES_MAX = 16_384
_TOKEN_CHARS_MIN = 16


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen at.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8484,
    show_default=True,
    help="Port to listen at.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File with the token of the readers; without it one is made if ADDRESS is not a loopback address.",
)
@click.option(
    "--memory",
    "memory_mb",
    type=click.IntRange(16),
    default=1024,
    show_default=True,
    metavar="MB",
    help="Megabytes for the facts of all jobs; those that were looked at longest ago are read again when needed.",
)
@with_finder
def web(
    find: Callable[[], Logs],
    *,
    jobs: tuple[str, ...],
    host: str,
    port: int,
    token_file: Path | None,
    memory_mb: int,
) -> None:
    """Serve the page of each JOB, by default of all jobs, and renew it while the job lives.

    Logs are only read. JOB may be an exported file. Ctrl-C ends it.
    """
    try:
        import uvicorn  # noqa: PLC0415, an extra

        from coordlog.cli.web.access import is_loopback  # noqa: PLC0415, as above
        from coordlog.cli.web.connections import BoundedConnection  # noqa: PLC0415, as above
        from coordlog.cli.web.pages import application, names_of_files  # noqa: PLC0415, as above
    except ImportError as error:
        raise EnvironmentSetupError(
            f"the package {error.name}, which serves the pages, is not installed",
            "pip install 'coordlog[web]'",
        ) from error
    token = None if token_file is None else token_file.read_text(encoding="utf-8").strip()
    if token is not None and not (token.isascii() and len(token) >= _TOKEN_CHARS_MIN):
        raise OptionError(
            "token-file",
            str(token_file),
            f"a file with a token of {_TOKEN_CHARS_MIN} ASCII characters or more",
        )
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(32)
    paths = dict.fromkeys(Path(job) for job in jobs if is_file(job))
    only = tuple(dict.fromkeys(job for job in jobs if not is_file(job)))
    files = names_of_files([FileLogs(path) for path in paths], only)
    broker = find() if only or not jobs else None
    app = application(
        broker,
        only,
        files,
        size_of=size_of_split,
        host=host,
        token=token,
        memory_bytes=memory_mb * 1_000_000,
    )
    name = f"[{host}]" if ":" in host else host
    secret = f"?token={token}" if token is not None and token_file is None else ""
    click.echo(f"serving http://{name}:{port}/{secret} until Ctrl-C", err=True)
    uvicorn.run(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=_CLIENTS_MAX,
        h11_max_incomplete_event_size=_REQUEST_BYTES_MAX,
        http=BoundedConnection,
        timeout_graceful_shutdown=1,
    )
