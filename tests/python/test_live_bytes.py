"""Checks that pipeloom.torch holds the bytes that a plan says: runs random
plans of the planner, counts every tensor's bytes, and compares them with the
plan's account of each rank, and the gradients with those of one process.

PIPELOOM_TRUTH_PLANS (environment) asks for more plans; PIPELOOM_RANDOM_CASES is
the program that writes them."""
import collections
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import traceback
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../python"))

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch import nn
    from torch.nn import functional
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten
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
    from pipeloom import host_store, recompute
    from pipeloom.plan import Microbatch, read_plan
    from pipeloom.recompute import again
    from pipeloom.torch import Executor

WRITER = os.environ.get("PIPELOOM_RANDOM_CASES", "")
RANKS = 4
WANTED = ("ranks 1", "ranks 2", "ranks 3", "ranks 4", "fused backward",
          "split backward", "paired backward", "paired forward", "keep", "full",
          "uniform, period", "block, count", "offload", "offload instruction",
          "core_attention", "norms", "activations", "moe_activations",
          "projections", "sub-microbatches", "frozen")


# The bounds that hold. docs/torch_device.md says why they are not 1 and 0.9.
MOST, LEAST = 1.06, 0.69
# All but a few plans hold at least this much.
USUAL_LEAST = 0.8


class Counting:
    """Where the bytes of this process's rank are counted; None: nowhere."""
    mode = None


def kernel(function):
    """Leaves the function's temporary tensors out of the count, as a GPU's
    kernel holds them on chip."""
    def run(*args):
        mode = Counting.mode
        if mode is None:
            return function(*args)
        mode.inside += 1
        try:
            result = function(*args)
        finally:
            mode.inside -= 1
        mode.look()
        return result
    return staticmethod(run)


if HAVE_TORCH and HAVE_GRPC:
    class Live(TorchDispatchMode):
        """Counts the storages of what operators return while they are there,
        but for those of `outside` and of copies that stand for host memory."""

        def __init__(self, outside):
            super().__init__()
            self.outside = {recompute.storage_of(t)._cdata for t in outside}
            self.storages = {}
            self.inside = 0
            self.on_host = False
            self.most = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            new = False
            for t in tree_flatten(out)[0]:
                if isinstance(t, torch.Tensor):
                    new |= self.note(t)
            if new and not self.inside:
                self.look()
            return out

        def note(self, tensor):
            storage = recompute.storage_of(tensor)
            key = storage._cdata
            known = self.storages.get(key)
            if key in self.outside or (known is not None and
                                       not known[0].expired()):
                return False
            size = 0 if self.on_host else storage.nbytes()
            self.storages[key] = (recompute._WeakStorage(tensor), size)
            return True

        def look(self):
            gone = [k for k, (weak, _) in self.storages.items()
                    if weak.expired()]
            for key in gone:
                del self.storages[key]
            self.most = max(self.most,
                            sum(n for _, n in self.storages.values()))

    class Store(host_store.HostStore):
        def _to_host(self, tensor):
            mode = Counting.mode
            mode.on_host = True
            try:
                return super()._to_host(tensor)
            finally:
                mode.on_host = False

    # Operators that keep what emulator/stage/layer_memory.h says.

    class Norm(torch.autograd.Function):
        @kernel
        def forward(ctx, x, weight):
            ctx.save_for_backward(x)
            ctx.weight = weight
            return x * (x.square().mean(-1, True) + 1e-6).rsqrt() * weight

        @kernel
        def backward(ctx, gradient):
            x, = ctx.saved_tensors
            scale = (x.square().mean(-1, True) + 1e-6).rsqrt()
            normed = x * scale
            inner = gradient * ctx.weight
            into_x = scale * (inner - normed * (inner * normed).mean(-1, True))
            return into_x, ((gradient * normed).sum(0)
                            if ctx.needs_input_grad[1] else None)

    def scores_of(q, k):
        scores = q @ k.transpose(1, 2) / q.shape[2] ** 0.5
        later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
        return scores.masked_fill_(later, float("-inf"))

    def by_head(t, heads, kv_heads):
        t = t.view(t.shape[0], kv_heads, -1).transpose(0, 1)
        return t.repeat_interleave(heads // kv_heads, 0)

    class Attention(torch.autograd.Function):
        @kernel
        def forward(ctx, q, k, v, heads, kv_heads):
            ctx.heads = heads, kv_heads
            scores = scores_of(by_head(q, heads, heads),
                               by_head(k, heads, kv_heads))
            sums = scores.logsumexp(-1)
            out = ((scores - sums.unsqueeze(-1)).exp() @
                   by_head(v, heads, kv_heads))
            out = out.transpose(0, 1).reshape(q.shape[0], -1)
            ctx.save_for_backward(q, k, v, out, sums)
            return out

        @kernel
        def backward(ctx, gradient):
            heads, kv_heads = ctx.heads
            q, k, v, out, sums = ctx.saved_tensors
            qs, ks, vs = (by_head(q, heads, heads), by_head(k, heads, kv_heads),
                          by_head(v, heads, kv_heads))
            down = by_head(gradient.contiguous(), heads, heads)
            weights = (scores_of(qs, ks) - sums.unsqueeze(-1)).exp()
            delta = (down * by_head(out, heads, heads)).sum(-1, True)
            of_scores = (weights * (down @ vs.transpose(1, 2) - delta) /
                         qs.shape[2] ** 0.5)

            def gathered(t, n):
                t = t.view(n, heads // n, *t.shape[1:]).sum(1)
                return t.transpose(0, 1).reshape(t.shape[1], -1)

            return (gathered(of_scores @ ks, heads),
                    gathered(of_scores.transpose(1, 2) @ qs, kv_heads),
                    gathered(weights.transpose(1, 2) @ down, kv_heads),
                    None, None)

    class SiluProduct(torch.autograd.Function):
        @kernel
        def forward(ctx, gate, up):
            ctx.save_for_backward(gate, up)
            return functional.silu(gate) * up

        @kernel
        def backward(ctx, gradient):
            gate, up = ctx.saved_tensors
            sigmoid = gate.sigmoid()
            return (gradient * up * sigmoid * (gate * (1 - sigmoid) + 1),
                    gradient * gate * sigmoid)

    class CrossEntropy(torch.autograd.Function):
        """The sum of cross-entropies; its gradient overwrites the logits."""
        @kernel
        def forward(ctx, logits, labels):
            rows = torch.arange(len(labels))
            sums = logits.logsumexp(-1, True)
            loss = sums.sum() - logits[rows, labels].sum()
            gradient = (logits - sums).exp()
            gradient[rows, labels] -= 1
            logits.detach().copy_(gradient)
            ctx.save_for_backward(logits)
            return loss

        @kernel
        def backward(ctx, gradient):
            logits, = ctx.saved_tensors
            return logits.detach().mul_(gradient), None

    def tokens_of(item):
        """The tokens of an item, and those it hands on."""
        return item.batch["work"][item.microbatch][
            item.batch["names"].index(item.module)][item.sub]

    def made(item, *shape, ids=0):
        """Numbers that depend on the item only."""
        generator = torch.Generator().manual_seed(
            1000 * item.microbatch + 10 * item.sub + len(item.module))
        if ids:
            return torch.randint(ids, shape, generator=generator)
        return torch.randn(shape, generator=generator)

    class Layer(nn.Module):
        operator_groups = recompute.GROUPS

        def __init__(self, spec):
            super().__init__()
            self.spec = spec

        def add_norm(self, name):
            setattr(self, name, nn.Parameter(
                1 + 0.1 * torch.randn(self.spec["hidden"])))

        def add_linear(self, name, out, inner):
            linear = nn.Linear(inner, out, bias=False)
            nn.init.normal_(linear.weight, std=inner ** -0.5)
            setattr(self, name, linear)

    class Linear(Layer):
        def __init__(self, spec):
            super().__init__(spec)
            self.add_linear("linear", spec["hidden"], spec["in"])

        def forward(self, x, item):
            if x is None:
                x = made(item, tokens_of(item)[0], self.spec["in"])
            return self.linear(x.reshape(-1, self.spec["in"]))

    class Embedding(Layer):
        def __init__(self, spec):
            super().__init__(spec)
            self.table = nn.Parameter(
                0.5 * torch.randn(spec["vocab"], spec["hidden"]))

        def forward(self, x, item):
            rows = [] if x is None else [t for part in x.values()
                                         for t in part]
            own = tokens_of(item)[0] - sum(len(t) for t in rows)
            rows.append(functional.embedding(
                made(item, max(0, own), ids=self.spec["vocab"]), self.table))
            return torch.cat(rows)[:tokens_of(item)[0]]

    class LossHead(Layer):
        def __init__(self, spec):
            super().__init__(spec)
            self.add_norm("norm")
            self.add_linear("head", spec["vocab"], spec["hidden"])

        def forward(self, x, item):
            y = again("norms", Norm.apply, x, self.norm)
            return CrossEntropy.apply(
                self.head(y), made(item, len(x), ids=self.spec["vocab"]))

    class Transformer(Layer):
        def __init__(self, spec):
            super().__init__(spec)
            width, inner = spec["head_dim"], spec["inner"]
            self.add_norm("norm1")
            self.add_norm("norm2")
            self.add_linear("query", spec["heads"] * width, spec["hidden"])
            self.add_linear("key", spec["kv_heads"] * width, spec["hidden"])
            self.add_linear("value", spec["kv_heads"] * width, spec["hidden"])
            self.add_linear("output", spec["hidden"], spec["heads"] * width)
            self.add_linear("up", inner, spec["hidden"])
            self.add_linear("down", spec["hidden"], inner)
            if spec["gated"]:
                self.add_linear("gate", inner, spec["hidden"])

        def attend(self, q, k, v):
            return Attention.apply(q, k, v, self.spec["heads"],
                                   self.spec["kv_heads"])

        def widen(self, y):
            if self.spec["gated"]:
                return self.gate(y), self.up(y)
            return self.up(y)

        def forward(self, x, item):
            y = again("norms", self.norm, x, "norm1")
            y = again("projections", lambda t: (
                self.query(t), self.key(t), self.value(t)), y)
            x = x + self.output(again("core_attention", self.attend, *y))
            y = again("norms", self.norm, x, "norm2")
            y = again("projections", self.widen, y)
            y = (again("activations", SiluProduct.apply, *y)
                 if self.spec["gated"] else
                 again("activations", functional.gelu, y))
            return x + self.down(y)

        def norm(self, x, name):
            return Norm.apply(x, getattr(self, name))

    KINDS = {"linear": Linear, "embedding": Embedding, "loss_head": LossHead,
             "transformer": Transformer}


@dataclasses.dataclass
class Case:
    plan: object
    facts: dict


def read_case(folder, seed):
    with open(os.path.join(folder, f"{seed}.json"), encoding="utf-8") as file:
        facts = json.load(file)
    plan = read_plan(os.path.join(folder, f"{seed}.pb"))
    memory = {int(t): m for t, m in facts["memory"].items()}
    return Case(dataclasses.replace(
        plan, agreed=True,  # Losses are added up.
        microbatches=(Microbatch((), 1.0),) * plan.num_microbatches,
        activations={t: tuple(m[0]) for t, m in memory.items()},
        periods={t: m[1] for t, m in memory.items()}), facts)


def build(facts, seed):
    """The modules of all stages."""
    torch.manual_seed(seed)
    stages = []
    for module, first, count, _ in facts["stages"]:
        spec = facts["modules"][module]
        layers = [KINDS[s["kind"]](s)
                  for s in spec["layers"][first:first + count]]
        stages.append(nn.Sequential(*layers).requires_grad_(not spec["frozen"]))
    return stages


def serial(facts, stages, batch):
    """The gradients of one process, by stage."""
    @dataclasses.dataclass
    class Item:
        microbatch: int
        module: str
        sub: int
        batch: object

    loss = 0.0
    of_module = {}
    for s, (module, _, _, _) in enumerate(facts["stages"]):
        of_module.setdefault(module, []).append(stages[s])
    for m, work in enumerate(facts["work"]):
        outputs = []
        for module, subs in enumerate(work):
            made_here = []
            for j in range(len(subs)):
                x = None
                if outputs:
                    x = {"encoder": [torch.tensor_split(t, len(subs))[j]
                                     for t in outputs]}
                item = Item(m, facts["modules"][module]["name"], j, batch)
                for layer in (l for s in of_module[module] for l in s):
                    x = layer(x, item)
                made_here.append(x)
            outputs = made_here
        total = sum(outputs)
        total.backward()
        loss += float(total.detach())
    return loss, [[None if p.grad is None else p.grad.clone()
                   for p in stage.parameters()] for stage in stages]


def distance(a, b):
    if a is None or b is None:
        a = b if a is None else a
        return 0.0 if a is None or float(a.norm()) == 0 else 1.0
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


def run_case(case, seed, rank, group):
    """Returns most bytes held, the loss, and how far gradients are off."""
    facts, plan = case.facts, case.plan
    batch = {"work": facts["work"],
             "names": [m["name"] for m in facts["modules"]]}
    stages = build(facts, seed)
    expected = [None]
    if rank == 0:
        expected[0] = serial(facts, stages, batch)
        for stage in stages:
            stage.zero_grad(set_to_none=True)
    if plan.num_ranks > 1:
        dist.broadcast_object_list(expected, 0, group=group)
    mine = {s: stages[s] for s, place in enumerate(facts["stages"])
            if place[3] == rank}

    def shape_of(a_plan, e):
        edge = a_plan.edges[e]
        if edge.payload_bytes == 0:
            return (0,), torch.float32
        return (edge.rows, edge.width), torch.float32

    # The loss of a sub-microbatch here is a sum, and its weight is to be 1.
    executor = Executor(mine, rank=rank,
                        loss_fn=lambda y, item: y / item.loss_weight,
                        group=group, shape_of=shape_of, check_agreement=False)
    mode = Live([p for s in mine.values() for p in s.parameters()])
    Counting.mode = mode
    with mode:
        result = executor.run(plan, batch)
    Counting.mode = None
    worst = 0.0
    for s, stage in mine.items():
        for p, other in zip(stage.parameters(), expected[0][1][s]):
            worst = max(worst, distance(p.grad, other))
    return mode.most, result.loss, worst


def work(rank, port, folder, seeds, queue):
    try:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                          USE_LIBUV="0")
        torch.set_num_threads(1)
        import pipeloom.execution.step
        pipeloom.execution.step.HostStore = Store
        dist.init_process_group("gloo", rank=rank, world_size=RANKS)
        groups = [dist.new_group(range(n + 1)) for n in range(RANKS)]
        for seed in seeds:
            case = read_case(folder, seed)
            if rank < case.plan.num_ranks:
                queue.put((seed, rank, run_case(
                    case, seed, rank, groups[case.plan.num_ranks - 1])))
        dist.barrier()
        dist.destroy_process_group()
    except Exception:  # pylint: disable=broad-except
        queue.put((None, rank, traceback.format_exc()))


@unittest.skipUnless(HAVE_TORCH, "torch with torch.distributed is missing")
@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
@unittest.skipUnless(os.path.exists(WRITER), "no PIPELOOM_RANDOM_CASES")
class LiveBytesTest(unittest.TestCase):

    def test_they_are_those_of_the_plans_account(self):
        plans = int(os.environ.get("PIPELOOM_TRUTH_PLANS", "24"))
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([WRITER, folder, "0", str(plans)], check=True)
            cases = [read_case(folder, s) for s in range(plans)]
            answers = self.run_all(folder, plans,
                                   sum(c.plan.num_ranks for c in cases))
        ratios, gradient, forward_only = [], 0.0, [0.0]
        above = ranks = 0
        has = collections.Counter()
        for seed, case in enumerate(cases):
            has.update(case.facts["has"])
            account = case.facts["account"]
            # A rank without work has no account, and must hold nothing.
            of_rank = [answers[seed, r][0] / max(account[r], 1)
                       for r in range(case.plan.num_ranks)]
            fullest = max(range(len(account)), key=account.__getitem__)
            backward = {t.rank for t in case.plan.tasks.values()
                        if t.kind == "B"}
            forward_only += [ratio for r, ratio in enumerate(of_rank)
                             if r not in backward]
            held = [of_rank[r] for r in sorted(backward)]
            above += sum(ratio > 1 for ratio in held)
            ranks += len(held)
            ratios.append((max(held), of_rank[fullest]))
            off = max(answers[seed, r][2] for r in range(len(account)))
            gradient = max(gradient, off)
            if os.environ.get("PIPELOOM_TRUTH_PRINT"):
                print(seed, ["%.3f" % r for r in of_rank], account, off)
            with self.subTest(seed=seed):
                self.assertLessEqual(max(of_rank), MOST, of_rank)
                self.assertGreaterEqual(of_rank[fullest], LEAST, of_rank)
                self.assertLess(off, 1e-5)
        below = sum(least < USUAL_LEAST for _, least in ratios)
        self.assertLessEqual(below, 1 + plans // 100)
        print(f"{plans} plans: live bytes {min(r[1] for r in ratios):.3f} "
              "(least of a plan's fullest rank) to "
              f"{max(r[0] for r in ratios):.3f} of the account, above it on "
              f"{above} of {ranks} ranks; ranks without a backward up to "
              f"{max(forward_only):.3f}; gradients off by {gradient:.1e}\n"
              f"{dict(has)}")
        for what in WANTED:
            self.assertGreater(has[what], 0, what)

    def run_all(self, folder, plans, expected):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        context = mp.get_context("fork")
        queue = context.Queue()
        processes = [context.Process(target=work, args=(
            r, port, folder, range(plans), queue)) for r in range(RANKS)]
        for p in processes:
            p.start()
        answers = {}
        try:
            for _ in range(expected):
                seed, rank, answer = queue.get(timeout=1800)
                self.assertIsNotNone(seed, f"rank {rank}: {answer}")
                answers[seed, rank] = answer
        finally:
            for p in processes:
                if len(answers) < expected:
                    p.terminate()
                p.join(60)
        return answers


if __name__ == "__main__":
    unittest.main()
