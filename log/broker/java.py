"""The Java of this machine, and the jars that PySpark brings."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from coordlog.log.broker import limits
from coordlog.log.local.environment_errors import JavaError

__all__ = ["find_java", "pyspark_jars"]

_INSTALL: Final = (
    f"install Java {limits.JAVA_VERSION_MIN} or newer (Debian: apt-get install "
    "openjdk-17-jre-headless), or set JAVA_HOME to one"
)


def find_java() -> str:
    """The `java` that Spark would use: that of `JAVA_HOME`, else the first on `PATH`.

    Raises:
        JavaError: There is no Java, it does not run, or it is older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise JavaError("no `java` on the PATH, and JAVA_HOME is not set", _INSTALL)
    try:
        answer = subprocess.run(  # noqa: S603, the program that the user has installed
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=limits.JAVA_VERSION_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaError(f"{java} does not run ({error})", _INSTALL) from error
    version = java_version(answer.stdout + answer.stderr)
    if version is None:
        raise JavaError(f"{java} does not tell its version", _INSTALL)
    if version < limits.JAVA_VERSION_MIN:
        raise JavaError(f"{java} is Java {version}", _INSTALL)
    return java


def java_version(text: str) -> int | None:
    """The feature number in the output of `java -version`: 17 of `17.0.15`, 8 of `1.8.0_412`."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def pyspark_jars() -> Path:
    """The folder of jars in the PySpark that is installed, found without importing it.

    Raises:
        JavaError: PySpark is not installed, or has no jars (the variant for Spark Connect only).
    """
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations if spec else None) or ():
        jars = Path(location, "jars")
        if jars.is_dir():
            return jars
    raise JavaError(
        "there is no PySpark with jars in this environment", "install the package pyspark"
    )
