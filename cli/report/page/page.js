// Puts the page together: its buttons, and a timeline for each step.
const timelines = [];
let linked = false;  // All timelines show the same part.
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
  } catch (e) {  // A local file has no clipboard, so select.
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
document.querySelectorAll('.agree').forEach(agreement);
// Timelines far below are made when they come into view.
const waiting = new Map();
function make(index) {
  if (timelines[index]) return;
  const host = document.getElementById(`timeline-${index}`);
  const view = timelines[index] = new Timeline(page.steps[index], host);
  stepParts(view, page.steps[index], index);
  // "#crit=1", "#causes=1", "#view=0.2,0.4" (shares of the step).
  for (const key of ['crit', 'causes']) {
    if (wish.get(key)) view.show[key] = view.boxes[key].checked = true;
  }
  view.layout();
  const [from, to] = (wish.get('view') || '').split(',').map(Number);
  if (to > from) view.set(from * view.step.end, to * view.step.end);
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
