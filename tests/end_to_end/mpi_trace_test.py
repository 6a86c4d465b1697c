#!/usr/bin/env python3
"""A step that MPI processes ran, traced with wrong clocks, comes back.

usage: mpi_trace_test.py PIPELOOM MPIRUN [MPIRUN OPTION...]

`run --transport mpi --trace` of four processes is cut into one file a rank, as
profilers write them, and each rank's clock is set off by seconds and made to
drift. `trace` must find the same costs within 1 % and the same critical path.
"""
import json
import os
import subprocess
import sys
import tempfile

# Each rank's clock: microseconds ahead, and seconds gained per second.
CLOCKS = [(1e6, 0), (-3e6, 4e-5), (2.5e7, -6e-5), (12345.678, 2e-5)]


def expect(ok, *what):
    if not ok:
        print("FAILED:", *what)
        sys.exit(1)


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120,
                          check=False)
    expect(done.returncode == 0, command, done.stderr[-2000:])
    return done.stdout


def rank_file(trace, rank, ahead, drift):
    """The rank's tasks and transfers, without what only a whole trace has."""
    events = []
    for event in trace["traceEvents"]:
        if event.get("pid") != rank or event["ph"] != "X":
            continue
        event = dict(event, ts=event["ts"] * (1 + drift) + ahead,
                     dur=event["dur"] * (1 + drift))
        events.append(event)
    expect(events, "rank", rank, "has no events")
    return {"traceEvents": events, "distributedInfo": {"rank": rank}}


def main():
    pipeloom, mpirun = sys.argv[1], sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        def path(name):
            return os.path.join(folder, name)

        run([pipeloom, "whatif", "dip-vlm-s", "--batch", "image_text",
             "--strategy", "1f1b", "--evaluations", "1", "--microbatches", "6",
             "--out", path("plan.pb")])
        run([*mpirun, "-n", "4", pipeloom, "run", "--plan", path("plan.pb"),
             "--transport", "mpi", "--time-scale", "0.1", "--trace",
             path("whole.json")])
        with open(path("whole.json"), encoding="utf-8") as file:
            whole = json.load(file)
        names = []
        for rank, (ahead, drift) in enumerate(CLOCKS):
            names.append(path(f"rank{rank}.json"))
            with open(names[-1], "w", encoding="utf-8") as file:
                json.dump(rank_file(whole, rank, ahead, drift), file)
        right = json.loads(run([pipeloom, "trace", path("whole.json"),
                                "--format", "json"]))
        found = json.loads(run([pipeloom, "trace", *names, "--format",
                                "json"]))
    expect(found["tasks"] == right["tasks"] == 60, found["tasks"])
    for a, b in zip(found["costs"], right["costs"], strict=True):
        for key in ("module", "stage", "pass", "count"):
            expect(a[key] == b[key], a, b)
        expect(abs(a["mean_us"] - b["mean_us"]) <= 0.01 * b["mean_us"], a, b)
    expect(abs(found["measured_us"] - right["measured_us"])
           <= 0.01 * right["measured_us"], found["measured_us"])
    # Without their ids, which each reading gives anew.
    paths = [[task[task.index("("):] for task in trace["critical_tasks"]]
             for trace in (found, right)]
    expect(paths[0] == paths[1], *paths)
    print("4 processes, costs within 1 %, the same critical path of",
          len(right["critical_tasks"]), "tasks: passed")


if __name__ == "__main__":
    main()
