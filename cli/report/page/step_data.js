// One step from the page's JSON (cli/report/report_data.h), in the orders that
// drawing and pointing need, and its tasks in words.
class StepData {
  constructor(data) {
    this.d = data;
    this.prepare();
  }

  prepare() {
    const {tasks, ranks} = this.d;
    this.n = tasks.r.length;
    this.end = Math.max(1, this.d.axis || 0, this.d.finish,
                        this.d.measured ? this.d.measured.finish : 0);
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
    // The view at full zoom: the shortest task takes a twentieth of it.
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
    for (const [kind, id] of this.d.critical) {
      if (kind === 0) this.critical[id] = 1;
    }
    this.offloaded = new Uint8Array(this.n);
    for (const i of this.d.offloaded) this.offloaded[i] = 1;
    this.edgeAt = new Map();
    this.d.edges.e.forEach((e, k) => this.edgeAt.set(e, k));
  }

  // Returns the first in `list` whose end, in `t1`, is not before `from`.
  first(list, t1, from) {
    let lo = 0;
    let hi = list.length;
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      if (t1[list[mid]] < from) lo = mid + 1;
      else hi = mid;
    }
    return lo;
  }
  // The tasks that an edge leads from and to.
  edgeEnds(e) {
    const k = this.edgeAt.get(e);
    return [this.d.edges.f[k], this.d.edges.t[k]];
  }

  // -- In words --------------------------------------------------------------
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
  // Returns the reason for a task's start.
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
  // Returns all data of a task, one line each.
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
}
