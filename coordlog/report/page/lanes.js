// The lanes: a lane for each subtask, attempts as bars coloured by their end, splits inside them, checkpoints as bands,
// epochs, failures and resets as marks. Only lanes and times that can be seen are drawn, and no pixel twice for one kind.

const LABEL_WIDTH = 84;
const LABEL_WIDTH_NARROW = 34;
const NARROW_WIDTH = 500;
const AXIS_HEIGHT = 40;
const LANES_HEIGHT = 420;

class Lanes {
  constructor(view) {
    this.view = view;
    this.take(view.facts);
    this.canvas = el("canvas", { tabindex: 0, role: "application", "aria-roledescription": "lanes" });
    this.tall = el("div", { class: "tall" });
    this.box = el("div", { class: "lanes" }, this.tall, this.canvas);
    this.more = el("span", {});
    this.words = el("div", { class: "unseen", "aria-live": "polite" });
    this.tableBody = el("div");
    this.table = el("details", { class: "as-table", ontoggle: () => view.changed(["lanes"]) }, el("summary", {}, "attempts as a table, each as subtask/attempt"), this.tableBody);
    this.painted = { attempts: 0, holds: 0, checkpoints: 0, lanes: 0 };
    this._listen();
  }

  /** Take facts; a zoom stays where it was. */
  take(facts) {
    const before = this.axis;
    this.axis = new TimeAxis(facts.gaps, Math.max(facts.last_t, 1));
    if (before !== undefined && before.isZoomed) this.axis.take(before);
    this.bySubtask = facts.by("attempts", "sub");
    this.holdsOf = new Map();
    for (const [attempt, rows] of facts.by("holds", "attempt")) {
      if (attempt !== null) this.holdsOf.set(attempt, rows.toSorted((a, b) => facts.holds.read_t[a] - facts.holds.read_t[b]));
    }
    this.acksOf = facts.by("acks", "sub");
    this.subtasks = [...this.bySubtask.keys()].sort((a, b) => a - b);
  }

  /** Subtasks with a lane at the moment. */
  shown() {
    if (!this.view.failedOnly) return this.subtasks;
    const { facts, moment } = this.view;
    return this.subtasks.filter((sub) => this.bySubtask.get(sub).some((row) =>
      ["failed", "fenced"].includes(facts.attemptEnd(row, moment))));
  }

  draw() {
    const width = this.box.clientWidth;
    if (width === 0) return;
    const lanes = this.shown();
    this.laneHeight = Math.max(12, Math.min(44, Math.floor((LANES_HEIGHT - AXIS_HEIGHT) / Math.max(1, lanes.length))));
    const height = Math.min(LANES_HEIGHT, AXIS_HEIGHT + Math.max(1, lanes.length) * this.laneHeight + 4);
    this.tall.style.height = `${AXIS_HEIGHT + lanes.length * this.laneHeight + 4}px`;
    this.box.style.height = `${height}px`;
    const context = contextOf(this.canvas, width, height);
    this.labelWidth = width < NARROW_WIDTH ? LABEL_WIDTH_NARROW : LABEL_WIDTH;
    this.axis.fit(this.labelWidth, width - 8);
    this.hits = [];
    this.lanesShown = lanes;
    this.painted = { attempts: 0, holds: 0, checkpoints: 0, lanes: 0 };
    this._height = height;
    this._drawGaps(context, height);
    this._drawCheckpoints(context, height);
    this._drawLanes(context, lanes, width, height);
    this._drawMarks(context, height);
    this._drawAxis(context, width);
    const { attempts, holds, lanes: seen } = this.painted;
    this.more.textContent = seen < lanes.length ? `${number(lanes.length)} subtasks: scroll` : "";
    this.canvas.setAttribute("aria-label",
      `${many(lanes.length, "subtask")}, ${many(attempts, "attempt")} and ${many(holds, "split")} drawn; arrow keys move, plus and minus zoom, n and p go to the next and the previous attempt`);
    if (this.table.open) this._drawTable();
  }

  /** What the lanes show, for those who cannot see or point at a canvas. */
  _drawTable() {
    const { facts, moment, now } = this.view;
    const a = facts.attempts;
    const rows = this.lanesShown.flatMap((sub) => this.bySubtask.get(sub)).filter((row) => facts.isSo(a.off[row], moment));
    const lines = rows.slice(0, ROWS_MAX).map((row) => {
      const end = facts.attemptEnd(row, moment);
      const holds = (this.holdsOf.get(row) || []).filter((hold) => facts.isOver(facts.holds.end_off[hold], moment));
      return {
        pick: () => this.view.select({ kind: "attempts", row }),
        cells: [`${a.sub[row]}/${a.att[row]}`, facts.clockText(a.t[row]), a.t[row] === null ? "?" : lasted((end === "running" ? now : a.end_t[row] ?? now) - a.t[row]),
          number(holds.length), el("span", { class: { failed: "text-bad", fenced: "text-warn", completed: "text-ok" }[end] }, end), end === "running" ? "" : facts.text(a.reason[row]) ?? ""],
      };
    });
    keepPlaces(this.tableBody, () => this.tableBody.replaceChildren(
      tableOf([["attempt", ""], ["began", ""], ["lasted", "number"], ["splits ended", "number"], ["end", ""], ["why", "words"]], lines),
      ...(rows.length > ROWS_MAX ? [el("p", { class: "dim" }, `${number(ROWS_MAX)} of ${number(rows.length)}; \`coordlog attempts\` lists all.`)] : [])));
  }

  /** Begin and end of a bar in pixels, or null if it cannot be seen. */
  _span(t, end) {
    const [from, to] = [this.axis.x(t), this.axis.x(end)];
    if (to < this.axis.left || from > this.axis.right) return null;
    return [Math.max(this.axis.left, from), Math.min(this.axis.right, Math.max(to, from + 1))];
  }

  _drawGaps(context, height) {
    context.fillStyle = colour("soft");
    for (const piece of this.axis.pieces) {
      if (!piece.isGap) continue;
      const span = this._span(piece.t, piece.end);
      if (span === null) continue;
      for (let x = span[0]; x < span[1]; x += 4) context.fillRect(x, AXIS_HEIGHT, Math.min(2, span[1] - x), height - AXIS_HEIGHT);
      this.hits.push({ x: span[0], to: span[1], y: 0, bottom: AXIS_HEIGHT, thing: { kind: "gaps", t: piece.t, end: piece.end } });
    }
  }

  _drawCheckpoints(context, height) {
    const { facts, moment, now } = this.view;
    const c = facts.checkpoints;
    let last = -Infinity;
    for (const row of facts.rows("checkpoints", moment)) {
      const end = facts.checkpointEnd(row, moment);
      const span = this._span(c.t[row], end === "pending" ? now : c.end_t[row] ?? now);
      if (span === null || span[1] <= last) continue;
      const from = Math.max(span[0], last);
      last = Math.max(span[1], from + 1);
      context.fillStyle = colour(end === "aborted" ? "band-bad" : "band");
      context.fillRect(from, AXIS_HEIGHT - 8, last - from, height - AXIS_HEIGHT + 8);
      context.fillStyle = colour(end === "aborted" ? "bad" : end === "pending" ? "warn" : "run");
      context.fillRect(from, AXIS_HEIGHT - 8, Math.max(1, last - from - 1), 4);
      if (c.cut_t[row] !== null && facts.isOver(c.cut_off[row], moment) && span[1] - span[0] > 6) {
        context.fillStyle = colour("text");
        context.fillRect(this.axis.x(c.cut_t[row]), AXIS_HEIGHT - 8, 1, 4);
      }
      this.painted.checkpoints += 1;
      this.hits.push({ x: from, to: last, y: AXIS_HEIGHT - 12, bottom: AXIS_HEIGHT, thing: { kind: "checkpoints", row } });
    }
  }

  _drawLanes(context, lanes, width, height) {
    const top = this.box.scrollTop;
    const first = Math.max(0, Math.floor(top / this.laneHeight));
    const count = Math.ceil((height - AXIS_HEIGHT) / this.laneHeight) + 1;
    context.save();
    context.beginPath();
    context.rect(0, AXIS_HEIGHT, width, height - AXIS_HEIGHT);
    context.clip();
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (let at = first; at < Math.min(lanes.length, first + count); at += 1) {
      const y = AXIS_HEIGHT + at * this.laneHeight - top;
      context.fillStyle = colour("line");
      context.fillRect(this.labelWidth - 4, y + this.laneHeight - 0.5, width - this.labelWidth + 4, 0.5);
      context.fillStyle = colour("dim");
      const label = this.labelWidth === LABEL_WIDTH ? `subtask ${lanes[at]}` : String(lanes[at]);
      context.fillText(label, 4, y + this.laneHeight / 2, this.labelWidth - 12);
      this._drawLane(context, lanes[at], y);
      this.painted.lanes += 1;
    }
    context.restore();
  }

  _drawLane(context, subtask, y) {
    const { facts, moment, now, selection } = this.view;
    const a = facts.attempts;
    const bar = Math.max(6, Math.min(26, this.laneHeight - 6));
    const top = y + (this.laneHeight - bar) / 2;
    const lastOf = new Map();
    for (const row of this.bySubtask.get(subtask)) {
      if (!facts.isSo(a.off[row], moment)) continue;
      const end = facts.attemptEnd(row, moment);
      const span = this._span(a.t[row] ?? 0, end === "running" ? Math.max(now, a.t[row] ?? 0) : a.end_t[row] ?? now);
      if (span === null) continue;
      const kind = END_CLASS[end] || "idle";
      if (span[1] <= (lastOf.get(kind) ?? -Infinity)) continue;
      lastOf.set(kind, span[1]);
      context.fillStyle = colour(`${kind}-soft`);
      context.fillRect(span[0], top, span[1] - span[0], bar);
      this.hits.push({ x: span[0], to: span[1], y: top, bottom: top + bar, thing: { kind: "attempts", row } });
      this.painted.attempts += 1;
      this._drawHolds(context, row, kind, top, bar);
      context.fillStyle = colour(kind);
      context.fillRect(span[0], top, 2, bar);
      if (end === "failed" || end === "fenced") context.fillRect(span[1] - 2, top - 2, 2, bar + 4);
      if (span[1] - span[0] > 30 && bar >= 12) {
        const label = String(a.att[row]);
        context.fillStyle = colour("card");
        context.fillRect(span[0] + 3, top + bar / 2 - 6, context.measureText(label).width + 4, 12);
        context.fillStyle = colour("text");
        context.fillText(label, span[0] + 5, top + bar / 2);
      }
      if (selection !== null && selection.kind === "attempts" && selection.row === row) this._frame(context, span, top, bar);
    }
    this._drawAcks(context, subtask, top + bar);
  }

  _drawHolds(context, attempt, kind, top, bar) {
    const { facts, moment, now, selection } = this.view;
    const h = facts.holds;
    let last = -Infinity;
    for (const row of this.holdsOf.get(attempt) || []) {
      const begun = h.read_t[row];
      if (begun === null || !facts.isSo(h.off[row], moment) || begun > now || !facts.isOver(h.end_off[row], moment)) continue;
      const span = this._span(begun, h.end_t[row]);
      if (span === null || span[1] <= last) continue;
      const from = Math.max(span[0], last);
      const isThrown = facts.isOver(h.thrown_off[row], moment);
      context.fillStyle = colour(kind);
      const wide = Math.max(1, span[1] - from - (span[1] - from > 3 ? 1 : 0));
      if (isThrown) { context.globalAlpha = 0.45; context.fillRect(from, top + bar * 0.6, wide, bar * 0.4); context.globalAlpha = 1; }
      else context.fillRect(from, top + 1, wide, bar - 2);
      last = span[1];
      this.painted.holds += 1;
      this.hits.push({ x: from, to: span[1], y: top, bottom: top + bar, thing: { kind: "holds", row } });
      if (selection !== null && selection.kind === "holds" && selection.row === row) this._frame(context, span, top, bar);
    }
  }

  _drawAcks(context, subtask, y) {
    const { facts, moment } = this.view;
    const a = facts.acks;
    context.fillStyle = colour("run");
    let last = -Infinity;
    for (const row of this.acksOf.get(subtask) || []) {
      if (!facts.isSo(a.off[row], moment)) continue;
      const span = this._span(a.barrier_t[row] ?? a.t[row], a.t[row]);
      if (span === null || span[1] <= last) continue;
      context.fillRect(Math.max(span[0], last), y + 0.5, Math.max(1, span[1] - Math.max(span[0], last)), 2);
      last = span[1];
    }
  }

  _frame(context, span, top, bar) {
    context.strokeStyle = colour("text");
    context.lineWidth = 1.5;
    context.strokeRect(span[0] - 1, top - 2, span[1] - span[0] + 2, bar + 4);
  }

  _drawMarks(context, height) {
    const { facts, moment } = this.view;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "alphabetic";
    let free = -Infinity;
    for (const row of facts.rows("epochs", moment)) {
      const x = this.axis.x(facts.epochs.t[row] ?? 0);
      if (x < this.axis.left - 1 || x > this.axis.right) continue;
      context.fillStyle = colour("text");
      context.fillRect(x - 0.75, 14, 1.5, height - 14);
      const label = `epoch ${facts.epochs.epoch[row]}`;
      if (x + 3 > free) { context.fillText(label, x + 4, 24); free = x + 8 + context.measureText(label).width; }
      this.hits.push({ x: x - 3, to: Math.max(x + 4, free), y: 14, bottom: 27, thing: { kind: "epochs", row } });
    }
    for (const [table, name] of [["failures", "bad"], ["resets", "warn"]]) {
      let last = -Infinity;
      for (const row of facts.rows(table, moment)) {
        const x = this.axis.x(facts[table].t[row]);
        if (x < this.axis.left || x > this.axis.right || x - last < 3) continue;
        last = x;
        context.fillStyle = colour(name);
        context.beginPath();
        context.moveTo(x - 4, AXIS_HEIGHT - 14);
        context.lineTo(x + 4, AXIS_HEIGHT - 14);
        context.lineTo(x, AXIS_HEIGHT - 8);
        context.fill();
        this.hits.push({ x: x - 4, to: x + 4, y: 27, bottom: AXIS_HEIGHT - 7, thing: { kind: table, row } });
      }
    }
    if (!this.view.isLatest) {
      const x = this.axis.x(this.view.now);
      context.fillStyle = colour("focus");
      context.fillRect(x - 0.5, AXIS_HEIGHT - 8, 1, height);
    }
  }

  _drawAxis(context, width) {
    const { facts } = this.view;
    context.fillStyle = colour("dim");
    context.font = "10px system-ui, sans-serif";
    for (const { t, x, step } of this.axis.ticks(90)) {
      const text = facts.clockText(t);
      const label = step >= 1e6 ? text.replace(/\.\d+$/, "") : text;
      if (x + context.measureText(label).width < width) context.fillText(label, x, 10);
      context.fillRect(x, 12, 1, 3);
    }
  }

  /** The thing at a pixel of the canvas: the last drawn there. */
  thingAt(x, y) {
    for (let at = this.hits.length - 1; at >= 0; at -= 1) {
      const hit = this.hits[at];
      if (x >= hit.x - 1 && x <= hit.to + 1 && y >= hit.y && y <= hit.bottom) return hit.thing;
    }
    return null;
  }

  _listen() {
    const { canvas } = this;
    const redraw = () => this.view.changed(["lanes"]);
    this.box.addEventListener("scroll", redraw, { passive: true });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
      event.preventDefault();
      if (event.shiftKey) this.axis.pan((event.deltaY || event.deltaX) / 800);
      else this.axis.zoom(Math.exp(event.deltaY / 300), event.offsetX);
      redraw();
    }, { passive: false });
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, moved: false }; });
    canvas.addEventListener("pointermove", (event) => {
      if (drag === null || event.buttons === 0) return;
      const by = event.clientX - drag.x;
      if (!drag.moved && Math.abs(by) < 4) return;
      if (!drag.moved) canvas.setPointerCapture(event.pointerId);
      drag = { x: event.clientX, moved: true };
      this.axis.pan(-by / (this.axis.right - this.axis.left));
      redraw();
    });
    canvas.addEventListener("pointerup", (event) => {
      const isClick = drag !== null && !drag.moved;
      drag = null;
      if (isClick) this.view.select(this.thingAt(event.offsetX, event.offsetY));
    });
    canvas.addEventListener("dblclick", (event) => { this.axis.zoom(0.4, event.offsetX); redraw(); });
    canvas.addEventListener("keydown", (event) => {
      const middle = (this.axis.left + this.axis.right) / 2;
      const keys = {
        ArrowLeft: () => this.axis.pan(-0.2), ArrowRight: () => this.axis.pan(0.2), "+": () => this.axis.zoom(0.5, middle),
        "=": () => this.axis.zoom(0.5, middle), "-": () => this.axis.zoom(2, middle), "0": () => this.axis.reset(),
        ArrowUp: () => { this.box.scrollTop -= 60; }, ArrowDown: () => { this.box.scrollTop += 60; },
        Escape: () => this.view.select(null), n: () => this._next(1), p: () => this._next(-1),
      };
      const act = keys[event.key];
      if (act === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
      redraw();
    });
  }

  /** Select the next or the previous attempt, in the order of the lanes. */
  _next(step) {
    const { facts, selection, moment } = this.view;
    const shown = this.lanesShown.flatMap((sub) => this.bySubtask.get(sub)).filter((row) => facts.isSo(facts.attempts.off[row], moment));
    const at = selection !== null && selection.kind === "attempts" ? shown.indexOf(selection.row) : -1;
    const row = shown[(at + step + shown.length) % shown.length];
    if (row === undefined) return;
    this.view.select({ kind: "attempts", row });
    this.words.textContent = `${facts.attemptText(facts.attempts.sub[row], facts.attempts.att[row])}: ${facts.attemptEnd(row, moment)}`;
    const lane = this.lanesShown.indexOf(facts.attempts.sub[row]) * this.laneHeight;
    if (lane < this.box.scrollTop || lane > this.box.scrollTop + LANES_HEIGHT - 2 * AXIS_HEIGHT) this.box.scrollTop = lane;
  }
}

function legend(view) {
  const parts = [["ok", "completed"], ["bad", "failed"], ["warn", "fenced with its driver"], ["stop", "stopped"], ["run", "running, checkpoint"]];
  return el("div", { class: "legend" },
    parts.map(([name, text]) => el("span", {}, el("i", { class: `is-${name}` }), text)),
    el("span", {}, "low bar: work thrown away"), el("span", {}, "▼ failure, reset"), el("span", {}, "┃ epoch"),
    view.facts.gaps.t.length ? el("span", {}, "┆ nothing happened") : null, view.lanes.more);
}

definePanel({
  id: "lanes", title: "Subtasks over time", place: 2, size: "main", keeps: true,
  command: "coordlog attempts JOB · coordlog splits JOB · coordlog checkpoints JOB",
  tools(view) {
    const act = (change) => () => { change(view.lanes.axis); view.changed(["lanes"]); };
    const middle = (axis) => (axis.left + axis.right) / 2;
    const failed = el("button", { type: "button", "aria-pressed": "false", onclick: () => {
      view.failedOnly = !view.failedOnly;
      failed.setAttribute("aria-pressed", String(view.failedOnly));
      view.lanes.box.scrollTop = 0;
      view.changed(["lanes"]);
    } }, "failed only");
    return [failed,
      el("button", { type: "button", "aria-label": "show less time", onclick: act((axis) => axis.zoom(0.5, middle(axis))) }, "+"),
      el("button", { type: "button", "aria-label": "show more time", onclick: act((axis) => axis.zoom(2, middle(axis))) }, "−"),
      el("button", { type: "button", "aria-label": "earlier", onclick: act((axis) => axis.pan(-0.3)) }, "←"),
      el("button", { type: "button", "aria-label": "later", onclick: act((axis) => axis.pan(0.3)) }, "→"),
      el("button", { type: "button", onclick: act((axis) => axis.reset()) }, "all")];
  },
  draw(body, view) {
    const isEmpty = view.facts.size("attempts") === 0;
    body.parentElement.querySelector(".tools").hidden = isEmpty;
    if (isEmpty) {
      body.replaceChildren(el("p", { class: "empty" }, "No attempt has begun."));
      return;
    }
    if (view.lanes === undefined) view.lanes = new Lanes(view);
    if (!view.lanes.box.isConnected) body.replaceChildren(view.lanes.box, legend(view), view.lanes.words, view.lanes.table);
    view.lanes.draw();
  },
});
