"""`coordlog request`: sends a request or a query to a coordinator of a running job, and prints its response."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import cast

import click

from coordlog.cli.completing import JOB
from coordlog.cli.console import Column, json_text, new_console, print_json, print_line, print_table
from coordlog.cli.driver_request import command_name, live_driver, timeout_option
from coordlog.cli.json_payload import from_json
from coordlog.cli.log_access import Logs, with_logs
from coordlog.cli.reading import opened
from coordlog.cli.table_output import json_option
from coordlog.errors import CommandError, PayloadTypeError
from coordlog.history import History
from coordlog.kernel.outputs import AnswerRequest
from coordlog.limits import REQUEST_TIMEOUT_S
from coordlog.projections.tables.payload_json import Json, to_json
from coordlog.runtime.requests import raise_unanswered
from coordlog.schemas.payload import PayloadRole
from coordlog.schemas.untrusted_schema import foreign_avro
from coordlog.spark_integration.driver.requests import driver_client
from coordlog.spark_integration.wire.messages import TypeDescription

__all__ = ["request"]

_OWN = "coordlog."
_READY_MADE = ("coordlog.quota.", "coordlog.version.")
"""Names of the requests of coordlog's coordinators; its other requests are those of commands and readers."""


@click.command()
@click.argument("job", shell_complete=JOB)
@click.argument("operator", required=False)
@click.argument("payload_type", metavar="[TYPE]", required=False)
@click.argument("fields", metavar="[JSON]", default="{}")
@click.option(
    "--list", "is_list", is_flag=True, help="List the types of requests, with their fields."
)
@timeout_option(REQUEST_TIMEOUT_S, "Longest wait for the response.")
@json_option
@with_logs
def request(
    logs: Logs,
    *,
    job: str,
    operator: str | None,
    payload_type: str | None,
    fields: str,
    is_list: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Send a request to the coordinator of OPERATOR in JOB, and print its response as JSON.

    TYPE is a request type of the job, as in quota.raise@1; without @VERSION its newest version. JSON has its
    fields; - reads them from the standard input. The request, its response and this client are
    recorded; a query is answered from the state and not recorded.
    """
    if is_list == (payload_type is not None):
        raise click.UsageError("give OPERATOR and TYPE, or --list")
    with opened(logs, job) as log:
        driver = live_driver(History(log), job)
    with driver_client(
        job, driver.endpoint, operator_id=operator or "", command=command_name()
    ) as client:
        types = client.types(timeout_s=timeout_s)
        if payload_type is None or operator is None:
            _print_types(
                [described for described in types if _is_request(described)], as_json=as_json
            )
            return
        wanted = _type_of(job, payload_type, types)
        text = sys.stdin.read() if fields == "-" else fields
        payload = _encoded(wanted, text)
        effect = client.ask_encoded(operator, wanted.key, payload, timeout_s=timeout_s)
    raise_unanswered(effect, operator, wanted.key)
    _print(effect, types, as_json=as_json)


def _is_request(described: TypeDescription) -> bool:
    is_sent_by_users = described.key.startswith(_READY_MADE) or not described.key.startswith(_OWN)
    return described.role == PayloadRole.REQUEST.value and is_sent_by_users


def _type_of(job: str, name: str, types: Sequence[TypeDescription]) -> TypeDescription:
    """The type of that name; without a version the newest one."""
    requests = [described for described in types if _is_request(described)]
    named = [
        described
        for described in requests
        if name in (described.key, described.key.rpartition("@")[0])
    ]
    if not named:
        keys = ", ".join(described.key for described in requests) or "none"
        raise CommandError(
            job,
            f"it has no request type {name!r}; it has: {keys}",
            f"`coordlog request {job} --list` shows their fields",
        )
    return max(named, key=lambda described: int(described.key.rpartition("@")[2]))


def _encoded(wanted: TypeDescription, text: str) -> bytes:
    if wanted.secret_fields:
        raise PayloadTypeError(
            wanted.key,
            f"its fields {', '.join(wanted.secret_fields)} are secret, and only a program that has its class seals "
            "them: send it with `request_coordinator`",
        )
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"it is no JSON: {error}", param_hint="JSON") from error
    try:
        avro = foreign_avro(wanted.schema_json)
        return avro.encode(from_json(json.loads(wanted.schema_json), value))
    except (ValueError, TypeError, ArithmeticError) as error:
        raise click.BadParameter(f"it is no {wanted.key}: {error}", param_hint="JSON") from error


def _print(effect: AnswerRequest, types: Sequence[TypeDescription], *, as_json: bool) -> None:
    schema = next(
        (described.schema_json for described in types if described.key == effect.payload_type), None
    )
    payload = effect.payload or b""
    shown: Json = to_json(foreign_avro(schema).decode(payload)) if schema else payload.hex()
    if as_json:
        print_json({"sequence": effect.sequence, "type": effect.payload_type, "response": shown})
        return
    click.echo(json_text(shown, indent=2))
    print_line(f"{effect.payload_type}, as of sequence {effect.sequence}", err=True)


def _print_types(types: Sequence[TypeDescription], *, as_json: bool) -> None:
    if as_json:
        for described in types:
            print_json({"type": described.key, "schema": json.loads(described.schema_json)})
        return
    if not types:
        click.echo("the job has no request types", err=True)
        return
    columns = (Column("TYPE"), Column("FIELDS"))
    print_table(
        new_console(), columns, [(described.key, _fields_of(described)) for described in types]
    )


def _fields_of(described: TypeDescription) -> str:
    fields = cast("list[dict[str, object]]", json.loads(described.schema_json).get("fields", []))
    return (
        ", ".join(
            f"{field['name']}: {_type_text(field['type'])}"
            + (" = " + json.dumps(field["default"]) if "default" in field else "")
            for field in fields
        )
        or "none"
    )


def _type_text(schema: object) -> str:
    if isinstance(schema, list):
        return " or ".join(map(_type_text, schema))
    if isinstance(schema, dict):
        name = schema.get("logicalType") or schema.get("name") or schema.get("type")
        return (
            f"list of {_type_text(schema['items'])}" if schema.get("type") == "array" else str(name)
        )
    return str(schema)
