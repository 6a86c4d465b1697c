"""pipeloom.torch when a step fails on one rank: all ranks end it and say why,
and the next step is right; a rank that is gone or silent is named."""
import dataclasses
import datetime
import logging
import os
import random
import signal
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
    from pipeloom.execution import watch
    from pipeloom.torch import (Executor, InvalidPlan, PlanMismatch,
                                StepFailed)
    from test_torch import (WIDTH, build, free_port, loss_of, make_batch,
                            partition, plans_for, serial)

RANKS = 3
SUBS = (1, 2, 0, 3)


class Bad(Exception):
    """The error of a trainer's own code."""


class World:
    """One rank's executor, and steps that may fail."""

    def __init__(self, rank, ordered=False, shapes=False):
        self.rank = rank
        self.stages = partition(RANKS, 2, True)
        self.layers = build(self.stages)
        self.batch, self.microbatches = make_batch(5, SUBS)
        self.fails_at = None
        self.joins = False
        self.executor = Executor(
            {i: self.layers[i] for i, s in enumerate(self.stages)
             if s.rank == rank}, rank=rank, loss_fn=self.loss,
            on_task=self.on_task, reduce_fn=self.reduce, ordered=ordered,
            shape_of=self.shape_of if shapes else None)
        self.error = Bad("no such sample")

    def on_task(self, plan, t):
        if self.fails_at == ("compute", t):
            raise self.error
        return None

    def loss(self, output, item):
        if self.fails_at == ("loss", item.microbatch):
            raise self.error
        return loss_of(output, item)

    def reduce(self):
        if self.fails_at == ("reduce",):
            raise self.error
        if self.joins:  # As shared weights and clipping do.
            total = torch.ones(1, dtype=torch.float64)
            dist.all_reduce(total)
            assert float(total) == RANKS, float(total)

    def shape_of(self, plan, edge):
        ends = [plan.tasks[t] for t in (plan.edges[edge].source,
                                        plan.edges[edge].target)]
        made = ends[0] if ends[0].kind == "F" else ends[1]
        rows = (len(self.batch["text"][made.microbatch]) if made.module == 1
                else next(s.instances
                          for s in plan.microbatches[made.microbatch].subs
                          if (s.module, s.index) == (0, made.sub)))
        return (rows, WIDTH), torch.float32

    def plan(self, seed, split=True):
        return plans_for(RANKS, 2, True, split, self.microbatches, seed)[1]

    def check_good_step(self, seed):
        for layer in self.layers:
            layer.zero_grad()
        self.fails_at = None
        result = self.executor.run(self.plan(seed), self.batch)
        reference = build(self.stages)
        loss = serial(reference, self.stages, self.batch, self.microbatches)
        for i in self.executor.stages:
            for a, b in zip(self.layers[i].parameters(),
                            reference[i].parameters()):
                difference = float((a.grad - b.grad).abs().max())
                assert difference < 1e-5, f"seed {seed}: {difference}"
        total = torch.tensor([result.loss])
        dist.all_reduce(total)
        assert abs(float(total) - loss) < 1e-5, f"{float(total)}, not {loss}"

    def raised(self, plan):
        try:
            self.executor.run(plan, self.batch)
        except Exception as error:  # pylint: disable=broad-except
            return error
        return None


def fail_anywhere(rank):
    """Steps that fail at any task, in the loss, or when gradients are reduced,
    each followed by a good one."""
    for ordered, shapes in ((False, False), (True, False), (False, True)):
        world = World(rank, ordered, shapes)
        rng = random.Random(1)
        for seed in range(12):
            plan = world.plan(seed, split=seed % 2 == 0)
            task = rng.choice(sorted(plan.tasks))
            at, by = ("compute", task), plan.tasks[task].rank
            if seed in (3, 7):
                at = ("loss", rng.randrange(len(SUBS)))
                by = next(s.rank for s in reversed(world.stages))
            elif seed == 5:
                at = ("reduce",)
            world.joins = seed != 5
            world.fails_at = at if by == rank else None
            error = world.raised(plan)
            if by == rank:
                assert error is world.error, repr(error)
            else:
                assert isinstance(error, StepFailed), repr(error)
                assert f"rank {by}" in str(error), error
                if not shapes and "its log" not in str(error):
                    assert "Bad: no such sample" in str(error), error
            world.check_good_step(seed)
    return "ok"


def refuse_alone(rank):
    """Errors that one rank alone finds before its first instruction, or in a
    tensor, are errors on all; so are microbatches that are not alike."""
    world = World(rank)
    mine = rank == 1
    plan = dataclasses.replace(world.plan(0), agreed=False)
    for agreed in (False, True):
        one = dataclasses.replace(plan, agreed=agreed)
        stages = world.executor.stages
        if mine:
            world.executor.stages = {}
        error = world.raised(one)
        world.executor.stages = stages
        assert isinstance(error, InvalidPlan if mine else StepFailed), repr(
            error)
        world.check_good_step(0)
    turned = plan.with_microbatches(0, world.microbatches[::-1])
    error = world.raised(turned if mine else plan)
    assert isinstance(error, PlanMismatch), repr(error)
    world.check_good_step(1)

    def returning(value):
        first = next(iter(world.executor.stages.values()))
        if mine:
            first.forward = lambda x, item: value
        error = world.raised(plan)
        first.__dict__.pop("forward", None)
        world.check_good_step(2)
        return error

    for value, wanted in (((torch.zeros(1), 2), "returned a tuple"),
                          (torch.zeros(1, 1, 1, 1, 1, 1, 1), "7 dimensions"),
                          (torch.zeros(1).to_sparse(), "a dense one")):
        error = returning(value)
        assert wanted in str(error), error
    last = max(r for r in range(RANKS) for s in world.stages[-1:]
               if s.rank == r)
    for value, wanted in (((1, 2), "a tuple"), (torch.zeros(2), "(2,)")):
        world.executor._loss_fn = lambda y, item, v=value: v
        error = world.raised(plan)
        world.executor._loss_fn = world.loss
        assert isinstance(error, TypeError if rank == last else StepFailed)
        assert "loss_fn returned a" in str(error) and wanted in str(error)
        world.check_good_step(3)
    shapes = World(rank, shapes=True)
    shapes.executor._shape_of = lambda plan, edge: ((9, WIDTH), torch.float32)
    errors = [None] * RANKS
    dist.all_gather_object(errors, str(shapes.raised(plan)))
    assert any("shape_of says" in e for e in errors), errors
    assert all("None" != e for e in errors), errors
    return "ok"


def frozen_in_the_plan_only(rank):
    world = World(rank)
    plan = world.plan(0, split=False)
    vision = {t for t, task in plan.tasks.items()
              if task.module == 0 and task.kind != "F"}
    edges = {e: edge for e, edge in plan.edges.items()
             if not vision & {edge.source, edge.target}}
    plan = dataclasses.replace(
        plan, edges=edges,
        tasks={t: v for t, v in plan.tasks.items() if t not in vision},
        programs={r: tuple(i for i in program if not (
            i.op == "compute" and i.arg in vision or
            i.op not in ("compute", "reduce_gradients", "optimizer_step") and
            i.arg not in edges)) for r, program in plan.programs.items()})
    error = world.raised(plan)
    assert error is not None and "requires_grad_(False)" in str(
        error) or isinstance(error, StepFailed), repr(error)
    for i, s in enumerate(world.stages):
        world.layers[i].requires_grad_(s.module == 1)
    error = world.raised(plan)
    assert error is None, repr(error)
    return "ok"


def one_has_no_optimizer(rank):
    """A rank whose stages are frozen has nothing to give an optimizer."""
    world = World(rank)
    stepped = []

    class Optimizer:
        def step(self):
            stepped.append(rank)

    if rank != 1:
        world.executor._optimizer = Optimizer()
    assert world.raised(world.plan(0)) is None
    assert stepped == ([] if rank == 1 else [rank])
    # None steps if one fails after its last task.
    world.fails_at = ("reduce",) if rank == 1 else None
    assert world.raised(world.plan(1)) is not None
    assert len(stepped) < 2
    return "ok"


def gone(rank):
    world = World(rank)
    if rank == 1:
        world.executor._on_task = lambda plan, t: os.kill(
            os.getpid(), signal.SIGKILL) if t > 12 else None
    begin = time.monotonic()
    error = world.raised(world.plan(0))
    assert isinstance(error, StepFailed), repr(error)
    assert "instruction" in str(error), error
    assert time.monotonic() - begin < 10
    return "ok"


def silent(rank):
    """A rank that hangs is named after the group's timeout, on all ranks, and
    before that in the log of those that wait."""
    world = World(rank)
    lines = []

    class Lines(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    logging.getLogger("pipeloom").setLevel(logging.WARNING)
    logging.getLogger("pipeloom").addHandler(Lines())
    watch.PATIENCE = 0.5
    if rank == 1:
        world.executor._on_task = lambda plan, t: (
            time.sleep(8) if t > 12 else None)
    error = world.raised(world.plan(0))
    assert isinstance(error, StepFailed), repr(error)
    assert rank == 1 or "from rank" in str(error) or "rank 1" in str(error)
    early = [line for line in lines if "has lasted" in line]
    assert early and f"rank {rank}, step" in early[0], lines
    assert rank == 1 or "wait_recv of edge" in early[0], lines
    return "ok"


def worker(scenario, timeout, rank, port, queue):
    torch.set_num_threads(1)
    logging.getLogger("pipeloom").setLevel(logging.CRITICAL)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      USE_LIBUV="0")
    dist.init_process_group(
        "gloo", rank=rank, world_size=RANKS,
        timeout=datetime.timedelta(seconds=timeout))
    try:
        queue.put((rank, scenario(rank)))
    except BaseException as error:  # pylint: disable=broad-except
        queue.put((rank, f"{type(error).__name__}: {error}"))


@unittest.skipUnless(HAVE_TORCH, "torch with torch.distributed is missing")
@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class StepFailureTest(unittest.TestCase):

    def check(self, scenario, survivors=range(RANKS), timeout=60.0):
        context = mp.get_context("fork")
        queue, port = context.Queue(), free_port()
        processes = [context.Process(target=worker, args=(
            scenario, timeout, r, port, queue)) for r in range(RANKS)]
        for p in processes:
            p.start()
        results = {}
        try:
            for _ in survivors:
                rank, result = queue.get(timeout=100)
                results[rank] = result
        finally:
            for p in processes:
                p.join(1)
                p.kill()
        self.assertEqual(results, {r: "ok" for r in survivors})

    def test_an_error_ends_the_step_everywhere_and_the_next_is_right(self):
        self.check(fail_anywhere)

    def test_what_one_rank_refuses_no_rank_begins(self):
        self.check(refuse_alone)

    def test_modules_that_only_the_plan_takes_for_frozen(self):
        self.check(frozen_in_the_plan_only)

    def test_ranks_without_an_optimizer(self):
        self.check(one_has_no_optimizer)

    def test_a_rank_that_is_killed(self):
        self.check(gone, survivors=(0, 2))

    def test_a_rank_that_hangs(self):
        self.check(silent, timeout=3.0)


if __name__ == "__main__":
    unittest.main()
