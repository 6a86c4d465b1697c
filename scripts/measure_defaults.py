#!/usr/bin/env python3
"""Compares what `pipeloom plan JOB --batch B` does by itself with longer
searches of the same layout, and prints a Markdown table: step time of the
default plan, of the rule's partition, of a partition search with --effort times
the tries, and the hint that `plan` printed.

usage: scripts/measure_defaults.py BINARY [--jobs llama3-8b,...] [--effort 4]
                                   [--steps 3] [--evaluations 2000]

One replica of each step is planned. Searches are counted in evaluations, so the
table is the same on a busy machine. Minutes for each job."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

JOBS = {
    "llama3-8b": "text",
    "qwen2.5-vl-7b": "image_text",
    "qwen2.5-vl-72b": "mixed",
    "qwen2.5-omni-7b": "mixed",
    "internvl3-38b": "image_text",
    "disttrain-9b": "image_text",
    "dip-vlm-s": "image_text",
    "dip-vlm-m": "image_text",
    "dip-t2v-s": "video",
    "step-video-t2v": "video",
}


def run(arguments, **environment):
    done = subprocess.run(arguments, capture_output=True, text=True,
                          env={**os.environ, **environment})
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return done


def mean_step(planned):
    steps = json.loads(planned.stdout)["steps"]
    return sum(step["step_time_us"] / 1e6 for step in steps) / len(steps)


def hint_of(planned):
    """The notes that name a command which would gain more."""
    notes = [line.removeprefix("note: ")
             for line in planned.stderr.splitlines() if "`pipeloom " in line]
    return "; ".join(notes) or "none"


def measure(options, job, folder):
    common = [job, "--batch", JOBS[job], "--shuffle", "1", "--replicas", "1"]
    plan = [options.binary, "plan", *common, "--format", "json", "--steps",
            str(options.steps), "--evaluations", str(options.evaluations)]
    default = run(plan, PIPELOOM_CACHE_DIR=os.path.join(folder, job),
                  PIPELOOM_PARTITION="")
    rule = run(plan + ["--partition", "rule"])
    found = os.path.join(folder, f"{job}.json")
    run([options.binary, "partition", *common, "--effort",
         str(options.effort), "--out", found])
    longer = run(plan + ["--partition", found])
    return mean_step(default), mean_step(rule), mean_step(longer), hint_of(
        default)


def main():
    parser = argparse.ArgumentParser(
        usage=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--effort", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--evaluations", type=int, default=2000)
    options = parser.parse_args()
    jobs = options.jobs.split(",")
    if unknown := [job for job in jobs if job not in JOBS]:
        parser.error(f"--jobs {unknown[0]}: not one of {', '.join(JOBS)}")
    print("| job | default | rule | longer search | default over best | hint |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for job in jobs:
            default, rule, longer, hint = measure(options, job, folder)
            over = default / min(default, rule, longer) - 1
            print(f"| {job} | {default:.3f} s | {rule:.3f} s | {longer:.3f} s "
                  f"| {over:.1%} | {hint} |", flush=True)


if __name__ == "__main__":
    main()
