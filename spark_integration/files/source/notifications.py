"""A watch of S3 objects by the store's notifications in an SQS queue, with a listing now and then.

A notification only says which object to look at: what is read is what the store answers then. So it does not matter
if notifications come twice, in another order, or late; a lost one is made up for by the next listing. A message is
deleted once the log has the splits of all objects that it tells of, or nothing is to be read of them.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast
from urllib.parse import unquote_plus

from coordlog.coordinators.listing import Relisted
from coordlog.errors import EnvironmentSetupError, SourceError, SourceUnavailableError
from coordlog.limits import NOTIFIED_FILES_MAX, WATCH_REPORT_S
from coordlog.schemas.source_types import Split, SplitsDiscovered
from coordlog.spark_integration.files.listing import ListedFile
from coordlog.spark_integration.files.source.discovery import FileWatch
from coordlog.spark_integration.files.source.split_bytes import decode_split

__all__ = ["NotifiedWatch", "Queue", "SqsQueue", "objects_of"]

_log = logging.getLogger(__name__)

_POLL_S: Final = 5
"""Longest wait of one request of the queue: a watch is closed after so long at the latest."""
_MESSAGES_MAX: Final = 10
"""Most messages of one request."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a queue."""

    message_id: str
    receipt: str
    """Right to delete the message, of the last time that it was received."""
    body: str


class Queue(Protocol):
    """A queue that keeps a message until it is deleted."""

    def receive(self, wait_s: float) -> Sequence[Message]:
        """The next messages; waits so long for the first one."""
        ...

    def delete(self, receipts: Sequence[str]) -> None:
        """Delete received messages."""
        ...


class SqsQueue:
    """A queue of SQS, with credentials, region and endpoint as Amazon's own tools take them. For one thread.

    Args:
        name: Name of the queue, or its URL without a scheme.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._client: Any = None
        self._url = ""

    def receive(self, wait_s: float) -> Sequence[Message]:
        """See `Queue`.

        Raises:
            SourceUnavailableError: The queue does not answer, or refuses.
        """
        answer = self._call(
            "receive_message",
            MaxNumberOfMessages=_MESSAGES_MAX,
            WaitTimeSeconds=min(_POLL_S, math.ceil(wait_s)),
        )
        return [
            Message(entry["MessageId"], entry["ReceiptHandle"], entry["Body"])
            for entry in answer.get("Messages", ())
        ]

    def delete(self, receipts: Sequence[str]) -> None:
        """See `Queue`. A message that is not deleted comes again, and does no harm.

        Raises:
            SourceUnavailableError: As `receive`.
        """
        for start in range(0, len(receipts), _MESSAGES_MAX):
            entries = [
                {"Id": str(number), "ReceiptHandle": receipt}
                for number, receipt in enumerate(receipts[start : start + _MESSAGES_MAX])
            ]
            self._call("delete_message_batch", Entries=entries)

    def _call(self, method: str, **request: object) -> Mapping[str, Any]:
        try:
            if self._client is None:
                self._client = _sqs_client()
                url = f"https://{self._name}"
                if "/" not in self._name:
                    url = self._client.get_queue_url(QueueName=self._name)["QueueUrl"]
                self._url = url
            answer = getattr(self._client, method)(QueueUrl=self._url, **request)
        except EnvironmentSetupError:
            raise
        except Exception as error:
            self._client = None
            raise SourceUnavailableError(
                f"sqs://{self._name}",
                f"the queue of notifications refuses or does not answer: {type(error).__name__}: {error}",
                "check the queue's name, AWS_DEFAULT_REGION, and that the driver may receive and delete its messages",
            ) from error
        return cast("Mapping[str, Any]", answer)


def _sqs_client() -> Any:  # noqa: ANN401, botocore has no types
    try:
        from botocore.config import Config  # noqa: PLC0415, an extra
        from botocore.session import get_session  # noqa: PLC0415
    except ImportError as error:
        raise EnvironmentSetupError(
            f"notifications by SQS need the package botocore: {error}",
            "pip install 'coordlog[s3]', for the driver",
        ) from error
    config = Config(
        retries={"mode": "standard", "total_max_attempts": 3},
        connect_timeout=10,
        read_timeout=_POLL_S + 20,
        user_agent_extra="coordlog",
    )
    return get_session().create_client("sqs", config=config)


def objects_of(body: str) -> list[str] | None:
    """The objects, as `BUCKET/KEY`, that a notification of S3, of SNS or of EventBridge tells were created.

    None if the text is no such notification: it is not ours to delete.
    """
    try:
        document = json.loads(body)
        if isinstance(document, dict) and "Message" in document and "TopicArn" in document:
            document = json.loads(document["Message"])
        if not isinstance(document, dict):
            return None
        if document.get("Event") == "s3:TestEvent":
            return []
        paths = None
        if "detail-type" in document:
            paths = list(_of_event_bridge(document))
        elif "Records" in document:
            paths = list(_of_records(document["Records"]))
        "".join(paths or ()).encode()  # half of a surrogate pair is no part of a key
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return paths


def _of_event_bridge(document: Mapping[str, Any]) -> Iterator[str]:
    detail = document["detail"]
    if document["detail-type"] == "Object Created":
        yield f"{detail['bucket']['name']}/{detail['object']['key']}"


def _of_records(records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for record in records:
        if record["eventName"].removeprefix("s3:").startswith("ObjectCreated:"):
            s3 = record["s3"]
            # The keys of this format are encoded as in a form.
            yield f"{s3['bucket']['name']}/{unquote_plus(s3['object']['key'])}"


class NotifiedWatch:
    """Discovers the objects that notifications name, and lists at its start and now and then (`SplitWatch`).

    Objects are whole as soon as they are visible, so that one look is enough.

    Args:
        inner: Makes the splits, and compares files with known ones.
        queue: The notifications.
        listing_s: Seconds between two listings.
        idle_timeout_s: Seconds without a new object after which the watch lists once more, and ends if it finds none;
            None: it does not end.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        inner: FileWatch,
        queue: Queue,
        *,
        listing_s: float,
        idle_timeout_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner, self._queue = inner, queue
        self._listing_s, self._idle_timeout_s, self._clock = listing_s, idle_timeout_s, clock
        self._closed = threading.Event()
        self._listed_s = -math.inf
        self._last_find_s = clock()
        self._open: list[tuple[str, frozenset[str]]] = []
        """Receipts of messages, each with the objects that the log must have before the message is deleted."""
        self._warned = False

    def look(
        self, known: Sequence[Split], skipped: frozenset[str] = frozenset()
    ) -> SplitsDiscovered | Relisted:
        """New objects, as soon as there are some; see `SplitWatch`.

        Raises:
            SourceError: The queue does not answer, or as `FileWatch.look`.
        """
        inner = self._inner
        inner.begin_look(known)
        self._delete_handled()
        until_s = self._clock() + WATCH_REPORT_S
        while True:
            now_s = self._clock()
            if now_s - self._listed_s >= self._listing_s:
                result = inner.found_by_listing(known, skipped)
                if not inner.has_more:
                    self._listed_s = now_s
            else:
                result = self._found_by_messages(until_s, known, skipped)
            if result.discovered.splits or result.facts:
                self._last_find_s = self._clock()
                return result
            self._delete_handled()
            if inner.left_for_later:  # what these wait for is known to the next look alone
                self._last_find_s = self._clock()
                return SplitsDiscovered(splits=[], is_complete=False)
            if self._is_idle_at(self._listed_s):
                return SplitsDiscovered(splits=[], is_complete=True)
            if self._is_idle_at(self._clock()):
                self._listed_s = -math.inf  # a notification may have been lost
            if self._closed.is_set() or self._clock() >= until_s:
                return SplitsDiscovered(splits=[], is_complete=False)

    def close(self) -> None:
        """Make a `look` return after its request of the queue, within seconds. Any thread."""
        self._closed.set()
        self._inner.close()

    def _is_idle_at(self, time_s: float) -> bool:
        return (
            self._idle_timeout_s is not None and time_s - self._last_find_s >= self._idle_timeout_s
        )

    def _delete_handled(self) -> None:
        """Delete the messages of which the log has everything. The others come again, after their time in the queue."""
        handled, self._open = self._open, []
        known = self._inner.known
        receipts = [receipt for receipt, paths in handled if all(path in known for path in paths)]
        if receipts:
            self._queue.delete(receipts)

    def _found_by_messages(
        self, until_s: float, known: Sequence[Split], skipped: frozenset[str]
    ) -> Relisted:
        try:
            files = self._notified(until_s)
            result = self._inner.found_of(files, known, skipped)
        except BaseException:
            self._open = []
            raise
        # Of the others nothing is to be read: they are known, empty, or left out by a fact of this result.
        new = {decode_split(split.content).path for split in result.discovered.splits}
        later = self._inner.left_for_later  # their messages come again
        self._open = [(receipt, paths & new) for receipt, paths in self._open if not paths & later]
        return result

    def _notified(self, until_s: float) -> list[ListedFile]:
        """The present objects of the next notifications."""
        now_s = self._clock()
        wait_s = min(until_s - now_s, self._listed_s + self._listing_s - now_s)
        if self._idle_timeout_s is not None:
            wait_s = min(wait_s, self._last_find_s + self._idle_timeout_s - now_s)
        files: dict[str, ListedFile] = {}
        seen: set[str] = set()
        while not self._closed.is_set() and len(seen) < NOTIFIED_FILES_MAX:
            received = self._queue.receive(0 if seen else max(wait_s, 0))
            messages = [message for message in received if message.message_id not in seen]
            if not messages:
                break  # none is left, or they come again already
            for message in messages:
                seen.add(message.message_id)
                paths = objects_of(message.body)
                if paths is None:
                    self._warn(message)
                    continue
                present = self._present(paths)
                files |= present
                self._open.append((message.receipt, frozenset(present)))
        return list(files.values())

    def _present(self, paths: Sequence[str]) -> dict[str, ListedFile]:
        files = self._inner.files
        present = {}
        for path in dict.fromkeys(paths):
            if files.has_name(path):
                try:
                    present[path] = files.look(ListedFile(path=path, size_bytes=-1))
                except SourceError as error:
                    if isinstance(error.__cause__, FileNotFoundError):
                        continue  # deleted since
                    if not isinstance(error.__cause__, PermissionError):
                        raise
                    # As after a listing, its reader finds that it may not be read: it alone is at fault.
                    if (listed := files.look_in_listing(path)) is not None:
                        present[path] = listed
        return present

    def _warn(self, message: Message) -> None:
        if not self._warned:
            _log.warning(
                "the queue has a message that is no notification of S3; such messages stay in it: %.200s",
                message.body,
            )
        self._warned = True
