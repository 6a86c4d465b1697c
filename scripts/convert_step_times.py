#!/usr/bin/env python3
"""Published step times -> the CSV of `pipeloom emulate --against`.

usage: convert_step_times.py SOURCE_DIR OUTPUT_DIR [NAME...]

Reads the tables as their authors published them (one known file name each,
see CONVERTERS) and writes one CSV each with the columns of
docs/validation.md. Rows that the format cannot say (state-space layers,
rows that contradict themselves) are left out and counted on stderr.
"""

import csv
import os
import sys

COLUMNS = ["framework", "run", "cluster", "shape", "layout", "setup",
           "microbatch", "global_batch", "sequence", "step_ms", "peak_gib",
           "split"]


def shape(**values):
    return " ".join(f"{k}={v}" for k, v in values.items() if v)


def ceil_to(value, multiple):
    return -(-value // multiple) * multiple


# --- llm-foundry ----------------------------------------------------------

MPT = {  # hidden, layers, heads
    "125m": (768, 12, 12), "350m": (1024, 24, 16), "760m": (1536, 24, 12),
    "1b": (2048, 24, 16), "3b": (2560, 32, 20), "7b": (4096, 32, 32),
    "13b": (5120, 40, 40), "30b": (7168, 48, 56), "70b": (8192, 80, 64)}
MPT_CLUSTER = {"h100_80gb": "h100-sxm", "a100_80gb": "a100-sxm",
               "a100_40gb": "a100-40g.json"}


def llm_foundry(row):
    gpus = int(row["# GPUs"])
    hidden, layers, heads = MPT[row["Model"]]
    pure = row["MP Mode"] == "PURE"
    setup = {
        "attention": "flash1", "pointwise": "eager", "sharding": "fsdp",
        "gradient_bytes": 2 if pure else 4,
        "recompute": "full" if row["Activation Checkpointing"] == "True"
                     else "none",
        "precision": "fp8" if "FP8" in row["section"] else "bf16"}
    tokens = int(row["GlobalBatchSize (T)"])
    sequence = int(row["SeqLen (T)"])
    return dict(
        framework="llm-foundry", run=f"{row['Model']} {row['GPU']}",
        cluster=MPT_CLUSTER[row["GPU"]],
        shape=shape(layers=layers, hidden=hidden, heads=heads, ffn=4 * hidden,
                    vocab=50368),
        layout=f"dp={gpus}", setup=shape(**setup),
        microbatch=int(row["MicroBatchSize"]),
        global_batch=tokens // sequence, sequence=sequence,
        step_ms=round(1e3 * tokens / float(row["Throughput (T/s)"]), 1))


# --- vTrain ---------------------------------------------------------------

def vtrain(single):
    def convert(row):
        hidden, tp = int(row["hidden size"]), int(row["tensor parallelism"])
        # The vocabulary is 50257; with several GPUs it is padded to a multiple
        # of 128 for each.
        vocab = 50257 if tp == 1 else ceil_to(50257, 128 * tp)
        dp, pp = row["data parallelism"], row["pipeline parallelism"]
        return dict(
            framework="vtrain-single" if single else "vtrain-multi",
            run=f"{row['# layers']}x{hidden}", cluster="a100-vtrain.json",
            shape=shape(layers=row["# layers"], hidden=hidden,
                        heads=row["attention heads"], ffn=4 * hidden,
                        vocab=vocab),
            layout=f"tp={tp} pp={pp} dp={dp}",
            setup="attention=unfused pointwise=eager sequence_parallel=no "
                  "overlap=none recompute=full precision=fp16 gradient_bytes=2 "
                  "sharding=none" + (" scalar=host" if single
                                      else " host_us=30"),
            microbatch=row["micro batch"], global_batch=row["global batch"],
            sequence=row["sequence length"],
            step_ms=round(float(row["iteration time (ms)"]), 3))
    return convert


# --- SimuMax --------------------------------------------------------------

SIMUMAX = {
    "llama3-70b": dict(hidden=8192, heads=64, kv_heads=8, ffn=28672, gated=1,
                       vocab=128256),
    "llama3-405b": dict(hidden=16384, heads=128, kv_heads=16, ffn=53248,
                        gated=1, vocab=128256),
    "deepseekv2": dict(hidden=5120, heads=128, head_dim=192, value_dim=128,
                       rope_dim=64, query_rank=1536, kv_rank=512, ffn=12288,
                       gated=1, experts=160, top_k=6, shared_experts=2,
                       expert_ffn=1536, dense_layers=1, vocab=102400),
    "deepseekv3": dict(hidden=7168, heads=128, head_dim=192, value_dim=128,
                       rope_dim=64, query_rank=1536, kv_rank=512, ffn=18432,
                       gated=1, experts=256, top_k=8, shared_experts=1,
                       expert_ffn=2048, dense_layers=1, vocab=129280)}


def simumax(row):
    setup = {"attention": "fused", "pointwise": "eager",
             "sequence_parallel": "yes", "overlap": "none",
             "sharding": "zero1", "gradient_bytes": 4, "precision": "bf16"}
    dp = int(row["dp"])
    return dict(
        framework="megatron-simumax", run=row["case"],
        cluster="b200-simumax.json",
        shape=shape(layers=row["layers"], **SIMUMAX[row["model"]]),
        layout=f"tp={row['tp']} pp={row['pp']} cp={row['cp']} ep={row['ep']} "
               f"dp={dp}",
        setup=shape(**setup), microbatch=1,
        global_batch=int(row["microbatches"]) * dp, sequence=row["seq"],
        step_ms=row["real_ms"], peak_gib=row["real_alloc_gib"])


# --- NVIDIA dgxc-benchmarking ---------------------------------------------

DGXC = {
    "llama3.1 8b": dict(hidden=4096, heads=32, kv_heads=8, ffn=14336, gated=1,
                        vocab=128256),
    "llama3.1 70b": dict(hidden=8192, heads=64, kv_heads=8, ffn=28672,
                         gated=1, vocab=128256),
    "llama3.1 405b": dict(hidden=16384, heads=128, kv_heads=8, ffn=53248,
                          gated=1, vocab=128256),
    "nemotron4 15b": dict(hidden=6144, heads=48, kv_heads=8, ffn=24576,
                          vocab=256000),
    "nemotron4 340b": dict(hidden=18432, heads=96, head_dim=192, kv_heads=8,
                           ffn=73728, vocab=256000),
    "grok1 314b": dict(hidden=6144, heads=48, kv_heads=8, experts=8, top_k=2,
                       expert_ffn=32768, gated=1, vocab=131072)}


def dgxc(row):
    words = row["title"].lower().replace("llama 3.1", "llama3.1").split()
    model = DGXC.get(" ".join(words[:2]))
    if model is None or row["gpu"] not in ("H100", "GB200"):
        return None
    if not 0.97 < float(row["check_tokens_ratio"] or 1) < 1.03:
        return None  # Tokens per second and step time contradict each other.
    number = lambda name: int(row[name]) if row[name].isdigit() else 1
    if "nemotron4 340b" in " ".join(words) and row["vp"] == "NA":
        row["vp"] = "12"  # According to the next release, for the same runs.
    setup = {"attention": "fused", "pointwise": "fused",
             "sequence_parallel": "yes", "overlap": "all",
             "sharding": "zero1", "gradient_bytes": 4,
             "precision": "fp8" if " FP8" in row["title"] else "bf16"}
    return dict(
        framework="nemo", run=f"{row['title']} {row['gpu']} {row['ref']}",
        cluster="h100-sxm" if row["gpu"] == "H100" else "gb200-nvl72",
        shape=shape(layers=row["layers"], **model),
        layout=" ".join(f"{k}={number(k)}" for k in
                        ("tp", "pp", "vp", "cp", "ep", "dp")),
        setup=shape(**setup), microbatch=row["mbs"], global_batch=row["gbs"],
        sequence=row["seq"], step_ms=round(1e3 * float(row["step_s"]), 1))


# --- torchtitan -----------------------------------------------------------

def torchtitan(row):
    model = DGXC.get(row["model"].lower().replace("-", " "))
    if model is None or not row["gpu"].startswith("H100"):
        return None
    layers = {4096: 32, 8192: 80, 16384: 126}[model["hidden"]]
    dp, pp, cp, tp = (int(row[k]) for k in ("fsdp", "pp", "cp", "tp"))
    local = int(row["local_bs"])
    # With a pipeline, the local batch is cut into microbatches of one sequence.
    micro = 1 if pp > 1 else local
    setup = {"attention": "fused",
             "pointwise": "fused" if row["compile"] == "1" else "eager",
             "sequence_parallel": "yes",
             "overlap": "all" if row["async_tp"] == "1" else "data",
             "sharding": "fsdp", "gradient_bytes": 4,
             "recompute": "full" if row["ac"] == "full" else "selective",
             "precision": "fp8" if row["float8"] == "1" else "bf16"}
    gpus = int(row["num_gpus"])
    seconds = local * int(row["seq"]) * dp / (float(row["tps_per_gpu"]) * gpus)
    return dict(
        framework="torchtitan", run=f"{row['model']} {row['schedule']}",
        cluster="h100-96g.json", shape=shape(layers=layers, **model),
        layout=f"tp={tp} pp={pp} cp={cp} dp={dp}", setup=shape(**setup),
        microbatch=micro, global_batch=local * dp, sequence=row["seq"],
        step_ms=round(1e3 * seconds, 1), peak_gib=row["memory_gib"])


# --- cudnn-frontend -------------------------------------------------------

def llama32(device):
    def convert(row):
        setup = {"attention": "fused" if "CUDNN" in row["backend"]
                              else "flash2",
                 "pointwise": "eager", "sharding": "none",
                 "precision": "bf16"}
        return dict(
            framework="llama32-sdpa", run=f"{row['backend']} {device}",
            cluster=f"{device}-sxm",
            shape=shape(layers=16, hidden=2048, heads=32, kv_heads=8,
                        ffn=8192, gated=1, tied=1, vocab=128256),
            layout="dp=1", setup=shape(**setup), microbatch=row["batch_size"],
            global_batch=row["batch_size"], sequence=row["seq_len"],
            step_ms=round(1e3 * float(row["time"]), 3))
    return convert


CONVERTERS = {
    # output: (source file, row converter, origin)
    "llm_foundry": ("llm_foundry_mpt_throughput.csv", llm_foundry,
                    "mosaicml/llm-foundry @8c8dd48f, scripts/train/"
                    "benchmarking; Apache-2.0"),
    "vtrain_multi": ("vtrain_ground_truth_multi.csv", vtrain(False),
                     "VIA-Research/vTrain @f8dda847; MIT-style, Copyright (c) "
                     "KAIST VIA Research Group"),
    "vtrain_single": ("vtrain_ground_truth_single.csv", vtrain(True),
                      "VIA-Research/vTrain @f8dda847; MIT-style, Copyright "
                      "(c) KAIST VIA Research Group"),
    "simumax_b200": ("simumax_e2e_b200_measured.csv", simumax,
                     "MooreThreads/SimuMax @4dcaae51; Apache-2.0"),
    "dgxc": ("dgxc_benchmarking.csv", dgxc,
             "NVIDIA/dgxc-benchmarking v25.04, v25.05; MIT, Copyright (c) "
             "NVIDIA Corporation"),
    "torchtitan": ("torchtitan.csv", torchtitan,
                   "pytorch/torchtitan benchmarks; BSD-3-Clause, Copyright "
                   "(c) Meta Platforms, Inc."),
    "llama32_h200": ("llama32_1b_training_h200.csv", llama32("h200"),
                     "NVIDIA/cudnn-frontend @3929da2e; MIT"),
    "llama32_b200": ("llama32_1b_training_b200.csv", llama32("b200"),
                     "NVIDIA/cudnn-frontend @3929da2e; MIT"),
}


def main(arguments):
    if len(arguments) < 2:
        sys.exit(__doc__)
    source, output = arguments[:2]
    for name in arguments[2:] or CONVERTERS:
        file, convert, origin = CONVERTERS[name]
        path = os.path.join(source, file)
        if not os.path.exists(path):
            print(f"{name}: no {file}", file=sys.stderr)
            continue
        with open(path, newline="") as f:
            rows = list(csv.DictReader(f))
        converted = [c for c in map(convert, rows) if c is not None]
        with open(os.path.join(output, name + ".csv"), "w", newline="") as f:
            f.write(f"# Measured step times. From {origin}.\n"
                    f"# Changed: columns and units (docs/validation.md), by "
                    f"scripts/convert_step_times.py.\n")
            writer = csv.DictWriter(f, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(converted)
        print(f"{name}: {len(converted)} of {len(rows)} rows",
              file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
