"""The attempts of a job, and the work on splits that was thrown away, in Spark SQL over `history`.

The same tables as `coordlog.projections.attempts` and `split_audit` fold in Python, said in another
language: a test holds the two together. Order is by offset: among records that count it is the
order of the sequences. `split_audit` says what a hold is, and when it is thrown away.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from coordlog.schemas.builtin import SplitFinished, SplitSkipped
from coordlog.schemas.payload import Payload, payload_type_of
from coordlog.schemas.source_events import AddSplits

__all__ = ["STORED", "view_queries"]

_ASSIGNMENTS: Final = """
SELECT h.offset, h.sequence, h.timestamp, h.operator_id, h.subtask, h.attempt_number,
       split.split_id
FROM {p}counted AS h
LATERAL VIEW explode(from_avro(h.payload, '{add_splits}', map()).splits) AS split
WHERE h.kind = 'EVENT_TO_SUBTASK' AND h.payload_type = '{add_splits_key}'
"""

_FINISHES: Final = """
SELECT offset, sequence, timestamp, operator_id, subtask, attempt_number, last_barrier,
       coalesce(attributes['kept'] = 'true', false) AS is_kept,
       done.split_id, done.rows
FROM (SELECT *, from_avro(payload, '{split_finished}', map()) AS done
      FROM {p}counted
      WHERE kind = 'SPLIT_FINISHED' AND payload_type = '{split_finished_key}')
"""

_SKIPS: Final = """
SELECT offset, sequence, timestamp, operator_id, subtask, attempt_number, last_barrier, reason,
       skip.split_id, skip.rows
FROM (SELECT *, from_avro(payload, '{split_skipped}', map()) AS skip
      FROM {p}counted
      WHERE kind = 'FACT' AND payload_type = '{split_skipped_key}')
"""

_READ_ENDS: Final = """
SELECT offset, operator_id, subtask, attempt_number, last_barrier, is_kept, split_id,
       false AS is_skip
FROM {p}finishes
UNION ALL
SELECT offset, operator_id, subtask, attempt_number, last_barrier, false, split_id, true
FROM {p}skips WHERE subtask IS NOT NULL
"""

_RESETS: Final = """
SELECT offset, sequence, kind, subtask, checkpoint_id FROM {p}counted
WHERE kind IN ('SUBTASK_RESET', 'RESET_TO_CHECKPOINT')
"""

_CUTS: Final = """
SELECT checkpoint_id, operator_id, max(offset) AS offset FROM {p}counted
WHERE kind = 'COORDINATOR_CHECKPOINTED' GROUP BY checkpoint_id, operator_id
"""

_ATTEMPTS: Final = """
WITH started AS (
  SELECT *, lead(offset) OVER (PARTITION BY subtask ORDER BY offset) AS next_offset
  FROM {p}counted WHERE kind = 'ATTEMPT_STARTED'
), marks AS (
  SELECT offset, kind, timestamp, reason, subtask, attempt_number FROM {p}counted
  WHERE kind IN ('SUBTASK_COMPLETED', 'ATTEMPT_FAILED',
                 'EPOCH_STARTED', 'RESET_TO_CHECKPOINT', 'JOB_FAILED')
), ends AS (
  SELECT s.subtask, s.attempt_number,
         min_by(struct(m.kind, m.timestamp, m.reason), m.offset) AS first_end
  FROM started AS s JOIN marks AS m
    ON m.offset > s.offset
   AND (m.subtask IS NULL
        OR (m.subtask = s.subtask AND m.attempt_number = s.attempt_number))
  GROUP BY s.subtask, s.attempt_number
), back AS (
  SELECT s.subtask, s.attempt_number,
         sort_array(collect_list(struct(r.offset, r.checkpoint_id))).checkpoint_id AS resets
  FROM started AS s JOIN {p}resets AS r
    ON r.offset > s.offset AND (s.next_offset IS NULL OR r.offset < s.next_offset)
   AND (r.subtask IS NULL OR r.subtask = s.subtask)
  GROUP BY s.subtask, s.attempt_number
), did AS (
  SELECT subtask, attempt_number,
         count_if(kind = 'EVENT_TO_COORDINATOR') AS events_up,
         count_if(kind = 'EVENT_TO_SUBTASK') AS events_down,
         count_if(kind = 'EVENT_ACKED') AS events_acked,
         count_if(kind = 'EVENT_FAILED') AS events_failed,
         count_if(kind = 'CHECKPOINT_ACKED') AS checkpoints_acked
  FROM {p}counted GROUP BY subtask, attempt_number
), given AS (
  SELECT subtask, attempt_number, count(*) AS splits_assigned
  FROM {p}assignments GROUP BY subtask, attempt_number
), done AS (
  SELECT subtask, attempt_number, count(*) AS splits_finished, sum(rows) AS rows
  FROM {p}finishes GROUP BY subtask, attempt_number
)
SELECT subtask, attempt_number, s.epoch, s.driver_id,
       try_cast(s.attributes['stage_run'] AS INT) AS stage_run,
       try_cast(s.attributes['spark_task_attempt_id'] AS BIGINT) AS spark_task_attempt_id,
       try_cast(s.attributes['spark_attempt_number'] AS INT) AS spark_attempt_number,
       s.attributes['host'] AS host,
       try_cast(s.attributes['pid'] AS INT) AS pid,
       s.checkpoint_id AS restored_from,
       s.timestamp AS started_at,
       CASE first_end.kind
         WHEN 'SUBTASK_COMPLETED' THEN 'completed'
         WHEN 'EPOCH_STARTED' THEN 'fenced'
         ELSE if(first_end IS NULL, 'running', 'failed')
       END AS ended,
       first_end.timestamp AS ended_at,
       CASE first_end.kind
         WHEN 'ATTEMPT_FAILED' THEN first_end.reason
         WHEN 'EPOCH_STARTED' THEN concat('its driver, of epoch ', s.epoch, ', is gone')
         WHEN 'RESET_TO_CHECKPOINT' THEN 'global failover'
         WHEN 'JOB_FAILED' THEN 'the job has failed'
       END AS reason,
       coalesce(splits_assigned, 0) AS splits_assigned,
       coalesce(splits_finished, 0) AS splits_finished,
       coalesce(rows, 0) AS rows,
       coalesce(events_up, 0) AS events_up,
       coalesce(events_down, 0) AS events_down,
       coalesce(events_acked, 0) AS events_acked,
       coalesce(events_failed, 0) AS events_failed,
       coalesce(checkpoints_acked, 0) AS checkpoints_acked,
       coalesce(resets, array()) AS resets
FROM started AS s
LEFT JOIN ends USING (subtask, attempt_number)
LEFT JOIN back USING (subtask, attempt_number)
LEFT JOIN did USING (subtask, attempt_number)
LEFT JOIN given USING (subtask, attempt_number)
LEFT JOIN done USING (subtask, attempt_number)
"""

_HOLDS: Final = """
WITH assigned AS (
  SELECT a.operator_id, a.split_id, a.subtask, a.offset, min(r.offset) AS undone
  FROM {p}assignments AS a
  LEFT JOIN {p}reset_cuts AS r
    ON r.offset > a.offset AND r.operator_id = a.operator_id AND a.offset > r.cut
   AND (r.subtask IS NULL OR r.subtask = a.subtask)
  GROUP BY a.operator_id, a.split_id, a.subtask, a.offset
), finished AS (
  SELECT f.operator_id, f.split_id, f.subtask, f.offset, f.last_barrier, min(r.offset) AS undone
  FROM {p}read_ends AS f
  LEFT JOIN {p}resets AS r
    ON r.offset > f.offset AND (r.subtask IS NULL OR r.subtask = f.subtask)
   AND f.last_barrier >= r.checkpoint_id AND NOT (f.is_kept AND r.kind = 'SUBTASK_RESET')
  GROUP BY f.operator_id, f.split_id, f.subtask, f.offset, f.last_barrier
), restored AS (
  SELECT s.offset, s.subtask, s.attempt_number, s.checkpoint_id, c.operator_id, c.offset AS cut
  FROM {p}counted AS s
  JOIN {p}cuts AS c ON c.checkpoint_id = s.checkpoint_id
  LEFT SEMI JOIN {p}counted AS k
    ON k.kind = 'CHECKPOINT_ACKED' AND k.subtask = s.subtask AND k.checkpoint_id = s.checkpoint_id
  WHERE s.kind = 'ATTEMPT_STARTED'
), inherited AS (
  SELECT a.operator_id, a.split_id, t.subtask, t.attempt_number,
         t.offset AS began, a.offset AS assigned
  FROM restored AS t
  JOIN assigned AS a
    ON a.subtask = t.subtask AND a.operator_id = t.operator_id AND a.offset < t.cut
   AND (a.undone IS NULL OR a.undone > t.cut)
  LEFT ANTI JOIN finished AS f
    ON f.subtask = t.subtask AND f.operator_id = a.operator_id AND f.split_id = a.split_id
   AND f.offset > a.offset AND f.offset < t.offset AND f.last_barrier < t.checkpoint_id
   AND (f.undone IS NULL OR f.undone > t.cut)
)
SELECT operator_id, split_id, subtask, attempt_number,
       min(began) AS began, min_by(assigned, began) AS assigned
FROM (
  SELECT operator_id, split_id, subtask, attempt_number, offset AS began, offset AS assigned
  FROM {p}assignments
  UNION ALL
  SELECT operator_id, split_id, subtask, attempt_number, offset, NULL FROM {p}read_ends
  UNION ALL
  SELECT operator_id, split_id, subtask, attempt_number, began, assigned FROM inherited
)
GROUP BY operator_id, split_id, subtask, attempt_number
"""

_RESET_CUTS: Final = """
SELECT r.offset, r.subtask, r.checkpoint_id, o.operator_id, coalesce(c.offset, -1) AS cut
FROM {p}resets AS r
CROSS JOIN (SELECT DISTINCT operator_id FROM {p}assignments) AS o
LEFT JOIN {p}cuts AS c ON c.checkpoint_id = r.checkpoint_id AND c.operator_id = o.operator_id
"""

_THROWN_AWAY: Final = """
WITH finished AS (
  SELECT operator_id, split_id, subtask, attempt_number,
         max_by(last_barrier, offset) AS last_barrier, max_by(is_kept, offset) AS is_kept,
         max_by(is_skip, offset) AS is_skip
  FROM {p}read_ends GROUP BY operator_id, split_id, subtask, attempt_number
), lost AS (
  SELECT h.operator_id, h.split_id, h.subtask, h.attempt_number, h.assigned,
         f.last_barrier IS NOT NULL AND NOT f.is_skip AS was_finished,
         min_by(struct(r.offset, r.sequence, r.checkpoint_id), r.offset) AS reset
  FROM {p}holds AS h
  LEFT JOIN finished AS f USING (operator_id, split_id, subtask, attempt_number)
  JOIN {p}resets AS r
    ON r.offset > h.began AND (r.subtask IS NULL OR r.subtask = h.subtask)
   AND (f.last_barrier IS NULL
        OR (f.last_barrier >= r.checkpoint_id AND NOT (f.is_kept AND r.kind = 'SUBTASK_RESET')))
  GROUP BY ALL
), reread AS (
  SELECT l.operator_id, l.split_id, l.subtask, l.attempt_number,
         min_by(struct(h.subtask, h.attempt_number), h.began) AS reread_by
  FROM lost AS l
  JOIN {p}holds AS h
    ON h.operator_id = l.operator_id AND h.split_id = l.split_id AND h.began > l.reset.offset
  GROUP BY l.operator_id, l.split_id, l.subtask, l.attempt_number
)
SELECT l.operator_id, l.split_id, l.subtask, l.attempt_number,
       l.reset.checkpoint_id AS checkpoint_id, l.reset.sequence AS sequence,
       l.assigned IS NOT NULL AND l.assigned > coalesce(c.offset, -1) AS is_whole,
       l.was_finished,
       coalesce(a.reason, concat('the job went back to checkpoint ', l.reset.checkpoint_id))
         AS reason,
       w.reread_by.subtask AS reread_subtask, w.reread_by.attempt_number AS reread_attempt
FROM lost AS l
LEFT JOIN {p}cuts AS c
  ON c.checkpoint_id = l.reset.checkpoint_id AND c.operator_id = l.operator_id
LEFT JOIN {p}attempts AS a
  ON a.subtask = l.subtask AND a.attempt_number = l.attempt_number
LEFT JOIN reread AS w
  ON w.operator_id = l.operator_id AND w.split_id = l.split_id
 AND w.subtask = l.subtask AND w.attempt_number = l.attempt_number
"""

_SPLITS: Final = """
WITH kept AS (
  SELECT f.operator_id, f.split_id,
         max_by(struct(f.subtask, f.attempt_number, f.rows), f.offset) AS by
  FROM {p}finishes AS f
  LEFT ANTI JOIN {p}thrown_away AS t
    ON t.operator_id = f.operator_id AND t.split_id = f.split_id
   AND t.subtask = f.subtask AND t.attempt_number = f.attempt_number
  GROUP BY f.operator_id, f.split_id
), skipped AS (
  SELECT operator_id, split_id, max_by(reason, offset) AS because
  FROM {p}skips GROUP BY operator_id, split_id
), let_go AS (
  SELECT s.operator_id, s.split_id, max_by(s.rows, s.offset) AS rows
  FROM {p}skips AS s
  LEFT ANTI JOIN {p}thrown_away AS t
    ON t.operator_id = s.operator_id AND t.split_id = s.split_id
   AND t.subtask = s.subtask AND t.attempt_number = s.attempt_number
  WHERE s.subtask IS NOT NULL
  GROUP BY s.operator_id, s.split_id
), lost AS (
  SELECT operator_id, split_id, count(*) AS times, count_if(is_whole) AS times_whole
  FROM {p}thrown_away GROUP BY operator_id, split_id
), given AS (
  SELECT operator_id, split_id, count(*) AS times FROM {p}assignments
  GROUP BY operator_id, split_id
)
SELECT operator_id, split_id, coalesce(g.times, 0) AS assigned,
       k.by.subtask AS finished_subtask, k.by.attempt_number AS finished_attempt,
       coalesce(k.by.rows, e.rows) AS rows, p.because AS skipped_because,
       coalesce(l.times, 0) AS thrown_away, coalesce(l.times_whole, 0) AS thrown_away_whole
FROM (SELECT operator_id, split_id FROM {p}holds
      UNION SELECT operator_id, split_id FROM {p}skips)
LEFT JOIN skipped AS p USING (operator_id, split_id)
LEFT JOIN let_go AS e USING (operator_id, split_id)
LEFT JOIN given AS g USING (operator_id, split_id)
LEFT JOIN kept AS k USING (operator_id, split_id)
LEFT JOIN lost AS l USING (operator_id, split_id)
"""

_COUNTED: Final = """
SELECT * EXCEPT (kind),
       coalesce(kind, raise_error(concat('the record at offset ', offset,
         ' counts and cannot be read: it is damaged, or of another version of coordlog'))) AS kind
FROM {p}history WHERE counts
"""

_BY_NAME: Final = {
    "counted": _COUNTED,
    "resets": _RESETS,
    "cuts": _CUTS,
    "assignments": _ASSIGNMENTS,
    "finishes": _FINISHES,
    "skips": _SKIPS,
    "read_ends": _READ_ENDS,
    "reset_cuts": _RESET_CUTS,
    "attempts": _ATTEMPTS,
    "holds": _HOLDS,
    "thrown_away": _THROWN_AWAY,
    "splits": _SPLITS,
}
"""The views, each after those that it uses."""

STORED: Final = frozenset(_BY_NAME) - {"counted", "thrown_away", "splits"}
"""The views whose rows are to be stored when they are made: others use them more than once, and
Spark would plan and compute each use anew."""


def view_queries(prefix: str = "") -> Iterator[tuple[str, str]]:
    """The views over `history`, each after those that it uses: name, without prefix, and SQL.

    Args:
        prefix: Before each view's name in the queries, that of `history` included.
    """
    places = {
        "p": prefix,
        "add_splits": _literal(AddSplits),
        "add_splits_key": payload_type_of(AddSplits).key,
        "split_finished": _literal(SplitFinished),
        "split_skipped": _literal(SplitSkipped),
        "split_skipped_key": payload_type_of(SplitSkipped).key,
        "split_finished_key": payload_type_of(SplitFinished).key,
    }
    for name, query in _BY_NAME.items():
        text = query
        for place, value in places.items():
            text = text.replace(f"{{{place}}}", value)
        yield name, text


def _literal(payload: type[Payload]) -> str:
    """The schema inside a string literal in SQL, however the session reads backslashes."""
    text = json.dumps(json.loads(payload_type_of(payload).schema_json), ensure_ascii=False)
    assert "\\" not in text
    return text.replace("'", "\\u0027")
