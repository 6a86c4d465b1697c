#!/usr/bin/python3
"""Compares golden.json with the real classes of transformers and diffusers.

usage: real_counts.py [--update] [MODEL...]

Makes the class of every configuration in configs.json on the meta device, which
holds no weights, and counts its parameters. --update writes golden.json instead
of comparing with it. Prints "skipped: ..." where a library is missing.
"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "golden.json")
# Classes by model_type, where the library's table names another.
CLASSES = {
    "gemma3_text": "Gemma3ForCausalLM",
    "llama4": "Llama4ForConditionalGeneration",
    "qwen2_audio": "Qwen2AudioForConditionalGeneration",
    "qwen2_5_omni_thinker": "Qwen2_5OmniThinkerForConditionalGeneration",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "qwen3_omni_moe_thinker": "Qwen3OmniMoeThinkerForConditionalGeneration",
    "whisper": "WhisperForConditionalGeneration",
}
CONFIGS = {
    "qwen2_5_omni_thinker": "Qwen2_5OmniThinkerConfig",
    "qwen3_omni_moe_thinker": "Qwen3OmniMoeThinkerConfig",
}


def count(model):
    """Parameters, each counted once if it has several names."""
    return sum(p.numel() for p in model.parameters())


def transformers_count(config):
    import transformers
    import torch
    kind = config["model_type"]
    named = (config.get("architectures") or [""])[0]
    described = (getattr(transformers, CONFIGS[kind]) if kind in CONFIGS
                 else transformers.CONFIG_MAPPING[kind])
    made = described.from_dict(dict(config))
    with torch.device("meta"):
        if named and hasattr(transformers, named):
            model = getattr(transformers, named)(made)
        elif kind in CLASSES:
            model = getattr(transformers, CLASSES[kind])(made)
        else:
            for auto in (transformers.AutoModelForCausalLM,
                         transformers.AutoModelForImageTextToText):
                if type(made) in auto._model_mapping:
                    model = auto.from_config(made)
                    break
    return type(model).__name__, count(model)


def diffusers_count(config):
    import diffusers
    import torch
    made = getattr(diffusers, config["_class_name"])
    with torch.device("meta"):
        model = made.from_config(config)
    return made.__name__, count(model)


def main():
    try:
        import diffusers
        import torch
        import transformers
    except ImportError as error:
        print(f"skipped: {error}")
        return 0
    if not transformers.utils.is_torch_available():
        print(f"skipped: transformers does not take torch {torch.__version__}")
        return 0
    transformers.logging.set_verbosity_error()
    diffusers.logging.set_verbosity_error()
    with open(os.path.join(HERE, "configs.json"), encoding="utf-8") as file:
        configs = json.load(file)
    only = [name for name in sys.argv[1:] if not name.startswith("-")]
    found = {}
    for name, config in configs.items():
        if only and name not in only:
            continue
        real = (diffusers_count if "_class_name" in config
                else transformers_count)
        kind, parameters = real(config)
        found[name] = {"class": kind, "parameters": parameters}
        print(f"{name}: {kind} {parameters:,}", flush=True)
    if "--update" in sys.argv:
        if only:
            with open(GOLDEN, encoding="utf-8") as file:
                found = {**json.load(file)["models"], **found}
        with open(GOLDEN, "w", encoding="utf-8") as file:
            json.dump({"transformers": transformers.__version__,
                       "diffusers": diffusers.__version__,
                       "models": found}, file, indent=1)
            file.write("\n")
        return 0
    with open(GOLDEN, encoding="utf-8") as file:
        golden = json.load(file)["models"]
    wrong = [name for name in found if golden.get(name) != found[name]]
    for name in wrong:
        print(f"{name}: golden.json has {golden.get(name)}, "
              f"the class {found[name]}")
    print(f"{len(found) - len(wrong)} of {len(found)} agree")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
