"""Megatron-LM of 2022: all layers recomputed, or the core of attention only."""

from step_times.words import shape


def recomputation(row):
    full = row["recompute"] == "full"
    # Selective recomputation came with sequence parallelism; neither fused
    # attention nor a fused loss existed. 16 bytes a parameter: gradients are
    # held and added in 16 bits.
    setup = {"attention": "unfused", "pointwise": "fused",
             "sequence_parallel": "no" if full else "yes",
             "sends": "scattered", "overlap": "none",
             "recompute": row["recompute"], "precision": "fp16",
             "gradient_bytes": 2, "gradient_sums": "apart", "sharding": "none",
             "loss": "fp32", "host_us": 30}
    vp = int(row["vp"])
    return dict(
        framework="megatron-lm", run=f"{row['model']} {row['recompute']}",
        cluster="a100-sxm",
        shape=shape(layers=row["layers"], hidden=row["hidden"],
                    heads=row["heads"], ffn=4 * int(row["hidden"]),
                    vocab=51200, tied=1, biases=1, dropout=1),
        layout=shape(tp=row["tp"], pp=row["pp"], vp=vp if vp > 1 else None,
                     dp=row["dp"]),
        setup=shape(**setup), microbatch=row["micro_batch"],
        global_batch=row["global_batch"], sequence=row["seq"],
        step_ms=round(1e3 * float(row["step_s"])))


SOURCES = {
    "recomputation": (
        "korthikanti2022_a100.csv", recomputation,
        "calculon-ai/calculon @caa4b11f, calculon/llm/validation.py and "
        "validation/seqsel/tab5 (arXiv 2205.05198, table 5); Apache-2.0")}
