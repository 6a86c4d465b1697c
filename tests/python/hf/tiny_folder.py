"""A folder of a tiny real model, as a hub would have it: configuration,
safetensors, processor and chat template; and datasets for it, made on the
spot."""
import io
import json
import os
import tarfile

import torch
import transformers
from PIL import Image

from hf_models import make_model

TEMPLATE = """{% for m in messages %}<{{ m.role }}>{% if m.content is string %}\
{{ m.content }}{% else %}{% for c in m.content %}{% if c.type == 'image' %}\
<|image_pad|>{% else %}{{ c.text }}{% endif %}{% endfor %}{% endif %}<end>\
{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""
# Those of hf_models: image, video, start and end of vision.
SPECIAL = {"<|image_pad|>": 250, "<|video_pad|>": 251, "<|vision_start|>": 252,
           "<|vision_end|>": 253, "<user>": 240, "<assistant>": 241,
           "<system>": 242, "<end>": 243}


def make_tokenizer():
    """Returns a tokenizer of letters with 256 ids."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
    words = {chr(32 + i): i for i in range(95)}
    words.update({f"unused{i}": i for i in range(95, 256)
                  if i not in SPECIAL.values()})
    words.update(SPECIAL)
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="unused95"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.add_special_tokens([AddedToken(t, special=True)
                                  for t in SPECIAL])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="unused96",
        eos_token="<end>")


def make_folder(family, folder, weights=True):
    """Writes the folder. Returns the model."""
    model = make_model(family, 1)
    if weights:
        model.save_pretrained(folder, max_shard_size="100KB")
    else:
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
    tokenizer = make_tokenizer()
    if family == "qwen2_5_vl":
        sizes = dict(patch_size=4, temporal_patch_size=2, merge_size=2,
                     size={"shortest_edge": 64, "longest_edge": 4096})
        processor = transformers.Qwen2_5_VLProcessor(
            transformers.Qwen2VLImageProcessor(**sizes), tokenizer,
            transformers.Qwen2VLVideoProcessor(**sizes),
            chat_template=TEMPLATE)
    elif family == "llava":
        square = {"height": 16, "width": 16}
        processor = transformers.LlavaProcessor(
            transformers.CLIPImageProcessor(size=square, crop_size=square),
            tokenizer, patch_size=4, num_additional_image_tokens=1,
            vision_feature_select_strategy="default", chat_template=TEMPLATE,
            image_token="<|image_pad|>")
    else:
        tokenizer.chat_template = TEMPLATE
        processor = tokenizer
    processor.save_pretrained(folder)
    return model


def make_image(width, height, seed):
    g = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (height, width, 3), generator=g)
    return Image.frombytes("RGB", (width, height),
                           bytes(pixels.to(torch.uint8).flatten().tolist()))


def make_jsonl(folder, count):
    """Writes records of LLaVA kind, with two answers each; every third is text
    only. Returns the file."""
    records = []
    for i in range(count):
        ask = f"what is {i}?"
        record = {"id": str(i), "conversations": [
            {"from": "human", "value": ask if i % 3 == 2 else
             "<image>\n" + ask},
            {"from": "gpt", "value": f"it is {i}."},
            {"from": "human", "value": "sure?"},
            {"from": "gpt", "value": "yes, " * (1 + i % 4)}]}
        if i % 3 != 2:
            record["image"] = f"images/{i}.png"
            path = os.path.join(folder, record["image"])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            make_image(12 + 8 * (i % 3), 16 + 4 * (i % 5), i).save(path)
        records.append(record)
    file = os.path.join(folder, "train.jsonl")
    with open(file, "w", encoding="utf-8") as text:
        text.writelines(json.dumps(r) + "\n" for r in records)
    return file


def make_shard(folder, count):
    """Writes a webdataset shard of images with captions. Returns the file."""
    file = os.path.join(folder, "train-0000.tar")
    with tarfile.open(file, "w") as shard:
        for i in range(count):
            data = io.BytesIO()
            make_image(20, 16 + i, i).save(data, "PNG")
            for name, content in ((f"{i:05d}.png", data.getvalue()),
                                  (f"{i:05d}.txt", f"caption {i}".encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))
    return file
