// Reads the facts in the page, shows them, then reads the records, which only details need.

/** The object in a data element: JSON, compressed by gzip, in base64. */
async function readData(id) {
  const text = document.getElementById(id).textContent.trim();
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

async function start() {
  const main = document.getElementById("panels");
  const facts = new Facts(await readData("facts"));
  document.getElementById("job").textContent = facts.job;
  document.getElementById("made").textContent = `${many(facts.counts.records, "record")} that count and ${number(facts.counts.void)} that do not, `
    + `offsets ${facts.first_off} to ${facts.last_off} of ${facts.where}. Made at ${facts.made} by coordlog ${facts.made_by}. Times are UTC.`;
  const view = new View(facts);
  window.coordlogView = view;
  bindMoment(view);
  view.open(main);
  main.removeAttribute("aria-busy");
  performance.mark("coordlog-painted");
  main.dataset.state = "painted";
  const again = () => { colourCache = null; view.changed(); };
  window.addEventListener("resize", again);
  window.addEventListener("beforeprint", () => view.drawAll());
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  await new Promise((resolve) => { setTimeout(resolve, 50); });
  facts.records = await readData("records");
  view.showMoment();
  view.changed(["details"]);
  performance.mark("coordlog-records");
  main.dataset.state = "records";
}

start().catch((error) => {
  const main = document.getElementById("panels");
  main.removeAttribute("aria-busy");
  main.append(el("p", { class: "partial" }, `The facts in this page cannot be shown: ${error.message}`));
  throw error;
});
