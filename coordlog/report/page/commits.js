// Commits: intents without an outcome with their age, then the slowest of the settled ones.

const COMMITS_SHOWN = 8;

definePanel({
  id: "commits", title: "Commits", place: 8, command: "coordlog commits JOB",
  draw(body, view) {
    const { facts, moment, now } = view;
    const c = facts.commits;
    const rows = facts.rows("commits", moment);
    if (rows.length === 0) { body.append(el("p", { class: "empty" }, "No commit was intended.")); return; }
    const isOpen = (row) => !facts.isOver(c.end_off[row], moment);
    const took = (row) => (isOpen(row) ? now : c.end_t[row]) - c.t[row];
    const open = rows.filter(isOpen).sort((a, b) => took(b) - took(a));
    const settled = rows.filter((row) => !isOpen(row)).sort((a, b) => took(b) - took(a));
    const line = (row) => ({
      pick: () => view.select({ kind: "commits", row }),
      cells: [c.cp[row] === -1 ? "the end" : String(c.cp[row]), facts.text(c.op[row]), facts.clockText(c.t[row]), lasted(took(row)),
        c.tries[row] ? el("span", { class: "text-bad" }, number(c.tries[row])) : "", c.rows[row] === null ? "" : number(c.rows[row]),
        isOpen(row) ? el("span", { class: "text-warn" }, "no outcome") : "settled"],
    });
    const middle = settled.length ? `; half of these took at most ${lasted(took(settled[Math.floor(settled.length / 2)]))}` : "";
    body.append(el("p", {}, el("span", { class: open.length ? "text-warn" : "text-ok" }, `${many(open.length, "intent")} without an outcome`), `, ${number(settled.length)} settled${middle}.`),
      tableOf([["checkpoint", "number"], ["operator", ""], ["intent", ""], ["age or time", "number"], ["failed tries", "number"], ["rows", "number"], ["state", ""]],
        [...open.slice(0, COMMITS_SHOWN), ...settled.slice(0, Math.max(0, COMMITS_SHOWN - open.length))].map(line)));
  },
});
