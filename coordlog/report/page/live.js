// A served page: facts and records come from the server, and are asked for again while the page is seen.

const RENEWAL_MS = 2000;
const ANSWER_MS = 60000;
const NO_RECORD = "The log has no record yet.";

/** Facts and records; null if the page has the newest ones. */
async function askFacts(known) {
  const place = `${window.location.pathname}/facts${known === null ? "" : `?known=${known}`}`;
  const answer = await fetch(place, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS) })
    .catch((error) => { throw new Error(error.name === "TimeoutError" ? "the server does not answer" : "the server cannot be reached"); });
  if (answer.status === 204) return null;
  if (!answer.ok) throw new Error(await answer.text());
  return { ...await answer.json(), end: answer.headers.get("X-Coordlog-End"), version: answer.headers.get("X-Coordlog-Version") };
}

function startLive() {
  const main = document.getElementById("panels");
  const problem = el("p", { class: "partial wide", role: "status" }, "The log is being read.");
  main.before(problem);
  let [view, known] = [null, null];
  const report = (words) => { problem.textContent = shown(words); problem.hidden = false; };
  const renew = async () => {
    try {
      const data = document.hidden && view !== null ? null : await askFacts(known);
      if (data === null) { if (view === null) report(NO_RECORD); else if (!document.hidden) problem.hidden = true; return; }
      const facts = new Facts(data.facts);
      facts.records = data.records;
      known = data.version;
      showMade(facts, "Read");
      if (facts.last_off < 0 && view === null) { report(NO_RECORD); return; }
      problem.hidden = true;
      if (view === null) view = openView(facts, main); else view.renew(facts);
      main.dataset.state = "records";
      main.dataset.end = data.end;
    } catch (error) {
      report(view === null ? `There are no facts yet: ${error.message}` : `These facts are not renewed: ${error.message}`);
    } finally {
      setTimeout(renew, RENEWAL_MS);
    }
  };
  renew();
}

startLive();
