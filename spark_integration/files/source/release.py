"""The end of a file that was read: archived or deleted once every row of it is committed, by an intent in the log."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from coordlog.api.coordinator import Sink
from coordlog.errors import SourceError
from coordlog.limits import (
    PAYLOAD_BYTES_MAX,
    RELEASE_CALL_S,
    RELEASE_FILES_MAX,
    RELEASE_INTENTS_MAX,
    RELEASE_TRIES_MAX,
)
from coordlog.log.local.call_timeout import NotAnsweredError, answered
from coordlog.projections.splits.fold import SplitsState
from coordlog.projections.splits.table import Finished, SplitsByOrdinal
from coordlog.schemas.payload import Payload, decode_versioned, encode_versioned
from coordlog.schemas.record import NO_CHECKPOINT
from coordlog.schemas.source_types import (
    ReleasedInput,
    ReleaseSplits,
    SplitsReleased,
    UnreleasedSplit,
)
from coordlog.spark_integration.files.listing import InputFiles
from coordlog.spark_integration.files.payloads import FileChanged, FileSplit, ReadFile
from coordlog.spark_integration.files.source.disposal import NotDisposedError, dispose
from coordlog.spark_integration.files.source.kept import as_it_was_read
from coordlog.spark_integration.files.source.split_bytes import decode_split

__all__ = ["CommittedFiles", "CommittedSplits", "FileRelease", "ReleaseResults"]

_log = logging.getLogger(__name__)

_THREADS: Final = 8
_PROBLEM_CHARS: Final = 200
_CHAR_BYTES: Final = 4
"""Most bytes of a character."""
_INTENT_BYTES: Final = PAYLOAD_BYTES_MAX * 3 // 4
_OUTCOME_BYTES: Final = PAYLOAD_BYTES_MAX * 7 // 8
"""Bytes that an outcome has at most: above the limit of a payload it would fail the job."""


class ReleaseResults:
    """Files of this driver that could not be released, with the problem of the last try. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._problems: dict[str, tuple[str, bool]] = {}

    def note(self, path: str, problem: str, *, is_final: bool) -> None:
        """Keep a problem; `is_final`: another try would have it too."""
        with self._lock:
            self._problems[path] = (problem, is_final)

    def take(self) -> dict[str, tuple[str, bool]]:
        """The problems since the last call."""
        with self._lock:
            problems, self._problems = self._problems, {}
            return problems


@dataclass(slots=True)
class _Candidate:
    """A file with committed splits."""

    split: FileSplit
    ordinals: dict[str, int] = field(default_factory=dict)
    """Ordinals of the committed splits by their ids."""
    tries: int = 0

    @property
    def split_ids(self) -> list[str]:
        """Ids of the committed splits."""
        return list(self.ordinals)

    def is_known(self, splits: SplitsByOrdinal) -> bool:
        """Whether its splits are known; False: they were released or forgotten, and others may have their ids."""
        known = splits.ordinals
        return all(known.get(name) == ordinal for name, ordinal in self.ordinals.items())


class CommittedSplits:
    """Finds the splits of a job of which a completed checkpoint has every row, each once. Mailbox only."""

    def __init__(self) -> None:
        self._scanned, self._checkpoint_id = SplitsState(), NO_CHECKPOINT
        self._waiting: set[str] = set()
        """Finished splits that are not committed yet."""

    def since_last(self, state: SplitsState, checkpoint_id: int) -> list[int]:
        """Ordinals of the splits that this completed checkpoint has, and the last call has not returned."""
        splits, before, checkpoint_before = state.splits, self._scanned, self._checkpoint_id
        waiting = (splits.ordinals[name] for name in self._waiting if name in splits)
        ordinals = sorted({*splits.changed_since(before.splits), *waiting})
        self._scanned, self._checkpoint_id, self._waiting = state, checkpoint_id, set()
        committed: list[int] = []
        for ordinal in ordinals:
            name = splits.name_at(ordinal)
            if not state.is_committed(ordinal, checkpoint_id):
                if isinstance(splits.place_at(ordinal), Finished):
                    self._waiting.add(name)
                continue
            was_known = before.splits.ordinals.get(name) == ordinal
            if not was_known or not before.is_committed(ordinal, checkpoint_before):
                committed.append(ordinal)
        return committed


class CommittedFiles:
    """Finds the files of which all splits are committed, and makes the intents that release them.

    A new object is given all committed splits anew, so that another driver makes the same intents again. Mailbox only,
    except `tolerates`.

    Args:
        files: The source's files.
        archive: Folder or URL of the archive; None: files are deleted.
        results: Problems of the releases.
        as_read: Returns the files that were read otherwise than listed, by path.
    """

    def __init__(
        self,
        files: InputFiles,
        archive: str | None,
        results: ReleaseResults,
        as_read: Callable[[], Mapping[str, FileChanged]] = dict,
    ) -> None:
        self._as_read = as_read
        self._files, self._archive, self._results = files, archive, results
        self._partial: dict[str, _Candidate] = {}
        """Files of which splits are missing."""
        self._ready: deque[_Candidate] = deque()
        self._given: dict[str, _Candidate] = {}
        """Files with an intent."""
        self._again: list[tuple[int, _Candidate]] = []
        """Files to try again, each with the call of `intents` from which on."""
        self._calls = 0
        self._given_up: set[str] = set()

    def intents(self, splits: SplitsByOrdinal, committed: Iterable[int]) -> Sequence[ReleaseSplits]:
        """Intents for files that are committed now, and for those whose release has failed.

        Args:
            splits: The known splits.
            committed: Ordinals of known splits that are committed since the last call.
        """
        self._calls += 1
        self._find(splits, committed)
        self._note_results(splits)
        self._ready.extend(candidate for due, candidate in self._again if due <= self._calls)
        self._again = [(due, candidate) for due, candidate in self._again if due > self._calls]
        intents = [self._intent(splits) for _ in range(RELEASE_INTENTS_MAX) if self._ready]
        return [intent for intent in intents if intent.inputs]

    def tolerates(self, path: str) -> bool:
        """Whether another file of this name may be a new one, after that which was read was released. Any thread."""
        return path not in self._given_up

    def _find(self, splits: SplitsByOrdinal, committed: Iterable[int]) -> None:
        self._partial = {path: c for path, c in self._partial.items() if c.is_known(splits)}
        for ordinal in committed:
            split = decode_split(splits.split_at(ordinal).content)
            candidate = self._partial.setdefault(split.path, _Candidate(split))
            candidate.ordinals[split.split_id] = ordinal
            if len(candidate.ordinals) >= split.parts:
                self._ready.append(self._partial.pop(split.path))
                self._given_up.discard(split.path)

    def _note_results(self, splits: SplitsByOrdinal) -> None:
        for path, (_problem, is_final) in sorted(self._results.take().items()):
            candidate = self._given.pop(path, None)
            if candidate is None or not candidate.is_known(splits):
                continue
            candidate.tries += 1
            if is_final or candidate.tries >= RELEASE_TRIES_MAX:
                self._given_up.add(path)
            else:
                self._again.append((self._calls + 2**candidate.tries // 2, candidate))
        released = [path for path, each in self._given.items() if not each.is_known(splits)]
        for path in released:
            del self._given[path]

    def _intent(self, splits: SplitsByOrdinal) -> ReleaseSplits:
        inputs: list[ReleasedInput] = []
        size_bytes = 0
        while self._ready and len(inputs) < RELEASE_FILES_MAX:
            candidate, path = self._ready[0], self._ready[0].split.path
            if not candidate.is_known(splits):
                self._ready.popleft()
                continue
            released = self._input(candidate)
            size_bytes += len(released.content) + _bytes_of(released.split_ids)
            if inputs and size_bytes > _INTENT_BYTES:
                break
            self._ready.popleft()
            if _bytes_of(released.split_ids) > _INTENT_BYTES:
                count = len(released.split_ids)
                _log.warning("it stays: %s: its %d splits are too many for one record", path, count)
                self._given_up.add(path)
                continue
            inputs.append(released)
            self._given[path] = candidate
        effect = "delete" if self._archive is None else f"archive:{self._archive}"
        return ReleaseSplits(effect=effect, discovered_below=splits.end, inputs=inputs)

    def _input(self, candidate: _Candidate) -> ReleasedInput:
        split = candidate.split
        target = ""
        if self._archive is not None:
            target = f"{self._archive.rstrip('/')}/{self._files.below_root(split.path)}"
        was = as_it_was_read(split, self._as_read())
        file = ReadFile(
            path=was.path,
            size_bytes=was.size_bytes,
            mark=was.mark,
            real_path=was.real_path,
            target=target.removeprefix("s3://"),
        )
        return ReleasedInput(split_ids=candidate.split_ids, content=encode_versioned(file))


class FileRelease(Sink):
    """Carries out the intents: each file by itself, for a bounded time. A file that fails stays, and fails no row.

    Args:
        files: The source's files.
        results: Gets the problems.
        dispose_of: Effect on one file.
    """

    def __init__(
        self,
        files: InputFiles,
        results: ReleaseResults,
        dispose_of: Callable[[InputFiles, ReadFile], None] = dispose,
    ) -> None:
        self._files, self._results, self._dispose_of = files, results, dispose_of

    def settle(self, intent: Payload) -> SplitsReleased:
        """Release the input that is not released yet. Any thread; safe to repeat. Raises nothing."""
        assert isinstance(intent, ReleaseSplits), "intents are made by `CommittedFiles`"
        problems: dict[int, NotDisposedError] = {}
        pending: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(len(intent.inputs)):
            pending.put(number)
        done: set[int] = set()

        def work() -> None:
            while True:
                try:
                    number = pending.get_nowait()
                except queue.Empty:
                    return
                problem = self._problem_of(intent.inputs[number])
                if problem is not None:
                    problems[number] = problem
                done.add(number)

        self._run(work, min(_THREADS, len(intent.inputs)))
        with suppress(queue.Empty):  # what hangs may end later: it begins nothing more
            while True:
                pending.get_nowait()
        late = NotDisposedError(f"it was not archived or deleted within {RELEASE_CALL_S:g} s")
        for number in range(len(intent.inputs)):
            if number not in done:
                problems[number] = late
        return self._outcome(intent, dict(problems))

    def _run(self, work: Callable[[], None], count: int) -> None:
        def work_in_parallel() -> None:
            threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        try:
            answered(work_in_parallel, RELEASE_CALL_S)
        except NotAnsweredError:
            return

    def _problem_of(self, released: ReleasedInput) -> NotDisposedError | None:
        try:
            self._dispose_of(self._files, decode_versioned(ReadFile, released.content))
        except NotDisposedError as error:
            return error
        except SourceError as error:
            return NotDisposedError(str(error))
        except Exception as error:  # noqa: BLE001, a store's library raises many
            return NotDisposedError(f"{type(error).__name__}: {error}")
        return None

    def _outcome(
        self, intent: ReleaseSplits, problems: dict[int, NotDisposedError]
    ) -> SplitsReleased:
        for number, problem in sorted(problems.items()):
            path = decode_versioned(ReadFile, intent.inputs[number].content).path
            self._results.note(path, str(problem), is_final=problem.is_final)
            _log.warning("it stays where it is: %s: %s", path, problem)
        unreleased = [
            (split_id, str(problem))
            for number, problem in sorted(problems.items())
            for split_id in intent.inputs[number].split_ids
        ]
        room = _OUTCOME_BYTES - sum(_bytes_of(released.split_ids) for released in intent.inputs)
        chars = min(_PROBLEM_CHARS, max(room, 0) // (_CHAR_BYTES * max(len(unreleased), 1)))
        return SplitsReleased(
            split_ids=[
                split_id
                for number, released in enumerate(intent.inputs)
                if number not in problems
                for split_id in released.split_ids
            ],
            discovered_below=intent.discovered_below,
            unreleased=[
                UnreleasedSplit(split_id=split_id, problem=problem[:chars])
                for split_id, problem in unreleased
            ],
        )


def _bytes_of(split_ids: Sequence[str]) -> int:
    """Bytes of these ids in a record, about."""
    return sum(len(split_id.encode()) + 8 for split_id in split_ids)
