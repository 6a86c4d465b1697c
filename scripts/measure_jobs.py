#!/usr/bin/env python3
"""Plans the shipped jobs on real batches and prints three Markdown tables:
`pipeloom` in 100 ms a step against `dip` in 10 s, how far `pipeloom` is from
its lower bound, under the job's memory limit and without one, and every
strategy's mean step time under that limit.

usage: scripts/measure_jobs.py BINARY [--steps 50] [--peer-steps 10]
                                      [--jobs dip-vlm-s,...] [--threads 2]

Steps are drawn from the batch by `--shuffle 1`; one replica of each is planned.
`pipeloom` has the partition that `pipeloom partition` finds once for the job,
`dip` its own rule's. `dip` gets the first --peer-steps steps, because 50 steps
of every job would take an hour. In the third table `dip` has 100 ms a step and
the searched partition too."""
import argparse
import json
import subprocess
import sys
import tempfile
import time

JOBS = {
    "dip-vlm-s": "image_text",
    "dip-vlm-m": "image_text",
    "dip-vlm-l": "image_text",
    "dip-t2v-s": "video",
    "dip-t2v-l": "video",
    "qwen2.5-vl-72b": "mixed",
    "step-video-t2v": "video",
}
STRATEGIES = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "v-half",
              "v-min", "dualpipe-v", "megatron", "nnscaler", "optimus",
              "disttrain", "dip", "pipeloom"]


def plan(options, job, schedule, deadline, steps, *more):
    """Returns the steps' figures as `pipeloom plan --format json` gives
    them."""
    command = [options.binary, "plan", job, "--batch", JOBS[job], "--shuffle",
               "1", "--replicas", "1", "--schedule", schedule, "--deadline",
               deadline, "--steps", str(steps), "--threads",
               str(options.threads), "--format", "json", *more]
    done = subprocess.run(command, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)["steps"]


def compare(options, job, file):
    """Returns the mean step time in seconds by strategy; None if a step does
    not fit."""
    command = [options.binary, "compare", job, "--batch", JOBS[job],
               "--shuffle", "1", "--replicas", "1", "--deadline", "100ms",
               "--steps", str(options.steps), "--threads",
               str(options.threads), "--partition", file, "--schedules",
               ",".join(STRATEGIES), "--format", "json"]
    done = subprocess.run(command, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    rows = {row["schedule"]: row for row in json.loads(done.stdout)["rows"]}
    means = [rows[name].get("mean_step_time_us") for name in STRATEGIES]
    return [None if mean is None else mean / 1e6 for mean in means]


def partition(options, job, out):
    """Searches the job's partition once; returns its wall time in seconds."""
    begin = time.monotonic()
    subprocess.run([options.binary, "partition", job, "--batch", JOBS[job],
                    "--replicas", "1", "--threads", str(options.threads),
                    "--out", out], check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    return time.monotonic() - begin


def mean(steps, key):
    return sum(step[key] for step in steps) / len(steps)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--peer-steps", type=int, default=10)
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    unknown = [job for job in options.jobs.split(",") if job not in JOBS]
    if unknown:
        parser.error(f"--jobs {unknown[0]}: not one of {', '.join(JOBS)}")
    against, gaps, strategies = [], [], []
    for job in options.jobs.split(","):
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/{job}.json"
            seconds = partition(options, job, file)
            ours = plan(options, job, "pipeloom", "100ms", options.steps,
                        "--partition", file)
            free = plan(options, job, "pipeloom", "100ms", options.steps,
                        "--partition", file, "--memory-limit", "100TiB")
            means = compare(options, job, file)
        rule = plan(options, job, "pipeloom", "100ms", options.steps)
        peer = plan(options, job, "dip", "10s", options.peer_steps)
        same = mean(ours[:options.peer_steps], "step_time_us")
        dip = mean(peer, "step_time_us")
        against.append(
            f"| {job}, {JOBS[job]} | {dip / 1e6:.3f} s | {same / 1e6:.3f} s "
            f"| {dip / same:.3f}x | {mean(ours, 'step_time_us') / 1e6:.3f} s "
            f"| {mean(rule, 'step_time_us') / 1e6:.3f} s | {seconds:.0f} s |")
        cells = []
        for steps in (ours, free):
            worst = max(step["gap_ratio"] for step in steps)
            cells.append(f"{100 * mean(steps, 'gap_ratio'):.2f} % | "
                         f"{100 * worst:.2f} %")
        gaps.append(f"| {job} | {cells[0]} | {cells[1]} |")
        strategies.append(f"| {job} | " + " | ".join(
            "-" if mean is None else f"{mean:.2f}" for mean in means) + " |")
        print(f"{job}: done", file=sys.stderr)
    print(f"| job, batch | dip, 10 s | pipeloom, 100 ms | over dip "
          f"| pipeloom, {options.steps} steps | by dip's rule "
          "| partition search |\n"
          "| --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(against))
    print("\n| job | mean gap | worst | mean gap, no limit | worst |\n"
          "| --- | --- | --- | --- | --- |")
    print("\n".join(gaps))
    print(f"\n| job, s | {' | '.join(STRATEGIES)} |\n"
          f"|{' --- |' * (len(STRATEGIES) + 1)}")
    print("\n".join(strategies))


if __name__ == "__main__":
    main()
