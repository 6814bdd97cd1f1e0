// Search of splits: who read each, how often its work was thrown away and why, and which output files have its rows.

const SPLITS_SHOWN = 25;
const PLACE_CLASS = { committed: "text-ok", skipped: "text-warn", withdrawn: "text-warn" };

/** Time of the ack of each attempt for each checkpoint, by "checkpoint/subtask/attempt"; made once. */
function acksByAttempt(facts) {
  if (facts.acksByAttempt === undefined) {
    const { acks, checkpoints } = facts;
    facts.acksByAttempt = new Map(acks.t.map((time, row) => [`${checkpoints.cp[acks.checkpoint[row]]}/${acks.sub[row]}/${acks.att[row]}`, time]));
  }
  return facts.acksByAttempt;
}

/** Last checkpoint with rows that an attempt has read of a split and that were not thrown away; null: none. */
function lastCheckpointOf(view, hold) {
  const { facts, moment } = view;
  const { holds, lost } = facts;
  if (!facts.isOver(holds.thrown_off[hold], moment)) return holds.cp[hold] ?? Infinity;
  const row = (facts.by("lost", "hold").get(hold) || [])[0];
  return row === undefined || lost.is_whole[row] ? null : lost.cp[row];
}

/** Names of the output files with rows of a split at the moment: of the attempts that hold it, from the earliest begin of its reading on. */
function filesOf(view, split) {
  const { facts, moment } = view;
  const { holds, commits, files } = facts;
  const names = [];
  for (const hold of facts.by("holds", "split").get(split) || []) {
    const last = lastCheckpointOf(view, hold);
    if (last === null) continue;
    for (const file of facts.by("files", "sub").get(holds.sub[hold]) || []) {
      const commit = files.commit[file];
      const number_ = commits.cp[commit];
      if (files.att[file] !== holds.att[hold] || !facts.isOver(commits.end_off[commit], moment)) continue;
      const acked = acksByAttempt(facts).get(`${number_}/${holds.sub[hold]}/${holds.att[hold]}`);
      const isIn = number_ === -1 ? last === -1 || last === Infinity : number_ <= last && (acked === undefined || acked >= holds.read_t[hold]);
      if (isIn) names.push(files.name[file]);
    }
  }
  return names;
}

/** Splits at the moment whose id has the words of the search; those with the most lost work first. */
function splitsFound(view) {
  const { facts, moment } = view;
  const words = (view.splitWords || "").toLowerCase().split(/\s+/).filter(Boolean);
  const isFound = (split) => { const id = facts.splits.id[split].toLowerCase(); return words.every((word) => id.includes(word)); };
  const thrown = (split) => (facts.by("lost", "split").get(split) || []).filter((row) => facts.lost.off[row] <= moment).length;
  return facts.rows("splits", moment).filter(isFound).map((split) => ({ split, thrown: thrown(split) })).sort((a, b) => b.thrown - a.thrown || a.split - b.split);
}

function splitLine(view, { split, thrown }) {
  const { facts, moment } = view;
  const { holds, lost } = facts;
  const held = (facts.by("holds", "split").get(split) || []).filter((hold) => facts.isSo(holds.off[hold], moment));
  const reasons = (facts.by("lost", "split").get(split) || []).filter((row) => lost.off[row] <= moment).map((row) => facts.text(lost.reason[row]));
  const last = held.filter((hold) => facts.isOver(holds.end_off[hold], moment) && !facts.isOver(holds.thrown_off[hold], moment)).pop();
  const place = facts.splitPlace(split, moment);
  return {
    pick: () => view.select({ kind: "splits", row: split }),
    cells: [brief(facts.splits.id[split]), el("span", { class: PLACE_CLASS[place] }, place), last === undefined ? "" : number(holds.rows[last]),
      someOf(held.map((hold) => (holds.sub[hold] === null ? "a query" : `${holds.sub[hold]}/${holds.att[hold]}`))),
      thrown === 0 ? "" : el("span", { class: "text-bad" }, `${many(thrown, "time")}: ${someOf(reasons)}`), someOf(filesOf(view, split))],
  };
}

definePanel({
  id: "splits", title: "Splits", place: 5, command: "coordlog splits JOB · coordlog explain JOB --split ID",
  tools(view) {
    return [el("input", { type: "search", placeholder: "words of a split's name", "aria-label": "search of splits",
      oninput: (event) => { view.splitWords = event.target.value; view.changed(["splits"]); } })];
  },
  draw(body, view) {
    if (view.facts.size("splits") === 0) { body.append(el("p", { class: "empty" }, "The job has no splits.")); return; }
    const found = splitsFound(view);
    if (found.length === 0) { body.append(el("p", { class: "empty" }, "No split has these words.")); return; }
    body.append(tableOf([["split", "words long"], ["place", ""], ["rows", "number"], ["read by attempt", ""], ["thrown away", "words"], ["output files", "words"]],
      found.slice(0, SPLITS_SHOWN).map((item) => splitLine(view, item))));
    if (found.length > SPLITS_SHOWN) body.append(el("p", { class: "dim" }, `${number(SPLITS_SHOWN)} of ${number(found.length)}, those with the most lost work first.`));
  },
});
