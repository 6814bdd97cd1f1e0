"""A source of Kafka topics."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

from coordlog.api.chain import RowRejects, SourceSpec
from coordlog.coordinators.enumerator import EnumeratorContext
from coordlog.coordinators.query_source import CoordinatedSource, QueryWatch
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.errors import OptionError, SourceError
from coordlog.limits import (
    FILE_BATCH_ROWS,
    KAFKA_DISCOVERY_S,
    KAFKA_ENDS_S,
    KAFKA_SPLIT_OFFSETS,
)
from coordlog.log.kafka import Security
from coordlog.log.kafka.client import check_servers
from coordlog.option_types import check_all, check_types
from coordlog.spark_integration.casts.given_schema import arrow_schema_of
from coordlog.spark_integration.files.formats.json.values import check_json_types
from coordlog.spark_integration.files.sink.rejects import FAIL, SKIP, rejects_sink
from coordlog.spark_integration.files.sink.split_rejects import SplitRejects
from coordlog.spark_integration.kafka.bad_records import KAFKA_REJECTS_SCHEMA, rejects_of_records
from coordlog.spark_integration.kafka.cluster import Cluster, Isolation, Partition, Starting
from coordlog.spark_integration.kafka.discovery import Discovery
from coordlog.spark_integration.kafka.enumerator import KafkaEnumerator
from coordlog.spark_integration.kafka.payloads import KafkaListing, KafkaSplitsReturned
from coordlog.spark_integration.kafka.ranges import RangeWatch, lane_of, weight_of
from coordlog.spark_integration.kafka.reader import KafkaReader, KafkaReaderOptions
from coordlog.spark_integration.kafka.rows import Decode, RowFormat
from coordlog.spark_integration.kafka.state_bytes import has_listed, merge_reader_states

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["KafkaSource"]

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_INTERVAL_S: Final = (0.1, 86_400.0)


class KafkaSource:
    """The records of topics, each once.

    A row has `key`, `value`, `topic`, `partition`, `offset`, `timestamp` and `headers`.
    A split is a partition from an offset on; `coordlog splits` shows it as `orders/0@0..1000`. The
    partitions are assigned evenly to the subtasks, all at once; a subtask without a partition waits,
    or ends. The positions are in the job's checkpoints alone: there is no consumer group, and
    nothing is committed to Kafka. It is an error if retention has removed records that a checkpoint
    needs.

    Args:
        topics: Names of topics; or give a `pattern`.
        pattern: A regular expression that a topic's whole name matches; internal topics and logs of jobs never do.
        bootstrap_servers: `HOST:PORT`, several joined by commas.
        starting: Start of the partitions of the first listing: `"earliest"`, `"latest"`, a moment (an
            aware datetime: the first record that is not older), or an offset for each partition.
            Partitions that are found later are read from their beginning.
        bounded: True: up to the ends that the first listing finds, then the job is finished. False:
            without end, and with new partitions.
        discovery_interval_s: Seconds between two listings, 60 if None. Only if the source is
            unbounded.
        isolation: `"read_committed"`: rows of aborted transactions are not read, nor those of
            transactions that are still open. `"read_uncommitted"`: all rows are read.
        decode: Type of `value`: None for bytes; `"utf8"` for text; `"json"` for a struct of
            `value_schema`, in which fields that a message lacks are null and others are left out.
        value_schema: Schema of the JSON objects, with `decode="json"`.
        split_offsets: For queries: greatest number of offsets of a split. New records of a partition
            are cut into such splits; a task reads one after the other.
        security: TLS and SASL; not in the log. Without it neither is used.
        batch_rows: Greatest number of rows of a batch.
        bad_rows: Treatment of a record whose value `decode` cannot decode, or at which a `row_transform` raises.
            `"fail"`: the attempt fails. `"skip"`: it is left out; the history has the number for each split. Any
            other value is a folder or a URL as that of a `ParquetSink`: such records are written there as Parquet,
            with topic, partition, offset, reason and text, and are published once, with the checkpoint that holds
            the other rows. A rejects folder belongs to one job.

    Raises:
        OptionError: An option is out of range.
    """

    def __init__(
        self,
        topics: str | Sequence[str] = (),
        *,
        pattern: str | None = None,
        bootstrap_servers: str,
        starting: Starting = "earliest",
        bounded: bool = True,
        discovery_interval_s: float | None = None,
        isolation: Isolation = "read_committed",
        decode: Decode | None = None,
        value_schema: pa.Schema | StructType | str | None = None,
        split_offsets: int = KAFKA_SPLIT_OFFSETS,
        security: Security | None = None,
        batch_rows: int = FILE_BATCH_ROWS,
        bad_rows: str | os.PathLike[str] = FAIL,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name != "starting"}
        check_types(type(self).__init__, arguments)  # `_check_starting` knows its types
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        value_fields = arrow_schema_of("value_schema", value_schema)
        check_all(
            lambda: _check_topics(names, pattern),
            lambda: check_servers(bootstrap_servers),
            lambda: _check_starting(starting, names),
            lambda: _check_interval(discovery_interval_s, is_bounded=bounded),
            lambda: _check_decode(decode, value_fields),
            lambda: _check_readable(value_fields),
            lambda: _check_positive(batch_rows=batch_rows, split_offsets=split_offsets),
            lambda: rejects_sink(bad_rows, KAFKA_REJECTS_SCHEMA),
        )
        self.rejects = rejects_sink(bad_rows, KAFKA_REJECTS_SCHEMA)
        self._bad_rows = os.fspath(bad_rows)
        self._split_offsets = split_offsets
        self._cluster = Cluster(
            bootstrap_servers=bootstrap_servers,
            security=security or Security(),
            isolation=isolation,
        )
        self._discovery = Discovery(
            cluster=self._cluster,
            topics=names,
            pattern=pattern,
            starting=starting,
            is_bounded=bounded,
        )
        self._interval_s = float(
            KAFKA_DISCOVERY_S if discovery_interval_s is None else discovery_interval_s
        )
        self._rows = RowFormat(decode=decode, value_schema=value_fields)
        self._batch_rows = batch_rows

    def spec(self, operator_id: str = "source") -> SourceSpec:
        """The source as the first link of a chain.

        Asks nothing yet: its coordinator does.
        """
        return SourceSpec(
            operator_id=operator_id,
            create_reader=partial(KafkaReader, self._reader_options()),
            merge_states=merge_reader_states,
            inputs=self._urls(),
            is_unbounded=not self._discovery.is_bounded,
            coordinator=SplitCoordinatorProvider(
                operator_id,
                enumerator=self._enumerator,
                payload_types=(KafkaListing, KafkaSplitsReturned),
            ),
            followers=() if self.rejects is None else (self.rejects.spec(),),
            row_rejects=self._row_rejects(),
        )

    def _row_rejects(self) -> RowRejects | None:
        if self._bad_rows == FAIL:
            return None
        return RowRejects(
            create_reader=partial(KafkaReader, replace(self._reader_options(), places_rows=True)),
            rejects_of=None if self.rejects is None else rejects_of_records,
            needed_for="" if self._rows.decode is not None else self._bad_rows,
        )

    def _reader_options(self) -> KafkaReaderOptions:
        kept: Literal["fail", "skip"] = "skip" if self._bad_rows == SKIP else "fail"
        return KafkaReaderOptions(
            cluster=self._cluster,
            rows=self._rows,
            batch_rows=self._batch_rows,
            bad_rows=kept if self.rejects is None else "emit",
        )

    def _urls(self) -> tuple[str, ...]:
        """Each topic as a URL with the first broker's address, as OpenLineage names it; none by a pattern."""
        server = self._cluster.bootstrap_servers.partition(",")[0].strip()
        return tuple(f"kafka://{server}/{topic}" for topic in self._discovery.topics)

    def coordinated(self) -> CoordinatedSource:
        """The source for queries: `coordlog.spark_integration.dataframes`.

        What has come is found in ranges that end, so that a batch of a stream is the same when it is
        planned again; unbounded, the cluster is looked at every second, or as often as
        `discovery_interval_s` says.
        """
        is_bounded = self._discovery.is_bounded
        schema, readers = self._rows.schema, self._readers_of_queries()
        return CoordinatedSource(
            create_reader=readers[self._bad_rows],
            readers=readers,
            rejects=self._rejects_of_queries(),
            open_watch=self._watch_of_queries,
            is_unbounded=not is_bounded,
            schema_of=lambda _split: schema,
            settle_schema=lambda _kept: schema,
            weight_of=weight_of,
            lane_of=lane_of,
        )

    def _watch_of_queries(self, kept: bytes | None) -> QueryWatch:
        is_bounded = self._discovery.is_bounded
        watch = RangeWatch(
            replace(self._discovery, splits_end=True),
            split_offsets=self._split_offsets,
            interval_s=None if is_bounded else min(self._interval_s, KAFKA_ENDS_S),
            has_listed=has_listed(kept),
        )
        return QueryWatch(watch=watch, note_fact=watch.note)

    def _readers_of_queries(self) -> dict[str, Callable[[], KafkaReader]]:
        """Readers by the treatment of bad records."""
        strict = replace(self._reader_options(), bad_rows="fail")
        readers: dict[str, Callable[[], KafkaReader]] = {
            FAIL: partial(KafkaReader, strict),
            SKIP: partial(KafkaReader, replace(strict, bad_rows="skip")),
        }
        if self.rejects is not None:
            for spelling in (self._bad_rows, self.rejects.destination):
                readers[spelling] = partial(KafkaReader, replace(strict, bad_rows="emit"))
        return readers

    def _rejects_of_queries(self) -> SplitRejects | None:
        if self.rejects is None:
            return None
        schema = self._rows.value_schema
        columns = "" if schema is None else ", ".join(f"{each.name} {each.type}" for each in schema)
        rules = f"decode={self._rows.decode} value_schema=({columns})"
        return SplitRejects(self.rejects, KAFKA_REJECTS_SCHEMA, rules)

    def settle_schema(self) -> pa.Schema:
        """The schema of the rows; checks that there are topics to read. Blocks.

        Raises:
            SourceError: A topic is missing, `starting` does not fit, or no broker answers.
        """
        listing = self._discovery.listing({}, is_first=True)
        if listing.problem:
            raise SourceError(listing.where, listing.problem, listing.next_step)
        return self._rows.schema

    def check(self) -> None:
        """Check, before a job starts, that there are topics to read. Blocks.

        Raises:
            SourceError: As `settle_schema`.
        """
        self.settle_schema()

    def _enumerator(self, context: EnumeratorContext, kept: bytes | None) -> KafkaEnumerator:
        return KafkaEnumerator(
            context, kept, discovery=self._discovery, interval_s=self._interval_s
        )


def _check_readable(schema: pa.Schema | None) -> None:
    try:
        if schema is not None:
            check_json_types(schema)
    except ValueError as error:
        raise OptionError(
            "value_schema", str(schema), f"of types that JSON has ({error})"
        ) from error


def _check_interval(seconds: float | None, *, is_bounded: bool) -> None:
    if seconds is None:
        return
    if is_bounded:
        raise OptionError("discovery_interval_s", seconds, "set with `bounded=False` only")
    if not _INTERVAL_S[0] <= seconds <= _INTERVAL_S[1]:
        raise OptionError("discovery_interval_s", seconds, "0.1 to 86,400")


def _check_decode(decode: str | None, value_schema: pa.Schema | None) -> None:
    if (decode == "json") != (value_schema is not None):
        raise OptionError("value_schema", value_schema, "set with decode='json', and only then")


def _check_positive(**options: int) -> None:
    for name, value in options.items():
        if value < 1:
            raise OptionError(name, value, "at least 1")


def _check_topics(names: tuple[str, ...], pattern: str | None) -> None:
    if bool(names) == (pattern is not None):
        raise OptionError("topics", names, "set, or `pattern` in their place")
    for name in names:
        if not _TOPIC.fullmatch(name) or name in {".", ".."}:
            raise OptionError("topics", name, "a topic's name: letters, digits, '.', '_' and '-'")
    if len(set(names)) < len(names):
        raise OptionError("topics", names, "each named once")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError("pattern", pattern, f"a regular expression ({error})") from error


def _check_starting(starting: Starting, names: Collection[str]) -> None:
    expected = "'earliest', 'latest', an aware datetime, or offsets by (topic, partition)"
    if isinstance(starting, str):
        is_good = starting in ("earliest", "latest")
    elif isinstance(starting, datetime):
        is_good = starting.tzinfo is not None and starting.timestamp() >= 0
    else:
        is_good = (
            isinstance(starting, Mapping)
            and bool(starting)
            and all(map(_is_offset, starting.items()))
        )
    if not is_good:
        raise OptionError("starting", starting, expected)
    if isinstance(starting, Mapping) and names:
        others = sorted({topic for topic, _ in starting} - set(names))
        if others:
            raise OptionError("starting", starting, f"of `topics` only: {others[0]!r} is none")


def _is_offset(item: tuple[Partition, int]) -> bool:
    partition, offset = item
    return (
        isinstance(partition, tuple)
        and [type(one) for one in partition] == [str, int]
        and type(offset) is int
        and partition[1] >= 0
        and offset >= 0
    )
