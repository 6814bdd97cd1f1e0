"""A transform that a command line names: `module:function` or `path/to/file.py:function`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from coordlog.errors import OptionError

if TYPE_CHECKING:
    from coordlog.spark_integration.transform import TransformFunction

__all__ = ["load_transform"]

_OPTION = "--transform"
_EXPECTED = "module:function or file.py:function"


def load_transform(text: str, *, is_local: bool = False) -> TransformFunction:
    """The function that `text` names, made ready to travel to tasks.

    Modules are looked for in the current folder too, as Python itself does. Where the tasks run on
    this machine, they import a module by its name, and what it imports as well. Elsewhere, and for
    a file, the module itself travels, so that workers need not find it; what it imports they must.

    Args:
        text: `module:function` or `file.py:function`.
        is_local: Whether the tasks run on this machine, from a JVM that is started later.

    Raises:
        OptionError: There is no such module, file or function, or it cannot be called.
    """
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise OptionError(_OPTION, text, _EXPECTED)
    is_file = where.endswith(".py")
    module = _from_file(text, Path(where)) if is_file else _named(text, where)
    function = getattr(module, name, None)
    if not callable(function):
        raise OptionError(_OPTION, text, f"{_EXPECTED}; {_no_function(module, where, name)}")
    if is_local and not is_file:
        _let_workers_find(Path.cwd())
        return cast("TransformFunction", function)
    from pyspark import cloudpickle  # noqa: PLC0415, a second's import, for those who need it

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return cast("TransformFunction", function)


def _no_function(module: ModuleType, where: str, name: str) -> str:
    """What stands under that name instead, and which function has nearly that name."""
    if hasattr(module, name):
        found = f"{name!r} in {where} is a {type(getattr(module, name)).__name__}, not a function"
    else:
        found = f"{name!r} is not in {where}"
    functions = [one for one, value in vars(module).items() if inspect.isfunction(value)]
    near = difflib.get_close_matches(name, functions, n=1)
    return f"{found}; did you mean {near[0]}?" if near else found


def _let_workers_find(folder: Path) -> None:
    """The JVM, once it is started, gives its environment to the workers that it starts."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(folder) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, paths)])


def _from_file(text: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise OptionError(_OPTION, text, f"{_EXPECTED}; there is no file {path}")
    name = f"coordlog_transform_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise OptionError(_OPTION, text, f"{_EXPECTED}; {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _does_not_import(text, error) from error
    return module


def _named(text: str, name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            missing = f"there is no module {error.name}, neither installed nor in {here}"
            raise OptionError(_OPTION, text, f"{_EXPECTED}; {missing}") from error
        raise _does_not_import(text, error) from error
    except Exception as error:
        raise _does_not_import(text, error) from error


def _does_not_import(text: str, error: Exception) -> OptionError:
    problem = f"importing it raised {type(error).__name__}: {error}"
    return OptionError(_OPTION, text, f"{_EXPECTED}; {problem}")
