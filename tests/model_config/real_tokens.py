#!/usr/bin/python3
"""Compares tokens.json with the real image processors of transformers.

usage: real_tokens.py [--update]

tokens.json has a thousand random image sizes with the tokens that an image of
that size has in the language model. --update writes it instead of comparing.
Prints "skipped: ..." where transformers or torch is missing.
"""
import json
import os
import random
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "tokens.json")
MODELS = ["qwen2.5-vl", "qwen2.5-vl-small", "qwen3-vl", "internvl3",
          "llava-onevision", "llava-1.5"]


def random_sizes():
    draw = random.Random(5)
    sizes = []
    while len(sizes) < 1000:
        # Mostly of common sizes, some tiny, huge or long.
        top = draw.choice([300, 1200, 2000, 4096, 9000])
        width, height = draw.randint(1, top), draw.randint(1, top)
        if max(width, height) < 150 * min(width, height):
            sizes.append((width, height))
    return sizes


def counters():
    """Returns a function from width and height to tokens for each model."""
    from transformers.models.got_ocr2.image_processing_got_ocr2 import (
        GotOcr2ImageProcessor)
    from transformers.models.llava.processing_llava import LlavaProcessor
    from transformers.models.llava_onevision.configuration_llava_onevision import (
        LlavaOnevisionConfig)
    from transformers.models.llava_onevision.processing_llava_onevision import (
        LlavaOnevisionProcessor)
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import (
        Qwen2VLImageProcessor)

    def qwen(patch, least, most):
        processor = Qwen2VLImageProcessor(
            patch_size=patch, merge_size=2,
            size={"shortest_edge": least, "longest_edge": most})

        def count(width, height):
            patches = processor.get_number_of_image_patches(height, width, {})
            return patches // 4
        return count

    got = GotOcr2ImageProcessor(crop_to_patches=True, min_patches=1,
                                max_patches=12,
                                size={"height": 448, "width": 448})

    def internvl(width, height):
        tiles = got.get_number_of_image_patches(height, width, {})
        return 256 * tiles + 2  # With the markers of begin and end.

    # The method needs these attributes of a processor, and no tokenizer.
    llava = types.SimpleNamespace(
        image_processor=types.SimpleNamespace(
            image_grid_pinpoints=LlavaOnevisionConfig().image_grid_pinpoints),
        num_image_tokens=729, vision_aspect_ratio="anyres_max_9")
    llava._get_unpadded_features = types.MethodType(
        LlavaOnevisionProcessor._get_unpadded_features, llava)

    def onevision(width, height):
        return LlavaOnevisionProcessor._get_number_of_features(
            llava, height, width, 384, 384)

    llava15 = types.SimpleNamespace(
        _merge_kwargs=lambda: {"images_kwargs": {}},
        image_processor=types.SimpleNamespace(
            crop_size={"height": 336, "width": 336}),
        patch_size=14, num_additional_image_tokens=1,
        vision_feature_select_strategy="default")

    def fifteen(width, height):
        found = LlavaProcessor._get_num_multimodal_tokens(
            llava15, [[height, width]])
        return found["num_image_tokens"][0]

    return [qwen(14, 3136, 12845056), qwen(14, 200704, 1003520),
            qwen(16, 65536, 16777216), internvl, onevision,
            fifteen]


def main():
    try:
        import torch
        import torchvision  # noqa: F401
        import transformers
    except ImportError as error:
        print(f"skipped: {error}")
        return 0
    if not transformers.utils.is_torch_available():
        print(f"skipped: transformers does not take torch {torch.__version__}")
        return 0
    functions = counters()
    rows = [[w, h, *(count(w, h) for count in functions)]
            for w, h in random_sizes()]
    if "--update" in sys.argv:
        with open(GOLDEN, "w", encoding="utf-8") as file:
            file.write('{"transformers": %s,\n "columns": %s,\n "images": [\n'
                       % (json.dumps(transformers.__version__),
                          json.dumps(["width_px", "height_px"] + MODELS)))
            file.write(",\n".join(json.dumps(row) for row in rows))
            file.write("\n]}\n")
        return 0
    with open(GOLDEN, encoding="utf-8") as file:
        golden = json.load(file)["images"]
    wrong = [pair for pair in zip(golden, rows) if pair[0] != pair[1]]
    for before, now in wrong[:10]:
        print(f"tokens.json has {before}, the processors {now}")
    print(f"{len(rows) - len(wrong)} of {len(rows)} sizes agree")
    return 1 if wrong or len(golden) != len(rows) else 0


if __name__ == "__main__":
    sys.exit(main())
