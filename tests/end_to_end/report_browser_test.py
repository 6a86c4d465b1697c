#!/usr/bin/env python3
"""Opens reports in a headless Chromium and compares them with the JSON.

usage: report_browser_test.py PIPELOOM [--measure] [--shots FOLDER]

Reports of 4, 8 and 64 ranks: no console error, no network request, a mark for
every task at full zoom, every task named with its reason on pointing at it,
tables that equal the JSON, controls with names, nothing wider than a phone.
The page of `backtest`: marks where the JSON's values are, tables and bars equal
to it, keys that hide a table, runs named by touch. The page of `trace`: no
memory of 0; of `bench`: no label cut, no row short. Skipped with one line (exit
code 77) where no chromium is installed.

--measure  prints the first paint and frames a second while zooming; a fact
           about the machine, hence no test
--shots    leaves pictures in FOLDER: light and dark, 1280 and 390 pixels wide,
           the whole step and a part of it
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # The source tree stays as it is.
from browser import Browser, Missing

CASES = {
    "dip-vlm-s": (4, 1000, ["plan", "dip-vlm-s", "--strategy", "pipeloom",
                            "--evaluations", "20"]),
    "dip-vlm-l": (8, 2000, ["plan", "dip-vlm-l", "--strategy", "pipeloom",
                             "--evaluations", "20"]),
    "ranks64": (64, 10000, ["whatif", "dip-vlm-s", "--set", "parallel.pp=64",
                           "--set", "parallel.tp=1", "--set",
                           "training.microbatches=80", "--set",
                           "cluster.num_nodes=8", "--strategy", "1f1b",
                           "--evaluations", "1"]),
}

# The cells of a step's table below the bars with this id, by rank.
CELLS = """[...document.querySelectorAll('#%s ~ details tbody tr')].map(
    row => [...row.cells].slice(1).map(
        c => +(c.dataset.ns ?? c.dataset.bytes ?? -1)))"""

# Where in the window the middle of task i is, with it in view.
POINT = """(i => {
  const t = pipeloomReport.timelines[0];
  const {t0, t1, r} = t.d.tasks;
  t.set(t0[i] - t.step.leastSpan * 0.1, t0[i] + t.step.leastSpan * 0.9);
  t.canvas.scrollIntoView({block: 'start'});
  const box = t.canvas.getBoundingClientRect();
  const middle = Math.min((t0[i] + t1[i]) / 2, t0[i] + t.step.leastSpan / 2);
  return [box.left + t.x(middle), box.top + t.top + (r[i] + 0.4) * t.row,
          t.step.name(i)];
})(%d)"""

FRAMES = """new Promise(done => {
  const t = pipeloomReport.timelines[0];
  const at = [];
  const frame = now => {
    at.push(now);
    const k = at.length - 1;
    if (k === 90) {
      t.set(0, t.step.end);
      return done((k - 1) * 1e3 / (at[k] - at[1]));
    }
    const f = Math.pow(0.5, 4 * Math.sin(Math.PI * k / 90));
    t.set(t.step.end * 0.4 * (1 - f), t.step.end * (0.4 + 0.6 * f));
    requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
})"""


def expect(ok, *what):
    if not ok:
        print("FAILED:", *what)
        sys.exit(1)


def near(a, b, by=2e-3):
    return abs(a - b) <= by


def check_tables(page, name, step, facts):
    """The tables as they stand in the page against `emulate --format json`."""
    us = facts["step_time_us"]
    expect(near(step["finish"] / 1e3, us), name, "step", step["finish"], us)
    bubbles = page.evaluate(CELLS % "bubbles-0")
    peaks = page.evaluate(CELLS % "peaks-0")
    expect(len(bubbles) == len(peaks) == len(facts["ranks"]), name,
           len(bubbles), "rows")
    for r, rank in enumerate(facts["ranks"]):
        busy, epilogue, idle, *causes = (ns / 1e3 for ns in bubbles[r])
        expect(near(busy, rank["busy_us"]), name, r, busy, rank)
        expect(near(epilogue, rank["epilogue_us"]), name, r, epilogue, rank)
        expect(near(idle, us - busy - epilogue), name, r, "idle", idle)
        expect(near(sum(causes), idle), name, r, "causes", causes, idle)
        # The second cell is the limit, the third a time.
        items = rank["peak_items_bytes"]
        expect(peaks[r][0] == sum(items.values()), name, r, peaks[r], items)
        expect(peaks[r][3:] == list(items.values()), name, r, peaks[r], items)


def check(browser, name, path, facts, ranks, least):
    page = browser.open(path)
    # A half in the last digit is rounded as the program does it.
    expect(page.evaluate("[199360512, 199622656, -199360512]"
                         ".map(pipeloomReport.bytes)")
           == ["190.12 MiB", "190.38 MiB", "-190.12 MiB"], name, "bytes")
    expect(page.evaluate("[1062500, 1187500, 8345500].map(pipeloomReport.time)")
           == ["1.062 ms", "1.188 ms", "8.345 ms"], name, "times")
    result = page.evaluate("pipeloomReport.selfTest()")
    expect(not result["errors"], name, result["errors"][:3])
    step = result["steps"][0]
    tasks = step["tasks"]
    expect(tasks >= least, name, tasks, "tasks, expected", least)
    expect(len(facts["ranks"]) == ranks, name, "ranks", len(facts["ranks"]))
    for key in ("marks", "hovers", "reasons"):
        expect(step[key] == tasks, name, step[key], key, "for", tasks, "tasks")
    check_tables(page, name, step, facts)
    # With a real mouse, for some tasks of the first and the last rank.
    for i in (0, tasks // 3, tasks // 2, tasks - 1):
        x, y, task = page.evaluate(POINT % i)
        page.mouse("mouseMoved", x, y)
        tip = page.evaluate(
            "document.querySelector('.tip:not([hidden])')?.textContent")
        expect(tip and task in tip and "started then because" in tip, name,
               "pointing at", task, "tells", tip)
    # With real keys: the timeline comes with Tab and shows that it has focus.
    page.evaluate("pipeloomReport.timelines[0].set(0, 1e18);"
                  "document.querySelector('.toolbar select')?.blur();"
                  "[...document.querySelectorAll('.toolbar input')]"
                  ".filter(e => e.id !== 'link').at(-1).focus()")
    page.key("Tab")
    expect(page.evaluate("document.activeElement.tagName") == "CANVAS", name,
           "Tab does not reach the timeline")
    expect(page.evaluate("getComputedStyle(document.activeElement)"
                         ".outlineStyle") == "solid", name, "no focus ring")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "c", "+"):
        page.key(key)
    told = page.evaluate("document.querySelector('.detail').textContent")
    expect("rank 1" in told and "because" in told, name, "keys tell", told)
    check_names(page, name)
    expect(not page.console, name, "the console says", page.console[:3])
    expect(not page.requests, name, "asks for", page.requests[:3])
    page.close()
    page = browser.open(path, width=390, height=844, mobile=True)
    wide = page.evaluate("document.documentElement.scrollWidth")
    expect(wide <= 390, name, "is", wide, "pixels wide on a phone")
    page.close()
    print(f"{name}: {tasks} tasks on {ranks} ranks: passed")


# The marks of a plot as [table, x, y, text]; places in percent of the plane.
MARKS = """[...document.querySelectorAll('.agree')].map(
    figure => [...figure.querySelectorAll('g[data-series]>*')].map(mark => [
      figure.querySelector(`button[data-series="${
          mark.parentNode.dataset.series}"]`).textContent,
      parseFloat(mark.getAttribute('cx') ?? mark.getAttribute('x')),
      parseFloat(mark.getAttribute('cy') ?? mark.getAttribute('y')),
      mark.textContent]))"""
ROWS = """[...document.querySelectorAll('section')].map(
    part => [...part.querySelectorAll('tbody tr')].map(
        row => [...row.cells].map(cell => cell.textContent)))"""
BARS = """[...document.querySelectorAll('section')].map(
    part => Object.fromEntries([...part.querySelectorAll('.bars')].flatMap(
        bars => [...bars.querySelectorAll('.bar')].map(
            bar => [bar.previousElementSibling.textContent,
                    bar.nextElementSibling.textContent]))))"""


def check_backtest(browser, pipeloom, folder, shots=None):
    """The page of a backtest against its JSON."""
    name = "backtest"
    path = os.path.join(folder, "backtest.html")
    out = subprocess.run(
        [pipeloom, "backtest", "primus", "torchtitan", "simumax_b200",
         "--report", path, "--format", "json"], check=True,
        capture_output=True, text=True)
    facts = json.loads(out.stdout)
    page = browser.open(path)
    marks, rows, bars = (page.evaluate(text) for text in (MARKS, ROWS, BARS))
    expect(len(marks) == len(rows) == len(bars) == 2, name, "parts")
    for part, key in enumerate(("step", "peak")):
        runs = [(table["table"], run) for table in facts["tables"]
                for run in table["runs"] if key + "_error" in run]
        known = sorted((f"{100 * run[key + '_error']:+.1f} %", table,
                        run["run"]) for table, run in runs)
        expect(sorted(tuple(row[:3]) for row in rows[part]) == known, name, key,
               rows[part][:3])
        sizes = [abs(float(row[0].split()[0])) for row in rows[part]]
        expect(sizes == sorted(sizes, reverse=True), name, key, "order", sizes)
        # A mark is as far from the line as the logarithm of its error.
        expect(len(marks[part]) == len(runs), name, key, len(marks[part]))
        scale = {}
        for table, x, y, text in marks[part]:
            error = next(e for e, t, run in known
                         if t == table and f": {run}, " in text and e in text)
            ratio = math.log(1 + float(error.split()[0]) / 100)
            scale.setdefault(round((100 - y - x) / 100, 4), []).append(ratio)
        far, near_by = max(scale), min(scale)
        span = (scale[far][0] - scale[near_by][0]) / (far - near_by)
        for place, ratios in scale.items():
            for ratio in ratios:
                expect(abs(ratio - place * span) < 2e-3, name, key, "a mark",
                       place * span, ratio)
        for table in facts["tables"]:
            of = table["step_time" if key == "step" else "peak_memory"]
            shown = bars[part].get(table["table"])
            wanted = f"{100 * of['mean']:.1f} % of {of['rows']}"
            expect(shown == (wanted if of["rows"] else None), name, key,
                   table["table"], shown, wanted)
    # A key hides its table and shows it again.
    shown = """(() => {
      const key = document.querySelector('.keys button');
      key.click();
      const mark = document.querySelector('.agree g[data-series="0"]');
      return [key.getAttribute('aria-pressed'), getComputedStyle(mark).display];
    })()"""
    expect(page.evaluate(shown) == ["false", "none"], name, "does not hide")
    expect(page.evaluate(shown) == ["true", "inline"], name, "does not show")
    check_names(page, name, least=7)  # Copy, theme, and 3 and 2 tables.
    expect(not page.console, name, "the console says", page.console[:3])
    expect(not page.requests, name, "asks for", page.requests[:3])
    page.close()
    for width in (390, 360):
        page = browser.open(path, width=width, height=844, mobile=True)
        wide = page.evaluate("document.documentElement.scrollWidth")
        expect(wide <= width, name, "is", wide, "pixels wide on a phone")
        x, y, text = page.evaluate("""(() => {
          const figure = document.querySelector('.agree');
          figure.scrollIntoView();
          const marks = [...figure.querySelectorAll('g[data-series]>*')].map(
              mark => [mark, mark.getBoundingClientRect()]);
          // The mark farthest from all others.
          const alone = ([m, box]) => Math.min(...marks.map(([n, other]) =>
              m === n ? Infinity
                      : Math.hypot(box.x - other.x, box.y - other.y)));
          const [mark, box] = marks.reduce(
              (a, b) => alone(b) > alone(a) ? b : a);
          return [box.x + box.width / 2, box.y + box.height / 2,
                  mark.textContent];
        })()""")
        page.call("Input.dispatchTouchEvent", type="touchStart",
                  touchPoints=[{"x": x, "y": y}])
        page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        page.evaluate("new Promise(r => setTimeout(r, 400))")
        told = page.evaluate("document.querySelector('.told').textContent")
        expect("measured" in told and told == text, name, "touching", text,
               "tells", told)
        small = page.evaluate(
            "Math.min(...[...document.querySelectorAll('.plane text')].map("
            "t => t.getBoundingClientRect().height))")
        expect(small >= 11, name, "texts of plots are", small, "pixels high")
        page.close()
    if shots:
        shoot(browser, name, path, shots, parts=(("whole", ""),))
    print(f"{name}: {len(marks[0])} step times, {len(marks[1])} peaks: passed")


def check_names(page, name, least=8):
    """Checks that every control has a name for screen readers."""
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    found = 0
    for node in tree:
        role = node.get("role", {}).get("value")
        if role not in ("button", "checkbox", "combobox", "application"):
            continue
        found += 1
        expect(node.get("name", {}).get("value"), name, role, "has no name")
    expect(found >= least, name, "has", found, "controls")


def check_traced(browser, pipeloom, folder, plan):
    """The page of a measured step, whose memory is not known."""
    step = os.path.join(folder, "step.json")
    path = os.path.join(folder, "traced.html")
    for command in (["emulate", plan, "--trace", step],
                    ["trace", step, "--report", path]):
        subprocess.run([pipeloom, *command], check=True, capture_output=True)
    page = browser.open(path)
    page.evaluate("pipeloomReport.selfTest()")
    bars = page.evaluate("[...document.querySelectorAll('#peaks-0 .bars > "
                         "span:nth-child(3n)')].map(e => e.textContent)")
    expect(bars == ["-"] * 4, "traced", "peaks", bars)
    text = page.evaluate("document.body.innerText")
    expect("not known" in text and " 0 B" not in text, "traced", "memory")
    expect(not page.console, "traced: the console says", page.console[:3])
    page.close()


def check_bench(browser, pipeloom, folder, shots):
    """The page of `bench`: labels that are whole, rows with all cells."""
    for name, options in (("bench", ["--problems", "comm", "--budgets",
                                     "10ms,100ms"]),
                          ("bench-one", ["--problems",
                                         "uniform-unit-p4-m8-v1-looped",
                                         "--budgets", "10ms"])):
        out = os.path.join(folder, name)
        subprocess.run([pipeloom, "bench", *options, "--out", out], check=True,
                       capture_output=True)
        page = browser.open(os.path.join(out, "index.html"))
        cut = page.evaluate("""[...document.querySelectorAll('svg text')]
            .filter(t => {
              const box = t.getBBox(), all = t.ownerSVGElement.viewBox.baseVal;
              return box.x < 0 || box.x + box.width > all.width;
            }).map(t => t.textContent)""")
        expect(not cut, name, "labels are cut:", cut)
        short = page.evaluate("""[...document.querySelectorAll('tr')]
            .filter(r => r.cells.length !== r.parentNode.rows[0].cells.length)
            .map(r => r.innerText)""")
        expect(not short, name, "rows have too few cells:", short)
        count = page.evaluate("document.querySelector('.soft').textContent")
        rows = page.evaluate("[...document.querySelectorAll('table')]"
                             ".at(-1).rows.length - 1")
        expect(count.startswith("1 problem." if rows == 1
                                else f"{rows} problems."), name, count)
        if shots:
            page.screenshot(os.path.join(shots, f"{name}.png"))
        page.close()


def measure(browser, name, path):
    page = browser.open(path)
    page.evaluate("new Promise(r => setTimeout(r, 500))")
    paint = page.evaluate("performance.getEntriesByName("
                          "'first-contentful-paint')[0].startTime")
    frames = page.evaluate(FRAMES)
    print(f"{name}: {os.path.getsize(path) / 1e6:.1f} MB, first paint "
          f"{paint:.0f} ms, {frames:.1f} frames a second while zooming")
    page.close()


def shoot(browser, name, path, folder,
          parts=(("whole", ""), ("zoomed", "&view=0.3,0.36&crit=1&causes=1"))):
    for theme in ("light", "dark"):
        for width, mobile in ((1280, False), (390, True)):
            for part, extra in parts:
                page = browser.open(path, width=width, height=900,
                                    mobile=mobile,
                                    hash_text=f"#all=1&theme={theme}{extra}")
                page.evaluate("new Promise(r => setTimeout(r, 300))")
                page.screenshot(os.path.join(
                    folder, f"{name}-{part}-{theme}-{width}.png"))
                page.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("pipeloom")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--shots", metavar="FOLDER")
    args = parser.parse_args()
    try:
        browser = Browser()
    except Missing as error:
        print("skipped:", error)
        sys.exit(77)
    if args.shots:
        os.makedirs(args.shots, exist_ok=True)
    with browser, tempfile.TemporaryDirectory() as folder:
        check_backtest(browser, args.pipeloom, folder, args.shots)
        check_bench(browser, args.pipeloom, folder, args.shots)
        for name, (ranks, least, command) in CASES.items():
            plan = os.path.join(folder, name + ".pb")
            path = os.path.join(folder, name + ".html")
            subprocess.run([args.pipeloom, *command, "--batch", "image_text",
                            "--out", plan], check=True, capture_output=True)
            out = subprocess.run(
                [args.pipeloom, "emulate", "--plan", plan, "--report", path,
                 "--format", "json"], check=True, capture_output=True,
                text=True)
            check(browser, name, path, json.loads(out.stdout), ranks, least)
            if name == "dip-vlm-s":
                check_traced(browser, args.pipeloom, folder, plan)
            if args.measure:
                measure(browser, name, path)
            if args.shots:
                shoot(browser, name, path, args.shots)


if __name__ == "__main__":
    main()
