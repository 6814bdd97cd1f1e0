"""`coordlog prune` of a log that lacks its beginning."""

from __future__ import annotations

from click.testing import CliRunner

from coordlog.cli.main import main
from coordlog.log.memory import MemoryLog
from coordlog.schemas.record import Kind
from histories.hand_history import HandHistory
from histories.one_log import OneLog


def test_prune_of_a_log_without_its_beginning_requests_no_take_over() -> None:
    """That option is of no use: a prune judges each record."""
    made = HandHistory("job")
    made.epoch()
    made.turn(made.record(Kind.COORDINATORS_STARTED))
    log = MemoryLog("job")
    log.writer().append(made.records, timeout_s=1.0)
    log.delete_below(1)
    for more in ((), ("--take-over",)):
        arguments = ("prune", "job", "--yes", *more)
        lost = CliRunner().invoke(main, arguments, obj=lambda _servers: OneLog(log))
        assert lost.exit_code == 2, lost.stderr
        assert "the log begins here" in lost.stderr
        assert "pass --take-over" not in lost.stderr
        assert "nothing was removed" in lost.stderr
