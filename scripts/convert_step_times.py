#!/usr/bin/env python3
"""Published step times -> the CSV of `pipeloom emulate --against`.

usage: convert_step_times.py SOURCE_DIR OUTPUT_DIR [NAME...]

Reads the tables as their authors published them (one known file name each,
see CONVERTERS) and writes one CSV each with the columns of
docs/validation.md. Rows that the format cannot say (state-space layers,
rows that contradict themselves) are left out and counted on stderr.
"""

import csv
import hashlib
import os
import sys

COLUMNS = ["framework", "run", "cluster", "shape", "layout", "setup",
           "microbatch", "global_batch", "sequence", "step_ms", "peak_gib",
           "split"]


def halved(row):
    """Marks the half of the configurations that constants were chosen on.

    Words that were added later and say more of a model do not count."""
    setup = " ".join(word for word in row["setup"].split()
                     if "dispatch=" not in word)
    known = " ".join(word for word in row["shape"].split()
                     if not word.startswith(("expert_biases=", "clamped=")))
    key = "|".join([row["cluster"], known, row["layout"], setup,
                    str(row["microbatch"]), str(row["sequence"])])
    odd = int(hashlib.md5(key.encode()).hexdigest(), 16) % 2
    return {**row, "split": "fit" if odd else "held-out"}


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


# --- NeMo: Megatron-Bridge and Automodel ------------------------------------

NEMO = {
    "LLAMA3_8B": dict(layers=32, **DGXC["llama3.1 8b"]),
    "LLAMA3_70B": dict(layers=80, **DGXC["llama3.1 70b"]),
    "LLAMA3.1_405B": dict(layers=126, **DGXC["llama3.1 405b"]),
    "DeepSeekV3": dict(layers=61, predicted_tokens=1, **SIMUMAX["deepseekv3"]),
    "DeepSeekV3 (w/o MTP)": dict(layers=61, **SIMUMAX["deepseekv3"]),
    "GPT OSS 120B": dict(layers=36, hidden=2880, heads=64, kv_heads=8,
                         head_dim=64, window=128, window_every=2, experts=128,
                         top_k=4, expert_ffn=2880, expert_biases=1, clamped=1,
                         gated=1, vocab=201088),
    "Qwen3_30B_a3B": dict(layers=48, hidden=2048, heads=32, kv_heads=4,
                          head_dim=128, experts=128, top_k=8, expert_ffn=768,
                          gated=1, vocab=151936),
    "Qwen3_235B_a22B": dict(layers=94, hidden=4096, heads=64, kv_heads=4,
                            head_dim=128, experts=128, top_k=8,
                            expert_ffn=1536, gated=1, vocab=151936),
    "Kimi K2": dict(layers=61, hidden=7168, heads=64, head_dim=192,
                    value_dim=128, rope_dim=64, query_rank=1536, kv_rank=512,
                    ffn=18432, gated=1, experts=384, top_k=8, shared_experts=1,
                    expert_ffn=2048, dense_layers=1, vocab=163840)}
NEMO.update({"Qwen3 MoE 30B": NEMO["Qwen3_30B_a3B"],
             "GPT-OSS 120B": NEMO["GPT OSS 120B"],
             "Llama3 70B": NEMO["LLAMA3_70B"]})
NEMO_CLUSTER = {"DGX-H100": "h100-sxm", "DGX-B200": "b200-sxm",
                "DGX-B300": "b300.json", "DGX-GB200": "gb200-nvl72",
                "DGX-GB300": "gb300-nvl72"}
NEMO_PRECISION = {"BF16": "bf16", "FP8": "fp8", "FP8-CS": "fp8",
                  "FP8-CS (FP8-MX)": "fp8", "FP8-MX": "mxfp8",
                  "MXFP8": "mxfp8", "NVFP4": "nvfp4"}

# How the recipes of Megatron-Bridge (src/megatron/bridge/perf_recipes) send
# tokens, where they differ from the framework's defaults: GPU, model, ep.
NEMO_RECIPES = {
    ("DGX-H100", "Qwen3_235B_a22B", 32): {"dispatch": "experts",
                                          "overlap_dispatch": "yes"},
    ("DGX-B200", "Qwen3_235B_a22B", 8): {"dispatch": "experts"},
    ("DGX-B200", "DeepSeekV3", 32): {"overlap_dispatch": "yes"}}
# Words of the recipes of GPT-OSS in bf16, added to its rows: GPU.
AGAIN = "norms+moe_activations"
GPT_OSS_RECIPES = {
    "GB300": dict(dispatch="experts", graphs="layers"),
    "GB200": dict(dispatch="experts", recompute=AGAIN, overlap_dispatch="yes"),
    "B300": dict(graphs="layers"),
    "B200": dict(dispatch="experts", recompute=AGAIN),
    "H100": dict(dispatch="experts", recompute=AGAIN)}


def with_recipe(row, gpu):
    """Adds the words of the recipe that a row does not have."""
    if "expert_biases=1" in row["shape"] and "precision=bf16" in row["setup"]:
        for name, value in GPT_OSS_RECIPES[gpu].items():
            if f" {name}=" not in row["setup"]:
                row["setup"] += f" {name}={value}"
    return row


def nemo(row):
    model = NEMO.get(row["model"])
    precision = NEMO_PRECISION.get(row["precision"])
    automodel = row["source"].startswith("Automodel")
    section = row["release" if automodel else "section"]
    # Adapters and packed fine-tuning sets do not say what they compute; rows
    # without precision cannot be priced.
    if model is None or precision is None or "Pre-" not in section:
        return None
    number = lambda text: int(text) if text.isdigit() else 1
    tp, pp, cp, ep = (number(row[k]) for k in ("tp", "pp", "cp", "ep"))
    gpus, sequence = int(row["num_gpus"]), int(row["seq"])
    dp = gpus // (tp * pp * cp)
    if automodel and "experts" in model and row["ep"] == "-":
        ep = gpus // pp  # DeepEP, over all GPUs of a stage.
    setup = {"precision": precision, "gradient_bytes": 2,
             "sharding": "fsdp" if number(row["fsdp"]) > 1 else "zero1"}
    if not automodel:
        setup["overlap"] = "all"
        # From 26.06 on, the recipes of racks put the iteration into one graph.
        new = row["release"] >= "26.06" and precision == "mxfp8"
        if "experts" in model and "GB" in row["gpu"] and new:
            setup["graphs"] = "iteration"
        setup.update(NEMO_RECIPES.get((row["gpu"], row["model"], ep), {}))
    seconds = (float(row["step_s"]) if row["step_s"] else
               int(row["gbs"]) * sequence /
               (float(row["tokens_per_s_per_gpu"].split()[0]) * gpus))
    release = "" if automodel else row["release"].split()[0]
    run = " ".join((row["model"], row["precision"].split()[0], row["gpu"],
                    release)).strip()
    made = halved(dict(
        framework="nemo-automodel" if automodel else "megatron-bridge",
        run=run, cluster=NEMO_CLUSTER[row["gpu"]], shape=shape(**model),
        layout=shape(tp=tp, pp=pp, vp=number(row["vp"]), cp=cp, ep=ep, dp=dp),
        setup=shape(**setup), microbatch=row["mbs"], global_batch=row["gbs"],
        sequence=sequence, step_ms=round(1e3 * seconds, 1)))
    return made if automodel else with_recipe(made, row["gpu"][4:])


# --- Megatron-Bridge: verification cards and precisions ---------------------

BRIDGE = {"deepseek-v3": NEMO["DeepSeekV3"],
          "gpt-oss-120b": NEMO["GPT OSS 120B"],
          "qwen3-235b-a22b": NEMO["Qwen3_235B_a22B"],
          "qwen3-30b-a3b": NEMO["Qwen3_30B_a3B"],
          "llama3.1-8b": NEMO["LLAMA3_8B"]}
BRIDGE_GRAPHS = {"full_iteration": "iteration",
                 "transformer_engine": "layers"}


def bridge(row):
    model = BRIDGE.get(row["model"].split()[0])
    if model is None or row.get("evidence", "tuned") != "tuned":
        return None
    overlapped = {"True": "yes", "False": "no"}.get(row.get("a2a_overlap"))
    setup = {"precision": {"fp8_mx": "mxfp8"}.get(row["precision"],
                                                  row["precision"]),
             "gradient_bytes": 2, "sharding": "zero1", "overlap": "all",
             "overlap_dispatch": overlapped,
             "graphs": BRIDGE_GRAPHS.get(row["cuda_graph"])}
    return with_recipe(halved(dict(
        framework="megatron-bridge",
        run=f"{row['model'].split()[0]} {row['precision']} {row['gpu']} card",
        cluster=NEMO_CLUSTER[f"DGX-{row['gpu']}"], shape=shape(**model),
        layout=shape(**{k: row[k] for k in ("tp", "pp", "vp", "cp", "ep",
                                            "dp")}),
        setup=shape(**setup), microbatch=row["micro_batch"],
        global_batch=row["global_batch"], sequence=row["seq"],
        step_ms=round(1e3 * float(row["step_s"]), 1))), row["gpu"])


# --- MLPerf Training --------------------------------------------------------

MLPERF = {
    "gpt3": dict(layers=96, hidden=12288, heads=96, ffn=49152, vocab=51200,
                 tied=1),
    "llama31_405b": dict(layers=126, **DGXC["llama3.1 405b"]),
    "llama31_8b": dict(layers=32, **DGXC["llama3.1 8b"]),
    "llama2_70b_lora": dict(layers=80, **{**DGXC["llama3.1 70b"],
                                          "vocab": 32000}, adapter_rank=16)}
MLPERF_CLUSTER = {
    "H100-SXM-80GB": "h100-sxm", "H200-SXM-141GB": "h200-sxm",
    "H200-NVL-141GB": "h200-nvl.json", "B200": "b200-sxm", "B300": "b300.json",
    "GB200": "gb200-nvl72", "GB300": "gb300-nvl72", "MI300X": "mi300x.json",
    "MI325X": "mi325x.json"}


def mlperf(row):
    """Dense language models."""
    model = MLPERF.get(row["benchmark"])
    cluster = MLPERF_CLUSTER.get(row["gpu"])
    if model is None or cluster is None:
        return None
    number = lambda name: int(row[name]) if row[name].isdigit() else 1
    known = lambda name: row[name] in ("1", "True")
    # Hopper has no 4-bit products; a file of the H200 only says so.
    precision = ("fp8" if row["precision"] == "nvfp4" and "H200" in row["gpu"]
                 else row["precision"])
    # The 4-bit recipes do not rotate operands. That of the 8B rounds at random
    # and scales in two dimensions, which adds no pass over them.
    recipe = {"nvfp4": "nvfp4-plain"}.get(precision, precision)
    # Gradients are reduced in 16 bits; fp8 weights are gathered as such, those
    # that become NVFP4 in 16 bits.
    setup = {"precision": recipe, "gradient_bytes": 2,
             "weight_bytes": 1 if precision == "fp8" else 2,
             "sharding": "zero1"}
    # Transfers of tensor parallelism overlap by default.
    if number("tp") > 1:
        setup["overlap"] = "data" if row["tp_overlap"] == "False" else "all"
    if known("cuda_graph") or "_cg" in row["config_path"]:
        # 405B captures the iteration, the others their layers.
        setup["graphs"] = ("iteration" if row["benchmark"] == "llama31_405b"
                           else "layers")
    if known("fp8_attention"):
        setup["fp8_attention"] = "yes"
    # Devices whose shares of the peak are those of whole trainings have it.
    if row["gpu"].startswith(("H", "B200")):
        setup["straggle"] = 0.015
    words = row["recompute"].split()
    if "layers" in words:  # "full in N layers"
        setup["recompute_layers"] = words[words.index("layers") - 1]
    # Replicas are outside of the pipeline in files named so, and from v5.1 on.
    if number("pp") > 1 and ("dplast" in row["config_path"] or
                             row["round"] >= "v5.1"):
        setup["order"] = "pipeline"
    # One configuration is in one half, whoever submitted it.
    key = "|".join(row[name] for name in (
        "benchmark", "gpu", "num_gpus", "tp", "pp", "vp", "cp", "micro_batch",
        "global_batch")) + precision
    odd = int(hashlib.md5(key.encode()).hexdigest(), 16) % 2
    return dict(
        framework="mlperf-rocm" if row["gpu"].startswith("MI") else "mlperf",
        run=f"{row['benchmark']} {row['num_gpus']}x{row['gpu'].split('-')[0]} "
            f"{row['round']} {row['submitter']}",
        cluster=cluster, shape=shape(**model),
        layout=shape(**{k: number(k) for k in ("tp", "pp", "vp", "cp", "dp")}),
        setup=shape(**setup), microbatch=row["micro_batch"],
        global_batch=row["global_batch"], sequence=row["seq"],
        step_ms=round(1e3 * float(row["step_s"]), 2),
        peak_gib=row["peak_allocated_gib"], split="fit" if odd else "held-out")


# --- LoongForge ------------------------------------------------------------

LOONGFORGE = {
    "llama2_7b": dict(layers=32, hidden=4096, heads=32, ffn=11008, gated=1,
                      vocab=32000),
    "llama3_8b": dict(layers=32, **DGXC["llama3.1 8b"]),
    "qwen3_8b": dict(layers=36, hidden=4096, heads=32, kv_heads=8,
                     head_dim=128, ffn=12288, gated=1, vocab=151936),
    "qwen3_14b": dict(layers=40, hidden=5120, heads=40, kv_heads=8,
                      head_dim=128, ffn=17408, gated=1, vocab=151936)}


# Images of a sample, by phase: their number and size are not stated and assumed.
# Samples of fine-tuning are packed.
LOONGFORGE_IMAGES = {
    ("qwen2.5_vl_7b", "pretrain"): ("qwen2.5-vl-7b", 1, "448x448", 256),
    ("qwen2.5_vl_7b", "sft"): ("qwen2.5-vl-7b", 8, "448x448", 8 * 256)}


def loongforge(row):
    model = LOONGFORGE.get(row["model"])
    images = LOONGFORGE_IMAGES.get((row["model"], row["phase"]))
    if not row["gpu"].startswith("A800") or (model or images) is None:
        return None  # A model without description, or an unnamed chip.
    setup = {"precision": row["precision"], "sharding": "zero1",
             "sequence_parallel": row["sequence_parallel"],
             "recompute": "full" if row["recompute"].startswith("full")
                          else "none"}
    # Sequences that are not packed have their mean length.
    tokens = int(row["tokens_per_step"]) // int(row["global_batch"])
    layout = {k: row[k] for k in ("tp", "pp", "vp", "cp", "ep", "dp")}
    if images:
        name, count, size, image_tokens = images
        model = dict(model=name, images=count, image=size)
        tokens -= image_tokens
        chunks = int(row["vp"])
        layers = [int(n) // chunks
                  for n in row["llm_layers_by_stage"].split(",")]
        layout["stages"] = "+".join(map(str, layers * chunks))
    return dict(
        framework="loongforge", run=f"{row['model']} {row['phase']} A800",
        cluster="a800-sxm", shape=shape(**model), layout=shape(**layout),
        setup=shape(**setup), microbatch=row["micro_batch"],
        global_batch=row["global_batch"],
        sequence=min(tokens, int(row["seq"])), step_ms=row["step_ms"],
        peak_gib=round(float(row["peak_allocated_mb_mean_over_ranks"]) / 1024,
                       2) if images else None)


# --- FlagPerf --------------------------------------------------------------

FLAGPERF = {
    "llama3-8b": dict(layers=32, **DGXC["llama3.1 8b"]),
    "llama3-70b": dict(layers=80, **DGXC["llama3.1 70b"]),
    "llama2-70b": dict(layers=80, hidden=8192, heads=64, kv_heads=8,
                       ffn=28672, gated=1, vocab=32000),
    "mixtral-8x7b": dict(layers=32, hidden=4096, heads=32, kv_heads=8,
                         experts=8, top_k=2, expert_ffn=14336, gated=1,
                         vocab=32000)}


def flagperf(row):
    model = FLAGPERF.get(row["model"])
    # Products in fp32, and other frameworks than Megatron, are not described.
    if model is None or "egatron" not in row["framework"] or \
            row["precision"] == "fp32":
        return None
    setup = {"precision": "fp8" if "fp8" in row["precision"] else "bf16",
             "sharding": row["sharding"] or "none",
             "recompute": "selective" if "selective" in row["recompute"]
                          else "none"}
    return dict(
        framework="megatron", run=f"{row['model']} {row['gpu']}",
        cluster=row["gpu"].split("-")[0].lower() + "-sxm",
        shape=shape(**model),
        layout=shape(**{k: row[k] for k in ("tp", "pp", "vp", "cp", "ep",
                                            "dp")}),
        setup=shape(**setup), microbatch=row["micro_batch"],
        global_batch=row["global_batch"], sequence=row["seq"],
        step_ms=round(1e3 * float(row["step_s"]), 1))


# --- PipeMorph -------------------------------------------------------------

# 1F1B sends and receives in one batch, zero bubble one by one. Neither uses
# fused attention. The vocabulary is not stated: GPT-2's, padded.
PIPEMORPH = {"1f1b": ("1f1b", "batched"),
             "zero-bubble (automatic, memory limit 2p)": ("zb-2p", "single")}


def pipemorph(row):
    if row["schedule"] not in PIPEMORPH:
        return None  # Transfers by the host.
    schedule, p2p = PIPEMORPH[row["schedule"]]
    setup = {"attention": "unfused", "sharding": "none", "overlap": "none",
             "host_us": 30, "schedule": schedule, "p2p": p2p}
    link = int(row["slow_links"].split("_")[0])
    delay = int(row["injected_delay_ms"])

    def run(name, words, step_ms):
        return dict(
            framework="pipemorph-" + schedule, run=f"{row['model']} {name}",
            cluster="h800-sxm",
            shape=shape(layers=row["layers"], hidden=row["hidden"],
                        heads=row["heads"], ffn=4 * int(row["hidden"]),
                        vocab=50304),
            layout=shape(tp=row["tp"], pp=row["pp"], dp=row["dp"]),
            setup=shape(**setup, **words), microbatch=row["micro_batch"],
            global_batch=row["global_batch"], sequence=row["seq"],
            step_ms=step_ms)

    rows = [run(f"{delay} ms", {"delay_link": link, "delay_ms": delay},
                row["delayed_step_ms"])]
    if delay == 10:
        rows.insert(0, run("healthy", {}, row["healthy_step_ms"]))
    return rows


# --- Primus ----------------------------------------------------------------

PRIMUS = {"1f1b": "1f1b", "interleaved": "interleaved",
          "zero-bubble heuristic zbb": "zb-h1", "zbv": "zb-v",
          "v-half": "v-half", "v-min": "v-min"}


def primus(row):
    schedule = PRIMUS.get(row["schedule"])
    if schedule is None or row["model"] != "llama2-7b":
        return None
    # Neither batch nor length is stated. With 32 microbatches, interleaved
    # takes closest to the measured share of 1F1B. Only ratios mean anything.
    batch, length = 32, 4096
    chunks = 1 if schedule in ("1f1b", "zb-h1") else row["vp"]
    seconds = batch * length / (8 * float(row["tokens_per_s_per_gpu"]))
    return dict(
        framework="primus", run=f"Llama2-7B {schedule}",
        cluster="mi300x.json",
        shape=shape(layers=32, hidden=4096, heads=32, ffn=11008, gated=1,
                    vocab=32000),
        layout=shape(tp=row["tp"], pp=row["pp"], vp=chunks),
        setup=shape(schedule=schedule), microbatch=1, global_batch=batch,
        sequence=length, step_ms=round(1e3 * seconds, 1))


# --- torchtitan -----------------------------------------------------------

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
    gpus = int(row["num_gpus"])
    seconds = local * int(row["seq"]) * dp / (float(row["tps_per_gpu"]) * gpus)
    return dict(
        framework="torchtitan", run=f"{row['model']} {row['schedule']}",
        cluster="h100-96g.json", shape=shape(layers=layers, **model),
        layout=f"tp={tp} pp={pp} cp={cp} dp={dp}", setup=shape(**setup),
        microbatch=micro, global_batch=local * dp, sequence=row["seq"],
        step_ms=round(1e3 * seconds, 1), peak_gib=row["memory_gib"])


# --- cudnn-frontend -------------------------------------------------------

LLAMA32_KERNELS = {"CUDNN_ATTENTION": "fused", "FLASH_ATTENTION": "flash2",
                   "EFFICIENT_ATTENTION": "efficient"}


def llama32(device):
    def convert(row):
        setup = {"attention": LLAMA32_KERNELS[row["backend"]],
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
    "nemo": ("nemo_perf_tables.csv", nemo,
             "NVIDIA-NeMo/Megatron-Bridge @067f987d, docs/performance-summary*"
             ".md and NVIDIA-NeMo/Automodel @36044ad3; Apache-2.0, Copyright "
             "(c) NVIDIA Corporation"),
    "bridge_cards": ("bridge_verification_cards.csv", bridge,
                     "NVIDIA-NeMo/Megatron-Bridge @067f987d, "
                     "examples/model_verification_cards; Apache-2.0, "
                     "Copyright (c) NVIDIA Corporation"),
    "bridge_precision": ("bridge_precision_ladder.csv", bridge,
                         "NVIDIA-NeMo/Megatron-Bridge @067f987d, "
                         "tutorials/training; Apache-2.0, Copyright (c) "
                         "NVIDIA Corporation"),
    "mlperf": ("mlperf_training.csv", mlperf,
               "mlcommons/training_results_v3.1 to v5.1 and "
               "Richardyu114/training_results_v6.0 @eabf23a07b2a, results of "
               "the submitters named in each row; Apache-2.0"),
    "loongforge": ("loongforge_a800.csv", loongforge,
                   "baidu-baige/LoongForge @c6275661846a, tests/llm_vlm; "
                   "Apache-2.0"),
    "flagperf": ("flagperf.csv", flagperf,
                 "FlagOpen/FlagPerf @1b5a0303, training/nvidia; Apache-2.0"),
    "pipemorph": ("pipemorph_delay.csv", pipemorph,
                  "wutianyuan1/PipeMorph @7ff0dc66, experiments/"
                  "increasing-delay; BSD-3-Clause of Megatron-LM, Copyright "
                  "(c) NVIDIA Corporation"),
    "primus": ("primus_schedules.csv", primus,
               "AMD-AGI/Primus @fd1eeabb, docs_deprecated/tech_blogs/"
               "primus_pipeline; MIT, Copyright (c) Advanced Micro Devices, "
               "Inc."),
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
        converted = []
        for made in map(convert, rows):  # A row, a list of rows or None.
            converted += made if isinstance(made, list) else [made] * bool(made)
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
