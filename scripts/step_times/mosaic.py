"""MosaicML: Stable Diffusion 2 with its frozen encoders in every step."""

from step_times.words import shape

# The host's time to launch a kernel, as fitted to vTrain's runs
# (ir/job/training_setup.cc). After a step's passes it launches 9 kernels of
# AdamW, tensor by tensor in PyTorch 1.12 (requirements.txt), and 4 of the
# moving average (ema.py) for each of the U-Net's tensors.
HOST_US, TENSORS, KERNELS_A_TENSOR = 30, 686, 9 + 4


def mosaic(row):
    # diffusers in plain PyTorch under automatic mixed precision, replicated;
    # xFormers runs FlashAttention 1 on this GPU.
    setup = {"attention": "flash1", "pointwise": "eager",
             "sequence_parallel": "no", "precision": "fp16",
             "sharding": "none", "gradient_bytes": 4,
             "gradient_sums": "apart", "host_us": HOST_US,
             "step_host_us": HOST_US * TENSORS * KERNELS_A_TENSOR}
    return dict(
        framework="pytorch-composer",
        run=f"SD2 {row['num_gpus']}xA100-40GB",
        cluster="a100-40g.json",
        shape=shape(model="stable-diffusion-2-online", images=1,
                    image="512x512", frozen="text_encoder+vae"),
        layout=shape(dp=row["dp"]), setup=shape(**setup),
        microbatch=row["micro_batch"], global_batch=row["global_batch"],
        sequence=77, step_ms=round(1e3 * float(row["step_s"]), 1))


SOURCES = {
    "mosaic": ("mosaic_stable_diffusion.csv", mosaic,
               "mosaicml/diffusion-benchmark @c7f3cffd; Apache-2.0, Copyright "
               "(c) MosaicML")}
