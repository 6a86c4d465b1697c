#!/usr/bin/env python3
"""Opens reports in a headless Chromium and compares them with the JSON.

usage: report_browser_test.py PIPELOOM [SCREENSHOT_FOLDER]

No console error, no network request, a mark for every task at full zoom, every
task named with its reason on hovering, tables that equal the JSON. Skipped
with one line (exit code 77) where no chromium is installed. With a folder,
screenshots in light and dark, 1280 and 390 pixels wide, are left there.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile


def chromium(*arguments, profile):
    program = next(
        (p for p in map(shutil.which, ("chromium", "chromium-browser",
                                       "google-chrome")) if p), None)
    if program is None:
        print("skipped: no chromium is installed")
        sys.exit(77)
    return subprocess.run(
        [program, "--headless", "--no-sandbox", "--disable-gpu",
         "--hide-scrollbars", "--enable-logging=stderr", "--v=0",
         # Whatever is asked for by name or address is not there.
         "--host-resolver-rules=MAP * ~NOTFOUND",
         f"--user-data-dir={profile}", *arguments],
        capture_output=True, text=True, timeout=240, check=False)


def fail(what):
    print("FAILED:", what)
    sys.exit(1)


def self_test(page, profile):
    done = chromium("--virtual-time-budget=60000", "--window-size=1280,1600",
                    "--dump-dom", f"file://{page}#selftest=1", profile=profile)
    for line in done.stderr.splitlines():
        if "CONSOLE" in line:
            fail(f"{page}: the console says {line}")
    found = re.search(r'<pre id="selftest">(.*?)</pre>', done.stdout, re.S)
    if not found:
        fail(f"{page}: no self test came out: {done.stderr[-500:]}")
    text = found.group(1)
    for name, char in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        text = text.replace(name, char)
    return json.loads(text)


def check(page, result, step_us, ranks, tasks_at_least, profile_text):
    if result["errors"]:
        fail(f"{page}: {result['errors'][:3]}")
    if result["requests"]:
        fail(f"{page}: {result['requests']} network requests")
    step = result["steps"][0]
    tasks = step["tasks"]
    if tasks < tasks_at_least:
        fail(f"{page}: {tasks} tasks, expected {tasks_at_least}")
    if step["marks"] != tasks:
        fail(f"{page}: {step['marks']} marks at full zoom for {tasks} tasks")
    if step["hovers"] != tasks or step["reasons"] != tasks:
        fail(f"{page}: of {tasks} tasks {step['hovers']} are found by pointing"
             f" and {step['reasons']} say why they started")
    if "started then because" not in step["tip"]:
        fail(f"{page}: the tip says {step['tip']!r}")
    if not step["walked"]:
        fail(f"{page}: the arrow keys do not walk")
    if abs(step["finish"] / 1e3 - step_us) > 1e-3:
        fail(f"{page}: step {step['finish']} ns, the JSON has {step_us} us")
    if len(step["bubbles"]) != len(ranks):
        fail(f"{page}: {len(step['bubbles'])} ranks")
    for r, rank in enumerate(ranks):
        idle = step_us - rank["busy_us"] - rank["epilogue_us"]
        if abs(step["bubbles"][r] / 1e3 - idle) > 2e-3:
            fail(f"{page}: rank {r} is idle {step['bubbles'][r]} ns, the JSON "
                 f"has {idle} us")
        peak = sum(rank["peak_items_bytes"].values())
        if step["peaks"][r] != peak:
            fail(f"{page}: rank {r} peaks at {step['peaks'][r]}, not {peak}")
    print(f"{profile_text}: {tasks} tasks, first paint "
          f"{result['firstPaintMs']:.0f} ms, a frame {step['frameMs']:.1f} ms "
          f"(worst {step['worstFrameMs']:.1f})")


def main():
    pipeloom = sys.argv[1]
    shots = sys.argv[2] if len(sys.argv) > 2 else None
    deep = ["--set", "parallel.pp=64", "--set", "parallel.tp=1",
            "--set", "training.microbatches=48",
            "--set", "cluster.num_nodes=8"]
    with tempfile.TemporaryDirectory() as folder:
        profile = os.path.join(folder, "profile")
        if chromium("--version", profile=profile).returncode != 0:
            print("skipped: chromium does not start here")
            sys.exit(77)
        cases = [
            ("dip-vlm-s", ["dip-vlm-s", "--schedule", "pipeloom"], 100),
            ("dip-vlm-l", ["dip-vlm-l", "--schedule", "pipeloom"], 100),
        ]
        for name, job, least in cases:
            page = os.path.join(folder, name + ".html")
            plan = os.path.join(folder, name + ".pb")
            subprocess.run([pipeloom, "plan", *job, "--batch", "image_text",
                            "--evaluations", "20", "--out", plan],
                           check=True, capture_output=True)
            emulate(pipeloom, plan, page, name, least, profile)
        page = os.path.join(folder, "ranks64.html")
        plan = os.path.join(folder, "ranks64.pb")
        made = subprocess.run(
            [pipeloom, "whatif", "dip-vlm-s", *deep, "--schedule", "1f1b",
             "--batch", "image_text", "--evaluations", "1", "--out", plan],
            capture_output=True, text=True, check=False)
        if made.returncode != 0:
            fail(made.stderr)
        emulate(pipeloom, plan, page, "64 ranks", 6000, profile)
        if shots:
            for name in ("dip-vlm-s", "ranks64"):
                screenshots(os.path.join(folder, name + ".html"), shots, name,
                            folder, profile)


def emulate(pipeloom, plan, page, name, least, profile):
    out = subprocess.run(
        [pipeloom, "emulate", "--plan", plan, "--report", page, "--format",
         "json"], check=True, capture_output=True, text=True)
    facts = json.loads(out.stdout)
    check(page, self_test(page, profile), facts["step_time_us"],
          facts["ranks"], least, name)


def screenshots(page, shots, name, folder, profile):
    for theme in ("light", "dark"):
        wide = os.path.join(shots, f"{name}-{theme}-1280.png")
        chromium("--window-size=1280,1700", "--virtual-time-budget=8000",
                 f"--screenshot={wide}",
                 f"file://{page}#all=1&theme={theme}", profile=profile)
        # Windows have a least width; a frame has not.
        frame = os.path.join(folder, "frame.html")
        with open(frame, "w", encoding="utf-8") as out:
            out.write('<body style="margin:0"><iframe style="border:0;'
                      f'width:390px;height:1700px" src="{page}#all=1&theme='
                      f'{theme}"></iframe>')
        narrow = os.path.join(shots, f"{name}-{theme}-390.png")
        chromium("--window-size=500,1700", "--virtual-time-budget=8000",
                 f"--screenshot={narrow}", f"file://{frame}", profile=profile)


if __name__ == "__main__":
    main()
