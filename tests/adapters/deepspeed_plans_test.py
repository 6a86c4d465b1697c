"""Plans of `--for deepspeed` for random jobs, run by DeepSpeed's pipeline
engine over gloo from the files that `--out` wrote, by
examples/deepspeed/plan_engine.py: the step of one process. Run by
scripts/torch_peer.sh; PIPELOOM_TRAINER_PLANS=50 for more plans."""
import contextlib
import functools
import io
import os
import random
import sys
import unittest
import warnings

os.environ["DS_ACCELERATOR"] = "cpu"
warnings.filterwarnings("ignore")

import trainer_files  # noqa: E402

sys.path[:0] = [os.path.join(trainer_files.ROOT, "examples/deepspeed")]
try:
    import torch
    import torch.distributed as dist
    import deepspeed
    from deepspeed.runtime.pipe import schedule
    import plan_engine
    from trainer_worlds import run_world
    MISSING = trainer_files.MISSING
except ImportError as error:
    MISSING = f"skipped: {error}"

WIDTH = 8
LIMIT = 1e-5


class Part(torch.nn.Module if not MISSING else object):
    def __init__(self, index):
        super().__init__()
        torch.manual_seed(index)
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return torch.tanh(self.linear(x))


def loss_of(output, target):
    return ((output - target) ** 2).mean()


def data(sizes):
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(n, WIDTH, generator=generator),
             torch.randn(n, WIDTH, generator=generator)) for n in sizes]


class Record:
    """Notes the passes that the engine runs, as ("F" or "B", microbatch).
    `order`: the microbatches in the order in which they are fed."""

    def __init__(self, order):
        self.passes = []
        self._order = list(order)
        self._held = {}  # Microbatches by buffer.

    @contextlib.contextmanager
    def on(self, engine):
        kinds = {schedule.ForwardPass: "F", schedule.BackwardPass: "B"}
        before = engine._INSTRUCTION_MAP
        noted = dict(before)
        for instruction, kind in kinds.items():
            noted[instruction] = functools.partial(
                self._note, kind, before[instruction])
        engine._INSTRUCTION_MAP = {
            i: (lambda f: lambda *a, **k: f(*a, **k))(f)
            for i, f in noted.items()}
        try:
            yield self
        finally:
            engine._INSTRUCTION_MAP = before

    def _note(self, kind, run, engine, buffer_id):
        if kind == "F":
            self._held[buffer_id] = self._order.pop(0)
        self.passes.append((kind, self._held[buffer_id]))
        return run(engine, buffer_id=buffer_id)


def planned_passes(planned, rank):
    plan = planned.plan
    return [(plan.tasks[t].kind, plan.tasks[t].microbatch)
            for op, t in plan.programs[rank] if op == "compute"]


def serial(layers, batches):
    """One step of SGD with rate 1, and its mean loss."""
    parts = [Part(i) for i in range(layers)]
    total = 0.0
    for x, y in batches:
        for part in parts:
            x = part(x)
        loss = loss_of(x, y) / len(batches)
        loss.backward()
        total += float(loss.detach())
    with torch.no_grad():
        for part in parts:
            for p in part.parameters():
                p -= p.grad
    return parts, total


def run_plan(rank, ranks, planned):
    """The largest difference to one process, of losses and parameters."""
    launch = planned.python_values()
    steps = plan_engine.parse_steps(planned.files["deepspeed"])
    parts = launch["PARTS"]
    assert launch["NUM_STAGES"] == ranks and len(parts) == ranks + 1
    assert launch["ZERO_OPTIMIZATION"] == {"stage": 1}, launch
    assert launch["BF16"] == {"enabled": True}, launch
    for i, (owner, layers) in enumerate(planned.stage_ranks()):
        count = sum(end - first + 1 for _, first, end in layers)
        assert owner == i and parts[i + 1] - parts[i] == count, launch
    expected = planned_passes(planned, rank)
    order = [m for kind, m in expected if kind == "F"]
    assert list(steps.microbatches) == order, (steps.microbatches, order)
    rng = random.Random(planned.title)
    sizes = [rng.randint(1, 4) if launch["DYNAMIC_SHAPE"] else 4
             for _ in order]
    batches = data(sizes)
    count = launch["GRADIENT_ACCUMULATION_STEPS"]
    with contextlib.redirect_stdout(io.StringIO()):
        module = plan_engine.PlannedModule(
            [Part(i) for i in range(parts[-1])], parts,
            num_stages=launch["NUM_STAGES"], loss_fn=loss_of,
            dynamic_shape=launch["DYNAMIC_SHAPE"],
            activation_checkpoint_interval=(
                launch["ACTIVATION_CHECKPOINT_INTERVAL"]))
        engine, *_ = deepspeed.initialize(
            model=module, model_parameters=list(module.parameters()),
            config={"train_micro_batch_size_per_gpu": 1,
                    "gradient_accumulation_steps": count,
                    "steps_per_print": None,
                    "optimizer": {"type": "SGD", "params": {"lr": 1.0}}})
        plan_engine.use_plans(engine, lambda step: steps)
        with Record(order).on(engine) as record:
            loss = engine.train_batch(iter([batches[m] for m in order]))
    if record.passes != expected:
        raise AssertionError(f"ran {record.passes}, not {expected}")
    reference, total = serial(parts[-1], batches)
    worst = abs(float(loss) - total) / max(1.0, total)
    for i in range(parts[rank], parts[rank + 1]):
        for mine, theirs in zip(module.forward_funcs[i - parts[rank]]
                                .parameters(), reference[i].parameters()):
            worst = max(worst, float((mine - theirs).abs().max()))
    dist.barrier()
    return worst


def begin(rank, ranks):
    deepspeed.utils.logger.setLevel("ERROR")
    # Shared memory for collectives within a node, which needs a compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)


class DeepSpeedPlansTest(unittest.TestCase):

    def test_plans_for_deepspeed_run_with_the_step_of_one_process(self):
        jobs = trainer_files.RandomJobs()
        self.addCleanup(jobs.close)
        plans, _ = jobs.plans("deepspeed", trainer_files.num_plans())
        for ranks, some in sorted(plans.items()):
            worst = run_world(ranks, begin, some, run_plan)
            self.assertEqual(len(worst), len(some))
            print(trainer_files.result_line("deepspeed", some, worst))
            for title, value in worst.items():
                self.assertLess(value, LIMIT, title)

    def test_a_file_that_is_wrong_is_refused_with_its_line(self):
        good = ("deepspeed ranks 1 microbatches 1\nrank 0 buffers 1\n"
                "  LoadMicroBatch(0) ForwardPass(0)\n  BackwardPass(0)\n"
                "  OptimizerStep\n")
        self.assertEqual(plan_engine.parse_steps(good).buffers, (1,))
        for old, new, message in (
                ("ranks 1", "ranks 2", "ends after 1 ranks"),
                ("deepspeed", "deep", "steps:1: expected"),
                ("rank 0", "rank 1", "steps:2: expected \"rank 0 buffers N"),
                ("BackwardPass(0)", "BackwardPass(1)", "steps:4: \"Backward"),
                ("OptimizerStep", "OptimizerStep(0)", "steps:5: \"Optimizer"),
                ("deepspeed", "# feed microbatches in the order 1\ndeepspeed",
                 "the order of microbatches is")):
            with self.assertRaisesRegex(ValueError, message, msg=new):
                plan_engine.parse_steps(good.replace(old, new, 1))


if __name__ == "__main__":
    if MISSING:
        print(MISSING)
    else:
        unittest.main(verbosity=1, warnings="ignore")
