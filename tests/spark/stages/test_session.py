"""A session of our own: its output, Ctrl-C, and its end, in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import psutil
import pytest

from coordlog.errors import OptionError
from coordlog.spark_integration.session import local_session, plain_interrupts

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

WAIT_S: Final = 200.0

PROGRAM: Final = """
import json, sys, threading, time
from pathlib import Path
from coordlog.spark_integration.session import end_session, local_session, plain_interrupts

folder = Path(sys.argv[1])
spark = local_session(2, log_file=folder / "logs" / "spark.log")
jvm = spark.sparkContext._gateway.proc.pid
flag = str(folder / "go on")

def task(batches):
    import os, time
    for batch in batches:
        while not os.path.exists(flag):
            time.sleep(0.05)
        yield batch

outcome = []

def run():
    try:
        outcome.append(spark.range(0, 2, 1, 2).mapInArrow(task, "id long").count())
    except Exception as error:
        outcome.append(repr(error))

running = threading.Thread(target=run)
running.start()
tracker = spark.sparkContext.statusTracker()
interrupted = False
try:
    with plain_interrupts():
        while not tracker.getActiveStageIds():
            time.sleep(0.05)
        (folder / "ready").touch()
        while True:
            time.sleep(0.05)
except KeyboardInterrupt:
    interrupted = True
time.sleep(1)
survived = bool(tracker.getActiveStageIds())
Path(flag).touch()
running.join()
end_session(spark)
print(json.dumps({
    "jvm": jvm,
    "interrupted": interrupted,
    "survived": survived,
    "outcome": outcome,
    "threads": [t.name for t in threading.enumerate() if not t.daemon],
}))
"""


@pytest.mark.slow
@pytest.mark.kill
def test_ctrl_c_reaches_python_alone_and_the_end_leaves_no_process(
    tmp_path: Path,
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # its own process group, as a terminal's foreground job has
    )
    try:
        deadline = time.monotonic() + WAIT_S
        while not (tmp_path / "ready").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "the session is up"
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # Ctrl-C goes to all of the group
        out, err = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.communicate()

    told = json.loads(out)
    assert err == ""
    assert told["interrupted"]
    assert told["survived"], "the job of the session was not cancelled"
    assert told["outcome"] == [2]
    assert told["threads"] == ["MainThread"]
    assert not Path(f"/proc/{told['jvm']}").exists()
    assert "log4j" in (tmp_path / "logs" / "spark.log").read_text()


STARTING: Final = """
from coordlog.spark_integration.session import local_session
local_session(1)
"""


@pytest.mark.kill
def test_ctrl_c_while_the_jvm_starts_leaves_no_jvm() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STARTING], stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + WAIT_S
        jvms: list[psutil.Process] = []
        while not jvms:
            assert process.poll() is None
            assert time.monotonic() < deadline, "its JVM starts"
            time.sleep(0.01)
            children = psutil.Process(process.pid).children()
            jvms = [child for child in children if child.cmdline()[-1:] == ["pyspark-shell"]]
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == -signal.SIGINT
        _, alive = psutil.wait_procs(jvms, timeout=10)
        for jvm in alive:
            jvm.kill()
    finally:
        process.kill()
        process.wait()

    assert alive == []


QUERY: Final = """
import sys
from pathlib import Path
from coordlog.log.memory import MemoryLog
from coordlog.spark_integration import FileSource, coordinated, query_session

folder = Path(sys.argv[1])
spark = query_session(2, settings={"spark.ui.port": "0"})
for name in (
    "spark.master", "spark.task.maxFailures", "spark.ui.enabled", "spark.sql.shuffle.partitions",
    "spark.driver.extraJavaOptions",
):
    print(name, spark.sparkContext.getConf().get(name, "Spark's own"))
print("ui", bool(spark.sparkContext.uiWebUrl))
with coordinated(spark, "reads", FileSource(folder / "in"), log=MemoryLog("reads")) as reads:
    frame = reads.read()
    print("rows", len(frame.collect()))
try:
    frame.collect()  # planned before, so that its tasks are the first to ask
except Exception as error:
    print("error", " ".join(str(error).split()))
"""


def test_a_query_session_keeps_sparks_settings_and_used_frames_fail_soon(
    tmp_path: Path,
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("i\n1\n2\n", encoding="utf-8")

    ran = subprocess.run(
        [sys.executable, "-c", QUERY, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )

    said = {line.partition(" ")[0]: line.partition(" ")[2] for line in ran.stdout.splitlines()}
    assert said["spark.master"] == "local[2,4]"
    assert said["spark.task.maxFailures"] == "4"
    assert said["spark.ui.enabled"] == "Spark's own"
    assert said["spark.sql.shuffle.partitions"] in ("200", "Spark's own")
    assert "TieredStopAtLevel" not in said["spark.driver.extraJavaOptions"]
    assert said["ui"] == "True"
    assert said["rows"] == "2"
    assert "the service of job reads has ended" in said["error"]
    assert "create the DataFrame and run the query again" in said["error"]


def test_plain_interrupts_puts_back_what_was_there() -> None:
    before = signal.getsignal(signal.SIGINT)

    with plain_interrupts():
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("slots", [0, -1, 10_001])
def test_a_number_of_slots_that_cannot_be_is_refused(slots: int) -> None:
    with pytest.raises(OptionError, match=f"slots is {slots}"):
        local_session(slots)


AFTER_A_DEAD_JVM: Final = """
import os, signal
from pathlib import Path
from coordlog.errors import EnvironmentSetupError
from coordlog.log.memory import MemoryLog
from coordlog.spark_integration import FileSource, coordinated
from coordlog.spark_integration.session import end_session, local_session

def killed():
    spark = local_session(1)
    process = spark.sparkContext._gateway.proc
    process.send_signal(signal.SIGKILL)
    process.wait()
    return spark

spark = killed()
try:
    coordinated(spark, "reads", FileSource("nowhere"), log=MemoryLog("reads")).start()
except EnvironmentSetupError as error:
    print("refused", error)
print("rows", local_session(1).range(3).count())
end_session(killed())
print("again", local_session(1).range(4).count())
"""


def lines_of(program: str, folder: Path) -> list[str]:
    """What `program` prints, run in a process of its own in `folder`."""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        cwd=folder,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return ran.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.kill
def test_after_the_death_of_its_jvm_a_process_makes_a_new_session(tmp_path: Path) -> None:
    """As in a notebook, which lives on; Spark itself goes on to hand out the dead one."""
    printed = lines_of(AFTER_A_DEAD_JVM, tmp_path)
    lines = {line.split()[0]: line.partition(" ")[2] for line in printed}
    assert "Spark session has ended" in lines["refused"]
    assert "start the job again with a new session" in lines["refused"]
    assert (lines["rows"], lines["again"]) == ("3", "4")


A_JVM_THAT_DIES_AT_ONCE: Final = """
from pyspark import SparkContext
from coordlog.errors import SessionLostError
from coordlog.spark_integration import session

start_jvm = session._start_jvm

class Ending:
    # A process that has closed its sockets, and has not ended yet.
    def __init__(self, process):
        self.process = process

    def poll(self):
        return None

    def wait(self, timeout=None):
        return self.process.wait(timeout)

def start_and_kill(*arguments):
    start_jvm(*arguments)
    process = SparkContext._gateway.proc
    process.kill()
    process.wait()
    if IS_ENDING:
        SparkContext._gateway.proc = Ending(process)

session._start_jvm = start_and_kill
try:
    session.local_session(1)
except SessionLostError as error:
    print("lost", error)
session._start_jvm = start_jvm
print("rows", session.local_session(1).range(3).count())
"""


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.parametrize("is_ending", [False, True], ids=["ended", "ending"])
def test_a_jvm_that_dies_while_a_session_is_made_is_named(
    tmp_path: Path, *, is_ending: bool
) -> None:
    program = f"IS_ENDING = {is_ending}\n{A_JVM_THAT_DIES_AT_ONCE}"
    lost, rows = lines_of(program, tmp_path)
    assert lost.startswith("lost Spark's JVM has ended while the session was made (")
    assert rows == "rows 3"


A_JVM_THAT_DOES_NOT_BEGIN: Final = """
import os
from coordlog.errors import SessionLostError
from coordlog.spark_integration.session import local_session

os.environ["JAVA_TOOL_OPTIONS"] = "-Xms1t"
try:
    local_session(1)
except SessionLostError as error:
    print("lost", error)
del os.environ["JAVA_TOOL_OPTIONS"]
print("rows", local_session(1).range(3).count())
"""


@pytest.mark.slow
def test_a_jvm_that_does_not_begin_is_named(tmp_path: Path) -> None:
    lines = lines_of(A_JVM_THAT_DOES_NOT_BEGIN, tmp_path)  # with the JVM's own
    lost, rows = (line for line in lines if line.startswith(("lost", "rows")))
    assert lost.startswith("lost Spark's JVM has ended while the session was made (")
    assert "see its output for the cause" in lost
    assert rows == "rows 3"


A_STANDING_JVM: Final = """
import faulthandler, signal
from coordlog.spark_integration import session
from coordlog.spark_integration.session import end_session, local_session

spark = local_session(1)
process = spark.sparkContext._gateway.proc
process.send_signal(signal.SIGSTOP)
session.STAGE_END_TIMEOUT_S = 2
faulthandler.dump_traceback_later(45, exit=True)
end_session(spark)
print("ended", process.poll())
faulthandler.cancel_dump_traceback_later()
print("rows", local_session(1).range(3).count())
"""


@pytest.mark.slow
@pytest.mark.kill
def test_a_jvm_that_stands_still_is_killed_at_the_end(tmp_path: Path) -> None:
    """Else a job's process would live on for ever, with its job finished."""
    assert lines_of(A_STANDING_JVM, tmp_path) == [f"ended {-signal.SIGKILL}", "rows 3"]
