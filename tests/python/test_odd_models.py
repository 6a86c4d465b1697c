"""pipeloom.torch with models as users write them: plans in any order, with
split backwards, recomputed and offloaded, give what one process gives."""
import dataclasses
import os
import random
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../python"))

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch import nn
    from torch.nn import functional
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
    from test_torch import free_port, random_orders

WIDTH = 8
NAMES = ("vision", "audio", "text")
FEEDS = ((0, 2), (1, 2))
# Images and recordings of each microbatch; the whole step may have none.
BATCHES = (((2, 1), (0, 0), (1, 0), (0, 2)), ((0, 0), (0, 0)), ((1, 0),))


if HAVE_TORCH:
    class Stage(nn.Module):
        """`first` takes the batch in, and what other modules give."""

        def __init__(self, module, index):
            super().__init__()
            self.module, self.first = module, index == 0
            self.linear = nn.Linear(WIDTH, WIDTH)

        def given(self, x, item):
            if not self.first:
                return x
            own = item.batch[NAMES[self.module]][item.microbatch]
            if self.module < 2:
                return own[item.first_instance:
                           item.first_instance + item.instances]
            for part in (x or {}).values():
                own = own + torch.cat(part).mean(0)
            return own

        def forward(self, x, item):
            return self.work(self.given(x, item), item)

        def work(self, x, item):
            return torch.tanh(self.linear(x))

    class Twice(Stage):
        """One layer is used twice, and its weight once more."""

        def work(self, x, item):
            x = torch.tanh(self.linear(self.linear(x)))
            return functional.linear(x, self.linear.weight)

    class LowRank(Stage):
        """A frozen layer with trained matrices of low rank, and a frozen
        buffer."""

        def __init__(self, module, index):
            super().__init__(module, index)
            self.linear.requires_grad_(False)
            self.down = nn.Linear(WIDTH, 2, bias=False)
            self.up = nn.Linear(2, WIDTH, bias=False)
            self.register_buffer("scale", torch.full((WIDTH,), 0.5))

        def work(self, x, item):
            return self.linear(x) + self.scale * self.up(self.down(x))

    class OwnCheckpoint(Stage):
        def work(self, x, item):
            reentrant = item.microbatch % 2 == 0
            return x + checkpoint(
                lambda t: torch.tanh(self.linear(t)), x,
                use_reentrant=reentrant and x.requires_grad)

    class Autocast(Stage):
        def work(self, x, item):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return torch.tanh(self.linear(x)).float()

    class Frozen(Stage):
        """Encoders whose first stage is not trained."""

        def __init__(self, module, index):
            super().__init__(module, index)
            self.requires_grad_(module == 2 or index > 0)

    class Ids(Stage):
        """Text is handed on as ids by its first stage; a mask is another of
        the types that have no gradient."""

        def __init__(self, module, index):
            super().__init__(module, index)
            self.index = index
            self.table = nn.Embedding(16, WIDTH)

        def work(self, x, item):
            if self.module < 2 or self.index > 1:
                return super().work(x, item)
            if self.index == 0:
                return (x * 4).long().clamp(-8, 7) + 8
            return self.table(x).mean(1)

    class Ignores(Stage):
        """The second stage of text takes nothing of the first."""

        def __init__(self, module, index):
            super().__init__(module, index)
            self.index = index

        def work(self, x, item):
            if self.module == 2 and self.index == 1:
                x = item.batch["text"][item.microbatch]
            return super().work(x, item)

    class View(Stage):
        """Hands on a part of a larger tensor, with its axes turned."""

        def work(self, x, item):
            y = self.linear(x)
            return torch.cat([y, y]).t()[:, :len(x)].t()

    class Sparse(Stage):
        """Saves a sparse matrix for the backward."""

        def work(self, x, item):
            neighbours = torch.eye(len(x)).to_sparse() * 2.0
            return torch.sparse.mm(neighbours, torch.tanh(self.linear(x)))

    class Nested(Stage):
        """Works on sequences of different lengths as one nested tensor."""

        def work(self, x, item):
            y = torch.nested.nested_tensor_from_jagged(
                x, torch.tensor([0, 1, len(x)]))
            return torch.tanh(self.linear(y)).values()

    class Mapped(Stage):
        """Is called for each row by torch.func."""

        def work(self, x, item):
            return torch.func.vmap(
                lambda row: torch.tanh(self.linear(row)))(x)

    MODELS = [Stage, Twice, LowRank, OwnCheckpoint, Autocast, Frozen, Ids,
              Ignores, View, Sparse]
    if hasattr(torch, "func"):
        MODELS.append(Mapped)
    if hasattr(torch.nested, "nested_tensor_from_jagged"):
        MODELS.append(Nested)


def stages_of(ranks):
    """Two stages a rank of text, one of each encoder on the first and the
    last rank."""
    order = [(0, 0), (1, ranks - 1), (0, ranks - 1)]
    order += [(2, r % ranks) for r in range(2 * ranks + 1)]
    order.sort(key=lambda s: s[0])
    counts = [0, 0, 0]
    stages = []
    for module, rank in order:
        stages.append(sp.Stage(module, counts[module], 1, rank,
                               counts[module]))
        counts[module] += 1
    return stages


def build(model, stages):
    torch.manual_seed(0)
    return [model(s.module, s.first_layer) for s in stages]


def batch_of(counts, seed):
    generator = torch.Generator().manual_seed(seed)
    made = {name: [] for name in NAMES}
    microbatches, rows = [], []
    for m, (images, recordings) in enumerate(counts):
        rows.append(2 + (m + seed) % 3)
        subs = [SubMicrobatch(0, i, i, 1) for i in range(images)]
        if recordings:
            subs.append(SubMicrobatch(1, 0, 0, recordings))
        subs.append(SubMicrobatch(2, 0, 0, 1))
        for name, n in zip(NAMES, (images, recordings, rows[-1])):
            made[name].append(torch.randn(n, WIDTH, generator=generator))
        microbatches.append(subs)
    return made, [Microbatch((m,), weight, tuple(subs)) for m, (weight, subs)
                  in enumerate(zip(loss_weights(rows), microbatches))]


def loss_of(output, item):
    return (output.float() - 1.0).square().mean()


def plan_of(stages, ranks, microbatches, seed):
    """Any order; backwards split or not, some recomputed, some offloaded."""
    rng = random.Random(seed)
    counts = []
    for m in microbatches:
        own = {}
        for sub in m.subs:
            own[sub.module] = own.get(sub.module, 0) + 1
        counts.append(own)
    graph = sp.build_graph(stages, FEEDS, counts, split_backward=seed % 2 == 0)
    graph = sp.Graph(tuple(
        dataclasses.replace(t, recomputes=t.kind == "B" and
                            rng.random() < 0.3) for t in graph.tasks),
        graph.edges)
    plan = sp.plan_of(graph, random_orders(graph, ranks, rng), NAMES,
                      microbatches, "random", seed)
    return dataclasses.replace(plan, activations={
        t: (rng.choice(("KEEP", "RECOMPUTE", "OFFLOAD")),)
        for t, task in plan.tasks.items() if task.kind == "F"})


def one_process(layers, stages, batch, microbatches):
    @dataclasses.dataclass
    class Item:
        batch: object
        microbatch: int
        first_instance: int
        instances: int

    total = 0.0
    for m, micro in enumerate(microbatches):
        outputs = {}
        for sub in micro.subs:
            x = outputs if sub.module == 2 and outputs else None
            item = Item(batch, m, sub.first_instance, sub.instances)
            for layer, stage in zip(layers, stages):
                if stage.module == sub.module:
                    x = layer(x, item)
            outputs = dict(outputs)
            outputs[NAMES[sub.module]] = outputs.get(
                NAMES[sub.module], []) + [x]
        loss = loss_of(x, item) * micro.loss_weight
        loss.backward()
        total += float(loss.detach())
    return total


def check(rank, ranks):
    stages = stages_of(ranks)
    for model in MODELS:
        layers, reference = build(model, stages), build(model, stages)
        mine = {i: layers[i] for i, s in enumerate(stages) if s.rank == rank}
        executor = Executor(mine, rank=rank, loss_fn=loss_of)
        for seed in range(6):
            batch, microbatches = batch_of(BATCHES[seed % len(BATCHES)], seed)
            for layer in layers + reference:
                layer.zero_grad()
            result = executor.run(
                plan_of(stages, ranks, microbatches, seed), batch)
            total = torch.tensor([result.loss])
            dist.all_reduce(total)
            wanted = one_process(reference, stages, batch, microbatches)
            name = f"{model.__name__}, seed {seed}"
            assert abs(float(total) - wanted) < 1e-5, f"{name}: loss"
            for i in mine:
                for (key, a), b in zip(layers[i].named_parameters(),
                                       reference[i].parameters()):
                    left, right = (torch.zeros_like(p) if p.grad is None
                                   else p.grad for p in (a, b))
                    off = float((left - right).abs().max())
                    bound = 2e-2 if model is Autocast else 1e-5
                    assert off < bound, f"{name}: stage {i}, {key}: {off}"


def worker(rank, ranks, port, queue):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      USE_LIBUV="0")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    try:
        check(rank, ranks)
        queue.put("ok")
    except BaseException as error:  # pylint: disable=broad-except
        queue.put(f"rank {rank}: {type(error).__name__}: {error}")


@unittest.skipUnless(HAVE_TORCH, "torch with torch.distributed is missing")
@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class OddModelsTest(unittest.TestCase):

    def run_ranks(self, ranks):
        context = mp.get_context("fork")
        queue, port = context.Queue(), free_port()
        processes = [context.Process(target=worker, args=(
            r, ranks, port, queue)) for r in range(ranks)]
        for p in processes:
            p.start()
        try:
            results = [queue.get(timeout=300) for _ in processes]
        finally:
            for p in processes:
                p.join(5)
                p.kill()
        self.assertEqual(results, ["ok"] * ranks)

    def test_one_rank(self):
        self.run_ranks(1)

    def test_two_ranks(self):
        self.run_ranks(2)

    def test_three_ranks(self):
        self.run_ranks(3)


if __name__ == "__main__":
    unittest.main()
