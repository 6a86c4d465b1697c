// Elements, errors, and numbers in words.
const began = performance.now();
const errors = [];
const root = document.documentElement;
const $ = (tag, parent, props = {}) => {
  const e = Object.assign(document.createElement(tag), props);
  if (parent) parent.append(e);
  return e;
};
const PASS = ['forward', 'backward', 'weight gradient'];
// The meanings of the causes of idle time; docs/report.md has the details.
const CAUSE = {
  'warm-up': 'the rank\'s first input is not there yet',
  'imbalance': 'the rank waited for has more to do in all',
  'dependency': 'what it waits for waits itself',
  'transfer': 'a tensor is on its way, or a send blocks',
  'memory': 'a task stood ready, but memory had no room for it',
  'order': 'a task stood ready; the order put another first',
  'tail': 'no task is left',
  'other': 'measured without a reason',
};
const calm = matchMedia('(prefers-reduced-motion: reduce)').matches;

// Returns x with so many digits, a half in the last one to the even digit as
// printf rounds it; toFixed rounds it away from zero.
function fixed(x, digits) {
  const half = 2 ** (digits + 1);
  if (!Number.isInteger(x * half) || Number.isInteger(x * half / 2)) {
    return x.toFixed(digits);
  }
  const below = Math.floor(x * 10 ** digits);
  return ((below + Math.abs(below % 2)) / 10 ** digits).toFixed(digits);
}
// The same as FormatDuration and FormatBytes of base/units.cc.
function time(ns) {
  const a = Math.abs(ns);
  if (a < 1e3) return `${ns} ns`;
  if (a < 1e6) return `${fixed(ns / 1e3, 3)} us`;
  if (a < 1e9) return `${fixed(ns / 1e6, 3)} ms`;
  return `${fixed(ns / 1e9, 3)} s`;
}
function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB'];
  let u = 0;
  while (Math.abs(n) >= 1024 && u < 3) { n /= 1024; ++u; }
  return u === 0 ? `${n} B` : `${fixed(n, 2)} ${units[u]}`;
}
const percent = x => `${(100 * x).toFixed(1)} %`;
const touch = matchMedia('(pointer: coarse)').matches;
