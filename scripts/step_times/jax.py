"""JAX-Toolbox: language models of PaxML, vision transformers of Rosetta.

T5 (two stacks of different lengths, cross-attention to text) and Imagen's
U-Nets (configurations not public in full) are left out."""

from step_times.words import shape

# The shapes of paxml/contrib/gpu/scripts_gpu/configs.py. Tokens are looked up as
# a product with one-hot rows (EMBEDDING_LOOKUP_STYLE); the GPTs have biases
# (USE_BIAS, use_bias). XLA pads the width of products to a multiple of 8.
PAX = {
    "gpt-126M": dict(layers=12, hidden=768, heads=12, ffn=3072, vocab=50304,
                     tied=1, one_hot=1, biases=1),
    "gpt-5B": dict(layers=24, hidden=4096, heads=32, ffn=16384, vocab=50304,
                   tied=1, one_hot=1, biases=1),
    "gpt-175B": dict(layers=96, hidden=12288, heads=96, ffn=49152, vocab=50264,
                     tied=1, one_hot=1, biases=1),
    "llama2-7b": dict(layers=32, hidden=4096, heads=32, ffn=11008, gated=1,
                      vocab=32000)}
# Recomputed: results that are no products with weights
# (SAVE_DOT_WITH_NO_BATCH_DIM); nothing without repeated layers
# (USE_REPEATED_LAYER of run_llama_boolq.sh is False); all of the 175B, whose
# products would not fit.
PAX_RECOMPUTE = {"gpt-126M": "none", "llama2-7b": "none", "gpt-175B": "full"}


# XLA makes several kernels where TransformerEngine has one: the mean, variance
# and result of a norm, four for its gradient, and the biases of queries, keys
# and values and their sums.
BY_XLA = "xla"


def pax(row):
    model = PAX.get(row["model"])
    if model is None or "PaxML" not in row["framework"]:
        return None
    # TransformerEngine's, or XLA's of cuDNN: the container enables both, and
    # only the 126M was measured without (README.md: Flash Attention, Configs).
    fused = row["model"] != "gpt-126M"
    setup = {"attention": "fused" if fused else "unfused",
             "precision": row["precision"].split()[0],
             "sharding": "fsdp" if "fsdp" in row["sharding"] else "none",
             "gradient_bytes": 2,
             "recompute": PAX_RECOMPUTE.get(
                 row["model"], "core_attention+norms+activations")}
    if "TE" not in row["precision"]:
        setup["pointwise"] = BY_XLA
    gpu = row["gpu"].split("-")[0]
    return dict(
        framework="paxml", run=f"{row['model']} {row['num_gpus']}x{gpu} "
        f"{row['precision']}", cluster=gpu.lower() + "-sxm",
        shape=shape(**model), layout=shape(dp=row["dp"]), setup=shape(**setup),
        microbatch=row["micro_batch"], global_batch=row["global_batch"],
        sequence=row["seq"], step_ms=round(1e3 * float(row["step_s"]), 2))


def vit(row):
    if not row["model"].startswith("vit-g/14"):
        return None
    # Sequences are whole on each of the GPUs that share a layer.
    setup = {"attention": "unfused", "precision": "bf16", "sharding": "none",
             "gradient_bytes": 2, "sequence_parallel": "no",
             "gradient_sums": "apart", "pointwise": BY_XLA,
             "overlap": "none"}  # No flag of XLA's makes reductions overlap.
    gpu = row["gpu"].split("-")[0]
    return dict(
        framework="rosetta-vit",
        run=f"ViT-G {row['num_gpus']}x{gpu} tp {row['tp']}",
        cluster=gpu.lower() + "-sxm",
        shape=shape(model="vit-g-14", images=1, image="224x224"),
        layout=shape(tp=row["tp"], dp=row["dp"]), setup=shape(**setup),
        microbatch=row["micro_batch"], global_batch=row["global_batch"],
        sequence=1, step_ms=round(1e3 * float(row["step_s"]), 2))


SOURCES = {
    "paxml": ("jax_toolbox.csv", pax,
              "NVIDIA/JAX-Toolbox @28603900, rosetta/projects/pax; Apache-2.0"),
    "vit": ("jax_toolbox.csv", vit,
            "NVIDIA/JAX-Toolbox @fd585242, rosetta/projects/vit; Apache-2.0")}
