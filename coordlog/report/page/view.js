// What is shown: the facts, the moment, the selection. Panels declare themselves with `definePanel` and are drawn again
// after each change, if they can be seen.

const PANELS = [];
const ROWS_MAX = 200;

/**
 * Declares a panel.
 * id: of its element, behind "panel-"; title; command: that answers the same, with JOB; place: order on the page, 1 to 10 as
 * the questions of the report, with parts between; size: "", "half", "main" or "side";
 * tools(view): elements for its head, made once, or absent;
 * draw(body, view): fills the body, which is empty, for `view.facts` at `view.moment`;
 * keeps: true if the body is not emptied before each drawing (a canvas).
 */
function definePanel(panel) { PANELS.push(panel); }

class View {
  constructor(facts) {
    this.facts = facts;
    this.moment = facts.last_off;
    this.selection = null;
    this.failedOnly = false;
    this._expanded = new Set();
    this._bodies = new Map();
    this._dirty = new Set();
    this._visible = new Set();
    this._isQueued = false;
    this._observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const panel = this._bodies.get(entry.target.id);
        if (entry.isIntersecting) this._visible.add(panel); else this._visible.delete(panel);
      }
      this._queue();
    }, { rootMargin: "200px" });
  }

  /** Whether the moment is the end of the log. */
  get isLatest() { return this.moment >= this.facts.last_off; }

  /** Time of the moment; at the end of the log that of the last verdict. */
  get now() { return this.isLatest ? this.facts.last_t : this.facts.timeOf(this.moment); }

  /** Take newer facts; moment, zoom and selection stay, and a page at the end of the log stays at its end. */
  renew(facts) {
    const wasLatest = this.isLatest;
    const isSame = facts.first_off === this.facts.first_off && facts.t0 === this.facts.t0;
    this.selection = isSame ? this._selectionIn(facts) : null;
    this.facts = facts;
    if (this.lanes !== undefined) this.lanes.take(facts);
    this.moment = wasLatest || facts.moments.length === 0 ? facts.last_off : facts.moments[facts.momentRow(this.moment)];
    this.showMoment();
    this.changed();
  }

  /** The selection in newer facts, whose rows may have other numbers. */
  _selectionIn(facts) {
    if (this.selection === null) return null;
    const { kind, row } = this.selection;
    const key = this.facts.keyOf(kind, row);
    if (key === null) return this.selection;
    const found = facts.rowOf(kind, key);
    return found < 0 ? null : { kind, row: found };
  }

  /** Show the state as of the last end of a turn up to an offset. */
  setMoment(offset) {
    const { moments } = this.facts;
    this.moment = moments.length === 0 ? this.facts.last_off : moments[this.facts.momentRow(offset)];
    this.changed();
  }

  /** How many rows a panel shows: more of them once its button was pressed. */
  limitOf(id, few) { return this._expanded.has(id) ? ROWS_MAX : few; }

  /** The button of a panel that has more rows than it shows at first, else null. */
  moreButton(id, few, count) {
    if (count <= few) return null;
    const isExpanded = this._expanded.has(id);
    const press = () => {
      if (isExpanded) this._expanded.delete(id); else this._expanded.add(id);
      this.changed([id]);
    };
    return el("button", { type: "button", class: "more", "aria-expanded": String(isExpanded), onclick: press },
      isExpanded ? "show fewer" : `show ${count > ROWS_MAX ? number(ROWS_MAX) : "all"} of ${number(count)}`);
  }

  /** Select a thing: {kind, row}, where kind is a table's name; null for nothing. */
  select(selection) {
    this.selection = selection;
    this.changed(["details", "lanes"]);
    const details = document.getElementById("panel-details");
    if (selection !== null && details !== null) {
      const { top } = details.getBoundingClientRect();
      const head = document.querySelector(".bar").getBoundingClientRect().bottom;
      if (top > window.innerHeight || top < head) details.scrollIntoView({ block: "start" });
    }
  }

  /** Facts have come, as in a live page; or records, or the size of the window, have changed. */
  changed(ids = null) {
    for (const panel of PANELS) if (ids === null || ids.includes(panel.id)) this._dirty.add(panel);
    this._queue();
  }

  /** Put the panels on the page, and draw those that can be seen at once. */
  open(main) {
    PANELS.sort((a, b) => a.place - b.place);
    for (const panel of PANELS) {
      const side = panel.size === "side" ? { tabindex: 0, role: "group", "aria-label": panel.title } : {};
      const body = el("div", { class: "body", ...side });
      const command = panel.command.replaceAll("JOB", () => this.facts.argument);
      const tools = el("div", { class: "tools" }, panel.tools ? panel.tools(this) : []);
      const section = el("section", { class: `panel ${panel.size || ""}`, id: `panel-${panel.id}`, "aria-label": panel.title },
        el("div", { class: "head" }, el("h2", {}, panel.title), tools), body,
        command ? commandLine(command) : null);
      main.append(section);
      panel.body = body;
      this._bodies.set(section.id, panel);
    }
    for (const panel of PANELS) {
      this._dirty.add(panel);
      if (panel.body.getBoundingClientRect().top < window.innerHeight) this._draw(panel);
      this._observer.observe(document.getElementById(`panel-${panel.id}`));
    }
  }

  /** Draw all panels, seen or not, as for a printer. */
  drawAll() { for (const panel of PANELS) this._draw(panel); }

  _queue() {
    if (this._isQueued) return;
    this._isQueued = true;
    requestAnimationFrame(() => {
      this._isQueued = false;
      for (const panel of [...this._dirty]) if (this._visible.has(panel)) this._draw(panel);
    });
  }

  _draw(panel) {
    this._dirty.delete(panel);
    if (panel.keeps) { panel.draw(panel.body, this); return; }
    keepPlaces(panel.body, () => { panel.body.replaceChildren(); panel.draw(panel.body, this); });
  }
}
