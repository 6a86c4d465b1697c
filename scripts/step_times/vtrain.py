"""vTrain: GPT models in Megatron on A100."""

from step_times.words import shape


def ceil_to(value, multiple):
    return -(-value // multiple) * multiple


def vtrain(single):
    def convert(row):
        hidden, tp = int(row["hidden size"]), int(row["tensor parallelism"])
        # The vocabulary is 50257; with several GPUs it is padded to a multiple
        # of 128 for each.
        vocab = 50257 if tp == 1 else ceil_to(50257, 128 * tp)
        dp, pp = row["data parallelism"], row["pipeline parallelism"]
        return dict(
            framework="vtrain-single" if single else "vtrain-multi",
            run=f"{row['# layers']}x{hidden}", cluster="a100-vtrain.json",
            shape=shape(layers=row["# layers"], hidden=hidden,
                        heads=row["attention heads"], ffn=4 * hidden,
                        vocab=vocab),
            layout=f"tp={tp} pp={pp} dp={dp}",
            setup="attention=unfused pointwise=eager sequence_parallel=no "
                  "overlap=none recompute=full precision=fp16 gradient_bytes=2 "
                  "sharding=none" + (" scalar=host" if single
                                      else " host_us=30"),
            microbatch=row["micro batch"], global_batch=row["global batch"],
            sequence=row["sequence length"],
            step_ms=round(float(row["iteration time (ms)"]), 3))
    return convert


SOURCES = {
    "vtrain_multi": ("vtrain_ground_truth_multi.csv", vtrain(False),
                     "VIA-Research/vTrain @f8dda847; MIT-style, Copyright (c) "
                     "KAIST VIA Research Group"),
    "vtrain_single": ("vtrain_ground_truth_single.csv", vtrain(True),
                      "VIA-Research/vTrain @f8dda847; MIT-style, Copyright "
                      "(c) KAIST VIA Research Group")}
