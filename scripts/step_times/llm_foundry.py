"""llm-foundry: MPT models in PyTorch with full sharding."""

from step_times.words import shape

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


SOURCES = {
    "llm_foundry": ("llm_foundry_mpt_throughput.csv", llm_foundry,
                    "mosaicml/llm-foundry @8c8dd48f, scripts/train/"
                    "benchmarking; Apache-2.0")}
