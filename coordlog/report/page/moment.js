// The slider for the moment: every panel shows the state as of that offset.

function bindMoment(view) {
  const slider = document.getElementById("moment");
  const text = document.getElementById("moment-text");
  const latest = document.getElementById("moment-end");
  const show = () => {
    const { facts } = view;
    slider.min = String(facts.first_off);
    slider.max = String(facts.last_off);
    slider.value = String(view.moment);
    const words = `${number(view.moment)} of ${number(facts.last_off)} · ${facts.clockText(view.now)}`;
    text.textContent = words;
    slider.setAttribute("aria-valuetext", words);
    latest.hidden = view.isLatest;
  };
  slider.addEventListener("input", () => { view.setMoment(Number(slider.value)); show(); });
  latest.addEventListener("click", () => { view.setMoment(view.facts.last_off); show(); slider.focus(); });
  view.showMoment = show;
  show();
}
