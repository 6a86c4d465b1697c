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
             "weight_gathers": "wait",  # overlap_sync_param is off.
             "gradient_sums": "apart"}  # By autograd.
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
