"""Tiny configurations of real classes, and samples as their processors would
return them."""
import copy

import torch

TEXT = dict(vocab_size=256, hidden_size=32, intermediate_size=64,
            num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, tie_word_embeddings=False,
            rms_norm_eps=1e-6, hidden_act="silu")
IMAGE, VIDEO, START, END = 250, 251, 252, 253
TOKENS = dict(image_token_id=IMAGE, video_token_id=VIDEO,
              vision_start_token_id=START, vision_end_token_id=END,
              tie_word_embeddings=False)
VISION = dict(depth=5, hidden_size=32, intermediate_size=64, num_heads=4,
              patch_size=4, spatial_merge_size=2, temporal_patch_size=2,
              in_channels=3, out_hidden_size=32)
TILE = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=5,
            num_attention_heads=4, image_size=16, patch_size=4, num_channels=3)
CONFIGS = {
    "llama": dict(TEXT, model_type="llama",
                  architectures=["LlamaForCausalLM"]),
    "qwen2_5_vl": dict(
        TOKENS, model_type="qwen2_5_vl",
        architectures=["Qwen2_5_VLForConditionalGeneration"],
        text_config=dict(TEXT, model_type="qwen2_5_vl_text",
                         rope_parameters=dict(rope_type="default",
                                              rope_theta=10000.0,
                                              mrope_section=[1, 1, 2])),
        vision_config=dict(VISION, model_type="qwen2_5_vl", window_size=16,
                           fullatt_block_indexes=[1, 4], hidden_act="silu")),
    "qwen3_vl": dict(
        TOKENS, model_type="qwen3_vl",
        architectures=["Qwen3VLForConditionalGeneration"],
        text_config=dict(TEXT, model_type="qwen3_vl_text", head_dim=8,
                         rope_parameters=dict(rope_type="default",
                                              rope_theta=10000.0,
                                              mrope_interleaved=True,
                                              mrope_section=[2, 1, 1])),
        vision_config=dict(VISION, model_type="qwen3_vl",
                           num_position_embeddings=64,
                           deepstack_visual_indexes=[0, 1, 3],
                           hidden_act="gelu_pytorch_tanh")),
    "internvl": dict(
        model_type="internvl", image_token_id=IMAGE, image_seq_length=4,
        architectures=["InternVLForConditionalGeneration"],
        downsample_ratio=0.5, projector_hidden_act="gelu",
        vision_feature_layer=-1, vision_feature_select_strategy="default",
        tie_word_embeddings=False,
        text_config=dict(TEXT, model_type="qwen2",
                         architectures=["Qwen2ForCausalLM"]),
        vision_config=dict(model_type="internvl_vision", hidden_size=32,
                           num_hidden_layers=5, num_attention_heads=4,
                           intermediate_size=64, image_size=[16, 16],
                           patch_size=[4, 4], num_channels=3,
                           attention_bias=True, hidden_act="gelu")),
    "llava": dict(
        model_type="llava", image_token_index=IMAGE, image_seq_length=16,
        architectures=["LlavaForConditionalGeneration"],
        projector_hidden_act="gelu", vision_feature_layer=-2,
        vision_feature_select_strategy="default", tie_word_embeddings=False,
        text_config=dict(TEXT, model_type="llama"),
        vision_config=dict(TILE, model_type="clip_vision_model")),
    "llava_onevision": dict(
        model_type="llava_onevision", image_token_index=IMAGE,
        video_token_index=VIDEO, projector_hidden_act="gelu",
        architectures=["LlavaOnevisionForConditionalGeneration"],
        vision_feature_layer=-1, vision_feature_select_strategy="full",
        vision_aspect_ratio="anyres_max_2", tie_word_embeddings=False,
        image_grid_pinpoints=[[16, 16], [16, 32], [32, 16], [32, 32]],
        text_config=dict(TEXT, model_type="qwen2"),
        vision_config=dict(TILE, model_type="siglip_vision_model",
                           vision_use_head=False)),
    "wan": dict(_class_name="WanTransformer3DModel", patch_size=[1, 2, 2],
                num_attention_heads=4, attention_head_dim=12, in_channels=4,
                out_channels=4, text_dim=16, freq_dim=32, ffn_dim=64,
                num_layers=6, cross_attn_norm=True,
                qk_norm="rms_norm_across_heads", eps=1e-6,
                rope_max_seq_len=32),
}


def make_model(family, seed, tied=False, changes=None):
    """`changes`: fields of the configuration that differ."""
    config = copy.deepcopy(CONFIGS[family])
    for name, value in (changes or {}).items():
        if isinstance(value, dict):
            config[name].update(value)
        else:
            config[name] = value
    torch.manual_seed(seed)
    if "_class_name" in config:
        import diffusers
        kind = getattr(diffusers, config.pop("_class_name"))
        model = kind.from_config(config)
    else:
        import transformers
        for part in (config, config.get("text_config", {})):
            part["tie_word_embeddings"] = tied
        kind = getattr(transformers, config["architectures"][0])
        model = kind(kind.config_class.from_dict(config))
    for p in model.parameters():  # Biases and norms too are not trivial.
        p.data += 0.05 * torch.randn_like(p)
    return model.train()


def words(draw, low, high):
    return [draw.randrange(240) for _ in range(draw.randint(low, high))]


def noise(draw, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(
        draw.randrange(1 << 30)))


def text(draw, ids):
    ids = torch.tensor([ids])
    labels = ids.clone()
    labels[ids >= IMAGE] = -100
    labels[:, :draw.randint(0, 3)] = -100
    return {"input_ids": ids, "labels": labels}


def llama(draw):
    return text(draw, words(draw, 4, 40))


def qwen(draw, frames_apart):
    """One sample in three is text only; the others have up to three images or
    videos."""
    ids, grids = words(draw, 2, 12), {IMAGE: [], VIDEO: []}
    for _ in range(draw.choice([0, 1, 3])):
        kind = draw.choice([IMAGE, IMAGE, VIDEO])
        frames = 1 if kind == IMAGE else draw.randint(2, 3)
        h, w = 2 * draw.randint(1, 4), 2 * draw.randint(1, 4)
        grids[kind].append((frames, h, w))
        pieces = frames if frames_apart else 1
        for _ in range(pieces):
            ids += [START] + [kind] * (frames // pieces * h * w // 4) + [END]
            ids += words(draw, 1, 3)
    sample = text(draw, ids + words(draw, 3, 20))
    types = torch.zeros_like(sample["input_ids"])
    types[sample["input_ids"] == IMAGE] = 1
    types[sample["input_ids"] == VIDEO] = 2
    sample["mm_token_type_ids"] = types
    for kind, grid, pixels in (
            (IMAGE, "image_grid_thw", "pixel_values"),
            (VIDEO, "video_grid_thw", "pixel_values_videos")):
        if grids[kind]:
            sample[grid] = torch.tensor(grids[kind])
            sample[pixels] = noise(
                draw, sum(t * h * w for t, h, w in grids[kind]), 96)
    if grids[VIDEO] and not frames_apart:
        sample["second_per_grid_ts"] = torch.tensor(
            [draw.choice([0.5, 1.0]) for _ in grids[VIDEO]])
    return sample


def internvl(draw):
    ids, counts = words(draw, 2, 12), []
    for _ in range(draw.choice([0, 1, 2])):
        counts.append(draw.choice([1, 3]))
        ids += [IMAGE] * (4 * counts[-1]) + words(draw, 1, 3)
    sample = text(draw, ids + words(draw, 3, 20))
    if counts:
        sample["image_num_patches"] = counts
        sample["pixel_values"] = noise(draw, sum(counts), 3, 16, 16)
    return sample


def llava(draw):
    ids, images = words(draw, 2, 12), draw.choice([0, 1, 2])
    for _ in range(images):
        ids += [IMAGE] * 16 + words(draw, 1, 3)
    sample = text(draw, ids + words(draw, 3, 20))
    if images:
        sample["pixel_values"] = noise(draw, images, 3, 16, 16)
    return sample


# Tiles and tokens of images, by height and width, as the processor counts them:
# 16 of the whole, and the rows of the tiles without padding, each with a token
# at its end. 32 x 32 is scaled down to two tiles' tokens.
ANY_RESOLUTION = {(16, 16): (2, 36), (16, 32): (3, 52), (20, 16): (3, 46),
                  (32, 32): (5, 46), (30, 25): (5, 46)}


def llava_onevision(draw):
    """Text only, an image of any resolution, several images in a tile each, or
    a video, with or without images."""
    ids, images = words(draw, 2, 12), draw.choice([0, 1, 1, 3])
    sizes = [draw.choice(sorted(ANY_RESOLUTION)) for _ in range(images)]
    tiles = 1
    for size in sizes:
        tokens = 17
        if images == 1:
            tiles, tokens = ANY_RESOLUTION[size]
        ids += [IMAGE] * tokens + words(draw, 1, 3)
    video = draw.random() < 0.3
    if video:  # All have three frames, as one call of the real class needs.
        ids += [VIDEO] * (3 * 4 + 1) + words(draw, 1, 3)
    sample = text(draw, ids + words(draw, 3, 20))
    if images:
        sample["image_sizes"] = torch.tensor(sizes)
        sample["batch_num_images"] = torch.tensor([images])
        sample["pixel_values"] = noise(draw, images, tiles, 3, 16, 16)
    if video:
        sample["pixel_values_videos"] = noise(draw, 1, 3, 3, 16, 16)
    return sample


def wan(draw):
    shape = (1, 4, 2, 4, 6)
    return {"hidden_states": noise(draw, *shape),
            "target": noise(draw, *shape),
            "timestep": torch.tensor([draw.randrange(1000)]),
            "encoder_hidden_states": noise(draw, 1, 7, 16)}


SAMPLES = {"llama": llama, "qwen2_5_vl": lambda draw: qwen(draw, False),
           "qwen3_vl": lambda draw: qwen(draw, True), "internvl": internvl,
           "llava": llava, "llava_onevision": llava_onevision, "wan": wan}
