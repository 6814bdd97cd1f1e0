// Each failure as a story: where the job was, what was lost, who read it again, and when work went on.

const STORIES_SHOWN = 10;

/** Failures with the same reset are one story: lists of rows of `failures`, newest first. */
function storiesAt(view) {
  const { facts, moment } = view;
  const stories = new Map();
  for (const failure of facts.rows("failures", moment)) {
    const reset = facts.failures.reset_off[failure] ?? `none ${failure}`;
    if (stories.has(reset)) stories.get(reset).push(failure); else stories.set(reset, [failure]);
  }
  return [...stories.values()].reverse();
}

/** At most three names, and the number of the others. */
function someOf(names) {
  const different = [...new Set(names)];
  const rest = different.length - 3;
  return different.slice(0, 3).map(brief).join(", ") + (rest > 0 ? ` and ${number(rest)} more` : "");
}

function storyOf(view, story) {
  const { facts, moment } = view;
  const { failures: f, lost, holds, splits } = facts;
  const first = story.find((failure) => f.sub[failure] === null) ?? story[0];
  const named = (failure) => (f.sub[failure] === null ? "the whole job" : facts.attemptText(f.sub[failure], f.att[failure]));
  const sentences = [];
  const others = story.filter((failure) => failure !== first).map(named);
  if (others.length) sentences.push(`Failed with it: ${someOf(others)}.`);
  if (facts.isOver(f.reset_off[first], moment)) {
    const isWhole = f.with_job[first] || f.sub[first] === null;
    sentences.push(`${isWhole ? "All subtasks" : "It"} went back to ${facts.checkpointText(f.reset_cp[first])}.`);
    const rows = facts.by("lost", "off").get(f.reset_off[first]) || [];
    const count = rows.reduce((sum, row) => sum + (lost.rows[row] || 0), 0);
    const names = rows.map((row) => splits.id[lost.split[row]]);
    sentences.push(rows.length === 0 ? "No work was lost." : `Lost: work on ${many(new Set(names).size, "split")}, ${many(count, "row")}: ${someOf(names)}.`);
    const readers = rows.map((row) => lost.reread[row]).filter((hold) => hold !== null && facts.isSo(holds.off[hold], moment));
    if (readers.length) sentences.push(`Read again by ${someOf(readers.map((hold) => facts.attemptText(holds.sub[hold], holds.att[hold])))}.`);
  } else sentences.push("Nothing was reset after it so far.");
  const ends = story.filter((failure) => facts.isOver(f.restarted_off[failure], moment)).map((failure) => f.restarted_t[failure] - f.t[first]);
  sentences.push(ends.length ? `Work went on after ${lasted(Math.max(...ends))}.` : "Work has not gone on so far.");
  const who = named(first);
  const pick = () => view.select({ kind: "failures", row: first });
  return el("li", { class: "pick", onclick: pick },
    el("div", {}, el("span", { class: "place" }, `${facts.clockText(f.t[first])} · epoch ${f.epoch[first]} `),
      pickButton(`${who.charAt(0).toUpperCase()}${who.slice(1)} failed`), ": ", el("span", { class: "text-bad" }, brief(facts.text(f.reason[first]) ?? "without a reason"))),
    el("div", {}, sentences.join(" ")));
}

definePanel({
  id: "story", title: "Failures, newest first", place: 3, command: "coordlog failures JOB",
  draw(body, view) {
    const stories = storiesAt(view);
    if (stories.length === 0) { body.append(el("p", { class: "empty" }, "No attempt and no job has failed.")); return; }
    body.append(el("ol", { class: "stories" }, stories.slice(0, view.limitOf("story", STORIES_SHOWN)).map((story) => storyOf(view, story))),
      ...[view.moreButton("story", STORIES_SHOWN, stories.length)].filter(Boolean));
  },
});
