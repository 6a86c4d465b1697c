"""Losses of sub-microbatches: with the weights of a plan's loss_shares, the
losses and gradients of a batch are those of one process, however it was cut."""
import dataclasses
import os
import random
import sys
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "python"))

try:
    import torch
    import torch.distributed as dist
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

from gloo_ranks import run_ranks  # noqa: E402
from pipeloom import loss, plan as plans  # noqa: E402
from pipeloom.check import InvalidPlan, check_plan  # noqa: E402
from pipeloom.loss import LossShare  # noqa: E402
from pipeloom.plan import Microbatch, SubMicrobatch  # noqa: E402
from pipeloom.static_schedule import (Stage, build_graph, plan_of,  # noqa: E402
                                      static_plan)

if HAVE_GRPC:
    import pipeloom
    from pipeloom import messages
if HAVE_TORCH and HAVE_GRPC:
    from pipeloom.provider import with_weights
    from pipeloom.torch import Executor, StepFailed
    from test_torch import random_orders, share_of

WIDTH = 4
MODULES = ("text", "image")
FEEDS = ((0, 1),)  # Text has a loss, and feeds the images' module.
STAGES = (Stage(0, 0, 1, 0, 0), Stage(0, 1, 1, 1, 0), Stage(1, 0, 1, 0, 1),
          Stage(1, 1, 1, 1, 1))
# Numbers of sub-microbatches of text and of images, for each microbatch.
CUTS = (((1, 1), (1, 1)), ((2, 1), (3, 1)), ((1, 2), (1, 3)),
        ((3, 3), (1, 1), (2, 2)), ((2, 3),))


def described(cuts, seed=0):
    """Returns microbatches with their sizes, weighed by their rows: a row of
    text is an instance, and gives a row of an image."""
    rng = random.Random(seed)
    rows = [[rng.randint(3, 6) for _ in range(text)] for text, _ in cuts]
    total = sum(map(sum, rows))
    result = []
    for m, (_, images) in enumerate(cuts):
        subs, first = [], 0
        for j, n in enumerate(rows[m]):
            subs.append(SubMicrobatch(0, j, first, n, n))
            first += n
        for i in range(images):
            # As many rows of each text as torch.tensor_split gives.
            n = sum(own // images + (i < own % images) for own in rows[m])
            subs.append(SubMicrobatch(1, i, 0, n, 7 * n))
        result.append(Microbatch((m,), first / total, tuple(subs)))
    return result


def with_shares(plan, replicas=1):
    """Returns the plan as the service gives it: all modules have a loss."""
    shares = {(s.module, m, s.index): LossShare(s.tokens, s.instances)
              for m, micro in enumerate(plan.microbatches)
              for s in micro.subs}
    totals = {module: LossShare(*(replicas * sum(column) for column in zip(
        *(share for place, share in shares.items() if place[0] == module))))
        for module in range(len(MODULES))}
    return dataclasses.replace(plan, loss_shares=shares, loss_totals=totals)


def plan_for(cuts, seed=0, split=False):
    """Returns a plan with a random order and random recomputation."""
    micro = described(cuts, seed)
    graph = build_graph(STAGES, FEEDS, [
        {0: text, 1: images} for text, images in cuts], split_backward=split)
    rng = random.Random(seed)
    graph = dataclasses.replace(graph, tasks=tuple(
        dataclasses.replace(t, recomputes=t.kind == "B" and
                            rng.random() < 0.3) for t in graph.tasks))
    orders = [[i for i, t in enumerate(graph.tasks) if t.rank == r]
              for r in range(2)]
    if HAVE_TORCH and HAVE_GRPC:
        orders = random_orders(graph, 2, rng)
    return plan_of(graph, orders, MODULES, micro, "random")


class WeightsTest(unittest.TestCase):

    def test_weights_are_shares_of_the_total(self):
        plan = with_shares(plan_for(CUTS[3]))
        weights = loss.weigh(plan)
        self.assertEqual(weights.keys(), plan.loss_shares.keys())
        for module in range(2):
            own = {p: w for p, w in weights.items() if p[0] == module}
            self.assertAlmostEqual(sum(own.values()), 1.0)
            for place, weight in own.items():
                self.assertEqual(weight, plan.loss_shares[place].tokens /
                                 plan.loss_totals[module].tokens)
        halves = loss.weigh(with_shares(plan, replicas=2))
        self.assertAlmostEqual(sum(halves.values()), 1.0)

    def test_the_mean_is_over_what_the_trainer_says(self):
        plan = plan_for(((2, 1), (1, 1)))
        place = (0, 0, 0)
        plan = dataclasses.replace(
            with_shares(plan), loss_totals={0: LossShare(100, 10),
                                            1: LossShare(0, 20)},
            loss_shares={place: LossShare(30, 1), (0, 0, 1): LossShare(10, 3),
                         (0, 1, 0): LossShare(60, 6),
                         (1, 0, 0): LossShare(0, 5),
                         (1, 1, 0): LossShare(0, 15)})
        self.assertIsNone(loss.wrong_shares(plan, (0, 1)))
        self.assertEqual(loss.weigh(plan)[place], 0.3)
        self.assertEqual(loss.weigh(plan, "instances")[place], 0.1)
        weight = plan.microbatches[0].loss_weight
        self.assertAlmostEqual(loss.weigh(plan, "text")[place], 0.75 * weight)
        by_module = loss.weigh(plan, {"text": "text"})
        self.assertAlmostEqual(by_module[place], 0.75 * weight)
        # A module without tokens is weighed by its instances.
        self.assertEqual(by_module[1, 0, 0], 0.25)
        with self.assertRaisesRegex(ValueError, "names texts; the plan has "
                                    "text, image"):
            loss.weigh(plan, {"texts": "text"})
        with self.assertRaisesRegex(ValueError, "'words'; it must be one of"):
            loss.check_over({"text": "words"})

    def test_a_microbatch_without_text_has_no_mean_over_text(self):
        plan = with_shares(plan_for(((2, 1), (1, 1))))
        first, *rest = plan.microbatches
        plan = dataclasses.replace(plan, microbatches=(
            dataclasses.replace(first, loss_weight=0.0), *rest))
        places = {place for place in plan.loss_shares if place[1] > 0}
        self.assertEqual(set(loss.weigh(plan, "text")), places)

    def test_nothing_has_no_loss(self):
        plan = dataclasses.replace(
            plan_for(((1, 1), (1, 1))), loss_totals={0: LossShare(5, 1)},
            loss_shares={(0, 0, 0): LossShare(5, 1), (0, 1, 0): LossShare()})
        self.assertEqual(loss.weigh(plan), {(0, 0, 0): 1.0})

    def test_other_samples_have_weights_of_their_own(self):
        plan = with_shares(plan_for(((2, 1), (1, 1)), seed=1))
        other = described(((2, 1), (1, 1)), seed=2)
        self.assertNotEqual(other, list(plan.microbatches))
        moved = plan.with_microbatches(5, other)
        sizes = [s.tokens for s in other[0].subs if s.module == 0]
        self.assertEqual(loss.weigh(moved)[0, 0, 1],
                         other[0].loss_weight * sizes[1] / sum(sizes))
        self.assertEqual(loss.weigh(moved)[0, 1, 0], other[1].loss_weight)
        unsized = [dataclasses.replace(m, subs=tuple(
            SubMicrobatch(s.module, s.index) for s in m.subs)) for m in other]
        with self.assertRaisesRegex(ValueError, "microbatch 0 has 2 sub-"
                                    "microbatches of module 0, which has a"):
            plan.with_microbatches(5, unsized)
        # Without sub-microbatches all is as the trainer's weights say.
        whole = with_shares(plan_for(((1, 1), (1, 1))))
        weights = loss.weigh(whole.with_microbatches(
            5, [Microbatch((0,), 0.25), Microbatch((1,), 0.75)]))
        self.assertEqual(weights, {(0, 0, 0): 0.25, (1, 0, 0): 0.25,
                                   (0, 1, 0): 0.75, (1, 1, 0): 0.75})

    def test_shares_that_cannot_be_are_refused(self):
        plan = with_shares(plan_for(((2, 1),)))
        check_plan(plan)

        def shares(change):
            return dataclasses.replace(
                plan, loss_shares={**plan.loss_shares, **change})

        missing = dict(plan.loss_shares)
        del missing[0, 0, 1]
        for broken, why in (
                (dataclasses.replace(plan, loss_shares=missing),
                 "module 0, microbatch 0, sub-microbatch 1 has no loss_share"),
                (dataclasses.replace(plan, loss_shares={}),
                 "has no loss_share"),
                (shares({(0, 0, 0): LossShare(-1, 0)}), "must be >= 0"),
                (shares({(0, 0, 0): LossShare(1000, 0)}),
                 "the loss_total of module 0"),
                (dataclasses.replace(plan, loss_totals={
                    **plan.loss_totals, 1: LossShare()}), "one must be > 0"),
                (dataclasses.replace(plan, loss_totals={
                    0: plan.loss_totals[0]}), "and no loss_total")):
            with self.assertRaisesRegex(InvalidPlan, why):
                check_plan(broken)
        # Modules without a loss have no shares.
        check_plan(dataclasses.replace(
            plan, loss_totals={1: plan.loss_totals[1]},
            loss_shares={p: s for p, s in plan.loss_shares.items()
                         if p[0] == 1}))

    def test_a_static_plan_has_shares_where_they_are_needed(self):
        for cuts, needed in ((((2, 1), (1, 1)), False),
                             (((1, 2), (1, 1)), True)):
            micro = described(cuts)
            plan = static_plan(STAGES, FEEDS, micro, MODULES)
            self.assertEqual(set(plan.loss_shares), {
                (1, m, s.index) for m, of in enumerate(micro) for s in of.subs
                if s.module == 1} if needed else set())
        unsized = [Microbatch((0,), 1.0, (SubMicrobatch(0), SubMicrobatch(1),
                                          SubMicrobatch(1, 1)))]
        self.assertEqual(static_plan(STAGES, FEEDS, unsized,
                                     MODULES).loss_shares, {})


@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class MessagesTest(unittest.TestCase):

    def test_messages_of_plans_have_shares(self):
        quality = messages.enum_value("PlanQuality", "PLAN_QUALITY_FULL")
        whole = messages.GetPlanResponse(quality=quality)
        whole.plan.format, whole.plan.version = "pipeloom.plan", 1
        share = messages.RankPlan(num_ranks=1, quality=quality)
        for of in (whole.plan, share):
            of.loss_shares.add(module=1, microbatch=2, sub_microbatch=3,
                               tokens=4, instances=5)
            of.loss_totals.add(module=1, tokens=40, instances=50)
        for plan in (plans.from_response(whole), plans.from_rank_plan(share)):
            self.assertEqual(plan.loss_shares, {(1, 2, 3): LossShare(4, 5)})
            self.assertEqual(plan.loss_totals, {1: LossShare(40, 50)})

    def test_a_last_good_plan_needs_sizes_of_what_has_a_loss(self):
        plan = with_shares(plan_for(((2, 1),)))
        sized = described(((2, 1),), seed=3)
        unsized = [dataclasses.replace(m, subs=tuple(
            SubMicrobatch(s.module, s.index) for s in m.subs)) for m in sized]
        provider = pipeloom.PlanProvider(
            None, lambda step, micro: static_plan(STAGES, FEEDS, micro,
                                                  MODULES, step))
        self.addCleanup(provider.close)
        provider._good.add(plan)
        self.assertEqual(provider.get(0, sized).schedule, "random")
        self.assertEqual(provider.get(1, unsized).schedule, "static-1f1b")
        self.assertEqual(provider.unfit, 1)


if HAVE_TORCH:
    class Part(nn.Module):
        """A stage of text, or of images, whose rows do not see each other."""

        def __init__(self, stage):
            super().__init__()
            self.first = stage in (0, 2)
            self.module = STAGES[stage].module
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x, item):
            if self.module == 0 and self.first:
                x = item.batch[item.microbatch][
                    item.first_instance:item.first_instance + item.instances]
            elif self.first:
                x = torch.cat(x["text"])
            return torch.tanh(self.linear(x))


def build():
    torch.manual_seed(0)
    return [Part(s) for s in range(len(STAGES))]


def mean_loss(output, module):
    return ((output - module) ** 2).mean()


def one_process(parts, batch, losses):
    """Returns the loss of the whole batch, and adds its gradients."""
    x = torch.cat(batch)
    total = torch.zeros(())
    for s, part in enumerate(parts):
        x = torch.tanh(part.linear(x))
        if s in (1, 3) and MODULES[part.module] in losses:
            total = total + mean_loss(x, part.module)
    total.backward()
    return float(total.detach())


def variants(cuts, seed):
    """Yields plans, and the modules with a loss in them."""
    for split in (False, True):
        plan = with_shares(plan_for(cuts, seed, split))
        yield plan, MODULES
        yield with_weights(plan, plan.microbatches), MODULES
        yield plan.with_microbatches(1, plan.microbatches), MODULES
        only = dataclasses.replace(
            plan, loss_totals={1: plan.loss_totals[1]},
            loss_shares={p: s for p, s in plan.loss_shares.items()
                         if p[0] == 1})
        yield only, ("image",)
    # The executor has met a loss of text in the plans before.
    yield (static_plan(STAGES, FEEDS, described(cuts, seed), MODULES),
           MODULES)


def work(rank):
    """Returns the largest difference from one process."""
    worst = 0.0
    parts = build()
    mine = {s: parts[s] for s in range(len(STAGES))
            if STAGES[s].rank == rank}
    executor = Executor(mine, rank=rank, loss_over="tokens",
                        loss_fn=lambda output, item:
                        mean_loss(output, MODULES.index(item.module)))
    for seed, cuts in enumerate(CUTS):
        micro = described(cuts, seed)
        generator = torch.Generator().manual_seed(seed)
        batch = [torch.randn(sum(s.instances for s in m.subs
                                 if s.module == 0), WIDTH,
                             generator=generator) for m in micro]
        for i, (plan, losses) in enumerate(variants(cuts, seed)):
            for part in parts:
                part.zero_grad()
            reference = build()
            expected = one_process(reference, batch, losses)
            result = executor.run(share_of(plan, rank) if i % 2 else plan,
                                  batch)
            total = torch.tensor([result.loss])
            dist.all_reduce(total)
            worst = max(worst, abs(float(total) - expected))
            for s in mine:
                for a, b in zip(mine[s].parameters(),
                                reference[s].parameters()):
                    worst = max(worst,
                                float((a.grad - b.grad).abs().max()))
    def difference(executor, plan, losses, run="run"):
        reference = build()
        for part in parts:
            part.zero_grad()
        expected = one_process(reference, batch, losses)
        total = torch.tensor([getattr(executor, run)(plan, batch).loss])
        dist.all_reduce(total)
        off = [abs(float(total) - expected)]
        if run == "run":
            off += [float((gradient(a) - gradient(b)).abs().max())
                    for s in mine for a, b in zip(
                        mine[s].parameters(), reference[s].parameters())]
        return max(off)

    def gradient(parameter):
        return (torch.zeros_like(parameter) if parameter.grad is None
                else parameter.grad)

    def executor_of(losses=None, over="tokens", silent=()):
        return Executor(
            mine, rank=rank, loss_over=over, losses=losses,
            loss_fn=lambda output, item: None if item.module in silent else
            mean_loss(output, MODULES.index(item.module)))

    # A module whose loss_fn returns None has no loss in this training.
    planned = with_shares(plan_for(cuts, seed))
    fixed = static_plan(STAGES, FEEDS, described(cuts, seed), MODULES)
    image = dataclasses.replace(
        planned, loss_totals={1: planned.loss_totals[1]}, loss_shares={
            p: s for p, s in planned.loss_shares.items() if p[0] == 1})
    silent = executor_of(silent=("text",))
    worst = max(worst, *(difference(silent, plan, ("image",))
                         for plan in (planned, fixed, planned, image)))
    # The trainer's names hold for every plan, whichever shares it has.
    for losses in (MODULES, ("image",), ("text",)):
        named = executor_of(losses, over="text")
        for plan in (fixed, planned, image, with_weights(
                planned, planned.microbatches)):
            for run in ("run", "evaluate"):
                worst = max(worst, difference(named, share_of(
                    plan, rank), losses, run))
    for losses, over, plan, message in (
            (("sound",), "text", planned, "losses names sound; the plan "
             "has text, image"),
            (MODULES, "tokens", image, "has no loss_total of text")):
        try:
            executor_of(losses, over).run(plan, batch)
            raise AssertionError("it runs")
        except ValueError as error:
            assert message in str(error), error
    # A loss that an earlier step went without is no silent change.
    for run in ("run", "evaluate"):
        late = executor_of()
        getattr(late, run)(fixed, batch)
        try:
            late.run(planned, batch)
            raise AssertionError("it runs")
        except (RuntimeError, StepFailed) as error:
            assert "losses=[...]" in str(error), error
    return worst


@unittest.skipUnless(HAVE_TORCH, "torch with torch.distributed is missing")
@unittest.skipUnless(HAVE_GRPC, "grpcio or protobuf is missing")
class ExecutorTest(unittest.TestCase):

    def test_a_batch_that_was_cut_has_the_gradients_of_the_whole(self):
        for rank, worst in run_ranks(2, work).items():
            self.assertIsInstance(worst, float, f"rank {rank}: {worst}")
            self.assertLess(worst, 1e-5, f"rank {rank}")


if __name__ == "__main__":
    unittest.main()
