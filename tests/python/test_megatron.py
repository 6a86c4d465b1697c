"""examples/megatron/plan_runner.py against Megatron's forward_step contract, as
a stand-in of a page: V placement, any order, fewer microbatches than ranks,
unequal and empty microbatches."""
import os
import socket
import sys
import types
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path[:0] = [os.path.join(ROOT, "python"),
                os.path.join(ROOT, "examples/megatron")]

try:
    import grpc  # noqa: F401
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch import nn
    HAVE_ALL = dist.is_available()
except ImportError:
    HAVE_ALL = False

if HAVE_ALL:
    from pipeloom import static_schedule as sp
    from pipeloom.plan import Microbatch, SubMicrobatch
    from plan_runner import PlanRunner

WIDTH = 8
RANKS = 2


def stand_in():
    """forward_step and backward_step as Megatron-Core 0.17 calls them."""

    def forward_step(forward_step_func, data_iterator, model, num_microbatches,
                     input_tensor, forward_data_store, config, cp_group_size,
                     collect_non_loss_data=False, is_first_microbatch=False,
                     current_microbatch=None, vp_stage=None,
                     is_last_stage=True):
        model.set_input_tensor([input_tensor])
        output, loss_func = forward_step_func(data_iterator, model)
        tokens = torch.tensor(0, dtype=torch.int)
        if is_last_stage:
            output, tokens, reduced = loss_func(output)
            forward_data_store.append(reduced)
        return output, tokens

    def backward_step(input_tensor, output_tensor, output_tensor_grad, config):
        if input_tensor is not None:
            input_tensor.retain_grad()
        if output_tensor.requires_grad:
            torch.autograd.backward(output_tensor,
                                    grad_tensors=output_tensor_grad)
        return None if input_tensor is None else input_tensor.grad

    return types.SimpleNamespace(forward_step=forward_step,
                                 backward_step=backward_step)


if HAVE_ALL:
    class Chunk(nn.Module):
        def __init__(self, config, first, last):
            super().__init__()
            self.config = config
            self.first, self.last = first, last
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.given = None

        def set_input_tensor(self, tensors):
            self.given = tensors[0]

        def forward(self, rows):
            x = rows if self.first else self.given
            return torch.tanh(self.linear(x))


def forward_step_func(data_iterator, model):
    rows, target = next(data_iterator)
    output = model(rows)

    def loss_func(out):
        loss = ((out - target) ** 2).sum()
        return loss, torch.tensor(target.shape[0], dtype=torch.int), {
            "loss": float(loss.detach())}

    return output, loss_func


def data(sizes):
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(n, WIDTH, generator=generator),
             torch.randn(n, WIDTH, generator=generator)) for n in sizes]


def plan_for(vee, count, order):
    stages = [sp.Stage(0, i, 1, r, c) for i, (c, r) in enumerate(
        [(0, 0), (0, 1)] + ([(1, 1), (1, 0)] if vee else [(1, 0), (1, 1)]))]
    micro = [Microbatch((m,), 1.0, (SubMicrobatch(0),)) for m in range(count)]
    graph = sp.build_graph(stages, (), [{0: 1}] * count)
    orders = [[], []]
    for m in order:  # Microbatch after microbatch: legal in any order.
        for t, task in enumerate(graph.tasks):
            if task.microbatch == m:
                orders[task.rank].append(t)
    return stages, sp.plan_of(graph, orders, ("model",), micro, "test")


def worker(rank, port, queue):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      USE_LIBUV="0")
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    worst = 0.0
    try:
        for vee, sizes, order in ((True, [3, 1, 2], [2, 0, 1]),
                                  (False, [2], [0]),
                                  (True, [4, 0, 1, 2], [0, 1, 3, 2])):
            stages, plan = plan_for(vee, len(sizes), order)
            totals = []
            config = types.SimpleNamespace(
                calculate_per_token_loss=True, no_sync_func=None,
                finalize_model_grads_func=lambda m, n: totals.append(int(n)))
            torch.manual_seed(0)
            model = [Chunk(config, i == 0, i == len(stages) - 1)
                     for i in range(len(stages))]
            torch.manual_seed(0)
            reference = [Chunk(config, i == 0, False)
                         for i in range(len(stages))]
            mine = [i for i, s in enumerate(stages) if s.rank == rank]
            runner = PlanRunner(lambda step, n: plan if step == 0 else None,
                                stand_in(), rank,
                                stock=lambda **kwargs: "stock")
            batches = data(sizes)
            losses = runner(
                forward_step_func=forward_step_func,
                data_iterator=[iter(batches) for _ in mine],
                model=[model[i] for i in mine], num_microbatches=len(sizes),
                seq_length=1, micro_batch_size=1)
            total = 0.0
            for rows, target in batches:
                x = rows
                for chunk in reference:
                    x = torch.tanh(chunk.linear(x))
                loss = ((x - target) ** 2).sum()
                loss.backward()
                total += float(loss.detach())
            for i in mine:
                worst = max(worst, float((
                    model[i].linear.weight.grad -
                    reference[i].linear.weight.grad).abs().max()))
            has_loss = stages[-1].rank == rank
            if has_loss:
                worst = max(worst, abs(
                    sum(d["loss"] for d in losses) - total))
            else:
                assert losses == []
            # Megatron takes the tokens of the last rank.
            assert totals == [sum(sizes) if rank == RANKS - 1 else 0], totals
            answer = runner(forward_step_func=forward_step_func,
                            data_iterator=None, model=None,
                            num_microbatches=1, seq_length=1,
                            micro_batch_size=1)
            assert answer == "stock" and runner.ran == ["test", "stock"]
        queue.put((rank, worst))
    except Exception as error:  # pylint: disable=broad-except
        queue.put((rank, repr(error)))
        raise
    finally:
        dist.destroy_process_group()


@unittest.skipUnless(HAVE_ALL, "torch or grpcio is missing")
class PlanRunnerTest(unittest.TestCase):

    def test_gradients_are_those_of_one_process(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        context = mp.get_context("fork")
        queue = context.Queue()
        processes = [context.Process(target=worker, args=(r, port, queue))
                     for r in range(RANKS)]
        for p in processes:
            p.start()
        results = [queue.get(timeout=120)]
        if not isinstance(results[0][1], str):
            results.append(queue.get(timeout=120))
        for p in processes:
            if len(results) < RANKS:
                p.terminate()
            p.join(60)
        for rank, worst in results:
            self.assertIsInstance(worst, float, f"rank {rank}: {worst}")
            self.assertLess(worst, 1e-5)


if __name__ == "__main__":
    unittest.main()
