"""A callback before the end of Spark's JVM, which under `spark-submit` is the parent process and gets the signals."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["told_of_jvm_end"]

_log = logging.getLogger(__name__)

_BEFORE_SPARK: Final = 100
"""Priority of the JVM's shutdown hook: the highest runs first, and the hook that stops Spark's context has 40."""


class _Hook:
    """A `java.lang.Runnable` in Python."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end

    def run(self) -> None:
        """Called by the JVM, on a thread of py4j."""
        self._on_end()

    class Java:
        implements: ClassVar = ["java.lang.Runnable"]


@contextmanager
def told_of_jvm_end(
    spark: SparkSession, on_end: Callable[[], None], *, limit_s: float
) -> Generator[None, None, None]:
    """Within the block a JVM that shuts down calls `on_end` first, and waits for it up to `limit_s`.

    Else the JVM would stop Spark's context at once, and with it the tasks that a last checkpoint needs.
    No hook is added to a JVM that this process has started: Ctrl-C does not reach it, and only this
    process ends it. Nor to the JVM of a Spark Connect session, which is on another machine.
    """
    gateway = _foreign_gateway(spark)
    if gateway is None:
        yield
        return
    from pyspark.java_gateway import ensure_callback_server_started  # noqa: PLC0415, as all of Spark

    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    jvm = gateway.jvm
    hooks = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
    # A Java thread that is never started: as an object of the JVM it can be removed again.
    hook = jvm.java.lang.Thread(_Hook(on_end))
    seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
    hooks.addShutdownHook(hook, _BEFORE_SPARK, int(limit_s) + 1, seconds)
    try:
        yield
    finally:
        try:
            if not hooks.isShutdownInProgress():
                hooks.removeShutdownHook(hook)
        except Exception as error:  # noqa: BLE001, py4j's own errors: the JVM has ended
            _log.debug("the JVM has gone: %s", error)


# `Any`: py4j's objects have the types of the JVM.
def _foreign_gateway(spark: SparkSession) -> Any:  # noqa: ANN401
    """Gateway to a JVM that this process has not started; None for its own JVM, or without a JVM."""
    try:
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001, there is no other way to it
    except Exception:  # noqa: BLE001, Spark Connect has none, and raises its own error
        return None
    return None if gateway is None or getattr(gateway, "proc", None) is not None else gateway
