"""Options of real models under which a pipeline must still be one process:
half precision, gradient checkpointing, attention implementations, dropout; and
those that are refused.

usage: test_hf_options.py    with a Python that has transformers, such as
scripts/hf_peer.sh makes.
"""
import copy
import dataclasses
import random
import sys
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
from hf_models import SAMPLES, make_model
from pipeloom import hf
from pipeloom.hf.family import family_of
from test_weights import on_two

MICRO = [0, 0, 0, 1, 1]


def prepare(family, options):
    model = make_model(family, 1, options.get("tied", False))
    model.to(options.get("dtype", torch.float32))
    if "attention" in options:
        model.set_attn_implementation(options["attention"])
    if "reentrant" in options:
        model.gradient_checkpointing_enable(
            {"use_reentrant": options["reentrant"]})
    for name, p in model.named_parameters():
        p.requires_grad_(not any(part in name for part in
                                 options.get("freeze", ())))
    return model


def recomputing(plan, pipe):
    """Returns the plan with all layers recomputed."""
    return dataclasses.replace(plan, activations={
        i: ("RECOMPUTE",) * pipe.partition.stages[t.stage].num_layers
        for i, t in plan.tasks.items() if t.kind == "F"})


def compare(rank, family, options):
    """Returns the differences of losses and gradients from one process, which
    runs the microbatches one by one."""
    model = prepare(family, options)
    one = hf_training.Reference(copy.deepcopy(model))
    pipe = hf.Pipeline(model, hf.even_partition(model, 2), rank=rank)
    draw = random.Random(2)
    samples = [SAMPLES[family](draw) for _ in MICRO]
    plan = pipe.static_plan(0, pipe.microbatches(samples, MICRO))
    if options.get("recompute"):
        plan = recomputing(plan, pipe)
    loss = torch.tensor([pipe.step(plan, samples).loss], dtype=torch.float64)
    dist.all_reduce(loss)
    total = sum(pipe.family.count(s) for s in samples)
    expected, gradients = 0.0, {}
    for m in range(2):
        own = [s for s, n in zip(samples, MICRO) if n == m]
        share = sum(pipe.family.count(s) for s in own) / total
        expected += share * one.backward(own)
        for name, p in one.model.named_parameters():
            if p.grad is not None:
                gradients[name] = gradients.get(name, 0) + share * p.grad
    floor = 1e-3 * max(float(g.norm()) for g in gradients.values())
    if "dtype" in options:  # Small gradients are only rounding: all at once.
        pairs = [(p.grad.float(), gradients[name].float())
                 for name, p in pipe.named_parameters() if name in gradients]
        worst = (sum(float((a - b).norm()) ** 2 for a, b in pairs) /
                 sum(float(b.norm()) ** 2 for _, b in pairs)) ** 0.5
    else:
        worst = max(hf_training.distance(p.grad, gradients.get(name), floor)
                    for name, p in pipe.named_parameters())
    return worst, abs(float(loss) / expected - 1)


def dropout(rank):
    """Gradients with dropout, with all layers kept and with all recomputed."""
    gradients = []
    for again in (False, True):
        model = make_model("llama", 1, changes={"attention_dropout": 0.5})
        pipe = hf.Pipeline(model, hf.even_partition(model, 2), rank=rank)
        draw = random.Random(2)
        samples = [SAMPLES["llama"](draw) for _ in MICRO]
        plan = pipe.static_plan(0, pipe.microbatches(samples, MICRO))
        torch.manual_seed(7 + rank)
        pipe.step(recomputing(plan, pipe) if again else plan, samples)
        gradients.append([p.grad for p in pipe.parameters()])
        pipe.zero_grad()
        pipe.train(False)
        pipe.step(plan, samples)
        gradients.append([p.grad for p in pipe.parameters()])
    same, off = (all(torch.equal(a, b) for a, b in zip(gradients[i],
                                                       gradients[j]))
                 for i, j in ((0, 2), (1, 3)))
    return same, off, torch.equal(gradients[0][0], gradients[1][0])


def shard(rank, before):
    """Divides parameters by FSDP2, before or after the split."""
    from torch.distributed.fsdp import fully_shard
    model = make_model("llama", 1)
    samples = [SAMPLES["llama"](random.Random(2))] * 5
    try:
        if before:
            fully_shard(model.model.layers[1])
        pipe = hf.Pipeline(model, hf.even_partition(model, 2), rank=rank)
        for stage in pipe.stages.values():
            fully_shard(stage)
        pipe.step(pipe.static_plan(0, pipe.microbatches(samples, MICRO)),
                  samples)
    except ValueError as error:
        return str(error)
    return ""


class OptionsTest(unittest.TestCase):

    def check(self, family, tolerance=1e-5, **options):
        for gradient, loss in on_two(compare, family, options):
            self.assertLess(gradient, tolerance)
            self.assertLess(loss, tolerance)

    def test_half_precision(self):
        # One rounding of bfloat16 is 0.4 %.
        for family, tied in (("qwen3_vl", False), ("llava_onevision", False),
                             ("llama", True)):
            self.check(family, 0.02, dtype=torch.bfloat16, tied=tied)

    def test_attention_implementations(self):
        for attention in ("eager", "sdpa"):
            self.check("qwen3_vl", attention=attention)
            self.check("llava", attention=attention, recompute=True)

    def test_gradient_checkpointing_of_the_model_stays_exact(self):
        for reentrant in (False, True):
            self.check("qwen2_5_vl", reentrant=reentrant)
        self.check("llama", reentrant=False, recompute=True)

    def test_a_frozen_tower_with_gradient_checkpointing(self):
        self.check("llava", reentrant=False, freeze=["vision_tower"])
        self.check("qwen3_vl", reentrant=False, freeze=["model.visual"])

    def test_dropout_is_the_same_when_layers_are_recomputed(self):
        self.assertEqual(on_two(dropout), [[True, True, False]] * 2)

    def test_divided_parameters_are_refused(self):
        for before in (False, True):
            for error in on_two(shard, before):
                self.assertRegex(error, "is a DTensor: parameters of a "
                                 "pipeline cannot be divided by fully_shard")

    def test_arguments_that_would_be_ignored_are_refused(self):
        for family, name in (("llama", "position_ids"),
                             ("llava", "image_sizes"),
                             ("qwen3_vl", "inputs_embeds")):
            here = family_of(make_model(family, 1))
            sample = SAMPLES[family](random.Random(1))
            here.check_sample({**sample, "id": 7, name: None})
            with self.assertRaisesRegex(hf.SampleError, f"'{name}' would be "
                                        "ignored: remove it; fields of a"):
                here.check_sample({**sample, name: torch.zeros(1)})

    def test_checkpointing_that_a_pipeline_would_not_do_is_refused(self):
        try:
            import diffusers  # noqa: F401
        except ImportError:
            self.skipTest("no diffusers")
        model = make_model("wan", 1)
        family_of(model)
        model.enable_gradient_checkpointing()
        with self.assertRaisesRegex(ValueError, "checkpointing is on.*disable"):
            family_of(model)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
