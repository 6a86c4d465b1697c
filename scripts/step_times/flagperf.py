"""FlagPerf: Megatron and FlagScale."""

from step_times.llava import CAPTION, llava_row
from step_times.models import LLAMA_8B, LLAMA_70B
from step_times.words import shape

FLAGPERF = {
    "llama3-8b": dict(layers=32, **LLAMA_8B),
    "llama3-70b": dict(layers=80, **LLAMA_70B),
    "llama2-70b": dict(layers=80, hidden=8192, heads=64, kv_heads=8,
                       ffn=28672, gated=1, vocab=32000),
    "mixtral-8x7b": dict(layers=32, hidden=4096, heads=32, kv_heads=8,
                         experts=8, top_k=2, expert_ffn=14336, gated=1,
                         vocab=32000)}


def flagperf(row):
    if row["model"].startswith("llava1.5-7b") and row["sharding"] == "zero2":
        # Pre-training, by the tokens of samples a second and GPU.
        tokens = 256 * (576 + CAPTION)
        return llava_row("7B", "A800", "a800-sxm", tokens / (
            8 * float(row["tokens_per_s_per_gpu"])))
    model = FLAGPERF.get(row["model"])
    # Products in fp32, and other frameworks than Megatron, are not described.
    if model is None or "egatron" not in row["framework"] or \
            row["precision"] == "fp32":
        return None
    # Scripts of Llama 3 recompute nothing, whatever their READMEs list, and
    # leave biases of linear layers and dropout on (pretrain_llama3.sh).
    llama3 = "llama3" in row["model"]
    # Neither the loss is fused nor do gathers of weights overlap
    # (pretrain_llama3.sh, megatron_main.sh).
    setup = {"loss": "fp32", "weight_gathers": "wait",
             "host_us": 30,  # As of all Megatron.
             "precision": "fp8" if "fp8" in row["precision"] else "bf16",
             "sharding": row["sharding"] or "none",
             "recompute": "selective" if "selective" in row["recompute"]
                          and not llama3 else "none"}
    # The README of each case names FlashAttention 2, and its script has
    # --use-flash-attn. Ampere has no other kernel.
    if row["gpu"].startswith("H"):
        setup["attention"] = "flash2"
    parts = {"biases": 1, "dropout": 1} if llama3 else {}
    return dict(
        framework="megatron", run=f"{row['model']} {row['gpu']}",
        cluster=row["gpu"].split("-")[0].lower() + "-sxm",
        shape=shape(**model, **parts),
        layout=shape(**{k: row[k] for k in ("tp", "pp", "vp", "cp", "ep",
                                            "dp")}),
        setup=shape(**setup), microbatch=row["micro_batch"],
        global_batch=row["global_batch"], sequence=row["seq"],
        step_ms=round(1e3 * float(row["step_s"]), 1))


SOURCES = {
    "flagperf": ("flagperf.csv", flagperf,
                 "FlagOpen/FlagPerf @1b5a0303, training/nvidia; Apache-2.0")}
