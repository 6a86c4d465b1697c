"""Plans of `--for torchtitan` for random jobs, from the files that `--out`
wrote: torchtitan's own code splits a model and builds the schedule, torch runs
it over gloo, with the loss and gradients of one process. Run by
scripts/torch_peer.sh; PIPELOOM_TRAINER_PLANS=50 for more plans."""
import logging
import os
import re
import runpy
import tempfile
import unittest
import warnings
import zlib

warnings.filterwarnings("ignore")

import trainer_files  # noqa: E402

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torchtitan.distributed import pipeline_parallel as titan
    from torchtitan.distributed.activation_checkpoint import FullAC
    from torchtitan.trainer import Trainer
    from trainer_worlds import run_world
    MISSING = trainer_files.MISSING
except ImportError as error:
    MISSING = f"skipped: {error}"

WIDTH = 8
LIMIT = 1e-5


class Model(nn.Module if not MISSING else object):
    """A model with the children that the file names: lists for `NAME.INDEX`."""

    def __init__(self, names):
        super().__init__()
        self.names = names
        for name in names:
            torch.manual_seed(zlib.crc32(name.encode()))
            layer = nn.Linear(WIDTH, WIDTH)
            child, _, item = name.partition(".")
            if not item:
                setattr(self, child, layer)
                continue
            if not hasattr(self, child):
                setattr(self, child, nn.ModuleDict())
            getattr(self, child)[item] = layer

    def layer(self, name):
        """The layer, or None where torchtitan has taken it out."""
        child, _, item = name.partition(".")
        held = getattr(self, child)
        if not item:
            return held
        return held[item] if item in held else None

    def forward(self, x):
        for name in self.names:
            layer = self.layer(name)
            if layer is not None:
                x = torch.tanh(layer(x))
        return x


def loss_of(output, target):
    return ((output - target) ** 2).mean(), None


def settings_of(planned, folder):
    """torchtitan's own configuration, which checks itself, with the settings of
    the file, and the schedule where the file expects it."""
    launch = os.path.join(folder, "plan-launch.py")
    for path, text in ((launch, planned.files["launch"]),
                       (os.path.join(folder, "plan.csv"),
                        planned.files.get("csv", ""))):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    config = runpy.run_path(launch)["apply"](Trainer.Config())
    assert planned.recomputes == isinstance(config.activation_checkpoint,
                                            FullAC.Config)
    assert planned.recomputes == (config.activation_checkpoint is not None)
    return config.parallelism, config.training


def check_one_rank(planned):
    """torchtitan has no pipeline here: it goes forward and back in turns."""
    with tempfile.TemporaryDirectory() as folder:
        parallelism, training = settings_of(planned, folder)
    count = planned.plan.num_microbatches
    assert parallelism.pipeline_parallel_degree == 1
    assert not parallelism.pipeline_parallel_schedule_csv
    assert training.local_batch_size == 1
    assert training.global_batch_size % count == 0
    kinds = [planned.plan.tasks[t].kind
             for op, t in planned.plan.programs[0] if op == "compute"]
    assert kinds == ["F", "B"] * count, kinds


def build(ranks, planned, parallelism, training):
    """The names of modules by stage, this rank's stages, and the schedule."""
    assert parallelism.pipeline_parallel_degree == ranks
    names = parallelism.module_fqns_per_model_part
    assert len(names) == len({t.stage for t in planned.plan.tasks.values()})
    everything = sum(names, [])
    assert len(set(everything)) == len(everything), names
    assert everything[-2:] == ["norm", "lm_head"], names
    for child in {n.partition(".")[0] for n in everything if "." in n}:
        items = [int(n.partition(".")[2]) for n in everything
                 if re.fullmatch(re.escape(child) + r"\.\d+", n)]
        assert items == list(range(len(items))), names
    count = planned.plan.num_microbatches
    size = parallelism.pipeline_parallel_microbatch_size
    assert training.local_batch_size == count * size
    assert training.global_batch_size % training.local_batch_size == 0
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("pp",))
    parts, _ = titan._pipeline_module_split(
        Model(everything), mesh, parallelism.pipeline_parallel_schedule,
        torch.device("cpu"), names)
    schedule = titan._build_pipeline_schedule(
        parallelism=parallelism, local_batch_size=training.local_batch_size,
        stages=parts, loss_fn=loss_of)
    return names, parts, schedule


def run_plan(rank, ranks, planned):
    """The largest difference to one process."""
    with tempfile.TemporaryDirectory() as folder:
        parallelism, training = settings_of(planned, folder)
        names, parts, schedule = build(ranks, planned, parallelism, training)
    stages = {t.stage: t.rank for t in planned.plan.tasks.values()}
    everything = sum(names, [])
    count = planned.plan.num_microbatches
    size = parallelism.pipeline_parallel_microbatch_size
    generator = torch.Generator().manual_seed(3)
    inputs, targets = (torch.randn(count * size, WIDTH, generator=generator)
                       for _ in range(2))
    for part in parts:
        assert stages[part.stage_index] == rank, stages
    losses = []
    given = (inputs,) if any(p.is_first for p in parts) else ()
    wanted = ({"target": targets, "losses": losses}
              if any(p.is_last for p in parts) else {})
    schedule.step(*given, **wanted)
    reference = Model(everything)
    total = 0.0
    for x, y in zip(inputs.chunk(count), targets.chunk(count)):
        loss, _ = loss_of(reference(x), y)
        loss.backward()
        total += float(loss.detach())
    worst = 0.0
    for part in parts:
        held = [n for n in everything if part.submod.layer(n) is not None]
        assert held == names[part.stage_index], held
        for name in held:
            for mine, theirs in zip(part.submod.layer(name).parameters(),
                                    reference.layer(name).parameters()):
                worst = max(worst, float((mine.grad - theirs.grad).abs().max()))
    if losses:
        mine = float(sum(loss.detach() for loss in losses))
        worst = max(worst, abs(mine - total) / max(1.0, total))
    dist.barrier()
    return worst


def begin(rank, ranks):
    logging.disable(logging.WARNING)


class TorchtitanPlansTest(unittest.TestCase):

    def test_plans_for_torchtitan_run_with_the_gradients_of_one_process(self):
        jobs = trainer_files.RandomJobs()
        self.addCleanup(jobs.close)
        plans, _ = jobs.plans("torchtitan", trainer_files.num_plans(), 2)
        for planned in plans.pop(1, []):
            check_one_rank(planned)
        for ranks, some in sorted(plans.items()):
            worst = run_world(ranks, begin, some, run_plan)
            self.assertEqual(len(worst), len(some))
            print(trainer_files.result_line("torchtitan", some, worst))
            for title, value in worst.items():
                self.assertLess(value, LIMIT, title)


if __name__ == "__main__":
    if MISSING:
        print(MISSING)
    else:
        unittest.main(verbosity=1, warnings="ignore")
