// The memory of one rank over the view, stacked by item.
function drawMemory(view) {
  const c = view.memoryCanvas;
  const scale = devicePixelRatio || 1;
  const g = c.getContext('2d');
  const h = 120;
  const w = view.width;
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, w, h);
  g.font = FONT;
  const rank = view.d.memory[view.memoryRank];
  const limit = rank.limit;
  const top = Math.max(1, limit, rank.peak.total) * 1.04;
  const columns = Math.max(1, Math.floor(w - view.gutter - 6));
  const held = new Array(view.d.items.length).fill(0);
  const y = v => h - 4 - v / top * (h - 14);
  g.fillStyle = palette.idle;
  g.fillRect(view.gutter, 6, columns, h - 10);
  // The fullest instant of each column.
  const fullest = [];
  let total = 0;
  let k = 0;
  const apply = () => {
    held[rank.i[k]] += rank.d[k];
    total += rank.d[k++];
  };
  while (k < rank.t.length && rank.t[k] < view.t0) apply();
  for (let x = 0; x < columns; ++x) {
    const until = view.at(view.gutter + x + 1);
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
  // One shape per item: along its upper edge and back along its lower edge,
  // with a point only where the height changes.
  const edge = (heights, by) => {
    let x = by > 0 ? 0 : columns - 1;
    const shift = by > 0 ? 0 : 1;
    for (let last = -1; x >= 0 && x < columns; x += by) {
      if (heights[x] === last) continue;
      if (last >= 0) g.lineTo(view.gutter + x + shift, y(last));
      last = heights[x];
      g.lineTo(view.gutter + x + shift, y(last));
    }
    x = by > 0 ? columns : 0;
    g.lineTo(view.gutter + x, y(heights[by > 0 ? columns - 1 : 0]));
  };
  let base = new Float64Array(columns);
  for (let item = 0; item < held.length; ++item) {
    const over = new Float64Array(columns);
    let any = false;
    for (let x = 0; x < columns; ++x) {
      const v = Math.max(0, fullest[x][item]);
      over[x] = base[x] + v;
      any = any || v > 0;
    }
    if (any) {
      g.fillStyle = palette.i[item];
      g.beginPath();
      edge(over, 1);
      edge(base, -1);
      g.fill();
    }
    base = over;
  }
  g.fillStyle = palette.soft;
  g.textAlign = 'right';
  g.fillText('0', view.gutter - 6, h - 4);
  if (limit > 0) {
    g.strokeStyle = palette.limit;
    g.setLineDash([5, 3]);
    g.lineWidth = 1.5;
    g.beginPath();
    g.moveTo(view.gutter, y(limit));
    g.lineTo(w - 6, y(limit));
    g.stroke();
    g.setLineDash([]);
    g.fillText(`${(limit / 2 ** 30).toFixed(1)}`, view.gutter - 6,
               y(limit) + 4);
    g.fillText('GiB', view.gutter - 6, y(limit) + 16);
  }
  g.textAlign = 'left';
  const known = view.d.memory.some(m => m.peak.total > 0);
  const text = !known ? 'not known' : `peak ${bytes(rank.peak.total)}` +
      (limit > 0 ? ` of ${bytes(limit)} (${percent(rank.peak.total / limit)
      })` : '') + ` at ${time(rank.peak.at)}: ` + view.d.items
      .map((n, i) => [n, rank.peak.items[i]]).filter(p => p[1] > 0)
      .map(p => `${p[0]} ${bytes(p[1])}`).join(', ');
  if (view.memoryText.textContent !== text) {
    view.memoryText.textContent = text;
    c.setAttribute('aria-label', `Memory of rank ${view.memoryRank}: ${text}`);
  }
}
