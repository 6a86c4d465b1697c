"""pipeloom.torch: plans carried out by processes over gloo give the gradients
of one process."""
import os
import random
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../python"))

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch import nn
    HAVE_TORCH = dist.is_available()
except ImportError:
    HAVE_TORCH = False

try:
    import google.protobuf  # noqa: F401
    import grpc  # noqa: F401
    HAVE_GRPC = True
except ImportError:
    HAVE_GRPC = False

from gloo_ranks import free_port, run_ranks  # noqa: E402

if HAVE_TORCH and HAVE_GRPC:
    from pipeloom import static_schedule as sp
    from pipeloom.execution.step import Step
    from pipeloom.plan import Microbatch, SubMicrobatch, loss_weights
    from pipeloom.torch import Executor, PlanMismatch
    from pipeloom.transport import Transport, _opponents

WIDTH = 8
MODULES = ("vision", "text")
FEEDS = ((0, 1),)


if HAVE_TORCH:
    class Layer(nn.Module):
        """A stage of the small model: an encoder of images, or a text model
        that takes their embeddings in."""

        def __init__(self, module, index, last):
            super().__init__()
            self.module = module
            self.index = index
            self.norm = nn.LayerNorm(WIDTH)
            self.linear = nn.Linear(WIDTH, WIDTH)
            self.drop = nn.Dropout(0.0)
            self.head = nn.Linear(WIDTH, 1) if last else None

        def forward(self, x, item):
            if self.module == 0 and x is None:
                first = item.first_instance
                images = item.batch["images"][item.microbatch]
                x = images[first:first + item.instances]
            if self.module == 1 and (x is None or isinstance(x, dict)):
                text = item.batch["text"][item.microbatch]
                if x is not None:
                    text = text + torch.cat(x["vision"]).sum(0)
                x = text
            x = x + self.drop(torch.tanh(self.linear(self.norm(x))))
            return x if self.head is None else self.head(x)


def build(stages, seed=0):
    torch.manual_seed(seed)
    last = max(i for i, s in enumerate(stages) if s.module == 1)
    return [Layer(s.module, i, i == last) for i, s in enumerate(stages)]


def loss_of(output, item):
    target = item.batch["target"][item.microbatch]
    return ((output - target) ** 2).mean()


def make_batch(seed, subs):
    """Random microbatches: number of sub-microbatches of images by entry of
    `subs`, each of 0 to 3 images (0 in all: no images)."""
    generator = torch.Generator().manual_seed(seed)
    rng = random.Random(seed)
    batch = {"images": [], "text": [], "target": []}
    microbatches = []
    sizes = [rng.randint(1, 5) for _ in subs]
    for m, n in enumerate(subs):
        entries, first = [], 0
        for j in range(n):
            images = rng.randint(1, 3)
            entries.append(SubMicrobatch(0, j, first, images))
            first += images
        entries.append(SubMicrobatch(1, 0, 0, 1))
        batch["images"].append(torch.randn(first, WIDTH, generator=generator))
        batch["text"].append(torch.randn(sizes[m], WIDTH, generator=generator))
        batch["target"].append(torch.randn(sizes[m], 1, generator=generator))
        microbatches.append(
            Microbatch((m,), loss_weights(sizes)[m], tuple(entries)))
    return batch, microbatches


def serial(layers, stages, batch, microbatches):
    """The same step without pipeline: loss, and gradients by stage."""
    total = 0.0
    for m, micro in enumerate(microbatches):
        encoded = []

        class Item:
            pass

        for sub in micro.subs:
            item = Item()
            item.batch, item.microbatch = batch, m
            item.first_instance, item.instances = (sub.first_instance,
                                                   sub.instances)
            x = None
            if sub.module == 1 and encoded:
                x = {"vision": encoded}
            for i, s in enumerate(stages):
                if s.module == sub.module:
                    x = layers[i](x, item)
            if sub.module == 0:
                encoded.append(x)
            else:
                loss = loss_of(x, item) * micro.loss_weight
                loss.backward()
                total += float(loss.detach())
    return total


def partition(ranks, chunks, vee=False):
    """Vision first, then text: one module a segment, or one rank each."""
    stages = []
    for c in range(chunks):
        for r in range(ranks):
            module = 0 if c * ranks + r < ranks * chunks // 2 else 1
            rank = ranks - 1 - r if vee and c % 2 else r
            stages.append(sp.Stage(module, len(stages), 1, rank, c))
    return stages


def random_orders(graph, ranks, rng):
    """Any legal order: the executor must carry out whatever it is given."""
    waiting = {i: 0 for i in range(len(graph.tasks))}
    after = {i: [] for i in waiting}
    for e in graph.edges:
        waiting[e.target] += 1
        after[e.source].append(e.target)
    ready = [i for i, n in waiting.items() if n == 0]
    orders = [[] for _ in range(ranks)]
    while ready:
        t = ready.pop(rng.randrange(len(ready)))
        orders[graph.tasks[t].rank].append(t)
        for u in after[t]:
            waiting[u] -= 1
            if waiting[u] == 0:
                ready.append(u)
    return orders


def cases():
    for ranks, chunks, vee in ((2, 1, False), (2, 2, False), (3, 2, True),
                               (4, 1, False)):
        for split in (False, True):
            yield ranks, chunks, vee, split


def plans_for(ranks, chunks, vee, split, microbatches, seed):
    import dataclasses
    stages = partition(ranks, chunks, vee)
    counts = [{0: sum(s.module == 0 for s in m.subs), 1: 1}
              for m in microbatches]
    counts = [{k: v for k, v in c.items() if v} for c in counts]
    graph = sp.build_graph(stages, FEEDS, counts, split_backward=split)
    rng = random.Random(seed)
    tasks = tuple(
        dataclasses.replace(t, recomputes=t.kind == "B" and
                            rng.random() < 0.3) for t in graph.tasks)
    graph = sp.Graph(tasks, graph.edges)
    plan = sp.plan_of(graph, random_orders(graph, ranks, rng), MODULES,
                      microbatches, "random", seed)
    return stages, plan


def share_of(plan, rank):
    """As much as the service gives one rank: its tasks, its edges, and who is
    at their far ends."""
    import dataclasses
    mine = {i for i, t in plan.tasks.items() if t.rank == rank}
    edges = {e: edge for e, edge in plan.edges.items()
             if mine & {edge.source, edge.target}}
    ends = {t for edge in edges.values() for t in (edge.source, edge.target)}
    return dataclasses.replace(
        plan, edges=edges, programs={rank: plan.programs[rank]},
        tasks={i: (t if i in mine else
                   dataclasses.replace(t, duration_ns=0, recomputes=False))
               for i, t in plan.tasks.items() if i in mine | ends})


class SentTensors:
    """Whether a step keeps a tensor whose send has been waited for. Parts of a
    larger tensor are left out: they live as long as the last of them."""

    def __init__(self):
        self.count = 0
        self.kept = 0
        self.most = 0  # Sent tensors at once, without shape_of.
        self._step = None
        run, wait_send = Step.run, Transport.wait_send

        def watched_run(step):
            self._step = step
            return run(step)

        def watched(transport, edge):
            if transport._shape_of is None:  # Waits for word of the receiver.
                self.most = max(self.most, len(transport._sent))
                return
            data = transport._sent[edge][1][0]
            address = data.data_ptr()
            whole = (data.numel() * data.element_size() ==
                     data.storage().nbytes())
            wait_send(transport, edge)
            if edge in transport._sent:
                self.kept += 1
            if whole and data.numel() > 0:
                self.count += 1
                self.kept += address in self._held()

        Step.run, Transport.wait_send = watched_run, watched

    def _held(self):
        step = self._step
        tensors = list(step.values.values())
        for kept in step.kept.values():
            for leaf in kept.leaves.values():
                tensors += [leaf] + [leaf.grad] * (leaf.grad is not None)
            tensors += kept.outputs.values()
        return {t.data_ptr() for t in tensors}


def worker(rank, world, port, queue, ordered):
    torch.set_num_threads(1)
    sent = SentTensors()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      USE_LIBUV="0")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    try:
        worst = 0.0
        for index, (ranks, chunks, vee, split) in enumerate(cases()):
            if ranks != world:
                continue
            stages = partition(ranks, chunks, vee)
            layers = build(stages)
            mine = {i: layers[i] for i, s in enumerate(stages)
                    if s.rank == rank}
            batch = None

            def shape_of(plan, edge):
                ends = (plan.edges[edge].source, plan.edges[edge].target)
                # The edge carries an output or its gradient.
                of = [plan.tasks[t] for t in ends]
                made = of[0] if of[0].kind == "F" else of[1]
                micro = plan.microbatches[made.microbatch]
                rows = (len(batch["text"][made.microbatch])
                        if made.module == 1 else
                        next(s.instances for s in micro.subs
                             if (s.module, s.index) == (0, made.sub)))
                return (rows, WIDTH), torch.float32

            executor = Executor(mine, rank=rank, loss_fn=loss_of,
                                ordered=ordered,
                                shape_of=shape_of if split else None)
            for seed in range(4):
                batch, microbatches = make_batch(
                    seed, [seed % 3, 2, 0, 1, 3][:2 + seed])
                _, plan = plans_for(ranks, chunks, vee, split, microbatches,
                                    100 * index + seed)
                for layer in layers:
                    layer.zero_grad()
                if seed % 2:
                    plan = share_of(plan, rank)
                result = executor.run(plan, batch)
                reference = build(stages)
                loss = serial(reference, stages, batch, microbatches)
                for i in mine:
                    for a, b in zip(mine[i].parameters(),
                                    reference[i].parameters()):
                        left = (a.grad if a.grad is not None
                                else torch.zeros_like(a))
                        right = (b.grad if b.grad is not None
                                 else torch.zeros_like(b))
                        worst = max(worst, float((left - right).abs().max()))
                # Clipping sees the stages of all ranks.
                for norm_type in (2.0, float("inf")):
                    bound = 0.1 * (seed + 1)
                    norm = executor.clip_grad_norm_(bound, norm_type)
                    expected = torch.nn.utils.clip_grad_norm_(
                        [p for layer in reference
                         for p in layer.parameters()], bound, norm_type)
                    worst = max(worst, abs(float(norm - expected)), *(
                        float((a.grad - b.grad).abs().max()) for i in mine
                        for a, b in zip(mine[i].parameters(),
                                        reference[i].parameters())
                        if a.grad is not None and b.grad is not None))
                total = torch.tensor([result.loss])
                dist.all_reduce(total)
                worst = max(worst, abs(float(total) - loss))
                if len(result.spans) != sum(
                        t.rank == rank for t in plan.tasks.values()):
                    raise AssertionError("a task has no span")
        if sent.count == 0 or sent.kept > 0:
            raise AssertionError(f"{sent.kept} of {sent.count} tensors are "
                                 "kept after their send")
        # Two ranks with different plans: refused by both, nothing is sent.
        import dataclasses
        other = dataclasses.replace(plan, checksum=(rank, 1))
        try:
            executor.run(other, batch)
            raise AssertionError("different plans were run")
        except PlanMismatch:
            pass
        queue.put((rank, worst))
    except Exception as error:  # pylint: disable=broad-except
        queue.put((rank, repr(error)))
        raise
    finally:
        dist.destroy_process_group()


def many_microbatches(rank, world, port, queue, ordered):
    """1F1B with many microbatches: a rank keeps few tensors that it has
    sent."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      USE_LIBUV="0")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    sent = SentTensors()
    stages = [sp.Stage(1, r, 1, r, 0) for r in range(world)]
    batch, microbatches = make_batch(0, [0] * 24)
    plan = sp.static_plan(stages, (), microbatches, MODULES)
    Executor({rank: build(stages)[rank]}, rank=rank, loss_fn=loss_of,
             ordered=ordered).run(plan, batch)
    queue.put((rank, float(sent.most)))
    dist.barrier()


def wrapped_stage(rank, world, port, queue, ordered):
    """A stage that averages gradients by itself in each backward."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      USE_LIBUV="0")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    stage = nn.Sequential(
        nn.parallel.DistributedDataParallel(nn.Linear(2, 2)))
    try:
        Executor({0: stage}, rank=rank, loss_fn=loss_of, ordered=ordered)
        queue.put((rank, "it was taken"))
    except ValueError as error:
        said = "stages[0] has a module of DistributedDataParallel"
        queue.put((rank, 0.0 if said in str(error) else str(error)))
    dist.destroy_process_group()


def shared_output(changes):
    """Returns the work of a rank: an encoder feeds two modules, the first of
    which changes its input in place, or a copy of it."""
    class Part(nn.Module):
        def __init__(self, name):
            super().__init__()
            self.name = name
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x, item):
            if x is None:
                return self.linear(item.batch)
            x = x["vision"][0]
            if self.name == "audio":
                x = x if changes else x.clone()
                x += 1.0
            return self.linear(x)

    def work(rank):
        names = ("vision", "audio", "text")
        torch.manual_seed(0)
        parts = [Part(name) for name in names]
        stages = [sp.Stage(0, 0, 1, 0), sp.Stage(1, 0, 1, 0),
                  sp.Stage(2, 0, 1, 1)]
        plan = sp.static_plan(
            stages, ((0, 1), (0, 2)), [Microbatch((0,), 1.0, tuple(
                SubMicrobatch(m, 0, 0, 1) for m in range(3)))], names)
        mine = {i: parts[i] for i, s in enumerate(stages) if s.rank == rank}
        batch = torch.ones(2, WIDTH)
        try:
            result = Executor(mine, rank=rank, loss_fn=lambda y, _: y.square(
            ).mean()).run(plan, batch)
        except RuntimeError as error:
            return str(error)
        total = torch.tensor([result.loss])
        dist.all_reduce(total)
        vision = parts[0].linear(batch)
        wanted = (parts[1].linear(vision + 1.0).square().mean() +
                  parts[2].linear(vision).square().mean())
        return abs(float(total - wanted.detach()))

    return work


def run_world(world, ordered, work=worker):
    context = mp.get_context("fork")
    queue = context.Queue()
    port = free_port()
    processes = [context.Process(target=work,
                                 args=(r, world, port, queue, ordered))
                 for r in range(world)]
    for p in processes:
        p.start()
    results = {}
    for _ in processes:
        rank, worst = queue.get(timeout=120)
        results[rank] = worst
        if isinstance(worst, str):
            break
    for p in processes:
        if any(isinstance(w, str) for w in results.values()):
            p.terminate()
        p.join(60)
    return results


@unittest.skipUnless(HAVE_TORCH, "torch with torch.distributed is missing")
@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class ExecutorTest(unittest.TestCase):

    def check(self, world, ordered=False):
        results = run_world(world, ordered)
        self.assertEqual(sorted(results), list(range(world)), results)
        for rank, worst in results.items():
            self.assertIsInstance(worst, float, f"rank {rank}: {worst}")
            self.assertLess(worst, 1e-5, f"rank {rank}")

    def test_any_legal_order_gives_the_gradients_of_one_process_2_ranks(self):
        self.check(2)

    def test_any_legal_order_gives_the_gradients_of_one_process_3_ranks(self):
        self.check(3)

    def test_messages_matched_by_order_as_nccl_does(self):
        for world in (2, 3, 4):
            with self.subTest(world=world):
                self.check(world, ordered=True)

    def test_sent_tensors_are_dropped_once_they_have_come(self):
        for ordered in (False, True):
            most = run_world(3, ordered, many_microbatches)
            # Those of the warm-up, and of its first return.
            self.assertLessEqual(max(most.values()), 4.0, most)

    def test_stages_that_average_gradients_themselves_are_refused(self):
        self.assertEqual(run_world(1, False, wrapped_stage), {0: 0.0})

    def test_an_input_that_others_take_is_not_changed_in_place(self):
        results = run_ranks(2, shared_output(changes=True))
        self.assertIn("stage 1 of audio has changed its input in place, the "
                      "output of vision that other modules take", results[0])
        self.assertIn("rank 0", results[1])
        for off in run_ranks(2, shared_output(changes=False)).values():
            self.assertLess(off, 1e-6)

    def test_each_rank_meets_each_other_once(self):
        for size in range(1, 10):
            rounds = list(zip(*(_opponents(size, r) for r in range(size))))
            for meets in rounds:
                self.assertEqual([meets[m] for m in meets], list(range(size)))
            for r in range(size):
                others = [meets[r] for meets in rounds if meets[r] != r]
                self.assertEqual(sorted(others + [r]), list(range(size)))


if __name__ == "__main__":
    unittest.main()
