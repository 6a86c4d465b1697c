'use strict';
// The report's page: draws the timelines, tells of tasks, checks itself. Its
// data stand in the page as JSON (written by report_data.cc).
(() => {
const began = performance.now();
const errors = [];
addEventListener('error', e => errors.push(String(e.message)));
addEventListener('unhandledrejection', e => errors.push(String(e.reason)));
const root = document.documentElement;
const $ = (tag, parent, props = {}) => {
  const e = Object.assign(document.createElement(tag), props);
  if (parent) parent.append(e);
  return e;
};
const PASS = ['forward', 'backward', 'weight gradient'];
const COLOURS = 6;
const calm = matchMedia('(prefers-reduced-motion: reduce)').matches;

// ---- Words -----------------------------------------------------------------
// As FormatDuration and FormatBytes of base/units.cc.
function time(ns) {
  const a = Math.abs(ns);
  if (a < 1e3) return `${ns} ns`;
  if (a < 1e6) return `${(ns / 1e3).toFixed(3)} us`;
  if (a < 1e9) return `${(ns / 1e6).toFixed(3)} ms`;
  return `${(ns / 1e9).toFixed(3)} s`;
}
function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB'];
  let u = 0;
  while (Math.abs(n) >= 1024 && u < 3) { n /= 1024; ++u; }
  return u === 0 ? `${n} B` : `${n.toFixed(2)} ${units[u]}`;
}
const percent = x => `${(100 * x).toFixed(1)} %`;

// ---- Theme -----------------------------------------------------------------
let palette = {};
const timelines = [];
const dark = matchMedia('(prefers-color-scheme: dark)');
function setTheme(name) {
  root.dataset.theme = name || (dark.matches ? 'dark' : 'light');
  const style = getComputedStyle(root);
  palette = {};
  for (const key of ['page', 'card', 'ink', 'soft', 'line', 'idle', 'epilogue',
                     'limit', 'link', 'accent', 'crit']) {
    palette[key] = style.getPropertyValue('--' + key).trim();
  }
  for (const [name, count] of [['i', 6], ['b', 8]]) {
    palette[name] = [];
    for (let k = 0; k < count; ++k) {
      palette[name].push(style.getPropertyValue(`--${name}${k}`).trim());
    }
  }
  palette.m = [];
  for (let k = 0; k < COLOURS; ++k) {
    const a = style.getPropertyValue(`--m${k}a`).trim();
    const b = style.getPropertyValue(`--m${k}b`).trim();
    palette.m.push([a, b, hatched(a, b)]);
  }
  for (const t of timelines) t.draw();
}
function hatched(a, b) {
  const c = $('canvas', null, {width: 6, height: 6});
  const g = c.getContext('2d');
  g.fillStyle = a;
  g.fillRect(0, 0, 6, 6);
  g.strokeStyle = b;
  g.lineWidth = 2;
  for (const d of [-6, 0, 6]) {
    g.beginPath();
    g.moveTo(d - 1, 7);
    g.lineTo(d + 7, -1);
    g.stroke();
  }
  return g.createPattern(c, 'repeat');
}

// ---- One step --------------------------------------------------------------
class Timeline {
  constructor(data, index, host) {
    this.d = data;
    this.index = index;
    this.host = host;
    this.n = data.tasks.r.length;
    this.end = Math.max(1, data.axis || 0, data.finish,
                        data.measured ? data.measured.finish : 0);
    this.t0 = 0;
    this.t1 = this.end;
    this.selected = -1;
    this.show = {crit: false, transfers: data.ranks <= 16, causes: false,
                 measured: !!data.measured};
    this.memoryRank = data.fullest;
    this.prepare();
    this.build();
  }

  prepare() {
    const {tasks, ranks} = this.d;
    const byRank = () => Array.from({length: ranks}, () => []);
    this.order = byRank();
    for (let i = 0; i < this.n; ++i) {
      if (tasks.t1[i] >= tasks.t0[i]) this.order[tasks.r[i]].push(i);
    }
    let least = this.end;
    for (const list of this.order) {
      list.sort((a, b) => tasks.t0[a] - tasks.t0[b] || a - b);
      for (const i of list) {
        const w = tasks.t1[i] - tasks.t0[i];
        if (w > 0 && w < least) least = w;
      }
    }
    this.leastSpan = Math.max(50, least * 20);
    this.measuredOrder = null;
    if (this.d.measured) {
      const m = this.d.measured;
      this.measuredOrder = byRank();
      for (let i = 0; i < this.n; ++i) {
        if (m.t1[i] >= m.t0[i]) this.measuredOrder[tasks.r[i]].push(i);
      }
      for (const list of this.measuredOrder) {
        list.sort((a, b) => m.t0[a] - m.t0[b] || a - b);
      }
    }
    this.idle = byRank();
    this.d.idle.r.forEach((r, k) => this.idle[r].push(k));
    this.critical = new Uint8Array(this.n);
    this.criticalEdges = new Set();
    for (const [kind, id] of this.d.critical) {
      if (kind === 0) this.critical[id] = 1;
      if (kind === 1 || kind === 2) this.criticalEdges.add(id);
    }
    this.offloaded = new Uint8Array(this.n);
    for (const i of this.d.offloaded) this.offloaded[i] = 1;
    this.transferOf = new Map();
    this.d.transfers.e.forEach((e, k) => this.transferOf.set(e, k));
    this.edgeAt = new Map();
    this.d.edges.e.forEach((e, k) => this.edgeAt.set(e, k));
  }

  build() {
    const bar = $('div', this.host, {className: 'toolbar'});
    bar.setAttribute('role', 'toolbar');
    bar.setAttribute('aria-label', 'Timeline controls');
    const button = (text, label, act) => {
      const b = $('button', bar, {type: 'button', textContent: text,
                                  onclick: act});
      b.setAttribute('aria-label', label);
      b.title = label;
      return b;
    };
    button('+', 'Zoom in', () => this.zoom(0.5));
    button('−', 'Zoom out', () => this.zoom(2));
    button('◀', 'Pan left', () => this.pan(-0.3));
    button('▶', 'Pan right', () => this.pan(0.3));
    button('Fit', 'Whole step', () => this.go(0, this.end));
    this.boxes = {};
    const box = (key, text) => {
      const label = $('label', bar);
      const input = $('input', label, {type: 'checkbox',
                                       checked: this.show[key]});
      input.onchange = () => {
        this.show[key] = input.checked;
        this.layout();
      };
      label.append(text);
      this.boxes[key] = input;
    };
    box('crit', 'Critical path');
    box('transfers', 'Transfers (zoomed in)');
    box('causes', 'Causes of idle time');
    if (this.d.measured) box('measured', 'Measured');
    $('span', bar, {className: 'hint', textContent:
      'Drag to pan; click, then wheel or + and − to zoom; arrows walk'});
    this.plot = $('div', this.host, {className: 'plot'});
    this.canvas = $('canvas', this.plot, {tabIndex: 0});
    this.canvas.setAttribute('role', 'application');
    this.canvas.setAttribute('aria-label',
      `Timeline of ${this.d.ranks} ranks and ${this.n} tasks over ` +
      `${time(this.d.finish)}. Left and right arrows walk over the tasks of ` +
      'a rank, up and down change the rank, plus and minus zoom, 0 shows ' +
      'the whole step, C the critical path. The tables below have the same ' +
      'numbers.');
    this.tip = $('div', this.plot, {className: 'tip', hidden: true});
    this.detail = $('div', this.host, {className: 'detail'});
    this.detail.setAttribute('role', 'status');
    this.detail.setAttribute('aria-live', 'polite');
    this.tell(-1);
    this.buildLegend();
    const mem = $('div', this.host);
    const line = $('div', mem, {className: 'toolbar'});
    line.style.margin = '14px 0 6px';
    const label = $('label', line, {textContent: 'Memory of one GPU of '});
    const select = $('select', label);
    for (let r = 0; r < this.d.ranks; ++r) {
      $('option', select, {value: r, textContent: `rank ${r}`});
    }
    select.value = this.memoryRank;
    select.onchange = () => {
      this.memoryRank = +select.value;
      this.drawMemory();
    };
    this.memorySelect = select;
    this.memoryText = $('span', line, {className: 'soft'});
    this.memoryText.style.fontSize = '13px';
    this.memoryCanvas = $('canvas', $('div', mem, {className: 'plot'}));
    this.memoryCanvas.setAttribute('role', 'img');
    const items = $('div', mem, {className: 'legend'});
    this.d.items.forEach((name, k) => {
      const s = $('span', items);
      $('i', s).style.background = `var(--i${k})`;
      s.append(name);
    });
    const s = $('span', items);
    $('i', s).style.cssText = 'background:var(--limit);height:2px;' +
        'vertical-align:4px';
    s.append('limit');
    this.events();
    new ResizeObserver(() => this.layout()).observe(this.plot);
    this.layout();
  }

  buildLegend() {
    const legend = $('div', this.host, {className: 'legend'});
    const split = this.d.tasks.p.includes(2);
    this.d.modules.forEach((name, m) => {
      const s = $('span', legend);
      const c = m % COLOURS;
      const parts = [`var(--m${c}a)`, `var(--m${c}b)`];
      if (split) {
        parts.push(`repeating-linear-gradient(135deg,var(--m${c}a) 0 3px,` +
                   `var(--m${c}b) 3px 5px)`);
      }
      for (const p of parts) $('i', s).style.background = p;
      s.append(`${name}: forward, backward${split ? ', weight gradient' : ''}`);
    });
    const item = (css, text) => {
      const s = $('span', legend);
      $('i', s).style.cssText = css;
      s.append(text);
    };
    item('background:var(--epilogue)', 'gradient reduction, optimizer');
    item('background:var(--idle)', 'idle');
    item('background:var(--m0b);border-top:4px solid var(--ink)',
         'recomputes');
    item('background:var(--m0a);border-bottom:4px solid var(--ink)',
         'offloads');
    if (this.d.measured) $('span', legend, {textContent:
        'upper half predicted, lower half measured'});
    this.causesLegend = $('div', this.host, {className: 'legend'});
    this.d.bubbleNames.forEach((name, k) => {
      const s = $('span', this.causesLegend);
      $('i', s).style.background = `var(--b${k})`;
      s.append(name);
    });
  }

  layout() {
    const n = this.d.ranks;
    this.row = n <= 12 ? 32 : n <= 32 ? 22 : n <= 100 ? 13 : 7;
    if (this.show.measured) this.row = Math.max(this.row, 20);
    this.gutter = 56;
    this.top = 22;
    this.width = Math.max(200, this.plot.clientWidth);
    this.height = this.top + this.row * n + 4;
    this.causesLegend.hidden = !this.show.causes;
    const scale = devicePixelRatio || 1;
    for (const [c, h] of [[this.canvas, this.height],
                          [this.memoryCanvas, 120]]) {
      c.width = Math.round(this.width * scale);
      c.height = Math.round(h * scale);
      c.style.height = h + 'px';
    }
    this.draw();
  }

  // -- View ------------------------------------------------------------------
  x(t) {
    return this.gutter +
        (t - this.t0) / (this.t1 - this.t0) * (this.width - this.gutter - 6);
  }
  at(x) {
    return this.t0 + (x - this.gutter) / (this.width - this.gutter - 6) *
        (this.t1 - this.t0);
  }
  clamp(t0, t1) {
    let span = Math.min(this.end, Math.max(this.leastSpan, t1 - t0));
    span = Math.min(span, this.end);
    const middle = (t0 + t1) / 2;
    t0 = Math.min(Math.max(0, middle - span / 2), this.end - span);
    return [t0, t0 + span];
  }
  set(t0, t1) {
    [this.t0, this.t1] = this.clamp(t0, t1);
    this.draw();
    if (linked) {
      for (const other of timelines) {
        if (other === this) continue;
        [other.t0, other.t1] = other.clamp(this.t0, this.t1);
        other.draw();
      }
    }
  }
  // Glides to the view, or jumps for those who want no motion.
  go(t0, t1) {
    [t0, t1] = this.clamp(t0, t1);
    this.target = [t0, t1];
    if (calm) return this.set(t0, t1);
    if (this.gliding) return;
    this.gliding = true;
    const frame = () => {
      const [a, b] = this.target;
      const near = Math.abs(this.t0 - a) + Math.abs(this.t1 - b) <
          (b - a) * 0.004;
      if (near) this.set(a, b);
      else this.set(this.t0 + (a - this.t0) * 0.35,
                    this.t1 + (b - this.t1) * 0.35);
      if (near) this.gliding = false;
      else requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }
  zoom(factor, about) {
    const [a, b] = this.gliding ? this.target : [this.t0, this.t1];
    const c = about === undefined ? (a + b) / 2 : about;
    this.go(c - (c - a) * factor, c + (b - c) * factor);
  }
  pan(share) {
    const [a, b] = this.gliding ? this.target : [this.t0, this.t1];
    const by = (b - a) * share;
    this.go(a + by, b + by);
  }

  // -- Drawing ---------------------------------------------------------------
  draw() {
    const scale = devicePixelRatio || 1;
    const g = this.canvas.getContext('2d');
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, this.width, this.height);
    g.font = '11px system-ui,"DejaVu Sans",sans-serif';
    this.drawAxis(g);
    g.save();
    g.beginPath();
    g.rect(this.gutter, 0, this.width - this.gutter, this.height);
    g.clip();
    this.marks = 0;
    const {tasks} = this.d;
    for (let r = 0; r < this.d.ranks; ++r) {
      const y = this.top + r * this.row;
      g.fillStyle = palette.idle;
      g.fillRect(this.x(0), y + 1, this.x(this.d.finish) - this.x(0),
                 this.row - 2);
      if (this.show.causes) this.drawIdle(g, r, y);
      const half = this.show.measured ? (this.row - 3) / 2 : this.row - 2;
      this.drawTasks(g, this.order[r], tasks.t0, tasks.t1, y + 1, half);
      if (this.show.measured) {
        const m = this.d.measured;
        this.drawTasks(g, this.measuredOrder[r], m.t0, m.t1, y + 2 + half,
                       half, true);
      }
    }
    g.fillStyle = palette.epilogue;
    for (const [r, a, b] of this.d.epilogue) {
      g.fillRect(this.x(a), this.top + r * this.row + 1,
                 this.x(b) - this.x(a), this.row - 2);
    }
    if (this.show.transfers) this.drawTransfers(g);
    if (this.show.crit) this.drawCritical(g);
    if (this.selected >= 0) this.outline(g, this.selected, palette.ink, 2);
    g.restore();
    this.drawMemory();
  }

  drawAxis(g) {
    const span = this.t1 - this.t0;
    const rough = span / Math.max(2, (this.width - this.gutter) / 130);
    const power = Math.pow(10, Math.floor(Math.log10(rough)));
    const step = [1, 2, 5, 10].map(k => k * power).find(k => k >= rough);
    const unit = this.t1 >= 2e9 ? [1e9, 's'] : this.t1 >= 2e6 ? [1e6, 'ms']
        : [1e3, 'us'];
    const digits = Math.max(0, -Math.floor(Math.log10(step / unit[0]) + 1e-9));
    g.textAlign = 'center';
    for (let k = Math.ceil(this.t0 / step); k * step <= this.t1; ++k) {
      const x = this.x(k * step);
      g.fillStyle = palette.line;
      g.fillRect(Math.round(x), 16, 1, this.height - 16);
      g.fillStyle = palette.soft;
      const text = `${(k * step / unit[0]).toFixed(digits)} ${unit[1]}`;
      const w = g.measureText(text).width / 2;
      g.fillText(text, Math.min(Math.max(x, this.gutter + w),
                                this.width - w - 2), 12);
    }
    g.textAlign = 'left';
    g.fillStyle = palette.soft;
    const every = this.row >= 11 ? 1 : Math.ceil(11 / this.row);
    for (let r = 0; r < this.d.ranks; r += every) {
      g.fillText(`rank ${r}`, 0, this.top + (r + 0.5) * this.row + 4);
    }
  }

  // The first in `list` that ends after the view begins.
  first(list, t1) {
    let lo = 0;
    let hi = list.length;
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      if (t1[list[mid]] < this.t0) lo = mid + 1;
      else hi = mid;
    }
    return lo;
  }

  // Tasks below a pixel are drawn together, coloured as the longest of them.
  drawTasks(g, list, t0, t1, y, h, shadow = false) {
    const {p, m, b, u, x: recomputes} = this.d.tasks;
    for (let k = this.first(list, t1); k < list.length;) {
      const i = list[k];
      if (t0[i] > this.t1) break;
      const a = this.x(t0[i]);
      let w = this.x(t1[i]) - a;
      ++k;
      if (w < 1) {
        let longest = t1[i] - t0[i];
        let main = i;
        let end = t1[i];
        let count = 1;
        for (; k < list.length; ++k, ++count) {
          const j = list[k];
          if (this.x(t1[j]) - a > 1.5 || this.x(t0[j]) - this.x(end) > 0.7) {
            break;
          }
          if (t1[j] - t0[j] > longest) [longest, main] = [t1[j] - t0[j], j];
          end = t1[j];
        }
        w = Math.max(this.x(end) - a, count === 1 ? 0.8 : 0.3);
        g.fillStyle = palette.m[m[main] % COLOURS][p[main]];
        g.fillRect(a, y, w, h);
        if (count === 1) this.mark(i, shadow);
        continue;
      }
      this.mark(i, shadow);
      const gap = w > 4 ? 0.8 : 0;
      g.fillStyle = palette.m[m[i] % COLOURS][p[i]];
      g.fillRect(a, y, w - gap, h);
      if (w > 6 && h >= 8) {
        g.fillStyle = palette.ink;
        g.globalAlpha = 0.75;
        if (recomputes[i]) g.fillRect(a, y, w - gap, 3);
        if (this.offloaded[i]) g.fillRect(a, y + h - 3, w - gap, 3);
        g.globalAlpha = 1;
      }
      if (w >= 15 && h >= 12 && p[i] !== 2) {
        const text = u[i] > 0 ? `${b[i]}.${u[i]}` : `${b[i]}`;
        if (text.length * 7 + 4 < w) {
          g.fillStyle = p[i] === 0 ? '#1c1e21' : '#fff';
          g.textAlign = 'center';
          const from = Math.max(a, this.gutter);
          const to = Math.min(a + w, this.width);
          g.fillText(text, (from + to) / 2, y + h / 2 + 4);
          g.textAlign = 'left';
        }
      }
    }
  }
  mark(i, shadow) {
    if (shadow) return;
    ++this.marks;
    if (this.seen) this.seen.add(i);
  }

  drawIdle(g, r, y) {
    const {k: kind, t0, t1} = this.d.idle;
    for (const k of this.idle[r]) {
      if (t1[k] < this.t0 || t0[k] > this.t1) continue;
      g.fillStyle = palette.b[kind[k]];
      g.fillRect(this.x(t0[k]), y + 1, this.x(t1[k]) - this.x(t0[k]),
                 this.row - 2);
    }
  }

  drawTransfers(g) {
    const {e, t0, t1} = this.d.transfers;
    const {r} = this.d.tasks;
    g.strokeStyle = palette.link;
    g.lineWidth = 1;
    let shown = 0;
    for (let k = 0; k < e.length; ++k) {
      if (t1[k] >= this.t0 && t0[k] <= this.t1) ++shown;
    }
    // More would only grey everything: they come when zoomed in.
    if (shown > this.width / 3) return;
    g.globalAlpha = 0.7;
    g.beginPath();
    for (let k = 0; k < e.length; ++k) {
      if (t1[k] < this.t0 || t0[k] > this.t1) continue;
      const [from, to] = this.edgeEnds(e[k]);
      const a = r[from];
      const b = r[to];
      g.moveTo(this.x(t0[k]), this.top + this.row * (a + (a < b ? 1 : 0)));
      g.lineTo(this.x(t1[k]), this.top + this.row * (b + (a < b ? 0 : 1)));
    }
    g.stroke();
    g.globalAlpha = 1;
  }
  edgeEnds(e) {
    const k = this.edgeAt.get(e);
    return [this.d.edges.f[k], this.d.edges.t[k]];
  }

  drawCritical(g) {
    const {r} = this.d.tasks;
    g.strokeStyle = palette.crit;
    g.fillStyle = palette.crit;
    g.lineWidth = 1.5;
    const band = Math.max(2, Math.min(5, this.row / 5));
    for (const [kind, id, a, b] of this.d.critical) {
      if (b < this.t0 || a > this.t1) continue;
      if (kind === 0) {
        // A band along the row leaves the colours to be seen.
        const w = this.x(b) - this.x(a);
        g.fillRect(this.x(a), this.top + (r[id] + 0.5) * this.row - band / 2,
                   Math.max(w, 0.5), band);
        if (w > 12) this.outline(g, id, palette.crit, 1.5);
      }
      if (kind !== 1 && kind !== 2) continue;
      const [from, to] = this.edgeEnds(id);
      g.beginPath();
      g.moveTo(this.x(a), this.top + this.row * (r[from] + 0.5));
      g.lineTo(this.x(b), this.top + this.row * (r[to] + 0.5));
      g.stroke();
    }
  }
  outline(g, i, colour, width) {
    const {r, t0, t1} = this.d.tasks;
    const h = this.show.measured ? (this.row - 3) / 2 : this.row - 2;
    g.strokeStyle = colour;
    g.lineWidth = width;
    g.strokeRect(this.x(t0[i]) + 0.5, this.top + r[i] * this.row + 1.5,
                 Math.max(1, this.x(t1[i]) - this.x(t0[i]) - 1.5), h - 1);
  }

  // The memory of one rank over the view, stacked by item.
  drawMemory() {
    const c = this.memoryCanvas;
    const scale = devicePixelRatio || 1;
    const g = c.getContext('2d');
    const h = 120;
    const w = this.width;
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, w, h);
    g.font = '11px system-ui,"DejaVu Sans",sans-serif';
    const rank = this.d.memory[this.memoryRank];
    const limit = rank.limit;
    const top = Math.max(1, limit, rank.peak.total) * 1.04;
    const columns = Math.max(1, Math.floor(w - this.gutter - 6));
    const held = new Array(this.d.items.length).fill(0);
    const y = v => h - 4 - v / top * (h - 14);
    g.fillStyle = palette.idle;
    g.fillRect(this.gutter, 6, columns, h - 10);
    // The fullest instant of each column.
    const fullest = [];
    let total = 0;
    let k = 0;
    const apply = () => {
      held[rank.i[k]] += rank.d[k];
      total += rank.d[k++];
    };
    while (k < rank.t.length && rank.t[k] < this.t0) apply();
    for (let x = 0; x < columns; ++x) {
      const until = this.at(this.gutter + x + 1);
      let most = total;
      let copy = held.slice();
      while (k < rank.t.length && rank.t[k] < until) {
        const now = rank.t[k];
        while (k < rank.t.length && rank.t[k] === now) apply();
        if (total > most) {
          most = total;
          copy = held.slice();
        }
      }
      fullest.push(copy);
    }
    const base = new Float64Array(columns);
    for (let item = 0; item < held.length; ++item) {
      g.fillStyle = palette.i[item];
      for (let x = 0; x < columns; ++x) {
        const v = fullest[x][item];
        if (v <= 0) continue;
        const y1 = y(base[x] + v);
        g.fillRect(this.gutter + x, y1, 1.02, y(base[x]) - y1);
        base[x] += v;
      }
    }
    g.fillStyle = palette.soft;
    g.fillText('0', this.gutter - 14, h - 4);
    if (limit > 0) {
      g.strokeStyle = palette.limit;
      g.setLineDash([5, 3]);
      g.lineWidth = 1.5;
      g.beginPath();
      g.moveTo(this.gutter, y(limit));
      g.lineTo(w - 6, y(limit));
      g.stroke();
      g.setLineDash([]);
      g.fillText(`${(limit / 2 ** 30).toFixed(1)}`, 4, y(limit) + 4);
      g.fillText('GiB', 4, y(limit) + 16);
    }
    const text = `peak ${bytes(rank.peak.total)}` +
        (limit > 0 ? ` of ${bytes(limit)} (${percent(rank.peak.total / limit)
        })` : '') + ` at ${time(rank.peak.at)}: ` + this.d.items
        .map((n, i) => [n, rank.peak.items[i]]).filter(p => p[1] > 0)
        .map(p => `${p[0]} ${bytes(p[1])}`).join(', ');
    if (this.memoryText.textContent !== text) {
      this.memoryText.textContent = text;
      c.setAttribute('aria-label', `Memory of rank ${this.memoryRank}: ${text}`);
    }
  }

  // -- Telling ---------------------------------------------------------------
  name(i) {
    const {p, m, s, b, u} = this.d.tasks;
    return `${PASS[p[i]]} of ${this.d.modules[m[i]]}, stage ${s[i]}, ` +
        `microbatch ${b[i]}${u[i] > 0 ? `.${u[i]}` : ''}`;
  }
  edge(e) {
    const k = this.edgeAt.get(e);
    const i = this.d.edges.f[k];
    return `the tensor (${bytes(this.d.edges.n[k])}) of ${this.name(i)} on ` +
        `rank ${this.d.tasks.r[i]}`;
  }
  // Why a task started when it did.
  reason(i) {
    const {w, a, e, g, y, t0} = this.d.tasks;
    const idle = g[i] > 0 ? `its rank was idle for ${time(g[i])} until ` : '';
    switch (w[i]) {
      case 0: return g[i] > 0 ? `${idle}it began` : 'the step began';
      case 1: return (g[i] > 0 ? idle : 'its rank was busy until then with ') +
          (g[i] > 0 ? `after ${this.name(a[i])}` : this.name(a[i])) +
          (y[i] < t0[i] ? `; its inputs had been there for ${
            time(t0[i] - y[i])}` : '');
      case 2: return `${idle}${this.edge(e[i])} arrived`;
      case 3: return `${idle}${this.edge(e[i])} was ready`;
      case 4: return `${idle}${this.edge(e[i])} had been sent`;
      case 5: return `${idle}its offloaded activations were back`;
    }
    return '';
  }
  lines(i) {
    const t = this.d.tasks;
    const out = [this.name(i),
      `rank ${t.r[i]}: ${time(t.t1[i] - t.t0[i])}, from ${time(t.t0[i])} to ${
        time(t.t1[i])}`];
    const m = this.d.measured;
    if (m && m.t1[i] >= m.t0[i]) {
      out.push(`measured ${time(m.t1[i] - m.t0[i])}, from ${time(m.t0[i])
      } to ${time(m.t1[i])}`);
    }
    out.push(`started then because ${this.reason(i)}`);
    if (t.x[i]) out.push('recomputes its forward');
    if (this.offloaded[i]) out.push('its activations are offloaded');
    if (this.critical[i]) out.push('on the critical path');
    return out;
  }
  describe(i) { return this.lines(i).join('. ') + '.'; }
  describeIdle(k) {
    const {k: kind, t0, t1, b, e, i} = this.d.idle;
    const out = [`idle for ${time(t1[k] - t0[k])} from ${time(t0[k])}: ` +
        this.d.bubbleNames[kind[k]]];
    if (e[k] >= 0) out.push(`waits for ${this.edge(e[k])}`);
    if (i[k] >= 0) {
      out.push(`${this.name(i[k])} stood ready` +
               (kind[k] === 4 ? ', but memory had no room' : ''));
    }
    if (b[k] >= 0) out.push(`then: ${this.name(b[k])}`);
    return out;
  }
  tell(i, extra) {
    this.detail.textContent = '';
    const out = extra || (i >= 0 ? this.lines(i) : ['Point at a task, or ' +
        'select one, to read what it is and why it started then.']);
    $('b', this.detail, {textContent: out[0]});
    for (const line of out.slice(1)) $('div', this.detail, {textContent: line});
  }

  hit(x, y) {
    const r = Math.floor((y - this.top) / this.row);
    if (r < 0 || r >= this.d.ranks || x < this.gutter) return null;
    const t = this.at(x);
    const slack = (this.t1 - this.t0) / this.width * 1.5;
    const {t0, t1} = this.d.tasks;
    let best = null;
    for (let k = this.first(this.order[r], t1); k < this.order[r].length; ++k) {
      const i = this.order[r][k];
      if (t0[i] > t + slack) break;
      if (t >= t0[i] && t <= t1[i]) return {task: i};
      if (t <= t1[i] + slack && t >= t0[i] - slack) best = {task: i};
    }
    if (best) return best;
    for (const [rank, a, b] of this.d.epilogue) {
      if (rank === r && t >= a && t <= b) {
        return {lines: ['gradient reduction and optimizer step',
                        `rank ${r}: ${time(b - a)}, from ${time(a)}`]};
      }
    }
    const {t0: i0, t1: i1} = this.d.idle;
    for (const k of this.idle[r]) {
      if (t >= i0[k] && t < i1[k]) {
        return {lines: [`rank ${r} ` + this.describeIdle(k)[0],
                        ...this.describeIdle(k).slice(1)]};
      }
    }
    return null;
  }

  select(i) {
    this.selected = i;
    this.tell(i);
    if (i >= 0) {
      const {r, t0, t1} = this.d.tasks;
      this.memoryRank = r[i];
      this.memorySelect.value = r[i];
      const margin = (this.t1 - this.t0) * 0.1;
      if (t0[i] < this.t0 || t1[i] > this.t1) {
        const c = (t0[i] + t1[i]) / 2;
        const half = Math.max((this.t1 - this.t0) / 2,
                              (t1[i] - t0[i]) / 2 + margin);
        this.go(c - half, c + half);
      }
    }
    this.draw();
  }

  events() {
    const c = this.canvas;
    const where = e => {
      const box = c.getBoundingClientRect();
      return [e.clientX - box.left, e.clientY - box.top];
    };
    const hover = (x, y) => {
      const hit = this.hit(x, y);
      this.tip.hidden = !hit;
      if (!hit) return;
      const lines = hit.lines || this.lines(hit.task);
      this.tip.textContent = '';
      $('b', this.tip, {textContent: lines[0]});
      for (const l of lines.slice(1)) $('div', this.tip, {textContent: l});
      const w = Math.min(320, this.width);
      this.tip.style.left =
          Math.max(0, Math.min(x + 12, this.width - w)) + 'px';
      this.tip.style.top = y + 16 + 'px';
    };
    const pointers = new Map();
    let drag = null;
    c.addEventListener('pointerdown', e => {
      pointers.set(e.pointerId, where(e));
      drag = {x: where(e)[0], t0: this.t0, t1: this.t1, moved: false};
      if (pointers.size === 2) {
        const [p, q] = [...pointers.values()];
        drag.pinch = Math.abs(p[0] - q[0]);
        drag.about = this.at((p[0] + q[0]) / 2);
      }
      c.setPointerCapture(e.pointerId);
      this.gliding = false;
    });
    c.addEventListener('pointermove', e => {
      const [x, y] = where(e);
      if (!drag || !pointers.has(e.pointerId)) return hover(x, y);
      pointers.set(e.pointerId, [x, y]);
      if (drag.pinch && pointers.size === 2) {
        const [p, q] = [...pointers.values()];
        const f = drag.pinch / Math.max(10, Math.abs(p[0] - q[0]));
        drag.moved = true;
        this.set(drag.about - (drag.about - drag.t0) * f,
                 drag.about + (drag.t1 - drag.about) * f);
        return;
      }
      if (Math.abs(x - drag.x) > 3) drag.moved = true;
      if (!drag.moved) return;
      this.tip.hidden = true;
      const by = (drag.x - x) / (this.width - this.gutter - 6) *
          (drag.t1 - drag.t0);
      this.set(drag.t0 + by, drag.t1 + by);
    });
    const up = e => {
      pointers.delete(e.pointerId);
      if (drag && !drag.moved && e.type === 'pointerup') {
        const hit = this.hit(...where(e));
        if (hit && hit.lines) {
          this.selected = -1;
          this.tell(-1, hit.lines);
          this.draw();
        } else {
          this.select(hit ? hit.task : -1);
        }
      }
      drag = null;
    };
    c.addEventListener('pointerup', up);
    c.addEventListener('pointercancel', up);
    c.addEventListener('pointerleave', () => { this.tip.hidden = true; });
    c.addEventListener('dblclick', e => this.zoom(0.4, this.at(where(e)[0])));
    // The page scrolls unless the timeline was clicked or a key is held.
    c.addEventListener('wheel', e => {
      const sideways = Math.abs(e.deltaX) > Math.abs(e.deltaY);
      if (!sideways && !e.ctrlKey && !e.metaKey && !e.shiftKey &&
          document.activeElement !== c) return;
      e.preventDefault();
      if (sideways || e.shiftKey) {
        this.pan((sideways ? e.deltaX : e.deltaY) / 800);
      } else {
        this.zoom(Math.pow(1.0018, e.deltaY), this.at(where(e)[0]));
      }
    }, {passive: false});
    c.addEventListener('keydown', e => {
      if (this.key(e.key, e.shiftKey)) e.preventDefault();
    });
  }

  // Whether the key was one of ours.
  key(key, shift) {
    const {r} = this.d.tasks;
    const i = this.selected;
    const list = i >= 0 ? this.order[r[i]] : this.order.find(l => l.length);
    if (!list) return false;
    const k = i >= 0 ? list.indexOf(i) : -1;
    switch (key) {
      case 'ArrowRight':
      case 'ArrowLeft': {
        const by = key === 'ArrowRight' ? 1 : -1;
        if (shift) this.pan(by * 0.2);
        else this.select(list[Math.min(list.length - 1, Math.max(0, k + by))]);
        return true;
      }
      case 'ArrowUp':
      case 'ArrowDown': {
        if (i < 0) return this.select(list[0]), true;
        const by = key === 'ArrowDown' ? 1 : -1;
        let rank = r[i] + by;
        while (this.order[rank] && !this.order[rank].length) rank += by;
        if (!this.order[rank]) return true;
        const t = this.d.tasks.t0[i];
        let best = this.order[rank][0];
        for (const j of this.order[rank]) {
          if (Math.abs(this.d.tasks.t0[j] - t) <
              Math.abs(this.d.tasks.t0[best] - t)) best = j;
        }
        return this.select(best), true;
      }
      case '+': case '=': return this.zoom(0.6), true;
      case '-': case '_': return this.zoom(1.6), true;
      case '0': case 'Home': return this.go(0, this.end), true;
      case 'c': case 'C':
        this.show.crit = !this.show.crit;
        this.boxes.crit.checked = this.show.crit;
        return this.draw(), true;
      case 'Escape': return this.select(-1), true;
    }
    return false;
  }

  // -- For tests -------------------------------------------------------------
  // How many tasks get a mark of their own at full zoom, over the whole step.
  countMarks() {
    const [a, b] = [this.t0, this.t1];
    this.seen = new Set();
    const all = this.order.flat().sort(
        (i, j) => this.d.tasks.t0[i] - this.d.tasks.t0[j]);
    const redraw = linked;
    linked = false;
    for (const i of all) {
      if (this.seen.has(i)) continue;
      const t = this.d.tasks.t0[i];
      this.set(t - this.leastSpan * 0.02, t + this.leastSpan * 0.98);
      if (!this.seen.has(i)) break;
    }
    linked = redraw;
    const count = this.seen.size;
    this.seen = null;
    this.set(a, b);
    return count;
  }
  // Milliseconds a frame while zooming in and out.
  frameTimes(frames = 60) {
    const out = [];
    // A pixel copied to where it can be read waits for the frame to be drawn.
    const probe = document.createElement('canvas');
    probe.width = probe.height = 1;
    const pixels = probe.getContext('2d', {willReadFrequently: true});
    for (let k = 0; k < frames; ++k) {
      const f = Math.pow(0.5, 4 * Math.sin(Math.PI * k / frames));
      const begin = performance.now();
      this.set(this.end * 0.4 * (1 - f), this.end * (0.4 + 0.6 * f));
      pixels.drawImage(this.canvas, 0, 0, 1, 1, 0, 0, 1, 1);
      pixels.getImageData(0, 0, 1, 1);
      out.push(performance.now() - begin);
    }
    this.set(0, this.end);
    return out;
  }
}

// ---- Parts below the timeline ----------------------------------------------
function bars(host, rows, colours, mark) {
  const box = $('div', host, {className: 'bars'});
  box.setAttribute('aria-hidden', 'true');  // The table has the numbers.
  for (const row of rows) {
    $('span', box, {textContent: row.name});
    const bar = $('div', box, {className: 'bar'});
    row.parts.forEach((share, k) => {
      if (share <= 0) return;
      const i = $('i', bar, {title: row.titles[k]});
      i.style.cssText = `width:${100 * share}%;background:${colours(k)}`;
    });
    if (mark) $('div', bar, {className: 'mark'}).style.left =
        `calc(${100 * mark(row)}% - 1px)`;
    $('span', box, {textContent: row.value});
  }
}

function stepParts(data, index) {
  const at = id => document.getElementById(`${id}-${index}`);
  const finish = Math.max(1, data.finish);
  bars(at('bubbles'), data.bubbles.map((b, r) => ({
    name: `rank ${r}`, parts: b.map(t => t / finish),
    titles: b.map((t, k) => `${data.bubbleNames[k]} ${time(t)}`),
    value: percent(b.reduce((x, y) => x + y, 0) / finish)})),
    k => `var(--b${k})`);
  const legend = $('div', at('bubbles'), {className: 'legend'});
  data.bubbleNames.forEach((name, k) => {
    const s = $('span', legend);
    $('i', s).style.background = `var(--b${k})`;
    s.append(name);
  });
  const top = Math.max(1, ...data.memory.map(m =>
      Math.max(m.limit, m.peak.total)));
  bars(at('peaks'), data.memory.map((m, r) => ({
    name: `rank ${r}`, limit: m.limit, parts: m.peak.items.map(v => v / top),
    titles: m.peak.items.map((v, k) => `${data.items[k]} ${bytes(v)}`),
    value: bytes(m.peak.total)})), k => `var(--i${k})`,
    data.memory.some(m => m.limit > 0) ? row => row.limit / top : null);
  // All tasks as a table, made when it is opened.
  const box = at('tasks');
  box.addEventListener('toggle', () => {
    if (!box.open || box.dataset.made) return;
    box.dataset.made = 1;
    const t = timelines[index];
    const line = $('div', box, {className: 'toolbar'});
    const label = $('label', line, {textContent: 'Tasks of '});
    const select = $('select', label);
    for (let r = 0; r < data.ranks; ++r) {
      $('option', select, {value: r, textContent: `rank ${r}`});
    }
    const host = $('div', box, {className: 'scroll'});
    const fill = () => {
      host.textContent = '';
      const table = $('table', host);
      const head = $('tr', $('thead', table));
      for (const h of ['task', 'start', 'time', 'started then because']) {
        $('th', head, {textContent: h, className: 'l', scope: 'col'});
      }
      const body = $('tbody', table);
      for (const i of t.order[+select.value]) {
        const tr = $('tr', body);
        $('th', tr, {textContent: t.name(i), scope: 'row', className: 'l'});
        $('td', tr, {textContent: time(data.tasks.t0[i])});
        $('td', tr, {textContent: time(data.tasks.t1[i] - data.tasks.t0[i])});
        $('td', tr, {textContent: t.reason(i), className: 'l why'});
      }
    };
    select.onchange = fill;
    fill();
  });
}

// ---- Page ------------------------------------------------------------------
let linked = false;
const page = JSON.parse(document.getElementById('data').textContent);
const wish = new URLSearchParams(location.hash.slice(1));
setTheme(wish.get('theme'));
dark.addEventListener('change', () => setTheme());
document.getElementById('theme').onclick = () =>
    setTheme(root.dataset.theme === 'dark' ? 'light' : 'dark');
const copy = document.getElementById('copy');
if (copy) copy.onclick = async () => {
  let done = false;
  try {
    await navigator.clipboard.writeText(page.command);
    done = true;
  } catch (e) {  // A file has no clipboard: by selection.
    const area = $('textarea', document.body, {value: page.command});
    area.select();
    done = document.execCommand('copy');
    area.remove();
  }
  copy.textContent = done ? 'Copied' : 'Select it below';
  setTimeout(() => { copy.textContent = 'Copy command'; }, 2000);
};
const link = document.getElementById('link');
if (link) {
  linked = link.checked;
  link.onchange = () => { linked = link.checked; };
}
// Those far below are made when they come into view.
const waiting = new Map();
function make(index) {
  if (timelines[index]) return;
  const host = document.getElementById(`timeline-${index}`);
  timelines[index] = new Timeline(page.steps[index], index, host);
  stepParts(page.steps[index], index);
  if (wish.get('crit')) {
    timelines[index].show.crit = timelines[index].boxes.crit.checked = true;
    timelines[index].draw();
  }
}
const makeAll = () => page.steps.forEach((_, index) => make(index));
const sight = new IntersectionObserver(seen => {
  for (const entry of seen) {
    if (!entry.isIntersecting) continue;
    sight.unobserve(entry.target);
    make(waiting.get(entry.target));
  }
}, {rootMargin: '600px'});
page.steps.forEach((_, index) => {
  if (index === 0) return make(0);
  const host = document.getElementById(`timeline-${index}`);
  waiting.set(host, index);
  sight.observe(host);
});
addEventListener('beforeprint', makeAll);
if (wish.get('all')) makeAll();

// What a test asks of the page.
const api = {
  page, timelines, errors, makeAll,
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
      const frames = t.frameTimes().sort((a, b) => a - b);
      const step = {tasks: t.n, marks: t.countMarks(), hovers: 0, reasons: 0,
                    finish: t.d.finish, frameMs: frames[frames.length >> 1],
                    worstFrameMs: frames[frames.length - 1], walked: 0};
      // Point at every task at full zoom; ask for its name and reason.
      for (let i = 0; i < t.n; ++i) {
        const {t0, t1, r} = t.d.tasks;
        t.t0 = t0[i] - t.leastSpan * 0.1;
        t.t1 = t.t0 + t.leastSpan;
        const hit = t.hit(t.x(Math.min((t0[i] + t1[i]) / 2,
                                       t0[i] + t.leastSpan / 2)),
                          t.top + (r[i] + 0.4) * t.row);
        if (hit && (hit.task === i || t0[hit.task] === t1[hit.task] ||
                    t0[i] === t1[i])) ++step.hovers;
        const text = t.describe(i);
        if (text.includes(t.name(i)) && /because .+/.test(text)) ++step.reasons;
      }
      [t.t0, t.t1] = [0, t.end];
      const e = new PointerEvent('pointermove', {
        clientX: t.canvas.getBoundingClientRect().left + t.x(
            (t.d.tasks.t0[0] + t.d.tasks.t1[0]) / 2),
        clientY: t.canvas.getBoundingClientRect().top + t.top +
            (t.d.tasks.r[0] + 0.5) * t.row});
      t.canvas.dispatchEvent(e);
      step.tip = t.tip.textContent;
      t.tip.hidden = true;
      // By keyboard from the first task of a rank to its last.
      t.select(-1);
      for (let k = 0; k < 5; ++k) t.key('ArrowRight');
      t.key('ArrowDown');
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
if (wish.get('selftest')) {
  // A task later, so that everything is laid out.
  setTimeout(() => {
    let text;
    try {
      text = JSON.stringify(api.selfTest());
    } catch (e) {
      text = JSON.stringify({errors: [...errors, String(e.stack || e)]});
    }
    $('pre', document.body, {id: 'selftest', textContent: text});
  }, 50);
}
})();
