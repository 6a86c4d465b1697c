"""pipeloom.weight_gradients: steps with split backwards give the gradients of
one process without pipeline, and leave the modules as they were."""
import copy
import dataclasses
import io
import os
import socket
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../python"))

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    HAVE_TORCH = dist.is_available()
except ImportError:
    HAVE_TORCH = False

try:
    import google.protobuf  # noqa: F401
    import grpc  # noqa: F401
    HAVE_GRPC = True
except ImportError:
    HAVE_GRPC = False

if HAVE_TORCH and HAVE_GRPC:
    from pipeloom import static_schedule as sp
    from pipeloom.plan import Microbatch, SubMicrobatch, loss_weights
    from pipeloom.torch import Executor

WIDTH = 8
ROWS = (4, 2, 3)
# Orders of three microbatches' passes. A weight gradient comes at once, after
# other passes, or at the end of the step.
ORDERS = ("F0 B0 W0 F1 B1 W1 F2 B2 W2", "F0 F1 B0 F2 W0 B1 B2 W1 W2",
          "F0 F1 F2 B2 B1 B0 W0 W1 W2")


def plan_of(split, order=ORDERS[1], choice=()):
    """A step of one stage on one rank; `order` names its passes."""
    rows = ROWS[:order.count("F")]
    graph = sp.build_graph([sp.Stage(0, 0, 1, 0, 0)], (),
                           [{0: 1} for _ in rows], split_backward=split)
    place = {f"{t.kind}{t.microbatch}": i for i, t in enumerate(graph.tasks)}
    microbatches = [
        Microbatch((m,), weight, (SubMicrobatch(0, 0, 0, 1),))
        for m, weight in enumerate(loss_weights(rows))]
    plan = sp.plan_of(graph, [[place[p] for p in order.split() if p in place]],
                      ("text",), microbatches, "test")
    return dataclasses.replace(plan, activations={
        i: choice for i, t in plan.tasks.items() if t.kind == "F" and choice})


if HAVE_TORCH:
    class Stage(nn.Module):
        """A stage that computes `run(parts, input)` of its microbatch."""

        def __init__(self, run=None, **parts):
            super().__init__()
            self.parts = nn.ModuleDict(parts)
            self.run = run

        def forward(self, x, item):
            x = item.batch[item.microbatch]
            return self.parts["net"](x) if self.run is None else self.run(
                self.parts, x)

    def linear(**options):
        return nn.Linear(WIDTH, WIDTH, **options)

    def pair(first=None, second=None):
        """Two layers with something between them that saves its result."""
        return nn.Sequential(first or linear(), nn.Tanh(), second or linear())


def make_batch():
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(n, WIDTH, generator=generator) for n in ROWS]


def loss_of(output, item):
    return output.float().square().mean()


def stage_of(make):
    torch.manual_seed(1)
    net = make()
    return net if isinstance(net, Stage) else Stage(net=net)


def plain(stage):
    """The step without pipeloom."""
    for m, weight in enumerate(loss_weights(ROWS)):
        item = type("Item", (), {"batch": make_batch(), "microbatch": m})
        (loss_of(stage(None, item), item) * weight).backward()


def run(stage, plan, loss_fn=loss_of, **options):
    return Executor({0: stage}, rank=0, loss_fn=loss_fn, **options).run(
        plan, make_batch())


def gradients(stage):
    return {name: None if p.grad is None else p.grad.clone()
            for name, p in stage.named_parameters()}


@unittest.skipUnless(HAVE_TORCH, "torch with torch.distributed is missing")
@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class WeightGradientsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                          USE_LIBUV="0")
        dist.init_process_group("gloo", rank=0, world_size=1)

    @classmethod
    def tearDownClass(cls):
        dist.destroy_process_group()

    def assert_same(self, left, right, relative):
        self.assertEqual(left.keys(), right.keys())
        for name, a in left.items():
            b = right[name]
            self.assertEqual(a is None, b is None, name)
            if a is None:
                continue
            self.assertEqual(a.dtype, b.dtype, name)
            scale = max(1e-3, float(b.abs().max()))
            self.assertLess(float((a - b).abs().max()) / scale, relative, name)

    def test_copies_are_independent(self):
        stage = stage_of(pair)
        run(stage, plan_of(True))
        twin = copy.deepcopy(stage)
        item = type("Item", (), {"batch": make_batch(), "microbatch": 0})
        before = stage(None, item).detach()
        with torch.no_grad():
            for parameter in stage.parameters():
                parameter.zero_()
        self.assertTrue(torch.equal(twin(None, item), before))
        file = io.BytesIO()
        torch.save(twin.parts["net"], file)
        file.seek(0)
        options = {} if torch.__version__ < "2" else {"weights_only": False}
        saved = torch.load(file, **options)
        self.assertTrue(torch.equal(saved(item.batch[0]), before))

    def test_modules_are_as_they_were_between_tasks_and_after_errors(self):
        stage = stage_of(pair)

        def clean(*_):
            for module in stage.modules():
                self.assertNotIn("forward", module.__dict__)
            with torch.no_grad():
                stage.eval()
                stage.parts["net"](make_batch()[0])
                stage.train()

        def fail(output, item):
            raise KeyError("no target")

        run(stage, plan_of(True), on_task=clean)
        expected = stage_of(pair)
        plain(expected)
        self.assert_same(gradients(stage), gradients(expected), 1e-6)
        with self.assertRaises(KeyError):
            run(stage, plan_of(True), fail)
        clean()


if __name__ == "__main__":
    unittest.main()
