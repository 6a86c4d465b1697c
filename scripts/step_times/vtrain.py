"""vTrain: GPT models in Megatron on A100.

Runs on several nodes were measured. The times of one node are those that vTrain
itself predicts, from a layer's kernels on one GPU and a table of all-reduces
(docs/evaluation/emulator.md, "vTrain on one node"): they grow exactly with
layers and microbatches, and differ between replicas by that table's entries.
"""

from step_times.words import shape


def ceil_to(value, multiple):
    return -(-value // multiple) * multiple


# Bias, dropout and residual sum are one kernel, as are bias and activation
# (Megatron's defaults; src/model/gpt_modeling.py of vTrain).
# DeepSpeed's pipeline sends each tensor-parallel GPU's part of an output.
MEGATRON = ("attention=unfused pointwise=fused sequence_parallel=no "
            "sends=scattered overlap=none ")
REST = " precision=fp16 gradient_bytes=2 sharding=none"


def row_of(row, framework, vocab, setup):
    hidden = int(row["hidden size"])
    dp, pp = row["data parallelism"], row["pipeline parallelism"]
    return dict(
        framework=framework, run=f"{row['# layers']}x{hidden}",
        cluster="a100-vtrain.json",
        shape=shape(layers=row["# layers"], hidden=hidden,
                    heads=row["attention heads"], ffn=4 * hidden, vocab=vocab,
                    biases=1, dropout=1),
        layout=f"tp={row['tensor parallelism']} pp={pp} dp={dp}", setup=setup,
        microbatch=row["micro batch"], global_batch=row["global batch"],
        sequence=row["sequence length"],
        step_ms=round(float(row["iteration time (ms)"]), 3))


# The rows that a scalar is fitted on: those of the first draw by hash, so that
# other words for the same runs do not draw others. Layers x hidden, layout,
# sequences a microbatch.
FITTED = {("30x3072", "tp=1 pp=2 dp=32", "2"), ("30x3072", "tp=2 pp=1 dp=32", "2"),
          ("30x3072", "tp=2 pp=1 dp=32", "16"), ("40x6144", "tp=8 pp=2 dp=16", "2"),
          ("48x8192", "tp=2 pp=8 dp=32", "6"), ("48x8192", "tp=4 pp=16 dp=8", "12"),
          ("48x8192", "tp=8 pp=8 dp=8", "4"), ("96x12288", "tp=4 pp=16 dp=8", "3"),
          ("96x12288", "tp=8 pp=32 dp=2", "2")}


def several_nodes(row):
    tp = int(row["tensor parallelism"])
    # The vocabulary is 50257; with several GPUs it is padded to a multiple of
    # 128 for each. Its loss is that of Megatron, on fp32 logits.
    vocab = 50257 if tp == 1 else ceil_to(50257, 128 * tp)
    made = row_of(row, "vtrain-multi", vocab, MEGATRON + "recompute=full" + REST +
                  " loss=fp32 host_us=30")
    key = (made["run"], made["layout"], row["micro batch"])
    return dict(made, split="fit" if key in FITTED else "")


def one_node(row):
    tp = int(row["tensor parallelism"])
    # vTrain divides the vocabulary without padding, and the layer that it times
    # does not recompute.
    return row_of(row, "vtrain-single", 50257 // tp * tp,
                  MEGATRON + "recompute=none" + REST +
                  " vocabulary=exact scalar=host")


SOURCES = {
    "vtrain_multi": ("vtrain_ground_truth_multi.csv", several_nodes,
                     "VIA-Research/vTrain @f8dda847; MIT-style, Copyright (c) "
                     "KAIST VIA Research Group"),
    "vtrain_single": ("vtrain_ground_truth_single.csv", one_node,
                      "VIA-Research/vTrain @f8dda847; MIT-style, Copyright "
                      "(c) KAIST VIA Research Group")}
