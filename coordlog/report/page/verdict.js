// The verdict at the moment, what the job waits for, and the numbers of the job.

function verdictAt(view) {
  const { facts, moment } = view;
  const row = view.isLatest ? facts.verdicts.off.length - 1 : facts.verdictRow(moment);
  if (row < 0) return { state: "new", reason: "the log has no record that counts", since: null };
  return {
    state: facts.text(facts.verdicts.state[row]),
    reason: facts.text(facts.verdicts.reason[row]),
    since: facts.verdicts.since_t[row],
  };
}

function tilesAt(view) {
  const { facts, moment } = view;
  const { commits, holds, attempts } = facts;
  const sum = (table, rows, column) => rows.reduce((total, row) => total + (facts[table][column][row] || 0), 0);
  const settled = facts.rows("commits", moment).filter((row) => facts.isOver(commits.end_off[row], moment));
  const splits = facts.rows("splits", moment);
  const isDone = (split) => (facts.by("holds", "split").get(split) || []).some((row) =>
    facts.isOver(holds.end_off[row], moment) && !facts.isOver(holds.thrown_off[row], moment));
  const checkpoints = facts.rows("checkpoints", moment).map((row) => facts.checkpointEnd(row, moment));
  const ends = facts.rows("attempts", moment).map((row) => facts.attemptEnd(row, moment));
  const lost = ends.filter((end) => end === "failed" || end === "fenced").length;
  const finished = splits.filter(isDone).length;
  return [
    [number(sum("commits", settled, "rows")), "rows published"],
    [splits.length ? `${number(finished)} of ${number(splits.length)}` : number(finished), "splits read"],
    [number(checkpoints.filter((end) => end === "completed").length), "checkpoints completed"],
    [number(checkpoints.filter((end) => end === "aborted").length), "aborted"],
    [number(lost), `${attempts.sub.length === 0 ? "" : `of ${number(ends.length)} `}attempts lost`],
    [lasted(view.now - facts.gaps.t.reduce((idle, t, row) => idle + Math.max(0, Math.min(view.now, facts.gaps.end_t[row]) - t), 0)), "active time"],
  ];
}

/** The verdicts over time, as a strip in the colours of the states. */
function drawStrip(canvas, view) {
  const { facts } = view;
  const width = canvas.clientWidth || 600;
  const context = contextOf(canvas, width, 10);
  const axis = new TimeAxis(facts.gaps, Math.max(1, facts.last_t));
  axis.fit(0, width);
  const { t, state } = facts.verdicts;
  const now = view.now;
  t.forEach((begin, row) => {
    const end = row + 1 < t.length ? t[row + 1] : Math.max(begin, facts.last_t);
    if (begin > now) return;
    context.fillStyle = colour(STATE_CLASS[facts.text(state[row])] || "idle");
    const from = axis.x(begin);
    context.fillRect(from, 0, Math.max(1.5, axis.x(Math.min(end, now)) - from), 10);
  });
}

function waitsOf(view) {
  const { facts } = view;
  const w = facts.waiting;
  return w.kind.map((kind, row) => {
    const subtasks = w.subtasks[row];
    const named = subtasks.length ? ` (${subtasks.length === 1 ? "subtask" : "subtasks"} ${subtasks.slice(0, 8).join(", ")}${subtasks.length > 8 ? ` and ${subtasks.length - 8} more` : ""})` : "";
    const operators = w.operators[row].length ? ` of ${w.operators[row].join(", ")}` : "";
    const number = w.cp[row] === null ? "" : w.cp[row] === -1 ? " of the end" : ` ${w.cp[row]}`;
    const what = { checkpoint: w.cp[row] === null ? "the next checkpoint" : `checkpoint${number}`, subtask: "an attempt",
      commit: `the commit${w.cp[row] === null ? "" : w.cp[row] === -1 ? " of the end" : ` of checkpoint${number}`}`,
      append: "the log's acknowledgement", driver: "a driver", record: "any record" }[facts.text(kind)];
    return el("li", {}, `waits for ${what}${operators}${named}, for ${lasted(facts.moment_t - w.since_t[row])}`);
  });
}

definePanel({
  id: "verdict", title: "Verdict", place: 1, command: "coordlog health JOB · coordlog state JOB",
  draw(body, view) {
    const { facts } = view;
    const verdict = verdictAt(view);
    const since = verdict.since === null ? "" : `since ${facts.clockText(verdict.since)} UTC: `;
    const strip = el("canvas", { class: "strip", role: "img", "aria-label": "verdicts over time" });
    body.append(
      el("div", { class: "verdict" }, el("span", { class: `dot is-${STATE_CLASS[verdict.state] || "idle"}` }),
        el("strong", {}, verdict.state), el("span", { class: "why" }, `${since}${verdict.reason}`)),
    );
    if (view.isLatest && facts.waiting.kind.length) body.append(el("ul", { class: "waits" }, waitsOf(view)));
    if (facts.is_partial) {
      body.append(el("p", { class: "partial" },
        `The log begins at offset ${facts.first_off}: it was pruned. Facts and numbers are those since then; earlier ones are in the file that the prune has archived.`));
    }
    strip.hidden = facts.size("verdicts") < 2 && !facts.last_t;
    body.append(strip, el("div", { class: "tiles" },
      tilesAt(view).map(([value, text]) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, text)))));
    if (!strip.hidden) drawStrip(strip, view);
  },
});
