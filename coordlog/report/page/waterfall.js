// Checkpoints, slowest first, with the parts of each; a click shows the parts of its subtasks. And their trend over time.

const WATERFALL_ROWS = 12;

/** Parts of a checkpoint at the moment: [name, begin, end, colour], times in microseconds. */
function checkpointParts(view, row) {
  const { facts, moment, now } = view;
  const c = facts.checkpoints;
  const acks = (facts.by("acks", "checkpoint").get(row) || []).filter((ack) => facts.isSo(facts.acks.off[ack], moment));
  const lastAck = acks.reduce((last, ack) => Math.max(last, facts.acks.t[ack]), -Infinity);
  const end = facts.checkpointEnd(row, moment);
  const endT = end === "pending" ? now : c.end_t[row];
  const cut = facts.isOver(c.cut_off[row], moment) ? c.cut_t[row] : null;
  const parts = [];
  const cutEnd = cut ?? endT;
  parts.push(["trigger to cut", c.t[row], cutEnd, "warn"]);
  if (cut !== null) {
    const acked = acks.length ? Math.min(lastAck, endT) : endT;
    parts.push(["cut to last ack", cut, Math.max(cut, acked), "run"]);
    if (acks.length && endT > acked) parts.push(["last ack to end", acked, endT, end === "aborted" ? "bad" : "ok"]);
  }
  if (end === "aborted" && parts.length < 3) parts[parts.length - 1][3] = "bad";
  return { parts, acks, end, took: endT - c.t[row], lastAck };
}

function partsCanvas(parts, begin, longest) {
  const canvas = el("canvas", { class: "parts", role: "img",
    "aria-label": parts.map(([name, from, to]) => `${name} ${lasted(to - from)}`).join(", ") });
  requestAnimationFrame(() => {
    const width = canvas.clientWidth;
    if (!width) return;
    const context = contextOf(canvas, width, 14);
    for (const [, from, to, name] of parts) {
      context.fillStyle = colour(name);
      const x = (from - begin) / longest * width;
      context.fillRect(x, 3, Math.max(1, (to - from) / longest * width), 8);
    }
  });
  return canvas;
}

function trend(view, rows) {
  const canvas = el("canvas", { class: "strip tall", role: "img", "aria-label": `durations of ${rows.length} checkpoints over time` });
  requestAnimationFrame(() => {
    const width = canvas.clientWidth;
    if (!width || rows.length === 0) return;
    const context = contextOf(canvas, width, 44);
    const longest = Math.max(...rows.map((item) => item.took), 1);
    const slots = Math.min(rows.length, Math.floor(width / 2));
    for (let slot = 0; slot < slots; slot += 1) {
      const from = Math.floor(slot * rows.length / slots);
      const to = Math.max(from + 1, Math.floor((slot + 1) * rows.length / slots));
      const part = rows.slice(from, to);
      const worst = part.reduce((a, b) => (b.took > a.took ? b : a));
      context.fillStyle = colour(part.some((item) => item.end === "aborted") ? "bad" : worst.end === "pending" ? "warn" : "run");
      const height = Math.max(1, worst.took / longest * 42);
      context.fillRect(slot * width / slots, 44 - height, Math.max(1, width / slots - 1), height);
    }
  });
  return canvas;
}

definePanel({
  id: "waterfall", title: "Checkpoints, slowest first", place: 4,
  command: "coordlog checkpoints JOB · coordlog explain JOB --checkpoint N",
  draw(body, view) {
    const { facts, moment } = view;
    const c = facts.checkpoints;
    const all = facts.rows("checkpoints", moment).map((row) => ({ row, ...checkpointParts(view, row) }));
    if (all.length === 0) { body.append(el("p", { class: "empty" }, "No checkpoint was triggered.")); return; }
    const slowest = all.toSorted((a, b) => b.took - a.took).slice(0, view.limitOf("waterfall", WATERFALL_ROWS));
    const longest = Math.max(slowest[0].took, 1);
    const lines = slowest.map(({ row, parts, acks, end, took, lastAck }) => {
      const last = acks.find((ack) => facts.acks.t[ack] === lastAck);
      const missing = end === "aborted" || end === "pending" ? facts.text(c.missing[row]) : null;
      return {
        pick: () => view.select({ kind: "checkpoints", row }),
        cells: [String(c.cp[row]), String(c.epoch[row]), lasted(took), partsCanvas(parts, c.t[row], longest),
          missing ?? (last === undefined ? "" : `subtask ${facts.acks.sub[last]}`), el("span", { class: { aborted: "text-bad", pending: "text-warn" }[end] }, end)],
      };
    });
    const key = [["warn", "trigger to cut"], ["run", "cut to last ack"], ["ok", "last ack to end"], ["bad", "aborted"]];
    body.append(el("p", { class: "dim" }, `In their order, the longest of ${lasted(longest)}:`), trend(view, all),
      el("div", { class: "legend" }, key.map(([name, text]) => el("span", {}, el("i", { class: `is-${name}` }), text))), tableOf(
      [["checkpoint", "number"], ["epoch", "number"], ["took", "number"], ["parts", "bars"], ["last ack, or missing", "words"], ["state", ""]], lines),
      ...[view.moreButton("waterfall", WATERFALL_ROWS, all.length)].filter(Boolean));
  },
});
