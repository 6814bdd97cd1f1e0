// Time on a screen: idle time is collapsed, and a part can be zoomed to. Units are microseconds of work; an idle gap has
// the width of GAP_SHARE of all of it.

const GAP_SHARE = 0.012;

class TimeAxis {
  /** gaps: {t, end_t} of the idle times, ascending; last: the end of all time. */
  constructor(gaps, last) {
    let idle = 0;
    gaps.t.forEach((t, row) => { idle += gaps.end_t[row] - t; });
    const work = Math.max(1, last - idle);
    const width = work * GAP_SHARE;
    this.pieces = [];
    let [t, unit] = [0, 0];
    gaps.t.forEach((begin, row) => {
      const end = gaps.end_t[row];
      if (begin > t) { this.pieces.push({ t, end: begin, unit, units: begin - t, isGap: false }); unit += begin - t; }
      this.pieces.push({ t: begin, end, unit, units: width, isGap: true });
      [t, unit] = [end, unit + width];
    });
    const rest = Math.max(1, last - t);
    this.pieces.push({ t, end: t + rest, unit, units: rest, isGap: false });
    this.total = unit + rest;
    [this.from, this.to] = [0, this.total];
    [this.left, this.right] = [0, 1];
  }

  /** Set the pixels between which it is drawn. */
  fit(left, right) { this.left = left; this.right = Math.max(left + 1, right); }

  /** Show the time that another axis shows, between its pixels. */
  take(other) {
    this.fit(other.left, other.right);
    const [from, to] = [this.unitOf(other.t(other.left)), this.unitOf(other.t(other.right))];
    this._set(from, Math.max(to - from, this.total * 1e-6));
  }

  get isZoomed() { return this.from > 0 || this.to < this.total; }

  unitOf(t) {
    const pieces = this.pieces;
    let [low, high] = [0, pieces.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (pieces[middle].t <= t) low = middle; else high = middle - 1;
    }
    const piece = pieces[low];
    const share = (t - piece.t) / (piece.end - piece.t);
    return piece.unit + piece.units * Math.min(1, Math.max(0, share));
  }

  /** Pixel of a time. */
  x(t) { return this.left + (this.unitOf(t) - this.from) / (this.to - this.from) * (this.right - this.left); }

  /** Time of a pixel. */
  t(x) {
    const unit = this.from + (x - this.left) / (this.right - this.left) * (this.to - this.from);
    const piece = this.pieces.findLast((candidate) => candidate.unit <= unit) || this.pieces[0];
    return piece.t + (piece.end - piece.t) * Math.min(1, Math.max(0, (unit - piece.unit) / piece.units));
  }

  /** Zoom by a factor around a pixel: below 1 shows less time. */
  zoom(factor, x) {
    const share = (x - this.left) / (this.right - this.left);
    const centre = this.from + share * (this.to - this.from);
    const width = Math.min(this.total, Math.max(this.total * 1e-6, (this.to - this.from) * factor));
    this._set(centre - share * width, width);
  }

  /** Move by a share of what is shown. */
  pan(share) { const width = this.to - this.from; this._set(this.from + share * width, width); }

  reset() { [this.from, this.to] = [0, this.total]; }

  _set(from, width) {
    this.from = Math.max(0, Math.min(this.total - width, from));
    this.to = this.from + width;
  }

  /** Times of round seconds, at least `pixels` apart. */
  *ticks(pixels) {
    const shown = this.to - this.from;
    const enough = shown * pixels / (this.right - this.left);
    const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7,
      1.5e7, 3e7, 6e7, 1.2e8, 3e8, 6e8, 9e8, 1.8e9, 3.6e9, 7.2e9, 2.16e10, 4.32e10, 8.64e10];
    const step = steps.find((candidate) => candidate >= enough) ?? 8.64e10 * Math.ceil(enough / 8.64e10);
    let last = -Infinity;
    for (const piece of this.pieces) {
      if (piece.isGap || piece.unit + piece.units < this.from || piece.unit > this.to) continue;
      const begin = Math.max(piece.t, this.t(this.left));
      const end = Math.min(piece.end, this.t(this.right));
      for (let t = Math.ceil(begin / step) * step; t <= end; t += step) {
        const x = this.x(t);
        if (x - last >= pixels * 0.8 && x >= this.left) { last = x; yield { t, x, step }; }
      }
    }
  }
}
