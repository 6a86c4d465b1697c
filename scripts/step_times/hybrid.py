"""Hybrid models: Nemotron-H and Nemotron 3 in the tables of Megatron-Bridge,
its verification cards and dgxc-benchmarking; Qwen3.6 of the cards."""

from step_times.nemo import NEMO_CLUSTER, NEMO_PRECISION
from step_times.words import number, shape

# Shipped models, and what the measured ones predict beyond the next token.
MODELS = {
    "Nemotron_3_Nano": dict(model="nemotron-3-nano-30b-a3b"),
    "Nemotron_3_5_Lightning": dict(model="nemotron-3-nano-30b-a3b",
                                   predicted_tokens=2),
    "Nemotron_3_Super": dict(model="nemotron-3-super-120b-a12b",
                             predicted_tokens=2)}
CARDS = {"nemotron-3-nano-30b-a3b": "Nemotron_3_Nano",
         "nemotron-3.5-lightning": "Nemotron_3_5_Lightning",
         "nemotron-3-super-120b-a12b": "Nemotron_3_Super"}
# Recomputed parts by the names of Megatron-Core. Attention's core, which few
# layers have, is left out; so is "gdn_norm_out", as "norms" would be those of all
# blocks.
GROUPS = {"layernorm": "norms", "moe_act": "moe_activations", "moe": "experts"}
# Recipes at the tags of the releases (scripts/performance/configs/nemotronh, for
# 26.08 src/megatron/bridge/perf_recipes/nemotronh): all rows of the tables have
# graphs of attention, mixers, router and preprocessing; on B300, Super in NVFP4
# also recomputes.
RECOMPUTED = {("Nemotron_3_Super", "nvfp4"): "norms+moe_activations"}
# Models whose attention takes fp8 with MXFP8, from 26.08 on.
FP8_ATTENTION = {"Nemotron_3_Nano"}



def tables(row):
    """A row of Megatron-Bridge's performance tables."""
    words = MODELS.get(row["model"])
    precision = NEMO_PRECISION.get(row["precision"])
    cluster = NEMO_CLUSTER.get(row["gpu"])
    if None in (words, precision, cluster) or "Pre-" not in row["section"]:
        return None
    setup = {"precision": precision, "gradient_bytes": 2,
             "sharding": "fsdp" if number(row["fsdp"]) > 1 else "zero1",
             "overlap": "all", "graphs": "layers"}
    again = RECOMPUTED.get((row["model"], precision))
    if again:
        setup["recompute"] = again
    if row["model"] in FP8_ATTENTION and row["release"] >= "26.08":
        setup["fp8_attention"] = "yes"
    gpus, sequence = int(row["num_gpus"]), int(row["seq"])
    tp, pp, cp, vp = (number(row[k]) for k in ("tp", "pp", "cp", "vp"))
    seconds = (float(row["step_s"]) if row["step_s"] else
               int(row["gbs"]) * sequence /
               (float(row["tokens_per_s_per_gpu"].split()[0]) * gpus))
    return dict(
        framework="megatron-bridge",
        run=" ".join((row["model"], row["precision"].split()[0], row["gpu"],
                      row["release"].split()[0])),
        cluster=cluster, shape=shape(**words),
        layout=shape(tp=tp, pp=pp, vp=vp if vp > 1 else 0, cp=cp,
                     ep=number(row["ep"]), dp=gpus // (tp * pp * cp)),
        setup=shape(**setup), microbatch=row["mbs"], global_batch=row["gbs"],
        sequence=sequence, step_ms=round(1e3 * seconds, 1))


def cards(row):
    """A verification card that was tuned."""
    cluster = NEMO_CLUSTER.get(f"DGX-{row['gpu']}")
    if row["evidence"] != "tuned" or cluster is None:
        return None
    name = CARDS.get(row["model"])
    layout = {k: row[k] for k in ("tp", "pp", "vp", "cp", "ep", "dp")}
    sequence = int(row["seq"])
    if name is not None:
        words = dict(MODELS[name])
        if name == "Nemotron_3_Super" and row["pp"] == "2":
            layout["stages"] = "44+52"  # The rest predicts further tokens.
    elif row["model"] == "qwen3.6-35b-a3b":
        words, text = qwen_samples(row["data"])
        sequence -= text
        if row["layout"].startswith("layers "):
            # Attention and feed-forward are one layer. The last stage also has
            # the multi-token prediction module: input, layer and loss head.
            *first, last = row["layout"].split()[1].split(",")
            layout["stages"] = "+".join([*first, str(int(last) + 3)])
    else:
        return None
    precision = {"fp8_mx": "mxfp8"}.get(row["precision"], row["precision"])
    groups = [GROUPS[part] for part in
              row["recompute"].removeprefix("selective: ").split("+")
              if part in GROUPS]
    setup = {"precision": precision, "gradient_bytes": 2, "sharding": "zero1",
             "overlap": "all", "recompute": "+".join(groups)}
    # Qwen's graphs on GB200 are of router and preprocessing only.
    if (row["cuda_graph"] == "transformer_engine" and
            (row["model"], row["gpu"]) != ("qwen3.6-35b-a3b", "GB200")):
        setup["graphs"] = "layers"
    if name in FP8_ATTENTION and precision == "mxfp8":
        setup["fp8_attention"] = "yes"
    if name is None and row["gpu"] != "H100":
        # Heads of 256: cuDNN trains them on Blackwell from 9.23 on, later than
        # this run (TransformerEngine, fused_attn.cpp).
        setup["attention"] = "flash2"
    if name is None or row["gpu"] == "H100":
        # Parameters are gathered ahead of the passes, and gradients reduced
        # after them (ddp.overlap_* of the recipes).
        setup["overlap"] = "none"
    return dict(
        framework="megatron-bridge",
        run=f"{row['model']} {row['precision']} {row['gpu']} card",
        cluster=cluster, shape=shape(**words),
        layout=shape(**layout), setup=shape(**setup),
        microbatch=row["micro_batch"], global_batch=row["global_batch"],
        sequence=sequence, step_ms=round(1e3 * float(row["step_s"]), 1))


def qwen_samples(data):
    """The words of a sample with one image, and the tokens of the image. Images
    of up to 200,704 pixels are taken to have as many. Bridge builds the module
    that predicts a further token, as the model's configuration has one
    (mtp_num_hidden_layers; the published operations a token, 23.0e9, count it),
    and does not fuse the rotation (apply_rope_fusion of the recipes)."""
    side = 448 if "200,704" in data else 256
    return (dict(model="qwen3.6-35b-a3b", predicted_tokens=1, scaled_rotary=1,
                 images=1, image=f"{side}x{side}"),
            (side // 32) ** 2)


def dgxc_hybrid(row):
    """Nemotron-H 56B of dgxc-benchmarking."""
    if not row["title"].startswith("Nemotron-H 56b"):
        return None
    return dict(
        framework="nemo", run=f"{row['title']} {row['gpu']} {row['dp']}",
        cluster="h100-sxm", shape="model=nemotron-h-56b",
        layout=shape(tp=row["tp"], dp=row["dp"]),
        setup=shape(attention="fused", pointwise="fused",
                    sequence_parallel="yes", overlap="all", sharding="zero1",
                    gradient_bytes=4, precision="fp8"),
        microbatch=row["mbs"], global_batch=row["gbs"], sequence=row["seq"],
        step_ms=round(1e3 * float(row["step_s"]), 1))


SOURCES = {
    "hybrid": ("nemo_perf_tables.csv", tables,
               "NVIDIA-NeMo/Megatron-Bridge @067f987d, docs/performance-summary"
               "*.md; Apache-2.0, Copyright (c) NVIDIA Corporation"),
    "hybrid_cards": ("bridge_verification_cards.csv", cards,
                     "NVIDIA-NeMo/Megatron-Bridge @067f987d, "
                     "examples/model_verification_cards; Apache-2.0, "
                     "Copyright (c) NVIDIA Corporation"),
    "hybrid_dgxc": ("dgxc_benchmarking.csv", dgxc_hybrid,
                    "NVIDIA/dgxc-benchmarking v25.05; MIT, Copyright (c) "
                    "NVIDIA Corporation")}
