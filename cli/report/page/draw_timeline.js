// Draws a Timeline: axis, ranks, tasks, idle time, transfers, critical path.
// The cost depends on what is in view; a task narrower than a pixel costs one
// comparison.
const FONT = '11px system-ui,"DejaVu Sans",sans-serif';

function drawTimeline(view) {
  const scale = devicePixelRatio || 1;
  const g = view.canvas.getContext('2d');
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, view.width, view.height);
  g.font = FONT;
  drawAxis(view, g);
  g.save();
  g.beginPath();
  g.rect(view.gutter, 0, view.width - view.gutter, view.height);
  g.clip();
  view.marks = 0;
  const {tasks} = view.d;
  for (let r = 0; r < view.d.ranks; ++r) {
    const y = view.top + r * view.row;
    g.fillStyle = palette.idle;
    g.fillRect(view.x(0), y + 1, view.x(view.d.finish) - view.x(0),
               view.row - 2);
    if (view.show.causes) drawIdle(view, g, r, y);
    const half = view.show.measured ? (view.row - 3) / 2 : view.row - 2;
    drawTasks(view, g, view.step.order[r], tasks.t0, tasks.t1, y + 1, half);
    if (view.show.measured) {
      const m = view.d.measured;
      drawTasks(view, g, view.step.measuredOrder[r], m.t0, m.t1, y + 2 + half,
                     half, true);
    }
  }
  g.fillStyle = palette.epilogue;
  for (const [r, a, b] of view.d.epilogue) {
    g.fillRect(view.x(a), view.top + r * view.row + 1,
               view.x(b) - view.x(a), view.row - 2);
  }
  if (view.show.transfers) drawTransfers(view, g);
  if (view.show.crit) drawCritical(view, g);
  if (view.selected >= 0) outline(view, g, view.selected, palette.ink, 2);
  g.restore();
  drawMemory(view);
}

function drawAxis(view, g) {
  const span = view.t1 - view.t0;
  const rough = span / Math.max(2, (view.width - view.gutter) / 130);
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 5, 10].map(k => k * power).find(k => k >= rough);
  const unit = view.t1 >= 2e9 ? [1e9, 's'] : view.t1 >= 2e6 ? [1e6, 'ms']
      : [1e3, 'us'];
  const digits = Math.max(0, -Math.floor(Math.log10(step / unit[0]) + 1e-9));
  g.textAlign = 'center';
  for (let k = Math.ceil(view.t0 / step); k * step <= view.t1; ++k) {
    const x = view.x(k * step);
    g.fillStyle = palette.line;
    g.fillRect(Math.round(x), 16, 1, view.height - 16);
    g.fillStyle = palette.soft;
    const text = `${(k * step / unit[0]).toFixed(digits)} ${unit[1]}`;
    const w = g.measureText(text).width / 2;
    g.fillText(text, Math.min(Math.max(x, view.gutter + w),
                              view.width - w - 2), 12);
  }
  g.textAlign = 'left';
  g.fillStyle = palette.soft;
  const every = view.row >= 11 ? 1 : Math.ceil(11 / view.row);
  for (let r = 0; r < view.d.ranks; r += every) {
    g.fillText(`rank ${r}`, 0, view.top + (r + 0.5) * view.row + 4);
  }
}

// Weight gradients are hatched, or, where they are too narrow for it, have the
// mean of the two colours.
function colour(module, pass, width) {
  return palette.m[module % COLOURS][pass === 2 && width < 7 ? 3 : pass];
}

// Tasks narrower than a pixel are drawn together in the colour of the longest.
function drawTasks(view, g, list, t0, t1, y, h, shadow = false) {
  const {p, m, b, u, x: recomputes} = view.d.tasks;
  for (let k = view.step.first(list, t1, view.t0); k < list.length;) {
    const i = list[k];
    if (t0[i] > view.t1) break;
    const a = view.x(t0[i]);
    let w = view.x(t1[i]) - a;
    ++k;
    if (w < 1) {
      let longest = t1[i] - t0[i];
      let main = i;
      let end = t1[i];
      let count = 1;
      for (; k < list.length; ++k, ++count) {
        const j = list[k];
        if (view.x(t1[j]) - a > 1.5 || view.x(t0[j]) - view.x(end) > 0.7) {
          break;
        }
        if (t1[j] - t0[j] > longest) [longest, main] = [t1[j] - t0[j], j];
        end = t1[j];
      }
      w = Math.max(view.x(end) - a, count === 1 ? 0.8 : 0.3);
      g.fillStyle = colour(m[main], p[main], w);
      g.fillRect(a, y, w, h);
      if (count === 1) mark(view, i, shadow);
      continue;
    }
    mark(view, i, shadow);
    const gap = w > 4 ? 0.8 : 0;
    g.fillStyle = colour(m[i], p[i], w);
    g.fillRect(a, y, w - gap, h);
    if (w > 6 && h >= 8) {
      g.fillStyle = palette.ink;
      g.globalAlpha = 0.75;
      if (recomputes[i]) g.fillRect(a, y, w - gap, 3);
      if (view.step.offloaded[i]) g.fillRect(a, y + h - 3, w - gap, 3);
      g.globalAlpha = 1;
    }
    if (w >= 15 && h >= 12 && p[i] !== 2) {
      const text = u[i] > 0 ? `${b[i]}.${u[i]}` : `${b[i]}`;
      if (text.length * 7 + 4 < w) {
        g.fillStyle = p[i] === 0 ? '#1c1e21' : '#fff';
        g.textAlign = 'center';
        const from = Math.max(a, view.gutter);
        const to = Math.min(a + w, view.width);
        g.fillText(text, (from + to) / 2, y + h / 2 + 4);
        g.textAlign = 'left';
      }
    }
  }
}

function mark(view, i, shadow) {
  if (shadow) return;
  ++view.marks;
  if (view.seen) view.seen.add(i);
}

function drawIdle(view, g, r, y) {
  const {k: kind, t0, t1} = view.d.idle;
  for (const k of view.step.idle[r]) {
    if (t1[k] < view.t0 || t0[k] > view.t1) continue;
    g.fillStyle = palette.b[kind[k]];
    // Half as high as a row, so that causes do not look like tasks.
    g.fillRect(view.x(t0[k]), y + view.row / 2, view.x(t1[k]) - view.x(t0[k]),
               view.row / 2 - 1);
  }
}

function drawTransfers(view, g) {
  const {e, t0, t1} = view.d.transfers;
  const {r} = view.d.tasks;
  g.strokeStyle = palette.link;
  g.lineWidth = 1;
  let shown = 0;
  for (let k = 0; k < e.length; ++k) {
    if (t1[k] >= view.t0 && t0[k] <= view.t1) ++shown;
  }
  // More transfers would only make everything grey; they are drawn when zoomed
  // in.
  if (shown > view.width / 3) return;
  g.globalAlpha = 0.7;
  g.beginPath();
  for (let k = 0; k < e.length; ++k) {
    if (t1[k] < view.t0 || t0[k] > view.t1) continue;
    const [from, to] = view.step.edgeEnds(e[k]);
    const a = r[from];
    const b = r[to];
    g.moveTo(view.x(t0[k]), view.top + view.row * (a + (a < b ? 1 : 0)));
    g.lineTo(view.x(t1[k]), view.top + view.row * (b + (a < b ? 0 : 1)));
  }
  g.stroke();
  g.globalAlpha = 1;
}function drawCritical(view, g) {
  const {r} = view.d.tasks;
  g.strokeStyle = palette.crit;
  g.fillStyle = palette.crit;
  g.lineWidth = 1.5;
  const band = Math.max(2, Math.min(5, view.row / 5));
  for (const [kind, id, a, b] of view.d.critical) {
    if (b < view.t0 || a > view.t1) continue;
    if (kind === 0) {
      // A band at the bottom of the row keeps colours and numbers visible.
      const w = view.x(b) - view.x(a);
      g.fillRect(view.x(a), view.top + (r[id] + 1) * view.row - band - 1,
                 Math.max(w, 0.5), band);
      if (w > 12) outline(view, g, id, palette.crit, 1.5);
    }
    if (kind !== 1 && kind !== 2) continue;
    const [from, to] = view.step.edgeEnds(id);
    g.beginPath();
    g.moveTo(view.x(a), view.top + view.row * (r[from] + 1) - 1 - band / 2);
    g.lineTo(view.x(b), view.top + view.row * (r[to] + 1) - 1 - band / 2);
    g.stroke();
  }
}

function outline(view, g, i, colour, width) {
  const {r, t0, t1} = view.d.tasks;
  const h = view.show.measured ? (view.row - 3) / 2 : view.row - 2;
  g.strokeStyle = colour;
  g.lineWidth = width;
  g.strokeRect(view.x(t0[i]) + 0.5, view.top + r[i] * view.row + 1.5,
               Math.max(1, view.x(t1[i]) - view.x(t0[i]) - 1.5), h - 1);
}
