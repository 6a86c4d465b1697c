"""pipeloom.torch: a step that fails in one replica of a pipeline ends in all,
and the next is right. Two replicas of two ranks, which sum their gradients."""
import dataclasses
import datetime
import os
import sys
import time
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
    from pipeloom.plan import loss_weights
    from pipeloom.torch import (Executor, InvalidPlan, PlanMismatch,
                                StepFailed)
    from test_torch import (build, free_port, loss_of, make_batch, partition,
                            plans_for, serial)

RANKS, REPLICAS = 2, 2
SUBS = ((1, 2, 0), (0, 1))
PATIENCE = 60


class Bad(Exception):
    """The error of a trainer's own code."""


class World:
    """One process of a training."""

    def __init__(self, process):
        self.rank, self.replica = process % RANKS, process // RANKS
        pipelines = [dist.new_group([r * RANKS + i for i in range(RANKS)])
                     for r in range(REPLICAS)]
        replicas = [dist.new_group([r * RANKS + i for r in range(REPLICAS)])
                    for i in range(RANKS)]
        self.same_rank = replicas[self.rank]
        self.stages = partition(RANKS, 2, True)
        self.layers = build(self.stages)
        self.executor = Executor(
            {i: self.layers[i] for i, s in enumerate(self.stages)
             if s.rank == self.rank}, rank=self.rank, loss_fn=loss_of,
            group=pipelines[self.replica], replicas=self.same_rank,
            reduce_fn=self.reduce, on_task=self.on_task)
        self.fails_at = None
        batches = [make_batch(r, SUBS[r]) for r in range(REPLICAS)]
        # Weights of the microbatches of all replicas.
        weights = iter(loss_weights([len(t) for batch, _ in batches
                                     for t in batch["text"]]))
        self.every = [(batch, [dataclasses.replace(m, loss_weight=next(weights))
                               for m in micro]) for batch, micro in batches]

    def reduce(self):
        for p in self.executor.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad, group=self.same_rank)
        if self.fails_at == "reduce":  # Others do not wait in a call for it.
            raise Bad("in reduce_fn")

    def on_task(self, plan, t):
        if self.fails_at == plan.tasks[t].kind:
            raise Bad(f"in task {t}")

    def plan(self, seed):
        return plans_for(RANKS, 2, True, seed % 2 == 0,
                         self.every[self.replica][1], seed)[1]

    def run(self, plan, evaluates=False):
        """Returns the error of a step, or None, and how long it took."""
        begin = time.monotonic()
        do = self.executor.evaluate if evaluates else self.executor.run
        error = None
        try:
            do(plan, self.every[self.replica][0])
        except Exception as caught:  # pylint: disable=broad-except
            error = caught
        return error, time.monotonic() - begin

    def check_good_step(self, seed):
        for layer in self.layers:
            layer.zero_grad()
        self.fails_at = None
        error, _ = self.run(self.plan(seed))
        assert error is None, repr(error)
        reference = build(self.stages)
        for batch, microbatches in self.every:
            serial(reference, self.stages, batch, microbatches)
        for i in self.executor.stages:
            for a, b in zip(self.layers[i].parameters(),
                            reference[i].parameters()):
                difference = float((a.grad - b.grad).abs().max())
                assert difference < 1e-5, difference


def fails_in_one(process):
    """An error of one process, in a pass, in reduce_fn or in an evaluation."""
    world = World(process)
    world.check_good_step(0)
    for seed, (by, at, evaluates) in enumerate((
            (0, "F", False), (3, "B", False), (1, "W", False),
            (2, "reduce", False), (2, "F", True))):
        world.fails_at = at if by == process else None
        # With a W, the backwards are split.
        error, took = world.run(world.plan(2 * seed), evaluates)
        if by == process:
            assert isinstance(error, Bad), repr(error)
        else:
            assert isinstance(error, StepFailed), repr(error)
            if world.replica != by // RANKS:
                assert f"of replica {by // RANKS} has" in str(error), error
        assert took < PATIENCE / 2, took
        world.check_good_step(seed)
    return "ok"


def refused_in_one(process):
    """A plan that the ranks of one replica do not run: another on each, or
    invalid on one."""
    world = World(process)
    for agreed in (False, True):
        plan = dataclasses.replace(world.plan(1), agreed=agreed)
        stages = world.executor.stages
        if process == 3:
            world.executor.stages = {}
        error, took = world.run(plan)
        world.executor.stages = stages
        assert isinstance(error, InvalidPlan if process == 3 else StepFailed
                          ), repr(error)
        assert took < PATIENCE / 2, took
        world.check_good_step(1)
    plan = world.plan(1)
    if process == 3:
        plan = dataclasses.replace(plan, checksum=(1, 1))
    error, took = world.run(plan)
    assert isinstance(error, PlanMismatch if world.replica == 1 else StepFailed
                      ), repr(error)
    assert took < PATIENCE / 2, took
    world.check_good_step(2)
    return "ok"


def worker(work, process, port, queue):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      USE_LIBUV="0")
    dist.init_process_group("gloo", rank=process, world_size=RANKS * REPLICAS,
                            timeout=datetime.timedelta(seconds=PATIENCE))
    try:
        queue.put(work(process))
    except BaseException as error:  # pylint: disable=broad-except
        queue.put(f"process {process}: {type(error).__name__}: {error}")


@unittest.skipUnless(HAVE_TORCH, "torch with torch.distributed is missing")
@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class ReplicaFailureTest(unittest.TestCase):

    def run_processes(self, work):
        context = mp.get_context("fork")
        queue, port = context.Queue(), free_port()
        processes = [context.Process(target=worker, args=(work, i, port, queue))
                     for i in range(RANKS * REPLICAS)]
        for p in processes:
            p.start()
        try:
            results = [queue.get(timeout=300) for _ in processes]
        finally:
            for p in processes:
                p.join(5)
                p.kill()
        self.assertEqual(results, ["ok"] * len(processes))

    def test_a_step_that_fails_in_one_replica_fails_in_all(self):
        self.run_processes(fails_in_one)

    def test_a_plan_that_one_replica_refuses_is_run_by_none(self):
        self.run_processes(refused_in_one)


if __name__ == "__main__":
    unittest.main()
