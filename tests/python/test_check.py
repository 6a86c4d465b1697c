"""pipeloom.check: plans of planner and static schedules pass, and what is
changed in them is refused, as a whole and as the share of a rank."""
import dataclasses
import os
import random
import re
import subprocess
import sys
import tempfile
import unittest
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../python"))

from pipeloom import messages  # noqa: E402
from pipeloom import static_schedule as sp  # noqa: E402
from pipeloom.check import InvalidPlan, check_plan  # noqa: E402
from pipeloom.plan import (Edge, Instruction, Microbatch, SubMicrobatch,  # noqa: E402
                           read_plan)

BINARY = os.environ.get("PIPELOOM_BINARY")
SEEDS = range(40)


def microbatches(counts):
    """Microbatches with these numbers of sub-microbatches of module 0."""
    return [Microbatch((m,), 1.0, tuple(
        [SubMicrobatch(0, j, j, 1) for j in range(n)] +
        [SubMicrobatch(1, 0, 0, 1)])) for m, n in enumerate(counts)]


def static_plans():
    flat = [sp.Stage(0, 0, 1, 0), sp.Stage(0, 1, 1, 1),
            sp.Stage(1, 0, 1, 0, 1), sp.Stage(1, 1, 1, 1, 1)]
    yield sp.static_plan(flat, [(0, 1)], microbatches([2, 0, 1, 3]),
                         ("vision", "text"))
    line = [sp.Stage(1, r, 1, r) for r in range(3)]
    graph = sp.build_graph(line, [], [{1: 1}] * 4, split_backward=True)
    yield sp.plan_of(graph, sp.megatron_orders(graph, line, 3),
                     ("vision", "text"), microbatches([0] * 4), "split")


def share_of(plan, rank):
    """Returns what a rank gets of a plan: its tasks and edges, and the tasks at
    the far ends of those."""
    tasks = plan.tasks
    edges = {e: d for e, d in plan.edges.items()
             if rank in (tasks[d.source].rank, tasks[d.target].rank)}
    near = {t for t, task in tasks.items() if task.rank == rank}
    near |= {t for d in edges.values() for t in (d.source, d.target)}
    return dataclasses.replace(
        plan, tasks={t: tasks[t] for t in sorted(near)}, edges=edges,
        programs={rank: plan.programs[rank]})


def with_task(plan, t, **changes):
    tasks = dict(plan.tasks)
    tasks[t] = dataclasses.replace(tasks[t], **changes)
    return dataclasses.replace(plan, tasks=tasks)


def with_program(plan, rank, program):
    programs = dict(plan.programs)
    programs[rank] = tuple(program)
    return dataclasses.replace(plan, programs=programs)


def any_of(rng, items):
    return rng.choice(sorted(items))


def place(rng, plan, *ops):
    """Returns (rank, index) of any instruction of these kinds."""
    places = [(r, i) for r, program in plan.programs.items()
              for i, (op, _) in enumerate(program) if op in ops]
    return rng.choice(places) if places else None


def place_of(task):
    return (task.module, task.stage, task.microbatch, task.sub, task.kind)


def backward_first(rng, plan):
    """A backward is computed right before its own forward."""
    t = any_of(rng, [t for t, k in plan.tasks.items() if k.kind == "B"])
    b = plan.tasks[t]
    program = [i for i in plan.programs[b.rank] if i != ("compute", t)]
    at = next(i for i, (op, arg) in enumerate(program) if op == "compute" and
              place_of(plan.tasks[arg]) == (*place_of(b)[:-1], "F"))
    program.insert(at, Instruction("compute", t))
    return with_program(plan, b.rank, program)


def backward_without_forward(rng, plan):
    """The same, without the edge that forbids it."""
    changed = backward_first(rng, plan)
    edges = {e: d for e, d in plan.edges.items()
             if (plan.tasks[d.source].kind, plan.tasks[d.target].kind) !=
             ("F", "B")}
    return dataclasses.replace(changed, edges=edges)


def duplicate(rng, plan):
    t = any_of(rng, plan.tasks)
    new = max(plan.tasks) + 1
    rank = plan.tasks[t].rank
    program = list(plan.programs[rank])
    program.insert(program.index(("compute", t)) + 1,
                   Instruction("compute", new))
    edges = dict(plan.edges)
    for d in plan.edges.values():
        if d.target == t and plan.tasks[d.source].rank == rank:
            edges[max(edges) + 1] = Edge(d.source, new)
    changed = with_program(plan, rank, program)
    return dataclasses.replace(changed, edges=edges,
                               tasks={**plan.tasks, new: plan.tasks[t]})


def other_number(field, limit):
    def change(rng, plan):
        t = any_of(rng, plan.tasks)
        now = getattr(plan.tasks[t], field)
        values = [v for v in range(limit(plan)) if v != now]
        return with_task(plan, t, **{field: rng.choice(values)})
    return change


def other_kind(rng, plan):
    t = any_of(rng, plan.tasks)
    kinds = [k for k in "FBWX" if k != plan.tasks[t].kind]
    return with_task(plan, t, kind=rng.choice(kinds))


def drop_task(rng, plan):
    """Drops a forward or a backward. Without its samples, a plan does not show
    that the last sub-microbatch of a frozen module of one stage is missing."""
    stages = {(k.module, k.stage) for k in plan.tasks.values()}
    trained = {k.module for k in plan.tasks.values() if k.kind == "B"}
    t = any_of(rng, [t for t, k in plan.tasks.items()
                     if k.kind != "W" and (k.module in trained or sum(
                         m == k.module for m, _ in stages) > 1)])
    gone = {e for e, d in plan.edges.items() if t in (d.source, d.target)}
    programs = {r: tuple(i for i in p if i != ("compute", t) and not (
        i.op in ("send", "recv", "wait_send", "wait_recv", "free") and
        i.arg in gone)) for r, p in plan.programs.items()}
    return dataclasses.replace(
        plan, programs=programs,
        tasks={i: k for i, k in plan.tasks.items() if i != t},
        edges={e: d for e, d in plan.edges.items() if e not in gone})


def drop(*ops):
    def change(rng, plan):
        where = place(rng, plan, *ops)
        if where is None:
            return None
        program = list(plan.programs[where[0]])
        del program[where[1]]
        return with_program(plan, where[0], program)
    return change


def repeat(*ops):
    def change(rng, plan):
        where = place(rng, plan, *ops)
        if where is None:
            return None
        program = list(plan.programs[where[0]])
        program.insert(where[1], program[where[1]])
        return with_program(plan, where[0], program)
    return change


def to_other_rank(rng, plan):
    rank, i = place(rng, plan, "compute", "send", "recv")
    other = rng.choice([r for r in plan.programs if r != rank])
    program = list(plan.programs[rank])
    moved = program.pop(i)
    there = list(plan.programs[other])
    there.insert(rng.randrange(len(there)), moved)
    return with_program(with_program(plan, rank, program), other, there)


def rewire(rng, plan):
    """An edge between forwards gets another microbatch's producer."""
    found = [e for e, d in plan.edges.items()
             if plan.tasks[d.source].kind == plan.tasks[d.target].kind == "F"]
    e = any_of(rng, found)
    a = plan.tasks[plan.edges[e].source]
    others = [t for t, k in plan.tasks.items()
              if k.kind == "F" and k.stage == a.stage and
              k.microbatch != a.microbatch]
    edges = dict(plan.edges)
    edges[e] = dataclasses.replace(edges[e], source=any_of(rng, others))
    return dataclasses.replace(plan, edges=edges)


MUTATIONS = {
    "backward before its forward": backward_first,
    "backward without its forward's edge": backward_without_forward,
    "duplicate pass": duplicate,
    "stage": other_number("stage", lambda p: 7),
    "module": other_number("module", lambda p: len(p.module_names) + 1),
    "microbatch": other_number("microbatch", lambda p: 6),
    "sub-microbatch": other_number("sub", lambda p: 4),
    "rank": other_number("rank", lambda p: p.num_ranks),
    "kind": other_kind,
    "missing pass": drop_task,
    "missing instruction": drop("compute", "send", "recv", "wait_recv", "free",
                                "fetch"),
    "repeated instruction": repeat("compute", "send", "recv", "wait_recv",
                                   "wait_send", "free", "offload", "fetch"),
    "instruction of another rank": to_other_rank,
    "other producer": rewire,
}


class CheckTest(unittest.TestCase):
    def assert_refused(self, plan):
        for name, change in MUTATIONS.items():
            for seed in SEEDS:
                changed = change(random.Random(seed), plan)
                if changed is None or changed == plan:
                    continue
                with self.subTest(name, seed=seed), \
                        self.assertRaises(InvalidPlan):
                    check_plan(changed)

    def test_static_plans_pass_and_their_mutants_do_not(self):
        for plan in static_plans():
            check_plan(plan)
            for rank in plan.programs:
                check_plan(plan, [rank])
                check_plan(share_of(plan, rank))
            self.assert_refused(plan)

    def test_a_rank_refuses_what_is_wrong_in_its_own_share(self):
        """A change on a rank is seen by that rank alone; with tasks it is enough
        that one of the ranks that the task's edges reach refuses it."""
        seen = ("backward before its forward", "duplicate pass", "kind",
                "missing instruction", "repeated instruction")
        for plan in static_plans():
            for name in seen:
                for seed in SEEDS:
                    changed = MUTATIONS[name](random.Random(seed), plan)
                    if changed is None:
                        continue
                    refused = 0
                    for rank in changed.programs:
                        try:
                            check_plan(share_of(changed, rank))
                        except InvalidPlan:
                            refused += 1
                    with self.subTest(name, seed=seed):
                        self.assertGreater(refused, 0)

    def test_messages_name_rank_task_and_what_is_right(self):
        plan = next(static_plans())
        t = next(t for t, k in plan.tasks.items()
                 if (k.kind, k.stage, k.microbatch) == ("B", 3, 1))
        with self.assertRaisesRegex(
                InvalidPlan, rf"rank 1, task {t} \(B stage 2 microbatch 1 "
                r"sub-microbatch 0\): its stage is of module 1 and on rank 0 by "
                r"task \d+, not of module 1 and on rank 1"):
            check_plan(with_task(plan, t, stage=2))
        with self.assertRaisesRegex(InvalidPlan, "no program of rank 5"):
            check_plan(plan, [5])

    def test_a_sub_microbatch_that_has_no_pass_is_named(self):
        plan = next(static_plans())
        more = list(plan.microbatches)
        more[2] = dataclasses.replace(
            more[2], subs=more[2].subs + (SubMicrobatch(0, 1, 1, 1),))
        with self.assertRaisesRegex(
                InvalidPlan, "microbatch 2 has a sub-microbatch 1 of module "
                "vision, for which"):
            check_plan(plan.with_microbatches(0, more))

    def test_sub_microbatches_are_numbered_from_0(self):
        plan = next(static_plans())
        for t, task in plan.tasks.items():
            if (task.module, task.microbatch, task.sub) == (0, 0, 1):
                plan = with_task(plan, t, sub=2)
        with self.assertRaisesRegex(
                InvalidPlan, "module vision, microbatch 0: it has a "
                "sub-microbatch 2 and no 1; they are numbered from 0"):
            check_plan(dataclasses.replace(plan, microbatches=()))

    @unittest.skipUnless(BINARY, "PIPELOOM_BINARY is not set")
    def test_plans_of_the_planner_pass_and_their_mutants_do_not(self):
        with tempfile.TemporaryDirectory() as folder:
            for job, partition in (("dip-t2v-s", "rule"),
                                   ("disttrain-9b", "rule"),
                                   ("disttrain-9b", "dip")):
                path = os.path.join(folder, job + ".pb")
                subprocess.run(
                    [BINARY, "plan", job, "--batch", "image_text",
                     "--partition", partition, "--evaluations", "10",
                     "--replicas", "1", "--out", path],
                    check=True, stdout=subprocess.DEVNULL)
                plan = read_plan(path)
                for rank in plan.programs:
                    check_plan(share_of(plan, rank))
                self.assert_refused(plan)

    @unittest.skipUnless(BINARY, "PIPELOOM_BINARY is not set")
    def test_a_plan_file_that_was_changed_is_refused_with_its_path(self):
        padded = ("training.shape_buckets="
                  '[{"module":"backbone","tokens":[4096,8192]}]')
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plan.pb")
            for job, batch, more in (("dip-t2v-s", "image_text", []),
                                     ("llama3-8b", "text", ["--set", padded])):
                subprocess.run(
                    [BINARY, "plan", job, "--batch", batch, *more,
                     "--partition", "rule", "--evaluations", "10",
                     "--replicas", "1", "--out", path],
                    check=True, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL)
                with open(path, "rb") as file:
                    good = file.read()
                read_plan(path)
                draw = random.Random(3)
                for _ in range(60):
                    changed = bytearray(good)
                    changed[draw.randrange(len(good))] ^= 1 << draw.randrange(8)
                    self.assert_file_refused(path, bytes(changed))
            proto = messages.ExecutionPlan.FromString(good)
            proto.graph.tasks[5].duration_ns += 1
            for content, words in (
                    (proto.SerializeToString(), "checksum is .* was changed"),
                    (good[:len(good) // 2], "no whole plan in protobuf form"),
                    (b"", "no plan of version 1")):
                self.assert_file_refused(path, content, words)

    def assert_file_refused(self, path, content, words=""):
        with open(path, "wb") as file:
            file.write(content)
        with warnings.catch_warnings(), self.assertRaisesRegex(
                InvalidPlan, re.escape(path) + ": .*" + words):
            warnings.simplefilter("ignore", RuntimeWarning)  # Of protobuf.
            read_plan(path)


if __name__ == "__main__":
    unittest.main()
