"""What became of one file's changes: each that no test found, as a diff, then the figures; for `mutants.sh`."""

import sys

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import WorkerOutcome

file, session = sys.argv[1:]
tried, survived = 0, []
with use_db(session, WorkDB.Mode.open) as db:
    for _, result in db.completed_work_items:
        if result.worker_outcome is WorkerOutcome.SKIPPED:
            continue
        tried += 1
        if not result.is_killed:
            survived.append(result.diff or result.output)
    left = sum(1 for _ in db.pending_work_items)
for diff in sorted(survived):
    sys.stdout.write(f"{diff}\n\n")
sys.stdout.write(f"{file}: {tried} changes, {tried - len(survived)} found, {len(survived)} not")
sys.stdout.write(f"; {left} not tried\n" if left else "\n")
