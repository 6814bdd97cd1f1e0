"""What no linter knows: sizes, names, links, and what the declarations of payloads must not use.

Each rule is a function from a file to offences `path:line: what, and why`, and is shown to find
one before it is trusted.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
PACKAGE_FOLDERS: Final = ("coordlog", "log", "projections", "schemas", "spark_integration")
OTHER_FOLDERS: Final = ("benchmarks", "examples", "scripts", "tests")

FUNCTION_LINES_MAX: Final = 70
MODULE_LINES_MAX: Final = 800

BANNED_MODULES: Final = frozenset({"base", "common", "helper", "helpers", "manager", "utils"})
"""Names that say nothing about what is in the module."""

BANNED_WORDS: Final = {
    "hydrate": "fold or replay",
    "incarnation": "epoch, or execution attempt",
    "rehydrate": "fold or replay",
    "reign": "epoch",
    "slave": "subtask",
    "vertex": "operator",
    "zombie": "an attempt that was fenced",
}
"""Words that the glossary replaces by its own, as far as no other sense of them is likely here."""

BANNED_PROSE: Final = re.compile(
    r"\b(blazing(ly)?|cutting-edge|seamless(ly)?|state-of-the-art|world-class)\b", re.IGNORECASE
)
# In two halves, so that this file is no offender.
BANNED_NOTES: Final = re.compile(r"\b(" + "TO" + "DO|FIX" + "ME|XX" + r"X)\b")

DECLARATIONS: Final = frozenset({"event", "fact", "payload", "request", "response"})
"""The decorators of coordlog.schemas that derive an Avro schema from a class."""


def python_files(*folders: str) -> list[Path]:
    """The modules under these folders; the links in coordlog/ are not followed."""
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts and not any(p.is_symlink() for p in path.parents)
    )


def all_python_files() -> list[Path]:
    return python_files(*PACKAGE_FOLDERS, *OTHER_FOLDERS)


def markdown_files() -> list[Path]:
    return sorted(
        path
        for path in ROOT.rglob("*.md")
        if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    )


@functools.cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


@functools.cache
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


@pytest.fixture(scope="module", autouse=True)
def trees_are_dropped() -> Iterator[None]:
    """Trees of the whole project take 800 MB, which each later test of this process would drag along."""
    yield
    tree_of.cache_clear()
    nodes_of.cache_clear()


def at(path: Path, line: int, what: str) -> str:
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"{shown}:{line}: {what}"


def offending(path: Path, source: str, folder: Path) -> Path:
    """A file with this source, for a rule to find fault with."""
    target = folder / path
    target.write_text(source, encoding="utf-8")
    return target


# Sizes


def long_functions(path: Path) -> Iterator[str]:
    for node in nodes_of(tree_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield at(path, node.lineno, f"{node.name} has {lines} lines: split it")


def test_no_function_has_more_than_70_lines() -> None:
    assert [one for path in all_python_files() for one in long_functions(path)] == []


def test_a_function_of_71_lines_is_found(tmp_path: Path) -> None:
    path = offending(Path("long.py"), "def f():\n" + "    pass\n" * 70, tmp_path)

    assert list(long_functions(path)) == [f"{path}:1: f has 71 lines: split it"]


def test_no_module_has_more_than_800_lines() -> None:
    sizes = {path: len(text_of(path).splitlines()) for path in all_python_files()}

    assert {str(path): n for path, n in sizes.items() if n > MODULE_LINES_MAX} == {}


# Names


def test_no_module_is_named_after_nothing() -> None:
    named = [path for path in all_python_files() if {path.stem, path.parent.name} & BANNED_MODULES]

    assert named == []


def words(identifier: str) -> list[str]:
    """`SplitEnumerator_2` is made of split, enumerator, 2."""
    return re.findall(r"[a-z]+|[0-9]+", re.sub(r"([A-Z]+)", r"_\1", identifier).lower())


def defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The names that a module gives; those that it only uses may be another project's."""
    for node in nodes_of(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def banned_names(path: Path) -> Iterator[str]:
    for line, name in defined_names(tree_of(path)):
        for word in words(name):
            if word in BANNED_WORDS:
                yield at(path, line, f"{name}: say {BANNED_WORDS[word]}, not {word}")


def test_no_name_has_a_word_that_the_glossary_replaces() -> None:
    assert [one for path in all_python_files() for one in banned_names(path)] == []


def test_a_replaced_word_is_found_inside_a_name(tmp_path: Path) -> None:
    path = offending(Path("names.py"), "class MyReign:\n    zombie_count = 0\n", tmp_path)

    assert list(banned_names(path)) == [
        f"{path}:1: MyReign: say epoch, not reign",
        f"{path}:2: zombie_count: say an attempt that was fenced, not zombie",
    ]


TEST_NAME_MAX: Final = 70


def long_test_names(path: Path) -> Iterator[str]:
    for line, name in defined_names(tree_of(path)):
        if name.startswith("test_") and len(name) > TEST_NAME_MAX:
            yield at(path, line, f"{name} has {len(name)} characters: claim it in {TEST_NAME_MAX}")


def test_the_name_of_a_test_has_at_most_70_characters() -> None:
    assert [one for path in python_files("tests") for one in long_test_names(path)] == []


def test_a_test_name_of_71_characters_is_found(tmp_path: Path) -> None:
    name = "test_" + "a" * 66
    path = offending(Path("claims.py"), f"def {name}():\n    pass\n", tmp_path)

    assert list(long_test_names(path)) == [f"{path}:1: {name} has 71 characters: claim it in 70"]


VAGUE_NAMES: Final = frozenset({"found", "given", "made", "one"})
"""Names that say nothing about the type or the role of a variable."""


def vague_names(path: Path) -> Iterator[str]:
    """Vague names of parameters and variables; a one-line comprehension may have one."""
    tree = tree_of(path)
    of_one_line = {
        id(name)
        for node in nodes_of(tree)
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp))
        and node.lineno == node.end_lineno
        for generator in node.generators
        for name in ast.walk(generator.target)
    }
    for node in nodes_of(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        else:
            continue
        if name in VAGUE_NAMES and id(node) not in of_one_line:
            yield at(path, node.lineno, f"{name}: name it after its type or role")


def test_no_variable_of_the_product_has_a_vague_name() -> None:
    files = python_files(*PACKAGE_FOLDERS)

    assert [one for path in files for one in vague_names(path)] == []


def test_a_vague_name_is_found_outside_a_comprehension_of_one_line(tmp_path: Path) -> None:
    source = "def f(given):\n    made = [one for one in given]\n    return made\n"

    found = list(vague_names(offending(Path("vague.py"), source, tmp_path)))

    assert [fault.split(": ")[0][-1] for fault in found] == ["1", "2"]


# Imports: the folders in the root are packages of coordlog. Where the root is on the path,
# `import log` would find a second copy of each. ruff's ban takes relative imports for these too.


def bare_imports(path: Path) -> Iterator[str]:
    bare = set(PACKAGE_FOLDERS) - {"coordlog"}
    for node in nodes_of(tree_of(path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        for name in names:
            if name.split(".")[0] in bare:
                line = getattr(node, "lineno", 0)
                yield at(path, line, f"import coordlog.{name}, not {name}: it is another copy")


def test_the_folders_in_the_root_are_imported_as_parts_of_coordlog() -> None:
    assert [one for path in all_python_files() for one in bare_imports(path)] == []


def test_a_bare_import_is_found_and_a_relative_one_is_none(tmp_path: Path) -> None:
    source = "import log.port\nfrom schemas import a\nfrom .log import b\nimport logging\n"
    path = offending(Path("bare.py"), source, tmp_path)

    assert [one.split(": ")[0] for one in bare_imports(path)] == [f"{path}:1", f"{path}:2"]


# Prose


def banned_text(path: Path) -> Iterator[str]:
    for number, line in enumerate(text_of(path).splitlines(), start=1):
        note = BANNED_NOTES.search(line)
        if note is not None:
            yield at(path, number, f"{note[0]}: do it, or say why it is as it is")
        praise = BANNED_PROSE.search(line)
        if praise is not None and path != Path(__file__):
            yield at(path, number, f"{praise[0]}: no praise of ourselves; a number, or nothing")


def test_nothing_is_left_undone_in_a_note_and_nothing_praises_itself() -> None:
    files = [*all_python_files(), *markdown_files()]

    assert [one for path in files for one in banned_text(path)] == []


def test_a_note_is_found(tmp_path: Path) -> None:
    note = "TO" + "DO"
    path = offending(Path("note.md"), f"fine\n{note} more\n", tmp_path)

    assert list(banned_text(path)) == [f"{path}:2: {note}: do it, or say why it is as it is"]


# Links


def heading_anchors(markdown: str) -> set[str]:
    """What `#...` may name in a document, by GitHub's rule: a heading's words, hyphens between."""
    anchors: dict[str, int] = {}
    found: set[str] = set()
    for _, heading in re.findall(r"^(#{1,6}) +(.+?)\s*#*$", without_code(markdown), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        count = anchors.get(anchor, 0)
        anchors[anchor] = count + 1
        found.add(anchor if count == 0 else f"{anchor}-{count}")
    return found | set(re.findall(r'<a (?:id|name)="([^"]+)"', markdown))


def without_code(markdown: str) -> str:
    """The document with its code blocks emptied; lines keep their numbers."""
    return re.sub(
        r"^```.*?^```[^\n]*$",
        lambda block: "\n" * block[0].count("\n"),
        markdown,
        flags=re.MULTILINE | re.DOTALL,
    )


def dead_links(path: Path) -> Iterator[str]:
    prose = re.sub(r"`[^`\n]*`", "", without_code(text_of(path)))
    for match in re.finditer(r"\]\(<?([^)\s>]+)>?(?: +\"[^\"]*\")?\)", prose):
        target = match[1]
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        line = prose.count("\n", 0, match.start()) + 1
        file_name, _, anchor = target.partition("#")
        file = (path.parent / file_name) if file_name else path
        if not file.exists():
            yield at(path, line, f"{target}: there is no such file")
        elif anchor and file.suffix == ".md" and anchor not in heading_anchors(text_of(file)):
            yield at(path, line, f"{target}: no heading of that name")


def test_every_relative_link_in_the_docs_leads_somewhere() -> None:
    assert [one for path in markdown_files() for one in dead_links(path)] == []


def test_dead_links_are_found(tmp_path: Path) -> None:
    source = "# Why `it` is\n[a](#why-it-is) [b](#what) [c](gone.md)\n```\n[d](code.md)\n```\n"
    path = offending(Path("doc.md"), source, tmp_path)

    assert list(dead_links(path)) == [
        f"{path}:2: #what: no heading of that name",
        f"{path}:2: gone.md: there is no such file",
    ]


# Output


def prints(path: Path) -> Iterator[str]:
    """Calls of `print` outside a module's own `main`, which runs only as a command."""
    tree = tree_of(path)
    commands = {
        id(node)
        for function in tree.body
        if isinstance(function, ast.FunctionDef) and function.name == "main"
        for node in ast.walk(function)
    }
    for node in nodes_of(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
            and id(node) not in commands
        ):
            yield at(path, node.lineno, "print: a library logs or returns; only commands print")


def test_only_commands_print() -> None:
    library = [
        path
        for path in python_files(*PACKAGE_FOLDERS)
        if not path.is_relative_to(ROOT / "coordlog" / "cli")
    ]

    assert [one for path in library for one in prints(path)] == []


def test_a_print_is_found_outside_main_only(tmp_path: Path) -> None:
    source = "def main():\n    print(1)\n\ndef f():\n    print(2)\n"
    path = offending(Path("loud.py"), source, tmp_path)

    assert [one.split(": ")[0] for one in prints(path)] == [f"{path}:5"]


# Payloads: dataclasses-avroschema derives the schema from annotations, and refuses NewType with a
# traceback from inside, at the first import; this names the place and the reason.


def declared_classes(tree: ast.Module) -> list[ast.ClassDef]:
    """The classes under one of coordlog's declarations."""
    own: set[str] = set()
    modules: set[str] = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.ImportFrom):
            ours = node.level > 0 or (node.module or "").split(".")[0] == "coordlog"
            for alias in node.names:
                if ours and alias.name in DECLARATIONS:
                    own.add(alias.asname or alias.name)
                elif ours:
                    modules.add(alias.asname or alias.name)
        elif isinstance(node, ast.Import):
            modules |= {a.asname or "coordlog" for a in node.names if a.name.startswith("coordlog")}

    def declares(decorator: ast.expr) -> bool:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(called, ast.Name):
            return called.id in own
        root = called
        while isinstance(root, ast.Attribute):
            root = root.value
        return (
            isinstance(called, ast.Attribute)
            and called.attr in DECLARATIONS
            and isinstance(root, ast.Name)
            and root.id in modules
        )

    return [
        node
        for node in nodes_of(tree)
        if isinstance(node, ast.ClassDef) and any(declares(d) for d in node.decorator_list)
    ]


def new_types(tree: ast.Module) -> set[str]:
    """The names that a module makes with NewType."""
    return {
        target.id
        for node in nodes_of(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, (ast.Name, ast.Attribute))
        and ast.unparse(node.value.func).endswith("NewType")
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def payload_faults(path: Path, known_new_types: frozenset[str]) -> Iterator[str]:
    tree = tree_of(path)
    declared = declared_classes(tree)
    if not declared:
        return
    forbidden = known_new_types | new_types(tree)
    for cls in declared:
        for field in cls.body:
            if isinstance(field, ast.AnnAssign):
                used = {n.id for n in ast.walk(field.annotation) if isinstance(n, ast.Name)}
                used |= {n.attr for n in ast.walk(field.annotation) if isinstance(n, ast.Attribute)}
                for name in sorted(used & forbidden):
                    yield at(
                        path,
                        field.lineno,
                        f"{cls.name} has a field of the NewType {name}: "
                        "dataclasses-avroschema refuses it; use the type under it",
                    )


def test_payloads_use_nothing_that_their_schema_library_refuses() -> None:
    files = [*all_python_files(), *python_files("docs")]
    known = frozenset[str]().union(*(new_types(tree_of(path)) for path in files))

    assert [one for path in files for one in payload_faults(path, known)] == []


def test_a_payload_with_a_field_of_a_newtype_is_found(tmp_path: Path) -> None:
    source = (
        "from coordlog.schemas import event\n"
        "import coordlog.schemas as schemas\n"
        "@event('a', version=1)\n"
        "class A:\n"
        "    offset: Offset | None\n"
        "@schemas.fact('b', version=1)\n"
        "class B:\n"
        "    offset: int\n"
    )
    path = offending(Path("declared.py"), source, tmp_path)

    found = list(payload_faults(path, frozenset({"Offset"})))

    assert [one.split(": ")[0] for one in found] == [f"{path}:5"]
    assert [cls.name for cls in declared_classes(tree_of(path))] == ["A", "B"]


def test_decorators_of_other_libraries_declare_no_payload(tmp_path: Path) -> None:
    source = "from sqlalchemy.event import event\n@event('a')\nclass A:\n    offset: int\n"

    assert declared_classes(tree_of(offending(Path("other.py"), source, tmp_path))) == []
