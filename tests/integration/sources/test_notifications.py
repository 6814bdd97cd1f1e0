"""A watch of S3 by notifications, with servers of S3 and SQS: lost, doubled and late ones do no harm."""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote_plus

import botocore.session
import fsspec
import pytest
from moto.server import ThreadedMotoServer

from coordlog.coordinators.listing import Relisted
from coordlog.errors import OptionError, SourceError, SourceUnavailableError
from coordlog.schemas.source_types import Split, SplitsDiscovered
from coordlog.spark_integration.files.listing import InputFiles
from coordlog.spark_integration.files.source import notifications
from coordlog.spark_integration.files.source.discovery import FileWatch
from coordlog.spark_integration.files.source.notifications import (
    NotifiedWatch,
    SqsQueue,
    objects_of,
)
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.files.source.watch import Watch
from fakes.chain_fakes import read_all

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    """A file system of S3 on a server that has queues too."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "somebody")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        # Those of other modules are of servers that have gone.
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        file_system = fsspec.filesystem("s3", skip_instance_cache=True)
        file_system.mkdir("notified")
        yield file_system
        fsspec.get_filesystem_class("s3").clear_instance_cache()
    server.stop()


def client() -> Any:  # noqa: ANN401
    return botocore.session.get_session().create_client(
        "sqs", endpoint_url=os.environ["AWS_ENDPOINT_URL"]
    )


class Queue:
    """A queue of its own, whose messages are visible again at once if a test says so."""

    def __init__(self, name: str) -> None:
        self.name, self.client = name, client()
        self.url = self.client.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "0"})[
            "QueueUrl"
        ]

    def send(self, *paths: str, event: str = "ObjectCreated:Put") -> None:
        records = [
            {
                "eventName": event,
                "s3": {
                    "bucket": {"name": path.partition("/")[0]},
                    "object": {"key": quote_plus(path.partition("/")[2], safe="/"), "size": 1},
                },
            }
            for path in paths
        ]
        self.client.send_message(QueueUrl=self.url, MessageBody=json.dumps({"Records": records}))

    @property
    def count(self) -> int:
        attributes = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=["All"])
        return int(attributes["Attributes"]["ApproximateNumberOfMessages"])


class Watched:
    """A watch, and the splits that its log has."""

    def __init__(
        self,
        url: str,
        queue: Queue,
        *,
        listing_s: float = 1e9,
        idle_timeout_s: float | None = None,
    ) -> None:
        source = FileSource(url, schema="i bigint", watch=Watch(notify=f"sqs://{queue.name}"))
        self.now_s = 0.0
        self.source = source
        inner = FileWatch(source._discovery, interval_s=1.0, idle_timeout_s=None)
        self.watch = NotifiedWatch(
            inner,
            SqsQueue(queue.name),
            listing_s=listing_s,
            idle_timeout_s=idle_timeout_s,
            clock=lambda: self.now_s,
        )
        self.known: list[Split] = []
        self.is_complete = False

    def look(self, *, is_recorded: bool = True) -> list[str]:
        found = self.watch.look(self.known)
        discovered = found.discovered if isinstance(found, Relisted) else found
        splits, self.is_complete = discovered.splits, discovered.is_complete
        if is_recorded:
            self.known += splits
        return [split.split_id for split in splits]


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "WATCH_REPORT_S", 0.0)


def test_new_objects_come_by_notifications_and_others_by_a_listing(
    store: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue("found")
    store.pipe("notified/found/a.csv", b"i\n1\n")
    watched = Watched("s3://notified/found", queue)
    assert watched.look() == ["notified/found/a.csv"]

    def not_listed(_files: InputFiles) -> None:
        raise AssertionError("no listing is needed")

    monkeypatch.setattr(InputFiles, "walk", not_listed)
    store.pipe("notified/found/day 1/ü+b.csv", b"i\n1\n")
    store.pipe("notified/elsewhere/c.csv", b"i\n1\n")
    queue.send("notified/found/day 1/ü+b.csv", "notified/elsewhere/c.csv", "other/found/d.csv")
    assert watched.look() == ["notified/found/day 1/ü+b.csv"]
    assert queue.count == 1, "the log does not have it yet, as far as the watch knows"
    assert watched.look() == []
    assert queue.count == 0


def test_a_message_stays_until_the_log_has_what_it_tells_of(store: Any) -> None:  # noqa: ANN401
    queue = Queue("stays")
    store.pipe("notified/stays/old.csv", b"i\n1\n")
    watched = Watched("s3://notified/stays", queue)
    watched.look()
    store.pipe("notified/stays/a.csv", b"i\n1\n")
    queue.send("notified/stays/a.csv")

    for _ in range(3):  # a driver dies before its record counts
        assert watched.look(is_recorded=False) == ["notified/stays/a.csv"]
        assert queue.count == 1
    assert watched.look() == ["notified/stays/a.csv"]
    watched.look()
    assert queue.count == 0


def test_a_message_stays_if_its_objects_cannot_be_looked_at(
    store: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Queue("refused")
    store.pipe("notified/refused/old.csv", b"i\n1\n")
    watched = Watched("s3://notified/refused", queue)
    watched.look()
    store.pipe("notified/refused/a.csv", b"i\n1\n")
    queue.send("notified/refused/a.csv")

    def refuse(_files: InputFiles, _seen: object) -> None:
        raise SourceUnavailableError("s3", "503", "wait")

    with monkeypatch.context() as patch:
        patch.setattr(InputFiles, "look", refuse)
        with pytest.raises(SourceUnavailableError):
            watched.look()
    assert queue.count == 1
    assert watched.look() == ["notified/refused/a.csv"]


def test_an_object_whose_notification_is_lost_is_read_before_the_end(
    store: Any,  # noqa: ANN401
) -> None:
    store.pipe("notified/ending/a.csv", b"i\n1\n")
    watched = Watched("s3://notified/ending", Queue("ending"), idle_timeout_s=10.0)
    assert watched.look() == ["notified/ending/a.csv"]
    store.pipe("notified/ending/b.csv", b"i\n1\n")
    assert watched.look() == []

    watched.now_s = 11.0
    while not watched.is_complete:
        watched.look()
        watched.now_s += 5.0
    assert [one.split_id for one in watched.known] == [
        "notified/ending/a.csv",
        "notified/ending/b.csv",
    ]


def test_doubled_and_late_notifications_find_nothing_twice(store: Any) -> None:  # noqa: ANN401
    queue = Queue("doubled")
    names = [f"notified/doubled/{n:02}.csv" for n in range(25)]
    watched = Watched("s3://notified/doubled", queue)
    store.pipe("notified/doubled/.hidden", b"")
    for name in names:
        store.pipe(name, b"i\n1\n")
    sent = names * 3
    random.Random(5).shuffle(sent)
    for name in sent:
        queue.send(name)
    store.rm(names[7])
    found = watched.look()
    assert found == [name for name in names if name != names[7]]

    for _ in range(8):
        assert watched.look() == []
    assert queue.count == 0
    assert len(watched.known) == 24


def test_a_lost_notification_is_made_up_for_by_the_next_listing(store: Any) -> None:  # noqa: ANN401
    queue = Queue("lost")
    watched = Watched("s3://notified/lost", queue, listing_s=100)
    assert watched.look() == []
    store.pipe("notified/lost/a.csv", b"i\n1\n")
    assert watched.look() == []
    watched.now_s = 100.0
    assert watched.look() == ["notified/lost/a.csv"]
    queue.send("notified/lost/a.csv")  # late
    assert watched.look() == []
    assert queue.count == 0


def test_a_replaced_object_fails_and_an_empty_or_removed_one_is_no_file(
    store: Any,  # noqa: ANN401
) -> None:
    queue = Queue("replaced")
    store.pipe("notified/replaced/a.csv", b"i\n1\n")
    watched = Watched("s3://notified/replaced", queue)
    watched.look()
    store.pipe("notified/replaced/empty.csv", b"")
    queue.send("notified/replaced/empty.csv", "notified/replaced/gone.csv")
    queue.send("notified/replaced/a.csv", event="ObjectRemoved:Delete")
    assert watched.look() == []
    assert queue.count == 0

    store.pipe("notified/replaced/a.csv", b"i\n2\n")
    queue.send("notified/replaced/a.csv")
    with pytest.raises(SourceError, match="it has changed since it was listed"):
        watched.look()
    assert queue.count == 1


def test_other_messages_stay_and_a_queue_that_does_not_exist_is_named(
    store: Any,  # noqa: ANN401
) -> None:
    queue = Queue("others")
    queue.client.send_message(QueueUrl=queue.url, MessageBody="hello")
    queue.client.send_message(QueueUrl=queue.url, MessageBody=json.dumps({"Event": "s3:TestEvent"}))
    watched = Watched("s3://notified/others", queue)
    store.pipe("notified/others/a.csv", b"i\n1\n")
    watched.look()
    assert watched.look() == []
    assert queue.count == 1

    missing = SqsQueue("missing")
    with pytest.raises(SourceUnavailableError, match="sqs://missing"):
        missing.receive(0)


def test_the_names_of_a_source_are_those_of_its_listing(store: Any) -> None:  # noqa: ANN401
    names = [
        f"notified/names/{name}"
        for name in ("a.csv", "_h/a.csv", "d/a.csv", "d/.b.csv", "dd/x", "e.tmp", "d/sub/c.csv")
    ]
    for name in names:
        store.pipe(name, b"i\n1\n")
    sources: Sequence[FileSource] = [
        FileSource("s3://notified/names"),
        FileSource("s3://notified/names/"),
        FileSource("s3://notified/names/d*"),
        FileSource("s3://notified/names/d*/"),
        FileSource("s3://notified/names/**/*.csv"),
        FileSource("s3://notified/names/a.csv"),
        FileSource("s3://notified/names", exclude="*.tmp", watch=Watch(start_after="d/a.csv")),
        FileSource("s3://notified/other", also=["s3://notified/names/d"]),
    ]
    for source in sources:
        files = source._discovery.files
        listed = sorted(file.path for file in files.walk())
        assert sorted(name for name in names if files.has_name(name)) == listed, files.urls


def test_a_name_that_comes_again_while_it_is_released_waits_for_that(
    store: Any,  # noqa: ANN401
) -> None:
    """The file that was read is deleted, which the look does not know yet."""
    queue = Queue("again")
    store.pipe("notified/again/a.csv", b"i\n1\n")
    watched = Watched("s3://notified/again", queue)
    watched.watch._inner.tolerates = lambda _path: True
    assert watched.look() == ["notified/again/a.csv"]
    store.pipe("notified/again/a.csv", b"i\n2\n2\n")
    queue.send("notified/again/a.csv")
    assert (watched.look(), queue.count) == ([], 1)

    watched.known = []
    assert watched.look() == ["notified/again/a.csv"]
    assert (watched.look(), queue.count) == ([], 0)


def test_a_look_ends_at_a_name_that_waits_for_its_release(
    store: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same look would find it so again and again: the release is known to the next look alone."""
    queue = Queue("ends")
    store.pipe("notified/ends/a.csv", b"i\n1\n")
    watched = Watched("s3://notified/ends", queue)
    watched.watch._inner.tolerates = lambda _path: True
    watched.look()
    store.pipe("notified/ends/a.csv", b"i\n2\n2\n")
    queue.send("notified/ends/a.csv")
    received = []
    real = SqsQueue.receive

    def receive(self: SqsQueue, wait_s: float) -> Any:  # noqa: ANN401
        received.append(wait_s)
        assert len(received) <= 2, "a request for the message, one for those after it"
        return real(self, wait_s)

    monkeypatch.setattr(notifications, "WATCH_REPORT_S", 60.0)
    monkeypatch.setattr(SqsQueue, "receive", receive)
    assert watched.look() == []


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_an_object_that_may_not_be_read_holds_up_no_other(
    store: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
    on_error: Any,  # noqa: ANN401
) -> None:
    """Its reader finds the same, and skips it or fails by its name; the messages of others are read meanwhile."""
    queue = Queue(f"forbidden-{on_error}")
    store.pipe("notified/forbidden/old.csv", b"i\n1\n")
    watched = Watched("s3://notified/forbidden", queue)
    watched.look()
    names = [f"notified/forbidden/{name}.csv" for name in ("a", "a.csv.b", "c")]
    for name in names:
        store.pipe(name, b"i\n1\n")
    queue.send(names[0])
    queue.send(names[1])
    queue.send(names[2])
    store.rm(names[2])
    real = type(store)._call_s3

    async def call_s3(self: Any, method: str, *args: Any, **request: Any) -> Any:  # noqa: ANN401
        if method == "head_object" and f"notified/{request['Key']}" in (names[0], names[2]):
            raise PermissionError(13, "Forbidden")
        return await real(self, method, *args, **request)

    monkeypatch.setattr(type(store), "_call_s3", call_s3)
    found = watched.look()
    assert found == names[:2]
    assert watched.look() == []
    assert queue.count == 0

    source = FileSource(
        "s3://notified/forbidden", schema="i bigint", on_error=on_error, watch=Watch()
    )
    splits = [split.content for split in watched.known]
    if on_error == "fail":
        with pytest.raises(SourceUnavailableError, match=r"forbidden/a\.csv: it cannot be read"):
            read_all(source.spec().create_reader(), splits)
    else:
        out = read_all(source.spec().create_reader(), splits)
        assert out.rows == [(1,), (1,)]
    store.rm("notified/forbidden", recursive=True)


def test_an_object_that_would_be_read_as_another_is_refused(
    store: Any,  # noqa: ANN401
) -> None:
    queue = Queue("version")
    store.pipe("notified/version/a.csv", b"i\n1\n")
    watched = Watched("s3://notified/version", queue)
    assert watched.look() == ["notified/version/a.csv"]
    name = "version/a.csv?versionId=null"
    store.call_s3("put_object", Bucket="notified", Key=name, Body=b"i\n2\n")
    queue.send(f"notified/{name}")
    with pytest.raises(SourceError, match="takes for a version of another object"):
        watched.look()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ('{"Event": "s3:TestEvent"}', []),
        (
            '{"detail-type": "Object Created", "detail": {"bucket": {"name": "b"}, "object": {"key": "a+b"}}}',
            ["b/a+b"],
        ),
        ('{"detail-type": "Object Deleted", "detail": {}}', []),
        ('{"Records": []}', []),
        ('{"Records": [{}]}', None),
        ('{"other": 1}', None),
        ("[]", None),
        ("", None),
        ("\\ud800", None),
        ("[" * 100_000, None),
        (
            '{"detail-type": "Object Created", "detail": {"bucket": {"name": "b"}, "object": {"key": "\\ud800"}}}',
            None,
        ),
    ],
)
def test_notifications_are_told_from_other_texts(body: str, expected: list[str] | None) -> None:
    assert objects_of(body) == expected
    wrapped = json.dumps({"Type": "Notification", "TopicArn": "arn", "Message": body})
    assert objects_of(wrapped) == expected


@pytest.mark.parametrize("notify", ["", "sqs://", "https://sqs", "sns://topic"])
def test_another_queue_is_refused(notify: str) -> None:
    with pytest.raises(OptionError, match="notify"):
        Watch(notify=notify)


def test_notifications_are_for_s3_alone(tmp_path: Any) -> None:  # noqa: ANN401
    with pytest.raises(OptionError, match="left out, if files are not in S3"):
        FileSource(tmp_path, watch=Watch(notify="sqs://queue"))


def test_queries_are_notified_too(store: Any) -> None:  # noqa: ANN401
    queue = Queue("queries")
    store.pipe("notified/queries/a.csv", b"i\n1\n")
    source = FileSource(
        "s3://notified/queries", schema="i bigint", watch=Watch(notify="sqs://queries")
    )
    watch = source.coordinated().open_watch(None).watch
    found = watch.look([], frozenset())
    assert isinstance(found, (Relisted, SplitsDiscovered))
    assert queue.count == 0
