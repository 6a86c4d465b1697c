"""cudnn-frontend: Llama 3.2 1B by kernel of attention."""

from step_times.words import shape

LLAMA32_KERNELS = {"CUDNN_ATTENTION": "fused", "FLASH_ATTENTION": "flash2",
                   "EFFICIENT_ATTENTION": "efficient"}


def llama32(device):
    def convert(row):
        setup = {"attention": LLAMA32_KERNELS[row["backend"]],
                 "pointwise": "eager", "sharding": "none",
                 "precision": "bf16",
                 # A loss on the logits in 16 bits; SGD without momentum.
                 "loss": "fused", "optimizer_bytes": "0"}
        return dict(
            framework="llama32-sdpa", run=f"{row['backend']} {device}",
            cluster=f"{device}-sxm",
            shape=shape(layers=16, hidden=2048, heads=32, kv_heads=8,
                        ffn=8192, gated=1, tied=1, vocab=128256),
            layout="dp=1", setup=shape(**setup), microbatch=row["batch_size"],
            global_batch=row["batch_size"], sequence=row["seq_len"],
            step_ms=round(1e3 * float(row["time"]), 3))
    return convert


SOURCES = {
    "llama32_h200": ("llama32_1b_training_h200.csv", llama32("h200"),
                     "NVIDIA/cudnn-frontend @3929da2e; MIT"),
    "llama32_b200": ("llama32_1b_training_b200.csv", llama32("b200"),
                     "NVIDIA/cudnn-frontend @3929da2e; MIT")}
