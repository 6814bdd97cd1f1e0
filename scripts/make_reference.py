"""Writes docs/reference anew: commands, records, errors and limits, as the code declares them.

.venv/bin/python scripts/make_reference.py [FOLDER]
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import click

import coordlog.errors
import coordlog.limits
import coordlog.schemas
from coordlog.cli.main import main as coordlog_command
from coordlog.errors import CoordlogError
from coordlog.schemas import builtin_types, reads, source_types
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.spark_integration.batches import payloads as batch_payloads
from coordlog.spark_integration.files import payloads as file_payloads
from coordlog.spark_integration.kafka import payloads as kafka_payloads

FOLDER: Final = Path(__file__).parents[1] / "docs" / "reference"
_WIDTH: Final = 100
_PAYLOAD_MODULES: Final = (
    builtin_types,
    source_types,
    reads,
    file_payloads,
    kafka_payloads,
    batch_payloads,
)


def pages() -> dict[str, str]:
    """The text of each page, by its file name."""
    return {
        "commands.md": "\n".join(_commands()),
        "records.md": "\n".join(_records()),
        "errors.md": "\n".join(_errors()),
        "limits.md": "\n".join(_limits()),
    }


def _commands() -> Iterator[str]:
    yield "# Commands\n\nThe `--help` of each command.\n"
    for path, context in _contexts(click.Context(coordlog_command, info_name="coordlog")):
        yield f"## {path}\n\n```text\n{context.get_help().rstrip()}\n```\n"


def _contexts(context: click.Context) -> Iterator[tuple[str, click.Context]]:
    context.terminal_width = context.max_content_width = _WIDTH
    if not isinstance(context.command, click.Group):
        yield context.command_path, context
        return
    for name in context.command.list_commands(context):
        command = context.command.get_command(context, name)
        assert command is not None
        yield from _contexts(click.Context(command, parent=context, info_name=name))


def _records() -> Iterator[str]:
    yield "# Records\n\nThe envelope of each record of a log, and the payloads of coordlog's own records, in Avro.\n"
    schema = json.loads(_file_of(coordlog.schemas, "avro/record-v1.avsc").read_text("utf-8"))
    yield f"## {schema['name']}\n\n{schema['doc']}\n\n| field | type | |\n| --- | --- | --- |"
    for field in schema["fields"]:
        yield f"| `{field['name']}` | {_avro_type(field['type'])} | {_cell(field.get('doc', ''))} |"
    kinds = next(field["type"] for field in schema["fields"] if field["name"] == "kind")
    yield f"\nKinds: {', '.join(f'`{symbol}`' for symbol in kinds['symbols'])}.\n"
    for module in _PAYLOAD_MODULES:
        title, _, rest = (module.__doc__ or "").partition("\n\n")
        yield f"## {title.rstrip('.')}\n\n{rest}\n" if rest else f"## {title.rstrip('.')}\n"
        for declared in vars(module).values():
            is_here = getattr(declared, "__module__", None) == module.__name__
            if isinstance(declared, type) and is_here and "coordlog_type" in vars(declared):
                yield from _payload(declared)


def _payload(payload_type: type[Payload]) -> Iterator[str]:
    declared = payload_type_of(payload_type)
    schema = json.loads(declared.schema_json)
    yield f"### {declared.key}\n\n{_first_paragraph(payload_type)}\n"
    if schema["fields"]:
        yield "| field | type |\n| --- | --- |"
    for field in schema["fields"]:
        yield f"| `{field['name']}` | {_avro_type(field['type'])} |"
    yield ""


def _avro_type(schema: object) -> str:
    match schema:
        case str():
            return schema.rpartition(".")[2]
        case list():
            return " or ".join(map(_avro_type, schema))
        case {"logicalType": logical}:
            return str(logical)
        case {"type": "array", "items": items}:
            return f"list of {_avro_type(items)}"
        case {"type": "map", "values": values}:
            return f"map to {_avro_type(values)}"
        case {"name": name}:
            return str(name)
        case _:
            raise TypeError(schema)


def _errors() -> Iterator[str]:
    yield "# Errors\n"
    yield f"{inspect.getdoc(coordlog.errors)}\n".replace("::\n\n", ":\n\n```text\n", 1).replace(
        "\n\nValues are", "\n```\n\nValues are", 1
    )
    yield "| error | |\n| --- | --- |"
    for error in vars(coordlog.errors).values():
        if isinstance(error, type) and issubclass(error, CoordlogError):
            yield f"| `{error.__name__}` | {_cell(_first_paragraph(error))} |"
    yield ""


def _limits() -> Iterator[str]:
    source = _file_of(coordlog.limits, "limits.py").read_text("utf-8")
    yield f"# Limits\n\n{inspect.getdoc(coordlog.limits)}\n\n| limit | value | |\n| --- | --- | --- |"
    values: Mapping[str, object] = vars(coordlog.limits)
    statements = ast.parse(source).body
    for statement, after in itertools.pairwise(statements):
        match statement, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as doc)),
            ) if not name.startswith("_"):
                yield f"| `{name}` | {_value(values[name], is_in_bytes='BYTES' in name)} | {_cell(doc)} |"
    yield ""


def _value(value: object, *, is_in_bytes: bool) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)) if is_in_bytes else ():
        if isinstance(value, int) and value >= size and value % size == 0:
            return f"{value // size:,} {unit}"
    return f"{value:,}" if isinstance(value, (int, float)) else _cell(f"`{value}`")


def _first_paragraph(documented: type) -> str:
    return (inspect.getdoc(documented) or "").partition("\n\n")[0]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _file_of(module: object, name: str) -> Path:
    path = inspect.getsourcefile(module)  # type: ignore[arg-type]
    assert path is not None
    return Path(path).parent / name


def main(folder: Path) -> None:
    """Write the pages into a folder."""
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
