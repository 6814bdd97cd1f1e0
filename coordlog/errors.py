"""Errors of this package.

One tree, with a leaf for each decision that a caller takes::

    CoordlogError
    ├── UsageError                 your use of the interface
    │   ├── OptionError              an option out of range, or two that are incompatible
    │   ├── PayloadTypeError         a payload type without a name, doubled, or not registered
    │   ├── WrongThreadError         a call outside the mailbox, or outside a task's main thread
    │   ├── ClosedError              use of a coordinator, its context or a job that has ended
    │   ├── GatewayFullError         a closed gateway that holds its limit of events
    │   ├── NoSinkError              an intent of an operator without a sink
    │   ├── TransformMisfitError     a transform that returns something else than rows
    │   ├── OperatorMisfitError      an operator that gives something else than rows, or rows that nothing takes
    │   ├── RowFailuresError         a transform that raises at row after row
    │   ├── CommandError             a command that this job cannot take now
    │   │   ├── SavepointError         a savepoint that cannot be taken, or released
    │   │   └── SkipError              a split or an event that cannot be skipped
    │   ├── TooLargeError            a payload above its limit
    │   ├── TurnLimitError           a turn with more records, bytes or calls than its limit
    │   └── UnresolvedError          `result()` of a future that is not decided yet
    ├── LogError                   the log
    │   ├── LogUnavailableError      no answer within the bound
    │   ├── AccessError              the broker refuses the connection or the operation, or is not trusted
    │   ├── TopicError               a topic that is missing, or is not fit for a history
    │   ├── FencedError              another driver's epoch is in force
    │   ├── OffsetGapError           the log has lost records
    │   ├── OutOfRangeError          reading below its start
    │   │   └── PrunedMeanwhileError   the log was pruned during the reading
    │   ├── AppendRefusedError       the broker will never take these records
    │   ├── PayloadLostError         a payload that is stored outside the log is missing or damaged
    │   └── PayloadStoreError        the payload store is full, or refuses this user
    │       └── PayloadStoreUnreachableError   the payload store does not answer
    ├── RecordError                data in the log: offset and problem
    ├── RestoreError               the history is incompatible with this job, or cannot be restored exactly
    │   ├── DriverAliveError         a live driver holds the job
    │   └── DriverUnknownError       whether a driver holds the job cannot be known
    ├── AttemptError               one execution attempt
    │   ├── AttemptNotRunningError   an event's attempt is gone
    │   └── FencedAttemptError       an attempt that a newer attempt, or its driver, has ended
    ├── CheckpointFailedError      a checkpoint that a caller triggered has not completed
    ├── RequestError               a request to a coordinator has no answer
    │   ├── NoSuchOperatorError      no operator of that name has a coordinator
    │   ├── NotRequestHandlerError   the operator's coordinator answers no requests
    │   ├── RequestRefusedError      the coordinator refuses the request
    │   ├── RequestFailedError       the handling of the request has failed the job
    │   ├── CoordinatorRestartingError  the coordinator is about to be created again: repeat the request
    │   ├── RequestUnansweredError   the request's job, driver or time is over
    │   └── NoDriverError            no driver of the job can be reached
    ├── SourceError                an input that cannot be read
    │   ├── InputGoneError           records that are to be read next are gone for good: trying again cannot help
    │   └── SourceUnavailableError   the input, or the network to it, is unavailable now
    ├── SinkError                  a destination that cannot be written, or belongs to another job
    │   ├── DestinationMisfitError   rows that are incompatible with its schema: trying again cannot help
    │   ├── FilesGoneError           files of an intent are neither staged nor published: they are made again, or lost
    │   ├── JobMovedError            the job was adopted, and continues there with another log
    │   └── OutOfSpaceError          no space is left at the destination
    ├── JobFailedError             the job has ended as failed, with the chain of reasons
    └── EnvironmentSetupError      Java, jars, a broker or slots are missing on this machine
        └── SessionLostError         the job's Spark session has ended: trying again cannot help

Values are attributes, and `__str__` builds the sentence: an error crosses a process as a pickle and stays readable.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AccessError",
    "AppendRefusedError",
    "AttemptError",
    "AttemptNotRunningError",
    "CheckpointFailedError",
    "ClosedError",
    "CommandError",
    "CoordinatorRestartingError",
    "CoordlogError",
    "DestinationMisfitError",
    "DriverAliveError",
    "DriverUnknownError",
    "EnvironmentSetupError",
    "FencedAttemptError",
    "FencedError",
    "FilesGoneError",
    "GatewayFullError",
    "InputGoneError",
    "JobFailedError",
    "JobMovedError",
    "LogError",
    "LogUnavailableError",
    "NoDriverError",
    "NoSinkError",
    "NoSuchOperatorError",
    "NotRequestHandlerError",
    "OffsetGapError",
    "OperatorMisfitError",
    "OptionError",
    "OutOfRangeError",
    "OutOfSpaceError",
    "PayloadLostError",
    "PayloadStoreError",
    "PayloadStoreUnreachableError",
    "PayloadTypeError",
    "PrunedMeanwhileError",
    "RecordError",
    "RequestError",
    "RequestFailedError",
    "RequestRefusedError",
    "RequestUnansweredError",
    "RestoreError",
    "RowFailuresError",
    "SavepointError",
    "SessionLostError",
    "SinkError",
    "SkipError",
    "SourceError",
    "SourceUnavailableError",
    "TooLargeError",
    "TopicError",
    "TransformMisfitError",
    "TurnLimitError",
    "UnresolvedError",
    "UsageError",
    "WrongThreadError",
]


class CoordlogError(Exception):
    """Base of all errors that this package raises.

    Attributes:
        retriable: Whether the same operation may succeed later.
    """

    retriable: ClassVar[bool] = False


class UsageError(CoordlogError):
    """The interface was used in a way that it does not allow; the message names it."""


class CommandError(UsageError):
    """A command that a job cannot take in its present state; nothing was appended."""

    def __init__(self, job_id: str, problem: str, next_step: str) -> None:
        super().__init__(job_id, problem, next_step)
        self.job_id, self.problem, self.next_step = job_id, problem, next_step

    def __str__(self) -> str:
        return f"job {self.job_id}: {self.problem}; {self.next_step}"


class SkipError(CommandError):
    """A split or an event that cannot be skipped."""


class SavepointError(CommandError):
    """A savepoint that cannot be taken, or released."""


class OptionError(UsageError):
    """An option is out of range, unknown, or incompatible with another."""

    def __init__(self, option: str, value: object, expected: str) -> None:
        super().__init__(option, value, expected)
        self.option, self.value, self.expected = option, value, expected

    def __str__(self) -> str:
        return f"{self.option} is {self.value!r}; it must be {self.expected}"


class OptionsError(UsageError):
    """All options that are out of range or incompatible, not only the first."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0]
        lines = (f"\n  {problem}" for problem in self.problems)
        return "".join([f"{len(self.problems)} options:", *lines])


class PayloadTypeError(UsageError):
    """A payload type has no name, is listed twice, or is not registered with the job."""

    def __init__(self, type_name: str, problem: str) -> None:
        super().__init__(type_name, problem)
        self.type_name, self.problem = type_name, problem

    def __str__(self) -> str:
        return f"payload type {self.type_name}: {self.problem}"


class WrongThreadError(UsageError):
    """A coordinator's object was used outside the mailbox (A5), or `send_event` outside the task's main thread (M1)."""

    def __init__(
        self,
        what: str,
        thread: str,
        advice: str = "hand work to `call_async` and act in its handler",
    ) -> None:
        super().__init__(what, thread, advice)
        self.what, self.thread, self.advice = what, thread, advice

    def __str__(self) -> str:
        return (
            f"{self.what} was called on thread {self.thread!r}; it may be called only inside a "
            f"callback: {self.advice}"
        )


class ClosedError(UsageError):
    """A closed object was used (clause A1: one object per epoch or reset)."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} is closed: a newer object or driver has taken its place"


class GatewayFullError(UsageError):
    """A closed gateway holds as many events, or bytes, as it may (clause G5)."""

    def __init__(self, subtask: int, checkpoint_id: int, held: int, limit: int) -> None:
        super().__init__(subtask, checkpoint_id, held, limit)
        self.subtask, self.checkpoint_id = subtask, checkpoint_id
        self.held, self.limit = held, limit

    def __str__(self) -> str:
        return (
            f"the gateway to subtask {self.subtask} is closed by checkpoint {self.checkpoint_id} "
            f"and holds {self.held} events; the limit is {self.limit}: send fewer while a "
            "checkpoint is under way"
        )


class NoSinkError(UsageError):
    """An operator commits an intent and has no sink that would settle it (clause H4)."""

    def __init__(self, operator_id: str) -> None:
        super().__init__(operator_id)
        self.operator_id = operator_id

    def __str__(self) -> str:
        return (
            f"operator {self.operator_id!r} commits an intent and has no sink to settle it: set `sink` "
            "in its provider"
        )


class RowFailuresError(UsageError):
    """A transform whose source leaves out bad rows has raised at too many rows one after the other."""

    def __init__(self, function: str, rows: int, reason: str) -> None:
        super().__init__(function, rows, reason)
        self.function, self.rows, self.reason = function, rows, reason

    def __str__(self) -> str:
        return (
            f"transform {self.function} has raised at {self.rows} rows one after the other, which is no fault of "
            f"single rows; the last: {self.reason}; correct it, or raise `failures_in_a_row_max` of its `row_transform`"
        )


class TransformMisfitError(UsageError):
    """A transform returned something else than rows: another try cannot help."""

    def __init__(self, function: str, returned: str, expected: str) -> None:
        super().__init__(function, returned, expected)
        self.function, self.returned, self.expected = function, returned, expected

    def __str__(self) -> str:
        return f"transform {self.function} {self.returned}; it must return {self.expected}"


class OperatorMisfitError(UsageError):
    """An operator gave something else than rows, or rows that no operator takes: another try cannot help."""


class TooLargeError(UsageError):
    """A payload is above its limit (clause K6)."""

    def __init__(
        self,
        what: str,
        size_bytes: int,
        limit_bytes: int,
        next_step: str = "put the content elsewhere and send its address",
    ) -> None:
        super().__init__(what, size_bytes, limit_bytes, next_step)
        self.what, self.size_bytes, self.limit_bytes = what, size_bytes, limit_bytes
        self.next_step = next_step

    def __str__(self) -> str:
        return (
            f"{self.what} is {self.size_bytes} bytes; the limit is {self.limit_bytes}: "
            f"{self.next_step}"
        )


class TurnLimitError(UsageError):
    """Coordinators exceed a limit of one turn: most often a handler that sends again without end."""

    def __init__(self, what: str, count: int, limit: int) -> None:
        super().__init__(what, count, limit)
        self.what, self.count, self.limit = what, count, limit

    def __str__(self) -> str:
        return (
            f"one turn has made {self.count} {self.what}; the limit is {self.limit}: do not send again "
            "to an attempt that is over, and do the rest in a later turn (`schedule`)"
        )


class UnresolvedError(UsageError):
    """`result()` of a future was called before the result was decided (clause C9: early `result()` raises)."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} has not been decided yet: use `add_done_callback`"


class LogError(CoordlogError):
    """The log."""


class LogUnavailableError(LogError):
    """The log did not answer within its bound."""

    retriable: ClassVar[bool] = True

    def __init__(self, log: str, doing: str, waited_s: float, last_error: str = "") -> None:
        super().__init__(log, doing, waited_s, last_error)
        self.log, self.doing, self.waited_s, self.last_error = log, doing, waited_s, last_error

    def __str__(self) -> str:
        last = f" (last: {self.last_error})" if self.last_error else ""
        return (
            f"the log {self.log} did not answer for {self.waited_s:.1f} s while {self.doing}{last}: "
            "check that its broker runs and can be reached, then run the same command again"
        )


class TopicError(LogError):
    """A topic is missing, or one of its settings would lose history, or its records cannot be read here."""

    def __init__(self, topic: str, problem: str, next_step: str) -> None:
        super().__init__(topic, problem, next_step)
        self.topic, self.problem, self.next_step = topic, problem, next_step

    def __str__(self) -> str:
        return f"topic {self.topic}: {self.problem}; {self.next_step}"


class AccessError(LogError):
    """The broker refuses this user's connection or operation, or is not trusted."""

    def __init__(self, log: str, problem: str, next_step: str) -> None:
        super().__init__(log, problem, next_step)
        self.log, self.problem, self.next_step = log, problem, next_step

    def __str__(self) -> str:
        return f"the log {self.log} is closed to us: {self.problem}; {self.next_step}"


class FencedError(LogError):
    """Another driver's epoch is in force (clause K2)."""

    def __init__(self, job_id: str, epoch: int, epoch_in_force: int, driver_in_force: str) -> None:
        super().__init__(job_id, epoch, epoch_in_force, driver_in_force)
        self.job_id, self.epoch = job_id, epoch
        self.epoch_in_force, self.driver_in_force = epoch_in_force, driver_in_force

    def __str__(self) -> str:
        return (
            f"job {self.job_id}: this driver's epoch is {self.epoch}, in force is epoch "
            f"{self.epoch_in_force} of driver {self.driver_in_force}: it has taken over, this one ends"
        )


class OffsetGapError(LogError):
    """The log acknowledged an offset below the one that it had reached: it has lost records."""

    def __init__(self, log: str, expected_offset: int, offset: int) -> None:
        super().__init__(log, expected_offset, offset)
        self.log, self.expected_offset, self.offset = log, expected_offset, offset

    def __str__(self) -> str:
        return (
            f"the log {self.log} gave offset {self.offset} where {self.expected_offset} was the "
            "lowest possible: it has lost records that it had acknowledged; restore its data from a "
            "replica or a backup, or put an export on a new topic with `coordlog adopt`"
        )


class OutOfRangeError(LogError):
    """A read starts below the log's first record, or above its high watermark."""

    def __init__(self, log: str, offset: int, start_offset: int, high_watermark: int) -> None:
        super().__init__(log, offset, start_offset, high_watermark)
        self.log, self.offset = log, offset
        self.start_offset, self.high_watermark = start_offset, high_watermark

    def __str__(self) -> str:
        return (
            f"the log {self.log} holds offsets {self.start_offset} to {self.high_watermark} "
            f"(exclusive), not {self.offset}: retention or a new topic has removed what is needed; put an "
            "export that has it on a new topic with `coordlog adopt`, or use another job id"
        )


class PrunedMeanwhileError(OutOfRangeError):
    """A log was pruned during a reading of all of it; `offset` is where the log began before."""

    retriable: ClassVar[bool] = True

    def __str__(self) -> str:
        return (
            f"the log {self.log} began at offset {self.offset} when its reading began, and begins at offset "
            f"{self.start_offset} now: it was pruned meanwhile; run the same command again"
        )


class AppendRefusedError(LogError):
    """The broker refuses these records for good: to send them again cannot help."""

    def __init__(self, log: str, problem: str) -> None:
        super().__init__(log, problem)
        self.log, self.problem = log, problem

    def __str__(self) -> str:
        return (
            f"the log {self.log} refuses records for good: {self.problem}; "
            "nothing of them was acted on, and the log stays readable; fix that, then run the same command again"
        )


class PayloadStoreError(LogError):
    """The payload store is full, or refuses this user."""

    def __init__(self, store: str, doing: str, problem: str, next_step: str) -> None:
        super().__init__(store, doing, problem, next_step)
        self.store, self.doing = store, doing
        self.problem, self.next_step = problem, next_step

    def __str__(self) -> str:
        return f"the payload store {self.store}: {self.doing}: {self.problem}; {self.next_step}"


class PayloadStoreUnreachableError(PayloadStoreError):
    """The payload store did not answer, or failed in a way that may pass."""

    retriable: ClassVar[bool] = True


class PayloadLostError(LogError):
    """A payload that records address is missing in the payload store, or its content has changed."""

    def __init__(self, address: str, length: int, where: str, problem: str, next_step: str) -> None:
        super().__init__(address, length, where, problem, next_step)
        self.address, self.length, self.where = address, length, where
        self.problem, self.next_step = problem, next_step

    def __str__(self) -> str:
        return (
            f"the stored payload {self.address} of {self.length} bytes, looked for in {self.where}: "
            f"{self.problem}; {self.next_step}"
        )


class RecordError(CoordlogError):
    """A record that counts cannot be read or applied."""

    def __init__(self, offset: int, kind: str, problem: str) -> None:
        super().__init__(offset, kind, problem)
        self.offset, self.kind, self.problem = offset, kind, problem

    def __str__(self) -> str:
        kind = f" ({self.kind})" if self.kind else ""
        return f"record at offset {self.offset}{kind}: {self.problem}"


class RestoreError(CoordlogError):
    """A history from which this job cannot be restored exactly; nothing was appended (clause E9)."""

    def __init__(self, job_id: str, what: str, in_log: str, here: str, next_step: str) -> None:
        super().__init__(job_id, what, in_log, here, next_step)
        self.job_id, self.what, self.in_log = job_id, what, in_log
        self.here, self.next_step = here, next_step

    def __str__(self) -> str:
        return (
            f"job {self.job_id} cannot be restored: {self.what} is {self.in_log} in the log and "
            f"{self.here} here; {self.next_step}"
        )


class DriverAliveError(RestoreError):
    """A live driver holds the job."""

    def __init__(self, job_id: str, epoch: int, driver_id: str, endpoint: str) -> None:
        CoordlogError.__init__(self, job_id, epoch, driver_id, endpoint)
        self.job_id, self.epoch, self.driver_id, self.endpoint = job_id, epoch, driver_id, endpoint

    def __str__(self) -> str:
        return (
            f"job {self.job_id} is driven by a live driver ({self.driver_id}, epoch {self.epoch}, at "
            f"{self.endpoint}): wait for it, stop it, or take its place with --take-over"
        )


class DriverUnknownError(RestoreError):
    """The driver of the epoch in force may live: no evidence here proves that it lives, or that it is gone."""

    def __init__(self, job_id: str, epoch: int, driver_id: str, endpoint: str, why: str) -> None:
        CoordlogError.__init__(self, job_id, epoch, driver_id, endpoint, why)
        self.job_id, self.epoch, self.driver_id = job_id, epoch, driver_id
        self.endpoint, self.why = endpoint, why

    def __str__(self) -> str:
        return (
            f"job {self.job_id}: it cannot be known from here whether its driver ({self.driver_id}, "
            f"epoch {self.epoch}, at {self.endpoint}) lives: {self.why}. Run this where the driver "
            "ran; if the driver is surely gone, --take-over (in Python `take_over=True`)"
        )


class AttemptError(CoordlogError):
    """One execution attempt."""


class AttemptNotRunningError(AttemptError):
    """An event's attempt is gone, so that the event cannot be delivered (clauses B5, I2)."""

    def __init__(self, subtask: int, attempt_number: int, reason: str) -> None:
        super().__init__(subtask, attempt_number, reason)
        self.subtask, self.attempt_number, self.reason = subtask, attempt_number, reason

    def __str__(self) -> str:
        return (
            f"attempt {self.attempt_number} of subtask {self.subtask} does not run: {self.reason}"
        )


class FencedAttemptError(AttemptError):
    """An attempt that was fenced, or must assume that it was (clause M4)."""

    def __init__(self, subtask: int, attempt_number: int, reason: str) -> None:
        super().__init__(subtask, attempt_number, reason)
        self.subtask, self.attempt_number, self.reason = subtask, attempt_number, reason

    def __str__(self) -> str:
        return f"attempt {self.attempt_number} of subtask {self.subtask} is over: {self.reason}"


class CheckpointFailedError(CoordlogError):
    """A checkpoint that a caller triggered was aborted, or its driver ended first."""

    retriable: ClassVar[bool] = True

    def __init__(self, job_id: str, checkpoint: str, reason: str) -> None:
        super().__init__(job_id, checkpoint, reason)
        self.job_id, self.checkpoint, self.reason = job_id, checkpoint, reason

    def __str__(self) -> str:
        return (
            f"job {self.job_id}: {self.checkpoint} has not completed: {self.reason}; "
            "trigger another once the job runs"
        )


class RequestError(CoordlogError):
    """A request to a coordinator has no answer (clause J1)."""


class NoSuchOperatorError(RequestError):
    """No operator of that name has a coordinator; nothing was done."""

    def __init__(self, operator_id: str, reason: str) -> None:
        super().__init__(operator_id, reason)
        self.operator_id, self.reason = operator_id, reason

    def __str__(self) -> str:
        return f"no operator {self.operator_id!r} has a coordinator: {self.reason}"


class NotRequestHandlerError(RequestError):
    """The operator's coordinator answers no requests."""

    def __init__(self, operator_id: str, reason: str) -> None:
        super().__init__(operator_id, reason)
        self.operator_id, self.reason = operator_id, reason

    def __str__(self) -> str:
        return (
            f"operator {self.operator_id!r}: {self.reason}; "
            "its class has no `handle_coordination_request`"
        )


class RequestFailedError(RequestError):
    """The handler of a request raised: the job fails globally, and the request's effects are void (clause A3)."""

    def __init__(self, operator_id: str, reason: str) -> None:
        super().__init__(operator_id, reason)
        self.operator_id, self.reason = operator_id, reason

    def __str__(self) -> str:
        return (
            f"the request to operator {self.operator_id!r} has failed the job, and what it did does not hold: "
            f"{self.reason}; fix its handler, then ask again"
        )


class CoordinatorRestartingError(RequestError):
    """The coordinator is about to be created again; nothing was done: repeat the request."""

    retriable: ClassVar[bool] = True

    def __init__(self, operator_id: str, reason: str) -> None:
        super().__init__(operator_id, reason)
        self.operator_id, self.reason = operator_id, reason

    def __str__(self) -> str:
        return (
            f"the coordinator of operator {self.operator_id!r} restarts: {self.reason}; ask again"
        )


class RequestUnansweredError(RequestError):
    """No answer will come. If the log has the `REQUEST`, it was handled."""

    def __init__(self, operator_id: str, reason: str) -> None:
        super().__init__(operator_id, reason)
        self.operator_id, self.reason = operator_id, reason

    def __str__(self) -> str:
        return (
            f"the request to operator {self.operator_id!r} has no answer: {self.reason}; if `coordlog history` "
            "has its REQUEST, it was handled, else ask again"
        )


class NoDriverError(RequestError):
    """No driver of the job runs, or none can be reached from here; nothing was requested."""

    def __init__(self, job_id: str, problem: str, next_step: str) -> None:
        super().__init__(job_id, problem, next_step)
        self.job_id, self.problem, self.next_step = job_id, problem, next_step

    def __str__(self) -> str:
        return f"job {self.job_id}: {self.problem}; {self.next_step}"


class RequestRefusedError(RequestError):
    """A coordinator refuses a request, before any effect (clause J1)."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"request refused: {self.reason}"


class SourceError(CoordlogError):
    """An input cannot be read."""

    def __init__(self, where: str, problem: str, next_step: str) -> None:
        super().__init__(where, problem, next_step)
        self.where, self.problem, self.next_step = where, problem, next_step

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}; {self.next_step}"


class InputGoneError(SourceError):
    """Records that a source is to read next are gone for good: trying again cannot help."""


class SourceUnavailableError(SourceError):
    """A file system, or the network to it, refuses or does not answer now; it may answer later."""

    retriable: ClassVar[bool] = True


class SinkError(CoordlogError):
    """A destination cannot be written, or belongs to another job."""

    def __init__(self, where: str, problem: str, next_step: str) -> None:
        super().__init__(where, problem, next_step)
        self.where, self.problem, self.next_step = where, problem, next_step

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}; {self.next_step}"


class DestinationMisfitError(SinkError):
    """Rows are incompatible with the schema of a destination: another try cannot help."""


class FilesGoneError(SinkError):
    """Files of an intent are neither staged nor published: only a sink whose rows can be made again may go on."""


class JobMovedError(SinkError):
    """A job was adopted while its driver lived, and continues at the destination with another log."""


class OutOfSpaceError(SinkError):
    """A destination has no space left, or less than the reserve that is kept free there."""


class JobFailedError(CoordlogError):
    """The job has ended as failed. `reasons`, newest first, hold tracebacks; the message their first lines.

    Attributes:
        where: The attempt that failed last and the split that it read; empty if no attempt failed.
        final: Cause for which no restart was tried, as "out of space", "moved", "misfit"; empty if the restart policy
            was used up.
        skip_command: Command that skips the split or event at which attempts kept failing; empty if there is none.
    """

    def __init__(
        self,
        job_id: str,
        reasons: tuple[str, ...],
        where: str = "",
        final: str = "",
        skip_command: str = "",
    ) -> None:
        super().__init__(job_id, reasons, where, final, skip_command)
        self.job_id, self.reasons = job_id, reasons
        self.where, self.final, self.skip_command = where, final, skip_command

    def __str__(self) -> str:
        chain = "; before that: ".join(reason.partition("\n")[0] for reason in self.reasons)
        where = f" in {self.where}" if self.where else ""
        final = f" (no restart: {self.final})" if self.final else ""
        skip = f"; to continue without it: `{self.skip_command}`" if self.skip_command else ""
        return (
            f"job {self.job_id} failed{where}{final}: {chain}. Nothing committed is lost: fix the cause "
            f"and run the same command again, it continues from its log{skip}"
        )


class EnvironmentSetupError(CoordlogError):
    """This machine or cluster lacks something that the job needs."""

    def __init__(self, what: str, next_step: str) -> None:
        super().__init__(what, next_step)
        self.what, self.next_step = what, next_step

    def __str__(self) -> str:
        return f"{self.what}; {self.next_step}"


class SessionLostError(EnvironmentSetupError):
    """The Spark session of a job has ended: only a new session can continue the job."""
