// The slider for the moment: every panel shows the state as of that offset. Its steps are the ends of turns.

function bindMoment(view) {
  const slider = document.getElementById("moment");
  const text = document.getElementById("moment-text");
  const latest = document.getElementById("moment-end");
  const group = slider.parentElement;
  const show = () => {
    const { facts } = view;
    group.hidden = facts.moments.length === 0;
    slider.max = String(Math.max(0, facts.moments.length - 1));
    slider.value = String(facts.momentRow(view.moment));
    const words = `${number(view.moment)} of ${number(facts.last_off)} · ${facts.clockText(view.now)}`;
    text.textContent = words;
    slider.setAttribute("aria-valuetext", `offset ${words}`);
    latest.hidden = view.isLatest;
  };
  slider.addEventListener("input", () => { view.setMoment(view.facts.moments[Number(slider.value)]); show(); });
  latest.addEventListener("click", () => { view.setMoment(view.facts.last_off); show(); slider.focus(); });
  view.showMoment = show;
  show();
}
