"""A transform that works row by row: rows at which it raises are left out, and all others go on."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from coordlog.api.chain import Chain, OperatorSpec
from coordlog.api.operator import Operator
from coordlog.errors import OptionError, OptionsError, RowFailuresError, TransformMisfitError
from coordlog.limits import ROW_FAILURES_MAX
from coordlog.messages import Accepted, FinishSplit, UpMessage
from coordlog.schemas.source_types import AddSplits, NoMoreSplits, SplitsDiscovered
from coordlog.spark_integration.files.formats.bad_rows import are_rejects, placed, rejects_batch
from coordlog.spark_integration.files.rejected_rows import rejects_of_rows
from coordlog.spark_integration.files.sink.sink import ParquetSink
from coordlog.spark_integration.files.source.source import FileSource
from coordlog.spark_integration.row_transform_operator import RowTransformOperator
from coordlog.spark_integration.row_transforms import RowTransform, row_transform
from coordlog.spark_integration.transform import pandas_transform, transform_spec
from coordlog.task.attempt import AttemptRunner, StepStatus
from fakes.attempt_fakes import deliver
from fakes.chain_fakes import FakeContext

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def batch_of(
    *numbers: int | None, split_id: str = "split", file: str = "/in/a.csv"
) -> pa.RecordBatch:
    rows = [{"n": n, "s": f"s{n}"} for n in numbers]
    return placed(pa.RecordBatch.from_pylist(rows, SCHEMA), split_id, file)


def inverse(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Raises ZeroDivisionError at 0, TypeError at null."""
    values = [100 // n for n in batch.column("n").to_pylist()]
    return pa.record_batch({"v": pa.array(values, pa.int64())})


class Run:
    """An operator and its output."""

    def __init__(
        self, transform: RowTransform, *, emits: bool = True, state: bytes | None = None
    ) -> None:
        self.operator = RowTransformOperator(transform, rejects_of_rows if emits else None)
        self.operator.open(FakeContext(operator_id="transform"), state)
        self.rows: list[dict[str, Any]] = []
        self.rejects: list[dict[str, Any]] = []

    def pass_in(self, batch: pa.RecordBatch) -> None:
        for output in self.operator.process(batch):
            (self.rejects if are_rejects(output) else self.rows).extend(output.to_pylist())


def test_rows_at_which_a_transform_raises_are_rejects_and_others_go_on() -> None:
    run = Run(row_transform(inverse))
    run.pass_in(batch_of(1, 0, 2, None, 5))

    assert [row["v"] for row in run.rows] == [100, 50, 20]
    assert run.rejects == [
        {
            "file": "/in/a.csv",
            "line": None,
            "offset": None,
            "reason": "transform: ZeroDivisionError: integer division or modulo by zero",
            "row": '{"n": 0, "s": "s0"}',
        },
        {
            "file": "/in/a.csv",
            "line": None,
            "offset": None,
            "reason": "transform: TypeError: unsupported operand type(s) for //: 'int' and 'NoneType'",
            "row": '{"n": null, "s": "sNone"}',
        },
    ]
    assert (run.operator.left_out("split"), run.operator.left_out("split")) == (2, 0)


def test_each_row_is_passed_on_or_rejected_once_in_order(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(100):
        numbers = [chance.choice([0, 0, 1, 2, 3]) for _ in range(chance.randrange(1, 60))]
        run = Run(row_transform(inverse))
        run.pass_in(batch_of(*numbers))
        assert [row["v"] for row in run.rows] == [100 // n for n in numbers if n]
        assert len(run.rejects) == numbers.count(0)


def test_rows_that_a_generator_gave_before_it_raised_are_not_given_twice() -> None:
    def singly(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for index in range(batch.num_rows):
            yield inverse(batch.slice(index, 1))

    run = Run(row_transform(singly))
    run.pass_in(batch_of(1, 2, 0, 5))
    assert [row["v"] for row in run.rows] == [100, 50, 20]


def test_rows_of_a_generator_that_fills_one_array_again_stay() -> None:
    array = np.zeros(1, np.int64)

    def singly(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for number in batch.column("n").to_pylist():
            array[0] = 100 // number
            yield pa.record_batch({"v": pa.array(array)})

    run = Run(row_transform(singly))
    run.pass_in(batch_of(1, 2, 5))
    assert [row["v"] for row in run.rows] == [100, 50, 20]


def test_the_function_gets_the_batch_as_the_source_has_it() -> None:
    seen: list[pa.RecordBatch] = []

    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch)
        return batch

    schema = SCHEMA.with_metadata({"own": "kept"})
    run = Run(row_transform(look))
    run.pass_in(placed(pa.RecordBatch.from_pylist([{"n": 1, "s": "x"}], schema), "split", "/f"))
    assert seen[0].schema.metadata == {b"own": b"kept"}


def test_rejects_of_the_source_pass_through_unchanged() -> None:
    rejects = rejects_batch("/in/a.csv", ())
    assert list(RowTransformOperator(row_transform(inverse), None).process(rejects)) == [rejects]
    spec = transform_spec(inverse)
    assert spec.passes_rejects
    assert list(spec.create_operator().process(rejects)) == [rejects]


def test_rows_are_counted_alone_if_they_have_no_place() -> None:
    run = Run(row_transform(inverse), emits=False)
    run.pass_in(batch_of(0, 1))
    assert (len(run.rows), run.rejects, run.operator.left_out("split")) == (1, [], 1)


ERRORS_OF_NO_ROW: list[BaseException] = [
    MemoryError(),
    pa.ArrowMemoryError("no memory"),
    ImportError("no module"),
    NameError("no name"),
    NotImplementedError("no kernel"),
    TransformMisfitError("f", "returned None", "rows"),
    KeyboardInterrupt(),
]
ERRORS_IF_DECLARED: list[BaseException] = [
    ConnectionResetError("a service is gone"),
    TimeoutError("a service does not answer"),
    RuntimeError("of the program"),
]


@pytest.mark.parametrize(
    ("error", "errors"),
    [(error, (ValueError,)) for error in ERRORS_OF_NO_ROW + ERRORS_IF_DECLARED]
    + [(error, (Exception,)) for error in ERRORS_OF_NO_ROW],
    ids=lambda value: type(value).__name__,
)
def test_an_error_that_is_no_fault_of_a_row_fails_the_attempt(
    error: BaseException, errors: tuple[type[Exception], ...]
) -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows:
            raise error
        return batch

    with pytest.raises(type(error)):
        Run(row_transform(fail, errors=errors)).pass_in(batch_of(1, 2))
    if errors == (ValueError,):
        with pytest.raises(type(error)):
            Run(row_transform(fail)).pass_in(batch_of(1, 2))


def test_errors_of_the_users_own_are_faults_of_a_row_if_declared() -> None:
    class UnknownCurrencyError(Exception):
        pass

    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 0 in batch.column("n").to_pylist():
            raise UnknownCurrencyError("QQQ")
        return batch

    with pytest.raises(UnknownCurrencyError):
        Run(row_transform(convert)).pass_in(batch_of(1, 0))
    run = Run(row_transform(convert, errors=(UnknownCurrencyError,)))
    run.pass_in(batch_of(1, 0))
    assert [one["reason"] for one in run.rejects] == ["transform: UnknownCurrencyError: QQQ"]


def test_an_error_that_comes_without_rows_too_is_no_fault_of_a_row() -> None:
    def of_another_schema(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(["missing"])

    run = Run(row_transform(of_another_schema))
    with pytest.raises(KeyError) as caught:
        run.pass_in(batch_of(1, 2))
    assert "without rows" in caught.value.__notes__[0]
    assert run.operator.left_out("split") == 0


def test_a_transform_that_raises_at_each_row_fails_by_name() -> None:
    calls = 0

    def never_well(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal calls
        calls += 1
        if batch.num_rows:
            raise ValueError("of another type")
        return batch

    run = Run(row_transform(never_well))
    run.pass_in(batch_of(*range(600)))
    with pytest.raises(RowFailuresError) as caught:
        run.pass_in(batch_of(*range(600)))

    text = str(caught.value)
    assert f"{ROW_FAILURES_MAX + 1} rows one after the other" in text
    assert "never_well" in text
    assert "ValueError: of another type" in text
    assert calls < 3 * ROW_FAILURES_MAX


def test_a_good_row_begins_the_count_of_failures_anew() -> None:
    run = Run(row_transform(inverse, failures_in_a_row_max=2))
    run.pass_in(batch_of(0, 0, 1, 0))
    run.pass_in(batch_of(0, 1))
    assert len(run.rejects) == 4
    with pytest.raises(RowFailuresError):
        run.pass_in(batch_of(0, 0, 0))


def test_the_counts_of_unfinished_splits_survive_a_restore() -> None:
    run = Run(row_transform(inverse))
    assert run.operator.snapshot_state(1).state is None, "without failures there is no state"
    run.pass_in(batch_of(0, split_id="a"))
    run.pass_in(batch_of(0, 0, split_id="b"))
    assert run.operator.left_out("a") == 1
    state = run.operator.snapshot_state(1).state
    assert state is not None

    merge = transform_spec(row_transform(inverse)).merge_states
    assert merge is not None
    other = Run(row_transform(inverse))
    other.pass_in(batch_of(0, split_id="c"))
    other_state = other.operator.snapshot_state(1).state
    assert other_state is not None
    again = Run(row_transform(inverse), state=merge([state, other_state]))
    again.pass_in(batch_of(0, split_id="b"))
    assert [again.operator.left_out(name) for name in "abc"] == [0, 3, 1]
    assert again.operator.snapshot_state(2).state is None


def test_counts_stay_if_the_function_is_not_declared_any_more() -> None:
    """Else the end of the split would report the rows that an earlier run left out as good ones."""
    before = Run(row_transform(inverse))
    before.pass_in(batch_of(0, 0, split_id="a"))
    before.pass_in(batch_of(0, split_id="b"))
    state = before.operator.snapshot_state(1).state

    plain = transform_spec(inverse).create_operator()
    plain.open(FakeContext(operator_id="transform"), state)
    assert plain.snapshot_state(2).state == state
    assert plain.left_out("a") == 2
    plain.discard_split("b")
    assert plain.left_out("b") == 0
    assert plain.snapshot_state(3).state is None


def test_an_abandoned_split_has_no_count_any_more() -> None:
    run = Run(row_transform(inverse))
    run.pass_in(batch_of(0))
    run.operator.discard_split("split")
    assert run.operator.left_out("split") == 0


def test_values_of_any_type_are_shown_in_the_text_of_a_row() -> None:
    import datetime as dt  # noqa: PLC0415, this test alone
    from decimal import Decimal  # noqa: PLC0415, this test alone

    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows:
            raise ValueError("bad")
        return batch

    nanoseconds = pa.array([1], pa.timestamp("ns"))
    columns = {
        "b": pa.array([b"\xffa"]),
        "d": pa.array([Decimal("1.50")]),
        "t": pa.array([dt.datetime(2026, 1, 2, tzinfo=dt.UTC)]),
        "l": pa.array([[{"x": "é", "y": [1.5, None]}]]),
        "n": nanoseconds,
    }
    run = Run(row_transform(fail))
    run.pass_in(placed(pa.record_batch(columns), "split", "/f"))
    assert run.rejects[0]["row"] == (
        '{"b": "\\\\xffa", "d": "1.50", "t": "2026-01-02 00:00:00+00:00", '
        '"l": [{"x": "é", "y": [1.5, null]}], "n": "1970-01-01 00:00:00.000000001"}'
    )


def test_a_decorator_declares_a_function_and_tasks_receive_it() -> None:
    @row_transform
    def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    @row_transform(failures_in_a_row_max=7)
    def bounded(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    assert isinstance(plain, RowTransform)
    rows = batch_of(1)
    assert plain(rows) is rows, "it can be called as before, in tests"
    assert bounded.failures_in_a_row_max == 7
    pickle.loads(pickle.dumps(row_transform(inverse)))
    pickle.loads(pickle.dumps(row_transform(pandas_transform(lambda_free))))


def lambda_free(frame: Any) -> Any:  # noqa: ANN401, a frame of pandas
    return frame.assign(v=100 // frame["n"])


def test_a_pandas_transform_works_row_by_row_too() -> None:
    def checked(frame: Any) -> Any:  # noqa: ANN401, a frame of pandas
        if (frame["n"] == 0).any():
            raise ValueError("zero")
        return frame

    run = Run(row_transform(pandas_transform(checked)))
    run.pass_in(batch_of(3, 0, 4))
    assert [row["n"] for row in run.rows] == [3, 4]
    assert [one["reason"] for one in run.rejects] == ["transform: ValueError: zero"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("errors", ()),
        ("errors", (3,)),
        ("errors", (KeyboardInterrupt,)),
        ("failures_in_a_row_max", 0),
        ("failures_in_a_row_max", "many"),
    ],
)
def test_wrong_options_are_refused_by_name(option: str, value: Any) -> None:  # noqa: ANN401, wrong on purpose
    with pytest.raises((OptionError, OptionsError), match=option):
        row_transform(inverse, **{option: value})


def chain_of(source: FileSource, transform: Any, out: Path) -> Chain:  # noqa: ANN401, as `Job` takes it
    return Chain(
        source=source.spec(), operators=[transform_spec(transform), ParquetSink(out).spec()]
    )


def test_a_transform_leaves_out_rows_only_if_source_and_function_allow_it(tmp_path: Path) -> None:
    def operator_of(bad_rows: str | Path, transform: Any) -> object:  # noqa: ANN401, as above
        source = FileSource(tmp_path / "in", bad_rows=bad_rows)
        chain = chain_of(source, transform, tmp_path / "out")
        return next(
            link.create_operator() for link in chain.operators if link.operator_id == "transform"
        )

    assert isinstance(operator_of(tmp_path / "r", row_transform(inverse)), RowTransformOperator)
    assert isinstance(operator_of("skip", row_transform(inverse)), RowTransformOperator)
    assert not isinstance(operator_of("fail", row_transform(inverse)), RowTransformOperator)
    assert not isinstance(operator_of("skip", inverse), RowTransformOperator)


def test_rejects_are_written_behind_a_transform_whatever_it_is(tmp_path: Path) -> None:
    """So the order of the operators in a history stays, if a transform is declared later."""
    source = FileSource(tmp_path / "in", bad_rows=tmp_path / "rejects")
    for transform in (inverse, row_transform(inverse)):
        links = chain_of(source, transform, tmp_path / "out").links
        assert [link.operator_id for link in links] == ["source", "transform", "rejects", "sink"]


class Taken(Operator):
    """Takes rows."""

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        assert not batch.schema.metadata
        return ()


def run_of(chain: Chain, discovered: SplitsDiscovered, sent: list[UpMessage]) -> AttemptRunner:
    """An attempt that has read the splits to their end."""
    runner = AttemptRunner(
        chain,
        Accepted(
            driver_id="driver-a",
            epoch=0,
            attempt_number=0,
            restored_checkpoint=-1,
            parallelism=1,
            is_batch=False,
            states=(),
        ),
        job_id="ingest",
        subtask=0,
        outbox=sent.append,
        why_over=lambda: None,
    )
    runner.open()
    runner.handle(deliver("source", AddSplits(splits=discovered.splits)))
    runner.handle(deliver("source", NoMoreSplits(), event_id=1))
    return runner


def test_the_end_of_a_split_has_the_rows_that_a_transform_left_out(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("n,s\n1,x\n0,y\nbad,z\n5,w\n")
    source = FileSource(tmp_path / "in", bad_rows="skip", schema="n bigint, s string")

    def filtered(batch: pa.RecordBatch) -> pa.RecordBatch:
        small = [n < 5 for n in batch.column("n").to_pylist()]
        return inverse(batch.filter(pa.array(small, pa.bool_())))

    sink = OperatorSpec(operator_id="sink", create_operator=Taken)
    chain = Chain(source=source.spec(), operators=[transform_spec(row_transform(filtered)), sink])
    sent: list[UpMessage] = []
    runner = run_of(chain, source.discover(), sent)
    while runner.step().status is not StepStatus.COMPLETED:
        pass
    (end,) = [message for message in sent if isinstance(message, FinishSplit)]
    assert (end.finished.rows, end.rejected) == (2, 2), "1 and 5 are good, though 5 is filtered"
