// Epochs: whose they were, where they ran, how each ended; late records of fenced drivers in red.

const LATE_SHOWN = 8;

definePanel({
  id: "epochs", title: "Epochs", place: 7, size: "half", command: "coordlog epochs JOB · coordlog history JOB",
  draw(body, view) {
    const { facts, moment, now } = view;
    const { epochs: e, late } = facts;
    const lateRows = facts.rows("late", moment);
    const lines = facts.rows("epochs", moment).reverse().map((row) => {
      const isOver = facts.isOver(e.end_off[row], moment);
      const count = lateRows.filter((record) => late.epoch[record] === e.epoch[row]).length;
      return {
        pick: () => view.select({ kind: "epochs", row }),
        cells: [String(e.epoch[row]), e.host[row] === null ? "a command" : `${facts.text(e.host[row])}, process ${e.pid[row] ?? "?"}`, facts.clockText(e.t[row]),
          e.t[row] === null ? "?" : lasted((isOver && e.end_t[row] !== null ? e.end_t[row] : now) - e.t[row]),
          isOver ? facts.text(e.end[row]) : "open", count ? el("span", { class: "text-bad" }, number(count)) : ""],
      };
    });
    if (lines.length === 0) { body.append(el("p", { class: "empty" }, "No epoch has begun.")); return; }
    body.append(tableOf([["epoch", "number"], ["driver", "words"], ["began", ""], ["lasted", "number"], ["end", ""], ["late records", "number"]], lines.slice(0, 30)));
    if (lines.length > 30) body.append(el("p", { class: "dim" }, `30 of ${number(lines.length)}, newest first.`));
    if (lateRows.length) {
      body.append(el("h3", {}, "Late records of fenced drivers, which do not count"), el("ol", { class: "records" }, lateRows.slice(-LATE_SHOWN).reverse().map((row) =>
        el("li", { class: "text-bad" }, `${late.off[row]} · ${facts.clockText(late.t[row])} epoch ${late.epoch[row]} ${facts.text(late.kind[row])}: ${facts.text(late.why[row])}`))));
    }
  },
});
