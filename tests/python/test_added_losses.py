"""Losses that stages add (WorkItem.add_loss): whatever the plan recomputes or
puts off, the step's loss and gradients are those of one process."""
import dataclasses
import os
import random
import sys
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "python"))

try:
    import google.protobuf  # noqa: F401
    import grpc  # noqa: F401
    import torch
    import torch.distributed as dist
    from torch import nn
    AVAILABLE = dist.is_available()
except ImportError:
    AVAILABLE = False

from gloo_ranks import run_ranks  # noqa: E402

if AVAILABLE:
    from pipeloom.execution.work_item import WorkItem
    from pipeloom.loss import LossShare
    from pipeloom.plan import Microbatch, SubMicrobatch
    from pipeloom.static_schedule import (Stage, build_graph, plan_of,
                                          static_plan)
    from pipeloom.torch import Executor
    from test_torch import random_orders

WIDTH = 4
MODULES = ("vision", "text")
FEEDS = ((0, 1),)
IMAGES = ((2, 3), (1,), (), (4, 1, 2))  # Rows, by microbatch and sub.


def stages_of():
    return (Stage(0, 0, 2, 0, 0), Stage(0, 2, 2, 1, 0), Stage(1, 0, 2, 0, 1),
            Stage(1, 2, 2, 1, 1))


def microbatches():
    """The weights are those of text, of which a row is a token."""
    rows = [sum(images) + m + 1 for m, images in enumerate(IMAGES)]
    result = []
    for m, images in enumerate(IMAGES):
        subs = [SubMicrobatch(0, j, sum(images[:j]), n, n)
                for j, n in enumerate(images)]
        result.append(Microbatch((m,), rows[m] / sum(rows), tuple(
            subs + [SubMicrobatch(1, 0, 0, 1, rows[m])])))
    return result


def plan_for(seed):
    """Returns a plan with a random order and random memory choices."""
    rng = random.Random(seed)
    graph = build_graph(stages_of(), FEEDS, [
        {0: len(images), 1: 1} if images else {1: 1} for images in IMAGES],
        split_backward=seed % 2 == 1)
    plan = plan_of(graph, random_orders(graph, 2, rng), MODULES,
                   microbatches(), "random")
    return dataclasses.replace(plan, activations={
        i: tuple(rng.choice(("KEEP", "RECOMPUTE", "OFFLOAD"))
                 for _ in range(2))
        for i, t in plan.tasks.items() if t.kind == "F" and rng.random() < 0.7})


if AVAILABLE:
    class Layer(nn.Module):
        """Rows do not see each other. Adds a loss of its output."""

        def __init__(self, module, is_first):
            super().__init__()
            self.module, self.is_first = module, is_first
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x, item):
            if self.is_first:
                m = item.microbatch
                given = x
                if self.module == 0:
                    x = item.batch[0][m][item.first_instance:
                                         item.first_instance + item.instances]
                else:
                    x = item.batch[1][m]
                    if given is not None:
                        x = x + torch.cat(given["vision"]).sum(0)
            x = torch.tanh(self.linear(x))
            if self.module == 0:  # A mean over the images, with a weight of it.
                images = sum(map(sum, IMAGES))
                item.add_loss((x ** 2).mean(), 0.5 * item.instances / images)
            else:
                item.add_loss((x ** 2).mean())
            return x

    class Row(nn.Module):
        """A stage that is no nn.Sequential: it runs again as a whole."""

        def __init__(self, layers):
            super().__init__()
            self.layers = nn.ModuleList(layers)

        def forward(self, x, item):
            for layer in self.layers:
                x = layer(x, item)
            return x


def build(by_layer):
    torch.manual_seed(0)
    stages = []
    for stage in stages_of():
        layers = [Layer(stage.module, stage.first_layer + i == 0)
                  for i in range(stage.num_layers)]
        stages.append(nn.Sequential(*layers) if by_layer else Row(layers))
    return stages


def final_loss(output):
    return ((output - 1) ** 2).mean()


def one_process(stages, batch):
    """Returns the step's loss by its definition, and adds its gradients."""
    layers = [layer for stage in stages for layer in (
        stage if isinstance(stage, nn.Sequential) else stage.layers)]
    total = torch.zeros(())
    x = torch.cat(batch[0])
    for layer in layers[:4]:
        x = torch.tanh(layer.linear(x))
        total = total + 0.5 * (x ** 2).mean()
    fed = [part.sum(0) for part in x.split([sum(own) for own in IMAGES])]
    x = torch.cat([text + one for text, one in zip(batch[1], fed)])
    for layer in layers[4:]:
        x = torch.tanh(layer.linear(x))
        total = total + (x ** 2).mean()
    total = total + final_loss(x)
    total.backward()
    return float(total.detach())


def work(rank):
    """Returns the largest difference from one process."""
    worst = 0.0
    torch.manual_seed(7)
    batch = ([torch.randn(sum(images), WIDTH) for images in IMAGES],
             [torch.randn(sum(images) + m + 1, WIDTH)
              for m, images in enumerate(IMAGES)])
    for seed in range(12):
        by_layer = seed % 3 > 0
        stages, reference = build(by_layer), build(by_layer)
        mine = {s: stage for s, stage in enumerate(stages)
                if stages_of()[s].rank == rank}
        executor = Executor(mine, rank=rank, loss_fn=lambda output, item:
                            final_loss(output))
        expected = one_process(reference, batch)
        plan = plan_for(seed)
        for run in (executor.run, executor.evaluate):
            total = torch.tensor([run(plan, batch).loss])
            dist.all_reduce(total)
            worst = max(worst, abs(float(total) - expected))
        for s, stage in mine.items():
            for a, b in zip(stage.parameters(),
                            reference[s].parameters()):
                worst = max(worst, float((a.grad - b.grad).abs().max()))
    return worst


def without_gradient(rank):
    """Returns what is said of losses that are no part of the graph."""
    stage = nn.Linear(WIDTH, WIDTH)
    stage.forward = lambda x, item: nn.functional.linear(
        item.batch, stage.weight, stage.bias)
    plan = static_plan([Stage(0, 0, 1, 0, 0)], (), [Microbatch(
        (0,), 1.0, (SubMicrobatch(0),))], ("text",))
    said = []
    for loss in (torch.no_grad()(final_loss),
                 lambda output: final_loss(output).detach(),
                 lambda output: torch.zeros(())):
        executor = Executor({0: stage}, rank=rank,
                            loss_fn=lambda output, item, loss=loss:
                            loss(output))
        executor.evaluate(plan, torch.ones(2, WIDTH))
        try:
            executor.run(plan, torch.ones(2, WIDTH))
            said.append("")
        except RuntimeError as error:
            said.append(str(error))
    return said


def of_a_plan_file(rank):
    """Returns what is said of a plan of three microbatches without samples, by
    what its losses are over, and the loss that it should have."""
    stage = nn.Linear(WIDTH, WIDTH)
    stage.forward = lambda x, item: nn.functional.linear(
        item.batch[item.microbatch], stage.weight, stage.bias)
    rows = (1, 2, 5)
    given = static_plan([Stage(0, 0, 1, 0, 0)], (), [Microbatch(
        (m,), n / sum(rows), (SubMicrobatch(0, tokens=n),))
        for m, n in enumerate(rows)], ("text",))
    bare = dataclasses.replace(given, microbatches=())
    shares = {(0, m, 0): LossShare(n) for m, n in enumerate(rows)}
    file = dataclasses.replace(bare, loss_shares=shares,
                               loss_totals={0: LossShare(sum(rows))})
    batch = [torch.full((n, WIDTH), float(n)) for n in rows]
    results = []
    for plan, over in ((given, "text"), (bare, "text"), (file, "text"),
                       (file, "tokens"),
                       (file.with_microbatches(0, given.microbatches),
                        "text")):
        try:
            results.append(Executor(
                {0: stage}, rank=rank, loss_over=over,
                loss_fn=lambda output, item: final_loss(output)).run(
                    plan, batch).loss)
        except ValueError as error:
            results.append(str(error))
    return results


@unittest.skipUnless(AVAILABLE, "torch, grpcio or protobuf is missing")
class AddedLossesTest(unittest.TestCase):

    def test_any_plan_has_the_gradients_of_one_process(self):
        for rank, worst in run_ranks(2, work).items():
            self.assertIsInstance(worst, float, f"rank {rank}: {worst}")
            self.assertLess(worst, 1e-5, f"rank {rank}")

    def test_a_loss_that_would_train_nothing_is_refused(self):
        said = run_ranks(1, without_gradient)[0]
        for text in said[:2]:
            self.assertIn("a loss of text that requires no gradient", text)
        self.assertEqual(said[2], "")

    def test_the_losses_of_a_plan_file_need_weights(self):
        right, bare, file, tokens, given = run_ranks(1, of_a_plan_file)[0]
        for said in (bare, file):
            self.assertIn("3 microbatches whose loss_weight is not known", said)
        self.assertAlmostEqual(tokens, right, places=5)
        self.assertAlmostEqual(given, right, places=5)

    def test_what_is_no_loss_is_refused(self):
        item = WorkItem(0, "vision", 3, 0, 0, (), 0, 0, 1.0, None)
        for loss, message in (
                (torch.zeros(2), "a tensor of shape (2,) in stage 3 of vision"),
                (1.5, "a float in stage 3 of vision")):
            with self.assertRaisesRegex(TypeError, "add_loss got ") as caught:
                item.add_loss(loss)
            self.assertIn(message, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
