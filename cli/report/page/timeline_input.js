// Mouse, touch and keys of a Timeline.
function listen(view) {
  const c = view.canvas;
  const where = e => {
    const box = c.getBoundingClientRect();
    return [e.clientX - box.left, e.clientY - box.top];
  };
  const hover = (x, y) => {
    const hit = view.hit(x, y);
    view.tip.hidden = !hit;
    if (!hit) return;
    const lines = hit.lines || view.step.lines(hit.task);
    view.tip.textContent = '';
    $('b', view.tip, {textContent: lines[0]});
    for (const l of lines.slice(1)) $('div', view.tip, {textContent: l});
    const w = Math.min(320, view.width);
    view.tip.style.left =
        Math.max(0, Math.min(x + 12, view.width - w)) + 'px';
    view.tip.style.top = y + 16 + 'px';
  };
  const pointers = new Map();
  let drag = null;
  c.addEventListener('pointerdown', e => {
    pointers.set(e.pointerId, where(e));
    drag = {x: where(e)[0], t0: view.t0, t1: view.t1, moved: false};
    if (pointers.size === 2) {
      const [p, q] = [...pointers.values()];
      drag.pinch = Math.abs(p[0] - q[0]);
      drag.about = view.at((p[0] + q[0]) / 2);
    }
    c.setPointerCapture(e.pointerId);
    view.gliding = false;
  });
  c.addEventListener('pointermove', e => {
    const [x, y] = where(e);
    if (!drag || !pointers.has(e.pointerId)) return hover(x, y);
    pointers.set(e.pointerId, [x, y]);
    if (drag.pinch && pointers.size === 2) {
      const [p, q] = [...pointers.values()];
      const f = drag.pinch / Math.max(10, Math.abs(p[0] - q[0]));
      drag.moved = true;
      view.set(drag.about - (drag.about - drag.t0) * f,
               drag.about + (drag.t1 - drag.about) * f);
      return;
    }
    if (Math.abs(x - drag.x) > 3) drag.moved = true;
    if (!drag.moved) return;
    view.tip.hidden = true;
    const by = (drag.x - x) / (view.width - view.gutter - 6) *
        (drag.t1 - drag.t0);
    view.set(drag.t0 + by, drag.t1 + by);
  });
  const up = e => {
    pointers.delete(e.pointerId);
    if (drag && !drag.moved && e.type === 'pointerup') {
      const hit = view.hit(...where(e));
      if (hit && hit.lines) {
        view.selected = -1;
        view.tell(-1, hit.lines);
        view.draw();
      } else {
        view.select(hit ? hit.task : -1);
      }
    }
    drag = null;
  };
  c.addEventListener('pointerup', up);
  c.addEventListener('pointercancel', up);
  c.addEventListener('pointerleave', () => { view.tip.hidden = true; });
  c.addEventListener('dblclick', e => view.zoom(0.4, view.at(where(e)[0])));
  // The page scrolls unless the timeline was clicked or a key is held.
  c.addEventListener('wheel', e => {
    const sideways = Math.abs(e.deltaX) > Math.abs(e.deltaY);
    if (!sideways && !e.ctrlKey && !e.metaKey && !e.shiftKey &&
        document.activeElement !== c) return;
    e.preventDefault();
    if (sideways || e.shiftKey) {
      view.pan((sideways ? e.deltaX : e.deltaY) / 800);
    } else {
      view.zoom(Math.pow(1.0018, e.deltaY), view.at(where(e)[0]));
    }
  }, {passive: false});
  c.addEventListener('keydown', e => {
    if (pressKey(view, e.key, e.shiftKey)) e.preventDefault();
  });
}

// Returns whether the key was handled.
function pressKey(view, key, shift) {
  const {r} = view.d.tasks;
  const i = view.selected;
  const {order} = view.step;
  const list = i >= 0 ? order[r[i]] : order.find(l => l.length);
  if (!list) return false;
  const k = i >= 0 ? list.indexOf(i) : -1;
  switch (key) {
    case 'ArrowRight':
    case 'ArrowLeft': {
      const by = key === 'ArrowRight' ? 1 : -1;
      if (shift) view.pan(by * 0.2);
      else view.select(list[Math.min(list.length - 1, Math.max(0, k + by))]);
      return true;
    }
    case 'ArrowUp':
    case 'ArrowDown': {
      if (i < 0) return view.select(list[0]), true;
      const by = key === 'ArrowDown' ? 1 : -1;
      let rank = r[i] + by;
      while (order[rank] && !order[rank].length) rank += by;
      if (!order[rank]) return true;
      const t = view.d.tasks.t0[i];
      let best = order[rank][0];
      for (const j of order[rank]) {
        if (Math.abs(view.d.tasks.t0[j] - t) <
            Math.abs(view.d.tasks.t0[best] - t)) best = j;
      }
      return view.select(best), true;
    }
    case '+': case '=': return view.zoom(0.6), true;
    case '-': case '_': return view.zoom(1.6), true;
    case '0': case 'Home': return view.go(0, view.step.end), true;
    case 'c': case 'C':
      view.show.crit = !view.show.crit;
      view.boxes.crit.checked = view.show.crit;
      return view.draw(), true;
    case 'Escape': return view.select(-1), true;
  }
  return false;
}
