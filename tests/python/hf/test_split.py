"""pipeloom.hf on a small model in plain torch, on two processes: losses and
gradients are those of one process, however the plan cuts, orders and recomputes
it. The real classes are in test_hf_pipeline.py."""
import copy
import dataclasses
import json
import os
import random
import socket
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
sys.path.insert(0, os.path.join(ROOT, "python"))
BINARY = os.environ.get("PIPELOOM_BINARY", "pipeloom")

try:
    import grpc  # noqa: F401
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    HAVE_ALL = dist.is_available()
except ImportError:
    HAVE_ALL = False

if HAVE_ALL:
    from pipeloom import Stage, hf, local
    from pipeloom.check import InvalidPlan
    from pipeloom.hf.family import family_of
    from pipeloom.hf.partition import check_partition
    from pipeloom.hf.skeleton import Output
    from pipeloom.loss import LossShare
    from pipeloom.plan import SubMicrobatch
    from pipeloom.sample import Sample as PipeloomSample
    import tiny_model

NAMES = ("vision", "text")
# Layers: patches, 2 blocks, the tap's, out; embedding, 3 layers, head.
COUNTS = (5, 5)


def cut(vision, text):
    """A partition of two ranks, each with a part of both modules."""
    stages = []
    for module, at in ((0, vision), (1, text)):
        stages += [Stage(module, 0, at, 0, module),
                   Stage(module, at, COUNTS[module] - at, 1, module)]
    return hf.Partition(NAMES, tuple(stages))


@dataclasses.dataclass(frozen=True)
class Case:
    """`split`: backwards are split; `recompute`: the choice of the layer of
    that number in each stage, in turn."""
    vision: int = 2
    text: int = 2
    sub: int = 0
    split: bool = False
    choices: tuple = ()
    tied: bool = False
    frozen: str = ""


def plan_of(case, pipe, samples, step):
    """The plan of `pipeloom search`, with sub-microbatches of `case.sub`
    patches."""
    micro = []
    for m in pipe.microbatches(samples, [i // 2 for i in range(len(samples))]):
        subs = []
        for s in m.subs:
            size = case.sub if s.module == 0 and case.sub else s.instances
            for j, first in enumerate(range(0, s.instances, size)):
                subs.append(SubMicrobatch(
                    s.module, j, first, min(size, s.instances - first)))
        micro.append(dataclasses.replace(m, subs=tuple(subs)))
    graph = local.graph_of(pipe.partition.stages, ((0, 1),), micro,
                           lambda *_: 1000, case.split)
    orders = [None]
    if pipe.rank == 0:
        orders[0] = local.search_orders(BINARY, graph, 2, evaluations=50)
    dist.broadcast_object_list(orders)
    plan = local.plan_of(graph, orders[0], NAMES, micro, "search", step)
    chosen = {}
    if case.choices:
        for i, t in plan.tasks.items():
            count = pipe.partition.stages[t.stage].num_layers
            if t.kind == "F":
                chosen[i] = tuple(case.choices[(i + k) % len(case.choices)]
                                  for k in range(count))
    return dataclasses.replace(plan, activations=chosen)


def samples_of(draw):
    return [tiny_model.sample(draw, n) for n in (3, 0, 0, 0, 1, 4)]


def train(rank, port, cases, out):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      USE_LIBUV="0")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_default_dtype(torch.float64)
    results = []
    for case in cases:
        torch.manual_seed(1)
        model = tiny_model.TinyVlm(tied=case.tied)
        for name, p in model.named_parameters():
            p.requires_grad_(not (case.frozen and case.frozen in name))
        one = copy.deepcopy(model)
        pipe = hf.Pipeline(model, cut(case.vision, case.text), rank=rank)
        named = {**dict(one.named_parameters()),
                 "head.weight": one.head.weight}
        draw, worst, seen = random.Random(7), 0.0, set()
        optimizers = [torch.optim.SGD([p for p in ps if p.requires_grad],
                                      lr=0.1)
                      for ps in (list(pipe.parameters()),
                                 list(one.parameters()))]
        for step in range(3):
            samples = samples_of(draw)
            for optimizer in optimizers:
                optimizer.zero_grad()
            result = pipe.step(plan_of(case, pipe, samples, step), samples)
            losses = []
            for m in range(3):  # The layers' scale is that of a microbatch.
                pair = samples[2 * m:2 * m + 2]
                ids = torch.cat([s["ids"] for s in pair])
                pixels = [s["pixels"] for s in pair if "pixels" in s]
                losses.append(torch.nn.functional.cross_entropy(
                    one(ids, torch.cat(pixels) if pixels else None), ids,
                    reduction="sum"))
            expected = sum(losses) / sum(len(s["ids"]) for s in samples)
            expected.backward()
            loss = torch.tensor([result.loss])
            dist.all_reduce(loss)
            worst = max(worst, abs(float(loss) - float(expected.detach())))
            for name, p in pipe.named_parameters():
                seen.add(name)
                a, b = p.grad, named[name].grad
                if a is None or b is None:
                    rest = b if a is None else a
                    worst = max(worst, 0.0 if rest is None else
                                float(rest.abs().max()))
                    continue
                worst = max(worst, float((a - b).abs().max()))
            for optimizer in optimizers:
                optimizer.step()
        every = [None, None]
        dist.all_gather_object(every, (worst, sorted(seen),
                                       sum(p.numel() for p in
                                           pipe.parameters())))
        results.append(every)
    if rank == 0:
        with open(out, "w", encoding="utf-8") as file:
            json.dump(results, file)
    dist.barrier()
    dist.destroy_process_group()


def run(cases):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        mp.start_processes(train, (port, cases, out), 2, start_method="fork")
        with open(out, encoding="utf-8") as file:
            return json.load(file)


@unittest.skipUnless(HAVE_ALL, "torch or grpcio is missing")
class SplitTest(unittest.TestCase):

    @unittest.skipUnless(os.access(BINARY, os.X_OK), "no pipeloom binary")
    def test_losses_and_gradients_are_those_of_one_process(self):
        cases = [Case(), Case(split=True, sub=2),
                 Case(vision=1, text=1, sub=1, choices=("RECOMPUTE",)),
                 Case(vision=3, text=4, split=True, sub=3,
                      choices=("KEEP", "RECOMPUTE", "OFFLOAD")),
                 Case(vision=4, text=3, choices=("OFFLOAD", "KEEP")),
                 Case(tied=True), Case(tied=True, split=True, text=1),
                 Case(frozen="tower", sub=2), Case(frozen="layers")]
        whole = set(dict(tiny_model.TinyVlm().named_parameters()))
        for case, ranks in zip(cases, run(cases)):
            with self.subTest(case=case):
                self.assertLess(max(r[0] for r in ranks), 1e-12)
                self.assertEqual(set(ranks[0][1]) | set(ranks[1][1]), whole)
                self.assertFalse(set(ranks[0][1]) & set(ranks[1][1]))

    def check(self, counts=COUNTS, names=NAMES):
        family = family_of(tiny_model.TinyVlm())
        stages = [Stage(m, 0, n, 0, 0) for m, n in enumerate(counts)]
        check_partition(hf.Partition(names, tuple(stages)), family.chains,
                        "TinyVlm")

    def test_a_plan_of_another_model_is_refused(self):
        self.check()
        with self.assertRaisesRegex(
                hf.PartitionError, "the plan has 6 layers of text; this "
                r"TinyVlm has 5 \(1 before the blocks, 3 blocks, 1 at the "
                "end.*pipeloom model CONFIG"):
            self.check(counts=(5, 6))
        with self.assertRaisesRegex(
                hf.PartitionError, r"modules are \['encoder', 'text'\]; those "
                r"of TinyVlm are \['vision', 'text'\]"):
            self.check(names=("encoder", "text"))
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write('{"format": "other"}')
            file.flush()
            with self.assertRaisesRegex(hf.PartitionError,
                                        "`format` must be pipeloom.partition"):
                hf.read_partition(file.name)

    def test_outputs_of_replaced_parts_are_read_as_tuples_too(self):
        self.assertEqual(Output(a=1, b=2).to_tuple(), (1, 2))
        self.assertEqual(Output(a=1).a, 1)

    def test_an_unknown_family_is_refused(self):
        with self.assertRaisesRegex(
                TypeError, "no description of Linear. There are: .*Llama"
                "ForCausalLM.*To add one, derive a class from"):
            family_of(torch.nn.Linear(1, 1))

    def test_parameters_outside_of_the_description_are_refused(self):
        model = tiny_model.TinyVlm()
        model.tower.gate = torch.nn.Linear(2, 2)
        with self.assertRaisesRegex(ValueError, r"\['tower.gate.weight', "
                                    r"'tower.gate.bias'\] of TinyVlm belong "
                                    "to no layer"):
            family_of(model).take_apart(lambda _: True)

    def test_samples_that_do_not_fit_the_plan_are_refused(self):
        from pipeloom.hf.batch import check_samples, weigh
        family = family_of(tiny_model.TinyVlm())
        samples = samples_of(random.Random(1))
        pipe = _Parts(family)
        micro = hf.Pipeline.microbatches(pipe, samples, [0, 0, 1, 1, 2, 2])
        plan = hf.Pipeline.static_plan(pipe, 0, micro)
        check_samples(family, plan, samples)
        for change, words in (
                ([{}] + samples[1:], "sample 0: a sample has no 'ids'"),
                (samples[:5], "microbatch 2 of the plan has sample 5; the "
                 "step has 5"),
                (samples + samples[:1], r"not all 7 samples once \(not \[6\]"),
                ([samples[1]] + samples[1:], "microbatch 0: its samples have "
                 "0 instances of vision, the plan 3: submit the sizes")):
            with self.assertRaisesRegex(hf.SampleError, words):
                check_samples(family, plan, change)
        with self.assertRaisesRegex(hf.SampleError, "with_microbatches"):
            check_samples(family, dataclasses.replace(plan, microbatches=()),
                          samples)
        part = PipeloomSample(1)
        with self.assertRaisesRegex(hf.SampleError, "sample .* is longer than "
                                    "a microbatch.*microbatch_tokens"):
            check_samples(family, dataclasses.replace(
                plan, microbatches=tuple(
                    dataclasses.replace(m, pieces=(part,) * len(m.samples))
                    for m in plan.microbatches)), samples)
        divided = dataclasses.replace(plan, microbatches=tuple(
            dataclasses.replace(m, subs=tuple(
                s for s in m.subs if s.module == 0) + (
                    SubMicrobatch(1, 0, 0, 1), SubMicrobatch(1, 1, 1, 1)))
            for m in plan.microbatches))
        with self.assertRaisesRegex(hf.SampleError, "text has 2 sub-"):
            check_samples(family, divided, samples)
        # Labels count here, not the tokens of the plan's loss_shares.
        shared = dataclasses.replace(
            plan, loss_shares={(1, 0, 0): LossShare(5, 1)},
            loss_totals={1: LossShare(50, 10)})
        weighed = weigh(family, shared, samples)
        self.assertAlmostEqual(sum(m.loss_weight for m in
                                   weighed.microbatches), 1.0)
        self.assertEqual((weighed.loss_shares, weighed.loss_totals), ({}, {}))

    def test_a_trainable_stage_without_a_backward_is_refused(self):
        family = family_of(tiny_model.TinyVlm())
        pipe = _Parts(family)
        family.take_apart(lambda _: True)
        samples = samples_of(random.Random(1))
        plan = hf.Pipeline.static_plan(
            pipe, 0, hf.Pipeline.microbatches(pipe, samples, [0] * 6))
        hf.Pipeline._check(pipe, plan)
        frozen = dataclasses.replace(plan, tasks={
            i: t for i, t in plan.tasks.items()
            if t.kind == "F" or t.module == 1})
        with self.assertRaisesRegex(InvalidPlan, "no backward for stage 0 of "
                                    "vision.*requires_grad_"):
            hf.Pipeline._check(pipe, frozen)
        with self.assertRaisesRegex(InvalidPlan, "another job"):
            hf.Pipeline._check(pipe, dataclasses.replace(
                plan, module_names=("a", "b")))


class _Parts:
    """The parts of a Pipeline that some methods need, without processes."""

    def __init__(self, family):
        self.family, self.rank = family, 0
        self._chains = {c.name: c for c in family.chains}
        self.partition = hf.Partition(NAMES, (Stage(0, 0, 5, 0, 0),
                                              Stage(1, 0, 5, 0, 0)))
        self.stages = {0: torch.nn.Linear(1, 1), 1: torch.nn.Linear(1, 1)}


if __name__ == "__main__":
    unittest.main()
