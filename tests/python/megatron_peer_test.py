"""examples/megatron/plan_runner.py on the real Megatron-Core package, on CPU
over gloo: gradients of one process, and of Megatron's own schedules. Run by
scripts/torch_peer.sh."""
import collections
import dataclasses
import os
import random
import socket
import sys
import unittest
import warnings

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path[:0] = [os.path.join(ROOT, "python"),
                os.path.join(ROOT, "examples/megatron"),
                os.path.join(ROOT, "tests/adapters")]
warnings.filterwarnings("ignore")

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from megatron.core import parallel_state
    from megatron.core.enums import ModelType
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.transformer import TransformerConfig
    MISSING = ""
except ImportError as error:
    MISSING = f"skipped: {error}"

if not MISSING:
    from pipeloom import static_schedule as sp
    from pipeloom.plan import Microbatch, SubMicrobatch
    from plan_runner import PlanRunner
    from megatron_cpu import use_cpu

WIDTH = 8
LIMIT = 1e-6


if not MISSING:
    class Chunk(torch.nn.Module):
        """A model chunk as Megatron's schedules see it: tensors of (sequence,
        batch, hidden)."""
        model_type = ModelType.encoder_or_decoder

        def __init__(self, config, stage, first, vp_stage=None):
            super().__init__()
            torch.manual_seed(stage)
            self.config = config
            self.first = first
            self.vp_stage = vp_stage
            self.linear = torch.nn.Linear(WIDTH, WIDTH)
            self.given = None

        def set_input_tensor(self, tensors):
            self.given = tensors[0] if isinstance(tensors, list) else tensors

        def forward(self, rows):
            x = rows if self.first else self.given
            return torch.tanh(self.linear(x)).clone()


def forward_step_func(data_iterator, model):
    rows, target = next(data_iterator)
    output = model(rows)

    def loss_func(out):
        loss = ((out - target) ** 2).sum()
        tokens = torch.tensor(target.shape[0], dtype=torch.int)
        return loss, tokens, {"loss": float(loss.detach())}

    return output, loss_func


def data(sizes):
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(n, 1, WIDTH, generator=generator),
             torch.randn(n, 1, WIDTH, generator=generator)) for n in sizes]


@dataclasses.dataclass
class Case:
    title: str
    vee: bool
    chunks: int
    sizes: list
    order: object  # Microbatches one after another, or a seed: any legal order.
    free_outputs: bool = False
    apart: bool = False  # Weight gradients.


CASES = (
    Case("a loop", False, 2, [4] * 6, 1),
    Case("a V", True, 2, [4] * 6, 2),
    Case("a V, outputs freed", True, 2, [4] * 6, 3, True),
    Case("reordered", True, 2, [3, 3, 3], [2, 0, 1]),
    Case("fewer microbatches than ranks", False, 1, [4], 5),
    Case("unequal", True, 2, [3, 1, 4, 2, 5], 6),
    Case("unequal, outputs freed", False, 1, [3, 1, 4, 2, 5], 7, True),
    Case("an empty one", True, 2, [4, 0, 1, 2], 8),
    Case("weight gradients apart", False, 2, [3, 1, 4, 2], 9, False, True),
    Case("a V, apart, outputs freed", True, 2, [3, 1, 4, 2], 10, True, True),
)


def stages_of(ranks, chunks, vee):
    return [sp.Stage(0, c * ranks + r, 1,
                     ranks - 1 - r if vee and c % 2 else r, c)
            for c in range(chunks) for r in range(ranks)]


def plan_of(stages, ranks, count, order, apart=False, micro=None, feeds=(),
            names=("model",)):
    """A plan in a drawn order. `apart`: weight gradients. `micro`: microbatches
    with sub-microbatches, else `count` in one piece."""
    micro = micro or [Microbatch((m,), 1.0, (SubMicrobatch(0),))
                      for m in range(count)]
    subs = [collections.Counter(s.module for s in m.subs) for m in micro]
    graph = sp.build_graph(stages, feeds, subs, split_backward=apart)
    rng = random.Random(order if isinstance(order, int) else 0)
    waiting = [0] * len(graph.tasks)
    after = [[] for _ in graph.tasks]
    for e in graph.edges:
        waiting[e.target] += 1
        after[e.source].append(e.target)
    ready = [t for t, n in enumerate(waiting) if n == 0]
    orders = [[] for _ in range(ranks)]
    while ready:
        i = rng.randrange(len(ready))
        if not isinstance(order, int):
            i = min(range(len(ready)), key=lambda k: order.index(
                graph.tasks[ready[k]].microbatch))
        t = ready.pop(i)
        orders[graph.tasks[t].rank].append(t)
        for u in after[t]:
            waiting[u] -= 1
            if waiting[u] == 0:
                ready.append(u)
    return sp.plan_of(graph, orders, names, micro, "test")


def config_for(ranks, chunks, totals, **extra):
    config = TransformerConfig(
        num_layers=ranks * chunks, hidden_size=WIDTH, num_attention_heads=1,
        pipeline_model_parallel_size=ranks, pipeline_dtype=torch.float32,
        calculate_per_token_loss=True, **extra)

    def finalize(model, tokens, **_):
        # As Megatron's own: gradients by token of all ranks.
        totals.append(int(tokens))
        dist.all_reduce(tokens)
        for chunk in model:
            for p in chunk.parameters():
                p.grad /= tokens

    config.finalize_model_grads_func = finalize
    return config


def serial(stages, sizes):
    config = None
    layers = [Chunk(config, i, i == 0) for i in range(len(stages))]
    total = 0.0
    for rows, target in data(sizes):
        x = rows
        for layer in layers:
            layer.set_input_tensor([x])
            x = layer(rows)
        loss = ((x - target) ** 2).sum()
        loss.backward()
        total += float(loss.detach())
    for layer in layers:
        for p in layer.parameters():
            p.grad /= sum(sizes)
    return layers, total


def difference(model, mine, layers):
    return max(float((a.grad - b.grad).abs().max())
               for chunk, stage in zip(model, mine)
               for a, b in zip(chunk.parameters(),
                               layers[stage].parameters()))


def run_case(case, rank, ranks):
    """The largest difference to one process."""
    stages = stages_of(ranks, case.chunks, case.vee)
    plan = plan_of(stages, ranks, len(case.sizes), case.order, case.apart)
    totals = []
    config = config_for(ranks, case.chunks, totals,
                        deallocate_pipeline_outputs=case.free_outputs)
    mine = [i for i, s in enumerate(stages) if s.rank == rank]
    model = [Chunk(config, i, i == 0) for i in mine]
    runner = PlanRunner(lambda step, n: plan, schedules, rank)
    losses = runner(
        forward_step_func=forward_step_func,
        data_iterator=[iter(data(case.sizes)) for _ in mine], model=model,
        num_microbatches=len(case.sizes), seq_length=4, micro_batch_size=1)
    layers, total = serial(stages, case.sizes)
    worst = difference(model, mine, layers)
    if stages[-1].rank == rank:
        assert len(losses) == len(case.sizes)
        worst = max(worst, abs(sum(d["loss"] for d in losses) - total) /
                    max(1.0, total))
    # Megatron takes the tokens of the last rank, also where the loss is not.
    assert totals == [sum(case.sizes) if rank == ranks - 1 else 0], totals
    return worst


def run_stock(rank, ranks, chunks):
    """No plan: Megatron's own schedule runs, with the same gradients, on equal
    microbatches. The iteration after it has a plan again."""
    if chunks > 1:
        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(
            pipeline_model_parallel_size=ranks,
            virtual_pipeline_model_parallel_size=chunks)
    sizes = [4] * (2 * ranks)
    stages = stages_of(ranks, chunks, False)
    plan = plan_of(stages, ranks, len(sizes), 9)
    extra = {}
    if chunks > 1:
        extra = {"virtual_pipeline_model_parallel_size": chunks,
                 "overlap_p2p_comm": True, "batch_p2p_comm": False}
    config = config_for(ranks, chunks, [], **extra)
    mine = [i for i, s in enumerate(stages) if s.rank == rank]
    vp_stages = range(chunks) if chunks > 1 else [None]
    model = [Chunk(config, i, i == 0, v) for i, v in zip(mine, vp_stages)]
    runner = PlanRunner(lambda step, n: plan if step == 1 else None,
                        schedules, rank)
    layers, _ = serial(stages, sizes)
    worst = 0.0
    for _ in range(2):
        for chunk in model:
            chunk.zero_grad()
        iterators = [iter(data(sizes)) for _ in mine]
        runner(forward_step_func=forward_step_func,
               data_iterator=iterators if chunks > 1 else iterators[0],
               model=model if chunks > 1 else model[0],
               num_microbatches=len(sizes), seq_length=4, micro_batch_size=1)
        worst = max(worst, difference(model, mine, layers))
    assert runner.ran == ["stock", "test"], runner.ran
    return worst


def worker(rank, ranks, port, queue):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      USE_LIBUV="0")
    use_cpu()
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    title = "start"
    try:
        parallel_state.initialize_model_parallel(
            pipeline_model_parallel_size=ranks)
        for case in CASES:
            title = case.title
            queue.put((title, rank, run_case(case, rank, ranks)))
        for chunks, title in ((1, "stock 1F1B"), (2, "stock interleaved")):
            queue.put((title, rank, run_stock(rank, ranks, chunks)))
        queue.put(("", rank, None))
    except Exception as error:  # pylint: disable=broad-except
        queue.put((title, rank, repr(error)))
        raise
    finally:
        dist.destroy_process_group()


def run_world(ranks):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=worker, args=(r, ranks, port, queue))
                 for r in range(ranks)]
    for p in processes:
        p.start()
    worst, done = {}, 0
    try:
        while done < ranks:
            title, rank, value = queue.get(timeout=120)
            if value is None:
                done += 1
            elif isinstance(value, str):
                raise AssertionError(f"{title}, rank {rank}: {value}")
            else:
                worst[title] = max(worst.get(title, 0.0), value)
    finally:
        for p in processes:
            if done < ranks:
                p.terminate()
            p.join(30)
    return worst


class MegatronTest(unittest.TestCase):

    def check(self, ranks):
        worst = run_world(ranks)
        self.assertEqual(len(worst), len(CASES) + 2)
        print(f"{ranks} processes: largest difference "
              f"{max(worst.values()):.1e} of {len(worst)} cases")
        for title, value in worst.items():
            self.assertLess(value, LIMIT, title)

    def test_gradients_are_those_of_one_process_2_ranks(self):
        self.check(2)

    def test_gradients_are_those_of_one_process_4_ranks(self):
        self.check(4)


if __name__ == "__main__":
    if MISSING:
        print(MISSING)
    else:
        unittest.main(verbosity=1)
