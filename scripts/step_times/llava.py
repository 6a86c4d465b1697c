"""LLaVA 1.5: pre-training of the projector between two frozen models.

Fine-tuning is left out: the lengths of its samples are not published."""

from step_times.words import shape

# Tokens of a caption: assumed; 576 more are the image's.
CAPTION = 20


def llava_row(size, gpu, cluster, step_s):
    # scripts/v1_5/pretrain.sh: 32 samples a GPU, gradients checkpointed,
    # FlashAttention 2 in transformers' model; only the projector is trained,
    # whose state ZeRO-2 divides.
    setup = {"attention": "flash2", "pointwise": "eager",
             "sequence_parallel": "no", "precision": "bf16",
             "sharding": "zero1", "gradient_bytes": 2, "recompute": "full",
             "host_us": 30}
    return dict(
        framework="pytorch-llava", run=f"LLaVA-1.5 {size} pretrain {gpu}",
        cluster=cluster,
        shape=shape(model=f"llava-1.5-{size.lower()}", images=1,
                    image="336x336", frozen="vision_encoder+backbone"),
        layout="dp=8", setup=shape(**setup), microbatch=32, global_batch=256,
        sequence=CAPTION, step_ms=round(1e3 * step_s, 1))


def llava(row):
    if not row["model"].startswith("LLaVA") or row["phase"] != "pretrain":
        return None
    return llava_row(row["model"].split()[1], "A100", "a100-sxm",
                     float(row["step_s"]))


SOURCES = {
    "llava": ("vlm_small.csv", llava,
              "haotian-liu/LLaVA @c121f043, README.md, hours of an epoch over "
              "its steps; Apache-2.0")}
