"""Settings of Megatron-Bridge's recipes, by GPU, precision and release.

Read at the tag of each release (25.11 v0.2.1, 26.02 v0.3.0, 26.02.01 v0.3.1,
26.04 v0.4.0, 26.04.01 v0.4.2, 26.06 v0.5.0, 26.06.01 v0.5.1, 26.08 v0.6.0):
scripts/performance/configs/*/*workload_base_configs.py, for 26.08
src/megatron/bridge/perf_recipes; Apache-2.0, Copyright (c) NVIDIA Corporation.
"""

# Words by the names that the table below uses.
WORDS = {
    # Without it, DeepEP or HybridEP send a token to each GPU once.
    "alltoall": {"dispatch": "experts"},
    # Attention, router and preprocessing; graphs without attention are left
    # out, as the host launches most of such a layer.
    "graphs": {"graphs": "layers"},
    "overlap": {"overlap_dispatch": "yes"},
    # Recomputed: layernorm and moe_act, or moe_act. Of MLA's second products,
    # recomputation is left out.
    "again": {"recompute": "norms+moe_activations"},
    "activations": {"recompute": "moe_activations"},
    # The whole step is one graph, and the attention takes fp8.
    "iteration": {"graphs": "iteration", "fp8_attention": "yes"},
    "iteration-bf16": {"graphs": "iteration"},
    "default": {}}

# Model, GPU, precisions; what it sets from a release on.
RECIPES = [
    ("DeepSeekV3", "B200", "bf16 fp8", "25.11 alltoall, 26.02 default"),
    ("DeepSeekV3", "B200", "mxfp8",
     "25.11 alltoall, 26.02 default, 26.04.01 graphs+overlap"),
    ("DeepSeekV3", "B200", "nvfp4", "26.04 default, 26.04.01 overlap+again"),
    ("DeepSeekV3", "B300", "bf16",
     "26.02 again, 26.02.01 default, 26.04.01 graphs"),
    ("DeepSeekV3", "B300", "fp8", "26.02 default, 26.04.01 graphs"),
    ("DeepSeekV3", "B300", "mxfp8",
     "26.02 default, 26.04.01 graphs, 26.06.01 iteration"),
    ("DeepSeekV3", "B300", "nvfp4", "26.04 default, 26.04.01 graphs"),
    ("DeepSeekV3", "GB200", "bf16 fp8", "25.11 default, 26.02 graphs"),
    ("DeepSeekV3", "GB200", "mxfp8",
     "25.11 default, 26.02 graphs, 26.06 iteration-bf16"),
    ("DeepSeekV3", "GB200", "nvfp4", "26.04 graphs"),
    ("DeepSeekV3", "GB300", "bf16", "25.11 graphs+activations"),
    ("DeepSeekV3", "GB300", "fp8", "25.11 graphs+activations, 26.02 default"),
    ("DeepSeekV3", "GB300", "mxfp8",
     "25.11 graphs+activations, 26.02 default, 26.06 iteration"),
    ("DeepSeekV3", "H100", "bf16 fp8", "25.11 overlap, 26.02 default"),
    ("GPT OSS 120B", "B200", "bf16",
     "25.11 alltoall+again, 26.04 again, 26.04.01 alltoall+again"),
    ("GPT OSS 120B", "B200", "mxfp8", "26.04 again, 26.04.01 alltoall+again"),
    ("GPT OSS 120B", "B300", "bf16", "26.02 graphs+alltoall, 26.04 graphs"),
    ("GPT OSS 120B", "B300", "mxfp8", "26.04 graphs"),
    ("GPT OSS 120B", "GB200", "bf16",
     "25.11 alltoall+again, 26.04 overlap+again, "
     "26.04.01 alltoall+overlap+again"),
    ("GPT OSS 120B", "GB200", "mxfp8",
     "26.04 overlap+again, 26.04.01 alltoall+overlap+again, 26.06 iteration"),
    ("GPT OSS 120B", "GB300", "bf16", "25.11 graphs+alltoall"),
    ("GPT OSS 120B", "GB300", "mxfp8",
     "26.04 graphs+alltoall, 26.06 iteration"),
    ("GPT OSS 120B", "H100", "bf16", "25.11 alltoall+again"),
    ("GPT OSS 120B", "H100", "fp8", "26.04.01 alltoall+again"),
    ("GPT OSS 120B", "H100", "mxfp8", "26.04 alltoall+again"),
    ("Qwen3_235B_a22B", "B200", "bf16 fp8",
     "25.11 alltoall+overlap, 26.02 alltoall, 26.02.01 default, "
     "26.04 alltoall"),
    ("Qwen3_235B_a22B", "B200", "mxfp8",
     "25.11 alltoall+overlap, 26.02 alltoall, 26.02.01 default, "
     "26.04 alltoall, 26.06.01 iteration"),
    ("Qwen3_235B_a22B", "B200", "nvfp4", "26.04 alltoall"),
    ("Qwen3_235B_a22B", "B300", "bf16 fp8",
     "26.02 alltoall+overlap, 26.02.01 default, 26.04 alltoall, "
     "26.04.01 default"),
    ("Qwen3_235B_a22B", "B300", "mxfp8",
     "26.02 alltoall+overlap, 26.02.01 default, 26.04 alltoall, "
     "26.04.01 default, 26.06.01 iteration"),
    ("Qwen3_235B_a22B", "B300", "nvfp4", "26.04 alltoall, 26.04.01 default"),
    ("Qwen3_235B_a22B", "GB200", "bf16 fp8", "25.11 graphs"),
    ("Qwen3_235B_a22B", "GB200", "mxfp8", "25.11 graphs, 26.06 iteration"),
    ("Qwen3_235B_a22B", "GB200", "nvfp4", "26.04 graphs"),
    ("Qwen3_235B_a22B", "GB300", "bf16", "25.11 default, 26.02.01 graphs"),
    ("Qwen3_235B_a22B", "GB300", "fp8", "25.11 default, 26.02 graphs"),
    ("Qwen3_235B_a22B", "GB300", "mxfp8",
     "25.11 default, 26.02 graphs, 26.06 iteration"),
    ("Qwen3_235B_a22B", "GB300", "nvfp4", "26.04 graphs"),
    ("Qwen3_235B_a22B", "H100", "bf16 fp8",
     "25.11 alltoall+overlap, 26.02.01 overlap, 26.04 alltoall+overlap"),
    ("Qwen3_30B_a3B", "B200", "bf16 fp8", "25.11 alltoall, 26.02.01 graphs"),
    ("Qwen3_30B_a3B", "B200", "mxfp8",
     "25.11 alltoall, 26.02.01 graphs, 26.06.01 iteration"),
    ("Qwen3_30B_a3B", "B300", "mxfp8", "26.02 default, 26.06 iteration"),
    ("Qwen3_30B_a3B", "GB200", "bf16 fp8", "25.11 graphs"),
    ("Qwen3_30B_a3B", "GB200", "mxfp8", "25.11 default, 26.06 iteration"),
    ("Qwen3_30B_a3B", "GB300", "mxfp8", "25.11 default, 26.06 iteration"),
    ("Qwen3_30B_a3B", "H100", "bf16 fp8",
     "25.11 alltoall+overlap, 26.02 overlap, 26.02.01 default")]

# Rows whose columns are not those of their release's recipe, while their time
# is that of the recipe's layout in the releases next to it (2.0 s a microbatch of
# GPT-OSS with 64 experts' GPUs on B200; 0.17 s with one sequence on H100; 29 s of
# Qwen3 30B without a pipeline): columns of the recipe.
COLUMNS = {("GPT OSS 120B", "B200", "25.11"): {"ep": "64"},
           ("GPT OSS 120B", "H100", "25.11"): {"mbs": "1"},
           ("Qwen3_30B_a3B", "H100", "26.02.01"):
               {"pp": "1", "vp": "n/a", "ep": "16"}}
# Rows that their publisher marks as slowed by a defect (a kernel that is ten
# times as slow, NVIDIA/cudnn-frontend issue 256; performance-summary-archive.md).
DEFECTS = {("GPT OSS 120B", "GB300", "26.06.01"),
           ("GPT OSS 120B", "GB200", "26.06.01")}
# Rows whose layout is that of another release's recipe, and the release.
AS_IN = {("GPT OSS 120B", "B300", "26.02.01"): "26.04",
         ("GPT OSS 120B", "B200", "26.02.01"): "26.04",
         ("Qwen3_235B_a22B", "B300", "26.02.01"): "26.02",
         # Two chunks a rank; its own release overlaps the dispatch of four.
         ("Qwen3_235B_a22B", "B200", "25.11"): "26.02"}


def recipe(model, gpu, precision, release):
    """Returns the words of the recipe, none where it is not known."""
    number = lambda text: [int(part) for part in text.split(".")]
    release = AS_IN.get((model, gpu, release), release)
    words = {}
    for name, device, precisions, history in RECIPES:
        if (name, device) != (model, gpu):
            continue
        if precision not in precisions.split():
            continue
        for change in history.split(", "):
            first, names = change.split()
            if number(first) <= number(release):
                words = {}
                for part in names.split("+"):
                    words.update(WORDS[part])
    return words


def deepseek_stages(stages):
    """Returns the layers by stage of DeepSeek-V3's 61: equal stages, the last
    with the rest (set_deepseek_v3_pipeline_model_parallel_layout)."""
    most = -(-61 // stages)
    last = 61 - most * (stages - 1)
    return "+".join([str(most)] * (stages - 1) + [str(last)])
