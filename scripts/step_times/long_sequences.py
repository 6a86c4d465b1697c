"""NVIDIA's runs of long sequences: text by NeMo, video by Megatron-Bridge.

Both publish operations a second only. Step times are counted operations over
them."""

import math

from step_times.models import LLAMA_8B
from step_times.words import shape

LONG_TEXT = {
    "LLAMA3-8B": dict(layers=32, **LLAMA_8B),
    "LLAMA2-7B": dict(layers=32, hidden=4096, heads=32, kv_heads=32, ffn=11008,
                      gated=1, vocab=32000)}


def text_operations(model, tokens):
    """Operations of a step on one sequence, as NeMo counts them
    (nemo/utils/flops_formulas.py: llama2, llama3): pairs of tokens that a
    causal attention leaves out are counted, too."""
    hidden, layers = model["hidden"], model["layers"]
    a_layer = (12 + 12 * model["kv_heads"] / model["heads"]
               + 18 * model["ffn"] / hidden + 12 * tokens / hidden)
    return tokens * (layers * hidden ** 2 * a_layer
                     + 6 * hidden * model["vocab"])


def long_text(row):
    name, gpu = row["model"].split(" (FP8) - ")
    if not row["tflops_per_gpu"]:
        return None  # Did not fit.
    tokens = 1024 * int(row["seq_k"])
    layout = {k: int(row[k]) for k in ("tp", "pp", "cp", "dp")}
    # Rows of B200 state four times as many GPUs as their layout has, with
    # which the batch of the longest could not be divided.
    gpus, batch = math.prod(layout.values()), int(row["global_batch"])
    seconds = batch * text_operations(LONG_TEXT[name], tokens) / (
        1e12 * float(row["tflops_per_gpu"]) * gpus)
    return dict(
        framework="nemo", run=f"{name} {row['seq_k']}k {gpu}",
        cluster=gpu.lower() + "-sxm", shape=shape(**LONG_TEXT[name]),
        layout=shape(**layout), setup="precision=fp8 sharding=zero1",
        microbatch=1, global_batch=batch, sequence=tokens,
        step_ms=round(1e3 * seconds, 1))


def wan_operations(tokens, hidden=5120, ffn=13824, layers=40, context=512):
    """Operations of a step on one clip, counted here: products and both
    attentions of each block, three times those of a forward."""
    products = tokens * (12 * hidden ** 2 + 4 * hidden * ffn)
    products += context * 4 * hidden ** 2
    pairs = 4 * hidden * tokens * (tokens + context)
    return 3 * layers * (products + pairs)


def wan(row):
    if row["model"] != "wan2.1-14b DiT" or row["fsdp"] != "1":
        return None
    tokens, gpus = int(row["seq"]), int(row["num_gpus"])
    seconds = int(row["global_batch"]) * wan_operations(tokens) / (
        1e12 * float(row["model_tflops_per_gpu"]) * gpus)
    dp = gpus // (int(row["tp"]) * int(row["pp"]) * int(row["cp"]))
    # recipes/wan/wan.py: each layer is recomputed, gradients are reduced in
    # 16 bits. 24 latent frames of 104 x 60 are a clip of 832 x 480 px with 93
    # frames (wan_mock_datamodule.py).
    return dict(
        framework="megatron-bridge",
        run=f"Wan 2.1 14B {tokens} tokens {row['gpu']}",
        cluster=row["gpu"].lower() + "-sxm",
        shape=shape(model="wan2.1-t2v-14b", videos=1, video="832x480x93"),
        layout=shape(tp=row["tp"], cp=row["cp"], dp=dp),
        setup="precision=bf16 sharding=fsdp recompute=full", microbatch=1,
        global_batch=row["global_batch"], sequence=512,
        step_ms=round(1e3 * seconds, 1))


SOURCES = {
    "long_text": ("nemo_long_sequence.csv", long_text,
                  "NVIDIA/NeMo @8cfedd72, docs/source/performance; Apache-2.0, "
                  "Copyright (c) NVIDIA Corporation"),
    "long_video": ("bridge_wan.csv", wan,
                   "NVIDIA-NeMo/Megatron-Bridge @067f987d, "
                   "examples/models/wan; Apache-2.0, Copyright (c) NVIDIA "
                   "Corporation")}
