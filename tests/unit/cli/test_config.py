"""Each option of each command by variable and file; what is wrong in them is named."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import click
import pytest
from click.testing import CliRunner, Result

from coordlog.cli.config.names import SETTINGS, CommandPath, key_of, long_name, variable_of
from coordlog.cli.main import main
from coordlog.limits import CONFIG_BYTES_MAX
from coordlog.log.kafka import Security
from coordlog.secret_fields import KEY_VARIABLE
from coordlog.spark_integration.wire.certificate import CERTIFICATE_VARIABLE
from option_table import DOCS, every_option, renewed

OPTIONS = [(path, command, option) for path, command, option in every_option()]
LEAVES = {path: command for path, command, _ in OPTIONS if path}
CONFIG = LEAVES["config",].callback


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this test's own to work in, and no variable or file of whoever runs it."""
    for name in [one for one in os.environ if one.startswith("COORDLOG_")]:
        monkeypatch.delenv(name)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return here


def write(text: str, path: Path = Path("coordlog.toml")) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path.absolute()


def run(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(main, arguments, env=variables)


def settings(*arguments: str, **variables: str) -> dict[tuple[str, str], tuple[object, str]]:
    """What `coordlog config` says: value and source by command and key."""
    with mock.patch.object(LEAVES["config",], "callback", CONFIG):
        done = run("config", "--json", *arguments, **variables)
    assert done.exit_code == 0, done.stderr
    rows = [json.loads(one) for one in done.stdout.splitlines()]
    return {(one["command"], one["key"]): (one["value"], one["from"]) for one in rows}


# Every option


def sample(option: click.Option) -> object:
    """A value that the option takes and that is not its default, as TOML has it."""
    kind, default = option.type, option.default
    value: object
    match kind:
        case click.types.BoolParamType():
            value = default is not True
        case click.Choice():
            value = next(str(one) for one in kind.choices if one != default)
        case click.IntRange(min=int() as lowest):
            value = lowest + 7
        case click.types.IntParamType():
            value = 7
        case click.types.FloatParamType():
            value = 2.5
        case click.types.StringParamType() | click.Path():
            value = "word"
        case _:
            value = SAMPLES[kind.name]
    return [value] if option.multiple else value


SAMPLES: dict[str, object] = {"place": "checkpoint:7", "duration": "5m"}
"""For types that are not click's own, by their names."""


def as_variable(value: object) -> str:
    one = value[0] if isinstance(value, list) else value
    return str(one).lower() if isinstance(one, bool) else str(one)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[CommandPath, dict[str, object]]:
    """What each command has been called with; none does anything."""
    called: dict[CommandPath, dict[str, object]] = {}
    for path, command in LEAVES.items():

        def remember(*_: object, path: CommandPath = path, **options: object) -> None:
            called[path] = options

        monkeypatch.setattr(command, "callback", remember)
    return called


def arguments_of(command: click.Command) -> list[str]:
    required = [one for one in command.params if isinstance(one, click.Argument) and one.required]
    return [_sample_of(one.type) for one in required]


def _sample_of(kind: click.ParamType[Any]) -> str:
    match kind:
        case click.Choice():
            return str(kind.choices[0])
        case click.IntRange():
            return "0"
        case _:
            return "x"


def toml(value: object) -> str:
    return json.dumps(value)


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_each_option_is_set_by_variable_by_key_and_by_command_table(
    path: CommandPath, given: dict[CommandPath, dict[str, object]]
) -> None:
    command = LEAVES[path]
    options = [one for its, _, one in OPTIONS if its == path]
    samples = {one: sample(one) for one in options}
    expected = {
        one.name: one.type_cast_value(click.Context(command), value)
        for one, value in samples.items()
    }
    line = [*path, *arguments_of(command)]

    def called(**variables: str) -> dict[str, object]:
        given.clear()
        done = run(*line, **variables)
        assert (done.exit_code, done.stderr) == (0, ""), done.output
        return {name: given[path][name] for name in expected}

    if not any(one.required for one in options):
        by_default = called()
        assert all(by_default[name] != value for name, value in expected.items())
    by_variable = called(
        **{variable_of(key_of(one, path)): as_variable(value) for one, value in samples.items()}
    )
    assert by_variable == expected

    write("".join(f"{key_of(one, path)} = {toml(value)}\n" for one, value in samples.items()))
    assert called() == expected

    table = "".join(f"{long_name(one)} = {toml(value)}\n" for one, value in samples.items())
    write(f"[{'.'.join(path)}]\n{table}")
    assert called() == expected


def test_config_lists_each_option_and_setting() -> None:
    listed = settings()

    assert {(" ".join(path), key_of(one, path)) for path, _, one in OPTIONS} <= set(listed)
    assert {one.key for one in SETTINGS} <= {key for _, key in listed}
    sources = {source for (_, key), (_, source) in listed.items() if key != "json"}
    assert sources == {"default"}


def test_config_shows_a_place_in_a_log_as_it_was_given() -> None:
    path = write('[diff]\nfrom = "checkpoint:7"\nto = 12\n')
    listed = settings(COORDLOG_AT="checkpoint:3")

    assert listed["state", "at"] == ("checkpoint:3", "the variable COORDLOG_AT")
    assert listed["diff", "from"] == ("checkpoint:7", f"{path}: [diff] from")
    assert listed["diff", "to"] == (12, f"{path}: [diff] to")


def test_an_option_of_one_name_is_of_one_kind_in_all_commands() -> None:
    """One variable sets them all: a value that one takes must not be wrong for another."""
    kinds: dict[str, set[str]] = {}
    for path, _, one in OPTIONS:
        kind = f"{one.type!r} {one.multiple} {one.is_flag}"
        kinds.setdefault(key_of(one, path), set()).add(kind)

    assert {key: kind for key, kind in kinds.items() if len(kind) > 1} == {}


def test_the_variables_of_settings_are_those_that_the_library_reads() -> None:
    security = {f"COORDLOG_KAFKA_{field.name.upper()}" for field in dataclasses.fields(Security)}

    assert {one.variable for one in SETTINGS} == security | {
        "COORDLOG_BROKER_IDLE_MINUTES",
        "COORDLOG_CACHE",
        CERTIFICATE_VARIABLE,
        "COORDLOG_HOME",
        "COORDLOG_IVY_SETTINGS",
        KEY_VARIABLE,
        "COORDLOG_KAFKA_SECURITY_FILE",
        "COORDLOG_TOKEN",
    }


def test_the_page_on_configuration_lists_them_all() -> None:
    page = DOCS.read_text("utf-8")

    assert page == renewed(page), "`.venv/bin/python tests/option_table.py --write` renews it"


# The order


def test_the_order_is_option_variable_file_default(
    given: dict[CommandPath, dict[str, Any]],
) -> None:
    def parallelism(*options: str, **variables: str) -> object:
        done = run("ingest", "in", "out", *options, **variables)
        assert done.exit_code == 0, done.stderr
        return given["ingest",]["parallelism"]

    assert parallelism() == 4
    path = write("parallelism = 5\n")
    assert parallelism() == 5
    assert settings("ingest")["ingest", "parallelism"] == (5, f"{path}: parallelism")
    write("parallelism = 5\n[ingest]\nparallelism = 6\n")
    assert parallelism() == 6
    assert settings("ingest")["ingest", "parallelism"] == (6, f"{path}: [ingest] parallelism")
    assert parallelism(COORDLOG_PARALLELISM="7") == 7
    assert settings("ingest", COORDLOG_PARALLELISM="7")["ingest", "parallelism"] == (
        7,
        "the variable COORDLOG_PARALLELISM",
    )
    assert parallelism("--parallelism", "8", COORDLOG_PARALLELISM="7") == 8


def test_the_first_file_that_is_there_counts_and_no_other(tmp_path: Path) -> None:
    def found(*options: str, **variables: str) -> object:
        done = run(*options, "config", "ingest", "--json", **variables)
        rows = [json.loads(one) for one in done.stdout.splitlines()]
        return next(one["value"] for one in rows if one["key"] == "job-id")

    home = {"COORDLOG_HOME": str(tmp_path / "home")}
    write('job-id = "user"\n', tmp_path / "config" / "coordlog" / "coordlog.toml")
    assert found() == "user"
    write('job-id = "data"\n', tmp_path / "data" / "coordlog" / "coordlog.toml")
    assert found() == "data"
    write('job-id = "home"\n', tmp_path / "home" / "coordlog.toml")
    assert found(**home) == "home"
    write('job-id = "here"\n')
    assert found(**home) == "here"
    write("", Path("coordlog.toml"))
    assert found(**home) is None
    named = write('job-id = "named"\n', tmp_path / "elsewhere.toml")
    assert found("--config", str(named), **home) == "named"
    assert found(COORDLOG_CONFIG=str(named), **home) == "named"


def test_a_setting_of_the_file_reaches_the_library_during_the_command_only(
    given: dict[CommandPath, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str | None, str | None]] = []

    def look(**_: object) -> None:
        names = ("COORDLOG_HOME", "COORDLOG_KAFKA_PROTOCOL")
        seen.append((os.environ.get(names[0]), os.environ.get(names[1])))

    monkeypatch.setattr(LEAVES["ingest",], "callback", look)
    write('home = "/from/file"\nkafka-protocol = "SSL"\nbroker-idle-minutes = 5\n')
    run("ingest", "in", "out", COORDLOG_KAFKA_PROTOCOL="PLAINTEXT")

    assert seen == [("/from/file", "PLAINTEXT")]
    assert "COORDLOG_HOME" not in os.environ
    assert "COORDLOG_BROKER_IDLE_MINUTES" not in os.environ
    listed = settings()
    assert listed["", "home"] == ("/from/file", f"{Path('coordlog.toml').absolute()}: home")
    assert listed["broker start", "broker-idle-minutes"][0] == 5.0


def test_an_option_before_the_command_is_set_by_the_file_too(
    given: dict[CommandPath, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(LEAVES["jobs",], "callback", fail)
    write("debug = true\n")

    assert isinstance(run("jobs").exception, ZeroDivisionError)
    assert run("jobs", COORDLOG_DEBUG="0").exit_code == 1
    assert run("jobs", COORDLOG_DEBUG="0").stderr.startswith("error: this is a fault of coordlog")


# What is wrong


def refused(text: str, *line: str, **variables: str) -> list[str]:
    """The message, less the file's name, of a command with that file."""
    path = write(text)
    done = run(*(line or ("ingest", "in", "out")), **variables)
    assert (done.exit_code, done.stdout) == (2, "")
    first, *rest = done.stderr.splitlines()
    assert first.startswith(f"error: {path}: ")
    return [first.removeprefix(f"error: {path}: "), *rest]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('parallelism = "four"', "parallelism is 'four'; it must be a whole number"),
        ("parallelism = 4.0", "parallelism is 4.0; it must be a whole number"),
        ("parallelism = true", "parallelism is True; it must be a whole number"),
        ('log-timeout = "1"', "log-timeout is '1'; it must be a number"),
        ('batch = "yes"', "batch is 'yes'; it must be true or false"),
        ("batch = 1", "batch is 1; it must be true or false"),
        ("job-id = 7", "job-id is 7; it must be a string"),
        ('format = "xml"', "format is 'xml'; it must be one of csv, jsonl, parquet, text"),
        ('null-value = "NA"', "null-value is 'NA'; it must be a list, each item a string"),
        ("null-value = [1]", "null-value is [1]; it must be a list, each item a string"),
        ("[ingest]\nbatch-rows = []", "[ingest] batch-rows is []; it must be a whole number"),
        ("home = 3", "home is 3; it must be a string"),
        ("debug = 3", "debug is 3; it must be true or false"),
        (
            "broker-idle-minutes = -1",
            "broker-idle-minutes is -1; it must be a number: -1.0 is not in the range x>=0.",
        ),
        ("paralelism = 4", "paralelism is no option; did you mean parallelism?"),
        ("job_id = 'a'", "job_id is no option; did you mean job-id?"),
        ("colour = 'red'", "colour is no option"),
        ("kinds = []", "kinds is no option; did you mean kind?"),
        ("[ingest]\nkind = []", "[ingest] kind is no option; kind belongs above all tables"),
        ("[ingst]\nbatch = true", "[ingst] is no command; did you mean ingest?"),
        ("[ingst]", "[ingst] is no command; did you mean ingest?"),
        ("[parallelism]\na = 1", "[parallelism] is no command"),
        ("a = ", "it is no TOML: Invalid value (at end of document)"),
    ],
)
def test_a_wrong_file_is_refused_by_key_value_and_what_is_expected(text: str, problem: str) -> None:
    assert refused(text) == [problem]


def test_all_that_is_wrong_in_a_file_is_said_at_once() -> None:
    text = 'home = 3\nparallelism = "four"\ncolour = "red"\n[broker.start]\nidle-minutes = -1\n'

    assert refused(text) == [
        "3 problems:",
        "  colour is no option",
        "  home is 3; it must be a string",
        "  parallelism is 'four'; it must be a whole number",
    ]
    assert refused(text, "config")[-1] == (
        "  [broker.start] idle-minutes is -1; it must be a number: -1.0 is not in the range x>=0."
    )


def test_a_command_does_not_mind_a_wrong_value_for_another(
    given: dict[CommandPath, dict[str, object]],
) -> None:
    write('parallelism = "four"\n')

    assert run("jobs").exit_code == 0


def test_a_file_that_is_not_there_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    done = run("--config", "nowhere.toml", "jobs")

    assert done.exit_code == 2
    assert "nowhere.toml" in done.stderr


def test_a_wrong_variable_is_named_with_its_option() -> None:
    done = run("ingest", "in", "out", COORDLOG_PARALLELISM="four")

    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1] == (
        "Error: Invalid value for COORDLOG_PARALLELISM (a variable, for --parallelism): "
        "'four' is not a valid integer."
    )
    assert run("config", COORDLOG_PARALLELISM="four").stderr == done.stderr


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("COORDLOG_DEBUG", "--debug", "banana"), ("COORDLOG_CONFIG", "--config", "nowhere.toml")],
)
def test_a_wrong_variable_of_an_option_before_the_command_is_named(
    name: str, option: str, value: str
) -> None:
    refused = run("jobs", **{name: value})

    assert refused.exit_code == 2
    message = refused.stderr.splitlines()[-1]
    assert message.startswith(f"Error: Invalid value for {name} (a variable, for {option}): ")


def test_a_value_that_a_command_refuses_is_traced_to_its_source() -> None:
    path = write("parallelism = 0\n")
    done = run("ingest", "in", "out", "--restarts-max", "-1", COORDLOG_JOB_ID="No Job")

    assert done.exit_code == 2
    assert done.stderr.splitlines()[-2:] == [
        f"  --parallelism comes from {path}: parallelism",
        "  --job-id comes from the variable COORDLOG_JOB_ID",
    ]


def test_a_variable_that_nothing_reads_is_warned_of(
    given: dict[CommandPath, dict[str, object]],
) -> None:
    variables = {
        "COORDLOG_PARALELISM": "3",
        "COORDLOG_KAFKA_PASSWORD": "s3cret",
        "COORDLOG_ZZ": "1",
        "COORDLOG_THROWN_AWAY": "1",  # of another command
    }
    done = run("jobs", **variables)

    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        (
            "warning: nothing reads the variable COORDLOG_KAFKA_PASSWORD; "
            "did you mean COORDLOG_KAFKA_SASL_PASSWORD?"
        ),
        (
            "warning: nothing reads the variable COORDLOG_PARALELISM; "
            "did you mean COORDLOG_PARALLELISM?"
        ),
        "warning: nothing reads the variable COORDLOG_ZZ",
    ]


# Secrets and strangers


def test_a_secret_is_never_shown() -> None:
    write('kafka-sasl-password = "s3cret"\nmaster = "spark://ann:s3cret@host:7077"\n')
    shown = run("config", COORDLOG_TOKEN="s3cret", COORDLOG_KAFKA_SSL_KEY_PASSWORD="s3cret")

    assert shown.exit_code == 0
    assert "s3cret" not in shown.output
    listed = settings(COORDLOG_TOKEN="s3cret")
    assert listed["", "token"] == ("(hidden)", "the variable COORDLOG_TOKEN")
    assert listed["", "kafka-sasl-password"][0] == "(hidden)"
    assert listed["ingest", "master"][0] == "spark://(hidden)@host:7077"
    write('payload-store = "s3://ann:s3/cret@bucket/x"\n')
    assert settings()["ingest", "payload-store"][0] == "s3://(hidden)@bucket/x"
    assert refused('kafka-sasl-password = ["s3cret"]') == [
        "kafka-sasl-password is (hidden); it must be a string"
    ]
    assert refused('parallelism = "http://ann:s3cret@host"') == [
        "parallelism is 'http://(hidden)@host'; it must be a whole number"
    ]


def test_a_file_with_a_secret_that_others_can_read_is_warned_of(
    given: dict[CommandPath, dict[str, object]],
) -> None:
    path = write('token = "s3cret"\n')
    assert run("jobs").stderr == ""
    path.chmod(0o644)

    assert run("jobs").stderr == (
        f"warning: {path} holds a secret and is open to others: chmod 600 {path}\n"
    )


def test_a_file_in_a_folder_that_others_can_write_is_not_trusted(
    given: dict[CommandPath, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("")
    path.chmod(0o646)
    done = run("jobs")
    assert (done.exit_code, done.stderr) == (
        2,
        f"error: {path}: every user may write to it; if you trust it, pass --config coordlog.toml\n",
    )

    path.chmod(0o600)
    owner = 12_345
    if os.geteuid() == 0:
        os.chown(path, owner, -1)
    else:
        owner = os.geteuid()
        monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    done = run("jobs")
    assert (done.exit_code, done.stderr) == (
        2,
        (
            f"error: {path}: it belongs to user {owner}, not to you; "
            "if you trust it, pass --config coordlog.toml\n"
        ),
    )
    assert run("--config", "coordlog.toml", "jobs").exit_code == 0


_SWAPS: list[Callable[[str], None]] = []
"""Called with the name of each file right before it is opened; empty but in one test: a hook cannot be removed."""
sys.addaudithook(
    lambda event, opened: [swap(str(opened[0])) for swap in _SWAPS] if event == "open" else None
)


def test_the_file_that_is_judged_is_the_file_that_is_read(
    given: dict[CommandPath, dict[str, object]],
) -> None:
    """A stranger in a shared folder may put another file under the name at any moment."""
    own = write("parallelism = 2\n", Path("own.toml"))
    stranger = write('[ingest]\ntransform = "evil.py:f"\n', Path("evil.toml"))
    stranger.chmod(0o666)
    name = Path("coordlog.toml").absolute()
    name.symlink_to(own)

    def swap(opened: str) -> None:
        if opened == str(name):
            name.unlink()
            name.symlink_to(stranger)

    _SWAPS.append(swap)
    try:
        done = run("jobs")
    finally:
        _SWAPS.remove(swap)

    assert name.readlink() == stranger
    assert done.exit_code == 2
    assert "every user may write to it" in done.stderr


def test_a_file_is_read_up_to_a_limit(given: dict[CommandPath, dict[str, object]]) -> None:
    write(f"parallelism = 2 #{'x' * CONFIG_BYTES_MAX}\n")
    done = run("jobs")

    assert done.exit_code == 2
    assert "it has more than 1,048,576 bytes, the limit" in done.stderr


def test_a_key_of_many_parts_is_refused(given: dict[CommandPath, dict[str, object]]) -> None:
    write(f"{'.'.join(['a'] * 2_000)} = 1\n")
    done = run("jobs")

    assert done.exit_code == 2
    assert "a key has more than 8 parts; one of an option has at most 3" in done.stderr


def test_what_is_no_plain_file_is_passed_over(given: dict[CommandPath, dict[str, object]]) -> None:
    os.mkfifo("coordlog.toml")
    assert run("jobs").exit_code == 0
