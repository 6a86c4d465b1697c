// Functions that a test calls (tests/end_to_end/report_browser_test.py).
// Returns how many tasks have a mark of their own at full zoom.
function countMarks(view) {
  const [a, b] = [view.t0, view.t1];
  view.seen = new Set();
  const all = view.step.order.flat().sort(
      (i, j) => view.d.tasks.t0[i] - view.d.tasks.t0[j]);
  const redraw = linked;
  linked = false;
  for (const i of all) {
    if (view.seen.has(i)) continue;
    const t = view.d.tasks.t0[i];
    view.set(t - view.step.leastSpan * 0.02, t + view.step.leastSpan * 0.98);
    if (!view.seen.has(i)) break;
  }
  linked = redraw;
  const count = view.seen.size;
  view.seen = null;
  view.set(a, b);
  return count;
}
// Returns the milliseconds per frame while zooming in and out.
function frameTimes(view, frames = 60) {
  const out = [];
  // Reading back a pixel waits until the frame is drawn.
  const probe = document.createElement('canvas');
  probe.width = probe.height = 1;
  const pixels = probe.getContext('2d', {willReadFrequently: true});
  for (let k = 0; k < frames; ++k) {
    const f = Math.pow(0.5, 4 * Math.sin(Math.PI * k / frames));
    const begin = performance.now();
    view.set(view.step.end * 0.4 * (1 - f), view.step.end * (0.4 + 0.6 * f));
    pixels.drawImage(view.canvas, 0, 0, 1, 1, 0, 0, 1, 1);
    pixels.getImageData(0, 0, 1, 1);
    out.push(performance.now() - begin);
  }
  view.set(0, view.step.end);
  return out;
}

const api = {
  page, timelines, errors, makeAll, countMarks, frameTimes, time, bytes,
  firstPaintMs: performance.now() - began,
  selfTest() {
    makeAll();
    const out = {errors, firstPaintMs: api.firstPaintMs, steps: []};
    out.requests = performance.getEntriesByType('resource').length;
    for (const cell of document.querySelectorAll('[data-ns]')) {
      if (cell.textContent !== time(+cell.dataset.ns)) {
        errors.push(`cell ${cell.textContent} is not ${cell.dataset.ns} ns`);
      }
    }
    for (const cell of document.querySelectorAll('[data-bytes]')) {
      if (cell.textContent !== bytes(+cell.dataset.bytes)) {
        errors.push(`cell ${cell.textContent} is not ${cell.dataset.bytes} B`);
      }
    }
    timelines.forEach((t, index) => {
      const step = {tasks: t.step.n, marks: countMarks(t), hovers: 0,
                    reasons: 0, finish: t.d.finish, walked: 0};
      // Point at every task at full zoom; ask for its name and reason.
      for (let i = 0; i < t.step.n; ++i) {
        const {t0, t1, r} = t.d.tasks;
        t.t0 = t0[i] - t.step.leastSpan * 0.1;
        t.t1 = t.t0 + t.step.leastSpan;
        const hit = t.hit(t.x(Math.min((t0[i] + t1[i]) / 2,
                                       t0[i] + t.step.leastSpan / 2)),
                          t.top + (r[i] + 0.4) * t.row);
        if (hit && (hit.task === i || t0[hit.task] === t1[hit.task] ||
                    t0[i] === t1[i])) ++step.hovers;
        const text = t.step.describe(i);
        if (text.includes(t.step.name(i)) && /because .+/.test(text)) {
          ++step.reasons;
        }
      }
      [t.t0, t.t1] = [0, t.step.end];
      const e = new PointerEvent('pointermove', {
        clientX: t.canvas.getBoundingClientRect().left + t.x(
            (t.d.tasks.t0[0] + t.d.tasks.t1[0]) / 2),
        clientY: t.canvas.getBoundingClientRect().top + t.top +
            (t.d.tasks.r[0] + 0.5) * t.row});
      t.canvas.dispatchEvent(e);
      step.tip = t.tip.textContent;
      t.tip.hidden = true;
      // Move by keyboard from the first task of a rank to its last.
      t.select(-1);
      for (let k = 0; k < 5; ++k) pressKey(t, 'ArrowRight', false);
      pressKey(t, 'ArrowDown', false);
      step.walked = t.selected >= 0 && t.detail.textContent.length > 40;
      t.select(-1);
      const sum = t.d.bubbles.map(b => b.reduce((x, y) => x + y, 0));
      step.bubbles = sum;
      step.peaks = t.d.memory.map(m => m.peak.total);
      out.steps.push(step);
      document.getElementById(`tasks-${index}`).open = false;
    });
    return out;
  },
};
window.pipeloomReport = api;
