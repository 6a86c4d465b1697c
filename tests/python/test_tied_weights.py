"""A weight with ends on two of three ranks (Executor's `tied`): gradients,
their norm and steps are those of one process with one weight."""
import dataclasses
import os
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
    from torch.nn import functional
    AVAILABLE = dist.is_available()
except ImportError:
    AVAILABLE = False

from gloo_ranks import run_ranks  # noqa: E402

if AVAILABLE:
    from pipeloom.plan import Microbatch, SubMicrobatch
    from pipeloom.static_schedule import Stage, static_plan
    from pipeloom.torch import Executor

RANKS, WIDTH, VOCAB, BLOCKS = 3, 6, 11, 4
STAGES = tuple(Stage(0, r, 1, r, 0) for r in range(RANKS))

if AVAILABLE:
    class Part(nn.Module):
        """Embedding, layer, or head with the embedding's weight."""

        def __init__(self, rank, weight):
            super().__init__()
            self.rank = rank
            self.linear = nn.Linear(WIDTH, WIDTH)
            if rank != 1:
                self.table = weight

        def forward(self, x, item=None):
            if self.rank == 0:
                ids = x if item is None else item.batch[item.microbatch]
                x = functional.embedding(ids, self.table)
            x = torch.tanh(self.linear(x))
            return x @ self.table.t() if self.rank == 2 else x


def build(shared):
    """Returns the stages, with one weight or a copy on each rank."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(VOCAB, WIDTH))
    return [Part(r, weight if shared else nn.Parameter(weight.detach().clone()))
            for r in range(RANKS)]


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(VOCAB, (5,), generator=generator)
            for _ in range(BLOCKS)]


def add_gradients(parts, ids):
    """Adds the gradients of one process."""
    for some in ids:
        x = some
        for part in parts:
            x = part(x)
        (functional.cross_entropy(x, some) / BLOCKS).backward()


def train(rank):
    """Returns the largest difference from one process, and the errors."""
    plan = static_plan(STAGES, (), [
        Microbatch((m,), 1 / BLOCKS, (SubMicrobatch(0),))
        for m in range(BLOCKS)], ("text",))
    one = build(shared=True)
    every = list(dict.fromkeys(p for part in one for p in part.parameters()))
    whole = torch.optim.SGD(every, 0.5, momentum=0.9)
    mine = build(shared=False)[rank]
    optimizer = torch.optim.SGD(mine.parameters(), 0.5, momentum=0.9)
    tied = {} if rank == 1 else {"table": mine.table}
    options = {"rank": rank, "loss_fn": lambda y, item:
               functional.cross_entropy(y, item.batch[item.microbatch])}
    executor = Executor({rank: mine}, tied=tied, **options)
    off = 0.0
    for step in range(3):
        optimizer.zero_grad()
        whole.zero_grad()
        for call in range(2):  # Their gradients are added up.
            try:  # A run that is refused in between changes nothing.
                with torch.no_grad():
                    executor.run(plan, batch(0))
                raise AssertionError("it runs")
            except RuntimeError as error:
                assert "without gradients" in str(error), error
            executor.run(plan, batch(10 * step + call))
            add_gradients(one, batch(10 * step + call))
        norm = float(executor.clip_grad_norm_(0.1))
        expected = float(nn.utils.clip_grad_norm_(every, 0.1))
        off = max(off, abs(norm / expected - 1))
        for a, b in zip(mine.parameters(), one[rank].parameters()):
            off = max(off, float((a.grad - b.grad).abs().max()))
        optimizer.step()
        whole.step()
        for a, b in zip(mine.parameters(), one[rank].parameters()):
            off = max(off, float((a - b).detach().abs().max()))
    errors = []
    if rank == 2:
        with torch.no_grad():
            mine.table[0, 0] += 1
    agreed = dataclasses.replace(plan, agreed=True)
    for make in (lambda: executor.run(plan, batch(0)),
                 lambda: executor.run(agreed, batch(0)),
                 lambda: Executor({rank: mine}, tied=tied, **options)):
        try:
            make()
            errors.append("")
        except (RuntimeError, ValueError) as error:
            errors.append(str(error))
    return off, errors


@unittest.skipUnless(AVAILABLE, "torch, grpcio or protobuf is missing")
class TiedWeightsTest(unittest.TestCase):

    def test_ends_of_a_weight_train_as_one(self):
        for rank, found in run_ranks(RANKS, train).items():
            self.assertIsInstance(found, tuple, f"rank {rank}: {found}")
            off, (drifted, agreed, unlike) = found
            self.assertLess(off, 1e-5, f"rank {rank}")
            self.assertIn("no longer equal" if rank != 1 else
                          "ranks [0, 2] refuse the plan", drifted)
            self.assertIn("no longer equal", agreed)
            self.assertIn("tied['table'] differs on ranks 0 and 2", unlike)


if __name__ == "__main__":
    unittest.main()
