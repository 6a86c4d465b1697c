// The bars and the table of tasks below a timeline.
function bars(host, rows, colours, mark) {
  const box = $('div', host, {className: 'bars'});
  if (rows.length > 16) box.classList.add('many');
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

function stepParts(view, data, index) {
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
  // Only causes with a noticeable share of this step.
  const total = k => data.bubbles.reduce((sum, b) => sum + b[k], 0);
  const words = data.bubbleNames.filter((name, k) =>
      CAUSE[name] && total(k) > finish * data.ranks / 1000)
      .map(name => `${name}: ${CAUSE[name]}`);
  if (words.length) $('p', at('bubbles'), {className: 'hint',
      textContent: `The rank is idle because: ${words.join('; ')}.`});
  const top = Math.max(1, ...data.memory.map(m =>
      Math.max(m.limit, m.peak.total)));
  const known = data.memory.some(m => m.peak.total > 0);
  bars(at('peaks'), data.memory.map((m, r) => ({
    name: `rank ${r}`, limit: m.limit, parts: m.peak.items.map(v => v / top),
    titles: m.peak.items.map((v, k) => `${data.items[k]} ${bytes(v)}`),
    value: known ? bytes(m.peak.total) : '-'})), k => `var(--i${k})`,
    data.memory.some(m => m.limit > 0) ? row => row.limit / top : null);
  // Makes a table of all tasks when it is opened.
  const box = at('tasks');
  box.addEventListener('toggle', () => {
    if (!box.open || box.dataset.made) return;
    box.dataset.made = 1;
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
      for (const i of view.step.order[+select.value]) {
        const tr = $('tr', body);
        $('th', tr, {textContent: view.step.name(i), scope: 'row',
                     className: 'l'});
        $('td', tr, {textContent: time(data.tasks.t0[i])});
        $('td', tr, {textContent: time(data.tasks.t1[i] - data.tasks.t0[i])});
        $('td', tr, {textContent: view.step.reason(i), className: 'l why'});
      }
    };
    select.onchange = fill;
    fill();
  });
}
