#!/usr/bin/env python3
"""Plans the shipped jobs on real batches and prints Markdown tables: every
strategy's mean step time in 100 ms a step, each on its own partition and all on
the partition that `pipeloom partition` finds; `pipeloom` in 100 ms against `dip`
and itself in 10 s; how far `pipeloom` is from its lower bound; how late searches
end; and, with --minute-steps, how far steps of 100 ms and 1 s are above searches
of a minute.

usage: scripts/measure_jobs.py BINARY [--steps 50] [--peer-steps 5]
                                      [--minute-steps 0]
                                      [--jobs dip-vlm-s,...] [--threads 2]

Steps are drawn from the batch by `--shuffle 1`; one replica of each is planned.
`pipeloom`'s own partition is the searched one, and its steps of 100 ms and 1 s go on
from four sample steps that are searched for 10 s once, as by default; those of the same
partition, of 10 s and of a minute do not. Only the first --peer-steps steps get 10 s
each, because 50 steps of every job would take hours. A dash: a step does not fit, or the
strategy is not for that partition."""
import argparse
import json
import subprocess
import sys
import tempfile

JOBS = {
    "dip-vlm-s": "image_text",
    "dip-vlm-m": "image_text",
    "dip-vlm-l": "image_text",
    "dip-t2v-s": "video",
    "dip-t2v-l": "video",
    "qwen2.5-vl-72b": "mixed",
    "step-video-t2v": "video",
}
STATIC = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "v-half", "v-min",
          "dualpipe-v", "megatron", "megatron-tuned", "nnscaler"]
# The default of `plan` for a job whose partition it searches.
WARM_UP = ("--warm-up", "10s")
BY_STEP = ["optimus", "disttrain", "dip-order", "dip"]
STRATEGIES = STATIC + BY_STEP + ["pipeloom"]


class Runner:
    def __init__(self, options, job):
        self.common = [job, "--batch", JOBS[job], "--shuffle", "1",
                       "--replicas", "1", "--threads", str(options.threads)]
        self.options = options

    def run(self, command, *more):
        arguments = [self.options.binary, command, *self.common, *more]
        done = subprocess.run(arguments, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def plan(self, schedule, deadline, steps, *more):
        """The figures of each step."""
        return json.loads(self.run(
            "plan", "--strategy", schedule, "--deadline", deadline, "--steps",
            str(steps), "--format", "json", *more))["steps"]

    def compare(self, *more):
        """Mean step time in seconds by strategy; None where there is none."""
        rows = json.loads(self.run(
            "compare", "--deadline", "100ms", "--steps",
            str(self.options.steps), "--strategies", ",".join(STRATEGIES),
            "--format", "json", *(more or ("--partition", "rule"))))["rows"]
        times = {row["schedule"]: row.get("mean_step_time_us") for row in rows}
        return {name: times[name] and times[name] / 1e6 for name in STRATEGIES}


def mean(steps, key):
    return sum(step[key] for step in steps) / len(steps)


def best_static(row):
    return min(row[name] for name in STATIC if row[name] is not None)


def ratio(of, to):
    return "-" if of is None else f"{of / to:.3f}x"


def table(head, rows):
    print(f"\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def times_row(job, row):
    return [job, *("-" if row[name] is None else f"{row[name]:.2f}"
                   for name in STRATEGIES),
            ratio(best_static(row), row["pipeloom"]),
            ratio(row["dip"], row["pipeloom"])]


def over_minute(run, job, ours, searched):
    """How far the first step and each of the next ones are above searches
    of a minute for the same steps, after 100 ms and after 1 s."""
    count = run.options.minute_steps
    minute = run.plan("pipeloom", "60s", count, *searched)
    second = run.plan("pipeloom", "1s", count, *searched, *WARM_UP)
    row = [job]
    for steps in (ours, second):
        over = [f"{100 * (s['step_time_us'] / m['step_time_us'] - 1):+.1f} %"
                for s, m in zip(steps, minute)]
        row += [over[0], ", ".join(over[1:]) or "-"]
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--peer-steps", type=int, default=5)
    parser.add_argument("--minute-steps", type=int, default=0)
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    unknown = [job for job in options.jobs.split(",") if job not in JOBS]
    if unknown:
        parser.error(f"--jobs {unknown[0]}: not one of {', '.join(JOBS)}")
    own, same, long, gaps, minutes = [], [], [], [], []
    for job in options.jobs.split(","):
        run = Runner(options, job)
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/{job}.json"
            run.run("partition", "--out", file)
            searched = ("--partition", file)
            ours = run.plan("pipeloom", "100ms", options.steps, *searched,
                            *WARM_UP)
            row = run.compare()
            row["pipeloom"] = mean(ours, "step_time_us") / 1e6
            own.append(times_row(job, row))
            same.append(times_row(job, run.compare("--same-partition", file)))
            free = run.plan("pipeloom", "100ms", options.steps, *searched,
                            *WARM_UP, "--memory-limit", "100TiB")
            peers = [mean(run.plan(name, "10s", options.peer_steps, *more),
                          "step_time_us")
                     for name, more in (("dip", ()), ("dip", searched),
                                        ("pipeloom", searched))]
            if options.minute_steps > 0:
                minutes.append(over_minute(run, job, ours, searched))
        first = mean(ours[:options.peer_steps], "step_time_us")
        long.append([job, *(f"{p / 1e6:.3f}" for p in peers),
                     f"{first / 1e6:.3f}",
                     *(ratio(p, first) for p in peers[:2]),
                     *(ratio(p, peers[2]) for p in peers[:2])])
        late = sorted(step["search_us"] / 1000 - 100 for step in ours)
        gaps.append([job, *(f"{100 * f:.2f} %" for steps in (ours, free)
                            for f in (mean(steps, "gap_ratio"),
                                      max(s["gap_ratio"] for s in steps))),
                     f"{late[len(late) // 2]:.0f} ms", f"{late[-1]:.0f} ms"])
        print(f"{job}: done", file=sys.stderr)
    for name, rows in (("own partitions", own), ("same partition", same)):
        table([f"{name}, s", *STRATEGIES, "best static / pipeloom",
               "dip / pipeloom"], rows)
    table(["job, s", "dip, 10 s", "dip, 10 s, same partition",
           "pipeloom, 10 s", "pipeloom, 100 ms", "100 ms over dip",
           "same partition", "10 s over dip", "same partition"], long)
    table(["job", "mean gap", "worst", "mean gap, no limit", "worst",
           "late, median", "worst"], gaps)
    if minutes:
        table(["job", "first step, 100 ms over 60 s", "next steps",
               "first step, 1 s over 60 s", "next steps"], minutes)


if __name__ == "__main__":
    main()
