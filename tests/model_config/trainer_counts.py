#!/usr/bin/python3
"""Compares `pipeloom model` with the models that Megatron-Core and torchtitan
make on the meta device.

usage: trainer_counts.py PIPELOOM [megatron | torchtitan]

Run by a Python of `scripts/torch_peer.sh make`:
scripts/torch_peer.sh run tests/model_config/trainer_counts.py PIPELOOM. Prints
"skipped: ..." where a library is missing.
"""
import dataclasses
import importlib
import inspect
import json
import os
import subprocess
import sys
import unittest.mock

# Every flag and a size of its own, in small models.
MEGATRON = {
    "gpt": "--num-layers 3 --hidden-size 64 --num-attention-heads 4"
           " --padded-vocab-size 384 --max-position-embeddings 96",
    "llama": "--num-layers 4 --hidden-size 96 --ffn-hidden-size 160"
             " --num-attention-heads 6 --group-query-attention"
             " --num-query-groups 2 --swiglu --normalization RMSNorm"
             " --disable-bias-linear --position-embedding-type rope"
             " --untie-embeddings-and-output-weights --padded-vocab-size 256",
    "qwen": "--num-layers 2 --hidden-size 64 --ffn-hidden-size 128"
            " --num-attention-heads 4 --kv-channels 32"
            " --group-query-attention --num-query-groups 2 --add-qkv-bias"
            " --qk-layernorm --swiglu --normalization RMSNorm"
            " --disable-bias-linear --position-embedding-type rope"
            " --padded-vocab-size 512",
    "mixture": "--num-layers 5 --hidden-size 64 --ffn-hidden-size 128"
               " --num-attention-heads 4 --swiglu --normalization RMSNorm"
               " --disable-bias-linear --position-embedding-type rope"
               " --untie-embeddings-and-output-weights --padded-vocab-size 256"
               " --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 32"
               " --moe-shared-expert-intermediate-size 64"
               " --moe-shared-expert-gate --moe-layer-freq ([0]*2+[1]*3)",
    "biased mixture": "--num-layers 2 --hidden-size 64 --ffn-hidden-size 96"
                      " --num-attention-heads 4 --swiglu"
                      " --position-embedding-type rope --padded-vocab-size 256"
                      " --num-experts 4 --moe-router-topk 2",
    "latent": "--num-layers 2 --hidden-size 64 --ffn-hidden-size 128"
              " --num-attention-heads 4 --multi-latent-attention"
              " --q-lora-rank 48 --kv-lora-rank 32 --qk-head-dim 16"
              " --qk-pos-emb-head-dim 8 --v-head-dim 24 --qk-layernorm"
              " --swiglu --normalization RMSNorm --disable-bias-linear"
              " --position-embedding-type rope"
              " --untie-embeddings-and-output-weights --padded-vocab-size 256",
    "latent without query rank":
        "--num-layers 2 --hidden-size 64 --num-attention-heads 4"
        " --multi-latent-attention --kv-lora-rank 32 --qk-head-dim 16"
        " --qk-pos-emb-head-dim 8 --v-head-dim 16 --qk-layernorm --swiglu"
        " --disable-bias-linear --position-embedding-type rope"
        " --padded-vocab-size 256",
    "predicted": "--num-layers 2 --hidden-size 64 --ffn-hidden-size 128"
                 " --num-attention-heads 4 --swiglu --normalization RMSNorm"
                 " --disable-bias-linear --position-embedding-type rope"
                 " --untie-embeddings-and-output-weights"
                 " --padded-vocab-size 256 --mtp-num-layers 2",
}
# Fields of the configuration by flag, where their names differ.
FIELDS = {"group-query-attention": None, "num-query-groups": "num_query_groups",
          "padded-vocab-size": None, "max-position-embeddings": None,
          "position-embedding-type": None,
          "untie-embeddings-and-output-weights": None,
          "multi-latent-attention": None, "num-experts": "num_moe_experts",
          "swiglu": "gated_linear_unit", "disable-bias-linear": None,
          "qk-pos-emb-head-dim": "qk_pos_emb_head_dim"}
# Modules that torchtitan imports for kernels and data not used here.
ABSENT = ("triton", "triton.language", "tokenizers", "datasets",
          "datasets.distributed", "torchdata", "torchdata.stateful_dataloader")
TITAN = {"llama3": "llama3_configs", "qwen3": "qwen3_configs",
         "deepseek_v3": "deepseekv3_configs", "gpt_oss": "gptoss_configs",
         "kimi_k2_7": "kimi_k2_5_configs"}


def ours(pipeloom, *arguments):
    out = subprocess.run([pipeloom, "model", "--format", "json", *arguments],
                         capture_output=True, text=True)
    if out.returncode:
        raise AssertionError(out.stdout + out.stderr)
    return json.loads(out.stdout)["parameters"]


def count(model):
    """Parameters, each counted once if it has several names."""
    return sum(p.numel() for p in model.parameters())


def flags_of(text):
    flags = {}
    for word in text.split():
        if word.startswith("--"):
            name = word[2:]
            flags[name] = True
        else:
            flags[name] = word
    return flags


def megatron_count(text):
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt import gpt_layer_specs, gpt_model
    from megatron.core.transformer import MLATransformerConfig
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.dot_product_attention import (
        DotProductAttention)
    if not torch.distributed.is_initialized():
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0",
                          WORLD_SIZE="1")
        torch.distributed.init_process_group("gloo", store=None)
        parallel_state.initialize_model_parallel()
        torch.cuda.current_device = lambda: torch.device("cpu")
    flags = flags_of(text)
    latent = "multi-latent-attention" in flags
    kind = MLATransformerConfig if latent else TransformerConfig
    types = {f.name: f.type for f in dataclasses.fields(kind)}
    values = {"normalization": "LayerNorm",
              "add_bias_linear": "disable-bias-linear" not in flags,
              "use_cpu_initialization": True, "perform_initialization": False}
    if "swiglu" in flags:
        values["activation_func"] = torch.nn.functional.silu
        if "ffn-hidden-size" not in flags:
            width = int(flags["hidden-size"]) * 4 * 2 // 3 // 64 * 64
            values["ffn_hidden_size"] = width
    if latent:
        values["multi_latent_attention"] = True
        values["q_lora_rank"] = None
    for flag, value in flags.items():
        field = FIELDS.get(flag, flag.replace("-", "_"))
        if field is None:
            continue
        if field not in types:
            raise AssertionError(f"{field} is no field of {kind.__name__}")
        if flag == "moe-layer-freq":
            value = eval(value)  # As Megatron-LM does.
        elif isinstance(value, str) and value.isdigit():
            value = int(value)
        values[field] = value
    config = kind(**values)
    layer = gpt_layer_specs.get_gpt_decoder_block_spec(
        config, use_transformer_engine=False) if "num-experts" in flags else (
            gpt_layer_specs.get_gpt_layer_local_spec(
                qk_layernorm=bool(flags.get("qk-layernorm")),
                multi_latent_attention=latent,
                normalization=flags.get("normalization")))
    if latent:
        # Transformer Engine's classes, which are absent.
        multi_latent_attention.TELinear = type(None)

        class CoreAttention(DotProductAttention):  # It has no parameters.
            def __init__(self, *args, k_channels=0, v_channels=0, **kwargs):
                super().__init__(*args, **kwargs)

        layer.submodules.self_attention.submodules.core_attention = (
            CoreAttention)
    mtp = None
    if "mtp-num-layers" in flags:
        mtp = gpt_layer_specs.get_gpt_mtp_block_spec(
            config, layer, use_transformer_engine=False)
    model = gpt_model.GPTModel(
        config=config, transformer_layer_spec=layer,
        vocab_size=int(flags["padded-vocab-size"]),
        max_sequence_length=int(flags.get("max-position-embeddings", 64)),
        share_embeddings_and_output_weights=(
            "untie-embeddings-and-output-weights" not in flags),
        position_embedding_type=flags.get("position-embedding-type",
                                          "learned_absolute"),
        mtp_block_spec=mtp)
    return count(model)


def titan_counts(model):
    """Yields flavors with their parameters."""
    import torch
    # Before they could find a triton.
    for name in ("_dynamo", "_inductor.compile_fx", "nn.attention.flex_attention",
                 "_inductor.runtime.triton_compat", "_higher_order_ops"):
        importlib.import_module("torch." + name)
    absent = [name for name in ABSENT if name not in sys.modules]
    sys.modules.update((name, unittest.mock.MagicMock()) for name in absent)
    try:
        module = importlib.import_module("torchtitan.models." + model)
    finally:
        for name in absent:
            del sys.modules[name]
    for flavor, config in getattr(module, TITAN[model]).items():
        if callable(config):
            given = {"attn_backend": "flex", "moe_comm_backend": "standard"}
            known = inspect.signature(config).parameters
            config = config(**{k: v for k, v in given.items() if k in known})
        with torch.device("meta"):
            yield flavor, count(config.build())


def main():
    pipeloom, which = sys.argv[1], sys.argv[2:] or ["megatron", "torchtitan"]
    different = compared = 0

    def compare(what, real, made):
        nonlocal different, compared
        compared += 1
        different += real != made
        if real != made:
            print(f"{what}: the real model has {real:,} parameters, ours "
                  f"{made:,}: {made - real:+,}")

    try:
        if "megatron" in which:
            for name, text in MEGATRON.items():
                compare("megatron " + name, megatron_count(text),
                        ours(pipeloom, "--", *text.split()))
        if "torchtitan" in which:
            listed = subprocess.run([pipeloom, "model", "torchtitan:llama3/x"],
                                    capture_output=True, text=True)
            assert "the flavors of llama3 are" in listed.stderr, listed.stderr
            for model in TITAN:
                for flavor, real in titan_counts(model):
                    if flavor in ("debugmodel_non_fused_qkv",) or (
                            model in ("gpt_oss", "kimi_k2_7") and
                            flavor == "debugmodel"):
                        continue  # Not in our list.
                    try:
                        made = ours(pipeloom, f"torchtitan:{model}/{flavor}")
                    except AssertionError as error:
                        print(f"{model}/{flavor}: {error}")
                        made = 0
                    compare(f"torchtitan {model}/{flavor}", real, made)
    except ImportError as error:
        print(f"skipped: {error}")
        return 0
    print(f"{compared} models compared, {different} differ")
    return different > 0


if __name__ == "__main__":
    sys.exit(main())
