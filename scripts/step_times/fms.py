"""fms-fsdp: Llama 2 in PyTorch with full sharding, on IBM's clusters."""

from step_times.words import shape

# fms_fsdp/utils/config_utils.py.
LLAMA_2 = {"7b": dict(layers=32, hidden=4096, heads=32, ffn=11008),
           "13b": dict(layers=40, hidden=5120, heads=40, ffn=13824),
           "34b": dict(layers=48, hidden=8192, heads=64, kv_heads=8, ffn=22016),
           "70b": dict(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672)}
# 400 Gb/s a node of A100, 800 of H100.
CLUSTERS = {"A100": "a100-4nic.json", "H100": "h100-800g.json"}


def fms_fsdp(row):
    # The share of layers that "selective" recomputes is not published.
    if row["checkpointing"] == "selective":
        return None
    # FlashAttention 2 by scaled_dot_product_attention; weights are gathered and
    # gradients reduced in bf16 (fms_fsdp/policies/mixed_precision.py).
    setup = {"attention": "flash2",
             "pointwise": "fused" if row["compile"] == "1" else "eager",
             "sequence_parallel": "no", "sharding": "fsdp",
             "recompute": row["checkpointing"], "precision": "bf16",
             "gradient_bytes": 2}
    # Hybrid sharding: in a node.
    if row["sharding"] == "HSDP":
        setup["optimizer_group"] = 8
    gpus, batch = int(row["num_gpus"]), int(row["batch_size"])
    seconds = batch * 4096 / float(row["tokens_per_s_per_gpu"])
    return dict(
        framework="pytorch-fms", run=f"{row['model']} {row['gpu']} "
        f"{row['sharding']}{' compiled' * (row['compile'] == '1')}",
        cluster=CLUSTERS[row["gpu"]],
        shape=shape(**LLAMA_2[row["model"]], gated=1, vocab=32000),
        layout=f"dp={gpus}", setup=shape(**setup), microbatch=batch,
        global_batch=batch * gpus, sequence=4096,
        step_ms=round(1e3 * seconds, 1))


SOURCES = {
    "fms_fsdp": ("fms_fsdp.csv", fms_fsdp,
                 "foundation-model-stack/fms-fsdp @4ffb9bd and @ed74fd5, "
                 "README.md; Apache-2.0")}
