"""LoongForge: pre-training and fine-tuning on A800."""

from step_times.models import LLAMA_8B
from step_times.words import shape

LOONGFORGE = {
    "llama2_7b": dict(layers=32, hidden=4096, heads=32, ffn=11008, gated=1,
                      vocab=32000),
    "llama3_8b": dict(layers=32, **LLAMA_8B),
    "qwen3_8b": dict(layers=36, hidden=4096, heads=32, kv_heads=8,
                     head_dim=128, query_key_norms=1, ffn=12288, gated=1,
                     vocab=151936),
    "qwen3_14b": dict(layers=40, hidden=5120, heads=40, kv_heads=8,
                      head_dim=128, query_key_norms=1, ffn=17408, gated=1,
                      vocab=151936)}


# Samples that are packed in a microbatch, by phase, and the size of their image:
# assumed, as neither number nor size is stated. A sample of pre-training (LLaVA
# details, MiniGPT-4) has one image; 256 of its 390 tokens are those of 448 x 448
# px. Fine-tuning packs 3,840 tokens, which are ten of those samples.
LOONGFORGE_IMAGES = {
    ("qwen2.5_vl_7b", "pretrain"): ("qwen2.5-vl-7b", 1, "448x448", 256),
    ("qwen2.5_vl_7b", "sft"): ("qwen2.5-vl-7b", 10, "448x448", 256)}


# Beyond the columns, the files of a model give the encoder's layers that are
# recomputed: the first number of --custom-pipeline-recompute-layers.
LOONGFORGE_ENCODERS = {"qwen2.5_vl_7b": 12}
# Phases with --use-precision-aware-optimizer: the fp32 weight shares its upper
# half with the 16-bit one.
PRECISION_AWARE = {("qwen2.5_vl_7b", "pretrain")}


def loongforge(row):
    model = LOONGFORGE.get(row["model"])
    images = LOONGFORGE_IMAGES.get((row["model"], row["phase"]))
    if not row["gpu"].startswith("A800") or (model or images) is None:
        return None  # A model without description, or an unnamed chip.
    # The loss is not fused (tests/llm_vlm/configs).
    setup = {"precision": row["precision"], "sharding": "zero1", "loss": "fp32",
             "sequence_parallel": row["sequence_parallel"],
             "recompute": "full" if row["recompute"].startswith("full")
                          else "none"}
    again = row["recompute"].split()
    chunks = int(row["pp"]) * int(row["vp"])
    if model and again[1:2] and int(again[1]) * chunks < model["layers"]:
        # "full 4 layers a stage or chunk"
        setup["recompute_layers"] = int(again[1]) * int(row["vp"])
    if row["precision"] == "fp16":
        # Only gradients of bf16 are summed in fp32 by default.
        setup["gradient_bytes"] = 2
    if row["model"] in LOONGFORGE_ENCODERS and setup["recompute"] == "full":
        setup["encoder_recompute_layers"] = LOONGFORGE_ENCODERS[row["model"]]
    if (row["model"], row["phase"]) in PRECISION_AWARE:
        setup["optimizer_bytes"] = 10
    setup["peak"] = "mean"
    # Sequences that are not packed have their mean length.
    tokens = int(row["tokens_per_step"]) // int(row["global_batch"])
    layout = {k: row[k] for k in ("tp", "pp", "vp", "cp", "ep", "dp")}
    packed = 1
    if images:
        name, packed, size, image_tokens = images
        # qwen2_vl_layer_spec.py and qwen_layer_spec.py: rotations are separate
        # PyTorch operators, and the backbone rotates one packed sample at a time.
        model = dict(model=name, scaled_rotary=1, images=1, image=size)
        tokens = tokens // packed - image_tokens
        chunks = int(row["vp"])
        if row["llm_layers_by_stage"]:
            layers = [int(n) // chunks
                      for n in row["llm_layers_by_stage"].split(",")]
            layout["stages"] = "+".join(map(str, layers * chunks))
        layout["encoder_tp"] = row["encoder_tp"]
    return dict(
        framework="loongforge", run=f"{row['model']} {row['phase']} A800",
        cluster="a800-sxm", shape=shape(**model), layout=shape(**layout),
        setup=shape(**setup), microbatch=packed * int(row["micro_batch"]),
        global_batch=packed * int(row["global_batch"]),
        sequence=min(tokens, int(row["seq"])), step_ms=row["step_ms"],
        peak_gib=round(float(row["peak_allocated_mb_mean_over_ranks"]) / 1024,
                       2))


SOURCES = {
    "loongforge": ("loongforge_a800.csv", loongforge,
                   "baidu-baige/LoongForge @c6275661846a, tests/llm_vlm; "
                   "Apache-2.0")}
