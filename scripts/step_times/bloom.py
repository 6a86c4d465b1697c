"""BigScience: trials of BLOOM's layouts in Megatron-DeepSpeed, with memory.

The source is a diary in Markdown. Ahead of its tables stand the sizes of the
model, which hold until others are given, as NAME=VALUE.
"""

import re

from step_times.words import shape

# Until this day the machines were slower, and heads are not always given.
FIRST = "02-25"
# From this day on gradients are added in fp32 (BF16_Optimizer).
BF16 = "02-28"


def trials(text):
    """Yields the trials of the diary, a dictionary each."""
    known, names, balanced = {}, [], False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            names = []
            balanced |= "partition_method" in line
            known.update(re.findall(r"(HIDDEN|LAYERS|HEADS)=(\d+)", line))
        elif not names:
            names = [name.removeprefix("N") if name == "NHEADS" else name
                     for name in cells]
        else:
            given = {name: cell for name, cell in zip(names, cells) if cell}
            yield {**known, "balanced": balanced, **given}


def stages(layers, pp, balanced):
    """Layers by stage, nothing if they are equal. A balanced partition counts
    the embeddings on both ends as a layer each."""
    counted = layers + 2 * balanced
    most = -(-counted // pp)
    made = [most] * (counted // most)
    made += [counted - sum(made)] * (pp > len(made))
    if balanced:
        made[0] -= 1
        made[-1] -= 1
    return "+".join(map(str, made)) if len(set(made)) > 1 else None


def bloom(diary):
    made, seen = [], set()
    for row in trials(diary):
        day = row.get("Notes", "")
        # Some did not fit into memory.
        if day < FIRST or not row.get("Sec/it", "x").strip("x"):
            continue
        tp, pp, dp = (int(row[k]) for k in ("TP", "PP", "DP"))
        if (pp, row["GBS"]) == (6, "1568"):
            continue  # A quarter fewer sequences took as long as all.
        hidden, layers = int(row["HIDDEN"]), int(row["LAYERS"])
        # Scripts of those days (train/tr11-200B-ml) and Megatron-DeepSpeed:
        # fused softmax, activation and dropout, logits in fp32, all layers
        # recomputed, replicas next to each other, nothing overlapped, and the
        # parts of an output sent by tensor-parallel GPUs.
        bf16 = day >= BF16
        setup = dict(attention="unfused", pointwise="fused",
                     sequence_parallel="no", sends="scattered", overlap="none",
                     recompute="full", precision="bf16" if bf16 else "fp16",
                     gradient_bytes=4 if bf16 else 2, sharding="zero1",
                     weight_gathers="wait", loss="fp32",
                     gradient_sums="apart", host_us=30, peak="used",
                     order="replicas")
        words = dict(
            framework="megatron-deepspeed",
            run=f"{row['Size']} {row['HEADS']} heads {day}",
            cluster="a100-4nic.json",
            shape=shape(layers=layers, hidden=hidden, heads=row["HEADS"],
                        ffn=4 * hidden, vocab=250680, tied=1, biases=1,
                        dropout=1),
            layout=shape(tp=tp, pp=pp, dp=dp,
                         stages=stages(layers, pp, row["balanced"])),
            setup=shape(**setup), microbatch=int(row["MBS"]),
            global_batch=int(row["GBS"]), sequence=2048,
            step_ms=round(1e3 * float(row["Sec/it"])),
            peak_gib=row.get("Mem", "").removesuffix("GB"))
        # Some are repeated, without their memory.
        key = tuple(v for k, v in words.items() if k != "peak_gib")
        if key not in seen:
            seen.add(key)
            made.append(words)
    return made


SOURCES = {
    "bloom": ("bloom_chronicles_prequel.md", bloom,
              "bigscience-workshop/bigscience @9e64edec, train/tr11-176B-ml/"
              "chronicles-prequel.md; Apache-2.0")}
