"""A transform that a command line names: `module:function` or `path/to/file.py:function`."""

from __future__ import annotations

import importlib
import importlib.util
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


def load_transform(text: str) -> TransformFunction:
    """The function that `text` names, made ready to travel to tasks.

    Its module travels with it, so that workers need not find it; what that module imports they
    must find. Modules are looked for in the current folder too, as Python itself does.

    Raises:
        OptionError: There is no such module, file or function, or it cannot be called.
    """
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise OptionError(_OPTION, text, _EXPECTED)
    module = _from_file(text, Path(where)) if where.endswith(".py") else _named(text, where)
    function = getattr(module, name, None)
    if not callable(function):
        what = "is not a function" if hasattr(module, name) else "is not in it"
        raise OptionError(_OPTION, text, f"{_EXPECTED}; {name!r} {what}")
    from pyspark import cloudpickle  # noqa: PLC0415, a second's import, for those who need it

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return cast("TransformFunction", function)


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
    except Exception as error:
        raise _does_not_import(text, error) from error


def _does_not_import(text: str, error: Exception) -> OptionError:
    problem = f"importing it raised {type(error).__name__}: {error}"
    return OptionError(_OPTION, text, f"{_EXPECTED}; {problem}")
