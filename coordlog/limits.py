"""Every limit of the driver and its attempts, with unit, default and why.

Every wait and every growth is bounded by one of these. Durations end in `_S` (seconds), sizes in `_BYTES`.
"""

from __future__ import annotations

from typing import Final

# --- the log ---------------------------------------------------------------------------------------------------------
LOG_TIMEOUT_S: Final = 120.0
"""How long an append of unknown outcome is sent again before the driver ends: a broker's restart takes seconds, an
unattended one a minute."""

APPEND_TIMEOUT_S: Final = 10.0
"""How long one try of an append may take before its outcome counts as unknown."""

SUSPENDED_S: Final = 5.0
"""Delay beyond its own limit from which a try of an append counts as suspended with its process; a client's own delays
are shorter."""

READ_STALL_S: Final = 30.0
"""How long a read may return no record although the high watermark is above its position."""

APPEND_BACKOFF_S: Final = 0.05
"""Pause before the second try of an append; doubles with each further one."""

APPEND_BACKOFF_MAX_S: Final = 2.0
"""The longest pause between two tries: a broker that has returned is noticed within it."""

PAYLOAD_OPEN_S: Final = 5.0
"""How long a driver waits for a stored payload, further tries included, besides the time of its bytes; its mailbox is
blocked meanwhile. An attempt begins no further try after it, to read a payload or to store one."""

PAYLOAD_OPEN_BYTES_PER_S: Final = 16 * 1024 * 1024
"""The bytes for which `PAYLOAD_OPEN_S` grows by a second: the largest payload has 21 s."""

PAYLOAD_TURN_S: Final = 30.0
"""How long the payloads of one turn may block the mailbox in all; the remaining ones count as unreachable."""

PAYLOAD_READS_AT_ONCE: Final = 4
"""Stored payloads that a restore reads at a time: each may have `STORED_PAYLOAD_BYTES_MAX` in memory."""

PAYLOAD_CALL_S: Final = 60.0
"""One call to the payload store, after which it counts as unreachable: the largest payload at 5 MB a second."""

PAYLOAD_LISTING_S: Final = 600.0
"""One listing of a job's payloads: a million files of an object store, a thousand of which take a tenth of a second."""

LOG_CONNECT_TIMEOUT_S: Final = 10.0
"""How long a broker may take to return topics, settings or offsets before it counts as gone."""

LOG_LOOK_S: Final = 5.0
"""After so long without a record of its own a driver checks whether another driver has taken over."""

WRITER_CLOSE_TIMEOUT_S: Final = 2.0
"""How long a discarded writer may take to close; after that it is abandoned."""

GROUP_RECORDS_MAX: Final = 1_000
"""Records in one append: 36,000 records/s at this size on two cores, and 25,000 at 100."""

GROUP_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes in one append: bounds the bytes that one try has in flight."""

PAYLOAD_BYTES_MAX: Final = 256 * 1024
"""Bytes of a payload in the log; a larger one goes to the payload store, or is refused."""

STORED_PAYLOAD_BYTES_MAX: Final = 256 * 1024 * 1024
"""One payload in the payload store: its writer and its readers hold it whole in memory."""

PAYLOADS_WAITING_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of payloads that wait for the store; above this the mailbox takes no input but acknowledgements."""

PAYLOADS_RECENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of payloads that a driver caches after it has stored or read them."""

RECORD_BYTES_MAX: Final = 900_000
"""One encoded record: below Kafka's default `max.message.bytes` of 1,048,588 with room for key and headers."""

RECORD_ENVELOPE_BYTES_MAX: Final = 64 * 1024
"""Bytes of a record besides the payload, whose own limit is `RECORD_BYTES_MAX`: reasons, names, key and header."""

SNAPSHOT_EVERY_RECORDS: Final = 10_000
"""Counting records from one `SNAPSHOT` to the next: a restore folds as many, half a second's worth, and at most twice
as many if the driver died before a new snapshot was released."""

SNAPSHOT_BYTES_PER_RECORD: Final = 50
"""A state of more than `SNAPSHOT_CHEAP_BYTES` is encoded more rarely, so many of its bytes for each record in between.
That costs 8 µs a record, and the record itself costs the mailbox some ten times as much."""

SNAPSHOT_CHEAP_BYTES: Final = 500_000
"""An encoded state up to this is encoded as often as the user sets: it takes 80 ms."""

SNAPSHOT_STATE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A job's encoded state before it is compressed: bounds the memory that a damaged snapshot can cost a reader."""

SNAPSHOT_PART_BYTES: Final = 16 * 1024
"""A larger state of a projection goes to the payload store, if a snapshot that must be in the log does not fit into a
record. Smaller states of forty operators fit with the rest."""

SNAPSHOT_NAMES_BYTES_MAX: Final = 256 * 1024 * 1024
"""The ids of splits in a snapshot, unpacked: two million ids, and a bound for a damaged snapshot."""

JOBS_RECORDS_READ: Final = 10_000
"""Number of last records of a log that `coordlog jobs` reads at least, in half a second; at most twice as many if
the log has snapshots. A broker may have hundreds of jobs."""

SNAPSHOT_CHAIN_MAX: Final = 100
"""Snapshots that are tried, from the newest back, before a fold begins at the log's start."""

CLEANED_RECORDS_MAX: Final = 50_000
"""Records at the log's end in which a driver that begins looks for payloads that former drivers have left behind."""

CLEANED_FILES_MAX: Final = 1_000
"""Payload files that a driver that begins removes; `coordlog payloads --clean` removes all."""

# --- files from outside ----------------------------------------------------------------------------------------------
CONTAINER_HEADER_BYTES_MAX: Final = 256 * 1024
"""Metadata of an exported history: ours have about one thousand bytes."""

CONTAINER_BLOCK_BYTES_MAX: Final = 32 * 1024 * 1024
"""One block of an exported history, inflated: ours end with the record that passes 16,000 bytes, and a topic may take
larger records than ours."""

CONFIG_BYTES_MAX: Final = 1024 * 1024
"""One `coordlog.toml` or file of Kafka's security settings: a thousand times the size of all keys."""

# --- the mailbox -----------------------------------------------------------------------------------------------------
APPEND_LINGER_S: Final = 0.005
"""Seconds for which turns without effects wait for others, to be appended with them. About one append with fsync."""

COLLECTOR_YOUNG: Final = 50_000
"""Young objects after which Python's cycle collector visits them, at least, while a driver runs: those of some 2,000
events that wait for the log. Python's own 700 made its visits a third of a driver's CPU time."""

COLLECTOR_MIDDLE: Final = 20
"""Visits of the young objects after which the collector visits those that were left, at least, while a driver runs."""

UNRELEASED_TURNS_MAX: Final = 10_000
"""Turns that wait for the log; above this the mailbox takes no input but acknowledgements."""

TURN_RECORDS_MAX: Final = 100_000
"""Records of coordinators' effects in one turn: a coordinator that sends again at each failure would never end it."""

TURN_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of the payloads of these records: a million splits, assigned at once."""

TURN_CALLS_MAX: Final = 10_000
"""Calls and timers that coordinators begin within one turn."""

CALLBACK_TIMEOUT_S: Final = 60.0
"""A callback of a coordinator that takes longer ends the driver, with its stack in the error (clause A5)."""

CLOSE_TIMEOUT_S: Final = 10.0
"""How long `close` of a coordinator may take on its worker before it is abandoned."""

DRIVER_CLOSE_TIMEOUT_S: Final = 180.0
"""How long the whole close of a driver may take before its caller continues. Its parts have lower bounds of their own,
but the removal of staged files that are left takes as long as their store does."""

WORKER_COUNT: Final = 4
"""Threads for commits and removals of a driver, and threads for the calls of each coordinator object."""

WORK_SLOW_S: Final = 600.0
"""How often the logging names a call that has not returned."""

WORK_TIMEOUT_S: Final = 14_400.0
"""How long one `call_async` may take before the driver ends; listings and commits have bounds of their own below it."""

COVERS_CHARS_MAX: Final = 100_000
"""Characters of the list of committables that one intent covers: 15,000 numbers that are not consecutive."""

COMMIT_WAIT_S: Final = WORK_TIMEOUT_S
"""How long a job whose subtasks have all finished waits for calls and timers of a coordinator that has committables
to commit: one call may take as long."""

# --- attempts --------------------------------------------------------------------------------------------------------
LEASE_S: Final = 30.0
"""Silence after which either side counts the other as dead: longer than long native calls."""

LOST_TOGETHER_S: Final = 2.0
"""Attempts that fail within so many seconds of a first one, and had begun before it, count as one failure."""

HEARTBEAT_S: Final = 2.0
"""Interval of each side's heartbeats: a lease holds fifteen of them."""

CALL_TIMEOUT_S: Final = 600.0
"""How long one call of a chain (a batch in the transform, say) may take before its attempt is failed."""

ACK_TIMEOUT_S: Final = 60.0
"""From delivery of an event to its ack; after that exactly this attempt fails (clause C4)."""

REGISTRATION_TIMEOUT_S: Final = 120.0
"""How long a subtask may be without a live attempt: a loaded machine takes 40 s for a new executor."""

UNRELEASED_EVENTS_PER_ATTEMPT_MAX: Final = 1_000
"""Messages of one attempt that wait for the log; past it its connection is not read (clause D2)."""

UNRELEASED_BYTES_PER_ATTEMPT_MAX: Final = 16 * 1024 * 1024
"""Bytes of one attempt's messages that wait for the log; past it its connection is not read."""

UNRELEASED_BYTES_MAX: Final = 512 * 1024 * 1024
"""Bytes of all attempts' messages that wait for the log; past it no connection with a message that waits is read."""

OUTGOING_MESSAGES_PER_ATTEMPT_MAX: Final = 10_000
"""Messages queued to one attempt; a slower one fails."""

OUTGOING_BYTES_PER_ATTEMPT_MAX: Final = 64 * 1024 * 1024
"""Bytes queued to one attempt; a slower one fails."""

ATTEMPT_QUEUE_MESSAGES_MAX: Final = 1_000
"""Messages that wait on an attempt's own side, each way; past it the sender of that way waits."""

ATTEMPT_QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes that wait on an attempt's own side, each way."""

ATTEMPT_SEND_TIMEOUT_S: Final = 180.0
"""How long an attempt waits to send: longer than its driver waits for the log."""

CONNECT_TIMEOUT_S: Final = 20.0
"""How long connection and identification may take: seconds on a loaded machine."""

STRANGERS_MAX: Final = 256
"""Connections at once that have not shown the token, TLS handshakes included, beside one for each subtask of the job,
because all of these may come at once: a quarter of the usual 1,024 descriptors. A further connection ends the oldest;
each is ended after `CONNECT_TIMEOUT_S`."""

STRANGER_BYTES_MAX: Final = 16 * 1024
"""Bytes of a connection before its token: a request of coordlog's own has some 300."""

CONNECTION_CLOSE_S: Final = 5.0
"""How long a connection's close may take, with the bytes that are still to send; then the connection is cut."""

STAGE_END_TIMEOUT_S: Final = 60.0
"""How long a cancelled stage may take to end before it counts as ended; Spark takes up to 4 s."""

SLOTS_TIMEOUT_S: Final = 30.0
"""How long a cluster may take to offer enough slots: executors start one after the other."""

WORKER_PROBE_TIMEOUT_S: Final = 120.0
"""How long a session's first task may take: it loads the modules of all tasks, and executors may have to start."""

PARALLELISM_MAX: Final = 10_000
"""Subtasks of a job. A record with another number is refused before anything is counted out for each."""

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""One message on an attempt's connection."""

RESTORED_STATES_BYTES_MAX: Final = 48 * 1024 * 1024
"""Bytes of all states of former subtasks that one subtask is restored with: below `OUTGOING_BYTES_PER_ATTEMPT_MAX`."""

HELD_EVENTS_PER_GATEWAY_MAX: Final = 10_000
"""Events that a closed gateway holds (clause G5)."""

REMEMBERED_EVENTS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of the events that a job remembers for local failovers (clause D5), each with 256 besides its payload: 100,000
small ones. Half of `SNAPSHOT_STATE_BYTES_MAX`; past it they are forgotten, and the next failover is a global one."""

# --- checkpoints -----------------------------------------------------------------------------------------------------
CHECKPOINT_TIMEOUT_S: Final = 600.0
"""A checkpoint that is not complete by then is aborted (clause F12); Flink's default too."""

CHECKPOINT_ABORTS_IN_A_ROW_MAX: Final = 3
"""After so many timed-out checkpoints in a row the attempts that did not answer are failed."""

FINAL_CHECKPOINTS_MAX: Final = 10
"""Tries of a stream's last checkpoint before the job fails: with growing pauses three minutes, timeouts not counted."""

RETAINED_CHECKPOINTS: Final = 3
"""Completed checkpoints whose states are kept for a restore."""

SAVEPOINTS_MAX: Final = 20
"""Savepoints of a job: each snapshot of its state holds all of them."""

# --- failures --------------------------------------------------------------------------------------------------------
RESTARTS_MAX: Final = 10
"""Local and global failovers together within `RESTART_WINDOW_S`; the next one fails the job."""

RESTART_WINDOW_S: Final = 600.0
"""The time over which failovers are counted, by the records' own timestamps."""

RESTART_BACKOFF_S: Final = 0.5
"""Wait before a global failover's new stage; doubles with each failure in the window, up to a minute."""

RESTART_BACKOFF_MAX_S: Final = 60.0
"""The longest backoff."""

POISON_FAILURES: Final = 3
"""Failures in a row at one event or split after which it is named as poison."""

SETTLE_ATTEMPTS_MAX: Final = 5
"""Tries of one commit before it fails the job."""

SETTLE_CALL_S: Final = 3600.0
"""One try of a sink to settle an intent, after which it counts as failed: a thousand files of 5 GB, copied."""

TABLE_COMMIT_TRIES: Final = 30
"""Commits of one intent to a table, each but the last overtaken by another writer's: some two minutes."""

TABLE_COMMIT_WAIT_S: Final = 10.0
"""Longest pause between two of them; the first are shorter."""

TABLE_MARKS_MISSING: Final = 16
"""Marks of parts that a table lacks in a row, after which a start looks for no further one."""

TABLE_FOOTER_THREADS: Final = 8
"""Threads that read the footers of new data files, each a request to an object store."""

# --- driver and clients ----------------------------------------------------------------------------------------------
CLOCK_AHEAD_S: Final = 60.0
"""If a history's last record is further ahead of this machine's clock, the writer's clock or this one is wrong."""

TAKE_OVER_PROBE_S: Final = 5.0
"""How long a driver that may live has to prove itself; its silence proves nothing."""

STOP_TIMEOUT_S: Final = 60.0
"""How long a stop with a checkpoint may take before the job stops without one."""

HISTORY_CHECK_S: Final = 600.0
"""How often a driver looks for records that are older than the history that its job keeps, at most."""

HISTORY_CHECKS: Final = 20
"""Such checks within the kept history, if that is short: the log is at most a twentieth longer."""

HISTORY_MIN_S: Final = 1.0
"""Shortest history that a job keeps: the removal of records is a request to the broker, and an archive is a file."""

STOP_RECORD_S: Final = 2.0
"""How long a stop that takes no checkpoint waits until its record is in the log."""

REQUEST_TIMEOUT_S: Final = 60.0
"""How long a client waits for a coordinator's answer by default, and the longest wait that an endpoint allows."""

REQUESTS_OPEN_MAX: Final = 1_000
"""Requests of all clients that wait for their answers; a further one is refused."""

REASON_CHARS_MAX: Final = 4_000
"""Characters of a reason in a record: a traceback's end, not a core dump."""

TOKEN_BYTES: Final = 32
"""The driver's token: 256 random bits."""

# --- files -----------------------------------------------------------------------------------------------------------
FILE_BATCH_ROWS: Final = 8_192
"""Rows that one poll of a file reader returns: a barrier waits for one batch, some milliseconds."""

FILE_SPLIT_BYTES: Final = 64 * 1024 * 1024
"""Bytes of one split of a large file: a few seconds of work, so that a slow subtask gets fewer."""

CSV_BLOCK_BYTES: Final = 1024 * 1024
"""Bytes that are parsed at once, and so the longest line of CSV, JSON or text: about 10,000 rows of 100 bytes."""

CSV_SAMPLE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of all files together that are read to infer the types of CSV or JSON lines: tenths of a second."""

CSV_SAMPLE_FILES_MAX: Final = 64
"""Files that are sampled to infer the types of CSV or JSON lines: first, last, evenly between."""

BAD_ROW_TEXT_BYTES: Final = 64 * 1024
"""Bytes of a bad row's text that its reject has: a row may be longer than memory."""

SIFTED_ROWS: Final = 256
"""Rows of a block with bad rows that one poll judges: a tenth of a second if all of them are bad."""

ROW_FAILURES_MAX: Final = 1_000
"""Rows one after the other at which a transform may raise, if bad rows are left out: a fault of them all is its own."""

SPLIT_REJECTS_GROUP_ROWS: Final = 1_000
"""Rows of a row group of a split's rejects, for queries: with texts of 64 KiB it is 64 MiB of a task's memory."""

BAD_FILES_TRIED_MAX: Final = 256
"""Files of a source that are tried one by one after a bad file, to name all bad files in one run: tens of seconds."""

BAD_FILES_NAMED_MAX: Final = 10
"""Bad files named in one message; the others are counted."""

WATCH_INTERVAL_S: Final = 5.0
"""Time between two listings of a watched source; a new file is read after two listings that show it unchanged."""

LISTING_TIMEOUT_S: Final = 300.0
"""How long listings of a source may fail one after the other before the job fails: an object store's bad minutes."""

LISTING_CALL_S: Final = 1800.0
"""One listing of a source, after which the job fails: ten million files of an object store take half of it."""

WEB_SILENCE_S: Final = 300.0
"""Time without a byte of a web server's answer, while bytes are awaited; a whole answer may take hours."""

LISTING_BACKOFF_S: Final = 1.0
"""Pause before the second try of a listing that failed; doubles with each further one."""

LISTING_BACKOFF_MAX_S: Final = 30.0
"""The longest pause between two tries: each leaves two records in the history."""

WATCH_UNSETTLED_MAX: Final = 50_000
"""New files that one listing of a watched source takes, 20 MB in memory; the next listings take the others."""

RELEASE_FILES_MAX: Final = 500
"""Files that one intent archives or deletes: eight at a time, each in a few requests of an object store."""

RELEASE_INTENTS_MAX: Final = 20
"""Such intents for one checkpoint; the next ones take the other files."""

RELEASE_CALL_S: Final = 300.0
"""Time for the files of one such intent, after which the others are tried again at a later checkpoint."""

RELEASE_TRIES_MAX: Final = 10
"""Tries to archive or delete a file by one driver: the pauses double, to some 500 checkpoints, an hour and more."""

NOTIFIED_FILES_MAX: Final = 1_000
"""Messages that a watch by notifications takes before it records their objects, of which each costs one request."""

NOTIFIED_LISTING_S: Final = 900.0
"""Seconds between two listings of a watch by notifications: after so long a lost notification does no harm."""

WATCH_REPORT_S: Final = 60.0
"""After so long without a new file a watch returns: one record a minute, and its worker is free again."""

ROW_GROUP_ROWS: Final = 131_072
"""Rows of one row group of a Parquet file: enough to compress well."""

ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
"""Bytes that a Parquet writer holds before it writes a row group."""

ROLL_BYTES: Final = 1024 * 1024 * 1024
"""Bytes after which a file of the sink is closed and the next begun: a reader's task takes one file."""

OPEN_FILES_MAX: Final = 32
"""Files that one writer holds open, one for each partition: above it the longest unused file is closed.

Each may hold `S3_PART_BYTES` that are in flight to an object store.
"""

DESTINATION_FREE_BYTES_MIN: Final = 1024 * 1024 * 1024
"""Bytes that must be free at the destination before a job begins there."""

DESTINATION_RESERVE_BYTES: Final = 256 * 1024 * 1024
"""Bytes that a writer leaves free at a local destination.

The job stops then, while Kafka, which may share the disk, still has some minutes' worth.
"""

INTERVAL_NAMES_BYTES_MAX: Final = 600_000
"""Bytes of the committables of one interval of one writer: with the rest of a snapshot below `RECORD_BYTES_MAX`."""

PARTITIONED_FILES_PER_INTENT: Final = 150
"""As `FILES_PER_INTENT`, if files are partitioned: a name may have 1,000 bytes then."""

S3_PART_BYTES: Final = 8 * 1024 * 1024
"""Bytes of one part of an upload; S3 takes 10,000 parts of at least 5 MiB."""

S3_COPY_PART_BYTES: Final = 1024 * 1024 * 1024
"""Bytes that an object store copies at one request; S3 takes at most 5 GiB."""

S3_PUBLISH_THREADS: Final = 16
"""Files that one driver publishes on an object store at a time: its threads wait, they do not compute."""

TRANSACTION_IDLE_S: Final = 30.0
"""PostgreSQL ends a driver's transaction that is silent for so long: a driver that hangs blocks no other."""

DATABASE_LOCK_S: Final = 30.0
"""How long a sink waits for a lock in PostgreSQL, which has no such bound by default; a batch is then tried again."""

DATABASE_CONNECT_S: Final = 30
"""Whole seconds for a connection to PostgreSQL, if neither the sink's user nor libpq sets another bound."""

DATABASE_NETWORK_S: Final = 60.0
"""How long the network to PostgreSQL may be silent before the connection counts as lost: a restarted router takes half
of it."""

DATABASE_STATEMENT_S: Final = 600.0
"""Longest time of a statement of PostgreSQL, unless a sink has its own: ten million rows, moved into their table."""

DATABASE_GRACE_S: Final = 10.0
"""How much later than PostgreSQL this process ends a statement: a server at work ends it first, and undoes it."""

BATCH_COMMIT_S: Final = 600.0
"""How long a writer in a process of Spark's own waits for the outcome of its batch: a sink is tried a few times."""

BATCH_SILENCE_S: Final = 15.0
"""How long that writer queries a silent driver again: by then a dropped connection is back, or the driver has ended."""

UNNAMED_WRITES_REMEMBERED: Final = 1_000
"""Finished batch writes without a name that a job's state holds: a writer queries within seconds."""

NAMED_WRITES_MAX: Final = 100_000
"""Batch writes with a `write_id` in the life of a job: each stays in the state, with about 40 bytes."""

BATCH_RANGES_REMEMBERED: Final = 100
"""Committed batches of a query of which a job's state has the fingerprint, the newest ones; each has at most 33 bytes.
Spark's checkpoints have as many batches; one that is older is refused."""

FORMER_QUERIES_MAX: Final = 1_000
"""Queries of a job that others have replaced: each is kept in the state, so that none can return."""

SCHEMA_CHANGE_TRIES_MAX: Final = 10
"""Tries to apply a change of schema, after which the job fails: a table that is locked is free again by then."""

SCHEMA_CHANGE_RETRY_S: Final = 5.0
"""Pause between two tries to apply a change of schema."""

VERSION_BYTES_MAX: Final = PAYLOAD_BYTES_MAX - 1024
"""Bytes of a version of rules, a schema or statistics: with its number it stays below `PAYLOAD_BYTES_MAX`."""

FILES_PER_INTENT: Final = 1_000
"""Files that one commit intent of a file sink names: at 150 bytes each it stays below `PAYLOAD_BYTES_MAX`."""

# --- sources that queries read ---------------------------------------------------------------------------------------
SPLITS_AT_ONCE_MAX: Final = 64
"""Splits that one answer assigns to a task, if they are small: an answer costs an append. In batch also the splits that
share a committable."""

SPLITS_AT_ONCE_WEIGHT: Final = 8 * 1024 * 1024
"""Bytes, about, that the splits of one answer hold at most; a larger split is assigned alone. Read within tenths of
a second."""

SPLITS_PER_PARTITION_MAX: Final = 1_000
"""Splits that one task reads, and loses if it fails. A read of more splits has more partitions."""

STREAM_READERS_MAX: Final = 1_000
"""Streams that read one service's source and were not abandoned: splits that one has not read are kept."""

CLIENT_IDLE_S: Final = 600.0
"""A client's connection without a request for so long is closed; the client may connect again."""

CLIENT_RETRY_S: Final = 30.0
"""How long a task repeats a request if its connection breaks, or the coordinator is created again."""

CLIENT_RETRY_PAUSE_S: Final = 0.2
"""Pause between two such tries."""

DATAFRAME_BATCH_ROWS: Final = 65_536
"""Rows of a batch that a task returns to Spark: each batch costs a copy and a call of its own."""

DATAFRAME_BATCH_BYTES: Final = 8 * 1024 * 1024
"""Bytes of such a batch."""

# --- topics of the user's own ----------------------------------------------------------------------------------------
KAFKA_DISCOVERY_S: Final = 60.0
"""How often an unbounded source lists partitions; each listing is two records in the history."""

KAFKA_ENDS_S: Final = 1.0
"""How often a service for queries reads the end offsets of topics; a read without new rows is not recorded."""

KAFKA_SPLIT_OFFSETS: Final = 100_000
"""Offsets of one split of a range that queries read: a task reads as many between two requests."""

KAFKA_METADATA_S: Final = 10.0
"""How old a reader's view of its topics may be: a topic that was created again may go unnoticed for so long."""

KAFKA_GAP_S: Final = 5.0
"""How long a bounded split may return no rows before its end until the reader queries the broker for remaining rows."""

KAFKA_QUIET_S: Final = 30.0
"""How long a partition may return nothing until its reader queries its leader, and then how often."""

KAFKA_TIMEOUT_S: Final = 120.0
"""How long a source's cluster, or a partition's leader, may be silent before a reader fails: as long as for the log."""

# --- verdicts --------------------------------------------------------------------------------------------------------
VERDICT_SLOW_INTERVALS: Final = 3.0
"""Checkpoint intervals without a completed checkpoint from which a job is slow."""

VERDICT_STUCK_INTERVALS: Final = 10.0
"""Checkpoint intervals without a completed checkpoint from which a job is stuck."""

VERDICT_SLOW_S: Final = 10.0
"""Seconds without a completed checkpoint before a job is slow, however short its interval is: a long garbage collection
or a slow append passes in them."""

VERDICT_STUCK_S: Final = 60.0
"""Seconds without a completed checkpoint before a job is stuck, however short its interval is: as `ACK_TIMEOUT_S`."""

VERDICT_SUBTASK_SLOW_S: Final = 30.0
"""How long a subtask may have no attempt before the job is slow: a new executor takes as long."""

VERDICT_SUBTASK_STUCK_S: Final = 300.0
"""How long a subtask may have no attempt before the job is stuck: longer than `REGISTRATION_TIMEOUT_S`, twice."""

VERDICT_APPEND_SLOW_S: Final = APPEND_TIMEOUT_S
"""Age of an unacknowledged append from which a job is slow: by then it is sent again."""

VERDICT_APPEND_STUCK_S: Final = 60.0
"""Age of an unacknowledged append from which a job is stuck: half of `LOG_TIMEOUT_S`, at which its driver ends."""

VERDICT_COMMIT_SLOW_S: Final = 60.0
"""Age of an intent without an outcome from which a job is slow."""

VERDICT_COMMIT_STUCK_S: Final = WORK_SLOW_S
"""Age of an intent without an outcome from which a job is stuck."""

VERDICT_SILENCE_SLOW_S: Final = WORK_SLOW_S
"""Time without any record from which a job without a checkpoint interval is slow: a batch may read one split for so
long, so it is never stuck by this alone."""

VERDICT_FAILURES: Final = 3
"""Failures without a completed checkpoint between them from which a job is slow: it may fail at one place again and
again."""

# --- telemetry -------------------------------------------------------------------------------------------------------
TELEMETRY_TURNS_MAX: Final = 10_000
"""Released turns that wait for the thread that reports them: seconds of a busy job, and about 20 MB."""

TELEMETRY_CLOSE_S: Final = 5.0
"""How long the end of a driver waits for metrics, spans and events that are not sent."""

LINEAGE_EVENTS_MAX: Final = 1_000
"""Events of lineage that wait for a catalog that does not answer; there is one for each checkpoint."""

TRACES_REMEMBERED: Final = 1_000
"""Traces whose roots were reported and to which further spans may belong: commits follow a checkpoint in seconds."""

METRICS_REQUEST_S: Final = 5.0
"""Longest time of a request to `/metrics` or `/healthz`, from its connection to the end of the response."""

METRICS_CONNECTIONS_MAX: Final = 16
"""Connections to `/metrics` and `/healthz` at the same time; further ones are closed."""
