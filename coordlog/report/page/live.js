// A served page: facts and records come from the server, and are asked for again while the page is seen.

const RENEWAL_MS = 2000;

/** Facts and records; null if the page has the newest ones. */
async function askFacts(known) {
  const place = `${window.location.pathname}/facts${known === null ? "" : `?known=${known}`}`;
  const answer = await fetch(place, { cache: "no-store" });
  if (answer.status === 204) return null;
  if (!answer.ok) throw new Error(await answer.text());
  return { ...await answer.json(), end: answer.headers.get("X-Coordlog-End"), version: answer.headers.get("X-Coordlog-Version") };
}

function showMade(facts) {
  document.getElementById("job").textContent = facts.job;
  document.getElementById("made").textContent = `${many(facts.counts.records, "record")} that count and ${number(facts.counts.void)} that do not, `
    + `offsets ${facts.first_off} to ${facts.last_off} of ${facts.where}. Read at ${facts.made} by coordlog ${facts.made_by}. Times are UTC.`;
}

function startLive() {
  const main = document.getElementById("panels");
  const problem = el("p", { class: "partial", role: "status", hidden: "" });
  main.before(problem);
  problem.classList.add("wide");
  let [view, known] = [null, null];
  const renew = async () => {
    try {
      const data = document.hidden && view !== null ? null : await askFacts(known);
      problem.hidden = true;
      if (data === null) return;
      const facts = new Facts(data.facts);
      facts.records = data.records;
      known = data.version;
      if (facts.last_off < 0) { problem.textContent = "The log has no record yet."; problem.hidden = false; return; }
      showMade(facts);
      if (view === null) {
        view = new View(facts);
        window.coordlogView = view;
        bindMoment(view);
        view.open(main);
        const again = () => { colourCache = null; view.changed(); };
        window.addEventListener("resize", again);
        window.addEventListener("beforeprint", () => view.drawAll());
        window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
      } else {
        view.renew(facts);
      }
      main.removeAttribute("aria-busy");
      main.dataset.state = "records";
      main.dataset.end = data.end;
    } catch (error) {
      problem.textContent = `These facts are not renewed: ${error.message}`;
      problem.hidden = false;
    } finally {
      setTimeout(renew, RENEWAL_MS);
    }
  };
  renew();
}

startLive();
