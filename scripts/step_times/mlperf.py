"""MLPerf Training: dense language models, and models of images."""

from step_times.models import (DEEPSEEK_V3, LLAMA_8B, LLAMA_70B, LLAMA_405B)
from step_times.words import half_of, shape

MLPERF = {
    "gpt3": dict(layers=96, hidden=12288, heads=96, ffn=49152, vocab=51200,
                 tied=1),
    "llama31_405b": dict(layers=126, **LLAMA_405B),
    "llama31_8b": dict(layers=32, **LLAMA_8B),
    "llama2_70b_lora": dict(layers=80, **{**LLAMA_70B,
                                          "vocab": 32000}, adapter_rank=16)}
MLPERF_CLUSTER = {
    "H100-SXM-80GB": "h100-sxm", "H200-SXM-141GB": "h200-sxm",
    "H200-NVL-141GB": "h200-nvl.json", "B200": "b200-sxm", "B300": "b300.json",
    "GB200": "gb200-nvl72", "GB300": "gb300-nvl72", "MI300X": "mi300x.json",
    "MI325X": "mi325x.json"}


def add_adapter_words(row, setup):
    """Adds what NVIDIA's code of the adapters sets from v5.0 on, whoever
    submitted it: conf/megatron_gpt_peft_tuning_config.yaml (cp_comm_type a2a;
    from v5.1 on cuda_graph_scope full_iteration), config_common.sh of v5.1
    (FP8_DPA) and the config files without context parallelism (FP8_ACT)."""
    blackwell = row["gpu"].startswith(("B", "GB"))
    if row["cp"] not in ("", "1"):
        setup["context"] = "alltoall"
    if blackwell and row["round"] >= "v5.1":
        setup["fp8_attention"] = "yes"
        if "graphs" in setup:
            setup["graphs"] = "iteration"
    if blackwell and row["cp"] in ("", "1") and row["precision"] == "fp8":
        setup["fp8_activation_inputs"] = "yes"


def mlperf(row):
    """Dense language models."""
    model = MLPERF.get(row["benchmark"])
    cluster = MLPERF_CLUSTER.get(row["gpu"])
    recipe = {"fp8-delayed": "fp8"}.get(row["precision"], row["precision"])
    if (model is None or cluster is None or
            recipe not in ("bf16", "fp8", "mxfp8", "nvfp4")):
        return None  # A precision that was not read has no price.
    number = lambda name: int(row[name]) if row[name].isdigit() else 1
    known = lambda name: row[name] in ("1", "True")
    # Hopper has no 4-bit products; a file of the H200 only says so.
    precision = ("fp8" if recipe == "nvfp4" and "H200" in row["gpu"]
                 else recipe)
    # The 4-bit recipes do not rotate operands. That of the 8B rounds at random
    # and scales in two dimensions, which adds no pass over them.
    recipe = {"nvfp4": "nvfp4-plain"}.get(precision, precision)
    # Gradients are reduced in 16 bits; fp8 weights are held and gathered as
    # such, except in the first round, those that become NVFP4 in 16 bits.
    held = 1 if precision == "fp8" and row["round"] > "v3.1" else 2
    setup = {"precision": recipe, "gradient_bytes": 2,
             "weight_bytes": held, "sharding": "zero1"}
    # Transfers of tensor parallelism overlap by default.
    if number("tp") > 1:
        setup["overlap"] = "data" if row["tp_overlap"] == "False" else "all"
    if known("cuda_graph") or "_cg" in row["config_path"]:
        # 405B captures the iteration, the others their layers.
        setup["graphs"] = ("iteration" if row["benchmark"] == "llama31_405b"
                           else "layers")
    if known("fp8_attention"):
        setup["fp8_attention"] = "yes"
    if row["benchmark"] == "llama31_8b":
        setup["bucket"] = 768_000_000  # config_common_8b.sh
    if held == 1 and not row["gpu"].startswith("MI"):
        setup["held_weight_bytes"] = 1
    if (row["benchmark"] == "llama2_70b_lora" and row["round"] >= "v5.0"
            and not row["gpu"].startswith("MI")):
        add_adapter_words(row, setup)
    # Devices whose shares of the peak are those of whole trainings have it.
    if row["gpu"].startswith(("H", "B200")):
        setup["straggle"] = 0.015
    words = row["recompute"].split()
    if "layers" in words:  # "full in N layers"
        setup["recompute_layers"] = words[words.index("layers") - 1]
    # Replicas are outside of the pipeline in files named so, and from v5.1 on.
    if number("pp") > 1 and ("dplast" in row["config_path"] or
                             row["round"] >= "v5.1"):
        setup["order"] = "pipeline"
    # One configuration is in one half, whoever submitted it.
    key = "|".join(row[name] for name in (
        "benchmark", "gpu", "num_gpus", "tp", "pp", "vp", "cp", "micro_batch",
        "global_batch")) + precision
    return dict(
        framework="mlperf-rocm" if row["gpu"].startswith("MI") else "mlperf",
        run=f"{row['benchmark']} {row['num_gpus']}x{row['gpu'].split('-')[0]} "
            f"{row['round']} {row['submitter']}",
        cluster=cluster, shape=shape(**model),
        layout=shape(**{k: number(k) for k in ("tp", "pp", "vp", "cp", "dp")}),
        setup=shape(**setup), microbatch=row["micro_batch"],
        global_batch=row["global_batch"], sequence=row["seq"],
        step_ms=round(1e3 * float(row["step_s"]), 2),
        peak_gib=row["peak_allocated_gib"],
        # The share of this GPU's peak was chosen on its rows.
        split="fit" if row["gpu"] == "MI325X" else half_of(key))


GPT_OSS_20B = dict(layers=24, hidden=2880, heads=64, kv_heads=8, head_dim=64,
                   window=128, window_every=2, experts=32, top_k=4,
                   expert_ffn=2880, expert_biases=1, clamped=1, biases=1,
                   scaled_rotary=1, gated=1, vocab=128256)


def mlperf_experts(row):
    """DeepSeek-V3 and GPT-OSS 20B of v6.0 (implementations/*/config_*.sh)."""
    if (row["benchmark"] not in ("deepseekv3_671b", "gpt_oss_20b") or
            row["gpu"] not in MLPERF_CLUSTER):
        return None
    # The whole step is a graph, in which experts are fused. Transfers of tensor
    # parallelism do not overlap (no tp_comm_overlap). Recomputed are DeepSeek's
    # three dense feed-forwards only. Tokens are routed freely. Buckets are
    # BUCKET_SIZE of conf/*.yaml.
    setup = {"precision": "mxfp8", "gradient_bytes": 2, "sharding": "zero1",
             "overlap": "data", "graphs": "iteration", "bucket": 134_217_728}
    layout = {k: row[k] for k in ("tp", "pp", "vp", "cp", "ep", "dp")}
    if row["benchmark"] == "deepseekv3_671b":
        words = dict(layers=61, predicted_tokens=1,
                     **{**DEEPSEEK_V3, "dense_layers": 3})
        # FP8_PARAM_GATHER and FP8_DPA of config_common_mxfp8.sh.
        setup.update(weight_bytes=1, held_weight_bytes=1, fp8_attention="yes")
        # Et*4|(t*4|)*14tmL: four layers a stage, the last with one and the
        # module that predicts a further token.
        if int(row["pp"]) * int(row["vp"]) == 16:
            layout["stages"] = "+".join(["4"] * 16)  # The module has three.
        setup["order"] = "pipeline"
    else:
        # pretrain.py: tokens of Llama 3, a rotation that is not fused. Weights
        # are gathered in 16 bits (config_common_mxfp8.sh, which GigaComputing
        # published).
        words = GPT_OSS_20B
        # cp_comm_type of gpt_oss.yaml, which does not overlap dispatches.
        setup.update(context="alltoall", overlap_dispatch="no")
    return dict(
        framework="mlperf",
        run=f"{row['benchmark']} {row['num_gpus']}x{row['gpu']} {row['round']} "
            f"{row['submitter']}",
        cluster=MLPERF_CLUSTER[row["gpu"]], shape=shape(**words),
        layout=shape(**layout), setup=shape(**setup),
        microbatch=row["micro_batch"], global_batch=row["global_batch"],
        sequence=row["seq"], step_ms=round(1e3 * float(row["step_s"]), 2))


# Layers of Stable Diffusion's text encoder; kernels that the forward of a layer
# launches (emulator/framework/framework_price.cc), and the host's time to launch one
# (ir/job/training_setup.cc).
TEXT_LAYERS, KERNELS_A_LAYER, HOST_US = 23, 25, 30
# Name of the shipped model, side of an image in px, text tokens.
IMAGE_MODELS = {"flux1": ("flux.1-schnell", 256, 256),
                "stable_diffusion": ("stable-diffusion-2", 512, 77)}
# The recipe "default" of FLUX.1 is no fp8 at all. In an unknown precision, a run
# cannot be emulated.
IMAGE_PRECISIONS = {"mxfp8": "mxfp8", "fp8-recipe-default": "bf16",
                    "fp8-delayed": "fp8", "fp16-amp": "fp16"}


def mlperf_images(row):
    """FLUX.1 and Stable Diffusion v2, one image and one text a sample."""
    model = IMAGE_MODELS.get(row["benchmark"])
    cluster = MLPERF_CLUSTER.get(row["gpu"])
    precision = IMAGE_PRECISIONS.get(row["precision"])
    if model is None or cluster is None or precision is None:
        return None
    name, side, text = model
    # The whole step is a graph.
    setup = {"precision": precision, "gradient_bytes": 2,
             "sharding": "zero1", "graphs": "iteration"}
    if row["benchmark"] == "flux1":
        if not row["gpu"].startswith("MI"):
            # NeMo's FluxConfig: gradient_accumulation_fusion and the fusion of
            # biases with activations are off.
            setup.update(gradient_sums="apart", pointwise="eager")
        if int(row["tp"]) > 1:
            # num_distributed_optimizer_instances is nodes over SEGMENT, 16
            # nodes of 4 GPUs (config_GB200_288x04x08xtp4.sh).
            setup.update(sequence_parallel="no",
                         optimizer_group=16 * 4 // int(row["tp"]))
    else:
        # The package flash_attn. The optimizer's kernels are in the graph, too.
        # It is not sharded, and nothing overlaps with its reductions, in the
        # first round, in which only the U-Net is a graph: the host launches a
        # text encoder ahead of it (FrozenOpenCLIPEmbedder, layer penultimate).
        setup.update(attention="flash2", step_host_us="0")
        if row["round"] < "v4.0":
            setup.update(sharding="none", overlap="none",
                         step_host_us=TEXT_LAYERS * KERNELS_A_LAYER * HOST_US)
    if row["gpu"].startswith(("H", "B200")):
        setup["straggle"] = 0.015
    key = "|".join(row[column] for column in (
        "benchmark", "gpu", "num_gpus", "tp", "micro_batch",
        "global_batch")) + precision
    return dict(
        framework="mlperf-rocm" if row["gpu"].startswith("MI") else "mlperf",
        run=f"{row['benchmark']} {row['num_gpus']}x{row['gpu'].split('-')[0]} "
            f"{row['round']} {row['submitter']}",
        cluster=cluster,
        shape=shape(model=name, images=1, image=f"{side}x{side}"),
        layout=shape(tp=row["tp"], dp=row["dp"]), setup=shape(**setup),
        microbatch=row["micro_batch"], global_batch=row["global_batch"],
        sequence=text, step_ms=round(1e3 * float(row["step_s"]), 2),
        peak_gib=row["peak_allocated_gib"], split=half_of(key))


ORIGIN = ("mlcommons/training_results_v3.1 to v5.1 and "
          "Richardyu114/training_results_v6.0 @eabf23a07b2a, results of the "
          "submitters named in each row; Apache-2.0")
SOURCES = {"mlperf": ("mlperf_training.csv", mlperf, ORIGIN),
           "mlperf_experts": ("mlperf_training.csv", mlperf_experts, ORIGIN),
           "mlperf_images": ("mlperf_training.csv", mlperf_images, ORIGIN)}
