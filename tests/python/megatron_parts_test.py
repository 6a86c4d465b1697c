"""examples/megatron/plan_runner.py with an encoder before the language model,
on the real Megatron-Core package over gloo: sub-microbatches of images, text-only
microbatches, and an encoder that every rank has whole, for a part of the images
(data parallelism of its own). Gradients are those of one process. Run by
scripts/torch_peer.sh."""
import dataclasses
import sys
import types
import unittest

import megatron_peer_test as peer

MISSING = peer.MISSING
if not MISSING:
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import schedules
    from pipeloom import static_schedule as sp
    from pipeloom.plan import Microbatch, SubMicrobatch
    from plan_runner import PlanRunner, install, refusal
    from megatron_cpu import use_cpu
    import trainer_worlds

WIDTH = peer.WIDTH
TEXT = [5, 3, 6, 4]  # Rows of each microbatch.
IMAGES = [7, 0, 9, 3]  # Rows of its images, which stand before the text.


@dataclasses.dataclass(frozen=True)
class Case:
    """`replicas`: every rank has the encoder; else it is a pipeline."""
    title: str
    replicas: bool
    size: int  # Images of a sub-microbatch.
    order: object
    apart: bool = False

    def __str__(self):
        return self.title


CASES = (
    Case("sub-microbatches", False, 2, 1),
    Case("sub-microbatches, apart", False, 1, 2, True),
    Case("whole encoders on all ranks", True, 9, 3),
    Case("whole encoders on all ranks, sub-microbatches, apart", True, 1, 4,
         True),
    Case("encoders first", True, 1, "encoders first"),
)


def modules(case, ranks):
    """Names of the modules, their stages, and which feeds which."""
    encoders = ranks if case.replicas else 1
    stages = []
    for r in range(ranks):
        stages.append(sp.Stage(r if case.replicas else 0,
                               0 if case.replicas else r, 1, r, 0))
    stages += [sp.Stage(encoders, r, 1, r, 1) for r in range(ranks)]
    names = [f"encoder {i}" for i in range(encoders)] + ["text"]
    return names, stages, [(i, encoders) for i in range(encoders)]


def microbatches(case, ranks):
    encoders = ranks if case.replicas else 1
    result = []
    for m, images in enumerate(IMAGES):
        subs = [SubMicrobatch(encoders, 0, 0, 1)]
        for i in range(encoders):
            first, end = images * i // encoders, images * (i + 1) // encoders
            subs += [SubMicrobatch(i, j, at, min(case.size, end - at))
                     for j, at in enumerate(range(first, end, case.size))]
        result.append(Microbatch((m,), 1.0, tuple(subs)))
    return result


if not MISSING:
    class Chunk(torch.nn.Module):
        """A stage: of the encoder, or of the text, whose first stage puts
        images before the text."""
        model_type = peer.ModelType.encoder_or_decoder

        def __init__(self, config, seed, reads, joins):
            super().__init__()
            torch.manual_seed(seed)
            self.config, self.reads, self.joins = config, reads, joins
            self.linear = torch.nn.Linear(WIDTH, WIDTH)
            self.given = None

        def set_input_tensor(self, tensors):
            self.given = tensors[0] if isinstance(tensors, list) else tensors

        def forward(self, rows):
            x = self.given
            if self.reads:
                parts = [x] if self.joins and x is not None else []
                x = torch.cat(parts + [rows])
            return torch.tanh(self.linear(x)).clone()


def data():
    generator = torch.Generator().manual_seed(3)

    def rows(n):
        return torch.randn(n, 1, WIDTH, generator=generator)

    return [(rows(i), rows(t), rows(i + t)) for i, t in zip(IMAGES, TEXT)]


def chunks_of(case, config, ranks):
    """All stages' chunks. Encoders on all ranks are equal."""
    result = []
    for r in range(ranks):
        result.append(Chunk(config, 1 if case.replicas else 1 + r,
                            case.replicas or r == 0, False))
    return result + [Chunk(config, 50 + r, r == 0, True) for r in range(ranks)]


def serial(case, ranks):
    chunks = chunks_of(case, None, ranks)
    encoder = chunks[:1] if case.replicas else chunks[:ranks]
    total = 0.0
    for images, text, target in data():
        x = images
        for chunk in encoder:
            x = torch.tanh(chunk.linear(x))
        x = torch.cat([x, text])
        for chunk in chunks[ranks:]:
            x = torch.tanh(chunk.linear(x))
        loss = ((x - target) ** 2).sum()
        loss.backward()
        total += float(loss.detach())
    tokens = sum(IMAGES) + sum(TEXT)
    for chunk in chunks:
        for p in chunk.parameters():
            if p.grad is not None:
                p.grad /= tokens
    return [encoder[0 if case.replicas else r] for r in range(ranks)
            ] + chunks[ranks:], total


def forward_step_func(iterator, model):
    images, text, target = next(iterator)
    output = model(images if not model.joins else text)

    def loss_func(out):
        loss = ((out - target) ** 2).sum()
        return loss, torch.tensor(len(target), dtype=torch.int), {
            "loss": float(loss.detach())}

    return output, loss_func


def take(batch, sub):
    images, text, target = batch
    return (images[sub.first_instance:sub.first_instance + sub.instances],
            text, target)


def run_case(rank, ranks, case):
    names, stages, feeds = modules(case, ranks)
    micro = microbatches(case, ranks)
    order = case.order
    if order == "encoders first":
        plan = phases(stages, feeds, micro, names, ranks)
    else:
        plan = peer.plan_of(stages, ranks, len(micro), order, case.apart,
                            micro, feeds, names)
    totals = []
    config = peer.config_for(ranks, 2, totals)
    sum_by_token = config.finalize_model_grads_func

    def finalize(model, tokens, **_):
        if case.replicas:  # The encoder's own data parallelism.
            for p in model[0].parameters():
                if p.grad is None:  # All its images are other ranks'.
                    p.grad = torch.zeros_like(p)
                dist.all_reduce(p.grad)
        sum_by_token(model, tokens)

    config.finalize_model_grads_func = finalize
    every = chunks_of(case, config, ranks)
    model = [every[rank], every[ranks + rank]]
    runner = PlanRunner(lambda step, n: plan, schedules, rank, take_fn=take)
    assert runner.refusal(plan, micro) is None
    if case.size == 1:
        assert "sub-microbatches" in refusal(plan, micro)
    losses = runner(forward_step_func=forward_step_func,
                    data_iterator=[iter(data()) for _ in model], model=model,
                    num_microbatches=len(micro), seq_length=4,
                    micro_batch_size=1)
    reference, total = serial(case, ranks)
    worst = peer.difference(model, [rank, ranks + rank], reference)
    if rank == ranks - 1:
        worst = max(worst, abs(sum(d["loss"] for d in losses) - total) / total)
    return worst


def phases(stages, feeds, micro, names, ranks):
    """All forwards of encoders, then the text, then all their backwards."""
    subs = [peer.collections.Counter(s.module for s in m.subs) for m in micro]
    graph = sp.build_graph(stages, feeds, subs)
    orders = [[] for _ in range(ranks)]
    text = len(names) - 1

    def place(t):
        task = graph.tasks[t]
        phase = {("F", False): 0, ("B", False): 2}.get(
            (task.kind, task.module == text), 1)
        return (phase, task.microbatch, task.kind == "B")

    for t in sorted(range(len(graph.tasks)), key=place):
        orders[graph.tasks[t].rank].append(t)
    return sp.plan_of(graph, orders, names, micro, "encoders first")


# As trainers have it: ms-swift's and Megatron-LM's import the getter by name,
# and call it in each step.
TRAINER = """
from megatron.core.pipeline_parallel import get_forward_backward_func

def train_step(**arguments):
    return get_forward_backward_func()(forward_only=False, **arguments)

def evaluate(**arguments):
    return get_forward_backward_func()(forward_only=True, **arguments)
"""


def run_installed(rank, ranks, case):
    """Two modules of trainers, of which one is imported later."""
    names, stages, feeds = modules(case, ranks)
    micro = microbatches(case, ranks)
    plan = peer.plan_of(stages, ranks, len(micro), 1, False, micro, feeds,
                        names)
    ran = []
    stock = schedules.forward_backward_pipelining_without_interleaving
    schedules.forward_backward_pipelining_without_interleaving = (
        lambda **arguments: ran.append(arguments["forward_only"]) or [])
    runner = PlanRunner(lambda step, n: plan, schedules, take_fn=take)
    trainers = []
    for name in ("trainer_before", "trainer_after"):
        if trainers:
            installed = install(runner)
            assert installed == [
                "megatron.core.pipeline_parallel",
                "megatron.core.pipeline_parallel.schedules",
                "trainer_before"], installed
        trainers.append(types.ModuleType(name))
        sys.modules[name] = trainers[-1]
        exec(TRAINER, vars(trainers[-1]))  # pylint: disable=exec-used
    config = peer.config_for(ranks, 2, [])
    every = chunks_of(case, config, ranks)
    model = [every[rank], every[ranks + rank]]
    reference, _ = serial(case, ranks)
    worst = 0.0
    for trainer in trainers:
        for chunk in model:
            chunk.zero_grad()
        arguments = {"forward_step_func": forward_step_func,
                     "data_iterator": [iter(data()) for _ in model],
                     "model": model, "num_microbatches": len(micro),
                     "seq_length": 4, "micro_batch_size": 1}
        trainer.train_step(**arguments)
        trainer.evaluate(**arguments)
        worst = max(worst, peer.difference(model, [rank, ranks + rank],
                                           reference))
    schedules.forward_backward_pipelining_without_interleaving = stock
    assert ran == [True, True], ran
    assert runner.ran == ["test", "stock"] * 2, runner.ran
    return worst


def begin(_, ranks):
    use_cpu()
    parallel_state.initialize_model_parallel(
        pipeline_model_parallel_size=ranks)


class MegatronPartsTest(unittest.TestCase):

    def test_gradients_are_those_of_one_process(self):
        for ranks in (2, 4):
            worst = trainer_worlds.run_world(ranks, begin, CASES, run_case)
            self.assertEqual(len(worst), len(CASES))
            print(f"{ranks} processes: largest difference "
                  f"{max(worst.values()):.1e} of {len(worst)} cases")
            for title, value in worst.items():
                self.assertLess(value, peer.LIMIT, title)

    def test_trainers_that_import_the_getter_get_the_runner(self):
        worst = trainer_worlds.run_world(2, begin, CASES[:1], run_installed)
        self.assertLess(worst[CASES[0].title], peer.LIMIT)


if __name__ == "__main__":
    if MISSING:
        print(MISSING)
    else:
        unittest.main(verbosity=1, warnings="ignore")
