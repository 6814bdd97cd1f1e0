"""Identity of the batch and the streaming query that a `foreachBatch` function is called with."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from coordlog.errors import UsageError
from coordlog.spark_integration.batches.ledger import BatchKey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "BATCH_ID",
    "QUERY_ID",
    "fingerprint_of",
    "key_of",
    "ranges_of",
    "run_for_state",
    "run_of",
]

_log = logging.getLogger(__name__)

# Local properties of a batch's thread and tasks, by their names in Spark's StreamExecution and MicroBatchExecution.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"

_READ_BYTES: Final = 1 << 16
"""Bytes that are read of a listing, at its end: every tenth listing of a checkpoint repeats all earlier ones before."""
_LISTING: Final = re.compile(r'\{"logOffset":(\d+)\}')
"""Position of Spark's file source."""
_TEMPORARY: Final = re.compile(r"/temporary-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/?$")
"""Checkpoint folder of a query without `checkpointLocation`."""


def key_of(frame: DataFrame, batch_id: int) -> BatchKey:
    """Key of the batch in `frame`. Called by a `foreachBatch` function, on the thread on which Spark calls it.

    The query's id is in the file `metadata` of its checkpoint, and outlives restarts. Spark sets it as a
    local property of that thread; both ids are compared if Spark reports the checkpoint's place.

    Raises:
        UsageError: The caller is not within `foreachBatch`, or the query has no checkpoint of its own.
    """
    spark = frame.sparkSession
    if not hasattr(spark, "_jsparkSession"):
        raise UsageError(
            "`foreachBatch` runs in the server's process in Spark Connect, where no coordinator can run: "
            "run this script there, with spark-submit"
        )
    context = spark.sparkContext
    query_id = context.getLocalProperty(QUERY_ID)
    thread_batch = context.getLocalProperty(BATCH_ID)
    if not query_id or thread_batch != str(batch_id):
        raise UsageError(
            f"no streaming query is running batch {batch_id} on this thread (query {query_id}, batch "
            f"{thread_batch}): pass the function that `exactly_once` returns to `foreachBatch` itself"
        )
    root = _checkpoint_root(spark, query_id)
    if root is not None:
        _check_root(spark, query_id, root)
    return BatchKey(query_id=query_id, batch_id=batch_id)


def _checkpoint_root(spark: SparkSession, query_id: str) -> str | None:
    """Folder of the query's checkpoint; None if this Spark does not report it."""
    return _of_query(spark, query_id, lambda query: query.resolvedCheckpointRoot())


def run_of(frame: DataFrame, key: BatchKey) -> str | None:
    """Id of the query's run, another one after each start; None if this Spark does not report it."""
    return _of_query(frame.sparkSession, key.query_id, lambda query: query.runId())


def _of_query(spark: SparkSession, query_id: str, read: Callable[[Any], object]) -> str | None:
    session: Any = spark  # the only way to a query of another session
    try:
        jvm = session._jvm  # noqa: SLF001
        queries = session._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
        query = queries.get(jvm.java.util.UUID.fromString(query_id))
        return None if query is None else str(read(query))
    except Exception as error:  # noqa: BLE001, any error of py4j about another Spark's internals
        _log.debug("query=%s Spark does not report on it: %s", query_id, error)
        return None


def ranges_of(frame: DataFrame, key: BatchKey) -> str:
    """Fingerprint of the positions at which the sources of a batch end, from files of its query's checkpoint.

    Spark writes these files before it runs the batch. If they were lost, or the checkpoint is an older copy, and Spark
    plans the batch again under the same number, the fingerprint differs if there are more rows by then. Empty if the
    file in the folder `offsets` is missing.
    """
    root = _checkpoint_root(frame.sparkSession, key.query_id)
    if root is None:
        return ""

    def read(name: str, end_bytes: int | None) -> bytes | None:
        return _read(frame.sparkSession, f"{root}/{name}", end_bytes)

    return fingerprint_of(key.batch_id, read)


def fingerprint_of(batch_id: int, read: Callable[[str, int | None], bytes | None]) -> str:
    """Fingerprint of a batch, as of `ranges_of`.

    `read` returns the last bytes of a file of the checkpoint, as many as its second argument says, or the whole file;
    None without one.

    A position of Spark's file source is only the number of a listing. A second part, after a dot, is of the files that
    were listed, if the checkpoint has them.
    """
    content = read(f"offsets/{batch_id}", None)
    if content is None:
        return ""
    # A version, then values of this planning (the batch's time, the session's settings), then the offsets.
    offsets = content.decode().splitlines()[2:]
    listings: list[bytes] = []
    for number, offset in enumerate(offsets):
        if (listing := _LISTING.fullmatch(offset)) is not None:
            name = f"sources/{number}/{listing[1]}"
            end = read(name, _READ_BYTES) or read(f"{name}.compact", _READ_BYTES)
            listings.append(end or b"")
    ranges = _digest("\n".join(offsets).encode())
    return f"{ranges}.{_digest(b'|'.join(listings))}" if all(listings) and listings else ranges


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def run_for_state(frame: DataFrame, key: BatchKey) -> None:
    """Run a batch whose rows are not written again, if its query has a state; the rows are dropped.

    Spark takes three things from the run of a batch alone, which a restart has lost: the new version of the state
    (with `stateStore.checkpointFormatVersion` 2 the ids of its files, without which no later batch can run), and the
    highest event time, from which the watermark follows. A query without a state needs none of these; its rows may be
    gone from the source by now.
    """
    root = _checkpoint_root(frame.sparkSession, key.query_id)
    if root is None:
        return
    files, path = _file(frame.sparkSession, f"{root}/state")
    if files.exists(path):
        _log.info("%s is run for the state of its query", key)
        frame.write.format("noop").mode("append").save()


def _file(spark: SparkSession, name: str) -> tuple[Any, Any]:
    """File system and path of a file or folder of a checkpoint."""
    session: Any = spark  # as above
    path = session._jvm.org.apache.hadoop.fs.Path(name)  # noqa: SLF001
    return path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()), path  # noqa: SLF001


def _read(spark: SparkSession, name: str, end_bytes: int | None) -> bytes | None:
    """The last bytes of a file of a checkpoint, or the whole file; None if there is none."""
    files, path = _file(spark, name)
    if not files.exists(path):
        return None
    size = int(files.getFileStatus(path).getLen())
    stream = files.open(path)
    try:
        stream.seek(0 if end_bytes is None else max(0, size - end_bytes))
        return bytes(stream.readAllBytes())
    finally:
        stream.close()


def _check_root(spark: SparkSession, query_id: str, root: str) -> None:
    if _TEMPORARY.search(root):
        raise UsageError(
            f"query {query_id} has no `checkpointLocation`: its checkpoint, {root}, is deleted when it "
            "ends, and the next start would begin from the start; set one with "
            '.option("checkpointLocation", …)'
        )
    content = _read(spark, f"{root}/metadata", None)
    owner = None if content is None else json.loads(content)["id"]
    if owner != query_id:
        raise UsageError(
            f"query {query_id} runs on a checkpoint of query {owner}, {root}: the checkpoint was "
            "exchanged while the query ran; start the query again"
        )
