"""Records, clocks and drivers for the tests of the log, as small as they can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordlog.history import History
from coordlog.log.append_protocol import Place
from coordlog.log.appender import Appender, Patience, take_over
from coordlog.log.interface import Log, StoredRecord, UnstoredRecord
from coordlog.schemas.header import Header, encode_header
from coordlog.schemas.record import Kind, Record
from coordlog.schemas.validity import NOTHING_COUNTED, count
from histories.hand_history import BEGAN_US, unstored

JOB = "ingest"


def epoch_started(epoch: int, driver_id: str) -> UnstoredRecord:
    """A driver's `EPOCH_STARTED`."""
    return unstored(
        Record(
            epoch=epoch,
            driver_id=driver_id,
            sequence=None,
            kind=Kind.EPOCH_STARTED,
            timestamp_us=BEGAN_US,
            job_id=JOB,
        )
    )


def plain(content: str, epoch: int, sequence: int, remaining: int = 0) -> UnstoredRecord:
    """Any other record; only its header and its content matter here."""
    header = Header(
        epoch=epoch,
        sequence=sequence,
        turn_remaining=remaining,
        is_epoch_started=False,
        fingerprint=7,
    )
    return UnstoredRecord(
        key=b"ingest/0/0",
        value=content.encode(),
        header=encode_header(header),
        timestamp_us=BEGAN_US + sequence * 1000,
    )


def turns(sizes: Sequence[int], epoch: int, first: int, name: str = "a") -> list[UnstoredRecord]:
    """Whole turns of these sizes, with sequences from `first` on contents `a0`, `a1` and on."""
    remaining = [left for size in sizes for left in reversed(range(size))]
    return [plain(f"{name}{first + i}", epoch, first + i, left) for i, left in enumerate(remaining)]


def place_of(log: Log) -> Place:
    """How far the log has come, read whole."""
    end, counting = log.high_watermark(), NOTHING_COUNTED
    for record in log.read(log.start_offset(), end):
        counting, _ = count(counting, record.header)
    return Place(end_offset=end, counting=counting)


def counted(log: Log) -> list[str]:
    """The contents of all that counts, `E0` and so on for the epochs."""
    contents = []
    for turn in History(log).turns():
        for record in turn.entries:
            assert record.header is not None
            assert record.value is not None
            is_epoch = record.header.is_epoch_started
            contents.append(f"E{record.header.epoch}" if is_epoch else record.value.decode())
    return contents


@dataclass
class FakeClock:
    """Time that passes only in `sleep`."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)
    waits: list[tuple[float, str]] = field(default_factory=list)

    def __call__(self) -> float:
        """The time."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.slept.append(seconds)
        self.now += seconds

    def patience(self, *, log_timeout_s: float = 120.0) -> Patience:
        """Patience by this clock."""
        return Patience(
            log_timeout_s=log_timeout_s,
            clock=self,
            sleep=self.sleep,
            on_waiting=lambda waited, error: self.waits.append((waited, error)),
        )


@dataclass
class Driver:
    """A driver as a test needs it: what it has read, and its appender."""

    appender: Appender
    read: list[StoredRecord]


def start_driver(
    log: Log, driver_id: str, *, patience: Patience | None = None, place: Place | None = None
) -> Driver:
    """Read (unless it has, up to `place`) and take over."""
    read: list[StoredRecord] = []
    appender = take_over(
        log,
        job_id=JOB,
        place=place_of(log) if place is None else place,
        make_epoch_started=lambda epoch: epoch_started(epoch, driver_id),
        reading=read.append,
        patience=FakeClock().patience() if patience is None else patience,
    )
    return Driver(appender, read)
