// Curves over time: event to ack, appends, waiting events; and the backlog of splits.

const CURVE_HEIGHT = 130;

/** A curve of columns over the times `t`, each [name, values, colour, suffix]; steps for counts. */
function curve(body, view, title, t, columns, isStepped) {
  const { facts } = view;
  const holder = el("div", { class: "curve" });
  body.append(el("h3", {}, title), holder);
  const text = { stroke: colour("dim"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 } };
  const series = columns.map(([name, , stroke, suffix]) => ({
    label: name, stroke: colour(stroke), width: 1.5, points: { show: t.length < 3, size: 5 },
    paths: isStepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
    value: (_plot, value) => (value === null || value === undefined ? "" : `${number(Math.round(value * 1000) / 1000)}${suffix}`),
  }));
  new uPlot({
    width: Math.max(200, holder.clientWidth), height: CURVE_HEIGHT,
    cursor: { drag: { x: false, y: false } }, scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [{ ...text, space: 80, values: (_plot, ticks) => ticks.map((seconds) => clockShort(facts, seconds, ticks)) }, { ...text, size: 56 }],
    series: [{ label: "UTC", value: (_plot, seconds) => (seconds === null ? "" : facts.clockText(seconds * 1e6 - facts.t0)) }, ...series],
  }, [t.map((time) => (facts.t0 + time) / 1e6), ...columns.map(([, values]) => values)], holder);
}

/** A tick's time as text, with milliseconds if the ticks are less than a second apart. */
function clockShort(facts, seconds, ticks) {
  const text = facts.clockText(Math.round(seconds * 1e6) - facts.t0);
  return ticks.length > 1 && ticks[1] - ticks[0] < 1 ? text : text.split(".")[0];
}

/** The columns of a table at the moment. */
function columnsAt(view, table, names) {
  const rows = view.facts.rows(table, view.moment);
  return names.map((name) => rows.map((row) => view.facts[table][name][row]));
}

definePanel({
  id: "latency", title: "Latency", place: 9, size: "half", command: "coordlog events JOB",
  draw(body, view) {
    const { facts, moment } = view;
    const [t, p50, p99, unacked, held] = columnsAt(view, "latency", ["t", "p50", "p99", "unacked", "held"]);
    const [at, appended, late] = columnsAt(view, "appends", ["t", "p50", "p99"]);
    if (t.length === 0 && at.length === 0) { body.append(el("p", { class: "empty" }, "No event was sent to a subtask and acked.")); return; }
    if (t.length) {
      curve(body, view, "event to ack, ms", t, [["half within", p50, "run", " ms"], ["99 of 100 within", p99, "warn", " ms"]], false);
      curve(body, view, "waiting events", t, [["not acked", unacked, "run", ""], ["held by a checkpoint", held, "stop", ""]], true);
    }
    if (at.length) curve(body, view, "record to log, ms", at, [["half within", appended, "run", " ms"], ["99 of 100 within", late, "warn", " ms"]], false);
    const e = facts.events;
    const slowest = facts.rows("events", moment).filter((row) => facts.isOver(e.end_off[row], moment)).sort((a, b) => e.ms[b] - e.ms[a]).slice(0, 4);
    if (slowest.length) {
      body.append(el("h3", {}, "slowest events"), tableOf([["at offset", "number"], ["subtask", "number"], ["sent", ""], ["took", "number"], ["end", ""]],
        slowest.map((row) => [e.off[row] === null ? "?" : String(e.off[row]), String(e.sub[row]), facts.clockText(e.t[row]), lasted(e.ms[row] * 1000), facts.text(e.status[row])])));
    }
  },
});

/** Steps of the backlog up to the moment: [offset, splits, bytes], changes by offset. */
function backlogSteps(facts) {
  if (facts.backlog !== undefined) return facts.backlog;
  const changes = [];
  const { splits, holds } = facts;
  const isRead = new Map();
  splits.off.forEach((offset, split) => changes.push([offset ?? facts.first_off, split, 1]));
  holds.end_off.forEach((offset, hold) => {
    if (offset === null) return;
    changes.push([offset, holds.split[hold], -1]);
    if (holds.thrown_off[hold] !== null && holds.thrown_off[hold] > offset) changes.push([holds.thrown_off[hold], holds.split[hold], 1]);
  });
  for (const column of ["skipped_off", "withdrawn_off"]) splits[column].forEach((offset, split) => { if (offset !== null) changes.push([offset, split, -1]); });
  changes.sort((a, b) => a[0] - b[0]);
  let [count, bytes] = [0, 0];
  facts.backlog = changes.map(([offset, split, by]) => {
    // A split counts once, however many attempts have read it.
    const before = isRead.get(split) ?? 0;
    isRead.set(split, before + by);
    const change = (before + by > 0 ? 1 : 0) - (before > 0 ? 1 : 0);
    count += change;
    bytes += change * (splits.bytes[split] || 0);
    return [offset, count, bytes];
  });
  return facts.backlog;
}

definePanel({
  id: "backlog", title: "Backlog", place: 10, size: "half", command: "coordlog splits JOB",
  draw(body, view) {
    const { facts, moment } = view;
    const steps = backlogSteps(facts).filter(([offset]) => offset <= moment);
    if (steps.length === 0) { body.append(el("p", { class: "empty" }, "No split was discovered.")); return; }
    const [, count, bytes] = steps[steps.length - 1];
    const places = new Map();
    for (const split of facts.rows("splits", moment)) {
      const place = facts.splitPlace(split, moment);
      places.set(place, (places.get(place) || 0) + 1);
    }
    const hasBytes = facts.splits.bytes.some((size) => size !== null);
    body.append(el("p", {}, el("strong", {}, `${many(count, "split")} discovered and not finished`), hasBytes ? `, ${inBytes(bytes)}.` : "."),
      el("p", { class: "dim" }, [...places].map(([place, number_]) => `${place}: ${number(number_)}`).join(" · ")));
    const every = Math.max(1, Math.ceil(steps.length / 1500));
    const shown = steps.filter((_step, at) => at % every === 0 || at === steps.length - 1);
    const t = shown.map(([offset]) => facts.timeOf(offset));
    curve(body, view, "splits that are not finished", t, [["splits", shown.map(([, value]) => value), "run", ""]], true);
    if (hasBytes) curve(body, view, "their megabytes", t, [["MB", shown.map(([, , value]) => value / 1e6), "stop", " MB"]], true);
  },
});
