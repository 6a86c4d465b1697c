"""Stages that are an nn.Sequential: whatever a plan recomputes or offloads, the
step is what PyTorch computes of them."""
import dataclasses
import gc
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../python"))

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.checkpoint import checkpoint
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
    from pipeloom.torch import Executor

WIDTH = 8
CHOICES = (None, "KEEP", "RECOMPUTE", "RECOMPUTE:norms", "OFFLOAD")


if HAVE_TORCH:
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x, item):
            x = item.batch if x is None else x
            return torch.tanh(self.linear(x))

    class OwnForward(nn.Sequential):
        """Does more than call its layers."""

        def forward(self, x, item):
            for layer in self:
                x = 2.0 * layer(x, item)
            return x

    class Fails(Layer):
        """Has an error in its second call, in a checkpoint of its own."""
        calls = 0

        def forward(self, x, item):
            return checkpoint(self.work, x, item, use_reentrant=False)

        def work(self, x, item):
            self.calls += 1
            if self.calls == 2:
                raise ValueError("no such sample")
            return super().forward(x, item)

    def fails():
        return nn.Sequential(Layer(), Fails())

    def twice():
        layer = Layer()
        return nn.Sequential(layer, layer)

    def own_forward():
        return OwnForward(Layer(), Layer())

    def replaced_forward():
        stage = nn.Sequential(Layer(), Layer())
        stage.forward = lambda x, item: 3.0 * stage[1](stage[0](x, item), item)
        return stage

    def hooks():
        stage = nn.Sequential(Layer(), Layer())
        stage.register_forward_pre_hook(
            lambda _, given: (given[1].batch + 1.0, given[1]))
        stage.register_forward_hook(lambda _, given, output: output * 2.0)
        return stage


def plan_of(choice):
    plan = sp.static_plan([sp.Stage(0, 0, 2, 0)], (), [Microbatch(
        (0,), 1.0, (SubMicrobatch(0, 0, 0, 1),))], ("text",))
    if choice is None:
        return plan
    return dataclasses.replace(plan, activations={
        t: (choice, choice) for t, task in plan.tasks.items()
        if task.kind == "F"})


def loss_of(output, item):
    return output.square().mean()


def wanted_of(make, batch):
    """Returns loss and gradients of plain PyTorch."""
    stage = make()
    x = batch
    if make is hooks:
        x = x + 1.0
    factor = {own_forward: 2.0}.get(make, 1.0)
    for layer in list(stage):
        x = factor * torch.tanh(layer.linear(x))
    loss = loss_of({replaced_forward: 3.0, hooks: 2.0}.get(make, 1.0) * x, None)
    loss.backward()
    return float(loss.detach()), [p.grad for p in stage.parameters()]


@unittest.skipUnless(HAVE_TORCH, "torch with torch.distributed is missing")
@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class RowsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{free_port()}", rank=0,
            world_size=1)

    @classmethod
    def tearDownClass(cls):
        dist.destroy_process_group()

    def check(self, make):
        batch = torch.linspace(-1.0, 1.0, 3 * WIDTH).reshape(3, WIDTH)
        torch.manual_seed(0)
        loss, gradients = wanted_of(make, batch)
        for choice in CHOICES:
            with self.subTest(choice=choice):
                torch.manual_seed(0)
                stage = make()
                result = Executor({0: stage}, rank=0, loss_fn=loss_of).run(
                    plan_of(choice), batch)
                self.assertAlmostEqual(result.loss, loss, places=5)
                for p, wanted in zip(stage.parameters(), gradients):
                    self.assertLess(float((p.grad - wanted).abs().max()), 1e-6)

    def test_a_layer_that_is_there_twice_runs_twice(self):
        self.check(twice)

    def test_a_forward_of_its_own_is_called(self):
        self.check(own_forward)
        self.check(replaced_forward)

    def test_a_step_after_an_error_is_right(self):
        """Hooks of checkpoints that an error has left are gone."""
        batch = torch.linspace(-1.0, 1.0, 3 * WIDTH).reshape(3, WIDTH)
        torch.manual_seed(0)
        loss, gradients = wanted_of(fails, batch)
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        for choice in CHOICES:
            with self.subTest(choice=choice):
                torch.manual_seed(0)
                stage = fails()
                stage[1].calls = 1
                executor = Executor({0: stage}, rank=0, loss_fn=loss_of)
                with self.assertLogs("pipeloom", "ERROR"):
                    try:
                        executor.run(plan_of(choice), batch)
                        self.fail("no error")
                    except ValueError as error:
                        self.assertEqual(str(error), "no such sample")
                result = executor.run(plan_of(choice), batch)
                self.assertAlmostEqual(result.loss, loss, places=5)
                for p, wanted in zip(stage.parameters(), gradients):
                    self.assertLess(float((p.grad - wanted).abs().max()), 1e-6)

    def test_hooks_of_the_row_are_called(self):
        self.check(hooks)


if __name__ == "__main__":
    unittest.main()
