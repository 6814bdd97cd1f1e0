"""A real topic is exported by the command and replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from coordlog.cli.main import main
from coordlog.log.broker.embedded import EmbeddedBroker
from coordlog.log.file import ExportedLog
from coordlog.log.kafka import KafkaLog
from coordlog.testing import HandDrivenJob, replay
from jobs.quota import User, quota_chain

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.mark.clause("K7")
def test_a_topic_is_exported_whole_and_replayed(broker: EmbeddedBroker, tmp_path: Path) -> None:
    log = KafkaLog.for_job("exported", broker.bootstrap_servers, fsync=False)
    log.create()
    try:
        job = HandDrivenJob(quota_chain(), job_id="exported", log=log)  # type: ignore[arg-type]
        (attempt,) = job.register_all()
        user = User.of(attempt)
        for _ in range(5):
            user.say()
            job.trigger()
            user.handle_all()
        identity = log.identity
        records = list(log.read(log.start_offset(), log.high_watermark()))
        job.crash()
    finally:
        log.close()
    path = tmp_path / "exported.avro"

    done = CliRunner().invoke(
        main,
        ["export", "exported", str(path), "--bootstrap-servers", broker.bootstrap_servers],
    )

    assert done.exit_code == 0, done.output
    read = ExportedLog(path)
    assert list(read.read(read.start_offset(), read.high_watermark())) == records
    assert read.identity.topic_id == identity.topic_id
    assert replay(path, quota_chain()).turn_count > 10
