#!/usr/bin/env python3
"""Interrupts every command that can take long, at several moments: it must end
by itself with exit code 130, say so, and keep the best that it has found or
leave no file.

usage: interrupt_test.py PIPELOOM [--table]

Prints how long each took to end after the signal; --table prints Markdown. A
loaded machine makes these longer, so the test only fails at LONGEST seconds.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LONGEST = 20
MOMENTS = (0.2, 0.7, 2.0)  # Seconds after the start.
# Each with a name, the command, and the file that keeps its best.
TABLES = [f"t{i}.csv" for i in range(40)]
IMAGES = "--batch image_text --replicas 1"
COMMANDS = [
    ("plan, its search", f"plan dip-vlm-l {IMAGES} --deadline 60s --partition "
     "rule --out plan.pb", "plan.pb"),
    ("plan, its partition", f"plan dip-vlm-l {IMAGES} --out plan.pb",
     "plan.pb"),
    ("plan, many steps", "plan dip-vlm-s --batch image_text --replicas 1 "
     "--shuffle 1 --steps 2000 --partition rule", None),
    ("plan for a trainer", f"plan dip-vlm-m {IMAGES} --deadline 60s --for torch",
     None),
    ("compare", f"compare dip-vlm-m {IMAGES} --deadline 60s --partition rule",
     None),
    ("partition", f"partition dip-vlm-l {IMAGES} --out found.json",
     "found.json"),
    ("partition --layouts", f"partition dip-vlm-l {IMAGES} --layouts --out "
     "found.json", "found.json"),
    ("plan --warm-up", f"plan dip-vlm-l {IMAGES} --partition rule --warm-up 60s "
     "--deadline 50ms --out warm.pb", "warm.pb"),
    ("search", "search graph.json --deadline 60s --out best.json",
     "best.json"),
    ("search --bound strong", "search graph.json --deadline 60s --bound strong "
     "--out best.json", "best.json"),
    ("explain", f"explain dip-vlm-l {IMAGES} --partition rule --deadline 60s",
     None),
    ("whatif", f"whatif dip-vlm-m {IMAGES} --partition rule --ask layout "
     "--deadline 10s", None),
    ("backtest", f"backtest {' '.join(TABLES)}", None),
    ("backtest --fit", f"backtest {' '.join(TABLES)} --fit", None),
    ("bench", "bench --problems multimodal --budgets 60s", None),
    ("emulate", "emulate plan.txt --jitter 0.1 --samples 1000000", None),
    ("trace", "trace measured.json --deadline 60s", None),
    ("run", "run plan.txt --time-scale 100", None),
    ("serve", "serve --listen 127.0.0.1:0 --log-level off", None),
]


def make_tables(folder):
    """Writes tables of measured runs whose comparison takes many seconds."""
    table = (ROOT / "workloads" / "validation" / "nemo.csv").read_text()
    for name in TABLES:
        (folder / name).write_text(table)
    (folder / "b300.json").write_text(
        (ROOT / "workloads" / "validation" / "b300.json").read_text())


def interrupt(pipeloom, line, folder, environment, moment, number):
    """Returns the exit code, the messages, and the seconds until the end; None
    for the code if the command ended before."""
    process = subprocess.Popen([pipeloom, *line.split()], cwd=folder, text=True,
                               env=environment, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    time.sleep(moment)
    if process.poll() is not None:
        _, said = process.communicate()
        return None, said, 0
    begin = time.monotonic()
    process.send_signal(number)
    try:
        _, said = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "killed", "", LONGEST
    return process.returncode, said, time.monotonic() - begin


def main():
    pipeloom = os.path.abspath(sys.argv[1])
    has_service = os.path.exists(
        os.path.join(os.path.dirname(pipeloom), "pipeloom-service"))
    failures = []
    times = []
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        environment = {**os.environ, "PIPELOOM_CACHE_DIR": str(folder / "cache"),
                       "PIPELOOM_DATA_DIR": str(ROOT / "workloads")}
        environment.pop("PIPELOOM_PARTITION", None)
        for line in ("plan dip-vlm-m --batch image_text --replicas 1 --partition "
                     "rule --evaluations 5 --out plan.txt",
                     "export plan.txt --to graph-json --out graph.json",
                     "emulate plan.txt --trace measured.json"):
            subprocess.run([pipeloom, *line.split()], cwd=folder, check=True,
                           env=environment, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
        make_tables(folder)
        for what, line, best in COMMANDS:
            if what == "serve" and not has_service:
                continue
            longest = 0
            kept = 0
            for moment in MOMENTS:
                for number in (signal.SIGINT, signal.SIGTERM):
                    if best is not None:
                        (folder / best).unlink(missing_ok=True)
                    before = set(os.listdir(folder))
                    code, said, took = interrupt(pipeloom, line, folder,
                                                 environment, moment, number)
                    name = f"{what}, {number.name} after {moment} s"
                    if code is None:
                        failures.append(f"{name}: had ended: {said}")
                        continue
                    longest = max(longest, took)
                    expected = (0,) if what == "serve" else (
                        130, -number)  # Before the handler stands.
                    if code not in expected:
                        failures.append(f"{name}: exit code {code}: {said}")
                    if code == 130 and "interrupted" not in said:
                        failures.append(f"{name}: does not say so: {said}")
                    left = set(os.listdir(folder)) - before - {"cache", best}
                    if left:
                        failures.append(f"{name}: left {sorted(left)}")
                    if best is not None and (folder / best).exists():
                        kept += 1
                        if best.endswith(".json"):
                            json.loads((folder / best).read_text())
                        else:
                            subprocess.run([pipeloom, "validate", best],
                                           cwd=folder, env=environment,
                                           check=True, capture_output=True)
            times.append((what, longest, kept, best is not None))
    if "--table" in sys.argv:
        print("| command | longest time to the end | best kept |")
        print("| --- | --- | --- |")
        for what, longest, kept, has_best in times:
            print(f"| {what} | {longest:.2f} s | "
                  + (f"{kept} of {2 * len(MOMENTS)}" if has_best else "-")
                  + " |")
    else:
        for what, longest, kept, has_best in times:
            print(f"{what}: {longest:.2f} s"
                  + (f", best kept {kept} times" if has_best else ""))
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
