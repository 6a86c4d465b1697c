#!/usr/bin/env python3
"""Plans a job under every power-of-two layout of its GPUs and ranks them.

    scripts/rank_plans.py BUILD_DIR/cli/pipeloom [JOB] [options]

Every microbatch has the same images and text, so that layouts differ by
nothing but themselves. The default is the experiment of the DIP paper
(arXiv:2504.14145v2, evaluation of the simulator): VLM-M on 64 H800, DP, PP and
TP at most 8, where DP8 TP2 PP4 is the best plan with an MFU of 29.7 %. The
paper gives neither the batch nor the schedule.
"""
import argparse
import json
import os
import subprocess
import tempfile


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("pipeloom")
    parser.add_argument("job", nargs="?", default="dip-vlm-m")
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--most", type=int, default=8, help="of dp, tp and pp")
    parser.add_argument("--microbatches", type=int, default=64,
                        help="of a step, over all replicas")
    parser.add_argument("--images", type=int, default=48,
                        help="of a microbatch; a multiple of --samples")
    parser.add_argument("--samples", type=int, default=8,
                        help="of a microbatch")
    parser.add_argument("--image-tokens", type=int, default=169,
                        help="in the language model, of one image")
    parser.add_argument("--tokens", type=int, default=8192,
                        help="of a microbatch")
    parser.add_argument("--schedule", default="pipeloom")
    parser.add_argument("--evaluations", type=int, default=50)
    parser.add_argument("--keep", action="store_true",
                        help="recompute nothing: what does not fit has no plan")
    return parser.parse_args()


def main():
    args = parse_args()
    data = os.path.join(os.path.dirname(__file__), "..", "workloads")
    with open(os.path.join(data, "jobs", args.job + ".json")) as f:
        job = json.load(f)
    if args.keep:
        job["training"]["memory_strategies"] = ["MEMORY_STRATEGY_KEEP"]
    images = args.images // args.samples
    text = max(args.tokens // args.samples - images * args.image_tokens, 1)
    sample = {"text_tokens": text, "images": [[728, 728]] * images}
    sizes = [1 << i for i in range(args.most.bit_length())
             if 1 << i <= args.most]
    plans = []
    with tempfile.TemporaryDirectory() as folder:
        batch = os.path.join(folder, "batch.jsonl")
        with open(batch, "w") as f:
            for _ in range(args.microbatches * args.samples):
                f.write(json.dumps(sample) + "\n")
        for dp in sizes:
            for tp in sizes:
                for pp in sizes:
                    if dp * tp * pp != args.gpus:
                        continue
                    job["parallel"] = {"dp": dp, "tp": tp, "pp": pp}
                    job["training"]["microbatches"] = args.microbatches // dp
                    path = os.path.join(folder, "job.json")
                    with open(path, "w") as f:
                        json.dump(job, f)
                    run = subprocess.run(
                        [args.pipeloom, "plan", path, "--batch", batch,
                         "--strategy", args.schedule, "--replicas", "1",
                         "--evaluations", str(args.evaluations),
                         "--threads", "1", "--format", "json",
                         "--partition", "rule",
                         "--data-dir", data],
                        capture_output=True, text=True)
                    name = f"dp {dp} tp {tp} pp {pp}"
                    if run.returncode != 0:
                        plans.append((float("inf"), name,
                                      run.stderr.strip()[:100]))
                        continue
                    step = json.loads(run.stdout)["steps"][0]
                    peak = max(step["peak_bytes"]) / 2**30
                    plans.append((step["step_time_us"] / 1e6, name,
                                  f"MFU {100 * step['mfu']:4.1f} %, bubble "
                                  f"{100 * step['bubble_ratio']:4.1f} %, peak "
                                  f"{peak:4.1f} GiB"))
    for rank, (seconds, name, text) in enumerate(sorted(plans), 1):
        print(f"{rank:2d}  {name:15s} {seconds:7.3f} s  {text}")


if __name__ == "__main__":
    main()
