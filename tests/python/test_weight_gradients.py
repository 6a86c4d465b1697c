"""pipeloom.weight_gradients: steps with split backwards give the gradients of
steps with whole ones and of one process without pipeline, for layers whose
parameters are computed, shared, hooked, frozen or cast; and leave the modules
as they were."""
import contextlib
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
    from torch.nn.utils import parametrizations, prune
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
# Rounding to the 8 significant bits of bfloat16 is off by 2^-9 at most. Either
# side of a comparison rounds the result, its gradient, the first layer's result
# and the weight gradient: 2 * 4 * 2^-9.
BF16 = 2.0 ** -6


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

    def pruned(name):
        layer = linear()
        mask = (torch.arange(layer._parameters[name].numel()) % 3 > 0).view_as(
            layer._parameters[name])
        return prune.custom_from_mask(layer, name, mask)

    def tied(part="weight"):
        net = pair()
        setattr(net[2], part, getattr(net[0], part))
        return net

    def lent():
        """The second layer has the weight of another, but not as its own."""
        net, owner = pair(), linear()
        del net[2].weight
        net[2].__dict__["weight"] = owner.weight
        return Stage(net=net, owner=owner)

    def computed():
        """A layer's weight is computed from that of another in each call."""
        def run_it(parts, x):
            weight = parts["owner"].weight.square()
            parts["net"].__dict__["weight"] = weight
            return parts["net"](torch.tanh(nn.functional.linear(x, weight)))

        net = linear()
        del net.weight
        return Stage(run_it, net=net, owner=linear())

    def tied_with_embedding():
        embedding = nn.Embedding(WIDTH, WIDTH)
        head = linear(bias=False)
        head.weight = embedding.weight
        return Stage(lambda parts, x: parts["head"](torch.tanh(
            parts["embedding"](x.argmax(-1)))), embedding=embedding, head=head)

    def frozen(*names):
        net = pair()
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(name not in names)
        return net

    def twice(parts, x):
        return parts["net"](torch.tanh(parts["net"](x)))

    def functionally(parts, x):
        """Uses the weight of a layer without the layer, too."""
        return nn.functional.linear(torch.tanh(parts["net"](x)),
                                    parts["net"].weight)

    def checkpointed(reentrant):
        def run(parts, x):
            x = x.requires_grad_(reentrant)
            return checkpoint(parts["net"], x, use_reentrant=reentrant)
        return run

    def forces(parts, x):
        """Has the derivative of the network in its result."""
        x = x.clone().requires_grad_(True)
        energy = parts["net"](x).square().sum()
        (force,) = torch.autograd.grad(energy, x, create_graph=True)
        return force + energy

    def inner_backward(parts, x):
        """Adds the gradients of another loss in the forward."""
        parts["net"](x).mean().backward()
        return parts["net"](x)

    def unused(parts, x):
        with torch.no_grad():
            target = parts["net"](x)
        return torch.cat([parts["net"](x) - 0.5 * target, x.square()], -1)

    def replaced():
        """A layer whose forward was replaced, as adapters do."""
        layer = linear()
        layer.replaced = True
        layer.forward = lambda x: 2 * nn.Linear.forward(layer, x)
        return layer

    def cast_inside(enabled):
        def run(parts, x):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                return parts["net"](x)
        return run

    CASES = {
        "plain": pair,
        "rows of two dimensions": lambda: Stage(
            lambda parts, x: parts["net"](x.view(-1, 1, WIDTH)), net=pair()),
        "vector": lambda: Stage(
            lambda parts, x: parts["net"](x.sum(0)), net=pair()),
        "64 bits": lambda: Stage(
            lambda parts, x: parts["net"](x.double()), net=pair().double()),
        "weight_norm": lambda: pair(nn.utils.weight_norm(linear())),
        "spectral_norm": lambda: pair(None, nn.utils.spectral_norm(linear())),
        "pruned weight": lambda: pair(pruned("weight")),
        "pruned bias": lambda: pair(pruned("bias")),
        "orthogonal": lambda: pair(parametrizations.orthogonal(linear())),
        "tied": tied,
        "tied bias": lambda: tied("bias"),
        "tied with embedding": tied_with_embedding,
        "lent": lent,
        "computed": computed,
        "twice": lambda: Stage(twice, net=linear()),
        "functionally": lambda: Stage(functionally, net=linear()),
        "no bias": lambda: pair(linear(bias=False)),
        "frozen weight": lambda: frozen("0.weight"),
        "frozen bias": lambda: frozen("2.bias"),
        "only a bias": lambda: frozen("0.weight", "2.weight", "2.bias"),
        "frozen layer": lambda: frozen("2.weight", "2.bias"),
        "checkpoint": lambda: Stage(checkpointed(False), net=pair()),
        "reentrant checkpoint": lambda: Stage(checkpointed(True), net=pair()),
        "derivative in the result": lambda: Stage(forces, net=pair()),
        "backward in the forward": lambda: Stage(inner_backward, net=pair()),
        "call without gradients": lambda: Stage(unused, net=pair()),
        "replaced forward": lambda: pair(None, replaced()),
    }
    if hasattr(parametrizations, "weight_norm"):
        CASES["parametrized weight_norm"] = lambda: pair(
            parametrizations.weight_norm(linear()))


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

    def check(self, make, prepare=None, relative=1e-6, context=None,
              choice=()):
        """Compares steps with split backwards, with whole ones and without
        pipeloom. `prepare` gets each stage and returns a list, in which its
        hooks note their calls."""
        def gradients_of(step):
            stage = stage_of(make)
            notes = prepare(stage) if prepare else []
            for _ in range(2):  # Gradients are added to those that are there.
                with context() if context else contextlib.nullcontext():
                    step(stage)
            for module in stage.modules():
                self.assertEqual("forward" in module.__dict__,
                                 hasattr(module, "replaced"))
            return gradients(stage), sorted(notes)

        expected, calls = gradients_of(plain)
        self.assertTrue(any(g is not None for g in expected.values()))
        self.assertEqual(len(calls) > 0, prepare is not None)
        for order in ORDERS:
            with self.subTest(order=order):
                whole, whole_calls = gradients_of(
                    lambda stage: run(stage, plan_of(False, order, choice)))
                split, split_calls = gradients_of(
                    lambda stage: run(stage, plan_of(True, order, choice)))
                self.assert_same(whole, expected, relative)
                self.assert_same(split, whole, relative)
                self.assertEqual(calls, whole_calls)
                self.assertEqual(calls, split_calls)

    def test_split_backwards_give_the_gradients_of_whole_ones(self):
        for name, make in CASES.items():
            with self.subTest(name):
                self.check(make)

    def test_what_a_plan_recomputes_and_offloads(self):
        for choice in (("RECOMPUTE",), ("OFFLOAD",)):
            for name in ("plain", "weight_norm", "tied", "twice",
                         "tied with embedding"):
                with self.subTest(name, choice=choice):
                    self.check(CASES[name], choice=choice)

    # -- Hooks ---------------------------------------------------------------

    def test_hooks_of_parameters_get_the_whole_gradient_once_a_backward(self):
        def prepare(stage):
            seen = []

            def clipped(gradient):
                seen.append(tuple(gradient.shape))
                return gradient * 0.5 / gradient.norm().clamp(min=0.01)

            for parameter in stage.parameters():
                parameter.register_hook(clipped)
            return seen

        for name in ("plain", "weight_norm", "tied", "twice", "tied bias",
                     "tied with embedding", "reentrant checkpoint"):
            with self.subTest(name):
                self.check(CASES[name], prepare)

    def test_hooks_where_gradients_are_accumulated(self):
        """Those that data-parallel wrappers set."""
        def prepare(stage):
            seen = []
            stage.nodes = []  # Parameters do not keep them.
            for name, parameter in stage.named_parameters():
                node = parameter.expand_as(parameter).grad_fn
                node = node.next_functions[0][0]

                stage.nodes.append(node)

                def hook(*_, what=name, p=parameter):
                    seen.append((what, p.grad is None))

                node.register_hook(hook)
                if hasattr(parameter, "register_post_accumulate_grad_hook"):
                    parameter.register_post_accumulate_grad_hook(hook)
            return seen

        for name in ("plain", "weight_norm", "tied", "twice",
                     "tied with embedding"):
            with self.subTest(name):
                self.check(CASES[name], prepare)

    def test_hooks_of_modules(self):
        def prepare(stage):
            seen = []
            for module in stage.modules():
                if isinstance(module, nn.Linear):
                    module.register_forward_hook(
                        lambda *_: seen.append("forward"))
                    module.register_full_backward_hook(
                        lambda *_: seen.append("backward"))
            return seen

        self.check(pair, prepare)

    # -- Which gradients wait ------------------------------------------------

    def waiting(self, make, context=None):
        """Returns the parameters that have no gradient after all backwards, and
        those that have."""
        before = []

        def on_task(plan, task):
            if plan.tasks[task].kind == "W":
                before.append(gradients(stage))

        stage = stage_of(make)
        with context or contextlib.nullcontext():
            run(stage, plan_of(True, ORDERS[2]), on_task=on_task)
        names = [{name for name, gradient in before[0].items()
                  if (gradient is None) == absent} for absent in (True, False)]
        for name in names[1]:
            self.assertTrue(torch.equal(before[0][name],
                                        gradients(stage)[name]), name)
        return [{name.replace("parts.net.", "") for name in part}
                for part in names]

    def test_gradients_of_linear_layers_wait(self):
        both = {"0.weight", "0.bias", "2.weight", "2.bias"}
        self.assertEqual(self.waiting(pair), [both, set()])
        self.assertEqual(self.waiting(pair, torch.autocast(
            "cpu", dtype=torch.bfloat16)), [both, set()])
        self.assertEqual(self.waiting(tied), [both - {"2.weight"}, set()])
        self.assertEqual(self.waiting(CASES["weight_norm"]),
                         [{"2.weight", "2.bias"},
                          {"0.bias", "0.weight_g", "0.weight_v"}])
        self.assertEqual(self.waiting(tied_with_embedding)[0], set())

    def test_layers_that_are_sharded_do_not_wait(self):
        """FSDP takes the gradients when the backward of its module ends."""
        class FSDPModule:
            is_divided = True  # As layers of pipeloom.hf.

        class Sharded(FSDPModule, nn.Sequential):
            pass

        self.assertEqual(self.waiting(
            lambda: Sharded(linear(), nn.Tanh(), linear()))[0], set())

    # -- Autocast ------------------------------------------------------------

    def test_autocast(self):
        def outside():
            return torch.autocast("cpu", dtype=torch.bfloat16)

        def inside():
            return Stage(cast_inside(True), net=pair())

        def full():
            return Stage(cast_inside(False), net=pair())

        for name, make, context in (
                ("around the step", pair, outside),
                ("tied", tied, outside),
                ("with embedding", tied_with_embedding, outside),
                ("functionally", CASES["functionally"], outside),
                ("weight_norm", CASES["weight_norm"], outside),
                ("in the layer", inside, None),
                ("in both", inside, outside),
                ("not in the layer", full, outside)):
            with self.subTest(name):
                self.check(make, context=context, relative=BF16)

    def test_autocast_around_steps_that_run_a_stage_again(self):
        for name in ("plain", "functionally", "weight_norm"):
            with self.subTest(name):
                self.check(
                    CASES[name], relative=BF16, choice=("RECOMPUTE",),
                    context=lambda: torch.autocast(
                        "cpu", dtype=torch.bfloat16))

    # -- Modules outside of a step -------------------------------------------

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

    def test_changes_in_place_are_errors(self):
        buffer = torch.zeros(ROWS[0], WIDTH)

        def refill(parts, x):
            buffer[:len(x)] = x
            return parts["net"](buffer[:len(x)])

        stage = stage_of(lambda: Stage(refill, net=linear()))
        run(stage, plan_of(True, ORDERS[0]))
        with self.assertRaisesRegex(RuntimeError, "changed in place"):
            run(stage, plan_of(True, "F0 B0 F1 W0 B1 W1 F2 B2 W2"))
        stage = stage_of(pair)

        def step(plan, task):
            if plan.tasks[task].kind == "B":
                with torch.no_grad():
                    stage.parts["net"][2].weight.mul_(2)

        with self.assertRaisesRegex(RuntimeError, "changed in place"):
            run(stage, plan_of(True), on_task=step)


if __name__ == "__main__":
    unittest.main()
