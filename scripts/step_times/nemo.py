"""NeMo: the tables of Megatron-Bridge and Automodel."""

from step_times.bridge_recipes import COLUMNS, DEFECTS
from step_times.bridge_recipes import deepseek_stages, recipe
from step_times.models import DEEPSEEK_V3, LLAMA_8B, LLAMA_70B, LLAMA_405B
from step_times.words import halved, number, shape

NEMO = {
    "LLAMA3_8B": dict(layers=32, **LLAMA_8B),
    "LLAMA3_70B": dict(layers=80, **LLAMA_70B),
    "LLAMA3.1_405B": dict(layers=126, **LLAMA_405B),
    "DeepSeekV3": dict(layers=61, predicted_tokens=1, **DEEPSEEK_V3),
    "DeepSeekV3 (w/o MTP)": dict(layers=61, **DEEPSEEK_V3),
    "GPT OSS 120B": dict(layers=36, hidden=2880, heads=64, kv_heads=8,
                         head_dim=64, window=128, window_every=2, experts=128,
                         top_k=4, expert_ffn=2880, expert_biases=1, clamped=1,
                         scaled_rotary=1, gated=1, vocab=201088),
    "Qwen3_30B_a3B": dict(layers=48, hidden=2048, heads=32, kv_heads=4,
                          head_dim=128, query_key_norms=1, experts=128, top_k=8,
                          expert_ffn=768, gated=1, vocab=151936),
    "Qwen3_235B_a22B": dict(layers=94, hidden=4096, heads=64, kv_heads=4,
                            head_dim=128, query_key_norms=1, experts=128,
                            top_k=8, expert_ffn=1536, gated=1, vocab=151936),
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


def add_words(row, column, words):
    """Adds the words that a row's column does not have."""
    for name, value in words.items():
        if f" {name}=" not in f" {row[column]}":
            row[column] += f" {name}={value}"
    return row


def nemo(row):
    """The row with the columns of its recipe, in the half of its own."""
    made = converted(row)
    if made is None:
        return None
    key = row["model"], row["gpu"][4:], row["release"].split()[0]
    if key in DEFECTS:
        return None
    if key in COLUMNS:
        made.update({**converted({**row, **COLUMNS[key]}),
                     "split": made["split"]})
    return made


def converted(row):
    model = NEMO.get(row["model"])
    precision = NEMO_PRECISION.get(row["precision"])
    automodel = row["source"].startswith("Automodel")
    section = row["release" if automodel else "section"]
    # Adapters and packed fine-tuning sets do not say what they compute; rows
    # without precision cannot be priced.
    cluster = NEMO_CLUSTER.get(row["gpu"])
    if None in (model, precision, cluster) or "Pre-" not in section:
        return None
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
    seconds = (float(row["step_s"]) if row["step_s"] else
               int(row["gbs"]) * sequence /
               (float(row["tokens_per_s_per_gpu"].split()[0]) * gpus))
    release = "" if automodel else row["release"].split()[0]
    run = " ".join((row["model"], row["precision"].split()[0], row["gpu"],
                    release)).strip()
    made = halved(dict(
        framework="nemo-automodel" if automodel else "megatron-bridge",
        run=run, cluster=cluster, shape=shape(**model),
        layout=shape(tp=tp, pp=pp, vp=number(row["vp"]), cp=cp, ep=ep, dp=dp),
        setup=shape(**setup), microbatch=row["mbs"], global_batch=row["gbs"],
        sequence=sequence, step_ms=round(1e3 * seconds, 1)))
    if automodel:
        return made
    name = row["model"].removesuffix(" (w/o MTP)")
    if name != row["model"]:
        add_words(made, "layout",
                  {"stages": deepseek_stages(pp * number(row["vp"]))})
    return add_words(made, "setup",
                     recipe(name, row["gpu"][4:], precision, release))


SOURCES = {
    "nemo": ("nemo_perf_tables.csv", nemo,
             "NVIDIA-NeMo/Megatron-Bridge @067f987d, docs/performance-summary*"
             ".md and NVIDIA-NeMo/Automodel @36044ad3; Apache-2.0, Copyright "
             "(c) NVIDIA Corporation")}
