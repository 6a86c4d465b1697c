"""Stages whose parameters several processes divide: those of tensor
parallelism count whole in norms and scaled losses; those that sum gradients by
themselves are refused."""
import dataclasses
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../python"))

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (ColwiseParallel,
                                                   RowwiseParallel,
                                                   parallelize_module)
    HAVE_TORCH = dist.is_available()
except (ImportError, ValueError):  # torch 1.13 with a later Python.
    HAVE_TORCH = False

try:
    import google.protobuf  # noqa: F401
    import grpc  # noqa: F401
    HAVE_GRPC = True
except ImportError:
    HAVE_GRPC = False

from gloo_ranks import run_ranks  # noqa: E402

if HAVE_TORCH and HAVE_GRPC:
    from pipeloom import static_schedule as sp
    from pipeloom.plan import Microbatch, SubMicrobatch
    from pipeloom.recompute import again
    from pipeloom.torch import Executor, LossScaler

WIDTH = 4
NORMS = (2.0, 1.0, float("inf"))


if HAVE_TORCH:
    class Stage(nn.Module):
        operator_groups = ("activations",)

        def __init__(self):
            super().__init__()
            self.up = nn.Linear(WIDTH, 2 * WIDTH)
            self.down = nn.Linear(2 * WIDTH, WIDTH)
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x, item=None):
            x = item.batch if x is None else x
            return self.norm(x + self.down(
                again("activations", torch.tanh, self.up(x))))


def loss_of(output, item=None):
    return (output - 1.0).pow(4).mean()


def build():
    torch.manual_seed(0)
    return [Stage(), Stage()]


def tensor_parallel(process):
    """Two stages, each divided by two processes: 0 and 1, 2 and 3."""
    rank, part = divmod(process, 2)
    pipelines = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    stage = build()[rank]
    parallelize_module(stage, DeviceMesh.from_group(halves[rank], "cpu"),
                       {"up": ColwiseParallel(), "down": RowwiseParallel()})
    plan = sp.static_plan(
        [sp.Stage(0, 0, 1, 0), sp.Stage(0, 1, 1, 1)], (),
        [Microbatch((0,), 1.0, (SubMicrobatch(0, 0, 0, 1),))], ("text",))
    batch = torch.linspace(-1.0, 1.0, 3 * WIDTH).reshape(3, WIDTH)
    scaler = LossScaler(init_scale=16.0)
    executor = Executor({rank: stage}, rank=rank, group=pipelines[part],
                        loss_fn=loss_of, scaler=scaler)
    executor.run(plan, batch)
    scaler.unscale_()
    norms = [float(executor.clip_grad_norm_(1e9, n)) for n in NORMS]
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.0)
    finite = scaler.step(optimizer)
    if process == 1:
        stage.up.weight.grad.to_local()[0, 0] = float("inf")
    return norms, finite, scaler.step(optimizer)


def chosen(process):
    """Returns how far gradients are off, by what a plan does with activations:
    as tensor_parallel(), with outputs of layers that are DTensors."""
    rank, part = divmod(process, 2)
    pipelines = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mesh = DeviceMesh.from_group(halves[rank], "cpu")
    plan = sp.static_plan(
        [sp.Stage(0, 0, 1, 0), sp.Stage(0, 1, 1, 1)], (),
        [Microbatch((m,), 0.5, (SubMicrobatch(0, 0, 0, 1),))
         for m in range(2)], ("text",))
    batch = torch.linspace(-1.0, 1.0, 3 * WIDTH).reshape(3, WIDTH)
    one = build()
    loss_of(one[1](one[0](batch))).backward()
    off = {}
    for choice in ("OFFLOAD", "RECOMPUTE", "RECOMPUTE:activations"):
        stage = build()[rank]
        parallelize_module(stage, mesh, {
            "up": ColwiseParallel(use_local_output=False),
            "down": RowwiseParallel()})
        Executor({rank: nn.Sequential(stage)}, rank=rank, loss_fn=loss_of,
                 group=pipelines[part]).run(dataclasses.replace(
                     plan, activations={t: (choice,) for t, task in
                                        plan.tasks.items()
                                        if task.kind == "F"}), batch)
        off[choice] = max(float((
            a.grad.full_tensor() if hasattr(a.grad, "full_tensor") else a.grad
        ).sub(b.grad).abs().max()) for a, b in zip(
            stage.parameters(), one[rank].parameters()))
    return off


def tied(process):
    """Returns how far the gradient of a tied weight is off whose ends, an
    embedding and a head, are divided; and the norm of all gradients."""
    class Embedding(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(2 * WIDTH, WIDTH)

        def forward(self, x, item):
            return self.table(item.batch)

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.product = nn.Linear(WIDTH, 2 * WIDTH, bias=False)

        def forward(self, x, item):
            return self.product(torch.tanh(x))

    torch.manual_seed(0)
    whole = nn.Parameter(torch.randn(2 * WIDTH, WIDTH))
    rank, part = divmod(process, 2)
    pipelines = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    stage = Head() if rank else Embedding()
    layer = stage.product if rank else stage.table
    with torch.no_grad():
        layer.weight.copy_(whole)
    parallelize_module(
        stage, DeviceMesh.from_group(halves[rank], "cpu"),
        {"product": ColwiseParallel(output_layouts=Replicate())} if rank else
        {"table": RowwiseParallel(input_layouts=Replicate())})
    plan = sp.static_plan(
        [sp.Stage(0, 0, 1, 0), sp.Stage(0, 1, 1, 1)], (),
        [Microbatch((0,), 1.0, (SubMicrobatch(0, 0, 0, 1),))], ("text",))
    ids = torch.arange(WIDTH + 1)
    executor = Executor({rank: stage}, rank=rank, group=pipelines[part],
                        loss_fn=loss_of, tied={"table": layer.weight})
    executor.run(plan, ids)
    loss_of(torch.tanh(whole[ids]) @ whole.t()).backward()
    off = layer.weight.grad.full_tensor() - whole.grad
    norm = executor.clip_grad_norm_(1e9)
    # As two weights; the table's gradient is whole on each process.
    layer.weight.grad = None
    executor = Executor({rank: stage}, rank=rank, group=pipelines[part],
                        loss_fn=loss_of)
    executor.run(plan, ids)
    table, head = (whole.detach().clone().requires_grad_() for _ in range(2))
    loss_of(torch.tanh(table[ids]) @ head.t()).backward()
    apart = nn.utils.clip_grad_norm_([table, head], 1e9)
    return (float(off.abs().max()), float(norm - whole.grad.norm()),
            float(executor.clip_grad_norm_(1e9) - apart))


def wrapped(rank):
    """Returns what the executor says to each wrapper."""
    def layer_of_fully_shard(stage):
        fully_shard(stage[0], mesh=DeviceMesh("cpu", [0]))
        return stage

    def replicated(stage):
        from torch.distributed._composable.replicate import replicate
        replicate(stage[0])
        return stage

    said = {}
    for name, wrap in {
            "fully_shard": layer_of_fully_shard,
            "FullyShardedDataParallel": lambda stage: FullyShardedDataParallel(
                stage, device_id=torch.device("cpu")),
            "replicate": replicated}.items():
        try:
            Executor({3: wrap(nn.Sequential(Stage()))}, rank=rank,
                     loss_fn=loss_of)
            said[name] = "it was taken"
        except ValueError as error:
            said[name] = str(error)
    return said


@unittest.skipUnless(HAVE_TORCH, "torch has no tensor parallelism or no FSDP2")
@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class DividedTest(unittest.TestCase):

    def test_tensor_parallel_gradients_count_whole(self):
        one = build()
        batch = torch.linspace(-1.0, 1.0, 3 * WIDTH).reshape(3, WIDTH)
        loss_of(one[1](one[0](batch, None), None)).backward()
        parameters = [p for stage in one for p in stage.parameters()]
        wanted = [float(nn.utils.clip_grad_norm_(parameters, 1e9, n))
                  for n in NORMS]
        for process, result in sorted(run_ranks(4, tensor_parallel).items()):
            self.assertIsInstance(result, tuple, result)
            norms, finite, with_infinity = result
            for norm, right in zip(norms, wanted):
                self.assertAlmostEqual(norm / right, 1.0, 4,
                                       f"process {process}")
            self.assertTrue(finite)
            # An infinite gradient of one process: none steps.
            self.assertFalse(with_infinity, f"process {process}")

    def test_tensor_parallel_stages_offload_and_run_again(self):
        for process, result in sorted(run_ranks(4, chosen).items()):
            self.assertIsInstance(result, dict, result)
            for choice, off in result.items():
                self.assertLess(off, 1e-4, f"process {process}, {choice}")

    def test_ends_of_a_tied_weight_are_divided_alike(self):
        for process, result in sorted(run_ranks(4, tied).items()):
            self.assertIsInstance(result, tuple, result)
            for off in result:
                self.assertLess(abs(off), 1e-4, f"process {process}")

    def test_stages_that_sum_gradients_themselves_are_refused(self):
        for name, said in run_ranks(1, wrapped)[0].items():
            self.assertIn(f"stages[3] has a module of {name}, which averages",
                          said)


if __name__ == "__main__":
    unittest.main()
