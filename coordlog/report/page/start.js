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
  showMade(facts, "Made");
  const view = openView(facts, main);
  performance.mark("coordlog-painted");
  main.dataset.state = "painted";
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
