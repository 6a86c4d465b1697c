"""torchtitan on H100, with peak memory."""

from step_times.dgxc import DGXC
from step_times.words import shape

# Schedules with several stages a rank, of which there are two by default
# (torchtitan/distributed/pipeline_parallel.py); words of a table for each.
SEVERAL_STAGES = {"interleaved1f1b": "interleaved", "zbvzerobubble": "zb-v"}


def torchtitan(row):
    model = DGXC.get(row["model"].lower().replace("-", " "))
    if model is None or not row["gpu"].startswith("H100"):
        return None
    # PyTorch chose FlashAttention-2 on Hopper in the releases of these runs.
    layers = {4096: 32, 8192: 80, 16384: 126}[model["hidden"]]
    dp, pp, cp, tp = (int(row[k]) for k in ("fsdp", "pp", "cp", "tp"))
    local = int(row["local_bs"])
    # With a pipeline, the local batch is cut into microbatches of one sequence.
    micro = 1 if pp > 1 else local
    setup = {"attention": "flash2",
             "pointwise": "fused" if row["compile"] == "1" else "eager",
             "sequence_parallel": "yes",
             "overlap": "all" if row["async_tp"] == "1" else "data",
             "sharding": "fsdp", "gradient_bytes": 4,
             "recompute": "full" if row["ac"] == "full" else "selective",
             "precision": "fp8" if row["float8"] == "1" else "bf16"}
    schedule = SEVERAL_STAGES.get(row["schedule"].lower())
    if schedule:
        setup["schedule"] = schedule
    gpus = int(row["num_gpus"])
    seconds = local * int(row["seq"]) * dp / (float(row["tps_per_gpu"]) * gpus)
    return dict(
        framework="torchtitan", run=f"{row['model']} {row['schedule']}",
        cluster="h100-96g.json", shape=shape(layers=layers, **model),
        layout=shape(tp=tp, pp=pp, vp=schedule and 2, cp=cp, dp=dp),
        setup=shape(**setup),
        microbatch=micro, global_batch=local * dp, sequence=row["seq"],
        step_ms=round(1e3 * seconds, 1), peak_gib=row["memory_gib"])


SOURCES = {
    "torchtitan": ("torchtitan.csv", torchtitan,
                   "pytorch/torchtitan benchmarks; BSD-3-Clause, Copyright "
                   "(c) Meta Platforms, Inc.")}
