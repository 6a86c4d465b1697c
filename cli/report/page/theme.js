// The colours of style.css for the canvases, in the theme that the reader's
// system, the button or the address ("#theme=dark") asks for.
const COLOURS = 6;  // Colours of modules; more modules repeat them.
let palette = {};
const dark = matchMedia('(prefers-color-scheme: dark)');
function setTheme(name) {
  root.dataset.theme = name || (dark.matches ? 'dark' : 'light');
  const style = getComputedStyle(root);
  palette = {};
  for (const key of ['page', 'card', 'ink', 'soft', 'line', 'idle', 'epilogue',
                     'limit', 'link', 'accent', 'crit']) {
    palette[key] = style.getPropertyValue('--' + key).trim();
  }
  for (const [name, count] of [['i', 7], ['b', 8]]) {
    palette[name] = [];
    for (let k = 0; k < count; ++k) {
      palette[name].push(style.getPropertyValue(`--${name}${k}`).trim());
    }
  }
  palette.m = [];
  for (let k = 0; k < COLOURS; ++k) {
    const a = style.getPropertyValue(`--m${k}a`).trim();
    const b = style.getPropertyValue(`--m${k}b`).trim();
    palette.m.push([a, b, hatched(a, b), between(a, b)]);
  }
  for (const t of timelines) t.draw();
}
// Weight gradients have a colour between those of forward and backward.
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
function between(a, b) {
  const mix = k => Math.round((parseInt(a.slice(k, k + 2), 16) +
                               parseInt(b.slice(k, k + 2), 16)) / 2);
  return `rgb(${mix(1)},${mix(3)},${mix(5)})`;
}
