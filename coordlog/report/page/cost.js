// Cost of failures: per cause the time without work, and the rows that were read again.

/** [cause, {count, us, splits, rows}] at the moment, the most expensive first. */
function costsAt(view) {
  const { facts, moment } = view;
  const { failures: f, lost, resets } = facts;
  const costs = new Map();
  const of = (cause) => {
    if (!costs.has(cause)) costs.set(cause, { count: 0, us: 0, splits: 0, rows: 0 });
    return costs.get(cause);
  };
  const causes = new Map();
  for (const failure of facts.rows("failures", moment)) {
    const cause = facts.text(f.cause[failure]) ?? "without a reason";
    const cost = of(cause);
    cost.count += 1;
    const isFirst = f.reset_off[failure] === null || !causes.has(f.reset_off[failure]);
    if (isFirst) cost.us += (facts.isOver(f.restarted_off[failure], moment) ? f.restarted_t[failure] : view.now) - f.t[failure];
    if (f.reset_off[failure] !== null && isFirst) causes.set(f.reset_off[failure], cause);
  }
  for (const row of facts.rows("lost", moment)) {
    const reset = (facts.by("resets", "off").get(lost.off[row]) || [])[0];
    const cause = causes.get(lost.off[row]) ?? (reset === undefined ? "a reset" : `a start of the job: ${facts.text(resets.words[reset])}`);
    const cost = of(cause);
    cost.splits += 1;
    cost.rows += lost.rows[row] || 0;
  }
  return [...costs].sort(([, a], [, b]) => b.us - a.us || b.rows - a.rows);
}

definePanel({
  id: "cost", title: "Cost of failures", place: 6, size: "half", command: "coordlog failures JOB",
  draw(body, view) {
    const costs = costsAt(view);
    if (costs.length === 0) { body.append(el("p", { class: "empty" }, "No failure, and no work was thrown away.")); return; }
    const sum = (name) => costs.reduce((total, [, cost]) => total + cost[name], 0);
    const cells = (name, cost) => [name, number(cost.count), cost.us ? lasted(cost.us) : "", number(cost.splits), number(cost.rows)];
    const lines = costs.slice(0, 12).map(([cause, cost]) => cells(cause, cost));
    if (costs.length > 12) lines.push([`and ${many(costs.length - 12, "other cause")}`, "", "", "", ""]);
    lines.push(cells(el("strong", {}, "all"), { count: sum("count"), us: sum("us"), splits: sum("splits"), rows: sum("rows") }));
    body.append(tableOf([["cause", "words long"], ["failures", "number"], ["time lost", "number"], ["splits again", "number"], ["rows again", "number"]], lines));
  },
});
