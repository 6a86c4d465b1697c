#!/usr/bin/env python3
"""Compares steps of real models, each from its published configuration, with
published measurements, and prints a Markdown table of times and MFU.

usage: scripts/measure_models.py BINARY [--all] [--models NAME,...]

The path of a new user: a configuration (tests/model_config/configs.json) becomes
a model file by `pipeloom model`; the layout and the settings of a measured run
(workloads/validation) become a job and a partition; `pipeloom emulate` says time
and MFU. No scalar is fitted. MFU is of the device's bf16 peak; "measured" is our
count of operations over the measured time, "published" what the source says.

Of each model and cluster the first row of each table is taken, --all takes every
row. "In view" is a row that was seen when a constant of the emulator was chosen:
all but those that their table marks `held-out`."""
import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VALIDATION = os.path.join(ROOT, "workloads", "validation")
# The configuration of a row: the beginning of its run's name, in lower case with
# only letters and digits.
CONFIGS = {
    "llama27b": "llama2-7b",
    "llama318b": "llama3-8b",
    "llama38b": "llama3-8b",
    "llama370b": "llama3-70b",
    "llama31405b": "llama3.1-405b",
    "qwen38b": "qwen3-8b",
    "qwen314b": "qwen3-14b",
    "qwen330ba3b": "qwen3-30b-a3b",
    "qwen3moe30b": "qwen3-30b-a3b",
    "qwen3235ba22b": "qwen3-235b-a22b",
    # The class of transformers has no multi-token prediction.
    "deepseekv3womtp": "deepseek-v3",
    "gptoss120b": "gpt-oss-120b",
}
TABLES = ("torchtitan", "dgxc", "nemo", "bridge_cards", "bridge_precision",
          "llama32_b200", "llama32_h200", "loongforge")


def config_of(row):
    if row["framework"].startswith("llama32"):
        return "llama3.2-1b"
    name = "".join(c for c in row["run"].lower() if c.isalnum())
    found = [begin for begin in CONFIGS if name.startswith(begin)]
    return CONFIGS[max(found, key=len)] if found else None


def words(text):
    return dict(word.split("=") for word in text.split())


def setup_of(row):
    """The job's `setup` of a row."""
    said = words(row["setup"])
    framework = row["framework"]
    setup = {}
    if framework.startswith("torchtitan") or "automodel" in framework:
        setup["framework"] = "FRAMEWORK_TORCHTITAN"
    elif framework.startswith(("megatron-bridge", "nemo")):
        setup["framework"] = "FRAMEWORK_MEGATRON_BRIDGE"
    elif framework.startswith("llama32"):
        setup["framework"] = "FRAMEWORK_PYTORCH"
    else:
        setup["framework"] = "FRAMEWORK_MEGATRON_CORE"
    for word, field, values in (
            ("attention", "attention",
             {n: "ATTENTION_KERNEL_" + n.upper()
              for n in ("fused", "flash2", "flash1", "unfused",
                        "efficient", "masked")}),
            ("pointwise", "eagerPointwise", {"fused": False, "eager": True}),
            ("sequence_parallel", "sequenceParallel",
             {"yes": True, "no": False}),
            ("overlap", "overlap",
             {n: "COMMUNICATION_OVERLAP_" + n.upper()
              for n in ("none", "data", "all")}),
            ("dispatch", "dispatch", {"experts": "EXPERT_DISPATCH_EACH_EXPERT",
                                      "gpus": "EXPERT_DISPATCH_EACH_GPU"}),
            ("overlap_dispatch", "overlapDispatch",
             {"yes": True, "no": False}),
            ("fused_experts", "fusedExperts", {"yes": True, "no": False}),
            ("fp8_attention", "fp8Attention", {"yes": True, "no": False}),
            ("loss", "fp32Loss", {"fp32": True, "fused": False}),
            ("weight_gathers", "gathersWait",
             {"wait": True, "overlap": False}),
            ("graphs", "graphs", {n: "CUDA_GRAPHS_" + n.upper()
                                  for n in ("none", "layers", "iteration")})):
        if word in said:
            setup[field] = values[said[word]]
    if "gradient_bytes" in said:
        setup["gradientBytes"] = int(said["gradient_bytes"])
    if said.get("graphs") == "iteration":
        setup.setdefault("overlapDispatch", True)
        setup.setdefault("fusedExperts", True)
    recipe = {"fp8": "TENSOR", "mxfp8": "BLOCKS", "nvfp4": "FP4"}.get(
        said.get("precision"))
    if recipe:
        setup["fp8Products"] = True
        setup["fp8Recipe"] = "FP8_RECIPE_" + recipe
    if framework.startswith("loongforge"):
        setup["hostPerKernelUs"] = 78  # docs/validation.md
    if "automodel" in framework:
        setup["hostPerKernelUs"] = 30  # Megatron-Bridge's.
    if "automodel" in framework:
        setup.update(dispatch="EXPERT_DISPATCH_EACH_GPU", fp32Loss=False,
                     gatheredInPipeline=False)
    if said.get("recompute") == "selective":
        titan = framework.startswith("torchtitan")
        setup["checkpointOperators" if titan else "recomputeAttention"] = True
    return setup


def partition_of(layers, ranks, chunks, sizes=None):
    """Equal parts of the transformer layers, as Megatron's, or `sizes`; where
    they do not divide, the embedding and the head count as layers."""
    stages = ranks * chunks
    apart = (layers - 2) % stages == 0
    begins = [0]
    for s in range(1, stages):
        begins.append(1 + sum(sizes[:s]) if sizes else
                      1 + s * ((layers - 2) // stages) if apart
                      else s * layers // stages)
    begins.append(layers)
    return {"format": "pipeloom.partition", "numRanks": ranks, "stages": [
        {"module": "backbone", "firstLayer": begins[s],
         "layers": begins[s + 1] - begins[s], "rank": s % ranks,
         "segment": s // ranks} for s in range(stages)]}


def cluster_of(row, gpus):
    """The row's cluster with as many nodes as the run had."""
    name = row["cluster"]
    path = (os.path.join(VALIDATION, name) if name.endswith(".json") else
            os.path.join(ROOT, "workloads", "clusters", name + ".json"))
    with open(path) as file:
        cluster = json.load(file)
    cluster["num_nodes"] = -(-gpus // cluster["gpus_per_node"])
    return cluster


def published_mfu(table, row, peak):
    """The source's own figure for the run, as a share of the bf16 peak."""
    with open(os.path.join(ROOT, "tests", "model_config",
                           "published_tflops.csv")) as file:
        for said in csv.DictReader(l for l in file if not l.startswith("#")):
            if (said["table"], said["run"], said["step_ms"]) == (
                    table, row["run"], row["step_ms"]):
                return f"{float(said['tflops']) * 1e12 / peak:.1%}"
    return "-"


def run(arguments):
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def measure(binary, folder, configs, name, row):
    """Emulated seconds of a step, its MFU, and the device's bf16 peak."""
    config = os.path.join(folder, f"{name}.json")
    model = os.path.join(folder, f"{name}.model.json")
    with open(config, "w") as file:
        json.dump(configs[name], file)
    run([binary, "model", config, "--name", name, "--out", model])
    with open(model) as file:
        modules = json.load(file)["modules"]
    layers = sum(entry.get("count", 1) for entry in modules[0]["layers"])
    layout = words(row["layout"])
    sizes = [int(size) for size in layout.pop("stages", "").split("+") if size]
    layout = {k: int(v) for k, v in layout.items()}
    setup = words(row["setup"])
    full = setup.get("recompute") == "full"
    dp, micro = layout.get("dp", 1), int(row["microbatch"])
    sequence, samples = int(row["sequence"]), int(row["global_batch"])
    parallel = {k: layout[k] for k in ("tp", "cp", "ep", "pp", "dp")
                if k in layout}
    parallel["gpuOrder"] = "GPU_ORDER_REPLICAS_INSIDE"
    made = setup_of(row)
    if layout.get("ep", 1) > 1 and "BRIDGE" in made["framework"]:
        parallel["expertTp"] = 1
    gpus = dp
    for axis in ("tp", "cp", "pp"):
        gpus *= layout.get(axis, 1)
    cluster = cluster_of(row, gpus)
    job = {
        "name": name, "model": model, "clusterSpec": cluster,
        "parallel": parallel,
        "setup": made,
        "training": {
            "microbatches": samples // (dp * micro),
            "microbatchTokens": micro * sequence,
            "optimizerSharding": "OPTIMIZER_SHARDING_" + {
                "none": "NONE", "zero1": "ZERO1", "fsdp": "ZERO3"}[
                    setup.get("sharding", "zero1")],
            "memoryStrategies": ["MEMORY_STRATEGY_RECOMPUTE" if full else
                                 "MEMORY_STRATEGY_KEEP"],
        },
    }
    job_file = os.path.join(folder, "job.json")
    batch = os.path.join(folder, "batch.jsonl")
    cut = os.path.join(folder, "partition.json")
    with open(job_file, "w") as file:
        json.dump(job, file)
    with open(batch, "w") as file:
        for i in range(samples):
            file.write(json.dumps({"id": str(i), "text_tokens": sequence})
                       + "\n")
    chunks = layout.get("vp", 1)
    with open(cut, "w") as file:
        json.dump(partition_of(layers, layout.get("pp", 1), chunks, sizes),
                  file)
    def emulate(limit):
        return json.loads(run([
            binary, "emulate", job_file, "--batch", batch, "--partition", cut,
            "--strategy", "interleaved" if chunks > 1 else "1f1b",
            "--replicas", "1", "--memory-limit", str(limit), "--evaluations",
            "1", "--format", "json"]))

    # The runs fitted, whatever our account says of their memory.
    printed = emulate(10 << 40)
    if full:
        # A job may always keep activations, so the least memory that suffices
        # is what makes every layer recompute.
        low, high = 0, max(printed["peak_bytes"])
        for _ in range(12):
            limit = (low + high) // 2
            try:
                printed, high = emulate(limit), limit
            except RuntimeError:
                low = limit
    return (printed["step_time_us"] / 1e6, printed["mfu"],
            cluster["device"]["bf16_flops_per_second"])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--all", action="store_true", help="every row")
    parser.add_argument("--models", help="only these configurations")
    options = parser.parse_args()
    with open(os.path.join(ROOT, "tests", "model_config",
                           "configs.json")) as file:
        configs = json.load(file)
    print("| configuration | run | layout | measured | emulated | error |"
          " MFU emulated | MFU measured | MFU published | table |")
    print("|" + " --- |" * 10)
    errors, by_view, models, failed = [], {}, set(), 0
    with tempfile.TemporaryDirectory() as folder:
        for table in TABLES:
            seen = set()
            with open(os.path.join(VALIDATION, table + ".csv")) as file:
                rows = list(csv.DictReader(
                    line for line in file if not line.startswith("#")))
            for row in rows:
                name = config_of(row)
                key = name, row["cluster"]
                if name not in configs or (key in seen and not options.all):
                    continue
                if options.models and name not in options.models.split(","):
                    continue
                seen.add(key)
                try:
                    seconds, mfu, peak = measure(options.binary, folder,
                                                 configs, name, row)
                except RuntimeError as error:
                    print(f"{row['run']}: {error}", file=sys.stderr)
                    failed += 1
                    continue
                measured = float(row["step_ms"]) / 1e3
                error = seconds / measured - 1
                errors.append(abs(error))
                models.add(name)
                view = "held out" if row["split"] == "held-out" else "in view"
                layout = row["layout"].replace("=", "")
                print(f"| {name} | {row['framework']}, {row['run'].strip()} |"
                      f" {layout} | {measured:.3f} s | {seconds:.3f} s |"
                      f" {error:+.1%} | {mfu:.1%} |"
                      f" {mfu * seconds / measured:.1%} |"
                      f" {published_mfu(table, row, peak)} |"
                      f" {table}, {view} |", flush=True)
                by_view.setdefault(view, []).append(abs(error))
    if errors:
        print(f"\n{len(models)} configurations, {len(errors)} runs: mean error "
              f"{sum(errors) / len(errors):.1%}, worst {max(errors):.1%}")
        for view, some in sorted(by_view.items()):
            print(f"{view}: {len(some)} runs, mean {sum(some) / len(some):.1%}")
    sys.exit(1 if failed or not errors else 0)


if __name__ == "__main__":
    main()
