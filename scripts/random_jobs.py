#!/usr/bin/env python3
"""Compares pipeloom with every other strategy on random jobs.

A job is a shipped one with another batch, layout, number of microbatches and
memory limit, drawn from a seed: mostly batches and layouts that nothing in the
planner was made for. Each is run by `pipeloom compare`; what counts is whether
any row of its table is faster than pipeloom's. A row that searched for more than
1.5 times the budget, and 1.5 times as long as pipeloom, is marked late and counted
apart: one evaluation of a large step may take longer than the budget.

  scripts/random_jobs.py BINARY [--jobs N] [--seed S] [--budget 100ms]
                         [--steps N] [--partition SOURCE] [--timeout S]
                         [--out FILE]

Prints a line a job and a summary. A job without a plan by pipeloom or without one by
any other strategy, or that takes longer than the timeout, is named and replaced
by another one.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys

BATCHES = ["image_text", "interleaved", "speech", "text", "video", "mixed"]
OWN = "pipeloom"
# A row is late if it searched for more than LATE times the budget, and LATE times
# as long as pipeloom.
LATE = 1.5


def seconds_of(budget):
    """Returns the seconds of a time such as 100ms; None for evaluations."""
    for unit, factor in (("ms", 1e-3), ("s", 1)):
        if budget.endswith(unit):
            return float(budget.removesuffix(unit)) * factor
    return None


def draw(rng, jobs, data):
    """Returns the arguments of `compare` for one random job."""
    name = rng.choice(jobs)
    job = json.loads((data / "jobs" / f"{name}.json").read_text())
    parallel = job["parallel"]
    gpus = parallel.get("tp", 1) * parallel.get("pp", 1)
    settings = []
    layouts = [(tp, gpus // tp) for tp in (1, 2, 4, 8)
               if gpus % tp == 0 and 2 <= gpus // tp <= 16]
    if layouts:
        tp, pp = rng.choice(layouts)
        settings += [f"parallel.tp={tp}", f"parallel.pp={pp}"]
    else:
        pp = parallel.get("pp", 1)
    args = [name, "--batch", rng.choice(BATCHES), "--shuffle",
            str(rng.randrange(1, 1000)), "--microbatches",
            str(rng.randint(max(2, pp // 2), 3 * pp))]
    if rng.random() < 0.5:
        args += ["--memory-limit", f"{rng.choice([40, 60, 76, 96, 141])}GiB"]
    for setting in settings:
        args += ["--set", setting]
    return args


def rows_of(binary, args, options):
    command = [binary, "compare", *args, "--replicas", "1", "--steps",
               str(options.steps), "--format", "json", "--seed", "1",
               "--threads", "2"]
    if options.partition:
        command += ["--partition", options.partition]
    if seconds_of(options.budget) is not None:
        command += ["--deadline", options.budget]
    else:
        command += ["--evaluations", options.budget]
    try:
        done = subprocess.run(command, capture_output=True, text=True,
                              check=False, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        return None, f"not done in {options.timeout:g} s"
    if done.returncode != 0:
        return None, done.stderr.strip().split("\n")[-1]
    return json.loads(done.stdout), ""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budget", default="100ms")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--partition", default="")
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--out")
    options = parser.parse_args()
    data = pathlib.Path(__file__).resolve().parent.parent / "workloads"
    jobs = sorted(p.stem for p in (data / "jobs").glob("*.json"))
    rng = random.Random(options.seed)
    limit = seconds_of(options.budget)
    results = []
    while len(results) < options.jobs:
        args = draw(rng, jobs, data)
        table, error = rows_of(options.binary, args, options)
        label = " ".join(args)
        if table is None:
            print(f"-        {label}: {error}", file=sys.stderr, flush=True)
            continue
        times = {row["schedule"]: row["mean_step_time_us"]
                 for row in table["rows"] if row.get("mean_step_time_us")}
        searches = {row["schedule"]: row.get("search_us", 0) * 1e-6
                    for row in table["rows"]}
        own = times.pop(OWN, None)
        if own is None or not times:
            print(f"-        {label}: no plan", file=sys.stderr, flush=True)
            continue
        rival = min(times, key=times.get)
        ratio = own / times[rival]
        late = limit is not None and (
            searches[rival] > LATE * max(limit, searches[OWN]))
        results.append({"job": args, "rival": rival, "ratio": ratio,
                        "late": late, "step_time_us": own})
        print(f"{100 * (ratio - 1):+7.2f} % {rival:15} {label}"
              f"{' (late)' if late else ''}", flush=True)
    slower = [r for r in results if r["ratio"] > 1]
    late = sum(r["late"] for r in slower)
    mean = sum(r["ratio"] for r in results) / len(results)
    worst = max(r["ratio"] for r in results)
    print(f"{len(results)} jobs: another row is faster on {len(slower)} (late on "
          f"{late} of these); pipeloom takes {mean:.4f} times the fastest other "
          f"row on the mean, {worst:.4f} at worst")
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
