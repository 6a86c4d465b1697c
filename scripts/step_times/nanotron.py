"""nanotron: a Llama of 1B on H100."""

from step_times.words import shape

LLAMA_1B = dict(layers=24, hidden=2048, heads=32, ffn=4096, gated=1,
                vocab=50257, tied=1)
# Transformer layers by stage: blocks are divided by their products, those of
# the loss head included (nanotron's block_compute_costs); with 8 stages the
# last one has the head only.
STAGES = {2: "14+10", 4: "7+7+6+4", 8: "4+3+3+4+3+3+4+0"}


def nanotron(row):
    # The host's time was chosen on the two rows without a pipeline: each product,
    # norm and rotation goes through Python in both passes. An fp32 loss;
    # gradients are summed and reduced in fp32 (accumulate_grad_in_fp32); gate
    # and residual are operators of PyTorch; sequences are sharded
    # (tp_mode REDUCE_SCATTER), with nothing that overlaps
    # (tp_linear_async_communication: false).
    setup = {"attention": "flash2", "pointwise": "eager", "precision": "bf16",
             "sharding": "zero1", "gradient_bytes": 4, "loss": "fp32",
             "weight_gathers": "wait", "host_us": 75,
             "gradient_sums": "apart", "keeps_gathered": "yes",
             # The vocabulary is not padded.
             "vocabulary": "exact"}
    layout = {k: row[k] for k in ("tp", "pp", "dp")}
    if int(row["pp"]) > 1:
        layout["stages"] = STAGES[int(row["pp"])]
    return dict(
        framework="nanotron",
        run=f"1B {row['num_gpus']} GPUs, microbatch {row['micro_batch']}",
        cluster="h100-sxm", shape=shape(**LLAMA_1B), layout=shape(**layout),
        setup=shape(**setup), microbatch=row["micro_batch"],
        global_batch=row["global_batch"], sequence=row["seq"],
        step_ms=row["step_ms"],
        peak_gib=round(float(row["peak_allocated_mib"]) / 1024, 2))


SOURCES = {
    "nanotron": ("nanotron_llama1b_h100.csv", nanotron,
                 "Hugging Face nanotron/old_bench, logs of runs configured by "
                 "huggingface/bench_cluster; Apache-2.0")}
