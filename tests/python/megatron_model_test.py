"""Megatron-Core's own GPTModel by plans, on CPU over gloo: pipelines with
weight gradients apart, recomputation, tensor, sequence, context and data parallelism
have the gradients of one process. Run by scripts/torch_peer.sh."""
import dataclasses
import os
import tempfile
import unittest

import megatron_peer_test as peer

MISSING = peer.MISSING
if not MISSING:
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import (DistributedDataParallel,
                                           DistributedDataParallelConfig,
                                           finalize_model_grads)
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import \
        get_gpt_layer_local_spec
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.transformer import TransformerConfig, transformer_block
    from plan_runner import PlanRunner
    import megatron_cpu
    import weight_store
    from trainer_worlds import run_world

LIMIT = 1e-6
LAYERS, WORDS, LONGEST = 4, 32, 16
# Tokens of the microbatches of each replica, in samples of a length.
SIZES = [((2, 8), (1, 16), (1, 8), (2, 4)), ((1, 4), (2, 8), (1, 16), (1, 8))]


@dataclasses.dataclass(frozen=True)
class Case:
    title: str
    pp: int = 2
    tp: int = 1
    cp: int = 1
    dp: int = 1
    chunks: int = 1
    vee: bool = False
    apart: bool = True  # Weight gradients.
    sequence: bool = False
    overlap: bool = False
    unlike: bool = False  # Replicas end their chunks in other orders.
    gather: bool = False  # Weights, during forwards.
    recompute: str = ""  # uniform, block or selective.

    def __str__(self):
        return self.title

    @property
    def ranks(self):
        return self.pp * self.tp * self.cp * self.dp


CASES = (
    Case("whole backwards", apart=False),
    Case("weight gradients apart"),
    Case("in a V", chunks=2, vee=True),
    Case("recomputed, uniform", recompute="uniform"),
    Case("recomputed, block, whole backwards", recompute="block", apart=False,
         chunks=2),
    Case("recomputed, selective", recompute="selective"),
    Case("tensor parallel", pp=1, tp=2),
    Case("sequence parallel", pp=2, tp=2, sequence=True),
    Case("sequence parallel, recomputed", pp=1, tp=2, sequence=True,
         recompute="uniform"),
    Case("context parallel", pp=1, cp=2, apart=False),
    Case("a pipeline with context parallelism", pp=2, cp=2),
    Case("context parallel, recomputed", pp=2, cp=2, recompute="uniform"),
    Case("replicas", pp=2, dp=2),
    Case("replicas, sums overlapped", pp=2, dp=2, overlap=True),
    Case("replicas, sums overlapped, whole backwards", pp=1, dp=2,
         overlap=True, apart=False),
    Case("replicas that end their chunks unlike, sums overlapped", pp=2, dp=2,
         chunks=2, overlap=True, unlike=True),
    Case("replicas that gather their chunks' weights", pp=2, dp=2, chunks=2,
         overlap=True, gather=True),
)


def config_of(case):
    more = {}
    if case.recompute == "selective":
        more = {"recompute_granularity": "selective"}
    elif case.recompute:
        more = {"recompute_granularity": "full",
                "recompute_method": case.recompute, "recompute_num_layers": 1}
    config = TransformerConfig(
        num_layers=LAYERS, hidden_size=16, num_attention_heads=2,
        use_cpu_initialization=True, pipeline_dtype=torch.float32,
        attention_dropout=0.0, hidden_dropout=0.0,
        calculate_per_token_loss=True, bias_dropout_fusion=False,
        masked_softmax_fusion=False, tensor_model_parallel_size=case.tp,
        pipeline_model_parallel_size=case.pp,
        virtual_pipeline_model_parallel_size=(
            case.chunks if case.chunks > 1 else None),
        context_parallel_size=case.cp, sequence_parallel=case.sequence, **more)
    config.finalize_model_grads_func = finalize_model_grads
    return config


def spec_of(case):
    spec = get_gpt_layer_local_spec()
    if case.cp > 1:
        spec.submodules.self_attention.submodules.core_attention = (
            megatron_cpu.Attention)
    if case.sequence:
        spec.submodules.input_layernorm = megatron_cpu.Norm
        spec.submodules.pre_mlp_layernorm = megatron_cpu.Norm
        transformer_block.LayerNormImpl = megatron_cpu.Norm
    return spec


def stage_model(case, config, first, last, vp_stage=None):
    return GPTModel(config, spec_of(case), vocab_size=WORDS,
                    max_sequence_length=LONGEST, pre_process=first,
                    post_process=last, vp_stage=vp_stage,
                    share_embeddings_and_output_weights=False)


def data(sizes):
    generator = torch.Generator().manual_seed(sum(n * l for n, l in sizes))
    return [torch.randint(0, WORDS, shape, generator=generator)
            for shape in sizes]


def part_of(ids, rank, ranks):
    """A context rank's part of the sequences: ids, their places and labels."""
    length = ids.shape[1] // ranks
    places = torch.arange(ids.shape[1])[None].expand_as(ids)
    labels = torch.roll(ids, -1, 1)
    return [t[:, rank * length:(rank + 1) * length]
            for t in (ids, places, labels)]


def forward_step_func(iterator, model):
    ids, places, labels = part_of(
        next(iterator), parallel_state.get_context_parallel_rank(),
        parallel_state.get_context_parallel_world_size())
    length = ids.shape[1]
    mask = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
    output = model(ids, places, mask[None, None], labels=labels)

    def loss_func(losses):
        return losses.sum(), torch.tensor(labels.numel(), dtype=torch.int), {
            "loss": float(losses.detach().sum())}

    return output, loss_func


def names_of(model):
    """Its parameters by their names in the whole model."""
    result = {}
    for name, p in model.named_parameters():
        name = name.removeprefix("module.")
        parts = name.split(".")
        if parts[:2] == ["decoder", "layers"]:
            layers = getattr(model, "module", model).decoder.layers
            parts[2] = str(layers[int(parts[2])].layer_number - 1)
        result[".".join(parts)] = p
    return result


def part_of_weight(whole, p):
    """This tensor-parallel rank's part of a whole tensor."""
    if not getattr(p, "tensor_model_parallel", False):
        return whole
    ranks = parallel_state.get_tensor_model_parallel_world_size()
    return whole.chunk(ranks, p.partition_dim)[
        parallel_state.get_tensor_model_parallel_rank()]


def reference(_, __, case, folder):
    """Writes weights, gradients and the loss of one process."""
    alone = Case("one process", pp=1)
    model = stage_model(alone, config_of(alone), True, True)
    torch.manual_seed(5)
    weights = {}
    for name, p in model.named_parameters():
        p.data += 0.1 * torch.randn_like(p)
        weights[name] = p.detach().clone()
    loss, tokens = 0.0, 0
    for sizes in SIZES[:case.dp]:
        for batch in data(sizes):
            output, loss_func = forward_step_func(iter([batch]), model)
            value, count, _ = loss_func(output)
            value.backward()
            loss, tokens = loss + float(value.detach()), tokens + int(count)
    torch.save({"weights": weights, "loss": loss, "gradients": {
        n: p.grad / tokens for n, p in model.named_parameters()}},
               os.path.join(folder, "reference"))
    return 0.0


def plan_of(case, stages, seed):
    count = len(SIZES[0])
    plan = peer.plan_of(stages, case.pp, count, seed, case.apart)
    kinds = {t.kind for t in plan.tasks.values()}
    assert kinds == ({"F", "B", "W"} if case.apart else {"F", "B"}), kinds
    return plan


def ends_of(plan):
    """The stage of each rank's last pass."""
    return [[plan.tasks[a].stage for op, a in program if op == "compute"][-1]
            for program in plan.programs.values()]


def buckets_of(model):
    return [(b, g) for chunk in model for g in chunk.bucket_groups
            for b in g.buckets]


def forget_others_shards(model):
    """Leaves of the weights only what this replica's optimizer has."""
    for bucket, group in buckets_of(model):
        for r, part in enumerate(bucket.param_data.chunk(
                group.intra_distributed_optimizer_instance_size)):
            if r != group.intra_distributed_optimizer_instance_rank:
                part.fill_(float("nan"))


def gather_gradients(model):
    for bucket, group in buckets_of(model):
        own = bucket.grad_data.chunk(
            group.intra_distributed_optimizer_instance_size)[
                group.intra_distributed_optimizer_instance_rank].clone()
        dist.all_gather_into_tensor(
            bucket.grad_data, own,
            group=group.intra_distributed_optimizer_instance_group)


def gathers_begun(model):
    """A hook of chunks: all weights are on their way by then."""
    def hook(*_):
        assert all(g.param_gather_dispatched for _, g in buckets_of(model))
    return hook


class Counted:
    """Counts the weight gradients that came apart, and the calls that were run
    again."""

    def __init__(self):
        self.late = self.again = 0
        checkpoint = tensor_parallel.random.CheckpointFunction
        self._replaced = ((weight_store, "_enter"), (checkpoint, "backward"))

    def __enter__(self):
        self._own = [getattr(*what) for what in self._replaced]

        def enter(parameter, gradient):
            self.late += 1
            self._own[0](parameter, gradient)

        def backward(ctx, *grads):
            self.again += 1
            return self._own[1](ctx, *grads)

        for (owner, name), new in zip(self._replaced,
                                      (enter, staticmethod(backward))):
            setattr(owner, name, new)
        return self

    def __exit__(self, *_):
        setattr(*self._replaced[0], self._own[0])
        setattr(*self._replaced[1], staticmethod(self._own[1]))


def run_case(_, __, case, folder):
    """The largest difference to one process."""
    known = torch.load(os.path.join(folder, "reference"))
    config = config_of(case)
    rank = parallel_state.get_pipeline_model_parallel_rank()
    replica = parallel_state.get_data_parallel_rank()
    stages = peer.stages_of(case.pp, case.chunks, case.vee)
    mine = [i for i, s in enumerate(stages) if s.rank == rank]
    plan = plan_of(case, stages, 11)
    if case.unlike and replica == 1:
        plan = next(p for p in (plan_of(case, stages, s) for s in range(999))
                    if all(a != b for a, b in zip(ends_of(p), ends_of(plan))))
    model = []
    for c, i in enumerate(mine):
        # The layers of a chunk are those of its place in the chain.
        own = dataclasses.replace(config)
        chunk = stage_model(case, own, i == 0, i == len(stages) - 1,
                            c if case.chunks > 1 else None)
        each = LAYERS // len(stages)
        for k, layer in enumerate(chunk.decoder.layers):
            layer.layer_number = i * each + k + 1
        for name, p in names_of(chunk).items():
            p.data.copy_(part_of_weight(known["weights"][name], p))
        model.append(DistributedDataParallel(
            config, DistributedDataParallelConfig(
                overlap_grad_reduce=case.overlap, bucket_size=300,
                use_distributed_optimizer=case.gather,
                overlap_param_gather=case.gather), chunk))
    if case.gather:
        for chunk in model:
            chunk.register_forward_pre_hook(gathers_begun(model))
    config.no_sync_func = [chunk.no_sync for chunk in model]
    config.grad_sync_func = None
    runner = PlanRunner(lambda step, n: plan, schedules)
    worst, most, batches = 0.0, 0.0, data(SIZES[replica])
    for _ in range(3):  # Megatron overlaps sums from its second step on.
        for chunk in model:
            chunk.zero_grad_buffer()
        if case.gather:
            forget_others_shards(model)
        with Counted() as counted:
            losses = runner(
                forward_step_func=forward_step_func,
                data_iterator=[iter(batches) for _ in model], model=model,
                num_microbatches=len(batches), seq_length=LONGEST,
                micro_batch_size=1)
        assert (counted.late > 0) == case.apart, counted.late
        assert (counted.again > 0) == bool(case.recompute), counted.again
        if case.gather:
            gather_gradients(model)
        for chunk in model:
            for name, p in names_of(chunk).items():
                expected = part_of_weight(known["gradients"][name], p)
                worst = max(worst, float(
                    (p.main_grad - expected).abs().max()))
                most = max(most, float(expected.abs().max()))
        loss = torch.tensor([sum(d["loss"] for d in losses)],
                            dtype=torch.float64)
        dist.all_reduce(loss)
        loss /= case.tp
        worst = max(worst, abs(float(loss) / known["loss"] - 1))
    assert most > 0.01, most  # Differences are those of real gradients.
    return worst


def begin(rank, ranks, case):
    megatron_cpu.use_cpu()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=case.tp,
        pipeline_model_parallel_size=case.pp,
        context_parallel_size=case.cp,
        virtual_pipeline_model_parallel_size=(
            case.chunks if case.chunks > 1 else None))
    tensor_parallel.random.model_parallel_cuda_manual_seed(3)


def world(case, run, folder):
    def with_folder(rank, ranks, planned):
        return run(rank, ranks, planned, folder)

    alone = run is reference
    return run_world(
        1 if alone else case.ranks,
        lambda rank, ranks: begin(rank, ranks, Case("", pp=1) if alone
                                  else case), [case], with_folder)


class MegatronModelTest(unittest.TestCase):

    def test_gradients_are_those_of_one_process(self):
        for case in CASES:
            with self.subTest(str(case)), \
                    tempfile.TemporaryDirectory() as folder:
                world(case, reference, folder)
                worst = world(case, run_case, folder)[str(case)]
                print(f"{case}: {worst:.1e}", flush=True)
                self.assertLess(worst, LIMIT)


if __name__ == "__main__":
    if MISSING:
        print(MISSING)
    else:
        unittest.main(verbosity=1, warnings="ignore")
