// The timeline of a step with its controls, its legend and the memory of one
// rank. It knows the view, the selection and the objects under a point.
class Timeline {
  constructor(data, host) {
    this.d = data;
    this.step = new StepData(data);
    this.host = host;
    this.t0 = 0;
    this.t1 = this.step.end;
    this.selected = -1;
    this.show = {crit: false, transfers: data.ranks <= 16, causes: false,
                 measured: !!data.measured};
    this.memoryRank = data.fullest;
    this.build();
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
    button('Fit', 'Whole step', () => this.go(0, this.step.end));
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
      touch ? 'Drag to pan, two fingers to zoom, tap a task'
        : 'Drag to pan; click, then wheel or + and − to zoom; arrows walk'});
    this.plot = $('div', this.host, {className: 'plot'});
    this.canvas = $('canvas', this.plot, {tabIndex: 0});
    this.canvas.setAttribute('role', 'application');
    this.canvas.setAttribute('aria-label',
      `Timeline of ${this.d.ranks} ranks and ${this.step.n} tasks over ` +
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
    this.buildMemory();
    listen(this);
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
    if (this.d.tasks.x.some(x => x)) {
      item('background:var(--m0b);border-top:4px solid var(--ink)',
           'recomputes');
    }
    if (this.d.offloaded.length) {
      item('background:var(--m0a);border-bottom:4px solid var(--ink)',
           'offloads');
    }
    if (this.d.measured) $('span', legend, {textContent:
        'upper half predicted, lower half measured'});
    this.causesLegend = $('div', this.host, {className: 'legend'});
    this.d.bubbleNames.forEach((name, k) => {
      const s = $('span', this.causesLegend);
      $('i', s).style.background = `var(--b${k})`;
      s.append(name);
    });
  }

  buildMemory() {
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
      drawMemory(this);
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
  }

  draw() { drawTimeline(this); }

  layout() {
    const n = this.d.ranks;
    this.row = n <= 6 ? 40 : n <= 12 ? 32 : n <= 32 ? 22 : n <= 100 ? 13 : 7;
    if (this.show.measured) this.row = Math.max(this.row, n <= 6 ? 52 : 24);
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
    let span = Math.min(this.step.end, Math.max(this.step.leastSpan, t1 - t0));
    span = Math.min(span, this.step.end);
    const middle = (t0 + t1) / 2;
    t0 = Math.min(Math.max(0, middle - span / 2), this.step.end - span);
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
  // Glides to the view, or jumps if the reader prefers reduced motion.
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

  // -- Selection -------------------------------------------------------------
  // Shows the selection in words below the timeline.
  tell(i, extra) {
    this.detail.textContent = '';
    const out = extra || (i >= 0 ? this.step.lines(i) : [
      'Point at a task, or select one, to read what it is and why it ' +
      'started then.']);
    $('b', this.detail, {textContent: out[0]});
    for (const line of out.slice(1)) $('div', this.detail, {textContent: line});
  }

  // Returns {task} or {lines} for the object at a point, or null.
  hit(x, y) {
    const r = Math.floor((y - this.top) / this.row);
    if (r < 0 || r >= this.d.ranks || x < this.gutter) return null;
    const t = this.at(x);
    const slack = (this.t1 - this.t0) / this.width * 1.5;
    const {t0, t1} = this.d.tasks;
    let best = null;
    const order = this.step.order[r];
    for (let k = this.step.first(order, t1, this.t0); k < order.length; ++k) {
      const i = order[k];
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
    for (const k of this.step.idle[r]) {
      if (t >= i0[k] && t < i1[k]) {
        return {lines: [`rank ${r} ` + this.step.describeIdle(k)[0],
                        ...this.step.describeIdle(k).slice(1)]};
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

}
