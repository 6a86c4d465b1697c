"""InternEvo: InternLM 7B on A100, with optimizer shards in groups."""

from step_times.words import shape

INTERNLM_7B = dict(layers=32, hidden=4096, heads=32, ffn=11008, gated=1,
                   vocab=103168)


def internevo(row):
    group = row["sharding"].split()
    # FlashAttention 1.0.5 and its kernels of norms, rotation and loss
    # (doc/en/install.md); gradients are held and reduced in 16 bits; tensor
    # parallelism "mtp" is without sequence parallelism (configs/7B_sft.py).
    setup = {"attention": "flash1", "precision": row["precision"],
             "sequence_parallel": "no", "gradient_bytes": 2,
             "sharding": "zero1", "recompute": row["recompute"],
             # Norms cast what they read to fp32 and back (_residual.float()).
             "pointwise": "eager",
             # The loss and the metrics are on logits that are cast to fp32
             # (NaiveAMPModel, output_to_fp32).
             "loss": "fp32",
             # Whole tensors have an owner (_partition_param_list), who
             # broadcasts them behind the update (overlap_sync_param is off);
             # gradients are all-reduced (reduce_rank is None).
             "weight_gathers": "broadcast",
             "gradient_sums": "apart",  # By autograd.
             "bucket": 512 * 1024 * 1024}  # reduce_bucket_size
    # Without checkpoints of layers, those of norms and residual sums are on
    # (dropout_selective_checkpoint).
    if row["recompute"] == "none":
        setup["recompute"] = "norms"
    # "zero1 over 8 GPUs": divided among 8 of the replicas.
    if group[2].isdigit() and int(group[2]) < int(row["dp"]):
        setup["optimizer_group"] = group[2]
    # A pack of samples has a border every seq_len tokens, whatever is in it
    # (PackedDatasetWithoutCuSeqlen); the column is the length of the pack.
    micro_batch = int(row["micro_batch"])
    sequence = int(row["seq"])
    if "packed:" in row["note"]:
        sequence //= micro_batch
    return dict(
        framework="internevo",
        run=f"{row['model']} {row['num_gpus']} GPUs, {row['sharding']}",
        cluster="a100-4nic.json", shape=shape(**INTERNLM_7B),
        layout=shape(tp=row["tp"], dp=row["dp"]), setup=shape(**setup),
        microbatch=micro_batch,
        global_batch=int(row["dp"]) * int(row["microbatches"]) * micro_batch,
        sequence=sequence, step_ms=round(1e3 * float(row["step_s"]), 1))


SOURCES = {
    "internevo": ("internevo_a100.csv", internevo,
                  "InternLM/InternEvo @c628a8c8, doc/en/train_performance.md; "
                  "Apache-2.0")}
