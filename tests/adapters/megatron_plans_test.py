"""Plans of `--for megatron` and `--for megatron-stock` for random jobs, run by
Megatron-Core over gloo from the files that `--out` wrote: the layers where the
launch arguments place them, in the order of the file, with the losses and
gradients of one process. Run by scripts/torch_peer.sh;
PIPELOOM_TRAINER_PLANS=50 for more plans."""
import argparse
import functools
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
import zlib

import trainer_files

sys.path[:0] = [os.path.join(trainer_files.ROOT, "tests/python")]
import megatron_peer_test as peer  # noqa: E402

MISSING = trainer_files.MISSING or peer.MISSING
if not MISSING:
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.enums import LayerType
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_block import (
        TransformerBlock, TransformerBlockSubmodules)
    from megatron_model_test import Counted
    from plan_runner import PlanRunner
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from trainer_worlds import run_world

LIMIT = 1e-5


def arguments_of(text):
    """The launch arguments, read as Megatron-LM's own command line names
    them."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("tensor-model-parallel-size", "context-parallel-size",
                 "expert-model-parallel-size", "pipeline-model-parallel-size",
                 "expert-tensor-parallel-size",
                 "num-distributed-optimizer-instances", "micro-batch-size",
                 "global-batch-size", "seq-length", "num-layers",
                 "recompute-num-layers",
                 "microbatch-group-size-per-virtual-pipeline-stage"):
        parser.add_argument("--" + name, type=int)
    for name in ("pipeline-model-parallel-layout", "recompute-granularity",
                 "recompute-method", "moe-token-dispatcher-type",
                 "cp-comm-type"):
        parser.add_argument("--" + name)
    for name in ("sequence-parallel", "use-distributed-optimizer", "bf16",
                 "use-tp-pp-dp-mapping", "overlap-grad-reduce",
                 "overlap-param-gather", "moe-grouped-gemm"):
        parser.add_argument("--" + name, action="store_true")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return parser.parse_args(shlex.split(" ".join(lines)))


def config_of(arguments, totals, **extra):
    """Megatron's own configuration of these arguments, which checks them."""
    group = arguments.microbatch_group_size_per_virtual_pipeline_stage
    config = TransformerConfig(
        num_layers=arguments.num_layers, hidden_size=peer.WIDTH,
        num_attention_heads=1, pipeline_dtype=torch.float32,
        calculate_per_token_loss=True,
        pipeline_model_parallel_size=arguments.pipeline_model_parallel_size,
        pipeline_model_parallel_layout=(
            arguments.pipeline_model_parallel_layout),
        recompute_granularity=arguments.recompute_granularity,
        recompute_method=arguments.recompute_method,
        recompute_num_layers=arguments.recompute_num_layers,
        moe_token_dispatcher_type=(
            arguments.moe_token_dispatcher_type or "allgather"),
        microbatch_group_size_per_vp_stage=group, **extra)

    def finalize(model, tokens, **_):
        totals.append(int(tokens))
        dist.all_reduce(tokens)
        for chunk in model:
            for p in chunk.parameters():
                p.grad /= tokens

    config.finalize_model_grads_func = finalize
    return config


def other_layers(planned):
    """Layers of modules other than the last one, by stage: the model
    provider's business."""
    stages = planned.stage_ranks()
    last = stages[-1][1][-1][0]
    return [[f"{module} {i}" for module, first, end in parts if module != last
             for i in range(first, end + 1)] for _, parts in stages]


def layers_of(planned, config, rank, chunk):
    """The layers of a chunk, as Megatron's layout and the provider say."""
    layout = config.pipeline_model_parallel_layout
    symbols = layout.layout[rank][chunk]
    names = ["embedding"] if LayerType.embedding in symbols else []
    names += other_layers(planned)[chunk * planned.ranks + rank]
    names += [f"layer {i}" for i in layout.get_layer_id_list(
        LayerType.decoder, chunk, rank)]
    return names + (["loss"] if LayerType.loss in symbols else [])


def all_layers(planned, config):
    """The model of one process."""
    return (["embedding"] + sum(other_layers(planned), []) +
            [f"layer {i}" for i in range(config.num_layers)] + ["loss"])


class Layer(torch.nn.Module if not MISSING else object):
    """A decoder layer for Megatron's own TransformerBlock."""

    def __init__(self, config, layer_number, name, **_):
        super().__init__()
        self.layer_number = layer_number
        torch.manual_seed(zlib.crc32(name.encode()))
        self.linear = torch.nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states, context=None, **_):
        return torch.tanh(self.linear(hidden_states)), context


class Chunk(torch.nn.Module if not MISSING else object):
    """A model chunk as Megatron's schedules see it: tensors of (sequence,
    batch, hidden). Its decoder layers are in Megatron's own block, which
    recomputes them."""
    if not MISSING:
        model_type = peer.ModelType.encoder_or_decoder

    def __init__(self, config, names, first, vp_stage=None):
        super().__init__()
        self.config = config
        self.first = first
        self.vp_stage = vp_stage
        self.layers = torch.nn.ModuleDict()
        decoder = [name for name in names if name.startswith("layer ")]
        for name in names:
            if name not in decoder:
                torch.manual_seed(zlib.crc32(name.encode()))
                self.layers[name] = torch.nn.Linear(peer.WIDTH, peer.WIDTH)
        self.decoder = TransformerBlock(
            config, TransformerBlockSubmodules(layer_specs=[
                ModuleSpec(module=Layer, params={"name": name})
                for name in decoder]),
            post_layer_norm=False, post_process=False, vp_stage=vp_stage)
        self.linears = {name: layer.linear
                        for name, layer in zip(decoder, self.decoder.layers)}
        self.linears.update(self.layers.items())
        self.given = None

    def set_input_tensor(self, tensors):
        self.given = tensors[0] if isinstance(tensors, list) else tensors

    def forward(self, rows):
        x = rows if self.first else self.given
        for name, layer in self.layers.items():
            if name != "loss":
                x = torch.tanh(layer(x))
        x = self.decoder(x, None)
        if "loss" in self.layers:
            x = torch.tanh(self.layers["loss"](x))
        return x.clone()


class Record:
    """Notes the passes that Megatron's forward_step and backward_step run, as
    (chunk + 1, microbatch), negative for a backward."""

    def __init__(self, model):
        self.passes = []
        self._model = model
        self._of_output = {}

    def __enter__(self):
        self._steps = schedules.forward_step, schedules.backward_step
        schedules.forward_step = self._forward(schedules.forward_step)
        schedules.backward_step = self._backward(schedules.backward_step)
        return self

    def __exit__(self, *_):
        schedules.forward_step, schedules.backward_step = self._steps

    def _forward(self, step):
        @functools.wraps(step)
        def wrapped(function, iterator, model, *args, **kwargs):
            chunk = self._model.index(model)
            m = kwargs["current_microbatch"]
            output, tokens = step(function, iterator, model, *args, **kwargs)
            self.passes.append((chunk + 1, m))
            one = output[0] if isinstance(output, list) else output
            self._of_output[id(one)] = (chunk, m)
            return output, tokens
        return wrapped

    def _backward(self, step):
        @functools.wraps(step)
        def wrapped(given, output, *args, **kwargs):
            one = output[0] if isinstance(output, list) else output
            chunk, m = self._of_output.pop(id(one))
            self.passes.append((-chunk - 1, m))
            return step(given, output, *args, **kwargs)
        return wrapped


def serial(planned, config, sizes):
    plain = TransformerConfig(num_layers=config.num_layers,
                              hidden_size=peer.WIDTH, num_attention_heads=1)
    model = Chunk(plain, all_layers(planned, config), True)
    total = 0.0
    for rows, target in peer.data(sizes):
        loss = ((model(rows) - target) ** 2).sum()
        loss.backward()
        total += float(loss.detach())
    for p in model.parameters():
        p.grad /= sum(sizes)
    return model, total


def difference(model, reference):
    """The largest difference in a gradient; every layer has one."""
    return max([float((layer.weight.grad -
                       reference.linears[name].weight.grad).abs().max())
                for chunk in model for name, layer in chunk.linears.items()],
               default=0.0)


def planned_passes(planned, rank):
    """Passes of a rank in the order of the plan."""
    plan = planned.plan
    return [((task.stage // planned.ranks + 1) * (1 if task.kind == "F" else -1),
             task.microbatch)
            for op, t in plan.programs[rank] if op == "compute"
            for task in [plan.tasks[t]] if task.kind != "W"]


def stock_passes(planned, rank):
    """Passes of a rank as the order file lists them."""
    line = re.search(rf"^rank {rank}: (.*)$", planned.files["order"],
                     re.MULTILINE)
    done, passes = {}, []
    for step in map(int, line[1].split()):
        passes.append((step, done.get(step, 0)))
        done[step] = passes[-1][1] + 1
    return passes


def fed_order(planned):
    """The order in which the file wants microbatches."""
    found = re.search(r"^# feed microbatches in the order (.*)$",
                      planned.files["order"], re.MULTILINE)
    count = planned.plan.num_microbatches
    return [int(i) for i in found[1].split(",")] if found else range(count)


def run_plan(rank, ranks, planned, stock):
    """The largest difference to one process."""
    arguments = arguments_of(planned.files["launch"])
    assert arguments.pipeline_model_parallel_size == ranks
    chunks = len(planned.stage_ranks()) // ranks
    rng = random.Random(planned.title)
    count = planned.plan.num_microbatches
    unequal = not stock or "variable_seq_lengths" in planned.files["launch"]
    sizes = [rng.randint(1, 4) if unequal else 4 for _ in range(count)]
    extra = {"deallocate_pipeline_outputs": rng.random() < 0.5}
    if stock:
        extra["variable_seq_lengths"] = unequal
    if chunks > 1:
        extra.update(overlap_p2p_comm=True, batch_p2p_comm=False)
    totals = []
    config = config_of(arguments, totals, **extra)
    layout = config.pipeline_model_parallel_layout
    assert layout.virtual_pipeline_model_parallel_size == chunks, layout
    virtual = chunks if chunks > 1 else None
    parallel_state.set_virtual_pipeline_model_parallel_world_size(virtual)
    model = []
    for c in range(chunks):
        assert planned.stage_ranks()[c * ranks + rank][0] == rank
        model.append(Chunk(config, layers_of(planned, config, rank, c),
                           rank + c == 0, c if virtual else None))
    batches = peer.data(sizes)
    if stock:
        run = schedules.get_forward_backward_func()
        expected = stock_passes(planned, rank)
        forwards = [m for kind, m in planned_passes(planned, 0) if kind == 1]
        order = list(fed_order(planned))
        assert forwards == order, (forwards, order)
        batches = [batches[m] for m in order]
    else:
        run = PlanRunner(lambda step, n: planned.plan, schedules, rank)
        expected = planned_passes(planned, rank)
    listed = chunks > 1 or not stock
    iterators = [iter(batches) for _ in model]
    with Record(model) as record, Counted() as counted:
        losses = run(forward_step_func=peer.forward_step_func,
                     data_iterator=iterators if listed else iterators[0],
                     model=model if listed else model[0],
                     num_microbatches=count, seq_length=4, micro_batch_size=1)
    if [p for p in record.passes if p[0]] != expected:
        raise AssertionError(f"ran {record.passes}, not {expected}")
    assert (counted.late > 0) == planned.is_split, counted.late
    recomputed = planned.recomputes and any(c.decoder.layers for c in model)
    assert (counted.again > 0) == recomputed, counted.again
    reference, total = serial(planned, config, sizes)
    worst = difference(model, reference)
    if rank == ranks - 1:
        assert len(losses) == count and totals == [sum(sizes)], totals
        worst = max(worst, abs(sum(d["loss"] for d in losses) - total) /
                    max(1.0, total))
    dist.barrier()
    return worst


def begin(rank, ranks):
    peer.use_cpu()
    parallel_state.initialize_model_parallel(
        pipeline_model_parallel_size=ranks)


def launch_of(parallel):
    """The arguments of a model with experts, laid out as `parallel` says."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "job.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"name": "job", "model": "qwen3-30b-a3b",
                       "cluster": "b200-sxm", "parallel": parallel,
                       "training": {"microbatches": 2,
                                    "microbatch_tokens": 1024}}, file)
        subprocess.run(
            [trainer_files.BINARY, "plan", path, "--batch", "text", "--for",
             "megatron", "--evaluations", "5", "--partition", "rule", "--out",
             os.path.join(folder, "plan.pb")], capture_output=True, check=True)
        with open(os.path.join(folder, "plan-launch.txt"),
                  encoding="utf-8") as file:
            return file.read()


def place_of(gpu, world, arguments):
    """The replica and pipeline rank that Megatron-Core gives the GPU."""
    dist.init_process_group("fake", rank=gpu, world_size=world,
                            store=FakeStore())
    try:
        parallel_state.initialize_model_parallel(
            arguments.tensor_model_parallel_size,
            arguments.pipeline_model_parallel_size,
            context_parallel_size=arguments.context_parallel_size,
            expert_model_parallel_size=arguments.expert_model_parallel_size,
            expert_tensor_parallel_size=arguments.expert_tensor_parallel_size,
            order=("tp-cp-ep-pp-dp" if arguments.use_tp_pp_dp_mapping
                   else "tp-cp-ep-dp-pp"),
            create_gloo_process_groups=False)
        return (parallel_state.get_data_parallel_rank(),
                parallel_state.get_pipeline_model_parallel_rank())
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


class MegatronPlansTest(unittest.TestCase):

    def test_gpus_are_where_the_plan_has_them_or_the_launch_says_otherwise(self):
        # Sizes of tp, cp, pp, dp, ep and expert_tp, and whether Megatron-Core
        # can have the ranks of a replica on neighbouring GPUs.
        for sizes, can in (((1, 1, 2, 2, 1, 0), True),
                           ((2, 1, 2, 2, 2, 1), True),
                           ((1, 2, 2, 2, 2, 0), True),
                           ((1, 2, 2, 2, 1, 0), False),
                           ((1, 1, 2, 2, 2, 0), False),
                           ((2, 1, 2, 2, 4, 1), False)):
            for order in "PIPELINE", "REPLICAS":
                parallel = dict(zip(
                    ("tp", "cp", "pp", "dp", "ep", "expert_tp"), sizes))
                parallel["gpu_order"] = f"GPU_ORDER_{order}_INSIDE"
                with self.subTest(parallel=parallel):
                    self.check_places(parallel, can or order == "REPLICAS")

    def check_places(self, parallel, can):
        launch = launch_of(parallel)
        tp, cp, pp, dp = (parallel[k] for k in ("tp", "cp", "pp", "dp"))
        inside = can and parallel["gpu_order"] == "GPU_ORDER_PIPELINE_INSIDE"
        self.assertEqual("neighbouring GPUs" in launch, not can)
        for gpu in range(tp * cp * pp * dp):
            group = gpu // (tp * cp)
            place = divmod(group, pp) if inside else divmod(group, dp)[::-1]
            self.assertEqual(
                place_of(gpu, tp * cp * pp * dp, arguments_of(launch)), place)

    def check(self, trainer, stock):
        jobs = trainer_files.RandomJobs()
        self.addCleanup(jobs.close)
        plans, refused = jobs.plans(trainer, trainer_files.num_plans())
        for ranks, some in sorted(plans.items()):
            worst = run_world(
                ranks, begin, some, functools.partial(run_plan, stock=stock))
            self.assertEqual(len(worst), len(some))
            print(trainer_files.result_line(trainer, some, worst))
            for title, value in worst.items():
                self.assertLess(value, LIMIT, title)

    def test_plans_for_megatron_run_with_the_gradients_of_one_process(self):
        self.check("megatron", False)

    def test_plans_for_megatron_stock_run_in_its_own_schedules(self):
        self.check("megatron-stock", True)


if __name__ == "__main__":
    if MISSING:
        print(MISSING)
    else:
        unittest.main(verbosity=1, warnings="ignore")
