"""Forwards that a plan runs twice: whatever a layer changes in place, gradients
and buffers are those of one run."""
import dataclasses
import os
import random
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../python"))

try:
    import numpy
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional
    HAVE_TORCH = dist.is_available()
except ImportError:
    HAVE_TORCH = False

try:
    import google.protobuf  # noqa: F401
    import grpc  # noqa: F401
    HAVE_GRPC = True
except ImportError:
    HAVE_GRPC = False

from gloo_ranks import free_port  # noqa: E402

if HAVE_TORCH and HAVE_GRPC:
    from pipeloom import static_schedule as sp
    from pipeloom.plan import Microbatch, SubMicrobatch
    from pipeloom.recompute import again
    from pipeloom.torch import Executor

WIDTH = 8
MICROBATCHES = 4
WAYS = ("whole stage", "layers", "two layers", "norms", "OFFLOAD")


if HAVE_TORCH:
    class Layer(nn.Module):
        """One of the layers that change something in place."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x, item):
            if x is None:
                x = item.batch[item.microbatch]
            return self.work(x)

    class BatchNorm(Layer):
        operator_groups = ("norms",)

        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDTH)

        def work(self, x):
            return torch.tanh(self.linear(again("norms", self.norm, x)))

    class TwoNorms(BatchNorm):
        """Its parts of one group change other buffers."""

        def __init__(self):
            super().__init__()
            self.second = nn.BatchNorm1d(WIDTH)

        def work(self, x):
            return again("norms", self.second, super().work(x))

    class Codebook(Layer):
        """The forward depends on a buffer, which it replaces."""
        operator_groups = ("norms",)

        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(WIDTH))

        def centre(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return torch.tanh(x - self.mean)

        def work(self, x):
            return self.linear(again("norms", self.centre, x))

    class SpectralNorm(Layer):
        """The weight depends on a buffer, which a forward changes in place."""
        operator_groups = ("norms",)

        def __init__(self):
            super().__init__()
            self.linear = nn.utils.spectral_norm(self.linear)

        def work(self, x):
            return again("norms", torch.tanh, self.linear(x))

    class ChangesInput(Layer):
        operator_groups = ("norms",)

        def work(self, x):
            x += 1.0
            return self.linear(again("norms", torch.sigmoid, x.clone()))

    class ChangesAfterUse(Layer):
        """A result that is made again is changed later in the forward."""
        operator_groups = ("norms",)

        def work(self, x):
            y = again("norms", lambda t: t * 2.0, x)
            y += 1.0
            return torch.tanh(self.linear(y))

    class LaterBranch(Layer):
        """Has a branch that does not run in the first forward."""
        operator_groups = ("norms",)

        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDTH)
            self.register_buffer("table", torch.zeros(1000, WIDTH))

        def forward(self, x, item):
            self.later = item.microbatch > 0
            return super().forward(x, item)

        def branch(self, x):
            if not self.later:
                return x
            self.table = self.table + x.detach().mean(0)
            return self.norm(x) - self.table[0]

        def work(self, x):
            return torch.tanh(self.linear(again("norms", self.branch, x)))

    class LaterInPlace(LaterBranch):
        def branch(self, x):
            if self.later:
                self.table += x.detach().mean(0)
            return x - self.table[0]

    class PythonRandom(Layer):
        def draw(self):
            return [random.random() for _ in range(WIDTH)]

        def work(self, x):
            return torch.tanh(self.linear(x) * torch.tensor(self.draw()))

    class OwnPythonRandom(PythonRandom):
        def __init__(self):
            super().__init__()
            self.generator = random.Random(1)

        def draw(self):
            return [self.generator.random() for _ in range(WIDTH)]

    class OwnTorchRandom(PythonRandom):
        def __init__(self):
            super().__init__()
            self.generator = torch.Generator().manual_seed(1)

        def draw(self):
            return torch.rand(WIDTH, generator=self.generator).tolist()

    class NumpyRandom(PythonRandom):
        """As SpecAugment of wav2vec 2.0 and Whisper draws its masks."""

        def draw(self):
            return numpy.random.rand(WIDTH).tolist()

    class OwnNumpyRandom(PythonRandom):
        def __init__(self):
            super().__init__()
            self.generator = numpy.random.default_rng(1)
            self.older = numpy.random.RandomState(1)

        def draw(self):
            return (self.generator.random(WIDTH) +
                    self.older.rand(WIDTH)).tolist()

    RANDOM = (PythonRandom, OwnPythonRandom, OwnTorchRandom, NumpyRandom,
              OwnNumpyRandom)
    LAYERS = (LaterBranch, BatchNorm, TwoNorms, Codebook, SpectralNorm,
              ChangesInput, ChangesAfterUse)

    class ReusesInput(Layer):
        """Changes in place what a part of it would be made again from."""
        operator_groups = ("norms",)

        def work(self, x):
            x = self.linear(x)
            y = again("norms", lambda t: torch.sigmoid(t + 1.0), x)
            x += 1.0  # Its value before is in no graph but the part's.
            return x * y

    class SometimesChangesInput(Layer):

        def __init__(self):
            super().__init__()
            self.calls = 0

        def work(self, x):
            self.calls += 1
            return self.linear(x if self.calls == 1 else x.mul_(2.0).clone())


    class ChangesBatch(Layer):
        """Adds to a tensor of the batch, in a class of the trainer's own."""

        def work(self, x):
            return self.linear(x)

        def forward(self, x, item):
            item.batch.noise["all"][item.microbatch].add_(0.5)
            return self.linear(x + item.batch.noise["all"][item.microbatch])


class Batch:
    """A batch as data loaders make them; the data of a microbatch by index."""

    def __init__(self, inputs):
        self.inputs = inputs
        self.noise = {"all": torch.zeros(MICROBATCHES, WIDTH)}

    def __getitem__(self, microbatch):
        return self.inputs[microbatch]


def plan_of(way):
    """One stage of two layers, after one that is not run again."""
    graph = sp.build_graph(
        [sp.Stage(0, 0, 1, 0, 0), sp.Stage(0, 1, 2, 0, 1)], (),
        [{0: 1}] * MICROBATCHES)
    tasks = tuple(dataclasses.replace(
        t, recomputes=way == "whole stage" and t.kind == "B" and t.stage == 1)
        for t in graph.tasks)
    plan = sp.plan_of(
        sp.Graph(tasks, graph.edges),
        sp.gpipe_orders(graph, 1), ("text",),
        [Microbatch((m,), 1.0 / MICROBATCHES, (SubMicrobatch(0),))
         for m in range(MICROBATCHES)], "test")
    choice = {"layers": "RECOMPUTE", "two layers": "RECOMPUTE",
              "norms": "RECOMPUTE:norms", "OFFLOAD": "OFFLOAD"}.get(way)
    if choice is None:
        return plan
    forwards = [i for i, t in plan.tasks.items()
                if (t.kind, t.stage) == ("F", 1)]
    return dataclasses.replace(
        plan, activations={t: (choice, choice) for t in forwards},
        periods={t: 2 for t in forwards if way == "two layers"})


def run(layer, way, steps=2, loss_fn=None):
    """Returns gradients and buffers after some steps."""
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    first = Layer()
    first.work = first.linear
    layers = nn.Sequential(layer(), layer())

    class Stage(nn.Module):
        """Whatever is not an nn.Sequential runs again as a whole."""

        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x, item):
            for part in self.layers:
                x = part(x, item)
            return x

    executor = Executor(
        {0: first, 1: Stage() if way == "whole stage" else layers}, rank=0,
        loss_fn=loss_fn or (lambda y, item: functional.mse_loss(
            y, torch.ones_like(y))))
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        executor.run(plan_of(way), Batch(torch.randn(
            MICROBATCHES, 5, WIDTH, generator=generator)))
    return ([p.grad for p in first.parameters()] +
            [torch.zeros(1) if p.grad is None else p.grad
             for p in layers.parameters()] +
            [b.double() for b in layers.buffers()])


@unittest.skipUnless(HAVE_TORCH, "torch with torch.distributed is missing")
@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class SecondRunTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0,
            world_size=1)

    @classmethod
    def tearDownClass(cls):
        dist.destroy_process_group()

    def test_gradients_and_buffers_are_those_of_one_run(self):
        for layer in LAYERS:
            wanted = run(layer, "keep")
            for way in WAYS:
                with self.subTest(layer=layer.__name__, way=way):
                    for a, b in zip(run(layer, way), wanted):
                        self.assertLess(float((a - b).abs().max()), 1e-5)

    def test_random_numbers_are_those_of_the_first_run(self):
        for layer in RANDOM:
            wanted = run(layer, "keep")
            for way in WAYS:
                with self.subTest(layer=layer.__name__, way=way):
                    for a, b in zip(run(layer, way), wanted):
                        self.assertLess(float((a - b).abs().max()), 1e-6)

    def test_what_would_be_wrong_silently_is_an_error(self):
        with self.assertRaisesRegex(RuntimeError, "again.. makes results from"):
            run(ReusesInput, "norms")
        for way in ("whole stage", "layers", "two layers", "norms"):
            with self.assertRaisesRegex(
                    RuntimeError, "buffer 'table' in place"):
                run(LaterInPlace, way)
        with self.assertRaisesRegex(RuntimeError, "x = x.clone"):
            run(SometimesChangesInput, "whole stage")

    def test_a_batch_that_is_changed_in_place_is_an_error(self):
        def changes(y, item):
            item.batch.noise["all"] += 1.0
            return (y - item.batch.noise["all"][item.microbatch]).sum()

        for way in WAYS + ("keep",):
            twice = way in ("whole stage", "layers", "two layers", "norms")
            with self.subTest(way=way):
                if twice:
                    with self.assertRaisesRegex(
                            RuntimeError, r"the batch in place \(torch.float32, "
                            r"shape \[4, 8\]\)"):
                        run(ChangesBatch, way)
                else:  # It runs once, so that nothing is wrong.
                    run(ChangesBatch, way)
            # The loss of layers that run again runs once.
            with self.subTest(way=way, what="loss_fn"):
                if way == "whole stage":
                    with self.assertRaisesRegex(RuntimeError, "loss_fn"):
                        run(BatchNorm, way, loss_fn=changes)
                else:
                    run(BatchNorm, way, loss_fn=changes)


if __name__ == "__main__":
    unittest.main()
