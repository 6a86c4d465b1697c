"""PipeMorph: two schedules with a delayed link."""

from step_times.words import shape

# 1F1B sends and receives in one batch, zero bubble one by one. Neither uses
# fused attention or a fused loss. Biases and dropout are on. The vocabulary is
# that of the tokenizer of the zero-bubble code's sample data.
PIPEMORPH = {"1f1b": ("1f1b", "batched"),
             "zero-bubble (automatic, memory limit 2p)": ("zb-2p", "single")}


def pipemorph(row):
    if row["schedule"] not in PIPEMORPH:
        return None  # Transfers by the host.
    schedule, p2p = PIPEMORPH[row["schedule"]]
    setup = {"attention": "unfused", "sharding": "none", "overlap": "none",
             "loss": "fp32", "host_us": 30, "schedule": schedule, "p2p": p2p}
    # In most iterations fp16 gradients overflowed.
    if 2 * int(row["optimizer_skipped"]) > int(row["iterations"]):
        setup["optimizer"] = "skipped"
    # Models without tensor parallelism took one GPU of each node
    # (experiments/single/srun.sh).
    cluster = "h800-1gpu.json" if row["tp"] == "1" else "h800-sxm"
    link = int(row["slow_links"].split("_")[0])
    delay = int(row["injected_delay_ms"])

    def run(name, words, step_ms):
        return dict(
            framework="pipemorph-" + schedule, run=f"{row['model']} {name}",
            cluster=cluster,
            shape=shape(layers=row["layers"], hidden=row["hidden"],
                        heads=row["heads"], ffn=4 * int(row["hidden"]),
                        vocab=32000, biases=1, dropout=1),
            layout=shape(tp=row["tp"], pp=row["pp"], dp=row["dp"]),
            setup=shape(**setup, **words), microbatch=row["micro_batch"],
            global_batch=row["global_batch"], sequence=row["seq"],
            step_ms=step_ms)

    rows = [run(f"{delay} ms", {"delay_link": link, "delay_ms": delay},
                row["delayed_step_ms"])]
    if delay == 10:
        rows.insert(0, run("healthy", {}, row["healthy_step_ms"]))
    return rows


SOURCES = {
    "pipemorph": ("pipemorph_delay.csv", pipemorph,
                  "wutianyuan1/PipeMorph @7ff0dc66, experiments/"
                  "increasing-delay; BSD-3-Clause of Megatron-LM, Copyright "
                  "(c) NVIDIA Corporation")}
