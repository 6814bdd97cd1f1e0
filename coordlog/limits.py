"""Every limit of the driver and its attempts, with unit, default and why.

Whatever waits or grows does so up to one of these. Durations end in `_S` (seconds), sizes in `_BYTES`.
"""

from __future__ import annotations

from typing import Final

# --- the log ---------------------------------------------------------------------------------------------------------
LOG_TIMEOUT_S: Final = 120.0
"""How long an append of unknown outcome is sent again before the driver ends: a broker's restart takes seconds, an
unattended one a minute."""

APPEND_TIMEOUT_S: Final = 10.0
"""How long one try of an append may take before its outcome counts as unknown."""

READ_STALL_S: Final = 30.0
"""How long a read may bring nothing although the high watermark says that there is more."""

APPEND_BACKOFF_S: Final = 0.05
"""Pause before the second try of an append; doubles with each further one."""

APPEND_BACKOFF_MAX_S: Final = 2.0
"""The longest pause between two tries: a broker that is back is noticed within it."""

PAYLOAD_OPEN_S: Final = 5.0
"""How long a driver waits for a stored payload, further tries included, besides the time of its bytes: its mailbox
stands for so long. An attempt begins no further try after it, to read one or to store one."""

PAYLOAD_OPEN_BYTES_PER_S: Final = 16 * 1024 * 1024
"""The bytes for which that wait grows by a second: the largest payload has 21 s."""

PAYLOAD_TURN_S: Final = 30.0
"""How long the payloads of one turn may keep the mailbox in all; those that are left count as unreachable."""

PAYLOAD_READS_AT_ONCE: Final = 4
"""Stored payloads that a restore reads at a time: each may have `STORED_PAYLOAD_BYTES_MAX` in memory."""

PAYLOAD_CALL_S: Final = 60.0
"""One call to the payload store, after which it counts as unreachable: the largest payload at 5 MB a second."""

PAYLOAD_LISTING_S: Final = 600.0
"""One listing of a job's payloads: a million files of an object store, a thousand of which take a tenth of a second."""

LOG_CONNECT_TIMEOUT_S: Final = 10.0
"""How long a broker may take to answer a question (which topic, which settings, how far) before it counts as gone."""

LOG_LOOK_S: Final = 5.0
"""After so long without a record of its own a driver looks whether another one has taken over."""

WRITER_CLOSE_TIMEOUT_S: Final = 2.0
"""How long a writer that is thrown away may take to go; nobody waits for what it does after that."""

GROUP_RECORDS_MAX: Final = 1_000
"""Records in one append: 36,000 records/s at this size on two cores, and 25,000 at 100."""

GROUP_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes in one append: bounds what one try has in flight."""

PAYLOAD_BYTES_MAX: Final = 256 * 1024
"""A payload above this does not go into the log inline: it goes to the payload store, or is refused."""

STORED_PAYLOAD_BYTES_MAX: Final = 256 * 1024 * 1024
"""One payload in the payload store: who makes it and who reads it hold it whole in memory."""

PAYLOADS_WAITING_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of payloads that wait for the store; above this the mailbox takes no input but acknowledgements."""

PAYLOADS_RECENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of payloads that a driver keeps at hand after it has stored or read them."""

RECORD_BYTES_MAX: Final = 900_000
"""One encoded record: below Kafka's default `max.message.bytes` of 1,048,588 with room for key and headers."""

RECORD_ENVELOPE_BYTES_MAX: Final = 64 * 1024
"""Bytes of a record beside the payload, whose own limit is `RECORD_BYTES_MAX`: reasons, names, key and header."""

SNAPSHOT_EVERY_RECORDS: Final = 10_000
"""Records that count from one `SNAPSHOT` to the next: a restore folds as many, half a second's worth, at most twice
that where the driver died before a new one was released."""

SNAPSHOT_BYTES_PER_RECORD: Final = 50
"""A state of more than `SNAPSHOT_CHEAP_BYTES` is encoded more rarely, so many of its bytes for each record in between:
8 µs, where a record itself costs the mailbox some ten times that."""

SNAPSHOT_CHEAP_BYTES: Final = 500_000
"""An encoded state up to this is encoded as often as the user says: it takes 80 ms."""

SNAPSHOT_STATE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A job's encoded state before it is compressed: bounds what a damaged snapshot can make a reader take."""

SNAPSHOT_PART_BYTES: Final = 16 * 1024
"""The state of a projection above this goes to the payload store, where a snapshot that must stand in the log does not
fit a record: those of forty operators that are smaller fit with the rest."""

SNAPSHOT_NAMES_BYTES_MAX: Final = 256 * 1024 * 1024
"""The ids of splits in a snapshot, unpacked: two million of them, and a bound for what a damaged one can do."""

SNAPSHOT_CHAIN_MAX: Final = 100
"""Snapshots that are tried, from the newest back, before a fold begins at the log's start."""

CLEANED_RECORDS_MAX: Final = 50_000
"""Records at its log's end by which a driver that begins knows what former ones have left in the payload store."""

CLEANED_FILES_MAX: Final = 1_000
"""Files that it removes there; `coordlog payloads --clean` removes all."""

# --- files from outside ----------------------------------------------------------------------------------------------
CONTAINER_HEADER_BYTES_MAX: Final = 256 * 1024
"""Metadata of an exported history: ours have about one thousand bytes."""

CONTAINER_BLOCK_BYTES_MAX: Final = 32 * 1024 * 1024
"""One block of an exported history, inflated: ours end with the record that passes 16,000 bytes, and a topic may take
larger records than ours."""

CONFIG_BYTES_MAX: Final = 1024 * 1024
"""One `coordlog.toml` or file of Kafka's security settings: a thousand times what all keys take."""

# --- the mailbox -----------------------------------------------------------------------------------------------------
UNRELEASED_TURNS_MAX: Final = 10_000
"""Turns that wait for the log; above this the mailbox takes no input but acknowledgements."""

TURN_RECORDS_MAX: Final = 100_000
"""Records of what coordinators do within one turn: one that sends again at each failure would never end it."""

TURN_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of the payloads of these records: a million splits, assigned at once."""

TURN_CALLS_MAX: Final = 10_000
"""Calls and timers that coordinators ask for within one turn."""

CALLBACK_TIMEOUT_S: Final = 60.0
"""A callback of a coordinator that takes longer ends the driver, with its stack in the error (clause A5)."""

CLOSE_TIMEOUT_S: Final = 10.0
"""How long `close` of a coordinator may take on its worker before it is left behind."""

WORKER_COUNT: Final = 4
"""Threads for `call_async`, commits and `close`."""

WORK_SLOW_S: Final = 600.0
"""How often a work that has not returned is named in the logging."""

WORK_TIMEOUT_S: Final = 14_400.0
"""How long one `call_async` may take before the driver ends; listings and commits have bounds of their own below it."""

COVERS_CHARS_MAX: Final = 100_000
"""Characters of the list of the committables that one intent covers: 15,000 that do not follow each other."""

COMMIT_WAIT_S: Final = WORK_TIMEOUT_S
"""How long a job whose subtasks have all finished waits for the calls and timers of a coordinator that has committables
to commit: one call may take as long."""

# --- attempts --------------------------------------------------------------------------------------------------------
LEASE_S: Final = 30.0
"""Silence after which either side takes the other for dead: longer than long native calls."""

LOST_TOGETHER_S: Final = 2.0
"""Attempts of one machine whose connections break within so long of the first are lost to one cause, and count once."""

HEARTBEAT_S: Final = 2.0
"""How often each side says that it lives: a lease holds fifteen of them."""

CALL_TIMEOUT_S: Final = 600.0
"""How long one call of a chain (a batch in the transform, say) may take before its attempt is failed."""

ACK_TIMEOUT_S: Final = 60.0
"""From delivery of an event to its ack; then exactly that attempt fails (clause C4)."""

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
"""How long connecting, and saying who connects, may take: seconds on a loaded machine."""

STRANGERS_MAX: Final = 256
"""Connections at once that have not shown the token, TLS handshakes included: a quarter of the usual 1,024 descriptors.
One more costs the oldest one; each is ended after `CONNECT_TIMEOUT_S`."""

STRANGER_BYTES_MAX: Final = 16 * 1024
"""Bytes of a connection before its token: a request of coordlog's own has some 300."""

CONNECTION_CLOSE_S: Final = 5.0
"""How long a connection's close may take, with what was sent before; then it is cut."""

STAGE_END_TIMEOUT_S: Final = 60.0
"""How long a cancelled stage may take to end before it counts as ended; Spark takes up to 4 s."""

SLOTS_TIMEOUT_S: Final = 30.0
"""How long a cluster may take to offer enough slots: executors come one after the other."""

MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
"""One message on an attempt's connection."""

RESTORED_STATES_BYTES_MAX: Final = 48 * 1024 * 1024
"""Bytes of all states that one subtask is restored with, of several former ones: below what may be queued to it."""

HELD_EVENTS_PER_GATEWAY_MAX: Final = 10_000
"""Events that a closed gateway holds (clause G5)."""

REMEMBERED_EVENTS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of the events that a job remembers for local failovers (clause D5), each with 256 besides its payload: 100,000
small ones. Half of `SNAPSHOT_STATE_BYTES_MAX`; past it they are forgotten, and the next failover is a global one."""

# --- checkpoints -----------------------------------------------------------------------------------------------------
CHECKPOINT_TIMEOUT_S: Final = 600.0
"""A checkpoint that is not whole by then is aborted (clause F12); Flink's default too."""

CHECKPOINT_ABORTS_IN_A_ROW_MAX: Final = 3
"""After so many timed-out checkpoints in a row the missing attempts are failed."""

FINAL_CHECKPOINTS_MAX: Final = 10
"""Tries of a stream's last checkpoint before the job fails: with growing pauses three minutes, timeouts not counted."""

RETAINED_CHECKPOINTS: Final = 3
"""Completed checkpoints whose states are kept for a restore."""

KEPT_CHECKPOINTS_MAX: Final = 20
"""Checkpoints that are kept by name: each snapshot of the job's state holds them all."""

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
"""An event or split at which attempts fail so often in a row is named as poison."""

SETTLE_ATTEMPTS_MAX: Final = 5
"""Tries of one commit before it fails the job."""

SETTLE_CALL_S: Final = 3600.0
"""One try of a sink to settle an intent, after which it counts as failed: a thousand files of 5 GB, copied."""

# --- driver and clients ----------------------------------------------------------------------------------------------
CLOCK_AHEAD_S: Final = 60.0
"""A history whose last record is further ahead of this machine's clock was written, or is read, under a wrong one."""

TAKE_OVER_PROBE_S: Final = 5.0
"""How long a driver that may live has to prove itself; its silence proves nothing."""

STOP_TIMEOUT_S: Final = 60.0
"""How long a stop with a checkpoint may take before it stops without one."""

STOP_RECORD_S: Final = 2.0
"""How long a stop that takes no checkpoint waits for the log to hold that it was asked for."""

REQUEST_TIMEOUT_S: Final = 60.0
"""How long a client waits for a coordinator's answer unless it says so, and the longest that an endpoint lets it."""

REQUESTS_OPEN_MAX: Final = 1_000
"""Requests of all clients that wait for their answers; one more is turned away."""

REASON_CHARS_MAX: Final = 4_000
"""A reason in a record: a traceback's end, not a core dump."""

TOKEN_BYTES: Final = 32
"""The driver's token: 256 random bits."""

# --- files -----------------------------------------------------------------------------------------------------------
FILE_BATCH_ROWS: Final = 8_192
"""Rows that one poll of a file reader gives: a barrier waits for one batch, some milliseconds."""

FILE_SPLIT_BYTES: Final = 64 * 1024 * 1024
"""Bytes of one split of a large file: a few seconds of work, so that a slow subtask gets fewer."""

CSV_BLOCK_BYTES: Final = 1024 * 1024
"""What is parsed at once, and so the longest line of CSV, JSON or text: about 10,000 rows of 100 bytes."""

CSV_SAMPLE_BYTES: Final = 16 * 1024 * 1024
"""What is read of all files together to settle the types of CSV or JSON lines: tenths of a second."""

CSV_SAMPLE_FILES_MAX: Final = 64
"""Files that are looked into to settle the types of CSV or JSON lines: first, last, evenly between."""

BAD_FILES_TRIED_MAX: Final = 256
"""Files of a source that are tried one by one once one of them is at fault, to name all in one run: tens of seconds."""

BAD_FILES_NAMED_MAX: Final = 10
"""Of them in one message; the others are counted."""

WATCH_INTERVAL_S: Final = 5.0
"""Between two listings of a source that is watched; a new file is read after two that have found it the same."""

LISTING_TIMEOUT_S: Final = 300.0
"""How long the listings of a source may fail one after the other before the job does: an object store's bad minutes."""

LISTING_CALL_S: Final = 1800.0
"""One listing of a source, after which the job fails: ten million files of an object store take half of it."""

LISTING_BACKOFF_S: Final = 1.0
"""Pause before the second try of a listing that failed; doubles with each further one."""

LISTING_BACKOFF_MAX_S: Final = 30.0
"""The longest pause between two tries: each leaves two records in the history."""

WATCH_REPORT_S: Final = 60.0
"""After so long without a new file a watch says so: one record a minute, and an end for who waits for its worker."""

ROW_GROUP_ROWS: Final = 131_072
"""Rows of one row group of a Parquet file: enough to compress well."""

ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
"""Bytes that a Parquet writer holds before it writes a row group."""

ROLL_BYTES: Final = 1024 * 1024 * 1024
"""Bytes after which a file of the sink is closed and the next begun: a reader's task takes one."""

OPEN_FILES_MAX: Final = 32
"""Files that one writer holds open, one for each partition: past it the longest unused is closed.

Each may hold `S3_PART_BYTES` on its way to an object store.
"""

DESTINATION_FREE_BYTES_MIN: Final = 1024 * 1024 * 1024
"""Bytes that must be free at the destination for a job to begin there."""

DESTINATION_RESERVE_BYTES: Final = 256 * 1024 * 1024
"""Bytes that a writer leaves free at a local destination.

The job stops then, while Kafka, which may share the disk, still has some minutes' worth.
"""

INTERVAL_NAMES_BYTES_MAX: Final = 600_000
"""Bytes of the committables of one interval of one writer: with the rest of a snapshot below `RECORD_BYTES_MAX`."""

PARTITIONED_FILES_PER_INTENT: Final = 150
"""As `FILES_PER_INTENT`, where a name may have 1,000 bytes."""

S3_PART_BYTES: Final = 8 * 1024 * 1024
"""Bytes of one part of an upload; S3 takes 10,000 parts of at least 5 MiB."""

S3_COPY_PART_BYTES: Final = 1024 * 1024 * 1024
"""Bytes that an object store copies at one request; S3 takes at most 5 GiB."""

S3_PUBLISH_THREADS: Final = 16
"""Files that one driver publishes on an object store at a time: it waits, it does not work."""

TRANSACTION_IDLE_S: Final = 30.0
"""PostgreSQL ends a driver's transaction that is silent for so long: a driver that stands still holds up no other."""

DATABASE_LOCK_S: Final = 30.0
"""How long a sink waits for a lock in PostgreSQL, which by itself waits for ever; a batch is then tried again."""

DATABASE_CONNECT_S: Final = 30
"""Whole seconds in which PostgreSQL has to let a sink in, where neither the sink's user nor libpq has another bound."""

BATCH_COMMIT_S: Final = 600.0
"""How long a writer in a process of Spark's own waits for the outcome of its batch: a sink is tried a few times."""

BATCH_SILENCE_S: Final = 15.0
"""How long that writer asks again a driver that is silent: a dropped connection is back by then, or it has ended."""

UNNAMED_WRITES_REMEMBERED: Final = 1_000
"""Batch writes without a name of which a job's state knows that they are done: a writer asks within seconds."""

NAMED_WRITES_MAX: Final = 100_000
"""Batch writes with a `write_id` in the life of a job: each is remembered for ever, about 40 bytes of its state."""

FORMER_QUERIES_MAX: Final = 1_000
"""Queries of a job whose place others have taken: each is remembered, so that none comes back."""

FILES_PER_INTENT: Final = 1_000
"""Files that one commit intent of a file sink names: at 150 bytes each it stays below `PAYLOAD_BYTES_MAX`."""

# --- sources that queries read ---------------------------------------------------------------------------------------
SPLITS_AT_ONCE_MAX: Final = 64
"""Splits that a task is given by one answer, where they are small: an answer costs an append."""

SPLITS_AT_ONCE_WEIGHT: Final = 8 * 1024 * 1024
"""About how many bytes they hold at most; one that holds more is given alone. Read within tenths of a second."""

SPLITS_PER_PARTITION_MAX: Final = 1_000
"""Splits that one task reads: what is lost with it. A read of more has more partitions."""

STREAM_READERS_MAX: Final = 1_000
"""Streams that read one service's source and were not given up: what one has not read is not forgotten."""

CLIENT_IDLE_S: Final = 600.0
"""A client's connection that has asked nothing for so long is closed; it may connect again."""

CLIENT_RETRY_S: Final = 30.0
"""For how long a task asks again where its connection breaks, or the coordinator is made anew."""

CLIENT_RETRY_PAUSE_S: Final = 0.2
"""Between two such tries."""

DATAFRAME_BATCH_ROWS: Final = 65_536
"""Rows of a batch that a task hands to Spark: each costs a copy and a hand-over of its own."""

DATAFRAME_BATCH_BYTES: Final = 8 * 1024 * 1024
"""The same in bytes."""

# --- topics of the user's own ----------------------------------------------------------------------------------------
KAFKA_DISCOVERY_S: Final = 60.0
"""How often an unbounded source looks for new partitions; each look is two records in the history."""

KAFKA_ENDS_S: Final = 1.0
"""How often a service for queries looks what has come into topics; a look that finds nothing is no record."""

KAFKA_SPLIT_OFFSETS: Final = 100_000
"""Offsets of one split of a range that queries read: what a task reads between two questions."""

KAFKA_METADATA_S: Final = 10.0
"""How old a reader's view of its topics may be: so long one that was made again may go unnoticed."""

KAFKA_GAP_S: Final = 5.0
"""How long a bounded split may bring nothing before its end until the broker is asked whether anything is left."""

KAFKA_TIMEOUT_S: Final = 120.0
"""How long a source's cluster may be silent before its reader fails: as long as for the log itself."""
