"""Real classes of transformers and diffusers as pipelines, planned live by the
service: losses and gradients are those of one process.

usage: test_hf_pipeline.py    with a Python that has transformers, such as
scripts/hf_peer.sh makes; PIPELOOM_BINARY names the program.
hf_training.py trains one family for as many steps and processes as wished.
"""
import copy
import functools
import os
import random
import sys
import types
import unittest

try:
    import grpc  # noqa: F401
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)

import hf_training
from hf_models import SAMPLES, make_model
from pipeloom import hf
from pipeloom.hf.family import family_of

BINARY = os.environ.get("PIPELOOM_BINARY", "pipeloom")
if not os.path.exists(os.path.join(os.path.dirname(BINARY),
                                   "pipeloom-service")):
    print("skipped: no service was built")
    sys.exit(0)


class TrainingTest(unittest.TestCase):

    def train(self, family, *options):
        if family == "wan":
            try:
                import diffusers  # noqa: F401
            except ImportError:
                self.skipTest("no diffusers")
        figures = hf_training.run(hf_training.parse(
            [family, "--pipeloom", BINARY, "--steps", "2", *options]))
        self.assertLess(figures["gradient"], 1e-5)
        self.assertLess(figures["loss"], 1e-5)
        self.assertEqual(figures["missing"], [])
        self.assertEqual(figures["plans"]["planned"], 2)
        return figures

    def test_llama(self):
        figures = self.train("llama")
        # Each rank holds its own parameters only.
        self.assertEqual(sum(figures["parameters"]), figures["whole"])
        self.assertLess(max(figures["parameters"]), 0.7 * figures["whole"])
        self.assertGreater(figures["facts"]["W"], 0)

    def test_llama_with_tied_embeddings(self):
        figures = self.train("llama", "--tied", "--schedule", "1f1b")
        # Both ends hold the shared weight.
        self.assertGreater(sum(figures["parameters"]), figures["whole"])

    def test_qwen2_5_vl(self):
        figures = self.train("qwen2_5_vl", "--schedule", "1f1b")
        self.assertGreater(figures["facts"]["text-only microbatches"], 0)
        self.assertEqual(figures["facts"]["steps planned by 1f1b"], 2)

    def test_qwen3_vl_with_recomputation(self):
        # So little memory that some layers are recomputed.
        figures = self.train("qwen3_vl", "--spare", "6000000")
        self.assertGreater(figures["facts"]["recomputed forwards"], 0)

    def test_qwen3_vl_on_four_ranks_in_sub_microbatches(self):
        figures = self.train("qwen3_vl", "--schedule", "dip", "--sub", "1",
                             "--ranks", "4")
        self.assertGreater(figures["facts"]["further sub-microbatches"], 0)

    def test_qwen3_vl_with_a_frozen_tower(self):
        self.train("qwen3_vl", "--freeze", "visual.blocks,patch_embed")

    def test_internvl(self):
        self.train("internvl")

    def test_llava_with_features_of_several_blocks(self):
        # The blocks after them are not read, as in one process.
        figures = self.train("llava", "--seed", "4", "--config",
                             '{"vision_feature_layer": [-3, 0, 2]}')
        self.assertGreater(figures["facts"]["text-only microbatches"], 0)

    def test_llava_onevision(self):
        # Images of any resolution, several images, and videos.
        figures = self.train("llava_onevision", "--ranks", "4", "--schedule",
                             "dip", "--sub", "1")
        self.assertGreater(figures["facts"]["further sub-microbatches"], 0)

    def test_replicas_with_divided_parameters(self):
        # Each replica has live plans of its own.
        for family, ranks, shard in (("llama", "2", "step"),
                                     ("qwen2_5_vl", "2", "step"),
                                     ("qwen2_5_vl", "1", "pass")):
            with self.subTest(family=family, ranks=ranks, shard=shard):
                figures = self.train(family, "--ranks", ranks, "--replicas",
                                     "2", "--shard", shard)
                if ranks == "2":  # One rank need not have them apart.
                    self.assertGreater(figures["facts"]["W"], 0)
                # Each process holds its part of its own stages.
                self.assertAlmostEqual(
                    sum(figures["parameters"]) / figures["whole"], 1.0, 2)

    def test_wan(self):
        self.train("wan")


class TokensTest(unittest.TestCase):

    def test_llava_onevision_counts_tokens_as_the_processor(self):
        kind = transformers.LlavaOnevisionProcessor
        model = make_model("llava_onevision", 1)
        family = family_of(model)
        processor = types.SimpleNamespace(
            num_image_tokens=16, vision_aspect_ratio="anyres_max_2",
            image_processor=types.SimpleNamespace(
                image_grid_pinpoints=model.config.image_grid_pinpoints))
        processor._get_unpadded_features = functools.partial(
            kind._get_unpadded_features, processor)
        draw = random.Random(1)
        for _ in range(300):
            height, width = draw.randint(2, 90), draw.randint(2, 90)
            self.assertEqual(
                family.length(height, width, True)[1],
                kind._get_number_of_features(processor, height, width, 16, 16))


class MisuseTest(unittest.TestCase):

    def refused(self, family, change, words):
        family_here = family_of(make_model(family, 1))
        draw = random.Random(3)
        wanted = {"qwen2_5_vl": "video_grid_thw", "qwen3_vl": "image_grid_thw",
                  "internvl": "pixel_values", "llava": "pixel_values",
                  "llava_onevision": "image_sizes"}.get(family)
        sample = SAMPLES[family](draw)
        while wanted is not None and wanted not in sample:
            sample = SAMPLES[family](draw)
        family_here.check_sample(sample)
        sample = copy.copy(sample)
        change(sample)
        with self.assertRaisesRegex(hf.SampleError, words):
            family_here.check_sample(sample)

    def test_missing_fields_are_named(self):
        self.refused("llama", lambda s: s.pop("labels"), "no 'labels'")
        self.refused("llama", lambda s: s.update(labels=s["labels"][:, 1:]),
                     "labels has shape")
        self.refused("qwen3_vl", lambda s: s.pop("mm_token_type_ids"),
                     "mm_token_type_ids is missing.*return_mm_token_type_ids")
        self.refused("qwen3_vl", lambda s: s.pop("image_grid_thw"),
                     "image_grid_thw is missing")
        self.refused("qwen3_vl", lambda s: s.update(
            pixel_values=s["pixel_values"][1:]), "pixel_values has")
        self.refused("qwen2_5_vl", lambda s: s.pop("second_per_grid_ts"),
                     "second_per_grid_ts must have")
        self.refused("internvl", lambda s: s.update(image_num_patches=[9]),
                     "image_num_patches has 9 tiles")
        self.refused("llava", lambda s: s.update(
            pixel_values=s["pixel_values"][1:]), "pixel_values has shape")
        self.refused("llava", lambda s: s["input_ids"][0, -1:].fill_(250),
                     "tokens of image_token_id; an image has 16")
        self.refused("llava_onevision", lambda s: s.pop("image_sizes"),
                     "image_sizes is missing")
        self.refused("llava_onevision", lambda s: s.update(
            batch_num_images=[7]), r"batch_num_images is \[7\]")
        self.refused("llava_onevision", lambda s: s["input_ids"][
            0, -1:].fill_(250), "image_sizes and batch_num_images make")

    def test_a_model_that_cannot_be_split_is_refused(self):
        model = make_model("internvl", 1)
        model.config.vision_feature_layer = -2
        with self.assertRaisesRegex(ValueError, "vision_feature_layer is -2"):
            family_of(model)
        model = make_model("llava", 1)
        model.config.vision_feature_layer = [-2, 6]
        with self.assertRaisesRegex(ValueError, r"vision_feature_layer is "
                                    r"\[-2, 6\]; the tower has 5 layers"):
            family_of(model)
        model.config.vision_config.model_type = "pixtral"
        with self.assertRaisesRegex(ValueError, "model_type is 'pixtral'"):
            family_of(model)
        config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1,
                                         vocab_size=10, n_positions=8)
        with self.assertRaisesRegex(TypeError, "no description of GPT2LMHead"):
            family_of(transformers.GPT2LMHeadModel(config))


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
