"""Training with pipeloom.hf as users do: clipping over stages, gradients of
several calls, shared and frozen weights, optimizers with options by name. A
small model in plain torch on two processes, compared with one."""
import random
import unittest

import test_split
from test_split import HAVE_ALL, cut
from test_weights import model_of, on_two

if HAVE_ALL:
    import torch
    from torch import nn

    from pipeloom import hf
    from pipeloom.torch import LossScaler


def make(rank, tied, frozen="", **options):
    """Returns the pipeline and the model in one process."""
    models = []
    for _ in range(2):
        model = model_of(tied)
        for name, p in model.named_parameters():
            p.requires_grad_(not (frozen and frozen in name))
        models.append(model)
    return hf.Pipeline(models[0], cut(2, 2), rank=rank, **options), models[1]


def step(pipe, samples, **options):
    micro = pipe.microbatches(samples, [0, 0, 1, 1, 2, 2])
    return pipe.step(pipe.static_plan(0, micro), samples, **options)


def backward(one, samples, terms):
    for m in range(3):
        pair = samples[2 * m:2 * m + 2]
        ids = torch.cat([s["ids"] for s in pair])
        pixels = [s["pixels"] for s in pair if "pixels" in s]
        (nn.functional.cross_entropy(
            one(ids, torch.cat(pixels) if pixels else None), ids,
            reduction="sum") / terms).backward()


def named(one):
    return {**dict(one.named_parameters()), "head.weight": one.head.weight}


def worst(pipe, one):
    expected = named(one)
    return max(float((p.grad - expected[n].grad).abs().max())
               for n, p in pipe.named_parameters() if p.grad is not None)


def count(samples):
    return sum(len(s["ids"]) for s in samples)


def clip(rank, tied):
    result = []
    draw = random.Random(5)
    for kind in (2.0, 1.0, float("inf")):
        pipe, one = make(rank, tied)
        samples = test_split.samples_of(draw)
        step(pipe, samples)
        backward(one, samples, count(samples))
        norm = float(pipe.clip_grad_norm_(0.01, kind))
        expected = float(nn.utils.clip_grad_norm_(one.parameters(), 0.01,
                                                  kind))
        result.append((abs(norm / expected - 1), worst(pipe, one)))
        # Gradients that are small enough stay.
        before = [p.grad.clone() for p in pipe.parameters()]
        pipe.clip_grad_norm_(1e9)
        assert all(torch.equal(a, p.grad)
                   for a, p in zip(before, pipe.parameters()))
    return result


def scale(rank, tied):
    """Clipping of gradients that a LossScaler has scaled, and a step that it
    leaves out on both ranks."""
    scaler = LossScaler(2.0 ** 12)
    pipe, one = make(rank, tied, scaler=scaler)
    optimizer = torch.optim.SGD(pipe.parameters(), 0.1)
    draw = random.Random(5)
    samples = test_split.samples_of(draw)
    step(pipe, samples)
    backward(one, samples, count(samples))
    scaler.unscale_()
    norm = float(pipe.clip_grad_norm_(0.01))
    expected = float(nn.utils.clip_grad_norm_(one.parameters(), 0.01))
    off = abs(norm / expected - 1), worst(pipe, one)
    stepped = [scaler.step(optimizer)]
    pipe.zero_grad()
    step(pipe, samples)
    if rank == 0:
        next(pipe.parameters()).grad.fill_(float("inf"))
    before = [p.detach().clone() for p in pipe.parameters()]
    stepped.append(scaler.step(optimizer))
    same = all(torch.equal(a, p) for a, p in zip(before, pipe.parameters()))
    return off, stepped, same


def accumulate(rank, tied):
    """Two calls before the optimizer steps, with the labels of both."""
    pipe, one = make(rank, tied)
    draw = random.Random(6)
    calls = [test_split.samples_of(draw) for _ in range(2)]
    terms = sum(count(samples) for samples in calls)
    for samples in calls:
        step(pipe, samples, terms=terms)
        backward(one, samples, terms)
    error = ""
    try:
        step(pipe, calls[0], terms=3)
    except hf.SampleError as caught:
        error = str(caught)
    return worst(pipe, one), error


def evaluate(rank, tied):
    """Evaluations between steps: their losses and those of one process, and how
    far the gradients of the step before and the next are off."""
    pipe, one = make(rank, tied)
    draw = random.Random(9)
    result = []
    for _ in range(2):
        samples, held_out = (test_split.samples_of(draw) for _ in range(2))
        step(pipe, samples)
        backward(one, samples, count(samples))
        before = [p.grad.clone() for p in pipe.parameters()]
        micro = pipe.microbatches(held_out, [0, 0, 1, 1, 2, 2])
        pipe.train(False)
        loss = pipe.evaluate(pipe.static_plan(7, micro), held_out).loss
        pipe.train()
        with torch.no_grad():
            expected = 0.0
            for m in range(3):
                pair = held_out[2 * m:2 * m + 2]
                ids = torch.cat([s["ids"] for s in pair])
                pixels = [s["pixels"] for s in pair if "pixels" in s]
                expected += float(nn.functional.cross_entropy(
                    one(ids, torch.cat(pixels) if pixels else None), ids,
                    reduction="sum")) / count(held_out)
        result.append((loss, expected, worst(pipe, one), all(
            torch.equal(a, p.grad) for a, p in zip(before, pipe.parameters()))))
    return result


def decay_of_frozen(rank, _):
    """A frozen shared weight has no gradient that an optimizer would take."""
    pipe, _ = make(rank, True, "embed")
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=0.1, weight_decay=0.1)
    samples = test_split.samples_of(random.Random(7))
    name = "head.weight" if rank else "embed.weight"
    weight = dict(pipe.named_parameters())[name]
    before = weight.detach().clone()
    step(pipe, samples)
    optimizer.step()
    return weight.grad is None, torch.equal(before, weight)


def options_by_name(rank, _):
    """Weight decay for the head, but not for the embedding, which it is."""
    pipe, _ = make(rank, True)
    optimizer = torch.optim.AdamW(
        [{"params": [p], "weight_decay": 0.5 if "head" in n else 0.0}
         for n, p in pipe.named_parameters()], lr=0.1)
    samples = test_split.samples_of(random.Random(8))
    step(pipe, samples)
    optimizer.step()
    try:
        step(pipe, samples)
    except RuntimeError as error:
        return str(error)
    return ""


@unittest.skipUnless(HAVE_ALL, "torch or grpcio is missing")
class GradientsTest(unittest.TestCase):

    def test_clipping_sees_all_stages_and_a_shared_weight_once(self):
        for tied in (False, True):
            ranks = on_two(clip, tied)
            self.assertEqual([r[0] for r in ranks[0]],
                             [r[0] for r in ranks[1]])
            for norm, gradient in ranks[0] + ranks[1]:
                self.assertLess(norm, 1e-5)
                self.assertLess(gradient, 1e-7)

    def test_scaled_losses_have_the_same_gradients_and_skip_on_all_ranks(self):
        for tied in (False, True):
            for (norm, gradient), stepped, same in on_two(scale, tied):
                self.assertLess(norm, 1e-5)
                self.assertLess(gradient, 1e-7)
                self.assertEqual(stepped, [True, False])
                self.assertTrue(same)

    def test_gradients_of_several_calls_are_those_of_one_mean(self):
        for tied in (False, True):
            for off, error in on_two(accumulate, tied):
                self.assertLess(off, 1e-6)
                self.assertRegex(error, "terms is 3, but the samples of this "
                                 r"call alone have \d+ labels")

    def test_an_evaluation_has_the_loss_and_leaves_no_gradient(self):
        for tied in (False, True):
            for first, second in zip(*on_two(evaluate, tied)):
                self.assertEqual(first[0], 0.0)  # The head is on the second.
                self.assertAlmostEqual(second[0], second[1], places=5)
                for _, _, off, same in (first, second):
                    self.assertLess(off, 1e-6)
                    self.assertTrue(same)

    def test_a_frozen_shared_weight_stays(self):
        self.assertEqual(on_two(decay_of_frozen, 0), [[True, True]] * 2)

    def test_a_shared_weight_whose_ends_differ_is_an_error(self):
        for error in on_two(options_by_name, 0):
            self.assertRegex(error, "embed.weight and head.weight are one "
                             "weight, but its two ends differ: give")

    def test_a_class_with_its_own_forward_is_refused(self):
        import tiny_model

        class Other(tiny_model.TinyVlm):
            def forward(self, ids, pixels=None):
                return 2.0 * super().forward(ids, pixels)

        class Same(tiny_model.TinyVlm):
            pass

        hf.family.family_of(Same())
        with self.assertRaisesRegex(TypeError, "Other has its own forward, "
                                    "which the description of TinyVlm"):
            hf.family.family_of(Other())


if __name__ == "__main__":
    unittest.main()
