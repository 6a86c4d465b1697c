#!/usr/bin/env python3
"""Pipeline timings of Primus as Chrome traces, one file a rank.

usage: primus_to_chrome.py FOLDER OUT_FOLDER

FOLDER holds what Primus' pipeline visualiser reads (AMD-AGI/Primus, MIT
licence): config.json and pp_rank_N.json, an object by iteration with
"fwd_start", "fwd_end", "bwd_start" and "bwd_end" in milliseconds, an entry a
microbatch. OUT_FOLDER gets trace_rank_N.json, which `pipeloom trace` reads.
"""
import json
import os
import sys


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, out = sys.argv[1:]
    os.makedirs(out, exist_ok=True)
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    if config.get("vp_size", 1) != 1:
        sys.exit("several stages a rank are not in this format's files")
    for rank in range(config["pp_size"]):
        name = os.path.join(folder, f"pp_rank_{rank}.json")
        with open(name, encoding="utf-8") as file:
            iterations = json.load(file)
        events = []
        begin = 0.0
        for key in sorted(iterations, key=int):
            times = iterations[key]
            for letter, what in (("F", "fwd"), ("B", "bwd")):
                pairs = zip(times[what + "_start"], times[what + "_end"])
                for microbatch, (start, end) in enumerate(pairs):
                    events.append({
                        "ph": "X", "pid": rank, "tid": 0,
                        "name": f"PP:{rank}{letter}{microbatch}",
                        "ts": (begin + start) * 1e3,
                        "dur": (end - start) * 1e3})
            # Iterations do not overlap, whatever each rank's total time is.
            begin += 100_000.0
        with open(os.path.join(out, f"trace_rank_{rank}.json"), "w",
                  encoding="utf-8") as file:
            json.dump({"traceEvents": events,
                       "distributedInfo": {
                           "rank": rank,
                           "world_size": config["world_size"]}}, file)


if __name__ == "__main__":
    main()
