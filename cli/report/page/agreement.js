// Plots of predicted against measured values: a key hides or shows its series,
// and the point nearest to a touch or click is named.
const NEAR = 24;  // Pixels.
function nearestPoint(plane, x, y) {
  let best = null;
  let least = NEAR;
  for (const mark of plane.querySelectorAll('g:not([hidden])>*')) {
    const box = mark.getBoundingClientRect();
    const far = Math.hypot(box.x + box.width / 2 - x,
                           box.y + box.height / 2 - y);
    if (far < least) [best, least] = [mark, far];
  }
  return best;
}
function agreement(figure) {
  const plane = figure.querySelector('.plane');
  const told = figure.querySelector('.told');
  const usual = told.textContent;
  plane.onclick = event => {
    const mark = nearestPoint(plane, event.clientX, event.clientY);
    told.textContent = mark ? mark.textContent : usual;
  };
  for (const key of figure.querySelectorAll('.keys button')) {
    key.onclick = () => {
      const shown = key.getAttribute('aria-pressed') !== 'true';
      key.setAttribute('aria-pressed', shown);
      plane.querySelector(`g[data-series="${key.dataset.series}"]`)
          .toggleAttribute('hidden', !shown);
    };
  }
}
