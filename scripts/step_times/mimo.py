"""Megatron-Bridge: Qwen3.5-VL 27B whose encoder moves to a GPU of its own.

Only the time of a step relative to that with the encoder in the first stage was
published, and not for which GPU: that of the recipe
(qwen35_vl_27b_sft_16gpu_h100_bf16_config) is taken."""

from step_times.words import shape

# Receipts of CORD are photographs of more than a million pixels, so that images
# have the most that the collator allows, 1,003,520 (QWEN_VL_MAX_PIXELS), which is
# 972 tokens. Text is assumed. Rows are padded to the longest, not to `seq`.
IMAGE, TEXT = "864x1152", 512


def mimo(row):
    if row["dataset"] != "CORD-v2":
        return None
    # Recipe and script: nothing is recomputed, no overlap, sums in fp32.
    setup = {"precision": "bf16", "sharding": "zero1", "gradient_bytes": 4,
             "overlap": "none", "sequence_parallel": "no", "time": "ratio"}
    left = 1 - float(row["wall_step_time_reduction_percent"]) / 100
    return dict(
        framework="megatron-bridge",
        run=f"{row['dataset']} {row['seq']} tokens, batch "
            f"{row['global_batch']}",
        cluster="h100-sxm",
        shape=shape(model="qwen3.5-27b", images=1, image=IMAGE),
        layout=shape(tp=row["mimo_language_tp"], pp=row["mimo_language_pp"],
                     dp=row["mimo_language_dp"], encoder="apart"),
        setup=shape(**setup), microbatch=row["language_local_micro_batch"],
        global_batch=row["global_batch"], sequence=TEXT,
        step_ms=round(1e3 * left, 1))


SOURCES = {
    "encoder_apart": ("bridge_mimo_ratio.csv", mimo,
                      "NVIDIA-NeMo/Megatron-Bridge @067f987d, tutorials/"
                      "megatron_mimo; Apache-2.0, Copyright (c) NVIDIA "
                      "Corporation")}
