"""Primus: pipeline schedules on MI300X."""

from step_times.words import shape

PRIMUS = {"1f1b": "1f1b", "interleaved": "interleaved",
          "zero-bubble heuristic zbb": "zb-h1", "zbv": "zb-v",
          "v-half": "v-half", "v-min": "v-min"}


def primus(row):
    schedule = PRIMUS.get(row["schedule"])
    if schedule is None or row["model"] != "llama2-7b":
        return None
    # Neither batch nor length is stated. With 32 microbatches, interleaved
    # takes closest to the measured share of 1F1B. Only ratios mean anything.
    batch, length = 32, 4096
    chunks = 1 if schedule in ("1f1b", "zb-h1") else row["vp"]
    seconds = batch * length / (8 * float(row["tokens_per_s_per_gpu"]))
    return dict(
        framework="primus", run=f"Llama2-7B {schedule}",
        cluster="mi300x.json",
        shape=shape(layers=32, hidden=4096, heads=32, ffn=11008, gated=1,
                    vocab=32000),
        layout=shape(tp=row["tp"], pp=row["pp"], vp=chunks),
        setup=shape(schedule=schedule), microbatch=1, global_batch=batch,
        sequence=length, step_ms=round(1e3 * seconds, 1))


SOURCES = {
    "primus": ("primus_schedules.csv", primus,
               "AMD-AGI/Primus @fd1eeabb, docs_deprecated/tech_blogs/"
               "primus_pipeline; MIT, Copyright (c) Advanced Micro Devices, "
               "Inc.")}
