"""Iceberg's own REST catalog, as a process: the server that its project tests clients against."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from coordlog.log.broker.java import find_java, pyspark_jars
from servers.pinned_jars import class_path
from servers.secured_broker import free_ports

__all__ = ["RunningCatalog", "rest_catalog"]

_START_S: Final = 60
_OF_SPARK: Final = (
    "hadoop-client-api",
    "hadoop-client-runtime",
    "jackson-",
    "slf4j-api",
    "log4j",
    "avro-1",
    "commons-",
)


@dataclass(frozen=True, slots=True)
class RunningCatalog:
    """A running catalog."""

    uri: str
    warehouse: Path
    """Folder of all its tables, by namespace and name."""


@contextlib.contextmanager
def _running(folder: Path) -> Iterator[RunningCatalog]:
    (port,), warehouse = free_ports(1), folder / "warehouse"
    of_spark = [
        str(path)
        for path in sorted(pyspark_jars().glob("*.jar"))
        if path.name.startswith(_OF_SPARK)
    ]
    command = [
        find_java(),
        *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
        *("-cp", os.pathsep.join((class_path("iceberg-rest"), *of_spark))),
        "org.apache.iceberg.rest.RESTCatalogServer",
    ]
    settings = {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.inmemory.InMemoryCatalog",
        "CATALOG_IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
        "CATALOG_WAREHOUSE": warehouse.as_uri(),
    }
    output = folder / "catalog.log"
    with output.open("wb") as stream:
        process = subprocess.Popen(
            command, env={**os.environ, **settings}, stdout=stream, stderr=subprocess.STDOUT
        )
    try:
        catalog = RunningCatalog(f"http://127.0.0.1:{port}", warehouse)
        _wait_for(catalog, process, output)
        yield catalog
    finally:
        process.kill()
        process.wait()


def _wait_for(catalog: RunningCatalog, process: subprocess.Popen[bytes], output: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(f"{catalog.uri}/v1/config", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, output.read_text()[-4000:]
            assert time.monotonic() < deadline, (
                f"no answer within {_START_S} s: {output.read_text()[-4000:]}"
            )
            time.sleep(0.05)


@pytest.fixture(scope="session")
def rest_catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCatalog]:
    """One catalog for the whole run."""
    with _running(tmp_path_factory.mktemp("rest")) as catalog:
        yield catalog
