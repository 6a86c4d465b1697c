"""Real classes on the meta device: each rank reads its own parameters from what
save_pretrained has written, and from_pretrained reads what the ranks write.

usage: test_hf_weights.py    with a Python that has transformers, such as
scripts/hf_peer.sh makes.
"""
import copy
import os
import random
import sys
import tempfile
import unittest

try:
    import grpc  # noqa: F401
    import torch
    import torch.distributed as dist
    import transformers  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(0)

import hf_training
from hf_models import CONFIGS, SAMPLES, make_model
from pipeloom import hf
from pipeloom.hf.family import family_of
from test_weights import held, on_two


def on_meta(folder, like):
    """Returns a model of the folder's configuration without values."""
    kind = type(like)
    with torch.device("meta"):
        if hasattr(kind, "from_config"):
            return kind.from_config(kind.load_config(folder)).train()
        config = kind.config_class.from_pretrained(folder)
        return kind._from_config(config, dtype=like.dtype).train()


def load_and_save(rank, family, tied, dtype, source, out):
    one = make_model(family, 1, tied).to(dtype)
    meta = on_meta(source, one)
    before = held()
    pipe = hf.Pipeline(meta, hf.even_partition(meta, 2), rank=rank,
                       weights=source)
    own = dict(pipe.named_parameters())
    facts = {"held": held() - before, "read": pipe.bytes_read}
    expected = dict(one.named_parameters(remove_duplicate=False))
    facts["own"] = sum(p.numel() * p.element_size() for p in own.values())
    facts["wrong"] = [n for n, p in own.items()
                      if not torch.equal(p, expected[n])]
    draw = random.Random(1)
    samples = [SAMPLES[family](draw) for _ in range(4)]
    if dtype == torch.float32:
        micro = pipe.microbatches(samples, [0, 0, 1, 1])
        loss = torch.tensor([pipe.step(pipe.static_plan(0, micro),
                                       samples).loss])
        dist.all_reduce(loss)
        # Buffers that no checkpoint has are those of the real model.
        facts["off"] = abs(float(loss) / hf_training.Reference(
            copy.deepcopy(one)).backward(samples) - 1)
    pipe.save(out)
    return facts


class WeightsTest(unittest.TestCase):

    def round_trip(self, family, tied=False, dtype=torch.float32):
        if family == "wan":
            try:
                import diffusers  # noqa: F401
            except ImportError:
                return
        model = make_model(family, 1, tied).to(dtype)
        with tempfile.TemporaryDirectory() as folder:
            source, out = (os.path.join(folder, n) for n in ("in", "out"))
            # Several shards with an index, of the largest ones.
            model.save_pretrained(source, max_shard_size=(
                "100KB" if family == "qwen3_vl" else "1GB"))
            ranks = on_two(load_and_save, family, tied, dtype, source, out)
            again = self.read(model, out)
            self.assertEqual(again.dtype, dtype)
        for facts in ranks:
            self.assertEqual(facts["wrong"], [])
            self.assertEqual(facts["read"], facts["own"])
            # Buffers, and stand-ins for types.
            self.assertLess(abs(facts["held"] - facts["own"]), 8000)
            self.assertLess(facts.get("off", 0.0), 1e-5)
        expected = model.state_dict()
        self.assertEqual(set(again.state_dict()), set(expected))
        for name, value in again.state_dict().items():
            self.assertTrue(torch.equal(value, expected[name]), name)

    def read(self, model, folder):
        kind = type(model)
        if not hasattr(kind, "from_config"):
            return kind.from_pretrained(folder)
        # from_pretrained of diffusers needs another package, accelerate.
        from safetensors.torch import load_file
        again = kind.from_config(kind.load_config(folder))
        state = {}
        for file in sorted(os.listdir(folder)):
            if file.endswith(".safetensors"):
                state.update(load_file(os.path.join(folder, file)))
        again.load_state_dict(state)
        return again

    def test_every_family(self):
        for family in CONFIGS:
            with self.subTest(family=family):
                self.round_trip(family)

    def test_tied_embeddings(self):
        self.round_trip("llama", tied=True)

    def test_half_precision(self):
        self.round_trip("qwen2_5_vl", dtype=torch.bfloat16)

    def test_a_model_without_values_is_refused_without_weights(self):
        with torch.device("meta"):
            model = make_model("llama", 1)
        self.assertEqual(family_of(model).place_of("model.layers.3.mlp.x"),
                         "model.layers.3")
        errors = on_two(refused)
        self.assertRegex(errors[0], "LlamaForCausalLM is on the meta device "
                         "and has no values: give weights=")


def refused(rank):
    with torch.device("meta"):
        model = make_model("llama", 1)
    try:
        hf.Pipeline(model, hf.even_partition(model, 2), rank=rank)
    except ValueError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
