// Details of the selected thing: its facts, the records behind it, and their chain of causes.

const RECORDS_SHOWN = 60;

/** Facts of a selection as [name, value] pairs, and a test of the records behind it; null: none. */
const DETAILS = {
  attempts({ facts, moment }, row) {
    const a = facts.attempts;
    const end = facts.attemptEnd(row, moment);
    const holds = (facts.by("holds", "attempt").get(row) || []).filter((hold) => facts.isOver(facts.holds.end_off[hold], moment));
    const rows = holds.reduce((sum, hold) => sum + (facts.holds.rows[hold] || 0), 0);
    const isOf = (records, record) => records.sub[record] === a.sub[row]
      && (records.att[record] === a.att[row] || (records.att[record] === null && records.off[record] === a.end_off[row]));
    return {
      title: `Attempt ${a.att[row]} of subtask ${a.sub[row]}`,
      pairs: [["end", end], ["why", end === "running" ? null : facts.text(a.reason[row])], ["epoch", a.epoch[row]],
        ["ran on", a.host[row] === null ? null : `${facts.text(a.host[row])}, process ${a.pid[row] ?? "?"}`],
        ["began", facts.clockText(a.t[row])],
        ["lasted", end === "running" || a.t[row] === null ? null : lasted(a.end_t[row] - a.t[row])],
        ["from", facts.checkpointText(a.from_cp[row])], ["splits ended", number(holds.length)], ["rows of these", number(rows)]],
      isOf, isShort: (kind) => !["EVENT_ACKED", "BARRIER_INJECTED", "CHECKPOINT_ACKED"].includes(kind),
    };
  },
  holds({ facts, moment }, row) {
    const h = facts.holds;
    const isThrown = facts.isOver(h.thrown_off[row], moment);
    const lost = (facts.by("lost", "hold").get(row) || [])[0];
    const next = lost === undefined ? null : facts.lost.reread[lost];
    return {
      title: facts.splits.id[h.split[row]],
      pairs: [["read by", facts.attemptText(h.sub[row], h.att[row])],
        ["place now", facts.splitPlace(h.split[row], moment)], ["rows", h.end_off[row] === null ? null : number(h.rows[row])],
        ["assigned", facts.clockText(h.t[row])], ["ended", h.end_t[row] === null ? null : facts.clockText(h.end_t[row])],
        ["thrown away", isThrown && lost !== undefined ? `${facts.lost.is_whole[lost] ? "whole" : "what was read"} after ${facts.checkpointText(facts.lost.cp[lost])}: ${facts.text(facts.lost.reason[lost])}` : null],
        ["read again by", isThrown && next !== null ? facts.attemptText(h.sub[next], h.att[next]) : null],
        ["checkpoint", facts.isOver(h.cp_off[row], moment) ? (h.cp[row] === -1 ? "the end of the job" : h.cp[row]) : null]],
      split: h.split[row], command: (job) => `coordlog explain ${job} --split ${quoted(facts.splits.id[h.split[row]])}`,
    };
  },
  splits(view, row) {
    const { facts, moment } = view;
    const held = (facts.by("holds", "split").get(row) || []).filter((hold) => facts.isSo(facts.holds.off[hold], moment));
    if (held.length) return DETAILS.holds(view, held[held.length - 1]);
    return { title: facts.splits.id[row], pairs: [["place now", facts.splitPlace(row, moment)], ["discovered", facts.clockText(facts.splits.t[row])]], split: row };
  },
  checkpoints(view, row) {
    const { facts } = view;
    const c = facts.checkpoints;
    const { parts, acks, end, took } = checkpointParts(view, row);
    const slowest = acks.toSorted((a, b) => facts.acks.t[b] - facts.acks.t[a]).slice(0, 5);
    const base = c.cut_t[row] ?? c.t[row];
    return {
      title: `Checkpoint ${c.cp[row]}`,
      pairs: [["state", end], ["why", end === "aborted" ? facts.text(c.reason[row]) : null],
        ["missing", end === "aborted" || end === "pending" ? facts.text(c.missing[row]) : null], ["epoch", c.epoch[row]],
        ["triggered", facts.clockText(c.t[row])], ["took", lasted(took)], ...parts.map(([name, from, to]) => [name, lasted(to - from)]),
        ["acks", `${number(acks.length)} of ${number(c.expected[row])}`], ["size", inBytes(c.bytes[row])],
        ...slowest.map((ack) => [`subtask ${facts.acks.sub[ack]}`, `${lasted(facts.acks.t[ack] - base)} after the cut, ${inBytes(facts.acks.bytes[ack])}`])],
      isOf: (records, record) => records.cp[record] === c.cp[row] && facts.kinds[records.kind[record]].match(/CHECKPOINT|COMMIT|BARRIER|NOTIFIED|RESET/) !== null,
      isShort: (kind) => kind !== "BARRIER_INJECTED",
      command: (job) => `coordlog explain ${job} --checkpoint ${c.cp[row]}`,
    };
  },
  epochs({ facts, moment }, row) {
    const e = facts.epochs;
    return {
      title: `Epoch ${e.epoch[row]}`,
      pairs: [["driver", facts.text(e.driver[row])], ["on", `${facts.text(e.host[row]) ?? "?"}, process ${e.pid[row] ?? "?"}`], ["mode", facts.text(e.mode[row])],
        ["subtasks", e.parallelism[row]], ["version", facts.text(e.version[row])], ["began", facts.clockText(e.t[row])],
        ["restored by", facts.text(e.restored_by[row])], ["end", facts.isOver(e.end_off[row], moment) ? facts.text(e.end[row]) : "open"]],
      isOf: (records, record) => records.epoch[record] === e.epoch[row] && records.sub[record] === null && records.valid[record] === 0,
      isShort: (kind) => ["EPOCH_STARTED", "COORDINATORS_STARTED", "RESET_TO_CHECKPOINT", "GLOBAL_FAILURE", "JOB_FINISHED", "JOB_FAILED"].includes(kind),
    };
  },
  failures({ facts, moment }, row) {
    const f = facts.failures;
    return {
      title: `Failure of ${f.sub[row] === null ? "the job" : facts.attemptText(f.sub[row], f.att[row])}`,
      pairs: [["why", facts.text(f.reason[row])], ["at", facts.clockText(f.t[row])],
        ["back to", facts.isOver(f.reset_off[row], moment) ? facts.checkpointText(f.reset_cp[row]) : null],
        ["went on after", facts.isOver(f.restarted_off[row], moment) ? lasted(f.restarted_t[row] - f.t[row]) : null]],
      isOf: (records, record) => [f.off[row], f.reset_off[row], f.restarted_off[row]].includes(records.off[record]),
    };
  },
  resets({ facts }, row) {
    const r = facts.resets;
    return {
      title: r.sub[row] === null ? "The whole job went back" : `Subtask ${r.sub[row]} went back`,
      pairs: [["to", facts.checkpointText(r.cp[row])], ["at", facts.clockText(r.t[row])], ["because", facts.text(r.words[row])]],
      isOf: (records, record) => records.off[record] === r.off[row],
    };
  },
  commits({ facts, moment }, row) {
    const c = facts.commits;
    const isSettled = facts.isOver(c.end_off[row], moment);
    const files = facts.by("files", "commit").get(row) || [];
    return {
      title: `Commit of ${facts.checkpointText(c.cp[row])}`,
      pairs: [["operator", facts.text(c.op[row])], ["intent", facts.clockText(c.t[row])],
        ["outcome", isSettled ? `after ${lasted(c.end_t[row] - c.t[row])}` : "none so far"], ["failed tries", c.tries[row] || null],
        ["why", isSettled ? null : facts.text(c.reason[row])], ["rows", number(c.rows[row])],
        ...files.slice(0, 20).map((file) => ["file", facts.files.name[file]])],
      isOf: (records, record) => [c.off[row], c.end_off[row]].includes(records.off[record]),
    };
  },
  gaps({ facts }, _row, thing) {
    return { title: "Nothing happened", pairs: [["from", facts.clockText(thing.t)], ["to", facts.clockText(thing.end)], ["for", lasted(thing.end - thing.t)]] };
  },
};

/** Rows of the records behind a thing, ascending, with those that caused them. */
function recordsBehind(view, detail) {
  const { facts, moment } = view;
  const records = facts.records;
  const own = new Set();
  if (detail.split !== undefined) for (const record of splitRecords(facts, detail.split)) own.add(record);
  if (detail.isOf !== undefined) {
    for (let record = 0; record < records.off.length && records.off[record] <= moment; record += 1) {
      const kind = facts.kinds[records.kind[record]];
      if (detail.isOf(records, record) && (detail.isShort === undefined || detail.isShort(kind))) own.add(record);
    }
  }
  const behind = new Set(own);
  for (const record of own) {
    for (let cause = records.cause[record]; cause !== null && !behind.has(cause); cause = records.cause[cause]) behind.add(cause);
  }
  return { rows: [...behind].filter((record) => records.off[record] <= moment).sort((a, b) => a - b), own };
}

/** Rows of the records of a split: as `coordlog explain --split` chooses them. */
function splitRecords(facts, split) {
  const { records, holds, lost } = facts;
  const rows = new Set(records.of_split[split]);
  const held = facts.by("holds", "split").get(split) || [];
  const attempts = new Set(held.map((hold) => `${holds.sub[hold]}/${holds.att[hold]}`));
  const resets = new Set((facts.by("lost", "split").get(split) || []).map((row) => lost.off[row]));
  const final = held.filter((hold) => holds.thrown_off[hold] === null && holds.cp[hold] !== null).map((hold) => holds.cp[hold]);
  for (let record = 0; record < records.off.length; record += 1) {
    if (records.valid[record] !== 0) continue;
    const kind = facts.kinds[records.kind[record]];
    if (resets.has(records.off[record])) rows.add(record);
    else if (["ATTEMPT_STARTED", "ATTEMPT_FAILED", "SUBTASK_COMPLETED"].includes(kind)) {
      if (attempts.has(`${records.sub[record]}/${records.att[record]}`)) rows.add(record);
    } else if (["CHECKPOINT_COMPLETED", "COMMIT_INTENT", "COMMIT_OUTCOME"].includes(kind) && final.includes(records.cp[record])) rows.add(record);
  }
  return rows;
}

function recordItem(view, record, isCause) {
  const { facts } = view;
  const r = facts.records;
  const why = facts.validity[r.valid[record]];
  return el("li", { class: isCause ? "cause" : null },
    el("span", { class: "place" }, `${r.off[record]} · ${facts.clockText(r.t[record])}`),
    el("span", { class: why ? "text-bad" : null }, r.words[record]), why ? ` (${why})` : null);
}

definePanel({
  id: "details", title: "Details", place: 2.5, size: "side", command: "",
  draw(body, view) {
    const { selection, facts } = view;
    if (selection === null) {
      body.append(el("p", { class: "dim" }, "Click a bar, a split, a checkpoint or a mark: why it ended, what was read again and by whom, and the records behind it."),
        el("p", { class: "dim" }, "Keys in the lanes: ← → move, + − zoom, 0 all, n p next and previous attempt. Ctrl and the wheel zoom, dragging moves."));
      return;
    }
    const detail = DETAILS[selection.kind](view, selection.row, selection);
    body.append(el("h3", {}, detail.title), el("dl", {}, detail.pairs.filter(([, value]) => value !== null && value !== undefined)
      .map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
    if (detail.isOf === undefined && detail.split === undefined) return;
    if (facts.records === null) { body.append(el("p", { class: "dim" }, "The records are still being read.")); return; }
    const { rows, own } = recordsBehind(view, detail);
    body.append(el("h3", {}, `Records behind it, and their causes: ${number(rows.length)}`),
      el("ol", { class: "records" }, rows.slice(0, RECORDS_SHOWN).map((record) => recordItem(view, record, !own.has(record)))));
    if (rows.length > RECORDS_SHOWN) body.append(el("p", { class: "dim" }, `and ${number(rows.length - RECORDS_SHOWN)} more`));
    if (detail.command) body.append(commandLine(detail.command(facts.argument)));
  },
});
