#!/usr/bin/env python3
"""Converts invented rows of every source, compares the tables with what they
must hold, and lets `pipeloom backtest` read them.

usage: convert_step_times_test.py PIPELOOM [--print]

--print  prints what the tables hold now
"""
import csv
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "scripts" / "convert_step_times.py"

# Columns of a megatron-like source, of which a row changes some.
USUAL = {"tp": "1", "pp": "1", "vp": "1", "cp": "1", "ep": "1", "dp": "8",
         "micro_batch": "1", "global_batch": "16", "seq": "4096",
         "step_s": "2.5"}
BRIDGE = {"source": "Bridge", "section": "Pre-Training", "tp": "1", "pp": "1",
          "vp": "1", "cp": "1", "num_gpus": "64", "seq": "4096", "fsdp": "0",
          "gbs": "1280", "step_s": "5.5", "tokens_per_s_per_gpu": ""}
IMAGES = {"global_batch": "256", "micro_batch": "32", "num_gpus": "8",
          "submitter": "Nobody", "peak_allocated_gib": ""}
# Rows by source file: some that become rows of the table, and one that does not.
SOURCES = {
    "llm_foundry_mpt_throughput.csv": [
        {"Model": "1b", "GPU": "a100_80gb", "# GPUs": "8", "MP Mode": "PURE",
         "Activation Checkpointing": "True", "section": "BF16",
         "GlobalBatchSize (T)": "131072", "SeqLen (T)": "2048",
         "MicroBatchSize": "4", "Throughput (T/s)": "50000"}],
    "vtrain_ground_truth_multi.csv": [
        {"hidden size": "2048", "tensor parallelism": "4", "# layers": "8",
         "data parallelism": "2", "pipeline parallelism": "2",
         "attention heads": "16", "micro batch": "1", "global batch": "16",
         "sequence length": "1024", "iteration time (ms)": "900.12345"}],
    "vtrain_ground_truth_single.csv": [
        {"hidden size": "1024", "tensor parallelism": "1", "# layers": "12",
         "data parallelism": "1", "pipeline parallelism": "1",
         "attention heads": "16", "micro batch": "2", "global batch": "4",
         "sequence length": "1024", "iteration time (ms)": "301.5"}],
    "simumax_e2e_b200_measured.csv": [
        {**USUAL, "case": "deep", "model": "deepseekv3", "layers": "4",
         "ep": "8", "microbatches": "4", "real_ms": "1500",
         "real_alloc_gib": "99.5"},
        {**USUAL, "case": "small", "model": "llama3-8b", "layers": "32",
         "dp": "8", "microbatches": "4", "real_ms": "1500",
         "real_alloc_gib": "99.5"},
        {**USUAL, "model": "unknown"}],
    "dgxc_benchmarking.csv": [
        {"title": "Llama 3.1 70B FP8 pre-training", "gpu": "H100", "ref": "x",
         "check_tokens_ratio": "1.01", "tp": "4", "pp": "4", "vp": "5",
         "cp": "2", "ep": "NA", "dp": "2", "layers": "80", "mbs": "1",
         "gbs": "128", "seq": "8192", "step_s": "20.25"},
        {"title": "Nemotron-H 56b FP8", "gpu": "H100", "ref": "x", "tp": "8",
         "dp": "4", "mbs": "1", "gbs": "96", "seq": "8192", "step_s": "15.5",
         "check_tokens_ratio": "1"},
        {"title": "Llama 3.1 70B FP8 pre-training", "gpu": "H100", "ref": "x",
         "check_tokens_ratio": "1.2"}],
    "nemo_perf_tables.csv": [
        {"model": "DeepSeekV3", "precision": "FP8-MX", "source": "Bridge",
         "section": "Pre-Training", "release": "26.06 x", "tp": "1",
         "pp": "2", "vp": "8", "cp": "1", "ep": "32", "num_gpus": "256",
         "seq": "4096", "fsdp": "0", "gpu": "DGX-GB300", "mbs": "1",
         "gbs": "4096", "step_s": "12.5", "tokens_per_s_per_gpu": ""},
        # A row that has another release's columns, one that its publisher marks
        # as defective, and one without multi-token prediction.
        {**BRIDGE, "model": "GPT OSS 120B", "precision": "BF16",
         "gpu": "DGX-B200", "release": "25.11 x", "ep": "8", "mbs": "4",
         "gbs": "512"},
        {**BRIDGE, "model": "GPT OSS 120B", "precision": "MXFP8",
         "gpu": "DGX-GB200", "release": "26.06.01 x", "ep": "64", "mbs": "4"},
        {**BRIDGE, "model": "DeepSeekV3 (w/o MTP)", "precision": "BF16",
         "gpu": "DGX-GB200", "release": "25.11 x", "pp": "4", "vp": "4",
         "ep": "64", "mbs": "1", "num_gpus": "256"},
        {"model": "Qwen3 MoE 30B", "precision": "BF16", "source": "Automodel",
         "section": "", "release": "Pre-training 1", "tp": "1", "pp": "1",
         "vp": "-", "cp": "1", "ep": "-", "num_gpus": "8", "seq": "4096",
         "fsdp": "8", "gpu": "DGX-H100", "mbs": "2", "gbs": "512",
         "step_s": "", "tokens_per_s_per_gpu": "12000 (x)"},
        # Two precisions in a row: that of the first counts.
        {**BRIDGE, "model": "LLAMA3_70B", "precision": "FP8-CS (FP8-MX)",
         "gpu": "DGX-GB200", "release": "25.11 x", "fsdp": "64 (0)",
         "tp": "1 (2)", "pp": "1 (4)", "vp": "1 (5)", "mbs": "2", "ep": "1",
         "step_s": "", "tokens_per_s_per_gpu": "4000 (3500)"},
        {"model": "LLAMA3_8B", "precision": "BF16", "source": "Bridge",
         "section": "Fine-Tuning", "release": "26.06"},
        {**BRIDGE, "model": "Nemotron_3_Super", "precision": "NVFP4",
         "gpu": "DGX-B300", "release": "26.04 x", "vp": "n/a", "ep": "8",
         "gbs": "512", "mbs": "1", "seq": "8192"},
        {**BRIDGE, "model": "Nemotron_3_Super", "precision": "BF16",
         "gpu": "DGX-H100", "release": "26.04 x", "pp": "2", "vp": "2",
         "ep": "8", "mbs": "1", "seq": "8192", "fsdp": "32 (0)"}],
    "bridge_verification_cards.csv": [
        {**USUAL, "model": "gpt-oss-120b (pretrain)", "evidence": "tuned",
         "precision": "bf16", "gpu": "B200", "ep": "8",
         "cuda_graph": "full_iteration", "a2a_overlap": "False"},
        {**USUAL, "model": "nemotron-3-super-120b-a12b", "evidence": "tuned",
         "precision": "bf16", "gpu": "H100", "pp": "2", "ep": "32", "dp": "32",
         "global_batch": "64", "recompute": "selective: layernorm+moe+core_attn",
         "cuda_graph": "none"},
        {**USUAL, "model": "qwen3.6-35b-a3b", "evidence": "tuned", "pp": "2",
         "precision": "bf16", "gpu": "H100", "ep": "8", "layout": "layers 16,24",
         "data": "DataComp, max 200,704 pixels, 1 image",
         "recompute": "selective: moe_act", "cuda_graph": "transformer_engine"},
        {**USUAL, "model": "qwen3.6-35b-a3b", "evidence": "tuned",
         "precision": "fp8_mx", "gpu": "GB200", "ep": "8",
         "data": "mock, 1 image 256x256", "recompute": "none",
         "cuda_graph": "transformer_engine"},
        {**USUAL, "model": "gpt-oss-120b", "evidence": "functional"},
        {**USUAL, "model": "gpt-oss-120b", "evidence": "tuned", "gpu": "B400"}],
    "bridge_precision_ladder.csv": [
        {**USUAL, "model": "llama3.1-8b", "precision": "fp8_mx", "gpu": "GB200",
         "cuda_graph": "none"}],
    "mlperf_training.csv": [
        {**USUAL, "benchmark": "llama31_405b", "gpu": "H100-SXM-80GB",
         "tp": "8", "pp": "8", "vp": "8", "cp": "2", "dp": "4",
         "global_batch": "1152", "seq": "8192", "precision": "fp8",
         "tp_overlap": "", "cuda_graph": "1", "fp8_attention": "",
         "config_path": "a_cg_dplast", "recompute": "full in 1 layers",
         "round": "v5.0", "submitter": "Nobody", "num_gpus": "512",
         "peak_allocated_gib": "50.5"},
        {**USUAL, "benchmark": "llama2_70b_lora", "gpu": "GB200", "cp": "8",
         "dp": "9", "global_batch": "9", "seq": "8192", "precision": "fp8",
         "tp_overlap": "", "cuda_graph": "1", "fp8_attention": "",
         "config_path": "a", "recompute": "", "round": "v5.1",
         "submitter": "Nobody", "num_gpus": "72", "peak_allocated_gib": ""},
        {**USUAL, "benchmark": "llama31_8b", "gpu": "GB300", "round": "v6.0",
         "precision": "fp8 or fp4, recipe not read"},
        {**USUAL, **IMAGES, "benchmark": "flux1", "gpu": "GB200", "tp": "4",
         "precision": "fp8-recipe-default", "round": "v5.1"},
        {**USUAL, **IMAGES, "benchmark": "flux1", "gpu": "GB300",
         "precision": "fp8 or fp4, recipe not read", "round": "v6.0"},
        {**USUAL, **IMAGES, "benchmark": "stable_diffusion", "round": "v3.1",
         "gpu": "H100-SXM-80GB", "precision": "fp16-amp"},
        {**USUAL, "benchmark": "deepseekv3_671b", "gpu": "GB300", "pp": "4",
         "vp": "4", "ep": "32", "dp": "64", "global_batch": "64",
         "round": "v6.0", "submitter": "Nobody", "num_gpus": "256"},
        {**USUAL, "benchmark": "gpt_oss_20b", "gpu": "GB300", "tp": "2",
         "cp": "4", "ep": "8", "round": "v6.0", "submitter": "Nobody",
         "num_gpus": "64"},
        {**USUAL, "benchmark": "gpt_oss_20b", "gpu": "MI355X"},
        {**USUAL, "benchmark": "bert", "gpu": "H100-SXM-80GB"}],
    "loongforge_a800.csv": [
        {**USUAL, "model": "qwen2.5_vl_7b", "phase": "pretrain", "gpu":
         "A800-80GB", "tp": "2", "pp": "2", "vp": "2", "dp": "2", "encoder_tp": "2",
         "precision": "bf16", "sequence_parallel": "yes", "recompute": "full",
         "tokens_per_step": "16384", "llm_layers_by_stage": "14,14",
         "step_ms": "4000", "peak_allocated_mb_mean_over_ranks": "40960"},
        {**USUAL, "model": "qwen3_8b", "phase": "sft", "gpu": "A800-80GB",
         "pp": "2", "precision": "bf16", "sequence_parallel": "no",
         "recompute": "full 4 layers a stage or chunk", "step_ms": "4000",
         "tokens_per_step": "16384",
         "peak_allocated_mb_mean_over_ranks": "40960"},
        {**USUAL, "model": "qwen2.5_vl_7b", "phase": "sft", "gpu": "A800-80GB",
         "precision": "bf16", "sequence_parallel": "no", "recompute": "none",
         "seq": "8192", "tokens_per_step": "122880", "step_ms": "9000",
         "peak_allocated_mb_mean_over_ranks": "40960"},
        {**USUAL, "model": "unknown", "phase": "sft", "gpu": "A800-80GB"}],
    "flagperf.csv": [
        {**USUAL, "model": "mixtral-8x7b", "gpu": "H800-SXM", "ep": "4",
         "framework": "Megatron-Core", "precision": "bf16", "sharding": "",
         "recompute": "selective"},
        {**USUAL, "model": "llama2-70b", "gpu": "H800-SXM",
         "framework": "FlagScale (Megatron)", "precision": "bf16",
         "sharding": "", "recompute": ""},
        {**USUAL, "model": "llava1.5-7b (CLIP)", "gpu": "A800", "framework":
         "DeepSpeed", "precision": "bf16", "sharding": "zero2",
         "tokens_per_s_per_gpu": "4000"},
        {**USUAL, "model": "GPT3-6.7B", "gpu": "A100-SXM-40GB", "framework":
         "PaddleNLP", "sharding": "stage2", "recompute": "full", "pp": "2",
         "dp": "4", "peak_gb": "33.5"},
        {**USUAL, "model": "LLaMA-7B", "gpu": "A100-SXM-40GB", "framework":
         "PaddleNLP", "sharding": "stage1", "recompute": "full",
         "peak_gb": "28.5"},
        {**USUAL, "model": "aquila2-7b", "gpu": "A800-SXM-80GB", "framework":
         "FlagScale (Megatron)"},
        {**USUAL, "model": "qwen1.5-moe-a2.7b (14B)", "gpu": "A800-SXM-80GB",
         "framework": "Pai-Megatron-Patch", "precision": "fp16"},
        {**USUAL, "model": "llama2-7b", "gpu": "H800-SXM-80GB", "framework":
         "DeepSpeed ZeRO-3"},
        {**USUAL, "model": "llama3-8b", "gpu": "A800", "framework": "Megatron",
         "precision": "fp32"}],
    "pipemorph_delay.csv": [
        {**USUAL, "model": "3B", "schedule":
         "zero-bubble (automatic, memory limit 2p)", "pp": "4", "dp": "1",
         "slow_links": "1_2", "injected_delay_ms": "10", "layers": "16",
         "hidden": "2048", "heads": "16", "delayed_step_ms": "700",
         "healthy_step_ms": "600", "iterations": "15",
         "optimizer_skipped": "12"},
        {**USUAL, "schedule": "by the host"}],
    "primus_schedules.csv": [
        {**USUAL, "model": "llama2-7b", "schedule": "zbv", "pp": "8",
         "vp": "2", "tokens_per_s_per_gpu": "4000"},
        {**USUAL, "model": "llama2-7b", "schedule": "another"}],
    "torchtitan.csv": [
        {"model": "Llama3.1-8B", "gpu": "H100", "fsdp": "8", "pp": "1",
         "cp": "1", "tp": "1", "local_bs": "2", "compile": "1",
         "async_tp": "0", "ac": "selective", "float8": "1", "num_gpus": "8",
         "seq": "8192", "tps_per_gpu": "9000", "schedule": "",
         "memory_gib": "70.5"},
        {"model": "Llama3.1-8B", "gpu": "H100", "fsdp": "4", "pp": "2",
         "cp": "1", "tp": "2", "local_bs": "8", "compile": "1",
         "async_tp": "1", "ac": "full", "float8": "0", "num_gpus": "16",
         "seq": "8192", "tps_per_gpu": "5000", "schedule": "Interleaved1F1B",
         "memory_gib": "40.5"}],
    "llama32_1b_training_h200.csv": [
        {"backend": "FLASH_ATTENTION", "batch_size": "2", "seq_len": "4096",
         "time": "0.25"}],
    "llama32_1b_training_b200.csv": [
        {"backend": "CUDNN_ATTENTION", "batch_size": "1", "seq_len": "8192",
         "time": "0.2"}],
    "internevo_a100.csv": [
        {**USUAL, "model": "internlm-7b", "num_gpus": "16", "dp": "16",
         "precision": "bf16", "sharding": "zero1 over 8 GPUs", "recompute":
         "full", "seq": "8192", "micro_batch": "4", "microbatches": "2",
         "note": "packed: one sequence"},
        {**USUAL, "model": "internlm-7b", "num_gpus": "16", "tp": "2",
         "precision": "bf16", "sharding": "zero1 over all replicas",
         "recompute": "none", "seq": "2048", "micro_batch": "4",
         "microbatches": "2", "note": "not packed"}],
    "nanotron_llama1b_h100.csv": [
        {**USUAL, "num_gpus": "8", "pp": "8", "dp": "1", "step_ms": "30000",
         "peak_allocated_mib": "2048"},
        {**USUAL, "num_gpus": "8", "tp": "2", "dp": "4", "step_ms": "20000",
         "peak_allocated_mib": "1024"}],
    "jax_toolbox.csv": [
        {**USUAL, "model": "gpt-5B", "framework": "JAX (PaxML)",
         "gpu": "H100-SXM-80GB", "num_gpus": "8", "precision": "bf16 TE",
         "sharding": "fsdp over 8"},
        {**USUAL, "model": "gpt-126M", "framework": "JAX (PaxML)",
         "gpu": "A100-SXM-80GB", "num_gpus": "8", "precision": "bf16 TE",
         "sharding": "none"},
        {**USUAL, "model": "gpt-5B", "framework": "JAX (PaxML)",
         "gpu": "A100-SXM-80GB", "num_gpus": "8", "precision": "bf16",
         "sharding": "fsdp over 8"},
        {**USUAL, "model": "llama2-7b", "framework": "JAX (PaxML)",
         "gpu": "H100-SXM-80GB", "num_gpus": "8", "precision": "bf16",
         "sharding": "fsdp over 8"},
        {**USUAL, "model": "vit-g/14 224px (1.85B)", "framework":
         "JAX (rosetta)", "gpu": "A100-SXM-80GB", "num_gpus": "8", "tp": "2",
         "dp": "4"},
        {**USUAL, "model": "t5-v1.1-large", "framework": "JAX (T5X)",
         "gpu": "A100-SXM-80GB"}],
    "mosaic_stable_diffusion.csv": [
        {**USUAL, "num_gpus": "8", "global_batch": "64", "micro_batch": "4"}],
    "vlm_small.csv": [
        {"model": "LLaVA-1.5 7B", "phase": "pretrain", "step_s": "5.5"},
        {"model": "LLaVA-1.5 7B", "phase": "finetune", "step_s": "7.5"},
        {"model": "Qwen-VL 9.6B", "phase": "finetune", "step_s": "2.5"}],
    "nemo_long_sequence.csv": [
        {"model": "LLAMA3-8B (FP8) - B200", "seq_k": "64", "num_gpus": "64",
         "global_batch": "64", "tp": "1", "pp": "1", "dp": "4", "cp": "4",
         "tflops_per_gpu": "1500"},
        {"model": "LLAMA2-7B (FP8) - H100", "seq_k": "64", "num_gpus": "64",
         "global_batch": "64", "tp": "1", "pp": "1", "dp": "4", "cp": "4",
         "tflops_per_gpu": ""}],
    "bridge_mimo_ratio.csv": [
        {"dataset": "CORD-v2", "seq": "2048", "global_batch": "32",
         "language_local_micro_batch": "1", "mimo_language_tp": "4",
         "mimo_language_pp": "2", "mimo_language_dp": "2",
         "wall_step_time_reduction_percent": "25"},
        {"dataset": "another"}],
    "ms_swift_scripts.csv": [
        {**USUAL, "model": "Qwen/Qwen3-14B-FP8", "dp": "2", "tp": "4",
         "precision": "fp8 blockwise", "recompute": "selective",
         "path": "examples/megatron/fp8/benchmark.sh", "peak_gib": "50"},
        {**USUAL, "model": "Qwen/Qwen3-30B-A3B-Base", "pp": "2", "ep": "8",
         "precision": "bf16", "recompute": "full, 1 layer",
         "path": "examples/megatron/moe/qwen3_moe.sh", "peak_gib": "60"},
        {**USUAL, "path": "examples/megatron/another.sh"}],
    "bridge_wan.csv": [
        {"model": "wan2.1-14b DiT", "gpu": "B200", "num_gpus": "16",
         "global_batch": "16", "seq": "37440", "tp": "1", "pp": "1", "cp": "2",
         "fsdp": "1", "model_tflops_per_gpu": "800"},
        {"model": "wan2.1-1.3b DiT", "fsdp": "1"}],
    "fms_fsdp.csv": [
        {"model": "7b", "gpu": "H100", "num_gpus": "16", "sharding": "HSDP",
         "compile": "1", "checkpointing": "none", "batch_size": "2",
         "tokens_per_s_per_gpu": "8192"},
        {"model": "34b", "gpu": "A100", "num_gpus": "16", "sharding": "FSDP",
         "compile": "0", "checkpointing": "full", "batch_size": "1",
         "tokens_per_s_per_gpu": "1024"},
        {"checkpointing": "selective"}],
    "korthikanti2022_a100.csv": [
        {**USUAL, "model": "22B", "hidden": "64", "layers": "8", "heads": "4",
         "dp": "1", "pp": "2", "vp": "2", "recompute": "full"},
        {**USUAL, "model": "22B", "hidden": "64", "layers": "8", "heads": "4",
         "tp": "2", "recompute": "selective"}],
    # Earlier days, what did not fit and what is repeated are left out; from
    # "partition_method" on the embeddings count as layers.
    "bloom_chronicles_prequel.md": """
NHIDDEN=64 / NLAYERS=8
NHEADS=4

| Nodes | Size | DP | TP | PP | MBS | GBS | Mem  | Sec/it | TFLOPs | Notes |
| ----: | ---: | -: | -: | -: | --: | --: | ---: | -----: | -----: | ----: |
|     1 | 1B   |  1 |  8 |  1 |   2 |  16 | 39GB |   1.50 |  90.00 | 02-21 |
|     1 | 1B   |  1 |  2 |  4 |   2 |  16 | 39GB |   1.50 |  90.00 | 02-25 |
|     1 | 1B   |  1 |  2 |  4 |   2 |  16 | GB   |   1.50 |  90.00 | 02-25 |
|     1 | 1B   |  8 |  1 |  1 |   2 |  16 | OOM  |        |        | 02-25 |
|     1 | 1B   |  1 |  8 |  6 |   2 | 1568 | 39GB |  1.50 |  90.00 | 02-25 |
|       |      |    |    |    |     |     |      |        |        |       |

NLAYERS=7 (partition_method='type:transformer|embed')

| Nodes | Size | DP | TP | PP | MBS | NHEADS | GBS | Mem  | Sec/it | Notes |
| ----: | ---: | -: | -: | -: | --: | -----: | --: | ---: | -----: | ----: |
|     1 | 1B   |  2 |  1 |  3 |   1 |      8 |  16 |      |   2.25 | 02-28 |
""",
}
GOLDEN = pathlib.Path(__file__).resolve().parent / "convert_step_times.json"


def write_sources(folder):
    for name, rows in SOURCES.items():
        if isinstance(rows, str):
            (folder / name).write_text(rows)
            continue
        columns = list(dict.fromkeys(key for row in rows for key in row))
        with open(folder / name, "w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)


def tables(folder):
    """The rows of every table of a folder, with the line of its source."""
    found = {}
    for path in sorted(folder.glob("*.csv")):
        lines = path.read_text().splitlines()
        found[path.stem] = [lines[0]] + list(csv.reader(lines[3:]))
    return found


def main():
    pipeloom = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as made:
        sources, out = pathlib.Path(made, "in"), pathlib.Path(made, "out")
        sources.mkdir()
        out.mkdir()
        write_sources(sources)
        run = subprocess.run([sys.executable, SCRIPT, sources, out],
                             capture_output=True, text=True, check=True)
        now = tables(out)
        if "--print" in sys.argv:
            print(json.dumps(now, indent=1))
            return 0
        failures = []
        for name, rows in json.loads(GOLDEN.read_text()).items():
            for is_row, must_be in zip(now.get(name, []), rows):
                if is_row != must_be:
                    failures.append(f"{name}: {is_row}; must be {must_be}")
            if len(now.get(name, [])) != len(rows):
                failures.append(f"{name}: other number of rows")
        if "dgxc: 1 of 3 rows" not in run.stderr:
            failures.append(f"rows that are left out: {run.stderr}")
        # Every table that the program ships is one that the script can make, or
        # was measured by another.
        for path in (ROOT / "workloads" / "validation").glob("*.csv"):
            if "by scripts/measure_steps.py" in path.read_text():
                continue
            if path.stem not in now and path.stem != "pipeline_replay_pp8":
                failures.append(f"{path.stem}: the script does not make it")
        for path in (ROOT / "workloads" / "validation").glob("*.json"):
            shutil.copy(path, out)
        read = subprocess.run(
            [pipeloom, "backtest", *sorted(map(str, out.glob("*.csv"))),
             "--data-dir", str(ROOT / "workloads"), "--format", "json"],
            capture_output=True, text=True)
        if read.returncode != 0:
            failures.append(f"backtest: {read.stderr}")
        else:
            rows = json.loads(read.stdout)["all"]["step_time"]["rows"]
            # Predictions count in no sum.
            if rows != sum(len(table) - 1 for table in now.values()
                           if table[0].startswith("# Measured")):
                failures.append(f"backtest reads {rows} rows")
        # A name that is not known is an error before the work.
        wrong = subprocess.run([sys.executable, SCRIPT, sources, out, "none"],
                               capture_output=True, text=True)
        if wrong.returncode != 1 or "there is no table none; there is " \
                "llm_foundry, " not in wrong.stderr:
            failures.append(f"an unknown name: {wrong.stderr}")
    for failure in failures:
        print(failure)
    print(f"{len(now)} tables, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
