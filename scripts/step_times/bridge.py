"""Megatron-Bridge: verification cards and precisions."""

from step_times.bridge_recipes import recipe
from step_times.nemo import NEMO, NEMO_CLUSTER, add_words
from step_times.words import halved, shape

# Names of the performance tables.
BRIDGE = {"deepseek-v3": "DeepSeekV3", "gpt-oss-120b": "GPT OSS 120B",
          "qwen3-235b-a22b": "Qwen3_235B_a22B",
          "qwen3-30b-a3b": "Qwen3_30B_a3B", "llama3.1-8b": "LLAMA3_8B"}
CARDS_RELEASE = "26.08"  # The cards run its recipes.
BRIDGE_GRAPHS = {"full_iteration": "iteration",
                 "transformer_engine": "layers"}


def bridge(row):
    model = BRIDGE.get(row["model"].split()[0])
    cluster = NEMO_CLUSTER.get(f"DGX-{row['gpu']}")
    if None in (model, cluster) or row.get("evidence", "tuned") != "tuned":
        return None
    overlapped = {"True": "yes", "False": "no"}.get(row.get("a2a_overlap"))
    precision = {"fp8_mx": "mxfp8"}.get(row["precision"], row["precision"])
    setup = {"precision": precision, "gradient_bytes": 2,
             "sharding": "zero1", "overlap": "all",
             "overlap_dispatch": overlapped,
             "graphs": BRIDGE_GRAPHS.get(row["cuda_graph"])}
    return add_words(halved(dict(
        framework="megatron-bridge",
        run=f"{row['model'].split()[0]} {row['precision']} {row['gpu']} card",
        cluster=cluster, shape=shape(**NEMO[model]),
        layout=shape(**{k: row[k] for k in ("tp", "pp", "vp", "cp", "ep",
                                            "dp")}),
        setup=shape(**setup), microbatch=row["micro_batch"],
        global_batch=row["global_batch"], sequence=row["seq"],
        step_ms=round(1e3 * float(row["step_s"]), 1))), "setup",
        recipe(model, row["gpu"], precision, CARDS_RELEASE))


SOURCES = {
    "bridge_cards": ("bridge_verification_cards.csv", bridge,
                     "NVIDIA-NeMo/Megatron-Bridge @067f987d, "
                     "examples/model_verification_cards; Apache-2.0, "
                     "Copyright (c) NVIDIA Corporation"),
    "bridge_precision": ("bridge_precision_ladder.csv", bridge,
                         "NVIDIA-NeMo/Megatron-Bridge @067f987d, "
                         "tutorials/training; Apache-2.0, Copyright (c) "
                         "NVIDIA Corporation")}
