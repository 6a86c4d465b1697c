"""Executor.evaluate: the loss of a plan's samples without a trace in the
training."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../python"))

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
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
    import dataclasses

    from pipeloom import static_schedule as sp
    from pipeloom.torch import Executor, StepFailed
    from test_torch import (FEEDS, MODULES, build, free_port, loss_of,
                            make_batch, partition, plans_for, serial,
                            share_of)

RANKS = 3
SUBS = (1, 2, 0, 3)


def whole_loss(result):
    total = torch.tensor([result.loss], dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)


class World:
    """One rank of a small training with an optimizer."""

    def __init__(self, rank):
        self.rank = rank
        self.stages = partition(RANKS, 2, True)
        self.layers = build(self.stages)
        self.mine = {i: self.layers[i] for i, s in enumerate(self.stages)
                     if s.rank == rank}
        self.reduced = 0
        self.executor = Executor(
            self.mine, rank=rank, loss_fn=loss_of, reduce_fn=self.reduce,
            optimizer=torch.optim.AdamW(
                [p for m in self.mine.values() for p in m.parameters()],
                lr=0.1, weight_decay=0.5))

    def reduce(self):
        self.reduced += 1

    def state(self):
        """Copies of parameters and their gradients."""
        return [(p.detach().clone(),
                 None if p.grad is None else p.grad.clone())
                for m in self.mine.values() for p in m.parameters()]

    def check_unchanged(self, before):
        for (p, g), (q, h) in zip(before, self.state()):
            assert torch.equal(p, q), "a parameter has changed"
            assert (g is None) == (h is None), "a gradient came or went"
            assert g is None or torch.equal(g, h), "a gradient has changed"


def plans(batch, microbatches, rank):
    """Plans in any order, with backwards split, recomputed or offloaded, as a
    whole or as a rank's share, and the static one."""
    for seed in range(6):
        _, plan = plans_for(RANKS, 2, True, seed % 2 == 0, microbatches, seed)
        memory = ("KEEP", "RECOMPUTE", "OFFLOAD")[seed % 3]
        plan = dataclasses.replace(plan, activations={
            i: (memory,) for i, t in plan.tasks.items() if t.kind == "F"})
        yield share_of(plan, rank) if seed % 2 else plan
    yield sp.static_plan(partition(RANKS, 2, True), FEEDS, microbatches,
                         MODULES)


def leaves_no_trace(rank):
    world = World(rank)
    batch, microbatches = make_batch(5, SUBS)
    wanted = serial(build(world.stages), world.stages, batch, microbatches)
    for train_first in (False, True):
        if train_first:  # There are gradients, and states of the optimizer.
            world.executor.run(next(plans(batch, microbatches, rank)), batch)
            reference = build(world.stages)
            for i, layer in enumerate(reference):
                every = [None] * RANKS
                dist.all_gather_object(every, {
                    k: m.state_dict() for k, m in world.mine.items()})
                layer.load_state_dict(next(d[i] for d in every if i in d))
            wanted = serial(reference, world.stages, batch, microbatches)
        world.reduced = 0
        for plan in plans(batch, microbatches, rank):
            before = world.state()
            result = world.executor.evaluate(plan, batch)
            world.check_unchanged(before)
            assert world.reduced == 0
            assert abs(whole_loss(result) - wanted) < 1e-5
            assert len(result.spans) == sum(
                t.rank == rank and t.kind == "F" for t in plan.tasks.values())
    return "ok"


def training_goes_on(rank):
    """Steps with evaluations between them end at the same weights as steps
    without."""
    ends = []
    for evaluates in (False, True):
        world = World(rank)
        for seed in range(3):
            batch, microbatches = make_batch(seed, SUBS)
            plan = plans_for(RANKS, 2, True, True, microbatches, seed)[1]
            for layer in world.layers:
                layer.zero_grad()
            world.executor.run(plan, batch)
            if evaluates:
                held_out, own = make_batch(9 + seed, (2, 0))
                world.executor.evaluate(
                    sp.static_plan(world.stages, FEEDS, own, MODULES),
                    held_out)
        ends.append([p.detach().clone() for m in world.mine.values()
                     for p in m.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends))
    return "ok"


def run_needs_gradients(rank):
    """One rank that runs a step without gradients is an error on all, before
    or after PlanProvider has made sure that they have one plan."""
    world = World(rank)
    batch, microbatches = make_batch(5, SUBS)
    plan = plans_for(RANKS, 2, True, False, microbatches, 1)[1]
    for agreed in (False, True):
        before = world.state()
        try:
            with torch.set_grad_enabled(rank != 1):
                world.executor.run(dataclasses.replace(plan, agreed=agreed),
                                   batch)
            raise AssertionError("it ran")
        except StepFailed as error:
            assert rank != 1 and "rank" in str(error), error
        except RuntimeError as error:
            assert rank == 1 and "evaluate()" in str(error), error
        for (p, _), (q, _) in zip(before, world.state()):
            assert torch.equal(p, q)
        for layer in world.layers:
            layer.zero_grad()
    return "ok"


def worker(work, rank, port, queue):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      USE_LIBUV="0")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    try:
        queue.put(work(rank))
    except BaseException as error:  # pylint: disable=broad-except
        queue.put(f"rank {rank}: {type(error).__name__}: {error}")


@unittest.skipUnless(HAVE_TORCH, "torch with torch.distributed is missing")
@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class EvaluateTest(unittest.TestCase):

    def run_ranks(self, work):
        context = mp.get_context("fork")
        queue, port = context.Queue(), free_port()
        processes = [context.Process(target=worker, args=(work, r, port, queue))
                     for r in range(RANKS)]
        for p in processes:
            p.start()
        try:
            results = [queue.get(timeout=300) for _ in processes]
        finally:
            for p in processes:
                p.join(5)
                p.kill()
        self.assertEqual(results, ["ok"] * RANKS)

    def test_losses_are_right_and_nothing_changes(self):
        self.run_ranks(leaves_no_trace)

    def test_a_training_with_evaluations_is_the_one_without(self):
        self.run_ranks(training_goes_on)

    def test_a_step_without_gradients_is_refused(self):
        self.run_ranks(run_needs_gradients)


if __name__ == "__main__":
    unittest.main()
