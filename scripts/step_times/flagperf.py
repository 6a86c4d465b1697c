"""FlagPerf: Megatron, FlagScale, PaddleNLP and DeepSpeed."""

from step_times.llava import CAPTION, llava_row
from step_times.models import LLAMA_8B, LLAMA_70B
from step_times.words import shape

# Rotations as operators of PyTorch, which a scaled one has in any case: without
# TransformerEngine's layers, FlagScale of 2023 and early 2024 has those, and
# norms and gates as operators, too (no --transformer-impl).
OPERATORS = 1
# Without an all-to-all, Megatron-Core 0.6 sorts the rows of experts by indices
# (moe/token_dispatcher.py).
BY_INDICES = "eager"

FLAGPERF = {
    "llama3-8b": dict(layers=32, **LLAMA_8B),
    "llama3-70b": dict(layers=80, **LLAMA_70B),
    "llama2-70b": dict(layers=80, hidden=8192, heads=64, kv_heads=8,
                       ffn=28672, gated=1, vocab=32000),
    "mixtral-8x7b": dict(layers=32, hidden=4096, heads=32, kv_heads=8,
                         experts=8, top_k=2, expert_ffn=14336, gated=1,
                         vocab=32000)}


def flagperf(row):
    if row["model"].startswith("llava1.5-7b") and row["sharding"] == "zero2":
        # Pre-training, by the tokens of samples a second and GPU.
        tokens = 256 * (576 + CAPTION)
        return llava_row("7B", "A800", "a800-sxm", tokens / (
            8 * float(row["tokens_per_s_per_gpu"])))
    model = FLAGPERF.get(row["model"])
    # Products in fp32, and other frameworks than Megatron, are not described.
    if model is None or "egatron" not in row["framework"] or \
            row["precision"] == "fp32":
        return None
    # Scripts of Llama 3 recompute nothing, whatever their READMEs list, and
    # leave biases of linear layers and dropout on (pretrain_llama3.sh).
    llama3 = "llama3" in row["model"]
    # Neither the loss is fused nor do gathers of weights overlap
    # (pretrain_llama3.sh, megatron_main.sh).
    setup = {"loss": "fp32", "weight_gathers": "wait",
             "host_us": 30,  # As of all Megatron.
             "precision": "fp8" if "fp8" in row["precision"] else "bf16",
             "sharding": row["sharding"] or "none",
             "recompute": "selective" if "selective" in row["recompute"]
                          and not llama3 else "none"}
    # The README of each case names FlashAttention 2, and its script has
    # --use-flash-attn. Ampere has no other kernel.
    if row["gpu"].startswith("H"):
        setup["attention"] = "flash2"
    parts = {"biases": 1, "dropout": 1} if llama3 else {}
    if row["model"].startswith("mixtral"):
        parts["scaled_rotary"] = OPERATORS  # --no-rope-fusion
        if row["ep"] == "1":
            setup["pointwise"] = BY_INDICES
    if row["framework"].startswith("FlagScale"):
        parts["scaled_rotary"] = OPERATORS
        setup["pointwise"] = "eager"
    return run_of(row, "megatron", {**model, **parts}, setup)


def run_of(row, framework, model, setup, cluster=None):
    """The row of a table with the columns that all cases share."""
    return dict(
        framework=framework, run=f"{row['model'].split(' ')[0]} {row['gpu']}",
        cluster=cluster or row["gpu"].split("-")[0].lower() + "-sxm",
        shape=shape(**model),
        layout=shape(**{k: row[k] for k in ("tp", "pp", "vp", "cp", "ep",
                                            "dp")}),
        setup=shape(**setup), microbatch=row["micro_batch"],
        global_batch=row["global_batch"], sequence=row["seq"],
        step_ms=round(1e3 * float(row["step_s"]), 1))


# PaddleNLP 2.6's gpt3-13B has 128 heads of 40 (configuration.py).
PADDLE = {
    "LLaMA-7B": dict(layers=32, hidden=4096, heads=32, ffn=11008, gated=1,
                     vocab=32000),
    "GPT3-6.7B": dict(layers=32, hidden=4096, heads=32, ffn=16384, vocab=50304,
                      tied=1, biases=1, dropout=1),
    "GPT3-13B": dict(layers=40, hidden=5120, heads=128, ffn=20480, vocab=50304,
                     tied=1, biases=1, dropout=1)}


def paddle(row):
    """PaddleNLP on A100 (training/nvidia/*-paddle/config)."""
    model = PADDLE.get(row["model"])
    if model is None or row["framework"] != "PaddleNLP":
        return None
    # Paddle 2.5.1 is older than its FlashAttention 2 (PaddlePaddle/
    # flash-attention, pull request 12). Tensor parallelism without sequences,
    # fp16 gradients that operators of their own sum, nothing overlapped; stage 2
    # reduces those of each microbatch.
    setup = {"attention": "flash1", "pointwise": "eager",
             "sequence_parallel": "no", "overlap": "none", "loss": "fp32",
             "precision": "fp16",
             "sharding": row["sharding"].replace("stage", "zero"),
             "gradient_bytes": 2, "gradient_sums": "apart",
             "keeps_gathered": "yes", "weight_gathers": "wait",
             "host_us": 30, "recompute": row["recompute"]}
    # LLaMA's layers are those of transformers, operator by operator; on 40 GB
    # its norms, too (use_fused_rms_norm=False in the README's rows).
    small = "40GB" in row["gpu"]
    unfused = small and row["model"].startswith("LLaMA")
    made = run_of(row, "pytorch-paddlenlp" if unfused else "paddlenlp", model,
                  setup, "a100-40g.json" if small else "a100-sxm")
    if row["pp"] != "1":
        made["run"] += " pp " + row["pp"]
    made["setup"] += " peak=used"  # nvidia_monitor.py reads nvidia-smi.
    made["peak_gib"] = row["peak_gb"]
    return made


def aquila(row):
    """Aquila2 7B by FlagScale @ed55532: Megatron-LM of 2023 with its own
    layers, whose norms, rotation and gate are operators of PyTorch."""
    if row["model"] != "aquila2-7b":
        return None
    # flagscale_main.sh: no --sequence-parallel, no --overlap-grad-reduce.
    setup = {"pointwise": "eager", "sequence_parallel": "no",
             "overlap": "none", "loss": "fp32", "weight_gathers": "wait",
             "host_us": 30, "precision": "bf16", "sharding": "zero1"}
    return run_of(row, "megatron-flagscale",
                  dict(layers=32, hidden=4096, heads=32, ffn=11008, gated=1,
                       vocab=100008, scaled_rotary=OPERATORS), setup)


def qwen_moe(row):
    """Qwen1.5 MoE as Pai-Megatron-Patch has it: eight experts, two a token."""
    if not row["model"].startswith("qwen1.5-moe"):
        return None
    # megatron_pai_main.sh: --recompute-activations, --no-rope-fusion.
    setup = {"loss": "fp32", "weight_gathers": "wait", "host_us": 30,
             "precision": row["precision"], "sharding": "zero1",
             "recompute": "selective"}
    if row["ep"] == "1":
        setup["pointwise"] = BY_INDICES
    return run_of(row, "megatron",
                  dict(layers=24, hidden=2048, heads=16, experts=8, top_k=2,
                       expert_ffn=5504, gated=1, vocab=151936,
                       scaled_rotary=OPERATORS), setup)


def llama2_zero3(row):
    """Llama 2 7B of transformers under DeepSpeed's ZeRO-3."""
    if row["framework"] != "DeepSpeed ZeRO-3" or row["model"] != "llama2-7b":
        return None
    # ds_config.json: bf16, nothing recomputed.
    setup = {"attention": "flash2", "pointwise": "eager",
             "sequence_parallel": "no", "precision": "bf16",
             "sharding": "fsdp", "gradient_bytes": 2, "host_us": 30}
    return run_of(row, "pytorch-deepspeed",
                  dict(layers=32, hidden=4096, heads=32, ffn=11008, gated=1,
                       vocab=32000), setup)


def others(row):
    """FlagPerf's cases beyond `flagperf`."""
    for convert in (paddle, aquila, qwen_moe, llama2_zero3):
        made = convert(row)
        if made is not None:
            return made
    return None


ORIGIN = "FlagOpen/FlagPerf @1b5a0303, training/nvidia; Apache-2.0"
SOURCES = {"flagperf": ("flagperf.csv", flagperf, ORIGIN),
           "flagperf_more": ("flagperf.csv", others, ORIGIN)}
