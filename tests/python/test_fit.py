"""pipeloom.fit: the plans that a trainer may run, and the reasons for which it
refuses others. No service and no processes."""
import dataclasses
import os
import sys
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
sys.path.insert(0, os.path.join(ROOT, "python"))

from pipeloom import fit  # noqa: E402
from pipeloom.plan import Microbatch, SubMicrobatch  # noqa: E402
from pipeloom.static_schedule import Stage, static_plan  # noqa: E402

# Two stages of vision on rank 0, and two of text on rank 1.
STAGES = (Stage(0, 0, 1, 0, 0), Stage(0, 1, 1, 0, 1), Stage(1, 0, 1, 1, 0),
          Stage(1, 1, 1, 1, 1))
MODULES = ("vision", "text")


def plan_of(images=(1, 1), **kwargs):
    """Returns the plan of two microbatches with sub-microbatches of images."""
    micro = [Microbatch((m,), 0.5, tuple(
        [SubMicrobatch(0, j, j, 1) for j in range(n)] +
        [SubMicrobatch(1, 0, 0, 1)])) for m, n in enumerate(images)]
    return dataclasses.replace(
        static_plan(STAGES, ((0, 1),), micro, MODULES, job="job"), **kwargs)


def without(plan, gone):
    """Returns the plan without the tasks for which `gone` holds."""
    tasks = {i: t for i, t in plan.tasks.items() if not gone(t)}
    edges = {i: e for i, e in plan.edges.items()
             if e.source in tasks and e.target in tasks}

    def kept(instruction):
        op, arg = instruction
        if op == "compute":
            return arg in tasks
        return arg < 0 or arg in edges

    return dataclasses.replace(plan, tasks=tasks, edges=edges, programs={
        r: tuple(i for i in program if kept(i))
        for r, program in plan.programs.items()})


def share_of(plan, rank):
    """Returns one rank's share."""
    mine = {i for i, t in plan.tasks.items() if t.rank == rank}
    edges = {e: edge for e, edge in plan.edges.items()
             if mine & {edge.source, edge.target}}
    ends = {t for edge in edges.values() for t in (edge.source, edge.target)}
    return dataclasses.replace(
        plan, edges=edges, programs={rank: plan.programs[rank]},
        tasks={i: t for i, t in plan.tasks.items() if i in mine | ends})


class FitTest(unittest.TestCase):

    def misfit(self, plan, rank=None, **kwargs):
        return fit.misfit(plan if rank is None else share_of(plan, rank),
                          job_id="job", step=0, replica=0, rank=rank,
                          stages=STAGES, module_names=MODULES, **kwargs)

    def test_a_module_may_be_without_backwards(self):
        plan = plan_of()
        frozen = without(plan, lambda t: t.kind == "B" and t.module == 0)
        for rank in (None, 0, 1):
            for modules in (None, {"vision"}, {"vision", "text"}):
                self.assertIsNone(self.misfit(frozen, rank, frozen=modules))
            self.assertIsNone(self.misfit(plan, rank, frozen=set()))
            self.assertIsNone(self.misfit(plan, rank))
        # Text is frozen; it has a backward where the images' tower gets one.
        partly = without(plan_of((1, 0)), lambda t: t.kind == "B" and
                         t.module == 1 and t.microbatch == 1)
        for rank in (None, 0, 1):
            self.assertIsNone(self.misfit(partly, rank, frozen={"text"}))

    def test_a_trained_module_without_backwards_is_refused(self):
        frozen = without(plan_of(), lambda t: t.kind == "B" and t.module == 0)
        why = ("pass B of stage 0, microbatch 0, sub-microbatch 0 is missing; "
               "vision is not in training.frozen_modules")
        for rank in (None, 0):
            self.assertEqual(self.misfit(frozen, rank, frozen=set()), why)
            self.assertEqual(self.misfit(frozen, rank, frozen={"text"}), why)
        self.assertIsNone(self.misfit(frozen, 1, frozen=set()))

    def test_a_backward_on_some_stages_only_is_refused(self):
        for stage, rank in ((0, 0), (1, 0), (2, 1), (3, 1)):
            broken = without(plan_of(), lambda t, s=stage: (
                t.kind, t.stage, t.microbatch) == ("B", s, 1))
            for frozen in (None, set(MODULES)):
                for own in (None, rank):
                    self.assertEqual(
                        self.misfit(broken, own, frozen=frozen),
                        f"pass B of stage {stage}, microbatch 1, "
                        "sub-microbatch 0 is missing")

    def test_a_weight_gradient_without_a_backward_is_refused(self):
        plan = without(plan_of(), lambda t: t.kind == "B" and t.module == 0)
        first = next(i for i, t in plan.tasks.items() if t.stage == 0)
        self.assertEqual(self.misfit(dataclasses.replace(plan, tasks={
            **plan.tasks, 1000: dataclasses.replace(plan.tasks[first],
                                                    kind="W")})),
            "a weight gradient is of no backward")

    def test_a_surplus_backward_is_refused(self):
        plan = plan_of()
        first = next(i for i, t in plan.tasks.items() if t.kind == "B")
        self.assertIn("is surplus", self.misfit(dataclasses.replace(
            plan, tasks={**plan.tasks, 1000: dataclasses.replace(
                plan.tasks[first], sub=7)})))


if __name__ == "__main__":
    unittest.main()
