// The opening of a page: what is around the panels, and the first drawing. For a report and for a served page.

/** Show whose facts they are and when they were made or read: the verb. */
function showMade(facts, verb) {
  const { records, void: voids } = facts.counts;
  const span = facts.last_off < 0 ? "" : `, offsets ${facts.first_off} to ${facts.last_off}`;
  document.getElementById("job").textContent = shown(facts.job);
  document.getElementById("made").textContent = shown(`${many(records, "record")} that count and ${number(voids)} that do not${span} of ${facts.where}. `
    + `${verb} at ${facts.made} by coordlog ${facts.made_by}. Times are UTC.`);
}

/** The view of the first facts, in the page's main element, which is drawn when it returns. */
function openView(facts, main) {
  const view = new View(facts);
  window.coordlogView = view;
  bindMoment(view);
  view.open(main);
  const again = () => { colourCache = null; view.changed(); };
  window.addEventListener("resize", again);
  window.addEventListener("beforeprint", () => view.drawAll());
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  main.removeAttribute("aria-busy");
  return view;
}
