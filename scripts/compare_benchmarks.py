#!/usr/bin/env python3
"""Two sets of Google Benchmark results side by side.

usage: compare_benchmarks.py BEFORE.json... -- AFTER.json...

Prints the least CPU time of each benchmark on either side and after / before.
Benchmarks of one side only are named at the end.
"""
import json
import sys

UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


def least(paths):
    times = {}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)["benchmarks"]
        for row in rows:
            if row.get("run_type") == "aggregate" or "cpu_time" not in row:
                continue
            time = row["cpu_time"] * UNITS[row["time_unit"]]
            name = row["name"]
            times[name] = min(time, times.get(name, time))
    return times


def words(ns):
    for unit in ("ns", "us", "ms"):
        if ns < 1e3:
            return f"{ns:.3g} {unit}"
        ns /= 1e3
    return f"{ns:.3g} s"


def main():
    paths = sys.argv[1:]
    if "--" not in paths or paths[0] == "--" or paths[-1] == "--":
        sys.exit(__doc__)
    cut = paths.index("--")
    before, after = least(paths[:cut]), least(paths[cut + 1:])
    both = [name for name in before if name in after]
    wide = max([len(name) for name in both], default=4)
    print(f"{'':{wide}}  {'before':>9}  {'after':>9}  ratio")
    for name in both:
        ratio = after[name] / before[name]
        print(f"{name:{wide}}  {words(before[name]):>9}  "
              f"{words(after[name]):>9}  {ratio:5.2f}")
    for side, here, there in (("before", before, after),
                              ("after", after, before)):
        for name in here:
            if name not in there:
                print(f"only {side}: {name}")


if __name__ == "__main__":
    main()
