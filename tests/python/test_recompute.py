"""pipeloom.recompute: what is thrown away and made again gives the gradients of
keeping everything, and is gone in between."""
import dataclasses
import os
import random
import socket
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../python"))

try:
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

if HAVE_TORCH and HAVE_GRPC:
    from pipeloom import messages, recompute
    from pipeloom import plan as plan_module
    from pipeloom import static_schedule as sp
    from pipeloom.plan import Microbatch, SubMicrobatch
    from pipeloom.recompute import again, making_again
    from pipeloom.torch import Executor

WIDTH = 16
GROUPS = ("core_attention", "norms", "activations", "projections")


if HAVE_TORCH:
    class Block(nn.Module):
        """A transformer layer of two heads, with dropout. Notes the storages of
        what it makes."""
        operator_groups = GROUPS

        def __init__(self):
            super().__init__()
            self.norm1 = nn.LayerNorm(WIDTH)
            self.norm2 = nn.LayerNorm(WIDTH)
            self.query = nn.Linear(WIDTH, WIDTH)
            self.key = nn.Linear(WIDTH, WIDTH)
            self.value = nn.Linear(WIDTH, WIDTH)
            self.output = nn.Linear(WIDTH, WIDTH)
            self.up = nn.Linear(WIDTH, 3 * WIDTH)
            self.down = nn.Linear(3 * WIDTH, WIDTH)
            self.made = {}

        def attend(self, q, k, v):
            heads = [t.view(-1, 2, WIDTH // 2).transpose(0, 1)
                     for t in (q, k, v)]
            scores = heads[0] @ heads[1].transpose(1, 2) / 3.0
            weights = functional.dropout(torch.softmax(scores, -1), 0.1)
            return (weights @ heads[2]).transpose(0, 1).reshape(-1, WIDTH)

        def note(self, group, *tensors):
            for t in tensors:
                self.made.setdefault(group, []).append(
                    recompute._WeakStorage(t))

        def forward(self, x, item):
            y = again("norms", self.norm1, x)
            qkv = again("projections", lambda t: (
                self.query(t), self.key(t), self.value(t)), y)
            a = again("core_attention", self.attend, *qkv)
            x = x + self.output(a)
            z = again("norms", self.norm2, x)
            u = again("projections", self.up, z)
            g = again("activations", functional.gelu, u)
            self.note("norms", y, z)
            self.note("projections", *qkv, u)
            self.note("core_attention", a)
            self.note("activations", g)
            return x + self.down(g)

    class Plain(nn.Module):
        """Makes nothing apart."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x, item):
            return x + torch.tanh(self.linear(x))


def make_stage(layers, seed):
    torch.manual_seed(seed)
    rng = random.Random(seed)
    return nn.Sequential(*(Block() if rng.random() < 0.8 else Plain()
                           for _ in range(layers)))


class First(nn.Module if HAVE_TORCH else object):
    """Takes the batch in."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x, item):
        for layer in self.layers:
            x = layer(x, item)
        return x


def gradients(module):
    return [p.grad if p.grad is not None else torch.zeros_like(p)
            for p in module.parameters()]


def off(a, b):
    return max(float((x - y).abs().max()) for x, y in zip(a, b))


@unittest.skipUnless(HAVE_TORCH, "torch with torch.distributed is missing")
@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class LayerTest(unittest.TestCase):

    def run_layer(self, groups):
        torch.manual_seed(0)
        layer = Block()
        x = torch.randn(12, WIDTH, requires_grad=True)
        torch.manual_seed(1)
        with making_again(groups, torch.device("cpu")):
            y = layer(x, None)
        alive = {g: any(not w.expired() for w in made)
                 for g, made in layer.made.items()}
        y.square().sum().backward()
        return alive, [y.detach(), x.grad] + gradients(layer)

    def test_any_groups_give_the_gradients_of_none_and_hold_nothing(self):
        alive, kept = self.run_layer(())
        self.assertTrue(all(alive.values()), alive)
        for bits in range(1, 1 << len(GROUPS)):
            groups = [g for i, g in enumerate(GROUPS) if bits >> i & 1]
            alive, values = self.run_layer(groups)
            self.assertLess(off(values, kept), 1e-5, groups)
            for group in GROUPS:
                self.assertEqual(alive[group], group not in groups,
                                 f"{group} of {groups}")

    def test_sparse_and_nested_tensors(self):
        """They may be results of groups, and saved within and outside."""
        rows = torch.eye(4).to_sparse() * 2.0

        def sparse(x, w):
            y = again("activations", lambda t: torch.sparse.mm(
                rows, torch.tanh(t)), x @ w)
            more = again("norms", lambda t: t * 2.0, rows)
            return torch.sparse.mm(more, y)

        def nested(x, w):
            y = torch.nested.nested_tensor_from_jagged(
                x, torch.tensor([0, 1, 4]))
            y = again("activations", torch.tanh, y @ w)
            return again("norms", torch.sin, y * 2.0).values()

        kinds = [sparse]
        if hasattr(torch.nested, "nested_tensor_from_jagged"):
            kinds.append(nested)
        for kind in kinds:
            found = []
            for groups in ((), ("norms",), ("norms", "activations")):
                torch.manual_seed(0)
                x, w = (torch.randn(4, 4, requires_grad=True) for _ in "xw")
                with making_again(groups, torch.device("cpu")):
                    y = kind(x, w)
                y.square().sum().backward()
                found.append([y.detach(), x.grad, w.grad])
                self.assertLess(off(found[-1], found[0]), 1e-6,
                                f"{kind.__name__}, {groups}")

    def test_a_group_that_does_not_exist_is_named(self):
        with self.assertRaisesRegex(ValueError, "norm.*there are"):
            again("norm", torch.tanh, torch.zeros(1))

    def test_storages_are_found_with_old_and_new_torch(self):
        class OfTorch2:
            def untyped_storage(self):
                return "storage"

        class OfTorch1:
            def storage(self):
                return self

            def untyped(self):
                return "storage"

        for kind in (OfTorch2, OfTorch1):
            self.assertEqual(recompute.storage_of(kind()), "storage")

    def test_messages_say_groups_and_periods(self):
        message = messages.ActivationChoice(
            task=3, layers=[1, 2, 2, 3], operator_groups=[0, 0, 6, 0],
            period=2)
        self.assertEqual(
            plan_module._activations([message]),
            {3: ("KEEP", "RECOMPUTE", "RECOMPUTE:norms+activations",
                 "OFFLOAD")})
        self.assertEqual(plan_module._periods([message]), {3: 2})
        self.assertEqual(plan_module.OPERATOR_GROUPS, recompute.GROUPS)
        message.operator_groups[2] = 32
        with self.assertRaisesRegex(ValueError, "newer"):
            plan_module._activations([message])


@unittest.skipUnless(HAVE_TORCH, "torch with torch.distributed is missing")
@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class ExecutorTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                          USE_LIBUV="0")
        torch.set_num_threads(1)
        dist.init_process_group("gloo", rank=0, world_size=1)

    @classmethod
    def tearDownClass(cls):
        dist.destroy_process_group()

    def run_plan(self, seed, choose):
        """Gradients of two stages of some layers each on one rank."""
        rng = random.Random(seed)
        sizes = [rng.randint(1, 4), rng.randint(1, 5)]
        first = First(make_stage(sizes[0], seed))
        second = make_stage(sizes[1], seed + 1)
        stages = [sp.Stage(0, 0, 1, 0, 0), sp.Stage(0, 1, 1, 0, 1)]
        microbatches = [Microbatch((m,), 0.5, (SubMicrobatch(0, 0, 0, 1),))
                        for m in range(2)]
        graph = sp.build_graph(stages, (), [{0: 1}, {0: 1}],
                               split_backward=rng.random() < 0.5)
        order = list(range(len(graph.tasks)))
        plan = sp.plan_of(graph, [order], ("m",), microbatches, "random", 0)
        activations, periods = {}, {}
        for t, task in plan.tasks.items():
            if task.kind == "F" and task.stage == 1:
                activations[t] = tuple(choose(rng) for _ in range(sizes[1]))
                periods[t] = rng.randint(1, sizes[1] + 1)
        plan = dataclasses.replace(plan, activations=activations,
                                   periods=periods)
        generator = torch.Generator().manual_seed(seed)
        batch = [torch.randn(6, WIDTH, generator=generator) for _ in range(2)]

        class Feed(nn.Module):

            def __init__(self):
                super().__init__()
                self.first = first

            def forward(self, x, item):
                return self.first(item.batch[item.microbatch], item)

        executor = Executor({0: Feed(), 1: second}, rank=0,
                            loss_fn=lambda y, item: y.square().mean())
        torch.manual_seed(seed)
        result = executor.run(plan, batch)
        return result.loss, gradients(first) + gradients(second)

    def test_random_choices_give_the_gradients_of_keeping_everything(self):
        def random_choice(rng):
            what = rng.choice(("KEEP", "RECOMPUTE", "RECOMPUTE", "GROUPS",
                               "GROUPS", "OFFLOAD"))
            if what != "GROUPS":
                return what
            return "RECOMPUTE:" + "+".join(
                rng.sample(GROUPS, rng.randint(1, len(GROUPS))))

        for seed in range(100):
            with self.subTest(seed=seed):
                loss, kept = self.run_plan(seed, lambda rng: "KEEP")
                again_loss, values = self.run_plan(seed, random_choice)
                self.assertAlmostEqual(loss, again_loss, places=5)
                self.assertLess(off(values, kept), 1e-5)


if __name__ == "__main__":
    unittest.main()
