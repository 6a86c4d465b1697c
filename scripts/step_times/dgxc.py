"""NVIDIA's dgxc-benchmarking: NeMo on H100 and GB200."""

from step_times.models import LLAMA_8B, LLAMA_70B, LLAMA_405B
from step_times.words import shape

DGXC = {
    "llama3.1 8b": LLAMA_8B,
    "llama3.1 70b": LLAMA_70B,
    "llama3.1 405b": LLAMA_405B,
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


SOURCES = {
    "dgxc": ("dgxc_benchmarking.csv", dgxc,
             "NVIDIA/dgxc-benchmarking v25.04, v25.05; MIT, Copyright (c) "
             "NVIDIA Corporation")}
