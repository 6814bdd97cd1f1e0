"""Loads the transform of a command line: `module:function` or `path/to/file.py:function`."""

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
    """The function named by `text`, prepared for transfer to tasks.

    Modules are also searched in the current folder, as Python does. On this machine, tasks import a
    module and its imports by name. Elsewhere, and for a file, the module itself is pickled, so that
    workers need only its imports.

    Args:
        text: `module:function` or `file.py:function`.
        is_local: Whether the tasks run on this machine, from a JVM that is started later.

    Raises:
        OptionError: There is no such module, file or function, or it cannot be called.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name.isidentifier():
        raise OptionError(_OPTION, text, _EXPECTED)
    is_file = place.endswith(".py")
    module = _from_file(text, Path(place)) if is_file else _from_module(text, place)
    function = getattr(module, name, None)
    if not callable(function):
        raise OptionError(_OPTION, text, f"{_EXPECTED}; {_no_function(module, place, name)}")
    if is_local and not is_file:
        _add_to_worker_path(Path.cwd())
        return cast("TransformFunction", function)
    from pyspark import cloudpickle  # noqa: PLC0415, takes a second

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return cast("TransformFunction", function)


def _no_function(module: ModuleType, place: str, name: str) -> str:
    """Problem with that name in the module, and the function with the nearest name."""
    if hasattr(module, name):
        problem = f"{name!r} in {place} is a {type(getattr(module, name)).__name__}, not a function"
    else:
        problem = f"{name!r} is not in {place}"
    functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
    near = difflib.get_close_matches(name, functions, n=1)
    return f"{problem}; did you mean {near[0]}?" if near else problem


def _add_to_worker_path(folder: Path) -> None:
    """Add a folder to PYTHONPATH: the JVM, started later, passes its environment to its workers."""
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
        raise _import_failed(text, error) from error
    return module


def _from_module(text: str, name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            missing = f"there is no module {error.name}, neither installed nor in {folder}"
            raise OptionError(_OPTION, text, f"{_EXPECTED}; {missing}") from error
        raise _import_failed(text, error) from error
    except Exception as error:
        raise _import_failed(text, error) from error


def _import_failed(text: str, error: Exception) -> OptionError:
    problem = f"importing it raised {type(error).__name__}: {error}"
    return OptionError(_OPTION, text, f"{_EXPECTED}; {problem}")
