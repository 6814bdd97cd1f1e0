"""Which reader gets which partition, over new partitions, failures, restarts; no broker."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from click.testing import CliRunner

from coordlog.api.chain import Chain, SourceSpec
from coordlog.cli.exit_status import Exit
from coordlog.cli.main import main
from coordlog.coordinators.splits import SplitCoordinatorProvider
from coordlog.errors import OptionError
from coordlog.limits import KAFKA_METADATA_S
from coordlog.log.memory import MemoryLog
from coordlog.schemas.record import Kind
from coordlog.spark_integration import Job, KafkaSource
from coordlog.spark_integration.kafka.cluster import Partition, Starting
from coordlog.spark_integration.kafka.discovery import Discovery, split_of
from coordlog.spark_integration.kafka.enumerator import KafkaEnumerator
from coordlog.spark_integration.kafka.payloads import KafkaListing, KafkaSplitsReturned
from coordlog.testing.driven_job import FakeAttempt, HandDrivenJob
from fakes.kafka_fakes import FakeCluster
from fakes.split_fakes import NO_MORE, IdleReader, ack_all, checkpoint, fail_globally, places, told
from histories.one_log import OneLog

INTERVAL_S = 10.0


def chain_on(
    cluster: FakeCluster,
    *,
    is_bounded: bool = False,
    starting: Starting = "earliest",
    topics: tuple[str, ...] = ("t",),
    pattern: str | None = None,
) -> Chain:
    discovery = Discovery(
        cluster=cluster,
        topics=topics,
        pattern=pattern,
        starting=starting,
        is_bounded=is_bounded,
    )
    provider = SplitCoordinatorProvider(
        "source",
        enumerator=partial(KafkaEnumerator, discovery=discovery, interval_s=INTERVAL_S),
        payload_types=(KafkaListing, KafkaSplitsReturned),
    )
    source = SourceSpec(
        operator_id="source",
        create_reader=IdleReader,
        coordinator=provider,
        merge_states=b"+".join,
    )
    return Chain(source=source, operators=[])


def cluster_of(*ends: int) -> FakeCluster:
    cluster = FakeCluster()
    cluster.put("t", *ends)
    return cluster


def failures(job: HandDrivenJob) -> list[str]:
    return [one.reason or "" for one in job.history(Kind.GLOBAL_FAILURE)]


def loads(*attempts: FakeAttempt) -> list[int]:
    return [len([one for one in told(one.job, one) if one != NO_MORE]) for one in attempts]


@pytest.mark.clause("L5")
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_partitions_are_dealt_out_evenly_whoever_comes_first(order: list[int]) -> None:
    job = HandDrivenJob(chain_on(cluster_of(*[5] * 7)), parallelism=3)
    attempts = {one: job.register(one) for one in order}

    assert loads(*(attempts[one] for one in range(3))) == [3, 2, 2]
    dealt = Counter(name for one in attempts.values() for name in told(job, one))
    assert dealt == Counter(f"t/{one}@0.." for one in range(7))


def test_bounded_ends_are_those_of_the_listing_and_readers_get_no_more() -> None:
    cluster = cluster_of(5, 0)
    job = HandDrivenJob(chain_on(cluster, is_bounded=True), parallelism=3)
    cluster.ranges["t", 0] = (0, 99)
    attempts = job.register_all()
    job.advance(INTERVAL_S * 10)

    assert [told(job, one) for one in attempts] == [
        ["t/0@0..5", NO_MORE],
        ["t/1@0..0", NO_MORE],
        [NO_MORE],
    ]
    assert job.runtime.next_timer_s() is None or len(job.history(Kind.FACT)) == 3


@pytest.mark.clause("F8")
def test_a_reader_that_has_no_partition_still_acks_a_checkpoint() -> None:
    job = HandDrivenJob(chain_on(cluster_of(5)), parallelism=3)
    attempts = job.register_all()

    assert told(job, attempts[2]) == []
    checkpoint(job, *attempts)


def test_a_partition_that_is_added_is_found_and_read_from_its_beginning() -> None:
    cluster = cluster_of(5)
    job = HandDrivenJob(chain_on(cluster, starting="latest"), parallelism=2)
    attempts = job.register_all()
    assert [told(job, one) for one in attempts] == [["t/0@5.."], []]

    cluster.put("t", 5, 8)
    job.advance(INTERVAL_S - 1)
    assert told(job, attempts[1]) == []
    job.advance(2)

    assert [told(job, one) for one in attempts] == [["t/0@5.."], ["t/1@0.."]]
    job.advance(INTERVAL_S * 3)
    assert loads(*attempts) == [1, 1], "what is known is not found again"


@pytest.mark.parametrize("starting", ["latest", "earliest"])
def test_what_was_added_while_no_driver_ran_is_read_from_its_beginning(starting: Starting) -> None:
    cluster = cluster_of(5)
    job = HandDrivenJob(chain_on(cluster, starting=starting))
    checkpoint(job, *job.register_all())
    job.crash()
    cluster.put("t", 9, 8)

    again = HandDrivenJob(chain_on(cluster, starting=starting), log=job.log)
    (attempt,) = again.register_all()

    assert told(again, attempt) == ["t/1@0.."], "the first one comes with the reader's state"


def test_the_first_listing_survives_the_death_of_its_driver() -> None:
    cluster = cluster_of(5)
    job = HandDrivenJob(chain_on(cluster, starting="latest"))
    job.crash()
    cluster.put("t", 5, 8)

    again = HandDrivenJob(chain_on(cluster, starting="latest"), log=job.log, restore="resume")
    (attempt,) = again.register_all()

    assert told(again, attempt) == ["t/0@5..", "t/1@0.."]


def test_a_topic_that_matches_the_pattern_later_is_read_from_its_start() -> None:
    cluster = FakeCluster()
    job = HandDrivenJob(chain_on(cluster, topics=(), pattern="t.*", starting="latest"))
    (attempt,) = job.register_all()
    cluster.put("topic", 4)
    job.advance(INTERVAL_S + 1)

    assert told(job, attempt) == ["topic/0@0.."]


@pytest.mark.clause("L4")
def test_a_lost_readers_uncheckpointed_partitions_go_to_its_next_attempt() -> None:
    cluster = cluster_of(1, 1)
    job = HandDrivenJob(chain_on(cluster), parallelism=2)
    attempts = job.register_all()
    checkpoint(job, *attempts)
    cluster.put("t", 1, 1, 1, 1)
    job.advance(INTERVAL_S + 1)
    assert told(job, attempts[0]) == ["t/0@0..", "t/2@0.."]
    attempts[0].lose()
    again = job.register(0)

    assert told(job, again) == ["t/2@0.."], "the other is in the state of checkpoint 1"
    assert loads(attempts[1]) == [2]


@pytest.mark.clause("L5")
def test_a_bounded_readers_next_attempt_is_told_again_that_it_is_all() -> None:
    job = HandDrivenJob(chain_on(cluster_of(5, 5), is_bounded=True), parallelism=2)
    attempts = job.register_all()
    attempts[1].lose()

    assert told(job, job.register(1)) == ["t/1@0..5", NO_MORE]


def test_a_failed_look_changes_nothing_and_the_next_one_finds_what_is_new() -> None:
    cluster = cluster_of(1)
    job = HandDrivenJob(chain_on(cluster))
    (attempt,) = job.register_all()
    cluster.is_silent = True
    cluster.put("t", 1, 1)
    job.advance(INTERVAL_S + 1)
    assert told(job, attempt) == ["t/0@0.."]
    cluster.is_silent = False
    job.advance(INTERVAL_S + 1)

    assert told(job, attempt) == ["t/0@0..", "t/1@0.."]
    assert failures(job) == []


@pytest.mark.may_fail("no answer for")
def test_a_first_look_that_fails_fails_the_job_by_its_cause() -> None:
    cluster = cluster_of(1)
    cluster.is_silent = True
    job = HandDrivenJob(chain_on(cluster))

    assert "it cannot be listed" in failures(job)[0]
    assert "no answer for 10.0 s" in failures(job)[0]


def after_a_look(cluster: FakeCluster, job: HandDrivenJob) -> str:
    job.register_all()
    job.advance(INTERVAL_S + 1)
    return failures(job)[0].splitlines()[0]


@pytest.mark.may_fail("SourceError: topic t: ")
def test_a_deleted_recreated_or_dropped_topic_is_named() -> None:
    gone = cluster_of(1)
    job = HandDrivenJob(chain_on(gone))
    gone.ids.clear()
    assert "topic t: it is not at fake:9092 any more" in after_a_look(gone, job)

    again = cluster_of(1)
    job = HandDrivenJob(chain_on(again))
    again.ids["t"] = "id-2"
    assert "it has id id-2, and the topic that was read had id-1" in after_a_look(again, job)

    fewer = cluster_of(1, 1)
    job = HandDrivenJob(chain_on(fewer))
    del fewer.ranges["t", 1]
    assert "partition 1 was being read, and at fake:9092 it has 1" in after_a_look(fewer, job)

    other = cluster_of(1)
    job = HandDrivenJob(chain_on(other))
    checkpoint(job, *job.register_all())
    job.crash()
    other.put("u", 1)
    renamed = HandDrivenJob(chain_on(other, topics=("u",)), log=job.log)
    assert "has splits of it, and the source does not name it" in failures(renamed)[0]


def test_a_broker_that_does_not_know_the_topic_yet_is_asked_again() -> None:
    """Metadata of a broker may lag behind the controller's; a topic that is gone stays away."""
    cluster = cluster_of(1)
    job = HandDrivenJob(chain_on(cluster))
    checkpoint(job, *job.register_all())
    job.crash()
    cluster.lagging = 6

    again = HandDrivenJob(chain_on(cluster), log=job.log)

    assert failures(again) == []
    assert sum(cluster.pauses) == KAFKA_METADATA_S


def test_a_topic_that_was_just_made_is_asked_for_again() -> None:
    """Another broker of the cluster has answered its `create`."""
    cluster = cluster_of(4)
    cluster.lagging = 3
    job = HandDrivenJob(chain_on(cluster, is_bounded=True))
    (attempt,) = job.register_all()

    assert failures(job) == []
    assert told(job, attempt) == ["t/0@0..4", NO_MORE]
    assert sum(cluster.pauses) == 2.0


@pytest.mark.may_fail("there is no such topic")
def test_a_topic_that_does_not_exist_is_refused_after_two_seconds() -> None:
    cluster = FakeCluster()
    job = HandDrivenJob(chain_on(cluster))

    assert "topic t: there is no such topic at fake:9092" in failures(job)[0]
    assert sum(cluster.pauses) == 2.0


@pytest.mark.may_fail("the source is now unbounded")
def test_a_bounded_history_is_not_gone_on_with_without_an_end() -> None:
    cluster = cluster_of(3)
    job = HandDrivenJob(chain_on(cluster, is_bounded=True))
    checkpoint(job, *job.register_all())
    job.crash()

    again = HandDrivenJob(chain_on(cluster), log=job.log)

    assert "split t/0@0..3 of its history ends at 3" in failures(again)[0]


def test_partitions_beyond_one_record_are_paged_and_keep_their_starts() -> None:
    many = 1_500
    cluster = FakeCluster()
    name = "t" * 200
    cluster.put(name, *[7] * many)
    job = HandDrivenJob(chain_on(cluster, topics=(name,), starting="latest"), parallelism=2)
    attempts = job.register_all()

    listings = [o for o in job.history(Kind.FACT) if o.payload_type == "coordlog.kafka_listing@1"]
    assert len(listings) > 1
    assert loads(*attempts) == [many // 2, many // 2]
    assert {one.partition("@")[2] for each in attempts for one in told(job, each)} == {"7.."}


@pytest.mark.may_fail("scripted")
def test_a_global_reset_to_the_start_lists_anew() -> None:
    cluster = cluster_of(2)
    job = HandDrivenJob(chain_on(cluster))
    job.register_all()
    fail_globally(job)
    (attempt,) = job.register_all()

    assert told(job, attempt) == ["t/0@0.."]


def test_a_reopened_bounded_job_reads_only_records_since_then() -> None:
    cluster = cluster_of(3, 4)
    job = HandDrivenJob(chain_on(cluster, is_bounded=True, starting="earliest"))
    (attempt,) = job.register_all()
    for name in ("t/0@0..3", "t/1@0..4"):
        attempt.finish_split("source", name)
    ack_all(attempt)
    attempt.complete()
    job.trigger()
    job.stage_ends()
    cluster.ranges.clear()
    cluster.put("t", 5, 4, 2)

    again = HandDrivenJob(chain_on(cluster, is_bounded=True), log=job.log, again=True)
    (second,) = again.register_all()

    assert again.mode == "again"
    assert told(again, second) == ["t/2@0..2", "t/0@3..5", NO_MORE]


def read_both(cluster: FakeCluster) -> HandDrivenJob:
    """A bounded job that has read the topics `t` and `u`, each of one partition, to their ends."""
    job = HandDrivenJob(chain_on(cluster, topics=("t", "u"), is_bounded=True, starting="earliest"))
    (attempt,) = job.register_all()
    for name in ("t/0@0..3", "u/0@0..2"):
        attempt.finish_split("source", name)
    ack_all(attempt)
    attempt.complete()
    job.trigger()
    job.stage_ends()
    cluster.ranges["u", 0] = 0, 4
    return job


def test_a_job_is_opened_again_without_a_topic_that_was_read_and_deleted() -> None:
    cluster = cluster_of(3)
    cluster.put("u", 2)
    job = read_both(cluster)
    del cluster.ids["t"], cluster.ranges["t", 0]

    chain = chain_on(cluster, topics=("u",), is_bounded=True)
    again = HandDrivenJob(chain, log=job.log, again=True)
    (attempt,) = again.register_all()

    assert told(again, attempt) == ["u/0@2..4", NO_MORE]


@pytest.mark.may_fail("SourceError: topic t: ")
@pytest.mark.parametrize(
    ("is_deleted", "topics", "pattern", "problem"),
    [
        (False, ("u",), None, "the source does not name it"),
        (True, ("t", "u"), None, "all that it had was read; do not name it any more in `topics`"),
        (True, (), "[tu]", "such as '(?!t$)(?:[tu])'; or bring"),
    ],
)
def test_a_topic_is_left_out_of_a_reopened_job_only_if_both_say_so(
    *, is_deleted: bool, topics: tuple[str, ...], pattern: str | None, problem: str
) -> None:
    cluster = cluster_of(3)
    cluster.put("u", 2)
    job = read_both(cluster)
    if is_deleted:
        del cluster.ids["t"], cluster.ranges["t", 0]

    chain = chain_on(cluster, topics=topics, pattern=pattern, is_bounded=True)
    again = HandDrivenJob(chain, log=job.log, again=True)

    assert problem in failures(again)[0]


def test_a_pattern_may_leave_out_a_topic_that_was_read_and_deleted() -> None:
    cluster = cluster_of(3)
    cluster.put("u", 2)
    job = read_both(cluster)
    del cluster.ids["t"], cluster.ranges["t", 0]

    chain = chain_on(cluster, topics=(), pattern="(?!t$)(?:[tu])", is_bounded=True)
    again = HandDrivenJob(chain, log=job.log, again=True)
    (attempt,) = again.register_all()

    assert told(again, attempt) == ["u/0@2..4", NO_MORE]


def test_a_log_that_has_become_shorter_than_what_was_read_is_named() -> None:
    cluster = cluster_of(3)
    discovery = Discovery(
        cluster=cluster, topics=("t",), pattern=None, starting="latest", is_bounded=True
    )
    found = discovery.listing({("t", 0): "id-1"}, is_first=False, read_up_to={("t", 0): 4})

    assert (found.where, found.problem) == (
        "partition t/0",
        "it was read up to offset 4, and ends at 3 now",
    )


@pytest.mark.clause("E7")
def test_partitions_abandoned_by_readers_go_once_to_the_least_loaded() -> None:
    cluster = cluster_of(9, 9, 9, 9)
    job = HandDrivenJob(chain_on(cluster))
    checkpoint(job, *job.register_all())
    job.crash()
    more = HandDrivenJob(chain_on(cluster), log=job.log, parallelism=2)
    attempts = more.register_all()
    assert loads(*attempts) == [0, 0], "all four are in the state of subtask 0"

    give_up(attempts[0], ("t", 2), 5)
    give_up(attempts[0], ("t", 3), 6)
    assert [told(more, one) for one in attempts] == [[], ["t/2@5..", "t/3@6.."]]

    attempts[0].lose()
    again = more.register(0)
    give_up(again, ("t", 2), 5)
    give_up(again, ("t", 3), 6)
    assert loads(again, attempts[1]) == [0, 2], "told again, dealt out once"
    ack_all(attempts[1])
    checkpoint(more, again, attempts[1])
    assert places(more) == {
        "t/0@0..": "with 0",
        "t/1@0..": "with 0",
        "t/2@0..": "finished by 0",
        "t/2@5..": "with 1",
        "t/3@0..": "finished by 0",
        "t/3@6..": "with 1",
    }
    more.advance(INTERVAL_S + 1)
    assert len(places(more)) == 6, "a partition that was split anew is known"


@pytest.mark.clause("D5")
def test_a_splits_rest_is_dealt_once_after_its_reader_is_lost() -> None:
    cluster = cluster_of(9, 9)
    job = HandDrivenJob(chain_on(cluster))
    checkpoint(job, *job.register_all())
    job.crash()
    more = HandDrivenJob(chain_on(cluster), log=job.log, parallelism=2)
    first, second = more.register_all()
    checkpoint(more, first, second)
    give_up(first, ("t", 1), 5)
    assert told(more, second) == ["t/1@5.."]
    first.lose()
    again = more.register(0)
    assert places(more)["t/1@0.."] == "with 0", "it is to give it up once more"
    give_up(again, ("t", 1), 5)

    assert places(more) == {
        "t/0@0..": "with 0",
        "t/1@0..": "finished by 0",
        "t/1@5..": "with 1",
    }
    assert told(more, again) == []
    assert told(more, second) == ["t/1@5.."]


@pytest.mark.clause("J2")
def test_a_partition_is_left_out_only_by_who_says_so() -> None:
    job = HandDrivenJob(chain_on(cluster_of(9)))
    job.register_all()
    job.crash()
    command = ("skip", "job", "--split", "t/0@0..", "--take-over")

    refused = CliRunner().invoke(main, command, obj=lambda _servers: OneLog(job.log))
    assert refused.exit_code == Exit.USAGE
    assert "this skips all its unread records" in refused.output
    assert "or skip the partition with --rest-of-partition" in refused.output

    done = CliRunner().invoke(
        main, (*command, "--rest-of-partition"), obj=lambda _servers: OneLog(job.log)
    )
    assert done.exit_code == 0, done.output
    again = HandDrivenJob(job.chain, log=job.log)
    assert places(again) == {"t/0@0..": "skipped"}


def give_up(attempt: FakeAttempt, partition: Partition, position: int) -> None:
    rest = split_of(partition, "id-1", position, -1)
    attempt.send("source", KafkaSplitsReturned(splits=[rest]))
    attempt.finish_split("source", f"{partition[0]}/{partition[1]}@0..")


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("topics", {"topics": ()}),
        ("topics", {"pattern": "t"}),
        ("topics", {"topics": ("a b",)}),
        ("topics", {"topics": ("a", "a")}),
        ("pattern", {"topics": (), "pattern": "("}),
        ("bootstrap_servers", {"bootstrap_servers": "host"}),
        ("bootstrap_servers", {"bootstrap_servers": "me:secret@host:9092"}),
        ("starting", {"starting": "sometime"}),
        ("starting", {"starting": {("t", 0): -1}}),
        ("discovery_interval_s", {"discovery_interval_s": 0}),
        ("isolation", {"isolation": "none"}),
        ("decode", {"decode": "avro"}),
        ("value_schema", {"decode": "json"}),
        ("batch_rows", {"batch_rows": 0}),
    ],
)
def test_options_out_of_range_are_named(option: str, given: dict[str, object]) -> None:
    options: dict[str, object] = {"topics": ("t",), "bootstrap_servers": "h:1", **given}

    with pytest.raises(OptionError) as caught:
        KafkaSource(**options)  # type: ignore[arg-type]

    assert str(caught.value).startswith(option)
    assert "secret" not in str(caught.value)


def test_a_batch_job_of_a_source_without_end_is_refused() -> None:
    source = KafkaSource("t", bootstrap_servers="h:1", bounded=False)

    with pytest.raises(OptionError, match="batch is True; it must be False: the source has no end"):
        Job(job_id="job", log=MemoryLog("job"), source=source, batch=True)
