// The facts of a document, with the questions that several panels ask. See the docstring of coordlog/report/document.py.

const END_CLASS = { completed: "ok", failed: "bad", fenced: "warn", stopped: "stop", running: "run" };
const STATE_CLASS = {
  new: "idle", progressing: "run", slow: "warn", stuck: "bad", stopped: "stop", finished: "ok", failed: "bad",
};

/** Row of the last of the values, which ascend, up to a limit; -1 if there is none. */
function lastUpTo(values, limit) {
  let [low, high] = [0, values.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= limit) low = middle + 1; else high = middle;
  }
  return low - 1;
}

/** Columns that name a row of a table whatever other rows there are; texts by their number end in `*`. */
const KEYS = {
  attempts: ["sub", "att"], splits: ["op*", "id"], checkpoints: ["cp"], epochs: ["epoch"], failures: ["off", "scope*"],
  resets: ["off", "sub"], commits: ["sequence"],
};

class Facts {
  constructor(facts) {
    Object.assign(this, facts);
    this.records = null;
    this._index = new Map();
    this.moments = [];
    for (const step of facts.moments) this.moments.push((this.moments.at(-1) ?? 0) + step);
  }

  /** Row in `moments` of the last one up to an offset; 0 if there is none. */
  momentRow(offset) { return Math.max(0, lastUpTo(this.moments, offset)); }

  /** Text by number. */
  text(index) { return index === null || index === undefined ? null : this.texts[index]; }

  /** Number of rows of a table. */
  size(table) {
    for (const column of Object.values(this[table])) return column.length;
    return 0;
  }

  /** Whether a fact with that offset is so at the moment; a fact of before a prune has none, and is so. */
  isSo(offset, moment) { return offset === null || offset <= moment; }

  /** Whether an end with that offset has come at the moment. */
  isOver(offset, moment) { return offset !== null && offset <= moment; }

  /** Row numbers of a table whose `off` is not above the moment. */
  rows(table, moment) {
    const offsets = this[table].off;
    const rows = [];
    for (let row = 0; row < offsets.length; row += 1) if (this.isSo(offsets[row], moment)) rows.push(row);
    return rows;
  }

  /** Rows of a table by the value of a column; made once. */
  by(table, column) {
    const key = `${table}.${column}`;
    let index = this._index.get(key);
    if (index === undefined) {
      index = new Map();
      this[table][column].forEach((value, row) => {
        const rows = index.get(value);
        if (rows === undefined) index.set(value, [row]); else rows.push(row);
      });
      this._index.set(key, index);
    }
    return index;
  }

  /** Name of a row among all rows of its table, the same in newer facts; null for a table without such names. */
  keyOf(table, row) {
    if (table === "holds") {
      const { split, sub, att } = this.holds;
      return JSON.stringify([this.keyOf("splits", split[row]), sub[row], att[row]]);
    }
    if (KEYS[table] === undefined) return null;
    return JSON.stringify(KEYS[table].map((name) => (name.endsWith("*") ? this.text(this[table][name.slice(0, -1)][row]) : this[table][name][row])));
  }

  /** Row with a name, or -1. */
  rowOf(table, key) {
    for (let row = 0; row < this.size(table); row += 1) if (this.keyOf(table, row) === key) return row;
    return -1;
  }

  /** How an attempt had ended at the moment. */
  attemptEnd(row, moment) {
    const { end_off: ends, end } = this.attempts;
    return this.isOver(ends[row], moment) ? this.text(end[row]) : "running";
  }

  /** How a checkpoint had ended at the moment: completed, aborted, abandoned or pending. */
  checkpointEnd(row, moment) {
    const c = this.checkpoints;
    if (this.isOver(c.abandoned_off[row], moment)) return "abandoned";
    return this.isOver(c.end_off[row], moment) ? this.text(c.end[row]) : "pending";
  }

  /** Place of a split at the moment. */
  splitPlace(split, moment) {
    const { holds, splits } = this;
    let place = "waiting";
    for (const row of this.by("holds", "split").get(split) || []) {
      if (!this.isSo(holds.off[row], moment) || this.isOver(holds.thrown_off[row], moment)) continue;
      if (holds.is_skipped[row] && this.isOver(holds.end_off[row], moment)) continue;
      if (this.isOver(holds.committed_off[row], moment)) return "committed";
      if (this.isOver(holds.cp_off[row], moment)) place = "in checkpoint";
      else if (this.isOver(holds.end_off[row], moment)) place = "finished";
      else if (place === "waiting") place = "assigned";
    }
    if (this.isOver(splits.skipped_off[split], moment) && (place === "waiting" || place === "assigned")) return "skipped";
    if (this.isOver(splits.withdrawn_off[split], moment) && place === "waiting") return "withdrawn";
    return place;
  }

  /** Row of `verdicts` that holds at the moment, or -1; at the end of the log the last one. */
  verdictRow(moment) {
    const offsets = this.verdicts.off;
    let last = -1;
    for (let row = 0; row < offsets.length && offsets[row] <= moment; row += 1) {
      const isBetween = offsets[row] === moment && moment < this.last_off
        && this.verdicts.t[row] > this.timeOf(moment);
      if (!isBetween) last = row;
    }
    return last;
  }

  /** Time of an offset: that of the last record that counts up to it. */
  timeOf(offset) {
    const { off, t } = this.records === null ? this.clock : this.records;
    if (off.length === 0) return 0;
    let low = Math.max(0, lastUpTo(off, offset));
    if (this.records !== null) while (low > 0 && this.records.valid[low] !== 0) low -= 1;
    return t[low] ?? 0;
  }

  /** A time as text, UTC; with the date if the job took more than a day. */
  clockText(t) {
    if (t === null || t === undefined) return "?";
    const when = new Date((this.t0 + t) / 1000);
    if (Number.isNaN(when.getTime())) return `${t} µs`;
    const iso = when.toISOString();
    return this.last_t > 86400e6 ? `${iso.slice(0, 10)} ${iso.slice(11, 19)}` : iso.slice(11, 23);
  }

  checkpointText(number) { return number === -1 ? "the start" : `checkpoint ${number}`; }

  attemptText(sub, att) { return `attempt ${att} of subtask ${sub}`; }
}
